/* cases: the shapes that every backend's steps are tested with, and how close they must come.
 *
 * One list for all: the CPU and the GPU are compared with float64 on these, and benchmarks time
 * them. An error is measured against the largest magnitude in the reference result. */
#ifndef TANDEM_TESTS_OPS_CASES_H
#define TANDEM_TESTS_OPS_CASES_H

#include <stdint.h>

#include "kernels/ops.h"

/* What a backend's element type allows: f32 activations, or bf16 with one rounding a stage. */
typedef struct ops_tolerance {
    double dense;  /* projections, head: one sum and one rounding */
    double attn;   /* scores, softmax, weighted sum; many keys average to little, errors do not */
    double expert; /* two sums with an activation between them */
    double norm;
} ops_tolerance;

static const ops_tolerance tolerance_f32 = {4e-6, 6e-6, 1e-5, 2e-6};
static const ops_tolerance tolerance_bf16 = {8e-3, 1e-2, 2e-2, 8e-3};

typedef struct dense_case {
    int32_t T, N, K; /* out [T, N] = x [T, K] */
} dense_case;

static const dense_case dense_cases[] = {
    {1, 1, 2},       {1, 32, 64},     {3, 63, 65},    {2, 33, 1},      {12, 64, 192},
    {13, 65, 193},   {63, 127, 63},   {65, 129, 127}, {127, 31, 384},  {128, 96, 129},
    {129, 257, 200}, {1, 2880, 4096}, {5, 2880, 512}, {64, 320, 2880}, {300, 40, 72},
};

typedef struct attn_in_case {
    int32_t T, D, H, K, d;
} attn_in_case;

static const attn_in_case attn_in_cases[] = {
    {1, 8, 4, 2, 4},     {3, 63, 2, 1, 6},    {65, 127, 8, 8, 16},
    {129, 96, 4, 2, 64}, {1, 2880, 8, 1, 64}, {7, 256, 16, 8, 64},
};

/* Where kernels, their tiles and their number of blocks change. */
static const int32_t step_rows[] = {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 127, 128, 129, 200, 513};
/* Sequences with `pos` tokens cached, then T queries. */
typedef struct attn_case {
    int32_t T, pos, H, K, d, window;
} attn_case;

static const attn_case attn_cases[] = {
    {1, 0, 4, 2, 4, 0},        {6, 0, 4, 2, 4, 3},        {3, 1, 2, 2, 6, 0},
    {63, 0, 8, 1, 64, 0},      {65, 0, 8, 1, 64, 128},    {64, 64, 2, 1, 64, 0},
    {1, 63, 16, 8, 64, 0},     {1, 64, 16, 8, 64, 128},   {4, 125, 8, 1, 64, 128},
    {4, 125, 8, 1, 64, 0},     {130, 0, 4, 2, 64, 128},   {200, 3, 16, 2, 64, 0},
    {200, 300, 8, 1, 64, 128}, {17, 511, 8, 1, 64, 0},    {5, 200, 3, 1, 34, 128},
    {40, 30, 4, 4, 80, 20},    {20, 1000, 8, 8, 32, 128}, {33, 250, 64, 1, 16, 1},
    {5, 8190, 8, 1, 64, 0},    {3, 8191, 2, 1, 64, 128},
};

typedef struct router_case {
    int32_t T, D, M, k;
} router_case;

static const router_case router_cases[] = {
    {1, 8, 4, 2},       {3, 63, 5, 5},     {65, 256, 8, 2},     {129, 127, 32, 4},
    {2, 2880, 128, 4},  {1, 2, 1, 1},      {9, 2880, 32, 4},    {128, 1028, 70, 7},
    {17, 64, 300, 8},   {5, 32, 1024, 32}, {129, 8, 3, 3},      {140, 2880, 32, 4},
    {257, 72, 33, 5},   {200, 456, 64, 4}, {131, 1352, 128, 4}, {130, 72, 300, 8},
    {193, 24, 100, 20},
};

typedef enum expert_spread {
    SPREAD_RANDOM,
    SPREAD_ONE,        /* every token's first choice is one expert */
    SPREAD_SAME,       /* every token has the same experts */
    SPREAD_LOCAL_NONE, /* no token has an expert on this rank */
} expert_spread;

typedef enum expert_weights { WEIGHTS_MXFP4, WEIGHTS_BF16, WEIGHTS_F32 } expert_weights;

typedef struct expert_case {
    int32_t T, D, I, M, E, first, k; /* E of M experts here, from `first` */
    expert_spread spread;
    expert_weights weights;
} expert_case;

static const expert_case expert_cases[] = {
    {6, 8, 6, 4, 4, 0, 2, SPREAD_RANDOM, WEIGHTS_F32},
    {3, 9, 17, 3, 3, 0, 1, SPREAD_RANDOM, WEIGHTS_BF16},
    {1, 64, 32, 8, 8, 0, 4, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {1, 2880, 96, 4, 2, 1, 4, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {13, 96, 352, 8, 4, 4, 2, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {65, 160, 64, 32, 8, 8, 4, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {129, 64, 96, 4, 4, 0, 2, SPREAD_ONE, WEIGHTS_MXFP4},
    {300, 32, 32, 4, 1, 0, 1, SPREAD_ONE, WEIGHTS_MXFP4},
    {20, 64, 64, 8, 2, 2, 2, SPREAD_LOCAL_NONE, WEIGHTS_MXFP4},
    {63, 63, 31, 8, 8, 0, 3, SPREAD_RANDOM, WEIGHTS_F32},
    {128, 32, 32, 1024, 1024, 0, 32, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {3, 2912, 64, 2, 2, 0, 1, SPREAD_RANDOM, WEIGHTS_MXFP4},
};

/* Decode: steps of 1 .. TD_SMALL_STEP tokens cut out of one of TD_SMALL_STEP. */
static const expert_case decode_cases[] = {
    {TD_SMALL_STEP, 160, 96, 8, 8, 0, 4, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {TD_SMALL_STEP, 64, 736, 12, 5, 4, 3, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {TD_SMALL_STEP, 96, 64, 6, 6, 0, 2, SPREAD_ONE, WEIGHTS_MXFP4},
    {TD_SMALL_STEP, 32, 32, 8, 8, 0, 4, SPREAD_SAME, WEIGHTS_MXFP4},
    {TD_SMALL_STEP, 2880, 32, 4, 3, 1, 2, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {TD_SMALL_STEP, 32, 2880, 4, 4, 0, 2, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {TD_SMALL_STEP, 70, 33, 4, 4, 0, 2, SPREAD_RANDOM, WEIGHTS_BF16},
    {TD_SMALL_STEP, 2880, 736, 4, 2, 1, 2, SPREAD_RANDOM, WEIGHTS_MXFP4},
    {TD_SMALL_STEP, 736, 2880, 2, 2, 0, 1, SPREAD_RANDOM, WEIGHTS_MXFP4},
};
static const int32_t decode_sizes[] = {1, 2, 3, 8, 9, 16, 17, 24, 25, 33, 64, 65, 127};

#endif
