/* grammar_entry: what is found out about the states of a grammar, by walks over the vocabulary
 * (grammar_walk.c, grammar_entry.c), and remembered (grammar_cache.c); grammar_mask.c puts it
 * together for a stack. */
#ifndef TANDEM_COMMON_GRAMMAR_ENTRY_H
#define TANDEM_COMMON_GRAMMAR_ENTRY_H

#include "common/grammar_impl.h"

typedef struct gr_entry {
    struct gr_entry *next; /* of the same hash */
    uint64_t serial;
    int32_t state;
    uint32_t need, room;
    int32_t *list;   /* tokens that stay inside, n_list of them; or */
    uint32_t *dense; /* the same as bits */
    size_t n_list;
    uint32_t *exits; /* nodes of the token set's trie at whose end the rule has ended */
    size_t n_exits, cap_exits;
    gr_trie rests; /* what follows at the exits, if joined */
    bool joined;
    const struct gr_entry *shares; /* the entry whose rests are the same, in the same cache */
    /* Of plain strings without bounds: characters that a token adds, and those before an exit. */
    uint16_t *used, *exit_used;
} gr_entry;

/* Of `used`, characters beside which these stand. */
enum {
    GR_FAR = 1 << 15,    /* room that no token uses up */
    GR_CLOSES = 1 << 14, /* the string has ended with the token */
    GR_NOT_ALLOWED = 1 << 15,
};

/* What an entry can be made from. */
typedef struct gr_source {
    const gr_entry *whole; /* of the same state without bounds, if that is a plain string's */
    const gr_entry *alike; /* of a state that is alike to gr_depths[j] bytes */
    int j;
} gr_source;

void gr_entry_free(gr_entry *e);

/* False: no memory. */
bool gr_entry_note_exit(gr_entry *e, uint32_t node, uint16_t used);

/* A new entry, the caller's to free. NULL: no memory. */
gr_entry *gr_entry_make(const td_grammar *g, const td_token_set *tokens, const gr_config *c,
                        const gr_source *from);
size_t gr_entry_bytes(const gr_entry *e, const td_token_set *tokens); /* what it takes */

static inline bool gr_in_string(const td_grammar *g, int32_t state)
{
    return state >= g->string_lo && state < g->string_hi;
}

/* The entry of a place, made if there is none. *own: it is the caller's to free, the cache being
 * full. NULL: no memory. */
gr_entry *gr_entry_of(const td_grammar *g, const td_token_set *tokens, gr_config c, bool *own);

/* A walk over a trie from a set of places. */
typedef struct gr_walk {
    gr_run *r;
    const gr_trie *t;
    uint32_t *mask;
    gr_entry *exits; /* where ends are noted; NULL: they are of no interest */
    size_t *begin;   /* of the set at each depth; begin[d + 1] is its end */
    uint32_t *frames;
    uint16_t *used; /* as gr_entry's, or NULL; what there is at each depth: */
    uint16_t *depth_used;
    uint8_t skip; /* nodes that reach no deeper are left out */
} gr_walk;

/* False: no memory; gr_walk_fini() is due either way. */
bool gr_walk_init(gr_walk *w, gr_run *r, const gr_trie *t, uint32_t *mask);
void gr_walk_fini(gr_walk *w);

/* Set the bit of every token in nodes lo..hi, which are below depth `base`, that can follow the set
 * at[first..first + n), the last one of r. The run is left as it was. False: no memory. */
bool gr_walk_nodes(gr_walk *w, uint32_t lo, uint32_t hi, uint32_t base, size_t first, size_t n);

/* Classes of states that are alike, by depth; and which state of a class has an entry. */
typedef struct gr_alike {
    int32_t *of[GR_DEPTHS];   /* class of each state; -1: it takes no part */
    int32_t *made[GR_DEPTHS]; /* a state of each class whose entry is there; -1: none */
    int n;                    /* depths that are known */
} gr_alike;

gr_alike *gr_alike_create(const td_grammar *g); /* NULL: no memory */
void gr_alike_free(gr_alike *a);

#endif
