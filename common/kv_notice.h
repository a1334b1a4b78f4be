/* kv_notice: how a decode worker learns that a request's KV is in its memory.
 *
 * Each source rank sends one notice per push, after the last of its puts has completed remotely:
 * once a notice is in, that source writes nothing more for this attempt. A td_kv_arrival counts the
 * notices of one reservation, so that nothing depends on their order or on any single one of them:
 * the request may run when every source has reported OK and the bytes add up to what the prompt
 * needs; pages may be freed when every source has reported, well or badly.
 *
 * Plain data and pure functions: thread-safe as long as an arrival belongs to one thread. */
#ifndef TANDEM_COMMON_KV_NOTICE_H
#define TANDEM_COMMON_KV_NOTICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/sampling.h"
#include "common/status.h"

enum { TD_KV_MAX_SOURCES = 64, TD_KV_NOTICE_BYTES = 256 };

typedef struct td_kv_notice {
    uint64_t request;
    uint32_t attempt;
    uint32_t epoch;       /* of the reservation, as the destination gave it */
    uint32_t source_rank; /* 0 .. n_sources - 1 */
    uint32_t n_sources;   /* 1 .. TD_KV_MAX_SOURCES */
    td_status status;     /* not OK: this source's part is missing, and it has stopped writing */
    uint64_t bytes;       /* that this source put */
    uint32_t puts;
    int32_t first_token;  /* sampled by prefill; meaningful when status is OK */
    uint32_t index;       /* its number within the answer */
    td_logprobs logprobs; /* of first_token; n is -1 where they were not asked for */
    bool has_digest;      /* the source runs with verify on */
    uint64_t digest;      /* td_kv_digest() over what it put */
    /* The wire's own: deliver it once `after` data messages of `stream` are in. */
    uint64_t stream, after;
} td_kv_notice;

/* Fixed-size wire form, little-endian, with magic, version and checksum. */
void td_kv_notice_encode(const td_kv_notice *n, unsigned char out[TD_KV_NOTICE_BYTES]);

/* TD_INVALID: wrong length, magic, version or checksum, or a field out of range; *out untouched. */
TD_MUST_CHECK td_status td_kv_notice_decode(const void *bytes, size_t len, td_kv_notice *out,
                                            td_error *err);

typedef enum td_kv_arrival_state {
    TD_KV_ARRIVAL_PENDING,  /* some source has not reported: it may still write */
    TD_KV_ARRIVAL_COMPLETE, /* everything is here */
    TD_KV_ARRIVAL_FAILED, /* every source has reported and it is not all here: pages may be freed */
} td_kv_arrival_state;

typedef struct td_kv_arrival {
    /* What is expected, from td_kv_arrival_init(). */
    uint64_t request;
    uint32_t attempt, epoch;
    uint64_t want_bytes;
    /* What is in. */
    uint32_t n_sources; /* 0 until the first notice */
    uint64_t seen;      /* bit per source rank */
    td_status status;   /* of the first notice that failed; then the request is lost already */
    uint64_t bytes, digest;
    uint32_t puts;
    int32_t first_token;
    uint32_t index;
    td_logprobs logprobs;
    bool has_token;  /* a source has reported OK */
    bool has_digest; /* every notice so far had one */
} td_kv_arrival;

/* want_bytes: td_kv_transfer_bytes() of the prompt. */
void td_kv_arrival_init(td_kv_arrival *a, uint64_t request, uint32_t attempt, uint32_t epoch,
                        uint64_t want_bytes);

/* Count one notice. TD_INVALID: not of this request, attempt or epoch, a second one of its source,
 * or at odds with the others about n_sources; nothing was counted. */
TD_MUST_CHECK td_status td_kv_arrival_add(td_kv_arrival *a, const td_kv_notice *n, td_error *err);

td_kv_arrival_state td_kv_arrival_state_of(const td_kv_arrival *a);

/* Why a FAILED (or failing) arrival failed; returns the status. Not for COMPLETE ones. */
td_status td_kv_arrival_why(const td_kv_arrival *a, td_error *err);

#endif
