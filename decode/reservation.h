/* reservation: a request's claim on this decode worker, from Reserve to its last token.
 *
 *   state       Reserve  all notices in  a notice failed     cancel, lease over  fence passed
 *   (none)      OPEN     -               -                   -                   -
 *   OPEN        (same)   RUNNING         QUARANTINE or gone  QUARANTINE or gone  -
 *   RUNNING     (same)   -               -                   gone                -
 *   QUARANTINE  refused  gone            gone if all in      -                   gone
 *
 * "Gone" gives the pages back. They may go back only when no put can land in them any more: every
 * source has reported (its notice follows its flush), or no source was ever started, or the fence
 * has passed: by contract a source starts no put after the lease, so lease + grace is a time past
 * which none is in flight. Until then pages are in quarantine. One thread owns a table, the
 * engine's; time is passed in. */
#ifndef TANDEM_DECODE_RESERVATION_H
#define TANDEM_DECODE_RESERVATION_H

#include <stdbool.h>
#include <stdint.h>

#include <uthash.h>

#include "common/attempts.h"
#include "common/clock.h"
#include "common/kv_layout.h"
#include "common/kv_notice.h"
#include "common/kv_pool.h"
#include "common/status.h"
#include "proto/tandem.pb-c.h"

enum { RESERVATION_MAX_EXTENTS = 64 };

typedef enum reservation_state {
    RESERVATION_OPEN,       /* pages held, KV on its way */
    RESERVATION_RUNNING,    /* KV is in; the scheduler has it */
    RESERVATION_QUARANTINE, /* over, but a source may still write */
} reservation_state;

typedef struct reservation reservation;
typedef struct reservations reservations;

/* Open to the scheduler and the engine, which run on the same thread. */
struct reservation {
    uint64_t request; /* with attempt: the key */
    uint64_t attempt;
    uint32_t epoch;
    int32_t link; /* the router that asked; events go there */
    reservation_state state;

    td_kv_extent ext[RESERVATION_MAX_EXTENTS];
    size_t n_ext;
    uint32_t *pages; /* the extents, page by page, in order of position */
    uint32_t n_pages;
    uint32_t ring;

    uint32_t prompt_tokens;
    uint32_t max_tokens; /* still wanted at Reserve, prefill's first token included */
    uint32_t base_index; /* number of that first token within the answer */
    td_generation generation;

    td_usec opened_at, lease_end, fence; /* fence: lease_end + grace */
    td_kv_arrival arrival;

    /* The scheduler's while RUNNING. */
    int32_t pos;          /* position of `token` */
    int32_t token;        /* sampled, its KV not yet written */
    uint32_t produced;    /* tokens of this attempt so far, prefill's included */
    td_error failed;      /* after SCHED_FAILED: why, where there is more to say */
    td_logprobs logprobs; /* of `token`, where they are asked for */
    bool in_batch;
    td_usec landed_at;
    reservation *next; /* waiting list */

    UT_hash_handle hh; /* reservation.c's */
};

typedef struct reservations_options {
    const td_kv_geometry *geometry;
    td_kv_pool *pool; /* outlives the table */
    int32_t vocab;
    int32_t max_positions; /* of the model */
    int64_t lease_max_ms;  /* longer leases are cut to this */
    int64_t grace_ms;      /* from the end of a lease to the end of its fence */
} reservations_options;

/* An empty table. *opt is copied. TD_NOMEM. */
TD_MUST_CHECK td_status reservations_create(const reservations_options *opt, reservations **out,
                                            td_error *err);
/* Whatever is left is given back, whether a source may write or not: only after the KV sink has
 * been closed. NULL is fine. */
void reservations_free(reservations *t);

/* Claim pages for m. The same request and attempt again gets the same claim (a repeated message
 * must not take pages twice). TD_BUSY: no room. TD_INVALID: the message is wrong, or asks for more
 * than this worker could ever hold. TD_CANCELED: this attempt is over already. TD_NOMEM. */
TD_MUST_CHECK td_status reservation_open(reservations *t, const Tandem__Reserve *m, int32_t link,
                                         td_usec now, reservation **out, td_error *err);

/* NULL: none, or it is gone. */
reservation *reservation_find(reservations *t, uint64_t request, uint32_t attempt);

/* What a notice has led to. */
typedef enum reservation_news {
    RESERVATION_NOTHING, /* more notices to come, or a stray one */
    RESERVATION_LANDED,  /* *r is RUNNING now: admit it */
    RESERVATION_LOST, /* *r's KV will not come; why is in err: tell the router, then it is gone */
} reservation_news;

/* Count a notice. After LOST the reservation is in quarantine or about to be given back: call
 * reservation_close(t, r, true), which does whichever is right. */
reservation_news reservation_notice(reservations *t, const td_kv_notice *n, td_usec now,
                                    reservation **r, td_error *err);

/* Remember an attempt that is not here as over: its Reserve may be on its way behind its Cancel. */
void reservation_refuse(reservations *t, uint64_t request, uint32_t attempt);

/* End it, well or badly. source_may_write matters in OPEN only; in RUNNING every source has
 * reported. r is dead afterwards, or in quarantine. */
void reservation_close(reservations *t, reservation *r, bool source_may_write);

/* Give back what quarantine's fence has released. `settle` is called once before the first of them
 * (NULL: not): a source that never reported may have bytes in a socket. */
void reservations_reap(reservations *t, td_usec now, void (*settle)(void *), void *arg);

/* The next OPEN reservation whose lease has ended, or NULL; close it and ask again. */
reservation *reservations_expired(reservations *t, td_usec now);

/* When reap or expired may next have something to do; TD_USEC_NEVER: not without a new event. */
td_usec reservations_next_deadline(const reservations *t);

/* The first reservation of a link that is not in quarantine, or NULL: to close all when a router
 * has gone. link < 0: of any. */
reservation *reservations_of_link(reservations *t, int32_t link);

typedef struct reservations_counts {
    uint32_t open, running, quarantined, quarantined_pages;
} reservations_counts;
reservations_counts reservations_count(const reservations *t);

/* Abort unless the pool and the reservations agree about every page; for tests. */
void reservations_check(const reservations *t);

#endif
