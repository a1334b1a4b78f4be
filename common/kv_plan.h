/* kv_plan: which bytes of a prefill rank go where on which decode rank.
 *
 * Any split on either side: heads are matched by their number in the whole model, so each source
 * rank writes to every destination rank that holds one of its heads. Positions keep their row
 * within a page on both sides; runs that are contiguous on both become one put. Window layers move
 * only the positions that the next token's query still sees. Pure functions: thread-safe. */
#ifndef TANDEM_COMMON_KV_PLAN_H
#define TANDEM_COMMON_KV_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/kv_layout.h"
#include "common/status.h"

/* Where one sequence lives on one side. */
typedef struct td_kv_place {
    const td_kv_geometry *g;
    const uint32_t *pages; /* pages of the full layers, in order of position */
    uint32_t n_pages;
    uint32_t ring;
} td_kv_place;

/* Copy `bytes` from src_offset of the source rank's region to dst_offset of dst_rank's region. */
typedef struct td_kv_put {
    uint64_t src_offset, dst_offset, bytes;
    int32_t dst_rank;
} td_kv_put;

/* Growable list; zero-initialise. oom is sticky until cleared, as in td_buf. */
typedef struct td_kv_puts {
    td_kv_put *ptr;
    size_t len, cap;
    bool oom;
} td_kv_puts;

void td_kv_puts_clear(td_kv_puts *l); /* keeps the memory */
void td_kv_puts_free(td_kv_puts *l);

/* Check that a place can hold n_tokens positions: pages that cover them, all in the pool, and a
 * ring that exists. `side` names it in the error. TD_INVALID. */
TD_MUST_CHECK td_status td_kv_place_check(const td_kv_place *p, int32_t n_tokens, const char *side,
                                          td_error *err);

/* Write the pages of n_ext extents to pages[0..cap), as many as fit; returns how many pages the
 * extents have together (64 bits: a stranger's counts cannot wrap it). */
uint64_t td_kv_pages_of(const td_kv_extent *ext, size_t n_ext, uint32_t *pages, size_t cap);

/* Append to *out the puts of src_rank for positions [from, to) of `layer`, in order of (head, side,
 * position). n_tokens is the length of the prompt that will have been moved in the end; it decides
 * what a window layer still needs. Both places were checked for n_tokens, and have the same
 * td_kv_wire_hash(). Appends nothing when none of the range is needed. TD_NOMEM. */
TD_MUST_CHECK td_status td_kv_plan(const td_kv_place *src, int32_t src_rank, const td_kv_place *dst,
                                   int32_t n_tokens, int32_t layer, int32_t from, int32_t to,
                                   td_kv_puts *out, td_error *err);

/* The part of [from, to) that `layer` must move: clips *from; false when nothing is left. */
bool td_kv_plan_clip(const td_kv_geometry *g, int32_t n_tokens, int32_t layer, int32_t *from,
                     int32_t to);

/* A digest of the keys and values of positions [from, to) of `layer` (clipped as above) in one
 * rank's region in host memory. Digests add (mod 2^64): the sum over all ranks, layers and
 * ranges is the same however a sequence was split, chunked and paged, so the sum of the sources'
 * digests must equal the sum that the decode side finds. For debugging: reads every byte. */
uint64_t td_kv_digest(const td_kv_place *p, int32_t rank, const void *base, int32_t n_tokens,
                      int32_t layer, int32_t from, int32_t to);

#endif
