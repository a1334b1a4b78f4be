/* model_forward: one rank's forward pass, in the order of the paper.
 *
 * Activations are replicated: every rank holds the whole residual stream x and computes its part of
 * each half layer; the parts are summed over ranks in rank order. Nothing here allocates or waits
 * for the device until all is enqueued; then each rank waits once. */
#include "common/model_impl.h"

#include <math.h>

/* x += the sum over ranks of part. */
static td_status reduce(td_model *m, int32_t rank, const td_buffer *part, bool clear, td_error *err)
{
    model_rank *r = &m->rank[rank];
    size_t n = (size_t)m->step.T * (size_t)m->cfg.hidden;
    td_status st;

    if (m->comm == NULL)
        return m->ops->add(r->stream,
                           &(td_add_args){.n = n,
                                          .n_parts = 1,
                                          .clear = clear,
                                          .part = (const void *const[]){part->ptr},
                                          .x = r->x.ptr},
                           err);
    td_ranks_mark(m->ranks, rank, TD_RANK_OTHERS);
    st = td_comm_reduce_add(m->comm, rank, r->stream, part->ptr, n, clear, r->x.ptr, err);
    td_ranks_mark(m->ranks, rank, TD_RANK_WORKS);
    return st;
}

/* Without other ranks a step adds its part to x itself. */
static bool added_in_step(const td_model *m)
{
    return m->comm == NULL;
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
    const int32_t *table = windowed ? rank_input(r, in->table_window) : r->table.ptr;
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

td_status model_attn_in(const td_model *m, int32_t rank, int32_t layer, int32_t T, td_error *err)
{
    const model_rank *r = &m->rank[rank];
    const td_layer_weights *w = &r->w.layer[layer];
    size_t slot = m->cfg.windowed[layer] ? m->in.slot_window : m->in.slot_full;

    return m->ops->attn_in(r->stream,
                           &(td_attn_in_args){.T = T,
                                              .D = m->cfg.hidden,
                                              .H = r->shard.n_q,
                                              .K = r->shard.n_kv,
                                              .d = m->cfg.head_dim,
                                              .eps = m->cfg.eps,
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
}

td_status model_attn_out(const td_model *m, int32_t rank, int32_t layer, int32_t T, td_error *err)
{
    const model_rank *r = &m->rank[rank];
    const td_layer_weights *w = &r->w.layer[layer];

    return m->ops->attn_out(r->stream,
                            &(td_attn_out_args){.T = T,
                                                .D = m->cfg.hidden,
                                                .Hd = r->shard.n_q * m->cfg.head_dim,
                                                .o = r->q.ptr,
                                                .w = &w->o,
                                                .bias = r->shard.adds_out_bias ? &w->o_bias : NULL,
                                                .out = r->part[0].ptr,
                                                .x = added_in_step(m) ? r->x.ptr : NULL,
                                                .ws = r->ws.ptr},
                            err);
}

static td_status attention_half(td_model *m, int32_t rank, int32_t layer, td_error *err)
{
    const model_rank *r = &m->rank[rank];
    td_status st = model_attn_in(m, rank, layer, m->step.T, err);

    if (st != TD_OK)
        return st;
    if (m->step.on_layer != NULL) {
        td_event *ready = NULL;

        if ((st = m->ops->event_record(r->stream, &ready, err)) != TD_OK)
            return st;
        m->step.on_layer(m->step.user, rank, layer, ready);
    }
    if ((st = attention(m, r, layer, err)) != TD_OK ||
        (st = model_attn_out(m, rank, layer, m->step.T, err)) != TD_OK)
        return st;
    return added_in_step(m) ? TD_OK : reduce(m, rank, &r->part[0], false, err);
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
                                                    .live = rank_input(r, m->in.live),
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
                               .x = added_in_step(m) ? r->x.ptr : NULL,
                               .ws = r->ws.ptr},
            err);
    return st != TD_OK || added_in_step(m) ? st : reduce(m, rank, &r->part[1], false, err);
}

static td_status layers(td_model *m, int32_t rank, td_error *err)
{
    model_rank *r = &m->rank[rank];
    td_status st = m->ops->embed(r->stream,
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

/* Choose tokens for n of the rows that have logits, from row `from` of them on, as rows at .. of
 * the output. With several ranks their logits come together on rank 0, which chooses. */
static td_status sample(td_model *m, int32_t rank, int32_t from, int32_t n, int32_t at,
                        td_error *err)
{
    model_rank *r = &m->rank[rank], *first = &m->rank[0];
    const td_shard *s = &r->shard;
    const float *logits = (float *)r->logits.ptr + (size_t)from * (size_t)s->n_vocab;
    td_status st = TD_OK;

    if (m->comm != NULL) {
        td_ranks_mark(m->ranks, rank, TD_RANK_OTHERS);
        st = td_comm_gather(m->comm, rank, r->stream, logits, n, s->n_vocab, s->vocab_first,
                            m->cfg.vocab, first->full.ptr, err);
        td_ranks_mark(m->ranks, rank, TD_RANK_WORKS);
        logits = first->full.ptr;
    }
    if (st != TD_OK || rank != 0)
        return st;
    return m->ops->sample(
        r->stream,
        &(td_sample_args){.n = n,
                          .V = m->cfg.vocab,
                          .logits = logits,
                          .rows = (const td_sample_row *)rank_input(r, m->in.sample) + at,
                          .lists = rank_input(r, m->in.lists),
                          .masks = r->masks.ptr,
                          .token = (int32_t *)r->out.ptr + at,
                          .logprobs =
                              (td_logprobs *)((int32_t *)r->out.ptr + m->in.table_rows_even) + at,
                          .ws = r->ws.ptr},
        err);
}

/* Rows first .. first + n: their logits, and their tokens if they are to be sampled. */
static td_status head(td_model *m, int32_t rank, int32_t first, int32_t n, td_error *err)
{
    model_rank *r = &m->rank[rank];
    const td_shard *s = &r->shard;
    const model_step *step = &m->step;
    size_t row = (size_t)s->n_vocab * sizeof(float), V = (size_t)m->cfg.vocab;
    int32_t from = first > step->sample_first ? first : step->sample_first;
    td_status st = m->ops->head(r->stream,
                                &(td_head_args){.n = n,
                                                .D = m->cfg.hidden,
                                                .V = s->n_vocab,
                                                .eps = m->cfg.eps,
                                                .x = r->x.ptr,
                                                .rows = rank_input(r, m->in.rows) + first,
                                                .norm = &r->w.final_norm,
                                                .w = &r->w.unembed,
                                                .out = r->logits.ptr,
                                                .ws = r->ws.ptr},
                                err);

    if (st == TD_OK && step->logits != NULL)
        st = m->ops->copy_out(r->stream,
                              step->logits + (size_t)(first - step->head_first) * V +
                                  (size_t)s->vocab_first,
                              V * sizeof(float), r->logits.ptr, row, row, (size_t)n, err);
    if (st == TD_OK && from < first + n)
        st = sample(m, rank, from - first, first + n - from, from - step->sample_first, err);
    return st;
}

/* All of the step but its inputs: what a graph holds. */
static td_status enqueue(td_model *m, int32_t rank, td_error *err)
{
    const model_step *step = &m->step;
    model_rank *r = &m->rank[rank];
    int32_t sampled = step->head_end - step->sample_first;
    td_status st = step->layers ? layers(m, rank, err) : TD_OK;

    for (int32_t at = step->head_first, n; st == TD_OK && at < step->head_end; at += n) {
        n = step->head_end - at < m->head_rows ? step->head_end - at : m->head_rows;
        st = head(m, rank, at, n, err);
    }
    if (st == TD_OK && rank == 0 && sampled > 0) {
        size_t bytes =
            (size_t)m->in.table_rows_even * sizeof(int32_t) + (size_t)sampled * sizeof(td_logprobs);

        st = m->ops->copy_out(r->stream, m->out.ptr, bytes, r->out.ptr, bytes, bytes, 1, err);
    }
    return st;
}

static td_status capture(td_model *m, int32_t rank, td_error *err)
{
    model_rank *r = &m->rank[rank];
    td_graph **g = &r->graph[m->step.graph];
    td_status st;

    m->ops->graph_free(*g); /* of a step that failed on another rank */
    *g = NULL;
    if ((st = m->ops->graph_begin(r->stream, err)) != TD_OK)
        return st;
    st = enqueue(m, rank, err);
    if (st == TD_OK)
        return m->ops->graph_end(r->stream, g, err);
    (void)m->ops->graph_end(r->stream, NULL, NULL);
    return st;
}

static td_status execute(td_model *m, int32_t rank, td_error *err)
{
    model_rank *r = &m->rank[rank];
    td_status st = model_copy_inputs(m, rank, err);

    if (st == TD_OK)
        st = m->step.mode == STEP_PLAIN
                 ? enqueue(m, rank, err)
                 : m->ops->graph_launch(r->stream, r->graph[m->step.graph], err);
    td_ranks_mark(m->ranks, rank, TD_RANK_DEVICE);
    if (st == TD_OK)
        st = m->ops->sync(r->stream, err);
    if (st == TD_OK && m->comm != NULL)
        st = td_comm_check(m->comm, rank, err);
    return st;
}

td_status model_forward(void *ctx, int32_t rank, td_error *err)
{
    td_model *m = ctx;
    model_rank *r = &m->rank[rank];
    step_mode mode = m->step.mode;
    td_status st = m->ops->dev_bind(r->dev, err);

    if (st == TD_OK && mode == STEP_CAPTURE)
        st = capture(m, rank, err);
    else if (st == TD_OK)
        st = execute(m, rank, err);
    if (st != TD_OK && m->comm != NULL)
        td_comm_abort(m->comm); /* the others must not wait for us */
    return st;
}
