/* dense: what the kernels behind dense.h share: which rows a tile holds, how columns of a block
 * meet in an mma, and what is made of a sum.
 *
 * A tile is 16 rows of W in pairs: row r and row 8 + r of the mma, r < 8, are two neighbouring
 * columns of the output, or the two halves of a rotated pair, so that one lane holds both.
 *
 * In a block of 64 columns, lane q of four reads columns 8 q .. 8 q + 7 of each half of 32, 16
 * bytes at once; words 0 and 1 of them are its k-slots in one mma, words 2 and 3 in the next. Rows
 * of W and of the activations are read alike, so the slots meet; which columns share an mma is all
 * that this permutes. */
#ifndef TANDEM_KERNELS_CUDA_DENSE_CUH
#define TANDEM_KERNELS_CUDA_DENSE_CUH

#include "kernels/cuda/dense.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_store.cuh"

__device__ __forceinline__ uint4 ld_shared_128(uint32_t addr)
{
    uint4 v;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(addr)
                 : "memory");
    return v;
}

/* One half of a block: two mma. */
__device__ __forceinline__ void dense_mma(float (&c)[4], const uint4 &lo, const uint4 &hi,
                                          const uint4 &b)
{
    const uint32_t first[4] = {lo.x, hi.x, lo.y, hi.y}, second[4] = {lo.z, hi.z, lo.w, hi.w};

    mma_m16n8k16(c, first, b.x, b.y);
    mma_m16n8k16(c, second, b.z, b.w);
}

/* The row of W that is row r (hi: 8 + r) of a tile; may be past the end. */
template <int KIND>
__device__ __forceinline__ int dense_row(const cuda_dense_args &p, int tile, int r, int hi)
{
    if (KIND == CUDA_DENSE_OUT)
        return tile * 16 + 2 * r + hi;
    const int a_head = p.d / 16;

    return tile / a_head * p.d + tile % a_head * 8 + r + hi * (p.d / 2);
}

__device__ __forceinline__ void dense_store_out(const cuda_dense_args &p, int row, int t, float lo,
                                                float hi)
{
    __nv_bfloat16 *out = (__nv_bfloat16 *)p.out + t * p.ldo + row;
    const bool second = row + 1 < p.N;

    if (row >= p.N)
        return;
    if (p.bias != NULL) {
        lo = __fadd_rn(lo, p.bias[row]);
        hi = second ? __fadd_rn(hi, p.bias[row + 1]) : hi;
    }
    if (second && ((uintptr_t)out & 3) == 0) {
        *(uint32_t *)out = cvt_bf16x2(lo, hi);
    } else {
        out[0] = __float2bfloat16_rn(lo);
        if (second)
            out[1] = __float2bfloat16_rn(hi);
    }
}

__device__ __forceinline__ void dense_store_qkv(const cuda_dense_args &p, int row, int t, float lo,
                                                float hi)
{
    const int half = p.d / 2, head = row / p.d, i = row % p.d;
    const float r = __ldcg(p.scale + t);
    float x, y;

    if (row >= p.N)
        return;
    lo = __fmaf_rn(lo, r, p.bias[row]);
    hi = __fmaf_rn(hi, r, p.bias[row + half]);
    x = lo;
    y = hi;
    if (head < p.H + p.KV) {
        const int64_t at = (int64_t)__ldcg(p.pos + t) * half + i;
        const float c = p.cos[at], s = p.sin[at];

        x = __fmaf_rn(lo, c, -__fmul_rn(hi, s));
        y = __fmaf_rn(hi, c, __fmul_rn(lo, s));
    }
    if (head < p.H) {
        __nv_bfloat16 *q = (__nv_bfloat16 *)p.q + ((int64_t)t * p.H + head) * p.d + i;

        q[0] = __float2bfloat16_rn(x);
        q[half] = __float2bfloat16_rn(y);
    } else {
        const int64_t slot = __ldcg(p.slot + t);
        const int kv = head - p.H, side = kv >= p.KV;
        const int64_t at =
            (kv - side * p.KV) * p.kv.head_stride + side * p.kv.side_stride + slot * p.d + i;

        if (slot >= 0) {
            kv_store(p.kv, at, x);
            kv_store(p.kv, at + half, y);
        }
    }
}

/* The pair of sums (r, 8 + r) of a tile, token t. */
template <int KIND>
__device__ __forceinline__ void dense_finish(const cuda_dense_args &p, int tile, int r, int t,
                                             float lo, float hi)
{
    const int row = dense_row<KIND>(p, tile, r, 0);

    if (KIND == CUDA_DENSE_OUT)
        dense_store_out(p, row, t, lo, hi);
    else
        dense_store_qkv(p, row, t, lo, hi);
}

/* Launch with a cluster along x, and so that the kernel may start while the one before it ends: it
 * reads nothing but weights until griddepcontrol_wait(). */
template <class Kernel>
static cudaError_t dense_launch(Kernel kernel, cudaStream_t s, dim3 grid, int threads, int smem,
                                int cluster, const cuda_dense_args &p)
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
    return cudaLaunchKernelEx(&c, kernel, p);
}

#endif
