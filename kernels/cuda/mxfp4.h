/* mxfp4: how packed weights lie on the device, for kernels and for tests on the host.
 *
 * A unit is 16 rows by 64 columns: 544 bytes, of which 512 are codes and 32 are scales. Units
 * follow each other along K, then along N, so that 16 rows, a slab, are one stream of K / 64 units.
 *
 *   codes  [8 rows][4 quads][2 blocks][2 halves] u32   a block is 32 columns; half 1: 8 rows on
 *   scales [8 rows][2 blocks][2 halves]          u8    0 .. 127; the factor is 2^(scale - 127)
 *
 * Lane 4 row + q of a warp finds all that it feeds to four mma.m16n8k16 in 16 bytes, and the scales
 * for it in 4.
 *
 * A word holds eight columns, those of two of the mma: pair i = 0..3 is columns 8 i + 2 q and
 * 8 i + 2 q + 1 of the block, the even one in the low half.
 * Within a half, three pairs lie where one shift and one mask bring them to a bf16's sign, lowest
 * exponent bits and highest mantissa bit; the fourth has the four bits left over:
 *
 *   bit    15  14  13  12  11  10   9   8   7   6   5   4   3   2   1   0
 *   pair   0s  3s  32  1s  31  30  2s  02  01  00  12  11  10  22  21  20
 *
 * A code's bits there make a bf16 of value x 2^-126, subnormals included; one multiplication by
 * 2^(scale - 1) brings value and scale at once, exactly.
 *
 * Checkpoint scales may be 0 .. 254. They are stored less `shift` = the largest - 127; the product
 * is multiplied by 2^shift. A block whose scale is more than 127 below the largest becomes zeros:
 * next to the largest its weights are under 2^-124. */
#ifndef TANDEM_KERNELS_CUDA_MXFP4_H
#define TANDEM_KERNELS_CUDA_MXFP4_H

#include <stddef.h>
#include <stdint.h>

enum { TD_MX_ROWS = 16, TD_MX_COLS = 64, TD_MX_CODES = 512, TD_MX_UNIT = 544 };

#ifdef __CUDACC__
#define TD_HD __host__ __device__ __forceinline__
#else
#define TD_HD static inline
#endif

TD_HD int64_t td_mx_slabs(int32_t N)
{
    return ((int64_t)N + TD_MX_ROWS - 1) / TD_MX_ROWS;
}
TD_HD int64_t td_mx_units(int32_t K)
{
    return ((int64_t)K + TD_MX_COLS - 1) / TD_MX_COLS;
}
TD_HD size_t td_mx_bytes(int32_t N, int32_t K)
{
    return (size_t)(td_mx_slabs(N) * td_mx_units(K)) * TD_MX_UNIT;
}

/* One code at its place in a half: pair 0..3. */
TD_HD uint32_t td_mx_place(uint32_t code, int pair)
{
    switch (pair) {
    case 0: return (code & 8) << 12 | (code & 7) << 6;
    case 1: return (code & 8) << 9 | (code & 7) << 3;
    case 2: return (code & 8) << 6 | (code & 7);
    default: return (code & 8) << 11 | (code & 4) << 11 | (code & 3) << 10;
    }
}

/* Pair i of a word as two bf16 of value x 2^-126. */
TD_HD uint32_t td_mx_pair(uint32_t w, int i)
{
    switch (i) {
    case 0: return w & 0x81c081c0u;
    case 1: return w << 3 & 0x81c081c0u;
    case 2: return w << 6 & 0x81c081c0u;
    default: return (w << 1 & 0x80008000u) | (w >> 5 & 0x01000100u) | (w >> 4 & 0x00c000c0u);
    }
}

/* 2^(scale - 1) in both halves of a bf16 pair, for scale 0 .. 127. */
TD_HD uint32_t td_mx_factor(uint32_t scale)
{
    return scale * 0x00800080u + 0x3f003f00u;
}

/* Where in a unit the word of lane q for a row 0 .. 15 and a block 0, 1 is, and the scale. */
TD_HD int td_mx_word_at(int row, int q, int block)
{
    return ((row % 8 * 4 + q) * 2 + block) * 8 + row / 8 * 4;
}
TD_HD int td_mx_scale_at(int row, int block)
{
    return TD_MX_CODES + (row % 8 * 2 + block) * 2 + row / 8;
}

/* Word (q, block) of a row from the block's 16 bytes as shipped: column 2 i in the low nibble of
 * byte i. */
TD_HD uint32_t td_mx_word(const uint8_t *block, int q)
{
    uint32_t w = 0;

    for (int i = 0; i < 4; i++) {
        uint32_t byte = block[4 * i + q];

        w |= td_mx_place(byte & 15, i) | td_mx_place(byte >> 4, i) << 16;
    }
    return w;
}

#endif
