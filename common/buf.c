#include "common/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

td_slice td_slice_of(const char *nul_terminated)
{
    return (td_slice){nul_terminated, nul_terminated ? strlen(nul_terminated) : 0};
}

bool td_slice_eq(td_slice a, td_slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static bool buf_room(td_buf *b, size_t more)
{
    size_t cap = b->cap ? b->cap : 64;
    char *p;

    if (b->oom)
        return false;
    if (more < SIZE_MAX / 2 - b->len) { /* + 1 for the NUL */
        while (cap < b->len + more + 1)
            cap *= 2;
        if (cap == b->cap)
            return true;
        p = realloc(b->ptr, cap);
        if (p != NULL) {
            b->ptr = p;
            b->cap = cap;
            return true;
        }
    }
    b->oom = true;
    return false;
}

void td_buf_add(td_buf *b, const void *bytes, size_t n)
{
    if (!buf_room(b, n))
        return;
    if (n > 0)
        memcpy(b->ptr + b->len, bytes, n);
    b->len += n;
    b->ptr[b->len] = '\0';
}

void td_buf_str(td_buf *b, const char *nul_terminated)
{
    td_buf_add(b, nul_terminated, strlen(nul_terminated));
}

void td_buf_byte(td_buf *b, char c)
{
    td_buf_add(b, &c, 1);
}

void td_buf_fmt(td_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && buf_room(b, (size_t)n)) {
        vsnprintf(b->ptr + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else {
        b->oom = true;
    }
    va_end(again);
}

void td_buf_json(td_buf *b, const char *bytes, size_t n)
{
    size_t from = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        char esc[8];

        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
            continue;
        td_buf_add(b, bytes + from, i - from);
        from = i + 1;
        switch (c) {
        case '"': td_buf_add(b, "\\\"", 2); break;
        case '\\': td_buf_add(b, "\\\\", 2); break;
        case '\n': td_buf_add(b, "\\n", 2); break;
        case '\r': td_buf_add(b, "\\r", 2); break;
        case '\t': td_buf_add(b, "\\t", 2); break;
        default: snprintf(esc, sizeof esc, "\\u%04x", c); td_buf_add(b, esc, 6);
        }
    }
    td_buf_add(b, from < n ? bytes + from : "", n - from); /* bytes may be NULL when n is 0 */
}

void td_buf_clear(td_buf *b)
{
    b->len = 0;
    b->oom = false;
    if (b->ptr != NULL)
        b->ptr[0] = '\0';
}

void td_buf_free(td_buf *b)
{
    free(b->ptr);
    *b = (td_buf){0};
}

void td_tokens_add(td_tokens *t, const int32_t *ids, size_t n)
{
    size_t cap = t->cap ? t->cap : 64;
    int32_t *p;

    if (t->oom || n > SIZE_MAX / 8 - t->len) {
        t->oom = true;
        return;
    }
    while (cap < t->len + n)
        cap *= 2;
    if (cap != t->cap) {
        p = realloc(t->ptr, cap * sizeof *p);
        if (p == NULL) {
            t->oom = true;
            return;
        }
        t->ptr = p;
        t->cap = cap;
    }
    if (n > 0)
        memcpy(t->ptr + t->len, ids, n * sizeof *ids);
    t->len += n;
}

void td_tokens_push(td_tokens *t, int32_t id)
{
    td_tokens_add(t, &id, 1);
}

void td_tokens_free(td_tokens *t)
{
    free(t->ptr);
    *t = (td_tokens){0};
}

int td_utf8_next(const unsigned char *bytes, size_t n)
{
    unsigned char c, low = 0x80, high = 0xbf;
    int len;

    if (n == 0)
        return 0;
    c = bytes[0];
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        len = 2;
    else if (c >= 0xe0 && c <= 0xef)
        len = 3;
    else if (c >= 0xf0 && c <= 0xf4)
        len = 4;
    else
        return -1;
    /* The second byte alone carries the rules against overlong forms and surrogates. */
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return -2;
        if (bytes[i] < low || bytes[i] > high)
            return -1;
        low = 0x80;
        high = 0xbf;
    }
    return len;
}

bool td_utf8_valid(const void *bytes, size_t n, size_t *bad)
{
    const unsigned char *p = bytes;
    size_t i = 0;

    while (i < n) {
        int len = td_utf8_next(p + i, n - i);

        if (len <= 0) {
            if (bad != NULL)
                *bad = i;
            return false;
        }
        i += (size_t)len;
    }
    return true;
}

bool td_is_word(const char *text, size_t most)
{
    size_t n = 0;

    while (text[n] > ' ' && text[n] < 0x7f)
        n++;
    return text[n] == '\0' && n >= 1 && n <= most;
}
