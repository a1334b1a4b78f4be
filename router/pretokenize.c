/* The pattern in words, with U = capitals, W = smalls, and letters without case and marks in both:
 *   1 [one char that is not CR, LF, letter, number] U* W+ [contraction]
 *   2 [the same]                                    U+ W* [contraction]
 *   3 one to three numbers
 *   4 [space] punctuation+ then CR, LF and / as far as they go
 *   5 whitespace up to and including the last line break of its run
 *   6 whitespace, less its last character when something else follows
 *   7 whitespace
 * The first alternative that matches wins, and is greedy inside. Greedy U* W+ over the overlap of U
 * and W comes to: run over U; if a small letter follows, run over W, else fall back to just behind
 * the last character of the run that could also be a W. That is word_end(), one pass. */
#include "router/pretokenize.h"

#include <stdbool.h>
#include <stdint.h>

#include "router/unicode_tables.h"

enum {
    NONE_LEFT = 8, /* a class of its own: the end of the text */
};

#define SET(c) (1u << (c))
#define IN(c, set) ((SET(c) & (set)) != 0)
#define CAPITALS (SET(UC_UPPER) | SET(UC_LETTER) | SET(UC_MARK))
#define SMALLS (SET(UC_LOWER) | SET(UC_LETTER) | SET(UC_MARK))
#define PREFIXES (SET(UC_OTHER) | SET(UC_SPACE) | SET(UC_MARK))
#define PUNCTUATION (SET(UC_OTHER) | SET(UC_MARK))
#define WHITESPACE (SET(UC_SPACE) | SET(UC_NEWLINE))

typedef struct scan {
    const unsigned char *s;
    size_t n;
} scan;

/* Class of the character at i and, in *next, where the one after it starts. */
static inline unsigned look(scan t, size_t i, size_t *next)
{
    const unsigned char *s = t.s + i;

    if (i >= t.n) {
        *next = i;
        return NONE_LEFT;
    }
    if (s[0] < 0x80) {
        *next = i + 1;
        return td_unicode_ascii[s[0]];
    }
    if (s[0] < 0xe0) {
        *next = i + 2;
        return td_unicode_class((s[0] & 0x1fu) << 6 | (s[1] & 0x3fu));
    }
    if (s[0] < 0xf0) {
        *next = i + 3;
        return td_unicode_class((s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu));
    }
    *next = i + 4;
    return td_unicode_class((s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 |
                            (s[3] & 0x3fu));
}

static inline size_t run_over(scan t, size_t i, unsigned set)
{
    size_t next;

    while (IN(look(t, i, &next), set))
        i = next;
    return i;
}

/* End of U* W+ from i, or 0 when it does not match; *capitals is the end of the run of U from i. */
static inline size_t word_end(scan t, size_t i, size_t *capitals)
{
    size_t next, last_both = 0;
    unsigned c;

    while (IN(c = look(t, i, &next), CAPITALS)) {
        i = next;
        if (c != UC_UPPER)
            last_both = i;
    }
    *capitals = i;
    return c == UC_LOWER ? run_over(t, next, SMALLS) : last_both;
}

/* i, or the end of the contraction there. Case folds as in Unicode, so U+017F (long s) is an s. */
static inline size_t contraction_end(scan t, size_t i)
{
    const unsigned char *s = t.s + i;
    size_t left = t.n - i;
    unsigned c, d;

    if (left < 2 || s[0] != '\'')
        return i;
    c = s[1] | 0x20u;
    if (c == 's' || c == 't' || c == 'm' || c == 'd')
        return i + 2;
    if (left < 3)
        return i;
    d = s[2] | 0x20u;
    if ((c == 'l' && d == 'l') || (c == 'r' && d == 'e') || (c == 'v' && d == 'e'))
        return i + 3;
    return s[1] == 0xc5 && s[2] == 0xbf ? i + 3 : i;
}

static size_t whitespace_end(scan t, size_t i)
{
    size_t end = i, next, last = i, line = 0;
    unsigned c;

    while (IN(c = look(t, end, &next), WHITESPACE)) {
        last = end;
        end = next;
        if (c == UC_NEWLINE)
            line = end;
    }
    if (line != 0)
        return line;
    /* The last character becomes the prefix of what follows, if the run has another one. */
    return end == t.n || last == i ? end : last;
}

size_t pretokenize_next(const char *text, size_t n, size_t i)
{
    scan t = {(const unsigned char *)text, n};
    size_t after, next, end = 0, with_prefix = 0, bare = 0;
    unsigned first = look(t, i, &after);

    if (IN(first, PREFIXES)) {
        end = word_end(t, after, &with_prefix);
        if (with_prefix == after)
            with_prefix = 0; /* no capital there */
    }
    /* A mark can be the prefix, but also the word itself: only then both are to be tried. */
    if (end == 0 && IN(first, CAPITALS | SMALLS)) {
        end = word_end(t, i, &bare);
        if (bare == i)
            bare = 0;
    }
    if (end == 0)
        end = with_prefix != 0 ? with_prefix : bare;
    if (end != 0)
        return contraction_end(t, end);

    if (first == UC_NUMBER) {
        end = after;
        for (int k = 1; k < 3 && look(t, end, &next) == UC_NUMBER; k++)
            end = next;
        return end;
    }

    next = t.s[i] == ' ' ? after : i;
    end = run_over(t, next, PUNCTUATION);
    if (end != next) {
        while (end < n && (t.s[end] == '\r' || t.s[end] == '\n' || t.s[end] == '/'))
            end++;
        return end;
    }
    return whitespace_end(t, i);
}
