/* What is known of a state for all stacks: which tokens stay inside its rule, and which leave it.
 *
 * For a place, tokens are of three kinds: those that stay inside the rule in hand (and the rules
 * that it calls), those that cannot, and those that leave it. The first two do not depend on the
 * stack, so they are found once by a walk over the trie and remembered (gr_entry); of the third the
 * entry keeps what is left of them after the rule's end, as a small trie of its own, which is
 * walked from the frames at hand. In a string, where most of the vocabulary may follow, a mask is
 * then a copy and some hundred steps; elsewhere the lists are short.
 *
 * Entries of the prelude's states belong to the token set and are shared by all grammars; the
 * others belong to their grammar. Counters are cut to the longest token first: more makes no
 * difference to one token. Plain strings of bounded length would still have hundreds of entries, a
 * full walk each; theirs are derived from the unbounded one, which knows for each token how many
 * characters it adds. Entries are immutable; a lock guards the tables, and none is held while
 * an entry is made. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar_entry.h"

enum {
    JOIN_UP_TO = 40000, /* tokens that leave a rule: more are not sorted anew */
    FAR = 1 << 15,      /* room that no token uses up */
    CLOSES = 1 << 14,   /* of `used`: the string has ended with the token */
    NOT_ALLOWED = 1 << 15,
};

struct gr_cache {
    pthread_mutex_t lock;
    gr_entry **slots;
    size_t n, n_slots, bytes;
    size_t most;     /* bytes; entries past it are made and dropped */
    gr_alike *alike; /* of the grammar's states; made when the first entry is */
};

/* Bytes of all caches of the process; each adds what it keeps and takes it away when it goes.
 * Nothing else is told by them, so any order will do. */
static atomic_size_t all_bytes, all_most = TD_GRAMMAR_MASK_BYTES;

void td_grammar_limit_masks(size_t bytes)
{
    atomic_store_explicit(&all_most, bytes, memory_order_relaxed);
}

size_t td_grammar_mask_bytes(void)
{
    return atomic_load_explicit(&all_bytes, memory_order_relaxed);
}

/* Whether there is room for so many bytes more, which then are taken. */
static bool take_bytes(gr_cache *c, size_t bytes)
{
    size_t most = atomic_load_explicit(&all_most, memory_order_relaxed);

    if (c->bytes >= c->most)
        return false;
    if (atomic_fetch_add_explicit(&all_bytes, bytes, memory_order_relaxed) + bytes > most) {
        atomic_fetch_sub_explicit(&all_bytes, bytes, memory_order_relaxed);
        return false;
    }
    c->bytes += bytes;
    return true;
}

gr_cache *gr_cache_create(size_t bytes)
{
    gr_cache *c = calloc(1, sizeof *c);

    if (c == NULL)
        return NULL;
    c->most = bytes;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void gr_entry_free(gr_entry *e)
{
    if (e == NULL)
        return;
    free(e->list);
    free(e->dense);
    free(e->exits);
    free(e->used);
    free(e->exit_used);
    gr_trie_fini(&e->rests);
    free(e);
}

void gr_cache_free(gr_cache *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_slots; i++) {
        for (gr_entry *e = c->slots[i], *next; e != NULL; e = next) {
            next = e->next;
            gr_entry_free(e);
        }
    }
    atomic_fetch_sub_explicit(&all_bytes, c->bytes, memory_order_relaxed);
    free(c->slots);
    gr_alike_free(c->alike);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* --- Walks. */

bool gr_walk_init(gr_walk *w, gr_run *r, const gr_trie *t, uint32_t *mask)
{
    *w = (gr_walk){.r = r, .t = t, .mask = mask};
    w->begin = malloc((t->max_depth + 2) * sizeof *w->begin);
    w->frames = malloc((t->max_depth + 2) * sizeof *w->frames);
    w->depth_used = calloc(t->max_depth + 2, sizeof *w->depth_used);
    return w->begin != NULL && w->frames != NULL && w->depth_used != NULL;
}

void gr_walk_fini(gr_walk *w)
{
    free(w->begin);
    free(w->frames);
    free(w->depth_used);
}

static bool note_exit(gr_entry *e, uint32_t node, uint16_t used)
{
    if (e->n_exits == e->cap_exits) {
        size_t cap = e->cap_exits > 0 ? e->cap_exits * 2 : 16;
        uint32_t *p = realloc(e->exits, cap * sizeof *p);
        uint16_t *q = p == NULL ? NULL : realloc(e->exit_used, cap * sizeof *q);

        if (p != NULL)
            e->exits = p;
        if (q == NULL)
            return false;
        e->exit_used = q;
        e->cap_exits = cap;
    }
    e->exits[e->n_exits] = node;
    e->exit_used[e->n_exits++] = used;
    return true;
}

/* Inside a plain string there is one place; past its end there is none. */
static void count_used(gr_walk *w, const gr_node *node, uint32_t end, uint32_t d)
{
    const gr_config *c = &w->r->at[w->begin[d]];
    uint16_t used = w->depth_used[d - 1];

    if (c->state != GR_END)
        used = (uint16_t)(FAR - c->room);
    w->depth_used[d] = used;
    for (uint32_t k = node->token; k < end; k++)
        w->used[w->t->ids[k]] = c->state == GR_END ? used | CLOSES : used;
}

/* Set the bit of every token in nodes lo..hi, which are below depth `base`, that can follow the set
 * at[first..first + n), the last one of r. The run is left as it was. */
bool gr_walk_nodes(gr_walk *w, uint32_t lo, uint32_t hi, uint32_t base, size_t first, size_t n)
{
    gr_run *r = w->r;
    const gr_trie *t = w->t;
    size_t end = first + n;
    uint32_t frames = r->n_frames;

    w->begin[0] = first;
    w->begin[1] = end;
    w->frames[0] = frames;
    for (uint32_t i = lo; i < hi;) {
        const gr_node *node = &t->nodes[i];
        uint32_t d = node->depth - base;
        size_t made;

        if (node->reach <= w->skip) {
            i = node->next;
            continue;
        }
        /* Sets of deeper nodes that came before this one are over. */
        r->n = w->begin[d];
        gr_run_cut_frames(r, w->frames[d - 1]);
        made = gr_run_step(r, w->begin[d - 1], w->begin[d] - w->begin[d - 1], node->byte);
        if (made == 0) {
            if (r->oom)
                break;
            i = node->next;
            continue;
        }
        w->begin[d + 1] = r->n;
        w->frames[d] = r->n_frames;
        for (uint32_t k = node->token; k < t->nodes[i + 1].token; k++)
            w->mask[t->ids[k] / 32] |= 1u << t->ids[k] % 32;
        if (w->used != NULL)
            count_used(w, node, t->nodes[i + 1].token, d);
        if (w->exits != NULL && node->next > i + 1) {
            for (size_t k = w->begin[d]; k < r->n; k++) {
                if (r->at[k].state != GR_END)
                    continue;
                if (!note_exit(w->exits, i, w->depth_used[d]))
                    r->oom = true;
                break;
            }
        }
        i++;
    }
    r->n = end;
    gr_run_cut_frames(r, frames);
    return !r->oom;
}

/* --- Entries. */

/* The rests of all tokens that leave, sorted: the same rest is then looked at once. */
static bool join(gr_entry *e, const gr_trie *t)
{
    size_t n = 0, bytes = 0;
    gr_piece *pieces;
    uint8_t *text, *at;
    bool ok;

    for (size_t i = 0; i < e->n_exits; i++) {
        const gr_node *top = &t->nodes[e->exits[i]];

        n += t->nodes[top->next].token - t->nodes[e->exits[i] + 1].token;
    }
    if (e->n_exits < 4 || n > JOIN_UP_TO)
        return true;
    /* Bytes of a token are those of the nodes above it, which come before it. */
    for (size_t i = 0; i < e->n_exits; i++) {
        uint32_t from = e->exits[i];

        for (uint32_t k = from + 1; k < t->nodes[from].next; k++)
            bytes += (size_t)(t->nodes[k].depth - t->nodes[from].depth) *
                     (t->nodes[k + 1].token - t->nodes[k].token);
    }
    pieces = malloc((n + 1) * sizeof *pieces);
    text = at = malloc(bytes + 1);
    ok = pieces != NULL && text != NULL;
    n = 0;
    for (size_t i = 0; ok && i < e->n_exits; i++) {
        uint8_t path[GR_MAX_PIECE];
        uint32_t from = e->exits[i];

        for (uint32_t k = from + 1; k < t->nodes[from].next; k++) {
            uint32_t d = t->nodes[k].depth - t->nodes[from].depth;

            path[d - 1] = t->nodes[k].byte;
            for (uint32_t x = t->nodes[k].token; x < t->nodes[k + 1].token; x++) {
                memcpy(at, path, d);
                pieces[n++] = (gr_piece){at, d, t->ids[x]};
                at += d;
            }
        }
    }
    ok = ok && gr_trie_build(&e->rests, pieces, n);
    e->joined = ok;
    free(pieces);
    free(text);
    return ok;
}

/* Few tokens are kept as a list, which is quicker to add and smaller. Takes mask. */
static bool pack(gr_entry *e, uint32_t *mask, size_t words)
{
    size_t n = 0;

    for (size_t i = 0; i < words; i++)
        n += (size_t)__builtin_popcount(mask[i]);
    if (n > words / 2) {
        e->dense = mask;
        return true;
    }
    e->list = malloc((n + 1) * sizeof *e->list);
    for (size_t i = 0; i < words && e->list != NULL; i++) {
        for (uint32_t bits = mask[i]; bits != 0; bits &= bits - 1)
            e->list[e->n_list++] = (int32_t)(i * 32) + __builtin_ctz(bits);
    }
    free(mask);
    return e->list != NULL;
}

static bool in_string(const td_grammar *g, int32_t state)
{
    return state >= g->string_lo && state < g->string_hi;
}

/* All tokens are tried. False: no memory. */
static bool fill_by_walk(gr_entry *e, const td_grammar *g, const td_token_set *tokens, gr_config c,
                         uint32_t *mask)
{
    gr_run r;
    gr_walk w = {0};
    bool ok;

    if (in_string(g, c.state) && c.need == 0 && c.room == GR_ANY) {
        e->used = malloc(((size_t)tokens->n + 1) * sizeof *e->used);
        if (e->used == NULL)
            return false;
        for (int i = 0; i < tokens->n; i++)
            e->used[i] = NOT_ALLOWED;
        c.room = FAR;
    }
    if (!gr_run_init(&r, g))
        return false;
    c.stack = 0;
    r.at[r.n++] = c;
    ok = gr_walk_init(&w, &r, &tokens->trie, mask);
    w.exits = e;
    w.used = e->used;
    ok = ok && gr_walk_nodes(&w, 0, tokens->trie.n_nodes, 0, 0, 1);
    gr_walk_fini(&w);
    gr_run_fini(&r);
    return ok;
}

/* From the entry without bounds: tokens with at most c->room characters of which those that close
 * the string have at least c->need. */
static bool fill_by_count(gr_entry *e, const gr_entry *whole, const td_token_set *tokens,
                          const gr_config *c, uint32_t *mask)
{
    for (int i = 0; i < tokens->n; i++) {
        uint32_t used = whole->used[i] & (CLOSES - 1);

        if (whole->used[i] == NOT_ALLOWED || used > c->room ||
            ((whole->used[i] & CLOSES) != 0 && used < c->need))
            continue;
        mask[i / 32] |= 1u << i % 32;
    }
    for (size_t i = 0; i < whole->n_exits; i++) {
        if (whole->exit_used[i] <= c->room && whole->exit_used[i] >= c->need &&
            !note_exit(e, whole->exits[i], whole->exit_used[i]))
            return false;
    }
    return true;
}

/* Whether two entries have the same exits; order is of no interest. */
static bool same_exits(const gr_entry *a, const gr_entry *b, const gr_trie *t)
{
    uint8_t *in = a->n_exits == b->n_exits ? calloc(t->n_nodes / 8 + 1, 1) : NULL;
    bool same = in != NULL;

    for (size_t i = 0; same && i < a->n_exits; i++)
        in[a->exits[i] / 8] |= (uint8_t)(1u << a->exits[i] % 8);
    for (size_t i = 0; same && i < b->n_exits; i++)
        same = (in[b->exits[i] / 8] >> b->exits[i] % 8 & 1) != 0;
    free(in);
    return same;
}

/* From the entry of a state that is alike to gr_depths[j] bytes: longer tokens alone are tried. */
static bool fill_by_alike(gr_entry *e, const gr_entry *base, int j, const td_grammar *g,
                          const td_token_set *tokens, const gr_config *c, uint32_t *mask)
{
    const uint32_t *brief = tokens->brief[j];
    const gr_trie *t = &tokens->trie;
    gr_run r;
    gr_walk w = {0};
    bool ok;

    for (size_t i = 0; base->dense != NULL && i < tokens->words; i++)
        mask[i] = base->dense[i] & brief[i];
    for (size_t i = 0; i < base->n_list; i++) {
        uint32_t word = (uint32_t)base->list[i] / 32, bit = 1u << base->list[i] % 32;

        mask[word] |= brief[word] & bit;
    }
    for (size_t i = 0; i < base->n_exits; i++) {
        if (t->nodes[base->exits[i]].reach <= gr_depths[j] && !note_exit(e, base->exits[i], 0))
            return false;
    }
    if (!gr_run_init(&r, g))
        return false;
    r.at[r.n++] = (gr_config){c->state, c->need, c->room, 0};
    ok = gr_walk_init(&w, &r, t, mask);
    w.exits = e;
    w.skip = (uint8_t)gr_depths[j];
    ok = ok && gr_walk_nodes(&w, 0, t->n_nodes, 0, 0, 1);
    gr_walk_fini(&w);
    gr_run_fini(&r);
    if (base->shares != NULL)
        base = base->shares;
    if (ok && base->joined && same_exits(e, base, t))
        e->shares = base;
    return ok;
}

/* What an entry can be made from. */
typedef struct source {
    const gr_entry *whole; /* of the same state without bounds, if that is a plain string's */
    const gr_entry *alike; /* of a state that is alike to gr_depths[j] bytes */
    int j;
} source;

/* NULL: no memory. */
static gr_entry *make_entry(const td_grammar *g, const td_token_set *tokens, const gr_config *c,
                            const source *from)
{
    gr_entry *e = calloc(1, sizeof *e);
    uint32_t *mask = calloc(tokens->words + 1, sizeof *mask);
    bool ok = e != NULL && mask != NULL;

    if (ok) {
        *e = (gr_entry){
            .serial = tokens->serial, .state = c->state, .need = c->need, .room = c->room};
        if (from->whole != NULL)
            ok = fill_by_count(e, from->whole, tokens, c, mask);
        else if (from->alike != NULL)
            ok = fill_by_alike(e, from->alike, from->j, g, tokens, c, mask);
        else
            ok = fill_by_walk(e, g, tokens, *c, mask);
        ok = ok && (e->shares != NULL || join(e, &tokens->trie));
        if (e->used == NULL) { /* no other entry will be made from this one */
            free(e->exit_used);
            e->exit_used = NULL;
        }
    }
    if (ok && pack(e, mask, tokens->words))
        return e;
    if (!ok)
        free(mask);
    gr_entry_free(e);
    return NULL;
}

static size_t entry_bytes(const gr_entry *e, const td_token_set *tokens)
{
    return sizeof *e + e->n_list * sizeof *e->list + (e->dense != NULL ? tokens->words * 4 : 0) +
           e->cap_exits * (sizeof *e->exits + sizeof *e->exit_used) +
           (e->used != NULL ? (size_t)tokens->n * sizeof *e->used : 0) +
           e->rests.n_nodes * sizeof *e->rests.nodes + e->rests.n_ids * sizeof *e->rests.ids;
}

static size_t hash_key(uint64_t serial, const gr_config *c)
{
    uint64_t h = (serial << 32 ^ (uint32_t)c->state) * 0xff51afd7ed558ccdu;

    h = (h ^ h >> 32 ^ ((uint64_t)c->need << 32 | c->room)) * 0xc4ceb9fe1a85ec53u;
    return (size_t)(h >> 20);
}

static gr_entry *find(const gr_cache *c, uint64_t serial, const gr_config *k)
{
    gr_entry *e = c->n_slots == 0 ? NULL : c->slots[hash_key(serial, k) & (c->n_slots - 1)];

    while (e != NULL && (e->state != k->state || e->need != k->need || e->room != k->room ||
                         e->serial != serial))
        e = e->next;
    return e;
}

static bool grow_slots(gr_cache *c)
{
    size_t n = c->n_slots > 0 ? c->n_slots * 2 : 64;
    gr_entry **slots = calloc(n, sizeof *slots);

    if (slots == NULL)
        return false;
    for (size_t i = 0; i < c->n_slots; i++) {
        for (gr_entry *e = c->slots[i], *next; e != NULL; e = next) {
            gr_config k = {e->state, e->need, e->room, 0};
            gr_entry **head = &slots[hash_key(e->serial, &k) & (n - 1)];

            next = e->next;
            e->next = *head;
            *head = e;
        }
    }
    free(c->slots);
    c->slots = slots;
    c->n_slots = n;
    return true;
}

/* Under the lock: the entry of a state that is alike for as long as possible; NULL: none. */
static const gr_entry *alike_entry(gr_cache *cache, const td_grammar *g, const td_token_set *tokens,
                                   const gr_config *c, int *j)
{
    const gr_alike *a;

    if ((size_t)c->state < g->n_prelude || c->need > 0 || c->room != GR_ANY)
        return NULL;
    if (cache->alike == NULL)
        cache->alike = gr_alike_create(g); /* without memory for it: another time */
    a = cache->alike;
    for (*j = a == NULL ? -1 : a->n - 1; *j >= 0 && a->of[*j][c->state] >= 0; --*j) {
        gr_config k = {a->made[*j][a->of[*j][c->state]], 0, GR_ANY, 0};
        const gr_entry *e = k.state < 0 ? NULL : find(cache, tokens->serial, &k);

        if (e != NULL)
            return e;
    }
    return NULL;
}

static void note_made(gr_cache *cache, const gr_config *c)
{
    const gr_alike *a = cache->alike;

    if (a == NULL || c->need > 0 || c->room != GR_ANY)
        return;
    for (int j = 0; j < a->n && a->of[j][c->state] >= 0; j++)
        a->made[j][a->of[j][c->state]] = c->state;
}

/* The entry of a place, made if there is none. *own: it is the caller's to free, the cache being
 * full. NULL: no memory. */
gr_entry *gr_entry_of(const td_grammar *g, const td_token_set *tokens, gr_config c, bool *own)
{
    gr_cache *cache = (size_t)c.state < g->n_prelude ? tokens->cache : g->cache;
    uint32_t longest = tokens->trie.max_depth;
    gr_entry *e, *made, *whole = NULL;
    source from = {0};
    bool own_whole = false;

    *own = false;
    if (c.need > longest)
        c.need = longest;
    if (c.room >= longest)
        c.room = GR_ANY;
    pthread_mutex_lock(&cache->lock);
    e = find(cache, tokens->serial, &c);
    if (e == NULL)
        from.alike = alike_entry(cache, g, tokens, &c, &from.j);
    pthread_mutex_unlock(&cache->lock);
    if (e != NULL)
        return e;
    if (in_string(g, c.state) && (c.need > 0 || c.room != GR_ANY) &&
        (whole = gr_entry_of(g, tokens, (gr_config){c.state, 0, GR_ANY, 0}, &own_whole)) == NULL)
        return NULL;
    from.whole = whole;
    made = make_entry(g, tokens, &c, &from);
    if (own_whole)
        gr_entry_free(whole);
    if (made == NULL)
        return NULL;
    pthread_mutex_lock(&cache->lock);
    e = find(cache, tokens->serial, &c); /* another thread may have been quicker */
    if (e == NULL && (cache->n < cache->n_slots || grow_slots(cache)) &&
        take_bytes(cache, entry_bytes(made, tokens))) {
        gr_entry **head = &cache->slots[hash_key(tokens->serial, &c) & (cache->n_slots - 1)];

        made->next = *head;
        *head = made;
        cache->n++;
        note_made(cache, &c);
        e = made;
        made = NULL;
    }
    pthread_mutex_unlock(&cache->lock);
    if (e == NULL) {
        *own = true;
        return made;
    }
    gr_entry_free(made);
    return e;
}
