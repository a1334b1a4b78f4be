/* rank: one thread a rank, and a function run on all of them.
 *
 * Rank 0 is the thread that calls td_ranks_run(), so that a worker of one rank never hands anything
 * over; the others are threads of their own that wait, spinning for some microseconds first where
 * there are cores to spare. One thread at a time calls td_ranks_run(). */
#ifndef TANDEM_COMMON_RANK_H
#define TANDEM_COMMON_RANK_H

#include <stdint.h>

#include "common/status.h"

typedef struct td_ranks td_ranks;
typedef td_status (*td_rank_fn)(void *ctx, int32_t rank, td_error *err);

/* n at least 1; starts n - 1 threads. *out is the caller's, to td_ranks_free(). TD_NOMEM: memory,
 * or a thread. */
TD_MUST_CHECK td_status td_ranks_create(int32_t n, td_ranks **out, td_error *err);
void td_ranks_free(td_ranks *r); /* NULL is fine; nothing may be running */

/* Run fn on every rank and wait for all. Of several failures the lowest rank's is reported, but a
 * TD_CANCELED (a rank that only gave up because another failed) never hides the reason. */
TD_MUST_CHECK td_status td_ranks_run(td_ranks *r, td_rank_fn fn, void *ctx, td_error *err);

/* What a rank does in the run that goes on, the more telling first. */
typedef enum td_rank_state {
    TD_RANK_WORKS,  /* its thread is at work */
    TD_RANK_DEVICE, /* it waits for its device */
    TD_RANK_OTHERS, /* it waits for other ranks */
    TD_RANK_DONE    /* it has returned, or nothing runs */
} td_rank_state;

/* From fn, for td_ranks_late(); a rank works until it says otherwise. */
void td_ranks_mark(td_ranks *r, int32_t rank, td_rank_state state);

/* For whom a run waits that does not end: the ranks that work if there are any, else those that
 * wait for their devices, else those that wait for others. The first `most` of them go to late;
 * *state is what they do. Returns how many went; 0: nothing runs. From any thread, at any time: a
 * glance. */
int32_t td_ranks_late(const td_ranks *r, int32_t most, int32_t *late, td_rank_state *state);

/* Cores this process may run on. */
int32_t td_usable_cores(void);

#endif
