/* gemm_experts_mxfp4: experts as published, packed; and the choice between the formats.
 *
 * Each warp unpacks what it multiplies: 15 integer instructions and 4 multiplications for 8
 * weights, used for 64 rows. One H200, 2026-11-30, bench/ops_cuda, with grouping and combining: 281
 * TFLOP/s at 8192 tokens of 32 experts. Decode steps do not come here: see experts_small.cu. */
#include "kernels/cuda/gemm_experts.cuh"

cudaError_t gemm_experts_mxfp4(cudaStream_t s, bool gate_up, td_tile_size size,
                               const gemm_params &p, int64_t tiles)
{
    return gate_up ? gemm_launch_size<weights_mxfp4, EPI_SWIGLU>(s, size, p, tiles)
                   : gemm_launch_size<weights_mxfp4, EPI_F32>(s, size, p, tiles);
}

static td_status grouped(cudaStream_t s, bool gate_up, const cuda_grouped_args *g, td_error *err)
{
    const td_matrix *w = g->w;
    const bool packed = td_cuda_format(w) == CUDA_MXFP4;
    gemm_params p = {};

    if (g->most_tiles == 0 || w->N == 0)
        return TD_OK;
    p.a = (const __nv_bfloat16 *)g->a;
    p.lda = g->lda;
    p.row = g->row;
    p.w = (const uint8_t *)w->mem.ptr;
    p.expert_bytes =
        packed ? (int64_t)td_mx_bytes(w->N, w->K) : (int64_t)w->N * td_cuda_pitch(w->K) * 2;
    p.bias = g->bias;
    p.tile = g->tile;
    p.n_tiles = g->n_tiles;
    p.out = g->out;
    p.ldo = g->ldo;
    p.N = w->N;
    p.K = w->K;
    p.w_scale = packed ? ldexpf(1.0f, td_cuda_mxfp4_shift(w)) : 1.0f;
    p.limit = g->limit;
    p.a_fast = g->lda % 8 == 0 && (uintptr_t)g->a % 16 == 0;
    p.out_pair = g->ldo % 2 == 0 && (uintptr_t)g->out % 8 == 0;
    return td_cuda_status(err,
                          packed ? gemm_experts_mxfp4(s, gate_up, g->size, p, g->most_tiles)
                                 : gemm_experts_bf16(s, gate_up, g->size, p, g->most_tiles),
                          gate_up ? "experts: gate and up" : "experts: down");
}

td_status td_cuda_gemm_gate_up(cudaStream_t s, const cuda_grouped_args *g, td_error *err)
{
    return grouped(s, true, g, err);
}

td_status td_cuda_gemm_down(cudaStream_t s, const cuda_grouped_args *g, td_error *err)
{
    return grouped(s, false, g, err);
}
