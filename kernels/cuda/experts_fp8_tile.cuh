/* experts_fp8_tile.cuh: a thread's share of a tile of the experts' FP8 products.
 *
 * The unit is a slice: 32 stored rows of weights, of which a thread's results are 8 consecutive
 * columns as loaded (experts_fp8.h says how rows are reordered to that end) in each of two rows of
 * activations. A warpgroup has 64 rows by 6 slices, a whole tile's width, or by 3, half of it. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_FP8_TILE_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_FP8_TILE_CUH

#include "kernels/cuda/experts_fp8.h"
#include "kernels/cuda/hopper.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace fp8
{
struct gemm_params {
    const int32_t *row_start, *rows, *unit_start; /* of the plan */
    const float *scale;                           /* weights': [E][KB][NT][4] */
    const float *bias;                            /* [E * N] or NULL */
    void *out;
    int64_t ldo; /* bytes from row to row of out */
    int E, N, K, tiles;
    float a_scale, h_scale, limit;
};

/* c = a[64, 32] b[n, 32]^T (+ c if ADD), n = 192 or 96. Lane l of warp w of the warpgroup holds,
 * with g = l / 4 and q = l % 4: c[4 j + 0, 1] = row 16 w + g, columns 8 j + 2 q and the next; c[4 j
 * + 2, 3] = row 16 w + g + 8, the same columns. */
template <int ADD>
__device__ __forceinline__ void wgmma_e4m3(float (&c)[96], uint64_t a, uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, %98, 1, 1;\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
          "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
          "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
          "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
          "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
          "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
          "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
          "+f"(c[63]), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]),
          "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]),
          "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),
          "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]),
          "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95])
        : "l"(a), "l"(b), "n"(ADD));
}
template <int ADD>
__device__ __forceinline__ void wgmma_e4m3(float (&c)[48], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
                 "%48, %49, %50, 1, 1;\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
                   "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
                   "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47])
                 : "l"(a), "l"(b), "n"(ADD));
}

/* First column, as loaded, of a slice of the tile that begins at column n0. */
__device__ __forceinline__ int slice_column(int n0, int slice, int q)
{
    return n0 + slice / 2 * 64 + q * 16 + slice % 2 * 8;
}

/* acc += scales * raw: those of the thread's two rows, and of each slice. */
template <int SLICES>
__device__ __forceinline__ void promote(float (&acc)[16 * SLICES], const float (&raw)[16 * SLICES],
                                        float row0, float row1, const float (&col)[SLICES])
{
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        const float s0 = row0 * col[i], s1 = row1 * col[i];

#pragma unroll
        for (int j = 16 * i; j < 16 * i + 16; j += 4) {
            acc[j + 0] = __fmaf_rn(raw[j + 0], s0, acc[j + 0]);
            acc[j + 1] = __fmaf_rn(raw[j + 1], s0, acc[j + 1]);
            acc[j + 2] = __fmaf_rn(raw[j + 2], s1, acc[j + 2]);
            acc[j + 3] = __fmaf_rn(raw[j + 3], s1, acc[j + 3]);
        }
    }
}

/* Zeros past the last column. */
template <int SLICES>
__device__ __forceinline__ void start_at_bias(float (&acc)[16 * SLICES], const gemm_params &p,
                                              int expert, int n0, int first, int q)
{
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        const int col = slice_column(n0, first + i, q);
        const bool here = p.bias != NULL && col < p.N;
        const float4 *b = (const float4 *)(p.bias + (int64_t)expert * p.N + col);

#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float4 v = here ? __ldg(b + j) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float *c = &acc[16 * i + 8 * j];

            c[0] = c[2] = v.x;
            c[1] = c[3] = v.y;
            c[4] = c[6] = v.z;
            c[5] = c[7] = v.w;
        }
    }
}

/* NaN stays NaN: comparisons with it are false. */
__device__ __forceinline__ float swiglu(float g, float u, float limit)
{
    float e, r;

    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    e = ex2_approx(g * (-1.702f * 1.44269504f)); /* inf for a very negative gate: g / inf is 0 */
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(1.0f + e));
    return g * r * (u + 1.0f);
}

__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d)
{
    const uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const uint32_t hi = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);

    return lo | hi << 16;
}

/* c: a slice of one row, the pairs 4 apart. Gate and up make 4 columns of h8; else 8 of y. */
template <bool GATE_UP>
__device__ __forceinline__ void store_slice(const float *c, const gemm_params &p, int64_t row,
                                            int col)
{
    char *out = (char *)p.out + row * p.ldo;

    if (GATE_UP) {
        float h[4];

#pragma unroll
        for (int j = 0; j < 4; j++)
            h[j] = swiglu(c[4 * j], c[4 * j + 1], p.limit) * p.h_scale;
        *(uint32_t *)(out + col / 2) = pack_e4m3(h[0], h[1], h[2], h[3]);
    } else {
        *(uint4 *)(out + col * 2) = make_uint4(cvt_bf16x2(c[0], c[1]), cvt_bf16x2(c[4], c[5]),
                                               cvt_bf16x2(c[8], c[9]), cvt_bf16x2(c[12], c[13]));
    }
}
} // namespace fp8

#endif
