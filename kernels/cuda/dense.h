/* dense: y = x W^T for steps of up to TD_SMALL_STEP rows, at the rate at which the weights can be
 * read, with what follows the product in the same kernel.
 *
 * One order of additions for every number of rows. K is cut into blocks of 64 columns, blocks into
 * parts, parts into groups, by the shape of the matrix alone. A part is one chain of multiplies of
 * 16 columns over its blocks; a group is the sum of its parts in order, the result the sum of the
 * groups in order. Up to 8 rows, a warp takes a part (dense_small.cu); above, a block takes a group
 * and the blocks of a cluster add up their groups (dense_mid.cu). So a row has the same bits in any
 * batch.
 *
 * The norm before QKV is split: rows are multiplied by its weights and rounded before the product,
 * and by 1 / rms after it. */
#ifndef TANDEM_KERNELS_CUDA_DENSE_H
#define TANDEM_KERNELS_CUDA_DENSE_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TD_DENSE_COLUMNS = 4096, /* the longest rows: a lane of a part takes eight columns */
    TD_DENSE_PARTS = 16,
    TD_DENSE_GROUPS = 8, /* what a cluster may have */
    TD_DENSE_ROWS = 64,  /* of W, in a block of dense_mid.cu */
    TD_DENSE_FEW = 8,    /* rows that dense_small.cu takes */
    TD_DENSE_FUSED = 2   /* rows whose norm it does too */
};

/* Part s holds blocks s * blocks .. of K; group g holds parts g * parts_a_group .. */
typedef struct cuda_dense_split {
    int32_t blocks; /* of 64 columns, in a part */
    int32_t parts;  /* at most TD_DENSE_PARTS */
    int32_t parts_a_group;
    int32_t groups; /* at most TD_DENSE_GROUPS, none empty */
} cuda_dense_split;

/* As many groups as give up to 180 blocks of 64 rows: two a multiprocessor fit, as clusters, with
 * room to place them. */
static inline cuda_dense_split td_cuda_dense_split(int32_t N, int32_t K)
{
    const int32_t all = (K + 63) / 64, row_tiles = (N + TD_DENSE_ROWS - 1) / TD_DENSE_ROWS;
    cuda_dense_split s;
    int32_t groups = 180 / row_tiles;

    s.blocks = (all + TD_DENSE_PARTS - 1) / TD_DENSE_PARTS;
    s.parts = (all + s.blocks - 1) / s.blocks;
    groups = groups < 1 ? 1 : groups > TD_DENSE_GROUPS ? TD_DENSE_GROUPS : groups;
    groups = groups > s.parts ? s.parts : groups;
    s.parts_a_group = (s.parts + groups - 1) / groups;
    s.groups = (s.parts + s.parts_a_group - 1) / s.parts_a_group;
    return s;
}

/* Rows of 16-byte chunks, neither shorter than a block nor longer than the parts can be. */
static inline bool td_cuda_dense_takes(int32_t K)
{
    return K % 8 == 0 && K >= 64 && K <= TD_DENSE_COLUMNS;
}

/* What follows the product. */
typedef enum cuda_dense_kind {
    CUDA_DENSE_OUT, /* bf16(sum + bias) */
    CUDA_DENSE_QKV  /* sum / rms + bias, rotation, to q and the cache */
} cuda_dense_kind;

typedef struct cuda_dense_args {
    const void *a; /* [T, K] bf16, rows lda apart; 16-byte boundaries */
    int64_t lda;
    const float *x, *norm; /* [T, K], [K]: QKV of few rows, norm included; a and scale not needed */
    float eps;
    int32_t T, N, K;   /* T up to TD_SMALL_STEP; K as td_cuda_dense_takes() wants it */
    const void *w;     /* [N, K] bf16 at td_cuda_pitch(K) */
    const float *bias; /* [N] or NULL */
    cuda_dense_split split;
    /* OUT */
    void *out; /* [T, N] bf16, rows ldo apart */
    int64_t ldo;
    float *sum; /* NULL, or [T, N], rows ldo apart: the result is added to it, and not stored */
    /* QKV: N = (H + 2 KV) d, d a multiple of 16 */
    const float *scale; /* [T]: 1 / rms, if x is NULL */
    const float *cos, *sin;
    const int32_t *pos, *slot;
    void *q;
    td_kv_view kv;
    int32_t H, KV, d;
} cuda_dense_args;

/* Enqueue; the kernels read `a` and what else earlier steps made only after those have ended. */
td_status td_cuda_dense_small(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                              const char *step, td_error *err);
td_status td_cuda_dense_mid(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                            const char *step, td_error *err);

/* Whichever suits T. */
td_status td_cuda_dense(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                        const char *step, td_error *err);

/* t[m] = bf16(x[m] * g), rows ldt apart; scale[m] = 1 / rms(x[m]). D is a multiple of 8, at most
 * TD_DENSE_COLUMNS. */
cudaError_t td_cuda_norm_split(cudaStream_t s, const float *x, const float *g, float eps, int32_t M,
                               int32_t D, void *t, int64_t ldt, float *scale);

#ifdef __cplusplus
}
#endif
#endif
