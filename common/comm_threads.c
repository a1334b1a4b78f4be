/* comm_threads: collectives between threads that see each other's memory.
 *
 * td_comm_open() is here too: these are the collectives of a backend that has none of its own.
 *
 * reduce_add: every rank publishes its part, all meet at a barrier, and every rank adds up all
 * parts itself, in rank order. One barrier is enough because callers alternate buffers (comm.h): a
 * part is written again only after the next barrier, which its last reader has passed by then. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/comm.h"
#include "common/rank.h"

enum { SPIN = 1000 };

typedef struct comm_threads {
    td_comm base;
    const td_ops *ops;
    int32_t n, spin;
    /* Two sets: a fast rank publishes for the next reduction while a slow one reads this one's. */
    const void **part[2];
    int32_t *turn; /* [n] which set a rank uses next; its own */
    _Atomic uint32_t round;
    int32_t arrived; /* under lock */
    _Atomic bool aborted;
    pthread_mutex_t lock;
    pthread_cond_t moved;
} comm_threads;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static td_status meet(comm_threads *c, td_error *err)
{
    uint32_t round;

    pthread_mutex_lock(&c->lock);
    round = atomic_load(&c->round);
    if (!atomic_load(&c->aborted) && ++c->arrived == c->n) {
        c->arrived = 0;
        atomic_store(&c->round, round + 1);
        pthread_cond_broadcast(&c->moved);
    }
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->spin && atomic_load(&c->round) == round; i++)
        relax();
    pthread_mutex_lock(&c->lock);
    while (atomic_load(&c->round) == round && !atomic_load(&c->aborted))
        pthread_cond_wait(&c->moved, &c->lock);
    pthread_mutex_unlock(&c->lock);
    if (atomic_load(&c->round) == round)
        return td_fail(err, TD_CANCELED, "another rank gave up in this step");
    return TD_OK;
}

static td_status reduce_add(td_comm *base, int32_t rank, td_stream *s, const void *part, size_t n,
                            bool clear, void *x, td_error *err)
{
    comm_threads *c = (comm_threads *)base;
    const void **parts = c->part[c->turn[rank]];
    td_status st;

    parts[rank] = part;
    c->turn[rank] ^= 1;
    st = meet(c, err);
    if (st != TD_OK)
        return st;
    return c->ops->add(
        s, &(td_add_args){.n = n, .n_parts = c->n, .clear = clear, .part = parts, .x = x}, err);
}

static td_status gather(td_comm *base, int32_t rank, td_stream *s, const td_gather_args *a,
                        td_error *err)
{
    comm_threads *c = (comm_threads *)base;
    td_status st = td_gather_check(rank, a, err);

    (void)s;
    if (st == TD_OK)
        st = meet(c, err); /* rank 0 has come: nobody reads out any more */
    if (st != TD_OK)
        return st;
    for (int32_t r = 0; r < a->rows; r++)
        memcpy(a->out + (size_t)r * (size_t)a->total_cols + a->first_col,
               a->part + (size_t)r * (size_t)a->cols, (size_t)a->cols * sizeof(float));
    return meet(c, err);
}

static td_status check(td_comm *base, int32_t rank, td_error *err)
{
    comm_threads *c = (comm_threads *)base;

    (void)rank;
    if (atomic_load(&c->aborted))
        return td_fail(err, TD_CANCELED, "another rank gave up in this step");
    return TD_OK;
}

static void abort_all(td_comm *base)
{
    comm_threads *c = (comm_threads *)base;

    pthread_mutex_lock(&c->lock);
    atomic_store(&c->aborted, true);
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&c->lock);
}

static void reset(td_comm *base)
{
    comm_threads *c = (comm_threads *)base;

    pthread_mutex_lock(&c->lock);
    atomic_store(&c->aborted, false);
    c->arrived = 0;
    for (int32_t i = 0; i < c->n; i++)
        c->turn[i] = 0;
    pthread_mutex_unlock(&c->lock);
}

static void close_comm(td_comm *base)
{
    comm_threads *c = (comm_threads *)base;

    pthread_cond_destroy(&c->moved);
    pthread_mutex_destroy(&c->lock);
    free(c->turn);
    free(c->part[0]);
    free(c->part[1]);
    free(c);
}

td_status td_comm_threads_open(const td_ops *ops, int32_t n, td_comm **out, td_error *err)
{
    static const td_comm_impl impl = {reduce_add, gather, check, abort_all, reset, close_comm};
    comm_threads *c;

    td_assert(ops->comm_open == NULL); /* else a step has not run when its call returns */
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return td_fail(err, TD_NOMEM, "collectives: no memory");
    c->base.impl = &impl;
    c->ops = ops;
    c->n = n;
    c->spin = n <= td_usable_cores() ? SPIN : 0;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->moved, NULL);
    c->part[0] = calloc((size_t)n, sizeof *c->part[0]);
    c->part[1] = calloc((size_t)n, sizeof *c->part[1]);
    c->turn = calloc((size_t)n, sizeof *c->turn);
    if (c->part[0] == NULL || c->part[1] == NULL || c->turn == NULL) {
        close_comm(&c->base);
        return td_fail(err, TD_NOMEM, "collectives: no memory for %d ranks", n);
    }
    *out = &c->base;
    return TD_OK;
}

td_status td_comm_open(const td_ops *ops, const td_comm_options *o, td_comm **out, td_error *err)
{
    if (ops->comm_open != NULL)
        return ops->comm_open(o, out, err);
    return td_comm_threads_open(ops, o->n, out, err);
}
