/* kv_layout: address arithmetic of the KV memory; see the header for the layout.
 *
 * Everything is derived once in td_kv_geometry_init(), where sizes are checked for overflow, so
 * that td_kv_offset() is a handful of multiplications and cannot overflow. */
#include "common/kv_layout.h"

#include "common/hash.h"

#include <string.h>

/* Part of the wire hash: raise it when the meaning of the bytes in a page changes. */
enum { KV_FORMAT = 1 };

static td_status kv_geometry_derive(td_kv_geometry *g, td_error *err)
{
    if (g->n_layers < 1 || g->n_layers > TD_MAX_LAYERS)
        return td_fail(err, TD_INVALID, "KV layout: %d layers, expected 1 to %d", g->n_layers,
                       TD_MAX_LAYERS);
    if (g->n_kv_heads < 1 || g->head_dim < 1)
        return td_fail(err, TD_INVALID,
                       "KV layout: %d kv heads of size %d, expected at least 1 each", g->n_kv_heads,
                       g->head_dim);
    if (g->tp < 1 || g->n_kv_heads % g->tp != 0)
        return td_fail(err, TD_INVALID, "KV layout: tp %d does not divide the model's %d kv heads",
                       g->tp, g->n_kv_heads);
    if (g->dtype != TD_KV_BF16 && g->dtype != TD_KV_F32 && g->dtype != TD_KV_E4M3)
        return td_fail(err, TD_INVALID, "KV layout: unknown dtype %d", (int)g->dtype);

    g->n_full = g->n_window = 0;
    memset(g->index_in_kind, 0, sizeof g->index_in_kind);
    for (int32_t i = 0; i < g->n_layers; i++)
        g->index_in_kind[i] = g->windowed[i] ? g->n_window++ : g->n_full++;
    g->heads_local = g->n_kv_heads / g->tp;
    g->elt_bytes = g->dtype == TD_KV_F32 ? 4 : g->dtype == TD_KV_BF16 ? 2 : 1;

    if (g->n_full > 0 && g->n_pages == 0)
        return td_fail(err, TD_INVALID, "KV layout: %d full layers and no pages", g->n_full);
    if (g->n_window > 0) {
        if (g->window < 1)
            return td_fail(err, TD_INVALID,
                           "KV layout: window of %d positions, expected at least 1", g->window);
        if (g->n_rings == 0)
            return td_fail(err, TD_INVALID, "KV layout: %d window layers and no rings",
                           g->n_window);
        if (g->ring_pages < td_kv_ring_pages(g->window, 1))
            return td_fail(err, TD_INVALID,
                           "KV layout: a ring of %u pages of %d positions cannot hold a window of "
                           "%d; it needs %u",
                           g->ring_pages, TD_PAGE_TOKENS, g->window,
                           td_kv_ring_pages(g->window, 1));
    }

    uint64_t window_pages = g->n_window > 0 ? (uint64_t)g->n_rings * g->ring_pages : 0;
    uint64_t head_page = 2 * (uint64_t)TD_PAGE_TOKENS * (uint64_t)g->head_dim *
                         (uint64_t)g->elt_bytes; /* of one head, both sides: below 2^41 */
    uint64_t per_page, full, windowed, total;

    if (window_pages > UINT32_MAX)
        return td_fail(err, TD_INVALID, "KV layout: %u rings of %u pages are more than 2^32 pages",
                       g->n_rings, g->ring_pages);
    if (__builtin_mul_overflow(head_page, (uint64_t)g->heads_local, &per_page) ||
        __builtin_mul_overflow((uint64_t)g->n_full * g->n_pages, per_page, &full) ||
        __builtin_mul_overflow((uint64_t)g->n_window * window_pages, per_page, &windowed) ||
        __builtin_add_overflow(full, windowed, &total) || total > (uint64_t)INT64_MAX)
        return td_fail(err, TD_INVALID,
                       "KV layout: %u pages and %u rings of %u pages with %d heads of size %d need "
                       "more memory than can be addressed",
                       g->n_pages, g->n_rings, g->ring_pages, g->heads_local, g->head_dim);
    g->region_bytes = total;
    return TD_OK;
}

td_status td_kv_geometry_init(td_kv_geometry *g, const td_model_config *c, int32_t tp,
                              td_kv_dtype dtype, uint32_t n_pages, uint32_t n_rings,
                              uint32_t ring_pages, td_error *err)
{
    td_kv_geometry made = {
        .n_layers = c->n_layers,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .window = c->window,
        .tp = tp,
        .dtype = dtype,
        .n_pages = n_pages,
        .n_rings = n_rings,
        .ring_pages = ring_pages,
    };

    memcpy(made.windowed, c->windowed, sizeof made.windowed);
    td_status st = kv_geometry_derive(&made, err);
    if (st == TD_OK)
        *g = made;
    return st;
}

td_status td_kv_geometry_peer(td_kv_geometry *peer, const td_kv_geometry *own, int32_t tp,
                              uint32_t n_pages, uint32_t n_rings, uint32_t ring_pages,
                              td_error *err)
{
    td_kv_geometry made = *own;

    made.tp = tp;
    made.n_pages = n_pages;
    made.n_rings = n_rings;
    made.ring_pages = ring_pages;
    td_status st = kv_geometry_derive(&made, err);
    if (st == TD_OK)
        *peer = made;
    return st;
}

uint32_t td_kv_pool_pages(const td_kv_geometry *g, int32_t layer)
{
    return g->windowed[layer] ? g->n_rings * g->ring_pages : g->n_pages;
}

uint64_t td_kv_offset(const td_kv_geometry *g, int32_t layer, int32_t head, int32_t side,
                      uint32_t page, uint32_t row)
{
    uint64_t pages = td_kv_pool_pages(g, layer);
    uint64_t page_elts = (uint64_t)TD_PAGE_TOKENS * (uint64_t)g->head_dim;
    uint64_t heads = (uint64_t)g->heads_local;
    uint64_t base = 0; /* in pages of one head and side */

    td_dassert(layer >= 0 && layer < g->n_layers && head >= 0 && head < g->heads_local);
    td_dassert((side == 0 || side == 1) && page < pages && row < TD_PAGE_TOKENS);
    if (g->windowed[layer])
        base = (uint64_t)g->n_full * heads * 2 * g->n_pages;
    base +=
        (((uint64_t)g->index_in_kind[layer] * heads + (uint64_t)head) * 2 + (uint64_t)side) * pages;
    return ((base + page) * page_elts + (uint64_t)row * (uint64_t)g->head_dim) *
           (uint64_t)g->elt_bytes;
}

uint64_t td_kv_head_stride(const td_kv_geometry *g, int32_t layer)
{
    return 2 * (uint64_t)td_kv_pool_pages(g, layer) * TD_PAGE_TOKENS * (uint64_t)g->head_dim;
}

uint32_t td_kv_pages_for(uint64_t n_positions)
{
    return (uint32_t)((n_positions + TD_PAGE_TOKENS - 1) / TD_PAGE_TOKENS);
}

uint32_t td_kv_ring_pages(int32_t window, int32_t chunk)
{
    /* The first query of a chunk still sees the window - 1 positions before it. */
    return td_kv_pages_for((uint64_t)window - 1 + (uint64_t)chunk);
}

uint32_t td_kv_ring_page(const td_kv_geometry *g, uint32_t ring, int32_t pos)
{
    return ring * g->ring_pages + (uint32_t)pos / TD_PAGE_TOKENS % g->ring_pages;
}

int32_t td_kv_window_first(int32_t n, int32_t window)
{
    return n > window - 1 ? n - (window - 1) : 0;
}

uint64_t td_kv_transfer_bytes(const td_kv_geometry *g, int32_t n)
{
    uint64_t row = 2 * (uint64_t)g->n_kv_heads * (uint64_t)g->head_dim * (uint64_t)g->elt_bytes;
    uint64_t in_window = (uint64_t)(n - td_kv_window_first(n, g->window));

    return row * ((uint64_t)g->n_full * (uint64_t)n + (uint64_t)g->n_window * in_window);
}

uint64_t td_kv_wire_hash(const td_kv_geometry *g)
{
    uint64_t h = td_hash_str(TD_HASH_START, "tandem kv");

    h = td_hash_u64(h, KV_FORMAT);
    h = td_hash_u64(h, TD_PAGE_TOKENS);
    h = td_hash_u64(h, (uint64_t)g->dtype);
    h = td_hash_u64(h, (uint64_t)g->n_layers);
    h = td_hash_u64(h, (uint64_t)g->n_kv_heads);
    h = td_hash_u64(h, (uint64_t)g->head_dim);
    h = td_hash_u64(h, (uint64_t)g->window);
    for (int32_t i = 0; i < g->n_layers; i++)
        h = td_hash_u64(h, g->windowed[i]);
    return td_hash_end(h);
}
