#include "router/json_escapes.h"

#include <string.h>

/* The code unit of the escape \uXXXX at p, -1 when there is none. */
static int unit_at(const char *p, size_t n)
{
    int unit = 0;

    if (n < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        char c = p[i] | 0x20; /* lower case; digits stay */

        if (c >= '0' && c <= '9')
            unit = unit * 16 + (c - '0');
        else if (c >= 'a' && c <= 'f')
            unit = unit * 16 + (c - 'a' + 10);
        else
            return -1;
    }
    return unit;
}

/* The next half of a pair that stands alone, at or after from; n when there is none. */
static size_t next_lone(const char *body, size_t n, size_t from)
{
    for (size_t i = from; i < n; i++) {
        int unit;

        if (body[i] != '\\')
            continue;
        unit = unit_at(body + i, n - i);
        if (unit >= 0xD800 && unit < 0xDC00) {
            int second = unit_at(body + i + 6, n - i - 6);

            if (second < 0xDC00 || second >= 0xE000)
                return i;
            i += 11;
        } else if (unit >= 0xDC00 && unit < 0xE000) {
            return i;
        } else {
            i++; /* what is escaped, a backslash perhaps */
        }
    }
    return n;
}

size_t json_mend_surrogates(const char *body, size_t n, td_buf *out)
{
    size_t count = 0;

    for (size_t at = next_lone(body, n, 0); at < n; at = next_lone(body, n, at + 6)) {
        if (count++ == 0)
            td_buf_add(out, body, n);
        if (out->oom)
            return count;
        memcpy(out->ptr + at, "\\uFFFD", 6);
    }
    return count;
}
