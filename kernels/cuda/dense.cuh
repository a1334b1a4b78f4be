/* dense: what the kernels behind dense.h share: which rows of W a tile holds, the norm, what is
 * made of a sum, how they are launched.
 *
 * A tile is 16 rows of W in pairs: row r and row 8 + r of the mma, r < 8, are two neighbouring
 * columns of the output, or the two halves of a rotated pair, so that one thread finishes both. */
#ifndef TANDEM_KERNELS_CUDA_DENSE_CUH
#define TANDEM_KERNELS_CUDA_DENSE_CUH

#include "kernels/cuda/dense.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_store.cuh"

__device__ __forceinline__ void st_shared_f32(uint32_t addr, float x)
{
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(addr), "f"(x) : "memory");
}

/* Row r (hi: 8 + r) of a tile as a row of W; may be past the end. */
template <int KIND>
__device__ __forceinline__ int dense_row(const cuda_dense_args &p, int tile, int r, int hi)
{
    if (KIND == CUDA_DENSE_OUT)
        return tile * 16 + 2 * r + hi;
    const int a_head = p.d / 16;

    return tile / a_head * p.d + tile % a_head * 8 + r + hi * (p.d / 2);
}

/* 1 / rms of a row of D from the sum of its squares. */
__device__ __forceinline__ float dense_scale(float squares, int32_t D, float eps)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)D), eps)));
}

/* Eight columns of rows before a norm: k .. k + 7. */
struct dense_weights {
    float4 g[2];

    __device__ __forceinline__ void load(const float *norm, int k, bool there)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            g[i] = there ? __ldg((const float4 *)(norm + k) + i) : make_float4(0, 0, 0, 0);
    }
    /* Times the norm's weights; the sum of their squares. */
    __device__ __forceinline__ uint4 apply(const float *row, int k, bool there,
                                           float *squares) const
    {
        float4 a = make_float4(0, 0, 0, 0), b = a;
        float s;

        if (there) {
            a = __ldcg((const float4 *)(row + k));
            b = __ldcg((const float4 *)(row + k) + 1);
        }
        s = __fmul_rn(a.x, a.x);
        s = __fmaf_rn(a.y, a.y, s);
        s = __fmaf_rn(a.z, a.z, s);
        s = __fmaf_rn(a.w, a.w, s);
        s = __fmaf_rn(b.x, b.x, s);
        s = __fmaf_rn(b.y, b.y, s);
        s = __fmaf_rn(b.z, b.z, s);
        *squares = __fmaf_rn(b.w, b.w, s);
        return make_uint4(cvt_bf16x2(__fmul_rn(a.x, g[0].x), __fmul_rn(a.y, g[0].y)),
                          cvt_bf16x2(__fmul_rn(a.z, g[0].z), __fmul_rn(a.w, g[0].w)),
                          cvt_bf16x2(__fmul_rn(b.x, g[1].x), __fmul_rn(b.y, g[1].y)),
                          cvt_bf16x2(__fmul_rn(b.z, g[1].z), __fmul_rn(b.w, g[1].w)));
    }
};

/* The sum over a part, whose lanes hold eight columns each; all lanes get it. */
__device__ __forceinline__ float dense_sum_part(float s)
{
    for (int o = 16; o > 0; o /= 2)
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
    return s;
}

/* Where a pair of sums goes, and what it needs on the way; fetched while the product is made. */
struct dense_place {
    int row;  /* of W; the pair's other row is row + 1, or half a head further on */
    int head; /* QKV */
    float bias_lo, bias_hi;
};

template <int KIND>
__device__ __forceinline__ dense_place dense_find(const cuda_dense_args &p, int tile, int r)
{
    dense_place at = {dense_row<KIND>(p, tile, r, 0), 0, 0.0f, 0.0f};
    const int hi = dense_row<KIND>(p, tile, r, 1);

    if (KIND == CUDA_DENSE_QKV)
        at.head = tile / (p.d / 16);
    if (p.bias != NULL && at.row < p.N)
        at.bias_lo = __ldg(p.bias + at.row);
    if (p.bias != NULL && hi < p.N)
        at.bias_hi = __ldg(p.bias + hi);
    return at;
}

/* The rotation of a pair, for a token at row pos of the tables. */
__device__ __forceinline__ float2 dense_rotation(const cuda_dense_args &p, const dense_place &at,
                                                 int pos)
{
    const int64_t i = (int64_t)pos * (p.d / 2) + at.row % p.d;

    if (at.head >= p.H + p.KV) /* a value, or past the end */
        return make_float2(1.0f, 0.0f);
    return make_float2(__ldg(p.cos + i), __ldg(p.sin + i));
}

__device__ __forceinline__ void dense_store_out(const cuda_dense_args &p, const dense_place &at,
                                                int t, float lo, float hi)
{
    __nv_bfloat16 *out = (__nv_bfloat16 *)p.out + t * p.ldo + at.row;
    const bool second = at.row + 1 < p.N;

    if (at.row >= p.N)
        return;
    lo = __fadd_rn(lo, at.bias_lo);
    hi = __fadd_rn(hi, at.bias_hi);
    if (p.sum != NULL) {
        float *x = p.sum + t * p.ldo + at.row;
        const float2 old = {__ldcg(x), second ? __ldcg(x + 1) : 0.0f};

        x[0] = __fadd_rn(old.x, __bfloat162float(__float2bfloat16_rn(lo)));
        if (second)
            x[1] = __fadd_rn(old.y, __bfloat162float(__float2bfloat16_rn(hi)));
        return;
    }
    if (second && ((uintptr_t)out & 3) == 0) {
        *(uint32_t *)out = cvt_bf16x2(lo, hi);
    } else {
        out[0] = __float2bfloat16_rn(lo);
        if (second)
            out[1] = __float2bfloat16_rn(hi);
    }
}

/* scale: 1 / rms of the token. rotation: cos, sin. */
__device__ __forceinline__ void dense_store_qkv(const cuda_dense_args &p, const dense_place &at,
                                                int t, float lo, float hi, float scale,
                                                float2 rotation, int slot)
{
    const int half = p.d / 2, i = at.row % p.d;
    float x = __fmaf_rn(lo, scale, at.bias_lo), y = __fmaf_rn(hi, scale, at.bias_hi);

    if (at.row >= p.N)
        return;
    if (at.head < p.H + p.KV) {
        lo = x;
        hi = y;
        x = __fmaf_rn(lo, rotation.x, -__fmul_rn(hi, rotation.y));
        y = __fmaf_rn(hi, rotation.x, __fmul_rn(lo, rotation.y));
    }
    if (at.head < p.H) {
        __nv_bfloat16 *q = (__nv_bfloat16 *)p.q + ((int64_t)t * p.H + at.head) * p.d + i;

        q[0] = __float2bfloat16_rn(x);
        q[half] = __float2bfloat16_rn(y);
    } else if (slot >= 0) {
        const int kv = at.head - p.H, side = kv >= p.KV;
        const int64_t to = (kv - side * p.KV) * p.kv.head_stride + side * p.kv.side_stride +
                           (int64_t)slot * p.d + i;

        kv_store(p.kv, to, x);
        kv_store(p.kv, to + half, y);
    }
}

/* Launch with a cluster along x, and so that the kernel may start while the one before it ends: it
 * reads nothing but weights until griddepcontrol_wait(). */
template <class... Params, class... Args>
static cudaError_t dense_launch(void (*kernel)(Params...), cudaStream_t s, dim3 grid, int threads,
                                int smem, int cluster, const Args &...args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attr[2] = {};
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);

    if (e != cudaSuccess)
        return e;
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    attr[1].id = cudaLaunchAttributeClusterDimension;
    attr[1].val.clusterDim.x = (unsigned)cluster;
    attr[1].val.clusterDim.y = 1;
    attr[1].val.clusterDim.z = 1;
    c.gridDim = grid;
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = (size_t)smem;
    c.stream = s;
    c.attrs = attr;
    c.numAttrs = cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&c, kernel, args...);
}

#endif
