/* buf: growable bytes, and slices of bytes that belong to someone else. Not thread-safe. */
#ifndef TANDEM_COMMON_BUF_H
#define TANDEM_COMMON_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Bytes owned by someone else; not NUL-terminated. Who outlives whom is said where one is kept. */
typedef struct td_slice {
    const char *ptr;
    size_t len;
} td_slice;

#define TD_SLICE(literal) ((td_slice){(literal), sizeof(literal) - 1})
td_slice td_slice_of(const char *nul_terminated);
bool td_slice_eq(td_slice a, td_slice b);

/* Zero-initialise to start empty. ptr always has a NUL after len bytes once anything was added.
 * Growth failure is sticky: oom is set, later appends do nothing, and the owner checks it once at
 * the end instead of after each append. */
typedef struct td_buf {
    char *ptr;
    size_t len, cap;
    bool oom;
} td_buf;

void td_buf_add(td_buf *b, const void *bytes, size_t n);
void td_buf_str(td_buf *b, const char *nul_terminated);
void td_buf_byte(td_buf *b, char c);
void td_buf_fmt(td_buf *b, const char *fmt, ...) TD_PRINTF(2, 3);

/* Append text as the inside of a JSON string: quotes, backslashes and controls escaped; the bytes
 * must be valid UTF-8, which is passed through. */
void td_buf_json(td_buf *b, const char *bytes, size_t n);

void td_buf_clear(td_buf *b); /* keeps the memory */
void td_buf_free(td_buf *b);  /* back to empty; NULL memory is fine */

/* Growable array of i32, for tokens; same rules. */
typedef struct td_tokens {
    int32_t *ptr;
    size_t len, cap;
    bool oom;
} td_tokens;

void td_tokens_add(td_tokens *t, const int32_t *ids, size_t n);
void td_tokens_push(td_tokens *t, int32_t id);
void td_tokens_free(td_tokens *t);

/* Length of the valid UTF-8 sequence at the start of bytes: 1..4; 0 when n is 0; -1 when invalid;
 * -2 when the bytes are a correct but incomplete beginning. Overlong forms, surrogates and code
 * points over U+10FFFF are invalid (Unicode 15, table 3-7). */
int td_utf8_next(const unsigned char *bytes, size_t n);

/* Whether all n bytes are valid UTF-8; *bad is the offset of the first that is not. */
bool td_utf8_valid(const void *bytes, size_t n, size_t *bad);

/* Whether text is one word of 1 to most printable ASCII characters: fit to be a name in messages
 * and logs. */
bool td_is_word(const char *text, size_t most);

#endif
