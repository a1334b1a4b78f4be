/* model_warm: what a backend gets ready at first use, before ranks wait for each other on devices.
 *
 * A library's kernel is loaded when it is first launched, which may wait until the device is idle;
 * in a step the device may be waiting for another rank, whose thread waits for the loader. Which
 * kernels those are depends on the shape: attention's products of large steps are chosen anew for
 * every TD_SMALL_STEP rows, so each such size is run once, each rank by itself. */
#include "common/model_impl.h"

static td_status warm_rank(void *ctx, int32_t rank, td_error *err)
{
    td_model *m = ctx;
    model_rank *r = &m->rank[rank];
    const td_layer_weights *w = &r->w.layer[0];
    const td_shard *s = &r->shard;
    size_t slots = (size_t)m->opt.max_tokens * sizeof(int32_t);
    td_status st = m->ops->dev_bind(r->dev, err);

    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, (int32_t *)r->inputs.ptr + m->in.slot_full,
                             (int32_t *)m->inputs.ptr + m->in.slot_full, slots, err);
    for (int32_t T = 2 * TD_SMALL_STEP; st == TD_OK && T < m->opt.max_tokens + TD_SMALL_STEP;
         T += TD_SMALL_STEP) {
        int32_t rows = T < m->opt.max_tokens ? T : m->opt.max_tokens;

        if (rows <= TD_SMALL_STEP)
            break;
        st = m->ops->attn_in(r->stream,
                             &(td_attn_in_args){.T = rows,
                                                .D = m->cfg.hidden,
                                                .H = s->n_q,
                                                .K = s->n_kv,
                                                .d = m->cfg.head_dim,
                                                .eps = m->cfg.eps,
                                                .x = r->x.ptr,
                                                .norm = &w->attn_norm,
                                                .qkv = &w->qkv,
                                                .bias = &w->qkv_bias,
                                                .cos = r->cos.ptr,
                                                .sin = r->sin.ptr,
                                                .pos = rank_input(r, m->in.pos),
                                                .slot = rank_input(r, m->in.slot_full),
                                                .kv = {.base = r->kv.ptr, .elt = TD_ELT_BF16},
                                                .q = r->q.ptr,
                                                .ws = r->ws.ptr},
                             err);
        if (st == TD_OK)
            st = m->ops->attn_out(r->stream,
                                  &(td_attn_out_args){.T = rows,
                                                      .D = m->cfg.hidden,
                                                      .Hd = s->n_q * m->cfg.head_dim,
                                                      .o = r->q.ptr,
                                                      .w = &w->o,
                                                      .bias = s->adds_out_bias ? &w->o_bias : NULL,
                                                      .out = r->part[0].ptr,
                                                      .ws = r->ws.ptr},
                                  err);
    }
    if (st == TD_OK)
        st = m->ops->sync(r->stream, err);
    return st == TD_OK ? st : td_wrap(err, "getting rank %d ready", rank);
}

td_status model_warm_ranks(td_model *m, td_error *err)
{
    int32_t *slot = (int32_t *)m->inputs.ptr + m->in.slot_full;

    if (m->comm == NULL || m->ops->comm_open == NULL) /* a step that is not enqueued cannot wait */
        return TD_OK;
    for (int32_t i = 0; i < m->opt.max_tokens; i++)
        slot[i] = -1; /* nothing is stored */
    return td_ranks_run(m->ranks, warm_rank, m, err);
}
