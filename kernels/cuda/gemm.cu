/* gemm: dense products. The 128 x 128 tile is bound by mma.sync's rate; the small ones, in decode,
 * by the stream of weights. One H200, 2026-11-30, bench/ops_cuda: 315 TFLOP/s at 8192 rows (wgmma
 * gives about 800); at one row 4.2 TB/s of 4.4 in the head. Attention's projections have kernels of
 * their own, dense.h and blas.h, and come here in shapes that those do not take. */
#include "kernels/cuda/gemm.cuh"

td_status td_cuda_gemm(cudaStream_t s, cuda_out kind, const cuda_gemm_args *g, const char *step,
                       td_error *err)
{
    const td_matrix *w = g->w;
    const size_t pair = kind == CUDA_OUT_BF16 ? 4 : 8;
    td_tile_size size = td_tune_gemm(g->M, w->N);
    gemm_params p = {};
    cudaError_t e;

    if (td_cuda_format(w) != CUDA_BF16)
        return td_fail(err, TD_INVALID, "%s: weights that are not bf16", step);
    if (g->M == 0 || w->N == 0)
        return TD_OK;
    p.a = (const __nv_bfloat16 *)g->a;
    p.lda = g->lda;
    p.w = (const uint8_t *)w->mem.ptr;
    p.bias = g->bias;
    p.out = g->out;
    p.ldo = g->ldo;
    p.M = g->M;
    p.N = w->N;
    p.K = w->K;
    p.w_scale = 1.0f;
    p.a_fast = g->lda % 8 == 0 && (uintptr_t)g->a % 16 == 0;
    p.out_pair = g->ldo % 2 == 0 && (uintptr_t)g->out % pair == 0;
    if (kind == CUDA_OUT_ROUTER && size == TD_TILE_128X128) /* twice the accumulators: no room */
        size = TD_TILE_64X64;
    const int64_t tiles = (g->M + td_tile_rows(size) - 1) / td_tile_rows(size);
    switch (kind) {
    case CUDA_OUT_BF16: e = gemm_launch_size<weights_bf16, EPI_BF16>(s, size, p, tiles); break;
    case CUDA_OUT_F32: e = gemm_launch_size<weights_bf16, EPI_F32>(s, size, p, tiles); break;
    default:
        e = size == TD_TILE_16X32 ? gemm_launch<tile_s, weights_bf16, EPI_ROUTER>(s, p, tiles)
                                  : gemm_launch<tile_m, weights_bf16, EPI_ROUTER>(s, p, tiles);
    }
    return td_cuda_status(err, e, step);
}
