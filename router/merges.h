/* merges: which two neighbouring tokens become one, in which order of precedence, and what follows
 * from it for two tokens side by side. Immutable once filled.
 *
 * Merging the bytes of a token again always goes the same way, so of all the pairs that spell it
 * only one, its halves, ever meets: only that one is kept, and a token has one rank. A token whose
 * bytes merge to something else has none; no text gives it by merging. */
#ifndef TANDEM_ROUTER_MERGES_H
#define TANDEM_ROUTER_MERGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/vocab.h"

#define MERGE_NONE UINT32_MAX

typedef struct merge_slot {
    uint32_t left, right;
    uint32_t rank; /* MERGE_NONE: the slot is free */
} merge_slot;

typedef struct merge_token {
    uint32_t left, right; /* its halves */
    uint32_t rank;        /* of their merge, lower ones come first; of a byte 0; or MERGE_NONE */
    uint32_t shorter;     /* the longest other token with a rank that it begins with; MERGE_NONE */
} merge_token;

/* A step in the tree of all tokens with a rank: from a node, over a byte, to another. */
typedef struct merge_edge {
    uint32_t from; /* node << 8 | byte; MERGE_NONE: the slot is free */
    uint32_t to;   /* node << 1 | whether a token ends there */
} merge_edge;

typedef struct merges {
    merge_token *tokens; /* by id, ordinary ones */
    merge_slot *slots;
    unsigned slot_bits;
    /* Four bits a slot, set where some pair hashes to. Most questions are about pairs that do not
     * merge; this answers nine in ten of them from a table that stays in the cache. */
    uint64_t *maybe;
    uint32_t *of_bytes; /* [256][256] the rank of two single bytes, which is where pieces begin */
    uint32_t *results;  /* rank -> id of the joined token; NULL: the rank is that id and 1 */
    merge_edge *edges;
    unsigned edge_bits;
    uint32_t *node_token;   /* id of the token that ends at a node */
    uint32_t *two_bytes;    /* [256][256] as merge_edge.to; 0: no token begins so */
    bool whole_piece_first; /* a piece that is a token is that one, whatever merging gives */
} merges;

/* From v's own list or, when it has none or its list says the same, from all splits of all tokens
 * with the id as precedence. Zero m before; merges_fini() it, also after failure. TD_INVALID: the
 * list names what is no token, a pair twice, or a merge that comes before another one that it
 * needs, as no training gives it. TD_NOMEM. */
TD_MUST_CHECK td_status merges_fill(merges *m, const vocab *v, td_error *err);

void merges_fini(merges *m);

static inline size_t merge_slot_of(uint32_t left, uint32_t right, unsigned bits)
{
    uint64_t key = (uint64_t)left << 32 | right;

    key = (key ^ key >> 29) * 0xbf58476d1ce4e5b9u; /* a multiplier of splitmix64 */
    return (size_t)(key >> (64 - bits));
}

/* Rank of the merge of two tokens, or MERGE_NONE. */
static inline uint32_t merges_find(const merges *m, uint32_t left, uint32_t right)
{
    size_t mask = ((size_t)1 << m->slot_bits) - 1;
    size_t i = merge_slot_of(left, right, m->slot_bits + 2);

    if ((m->maybe[i / 64] >> i % 64 & 1) == 0)
        return MERGE_NONE;
    i >>= 2;
    while (m->slots[i].rank != MERGE_NONE &&
           (m->slots[i].left != left || m->slots[i].right != right))
        i = (i + 1) & mask;
    return m->slots[i].rank;
}

/* Id of the token that a merge of this rank gives. */
static inline uint32_t merges_result(const merges *m, uint32_t rank)
{
    return m->results != NULL ? m->results[rank] : rank - 1;
}

/* Whether merging the bytes of two tokens with ranks gives the two again. Their merges are undone
 * from the last one on: at none of these steps may the tokens that meet in the middle have had a
 * merge that comes earlier than the one undone. Of equal ranks the left one is earlier. */
static inline bool merges_stay_apart(const merges *m, uint32_t left, uint32_t right)
{
    uint32_t before = MERGE_NONE;

    for (;;) {
        const merge_token *a = &m->tokens[left], *b = &m->tokens[right];

        if (merges_find(m, left, right) < before)
            return false;
        if (a->rank > b->rank) {
            before = a->rank;
            left = a->right;
        } else if (b->rank > 0) {
            before = b->rank + 1;
            right = b->left;
        } else {
            return true;
        }
    }
}

static inline size_t merge_edge_of(uint32_t from, unsigned bits)
{
    return (size_t)((from * (uint64_t)0x9e3779b97f4a7c15u) >>
                    (64 - bits)); /* 2^64 / golden ratio */
}

/* As merge_edge.to; 0 where no token goes on so. */
static inline uint32_t merges_step(const merges *m, uint32_t node, unsigned char byte)
{
    size_t mask = ((size_t)1 << m->edge_bits) - 1;
    uint32_t from = node << 8 | byte;
    size_t i = merge_edge_of(from, m->edge_bits);

    while (m->edges[i].from != from) {
        if (m->edges[i].from == MERGE_NONE)
            return 0;
        i = (i + 1) & mask;
    }
    return m->edges[i].to;
}

#endif
