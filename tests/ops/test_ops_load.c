/* Loading: large matrices arrive whole through buffers that are used over and over, what does not
 * fit is refused with numbers, and what loading needed is given back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/harness.h"

enum { D = 512, STRIDE = 520, ROWS = 40000, T = 300 }; /* 41 MB: some buffers' worth */

/* Every element tells where it belongs; 256 values are exact in bf16. */
static float value(int32_t row, int32_t col)
{
    return (float)((row * 7 + row / 256 * 13 + col) % 256) - 128;
}

static uint16_t bf16_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

static void check_rows(harness *h, const td_matrix *table)
{
    int32_t *token = calloc(T, sizeof *token);
    float *got = host_floats(h, (size_t)T * D);
    void *out = dev_poison(h, (size_t)T * D * td_elt_bytes(h->ops->act));
    td_error err = {0};

    for (int32_t i = 0; i < T; i++) /* the first, the last, and some of each buffer */
        token[i] = i == 0 ? 0 : i == 1 ? ROWS - 1 : (int32_t)(random_bits(h) % ROWS);
    check_ok(h->ops->embed(
                 h->s,
                 &(td_embed_args){
                     .T = T, .D = D, .tokens = dev_i32(h, token, T), .table = table, .out = out},
                 &err),
             &err);
    read_elts(h, out, h->ops->act, (size_t)T * D, got);
    for (int32_t i = 0; i < T; i++)
        for (int32_t c = 0; c < D; c++)
            if (got[(size_t)i * D + (size_t)c] != value(token[i], c))
                fail_msg("row %d, column %d is %g, not %g", token[i], c,
                         (double)got[(size_t)i * D + (size_t)c], (double)value(token[i], c));
    free(token);
}

static void test_rows_arrive_through_buffers_that_are_used_again(void **state)
{
    harness *h = *state;
    uint16_t *host = malloc(sizeof *host * ROWS * STRIDE);
    const int32_t cut[] = {0, 1, 17000, ROWS};
    td_host_block block[3];
    td_error err = {0};

    assert_non_null(host);
    for (int32_t r = 0; r < ROWS; r++)
        for (int32_t c = 0; c < STRIDE; c++) /* what lies between the rows must not arrive */
            host[(size_t)r * STRIDE + (size_t)c] = c < D ? bf16_bits(value(r, c)) : 0x7fc0;
    for (int i = 0; i < 3; i++)
        block[i] = (td_host_block){host + (size_t)cut[i] * STRIDE, cut[i + 1] - cut[i], STRIDE};
    for (int round = 0; round < 2; round++) { /* the second after everything was given back */
        td_matrix m;

        check_ok(h->ops->load(h->dev, TD_FORM_ROWS, TD_ELT_BF16, block, 3, D, &m, &err), &err);
        check_rows(h, &m);
        h->ops->unload(&m);
        if (h->ops->load_done != NULL)
            h->ops->load_done(h->dev);
        harness_clear(h);
    }
    free(host);
}

static void test_memory_for_loading_is_given_back(void **state)
{
    harness *h = *state;
    enum { N = 64, K = 64 };
    static uint8_t blocks[N * K / 2], scales[N * K / 32];
    td_host_mxfp4 src = {.blocks = blocks,
                         .scales = scales,
                         .row_blocks = K / 2,
                         .row_scales = K / 32,
                         .E = 1,
                         .N = N,
                         .K = K};
    uint64_t before, during, after, all;
    td_matrix m;
    td_error err = {0};

    if (h->ops->dev_memory == NULL || h->ops->load_done == NULL || harness_small())
        skip(); /* a tool that watches takes memory too */
    memset(scales, 120, sizeof scales);
    h->ops->load_done(h->dev);
    check_ok(h->ops->dev_memory(0, &before, &all, &err), &err);
    check_ok(h->ops->load_mxfp4(h->dev, TD_FORM_DOWN, &src, TD_EXPERTS_MXFP4, &m, &err), &err);
    check_ok(h->ops->dev_memory(0, &during, &all, &err), &err);
    h->ops->unload(&m);
    h->ops->load_done(h->dev);
    check_ok(h->ops->dev_memory(0, &after, &all, &err), &err);
    assert_true(during + (8 << 20) < before); /* a buffer of 16 MiB at least */
    assert_true(after + (4 << 20) > before);
}

static void test_too_much_memory_is_refused_with_numbers(void **state)
{
    harness *h = *state;
    td_buffer b = {.ptr = &b};
    td_error err = {0};

    if (harness_small())
        skip(); /* a tool that watches reports it, as it should */
    assert_int_equal(h->ops->alloc(h->dev, (size_t)1 << 47, &b, &err), TD_NOMEM);
    assert_null(b.ptr);
    assert_non_null(strstr(err.text, "140737488355328 bytes"));
    if (h->ops->dev_memory != NULL)
        assert_non_null(strstr(err.text, "free"));
    check_ok(h->ops->alloc(h->dev, 4096, &b, &err), &err); /* and nothing is broken */
    h->ops->release(&b);
}

#ifdef __SANITIZE_ADDRESS__
/* It ends a program that asks for too much; here that is the test. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#endif

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_arrive_through_buffers_that_are_used_again),
        cmocka_unit_test(test_memory_for_loading_is_given_back),
        cmocka_unit_test(test_too_much_memory_is_refused_with_numbers),
    };

    return RUN_CHOSEN_TESTS(tests, harness_open, harness_close);
}
