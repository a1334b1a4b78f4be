/* rank: see rank.h. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "common/rank.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPIN = 1000 };

typedef struct rank {
    td_ranks *all;
    int32_t number;
    pthread_t thread;
    _Atomic td_rank_state state; /* relaxed: nothing else is read by it */
    td_status st;
    td_error err;
} rank;

struct td_ranks {
    int32_t n, n_started, spin;
    rank *rank; /* [n] */
    td_rank_fn fn;
    void *ctx;
    _Atomic uint32_t round;   /* release: fn and ctx of this round are set; partner: the ranks */
    _Atomic int32_t finished; /* release: a rank's st and err are set; partner: the caller */
    _Atomic bool stop;
    pthread_mutex_t lock; /* only for sleeping: the conditions are the atomics */
    pthread_cond_t wake, done;
};

int32_t td_usable_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return CPU_COUNT(&set);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void td_ranks_mark(td_ranks *r, int32_t number, td_rank_state state)
{
    atomic_store_explicit(&r->rank[number].state, state, memory_order_relaxed);
}

int32_t td_ranks_late(const td_ranks *r, int32_t most, int32_t *late, td_rank_state *state)
{
    int32_t n = 0;

    *state = TD_RANK_DONE;
    for (int32_t i = 0; i < r->n; i++) {
        td_rank_state s = atomic_load_explicit(&r->rank[i].state, memory_order_relaxed);

        if (s < *state) {
            *state = s;
            n = 0;
        }
        if (s == *state && s != TD_RANK_DONE && n < most)
            late[n++] = i;
    }
    return n;
}

static td_status run_rank(td_ranks *r, int32_t number, td_error *err)
{
    td_status st;

    td_ranks_mark(r, number, TD_RANK_WORKS);
    st = r->fn(r->ctx, number, err);
    td_ranks_mark(r, number, TD_RANK_DONE);
    return st;
}

static void *rank_main(void *arg)
{
    rank *me = arg;
    td_ranks *r = me->all;
    uint32_t seen = 0;

    for (;;) {
        for (int i = 0; i < r->spin && atomic_load(&r->round) == seen; i++)
            relax();
        pthread_mutex_lock(&r->lock);
        while (atomic_load(&r->round) == seen && !atomic_load(&r->stop))
            pthread_cond_wait(&r->wake, &r->lock);
        pthread_mutex_unlock(&r->lock);
        if (atomic_load(&r->stop))
            return NULL;
        seen = atomic_load(&r->round);
        me->st = run_rank(r, me->number, &me->err);
        if (atomic_fetch_add(&r->finished, 1) + 1 == r->n - 1) {
            pthread_mutex_lock(&r->lock);
            pthread_cond_signal(&r->done);
            pthread_mutex_unlock(&r->lock);
        }
    }
}

td_status td_ranks_create(int32_t n, td_ranks **out, td_error *err)
{
    td_ranks *r = calloc(1, sizeof *r);

    if (r == NULL || (r->rank = calloc((size_t)n, sizeof *r->rank)) == NULL) {
        free(r);
        return td_fail(err, TD_NOMEM, "ranks: no memory for %d", n);
    }
    r->n = n;
    r->spin = n <= td_usable_cores() ? SPIN : 0;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    pthread_cond_init(&r->done, NULL);
    for (int32_t i = 0; i < n; i++) {
        int rc = 0;

        r->rank[i].all = r;
        r->rank[i].number = i;
        atomic_init(&r->rank[i].state, TD_RANK_DONE);
        if (i > 0 && (rc = pthread_create(&r->rank[i].thread, NULL, rank_main, &r->rank[i])) == 0)
            r->n_started++;
        if (rc != 0) {
            td_ranks_free(r);
            return td_fail(err, TD_NOMEM, "ranks: thread %d of %d could not start (errno %d)", i, n,
                           rc);
        }
    }
    *out = r;
    return TD_OK;
}

void td_ranks_free(td_ranks *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->stop, true);
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    for (int32_t i = 1; i <= r->n_started; i++)
        pthread_join(r->rank[i].thread, NULL);
    pthread_cond_destroy(&r->done);
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    free(r->rank);
    free(r);
}

static void wait_for_all(td_ranks *r)
{
    for (int i = 0; i < r->spin && atomic_load(&r->finished) < r->n - 1; i++)
        relax();
    pthread_mutex_lock(&r->lock);
    while (atomic_load(&r->finished) < r->n - 1)
        pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

td_status td_ranks_run(td_ranks *r, td_rank_fn fn, void *ctx, td_error *err)
{
    const rank *worst = NULL;

    r->fn = fn;
    r->ctx = ctx;
    if (r->n == 1)
        return run_rank(r, 0, err);
    atomic_store(&r->finished, 0);
    for (int32_t i = 0; i < r->n; i++) /* who has not even begun is late, too */
        td_ranks_mark(r, i, TD_RANK_WORKS);
    pthread_mutex_lock(&r->lock);
    atomic_fetch_add(&r->round, 1);
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    r->rank[0].st = run_rank(r, 0, &r->rank[0].err);
    wait_for_all(r);
    for (int32_t i = 0; i < r->n; i++) {
        const rank *k = &r->rank[i];

        if (k->st != TD_OK && (worst == NULL || (worst->st == TD_CANCELED && k->st != TD_CANCELED)))
            worst = k;
    }
    if (worst == NULL)
        return TD_OK;
    if (err != NULL)
        *err = worst->err;
    return worst->st;
}
