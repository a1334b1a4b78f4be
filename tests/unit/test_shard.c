/* shard: every split of the published models and of small ones covers the model exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/shard.h"

static const td_model_config published = {.n_q_heads = 64,
                                          .n_kv_heads = 8,
                                          .head_dim = 64,
                                          .n_experts = 32,
                                          .inter = 2880,
                                          .hidden = 2880,
                                          .vocab = 201088};

static void check_split(const td_model_config *c, int32_t tp, int32_t ep)
{
    int32_t q = 0, kv = 0, vocab = 0, out_bias = 0, group = tp / ep;
    int32_t columns[128] = {0}, down_bias[128] = {0}; /* by expert */
    td_error err = {0};
    td_shard s;

    for (int32_t r = 0; r < tp; r++) {
        assert_int_equal(td_shard_of(c, tp, ep, r, &s, &err), TD_OK);
        assert_int_equal(s.q_first, q);
        assert_int_equal(s.kv_first, kv);
        assert_int_equal(s.vocab_first, vocab);
        assert_int_equal(s.n_q * c->n_kv_heads, s.n_kv * c->n_q_heads); /* whole groups */
        if (r % group == 0)
            assert_int_equal(s.inner_first, 0);
        else
            assert_int_equal(s.inner_first % TD_MXFP4_BLOCK, 0);
        assert_true(s.n_inner > 0);
        q += s.n_q;
        kv += s.n_kv;
        vocab += s.n_vocab;
        out_bias += s.adds_out_bias;
        for (int32_t e = s.expert_first; e < s.expert_first + s.n_experts; e++) {
            assert_int_equal(columns[e], s.inner_first);
            columns[e] += s.n_inner;
            down_bias[e] += s.adds_down_bias;
        }
    }
    assert_int_equal(q, c->n_q_heads);
    assert_int_equal(kv, c->n_kv_heads);
    assert_int_equal(vocab, c->vocab);
    assert_int_equal(out_bias, 1);
    for (int32_t e = 0; e < c->n_experts; e++) {
        assert_int_equal(columns[e], c->inter);
        assert_int_equal(down_bias[e], 1);
    }
}

static void test_shard_covers_the_model_once(void **state)
{
    td_model_config odd = published;

    (void)state;
    odd.vocab = 2049;
    odd.inter = 330; /* ten blocks and a piece */
    for (int32_t tp = 1; tp <= 8; tp *= 2)
        for (int32_t ep = 1; ep <= tp; ep *= 2) {
            check_split(&published, tp, ep);
            check_split(&odd, tp, ep);
        }
}

static void test_shard_splits_2880_in_blocks_as_specified(void **state)
{
    static const int32_t four[4] = {736, 736, 704, 704};
    static const int32_t eight[8] = {384, 384, 352, 352, 352, 352, 352, 352};
    td_error err = {0};
    td_shard s;

    (void)state;
    for (int32_t r = 0; r < 8; r++) {
        assert_int_equal(td_shard_of(&published, 8, 1, r, &s, &err), TD_OK);
        assert_int_equal(s.n_inner, eight[r]);
        assert_int_equal(td_shard_of(&published, 8, 2, r, &s, &err), TD_OK);
        assert_int_equal(s.n_inner, four[r % 4]);
        assert_int_equal(s.expert_first, r / 4 * 16);
    }
}

static void refused(const td_model_config *c, int32_t tp, int32_t ep, const char *param,
                    const char *text)
{
    td_error err = {0};
    td_shard s;

    assert_int_equal(td_shard_of(c, tp, ep, 0, &s, &err), TD_INVALID);
    assert_string_equal(err.param, param);
    if (strstr(err.text, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, err.text);
}

static void test_shard_refuses_splits_that_do_not_fit(void **state)
{
    td_model_config small = published;

    (void)state;
    refused(&published, 3, 1, "tp", "8 kv heads");
    refused(&published, 16, 1, "tp", "8 kv heads");
    refused(&published, 0, 1, "tp", "tp 0");
    refused(&published, 4, 3, "ep", "ep 3 does not divide tp 4");
    refused(&published, 4, 0, "ep", "ep 0");
    small.n_experts = 6;
    refused(&small, 8, 4, "ep", "6 experts");
    small.inter = 64;
    refused(&small, 8, 2, "ep", "only 2 blocks");
    small.vocab = 5;
    refused(&small, 8, 2, "tp", "vocabulary of 5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_covers_the_model_once),
        cmocka_unit_test(test_shard_splits_2880_in_blocks_as_specified),
        cmocka_unit_test(test_shard_refuses_splits_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
