/* attn_step: what one warp of decode attention does with 8 KiB of keys and values, 32 positions in
 * bf16 or 64 in e4m3, for up to eight query heads of one kv head.
 *
 * In both products the keys, or values, are the a operand and the heads its eight columns.
 * Dimensions (of q and k) and rows (of o) are numbered as 16-byte loads deliver them, so that
 * nothing goes through shared memory. With g = lane / 4 and q = lane % 4 a lane asks for
 *
 *   keys    8i + g, 16 bytes at 16q (bf16: and at 64 + 16q): the a operand of k q^T
 *   values  8i + 2q and the next, dimensions 8g .. 8g + 7: of v^T p^T, once keys are paired
 *
 * and holds of o dimensions 8g .. 8g + 7, in pairs o[j][h], o[j][h + 2], of head 2q + h. */
#ifndef TANDEM_KERNELS_CUDA_ATTN_STEP_CUH
#define TANDEM_KERNELS_CUDA_ATTN_STEP_CUH

#include "kernels/cuda/attn_softmax.cuh"

template <bool E4M3> struct decode_step;

__device__ __forceinline__ uint4 ld_stream_128(const uint8_t *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 ld_stream_64(const uint8_t *p)
{
    uint2 v;

    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
/* Transposes the 8 x 8 of which each lane holds columns 2q, 2q + 1 of row g. */
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x)
{
    uint32_t y;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
    return y;
}
__device__ __forceinline__ uint32_t cvt_f16x2(float lo, float hi)
{
    uint32_t r;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
/* Four e4m3 as two pairs. */
__device__ __forceinline__ void cvt_f16x2_e4m3x2(uint32_t x, uint32_t &lo, uint32_t &hi)
{
    asm("{\n"
        ".reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n"
        "}\n"
        : "=r"(lo), "=r"(hi)
        : "r"(x));
}
__device__ __forceinline__ void mma_m16n8k16_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <> struct decode_step<false> {
    static constexpr int STEP = 32, ROW = 128;
    uint4 q[2], k[4][2], v[4][2];

    __device__ __forceinline__ void load_q(const __nv_bfloat16 *row)
    {
        const uint4 *at = (const uint4 *)row + threadIdx.x % 4;

        q[0] = row != NULL ? at[0] : make_uint4(0, 0, 0, 0);
        q[1] = row != NULL ? at[4] : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void prepare_q()
    {
    }
    /* from: the step's first key; rows lo .. hi are there, the others become zeros. */
    __device__ __forceinline__ void load_k(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4;

        from += g * ROW + threadIdx.x % 4 * 16;
        if (lo <= 0 && hi >= STEP - 1) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                k[i][0] = ld_stream_128(from + i * 8 * ROW);
                k[i][1] = ld_stream_128(from + i * 8 * ROW + 64);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            k[i][0] = k[i][1] = make_uint4(0, 0, 0, 0);
            if (i * 8 + g >= lo && i * 8 + g <= hi) {
                k[i][0] = ld_stream_128(from + i * 8 * ROW);
                k[i][1] = ld_stream_128(from + i * 8 * ROW + 64);
            }
        }
    }
    __device__ __forceinline__ void load_v(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4, r = threadIdx.x % 4 * 2;

        from += r * ROW + g * 16;
        if (lo <= 0 && hi >= STEP - 1) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i][0] = ld_stream_128(from + i * 8 * ROW);
                v[i][1] = ld_stream_128(from + i * 8 * ROW + ROW);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                v[i][e] = make_uint4(0, 0, 0, 0);
                if (i * 8 + r + e >= lo && i * 8 + r + e <= hi)
                    v[i][e] = ld_stream_128(from + (i * 8 + e) * ROW);
            }
    }
    /* s[i]: keys 16i + g (two heads), 16i + g + 8. */
    __device__ __forceinline__ void scores(float (&s)[2][4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const uint4 &a = k[i * 2][c], &b = k[i * 2 + 1][c];
                const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};

                mma_m16n8k16(s[i], first, q[c].x, q[c].y);
                mma_m16n8k16(s[i], second, q[c].z, q[c].w);
            }
    }
    __device__ __forceinline__ void values(float (&o)[4][4], const float (&s)[2][4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t b0 = movmatrix_trans(cvt_bf16x2(s[i][0], s[i][1]));
            const uint32_t b1 = movmatrix_trans(cvt_bf16x2(s[i][2], s[i][3]));

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t x = word(v[i * 2][0], j), y = word(v[i * 2][1], j);
                const uint32_t z = word(v[i * 2 + 1][0], j), w = word(v[i * 2 + 1][1], j);
                const uint32_t a[4] = {__byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632),
                                       __byte_perm(z, w, 0x5410), __byte_perm(z, w, 0x7632)};

                mma_m16n8k16(o[j], a, b0, b1);
            }
        }
    }
    static __device__ __forceinline__ uint32_t word(const uint4 &x, int j)
    {
        return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
    }
};

/* e4m3 becomes f16, exactly; so do queries, but for what is too small to matter, and the weights.
 */
template <> struct decode_step<true> {
    static constexpr int STEP = 64, ROW = 64;
    uint4 k[8];
    uint2 v[8][2];
    uint32_t q[8];

    __device__ __forceinline__ void load_q(const __nv_bfloat16 *row)
    {
        const uint4 *at = (const uint4 *)row + threadIdx.x % 4 * 2;
        const uint4 a = row != NULL ? at[0] : make_uint4(0, 0, 0, 0);
        const uint4 b = row != NULL ? at[1] : make_uint4(0, 0, 0, 0);

        q[0] = a.x, q[1] = a.y, q[2] = a.z, q[3] = a.w;
        q[4] = b.x, q[5] = b.y, q[6] = b.z, q[7] = b.w;
    }
    /* Once they are here: f16, as keys will be. */
    __device__ __forceinline__ void prepare_q()
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float lo = __uint_as_float(q[i] << 16), hi = __uint_as_float(q[i] & 0xffff0000);

            q[i] = cvt_f16x2(fminf(fmaxf(lo, -65504.0f), 65504.0f),
                             fminf(fmaxf(hi, -65504.0f), 65504.0f));
        }
    }
    __device__ __forceinline__ void load_k(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4;

        from += g * ROW + threadIdx.x % 4 * 16;
        if (lo <= 0 && hi >= STEP - 1) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                k[i] = ld_stream_128(from + i * 8 * ROW);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            k[i] = make_uint4(0, 0, 0, 0);
            if (i * 8 + g >= lo && i * 8 + g <= hi)
                k[i] = ld_stream_128(from + i * 8 * ROW);
        }
    }
    __device__ __forceinline__ void load_v(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4, r = threadIdx.x % 4 * 2;

        from += r * ROW + g * 8;
        if (lo <= 0 && hi >= STEP - 1) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i][0] = ld_stream_64(from + i * 8 * ROW);
                v[i][1] = ld_stream_64(from + i * 8 * ROW + ROW);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                v[i][e] = make_uint2(0, 0);
                if (i * 8 + r + e >= lo && i * 8 + r + e <= hi)
                    v[i][e] = ld_stream_64(from + (i * 8 + e) * ROW);
            }
    }
    __device__ __forceinline__ void scores(float (&s)[4][4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int d = 0; d < 4; d++) {
                uint32_t a[4];

                cvt_f16x2_e4m3x2(word(k[i * 2], d), a[0], a[2]);
                cvt_f16x2_e4m3x2(word(k[i * 2 + 1], d), a[1], a[3]);
                mma_m16n8k16_f16(s[i], a, q[d * 2], q[d * 2 + 1]);
            }
    }
    __device__ __forceinline__ void values(float (&o)[4][4], const float (&s)[4][4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t b0 = movmatrix_trans(cvt_f16x2(s[i][0], s[i][1]));
            const uint32_t b1 = movmatrix_trans(cvt_f16x2(s[i][2], s[i][3]));

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint2 &x = v[i * 2][0], &y = v[i * 2][1];
                const uint2 &z = v[i * 2 + 1][0], &w = v[i * 2 + 1][1];
                const int pick = j % 2 == 0 ? 0x5140 : 0x7362; /* of both keys two dimensions */
                const uint32_t xy =
                    j < 2 ? __byte_perm(x.x, y.x, pick) : __byte_perm(x.y, y.y, pick);
                const uint32_t zw =
                    j < 2 ? __byte_perm(z.x, w.x, pick) : __byte_perm(z.y, w.y, pick);
                uint32_t a[4];

                cvt_f16x2_e4m3x2(xy, a[0], a[1]);
                cvt_f16x2_e4m3x2(zw, a[2], a[3]);
                mma_m16n8k16_f16(o[j], a, b0, b1);
            }
        }
    }
    static __device__ __forceinline__ uint32_t word(const uint4 &x, int j)
    {
        return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
    }
};

/* Over the eight lanes that hold the same heads. */
__device__ __forceinline__ float max_over_keys(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}
__device__ __forceinline__ float sum_over_keys(float x)
{
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

/* What a lane has of a group: two heads, eight dimensions; l over its own keys. */
struct decode_state {
    float m[2], l[2], o[4][4];

    __device__ __forceinline__ void clear()
    {
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++)
            o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
    }
};

/* Scores of a step become weights; o is rescaled. Keys lo .. hi of the step are seen. */
template <int N>
__device__ __forceinline__ void weigh(float (&s)[N][4], decode_state &st, int lo, int hi, float c)
{
    const int g = threadIdx.x % 32 / 4;

    if (lo > 0 || hi < N * 16 - 1) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = i * 16 + e / 2 * 8 + g;

                if (key < lo || key > hi)
                    s[i][e] = -INFINITY;
            }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = s[0][h], sum = 0.0f;

#pragma unroll
        for (int i = 0; i < N; i++)
            top = fmaxf(top, fmaxf(s[i][h], s[i][h + 2]));

        const float now = fmaxf(st.m[h], max_over_keys(top) * c);
        const float base = now == -INFINITY ? 0.0f : now; /* nothing seen yet: all weights are 0 */
        const float alpha = ex2_approx(st.m[h] - base);

        st.m[h] = now;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = h; e < 4; e += 2) {
                s[i][e] = ex2_approx(__fmaf_rn(s[i][e], c, -base));
                sum += s[i][e];
            }
        st.l[h] = __fmaf_rn(st.l[h], alpha, sum);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            st.o[j][h] *= alpha;
            st.o[j][h + 2] *= alpha;
        }
    }
}

#endif
