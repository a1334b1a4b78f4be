/* model_forward: one rank's forward pass, in the order of the paper.
 *
 * Activations are replicated: every rank holds the whole residual stream x and computes its part of
 * each half layer; the parts are summed over ranks in rank order. Nothing here allocates or waits
 * for the device, apart from the logits at the end. */
#include "common/model_impl.h"

#include <math.h>

/* x += the sum over ranks of part. */
static td_status reduce(td_model *m, int32_t rank, const td_buffer *part, bool clear, td_error *err)
{
    model_rank *r = &m->rank[rank];
    size_t n = (size_t)m->step.T * (size_t)m->cfg.hidden;

    if (m->comm == NULL)
        return m->ops->add(r->stream,
                           &(td_add_args){.n = n,
                                          .n_parts = 1,
                                          .clear = clear,
                                          .part = (const void *const[]){part->ptr},
                                          .x = r->x.ptr},
                           err);
    return td_comm_reduce_add(m->comm, rank, r->stream, part->ptr, n, clear, r->x.ptr, err);
}

static td_status copy_inputs(td_model *m, model_rank *r, td_error *err)
{
    const step_inputs *in = &m->in;
    int32_t *dst = r->inputs.ptr;
    size_t rows = (size_t)m->step.n_tables, full = rows * (size_t)in->max_pages;
    size_t ring = rows * m->kv.ring_pages;
    td_status st = m->ops->copy_in(r->stream, dst, m->inputs, in->table_full * sizeof *dst, err);

    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, dst + in->table_full, m->inputs + in->table_full,
                             full * sizeof *dst, err);
    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, dst + in->table_window, m->inputs + in->table_window,
                             ring * sizeof *dst, err);
    return st;
}

static td_kv_view kv_view(const td_model *m, const model_rank *r, int32_t layer)
{
    int64_t stride = (int64_t)td_kv_head_stride(&m->kv, layer);

    return (td_kv_view){.base = (char *)r->kv.ptr + td_kv_offset(&m->kv, layer, 0, 0, 0, 0),
                        .head_stride = stride,
                        .side_stride = stride / 2,
                        .elt = m->kv.dtype == TD_KV_F32    ? TD_ELT_F32
                               : m->kv.dtype == TD_KV_BF16 ? TD_ELT_BF16
                                                           : TD_ELT_E4M3};
}

static td_status attention(td_model *m, const model_rank *r, int32_t layer, td_error *err)
{
    const step_inputs *in = &m->in;
    bool windowed = m->cfg.windowed[layer];
    int32_t wrap = windowed ? (int32_t)m->kv.ring_pages : in->max_pages;
    int32_t window = windowed ? m->cfg.window : 0;
    const int32_t *table = rank_input(r, windowed ? in->table_window : in->table_full);
    float scale = 1.0f / sqrtf((float)m->cfg.head_dim);

    if (m->step.prefill)
        return m->ops->attn_prefill(r->stream,
                                    &(td_attn_prefill_args){.T = m->step.T,
                                                            .H = r->shard.n_q,
                                                            .K = r->shard.n_kv,
                                                            .d = m->cfg.head_dim,
                                                            .pos0 = m->step.pos0,
                                                            .window = window,
                                                            .wrap = wrap,
                                                            .scale = scale,
                                                            .q = r->q.ptr,
                                                            .kv = kv_view(m, r, layer),
                                                            .table = table,
                                                            .sinks = &r->w.layer[layer].sinks,
                                                            .out = r->q.ptr,
                                                            .ws = r->ws.ptr},
                                    err);
    return m->ops->attn_decode(r->stream,
                               &(td_attn_decode_args){.T = m->step.T,
                                                      .H = r->shard.n_q,
                                                      .K = r->shard.n_kv,
                                                      .d = m->cfg.head_dim,
                                                      .window = window,
                                                      .wrap = wrap,
                                                      .table_stride = wrap,
                                                      .scale = scale,
                                                      .q = r->q.ptr,
                                                      .kv = kv_view(m, r, layer),
                                                      .len = rank_input(r, in->len),
                                                      .table = table,
                                                      .sinks = &r->w.layer[layer].sinks,
                                                      .out = r->q.ptr,
                                                      .ws = r->ws.ptr},
                               err);
}

static td_status attention_half(td_model *m, int32_t rank, int32_t layer, td_error *err)
{
    model_rank *r = &m->rank[rank];
    const td_layer_weights *w = &r->w.layer[layer];
    const td_model_config *c = &m->cfg;
    const td_shard *s = &r->shard;
    size_t slot = c->windowed[layer] ? m->in.slot_window : m->in.slot_full;
    td_status st = m->ops->attn_in(r->stream,
                                   &(td_attn_in_args){.T = m->step.T,
                                                      .D = c->hidden,
                                                      .H = s->n_q,
                                                      .K = s->n_kv,
                                                      .d = c->head_dim,
                                                      .eps = c->eps,
                                                      .x = r->x.ptr,
                                                      .norm = &w->attn_norm,
                                                      .qkv = &w->qkv,
                                                      .bias = &w->qkv_bias,
                                                      .cos = r->cos.ptr,
                                                      .sin = r->sin.ptr,
                                                      .pos = rank_input(r, m->in.pos),
                                                      .slot = rank_input(r, slot),
                                                      .kv = kv_view(m, r, layer),
                                                      .q = r->q.ptr,
                                                      .ws = r->ws.ptr},
                                   err);

    if (st != TD_OK)
        return st;
    if (m->step.on_layer != NULL) {
        td_event *ready = NULL;

        if ((st = m->ops->event_record(r->stream, &ready, err)) != TD_OK)
            return st;
        m->step.on_layer(m->step.user, rank, layer, ready);
    }
    if ((st = attention(m, r, layer, err)) != TD_OK)
        return st;
    st = m->ops->attn_out(r->stream,
                          &(td_attn_out_args){.T = m->step.T,
                                              .D = c->hidden,
                                              .Hd = s->n_q * c->head_dim,
                                              .o = r->q.ptr,
                                              .w = &w->o,
                                              .bias = s->adds_out_bias ? &w->o_bias : NULL,
                                              .out = r->part[0].ptr,
                                              .ws = r->ws.ptr},
                          err);
    return st != TD_OK ? st : reduce(m, rank, &r->part[0], false, err);
}

static td_status expert_half(td_model *m, int32_t rank, int32_t layer, td_error *err)
{
    model_rank *r = &m->rank[rank];
    const td_layer_weights *w = &r->w.layer[layer];
    const td_model_config *c = &m->cfg;
    const td_shard *s = &r->shard;
    td_status st = m->ops->router(r->stream,
                                  &(td_router_args){.T = m->step.T,
                                                    .D = c->hidden,
                                                    .M = c->n_experts,
                                                    .k = c->top_k,
                                                    .eps = c->eps,
                                                    .x = r->x.ptr,
                                                    .norm = &w->mlp_norm,
                                                    .w = &w->router,
                                                    .bias = &w->router_bias,
                                                    .t = r->t.ptr,
                                                    .idx = r->idx.ptr,
                                                    .prob = r->prob.ptr,
                                                    .ws = r->ws.ptr},
                                  err);

    if (st == TD_OK)
        st = m->ops->experts(
            r->stream,
            &(td_experts_args){.T = m->step.T,
                               .D = c->hidden,
                               .I = s->n_inner,
                               .E = s->n_experts,
                               .k = c->top_k,
                               .expert_first = s->expert_first,
                               .limit = c->swiglu_limit,
                               .t = r->t.ptr,
                               .idx = r->idx.ptr,
                               .prob = r->prob.ptr,
                               .gate_up = &w->gate_up,
                               .gate_up_bias = &w->gate_up_bias,
                               .down = &w->down,
                               .down_bias = s->adds_down_bias ? &w->down_bias : NULL,
                               .out = r->part[1].ptr,
                               .ws = r->ws.ptr},
            err);
    return st != TD_OK ? st : reduce(m, rank, &r->part[1], false, err);
}

static td_status layers(td_model *m, int32_t rank, td_error *err)
{
    model_rank *r = &m->rank[rank];
    td_status st = copy_inputs(m, r, err);

    if (st == TD_OK)
        st = m->ops->embed(r->stream,
                           &(td_embed_args){.T = m->step.T,
                                            .D = m->cfg.hidden,
                                            .first = r->shard.vocab_first,
                                            .tokens = rank_input(r, m->in.tokens),
                                            .table = &r->w.embed,
                                            .out = r->part[1].ptr},
                           err);
    if (st == TD_OK)
        st = reduce(m, rank, &r->part[1], true, err);
    for (int32_t l = 0; st == TD_OK && l < m->cfg.n_layers; l++) {
        st = attention_half(m, rank, l, err);
        if (st == TD_OK)
            st = expert_half(m, rank, l, err);
        if (st != TD_OK)
            return td_wrap(err, "layer %d on rank %d", l, rank);
    }
    return st;
}

static td_status head(td_model *m, int32_t rank, td_error *err)
{
    model_rank *r = &m->rank[rank];
    const td_shard *s = &r->shard;
    size_t row = (size_t)s->n_vocab * sizeof(float);
    td_status st =
        m->ops->head(r->stream,
                     &(td_head_args){.n = m->step.head_n,
                                     .D = m->cfg.hidden,
                                     .V = s->n_vocab,
                                     .eps = m->cfg.eps,
                                     .x = r->x.ptr,
                                     .rows = rank_input(r, m->in.rows) + m->step.head_first,
                                     .norm = &r->w.final_norm,
                                     .w = &r->w.unembed,
                                     .out = r->logits.ptr,
                                     .ws = r->ws.ptr},
                     err);

    if (st == TD_OK)
        st = m->ops->copy_out(r->stream, m->logits + s->vocab_first,
                              (size_t)m->cfg.vocab * sizeof(float), r->logits.ptr, row, row,
                              (size_t)m->step.head_n, err);
    return st;
}

td_status model_forward(void *ctx, int32_t rank, td_error *err)
{
    td_model *m = ctx;
    model_rank *r = &m->rank[rank];
    td_status st = m->ops->dev_bind(r->dev, err);

    if (st == TD_OK && m->step.layers)
        st = layers(m, rank, err);
    if (st == TD_OK && m->step.head_n > 0)
        st = head(m, rank, err);
    if (st == TD_OK)
        st = m->ops->sync(r->stream, err);
    if (st != TD_OK && m->comm != NULL)
        td_comm_abort(m->comm); /* the others must not wait for us */
    return st;
}
