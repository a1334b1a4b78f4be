/* Which states of patterns behave alike for so many bytes.
 *
 * "^.{1,200}$" has hundreds of states that allow most of the vocabulary, and their masks differ in
 * the last few only. Two states are alike to depth d when no string of at most d bytes tells them
 * apart: then one's mask is the other's for all tokens up to that length, and only longer tokens
 * need a walk. The classes are those of partition refinement, one round a byte of depth: alike to
 * depth d + 1 are states alike to depth d whose edges lead, by the same bytes, to states alike to
 * depth d.
 *
 * Only states from which neither a call nor a counter can be reached take part. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_entry.h"

enum {
    MAX_VISITS = 4 * 1000 * 1000, /* of edges, while classes are made: some 6 ms */
    MAX_ROUNDS = 100,             /* while states are chosen */
};

const uint16_t gr_depths[GR_DEPTHS] = {4, 8, 16, 32, 64};

typedef struct refinement {
    const td_grammar *g;
    int32_t *now, *next; /* class of each state; -1: takes no part */
    int32_t *states;     /* that take part */
    size_t n, n_edges;
    int32_t *slots; /* 1 + a state of each class of this round, by hash */
    size_t n_slots;
} refinement;

/* Where an edge and those beside it lead by class: edges to one class count as one. */
static size_t join_edges(const refinement *r, const gr_state *s, size_t i, uint8_t *lo, uint8_t *hi,
                         int32_t *to)
{
    const gr_edge *e = &r->g->edges[s->edge];

    *lo = e[i].lo;
    *hi = e[i].hi;
    *to = r->now[e[i].to];
    for (i++; i < s->n_edges && e[i].lo == *hi + 1 && r->now[e[i].to] == *to; i++)
        *hi = e[i].hi;
    return i;
}

static bool same(const refinement *r, int32_t a, int32_t b)
{
    const gr_state *x = &r->g->states[a], *y = &r->g->states[b];
    size_t i = 0, k = 0;

    if (r->now[a] != r->now[b])
        return false;
    while (i < x->n_edges && k < y->n_edges) {
        uint8_t lo[2], hi[2];
        int32_t to[2];

        i = join_edges(r, x, i, &lo[0], &hi[0], &to[0]);
        k = join_edges(r, y, k, &lo[1], &hi[1], &to[1]);
        if (lo[0] != lo[1] || hi[0] != hi[1] || to[0] != to[1])
            return false;
    }
    return i == x->n_edges && k == y->n_edges;
}

static uint64_t hash(const refinement *r, int32_t state)
{
    const gr_state *s = &r->g->states[state];
    uint64_t h = (uint64_t)(uint32_t)r->now[state] * 0xff51afd7ed558ccdu;

    for (size_t i = 0; i < s->n_edges;) {
        uint8_t lo, hi;
        int32_t to;

        i = join_edges(r, s, i, &lo, &hi, &to);
        h = (h ^ ((uint64_t)(uint32_t)to << 16 | (uint64_t)lo << 8 | hi)) * 0xc4ceb9fe1a85ec53u;
        h ^= h >> 29;
    }
    return h;
}

/* One byte deeper. Returns the number of classes. */
static int32_t refine(refinement *r)
{
    int32_t n = 0, *swap = r->now;

    memset(r->slots, 0, r->n_slots * sizeof *r->slots);
    for (size_t i = 0; i < r->n; i++) {
        int32_t s = r->states[i];
        size_t at = (size_t)hash(r, s);

        while (r->slots[at & (r->n_slots - 1)] != 0 &&
               !same(r, r->slots[at & (r->n_slots - 1)] - 1, s))
            at++;
        if (r->slots[at & (r->n_slots - 1)] == 0) {
            r->slots[at & (r->n_slots - 1)] = s + 1;
            r->next[s] = n++;
        } else {
            r->next[s] = r->next[r->slots[at & (r->n_slots - 1)] - 1];
        }
    }
    r->now = r->next;
    r->next = swap;
    return n;
}

/* Drop states until all edges of those that are left lead to others that are left. */
static void choose(refinement *r)
{
    const td_grammar *g = r->g;
    bool changed = true;
    int rounds = 0;

    for (size_t s = 0; s < g->n_states; s++) {
        const gr_state *x = &g->states[s];
        bool in = s >= g->n_prelude && x->n_calls == 0;

        for (size_t e = x->edge; e < x->edge + x->n_edges; e++)
            in = in && g->edges[e].flags == 0;
        r->now[s] = in ? 0 : -1;
    }
    /* Backwards, since an automaton's states mostly lead to later ones. */
    while (changed) {
        if (rounds++ == MAX_ROUNDS)
            return; /* an odd automaton: none takes part */
        changed = false;
        for (size_t s = g->n_states; s-- > g->n_prelude;) {
            const gr_state *x = &g->states[s];

            for (size_t e = x->edge; r->now[s] == 0 && e < x->edge + x->n_edges; e++) {
                if (r->now[g->edges[e].to] < 0) {
                    r->now[s] = -1;
                    changed = true;
                }
            }
        }
    }
    for (size_t s = 0; s < g->n_states; s++) {
        r->next[s] = r->now[s];
        if (r->now[s] < 0)
            continue;
        r->now[s] = g->states[s].final;
        r->states[r->n++] = (int32_t)s;
        r->n_edges += g->states[s].n_edges + 1u;
    }
}

static bool run(refinement *r, gr_alike *out)
{
    size_t size = r->g->n_states * sizeof *r->now, visits = 0;
    int32_t classes = 0;

    for (int j = 0, depth = 0; j < GR_DEPTHS; j++) {
        for (; depth < gr_depths[j]; depth++) {
            int32_t n;

            if ((visits += r->n_edges) > MAX_VISITS)
                return true; /* what is known so far will do */
            n = refine(r);
            if (n == classes) { /* alike for ever */
                depth = INT16_MAX;
                break;
            }
            classes = n;
        }
        out->of[j] = malloc(size);
        out->made[j] = malloc(((size_t)classes + 1) * sizeof *out->made[j]);
        if (out->of[j] == NULL || out->made[j] == NULL)
            return false;
        memcpy(out->of[j], r->now, size);
        memset(out->made[j], 0xff, ((size_t)classes + 1) * sizeof *out->made[j]);
        out->n = j + 1;
    }
    return true;
}

gr_alike *gr_alike_create(const td_grammar *g)
{
    gr_alike *out = calloc(1, sizeof *out);
    refinement r = {.g = g, .n_slots = 64};
    bool ok;

    while (r.n_slots < g->n_states * 2)
        r.n_slots *= 2;
    r.now = malloc(g->n_states * sizeof *r.now);
    r.next = malloc(g->n_states * sizeof *r.next);
    r.states = malloc(g->n_states * sizeof *r.states);
    r.slots = malloc(r.n_slots * sizeof *r.slots);
    ok = out != NULL && r.now != NULL && r.next != NULL && r.states != NULL && r.slots != NULL;
    if (ok) {
        choose(&r);
        ok = r.n == 0 || run(&r, out);
    }
    free(r.now);
    free(r.next);
    free(r.states);
    free(r.slots);
    if (!ok) {
        gr_alike_free(out);
        return NULL;
    }
    return out;
}

void gr_alike_free(gr_alike *a)
{
    if (a == NULL)
        return;
    for (int j = 0; j < GR_DEPTHS; j++) {
        free(a->of[j]);
        free(a->made[j]);
    }
    free(a);
}
