/* merges: which two neighbouring tokens may become one, and in which order of precedence.
 *
 * Lookup is by the two ids. That equals lookup by bytes, because every part of a piece under
 * merging is itself a token, and costs one probe instead of a hash over the bytes. Immutable once
 * filled. */
#ifndef TANDEM_ROUTER_MERGES_H
#define TANDEM_ROUTER_MERGES_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/vocab.h"

#define MERGE_NONE UINT32_MAX

typedef struct merge_slot {
    uint32_t left, right;
    uint32_t rank; /* lower merges earlier; MERGE_NONE: the slot is free */
} merge_slot;

typedef struct merges {
    merge_slot *slots;
    unsigned slot_bits;
    /* Four bits a slot, set where some pair hashes to. Most questions are about pairs that do not
     * merge; this answers nine in ten of them from a table that stays in the cache. */
    uint64_t *maybe;
    uint32_t *of_bytes; /* [256][256] the rank of two single bytes, which is where pieces begin */
    uint32_t n_ranks;   /* ranks are below it */
    uint32_t *results;  /* rank -> id of the joined token; NULL: the rank is that id */
    bool whole_piece_first;
} merges;

/* From v's own list or, when it has none or its list says the same, from all splits of all tokens
 * with the id as rank. Zero m before; merges_fini() it, also after failure. */
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

static inline uint32_t merges_result(const merges *m, uint32_t rank)
{
    return m->results != NULL ? m->results[rank] : rank;
}

#endif
