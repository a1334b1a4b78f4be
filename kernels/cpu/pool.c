/* pool: see pool.h.
 *
 * A job is published as one 64-bit ticket {sequence, items, next item}. Taking an item is one
 * atomic add on it, and the value it returns says at once which job the item belongs to and whether
 * it exists: a helper that wakes late finds no item left and has touched nothing else. job, ctx may
 * be read only by who holds a valid item, and the next job is not written before all items are
 * done. */
#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPIN 1000          /* some 50 us of pause: longer than the gap between two steps */
#define INLINE_COST 200000 /* multiply-adds: some 3 us, a few times what handing over costs */
#define ITEM_BITS 24
#define ITEM_MASK ((1u << ITEM_BITS) - 1)

struct cpu_pool {
    int32_t n_threads;
    pthread_t *thread; /* [n_threads - 1] */
    int32_t n_started;

    cpu_job job; /* written before the ticket (release), read after taking an item (acquire) */
    void *ctx;
    _Alignas(64) _Atomic uint64_t ticket; /* sequence:16 | items:24 | next:24 */
    _Alignas(64) _Atomic uint32_t done;   /* items done of this job; its last reader: the caller */

    _Alignas(64) pthread_mutex_t lock; /* guards the sleepers' conditions */
    pthread_cond_t wake, finished;
    _Atomic int32_t n_asleep;
    _Atomic bool caller_asleep, stop;
};

typedef struct helper {
    cpu_pool *pool;
    int32_t thread;
} helper;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t items_of(uint64_t ticket)
{
    return (uint32_t)(ticket >> ITEM_BITS) & ITEM_MASK;
}

static bool has_items(uint64_t ticket)
{
    return ((uint32_t)ticket & ITEM_MASK) < items_of(ticket);
}

/* Take and run items until none is left. The look before the add keeps `next` from running over. */
static void work(cpu_pool *p, int32_t thread)
{
    while (has_items(atomic_load_explicit(&p->ticket, memory_order_relaxed))) {
        uint64_t t = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_acquire);

        if (!has_items(t))
            return;
        p->job(p->ctx, (int32_t)((uint32_t)t & ITEM_MASK), thread);
        if (atomic_fetch_add(&p->done, 1) + 1 == items_of(t) && atomic_load(&p->caller_asleep)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->finished);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static void *helper_main(void *arg)
{
    helper h = *(helper *)arg;
    cpu_pool *p = h.pool;

    free(arg);
    while (!atomic_load(&p->stop)) {
        int spins = 0;

        while (!has_items(atomic_load_explicit(&p->ticket, memory_order_relaxed)) && spins < SPIN) {
            relax();
            spins++;
        }
        if (spins == SPIN) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->n_asleep, 1);
            /* The caller publishes, then looks at n_asleep; we count ourselves, then look at the
             * ticket (both sequentially consistent): one of the two sees the other. */
            while (!has_items(atomic_load(&p->ticket)) && !atomic_load(&p->stop))
                pthread_cond_wait(&p->wake, &p->lock);
            atomic_fetch_sub(&p->n_asleep, 1);
            pthread_mutex_unlock(&p->lock);
        }
        work(p, h.thread);
    }
    return NULL;
}

td_status cpu_pool_create(int32_t n_threads, cpu_pool **out, td_error *err)
{
    cpu_pool *p = aligned_alloc(64, sizeof *p);

    if (p == NULL)
        return td_fail(err, TD_NOMEM, "cpu pool: no memory");
    *p = (cpu_pool){.n_threads = n_threads};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->finished, NULL);
    p->thread = calloc((size_t)n_threads, sizeof *p->thread);
    if (p->thread == NULL)
        goto nomem;
    for (int32_t i = 1; i < n_threads; i++) {
        helper *h = malloc(sizeof *h);
        int rc;

        if (h == NULL)
            goto nomem;
        *h = (helper){p, i};
        rc = pthread_create(&p->thread[i - 1], NULL, helper_main, h);
        if (rc != 0) {
            free(h);
            cpu_pool_free(p);
            return td_fail(err, TD_NOMEM, "cpu pool: thread %d of %d could not start (errno %d)",
                           i + 1, n_threads, rc);
        }
        p->n_started++;
    }
    *out = p;
    return TD_OK;

nomem:
    cpu_pool_free(p);
    return td_fail(err, TD_NOMEM, "cpu pool: no memory for %d threads", n_threads);
}

void cpu_pool_free(cpu_pool *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->n_started; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->thread);
    free(p);
}

int32_t cpu_pool_threads(const cpu_pool *p)
{
    return p->n_threads;
}

static void publish(cpu_pool *p, uint32_t n_items, cpu_job job, void *ctx)
{
    uint64_t seq = atomic_load_explicit(&p->ticket, memory_order_relaxed) >> (2 * ITEM_BITS);

    p->job = job;
    p->ctx = ctx;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->ticket, (seq + 1) << (2 * ITEM_BITS) | (uint64_t)n_items << ITEM_BITS);
    if (atomic_load(&p->n_asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

void cpu_pool_run(cpu_pool *p, int32_t n_items, int64_t cost, cpu_job job, void *ctx)
{
    td_assert(n_items <= (int32_t)ITEM_MASK / 2);
    if (p->n_threads == 1 || n_items <= 1 || cost < INLINE_COST) {
        for (int32_t i = 0; i < n_items; i++)
            job(ctx, i, 0);
        return;
    }
    publish(p, (uint32_t)n_items, job, ctx);
    work(p, 0);
    for (int i = 0; i < SPIN; i++) {
        if (atomic_load_explicit(&p->done, memory_order_acquire) == (uint32_t)n_items)
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_asleep, true);
    while (atomic_load(&p->done) != (uint32_t)n_items)
        pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->caller_asleep, false);
    pthread_mutex_unlock(&p->lock);
}
