/* grammar_entry: what grammar_entry.c finds out about the states of a grammar, and grammar_mask.c
 * puts together for a stack. */
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

void gr_entry_free(gr_entry *e);

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
