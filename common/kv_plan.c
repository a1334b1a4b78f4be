/* kv_plan: see the header. The planner walks one head and side at a time, page by page, and lets
 * each run grow for as long as both addresses go on where the last one ended. */
#include "common/kv_plan.h"

#include "common/hash.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void td_kv_puts_clear(td_kv_puts *l)
{
    l->len = 0;
    l->oom = false;
}

void td_kv_puts_free(td_kv_puts *l)
{
    free(l->ptr);
    *l = (td_kv_puts){0};
}

static void kv_puts_add(td_kv_puts *l, td_kv_put put)
{
    if (l->len == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        td_kv_put *grown = l->oom ? NULL : realloc(l->ptr, cap * sizeof *grown);

        if (!grown) {
            l->oom = true;
            return;
        }
        l->ptr = grown;
        l->cap = cap;
    }
    l->ptr[l->len++] = put;
}

td_status td_kv_place_check(const td_kv_place *p, int32_t n_tokens, const char *side, td_error *err)
{
    const td_kv_geometry *g = p->g;

    if (n_tokens < 1)
        return td_fail(err, TD_INVALID, "%s: a prompt of %d tokens has no KV", side, n_tokens);
    if (g->n_full > 0) {
        uint32_t need = td_kv_pages_for((uint64_t)n_tokens);

        if (p->n_pages < need)
            return td_fail(err, TD_INVALID, "%s: %u pages given, %d tokens need %u", side,
                           p->n_pages, n_tokens, need);
        for (uint32_t i = 0; i < need; i++)
            if (p->pages[i] >= g->n_pages)
                return td_fail(err, TD_INVALID, "%s: page %u is outside a pool of %u", side,
                               p->pages[i], g->n_pages);
    }
    if (g->n_window > 0 && p->ring >= g->n_rings)
        return td_fail(err, TD_INVALID, "%s: ring %u is outside the %u there are", side, p->ring,
                       g->n_rings);
    return TD_OK;
}

uint64_t td_kv_pages_of(const td_kv_extent *ext, size_t n_ext, uint32_t *pages, size_t cap)
{
    uint64_t total = 0;

    for (size_t i = 0; i < n_ext; i++) {
        for (uint32_t j = 0; j < ext[i].count && total + j < cap; j++)
            pages[total + j] = ext[i].first + j;
        total += ext[i].count;
    }
    return total;
}

bool td_kv_plan_clip(const td_kv_geometry *g, int32_t n_tokens, int32_t layer, int32_t *from,
                     int32_t to)
{
    if (g->windowed[layer]) {
        int32_t first = td_kv_window_first(n_tokens, g->window);

        if (*from < first)
            *from = first;
    }
    return *from < to;
}

static uint64_t kv_place_offset(const td_kv_place *p, int32_t layer, int32_t head, int32_t side,
                                int32_t pos)
{
    uint32_t page = p->g->windowed[layer] ? td_kv_ring_page(p->g, p->ring, pos)
                                          : p->pages[pos / TD_PAGE_TOKENS];

    return td_kv_offset(p->g, layer, head, side, page, (uint32_t)pos % TD_PAGE_TOKENS);
}

/* Add a run, or lengthen the last one of this call where it goes on from there. */
static void kv_plan_run(td_kv_puts *out, size_t first, td_kv_put put)
{
    if (out->len > first) {
        td_kv_put *last = &out->ptr[out->len - 1];

        if (last->dst_rank == put.dst_rank && last->src_offset + last->bytes == put.src_offset &&
            last->dst_offset + last->bytes == put.dst_offset) {
            last->bytes += put.bytes;
            return;
        }
    }
    kv_puts_add(out, put);
}

td_status td_kv_plan(const td_kv_place *src, int32_t src_rank, const td_kv_place *dst,
                     int32_t n_tokens, int32_t layer, int32_t from, int32_t to, td_kv_puts *out,
                     td_error *err)
{
    const td_kv_geometry *g = src->g;
    uint64_t row_bytes = (uint64_t)g->head_dim * (uint64_t)g->elt_bytes;
    size_t first = out->len;

    td_assert(src_rank >= 0 && src_rank < g->tp && layer >= 0 && layer < g->n_layers);
    td_assert(from >= 0 && to <= n_tokens);
    if (!td_kv_plan_clip(g, n_tokens, layer, &from, to))
        return TD_OK;

    for (int32_t head = 0; head < g->heads_local; head++) {
        int32_t of_model = src_rank * g->heads_local + head;
        int32_t dst_rank = of_model / dst->g->heads_local;
        int32_t dst_head = of_model % dst->g->heads_local;

        for (int32_t side = 0; side < 2; side++) {
            for (int32_t pos = from, n; pos < to; pos += n) {
                n = TD_PAGE_TOKENS - pos % TD_PAGE_TOKENS;
                if (n > to - pos)
                    n = to - pos;
                kv_plan_run(out, first,
                            (td_kv_put){
                                .src_offset = kv_place_offset(src, layer, head, side, pos),
                                .dst_offset = kv_place_offset(dst, layer, dst_head, side, pos),
                                .bytes = (uint64_t)n * row_bytes,
                                .dst_rank = dst_rank,
                            });
            }
        }
    }
    if (out->oom)
        return td_fail(err, TD_NOMEM, "no memory for a plan of %zu puts", out->len);
    return TD_OK;
}

uint64_t td_kv_digest(const td_kv_place *p, int32_t rank, const void *base, int32_t n_tokens,
                      int32_t layer, int32_t from, int32_t to)
{
    const td_kv_geometry *g = p->g;
    size_t row_bytes = (size_t)g->head_dim * (size_t)g->elt_bytes;
    uint64_t sum = 0;

    if (!td_kv_plan_clip(g, n_tokens, layer, &from, to))
        return 0;
    for (int32_t head = 0; head < g->heads_local; head++)
        for (int32_t side = 0; side < 2; side++)
            for (int32_t pos = from; pos < to; pos++) {
                const char *row = (const char *)base + kv_place_offset(p, layer, head, side, pos);
                uint64_t seed = td_hash_u64(TD_HASH_START, (uint64_t)layer);

                /* The seed ties a row to its place: rows that were swapped change the sum. */
                seed = td_hash_u64(seed, (uint64_t)(rank * g->heads_local + head) * 2 + side);
                seed = td_hash_end(td_hash_u64(seed, (uint64_t)pos));
                sum += XXH3_64bits_withSeed(row, row_bytes, seed);
            }
    return sum;
}
