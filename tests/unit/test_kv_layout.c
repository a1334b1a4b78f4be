/* The address arithmetic of the KV memory, against numbers worked out by hand and against itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/kv_layout.h"

#include <stdlib.h>
#include <string.h>

/* gpt-oss-20b's attention: 24 layers, the even ones windowed, 8 kv heads of 64. */
static td_model_config gpt_oss_20b(void)
{
    td_model_config c = {.n_layers = 24, .n_kv_heads = 8, .head_dim = 64, .window = 128};

    for (int i = 0; i < c.n_layers; i++)
        c.windowed[i] = i % 2 == 0;
    return c;
}

static td_kv_geometry geometry(int32_t tp, uint32_t n_pages, uint32_t n_rings, uint32_t ring_pages)
{
    td_model_config c = gpt_oss_20b();
    td_kv_geometry g;

    assert_int_equal(
        td_kv_geometry_init(&g, &c, tp, TD_KV_BF16, n_pages, n_rings, ring_pages, NULL), TD_OK);
    return g;
}

static void test_kv_layout_offset_matches_an_address_worked_out_by_hand(void **state)
{
    (void)state;
    td_kv_geometry g = geometry(4, 1000, 10, 2);
    uint64_t page = 64 * 64 * 2; /* 64 rows of 64 elements of 2 bytes */

    assert_int_equal(g.heads_local, 2);
    assert_int_equal(g.n_full, 12);
    assert_int_equal(g.region_bytes, (12 * 2 * 2 * 1000 + 12 * 2 * 2 * 20) * page);
    /* layer 3 is full layer number 1; head 1, values, page 7, row 5 */
    assert_int_equal(td_kv_offset(&g, 3, 1, 1, 7, 5),
                     (((1 * 2 + 1) * 2 + 1) * 1000 + 7) * page + 5 * 128);
    /* layer 4 is window layer number 2; ring 3's second page is pool page 7 */
    assert_int_equal(td_kv_ring_page(&g, 3, 64), 7);
    assert_int_equal(td_kv_offset(&g, 4, 0, 0, 7, 63),
                     (12 * 2 * 2 * 1000 + (2 * 2 * 2) * 20 + 7) * page + 63 * 128);
    assert_int_equal(td_kv_head_stride(&g, 3), 2 * 1000 * 64 * 64);
    assert_int_equal(td_kv_head_stride(&g, 4), 2 * 20 * 64 * 64);
    assert_int_equal(td_kv_offset(&g, 3, 1, 0, 0, 0) - td_kv_offset(&g, 3, 0, 0, 0, 0),
                     td_kv_head_stride(&g, 3) * 2);
}

/* One byte an element: half of bf16's in every number. */
static void test_kv_layout_e4m3_is_a_byte_an_element(void **state)
{
    (void)state;
    td_model_config c = gpt_oss_20b();
    td_kv_geometry bf16 = geometry(4, 1000, 10, 2), g;

    assert_int_equal(td_kv_geometry_init(&g, &c, 4, TD_KV_E4M3, 1000, 10, 2, NULL), TD_OK);
    assert_int_equal(g.elt_bytes, 1);
    assert_int_equal(2 * g.region_bytes, bf16.region_bytes);
    assert_int_equal(2 * td_kv_offset(&g, 3, 1, 1, 7, 5), td_kv_offset(&bf16, 3, 1, 1, 7, 5));
    assert_int_equal(2 * td_kv_transfer_bytes(&g, 1000), td_kv_transfer_bytes(&bf16, 1000));
    /* 8 heads of 64, keys and values: 1000 rows of 12 full layers, 127 of 12 window layers */
    assert_int_equal(td_kv_transfer_bytes(&g, 1000), 2 * 8 * 64 * 12 * (1000 + 127));
    assert_int_not_equal(td_kv_wire_hash(&g), td_kv_wire_hash(&bf16));
}

/* Every row of the region has exactly one address, and together they fill it. */
static void test_kv_layout_offset_covers_the_region_once(void **state)
{
    (void)state;
    td_model_config c = {.n_layers = 3, .n_kv_heads = 4, .head_dim = 6, .window = 70};
    td_kv_geometry g;
    size_t rows = 0;

    c.windowed[1] = true;
    assert_int_equal(td_kv_geometry_init(&g, &c, 2, TD_KV_F32, 5, 3, 2, NULL), TD_OK);
    unsigned char *seen = calloc(1, g.region_bytes / 24);
    for (int32_t layer = 0; layer < 3; layer++)
        for (int32_t head = 0; head < 2; head++)
            for (int32_t side = 0; side < 2; side++)
                for (uint32_t page = 0; page < td_kv_pool_pages(&g, layer); page++)
                    for (uint32_t row = 0; row < TD_PAGE_TOKENS; row++, rows++) {
                        uint64_t at = td_kv_offset(&g, layer, head, side, page, row);

                        assert_int_equal(at % 24, 0);
                        assert_true(at < g.region_bytes);
                        assert_int_equal(seen[at / 24]++, 0);
                    }
    assert_int_equal(rows * 24, g.region_bytes);
    free(seen);
}

static void test_kv_layout_window_keeps_what_the_next_query_sees(void **state)
{
    (void)state;
    assert_int_equal(td_kv_window_first(1000, 128), 1000 - 127);
    assert_int_equal(td_kv_window_first(128, 128), 1);
    assert_int_equal(td_kv_window_first(127, 128), 0);
    assert_int_equal(td_kv_window_first(1, 128), 0);
    assert_int_equal(td_kv_window_first(5, 1), 5); /* a query that sees only itself needs nothing */
    assert_int_equal(td_kv_ring_pages(128, 1), 2);
    assert_int_equal(td_kv_ring_pages(128, 2), 3);
    assert_int_equal(td_kv_ring_pages(128, 512), 10);
    assert_int_equal(td_kv_pages_for(0), 0);
    assert_int_equal(td_kv_pages_for(64), 1);
    assert_int_equal(td_kv_pages_for(65), 2);
}

static void test_kv_layout_transfer_bytes_is_the_formula(void **state)
{
    (void)state;
    td_kv_geometry g = geometry(2, 1000, 10, 2);

    assert_int_equal(td_kv_transfer_bytes(&g, 1000), 2 * 8 * 64 * 2 * (12 * 1000 + 12 * 127));
    assert_int_equal(td_kv_transfer_bytes(&g, 100), 2 * 8 * 64 * 2 * (12 * 100 + 12 * 100));
}

static void test_kv_layout_init_refuses_what_does_not_fit_and_leaves_it_alone(void **state)
{
    (void)state;
    td_model_config c = gpt_oss_20b();
    td_kv_geometry g = {.tp = 77};
    td_error err = {0};
    const struct {
        int32_t tp;
        int dtype;
        uint32_t n_pages, n_rings, ring_pages;
        const char *says;
    } bad[] = {
        {3, TD_KV_BF16, 10, 1, 2, "does not divide"},
        {0, TD_KV_BF16, 10, 1, 2, "does not divide"},
        {1, 9, 10, 1, 2, "unknown dtype"},
        {1, TD_KV_BF16, 0, 1, 2, "no pages"},
        {1, TD_KV_BF16, 10, 0, 2, "no rings"},
        {1, TD_KV_BF16, 10, 1, 1, "cannot hold a window"},
        {1, TD_KV_BF16, 10, 70000, 70000, "more than 2^32 pages"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(td_kv_geometry_init(&g, &c, bad[i].tp, (td_kv_dtype)bad[i].dtype,
                                             bad[i].n_pages, bad[i].n_rings, bad[i].ring_pages,
                                             &err),
                         TD_INVALID);
        assert_non_null(strstr(err.text, bad[i].says));
        assert_int_equal(g.tp, 77);
    }
    c.head_dim = INT32_MAX;
    c.n_kv_heads = INT32_MAX;
    assert_int_equal(td_kv_geometry_init(&g, &c, 1, TD_KV_F32, UINT32_MAX, 1, 2, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "more memory than can be addressed"));
}

static void test_kv_layout_peer_changes_the_split_and_keeps_the_model(void **state)
{
    (void)state;
    td_kv_geometry a = geometry(1, 100, 4, 10), b, c = geometry(4, 500, 9, 2);

    assert_int_equal(td_kv_geometry_peer(&b, &a, 4, 500, 9, 2, NULL), TD_OK);
    assert_memory_equal(&b, &c, sizeof b);
    assert_int_equal(td_kv_geometry_peer(&b, &a, 16, 500, 9, 2, NULL), TD_INVALID);
}

static void test_kv_layout_wire_hash_ignores_split_and_pools_only(void **state)
{
    (void)state;
    td_kv_geometry a = geometry(1, 100, 4, 10), b = geometry(4, 500, 9, 2);

    assert_int_equal(td_kv_wire_hash(&a), td_kv_wire_hash(&b));
    b.window++;
    assert_int_not_equal(td_kv_wire_hash(&a), td_kv_wire_hash(&b));
    b.window--;
    b.dtype = TD_KV_F32;
    assert_int_not_equal(td_kv_wire_hash(&a), td_kv_wire_hash(&b));
    b.dtype = TD_KV_BF16;
    b.windowed[5] = true;
    assert_int_not_equal(td_kv_wire_hash(&a), td_kv_wire_hash(&b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_layout_offset_matches_an_address_worked_out_by_hand),
        cmocka_unit_test(test_kv_layout_e4m3_is_a_byte_an_element),
        cmocka_unit_test(test_kv_layout_offset_covers_the_region_once),
        cmocka_unit_test(test_kv_layout_window_keeps_what_the_next_query_sees),
        cmocka_unit_test(test_kv_layout_transfer_bytes_is_the_formula),
        cmocka_unit_test(test_kv_layout_init_refuses_what_does_not_fit_and_leaves_it_alone),
        cmocka_unit_test(test_kv_layout_peer_changes_the_split_and_keeps_the_model),
        cmocka_unit_test(test_kv_layout_wire_hash_ignores_split_and_pools_only),
    };

    return cmocka_run_group_tests_name("kv_layout", tests, NULL, NULL);
}
