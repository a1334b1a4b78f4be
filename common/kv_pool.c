/* One bit a page. A take walks the bits once: with pages of megabytes there are tens of thousands
 * of them at most, and a walk of words is nothing beside a prefill. */
#include "common/kv_pool.h"

#include <stdbool.h>
#include <stdlib.h>

struct td_kv_pool {
    uint64_t *used;  /* bit p: page p is held */
    uint32_t *rings; /* stack of free ring numbers */
    uint32_t n_pages, pages_free;
    uint32_t n_rings, rings_free;
};

td_status td_kv_pool_create(uint32_t n_pages, uint32_t n_rings, td_kv_pool **out, td_error *err)
{
    td_kv_pool *pool = calloc(1, sizeof *pool);

    if (pool == NULL)
        return td_fail(err, TD_NOMEM, "kv pool: no memory for its header");
    pool->used = calloc((n_pages + 63) / 64 + 1, sizeof *pool->used);
    pool->rings = calloc(n_rings + 1, sizeof *pool->rings);
    if (pool->used == NULL || pool->rings == NULL) {
        free(pool->used);
        free(pool->rings);
        free(pool);
        return td_fail(err, TD_NOMEM, "kv pool: no memory for %u page bits and %u rings", n_pages,
                       n_rings);
    }
    pool->n_pages = pool->pages_free = n_pages;
    pool->n_rings = pool->rings_free = n_rings;
    for (uint32_t i = 0; i < n_rings; i++) /* ring 0 on top: low numbers first, easier to read */
        pool->rings[i] = n_rings - 1 - i;
    *out = pool;
    return TD_OK;
}

void td_kv_pool_free(td_kv_pool *pool)
{
    if (pool == NULL)
        return;
    td_assert(pool->pages_free == pool->n_pages && pool->rings_free == pool->n_rings);
    free(pool->used);
    free(pool->rings);
    free(pool);
}

static bool is_used(const td_kv_pool *pool, uint32_t page)
{
    return pool->used[page / 64] >> (page % 64) & 1;
}

static void mark(td_kv_pool *pool, td_kv_extent e, bool used)
{
    for (uint32_t p = e.first; p < e.first + e.count; p++) {
        td_assert(p < pool->n_pages && is_used(pool, p) != used);
        pool->used[p / 64] ^= (uint64_t)1 << (p % 64);
    }
}

/* The next run of free pages at or after `from`; count 0 when there is none. */
static td_kv_extent next_run(const td_kv_pool *pool, uint32_t from)
{
    td_kv_extent run;

    while (from < pool->n_pages && is_used(pool, from)) {
        if (from % 64 == 0 && pool->used[from / 64] == UINT64_MAX)
            from += 64;
        else
            from++;
    }
    run = (td_kv_extent){.first = from, .count = 0};
    while (from < pool->n_pages && !is_used(pool, from)) {
        from++;
        run.count++;
    }
    return run;
}

/* The best run for `want` pages: the smallest that holds them all, else the longest. */
static td_kv_extent best_run(const td_kv_pool *pool, uint32_t want)
{
    td_kv_extent best = {0, 0};
    td_kv_extent run = next_run(pool, 0);

    while (run.count > 0) {
        bool fits = run.count >= want, best_fits = best.count >= want;

        if (fits ? !best_fits || run.count < best.count : !best_fits && run.count > best.count)
            best = run;
        run = next_run(pool, run.first + run.count);
    }
    if (best.count > want)
        best.count = want;
    return best;
}

td_status td_kv_pool_take(td_kv_pool *pool, uint32_t n_pages, td_kv_extent *ext, size_t cap,
                          size_t *n_ext, uint32_t *ring, td_error *err)
{
    uint32_t left = n_pages;
    size_t n = 0;

    td_assert(n_pages > 0);
    if (n_pages > pool->pages_free)
        return td_fail(err, TD_BUSY, "kv pool: %u pages wanted, %u of %u free", n_pages,
                       pool->pages_free, pool->n_pages);
    if (pool->rings_free == 0)
        return td_fail(err, TD_BUSY, "kv pool: all %u window rings are held", pool->n_rings);
    while (left > 0 && n < cap) {
        ext[n] = best_run(pool, left);
        mark(pool, ext[n], true); /* so that the next search does not find it again */
        left -= ext[n++].count;
    }
    if (left > 0) {
        for (size_t i = 0; i < n; i++)
            mark(pool, ext[i], false);
        return td_fail(err, TD_BUSY, "kv pool: %u pages are free, but not in %zu extents",
                       pool->pages_free, cap);
    }
    pool->pages_free -= n_pages;
    *ring = pool->rings[--pool->rings_free];
    *n_ext = n;
    return TD_OK;
}

void td_kv_pool_give(td_kv_pool *pool, const td_kv_extent *ext, size_t n_ext, uint32_t ring)
{
    for (size_t i = 0; i < n_ext; i++) {
        mark(pool, ext[i], false);
        pool->pages_free += ext[i].count;
    }
    td_assert(pool->rings_free < pool->n_rings && ring < pool->n_rings);
    pool->rings[pool->rings_free++] = ring;
}

uint32_t td_kv_pool_pages_total(const td_kv_pool *pool)
{
    return pool->n_pages;
}

uint32_t td_kv_pool_pages_free(const td_kv_pool *pool)
{
    return pool->pages_free;
}

uint32_t td_kv_pool_rings_total(const td_kv_pool *pool)
{
    return pool->n_rings;
}

uint32_t td_kv_pool_rings_free(const td_kv_pool *pool)
{
    return pool->rings_free;
}

void td_kv_pool_check(const td_kv_pool *pool)
{
    uint32_t free_pages = 0;

    for (uint32_t p = 0; p < pool->n_pages; p++)
        free_pages += !is_used(pool, p);
    td_assert(free_pages == pool->pages_free);
    td_assert(pool->rings_free <= pool->n_rings);
    for (uint32_t i = 0; i < pool->rings_free; i++)
        for (uint32_t j = i + 1; j < pool->rings_free; j++)
            td_assert(pool->rings[i] != pool->rings[j] && pool->rings[i] < pool->n_rings);
}
