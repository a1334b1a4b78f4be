/* The pieces from which rules are put together: states, edges, characters of JSON strings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar_impl.h"

static bool grow(gr_nfa *a, void *array, size_t *cap, size_t n, size_t size)
{
    void *p;
    size_t want = *cap > 0 ? *cap * 2 : 256;

    if (a->oom || a->large)
        return false;
    if (n < *cap)
        return true;
    if (n >= GR_MAX_NFA) {
        a->large = true;
        return false;
    }
    memcpy(&p, array, sizeof p);
    p = realloc(p, want * size);
    if (p == NULL) {
        a->oom = true;
        return false;
    }
    memcpy(array, &p, sizeof p);
    *cap = want;
    return true;
}

/* Past a failure 0 is returned: a state that may be used, in an automaton that will not be. */
int32_t gr_nfa_state(gr_nfa *a)
{
    if (!grow(a, &a->head, &a->cap, a->n, sizeof *a->head))
        return 0;
    a->head[a->n] = -1;
    return (int32_t)a->n++;
}

static void add(gr_nfa *a, int32_t from, gr_nfa_edge e)
{
    if (!grow(a, &a->edges, &a->cap_edges, a->n_edges, sizeof *a->edges))
        return;
    e.next = a->head[from];
    a->edges[a->n_edges] = e;
    a->head[from] = (int32_t)a->n_edges++;
}

void gr_nfa_eps(gr_nfa *a, int32_t from, int32_t to)
{
    add(a, from, (gr_nfa_edge){.kind = GR_EPS, .to = to});
}

void gr_nfa_bytes(gr_nfa *a, int32_t from, uint8_t lo, uint8_t hi, uint8_t flags, int32_t to)
{
    add(a, from, (gr_nfa_edge){.kind = GR_BYTES, .lo = lo, .hi = hi, .flags = flags, .to = to});
}

void gr_nfa_call(gr_nfa *a, int32_t from, int32_t rule, uint32_t need, uint32_t room, uint8_t flags,
                 int32_t to)
{
    add(a, from,
        (gr_nfa_edge){
            .kind = GR_CALL, .rule = rule, .need = need, .room = room, .flags = flags, .to = to});
}

void gr_nfa_text(gr_nfa *a, int32_t from, const char *text, size_t n, int32_t to)
{
    for (size_t i = 0; i < n; i++) {
        int32_t next = i + 1 < n ? gr_nfa_state(a) : to;

        gr_nfa_bytes(a, from, (uint8_t)text[i], (uint8_t)text[i], 0, next);
        from = next;
    }
    if (n == 0)
        gr_nfa_eps(a, from, to);
}

void gr_nfa_gap(gr_nfa *a, int32_t from, int32_t to)
{
    gr_nfa_call(a, from, GR_RULE_GAP, 0, GR_MAX_INDENT, 0, to);
}

void gr_nfa_clear(gr_nfa *a)
{
    free(a->head);
    free(a->edges);
    *a = (gr_nfa){0};
}

/* --- Characters. */

static int encode(uint32_t cp, uint8_t out[4])
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xc0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xe0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (cp & 0x3f));
    return 4;
}

/* Code points lo..hi, all of which take n bytes, whose forms differ from byte i on. Ranges that are
 * not whole blocks of 64, 4096 .. are cut until they are: then every byte has a range of its own.
 */
static void raw(gr_nfa *a, int32_t from, uint32_t lo, uint32_t hi, uint8_t flags, int32_t to)
{
    uint8_t b[4], e[4];
    int n = encode(lo, b);

    for (int i = 1; i < n; i++) {
        uint32_t block = ((uint32_t)1 << 6 * i) - 1;

        if ((lo & ~block) == (hi & ~block))
            continue; /* the bytes before the last i are the same */
        if ((lo & block) != 0) {
            raw(a, from, lo, lo | block, flags, to);
            raw(a, from, (lo | block) + 1, hi, flags, to);
            return;
        }
        if ((hi & block) != block) {
            raw(a, from, lo, (hi & ~block) - 1, flags, to);
            raw(a, from, hi & ~block, hi, flags, to);
            return;
        }
    }
    encode(hi, e);
    for (int i = 0; i < n; i++) {
        int32_t next = i + 1 < n ? gr_nfa_state(a) : to;

        gr_nfa_bytes(a, from, b[i], e[i], i == 0 ? flags : 0, next);
        from = next;
    }
}

static void escaped(gr_nfa *a, int32_t from, uint32_t cp, uint8_t flags, int32_t to)
{
    static const char names[] = "\"\\\n\r\t", letters[] = "\"\\nrt";
    const char *at = cp != 0 ? strchr(names, (int)cp) : NULL;
    char text[16];
    int32_t next = gr_nfa_state(a);
    int n;

    gr_nfa_bytes(a, from, '\\', '\\', flags, next);
    if (at != NULL)
        n = snprintf(text, sizeof text, "%c", letters[at - names]);
    else
        n = snprintf(text, sizeof text, "u%04x", cp);
    gr_nfa_text(a, next, text, (size_t)n, to);
}

void gr_nfa_chars(gr_nfa *a, int32_t from, uint32_t lo, uint32_t hi, uint8_t flags, int32_t to)
{
    /* Ranges of one length each that are raw in a string; surrogates are no characters. */
    static const uint32_t ranges[][2] = {{0x20, 0x21},       {0x23, 0x5b},    {0x5d, 0x7e},
                                         {0x80, 0x7ff},      {0x800, 0xd7ff}, {0xe000, 0xffff},
                                         {0x10000, 0x10ffff}};

    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        uint32_t from_cp = lo > ranges[i][0] ? lo : ranges[i][0];
        uint32_t to_cp = hi < ranges[i][1] ? hi : ranges[i][1];

        if (from_cp <= to_cp)
            raw(a, from, from_cp, to_cp, flags, to);
    }
    for (uint32_t cp = lo; cp < 0x20 && cp <= hi; cp++)
        escaped(a, from, cp, flags, to);
    if (lo <= '"' && '"' <= hi)
        escaped(a, from, '"', flags, to);
    if (lo <= '\\' && '\\' <= hi)
        escaped(a, from, '\\', flags, to);
    if (lo <= 0x7f && 0x7f <= hi)
        escaped(a, from, 0x7f, flags, to);
}

void gr_nfa_quoted(gr_nfa *a, int32_t from, const char *text, size_t n, int32_t to)
{
    td_buf b = {0};

    td_buf_json(&b, text, n);
    if (b.oom)
        a->oom = true;
    gr_nfa_text(a, from, b.ptr, b.len, to);
    td_buf_free(&b);
}
