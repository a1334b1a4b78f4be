/* admission: how much work may be inside the router at once, by requests and by tokens.
 *
 * Past a bound the answer is 429 at once, with a Retry-After from the rate at which work has been
 * leaving lately. Owned by the loop's thread; time is passed in. */
#ifndef TANDEM_ROUTER_ADMISSION_H
#define TANDEM_ROUTER_ADMISSION_H

#include <stdint.h>

#include "common/clock.h"
#include "common/status.h"

typedef struct admission {
    uint32_t max_requests; /* admitted and not yet left */
    uint64_t max_tokens;   /* sum over them of prompt and what is reserved for the answer */
    uint32_t requests;
    uint64_t tokens;
    uint64_t refused;  /* since start */
    double leave_rate; /* requests per second, exponentially weighted */
    td_usec last_leave;
} admission;

void admission_init(admission *a, uint32_t max_requests, uint64_t max_tokens);

/* Take n places with `each` tokens, all or none. TD_BUSY: over a bound; *retry_s is what to tell
 * the client, 1 .. 60. Where nothing is inside, any number of tokens is admitted: they can never
 * fit better than now. */
TD_MUST_CHECK td_status admission_enter(admission *a, uint32_t n, uint64_t each, uint32_t *retry_s,
                                        td_error *err);

/* Give one place back, once. */
void admission_leave(admission *a, uint64_t tokens, td_usec now);

#endif
