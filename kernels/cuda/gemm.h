/* gemm: y = x W^T + bias, the product under every step that has weights.
 *
 * Three tile sizes, one order of additions: an output element is the sum over k in steps of 16, in
 * order, in one f32 accumulator, whichever tile it falls into. So a row's bits do not depend on how
 * many rows there are. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_H
#define TANDEM_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/backend.h"
#include "kernels/cuda/tune.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is made of the sum. */
typedef enum cuda_out {
    CUDA_OUT_BF16,   /* + bias */
    CUDA_OUT_F32,    /* + bias */
    CUDA_OUT_ROUTER, /* + bias, f32; each 64 products are summed apart, for accuracy */
} cuda_out;

typedef struct cuda_gemm_args {
    const uint16_t *a; /* [M, K] bf16, rows lda apart */
    int64_t lda;
    int32_t M;
    const td_matrix *w; /* CUDA_BF16 */
    const float *bias;  /* [N] or NULL */
    void *out;          /* [M, N], rows ldo apart */
    int64_t ldo;
} cuda_gemm_args;

/* Dense. Enqueues; TD_INVALID when the format is not bf16. */
td_status td_cuda_gemm(cudaStream_t s, cuda_out kind, const cuda_gemm_args *g, const char *step,
                       td_error *err);

/* A group's rows: tile i multiplies pairs first .. first + rows - 1 with expert `expert`. */
typedef struct cuda_tile {
    int32_t expert, first, rows, unused;
} cuda_tile;

typedef struct cuda_grouped_args {
    const uint16_t *a; /* rows lda apart; pair p is row row[p], or p when row is NULL */
    int64_t lda;
    const int32_t *row;
    const td_matrix *w;    /* CUDA_BF16 or CUDA_MXFP4 */
    const float *bias;     /* [E * N] or NULL */
    const cuda_tile *tile; /* on the device, *n_tiles of them */
    const int32_t *n_tiles;
    int32_t most_tiles; /* an upper bound, for the grid */
    td_tile_size size;  /* what the tile list was cut for */
    void *out;          /* rows ldo apart, by pair */
    int64_t ldo;
    float limit;
} cuda_grouped_args;

/* Out is bf16 swiglu of (gate, up) column pairs, [pairs, N / 2]. */
td_status td_cuda_gemm_gate_up(cudaStream_t s, const cuda_grouped_args *g, td_error *err);
/* Out is f32, + bias, [pairs, N]. */
td_status td_cuda_gemm_down(cudaStream_t s, const cuda_grouped_args *g, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
