/* kv_wire_source: a prefill rank's thread.
 *
 * It runs the legs of all pushes (kv_push_leg.c) oldest first, drives the UCX workers of its
 * endpoints (kv_wire_peer.c), and sleeps when neither has anything to do. */
#include "common/kv_wire_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    SOURCE_TICK_MS = 500, /* with endpoints open: keepalive is done inside progress */
    SOURCE_ROUNDS = 64,   /* of progress before the legs are looked at again */
};

static void peers_step(td_kv_source *s, td_usec now, td_usec *deadline)
{
    for (kv_peer **at = &s->peers, *p; (p = *at) != NULL;) {
        if (!kv_peer_step(p, now, deadline)) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        td_buf_free(&p->key);
        free(p);
    }
}

/* ------------------------------------------------------------------ the thread */

void kv_source_add(td_kv_source *s, kv_leg *leg)
{
    pthread_mutex_lock(&s->mutex);
    *kv_leg_link(leg) = s->incoming;
    s->incoming = leg;
    pthread_mutex_unlock(&s->mutex);
    kv_ucx_wake(&s->ucx);
}

/* Move new legs to the end of the list, in order of arrival. Returns whether to stop. */
static bool source_collect(td_kv_source *s)
{
    kv_leg *in_order = NULL, **tail = &s->legs;

    pthread_mutex_lock(&s->mutex);
    kv_leg *leg = s->incoming;
    bool stop = s->stop;

    s->incoming = NULL;
    pthread_mutex_unlock(&s->mutex);
    while (leg) {
        kv_leg *next = *kv_leg_link(leg);

        *kv_leg_link(leg) = in_order;
        in_order = leg;
        leg = next;
    }
    while (*tail)
        tail = kv_leg_link(*tail);
    *tail = in_order;
    return stop;
}

static void source_step_legs(td_kv_source *s, td_usec *deadline)
{
    for (kv_leg **at = &s->legs, *leg; (leg = *at) != NULL;) {
        kv_leg *next = *kv_leg_link(leg);

        if (kv_leg_step(leg, deadline))
            *at = next;
        else
            at = kv_leg_link(leg);
    }
}

static void source_progress(td_kv_source *s)
{
    for (kv_peer *p = s->peers; p; p = p->next) {
        int i = 0;

        while (p->worker && i < SOURCE_ROUNDS && ucp_worker_progress(p->worker) != 0)
            i++;
        if (i == SOURCE_ROUNDS)
            s->dirty = true; /* there is more */
    }
}

static bool source_arm(td_kv_source *s)
{
    bool busy = false;

    for (kv_peer *p = s->peers; p; p = p->next)
        if (p->worker && kv_ucx_arm(p->worker))
            busy = true;
    return busy;
}

static td_usec source_timeout(const td_kv_source *s, td_usec deadline)
{
    td_usec now = td_now_us();
    td_usec limit = s->peers ? SOURCE_TICK_MS * TD_USEC_PER_MSEC : -1;

    if (deadline == TD_USEC_NEVER)
        return limit;
    td_usec left = deadline <= now ? 0 : deadline - now;
    return limit >= 0 && left > limit ? limit : left;
}

static bool source_peers_closed(const td_kv_source *s)
{
    for (const kv_peer *p = s->peers; p; p = p->next)
        if (!p->closed)
            return false;
    return true;
}

static void source_run(td_kv_source *s)
{
    for (;;) {
        td_usec deadline = TD_USEC_NEVER;
        bool stop = source_collect(s);

        s->dirty = false;
        if (stop) {
            for (kv_leg *leg = s->legs; leg; leg = *kv_leg_link(leg))
                kv_leg_abandon(leg);
            if (!s->legs)
                for (kv_peer *p = s->peers; p; p = p->next)
                    p->failed = true; /* quietly: nothing is in flight */
        }
        source_step_legs(s, &deadline);
        peers_step(s, td_now_us(), &deadline);
        if (stop && !s->legs && source_peers_closed(s))
            return;
        source_progress(s);
        s->rounds++;
        if (!s->dirty)
            kv_ucx_sleep(&s->ucx, source_arm(s) ? 0 : source_timeout(s, deadline));
    }
}

static td_status source_start(td_kv_source *s, td_error *err)
{
    td_status st = kv_ucx_open(&s->ucx, &s->opt, &s->region, err);

    if (st != TD_OK)
        return st;
    st = kv_ucx_map(&s->ucx, &s->opt, &s->region, &s->memh, err);
    if (st != TD_OK)
        kv_ucx_close(&s->ucx);
    return st;
}

static void *source_main(void *arg)
{
    td_kv_source *s = arg;
    td_error err = {0};
    td_status st = source_start(s, &err);

    pthread_mutex_lock(&s->mutex);
    s->state = st == TD_OK ? KV_RUNNING : KV_FAILED;
    s->start_err = err;
    pthread_cond_broadcast(&s->started);
    pthread_mutex_unlock(&s->mutex);
    if (st != TD_OK)
        return NULL;
    source_run(s);
    kv_ucx_unmap(&s->ucx, s->memh);
    kv_ucx_close(&s->ucx);
    return NULL;
}

/* ------------------------------------------------------------------ opening and closing */

static void source_free(td_kv_source *s)
{
    kv_ucx_close_fds(&s->ucx);
    pthread_cond_destroy(&s->started);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static td_status source_check(const td_kv_wire_options *opt, const td_kv_geometry *g, int32_t rank,
                              const td_kv_region *region, td_error *err)
{
    if (rank < 0 || rank >= g->tp)
        return td_fail(err, TD_INVALID, "KV source: rank %d of %d", rank, g->tp);
    if (!region->base || region->bytes != g->region_bytes)
        return td_fail(err, TD_INVALID,
                       "KV source: rank %d has %llu bytes of KV memory, its layout %llu", rank,
                       (unsigned long long)region->bytes, (unsigned long long)g->region_bytes);
    if (opt->verify && region->memory != TD_KV_HOST)
        return td_fail(err, TD_INVALID, "KV source: verify reads the KV and needs host memory");
    return TD_OK;
}

td_status td_kv_source_open(const td_kv_wire_options *opt, const td_kv_geometry *g, int32_t rank,
                            const td_kv_region *region, td_kv_source **out, td_error *err)
{
    td_status st = source_check(opt, g, rank, region, err);
    if (st != TD_OK)
        return st;

    td_kv_source *s = calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_NOMEM, "KV source: no memory");
    s->g = *g;
    s->rank = rank;
    s->region = *region;
    for (int i = 0; i < KV_MAX_IN_FLIGHT; i++) {
        s->ops[i].next_free = s->free_ops;
        s->free_ops = &s->ops[i];
    }
    st = kv_options_init(&s->opt, opt, err);
    if (st == TD_OK)
        st = kv_ucx_open_fds(&s->ucx, err);
    if (st != TD_OK) {
        free(s);
        return st;
    }
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->started, NULL);

    if (pthread_create(&s->thread, NULL, source_main, s) != 0) {
        source_free(s);
        return td_fail(err, TD_NOMEM, "KV source: no thread");
    }
    pthread_mutex_lock(&s->mutex);
    while (s->state == KV_STARTING)
        pthread_cond_wait(&s->started, &s->mutex);
    bool failed = s->state == KV_FAILED;
    pthread_mutex_unlock(&s->mutex);
    if (failed) {
        pthread_join(s->thread, NULL);
        st = s->start_err.code;
        if (err)
            *err = s->start_err;
        source_free(s);
        return st;
    }
    *out = s;
    return TD_OK;
}

void td_kv_source_close(td_kv_source *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_mutex_unlock(&s->mutex);
    kv_ucx_wake(&s->ucx);
    pthread_join(s->thread, NULL);
    source_free(s);
}
