/* attempts: what both workers know of a request by its wire messages alone: how its sampling is to
 * be read, and which attempts are over. */
#ifndef TANDEM_COMMON_ATTEMPTS_H
#define TANDEM_COMMON_ATTEMPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sampling.h"
#include "common/status.h"
#include "proto/tandem.pb-c.h"

enum { TD_MAX_STOPS = 16, TD_MAX_BANNED = 64, TD_RECENT_ATTEMPTS = 1024 };

/* Sampling and stops of one request, with their own memory. sampling.banned points into it, so it
 * is filled in place and not copied. */
typedef struct td_generation {
    td_sampling sampling; /* index is the caller's to set */
    td_id_range banned[TD_MAX_BANNED];
    int32_t stops[TD_MAX_STOPS];
    int32_t n_stops;
} td_generation;

/* Check what a router sent and fill *out. TD_INVALID names what is wrong; *out is then untouched.
 */
TD_MUST_CHECK td_status td_generation_read(td_generation *out, const Tandem__Sampling *sampling,
                                           const int32_t *stops, size_t n_stops, td_error *err);

bool td_generation_stops(const td_generation *g, int32_t token);

/* The attempts that ended last, oldest forgotten first. Calls of one router may be handled in
 * another order than it made them, and any of them twice: an attempt that is over must not begin
 * again. Zero it to start. */
typedef struct td_recent {
    struct td_attempt {
        uint64_t request, attempt;
    } list[TD_RECENT_ATTEMPTS];
    size_t at;
} td_recent;

void td_recent_add(td_recent *r, uint64_t request, uint64_t attempt);
bool td_recent_has(const td_recent *r, uint64_t request, uint64_t attempt);

#endif
