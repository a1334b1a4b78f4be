/* kv_layout: where each key and value lives in a rank's KV memory.
 *
 * Positions are kept in pages of TD_PAGE_TOKENS. Full-attention layers share one pool of n_pages
 * pages: page numbers are the same in all of them, so one page table serves every full layer.
 * Sliding-window layers never grow: each request owns one ring of ring_pages pages, and position p
 * lives in ring page (p / S) % ring_pages, so that a ring is read exactly like a page table that
 * wraps around. A decode worker needs ring_pages * S >= window; a prefill worker, which writes a
 * whole chunk before it attends, needs ring_pages * S >= window - 1 + chunk.
 *
 * One region per rank, all sizes in elements of elt_bytes:
 *
 *   full layers    [n_full]  [K] [2] [n_pages]              [S] [d]
 *   window layers  [n_window][K] [2] [n_rings * ring_pages] [S] [d]
 *
 * K is this rank's kv heads, [2] is key then value, d contiguous. For one layer, head and side the
 * pages are contiguous, so an extent of consecutive pages is one put on the wire. Keys are stored
 * after RoPE. Plain data and pure functions: thread-safe. */
#ifndef TANDEM_COMMON_KV_LAYOUT_H
#define TANDEM_COMMON_KV_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/model_config.h"
#include "common/status.h"

enum { TD_PAGE_TOKENS = 64 };

/* E4M3: one byte an element, no scale; keys and values beyond 448 are cut. CUDA only. */
typedef enum td_kv_dtype { TD_KV_BF16 = 0, TD_KV_F32 = 1, TD_KV_E4M3 = 2 } td_kv_dtype;

/* Consecutive pages of the full layers' pool. Fewer and longer extents mean fewer, larger puts. */
typedef struct td_kv_extent {
    uint32_t first; /* page number */
    uint32_t count; /* pages, at least 1 */
} td_kv_extent;

typedef struct td_kv_geometry {
    int32_t n_layers;
    int32_t n_kv_heads; /* of the whole model */
    int32_t head_dim;
    int32_t window; /* positions a window layer sees, the query's own included */
    int32_t tp;     /* ranks; K = n_kv_heads / tp */
    td_kv_dtype dtype;
    uint32_t n_pages; /* pages of the full layers' pool */
    uint32_t n_rings; /* requests that can hold a ring at once */
    uint32_t ring_pages;
    bool windowed[TD_MAX_LAYERS];
    /* Derived by td_kv_geometry_init(): */
    int32_t n_full, n_window, heads_local, elt_bytes;
    int32_t index_in_kind[TD_MAX_LAYERS]; /* this layer's number among layers of its kind */
    uint64_t region_bytes;                /* of one rank */
} td_kv_geometry;

/* Fill *g for a model split over tp ranks. TD_INVALID, leaving *g alone: tp does not divide the kv
 * heads, a ring cannot hold the window, or a size overflows; the text has the numbers. */
TD_MUST_CHECK td_status td_kv_geometry_init(td_kv_geometry *g, const td_model_config *c, int32_t tp,
                                            td_kv_dtype dtype, uint32_t n_pages, uint32_t n_rings,
                                            uint32_t ring_pages, td_error *err);

/* The geometry of a peer that serves the same model with another split and other pools (*own may be
 * *peer). Errors as above: what a peer claims may not fit the model. */
TD_MUST_CHECK td_status td_kv_geometry_peer(td_kv_geometry *peer, const td_kv_geometry *own,
                                            int32_t tp, uint32_t n_pages, uint32_t n_rings,
                                            uint32_t ring_pages, td_error *err);

/* Pages in the pool of this layer's kind: n_pages, or n_rings * ring_pages. */
uint32_t td_kv_pool_pages(const td_kv_geometry *g, int32_t layer);

/* Byte offset in a rank's region of element 0 of (layer, local head, side 0 key / 1 value, page,
 * row). page counts in the pool of the layer's kind: for a window layer, ring * ring_pages + i. */
uint64_t td_kv_offset(const td_kv_geometry *g, int32_t layer, int32_t head, int32_t side,
                      uint32_t page, uint32_t row);

/* Elements between one local head's keys and the next head's; values follow keys by half of it. */
uint64_t td_kv_head_stride(const td_kv_geometry *g, int32_t layer);

/* Pages that n positions need in the full layers: ceil(n / S). */
uint32_t td_kv_pages_for(uint64_t n_positions);

/* Ring pages for a worker that writes up to `chunk` positions before it attends (decode: 1). */
uint32_t td_kv_ring_pages(int32_t window, int32_t chunk);

/* Page, in the pool of the window layers, where `ring` keeps position pos. */
uint32_t td_kv_ring_page(const td_kv_geometry *g, uint32_t ring, int32_t pos);

/* First position that a window layer still needs once n positions are in the cache and the next
 * query is position n: max(0, n - (window - 1)). */
int32_t td_kv_window_first(int32_t n, int32_t window);

/* What a transfer of a prompt of n tokens must move, all ranks together, in bytes:
 * 2 * n_kv_heads * d * elt * (n_full * n + n_window * min(n, window - 1)). */
uint64_t td_kv_transfer_bytes(const td_kv_geometry *g, int32_t n);

/* A hash of everything in which two workers must agree to exchange KV (not tp and pool sizes). */
uint64_t td_kv_wire_hash(const td_kv_geometry *g);

#endif
