/* utf8_stream: bytes that arrive in arbitrary pieces, as whole UTF-8 characters.
 *
 * Tokens end anywhere in a character. Whatever is complete goes out at once; at most three bytes of
 * a character that may yet become whole wait. A part that cannot become one is replaced by U+FFFD,
 * once for each maximal part (Unicode 15, section 3.9), so what comes out is always valid. */
#ifndef TANDEM_ROUTER_UTF8_STREAM_H
#define TANDEM_ROUTER_UTF8_STREAM_H

#include "common/buf.h"

/* Zero-initialise to start. */
typedef struct utf8_stream {
    unsigned char tail[4]; /* the beginning of a character */
    size_t n;              /* bytes in it, 0..3 */
} utf8_stream;

/* Append the characters that are whole now to out. Returns how many parts were replaced. */
size_t utf8_stream_push(utf8_stream *u, td_slice bytes, td_buf *out);

/* No more bytes come: a waiting beginning becomes U+FFFD. Ready for another text afterwards. */
size_t utf8_stream_end(utf8_stream *u, td_buf *out);

#endif
