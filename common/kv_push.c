/* kv_push: a push is one leg per source rank, and legs know nothing of each other.
 *
 * A leg lives on its source's thread and goes through stages in order:
 *
 *   PUTTING   put what the layers that are ready need; over when the engine has finished and all is
 *             posted, or something has failed (then what is queued is dropped)
 *   FLUSHING  wait until every put is in the decode worker's memory
 *   NOTIFYING send the notice: only now, since messages may overtake puts
 *   DRAINING  a last flush, so that the notice has left this process
 *   CHECKING  let UCX look once more whether the peer is there: with all the above done at once, a
 *             peer that had died before it would go unnoticed
 *   OVER      wait for the engine's finish, if a failure came before it, then report
 *
 * A broken endpoint leads from anywhere to OVER without a notice, once the endpoint is closed.
 *
 * Other threads reach a leg only through its inbox, guarded by its source's mutex. The push itself
 * is const after open, but for the result, guarded by its own mutex, and three atomics. It is freed
 * when the last of its owner and its legs has let go. */
#include "common/kv_wire_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEG_PUTS_A_STEP = 256 }; /* then progress: completions are not to wait for a long plan */

typedef enum leg_stage {
    LEG_PUTTING,
    LEG_FLUSHING,
    LEG_NOTIFYING,
    LEG_DRAINING,
    LEG_CHECKING,
    LEG_OVER,
} leg_stage;

/* A range of a layer that may be put once `ready` is reached. */
typedef struct leg_job {
    int32_t layer, from, to;
    struct td_event *ready;
} leg_job;

struct kv_leg {
    kv_leg *next;
    td_kv_push *push;
    td_kv_source *source;

    /* The inbox, guarded by source->mutex. */
    leg_job *jobs;
    size_t n_jobs, cap_jobs, next_job;
    bool jobs_oom;
    bool ended, canceled; /* finish was called; cancel was called */
    td_status end_status;
    int32_t first_token;
    uint32_t index;

    /* The source thread's. */
    leg_stage stage;
    kv_peer *peer;
    bool mute;       /* no endpoint to report on: on_done is the only report */
    bool op_running; /* of `op`: flush or notice */
    int puts_in_flight;
    kv_op op;
    td_kv_puts plan;
    size_t next_put;                /* of plan */
    uint64_t put_at;                /* bytes of it that are posted */
    int32_t covered[TD_MAX_LAYERS]; /* positions of each layer that were taken into a plan */
    td_error err;                   /* code TD_OK: nothing is wrong */
    uint64_t bytes, digest;
    uint32_t puts;
    td_usec first_put_us, flushed_us;
    uint64_t checked_from; /* the source's round when CHECKING began */
    unsigned char notice[TD_KV_NOTICE_BYTES];
};

struct td_kv_push {
    uint64_t request, incarnation;
    uint32_t attempt, epoch;
    int32_t n_tokens;
    td_buf worker_id, descriptor;
    td_kv_geometry src_g, dst_g; /* copies: sources close one by one */
    td_kv_place src, dst;
    uint32_t *pages; /* src's, then dst's */
    td_usec lease_deadline;
    td_kv_on_done on_done;
    void *user;
    atomic_int refs;   /* of the owner and of each leg */
    atomic_int status; /* first failure; relaxed: nothing is read on the strength of it */

    pthread_mutex_t mutex; /* guards what follows */
    int n_over;
    td_kv_push_result result;
    td_error err;
    char transport[KV_TRANSPORT_NAME];

    int32_t n_legs;
    kv_leg legs[];
};

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

static void push_drop(td_kv_push *p)
{
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1)
        push_destroy(p);
}

/* The first failure of any leg is the push's. */
static void push_fail(td_kv_push *p, const td_error *err)
{
    int ok = TD_OK;

    atomic_compare_exchange_strong_explicit(&p->status, &ok, (int)err->code, memory_order_relaxed,
                                            memory_order_relaxed);
    pthread_mutex_lock(&p->mutex);
    if (p->err.code == TD_OK)
        p->err = *err;
    pthread_mutex_unlock(&p->mutex);
}

static void push_leg_over(td_kv_push *p, const kv_leg *leg, const char *transport)
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

/* ------------------------------------------------------------------ a leg, on its source's thread
 */

kv_leg **kv_leg_link(kv_leg *leg)
{
    return &leg->next;
}

static void leg_fail(kv_leg *leg, td_status code, const char *fmt, ...) TD_PRINTF(3, 4);

static void leg_failed(kv_leg *leg, const td_error *err)
{
    if (leg->err.code != TD_OK)
        return;
    leg->err = *err;
    push_fail(leg->push, err);
}

static void leg_fail(kv_leg *leg, td_status code, const char *fmt, ...)
{
    td_error err = {0};
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    td_fail(&err, code, "%s", text);
    leg_failed(leg, &err);
}

static void leg_on_put(kv_op *op, ucs_status_t status)
{
    td_kv_source *s = op->leg->source;

    (void)status; /* a failure has failed the peer, which every leg on it sees */
    op->leg->puts_in_flight--;
    op->next_free = s->free_ops;
    s->free_ops = op;
}

static void leg_on_op(kv_op *op, ucs_status_t status)
{
    (void)status;
    op->leg->op_running = false;
}

/* What the engine has said since. */
static void leg_read_inbox(kv_leg *leg, bool *ended)
{
    td_status end_status;
    bool canceled, oom;

    pthread_mutex_lock(&leg->source->mutex);
    *ended = leg->ended;
    end_status = leg->end_status;
    canceled = leg->canceled;
    oom = leg->jobs_oom;
    pthread_mutex_unlock(&leg->source->mutex);

    if (leg->stage > LEG_FLUSHING)
        return; /* the notice is under way and says OK or not already */
    if (oom)
        leg_fail(leg, TD_NOMEM, "KV push: no memory to queue a layer");
    if (canceled)
        leg_fail(leg, TD_CANCELED, "the push was canceled");
    if (*ended && end_status != TD_OK)
        leg_fail(leg, end_status, "prefill failed: %s", td_status_name(end_status));
}

static bool leg_take_job(kv_leg *leg, leg_job *job)
{
    pthread_mutex_lock(&leg->source->mutex);
    bool some = leg->next_job < leg->n_jobs;

    if (some)
        *job = leg->jobs[leg->next_job++];
    if (leg->next_job == leg->n_jobs)
        leg->next_job = leg->n_jobs = 0;
    pthread_mutex_unlock(&leg->source->mutex);
    return some;
}

/* Plan the next layer that is ready. False: none is, or the leg has failed. */
static bool leg_plan_next(kv_leg *leg)
{
    td_kv_push *p = leg->push;
    td_kv_source *s = leg->source;
    td_error err = {0};
    leg_job job;

    if (!leg_take_job(leg, &job))
        return false;
    if (job.from != leg->covered[job.layer] || job.to < job.from || job.to > p->n_tokens) {
        leg_fail(leg, TD_INTERNAL, "KV push: layer %d pushes [%d, %d) of %d tokens after %d",
                 job.layer, job.from, job.to, p->n_tokens, leg->covered[job.layer]);
        return false;
    }
    leg->covered[job.layer] = job.to;
    if (s->opt.o.wait_event)
        s->opt.o.wait_event(job.ready);
    td_kv_puts_clear(&leg->plan);
    leg->next_put = 0;
    leg->put_at = 0;
    if (td_kv_plan(&p->src, s->rank, &p->dst, p->n_tokens, job.layer, job.from, job.to, &leg->plan,
                   &err) != TD_OK) {
        leg_failed(leg, &err);
        return false;
    }
    if (s->opt.o.verify)
        leg->digest += td_kv_digest(&p->src, s->rank, s->region.base, p->n_tokens, job.layer,
                                    job.from, job.to);
    return true;
}

/* Post the next put, or as much of it as goes into one message. */
static void leg_put_one(kv_leg *leg)
{
    td_kv_source *s = leg->source;
    const td_kv_put *whole = &leg->plan.ptr[leg->next_put];
    uint64_t left = whole->bytes - leg->put_at;
    td_kv_put part = {
        .src_offset = whole->src_offset + leg->put_at,
        .dst_offset = whole->dst_offset + leg->put_at,
        .bytes = left < leg->peer->max_put ? left : leg->peer->max_put,
        .dst_rank = whole->dst_rank,
    };
    kv_op *op = s->free_ops;
    td_error err = {0};

    if (leg->puts + 1 == s->opt.o.fail_put_number) {
        leg_fail(leg, TD_UNAVAILABLE, "put %u was made to fail by a test option", leg->puts + 1);
        return;
    }
    s->free_ops = op->next_free;
    op->leg = leg;
    op->on_done = leg_on_put;
    leg->puts_in_flight++;
    if (kv_peer_put(leg->peer, op, &part, &err) != TD_OK) {
        leg->puts_in_flight--;
        op->next_free = s->free_ops;
        s->free_ops = op;
        leg_failed(leg, &err);
        return;
    }
    leg->bytes += part.bytes;
    leg->put_at += part.bytes;
    if (leg->put_at == whole->bytes) {
        leg->puts++;
        leg->next_put++;
        leg->put_at = 0;
    }
}

/* The fence: past the lease no put may start, and there is no point in waiting for more to put. */
static bool leg_lease_over(kv_leg *leg)
{
    td_usec late = td_now_us() - leg->push->lease_deadline;

    if (late < 0)
        return false;
    leg_fail(leg, TD_DEADLINE, "the reservation's lease ran out %lld ms ago",
             (long long)(late / TD_USEC_PER_MSEC));
    return true;
}

/* Start as many puts as may be in flight. True when everything queued so far was started. */
static bool leg_put(kv_leg *leg)
{
    td_kv_source *s = leg->source;

    for (int n = 0; leg->err.code == TD_OK && !leg->peer->failed; n++) {
        if (leg->next_put == leg->plan.len) {
            if (!leg_plan_next(leg))
                return leg->err.code == TD_OK;
            continue;
        }
        if (!s->free_ops || s->bytes_in_flight >= KV_MAX_BYTES_IN_FLIGHT)
            return false;
        if (n >= LEG_PUTS_A_STEP) {
            s->dirty = true;
            return false;
        }
        if (leg_lease_over(leg))
            return false;
        if (!leg->first_put_us)
            leg->first_put_us = td_now_us();
        leg_put_one(leg);
    }
    return false;
}

static void leg_check_complete(kv_leg *leg)
{
    const td_kv_push *p = leg->push;

    for (int32_t i = 0; i < p->src.g->n_layers; i++)
        if (leg->covered[i] != p->n_tokens)
            leg_fail(leg, TD_INTERNAL, "KV push: finished with %d of %d tokens of layer %d",
                     leg->covered[i], p->n_tokens, i);
}

static void leg_encode_notice(kv_leg *leg)
{
    const td_kv_push *p = leg->push;
    td_kv_notice n = {
        .request = p->request,
        .attempt = p->attempt,
        .epoch = p->epoch,
        .source_rank = (uint32_t)leg->source->rank,
        .n_sources = (uint32_t)p->n_legs,
        .status = leg->err.code,
        .bytes = leg->bytes,
        .puts = leg->puts,
        .has_digest = leg->source->opt.o.verify,
        .digest = leg->digest,
        .stream = leg->peer->stream,
        .after = leg->peer->messages,
    };

    pthread_mutex_lock(&leg->source->mutex);
    n.first_token = leg->first_token;
    n.index = leg->index;
    pthread_mutex_unlock(&leg->source->mutex);
    td_kv_notice_encode(&n, leg->notice);
}

/* Post the request that the new stage consists of. Failing to do so is failing the endpoint: there
 * is no other way left to tell the decode worker anything. */
static void leg_enter(kv_leg *leg, leg_stage stage)
{
    td_error err = {0};
    td_status st = TD_OK;

    leg->stage = stage;
    leg->op = (kv_op){.leg = leg, .on_done = leg_on_op};
    leg->op_running = stage < LEG_CHECKING;
    if (stage == LEG_NOTIFYING) {
        leg_encode_notice(leg);
        st = kv_peer_notify(leg->peer, &leg->op, leg->notice, &err);
    } else if (stage < LEG_CHECKING) {
        st = kv_peer_flush(leg->peer, &leg->op, &err);
    }
    if (st != TD_OK) {
        leg->op_running = false;
        kv_peer_fail(leg->peer, TD_UNAVAILABLE, "%s", err.text);
    }
}

/* One endpoint per decode worker; a leg that gets none, or loses it, is mute. */
static void leg_check_peer(kv_leg *leg)
{
    td_kv_push *p = leg->push;
    td_error err = {0};

    if (leg->mute)
        return;
    if (!leg->peer) {
        if (kv_peer_take(leg->source, (td_slice){p->worker_id.ptr, p->worker_id.len},
                         p->incarnation, (td_slice){p->descriptor.ptr, p->descriptor.len},
                         &leg->peer, &err) != TD_OK) {
            leg_failed(leg, &err);
            leg->mute = true;
        }
    } else if (leg->peer->failed && leg->stage != LEG_OVER) {
        leg_failed(leg, &leg->peer->why);
        leg->mute = true;
    }
}

/* Go through the stages for as long as nothing has to be waited for. */
static void leg_advance(kv_leg *leg, bool ended)
{
    while (!leg->op_running && !leg->peer->failed) {
        switch (leg->stage) {
        case LEG_PUTTING: {
            bool all_started = leg_put(leg);

            if (leg->peer->failed)
                return;
            if (leg->err.code == TD_OK) {
                if (!all_started || (!ended && !leg_lease_over(leg)))
                    return;
                if (leg->err.code == TD_OK)
                    leg_check_complete(leg);
            }
            leg_enter(leg, LEG_FLUSHING);
            break;
        }
        case LEG_FLUSHING:
            if (leg->puts_in_flight > 0)
                return;
            leg->flushed_us = td_now_us();
            leg_enter(leg, LEG_NOTIFYING);
            break;
        case LEG_NOTIFYING: leg_enter(leg, LEG_DRAINING); break;
        case LEG_DRAINING:
            leg_enter(leg, LEG_CHECKING);
            leg->checked_from = leg->source->rounds;
            leg->source->dirty = true;
            return;
        case LEG_CHECKING:
            if (leg->source->rounds == leg->checked_from)
                return;
            leg_enter(leg, LEG_OVER);
            break;
        case LEG_OVER: return;
        }
    }
}

bool kv_leg_step(kv_leg *leg, td_usec *deadline)
{
    const td_kv_push *p = leg->push;
    bool ended;

    leg_read_inbox(leg, &ended);
    leg_check_peer(leg);
    if (!leg->mute) {
        leg_advance(leg, ended);
        leg_check_peer(leg); /* lost on the way: do not wait for the next step to say so */
    }
    if (leg->stage == LEG_PUTTING && leg->err.code == TD_OK && p->lease_deadline < *deadline)
        *deadline = p->lease_deadline;
    bool over = leg->mute ? !leg->peer || leg->peer->closed : leg->stage == LEG_OVER;

    if (!over || !ended)
        return false;

    const char *transport = NULL;
    if (leg->peer) {
        transport = kv_peer_transport(leg->peer);
        kv_peer_give(leg->peer);
    }
    push_leg_over(leg->push, leg, transport);
    return true;
}

void kv_leg_abandon(kv_leg *leg)
{
    pthread_mutex_lock(&leg->source->mutex);
    leg->ended = leg->canceled = true;
    pthread_mutex_unlock(&leg->source->mutex);
}

/* ------------------------------------------------------------------ opening a push */

static td_status push_check_destination(const td_kv_push *p, const td_kv_descriptor *d,
                                        td_error *err)
{
    if (d->wire_hash != td_kv_wire_hash(p->src.g))
        return td_fail(err, TD_INVALID,
                       "the decode worker's KV is of another model, dtype or page size");
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

void td_kv_push_finish(td_kv_push *p, td_status status, int32_t first_token, uint32_t index)
{
    for (int32_t i = 0; i < p->n_legs; i++) {
        kv_leg *leg = &p->legs[i];

        pthread_mutex_lock(&leg->source->mutex);
        leg->ended = true;
        leg->end_status = status;
        leg->first_token = first_token;
        leg->index = index;
        pthread_mutex_unlock(&leg->source->mutex);
        kv_ucx_wake(&leg->source->ucx);
    }
}

void td_kv_push_cancel(td_kv_push *p)
{
    for (int32_t i = 0; i < p->n_legs; i++) {
        kv_leg *leg = &p->legs[i];

        pthread_mutex_lock(&leg->source->mutex);
        leg->ended = leg->canceled = true;
        pthread_mutex_unlock(&leg->source->mutex);
        kv_ucx_wake(&leg->source->ucx);
    }
}

void td_kv_push_free(td_kv_push *p)
{
    if (p)
        push_drop(p);
}
