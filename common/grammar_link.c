/* The last steps of a grammar: calls are linked to their rules, what can never come to an end is
 * dropped (so that a mask never leads into a dead end), and states get their tables. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_impl.h"

enum {
    TABLE_FROM = 4,         /* edges from which a table is quicker than looking through them */
    CACHE_BYTES = 64 << 20, /* masks of one grammar: some 2,500 that allow much */
};

static void link_calls(gr_build *b)
{
    for (size_t i = 0; i < b->n_calls; i++) {
        gr_call *c = &b->calls[i];
        const gr_rule *r = &b->rules[c->start];

        td_assert(r->start >= 0);
        if (!r->call_counts) {
            c->need = r->need;
            c->room = r->room;
        }
        c->start = r->start;
    }
}

/* --- States from which the end of their rule can be reached. */

typedef struct reach {
    const gr_build *b;
    bool *good;
    uint32_t *first; /* of each state: its dependents in `from` */
    int32_t *from;   /* states that may become good when it does */
    int32_t *stack;
} reach;

static bool may_end(const reach *r, int32_t state)
{
    const gr_state *s = &r->b->states[state];

    if (s->final)
        return true;
    for (size_t i = s->edge; i < s->edge + s->n_edges; i++) {
        if (r->good[r->b->edges[i].to])
            return true;
    }
    for (size_t i = s->call; i < s->call + s->n_calls; i++) {
        if (r->good[r->b->calls[i].start] && r->good[r->b->calls[i].to])
            return true;
    }
    return false;
}

static bool reach_init(reach *r, const gr_build *b)
{
    size_t n = b->n_states;

    *r = (reach){.b = b};
    r->good = calloc(n, sizeof *r->good);
    r->first = calloc(n + 2, sizeof *r->first);
    r->from = malloc((b->n_edges + 2 * b->n_calls + 1) * sizeof *r->from);
    r->stack = malloc((n + 1) * sizeof *r->stack);
    if (r->good == NULL || r->first == NULL || r->from == NULL || r->stack == NULL)
        return false;
    /* Counted two places on, filled one place on, so that first[i] ends up as the start of i. */
    for (size_t i = 0; i < b->n_edges; i++)
        r->first[b->edges[i].to + 2]++;
    for (size_t i = 0; i < b->n_calls; i++) {
        r->first[b->calls[i].to + 2]++;
        r->first[b->calls[i].start + 2]++;
    }
    for (size_t i = 2; i < n + 2; i++)
        r->first[i] += r->first[i - 1];
    for (size_t s = 0; s < n; s++) {
        const gr_state *state = &b->states[s];

        for (size_t i = state->edge; i < state->edge + state->n_edges; i++)
            r->from[r->first[b->edges[i].to + 1]++] = (int32_t)s;
        for (size_t i = state->call; i < state->call + state->n_calls; i++) {
            r->from[r->first[b->calls[i].to + 1]++] = (int32_t)s;
            r->from[r->first[b->calls[i].start + 1]++] = (int32_t)s;
        }
    }
    return true;
}

static void reach_run(reach *r)
{
    size_t top = 0;

    for (size_t s = 0; s < r->b->n_states; s++) {
        if (r->b->states[s].final) {
            r->good[s] = true;
            r->stack[top++] = (int32_t)s;
        }
    }
    while (top > 0) {
        int32_t s = r->stack[--top];

        for (uint32_t i = r->first[s]; i < r->first[s + 1]; i++) {
            int32_t d = r->from[i];

            if (!r->good[d] && may_end(r, d)) {
                r->good[d] = true;
                r->stack[top++] = d;
            }
        }
    }
}

static void reach_fini(reach *r)
{
    free(r->good);
    free(r->first);
    free(r->from);
    free(r->stack);
}

static void drop_dead(gr_build *b, const bool *good)
{
    for (size_t i = 0; i < b->n_states; i++) {
        gr_state *s = &b->states[i];
        uint16_t edges = 0, calls = 0;

        for (uint32_t e = s->edge, n = s->n_edges; n > 0; e++, n--) {
            if (good[b->edges[e].to])
                b->edges[s->edge + edges++] = b->edges[e];
        }
        s->n_edges = edges;
        for (uint32_t c = s->call, n = s->n_calls; n > 0; c++, n--) {
            if (good[b->calls[c].to] && good[b->calls[c].start])
                b->calls[s->call + calls++] = b->calls[c];
        }
        s->n_calls = calls;
    }
    for (size_t i = 0; i < b->n_calls; i++) {
        const gr_state *to = &b->states[b->calls[i].to];

        b->calls[i].tail = to->final && to->n_edges == 0 && to->n_calls == 0;
    }
}

static bool wants_table(const gr_build *b, const gr_state *s)
{
    bool taken[256] = {false};

    if (s->n_edges < TABLE_FROM || s->n_edges > 255)
        return false;
    for (size_t i = s->edge; i < s->edge + s->n_edges; i++) {
        for (int c = b->edges[i].lo; c <= b->edges[i].hi; c++) {
            if (taken[c])
                return false; /* two edges by one byte */
            taken[c] = true;
        }
    }
    return true;
}

static bool make_tables(gr_build *b, td_grammar *g)
{
    for (size_t i = 0; i < b->n_states; i++)
        g->n_tables += wants_table(b, &b->states[i]);
    if (g->n_tables == 0)
        return true;
    if ((g->tables = calloc(g->n_tables, 256)) == NULL)
        return false;
    g->n_tables = 0;
    for (size_t i = 0; i < b->n_states; i++) {
        gr_state *s = &b->states[i];
        uint8_t *table = g->tables + g->n_tables * 256;

        if (!wants_table(b, s))
            continue;
        for (size_t e = 0; e < s->n_edges; e++) {
            for (int c = b->edges[s->edge + e].lo; c <= b->edges[s->edge + e].hi; c++)
                table[c] = (uint8_t)(e + 1);
        }
        s->table = (int32_t)g->n_tables++;
    }
    return true;
}

td_status gr_build_finish(gr_build *b, int32_t root, int32_t *dead, td_grammar **out, td_error *err)
{
    td_grammar *g = calloc(1, sizeof *g);
    reach r = {0};
    td_status st = TD_OK;

    *dead = -1;
    link_calls(b);
    if (g == NULL || (g->cache = gr_cache_create(CACHE_BYTES)) == NULL || !reach_init(&r, b)) {
        st = td_fail(err, TD_NOMEM, "no memory for the grammar");
        goto done;
    }
    reach_run(&r);
    for (size_t i = b->n_rules; i-- > 0 && *dead < 0 && !r.good[b->rules[root].start];) {
        if (!r.good[b->rules[i].start])
            *dead = (int32_t)i;
    }
    if (*dead >= 0) {
        st = td_fail(err, TD_INVALID, "matches no value");
        goto done;
    }
    drop_dead(b, r.good);
    if (!make_tables(b, g)) {
        st = td_fail(err, TD_NOMEM, "no memory for the grammar");
        goto done;
    }
    g->root = (gr_call){
        .start = b->rules[root].start, .need = b->rules[root].need, .room = b->rules[root].room};
    g->states = b->states;
    g->edges = b->edges;
    g->calls = b->calls;
    g->n_states = b->n_states;
    g->n_prelude = b->n_prelude;
    g->string_lo = b->rules[GR_RULE_STRING].start;
    g->string_hi = b->rules[GR_RULE_STRING + 1].start;
    g->n_edges = b->n_edges;
    g->n_calls = b->n_calls;
    b->states = NULL;
    b->edges = NULL;
    b->calls = NULL;
    *out = g;
    g = NULL;
done:
    reach_fini(&r);
    td_grammar_free(g);
    return st;
}

void td_grammar_free(td_grammar *g)
{
    if (g == NULL)
        return;
    free(g->states);
    free(g->edges);
    free(g->calls);
    free(g->tables);
    gr_cache_free(g->cache);
    free(g);
}

size_t td_grammar_states(const td_grammar *g)
{
    return g->n_states;
}
