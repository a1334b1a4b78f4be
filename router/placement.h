/* placement: which decode and which prefill worker a request goes to.
 *
 * A pure function of what is known of the workers and of the request: no clock, no locks, no state,
 * so a decision can be replayed and tested as it stands. The decode worker is chosen first, because
 * pages are the scarce thing and are reserved before prefill runs. */
#ifndef TANDEM_ROUTER_PLACEMENT_H
#define TANDEM_ROUTER_PLACEMENT_H

#include <stdint.h>

#include "common/status.h"
#include "router/registry.h"

typedef struct placement_need {
    uint32_t prompt_tokens;
    uint32_t max_tokens;      /* tokens still wanted; prompt + max_tokens positions are reserved */
    uint64_t max_backlog;     /* a prefill worker with more tokens queued is full; 0: no bound. What
                               * waits there holds pages on a decode worker, and its lease runs */
    bool guides;              /* the answer is held to something: workers that can do that only */
    const char *avoid_decode; /* worker ids that failed this request last; NULL or "": none. */
    const char *avoid_prefill; /* Avoided only while another worker would do. */
} placement_need;

typedef struct placement {
    const worker_view *decode, *prefill; /* into the view */
} placement;

/* Choose from view[0..n). Among decode workers that are ready and have room: least load (share of
 * its batch in use, then share of its pages in use after this request), then the longest rest, then
 * the lowest id. Among prefill workers that are ready and can hold the prompt: fewest tokens
 * queued, then the same.
 *
 * TD_OK and *out; TD_BUSY: workers exist but none has room now; TD_UNAVAILABLE: no ready worker of
 * a role, or none that can guide an answer; TD_INVALID: no ready worker could ever hold it (the
 * text has the numbers). */
TD_MUST_CHECK td_status placement_choose(const worker_view *view, size_t n,
                                         const placement_need *need, placement *out, td_error *err);

/* Positions, prompt and answer together, that some pair of ready workers could hold; 0: no pair. */
size_t placement_capacity(const worker_view *view, size_t n);

/* Pages that this request takes on a decode worker. */
uint32_t placement_pages(const placement_need *need);

#endif
