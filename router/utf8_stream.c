#include "router/utf8_stream.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

/* Length of the maximal part at the start of bytes that begins a character but cannot go on. */
static size_t bad_part(const unsigned char *bytes, size_t n)
{
    size_t len = 1;

    while (len < n && td_utf8_next(bytes, len + 1) == -2)
        len++;
    return len;
}

/* Move what is whole in bytes[0..n) to out; the rest, if any, is in the tail afterwards. */
static size_t drain(utf8_stream *u, const unsigned char *bytes, size_t n, td_buf *out)
{
    size_t from = 0, i = 0, replaced = 0;

    u->n = 0;
    while (i < n) {
        int len = td_utf8_next(bytes + i, n - i);

        if (len > 0) {
            i += (size_t)len;
            continue;
        }
        td_buf_add(out, bytes + from, i - from);
        if (len == -2) {
            u->n = n - i;
            memcpy(u->tail, bytes + i, u->n);
            return replaced;
        }
        td_buf_str(out, REPLACEMENT);
        replaced++;
        i += bad_part(bytes + i, n - i);
        from = i;
    }
    td_buf_add(out, bytes + from, i - from);
    return replaced;
}

size_t utf8_stream_push(utf8_stream *u, td_slice bytes, td_buf *out)
{
    const unsigned char *p = (const unsigned char *)bytes.ptr;
    size_t n = bytes.len, replaced = 0;

    /* Byte by byte until the waiting character is whole or known bad; then the rest at a stretch.
     */
    while (n > 0 && u->n > 0) {
        unsigned char joined[4];
        size_t k = u->n;

        memcpy(joined, u->tail, k);
        joined[k] = *p++;
        n--;
        replaced += drain(u, joined, k + 1, out);
    }
    return n > 0 ? replaced + drain(u, p, n, out) : replaced;
}

size_t utf8_stream_end(utf8_stream *u, td_buf *out)
{
    bool waiting = u->n > 0;

    if (waiting)
        td_buf_str(out, REPLACEMENT);
    u->n = 0;
    return waiting;
}
