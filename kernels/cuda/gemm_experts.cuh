/* gemm_experts: launching a grouped product; each weight format is compiled in a file of its own.
 */
#ifndef TANDEM_KERNELS_CUDA_GEMM_EXPERTS_CUH
#define TANDEM_KERNELS_CUDA_GEMM_EXPERTS_CUH

#include <math.h>

#include "kernels/cuda/gemm.cuh"

cudaError_t gemm_experts_bf16(cudaStream_t s, bool gate_up, td_tile_size size, const gemm_params &p,
                              int64_t tiles);
cudaError_t gemm_experts_mxfp4(cudaStream_t s, bool gate_up, td_tile_size size,
                               const gemm_params &p, int64_t tiles);

#endif
