/* simd: vectors of VL floats, in the width that this translation unit is compiled for.
 *
 * The files hot_*.c are compiled once per instruction set; this header is all that differs between
 * them: AVX-512, AVX2 with FMA, or whatever the baseline has (SSE2, NEON). Multiply-add is one
 * instruction where the set has one, explicitly: a sum must not depend on what the compiler chooses
 * to contract in one unrolled copy of a loop and not in another. */
#ifndef TANDEM_KERNELS_CPU_SIMD_H
#define TANDEM_KERNELS_CPU_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define VL 16
#define MR \
    8 /* rows of a register tile: 8 x 2 accumulators; eight row pointers still fit in registers */
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define VL 8
#define MR 3 /* 3 x 4 accumulators of 16 registers */
#else
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#define VL 4
#define MR 1 /* 8 accumulators of 16 registers */
#endif

#define PANEL 32        /* columns of a weight panel, whatever VL is */
#define NV (PANEL / VL) /* vectors across a panel */
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));
typedef uint16_t vh __attribute__((vector_size(2 * VL)));
typedef uint8_t vb __attribute__((vector_size(VL)));

INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

INLINE vf v_set1(float a)
{
#if VL == 16
    return _mm512_set1_ps(a);
#elif VL == 8
    return _mm256_set1_ps(a);
#else
    return (vf){a, a, a, a};
#endif
}

INLINE vf v_fma(vf a, vf b, vf c)
{
#if VL == 16
    return _mm512_fmadd_ps(a, b, c);
#elif VL == 8
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Lanes of a where mask is set, of b elsewhere. */
INLINE vf v_select(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* b where the comparison does not hold, so a NaN in b stays and one in a goes. */
INLINE vf v_max(vf a, vf b)
{
    return v_select(a > b, a, b);
}

INLINE vf v_min(vf a, vf b)
{
    return v_select(a < b, a, b);
}

/* Sum and maximum over the lanes, in one fixed order. */
INLINE float v_hsum(vf v)
{
#if VL == 16
    return _mm512_reduce_add_ps(v);
#else
    float a[VL];

    v_store(a, v);
    for (int w = VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            a[i] += a[i + w];
    return a[0];
#endif
}

INLINE float v_hmax(vf v)
{
#if VL == 16
    return _mm512_reduce_max_ps(v);
#else
    float a[VL];

    v_store(a, v);
    for (int w = VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            a[i] = a[i] > a[i + w] ? a[i] : a[i + w];
    return a[0];
#endif
}

INLINE vf v_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* Rounded to nearest, ties to even; a NaN stays one. */
INLINE void v_to_bf16(vf x, uint16_t *out)
{
    vu u = (vu)x, r = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    vi nan = x != x;

    r = ((u >> 16 | 0x40) & (vu)nan) | (r & ~(vu)nan);
#if VL == 16
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16((__m512i)r));
#else
    for (int i = 0; i < VL; i++)
        out[i] = (uint16_t)r[i];
#endif
}

/* VL codes of four bits, given as the low bits of VL bytes (what is above is ignored): their values
 * 0, .5, 1, 1.5, 2, 3, 4, 6 and the negatives. */
INLINE vf v_fp4(vu code)
{
#if VL == 16
    const __m512 table = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    return _mm512_permutexvar_ps((__m512i)code, table);
#elif VL == 8
    const __m256 table = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    vu sign = (code & 8) << 28;
    return (vf)((vu)_mm256_permutevar8x32_ps(table, (__m256i)code) | sign);
#else
    static const float table[16] = {0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    vf v;
    for (int i = 0; i < VL; i++)
        v[i] = table[code[i] & 15];
    return v;
#endif
}

INLINE vu v_bytes(const uint8_t *p)
{
#if VL == 16 /* the compiler takes a generic conversion from bytes apart */
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif VL == 8
    return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    vb b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, vu);
#endif
}

/* 2^(s - 127) of VL scale bytes, exactly: 0 is the subnormal 2^-127. 255 was refused at load. */
INLINE vf v_e8m0(const uint8_t *p)
{
    vu s = v_bytes(p);
    vu zero = (vu)(s == 0);
    return (vf)((s << 23) | (zero & 0x00400000u));
}

/* e^x within 2 ulp for results that are normal; 0 below about 2^-126, +inf above the range. NaN
 * stays NaN. */
INLINE vf v_exp(vf x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vf xc = v_min(v_max(x, v_set1(-104.0f)), v_set1(104.0f));
    vf t = v_fma(xc, v_set1(1.44269504088896341f), v_set1(magic));
    vf n = t - magic;
    vf r = v_fma(n, v_set1(-0.693359375f), xc);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    vf p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(p, r * r, r) + 1.0f;
    /* 2^n in two factors: n may be one past what a single exponent field holds. */
    vi i = (vi)t - (vi)v_set1(magic);
    vi half = i >> 1;
    vf y = p * (vf)((half + 127) << 23) * (vf)((i - half + 127) << 23);
    y = v_select(x < -87.33f, v_set1(0.0f), y);
    y = v_select(x > 88.72f, v_set1(__builtin_inff()), y);
    return v_select(x == x, y, x);
}

#endif
