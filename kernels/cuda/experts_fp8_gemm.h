/* experts_fp8_gemm: launching the two products; layouts are in experts_fp8.h. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_FP8_GEMM_H
#define TANDEM_KERNELS_CUDA_EXPERTS_FP8_GEMM_H

#include "kernels/cuda/experts_fp8.h"
#include "kernels/cuda/tensor_map.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TD_FP8_CLUSTER = 2 }; /* blocks that share what they fetch; the plan counts by it */

typedef struct td_fp8_gemm {
    const uint8_t *a;                             /* [R, pitch(K)] */
    const float *a_scale;                         /* [KB][R]; NULL for down: 1 / h_scale */
    const td_matrix *w;                           /* [E][N, K] */
    const float *bias;                            /* [E * N] or NULL */
    const int32_t *row_start, *rows, *unit_start; /* of the plan */
    int64_t pairs;
    void *out;
    int64_t out_pitch; /* bytes */
    float h_scale, limit;
} td_fp8_gemm;

/* out = e4m3(h_scale * swiglu(a w^T + bias)) */
td_status td_cuda_fp8_gate_up(cudaStream_t s, const td_fp8_gemm *g, td_error *err);
/* out = bf16(a w^T + bias) */
td_status td_cuda_fp8_down(cudaStream_t s, const td_fp8_gemm *g, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
