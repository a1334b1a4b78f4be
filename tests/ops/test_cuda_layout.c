/* Arithmetic of the CUDA backend that needs no GPU: how MXFP4 weights are laid out, which tile and
 * which chunk a shape gets. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/mxfp4.h"
#include "kernels/cuda/tune.h"

static double bf16(uint32_t half)
{
    uint32_t u = (half & 0xffff) << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static double code_value(uint32_t code)
{
    static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

    return code & 8 ? -value[code & 7] : value[code & 7];
}

static void test_mxfp4_pairs_are_codes_and_scales(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        for (uint32_t lo = 0; lo < 16; lo++)
            for (uint32_t hi = 0; hi < 16; hi++) {
                uint32_t others = 0, w, p;

                for (int j = 0; j < 4; j++) /* what else is in the word must not show */
                    if (j != i)
                        others |= td_mx_place(15 - lo, j) | td_mx_place(15 - hi, j) << 16;
                w = others | td_mx_place(lo, i) | td_mx_place(hi, i) << 16;
                p = td_mx_pair(w, i);
                assert_true(bf16(p) == ldexp(code_value(lo), -126));
                assert_true(bf16(p >> 16) == ldexp(code_value(hi), -126));
            }
    for (uint32_t scale = 0; scale <= 127; scale++) {
        assert_true(bf16(td_mx_factor(scale)) == ldexp(1, (int)scale - 1));
        assert_int_equal(td_mx_factor(scale) >> 16, td_mx_factor(scale) & 0xffff);
    }
}

/* Lane q of a quad holds columns 8 i + 2 q and the next in pair i: mma's b operand, two steps. */
static void test_mxfp4_words_hold_a_lanes_columns(void **state)
{
    uint8_t block[16];

    (void)state;
    for (int i = 0; i < 16; i++) /* column c has a code of its own, up to 16 */
        block[i] = (uint8_t)((2 * i % 16) | (2 * i + 1) % 16 << 4);
    for (int q = 0; q < 4; q++)
        for (int i = 0; i < 4; i++) {
            uint32_t p = td_mx_pair(td_mx_word(block, q), i), column = (uint32_t)(8 * i + 2 * q);

            assert_true(bf16(p) == ldexp(code_value(column % 16), -126));
            assert_true(bf16(p >> 16) == ldexp(code_value((column + 1) % 16), -126));
        }
    assert_int_equal(td_mx_bytes(2880, 2880), 2880 / 16 * 45 * 544); /* as published: no padding */
    assert_int_equal(td_mx_bytes(17, 96), 2 * 2 * 544);
}

/* A unit's words and scales fill it, each once; a lane's four words lie together, as its scales. */
static void test_mxfp4_units_are_full(void **state)
{
    uint8_t seen[TD_MX_UNIT] = {0};

    (void)state;
    for (int r = 0; r < TD_MX_ROWS; r++)
        for (int b = 0; b < 2; b++) {
            for (int q = 0; q < 4; q++) {
                assert_int_equal(td_mx_word_at(r, q, b) / 16, r % 8 * 4 + q);
                for (int i = 0; i < 4; i++)
                    seen[td_mx_word_at(r, q, b) + i]++;
            }
            assert_int_equal((td_mx_scale_at(r, b) - TD_MX_CODES) / 4, r % 8);
            seen[td_mx_scale_at(r, b)]++;
        }
    for (int i = 0; i < TD_MX_UNIT; i++)
        assert_int_equal(seen[i], 1);
}

static void test_tune_cuts_few_chunks_of_any_length(void **state)
{
    (void)state;
    for (int32_t K = 1; K <= 16; K *= 2)
        for (int32_t pages = 0, last = 0; pages < 1 << 14; pages++) {
            int32_t log2 = td_tune_chunks_log2(K), chunk = td_tune_chunk_pages(pages, log2);

            assert_in_range(1 << log2, 1, TD_TUNE_CHUNKS);
            assert_true((pages + chunk - 1) / chunk <= 1 << log2);
            assert_true(chunk >= last);
            last = chunk;
        }
}

static void test_tune_bounds_the_tiles_of_any_spread(void **state)
{
    static const td_tile_size sizes[] = {TD_TILE_16X32, TD_TILE_64X64, TD_TILE_128X128};
    uint32_t bits = 1;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        int32_t E = 1 + round % 40, left, rows;
        int64_t pairs = round % 700, tiles = 0;
        td_tile_size size = sizes[round % 3];

        rows = td_tile_rows(size);
        left = (int32_t)pairs;
        for (int32_t e = 0; e < E; e++) {
            int32_t n;

            bits = bits * 1664525 + 1013904223;
            n = e == E - 1 || left == 0 ? left : (int32_t)((bits >> 8) % (uint32_t)left + 1);
            tiles += (n + rows - 1) / rows;
            left -= n;
        }
        assert_true(tiles <= td_tune_most_tiles(pairs, E, size));
    }
    assert_int_equal(td_tune_gemm(1, 5120), TD_TILE_16X32);
    assert_int_equal(td_tune_gemm(64, 5120), TD_TILE_64X64);
    assert_int_equal(td_tune_gemm(8192, 5120), TD_TILE_128X128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mxfp4_pairs_are_codes_and_scales),
        cmocka_unit_test(test_mxfp4_words_hold_a_lanes_columns),
        cmocka_unit_test(test_mxfp4_units_are_full),
        cmocka_unit_test(test_tune_cuts_few_chunks_of_any_length),
        cmocka_unit_test(test_tune_bounds_the_tiles_of_any_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
