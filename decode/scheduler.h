/* scheduler: which requests run in the next decode step, and what a step has made of them.
 *
 * Requests whose KV has landed wait in order of arrival and join the batch as places come free,
 * between steps; a request in the batch runs in every step until its end, since its pages were
 * reserved to the last token. So there is nothing to preempt. Owned by the engine's thread. */
#ifndef TANDEM_DECODE_SCHEDULER_H
#define TANDEM_DECODE_SCHEDULER_H

#include "common/model.h"
#include "common/status.h"
#include "decode/reservation.h"

typedef struct scheduler scheduler;

/* max_batch: requests in one step. All memory is taken here. TD_NOMEM. */
TD_MUST_CHECK td_status scheduler_create(uint32_t max_batch, scheduler **out, td_error *err);
void scheduler_free(scheduler *s); /* holds no reservations' memory; NULL is fine */

/* How a token leaves its request. */
typedef enum sched_end {
    SCHED_GOES_ON,
    SCHED_STOP,   /* the token is one of the request's stop ids */
    SCHED_LENGTH, /* it was the last one wanted */
    SCHED_FAILED, /* nothing could be sampled: every logit was banned or not a number, or a guide
                   * has no token that may follow (then reservation.failed says so) */
} sched_end;

/* A request whose KV is in, with the first token that prefill sampled. Anything but GOES_ON: that
 * token already ended it, and the scheduler does not keep it. */
sched_end scheduler_admit(scheduler *s, reservation *r);

/* Take a request out wherever it is: canceled. Not between plan and apply. */
void scheduler_remove(scheduler *s, reservation *r);

/* The next step: rows [0, plan->n) are the batch. NULL: nothing to run. */
const td_decode_step *scheduler_plan(scheduler *s);
reservation *scheduler_row(const scheduler *s, int32_t row);

/* Take in the step's tokens. ends[row] says what became of each row's request; those that ended are
 * no longer in the batch. ends has room for max_batch. */
void scheduler_apply(scheduler *s, sched_end *ends);

/* Those that wait for a place, linked by `next`. */
reservation *scheduler_first_waiting(const scheduler *s);

uint32_t scheduler_running(const scheduler *s);
uint32_t scheduler_waiting(const scheduler *s);

#endif
