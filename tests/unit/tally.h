/* tally: counters that other threads move and a test waits for, with a deadline. */
#ifndef TANDEM_TESTS_TALLY_H
#define TANDEM_TESTS_TALLY_H

#include <pthread.h>
#include <stdbool.h>

#include "common/clock.h"

enum { TALLY_COUNTERS = 16, TALLY_SECONDS = 30 };

typedef struct tally {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    long count[TALLY_COUNTERS];
} tally;

static inline void tally_init(tally *t)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int i = 0; i < TALLY_COUNTERS; i++)
        t->count[i] = 0;
}

static inline void tally_fini(tally *t)
{
    pthread_cond_destroy(&t->moved);
    pthread_mutex_destroy(&t->lock);
}

static inline void tally_add(tally *t, int which, long n)
{
    pthread_mutex_lock(&t->lock);
    t->count[which] += n;
    pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}

static inline long tally_of(tally *t, int which)
{
    long n;

    pthread_mutex_lock(&t->lock);
    n = t->count[which];
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* Whether the counter reached at_least in TALLY_SECONDS. */
static inline bool tally_reaches(tally *t, int which, long at_least)
{
    struct timespec until = td_timespec(td_now_us() + TALLY_SECONDS * TD_USEC_PER_SEC);
    bool reached;

    pthread_mutex_lock(&t->lock);
    while (t->count[which] < at_least) {
        if (pthread_cond_timedwait(&t->moved, &t->lock, &until) != 0)
            break;
    }
    reached = t->count[which] >= at_least;
    pthread_mutex_unlock(&t->lock);
    return reached;
}

#endif
