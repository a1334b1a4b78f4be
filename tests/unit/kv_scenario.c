/* kv_scenario: see the header. What must be where is worked out here position by position from
 * td_kv_offset() alone, without the planner. */
#include "tests/unit/kv_scenario.h"

#include "common/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t kv_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return td_hash_end(*state);
}

int32_t kv_random_in(uint64_t *state, int32_t lo, int32_t hi)
{
    return lo + (int32_t)(kv_random(state) % (uint64_t)(hi - lo + 1));
}

static void shuffle(uint32_t *a, uint32_t n, uint64_t *rng)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(kv_random(rng) % i), t = a[i - 1];

        a[i - 1] = a[j];
        a[j] = t;
    }
}

/* Deal runs of one to four consecutive pages, so that both merged and single pages occur. */
static uint32_t *scattered(uint32_t n_pages, uint64_t *rng)
{
    uint32_t *out = malloc(n_pages * sizeof *out), *runs = malloc(n_pages * sizeof *runs);
    uint32_t *len = malloc(n_pages * sizeof *len), n_runs = 0, at = 0;

    for (uint32_t page = 0; page < n_pages; n_runs++) {
        uint32_t n = (uint32_t)kv_random_in(rng, 1, 4);

        if (n > n_pages - page)
            n = n_pages - page;
        runs[n_runs] = n_runs;
        len[n_runs] = page; /* first page of the run; the next run's first ends it */
        page += n;
    }
    shuffle(runs, n_runs, rng);
    for (uint32_t i = 0; i < n_runs; i++) {
        uint32_t r = runs[i], end = r + 1 < n_runs ? len[r + 1] : n_pages;

        for (uint32_t page = len[r]; page < end; page++)
            out[at++] = page;
    }
    free(runs);
    free(len);
    return out;
}

static td_status side_geometry(td_kv_geometry *g, const kv_scenario *s, int32_t tp,
                               uint32_t n_pages, int32_t chunk)
{
    td_model_config c = {
        .n_layers = s->n_layers,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .window = s->window,
    };

    for (int32_t i = 0; i < s->n_layers; i++)
        c.windowed[i] = s->all_windowed || i % 2 == 0;
    return td_kv_geometry_init(g, &c, tp, s->f32 ? TD_KV_F32 : TD_KV_BF16, n_pages,
                               (uint32_t)s->n_requests + 1, td_kv_ring_pages(s->window, chunk),
                               NULL);
}

/* Give a request its pages off the front of a dealt pool, as extents too. */
static void request_extents(kv_request *r, uint32_t spare_page)
{
    r->dst_extents = malloc((r->n_pages + 1) * sizeof *r->dst_extents);
    for (uint32_t i = 0; i < r->n_pages; i++) {
        td_kv_extent *last = r->n_extents ? &r->dst_extents[r->n_extents - 1] : NULL;

        if (last && last->first + last->count == r->dst_pages[i])
            last->count++;
        else
            r->dst_extents[r->n_extents++] = (td_kv_extent){r->dst_pages[i], 1};
    }
    r->dst_extents[r->n_extents++] = (td_kv_extent){spare_page, 1};
}

void kv_world_init(kv_world *w, const kv_scenario *s)
{
    uint64_t rng = s->seed;
    uint32_t need = 1; /* one spare page that nobody writes */

    memset(w, 0, sizeof *w);
    w->s = *s;
    for (int i = 0; i < s->n_requests; i++) {
        w->req[i].n_tokens = kv_random_in(&rng, s->min_tokens, s->max_tokens);
        w->req[i].n_pages = td_kv_pages_for((uint64_t)w->req[i].n_tokens);
        need += w->req[i].n_pages;
    }
    uint32_t src_total = need + (uint32_t)kv_random_in(&rng, 0, 3);
    uint32_t dst_total = need + (uint32_t)kv_random_in(&rng, 0, 3);

    td_assert(side_geometry(&w->src, s, s->src_tp, src_total, s->chunk) == TD_OK);
    td_assert(side_geometry(&w->dst, s, s->dst_tp, dst_total, 1) == TD_OK);

    uint32_t *src = scattered(src_total, &rng), *dst = scattered(dst_total, &rng), at = 0;
    for (int i = 0; i < s->n_requests; i++) {
        kv_request *r = &w->req[i];

        r->src_pages = malloc(r->n_pages * sizeof *src);
        r->dst_pages = malloc(r->n_pages * sizeof *dst);
        memcpy(r->src_pages, src + at, r->n_pages * sizeof *src);
        memcpy(r->dst_pages, dst + at, r->n_pages * sizeof *dst);
        at += r->n_pages;
        r->src_ring = (uint32_t)((i + 1) % (s->n_requests + 1));
        r->dst_ring = (uint32_t)(s->n_requests - i);
        request_extents(r, dst[dst_total - 1]);
    }
    free(src);
    free(dst);
}

void kv_world_free(kv_world *w)
{
    for (int i = 0; i < w->s.n_requests; i++) {
        free(w->req[i].src_pages);
        free(w->req[i].dst_pages);
        free(w->req[i].dst_extents);
    }
}

td_kv_place kv_world_src(const kv_world *w, int i)
{
    const kv_request *r = &w->req[i];

    return (td_kv_place){&w->src, r->src_pages, r->n_pages, r->src_ring};
}

td_kv_place kv_world_dst(const kv_world *w, int i)
{
    const kv_request *r = &w->req[i];

    return (td_kv_place){&w->dst, r->dst_pages, r->n_pages, r->dst_ring};
}

/* The bytes of one row, never all poison. */
static void row_content(const kv_world *w, int i, int32_t layer, int32_t head, int32_t side,
                        int32_t pos, unsigned char *row, size_t n)
{
    uint64_t rng = td_hash_u64(w->s.seed, (uint64_t)i);

    rng = td_hash_u64(td_hash_u64(rng, (uint64_t)layer), (uint64_t)head * 2 + (uint64_t)side);
    rng = td_hash_u64(rng, (uint64_t)pos);
    for (size_t at = 0; at < n; at += 8) {
        uint64_t v = kv_random(&rng);

        memcpy(row + at, &v, n - at < 8 ? n - at : 8);
    }
    row[0] = (unsigned char)(KV_POISON + 1 + kv_random(&rng) % 200);
}

static uint64_t row_offset(const td_kv_geometry *g, const uint32_t *pages, uint32_t ring,
                           int32_t layer, int32_t head, int32_t side, int32_t pos)
{
    uint32_t in_seq = (uint32_t)pos / TD_PAGE_TOKENS, row = (uint32_t)pos % TD_PAGE_TOKENS;
    uint32_t page =
        g->windowed[layer] ? ring * g->ring_pages + in_seq % g->ring_pages : pages[in_seq];

    return td_kv_offset(g, layer, head, side, page, row);
}

static size_t row_bytes(const td_kv_geometry *g)
{
    return (size_t)g->head_dim * (size_t)g->elt_bytes;
}

unsigned char *kv_world_dst_region(const kv_world *w)
{
    unsigned char *region = malloc(w->dst.region_bytes);

    memset(region, KV_POISON, w->dst.region_bytes);
    return region;
}

unsigned char *kv_world_src_region(const kv_world *w, int32_t rank)
{
    const td_kv_geometry *g = &w->src;
    unsigned char *region = malloc(g->region_bytes);

    memset(region, KV_POISON, g->region_bytes);
    for (int i = 0; i < w->s.n_requests; i++)
        for (int32_t layer = 0; layer < g->n_layers; layer++)
            for (int32_t head = 0; head < g->heads_local; head++)
                for (int32_t side = 0; side < 2; side++)
                    /* In order of position, so that a ring keeps the last ones as it would. */
                    for (int32_t pos = 0; pos < w->req[i].n_tokens; pos++)
                        row_content(w, i, layer, rank * g->heads_local + head, side, pos,
                                    region + row_offset(g, w->req[i].src_pages, w->req[i].src_ring,
                                                        layer, head, side, pos),
                                    row_bytes(g));
    return region;
}

/* Put what must be in rank's region into image; a partial row may be either, so it follows `got`.
 */
static void expect_request(const kv_world *w, int i, int32_t rank, const unsigned char *got,
                           kv_expect expect, unsigned char *image)
{
    const td_kv_geometry *g = &w->dst;
    int32_t n = w->req[i].n_tokens;

    for (int32_t layer = 0; layer < g->n_layers; layer++)
        for (int32_t head = 0; head < g->heads_local; head++)
            for (int32_t side = 0; side < 2; side++)
                for (int32_t pos = 0; pos < n; pos++) {
                    uint64_t at = row_offset(g, w->req[i].dst_pages, w->req[i].dst_ring, layer,
                                             head, side, pos);

                    if (g->windowed[layer] && pos < n - (g->window - 1))
                        continue; /* out of the window: must not be moved */
                    row_content(w, i, layer, rank * g->heads_local + head, side, pos, image + at,
                                row_bytes(g));
                    for (size_t b = 0; expect == KV_PARTIAL && b < row_bytes(g); b++)
                        if (got[at + b] == KV_POISON)
                            image[at + b] = KV_POISON;
                }
}

size_t kv_world_check(const kv_world *w, unsigned char *const *regions, const kv_expect *expect)
{
    size_t wrong = 0;

    for (int32_t rank = 0; rank < w->dst.tp; rank++) {
        unsigned char *image = kv_world_dst_region(w);

        for (int i = 0; i < w->s.n_requests; i++)
            if (expect[i] != KV_ABSENT)
                expect_request(w, i, rank, regions[rank], expect[i], image);
        for (uint64_t at = 0; at < w->dst.region_bytes; at++)
            if (image[at] != regions[rank][at] && wrong++ == 0)
                fprintf(stderr, "seed %llu: rank %d byte %llu is %02x, expected %02x\n",
                        (unsigned long long)w->s.seed, rank, (unsigned long long)at,
                        regions[rank][at], image[at]);
        free(image);
    }
    return wrong;
}
