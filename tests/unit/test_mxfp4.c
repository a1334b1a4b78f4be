#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/mxfp4.h"

static const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* The format's definition, in double and bit by bit: sign, two exponent bits, one mantissa bit. */
static double formula(unsigned code, int scale)
{
    int e = (code >> 1) & 3;
    int m = code & 1;
    double v = e == 0 ? m * 0.5 : ldexp(1 + m * 0.5, e - 1);

    return ldexp(code & 8 ? -v : v, scale - 127);
}

static void test_mxfp4_worked_example(void **state)
{
    static const float at_122[8] = {0.015625f, 0.03125f, 0.046875f, 0.0625f,
                                    0.09375f,  0.125f,   0.1875f,   -0.0f};
    static const float at_127[8] = {0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f};
    uint8_t codes[16] = {0x21, 0x43, 0x65, 0x87};
    uint8_t scale = 122;
    float out[32];

    (void)state;
    td_mxfp4_decode_row(codes, &scale, 32, out);
    assert_memory_equal(out, at_122, sizeof at_122); /* bits, so that -0 counts */
    for (int i = 8; i < 32; i++)
        assert_true(out[i] == 0 && !signbit(out[i]));
    scale = 127;
    td_mxfp4_decode_row(codes, &scale, 32, out);
    assert_memory_equal(out, at_127, sizeof at_127);
}

static void test_mxfp4_every_byte_in_every_place_and_scale(void **state)
{
    static const int scales[] = {0, 1, 3, 119, 126, 127, 128, 135, 252};

    (void)state;
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            uint8_t codes[32], scale[2] = {(uint8_t)scales[s], 127};
            float out[64];

            for (unsigned i = 0; i < 32; i++)
                codes[i] = (uint8_t)(byte + i);
            td_mxfp4_decode_row(codes, scale, 64, out);
            for (unsigned i = 0; i < 32; i++) {
                int sc = i < 16 ? scales[s] : 127;

                assert_true((double)out[2 * i] == formula(codes[i] & 15, sc));
                assert_true((double)out[2 * i + 1] == formula(codes[i] >> 4, sc));
                assert_int_equal(!signbit(out[2 * i]), !(codes[i] & 8));
            }
        }
    }
}

static void test_mxfp4_codes_are_the_published_table(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 8; c++) {
        assert_true((double)td_mxfp4_code(c) == magnitude[c]);
        assert_true((double)td_mxfp4_code(c + 8) == -magnitude[c]);
        assert_true((double)td_mxfp4_code(c + 16) == magnitude[c]);
    }
    assert_true(signbit(td_mxfp4_code(8)));
}

static void test_e8m0_is_a_power_of_two_for_every_byte(void **state)
{
    (void)state;
    for (int s = 0; s < 255; s++) {
        assert_true((double)td_e8m0_to_float((uint8_t)s) == ldexp(1, s - 127));
        assert_int_equal(td_e8m0_of_exponent(s - 127), s);
    }
    assert_true(isnan(td_e8m0_to_float(255)));
    assert_int_equal(td_e8m0_of_exponent(-200), 0);
    assert_int_equal(td_e8m0_of_exponent(200), 254);
}

static void test_e8m0_nan_makes_its_block_nan_and_is_counted(void **state)
{
    uint8_t codes[32], scales[2] = {255, 127};
    float out[64];

    (void)state;
    memset(codes, 0x22, sizeof codes);
    td_mxfp4_decode_row(codes, scales, 64, out);
    for (int i = 0; i < 32; i++) {
        assert_true(isnan(out[i]));
        assert_true(out[32 + i] == 1.0f);
    }
    assert_int_equal(td_e8m0_count_nan(scales, 2), 1);
    assert_int_equal(td_e8m0_count_nan(scales, 0), 0);
}

static void test_mxfp4_quantize_takes_the_nearest_and_even_ties(void **state)
{
    /* With 4 in the block the scale is 1, so x is what is rounded. */
    static const struct {
        float x, want;
    } cases[] = {
        {0.24f, 0},   {0.25f, 0},   {0.26f, 0.5f},    {0.74f, 0.5f}, {0.75f, 1},  {1.2f, 1},
        {1.25f, 1},   {1.3f, 1.5f}, {1.75f, 2},       {1.74f, 1.5f}, {2.5f, 2},   {2.51f, 3},
        {3.5f, 4},    {3.49f, 3},   {5, 4},           {5.1f, 6},     {7.9f, 6},   {-0.25f, 0},
        {-0.75f, -1}, {-2.5f, -2},  {-5.000001f, -6}, {-7.9f, -6},   {1e-30f, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float x[32] = {4, 0}, back[32];
        uint8_t codes[16], scale;

        x[1 + i % 31] = cases[i].x;
        td_mxfp4_quantize_row(x, 32, codes, &scale);
        assert_int_equal(scale, 127);
        td_mxfp4_decode_row(codes, &scale, 32, back);
        if (back[1 + i % 31] != cases[i].want)
            fail_msg("%g became %g, not %g", (double)cases[i].x, (double)back[1 + i % 31],
                     (double)cases[i].want);
        assert_true(back[0] == 4);
    }
}

static void test_mxfp4_quantize_of_decoded_is_exact(void **state)
{
    uint32_t z = 1;

    (void)state;
    for (int s = 0; s <= 252; s++) {
        uint8_t codes[32], scales[2], codes2[32], scales2[2];
        float a[64], b[64];

        for (int i = 0; i < 32; i++) {
            z = z * 1664525u + 1013904223u;
            codes[i] = (uint8_t)(z >> 24);
        }
        /* One block of every code, one with small codes only: its exponent is chosen anew. */
        for (int i = 16; i < 32; i++)
            codes[i] &= 0x99;
        scales[0] = scales[1] = (uint8_t)s;
        td_mxfp4_decode_row(codes, scales, 64, a);
        td_mxfp4_quantize_row(a, 64, codes2, scales2);
        td_mxfp4_decode_row(codes2, scales2, 64, b);
        if (memcmp(a, b, sizeof a) != 0)
            fail_msg("scale %d", s);
    }
}

static void test_mxfp4_quantize_of_extremes(void **state)
{
    float x[32] = {0}, back[32];
    uint8_t codes[16], scale;

    (void)state;
    td_mxfp4_quantize_row(x, 32, codes, &scale);
    assert_int_equal(scale, 127);
    for (int i = 0; i < 16; i++)
        assert_int_equal(codes[i], 0);
    x[3] = 3.4028234e38f; /* the largest float: finite and within one step after */
    td_mxfp4_quantize_row(x, 32, codes, &scale);
    td_mxfp4_decode_row(codes, &scale, 32, back);
    assert_true(isfinite(back[3]) && back[3] >= 2.5e38f);
    x[3] = 1e-45f; /* the smallest: below every scale, so 0 */
    td_mxfp4_quantize_row(x, 32, codes, &scale);
    assert_int_equal(scale, 0);
    td_mxfp4_decode_row(codes, &scale, 32, back);
    assert_true(back[3] == 0);
    x[3] = INFINITY;
    td_mxfp4_quantize_row(x, 32, codes, &scale);
    assert_int_equal(scale, TD_E8M0_NAN);
    x[3] = NAN;
    td_mxfp4_quantize_row(x, 32, codes, &scale);
    assert_int_equal(scale, TD_E8M0_NAN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mxfp4_worked_example),
        cmocka_unit_test(test_mxfp4_every_byte_in_every_place_and_scale),
        cmocka_unit_test(test_mxfp4_codes_are_the_published_table),
        cmocka_unit_test(test_e8m0_is_a_power_of_two_for_every_byte),
        cmocka_unit_test(test_e8m0_nan_makes_its_block_nan_and_is_counted),
        cmocka_unit_test(test_mxfp4_quantize_takes_the_nearest_and_even_ties),
        cmocka_unit_test(test_mxfp4_quantize_of_decoded_is_exact),
        cmocka_unit_test(test_mxfp4_quantize_of_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
