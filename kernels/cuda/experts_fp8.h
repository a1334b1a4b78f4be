/* experts_fp8: experts whose weights and activations are e4m3: how they lie on the device.
 *
 * Weights, E matrices of N rows by K columns (K a multiple of 32):
 *
 *   code   [E][N', K]        e4m3  N': N in whole groups of 64 rows; zeros after the last row
 *   scale  [E][KB][NT][4]    f32   powers of two: KB blocks of 128 columns, NT tiles of 192 rows;
 *                                  one for each 64 rows of a tile, the fourth is not used
 *
 * A weight is code * scale. Why 64 x 128 and not 128 x 128: 192 rows is the widest tile whose raw
 * and promoted sums fit in registers, and it straddles no 64-row scale; half as many shipped
 * exponents (256) must share one. A tile's four floats are one 16-byte copy.
 *
 * Within a group of 64, row 16 q + 2 j + s is stored as row 8 j + 2 q + s (q 0..3, j 0..7, s 0..1).
 * Lane q of a quad holds columns 2 q and 2 q + 1 of every eight of a product, hence 16 consecutive
 * ones as loaded: it writes its results in whole words, and gate (even rows) and up (odd) meet in
 * one thread.
 *
 * A step's workspace. P = T k pairs (token, choice) take R rows, grouped by expert; an expert
 * begins at a multiple of 4, because a tensor copy of scales begins at a multiple of 16 bytes
 * (elsewhere the copy is an illegal instruction). What lies between experts is never looked at.
 *
 *   x8     [R, pitch(D)]     e4m3  t[token] / x8_scale, by token and 128 columns
 *   x8_scale [KB(D)][R]      f32   largest magnitude / 448
 *   h8     [R, pitch(I)]     e4m3  swiglu(...) * h_scale: the clamp bounds it, so the factor is
 *                                  known beforehand (8 for a limit of 7) and nothing saturates
 *   y      [R, D]            bf16  what each pair adds, before the router's weight
 *   place  [P]               i32   the row of pair i; -1: its expert is not on this rank
 *   plan   [4][E + 1]        i32   an expert's first row, its rows, and the units of work of
 *                                  either product before it */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_FP8_H
#define TANDEM_KERNELS_CUDA_EXPERTS_FP8_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TD_FP8_GROUP = 64,  /* rows of weights that share scales, and within which they are reordered */
    TD_FP8_BLOCK = 128, /* columns that share a scale: one step of the pipeline */
    TD_FP8_ROWS = 128,  /* of activations in a tile */
    TD_FP8_COLS = 192   /* rows of weights in a tile */
};

/* TD_HD is mxfp4.h's: host and device. */
TD_HD int32_t td_fp8_blocks(int32_t K)
{
    return (K + TD_FP8_BLOCK - 1) / TD_FP8_BLOCK;
}
TD_HD int32_t td_fp8_tiles(int32_t N)
{
    return (N + TD_FP8_COLS - 1) / TD_FP8_COLS;
}
TD_HD int32_t td_fp8_rows(int32_t N)
{
    return (N + TD_FP8_GROUP - 1) / TD_FP8_GROUP * TD_FP8_GROUP;
}
/* Bytes from one row of x8 or h8 to the next: rows begin with a cache line. */
TD_HD int64_t td_fp8_pitch(int32_t n)
{
    return ((int64_t)n + 127) / 128 * 128;
}
/* Where row `row` of an expert is stored. */
TD_HD int32_t td_fp8_place(int32_t row)
{
    return (row & ~63) | (row >> 1 & 7) << 3 | (row >> 4 & 3) << 1 | (row & 1);
}

/* R: a multiple of 4. */
static inline int64_t td_fp8_most_rows(int64_t pairs, int32_t E)
{
    return (pairs + 3 * (pairs < E ? pairs : E) + 3) / 4 * 4;
}

/* Offsets in td_matrix.mem: codes from 0 on, then these. */
typedef struct td_fp8_layout {
    size_t scale, inexact, bytes; /* inexact: a u64 that loading counts in */
} td_fp8_layout;

static inline td_fp8_layout td_fp8_layout_of(int32_t E, int32_t N, int32_t K)
{
    td_fp8_layout l;

    l.scale = ((size_t)E * (size_t)td_fp8_rows(N) * (size_t)K + 255) / 256 * 256;
    l.inexact = l.scale + (size_t)E * (size_t)td_fp8_blocks(K) * (size_t)td_fp8_tiles(N) * 16;
    l.bytes = l.inexact + sizeof(uint64_t);
    return l;
}

typedef struct td_fp8_ws {
    uint8_t *x8, *h8;
    float *x8_scale;
    uint16_t *y;
    int32_t *place, *plan;
} td_fp8_ws;

static inline td_fp8_ws td_fp8_cut_ws(char *base, int64_t pairs, int32_t D, int32_t I, int32_t E,
                                      size_t *bytes)
{
    const size_t R = (size_t)td_fp8_most_rows(pairs, E);
    cuda_ws w = {base};
    td_fp8_ws s;

    s.x8 = (uint8_t *)td_cuda_ws_take(&w, R * (size_t)td_fp8_pitch(D));
    s.h8 = (uint8_t *)td_cuda_ws_take(&w, R * (size_t)td_fp8_pitch(I));
    s.x8_scale = (float *)td_cuda_ws_take(&w, R * (size_t)td_fp8_blocks(D) * sizeof(float));
    s.y = (uint16_t *)td_cuda_ws_take(&w, R * (size_t)D * 2);
    s.place = (int32_t *)td_cuda_ws_take(&w, (size_t)pairs * sizeof(int32_t));
    s.plan = (int32_t *)td_cuda_ws_take(&w, 4 * ((size_t)E + 1) * sizeof(int32_t));
    *bytes = (size_t)(w.next - base);
    return s;
}

/* What h8 is multiplied by: the largest power of two at which the largest |swiglu| that `limit`
 * allows, limit * (limit + 1), stays a finite e4m3. TD_INVALID: a limit that bounds nothing. */
TD_MUST_CHECK td_status td_fp8_h_scale(float limit, float *scale, td_error *err);

/* Rows `row` .. row + rows of expert e, from blocks and scales as shipped and on the device, one
 * row after the other. row is a multiple of 64, as is rows except at the end. */
td_status td_cuda_pack_fp8(cudaStream_t s, const uint8_t *blocks, const uint8_t *scales,
                           const td_matrix *m, int32_t e, int32_t row, int32_t rows, td_error *err);

size_t td_cuda_experts_fp8_ws(int32_t T, int32_t D, int32_t I, int32_t E, int32_t k);
/* td_cuda_experts() for matrices in FP8. Row bits depend on nothing but the row, for any T. */
td_status td_cuda_experts_fp8(td_stream *s, const td_experts_args *a, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
