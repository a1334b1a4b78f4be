/* stop_strings: cut a stream of text before the first stop string, and hold back what may yet
 * become one, so that no part of a stop string is ever sent.
 *
 * Applies to final content only; reasoning and arguments do not go through it. One an answer, one
 * thread at a time. */
#ifndef TANDEM_ROUTER_STOP_STRINGS_H
#define TANDEM_ROUTER_STOP_STRINGS_H

#include "common/buf.h"
#include "common/status.h"

typedef struct stop_strings stop_strings;

/* The n stop strings are copied; n may be 0, then everything passes. TD_INVALID: an empty one
 * (err->param "stop"). TD_NOMEM. *out is set on success only. */
TD_MUST_CHECK td_status stop_strings_create(const td_slice *stops, size_t n, stop_strings **out,
                                            td_error *err);
void stop_strings_free(stop_strings *s); /* NULL is fine */

/* More text comes, of whole UTF-8 characters. *ready is what may be sent now (whole characters,
 * may be empty); it holds until the next call. Returns true when a stop string is complete: *ready
 * ends just before it, the rest is dropped, and so is all later text. Of several that end at the
 * same byte the longest counts. */
bool stop_strings_push(stop_strings *s, td_slice text, td_slice *ready);

/* The text, or a part of it across which no stop string counts, has ended without one: what was
 * held back. Empty after a match. */
td_slice stop_strings_flush(stop_strings *s);

/* Which stop string matched, -1 for none. */
int stop_strings_matched(const stop_strings *s);

/* Memory ended at some point and text was lost. */
bool stop_strings_oom(const stop_strings *s);

#endif
