/* gemm_experts_bf16: experts whose weights a checkpoint ships unpacked. */
#include "kernels/cuda/gemm_experts.cuh"

cudaError_t gemm_experts_bf16(cudaStream_t s, bool gate_up, td_tile_size size, const gemm_params &p,
                              int64_t tiles)
{
    return gate_up ? gemm_launch_size<weights_bf16, EPI_SWIGLU>(s, size, p, tiles)
                   : gemm_launch_size<weights_bf16, EPI_F32>(s, size, p, tiles);
}
