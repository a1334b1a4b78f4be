/* model_memory: what a model takes of its devices, known before it is there. */
#include "common/model_impl.h"

static td_dims dims_of(const td_model *m, const td_shard *s)
{
    return (td_dims){.T = m->opt.max_tokens,
                     .D = m->cfg.hidden,
                     .H = s->n_q,
                     .K = s->n_kv,
                     .d = m->cfg.head_dim,
                     .M = m->cfg.n_experts,
                     .E = s->n_experts,
                     .I = s->n_inner,
                     .k = m->cfg.top_k,
                     .V = s->n_vocab,
                     .head_rows = m->head_rows,
                     .sample_V = s->rank == 0 ? m->cfg.vocab : 0};
}

int model_buffers(const td_model *m, model_rank *r, model_buffer out[MODEL_BUFFERS])
{
    const step_inputs *in = &m->in;
    bool first = r->shard.rank == 0;
    size_t T = (size_t)m->opt.max_tokens, D = (size_t)m->cfg.hidden, k = (size_t)m->cfg.top_k;
    size_t act = td_elt_bytes(m->ops->act), resid = td_elt_bytes(m->ops->resid);
    size_t rope =
        (size_t)in->max_pages * TD_PAGE_TOKENS * (size_t)(m->cfg.head_dim / 2) * sizeof(float);
    size_t rows = (size_t)m->head_rows, words = ((size_t)m->cfg.vocab + 31) / 32;
    td_dims dims = dims_of(m, &r->shard);
    const model_buffer all[MODEL_BUFFERS] = {
        {&r->cos, rope},
        {&r->sin, rope},
        {&r->inputs, in->total * sizeof(int32_t)},
        {&r->table, (size_t)in->table_rows * (size_t)in->max_pages * sizeof(int32_t)},
        {&r->x, T * D * resid},
        {&r->q, T * (size_t)(r->shard.n_q * m->cfg.head_dim) * act},
        {&r->part[0], T * D * act},
        {&r->part[1], T * D * act},
        {&r->t, T * D * act},
        {&r->idx, T * k * sizeof(int32_t)},
        {&r->prob, T * k * sizeof(float)},
        {&r->logits, rows * (size_t)r->shard.n_vocab * sizeof(float)},
        {&r->full, first && m->opt.tp > 1 ? rows * (size_t)m->cfg.vocab * sizeof(float) : 0},
        {&r->masks, first ? (size_t)in->max_masks * words * sizeof(uint32_t) : 0},
        {&r->out, first ? (size_t)in->table_rows_even * sizeof(int32_t) +
                              (size_t)in->table_rows * sizeof(td_logprobs)
                        : 0},
        {&r->ws, m->ops->workspace_bytes(r->dev, &dims)},
    };

    for (int i = 0; i < MODEL_BUFFERS; i++)
        out[i] = all[i];
    return MODEL_BUFFERS;
}

td_comm_options model_comm_options(const td_model *m, td_dev *const *dev)
{
    return (td_comm_options){.dev = dev,
                             .n = m->opt.tp,
                             .max_elements = (size_t)m->opt.max_tokens * (size_t)m->cfg.hidden,
                             .timeout_ms = m->opt.comm_timeout_ms};
}

void model_plan_memory(td_model *m)
{
    const td_comm_options o = model_comm_options(m, NULL);

    for (int32_t i = 0; i < m->opt.tp; i++) {
        model_rank *r = &m->rank[i];
        model_buffer want[MODEL_BUFFERS];

        r->comm_bytes = m->opt.tp > 1 && m->ops->comm_bytes != NULL ? m->ops->comm_bytes(&o) : 0;
        r->rounding = td_rank_weights_plan(m->ops, &m->cfg, &r->shard, r->w.experts).rounding +
                      td_alloc_rounding(m->ops, r->comm_bytes);
        r->work_bytes = 0;
        for (int n = model_buffers(m, r, want), b = 0; b < n; b++) {
            r->work_bytes += want[b].bytes;
            r->rounding += td_alloc_rounding(m->ops, want[b].bytes);
        }
        r->graph_bytes = (uint64_t)m->n_buckets * m->ops->graph_bytes;
    }
}

td_model_memory td_model_memory_of(const td_model *m, int32_t rank)
{
    const model_rank *r = &m->rank[rank];

    return (td_model_memory){.weights = td_rank_weights_bytes(&r->w),
                             .work = r->work_bytes,
                             .kv = r->kv.bytes,
                             .comm = r->comm_bytes,
                             .graphs = r->graph_bytes,
                             .rounding = r->rounding};
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static td_status set_kv_pages(td_model *m, uint32_t pages, td_error *err)
{
    m->opt.kv_pages = pages;
    return td_kv_geometry_init(&m->kv, &m->cfg, m->opt.tp, m->opt.kv_dtype, pages, m->opt.kv_rings,
                               m->opt.ring_pages, err);
}

/* All but KV. */
static uint64_t others(const td_model_memory *has)
{
    return has->weights + has->work + has->comm + has->graphs + has->rounding;
}

td_status model_fit_kv(td_model *m, bool loaded, td_error *err)
{
    uint32_t most = m->opt.kv_pages, least = m->opt.kv_pages_least > 0 ? m->opt.kv_pages_least : 1;
    uint64_t one, page;
    td_status st = set_kv_pages(m, 1, err);

    one = m->kv.region_bytes;
    if (st == TD_OK)
        st = set_kv_pages(m, 2, err);
    page = m->kv.region_bytes - one; /* 0: no layer is a full one */
    for (int32_t i = 0; st == TD_OK && i < m->opt.tp; i++) {
        const model_rank *r = &m->rank[i];
        td_model_memory has = td_model_memory_of(m, i);
        uint64_t rest = one - page, want, room;

        if (!loaded)
            has.weights = td_rank_weights_plan(m->ops, &m->cfg, &r->shard, r->w.experts).bytes;
        want = others(&has) + rest + least * page;
        if (want > m->opt.device_bytes)
            return td_fail_param(
                err, "--gpu-memory",
                "rank %d may take %.2f GiB of its device and needs %.2f: weights %.2f, workspace "
                "%.2f, collectives %.2f, graphs %.2f, rounding of allocations %.2f, %u window "
                "rings "
                "of the KV-cache %.2f, %u of its pages %.2f. Give it a larger share, or ask for "
                "less (--kv-memory, rings, chunk or batch, --kv-dtype)",
                i, gib(m->opt.device_bytes), gib(want), gib(has.weights), gib(has.work),
                gib(has.comm), gib(has.graphs), gib(has.rounding), m->opt.kv_rings, gib(rest),
                least, gib(least * page));
        room = page > 0 ? (m->opt.device_bytes - (want - least * page)) / page : most;
        if (room < most)
            most = (uint32_t)room;
    }
    return st == TD_OK ? set_kv_pages(m, most, err) : st;
}
