/* kv_pool: the KV pages and window rings of one worker.
 *
 * A page holds TD_PAGE_TOKENS positions of every full-attention layer; pages are handed out as
 * extents, since an extent of consecutive pages is one put on the wire and fewer puts are faster. A
 * ring holds the last positions of the window layers and never grows. One thread owns a pool, the
 * engine's; nothing here locks. Invariant: a page or ring is free or held; whether a held one waits
 * in quarantine is decode/reservation.c's business. */
#ifndef TANDEM_COMMON_KV_POOL_H
#define TANDEM_COMMON_KV_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "common/kv_layout.h"
#include "common/status.h"

typedef struct td_kv_pool td_kv_pool;

/* A pool of free pages and rings. *out is the caller's, to td_kv_pool_free(). TD_NOMEM. */
TD_MUST_CHECK td_status td_kv_pool_create(uint32_t n_pages, uint32_t n_rings, td_kv_pool **out,
                                          td_error *err);

/* NULL is fine. A page still held is a bug and aborts. */
void td_kv_pool_free(td_kv_pool *pool);

/* Take exactly n_pages (at least 1) and one ring, all or nothing. ext[0..*n_ext) gets the pages in
 * at most cap extents: the smallest free run that holds all of them, else the longest runs first.
 * TD_BUSY: too few free, or too scattered for cap; nothing was taken, and the text has the numbers.
 */
TD_MUST_CHECK td_status td_kv_pool_take(td_kv_pool *pool, uint32_t n_pages, td_kv_extent *ext,
                                        size_t cap, size_t *n_ext, uint32_t *ring, td_error *err);

/* Give pages and ring back; they may be taken at once. Only where no put can still land in them:
 * the caller decides that. */
void td_kv_pool_give(td_kv_pool *pool, const td_kv_extent *ext, size_t n_ext, uint32_t ring);

uint32_t td_kv_pool_pages_total(const td_kv_pool *pool);
uint32_t td_kv_pool_pages_free(const td_kv_pool *pool);
uint32_t td_kv_pool_rings_total(const td_kv_pool *pool);
uint32_t td_kv_pool_rings_free(const td_kv_pool *pool);

/* Abort unless the counts agree with the bits; for tests and sanitizer builds. */
void td_kv_pool_check(const td_kv_pool *pool);

#endif
