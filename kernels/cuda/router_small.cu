/* router_small: norm, logits and choice in one launch; decode steps.
 *
 * A cluster of blocks takes up to 8 tokens: each block norms them all, multiplies 16 experts at a
 * time (the rows of mma.m16n8k16; the tokens are its columns), and after the cluster has met, a
 * warp a token chooses. The weights do not wait for the norm: their first loads are on the way
 * before it. Bound by latencies, and a block's time grows with its tokens: as few a cluster as fit
 * the machine. One H200, 2026-11-30, bench/ops_cuda, gpt-oss with 32 experts: 5.0 us at one token,
 * 5.3 at 8, 6.4 at 128.
 *
 * The warps cut K among them, each adds up its units of 64 columns, and their sums are added in
 * order: a logit's bits depend neither on T nor on the token's place. Within each block of 32
 * columns, lane q of a quad takes columns 8q .. 8q + 7 of both operands, which 16-byte loads bring
 * and which only changes the order of an mma's products. */
#include "kernels/cuda/router_small.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/router_choose.cuh"

static const int WARPS = 16, THREADS = 32 * WARPS, TOKENS = 8;
static const int NORMED = 4;      /* tokens whose rows are on the way at once */
static const int BATCH = 3;       /* units whose weights are on the way at once: all at D = 2880 */
static const int MOST_BLOCKS = 8; /* of a cluster: what every device takes */
static const int MOST_D = 2 * 4 * THREADS, MOST_M = 256;

struct router_params {
    const float *x, *norm, *bias;
    const uint8_t *w;
    const int32_t *live;
    __nv_bfloat16 *t;
    int32_t *idx;
    float *prob;
    int32_t T, D, M, k, units, pitch; /* pitch: bytes from token to token in shared memory */
    int32_t tokens;                   /* of a cluster, up to TOKENS */
    float eps;
};

/* A batch of one warp's weights: rows g and g + 8 of 16 experts. */
struct weights {
    uint4 row[BATCH][2][2]; /* [unit][block of 32 columns][half] */

    __device__ __forceinline__ void load(const router_params &p, int expert, int unit, int n)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int e = expert + g + half * 8;
            const uint8_t *from =
                p.w + (int64_t)(e < p.M ? e : 0) * p.units * 128 + unit * 128 + q * 16;

#pragma unroll
            for (int u = 0; u < BATCH; u++)
#pragma unroll
                for (int b = 0; b < 2; b++)
                    row[u][b][half] = u < n ? __ldg((const uint4 *)(from + u * 128 + b * 64))
                                            : make_uint4(0, 0, 0, 0);
        }
    }
};

/* bf16(rmsnorm(x) * norm) of the cluster's tokens into shared memory, and to t. All threads; ends
 * with a barrier. */
template <int MOST>
static __device__ __forceinline__ void norm_tokens(const router_params &p, int first, uint32_t smem)
{
    const int AT_ONCE = MOST < NORMED ? MOST : NORMED;
    __shared__ float sums[MOST][WARPS], factor[MOST];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int n = min(p.T - first, p.tokens), rank = (int)cluster_ctarank();

#pragma unroll
    for (int from = 0; from < MOST; from += AT_ONCE) {
        float4 x[AT_ONCE][2];

        if (from >= n)
            break;
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int c = (tid + i * THREADS) * 4;

                x[t][i] = c < p.D && from + t < n
                              ? *(const float4 *)(p.x + (int64_t)(first + from + t) * p.D + c)
                              : make_float4(0, 0, 0, 0);
            }
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++) {
            float sum = 0.0f;

            if (from + t >= n)
                break;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sum = __fmaf_rn(x[t][i].x, x[t][i].x, sum);
                sum = __fmaf_rn(x[t][i].y, x[t][i].y, sum);
                sum = __fmaf_rn(x[t][i].z, x[t][i].z, sum);
                sum = __fmaf_rn(x[t][i].w, x[t][i].w, sum);
            }
#pragma unroll
            for (int o = 16; o > 0; o /= 2)
                sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
            if (lane == 0)
                sums[from + t][warp] = sum;
        }
    }
    __syncthreads();
    if (warp < n) { /* a warp a token: its 16 sums */
        float sum = sums[warp][lane % WARPS];

#pragma unroll
        for (int o = WARPS / 2; o > 0; o /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
        if (lane == 0)
            factor[warp] =
                __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)p.D), p.eps)));
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int c = (tid + i * THREADS) * 4;
        const float4 g = c < p.D ? __ldg((const float4 *)(p.norm + c)) : make_float4(0, 0, 0, 0);

        if (c >= p.units * 64)
            break;
#pragma unroll
        for (int t = 0; t < MOST; t++) {
            uint2 out = {0, 0}; /* zeros from column D on */

            if (t >= n)
                break;
            if (c < p.D) { /* x from the first cache: this thread has just had it */
                const float4 v = *(const float4 *)(p.x + (int64_t)(first + t) * p.D + c);
                const float r = factor[t];

                out.x = cvt_bf16x2(__fmul_rn(__fmul_rn(v.x, r), g.x),
                                   __fmul_rn(__fmul_rn(v.y, r), g.y));
                out.y = cvt_bf16x2(__fmul_rn(__fmul_rn(v.z, r), g.z),
                                   __fmul_rn(__fmul_rn(v.w, r), g.w));
                if (t % (int)gridDim.y == rank)
                    *(uint2 *)(p.t + (int64_t)(first + t) * p.D + c) = out;
            }
            asm volatile("st.shared.v2.u32 [%0], {%1, %2};\n" ::"r"(smem + t * p.pitch + c * 2),
                         "r"(out.x), "r"(out.y)
                         : "memory");
        }
    }
    __syncthreads();
}

/* This warp's part of 16 experts' logits for 8 tokens; w holds its first batch. */
static __device__ __forceinline__ void multiply(const router_params &p, weights &w, int expert,
                                                int unit, int n, uint32_t smem, float (&acc)[4])
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;

    for (int at = 0; at < n; at += BATCH) {
        if (at > 0)
            w.load(p, expert, unit + at, n - at);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            float part[4] = {};

            if (at + u >= n)
                break;
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const uint4 x =
                    ld_shared_128(smem + g * p.pitch + (unit + at + u) * 128 + b * 64 + q * 16);
                const uint4 lo = w.row[u][b][0], hi = w.row[u][b][1];
                const uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, a1[4] = {lo.z, hi.z, lo.w, hi.w};

                mma_m16n8k16(part, a0, x.x, x.y);
                mma_m16n8k16(part, a1, x.z, x.w);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[i] = __fadd_rn(acc[i], part[i]);
        }
    }
}

template <int MOST>
static __global__ void __launch_bounds__(THREADS, 1)
    router_small_kernel(const __grid_constant__ router_params p)
{
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ float4 sums[WARPS][32];
    __shared__ float logits[MOST][MOST_M]; /* of the tokens whose experts this block chooses */
    const uint32_t smem = smem_addr(mem);
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, first = blockIdx.x * p.tokens;
    const int unit = warp * p.units / WARPS, n = (warp + 1) * p.units / WARPS - unit;
    const int live = min(p.T - first, p.tokens);
    int expert = blockIdx.y * 16;
    weights w;

    griddepcontrol_launch_dependents();
    barrier_cluster_arrive_relaxed(); /* the others' shared memory is there, once waited for */
    w.load(p, expert, unit, n);
    griddepcontrol_wait();
    norm_tokens<MOST>(p, first, smem);
    barrier_cluster_wait();
    for (; expert < p.M; expert += 16 * gridDim.y) {
        float acc[4] = {};

        multiply(p, w, expert, unit, n, smem, acc);
        sums[warp][lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        if (expert + 16 * (int)gridDim.y < p.M)
            w.load(p, expert + 16 * gridDim.y, unit, n);
        __syncthreads();
        if (tid < 128) { /* a lane of the accumulators and one of its four */
            const int g = tid / 4 / 4, q = tid / 4 % 4, i = tid % 4;
            const int e = expert + g + i / 2 * 8, t = 2 * q + i % 2;
            float sum = 0.0f;

#pragma unroll
            for (int v = 0; v < WARPS; v++)
                sum = __fadd_rn(sum, ((const float *)&sums[v][tid / 4])[i]);
            if (e < p.M && t < live)
                st_cluster_b32(smem_addr(&logits[t / gridDim.y][e]), t % gridDim.y,
                               __float_as_uint(__fadd_rn(sum, p.bias[e])));
        }
        __syncthreads();
    }
    barrier_cluster_sync(); /* all logits are there */
    const int t = warp * gridDim.y + blockIdx.y;
    if (t < live) {
        int32_t *idx = p.idx + (int64_t)(first + t) * p.k;
        float *prob = p.prob + (int64_t)(first + t) * p.k;

        if (p.live != NULL && first + t >= *p.live)
            router_choose_none<32>(p.k, idx, prob);
        else
            router_choose<32, MOST_M / 32>(logits[warp], p.M, p.k, true, idx, prob);
    }
}

bool td_cuda_router_small_fits(const td_router_args *a)
{
    return td_cuda_format(a->w) == CUDA_BF16 && a->D % 4 == 0 && a->D <= MOST_D && a->M <= MOST_M;
}

td_status td_cuda_router_small(td_stream *s, const td_router_args *a, td_error *err)
{
    const int groups = (a->M + 15) / 16, blocks = groups < MOST_BLOCKS ? groups : MOST_BLOCKS;
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute attr[2] = {}, &cluster = attr[0];
    router_params p = {};
    int processors = 0;
    cudaError_t e =
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, s->dev->index);

    if (e != cudaSuccess)
        return td_cuda_status(err, e, "router");
    p.x = (const float *)a->x;
    p.norm = td_cuda_vector(a->norm);
    p.bias = td_cuda_vector(a->bias);
    p.w = (const uint8_t *)a->w->mem.ptr;
    p.live = a->live;
    p.t = (__nv_bfloat16 *)a->t;
    p.idx = a->idx;
    p.prob = a->prob;
    p.T = a->T;
    p.D = a->D;
    p.M = a->M;
    p.k = a->k;
    p.units = (int32_t)(td_cuda_pitch(a->D) / 64);
    p.pitch = p.units * 128 + 64; /* two tokens' 64 bytes meet no bank twice */
    p.eps = a->eps;
    p.tokens = 1; /* as few as one wave of blocks allows: a block's time grows with each */
    while (p.tokens < TOKENS && (a->T + p.tokens - 1) / p.tokens * blocks > processors)
        p.tokens *= 2;
    /* Of its own, because instructions that a layer of one token has to fetch cost time. */
    const auto kernel = p.tokens == 1 ? router_small_kernel<1> : router_small_kernel<TOKENS>;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 1;
    cluster.val.clusterDim.y = (unsigned)blocks;
    cluster.val.clusterDim.z = 1;
    launch.gridDim = dim3((unsigned)((a->T + p.tokens - 1) / p.tokens), (unsigned)blocks);
    launch.blockDim = dim3(THREADS);
    launch.dynamicSmemBytes = (size_t)(TOKENS * p.pitch);
    launch.stream = s->handle;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    launch.attrs = attr;
    launch.numAttrs = 2;
    if ((e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)launch.dynamicSmemBytes)) != cudaSuccess)
        return td_cuda_status(err, e, "router");
    return td_cuda_status(err, cudaLaunchKernelEx(&launch, kernel, p), "router");
}
