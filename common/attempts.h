/* attempts: what both workers know of a request by its wire messages alone: how its sampling is to
 * be read, and which attempts are over. */
#ifndef TANDEM_COMMON_ATTEMPTS_H
#define TANDEM_COMMON_ATTEMPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/guide.h"
#include "common/sampling.h"
#include "common/status.h"
#include "proto/tandem.pb-c.h"

enum { TD_MAX_STOPS = 16, TD_MAX_BANNED = 64, TD_MAX_BIAS = 1024, TD_RECENT_ATTEMPTS = 1024 };

/* Sampling and stops of one request, with their own memory. sampling's lists point into it, so it
 * is filled in place and not copied. One thread at a time. */
typedef struct td_generation {
    td_sampling sampling; /* index is the caller's to set */
    td_id_range banned[TD_MAX_BANNED];
    int32_t stops[TD_MAX_STOPS];
    int32_t n_stops;
    td_token_bias *bias;
    td_token_count *counts; /* with penalties only: by token; sampling has how many */
    size_t max_counts;
    td_guide *guide; /* what the answer is held to; NULL: nothing. Freed with the rest */
} td_generation;

/* Check what a router sent and fill *out. With penalties, `answer` are the tokens that the answer
 * has already, and at most `more` will be counted. TD_INVALID names what is wrong, TD_NOMEM; *out
 * is then untouched. */
TD_MUST_CHECK td_status td_generation_read(td_generation *out, const Tandem__Sampling *sampling,
                                           const int32_t *stops, size_t n_stops,
                                           const int32_t *answer, size_t n_answer, size_t more,
                                           td_error *err);
void td_generation_free(td_generation *g); /* what it points to */

/* Whether a sampling looks at the tokens so far. */
bool td_sampling_penalizes(const Tandem__Sampling *s);

/* One more token of the answer, by which penalties count and a guide goes on; without either
 * nothing is kept. TD_INVALID: the guide does not allow it; TD_NOMEM. */
void td_generation_count(td_generation *g, int32_t token);
TD_MUST_CHECK td_status td_generation_guide(td_generation *g, int32_t token, td_error *err);

/* Put the mask of the next token into the sampling; without a guide there is none. TD_DEADEND: no
 * token can follow, nor could it on another worker; TD_NOMEM. */
TD_MUST_CHECK td_status td_generation_mask(td_generation *g, td_error *err);

/* The guide of a request at the end of an answer so far, with its mask computed; NULL where m is.
 * On the thread that took the message in, which may take its time. guides NULL: TD_INVALID. */
TD_MUST_CHECK td_status td_generation_open_guide(td_guides *guides, const Tandem__Guide *m,
                                                 const int32_t *answer, size_t n, td_guide **out,
                                                 td_error *err);

/* A step's log-probabilities as a message, whose lists point into *l. */
void td_logprobs_wire(const td_logprobs *l, Tandem__TokenLogprobs *out);

/* Whether token is one of the stops. */
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
