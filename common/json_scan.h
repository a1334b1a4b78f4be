/* json_scan: walks a large JSON text in place, for files of which only a little is kept.
 *
 * A tree of a 27 MB tokenizer.json would be a million nodes to allocate and drop. The reader moves
 * over the text instead; values that are small and awkward are handed on as slices. It does not
 * recurse, reads nothing past the end, and stops for good at the first mistake: every function then
 * returns false and json_scan_error() says what and where. */
#ifndef TANDEM_COMMON_JSON_SCAN_H
#define TANDEM_COMMON_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

typedef struct json_scan {
    const char *start, *at, *end;
    const char *wanted; /* what was missing at 'at'; NULL: all is well */
    bool oom;
} json_scan;

void json_scan_init(json_scan *s, td_slice text);

/* Step into an object or array. Then json_scan_more() tells whether another member follows; it
 * consumes commas and, when it returns false without a mistake, the closing bracket. *first must be
 * true before the first call. */
bool json_scan_enter(json_scan *s, char bracket);
bool json_scan_more(json_scan *s, char closing, bool *first);

/* A string, its escapes resolved; out is cleared before. Lone surrogates are a mistake. */
bool json_scan_string(json_scan *s, td_buf *out);

/* A member's name and its colon. */
bool json_scan_name(json_scan *s, td_buf *out);

/* A whole number, not negative, below 2^53. */
bool json_scan_uint(json_scan *s, uint64_t *out);

/* Any value; *out is its text. Of a value inside only brackets and strings are looked at. */
bool json_scan_value(json_scan *s, td_slice *out);

/* First byte of the next value, '\0' at the end. */
char json_scan_peek(json_scan *s);

/* Whether the text ends here; anything but whitespace left is a mistake. */
bool json_scan_end(json_scan *s);

/* TD_OK when nothing went wrong. */
TD_MUST_CHECK td_status json_scan_error(const json_scan *s, td_error *err);

#endif
