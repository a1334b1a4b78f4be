/* kv_push: a push is one leg per source rank (kv_push_leg.c), and legs know nothing of each other.
 *
 * The engine's threads reach a leg only through its inbox, guarded by its source's mutex. The push
 * itself is const after open, but for the result, guarded by its own mutex, and two atomics. It is
 * freed when the last of its owner and its legs has let go. */
#include "common/kv_push_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ lifetime */

static void push_destroy(td_kv_push *p)
{
    for (int32_t i = 0; i < p->n_legs; i++) {
        free(p->legs[i].jobs);
        td_kv_puts_free(&p->legs[i].plan);
    }
    pthread_mutex_destroy(&p->mutex);
    td_buf_free(&p->worker_id);
    td_buf_free(&p->descriptor);
    free(p->pages);
    free(p);
}

static void push_hold(td_kv_push *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
}

static void push_drop(td_kv_push *p)
{
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1)
        push_destroy(p);
}

void kv_push_fail(td_kv_push *p, const td_error *err)
{
    int ok = TD_OK;

    atomic_compare_exchange_strong_explicit(&p->status, &ok, (int)err->code, memory_order_relaxed,
                                            memory_order_relaxed);
    pthread_mutex_lock(&p->mutex);
    if (p->err.code == TD_OK)
        p->err = *err;
    pthread_mutex_unlock(&p->mutex);
}

void kv_push_leg_over(td_kv_push *p, const kv_leg *leg, const char *transport)
{
    td_kv_push_result *r = &p->result;

    pthread_mutex_lock(&p->mutex);
    r->bytes += leg->bytes;
    r->puts += leg->puts;
    if (leg->first_put_us && (!r->first_put_us || leg->first_put_us < r->first_put_us))
        r->first_put_us = leg->first_put_us;
    if (leg->flushed_us > r->last_flush_us)
        r->last_flush_us = leg->flushed_us;
    if (transport && !p->transport[0])
        memcpy(p->transport, transport, strlen(transport) + 1);
    bool last = ++p->n_over == p->n_legs;
    pthread_mutex_unlock(&p->mutex);

    if (last) { /* nobody else touches the result any more */
        r->status = p->err.code;
        r->text = p->err.text;
        r->transport = p->transport;
        if (p->on_done)
            p->on_done(p->user, r);
    }
    push_drop(p);
}

/* ------------------------------------------------------------------ opening a push */

static td_status push_check_destination(const td_kv_push *p, const td_kv_descriptor *d,
                                        td_error *err)
{
    if (d->wire_hash != td_kv_wire_hash(p->src.g))
        return td_fail(err, TD_INVALID,
                       "the decode worker's KV is of another model, dtype or page size");
    for (int32_t i = 0; i < d->n_ranks; i++)
        if (d->rank[i].memory != p->memory)
            return td_fail(err, TD_INVALID,
                           "decode worker %.*s keeps its KV in %s memory, this prefill worker in "
                           "%s memory: run both with the same --backend",
                           (int)p->worker_id.len, p->worker_id.ptr,
                           d->rank[i].memory == TD_KV_CUDA ? "GPU" : "host",
                           p->memory == TD_KV_CUDA ? "GPU" : "host");
    td_status st = kv_ucx_version_check(kv_ucx_version(), d->ucx_version, err);
    if (st != TD_OK)
        return st;
    if (d->n_ranks != p->dst_g.tp)
        return td_fail(err, TD_INVALID, "destination: %d ranks described, tp is %d", d->n_ranks,
                       p->dst_g.tp);
    for (int32_t i = 0; i < d->n_ranks; i++)
        if (d->rank[i].bytes != p->dst_g.region_bytes)
            return td_fail(err, TD_INVALID,
                           "destination: rank %d has %" PRIu64 " bytes, its layout %" PRIu64, i,
                           d->rank[i].bytes, p->dst_g.region_bytes);
    return TD_OK;
}

static td_status push_set_places(td_kv_push *p, const td_kv_push_params *a, td_error *err)
{
    uint64_t n_dst = td_kv_pages_of(a->dst_extents, a->dst_n_extents, NULL, 0);

    /* Pages past the prompt are for tokens to come: not ours. */
    if (n_dst > td_kv_pages_for((uint64_t)p->n_tokens))
        n_dst = td_kv_pages_for((uint64_t)p->n_tokens);
    p->pages = malloc((a->n_pages + n_dst + 1) * sizeof *p->pages);
    if (!p->pages)
        return td_fail(err, TD_NOMEM, "KV push: no memory for page tables");
    if (a->n_pages > 0)
        memcpy(p->pages, a->pages, a->n_pages * sizeof *p->pages);
    td_kv_pages_of(a->dst_extents, a->dst_n_extents, p->pages + a->n_pages, n_dst);
    p->src.pages = p->pages;
    p->src.n_pages = a->n_pages;
    p->src.ring = a->ring;
    p->dst = (td_kv_place){&p->dst_g, p->pages + a->n_pages, (uint32_t)n_dst, a->dst_ring};

    td_status st = td_kv_place_check(&p->src, p->n_tokens, "source", err);
    return st == TD_OK ? td_kv_place_check(&p->dst, p->n_tokens, "destination", err) : st;
}

static td_status push_init(td_kv_push *p, const td_kv_push_params *a, td_error *err)
{
    td_kv_descriptor d;

    td_buf_add(&p->worker_id, a->worker_id.ptr, a->worker_id.len);
    td_buf_add(&p->descriptor, a->descriptor.ptr, a->descriptor.len);
    if (p->worker_id.oom || p->descriptor.oom)
        return td_fail(err, TD_NOMEM, "KV push: no memory for the destination");
    td_status st = td_kv_geometry_peer(&p->dst_g, p->src.g, a->dst_tp, a->dst_n_pages,
                                       a->dst_n_rings, a->dst_ring_pages, err);
    if (st != TD_OK)
        return td_wrap(err, "destination");
    st = push_set_places(p, a, err);
    if (st == TD_OK)
        st = td_kv_descriptor_parse(a->descriptor, &d, err);
    return st == TD_OK ? push_check_destination(p, &d, err) : st;
}

td_status td_kv_push_open(td_kv_source *const *sources, int32_t n, const td_kv_push_params *a,
                          td_kv_push **out, td_error *err)
{
    td_assert(n >= 1 && n <= TD_KV_MAX_SOURCES && n == sources[0]->g.tp);
    td_kv_push *p = calloc(1, sizeof *p + (size_t)n * sizeof p->legs[0]);

    if (!p)
        return td_fail(err, TD_NOMEM, "KV push: no memory");
    p->request = a->request;
    p->attempt = a->attempt;
    p->epoch = a->epoch;
    p->incarnation = a->incarnation;
    p->n_tokens = a->n_tokens;
    p->lease_deadline = a->lease_deadline;
    p->on_done = a->on_done;
    p->user = a->user;
    p->src_g = sources[0]->g;
    p->memory = sources[0]->region.memory;
    p->src.g = &p->src_g;
    p->n_legs = n;
    pthread_mutex_init(&p->mutex, NULL);
    td_status st = push_init(p, a, err);
    if (st != TD_OK) {
        push_destroy(p);
        return st;
    }
    atomic_init(&p->refs, 1 + n);
    atomic_init(&p->status, TD_OK);
    *out = p;
    for (int32_t i = 0; i < n; i++) {
        td_assert(sources[i]->rank == i);
        p->legs[i].push = p;
        p->legs[i].source = sources[i];
        p->legs[i].logprobs.n = -1;
        kv_source_add(sources[i], &p->legs[i]);
    }
    return TD_OK;
}

/* ------------------------------------------------------------------ what the engine says */

static void leg_queue_job(kv_leg *leg, leg_job job)
{
    if (leg->n_jobs == leg->cap_jobs) {
        size_t cap = leg->cap_jobs ? 2 * leg->cap_jobs : 64;
        leg_job *grown = realloc(leg->jobs, cap * sizeof *grown);

        if (!grown) {
            leg->jobs_oom = true;
            return;
        }
        leg->jobs = grown;
        leg->cap_jobs = cap;
    }
    leg->jobs[leg->n_jobs++] = job;
}

void td_kv_push_layer(td_kv_push *p, int32_t rank, int32_t layer, int32_t from, int32_t to,
                      struct td_event *ready)
{
    td_assert(rank >= 0 && rank < p->n_legs && layer >= 0 && layer < p->src.g->n_layers);
    kv_leg *leg = &p->legs[rank];
    int32_t clipped = from;

    pthread_mutex_lock(&leg->source->mutex);
    leg_queue_job(leg, (leg_job){layer, from, to, ready});
    pthread_mutex_unlock(&leg->source->mutex);
    if (td_kv_plan_clip(p->src.g, p->n_tokens, layer, &clipped, to))
        kv_ucx_wake(&leg->source->ucx);
}

td_status td_kv_push_status(const td_kv_push *p)
{
    return (td_status)atomic_load_explicit(&p->status, memory_order_relaxed);
}

/* Say it to every leg. on_done may come, and free the push, before the last one is woken. */
static void push_end(td_kv_push *p, bool canceled, td_status status, int32_t first_token,
                     uint32_t index, const td_logprobs *logprobs)
{
    push_hold(p);
    for (int32_t i = 0; i < p->n_legs; i++) {
        kv_leg *leg = &p->legs[i];

        pthread_mutex_lock(&leg->source->mutex);
        if (canceled) {
            leg->canceled = true;
        } else {
            leg->end_status = status;
            leg->first_token = first_token;
            leg->index = index;
            if (logprobs != NULL)
                leg->logprobs = *logprobs;
        }
        leg->ended = true;
        pthread_mutex_unlock(&leg->source->mutex);
        kv_ucx_wake(&leg->source->ucx);
    }
    push_drop(p);
}

void td_kv_push_finish(td_kv_push *p, td_status status, int32_t first_token, uint32_t index,
                       const td_logprobs *logprobs)
{
    push_end(p, false, status, first_token, index, logprobs);
}

void td_kv_push_cancel(td_kv_push *p)
{
    push_end(p, true, TD_CANCELED, 0, 0, NULL);
}

void td_kv_push_free(td_kv_push *p)
{
    if (p)
        push_drop(p);
}
