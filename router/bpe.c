/* Short pieces are merged. For others the tokens that merging would give are found from left to
 * right.
 *
 * Up to the first merge across the border of two tokens, what happens on either side of it does not
 * depend on the other. So merging gives a row of tokens exactly if it gives each two neighbours of
 * them, on their own, again, which merges_stay_apart() answers. And since the result for a
 * beginning of the piece is one, there is at most one such row up to any place.
 *
 * At each place the longest token is tried first, then shorter ones. Where none fits behind the
 * token before, no result has a border at this place: it is closed, and the token before gives way
 * to a shorter one. Each place is closed once and left behind once, which bounds the work; the
 * tokens of ordinary text fit at first or second try. */
#include "router/bpe.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORT = 32,       /* bytes; up to here merging is faster */
    SMALL_WORDS = 16, /* pieces up to 64 times as many bytes need no memory but the stack */
};

void bpe_scratch_fini(bpe_scratch *s)
{
    free(s->bits);
    *s = (bpe_scratch){0};
}

/* The longest token with a rank that s[0..n) begins with; n > 0. */
static inline uint32_t longest(const vocab *v, const merges *m, const unsigned char *s, size_t n)
{
    uint32_t to, last = 0;

    if (n < 2 || (to = m->two_bytes[(size_t)s[0] << 8 | s[1]]) == 0)
        return (uint32_t)v->byte_id[s[0]];
    for (size_t i = 2;; i++) {
        if (to & 1)
            last = to;
        if (i == n || (to = merges_step(m, to >> 1, s[i])) == 0)
            break;
    }
    return last != 0 ? m->node_token[last >> 1] : (uint32_t)v->byte_id[s[0]];
}

static inline uint32_t length(const vocab *v, uint32_t id)
{
    return v->start[id + 1] - v->start[id];
}

static void find_tokens(const vocab *v, const merges *m, uint64_t *closed,
                        const unsigned char *piece, size_t n, td_tokens *out)
{
    size_t first = out->len, at = 0;
    uint32_t next = longest(v, m, piece, n);

    while (!out->oom) {
        uint32_t last = out->len > first ? (uint32_t)out->ptr[out->len - 1] : MERGE_NONE;
        size_t end = at;

        for (; next != MERGE_NONE; next = m->tokens[next].shorter) {
            end = at + length(v, next);
            if ((closed[end / 64] >> end % 64 & 1) == 0 &&
                (last == MERGE_NONE || merges_stay_apart(m, last, next)))
                break;
        }
        if (next != MERGE_NONE) {
            td_tokens_push(out, (int32_t)next);
            at = end;
            if (at == n)
                return;
            next = longest(v, m, piece + at, n - at);
        } else {
            td_assert(last != MERGE_NONE); /* there is a result, and it begins with some token */
            closed[at / 64] |= (uint64_t)1 << at % 64;
            out->len--;
            at -= length(v, last);
            next = m->tokens[last].shorter;
        }
    }
}

static inline uint64_t lower(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The lowest rank and, of equals, the leftmost: rank * 256 + position. Four at a time and without
 * branches, which would be guessed wrong at each new minimum. rank[n .. n + 3] is MERGE_NONE. */
static inline uint64_t lowest(const uint32_t *rank, size_t n)
{
    uint64_t a = UINT64_MAX, b = UINT64_MAX, c = UINT64_MAX, d = UINT64_MAX;

    for (size_t i = 0; i < n; i += 4) {
        a = lower(a, (uint64_t)rank[i] << 8 | i);
        b = lower(b, (uint64_t)rank[i + 1] << 8 | (i + 1));
        c = lower(c, (uint64_t)rank[i + 2] << 8 | (i + 2));
        d = lower(d, (uint64_t)rank[i + 3] << 8 | (i + 3));
    }
    return lower(lower(a, b), lower(c, d));
}

static void merge_short(const vocab *v, const merges *m, const unsigned char *piece, size_t n,
                        td_tokens *out)
{
    uint32_t id[SHORT], rank[SHORT + 4]; /* rank[i]: of merging i and i + 1 */

    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)v->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = m->of_bytes[(size_t)piece[i] << 8 | piece[i + 1]];
    for (size_t i = n - 1; i < n + 4; i++)
        rank[i] = MERGE_NONE;
    for (;;) {
        uint64_t best = lowest(rank, n - 1);
        size_t at = best & 255;

        if (best >> 8 >= MERGE_NONE)
            break;
        id[at] = merges_result(m, (uint32_t)(best >> 8));
        n--;
        for (size_t i = at + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
        }
        rank[n - 1] = MERGE_NONE;
        if (at > 0)
            rank[at - 1] = merges_find(m, id[at - 1], id[at]);
        if (at + 1 < n)
            rank[at] = merges_find(m, id[at], id[at + 1]);
    }
    for (size_t i = 0; i < n; i++)
        td_tokens_push(out, (int32_t)id[i]);
}

td_status bpe_merge(const vocab *v, const merges *m, bpe_scratch *s, const unsigned char *piece,
                    size_t n, td_tokens *out, td_error *err)
{
    uint64_t small[SMALL_WORDS], *closed = small;
    size_t words = n / 64 + 1;

    td_assert(n > 0 && n <= INT32_MAX);
    if (n <= SHORT) {
        merge_short(v, m, piece, n, out);
        return out->oom ? td_fail(err, TD_NOMEM, "no memory for %zu tokens", out->len) : TD_OK;
    }
    if (words > SMALL_WORDS) {
        if (words > s->n_words) {
            bpe_scratch_fini(s);
            s->bits = malloc(words * sizeof *s->bits);
            if (s->bits == NULL)
                return td_fail(err, TD_NOMEM, "no memory to merge a piece of %zu bytes", n);
            s->n_words = words;
        }
        closed = s->bits;
    }
    memset(closed, 0, words * sizeof *closed);
    find_tokens(v, m, closed, piece, n, out);
    return out->oom ? td_fail(err, TD_NOMEM, "no memory for %zu tokens", out->len) : TD_OK;
}
