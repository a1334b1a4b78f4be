/* kv_pool: random takes and gives against an obvious model, and the choices that keep extents long.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/kv_pool.h"

enum { PAGES = 200, RINGS = 24, CAP = 8 };

typedef struct taken {
    td_kv_extent ext[CAP];
    size_t n;
    uint32_t ring;
} taken;

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static uint32_t rng(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state % below);
}

static td_kv_pool *new_pool(uint32_t pages, uint32_t rings)
{
    td_kv_pool *pool;

    assert_int_equal(td_kv_pool_create(pages, rings, &pool, NULL), TD_OK);
    return pool;
}

static void test_kv_pool_never_hands_out_a_page_or_ring_twice(void **state)
{
    td_kv_pool *pool = new_pool(PAGES, RINGS);
    unsigned char page_used[PAGES] = {0}, ring_used[RINGS] = {0};
    taken held[RINGS];
    size_t n_held = 0;
    uint32_t free_pages = PAGES;

    (void)state;
    for (int step = 0; step < 20000; step++) {
        if (rng(2) && n_held < RINGS) {
            taken *t = &held[n_held];
            uint32_t want = 1 + rng(40), got = 0;
            td_status st = td_kv_pool_take(pool, want, t->ext, CAP, &t->n, &t->ring, NULL);

            if (st != TD_OK) {
                assert_int_equal(st, TD_BUSY);
                assert_int_equal(td_kv_pool_pages_free(pool), free_pages);
                continue;
            }
            for (size_t i = 0; i < t->n; i++) {
                for (uint32_t p = 0; p < t->ext[i].count; p++) {
                    assert_in_range(t->ext[i].first + p, 0, PAGES - 1);
                    assert_false(page_used[t->ext[i].first + p]++);
                }
                got += t->ext[i].count;
            }
            assert_int_equal(got, want);
            assert_false(ring_used[t->ring]++);
            free_pages -= want;
            n_held++;
        } else if (n_held > 0) {
            size_t k = rng((uint32_t)n_held);
            taken t = held[k];

            held[k] = held[--n_held];
            for (size_t i = 0; i < t.n; i++) {
                memset(page_used + t.ext[i].first, 0, t.ext[i].count);
                free_pages += t.ext[i].count;
            }
            ring_used[t.ring] = 0;
            td_kv_pool_give(pool, t.ext, t.n, t.ring);
        }
        if (step % 100 == 0)
            td_kv_pool_check(pool);
        assert_int_equal(td_kv_pool_pages_free(pool), free_pages);
        assert_int_equal(td_kv_pool_rings_free(pool), RINGS - n_held);
    }
    while (n_held > 0) {
        n_held--;
        td_kv_pool_give(pool, held[n_held].ext, held[n_held].n, held[n_held].ring);
    }
    assert_int_equal(td_kv_pool_pages_free(pool), PAGES);
    td_kv_pool_free(pool);
}

static void test_kv_pool_take_prefers_the_smallest_run_that_holds_all(void **state)
{
    td_kv_pool *pool = new_pool(100, 8);
    taken a, b, c, d;

    (void)state;
    assert_int_equal(td_kv_pool_take(pool, 10, a.ext, CAP, &a.n, &a.ring, NULL), TD_OK);
    assert_int_equal(td_kv_pool_take(pool, 5, b.ext, CAP, &b.n, &b.ring, NULL), TD_OK);
    assert_int_equal(td_kv_pool_take(pool, 20, c.ext, CAP, &c.n, &c.ring, NULL), TD_OK);
    td_kv_pool_give(pool, a.ext, a.n, a.ring); /* free: 0..9 and 35..99 */
    assert_int_equal(td_kv_pool_take(pool, 8, d.ext, CAP, &d.n, &d.ring, NULL), TD_OK);
    assert_int_equal(d.n, 1);
    assert_int_equal(d.ext[0].first, 0);
    td_kv_pool_give(pool, d.ext, d.n, d.ring);
    td_kv_pool_give(pool, b.ext, b.n, b.ring);
    td_kv_pool_give(pool, c.ext, c.n, c.ring);
    td_kv_pool_free(pool);
}

static void test_kv_pool_take_leaves_nothing_on_busy(void **state)
{
    td_kv_pool *pool = new_pool(8, 8);
    taken t[4], u;
    td_error err = {0};

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(td_kv_pool_take(pool, 2, t[i].ext, CAP, &t[i].n, &t[i].ring, NULL), TD_OK);
    td_kv_pool_give(pool, t[0].ext, t[0].n, t[0].ring);
    td_kv_pool_give(pool, t[2].ext, t[2].n, t[2].ring);
    assert_int_equal(td_kv_pool_take(pool, 5, u.ext, CAP, &u.n, &u.ring, &err), TD_BUSY);
    assert_string_equal(err.text, "kv pool: 5 pages wanted, 4 of 8 free");
    /* Four pages are free in two runs: too scattered for one extent. */
    assert_int_equal(td_kv_pool_take(pool, 4, u.ext, 1, &u.n, &u.ring, &err), TD_BUSY);
    assert_int_equal(td_kv_pool_pages_free(pool), 4);
    td_kv_pool_check(pool);
    assert_int_equal(td_kv_pool_take(pool, 4, u.ext, 2, &u.n, &u.ring, &err), TD_OK);
    td_kv_pool_give(pool, u.ext, u.n, u.ring);
    td_kv_pool_give(pool, t[1].ext, t[1].n, t[1].ring);
    td_kv_pool_give(pool, t[3].ext, t[3].n, t[3].ring);
    td_kv_pool_free(pool);
}

static void test_kv_pool_take_needs_a_ring(void **state)
{
    td_kv_pool *pool = new_pool(8, 1);
    taken t, u;
    td_error err = {0};

    (void)state;
    assert_int_equal(td_kv_pool_take(pool, 1, t.ext, CAP, &t.n, &t.ring, NULL), TD_OK);
    assert_int_equal(td_kv_pool_take(pool, 1, u.ext, CAP, &u.n, &u.ring, &err), TD_BUSY);
    assert_int_equal(td_kv_pool_pages_free(pool), 7);
    td_kv_pool_give(pool, t.ext, t.n, t.ring);
    td_kv_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_pool_never_hands_out_a_page_or_ring_twice),
        cmocka_unit_test(test_kv_pool_take_prefers_the_smallest_run_that_holds_all),
        cmocka_unit_test(test_kv_pool_take_leaves_nothing_on_busy),
        cmocka_unit_test(test_kv_pool_take_needs_a_ring),
    };

    return cmocka_run_group_tests_name("kv_pool", tests, NULL, NULL);
}
