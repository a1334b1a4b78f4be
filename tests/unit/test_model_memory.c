/* A model that may take only so much of its device: KV gets what the rest leaves, or is refused
 * with the numbers. On the CPU, whose buffers count like a GPU's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/checkpoint.h"
#include "common/model.h"

enum { RINGS = 3, CHUNK = 64, MOST = 1000 };

static td_status open_with(uint64_t bytes, uint32_t least, int32_t tp, td_model **out,
                           td_error *err)
{
    td_model_config cfg;
    td_checkpoint *ckpt = NULL;
    td_model_options opt = {.backend = "cpu",
                            .tp = tp,
                            .ep = tp,
                            .threads = 1,
                            .kv_dtype = TD_KV_BF16,
                            .kv_pages = MOST,
                            .kv_rings = RINGS,
                            .max_tokens = CHUNK,
                            .device_bytes = bytes,
                            .kv_pages_least = least};
    td_status st = td_model_config_read("models/tandem-tiny", &cfg, err);

    assert_int_equal(st, TD_OK);
    opt.ring_pages = td_kv_ring_pages(cfg.window, CHUNK);
    assert_int_equal(td_checkpoint_random(&cfg, 5, &ckpt, err), TD_OK);
    st = td_model_open(ckpt, &cfg, &opt, out, err);
    td_checkpoint_close(ckpt);
    return st;
}

static uint64_t all_of(const td_model *m, int32_t rank)
{
    td_model_memory has = td_model_memory_of(m, rank);

    return has.weights + has.work + has.kv;
}

static void test_model_memory_is_used_to_the_last_page_and_not_beyond(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 2; tp++) {
        const uint64_t budget = (uint64_t)128 << 20;
        td_model *m = NULL;
        td_error err = {0};

        if (open_with(budget, 1, tp, &m, &err) != TD_OK)
            fail_msg("%s", err.text);
        const td_kv_geometry *g = td_model_kv(m);
        /* keys and values of 64 rows in both full layers */
        uint64_t page = (uint64_t)g->n_full * 2 * (uint64_t)g->heads_local * 64 * 64 * 2;

        assert_true(g->n_pages > 1 && g->n_pages < MOST);
        assert_int_equal(td_model_memory_of(m, 0).kv, g->region_bytes);
        for (int32_t r = 0; r < tp; r++)
            assert_true(all_of(m, r) <= budget);
        uint64_t fullest = all_of(m, 0) > all_of(m, tp - 1) ? all_of(m, 0) : all_of(m, tp - 1);
        assert_true(fullest + page > budget);
        td_model_close(m);
    }
}

static void test_model_memory_gives_no_more_pages_than_are_wanted(void **state)
{
    (void)state;
    td_model *m = NULL;
    td_error err = {0};

    assert_int_equal(open_with((uint64_t)64 << 30, 1, 1, &m, &err), TD_OK);
    assert_int_equal(td_model_kv(m)->n_pages, MOST);
    td_model_close(m);
}

static void test_model_memory_that_is_too_little_is_refused_with_the_numbers(void **state)
{
    (void)state;
    td_model *m = NULL;
    td_error err = {0};

    assert_int_equal(open_with((uint64_t)16 << 20, 1, 1, &m, &err), TD_INVALID);
    assert_null(m);
    assert_string_equal(err.param, "--gpu-memory");
    assert_non_null(strstr(err.text, "may take 0.02 GiB"));
    assert_non_null(strstr(err.text, "weights 0.0"));
    /* What was asked for by number is not cut down in silence. */
    assert_int_equal(open_with((uint64_t)128 << 20, MOST, 1, &m, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "1000 of its pages"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_memory_is_used_to_the_last_page_and_not_beyond),
        cmocka_unit_test(test_model_memory_gives_no_more_pages_than_are_wanted),
        cmocka_unit_test(test_model_memory_that_is_too_little_is_refused_with_the_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
