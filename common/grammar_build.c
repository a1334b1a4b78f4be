/* Rules made deterministic, and put together as a grammar.
 *
 * A rule's NFA becomes an automaton by the subset construction over bytes; calls are letters like
 * bytes, the same call (callee, counters, flags) to several states being one. Two edges of a state
 * may share a byte only where their flags differ, and two calls may begin alike: what remains
 * ambiguous is what the runner's sets of places are for. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_impl.h"

/* --- Subsets of an NFA's states, each of them once. */

typedef struct subsets {
    int32_t *member; /* of all, one after the other, each sorted */
    size_t n_members, cap_members;
    size_t *first; /* of subset i; first[n] is the end */
    size_t n, cap;
    int32_t *slots; /* 1 + subset, by hash; 0: free */
    size_t n_slots;
} subsets;

typedef struct work {
    gr_build *b;
    const gr_nfa *a;
    int32_t end, base; /* base: the state of subset 0 */
    size_t max_states;
    subsets s;
    uint32_t *stamp; /* of an NFA state: the last closure that it was in */
    uint32_t now;
    int32_t *stack, *set; /* room for all NFA states */
    size_t n_set;
    int32_t head[GR_FLAGS][257]; /* by flags and interval of bytes: edges that cover it */
    struct cover {
        int32_t to, next;
    } * cover;
    size_t n_cover, cap_cover;
    int32_t *targets; /* room for the targets of one letter */
    size_t cap_targets;
    td_error *err;
} work;

static td_status no_memory(td_error *err)
{
    return td_fail(err, TD_NOMEM, "no memory for the grammar");
}

/* Make room for n + 1 members of size bytes. */
static bool reserve(void *array, size_t *cap, size_t n, size_t size)
{
    void *p;
    size_t want = *cap > 0 ? *cap : 64;

    if (n < *cap)
        return true;
    while (want <= n)
        want *= 2;
    memcpy(&p, array, sizeof p);
    p = realloc(p, want * size);
    if (p == NULL)
        return false;
    memcpy(array, &p, sizeof p);
    *cap = want;
    return true;
}

static int compare_ints(const void *x, const void *y)
{
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;

    return (a > b) - (a < b);
}

/* w->set = the states that are reached from targets[0..n) without a letter, and matter. */
static void close_set(work *w, const int32_t *targets, size_t n)
{
    size_t top = 0;

    w->now++;
    w->n_set = 0;
    for (size_t i = 0; i < n; i++) {
        if (w->stamp[targets[i]] != w->now) {
            w->stamp[targets[i]] = w->now;
            w->stack[top++] = targets[i];
        }
    }
    while (top > 0) {
        int32_t s = w->stack[--top];
        bool matters = s == w->end;

        for (int32_t e = w->a->head[s]; e >= 0; e = w->a->edges[e].next) {
            const gr_nfa_edge *edge = &w->a->edges[e];

            if (edge->kind != GR_EPS) {
                matters = true;
            } else if (w->stamp[edge->to] != w->now) {
                w->stamp[edge->to] = w->now;
                w->stack[top++] = edge->to;
            }
        }
        if (matters)
            w->set[w->n_set++] = s;
    }
    qsort(w->set, w->n_set, sizeof *w->set, compare_ints);
}

static size_t hash_set(const int32_t *set, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;

    for (size_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)set[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (size_t)h;
}

static bool rehash(subsets *s)
{
    size_t n = s->n_slots > 0 ? s->n_slots * 2 : 256;
    int32_t *slots = calloc(n, sizeof *slots);

    if (slots == NULL)
        return false;
    for (size_t i = 0; i < s->n; i++) {
        size_t at = hash_set(s->member + s->first[i], s->first[i + 1] - s->first[i]);

        while (slots[at & (n - 1)] != 0)
            at++;
        slots[at & (n - 1)] = (int32_t)i + 1;
    }
    free(s->slots);
    s->slots = slots;
    s->n_slots = n;
    return true;
}

/* The state of w->set, made if it is new. */
static td_status state_of_set(work *w, int32_t *out)
{
    subsets *s = &w->s;
    gr_build *b = w->b;
    size_t at;

    if (s->n * 2 >= s->n_slots && !rehash(s))
        return no_memory(w->err);
    at = hash_set(w->set, w->n_set);
    for (;; at++) {
        int32_t i = s->slots[at & (s->n_slots - 1)] - 1;

        if (i < 0)
            break;
        if (s->first[i + 1] - s->first[i] == w->n_set &&
            memcmp(s->member + s->first[i], w->set, w->n_set * sizeof *w->set) == 0) {
            *out = w->base + i;
            return TD_OK;
        }
    }
    if (s->n >= w->max_states || b->n_states >= GR_MAX_STATES)
        return td_fail(w->err, TD_INVALID, "too large: needs more than %zu states",
                       s->n >= w->max_states ? w->max_states : (size_t)GR_MAX_STATES);
    if (s->n_members + w->n_set > GR_MAX_SUBSETS)
        return td_fail(w->err, TD_INVALID, "too large: too many alternatives are open at once");
    if (!reserve(&s->member, &s->cap_members, s->n_members + w->n_set, sizeof *s->member) ||
        !reserve(&s->first, &s->cap, s->n + 1, sizeof *s->first) ||
        !reserve(&b->states, &b->cap_states, b->n_states, sizeof *b->states))
        return no_memory(w->err);
    memcpy(s->member + s->n_members, w->set, w->n_set * sizeof *w->set);
    s->first[s->n] = s->n_members;
    s->n_members += w->n_set;
    s->first[s->n + 1] = s->n_members;
    s->slots[at & (s->n_slots - 1)] = (int32_t)++s->n;
    b->states[b->n_states++] = (gr_state){.table = -1};
    *out = w->base + (int32_t)s->n - 1;
    return TD_OK;
}

/* One letter's targets, already in w->targets. */
static td_status target(work *w, size_t n, int32_t *out)
{
    close_set(w, w->targets, n);
    return state_of_set(w, out);
}

static td_status add_edge(work *w, size_t state, gr_edge e)
{
    gr_build *b = w->b;
    gr_state *s = &b->states[state];
    gr_edge *last = s->n_edges > 0 ? &b->edges[b->n_edges - 1] : NULL;

    if (last != NULL && last->to == e.to && last->flags == e.flags && last->hi + 1 == e.lo) {
        last->hi = e.hi;
        return TD_OK;
    }
    if (!reserve(&b->edges, &b->cap_edges, b->n_edges, sizeof *b->edges))
        return no_memory(w->err);
    b->edges[b->n_edges++] = e;
    s->n_edges++;
    return TD_OK;
}

/* Edges of subset i: bytes are cut into intervals within which the same NFA edges apply. */
static td_status bytes_of_subset(work *w, size_t i)
{
    const subsets *s = &w->s;
    size_t state = (size_t)w->base + i;
    bool cut[257] = {[0] = true};
    uint32_t used = 0; /* flags that occur */
    td_status st;

    w->n_cover = 0;
    memset(w->head, 0xff, sizeof w->head);
    for (size_t m = s->first[i]; m < s->first[i + 1]; m++) {
        for (int32_t e = w->a->head[s->member[m]]; e >= 0; e = w->a->edges[e].next) {
            const gr_nfa_edge *edge = &w->a->edges[e];

            if (edge->kind == GR_BYTES)
                cut[edge->lo] = cut[edge->hi + 1] = true;
        }
    }
    for (size_t m = s->first[i]; m < s->first[i + 1]; m++) {
        for (int32_t e = w->a->head[s->member[m]]; e >= 0; e = w->a->edges[e].next) {
            const gr_nfa_edge *edge = &w->a->edges[e];

            if (edge->kind != GR_BYTES)
                continue;
            used |= 1u << edge->flags;
            for (int c = edge->lo; c <= edge->hi; c++) {
                if (!cut[c])
                    continue;
                if (!reserve(&w->cover, &w->cap_cover, w->n_cover, sizeof *w->cover))
                    return no_memory(w->err);
                w->cover[w->n_cover] = (struct cover){edge->to, w->head[edge->flags][c]};
                w->head[edge->flags][c] = (int32_t)w->n_cover++;
            }
        }
    }
    for (uint32_t f = 0; f < GR_FLAGS; f++) {
        for (int c = 0; c < 256 && (used >> f & 1) != 0; c++) {
            size_t n = 0;
            int end = c + 1;
            int32_t to;

            if (w->head[f][c] < 0)
                continue;
            while (end < 256 && !cut[end])
                end++;
            for (int32_t at = w->head[f][c]; at >= 0; at = w->cover[at].next) {
                if (!reserve(&w->targets, &w->cap_targets, n, sizeof *w->targets))
                    return no_memory(w->err);
                w->targets[n++] = w->cover[at].to;
            }
            if ((st = target(w, n, &to)) != TD_OK ||
                (st = add_edge(w, state,
                               (gr_edge){.to = to,
                                         .lo = (uint8_t)c,
                                         .hi = (uint8_t)(end - 1),
                                         .flags = (uint8_t)f})) != TD_OK)
                return st;
        }
    }
    return TD_OK;
}

static bool same_call(const gr_nfa_edge *x, const gr_nfa_edge *y)
{
    return x->rule == y->rule && x->need == y->need && x->room == y->room && x->flags == y->flags;
}

static td_status calls_of_subset(work *w, size_t i)
{
    const subsets *s = &w->s;
    gr_build *b = w->b;
    const gr_nfa *a = w->a;
    size_t state = (size_t)w->base + i, n = 0;
    int32_t *call = NULL; /* NFA edges, those not yet done first */
    size_t cap = 0;
    td_status st = TD_OK;

    for (size_t m = s->first[i]; m < s->first[i + 1]; m++) {
        for (int32_t e = a->head[s->member[m]]; e >= 0; e = a->edges[e].next) {
            if (a->edges[e].kind != GR_CALL)
                continue;
            if (!reserve(&call, &cap, n, sizeof *call)) {
                free(call);
                return no_memory(w->err);
            }
            call[n++] = e;
        }
    }
    while (n > 0 && st == TD_OK) {
        gr_nfa_edge first = a->edges[call[0]];
        size_t rest = 0, k = 0;
        int32_t to = 0;

        for (size_t j = 0; j < n && st == TD_OK; j++) {
            if (!same_call(&first, &a->edges[call[j]])) {
                call[rest++] = call[j];
                continue;
            }
            if (!reserve(&w->targets, &w->cap_targets, k, sizeof *w->targets))
                st = no_memory(w->err);
            else
                w->targets[k++] = a->edges[call[j]].to;
        }
        n = rest;
        if (st == TD_OK)
            st = target(w, k, &to);
        if (st == TD_OK && b->states[state].n_calls == GR_MAX_CALLS)
            st = td_fail(w->err, TD_INVALID,
                         "more than %d alternatives that must be followed side by side",
                         GR_MAX_CALLS);
        if (st == TD_OK && !reserve(&b->calls, &b->cap_calls, b->n_calls, sizeof *b->calls))
            st = no_memory(w->err);
        if (st != TD_OK)
            break;
        b->calls[b->n_calls++] = (gr_call){.start = first.rule,
                                           .to = to,
                                           .need = first.need,
                                           .room = first.room,
                                           .flags = first.flags};
        b->states[state].n_calls++;
    }
    free(call);
    return st;
}

static td_status make_states(work *w, int32_t start)
{
    int32_t first;
    td_status st;

    close_set(w, &start, 1);
    if ((st = state_of_set(w, &first)) != TD_OK)
        return st;
    for (size_t i = 0; i < w->s.n; i++) { /* grows meanwhile */
        gr_build *b = w->b;
        size_t state = (size_t)w->base + i;

        b->states[state].edge = (uint32_t)b->n_edges;
        b->states[state].call = (uint32_t)b->n_calls;
        for (size_t m = w->s.first[i]; m < w->s.first[i + 1]; m++)
            b->states[state].final |= w->s.member[m] == w->end;
        if ((st = bytes_of_subset(w, i)) != TD_OK || (st = calls_of_subset(w, i)) != TD_OK)
            return st;
    }
    return TD_OK;
}

int32_t gr_build_rule(gr_build *b)
{
    if (!reserve(&b->rules, &b->cap_rules, b->n_rules, sizeof *b->rules))
        return -1;
    b->rules[b->n_rules] = (gr_rule){.start = -1, .room = GR_ANY};
    return (int32_t)b->n_rules++;
}

td_status gr_build_close(gr_build *b, int32_t rule, int32_t start, int32_t end, size_t max_states,
                         td_error *err)
{
    const gr_nfa *a = &b->nfa;
    work *w = NULL;
    td_status st;

    if (a->large)
        st = td_fail(err, TD_INVALID, "too large: needs more than %d parts", GR_MAX_NFA);
    else if (a->oom || (w = calloc(1, sizeof *w)) == NULL)
        st = no_memory(err);
    else {
        *w = (work){.b = b,
                    .a = a,
                    .end = end,
                    .base = (int32_t)b->n_states,
                    .max_states = max_states,
                    .err = err};
        w->stamp = calloc(a->n, sizeof *w->stamp);
        w->stack = malloc(a->n * sizeof *w->stack);
        w->set = malloc(a->n * sizeof *w->set);
        if (w->stamp == NULL || w->stack == NULL || w->set == NULL)
            st = no_memory(err);
        else
            st = make_states(w, start);
        if (st == TD_OK)
            b->rules[rule].start = w->base;
        free(w->stamp);
        free(w->stack);
        free(w->set);
        free(w->cover);
        free(w->targets);
        free(w->s.member);
        free(w->s.first);
        free(w->s.slots);
        free(w);
    }
    gr_nfa_clear(&b->nfa);
    return st;
}

void gr_build_free(gr_build *b)
{
    free(b->states);
    free(b->edges);
    free(b->calls);
    free(b->rules);
    gr_nfa_clear(&b->nfa);
    *b = (gr_build){0};
}
