/* moe: router and experts; here for any shape. Where they can, router_large.cu takes what follows
 * the norm, and in decode steps router_small.cu and experts_small.cu the whole.
 *
 * Experts work on (token, choice) pairs grouped by expert: one block counts and places them and
 * cuts tiles, gate and up and the activation fill a[pair, I], down fills y[pair, D], and the last
 * kernel adds up each token's pairs in the router's order. Where a pair lands within its expert may
 * differ from run to run; nothing depends on it, because rows of a product do not touch each other.
 */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/experts_fp8.h"
#include "kernels/cuda/experts_small.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/router_choose.cuh"
#include "kernels/cuda/router_large.h"
#include "kernels/cuda/router_small.h"

#include <cuda_bf16.h>

static const int MOST_EXPERTS = 1024;

/* A warp a token. */
static __global__ void __launch_bounds__(32)
    top_k_kernel(float *logits, int32_t M, int32_t k, const int32_t *live, int32_t *idx,
                 float *prob)
{
    idx += (int64_t)blockIdx.x * k;
    prob += (int64_t)blockIdx.x * k;
    if (live != NULL && (int)blockIdx.x >= *live)
        router_choose_none<32>(k, idx, prob);
    else
        router_choose<32, MOST_EXPERTS / 32>(logits + (int64_t)blockIdx.x * M, M, k, true, idx,
                                             prob);
}

td_status td_cuda_router(td_stream *s, const td_router_args *a, td_error *err)
{
    cuda_ws ws = {(char *)a->ws};
    cuda_gemm_args g = {};
    td_status st;

    if ((st = td_cuda_check_vector("router", "norm", a->norm, a->D, err)) != TD_OK ||
        (st = td_cuda_check_matrix("router", "w", a->w, 1, a->M, a->D, err)) != TD_OK ||
        (st = td_cuda_check_vector("router", "bias", a->bias, a->M, err)) != TD_OK)
        return st;
    if (a->k < 1 || a->k > a->M || a->M > MOST_EXPERTS)
        return td_fail(err, TD_INVALID, "router: %d of %d experts; at most %d are possible", a->k,
                       a->M, MOST_EXPERTS);
    if (a->T == 0)
        return TD_OK;
    if (a->T <= TD_SMALL_STEP && td_cuda_router_small_fits(a))
        return td_cuda_router_small(s, a, err);
    td_cuda_rmsnorm(s->handle, (const float *)a->x, NULL, td_cuda_vector(a->norm), a->eps, a->T,
                    a->D, a->t, a->D);
    if (td_cuda_router_large_fits(a))
        return td_cuda_router_large(s, a, err);
    float *logits = (float *)td_cuda_ws_take(&ws, (size_t)a->T * (size_t)a->M * sizeof(float));

    g.a = (const uint16_t *)a->t;
    g.lda = a->D;
    g.M = a->T;
    g.w = a->w;
    g.bias = td_cuda_vector(a->bias);
    g.out = logits;
    g.ldo = a->M;
    if ((st = td_cuda_gemm(s->handle, CUDA_OUT_ROUTER, &g, "router", err)) != TD_OK)
        return st;
    top_k_kernel<<<a->T, 32, 0, s->handle>>>(logits, a->M, a->k, a->live, a->idx, a->prob);
    return td_cuda_launched(err, "router");
}

struct group_params {
    const int32_t *idx; /* [pairs]: T * k */
    int32_t pairs, k, E, first, tile_rows;
    int32_t *token; /* [pairs]: the row of t that a place multiplies */
    int32_t *place; /* [pairs]: where a choice landed; -1: not on this rank */
    cuda_tile *tile;
    int32_t *n_tiles;
};

/* Exclusive sum of x over the block's threads, in `total` for all. */
static __device__ __forceinline__ int block_scan(int x, int *shared, int *total)
{
    const int t = threadIdx.x;

    shared[t] = x;
    __syncthreads();
    for (int o = 1; o < MOST_EXPERTS; o *= 2) {
        const int left = t >= o ? shared[t - o] : 0;

        __syncthreads();
        shared[t] += left;
        __syncthreads();
    }
    *total = shared[MOST_EXPERTS - 1];
    const int sum = shared[t] - x;
    __syncthreads();
    return sum;
}

/* One block, a thread an expert where experts are counted, a thread a pair elsewhere. */
static __global__ void __launch_bounds__(MOST_EXPERTS)
    group_kernel(const __grid_constant__ group_params p)
{
    __shared__ int count[MOST_EXPERTS], scan[MOST_EXPERTS];
    const int t = threadIdx.x;
    int total;

    count[t] = 0;
    __syncthreads();
    for (int i = t; i < p.pairs; i += MOST_EXPERTS) {
        const int e = p.idx[i] - p.first;

        if (e >= 0 && e < p.E)
            atomicAdd(&count[e], 1);
    }
    __syncthreads();
    const int mine = count[t], tiles = (mine + p.tile_rows - 1) / p.tile_rows;
    const int start = block_scan(mine, scan, &total);
    const int tile = block_scan(tiles, scan, &total);

    if (t == 0)
        *p.n_tiles = total;
    for (int i = 0; i < tiles; i++) {
        const int left = mine - i * p.tile_rows;
        const cuda_tile c = {t, start + i * p.tile_rows, left < p.tile_rows ? left : p.tile_rows,
                             0};

        p.tile[tile + i] = c;
    }
    count[t] = start; /* from here on: the expert's next free place */
    __syncthreads();
    for (int i = t; i < p.pairs; i += MOST_EXPERTS) {
        const int e = p.idx[i] - p.first;
        int at = -1;

        if (e >= 0 && e < p.E) {
            at = atomicAdd(&count[e], 1);
            p.token[at] = i / p.k;
        }
        p.place[i] = at;
    }
}

/* A block a token. */
static __global__ void combine_kernel(const float *y, const int32_t *place, const float *prob,
                                      int32_t k, int32_t D, __nv_bfloat16 *out)
{
    const int64_t t = blockIdx.x;

    for (int i = threadIdx.x; i < D; i += blockDim.x) {
        float sum = 0.0f;

        for (int j = 0; j < k; j++) {
            const int at = place[t * k + j];

            if (at >= 0)
                sum = __fmaf_rn(prob[t * k + j], y[(int64_t)at * D + i], sum);
        }
        out[t * D + i] = __float2bfloat16_rn(sum);
    }
}

/* What experts() takes from the workspace, in this order. */
struct moe_ws {
    void *a;
    float *y;
    int32_t *token, *place, *n_tiles;
    cuda_tile *tile;
};

static moe_ws cut_ws(char *base, size_t pairs, int32_t D, int32_t I, int32_t E, size_t *bytes)
{
    cuda_ws ws = {base};
    moe_ws m;

    m.a = td_cuda_ws_take(&ws, pairs * (size_t)td_cuda_ws_pitch(I) * 2);
    m.y = (float *)td_cuda_ws_take(&ws, pairs * (size_t)D * sizeof(float));
    m.token = (int32_t *)td_cuda_ws_take(&ws, pairs * sizeof(int32_t));
    m.place = (int32_t *)td_cuda_ws_take(&ws, pairs * sizeof(int32_t));
    m.n_tiles = (int32_t *)td_cuda_ws_take(&ws, sizeof(int32_t));
    m.tile = (cuda_tile *)td_cuda_ws_take(
        &ws, (size_t)td_tune_most_tiles((int64_t)pairs, E, TD_TILE_16X32) * sizeof(cuda_tile));
    *bytes = (size_t)(ws.next - base);
    return m;
}

size_t td_cuda_experts_ws(int32_t T, int32_t D, int32_t I, int32_t E, int32_t k)
{
    static char origin; /* of addresses that are only subtracted */
    size_t bytes;

    cut_ws(&origin, (size_t)T * (size_t)k, D, I, E, &bytes);
    const size_t fp8 = td_cuda_experts_fp8_ws(T, D, I, E, k);
    return bytes > fp8 ? bytes : fp8;
}

static td_status check_experts(const td_experts_args *a, td_error *err)
{
    if (a->E > MOST_EXPERTS)
        return td_fail(err, TD_INVALID, "experts: %d on a rank; at most %d are possible", a->E,
                       MOST_EXPERTS);
    return td_cuda_check_experts(a, err);
}

td_status td_cuda_experts(td_stream *s, const td_experts_args *a, td_error *err)
{
    const int64_t pairs = (int64_t)a->T * a->k;
    const td_tile_size size = td_tune_grouped(pairs, a->E);
    cuda_grouped_args g = {};
    size_t bytes;

    const size_t n = (size_t)a->T * (size_t)a->D;
    td_status st;

    if (td_cuda_format(a->gate_up) == CUDA_FP8 || td_cuda_format(a->down) == CUDA_FP8)
        return td_cuda_experts_fp8(s, a, err);
    st = check_experts(a, err);
    if (st != TD_OK)
        return st;
    if (a->T == 0)
        return TD_OK;
    const moe_ws ws = cut_ws((char *)a->ws, (size_t)pairs, a->D, a->I, a->E, &bytes);
    if (a->T <= TD_SMALL_STEP && td_cuda_experts_small_fits(s->dev, a))
        return td_cuda_experts_small(s, a, ws.a, ws.y, err);
    const group_params p = {a->idx,          (int32_t)pairs,     a->k,     a->E,
                            a->expert_first, td_tile_rows(size), ws.token, ws.place,
                            ws.tile,         ws.n_tiles};
    group_kernel<<<1, MOST_EXPERTS, 0, s->handle>>>(p);
    if ((st = td_cuda_launched(err, "experts: grouping")) != TD_OK)
        return st;
    g.a = (const uint16_t *)a->t;
    g.lda = a->D;
    g.row = ws.token;
    g.w = a->gate_up;
    g.bias = td_cuda_vector(a->gate_up_bias);
    g.tile = ws.tile;
    g.n_tiles = ws.n_tiles;
    g.most_tiles = (int32_t)td_tune_most_tiles(pairs, a->E, size);
    g.size = size;
    g.out = ws.a;
    g.ldo = td_cuda_ws_pitch(a->I);
    g.limit = a->limit;
    if ((st = td_cuda_gemm_gate_up(s->handle, &g, err)) != TD_OK)
        return st;
    g.a = (const uint16_t *)ws.a;
    g.lda = td_cuda_ws_pitch(a->I);
    g.row = NULL;
    g.w = a->down;
    g.bias = td_cuda_vector(a->down_bias);
    g.out = ws.y;
    g.ldo = a->D;
    if ((st = td_cuda_gemm_down(s->handle, &g, err)) != TD_OK)
        return st;
    combine_kernel<<<a->T, 256, 0, s->handle>>>(ws.y, ws.place, a->prob, a->k, a->D,
                                                (__nv_bfloat16 *)a->out);
    if ((st = td_cuda_launched(err, "experts")) != TD_OK)
        return st;
    return td_cuda_add_part(s, n, a->out, a->x, err);
}
