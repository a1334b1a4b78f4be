#include "router/admission.h"

#include <math.h>

/* How long a past departure counts: short enough to follow a change of load, long enough to smooth
 * answers that end together. */
static const double RATE_WINDOW_S = 10.0;

void admission_init(admission *a, uint32_t max_requests, uint64_t max_tokens)
{
    *a = (admission){.max_requests = max_requests, .max_tokens = max_tokens};
}

static uint32_t retry_after(const admission *a)
{
    /* One place is enough for one client: the expected time until the next departure. */
    double s = a->leave_rate > 0 ? 1.0 / a->leave_rate : 1.0;

    return s < 1 ? 1 : s > 60 ? 60 : (uint32_t)ceil(s);
}

td_status admission_enter(admission *a, uint32_t n, uint64_t each, uint32_t *retry_s, td_error *err)
{
    uint64_t tokens = n * each; /* an answer's are below 2^32, and so is n */

    if (a->requests > a->max_requests || n > a->max_requests - a->requests) {
        a->refused++;
        *retry_s = retry_after(a);
        return td_fail(err, TD_BUSY, "the server is full: %u of %u requests are in it", a->requests,
                       a->max_requests);
    }
    if (a->requests > 0 && (tokens > a->max_tokens || a->tokens > a->max_tokens - tokens)) {
        a->refused++;
        *retry_s = retry_after(a);
        return td_fail(err, TD_BUSY,
                       "the server is full: %llu tokens wanted, %llu of %llu are in it",
                       (unsigned long long)tokens, (unsigned long long)a->tokens,
                       (unsigned long long)a->max_tokens);
    }
    a->requests += n;
    a->tokens += tokens;
    return TD_OK;
}

void admission_leave(admission *a, uint64_t tokens, td_usec now)
{
    td_assert(a->requests > 0 && a->tokens >= tokens);
    a->requests--;
    a->tokens -= tokens;
    if (a->last_leave != 0) {
        double gap_s = (double)(now - a->last_leave) / 1e6;
        double keep;

        if (gap_s < 1e-6)
            gap_s = 1e-6;
        keep = exp(-gap_s / RATE_WINDOW_S);
        a->leave_rate = a->leave_rate * keep + (1 - keep) / gap_s;
    }
    a->last_leave = now;
}
