/* dense: y = x W^T for steps of up to TD_SMALL_STEP rows, at the rate at which the weights can be
 * read, with what follows the product in the same kernel.
 *
 * One order of additions for every number of rows. K is cut into blocks of 64 columns, blocks into
 * parts, parts into groups, by the shape of the matrix alone. A part is one chain of mma.sync over
 * its blocks; a group is the sum of its parts in order, the result the sum of the groups in order.
 * Up to 16 rows, a warp takes a part (dense_small.cu); above, a block takes a group and the blocks
 * of a cluster add up their groups (dense_mid.cu). So a row has the same bits in any batch.
 *
 * The norm before QKV is split: rows are multiplied by its weights and rounded before the product,
 * and by 1 / rms after it. */
#ifndef TANDEM_KERNELS_CUDA_DENSE_H
#define TANDEM_KERNELS_CUDA_DENSE_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TD_DENSE_PARTS = 16, TD_DENSE_GROUPS = 8, TD_DENSE_ROWS = 64 };

/* Part s holds blocks s * blocks .. of K; group g holds parts g * parts_a_group .. */
typedef struct cuda_dense_split {
    int32_t blocks; /* of 64 columns, in a part */
    int32_t parts;  /* at most TD_DENSE_PARTS */
    int32_t parts_a_group;
    int32_t groups; /* at most TD_DENSE_GROUPS, none empty */
} cuda_dense_split;

/* Groups for about 180 blocks of 64 rows, which fill 132 multiprocessors twice over or nearly. */
static inline cuda_dense_split td_cuda_dense_split(int32_t N, int32_t K)
{
    const int32_t all = (K + 63) / 64, row_tiles = (N + TD_DENSE_ROWS - 1) / TD_DENSE_ROWS;
    cuda_dense_split s;
    int32_t groups = (180 + row_tiles - 1) / row_tiles;

    s.blocks = (all + TD_DENSE_PARTS - 1) / TD_DENSE_PARTS;
    s.parts = (all + s.blocks - 1) / s.blocks;
    groups = groups > TD_DENSE_GROUPS ? TD_DENSE_GROUPS : groups;
    groups = groups > s.parts ? s.parts : groups;
    s.parts_a_group = (s.parts + groups - 1) / groups;
    s.groups = (s.parts + s.parts_a_group - 1) / s.parts_a_group;
    return s;
}

/* What follows the product. */
typedef enum cuda_dense_kind {
    CUDA_DENSE_OUT, /* bf16(sum + bias) */
    CUDA_DENSE_QKV  /* sum / rms + bias, rotation, to q and the cache */
} cuda_dense_kind;

typedef struct cuda_dense_args {
    const void *a; /* [T, K] bf16, rows lda apart; 16-byte boundaries */
    int64_t lda;
    int32_t T, N, K;   /* T up to TD_SMALL_STEP; K a multiple of 8 */
    const void *w;     /* [N, K] bf16 at td_cuda_pitch(K) */
    const float *bias; /* [N] or NULL */
    cuda_dense_split split;
    /* OUT */
    void *out; /* [T, N] bf16, rows ldo apart */
    int64_t ldo;
    /* QKV: N = (H + 2 KV) d, d a multiple of 16 */
    const float *scale; /* [T]: 1 / rms */
    const float *cos, *sin;
    const int32_t *pos, *slot;
    void *q;
    td_kv_view kv;
    int32_t H, KV, d;
} cuda_dense_args;

/* Enqueue; the kernels read `a` and what else earlier steps made only after those have ended. */
cudaError_t td_cuda_dense_small(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a);
cudaError_t td_cuda_dense_mid(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a);

/* Whichever suits T. */
td_status td_cuda_dense(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                        const char *step, td_error *err);

/* t[m] = bf16(x[m] * g), rows ldt apart; scale[m] = 1 / rms(x[m]). D is a multiple of 8. */
cudaError_t td_cuda_norm_split(cudaStream_t s, const float *x, const float *g, float eps, int32_t M,
                               int32_t D, void *t, int64_t ldt, float *scale);

#ifdef __cplusplus
}
#endif
#endif
