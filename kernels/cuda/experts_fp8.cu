/* experts_fp8: the experts' step in FP8, five launches.
 *
 *   plan      a cluster (for few pairs one block) counts pairs by expert, places them, and cuts the
 *             products into units
 *   quantise  a block a token: 128 channels share a scale; the row is written once for each choice
 *   gate_up   experts_fp8_gemm.cu, with the activation and its quantisation in the same kernel
 *   down      the same; y in bf16
 *   combine   a block a token: its pairs in the router's order, f32, and perhaps the residual sum
 *
 * Where a pair lands within its expert may differ from run to run; nothing depends on it, because
 * rows of a product do not touch each other.
 *
 * One H200, 2026-11-30, gpt-oss-20b's layer (32 experts, 4 a token), random data, microseconds:
 *
 *   tokens  step  quantise  gate_up  down  combine  step's TFLOP/s
 *     1024   315         7      185   105        6    647
 *     2048   505        11      306   162       19    808
 *     4096   857        25      514   275       35    951
 *     8192  1602        44      950   501       63  1,018
 *
 * gate_up and down were timed apart, in a shorter run. With 128 experts, 1024 tokens take 842, when
 * the weights come at 3.9 TB/s, and 8192 take 1,903. Quantising and combining are bound by memory;
 * planning takes 5 at 8192 tokens. All this is for a board that is not warm yet: in a model, where
 * 700 W bound its clock, the products take a tenth more (bench/kernel_times.py).
 */
#include "kernels/cuda/experts_fp8_gemm.h"

#include "kernels/cuda/experts_fp8.cuh"

#include <math.h>

namespace
{
constexpr int PLANNERS = fp8::MOST_EXPERTS; /* threads of a block: one an expert */
constexpr int PLAN_BLOCKS = 8;              /* as many as any cluster may have */
constexpr int FEW_PAIRS = 4096;             /* planned by one block, without a cluster's barriers */
constexpr int BATCH = 8;                    /* pairs a thread has in flight, and in registers */
constexpr int EXPERT_BITS = 10;             /* of a pair while it waits for its row */
constexpr int MOST_PAIRS = PLAN_BLOCKS << (31 - EXPERT_BITS);
static_assert(PLANNERS == 1 << EXPERT_BITS, "a pair's expert is found by a mask");
constexpr int TOKEN_THREADS = 192; /* 2880 channels are 22.5 blocks of 8 lanes */
constexpr float E4M3_MAX = 448.0f;

struct plan_params {
    const int32_t *idx; /* [pairs] */
    int32_t pairs, E, first, tiles1, tiles2;
    int32_t *place; /* [pairs] */
    int32_t *plan;  /* [4][E + 1] */
};

/* Sums over the threads before this one, in those of the first n; a warp without any adds nothing,
 * which would only be in the way of the others. */
__device__ int3 sum_before(int3 x, int n)
{
    __shared__ int3 warp_sum[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool some = warp * 32 < n;
    int3 sum = x, before = {0, 0, 0};

    if (some) {
        for (int o = 1; o < 32; o *= 2) {
            const int a = __shfl_up_sync(~0u, sum.x, o), b = __shfl_up_sync(~0u, sum.y, o),
                      c = __shfl_up_sync(~0u, sum.z, o);

            if (lane >= o)
                sum = {sum.x + a, sum.y + b, sum.z + c};
        }
        if (lane == 31)
            warp_sum[warp] = sum;
    }
    __syncthreads();
    if (some)
        for (int w = 0; w < warp; w++)
            before = {before.x + warp_sum[w].x, before.y + warp_sum[w].y, before.z + warp_sum[w].z};
    return {before.x + sum.x - x.x, before.y + sum.y - x.y, before.z + sum.z - x.z};
}

/* The experts of pairs i, i + PLANNERS, ... before end; -1: not on this rank, or no such pair. */
__device__ __forceinline__ void load_pairs(const plan_params &p, int i, int end, int (&pair)[BATCH])
{
#pragma unroll
    for (int b = 0; b < BATCH; b++) /* without conditions, all are on their way at once */
        pair[b] = p.idx[min(i + b * PLANNERS, end - 1)];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        const int e = pair[b] - p.first;

        pair[b] = i + b * PLANNERS < end && e >= 0 && e < p.E ? e : -1;
    }
}
/* Puts above the expert how many of its pairs were counted before. */
__device__ __forceinline__ void count_pairs(int *count, int (&pair)[BATCH])
{
    int at[BATCH];

#pragma unroll
    for (int b = 0; b < BATCH; b++)
        at[b] = pair[b] >= 0 ? atomicAdd(&count[pair[b]], 1) : 0;
#pragma unroll
    for (int b = 0; b < BATCH; b++)
        pair[b] |= at[b] << EXPERT_BITS;
}
__device__ __forceinline__ void place_pairs(const plan_params &p, int i, int end, const int *start,
                                            const int (&pair)[BATCH])
{
    int row[BATCH];

#pragma unroll
    for (int b = 0; b < BATCH; b++)
        row[b] = pair[b] >= 0 ? start[pair[b] & (PLANNERS - 1)] + (pair[b] >> EXPERT_BITS) : -1;
#pragma unroll
    for (int b = 0; b < BATCH; b++)
        if (i + b * PLANNERS < end)
            p.place[i + b * PLANNERS] = row[b];
}

/* One cluster. A block counts and places a share of the pairs, which wait in registers, or in
 * place[] if they are many. In between, all tell each other their counts, and each finds for itself
 * where experts begin, and where among an expert's rows its own do. */
template <int BLOCKS>
__global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(PLANNERS)
    plan_kernel(const __grid_constant__ plan_params p)
{
    constexpr int STEP = BATCH * PLANNERS;
    __shared__ int count[BLOCKS][PLANNERS]; /* by block and expert */
    __shared__ int start[PLANNERS];         /* of this block's rows of an expert, once known */
    const int t = threadIdx.x, rank = BLOCKS > 1 ? (int)cluster_ctarank() : 0;
    const int share = (p.pairs + BLOCKS - 1) / BLOCKS, first = rank * share + t,
              end = min((rank + 1) * share, p.pairs);
    int pair[BATCH], more[BATCH];

    griddepcontrol_launch_dependents();
    if (BLOCKS > 1)
        barrier_cluster_arrive_relaxed(); /* the others' shared memory is there, once waited for */
    load_pairs(p, first, end, pair);
    count[rank][t] = 0;
    __syncthreads();
    count_pairs(count[rank], pair);
    for (int i = first + STEP; i < end; i += STEP) {
        load_pairs(p, i, end, more);
        count_pairs(count[rank], more);
#pragma unroll
        for (int b = 0; b < BATCH; b++) /* for the same thread */
            if (i + b * PLANNERS < end)
                p.place[i + b * PLANNERS] = more[b];
    }
    __syncthreads();
    if (BLOCKS > 1) {
        const int here = count[rank][t];

        barrier_cluster_wait();
#pragma unroll
        for (int r = 0; r < BLOCKS; r++)
            if (r != rank && t < p.E)
                st_cluster_b32(smem_addr(&count[rank][t]), r, (uint32_t)here);
        barrier_cluster_sync(); /* all counts are here: a block that ends gets none */
    }
    int mine = 0, earlier = 0; /* pairs of expert t: all, those of the blocks before */
#pragma unroll
    for (int r = 0; r < BLOCKS; r++) {
        const int n = t < p.E ? count[r][t] : 0;

        mine += n;
        earlier += r < rank ? n : 0;
    }
    const int lots = (mine + TD_FP8_ROWS - 1) / TD_FP8_ROWS;
    const int units1 = fp8::fp8_units<TD_FP8_CLUSTER>(lots, p.tiles1);
    const int units2 = fp8::fp8_units<TD_FP8_CLUSTER>(lots, p.tiles2);
    const int3 before = sum_before({(mine + 3) / 4 * 4, units1, units2}, p.E);

    start[t] = before.x + earlier;
    if (rank == 0 && t < p.E) {
        int32_t *out = p.plan + t, n = p.E + 1;

        out[0] = before.x;
        out[n] = mine;
        out[2 * n] = before.y;
        out[3 * n] = before.z;
        if (t == p.E - 1) {
            out[2 * n + 1] = before.y + units1;
            out[3 * n + 1] = before.z + units2;
        }
    }
    __syncthreads();
    place_pairs(p, first, end, start, pair);
    for (int i = first + STEP; i < end; i += STEP) {
#pragma unroll
        for (int b = 0; b < BATCH; b++) /* as it left them */
            more[b] = i + b * PLANNERS < end ? p.place[i + b * PLANNERS] : -1;
        place_pairs(p, i, end, start, more);
    }
}

__device__ __forceinline__ float2 bf16x2_floats(uint32_t w)
{
    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}

/* Largest magnitude of eight channels; code = channels * f. */
__device__ __forceinline__ float largest(uint4 in)
{
    const float2 x[4] = {bf16x2_floats(in.x), bf16x2_floats(in.y), bf16x2_floats(in.z),
                         bf16x2_floats(in.w)};
    float most = 0.0f;

#pragma unroll
    for (int i = 0; i < 4; i++)
        most = fmaxf(most, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    return most;
}
__device__ __forceinline__ uint2 scaled(uint4 in, float f)
{
    const float2 a = bf16x2_floats(in.x), b = bf16x2_floats(in.y), c = bf16x2_floats(in.z),
                 d = bf16x2_floats(in.w);

    return make_uint2(fp8::pack_e4m3(a.x * f, a.y * f, b.x * f, b.y * f),
                      fp8::pack_e4m3(c.x * f, c.y * f, d.x * f, d.y * f));
}

/* Eight lanes hold 128 channels, sixteen each: D is a multiple of 32. */
__global__ void __launch_bounds__(TOKEN_THREADS)
    quantise_kernel(const uint4 *t, const int32_t *place, int k, int D, int64_t pitch,
                    int64_t scale_pitch, uint8_t *x8, float *x8_scale)
{
    constexpr int AT_ONCE = 4; /* rows of a token that are looked up */
    const int64_t token = blockIdx.x;
    const int lane = threadIdx.x % 8;

    griddepcontrol_launch_dependents();
    place += token * k;
    t += token * D / 8;
    for (int b = threadIdx.x / 8; b * 128 < D; b += TOKEN_THREADS / 8) {
        const int col = b * 128 + lane * 16;
        const uint4 zero = {0, 0, 0, 0};
        const uint4 in0 = col < D ? t[col / 8] : zero, in1 = col < D ? t[col / 8 + 1] : zero;
        float most = fmaxf(largest(in0), largest(in1));

#pragma unroll
        for (int o = 4; o > 0; o /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffu << (threadIdx.x & 24), most, o));
        /* Not smaller: 448 / most must stay finite, or its product with a 0 would be no number. */
        most = fmaxf(most, 1e-30f);
        const float f = __fdiv_rn(E4M3_MAX, most), scale = __fdiv_rn(most, E4M3_MAX);
        const uint2 lo = scaled(in0, f), hi = scaled(in1, f);

        griddepcontrol_wait(); /* for the plan; t was there before it */

        for (int j = 0; j < k; j += AT_ONCE) {
            int row[AT_ONCE];

#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) /* not one after the other, with stores between */
                row[i] = j + i < k ? place[j + i] : -1;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (row[i] < 0)
                    continue;
                if (col < D)
                    *(uint4 *)(x8 + row[i] * pitch + col) = make_uint4(lo.x, lo.y, hi.x, hi.y);
                if (lane == 0)
                    x8_scale[b * scale_pitch + row[i]] = scale;
            }
        }
    }
}

/* The bf16 sums, or x += these. */
__global__ void __launch_bounds__(TOKEN_THREADS)
    combine_kernel(const uint16_t *y, const int32_t *place, const float *prob, int k, int D,
                   uint16_t *out, float *x)
{
    const int64_t token = blockIdx.x;

    griddepcontrol_wait();
    place += token * k;
    prob += token * k;
    for (int col = threadIdx.x * 8; col < D; col += TOKEN_THREADS * 8) {
        float sum[8] = {};

#pragma unroll 4
        for (int j = 0; j < k; j++) {
            const int64_t row = place[j];

            if (row < 0)
                continue;
            const uint4 v = *(const uint4 *)(y + row * D + col);
            const float2 x[4] = {bf16x2_floats(v.x), bf16x2_floats(v.y), bf16x2_floats(v.z),
                                 bf16x2_floats(v.w)};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[2 * i] = __fmaf_rn(prob[j], x[i].x, sum[2 * i]);
                sum[2 * i + 1] = __fmaf_rn(prob[j], x[i].y, sum[2 * i + 1]);
            }
        }
        const uint4 part = make_uint4(cvt_bf16x2(sum[0], sum[1]), cvt_bf16x2(sum[2], sum[3]),
                                      cvt_bf16x2(sum[4], sum[5]), cvt_bf16x2(sum[6], sum[7]));
        if (x == NULL) {
            *(uint4 *)(out + token * D + col) = part;
        } else {
            float4 *to = (float4 *)(x + token * D + col), lo = to[0], hi = to[1];
            const float2 a = bf16x2_floats(part.x), b = bf16x2_floats(part.y),
                         c = bf16x2_floats(part.z), d = bf16x2_floats(part.w);

            to[0] = make_float4(lo.x + a.x, lo.y + a.y, lo.z + b.x, lo.w + b.y);
            to[1] = make_float4(hi.x + c.x, hi.y + c.y, hi.z + d.x, hi.w + d.y);
        }
    }
}

/* Launch that may begin while the kernel before it ends; kernels here wait by
 * griddepcontrol_wait(). */
template <class... A>
cudaError_t launch_early(void (*kernel)(A...), int grid, cudaStream_t s, A... a)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)grid);
    c.blockDim = dim3(TOKEN_THREADS);
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, a...);
}

td_status check(const td_experts_args *a, td_error *err)
{
    const bool fp8 = td_cuda_format(a->gate_up) == CUDA_FP8 && td_cuda_format(a->down) == CUDA_FP8;

    if (!fp8)
        return td_fail(err, TD_INVALID, "experts: one of the matrices is in FP8, the other is not");
    if (a->E > fp8::MOST_EXPERTS)
        return td_fail(err, TD_INVALID, "experts: %d on a rank; at most %d are possible", a->E,
                       fp8::MOST_EXPERTS);
    if ((int64_t)a->T * a->k > MOST_PAIRS)
        return td_fail(err, TD_INVALID, "experts: %d tokens by %d choices; at most %d together",
                       a->T, a->k, MOST_PAIRS);
    return td_cuda_check_experts(a, err);
}
} // namespace

td_status td_fp8_h_scale(float limit, float *scale, td_error *err)
{
    float s = 1.0f;

    if (!(limit > 0.0f && limit <= 65536.0f))
        return td_fail(
            err, TD_INVALID,
            "experts in FP8: a limit of %g; wanted above 0 and at most 65536, because it "
            "decides the scale of what the activation gives",
            (double)limit);
    /* gate * sigmoid(1.702 gate) lies between -0.164 and the limit; up + 1 within 1 + limit. */
    const float most = fmaxf(limit, 0.164f) * (1.0f + limit);

    while (s * most > E4M3_MAX)
        s *= 0.5f;
    while (2.0f * s * most <= E4M3_MAX)
        s *= 2.0f;
    *scale = s;
    return TD_OK;
}

size_t td_cuda_experts_fp8_ws(int32_t T, int32_t D, int32_t I, int32_t E, int32_t k)
{
    static char origin; /* of addresses that are only subtracted */
    size_t bytes;

    td_fp8_cut_ws(&origin, (int64_t)T * k, D, I, E, &bytes);
    return bytes;
}

td_status td_cuda_experts_fp8(td_stream *s, const td_experts_args *a, td_error *err)
{
    const int64_t pairs = (int64_t)a->T * a->k, D = a->D;
    td_fp8_gemm g = {};
    td_status st;
    size_t bytes;

    if ((st = check(a, err)) != TD_OK || (st = td_fp8_h_scale(a->limit, &g.h_scale, err)) != TD_OK)
        return st;
    if (pairs == 0)
        return TD_OK;
    const td_fp8_ws ws = td_fp8_cut_ws((char *)a->ws, pairs, a->D, a->I, a->E, &bytes);
    const plan_params p = {
        a->idx,   (int32_t)pairs, a->E, a->expert_first, td_fp8_tiles(2 * a->I), td_fp8_tiles(a->D),
        ws.place, ws.plan};
    if (pairs <= FEW_PAIRS)
        plan_kernel<1><<<1, PLANNERS, 0, s->handle>>>(p);
    else
        plan_kernel<PLAN_BLOCKS><<<PLAN_BLOCKS, PLANNERS, 0, s->handle>>>(p);
    st = td_cuda_status(err, cudaGetLastError(), "experts: planning");
    if (st == TD_OK)
        st = td_cuda_status(err,
                            launch_early(quantise_kernel, a->T, s->handle, (const uint4 *)a->t,
                                         (const int32_t *)ws.place, (int)a->k, (int)a->D,
                                         td_fp8_pitch(a->D), td_fp8_most_rows(pairs, a->E), ws.x8,
                                         ws.x8_scale),
                            "experts: quantising");
    if (st != TD_OK)
        return st;
    g.a = ws.x8;
    g.a_scale = ws.x8_scale;
    g.w = a->gate_up;
    g.bias = td_cuda_vector(a->gate_up_bias);
    g.row_start = ws.plan;
    g.rows = ws.plan + (a->E + 1);
    g.unit_start = ws.plan + 2 * (a->E + 1);
    g.pairs = pairs;
    g.out = ws.h8;
    g.out_pitch = td_fp8_pitch(a->I);
    g.limit = a->limit;
    if ((st = td_cuda_fp8_gate_up(s->handle, &g, err)) != TD_OK)
        return st;
    g.a = ws.h8;
    g.a_scale = NULL;
    g.w = a->down;
    g.bias = td_cuda_vector(a->down_bias);
    g.unit_start = ws.plan + 3 * (a->E + 1);
    g.out = ws.y;
    g.out_pitch = D * 2;
    if ((st = td_cuda_fp8_down(s->handle, &g, err)) != TD_OK)
        return st;
    return td_cuda_status(err,
                          launch_early(combine_kernel, a->T, s->handle, (const uint16_t *)ws.y,
                                       (const int32_t *)ws.place, a->prob, (int)a->k, (int)a->D,
                                       (uint16_t *)a->out, (float *)a->x),
                          "experts");
}
