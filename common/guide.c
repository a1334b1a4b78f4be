/* A place in an answer:
 *
 *   ANSWERING   in a header: the range of headers that begin as this one does
 *   STARTING    between messages: <|start|>assistant
 *   TEXT        in content that is free, or in JSON: where a matcher stands
 *   OVER        after the stop token
 */
#include "common/guide_impl.h"

#include <stdlib.h>
#include <string.h>

typedef enum guide_state { STARTING, ANSWERING, TEXT, OVER } guide_state;

struct td_guide {
    td_guides *guides;
    guide_plan *plan;
    guide_state state;

    const guide_headers *headers; /* ANSWERING, and what STARTING leads to */
    uint32_t lo, hi;              /* ANSWERING: those that fit */
    uint32_t depth;               /* symbols of the header so far */

    int32_t to;          /* TEXT */
    td_matcher *matcher; /* TEXT: NULL where it is free */

    uint32_t *own;        /* a mask, unless it is one of the shared */
    const uint32_t *mask; /* of this place; NULL: not computed, or there is none */
    bool computed, oom;
    td_usec mask_us;
};

static const guide_symbol start_symbols[] = {GUIDE_START, 'a', 's', 's', 'i',
                                             's',         't', 'a', 'n', 't'};
static guide_header start_header = {start_symbols, sizeof start_symbols / sizeof *start_symbols, 0};
static const guide_headers starts = {&start_header, 1};

static void begin_header(td_guide *g, const guide_headers *next)
{
    g->state = ANSWERING;
    g->headers = next;
    g->lo = 0;
    g->hi = next->n;
    g->depth = 0;
}

static const guide_headers *line_of(const td_guide *g)
{
    return g->state == STARTING ? &starts : g->headers;
}

static int32_t control(const td_guide *g, int symbol)
{
    return g->guides->control[symbol - GUIDE_START];
}

static td_status refused(const td_guide *g, int32_t token, td_error *err)
{
    static const char *const where[] = {"between messages", "in a header", "in this content",
                                        "after the end"};

    return td_fail(err, TD_INVALID, "token %d cannot stand %s of a guided answer", token,
                   where[g->state]);
}

/* The grammar of the content that has begun; NULL: it is free. */
static const td_grammar *grammar_of(const td_guide *g)
{
    const guide_plan *p = g->plan;

    if (g->to >= 0)
        return p->schemas[g->to] != NULL ? p->schemas[g->to] : p->object;
    if (g->to == GUIDE_TO_FINAL && p->json)
        return p->final != NULL ? p->final : p->object;
    return NULL;
}

static td_status begin_content(td_guide *g, int32_t to, td_error *err)
{
    const td_grammar *grammar;

    g->state = TEXT;
    g->to = to;
    grammar = grammar_of(g);
    return grammar == NULL ? TD_OK : td_matcher_create(grammar, g->guides->set, &g->matcher, err);
}

/* One symbol more of a header; false: none of those that fit has it next. */
static bool take_symbol(td_guide *g, guide_symbol s)
{
    const guide_header *list = line_of(g)->list;

    while (g->lo < g->hi && (list[g->lo].n <= g->depth || list[g->lo].symbols[g->depth] < s))
        g->lo++;
    while (g->hi > g->lo && list[g->hi - 1].n > g->depth && list[g->hi - 1].symbols[g->depth] > s)
        g->hi--;
    g->depth++;
    return g->lo < g->hi;
}

static td_status accept_in_header(td_guide *g, int32_t token, td_error *err)
{
    const guide_header *h;
    td_slice piece;
    bool fits = false;

    for (int s = GUIDE_START; s < GUIDE_SYMBOLS; s++)
        if (token == control(g, s))
            fits = take_symbol(g, (guide_symbol)s);
    if (!fits && token >= 0 && token < g->guides->v.n_ordinary) {
        piece = vocab_bytes(&g->guides->v, token);
        fits = piece.len > 0;
        for (size_t i = 0; i < piece.len && fits; i++)
            fits = take_symbol(g, (guide_symbol)(unsigned char)piece.ptr[i]);
    }
    if (!fits)
        return refused(g, token, err);
    h = &line_of(g)->list[g->lo];
    if (h->n > g->depth)
        return TD_OK;
    if (g->state == STARTING) {
        begin_header(g, g->headers);
        return TD_OK;
    }
    return begin_content(g, h->to, err);
}

/* The control token that ends the content that is open. */
static int end_symbol(const td_guide *g)
{
    return g->to >= 0 ? GUIDE_CALL : g->to == GUIDE_TO_FINAL ? GUIDE_RETURN : GUIDE_END;
}

static td_status accept_in_text(td_guide *g, int32_t token, td_error *err)
{
    if (token == control(g, end_symbol(g))) {
        if (g->matcher != NULL && !td_matcher_may_end(g->matcher))
            return refused(g, token, err);
        td_matcher_free(g->matcher);
        g->matcher = NULL;
        g->state = end_symbol(g) == GUIDE_END ? STARTING : OVER;
        g->headers = g->to == GUIDE_TO_ANALYSIS ? &g->plan->after_analysis : &g->plan->all;
        g->lo = g->depth = 0;
        g->hi = starts.n;
        return TD_OK;
    }
    if (token < 0 || token >= g->guides->v.n_ordinary)
        return refused(g, token, err);
    if (g->matcher != NULL) {
        td_slice piece = vocab_bytes(&g->guides->v, token);

        if (!td_matcher_accept(g->matcher, (const uint8_t *)piece.ptr, piece.len))
            return refused(g, token, err);
    }
    return TD_OK;
}

td_status td_guide_accept(td_guide *g, int32_t token, td_error *err)
{
    g->computed = false;
    switch (g->state) {
    case STARTING:
    case ANSWERING: return accept_in_header(g, token, err);
    case TEXT: return accept_in_text(g, token, err);
    case OVER: break;
    }
    return refused(g, token, err);
}

/* How many symbols from `depth` on two headers have in common. */
static uint32_t common(const guide_header *a, const guide_header *b, uint32_t depth)
{
    uint32_t n = 0;

    while (depth + n < a->n && depth + n < b->n && a->symbols[depth + n] == b->symbols[depth + n])
        n++;
    return n;
}

/* Every token that spells the next bytes of a header that fits, and the control token that is due
 * in one. Neighbours in the list begin alike: what they have in common has been looked at. */
static void mask_header(td_guide *g)
{
    const vocab *v = &g->guides->v;
    const guide_header *list = line_of(g)->list;
    char bytes[VOCAB_MAX_PIECE];

    for (uint32_t i = g->lo; i < g->hi; i++) {
        const guide_header *h = &list[i];
        uint32_t done = i > g->lo ? common(h, h - 1, g->depth) : 0, n = 0;

        for (; g->depth + n < h->n && n < v->max_ordinary; n++) {
            guide_symbol s = h->symbols[g->depth + n];
            int32_t token;

            if (s >= GUIDE_START)
                break;
            bytes[n] = (char)s;
            token = n >= done ? vocab_find(v, bytes, n + 1) : -1;
            if (token >= 0)
                guide_allow(g->own, token);
        }
        if (n == 0 && h->symbols[g->depth] >= GUIDE_START)
            guide_allow(g->own, control(g, h->symbols[g->depth]));
    }
}

static const uint32_t *compute_mask(td_guide *g)
{
    size_t bytes = g->guides->n_words * sizeof *g->own;
    uint32_t any = 0;

    if (g->state == OVER)
        return NULL;
    if (g->state == TEXT && g->matcher == NULL)
        return g->to == GUIDE_TO_FINAL ? g->guides->text_return : g->guides->text_end;
    if (g->state == TEXT) {
        g->oom = !td_matcher_mask(g->matcher, g->own);
        if (g->oom)
            return NULL;
        if (td_matcher_may_end(g->matcher))
            guide_allow(g->own, control(g, end_symbol(g)));
    } else {
        memset(g->own, 0, bytes);
        mask_header(g);
    }
    for (size_t i = 0; i < g->guides->n_words; i++)
        any |= g->own[i];
    return any != 0 ? g->own : NULL;
}

const uint32_t *td_guide_mask(td_guide *g)
{
    if (!g->computed) {
        td_usec t0 = td_now_us();

        g->mask = compute_mask(g);
        g->mask_us = td_now_us() - t0;
        g->computed = true;
    }
    return g->mask;
}

bool td_guide_out_of_memory(const td_guide *g)
{
    return g->oom;
}

td_usec td_guide_mask_us(const td_guide *g)
{
    return g->mask_us;
}

td_status td_guide_create(td_guides *guides, const Tandem__Guide *m, const int32_t *answer,
                          size_t n, td_guide **out, td_error *err)
{
    td_guide *g = calloc(1, sizeof *g);
    td_status st;

    if (g == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a guide");
    g->guides = guides;
    g->own = malloc(guides->n_words * sizeof *g->own);
    st = g->own != NULL ? guide_plan_get(guides, m, &g->plan, err)
                        : td_fail(err, TD_NOMEM, "no memory for a mask");
    if (st == TD_OK && g->plan->begun)
        st = begin_content(g, GUIDE_TO_FINAL, err);
    else if (st == TD_OK)
        begin_header(g, &g->plan->all);
    for (size_t i = 0; st == TD_OK && i < n; i++)
        st = td_guide_accept(g, answer[i], err);
    if (st != TD_OK) {
        td_guide_free(g);
        return st;
    }
    *out = g;
    return TD_OK;
}

void td_guide_free(td_guide *g)
{
    if (g == NULL)
        return;
    td_matcher_free(g->matcher);
    guide_plan_put(g->guides, g->plan);
    free(g->own);
    free(g);
}
