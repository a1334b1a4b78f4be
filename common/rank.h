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

TD_MUST_CHECK td_status td_ranks_create(int32_t n, td_ranks **out, td_error *err);
void td_ranks_free(td_ranks *r); /* NULL is fine; nothing may be running */

/* Run fn on every rank and wait for all. Of several failures the lowest rank's is reported, but a
 * TD_CANCELED (a rank that only gave up because another failed) never hides the reason. */
TD_MUST_CHECK td_status td_ranks_run(td_ranks *r, td_rank_fn fn, void *ctx, td_error *err);

/* Cores this process may run on. */
int32_t td_usable_cores(void);

#endif
