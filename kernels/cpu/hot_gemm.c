/* hot_gemm: y = bias + x W^T on one panel of 32 columns.
 *
 * A register tile is MR rows by one panel: for each k, the panel's 32 weights are read once and
 * multiplied with one broadcast value a row. With few rows (decode) the weights are converted on
 * the way, because reading them is the whole cost; with more rows than one tile, CPU_KB of k are
 * unpacked to f32 in L1 first and all rows pass over them. Both give the same chain of operations
 * per element, so the choice does not show in the result. */
#include "kernels/cpu/hot_isa.h"

#include "kernels/cpu/simd.h"

typedef struct weights {
    const float *f32;
    const uint16_t *bf16;
    const uint8_t *nibbles, *scales;
} weights;

/* The NV vectors of weights of one k; scale is only read for MXFP4. */
INLINE void panel_row(cpu_encoding enc, const weights *w, int32_t k, const vf *scale, vf *out)
{
    if (enc == CPU_F32) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++)
            out[v] = v_load(w->f32 + (int64_t)k * PANEL + v * VL);
    } else if (enc == CPU_BF16) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++)
            out[v] = v_bf16(w->bf16 + (int64_t)k * PANEL + v * VL);
    } else {
#pragma GCC unroll 4
        for (int v = 0; v < NV / 2; v++) {
            vu both = v_bytes(w->nibbles + (int64_t)k * (PANEL / 2) + v * VL);
            out[v] = v_fp4(both) * scale[v];
            out[v + NV / 2] = v_fp4(both >> 4) * scale[v + NV / 2];
        }
    }
}

/* Rows 0..mr of y over k0..k1. init: 32 floats to start from, or NULL to go on from y. */
INLINE void tile(cpu_encoding enc, int mr, const weights *w, int32_t k0, int32_t k1,
                 const float *const *x, int32_t x0, const float *init, float *y, int64_t ldy)
{
    vf acc[MR][NV], wk[NV], scale[NV];

#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++)
            acc[m][v] = v_load(init != NULL ? init + v * VL : y + m * ldy + v * VL);
    for (int32_t kb = k0; kb < k1; kb += 32) {
        int32_t ke = kb + 32 < k1 ? kb + 32 : k1;

        if (enc == CPU_MXFP4)
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++)
                scale[v] = v_e8m0(w->scales + kb + v * VL);
        for (int32_t k = kb; k < ke; k++) {
            panel_row(enc, w, k, scale, wk);
#pragma GCC unroll 8
            for (int m = 0; m < mr; m++) {
                vf xk = v_set1(x[m][x0 + k]);
#pragma GCC unroll 8
                for (int v = 0; v < NV; v++)
                    acc[m][v] = v_fma(xk, wk[v], acc[m][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++)
            v_store(y + m * ldy + v * VL, acc[m][v]);
}

INLINE void tile_rows(cpu_encoding enc, int mr, const weights *w, int32_t k0, int32_t k1,
                      const float *const *x, int32_t x0, const float *init, float *y, int64_t ldy)
{
    switch (mr) {
    case 1: tile(enc, 1, w, k0, k1, x, x0, init, y, ldy); break;
#if MR >= 3
    case 2: tile(enc, 2, w, k0, k1, x, x0, init, y, ldy); break;
    case 3: tile(enc, 3, w, k0, k1, x, x0, init, y, ldy); break;
#endif
#if MR >= 8
    case 4: tile(enc, 4, w, k0, k1, x, x0, init, y, ldy); break;
    case 5: tile(enc, 5, w, k0, k1, x, x0, init, y, ldy); break;
    case 6: tile(enc, 6, w, k0, k1, x, x0, init, y, ldy); break;
    case 7: tile(enc, 7, w, k0, k1, x, x0, init, y, ldy); break;
    case 8: tile(enc, 8, w, k0, k1, x, x0, init, y, ldy); break;
#endif
    default: break;
    }
}

/* The chain over f32 weights, for attention too: columns are always a whole panel in memory. */
void HOT(cpu_panel_f32)(const float *w, int32_t k0, int32_t k1, const float *const *x, int32_t x0,
                        int32_t M, const float *init, float *y, int64_t ldy)
{
    const weights ww = {.f32 = w};

    for (int32_t m = 0; m < M; m += MR)
        tile_rows(CPU_F32, M - m < MR ? M - m : MR, &ww, k0, k1, x + m, x0, init, y + m * ldy, ldy);
}

/* CPU_F32 weights of k0..k1 into out[k - k0][32]. */
INLINE void unpack(cpu_encoding enc, const weights *w, int32_t k0, int32_t k1, float *out)
{
    vf wk[NV], scale[NV];

    for (int32_t kb = k0; kb < k1; kb += 32) {
        int32_t ke = kb + 32 < k1 ? kb + 32 : k1;

        if (enc == CPU_MXFP4)
            for (int v = 0; v < NV; v++)
                scale[v] = v_e8m0(w->scales + kb + v * VL);
        for (int32_t k = kb; k < ke; k++) {
            panel_row(enc, w, k, scale, wk);
            for (int v = 0; v < NV; v++)
                v_store(out + (int64_t)(k - k0) * PANEL + v * VL, wk[v]);
        }
    }
}

INLINE void gemm(cpu_encoding enc, const cpu_gemm_piece *p, const weights *w, const float *init,
                 float *y, int64_t ldy)
{
    int32_t K = p->panel.K;

    if (p->M <= MR || enc == CPU_F32) {
        /* f32 weights are cut in K as well, so that a block stays in L1 for all rows. */
        for (int32_t k0 = 0; k0 < K || k0 == 0; k0 += CPU_KB) {
            int32_t k1 = K - k0 < CPU_KB || p->M <= MR ? K : k0 + CPU_KB;

            for (int32_t m = 0; m < p->M; m += MR)
                tile_rows(enc, p->M - m < MR ? p->M - m : MR, w, k0, k1, p->x + m, 0,
                          k0 == 0 ? init : NULL, y + m * ldy, ldy);
            if (k1 == K)
                break;
        }
        return;
    }
    for (int32_t k0 = 0; k0 < K; k0 += CPU_KB) {
        int32_t k1 = K - k0 < CPU_KB ? K : k0 + CPU_KB;

        unpack(enc, w, k0, k1, p->scratch);
        HOT(cpu_panel_f32)(p->scratch, 0, k1 - k0, p->x, k0, p->M, k0 == 0 ? init : NULL, y, ldy);
    }
}

void HOT(cpu_gemm)(const cpu_gemm_piece *p)
{
    static const float zeros[PANEL];
    const weights w = {p->panel.w, p->panel.w, p->panel.w, p->panel.scales};
    const float *init = p->bias != NULL ? p->bias : zeros;
    float *y = p->y;
    int64_t ldy = p->ldy;

    if (p->n < PANEL) { /* the last panel: whole rows go to scratch, n columns from there */
        y = p->scratch + CPU_KB * CPU_PANEL;
        ldy = PANEL;
    }
    switch (p->panel.encoding) {
    case CPU_F32: gemm(CPU_F32, p, &w, init, y, ldy); break;
    case CPU_BF16: gemm(CPU_BF16, p, &w, init, y, ldy); break;
    case CPU_MXFP4: gemm(CPU_MXFP4, p, &w, init, y, ldy); break;
    }
    if (p->n < PANEL)
        for (int32_t m = 0; m < p->M; m++)
            memcpy(p->y + m * p->ldy, y + m * ldy, (size_t)p->n * sizeof(float));
}
