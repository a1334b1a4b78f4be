/* hot_math: what works on rows: norm, the experts' activation, weighted sums, rounding. Also the
 * table of this instruction set. */
#include "kernels/cpu/hot_isa.h"

#include <math.h>

#include "kernels/cpu/simd.h"

static void rmsnorm(const float *x, const float *g, float eps, int32_t n, float *y)
{
    vf sum[4] = {{0}};
    float total, r;
    int32_t i = 0;

    for (; i + 4 * VL <= n; i += 4 * VL)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            vf a = v_load(x + i + v * VL);
            sum[v] = v_fma(a, a, sum[v]);
        }
    total = v_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i++)
        total += x[i] * x[i];
    r = 1.0f / sqrtf(total / (float)n + eps);
    for (i = 0; i + VL <= n; i += VL)
        v_store(y + i, (v_load(x + i) * r) * v_load(g + i));
    for (; i < n; i++)
        y[i] = (x[i] * r) * g[i];
}

static void swiglu(const float *u, int32_t M, int32_t n, float limit, float *a, int64_t lda)
{
    for (int32_t m = 0; m < M; m++, u += PANEL, a += lda) {
        float out[16];

        for (int v = 0; v < 16; v += VL) {
            /* The bound comes first, so that a NaN is handed on and not clamped away. */
            vf gate = v_min(v_set1(limit), v_load(u + v));
            vf up = v_max(v_set1(-limit), v_min(v_set1(limit), v_load(u + 16 + v)));
            vf sig = 1.0f / (1.0f + v_exp(gate * -1.702f));
            v_store(out + v, gate * sig * (up + 1.0f));
        }
        memcpy(a, out, (size_t)n * sizeof *a);
    }
}

static void axpy(float w, const float *x, float *y, int32_t n)
{
    int32_t i = 0;

    for (; i + VL <= n; i += VL)
        v_store(y + i, v_fma(v_set1(w), v_load(x + i), v_load(y + i)));
    if (i < n) { /* the tail in a vector too: the same operation on every element */
        float xt[VL] = {0}, yt[VL] = {0};
        size_t bytes = (size_t)(n - i) * sizeof *x;

        memcpy(xt, x + i, bytes);
        memcpy(yt, y + i, bytes);
        v_store(yt, v_fma(v_set1(w), v_load(xt), v_load(yt)));
        memcpy(y + i, yt, bytes);
    }
}

static void to_bf16(const float *x, uint16_t *y, int32_t n)
{
    int32_t i = 0;

    for (; i + VL <= n; i += VL)
        v_to_bf16(v_load(x + i), y + i);
    if (i < n) {
        float tail[VL] = {0};
        uint16_t out[VL];

        memcpy(tail, x + i, (size_t)(n - i) * sizeof *x);
        v_to_bf16(v_load(tail), out);
        memcpy(y + i, out, (size_t)(n - i) * sizeof *y);
    }
}

#define STRING2(x) #x
#define STRING(x) STRING2(x)

const td_cpu_hot HOT(td_cpu_hot) = {
    .name = STRING(TD_ISA),
    .gemm = HOT(cpu_gemm),
    .attn = HOT(cpu_attn),
    .rmsnorm = rmsnorm,
    .swiglu = swiglu,
    .axpy = axpy,
    .to_bf16 = to_bf16,
};
