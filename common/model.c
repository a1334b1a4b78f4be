/* model: opening and closing. The steps are in model_step.c, a rank's pass in model_forward.c. */
#include "common/model.h"

#include <stdlib.h>
#include <string.h>

#include "common/model_impl.h"

_Static_assert((int)TD_PAGE_TOKENS == (int)TD_KV_PAGE, "layout and kernels agree on a page");

enum { HEAD_ROWS = 64 }; /* logits are made for so many rows at a time, to bound their memory */

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
    in->tokens = at;
    in->pos = at += T;
    in->slot_full = at += T;
    in->slot_window = at += T;
    in->len = at += T;
    in->rows = at += T;
    in->table_full = at += T;
    in->table_window = at += (size_t)in->table_rows * (size_t)in->max_pages;
    in->total = at + (size_t)in->table_rows * m->opt.ring_pages;
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
                     .head_rows = m->head_rows};
}

typedef struct opening {
    td_model *m;
    const td_rope *rope;
    const td_weight_source *src;
    int32_t layer;
} opening;

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
        {&r->kv, m->kv.region_bytes},
        {&r->inputs, m->in.total * sizeof(int32_t)},
        {&r->x, T * D * resid},
        {&r->q, T * (size_t)(r->shard.n_q * m->cfg.head_dim) * act},
        {&r->part[0], T * D * act},
        {&r->part[1], T * D * act},
        {&r->t, T * D * act},
        {&r->idx, T * k * sizeof(int32_t)},
        {&r->prob, T * k * sizeof(float)},
        {&r->logits, (size_t)m->head_rows * (size_t)r->shard.n_vocab * sizeof(float)},
        {&r->ws, m->ops->workspace_bytes(r->dev, &dims)},
    };

    for (size_t i = 0; st == TD_OK && i < sizeof want / sizeof want[0]; i++)
        st = m->ops->alloc(r->dev, want[i].bytes, want[i].buf, err);
    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, r->cos.ptr, o->rope->cos, rope, err);
    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, r->sin.ptr, o->rope->sin, rope, err);
    if (st == TD_OK)
        st = m->ops->sync(r->stream, err);
    return st == TD_OK ? st : td_wrap(err, "memory of rank %d", rank);
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
        (st = td_ops_find(opt->backend, &m->ops, err)) != TD_OK)
        goto fail;
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
    m->inputs = calloc(m->in.total, sizeof *m->inputs);
    m->logits = calloc((size_t)m->head_rows * (size_t)cfg->vocab, sizeof *m->logits);
    m->scratch = calloc((size_t)cfg->vocab, sizeof *m->scratch);
    if (m->inputs == NULL || m->logits == NULL || m->scratch == NULL) {
        st = td_fail(err, TD_NOMEM, "model: no memory for steps of %d tokens", opt->max_tokens);
        goto fail;
    }
    if ((st = td_rope_init(&rope, cfg, m->in.max_pages * TD_PAGE_TOKENS, err)) != TD_OK ||
        (st = open_ranks(m, err)) != TD_OK ||
        (st = td_ranks_run(m->ranks, alloc_rank, &(opening){.m = m, .rope = &rope}, err)) !=
            TD_OK ||
        (st = load_weights(m, src, err)) != TD_OK)
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
    td_buffer *bufs[] = {&r->cos,     &r->sin, &r->kv,  &r->inputs, &r->x,      &r->q, &r->part[0],
                         &r->part[1], &r->t,   &r->idx, &r->prob,   &r->logits, &r->ws};

    if (r->dev == NULL || m->ops->dev_bind(r->dev, err) != TD_OK)
        return TD_OK;
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        m->ops->release(bufs[i]);
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
    free(m->inputs);
    free(m->logits);
    free(m->scratch);
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
