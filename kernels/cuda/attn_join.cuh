/* attn_join: how what was found in groups of steps, and in chunks, becomes one row. Every sum has
 * one order, whoever adds. */
#ifndef TANDEM_KERNELS_CUDA_ATTN_JOIN_CUH
#define TANDEM_KERNELS_CUDA_ATTN_JOIN_CUH

#include "kernels/cuda/attn_units.cuh"

/* How (m, l) joins what came before it (M, L): both sums of values are rescaled, by these. What saw
 * nothing (m = -inf) changes nothing. */
struct decode_joint {
    float before, now;
};
__device__ __forceinline__ decode_joint join(float &M, float &L, float m, float l)
{
    const float top = fmaxf(M, m), base = top == -INFINITY ? 0.0f : top;
    const decode_joint j = {ex2_approx(M - base), ex2_approx(m - base)};

    M = top;
    L = __fmaf_rn(l, j.now, __fmul_rn(L, j.before));
    return j;
}
__device__ __forceinline__ float join_value(decode_joint j, float before, float now)
{
    return __fmaf_rn(now, j.now, __fmul_rn(before, j.before));
}

/* What a warp has of its unit so far; in shared memory. */
struct decode_part {
    float o[8][68]; /* heads; padded against bank conflicts */
    float2 ml[8];

    __device__ __forceinline__ void clear()
    {
        const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;

        __syncwarp(); /* the last one's readers are done */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float4 *to = (float4 *)&o[q * 2 + h][g * 8];

            to[0] = to[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        if (g < 2)
            ml[q * 2 + g] = make_float2(-INFINITY, 0.0f);
        __syncwarp();
    }
    __device__ __forceinline__ void add(const decode_state &st)
    {
        const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
        float2 now[2];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = sum_over_keys(st.l[h]);
            float4 *to = (float4 *)&o[q * 2 + h][g * 8], a = to[0], b = to[1];

            now[h] = ml[q * 2 + h];
            const decode_joint j = join(now[h].x, now[h].y, st.m[h], sum);
            to[0] = make_float4(join_value(j, a.x, st.o[0][h]), join_value(j, a.y, st.o[0][h + 2]),
                                join_value(j, a.z, st.o[1][h]), join_value(j, a.w, st.o[1][h + 2]));
            to[1] = make_float4(join_value(j, b.x, st.o[2][h]), join_value(j, b.y, st.o[2][h + 2]),
                                join_value(j, b.z, st.o[3][h]), join_value(j, b.w, st.o[3][h + 2]));
        }
        __syncwarp(); /* all have read ml */
        if (g == 0) {
            ml[q * 2] = now[0];
            ml[q * 2 + 1] = now[1];
        }
        __syncwarp();
    }
};

/* Two dimensions of a head, from parts in order. */
struct decode_sum {
    float M, L, x, y;

    __device__ __forceinline__ void clear()
    {
        M = -INFINITY;
        L = x = y = 0.0f;
    }
    __device__ __forceinline__ void add(float2 ml, float2 o)
    {
        const decode_joint j = join(M, L, ml.x, ml.y);

        x = join_value(j, x, o.x);
        y = join_value(j, y, o.y);
    }
    __device__ __forceinline__ void finish(__nv_bfloat16 *out, float sink, bool padding)
    {
        const float f = attn_finish(M, L, sink);

        *(uint32_t *)out = padding ? 0 : cvt_bf16x2(__fmul_rn(x, f), __fmul_rn(y, f));
    }
};

/* A row from its chunks, by a warp: lane i weighs chunk i, then all add two dimensions each. */
template <typename Part>
__device__ __forceinline__ void join_chunks(float2 ml, int chunks, float sink, __nv_bfloat16 *out,
                                            const Part &part)
{
    float2 sum = make_float2(0.0f, 0.0f);
    float M = ml.x, L, w;

#pragma unroll
    for (int x = 16; x > 0; x /= 2)
        M = fmaxf(M, __shfl_xor_sync(~0u, M, x));
    w = ex2_approx(ml.x - M);
    L = ml.y * w;
#pragma unroll
    for (int x = 16; x > 0; x /= 2)
        L += __shfl_xor_sync(~0u, L, x);
    w *= attn_finish(M, L, sink);
#pragma unroll
    for (int i = 0; i < TD_TUNE_CHUNKS; i++) {
        const float wi = __shfl_sync(~0u, w, i);

        if (i < chunks) {
            const float2 o = part(i);

            sum.x = __fmaf_rn(o.x, wi, sum.x);
            sum.y = __fmaf_rn(o.y, wi, sum.y);
        }
    }
    *(uint32_t *)(out + threadIdx.x % 32 * 2) = cvt_bf16x2(sum.x, sum.y);
}

/* The results of a warp that had a unit for itself. */
__device__ __forceinline__ void leave_alone(const decode_params &p, const decode_unit &u,
                                            const decode_part &part)
{
    const int lane = threadIdx.x % 32;

    for (int h = 0; h < p.G; h++) {
        const int row = u.head * p.G + h;
        const int64_t out = (int64_t)u.t * p.H + row, at = out * TD_TUNE_CHUNKS + u.chunk;
        const float2 o = *(const float2 *)&part.o[h][lane * 2];

        if (u.chunks == 1) {
            decode_sum sum = {part.ml[h].x, part.ml[h].y, o.x, o.y};

            sum.finish(p.out + out * 64 + lane * 2, p.sinks[row], u.pos < 0);
            continue;
        }
        if (lane == 0)
            p.ml[at] = part.ml[h];
        *(float2 *)(p.o + at * 64 + lane * 2) = o;
    }
}

#endif
