/* attn_wgmma: the two products of prefill attention as warpgroup multiplies, and the softmax
 * between them, for 64 rows a warpgroup.
 *
 * Accumulators: thread t of the warpgroup holds, of rows 16 (t / 32) + t % 32 / 4 and 8 further,
 * columns 8n + t % 4 * 2 and the next: d[4n + 2i + e] is row i, column e of these. Packed in pairs,
 * weights are in the order of the second product's operand in registers: no exchange between
 * threads. */
#ifndef TANDEM_KERNELS_CUDA_ATTN_WGMMA_CUH
#define TANDEM_KERNELS_CUDA_ATTN_WGMMA_CUH

#include <math.h>

#include "kernels/cuda/hopper.cuh"

/* d[64, 32] = a[64, 16] b[32, 16]^T, plus d unless fresh; both in shared memory, K-major. */
__device__ __forceinline__ void wgmma_k16(float (&d)[16], uint64_t a, uint64_t b, bool fresh)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.eq.u32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%16, %17, p, 1, 1, 0, 0;\n"
                 "}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b), "r"((uint32_t)fresh));
}

/* d[64, 64] = a[64, 16] b[64, 16]^T, plus d unless fresh; both in shared memory, K-major. */
__device__ __forceinline__ void wgmma_k16(float (&d)[32], uint64_t a, uint64_t b, bool fresh)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.eq.u32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n"
                 "}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"((uint32_t)fresh));
}

/* d[64, 128] = a[64, 16] b[128, 16]^T, plus d unless fresh; both in shared memory, K-major. */
__device__ __forceinline__ void wgmma_k16(float (&d)[64], uint64_t a, uint64_t b, bool fresh)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.eq.u32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0;\n"
                 "}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "r"((uint32_t)fresh));
}

/* d[64, 64] += a[64, 16] b[16, 64]; a in registers, b in shared memory, rows of 64 of N. */
__device__ __forceinline__ void wgmma_m64n64k16_mn(float (&d)[32], const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Enqueue d = a b^T over 64 columns: scores, logits. */
template <int R> __device__ __forceinline__ void wgmma_k64(float (&d)[R], uint64_t a, uint64_t b)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_k16(d, a + i * 2, b + i * 2, i == 0);
}

/* Enqueue o += p v over 2R keys; p as packed weights. */
template <int R>
__device__ __forceinline__ void attn_values(float (&o)[32], const uint32_t (&p)[R], uint64_t v)
{
#pragma unroll
    for (int i = 0; i < R / 4; i++)
        wgmma_m64n64k16_mn(o, p + i * 4, v + i * 128);
}

/* As wgmma_pin(): weights are written before the fence that lets the second product read them. */
template <int R> __device__ __forceinline__ void attn_pin(uint32_t (&p)[R])
{
#pragma unroll
    for (int i = 0; i < R; i++)
        asm volatile("" : "+r"(p[i])::"memory");
}

/* Keys that a row does not see get no weight. Column 0 is the key at position base; row i sees
 * lo[i] .. hi[i]. */
template <int R>
__device__ __forceinline__ void attn_mask(float (&s)[R], int base, bool window, const int (&lo)[2],
                                          const int (&hi)[2])
{
    const int first = base + threadIdx.x % 4 * 2;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int h = hi[i] - first, l = lo[i] - first;

#pragma unroll
        for (int n = 0; n < R / 4; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (n * 8 + e > h || (window && n * 8 + e < l))
                    s[n * 4 + i * 2 + e] = -INFINITY;
    }
}

/* Scores become weights, in place; m: the rows' largest score so far, times c = scale * log2(e); l:
 * their sums of weights over this thread's columns; alpha: what the rows' earlier weights must be
 * multiplied by. A row that sees nothing of the tile stays as it was, bit for bit. */
template <int R>
__device__ __forceinline__ void attn_softmax(float (&s)[R], float (&m)[2], float (&l)[2],
                                             float (&alpha)[2], float c)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = s[i * 2];

#pragma unroll
        for (int n = 0; n < R / 4; n++)
            top = fmaxf(top, fmaxf(s[n * 4 + i * 2], s[n * 4 + i * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));

        const float now = fmaxf(m[i], top * c);
        const float base = now == -INFINITY ? 0.0f : now; /* nothing seen yet: all weights are 0 */
        float sum = 0.0f;

        alpha[i] = ex2_approx(m[i] - base);
        m[i] = now;
#pragma unroll
        for (int n = 0; n < R / 4; n++) {
            const int at = n * 4 + i * 2;

            s[at] = ex2_approx(__fmaf_rn(s[at], c, -base));
            s[at + 1] = ex2_approx(__fmaf_rn(s[at + 1], c, -base));
            sum += s[at] + s[at + 1];
        }
        l[i] = __fmaf_rn(l[i], alpha[i], sum);
    }
}

#endif
