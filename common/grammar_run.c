/* Places in a grammar, byte by byte.
 *
 * A set holds only places with edges (and GR_END): calls are entered and ends are left as soon as
 * they are reached. Frames are shared and each is stored once, so equal places are equal numbers.
 * Left recursion cannot grow the stack: a schema's rules call themselves without a byte only as
 * tail calls, which keep no frame. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_impl.h"

bool gr_run_init(gr_run *r, const td_grammar *g)
{
    *r = (gr_run){.g = g, .n_buckets = 64, .n_frames = 1, .cap_frames = 64, .cap = 64};
    r->buckets = calloc(r->n_buckets, sizeof *r->buckets);
    r->frames = calloc(r->cap_frames, sizeof *r->frames);
    r->at = malloc(r->cap * sizeof *r->at);
    if (r->buckets != NULL && r->frames != NULL && r->at != NULL)
        return true;
    gr_run_fini(r);
    return false;
}

void gr_run_fini(gr_run *r)
{
    free(r->buckets);
    free(r->frames);
    free(r->at);
    *r = (gr_run){0};
}

/* --- Frames. */

static uint32_t hash_frame(const gr_frame *f)
{
    uint64_t h = (uint64_t)(uint32_t)f->ret << 32 | f->parent;

    h = (h ^ f->need) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 32 ^ f->room) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

static bool grow_frames(gr_run *r)
{
    uint32_t cap = r->cap_frames * 2;
    gr_frame *frames = realloc(r->frames, cap * sizeof *frames);
    uint32_t *buckets;

    if (frames == NULL)
        return false;
    r->frames = frames;
    r->cap_frames = cap;
    if ((buckets = calloc(cap, sizeof *buckets)) == NULL)
        return false;
    free(r->buckets);
    r->buckets = buckets;
    r->n_buckets = cap;
    /* In the order of numbers, so that cutting back finds the last one at the head of its chain. */
    for (uint32_t i = 1; i < r->n_frames; i++) {
        uint32_t *head = &r->buckets[hash_frame(&r->frames[i]) & (cap - 1)];

        r->frames[i].chain = *head;
        *head = i;
    }
    return true;
}

/* The number of this frame; 0: no memory. */
static uint32_t frame(gr_run *r, gr_frame f)
{
    uint32_t h = hash_frame(&f), *head;

    for (uint32_t i = r->buckets[h & (r->n_buckets - 1)]; i != 0; i = r->frames[i].chain) {
        const gr_frame *x = &r->frames[i];

        if (x->ret == f.ret && x->parent == f.parent && x->need == f.need && x->room == f.room)
            return i;
    }
    if (r->n_frames == r->cap_frames && !grow_frames(r)) {
        r->oom = true;
        return 0;
    }
    head = &r->buckets[h & (r->n_buckets - 1)];
    f.chain = *head;
    *head = r->n_frames;
    r->frames[r->n_frames] = f;
    return r->n_frames++;
}

void gr_run_cut_frames(gr_run *r, uint32_t n)
{
    while (r->n_frames > n) {
        const gr_frame *f = &r->frames[--r->n_frames];

        r->buckets[hash_frame(f) & (r->n_buckets - 1)] = f->chain;
    }
}

/* --- Sets. */

static void append(gr_run *r, size_t first, gr_config c)
{
    for (size_t i = first; i < r->n; i++) {
        const gr_config *x = &r->at[i];

        if (x->state == c.state && x->stack == c.stack && x->need == c.need && x->room == c.room)
            return;
    }
    if (r->n - first >= GR_MAX_CONFIGS)
        return;
    if (r->n == r->cap) {
        gr_config *at = realloc(r->at, r->cap * 2 * sizeof *at);

        if (at == NULL) {
            r->oom = true;
            return;
        }
        r->at = at;
        r->cap *= 2;
    }
    r->at[r->n++] = c;
}

static void leave(gr_run *r, size_t first, uint32_t stack)
{
    const gr_frame *f = &r->frames[stack];

    if (stack == 0)
        append(r, first, (gr_config){.state = GR_END});
    else
        append(r, first, (gr_config){f->ret, f->need, f->room, f->parent});
}

static void enter(gr_run *r, size_t first, gr_config c, const gr_call *call)
{
    uint32_t stack = c.stack;

    if ((call->flags & GR_CLOSE) && c.need > 0)
        return;
    if (call->flags & GR_COUNT) {
        if (c.room == 0)
            return;
        c.room -= c.room != GR_ANY;
        c.need -= c.need > 0;
    }
    if (!call->tail) {
        stack = frame(r, (gr_frame){call->to, c.need, c.room, c.stack, 0});
        if (stack == 0)
            return;
    }
    append(r, first, (gr_config){call->start, call->need, call->room, stack});
}

/* Follow calls and ends from at[first..n), then keep the members with edges. */
static size_t settle(gr_run *r, size_t first)
{
    const td_grammar *g = r->g;
    size_t kept = first;

    for (size_t i = first; i < r->n; i++) { /* n grows meanwhile */
        gr_config c = r->at[i];
        const gr_state *s;

        if (c.state == GR_END)
            continue;
        s = &g->states[c.state];
        for (size_t k = 0; k < s->n_calls; k++)
            enter(r, first, c, &g->calls[s->call + k]);
        if (s->final)
            leave(r, first, c.stack);
    }
    for (size_t i = first; i < r->n; i++) {
        if (r->at[i].state == GR_END || g->states[r->at[i].state].n_edges > 0)
            r->at[kept++] = r->at[i];
    }
    r->n = r->oom ? first : kept;
    return r->n - first;
}

size_t gr_run_start(gr_run *r)
{
    size_t first = r->n;

    append(r, first, (gr_config){r->g->root.start, r->g->root.need, r->g->root.room, 0});
    return settle(r, first);
}

size_t gr_run_pop(gr_run *r, uint32_t stack)
{
    size_t first = r->n;

    leave(r, first, stack);
    return settle(r, first);
}

static bool take(gr_config c, const gr_edge *e, gr_config *out)
{
    if (e->flags != 0) {
        if (((e->flags & GR_CLOSE) && c.need > 0) ||
            ((e->flags & (GR_MORE | GR_COUNT)) && c.room == 0))
            return false;
        if (e->flags & GR_COUNT) {
            c.room -= c.room != GR_ANY;
            c.need -= c.need > 0;
        }
    }
    c.state = e->to;
    *out = c;
    return true;
}

size_t gr_run_step(gr_run *r, size_t first, size_t n, uint8_t byte)
{
    const td_grammar *g = r->g;
    size_t out = r->n;
    bool plain = true; /* no member has calls or ends to follow */
    gr_config c;

    for (size_t i = first; i < first + n; i++) {
        const gr_state *s;
        const gr_edge *e;

        if (r->at[i].state == GR_END)
            continue;
        s = &g->states[r->at[i].state];
        e = &g->edges[s->edge];
        if (s->table >= 0) {
            uint8_t k = g->tables[(size_t)s->table * 256 + byte];

            if (k == 0 || !take(r->at[i], &e[k - 1], &c))
                continue;
            append(r, out, c);
            plain &= g->states[c.state].n_calls == 0 && !g->states[c.state].final;
            continue;
        }
        for (size_t k = 0; k < s->n_edges; k++) {
            if (byte < e[k].lo || byte > e[k].hi || !take(r->at[i], &e[k], &c))
                continue;
            append(r, out, c);
            plain &= g->states[c.state].n_calls == 0 && !g->states[c.state].final;
        }
    }
    if (plain && !r->oom)
        return r->n - out;
    return settle(r, out);
}

void gr_run_compact(gr_run *r, size_t first, size_t n)
{
    uint32_t *moved = calloc(r->n_frames, sizeof *moved);
    uint32_t kept = 1, last = r->n_frames;

    memmove(r->at, r->at + first, n * sizeof *r->at);
    r->n = n;
    if (moved == NULL)
        return; /* more frames than needed, which is no fault */
    for (size_t i = 0; i < n; i++) {
        for (uint32_t f = r->at[i].stack; f != 0 && moved[f] == 0; f = r->frames[f].parent)
            moved[f] = 1;
    }
    memset(r->buckets, 0, r->n_buckets * sizeof *r->buckets);
    /* A parent has a smaller number than its children, so it has moved before them. */
    for (uint32_t f = 1; f < last; f++) {
        gr_frame x = r->frames[f];
        uint32_t *head;

        if (moved[f] == 0)
            continue;
        x.parent = moved[x.parent];
        head = &r->buckets[hash_frame(&x) & (r->n_buckets - 1)];
        x.chain = *head;
        *head = kept;
        r->frames[kept] = x;
        moved[f] = kept++;
    }
    r->n_frames = kept;
    for (size_t i = 0; i < n; i++)
        r->at[i].stack = moved[r->at[i].stack];
    free(moved);
}
