/* The model's promises over splits, chunks and batches: the specification's check 11. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/model_fixture.h"

enum { PROMPT = 300, ANSWER = 24 };

static float *floats(size_t n)
{
    float *p = calloc(n, sizeof *p);

    assert_non_null(p);
    return p;
}

/* Prompt and answer on one rank: the reference for every split. */
typedef struct reference {
    float *prompt; /* [PROMPT, vocab] */
    float *answer; /* [ANSWER, vocab] */
    int32_t tokens[ANSWER + 1];
    fixture f;
} reference;

static int open_reference(void **state)
{
    reference *r = calloc(1, sizeof *r);
    size_t V = (size_t)fixture_config.vocab;

    assert_non_null(r);
    r->prompt = floats(PROMPT * V);
    r->answer = floats(ANSWER * V);
    r->f = fixture_open(1, 1, TD_KV_F32, PROMPT, 4);
    r->tokens[0] = fixture_prefill(&r->f, 1, 0, PROMPT, PROMPT, r->prompt);
    for (int32_t i = 0; i < ANSWER; i++)
        r->tokens[i + 1] =
            fixture_decode(&r->f, 1, PROMPT + i, r->tokens[i], r->answer + (size_t)i * V);
    *state = r;
    return 0;
}

static int close_reference(void **state)
{
    reference *r = *state;

    fixture_close(&r->f);
    free(r->prompt);
    free(r->answer);
    free(r);
    return 0;
}

/* Logits are of order one to ten; a duplicated bias shows as far more than this. */
static void check_logits(const float *got, const float *want, size_t n)
{
    double worst = 0;

    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, isnan(got[i]) ? INFINITY : fabs((double)got[i] - (double)want[i]));
    if (!(worst < 2e-4))
        fail_msg("logits differ by %.3g", worst);
}

static void check_split(const reference *r, int32_t tp, int32_t ep)
{
    size_t V = (size_t)fixture_config.vocab;
    float *prompt = floats(PROMPT * V), *row = floats(V);
    fixture f = fixture_open(tp, ep, TD_KV_F32, PROMPT, 4);
    int32_t token = fixture_prefill(&f, 2, 0, PROMPT, PROMPT, prompt);

    check_logits(prompt, r->prompt, PROMPT * V);
    for (int32_t i = 0; i < ANSWER; i++) {
        assert_int_equal(token, r->tokens[i]);
        token = fixture_decode(&f, 2, PROMPT + i, token, row);
        check_logits(row, r->answer + (size_t)i * V, V);
    }
    fixture_close(&f);
    free(prompt);
    free(row);
}

static void test_split_tp_without_ep(void **state)
{
    check_split(*state, 2, 1);
    check_split(*state, 4, 1);
    check_split(*state, 8, 1);
}

static void test_split_whole_experts(void **state)
{
    check_split(*state, 2, 2);
    check_split(*state, 4, 4);
    check_split(*state, 8, 8);
}

static void test_split_groups_of_experts(void **state)
{
    check_split(*state, 4, 2);
    check_split(*state, 8, 2);
    check_split(*state, 8, 4);
}

static void test_split_chunks_do_not_show(void **state)
{
    static const int32_t chunks[] = {1, 3, 63, 64, 65, 127, 128, 129, 299};
    const reference *r = *state;
    size_t V = (size_t)fixture_config.vocab;
    float *prompt = floats(PROMPT * V);
    fixture f = fixture_open(1, 1, TD_KV_F32, PROMPT, 4);

    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        memset(prompt, 0xff, PROMPT * V * sizeof *prompt);
        assert_int_equal(fixture_prefill(&f, 3, 0, PROMPT, chunks[i], prompt), r->tokens[0]);
        assert_memory_equal(prompt, r->prompt, PROMPT * V * sizeof *prompt);
    }
    fixture_close(&f);
    free(prompt);
}

static void test_split_the_number_of_threads_does_not_show(void **state)
{
    const reference *r = *state;
    size_t V = (size_t)fixture_config.vocab;
    float *prompt = floats(PROMPT * V), *row = floats(V);

    for (int32_t threads = 1; threads <= 5; threads += 2) {
        fixture f = fixture_open_threads(1, 1, TD_KV_F32, PROMPT, 4, threads);

        assert_int_equal(fixture_prefill(&f, 0, 0, PROMPT, PROMPT, prompt), r->tokens[0]);
        assert_memory_equal(prompt, r->prompt, PROMPT * V * sizeof *prompt);
        fixture_decode(&f, 0, PROMPT, r->tokens[0], row);
        assert_memory_equal(row, r->answer, V * sizeof *row);
        fixture_close(&f);
    }
    free(prompt);
    free(row);
}

/* Prefill n, move the keys and values to a decode worker of another split with rings of the least
 * size, decode one token: bit for bit what prefilling n + 1 gives there. */
static void moved_equals_prefilled(int32_t n, int32_t tp, int32_t ep, int32_t to_tp, int32_t to_ep,
                                   td_kv_dtype kv)
{
    size_t V = (size_t)fixture_config.vocab;
    float *got = floats(V), *want = floats(V);
    fixture a = fixture_open(tp, ep, kv, 512, 4), b = fixture_open(to_tp, to_ep, kv, 1, 3);
    fixture c = fixture_open(to_tp, to_ep, kv, 512, 4);
    int32_t next = fixture_token(n), x, y;

    fixture_prefill(&a, 3, 0, n, 512, NULL);
    fixture_transfer(&a, 3, &b, 2, n);
    x = fixture_decode(&b, 2, n, next, got);
    fixture_prefill(&c, 0, 0, n, 500, NULL);
    y = fixture_prefill(&c, 0, n, n + 1, 1, want);
    if (tp == to_tp && ep == to_ep) {
        assert_memory_equal(got, want, V * sizeof *got);
        assert_int_equal(x, y);
    } else if (kv == TD_KV_F32) {
        check_logits(got, want, V);
    }
    fixture_close(&a);
    fixture_close(&b);
    fixture_close(&c);
    free(got);
    free(want);
}

static void test_split_prefill_then_decode_equals_longer_prefill(void **state)
{
    static const int32_t lengths[] = {1, 63, 64, 126, 127, 128, 129, 191, 192, 193};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        moved_equals_prefilled(lengths[i], 1, 1, 1, 1, i % 2 ? TD_KV_F32 : TD_KV_BF16);
    moved_equals_prefilled(4095, 1, 1, 1, 1, TD_KV_BF16);
    moved_equals_prefilled(4096, 1, 1, 1, 1, TD_KV_BF16);
    moved_equals_prefilled(150, 2, 2, 2, 2, TD_KV_BF16);
    moved_equals_prefilled(150, 8, 1, 4, 4, TD_KV_F32);
    moved_equals_prefilled(200, 1, 1, 4, 2, TD_KV_F32);
    moved_equals_prefilled(128, 4, 1, 2, 2, TD_KV_F32);
}

/* 64 sequences of all lengths in one batch, each bit for bit what it is alone. */
static void batch_equals_alone(int32_t tp, int32_t ep)
{
    enum { N = 64 };
    size_t V = (size_t)fixture_config.vocab;
    float *together = floats(N * V), *alone = floats(V);
    fixture f = fixture_open(tp, ep, TD_KV_BF16, 1, N + 4);
    static uint32_t pages[N][5];
    td_seq seqs[N];
    td_sampling sampling[N];
    int32_t tokens[N], out[N], one;
    td_error err = {0};

    for (int32_t i = 0; i < N;
         i++) { /* caches of random numbers do: all that matters is equality */
        int32_t pos = (i * 37 + (i % 7 ? 0 : 127)) % 320;

        for (uint32_t p = 0; p < 5; p++)
            pages[i][p] = (uint32_t)i * 5 + p;
        seqs[i] = (td_seq){.pages = pages[i], .n_pages = 5, .ring = (uint32_t)i, .pos = pos};
        tokens[i] = fixture_token(i);
        sampling[i] = (td_sampling){
            .temperature = i % 2 ? 1.0f : 0, .top_p = 0.95f, .seed = (uint64_t)i, .index = 9};
    }
    for (int32_t r = 0; r < tp; r++) {
        uint16_t *kv = td_model_kv_base(f.m, r);
        uint64_t n = td_model_kv(f.m)->region_bytes / 2;

        for (uint64_t i = 0; i < n; i++) /* bf16 of magnitude 0.25 to 2, either sign */
            kv[i] = (uint16_t)(0x3e80 + (i * 2654435761u >> 9) % 0x180 + (i % 3 ? 0 : 0x8000));
    }
    td_decode_step d = {.n = N,
                        .seqs = seqs,
                        .tokens = tokens,
                        .sampling = sampling,
                        .logits = together,
                        .out = out};
    check_ok(td_model_decode(f.m, &d, &err), &err);
    for (int32_t i = 0; i < N; i++) {
        td_decode_step s = {.n = 1,
                            .seqs = &seqs[i],
                            .tokens = &tokens[i],
                            .sampling = &sampling[i],
                            .logits = alone,
                            .out = &one};

        check_ok(td_model_decode(f.m, &s, &err), &err);
        assert_memory_equal(alone, together + (size_t)i * V, V * sizeof *alone);
        assert_int_equal(one, out[i]);
    }
    fixture_close(&f);
    free(together);
    free(alone);
}

static void test_split_a_batch_does_not_show(void **state)
{
    (void)state;
    batch_equals_alone(1, 1);
    batch_equals_alone(4, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_tp_without_ep),
        cmocka_unit_test(test_split_whole_experts),
        cmocka_unit_test(test_split_groups_of_experts),
        cmocka_unit_test(test_split_chunks_do_not_show),
        cmocka_unit_test(test_split_the_number_of_threads_does_not_show),
        cmocka_unit_test(test_split_prefill_then_decode_equals_longer_prefill),
        cmocka_unit_test(test_split_a_batch_does_not_show),
    };
    return cmocka_run_group_tests(tests, open_reference, close_reference);
}
