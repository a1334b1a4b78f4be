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
#include "common/shard.h"
#include "common/weights.h"

enum { RINGS = 3, CHUNK = 64, MOST = 1000 };

/* A checkpoint that counts how often it is asked for a tensor. */
static td_weight_source real;
static _Atomic int asked;

static td_status count_get(void *user, td_weight role, int32_t layer, td_tensor *out, td_error *err)
{
    asked++;
    return real.get(user, role, layer, out, err);
}

static td_model_config config_of_tiny(void)
{
    td_model_config cfg;
    td_error err = {0};

    assert_int_equal(td_model_config_read("models/tandem-tiny", &cfg, &err), TD_OK);
    return cfg;
}

static td_status open_options(td_model_options opt, td_model **out, td_error *err)
{
    td_model_config cfg = config_of_tiny();
    td_checkpoint *ckpt = NULL;
    td_weight_source src;
    td_status st;

    opt.backend = "cpu";
    opt.threads = 1;
    opt.kv_dtype = TD_KV_BF16;
    opt.kv_pages = MOST;
    opt.kv_rings = RINGS;
    opt.max_tokens = CHUNK;
    opt.ring_pages = td_kv_ring_pages(cfg.window, CHUNK);
    assert_int_equal(td_checkpoint_random(&cfg, 5, &ckpt, err), TD_OK);
    src = real = td_checkpoint_source(ckpt);
    src.get = count_get;
    asked = 0;
    st = td_model_open_source(&src, &cfg, &opt, out, err);
    td_checkpoint_close(ckpt);
    return st;
}

static td_status open_with(uint64_t bytes, uint32_t least, int32_t tp, td_model **out,
                           td_error *err)
{
    return open_options(
        (td_model_options){.tp = tp, .ep = tp, .device_bytes = bytes, .kv_pages_least = least}, out,
        err);
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

static void test_model_memory_is_refused_before_a_weight_is_read(void **state)
{
    (void)state;
    td_model *m = NULL;
    td_error err = {0};

    for (int32_t tp = 1; tp <= 2; tp++) {
        assert_int_equal(open_with((uint64_t)16 << 20, 1, tp, &m, &err), TD_INVALID);
        assert_int_equal(asked, 0);
        assert_int_equal(open_with((uint64_t)128 << 20, 1, tp, &m, &err), TD_OK);
        assert_true(asked > 0);
        td_model_close(m);
    }
}

/* What is planned is what loading takes, to the byte and for every split. */
static void test_model_memory_of_weights_is_known_before(void **state)
{
    const int32_t split[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}};
    td_model_config cfg = config_of_tiny();

    (void)state;
    for (size_t i = 0; i < sizeof split / sizeof split[0]; i++) {
        td_model *m = NULL;
        td_error err = {0};

        if (open_options((td_model_options){.tp = split[i][0], .ep = split[i][1]}, &m, &err) !=
            TD_OK)
            fail_msg("%s", err.text);
        for (int32_t r = 0; r < split[i][0]; r++) {
            td_shard s;

            assert_int_equal(td_shard_of(&cfg, split[i][0], split[i][1], r, &s, &err), TD_OK);
            assert_int_equal(td_rank_weights_plan(&td_ops_cpu, &cfg, &s, TD_EXPERTS_MXFP4).bytes,
                             td_model_memory_of(m, r).weights);
        }
        td_model_close(m);
    }
}

/* A device whose allocator gives whole numbers of 64 KiB: less is left for KV by what that costs.
 */
static void test_model_memory_counts_what_the_allocator_adds(void **state)
{
    const uint64_t budget = (uint64_t)128 << 20;
    td_ops coarse = td_ops_cpu;
    uint64_t all[2], pages[2];

    (void)state;
    coarse.alloc_grain = 64 << 10;
    assert_int_equal(td_alloc_rounding(&coarse, 65537), 65535);
    assert_int_equal(td_alloc_rounding(&coarse, 65536), 0);
    assert_int_equal(td_alloc_rounding(&coarse, 100), 0); /* shares a grain with others */
    for (int k = 0; k < 2; k++) {
        td_model *m = NULL;
        td_error err = {0};

        assert_int_equal(open_options((td_model_options){.tp = 1,
                                                         .ep = 1,
                                                         .device_bytes = budget,
                                                         .ops = k ? &coarse : NULL},
                                      &m, &err),
                         TD_OK);
        td_model_memory has = td_model_memory_of(m, 0);

        assert_true(k ? has.rounding > 0 : has.rounding == 0);
        all[k] = has.weights + has.work + has.rounding + has.kv;
        pages[k] = td_model_kv(m)->n_pages;
        assert_true(all[k] <= budget);
        td_model_close(m);
    }
    assert_true(pages[1] < pages[0]);
}

/* Logits of one row at a time are the same logits, in less memory: what a prefill worker needs. */
static void test_model_memory_of_logits_is_for_the_rows_that_are_asked_for(void **state)
{
    enum { N = 40 };
    td_model_config cfg = config_of_tiny();
    float *logits[2];
    uint64_t work[2];
    int32_t tokens[N], token[2];
    const uint32_t pages[1] = {0};
    const td_sampling greedy = {.top_p = 1};

    (void)state;
    for (int32_t i = 0; i < N; i++)
        tokens[i] = i * 7 % cfg.vocab;
    for (int k = 0; k < 2; k++) {
        td_model *m = NULL;
        td_error err = {0};

        assert_int_equal(
            open_options((td_model_options){.tp = 1, .ep = 1, .head_rows = k}, &m, &err), TD_OK);
        logits[k] = test_malloc((size_t)N * (size_t)cfg.vocab * sizeof(float));
        td_prefill_step step = {.tokens = tokens,
                                .n = N,
                                .seq = {.pages = pages, .n_pages = 1},
                                .sampling = &greedy,
                                .logits = logits[k]};
        if (td_model_prefill(m, &step, &err) != TD_OK)
            fail_msg("%s", err.text);
        token[k] = step.token;
        work[k] = td_model_memory_of(m, 0).work;
        td_model_close(m);
    }
    assert_int_equal(token[0], token[1]);
    assert_memory_equal(logits[0], logits[1], (size_t)N * (size_t)cfg.vocab * sizeof(float));
    assert_true(work[0] >= work[1] + (CHUNK - 1) * (size_t)cfg.vocab * sizeof(float));
    test_free(logits[0]);
    test_free(logits[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_memory_is_used_to_the_last_page_and_not_beyond),
        cmocka_unit_test(test_model_memory_gives_no_more_pages_than_are_wanted),
        cmocka_unit_test(test_model_memory_that_is_too_little_is_refused_with_the_numbers),
        cmocka_unit_test(test_model_memory_is_refused_before_a_weight_is_read),
        cmocka_unit_test(test_model_memory_of_weights_is_known_before),
        cmocka_unit_test(test_model_memory_counts_what_the_allocator_adds),
        cmocka_unit_test(test_model_memory_of_logits_is_for_the_rows_that_are_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
