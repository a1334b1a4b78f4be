/* Entries of places, made once and remembered.
 *
 * Those of the prelude's states belong to the token set and are shared by all grammars; the others
 * belong to their grammar. Entries are immutable; a lock guards the tables, and none is held while
 * an entry is made. */
#include <stdatomic.h>
#include <stdlib.h>

#include "common/grammar_entry.h"

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

gr_entry *gr_entry_of(const td_grammar *g, const td_token_set *tokens, gr_config c, bool *own)
{
    gr_cache *cache = (size_t)c.state < g->n_prelude ? tokens->cache : g->cache;
    uint32_t longest = tokens->trie.max_depth;
    gr_entry *e, *made, *whole = NULL;
    gr_source from = {0};
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
    if (gr_in_string(g, c.state) && (c.need > 0 || c.room != GR_ANY) &&
        (whole = gr_entry_of(g, tokens, (gr_config){c.state, 0, GR_ANY, 0}, &own_whole)) == NULL)
        return NULL;
    from.whole = whole;
    made = gr_entry_make(g, tokens, &c, &from);
    if (own_whole)
        gr_entry_free(whole);
    if (made == NULL)
        return NULL;
    pthread_mutex_lock(&cache->lock);
    e = find(cache, tokens->serial, &c); /* another thread may have been quicker */
    if (e == NULL && (cache->n < cache->n_slots || grow_slots(cache)) &&
        take_bytes(cache, gr_entry_bytes(made, tokens))) {
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
