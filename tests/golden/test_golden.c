/* The model against numbers from elsewhere: the specification's float64 model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "common/model.h"
#include "tests/golden/spec_model.h"

static void check_ok(td_status st, const td_error *err)
{
    if (st != TD_OK)
        fail_msg("%s: %s", td_status_name(st), err->text);
}

static const float spec_logits_0[11] = {0.047814f,  -0.968686f, 1.078066f, 2.149162f,
                                        0.616890f,  0.259895f,  1.904376f, 1.318702f,
                                        -0.327032f, 0.890893f,  2.428161f};
static const float spec_logits_5[11] = {2.904717f,  -0.642221f, -0.210725f, -3.957322f,
                                        1.364347f,  0.377571f,  -2.336242f, -0.147091f,
                                        -0.576451f, 0.741895f,  3.015943f};

static void spec_model_on(int32_t tp, int32_t ep)
{
    const int32_t tokens[6] = {3, 1, 4, 1, 5, 9}, argmax[6] = {10, 1, 8, 4, 9, 10};
    const uint32_t pages[1] = {1};
    td_model_options opt = {.backend = "cpu",
                            .tp = tp,
                            .ep = ep,
                            .threads = 2,
                            .kv_dtype = TD_KV_F32,
                            .kv_pages = 2,
                            .kv_rings = 2,
                            .ring_pages = 1,
                            .max_tokens = 6};
    td_sampling greedy = {0};
    float logits[6 * 11], again[11];
    int32_t out = 0;
    td_error err = {0};
    td_model *m = NULL;
    spec_model s;

    spec_model_init(&s);
    assert_int_equal(s.last_state, 0x094d0d78);
    assert_float_equal(s.data[TD_W_EMBED][0][0], -0.5278640985, 1e-7);
    assert_float_equal(s.data[TD_W_UNEMBED][0][87], -0.9273360968, 1e-7);
    td_weight_source src = spec_model_source(&s);
    check_ok(td_model_open_source(&src, &s.cfg, &opt, &m, &err), &err);
    td_prefill_step p = {.tokens = tokens,
                         .n = 6,
                         .seq = {.pages = pages, .n_pages = 1, .ring = 1},
                         .sampling = &greedy,
                         .logits = logits};
    check_ok(td_model_prefill(m, &p, &err), &err);
    for (int i = 0; i < 11; i++) {
        assert_float_equal(logits[i], spec_logits_0[i], 1e-5);
        assert_float_equal(logits[5 * 11 + i], spec_logits_5[i], 1e-5);
    }
    for (int t = 0; t < 6; t++) {
        int best = 0;

        for (int i = 1; i < 11; i++)
            best = logits[t * 11 + i] > logits[t * 11 + best] ? i : best;
        assert_int_equal(best, argmax[t]);
    }
    assert_int_equal(p.token, 10);
    /* The same six tokens one by one, as decode steps: the same bits. */
    for (int t = 0; t < 6; t++) {
        td_seq seq = {.pages = (const uint32_t[]){0}, .n_pages = 1, .ring = 0, .pos = t};
        td_decode_step d = {.n = 1,
                            .seqs = &seq,
                            .tokens = &tokens[t],
                            .sampling = &greedy,
                            .logits = again,
                            .out = &out};

        check_ok(td_model_decode(m, &d, &err), &err);
        assert_memory_equal(again, logits + t * 11, sizeof again);
        assert_int_equal(out, argmax[t]);
    }
    td_model_close(m);
    spec_model_fini(&s);
}

static void test_golden_spec_model_on_one_rank(void **state)
{
    (void)state;
    spec_model_on(1, 1);
}

static void test_golden_spec_model_on_two_ranks(void **state)
{
    (void)state;
    spec_model_on(2, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_spec_model_on_one_rank),
        cmocka_unit_test(test_golden_spec_model_on_two_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
