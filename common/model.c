/* model: opening and closing. What it takes of memory is in model_memory.c, the steps in
 * model_step.c, a rank's pass in model_forward.c. */
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
    /* One each: a batch whose masks do not fit is sampled in rounds, without its graph. Where few
     * rows have logits at all (prefill), so many do. */
    in->max_masks = in->table_rows;
    if (m->opt.head_rows > 0 && m->head_rows < in->max_masks)
        in->max_masks = m->head_rows;
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
    model_buffer want[MODEL_BUFFERS];
    int n = model_buffers(m, r, want);
    td_status st = m->ops->dev_bind(r->dev, err);

    for (int i = 0; st == TD_OK && i < n; i++)
        st = m->ops->alloc(r->dev, want[i].bytes, want[i].buf, err);
    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, r->cos.ptr, o->rope->cos, r->cos.bytes, err);
    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, r->sin.ptr, o->rope->sin, r->sin.bytes, err);
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
    td_comm_options o = model_comm_options(m, dev);
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

        r->device = dev.index = m->opt.devices != NULL ? m->opt.devices[i] : i;
        st = m->ops->dev_open(&dev, &r->dev, err);
        if (st != TD_OK)
            return st;
        r->stream = m->ops->dev_stream(r->dev);
        st = td_rank_weights_init(&r->w, m->ops, r->dev, m->cfg.n_layers, err);
        r->w.experts = m->opt.experts;
    }
    m->opt.devices = NULL; /* the caller's array */
    return st;
}

/* Memory by numbers first: what cannot fit is refused before anything is read. */
static td_status open_memory(td_model *m, const td_rope *rope, const td_weight_source *src,
                             td_error *err)
{
    bool bounded = m->opt.device_bytes > 0;
    td_status st;

    model_plan_memory(m);
    if ((bounded && (st = model_fit_kv(m, false, err)) != TD_OK) ||
        (m->opt.tp > 1 && (st = open_comm(m, err)) != TD_OK) ||
        (st = alloc_host(m, err)) != TD_OK ||
        (st = td_ranks_run(m->ranks, alloc_rank, &(opening){.m = m, .rope = rope}, err)) != TD_OK ||
        (st = load_weights(m, src, err)) != TD_OK ||
        (bounded && (st = model_fit_kv(m, true, err)) != TD_OK))
        return st;
    return td_ranks_run(m->ranks, alloc_kv_rank, m, err);
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
    m->head_rows = opt->head_rows > 0 ? opt->head_rows : HEAD_ROWS;
    if (m->head_rows > opt->max_tokens)
        m->head_rows = opt->max_tokens;
    if ((st = check_options(opt, err)) != TD_OK ||
        (st = opt->ops != NULL ? TD_OK : td_ops_find(opt->backend, &m->ops, err)) != TD_OK)
        goto fail;
    if (opt->ops != NULL)
        m->ops = opt->ops;
    if (opt->kv_dtype == TD_KV_E4M3 && m->ops->act != TD_ELT_BF16) {
        st = td_fail_param(err, "--kv-dtype",
                           "e4m3 needs --backend cuda; the %s backend has bf16 "
                           "and f32",
                           m->ops->name);
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
        (st = open_ranks(m, err)) != TD_OK || (st = open_memory(m, &rope, src, err)) != TD_OK ||
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
    td_buffer *bufs[] = {&r->cos,     &r->sin,     &r->kv, &r->inputs, &r->table, &r->x,
                         &r->q,       &r->part[0], &r->t,  &r->idx,    &r->prob,  &r->logits,
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

uint64_t td_model_weight_bytes(const td_model *m)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < m->opt.tp; i++)
        sum += td_rank_weights_bytes(&m->rank[i].w);
    return sum;
}
