/* model: opening and closing. The steps are in model_step.c, a rank's pass in model_forward.c. */
#include "common/model.h"

#include <stdlib.h>
#include <string.h>

#include "common/model_impl.h"

_Static_assert((int)TD_PAGE_TOKENS == (int)TD_KV_PAGE, "layout and kernels agree on a page");

/* Logits are made for so many rows at a time, to bound their memory. Fewer than a usual batch would
 * read the unembedding twice in a step. */
enum { HEAD_ROWS = TD_SMALL_STEP };

static td_status check_options(const td_model_options *o, td_error *err)
{
    if (o->max_tokens < 1)
        return td_fail_param(err, "max_tokens", "a step of %d tokens: 1 is the least",
                             o->max_tokens);
    if (o->threads < 0)
        return td_fail_param(err, "threads", "%d threads: 0 means all cores", o->threads);
    if (o->kv_pages < 1 || o->kv_rings < 1 || o->ring_pages < 1)
        return td_fail(err, TD_INVALID, "a model needs KV memory: %u pages, %u rings of %u pages",
                       o->kv_pages, o->kv_rings, o->ring_pages);
    if (o->kv_pages > INT32_MAX / TD_PAGE_TOKENS ||
        (uint64_t)o->kv_rings * o->ring_pages > INT32_MAX / TD_PAGE_TOKENS) /* slots are i32 */
        return td_fail(err, TD_INVALID, "%u pages, %u rings of %u pages: %d pages are the most",
                       o->kv_pages, o->kv_rings, o->ring_pages, INT32_MAX / TD_PAGE_TOKENS);
    return TD_OK;
}

static void place_inputs(td_model *m)
{
    step_inputs *in = &m->in;
    size_t T = (size_t)m->opt.max_tokens, at = 0;
    uint32_t pages = td_kv_pages_for((uint64_t)m->cfg.max_positions);

    in->max_pages = (int32_t)(pages < m->opt.kv_pages ? pages : m->opt.kv_pages);
    in->table_rows = m->opt.max_tokens;
    if (m->kv.n_window > 0 && m->opt.kv_rings < (uint32_t)m->opt.max_tokens)
        in->table_rows = (int32_t)m->opt.kv_rings;
    in->table_rows_even = (in->table_rows + 1) / 2 * 2; /* what follows has 8-byte fields */
    in->max_pairs = m->cfg.vocab + 8192;                /* penalties on every token of one row */
    in->max_masks = in->table_rows < m->head_rows ? in->table_rows : m->head_rows;
    in->tokens = at;
    in->pos = at += T;
    in->slot_full = at += T;
    in->slot_window = at += T;
    in->len = at += T;
    in->rows = at += T;
    in->live = at += T;
    in->sample = at = (at + 1 + 1) / 2 * 2;
    in->table_window = at += (size_t)in->table_rows * sizeof(td_sample_row) / sizeof(int32_t);
    in->edits = at = (at + (size_t)in->table_rows * m->opt.ring_pages + 1) / 2 * 2;
    in->lists = at += 2 * MAX_EDITS;
    in->total = at + 2 * (size_t)in->max_pairs;
}

/* Sizes of decode steps: close together where a few rows more cost time. Up to TD_SMALL_STEP they
 * change no bit of a row. */
static void choose_buckets(td_model *m)
{
    int32_t T = 1, most = m->in.table_rows;

    if (m->ops->graph_begin == NULL || m->opt.no_graphs)
        return;
    if (most > MAX_BUCKET_T)
        most = MAX_BUCKET_T;
    while (m->n_buckets < MAX_BUCKETS - 1 && T < most) {
        m->bucket[m->n_buckets++].T = T;
        T += T < 2 ? 1 : T < 8 ? T : T < 32 ? 8 : T < 64 ? 16 : T < 128 ? 32 : 64;
    }
    m->bucket[m->n_buckets++].T = most;
}

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

typedef struct opening {
    td_model *m;
    const td_rope *rope;
    const td_weight_source *src;
    int32_t layer;
} opening;

/* The host's side of the inputs and of what comes back, with the first device. */
static td_status alloc_host(td_model *m, td_error *err)
{
    size_t words = ((size_t)m->cfg.vocab + 31) / 32, rows = (size_t)m->in.table_rows;
    struct {
        td_buffer *buf;
        size_t bytes;
    } want[] = {
        {&m->inputs, m->in.total * sizeof(int32_t)},
        {&m->table, rows * (size_t)m->in.max_pages * sizeof(int32_t)},
        {&m->masks, (size_t)m->in.max_masks * words * sizeof(uint32_t)},
        {&m->out, (size_t)m->in.table_rows_even * sizeof(int32_t) + rows * sizeof(td_logprobs)},
    };
    td_status st = m->ops->dev_bind(m->rank[0].dev, err);

    for (size_t i = 0; st == TD_OK && i < sizeof want / sizeof want[0]; i++)
        st = m->ops->alloc_host(m->rank[0].dev, want[i].bytes, want[i].buf, err);
    if (st == TD_OK)
        model_forget_tables(m);
    return st;
}

static td_status alloc_rank(void *ctx, int32_t rank, td_error *err)
{
    opening *o = ctx;
    td_model *m = o->m;
    model_rank *r = &m->rank[rank];
    size_t T = (size_t)m->opt.max_tokens, D = (size_t)m->cfg.hidden, k = (size_t)m->cfg.top_k;
    size_t act = td_elt_bytes(m->ops->act), resid = td_elt_bytes(m->ops->resid);
    size_t rope = (size_t)o->rope->n_positions * (size_t)o->rope->half * sizeof(float);
    td_dims dims = dims_of(m, &r->shard);
    td_status st = m->ops->dev_bind(r->dev, err);
    struct {
        td_buffer *buf;
        size_t bytes;
    } want[] = {
        {&r->cos, rope},
        {&r->sin, rope},
        {&r->inputs, m->in.total * sizeof(int32_t)},
        {&r->table, (size_t)m->in.table_rows * (size_t)m->in.max_pages * sizeof(int32_t)},
        {&r->x, T * D * resid},
        {&r->q, T * (size_t)(r->shard.n_q * m->cfg.head_dim) * act},
        {&r->part[0], T * D * act},
        {&r->part[1], T * D * act},
        {&r->t, T * D * act},
        {&r->idx, T * k * sizeof(int32_t)},
        {&r->prob, T * k * sizeof(float)},
        {&r->logits, (size_t)m->head_rows * (size_t)r->shard.n_vocab * sizeof(float)},
        {&r->full, rank == 0 && m->comm != NULL
                       ? (size_t)m->head_rows * (size_t)m->cfg.vocab * sizeof(float)
                       : 0},
        {&r->masks, rank == 0 ? m->masks.bytes : 0},
        {&r->out, rank == 0 ? m->out.bytes : 0},
        {&r->ws, m->ops->workspace_bytes(r->dev, &dims)},
    };

    for (size_t i = 0; st == TD_OK && i < sizeof want / sizeof want[0]; i++) {
        st = m->ops->alloc(r->dev, want[i].bytes, want[i].buf, err);
        r->work_bytes += want[i].bytes;
    }
    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, r->cos.ptr, o->rope->cos, rope, err);
    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, r->sin.ptr, o->rope->sin, rope, err);
    if (st == TD_OK)
        st = m->ops->sync(r->stream, err);
    return st == TD_OK ? st : td_wrap(err, "memory of rank %d", rank);
}

static td_status alloc_kv_rank(void *ctx, int32_t rank, td_error *err)
{
    td_model *m = ctx;
    model_rank *r = &m->rank[rank];
    td_status st = m->ops->dev_bind(r->dev, err);

    if (st == TD_OK)
        st = m->ops->alloc(r->dev, m->kv.region_bytes, &r->kv, err);
    return st == TD_OK ? st : td_wrap(err, "KV memory of rank %d", rank);
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

/* As many pages as every rank's device has room for beside what it holds already. */
static td_status fit_kv(td_model *m, td_error *err)
{
    uint32_t most = m->opt.kv_pages, least = m->opt.kv_pages_least > 0 ? m->opt.kv_pages_least : 1;
    uint64_t one, page;
    td_status st = set_kv_pages(m, 1, err);

    one = m->kv.region_bytes;
    if (st == TD_OK)
        st = set_kv_pages(m, 2, err);
    page = m->kv.region_bytes - one; /* 0: no layer is a full one */
    for (int32_t i = 0; st == TD_OK && i < m->opt.tp; i++) {
        td_model_memory has = td_model_memory_of(m, i);
        uint64_t rest = one - page, want = has.weights + has.work + rest + least * page;
        uint64_t room;

        if (want > m->opt.device_bytes)
            return td_fail_param(
                err, "--gpu-memory",
                "rank %d may take %.2f GiB of its device and needs %.2f: weights %.2f, workspace "
                "%.2f, %u window rings of the KV-cache %.2f, %u of its pages %.2f. Give it a larger "
                "share, or ask for less (--kv-memory, rings, chunk or batch, --kv-dtype)",
                i, gib(m->opt.device_bytes), gib(want), gib(has.weights), gib(has.work),
                m->opt.kv_rings, gib(rest), least, gib(least * page));
        room = page > 0 ? (m->opt.device_bytes - (want - least * page)) / page : most;
        if (room < most)
            most = (uint32_t)room;
    }
    return st == TD_OK ? set_kv_pages(m, most, err) : st;
}

static td_status load_rank(void *ctx, int32_t rank, td_error *err)
{
    opening *o = ctx;
    model_rank *r = &o->m->rank[rank];
    td_status st = o->m->ops->dev_bind(r->dev, err);

    if (st == TD_OK)
        st = td_rank_weights_load(&r->w, o->src, &o->m->cfg, &r->shard, o->layer, err);
    return st;
}

static td_status load_done(void *ctx, int32_t rank, td_error *err)
{
    opening *o = ctx;
    td_status st = o->m->ops->dev_bind(o->m->rank[rank].dev, err);

    if (st == TD_OK && o->m->ops->load_done != NULL)
        o->m->ops->load_done(o->m->rank[rank].dev);
    return st;
}

/* Layer by layer on all ranks at once, so that a tensor is let go when its last reader has it. */
static td_status load_weights(td_model *m, const td_weight_source *src, td_error *err)
{
    opening o = {.m = m, .src = src};

    for (o.layer = -1; o.layer < m->cfg.n_layers; o.layer++) {
        td_status st = td_ranks_run(m->ranks, load_rank, &o, err);

        td_weight_source_release_layer(src, o.layer);
        if (st != TD_OK)
            return st;
    }
    return td_ranks_run(m->ranks, load_done, &o, err);
}

static td_status open_comm(td_model *m, td_error *err)
{
    td_dev **dev = calloc((size_t)m->opt.tp, sizeof *dev);
    td_comm_options o = {.dev = dev,
                         .n = m->opt.tp,
                         .max_elements = (size_t)m->opt.max_tokens * (size_t)m->cfg.hidden};
    td_status st;

    if (dev == NULL)
        return td_fail(err, TD_NOMEM, "collectives: no memory for %d ranks", m->opt.tp);
    for (int32_t i = 0; i < m->opt.tp; i++)
        dev[i] = m->rank[i].dev;
    st = td_comm_open(m->ops, &o, &m->comm, err);
    free(dev);
    return st;
}

static td_status open_ranks(td_model *m, td_error *err)
{
    int32_t tp = m->opt.tp, threads = m->opt.threads > 0 ? m->opt.threads : td_usable_cores();
    td_dev_options dev = {.threads = threads / tp > 0 ? threads / tp : 1};
    td_status st = td_ranks_create(tp, &m->ranks, err);

    for (int32_t i = 0; st == TD_OK && i < tp; i++) {
        model_rank *r = &m->rank[i];

        dev.index = m->opt.devices != NULL ? m->opt.devices[i] : i;
        st = m->ops->dev_open(&dev, &r->dev, err);
        if (st != TD_OK)
            return st;
        r->stream = m->ops->dev_stream(r->dev);
        st = td_rank_weights_init(&r->w, m->ops, r->dev, m->cfg.n_layers, err);
        r->w.experts = m->opt.experts;
    }
    m->opt.devices = NULL; /* the caller's array */
    return st == TD_OK && tp > 1 ? open_comm(m, err) : st;
}

td_status td_model_open_source(const td_weight_source *src, const td_model_config *cfg,
                               const td_model_options *opt, td_model **out, td_error *err)
{
    td_model *m = calloc(1, sizeof *m);
    td_rope rope = {0};
    td_shard first;
    td_status st;

    if (m == NULL)
        return td_fail(err, TD_NOMEM, "model: no memory");
    m->cfg = *cfg;
    m->opt = *opt;
    m->opt.backend = NULL; /* the caller's string; the name lives on in ops */
    m->head_rows = opt->max_tokens < HEAD_ROWS ? opt->max_tokens : HEAD_ROWS;
    if ((st = check_options(opt, err)) != TD_OK ||
        (st = opt->ops != NULL ? TD_OK : td_ops_find(opt->backend, &m->ops, err)) != TD_OK)
        goto fail;
    if (opt->ops != NULL)
        m->ops = opt->ops;
    if (opt->kv_dtype == TD_KV_E4M3 && m->ops->act != TD_ELT_BF16) {
        st = td_fail_param(err, "--kv-dtype", "e4m3 needs --backend cuda; the %s backend has bf16 "
                           "and f32", m->ops->name);
        goto fail;
    }
    if ((st = td_shard_of(cfg, opt->tp, opt->ep, 0, &first, err)) != TD_OK)
        goto fail;
    if ((m->rank = calloc((size_t)opt->tp, sizeof *m->rank)) == NULL) {
        st = td_fail(err, TD_NOMEM, "model: no memory for %d ranks", opt->tp);
        goto fail;
    }
    for (int32_t i = 0; i < opt->tp; i++)
        if ((st = td_shard_of(cfg, opt->tp, opt->ep, i, &m->rank[i].shard, err)) != TD_OK)
            goto fail;
    if ((st = td_kv_geometry_init(&m->kv, cfg, opt->tp, opt->kv_dtype, opt->kv_pages, opt->kv_rings,
                                  opt->ring_pages, err)) != TD_OK)
        goto fail;
    place_inputs(m);
    choose_buckets(m);
    m->changes.run = calloc((size_t)m->in.table_rows, sizeof *m->changes.run);
    if (m->changes.run == NULL) {
        st = td_fail(err, TD_NOMEM, "model: no memory for steps of %d tokens", opt->max_tokens);
        goto fail;
    }
    if ((st = td_rope_init(&rope, cfg, m->in.max_pages * TD_PAGE_TOKENS, err)) != TD_OK ||
        (st = open_ranks(m, err)) != TD_OK || (st = alloc_host(m, err)) != TD_OK ||
        (st = td_ranks_run(m->ranks, alloc_rank, &(opening){.m = m, .rope = &rope}, err)) !=
            TD_OK ||
        (st = load_weights(m, src, err)) != TD_OK ||
        (st = m->opt.device_bytes > 0 ? fit_kv(m, err) : TD_OK) != TD_OK ||
        (st = td_ranks_run(m->ranks, alloc_kv_rank, m, err)) != TD_OK ||
        (st = model_warm_ranks(m, err)) != TD_OK)
        goto fail;
    td_rope_fini(&rope);
    *out = m;
    return TD_OK;

fail:
    td_rope_fini(&rope);
    td_model_close(m);
    return st;
}

td_status td_model_open(td_checkpoint *ckpt, const td_model_config *cfg,
                        const td_model_options *opt, td_model **out, td_error *err)
{
    td_weight_source src = td_checkpoint_source(ckpt);

    return td_model_open_source(&src, cfg, opt, out, err);
}

static td_status close_rank(void *ctx, int32_t rank, td_error *err)
{
    td_model *m = ctx;
    model_rank *r = &m->rank[rank];
    td_buffer *bufs[] = {&r->cos,     &r->sin,     &r->kv, &r->inputs, &r->table,  &r->x,
                         &r->q,       &r->part[0], &r->t,  &r->idx,    &r->prob,   &r->logits,
                         &r->part[1], &r->full,    &r->ws, &r->masks,  &r->out};
    td_buffer *host[] = {&m->inputs, &m->table, &m->masks, &m->out};

    if (r->dev == NULL || m->ops->dev_bind(r->dev, err) != TD_OK)
        return TD_OK;
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        m->ops->release(bufs[i]);
    for (int32_t i = 0; i < m->n_buckets; i++)
        if (r->graph[i] != NULL)
            m->ops->graph_free(r->graph[i]);
    for (size_t i = 0; rank == 0 && i < sizeof host / sizeof host[0]; i++)
        m->ops->free_host(host[i]);
    td_rank_weights_fini(&r->w);
    m->ops->dev_close(r->dev);
    return TD_OK;
}

void td_model_close(td_model *m)
{
    if (m == NULL)
        return;
    if (m->ranks != NULL && td_ranks_run(m->ranks, close_rank, m, NULL) != TD_OK)
        td_assert(false); /* close_rank cannot fail */
    td_ranks_free(m->ranks);
    td_comm_close(m->comm);
    free(m->rank);
    free(m->changes.run);
    free(m);
}

const td_model_config *td_model_config_of(const td_model *m)
{
    return &m->cfg;
}

const td_kv_geometry *td_model_kv(const td_model *m)
{
    return &m->kv;
}

void *td_model_kv_base(const td_model *m, int32_t rank)
{
    td_assert(rank >= 0 && rank < m->opt.tp);
    return m->rank[rank].kv.ptr;
}

td_model_memory td_model_memory_of(const td_model *m, int32_t rank)
{
    const model_rank *r = &m->rank[rank];

    return (td_model_memory){.weights = td_rank_weights_bytes(&r->w),
                             .work = r->work_bytes,
                             .kv = r->kv.bytes};
}

uint64_t td_model_weight_bytes(const td_model *m)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < m->opt.tp; i++)
        sum += td_rank_weights_bytes(&m->rank[i].w);
    return sum;
}
