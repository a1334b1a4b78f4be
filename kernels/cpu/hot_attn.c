/* hot_attn: attention of a few queries over one kv head, page by page.
 *
 * A page of keys is transposed to [d][32] panels and a page of values to [64][32] panels, so that
 * both products are the same register tile as in hot_gemm.c; the cost of the conversion is shared
 * by all rows of the piece (queries times the heads of the group). Softmax is online, one step a
 * page.
 *
 * Pages are cut at multiples of 64 positions whatever the query, and a row only ever meets the keys
 * that it may see: its arithmetic depends on its own position alone. That makes prefill and decode
 * agree bit for bit, and rows that nobody wrote are never touched. */
#include "kernels/cpu/hot_isa.h"

#include "kernels/cpu/simd.h"

enum { S = 64 };

static const float zero_row[1024]; /* stands for rows that must not be read; d <= 1024 */

INLINE vi interleave(vi a, vi b, int high)
{
#if VL == 16
    const vi lo = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
#elif VL == 8
    const vi lo = {0, 8, 1, 9, 2, 10, 3, 11};
#else
    const vi lo = {0, 4, 1, 5};
#endif
    return high ? __builtin_shuffle(a, b, lo + VL / 2) : __builtin_shuffle(a, b, lo);
}

/* r[i] lane j becomes r[j] lane i: log2(VL) perfect shuffles. */
INLINE void transpose(vi *r)
{
    vi t[VL];

    for (int s = 1; s < VL; s *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < VL / 2; i++) {
            t[2 * i] = interleave(r[i], r[i + VL / 2], 0);
            t[2 * i + 1] = interleave(r[i], r[i + VL / 2], 1);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++)
            r[i] = t[i];
    }
}

static float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

/* Keys lo..hi of a page (row 0 at k) into panels kt[2][d][32]; other lanes become zero. */
static void keys_to_panels(const void *k, int bf16, int32_t d, int32_t lo, int32_t hi, float *kt)
{
    size_t elt = bf16 ? 2 : 4;
    int32_t step = bf16 ? 2 * VL : VL, whole = d / step * step;

    for (int32_t r0 = lo / VL * VL; r0 < hi; r0 += VL) {
        float *panel = kt + (int64_t)(r0 / PANEL) * d * PANEL + r0 % PANEL;
        const char *row[VL];

        for (int i = 0; i < VL; i++)
            row[i] = r0 + i >= lo && r0 + i < hi
                         ? (const char *)k + (size_t)(r0 + i) * (size_t)d * elt
                         : (const char *)zero_row;
        for (int32_t c = 0; c < whole; c += step) {
            vi r[VL];

#pragma GCC unroll 16
            for (int i = 0; i < VL; i++)
                memcpy(&r[i], row[i] + (size_t)c * elt, sizeof r[i]);
            transpose(r);
            for (int j = 0; j < VL; j++) {
                if (bf16) {
                    v_store(panel + (int64_t)(c + 2 * j) * PANEL, (vf)(r[j] << 16));
                    v_store(panel + (int64_t)(c + 2 * j + 1) * PANEL, (vf)((vu)r[j] & 0xffff0000u));
                } else {
                    v_store(panel + (int64_t)(c + j) * PANEL, (vf)r[j]);
                }
            }
        }
        for (int32_t c = whole; c < d; c++)
            for (int i = 0; i < VL; i++)
                panel[(int64_t)c * PANEL + i] =
                    bf16 ? bf16_to_f32(((const uint16_t *)row[i])[c]) : ((const float *)row[i])[c];
    }
}

/* Values lo..hi into panels vp[dp / 32][64][32]; columns past d are zero. */
static void values_to_panels(const void *v, int bf16, int32_t d, int32_t lo, int32_t hi, float *vp)
{
    for (int32_t c0 = 0; c0 < d; c0 += PANEL) {
        float *panel = vp + (int64_t)c0 * S;
        int32_t n = d - c0 < PANEL ? d - c0 : PANEL;

        for (int32_t r = lo; r < hi; r++) {
            float *out = panel + (int64_t)r * PANEL;
            int64_t at = (int64_t)r * d + c0;

            if (n == PANEL) {
                for (int i = 0; i < PANEL; i += VL)
                    v_store(out + i, bf16 ? v_bf16((const uint16_t *)v + at + i)
                                          : v_load((const float *)v + at + i));
                continue;
            }
            memset(out, 0, PANEL * sizeof *out);
            for (int32_t i = 0; i < n; i++)
                out[i] =
                    bf16 ? bf16_to_f32(((const uint16_t *)v)[at + i]) : ((const float *)v)[at + i];
        }
    }
}

/* One online-softmax step: raw scores s[lo..hi) become weights relative to the new maximum. Returns
 * what the row's earlier accumulator must be multiplied with. */
INLINE float softmax_step(float *s, int32_t lo, int32_t hi, float scale, float *m, float *l)
{
    vi lane;
    vf top = v_set1(-__builtin_inff()), sum = v_set1(0.0f);
    int32_t first = lo / VL * VL;
    float m_new, corr;

    for (int i = 0; i < VL; i++)
        lane[i] = i;
    for (int32_t c = first; c < hi; c += VL) {
        vi at = lane + c;
        vi in = (at >= lo) & (at < hi);
        vf x = v_select(in, v_load(s + c) * scale, v_set1(-__builtin_inff()));

        v_store(s + c, x);
        top = v_max(x, top);
    }
    m_new = v_hmax(top);
    m_new = m_new > *m ? m_new : *m;
    if (m_new == -__builtin_inff()) /* every score overflowed to -inf: no weight anywhere */
        m_new = -__FLT_MAX__;
    for (int32_t c = first; c < hi; c += VL) {
        vf x = v_exp(v_load(s + c) - m_new);

        sum += x;
        v_store(s + c, x);
    }
    corr = *m == m_new ? 1.0f : v_exp(v_set1(*m - m_new))[0];
    *l = *l * corr + v_hsum(sum);
    *m = m_new;
    return corr;
}

static int32_t first_visible(int32_t pos, int32_t window)
{
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

typedef struct rows {
    float *kt, *vp, *s, *acc, *m, *l;
    int32_t dp;
} rows;

/* Queries i..j of the piece share the visible rows lo..hi of the page in the panels. */
static void run(const cpu_attn_piece *p, const rows *w, int32_t i, int32_t j, int32_t lo,
                int32_t hi)
{
    static const float zeros[PANEL];
    const float *x[CPU_ROWS];
    int32_t r0 = i * p->G, M = (j - i) * p->G;

    for (int32_t q = i; q < j; q++)
        for (int32_t g = 0; g < p->G; g++)
            x[(q - i) * p->G + g] = p->q + q * p->query_stride + (int64_t)g * p->d;
    for (int32_t c = lo / PANEL * PANEL; c < hi; c += PANEL)
        HOT(cpu_panel_f32)
    (w->kt + (int64_t)c * p->d, 0, p->d, x, 0, M, zeros, w->s + (int64_t)r0 * S + c, S);
    for (int32_t r = r0; r < r0 + M; r++) {
        float corr = softmax_step(w->s + (int64_t)r * S, lo, hi, p->scale, w->m + r, w->l + r);

        x[r - r0] = w->s + (int64_t)r * S;
        if (corr != 1.0f)
            for (int32_t c = 0; c < w->dp; c += VL) {
                float *a = w->acc + (int64_t)r * w->dp + c;
                v_store(a, v_load(a) * corr);
            }
    }
    for (int32_t c = 0; c < w->dp; c += PANEL)
        HOT(cpu_panel_f32)
    (w->vp + (int64_t)c * S, lo, hi, x, 0, M, NULL, w->acc + (int64_t)r0 * w->dp + c, w->dp);
}

static void page(const cpu_attn_piece *p, const rows *w, int32_t number)
{
    size_t elt = p->kv_bf16 ? 2 : 4;
    int32_t start = number * S, last = p->pos0 + p->n - 1;
    int32_t lo = first_visible(p->pos0, p->window) - start, hi = last + 1 - start;
    int64_t slot = (int64_t)p->table[number % p->wrap] * S;

    lo = lo > 0 ? lo : 0;
    hi = hi < S ? hi : S;
    keys_to_panels((const char *)p->k + (size_t)(slot * p->d) * elt, p->kv_bf16, p->d, lo, hi,
                   w->kt);
    values_to_panels((const char *)p->v + (size_t)(slot * p->d) * elt, p->kv_bf16, p->d, lo, hi,
                     w->vp);
    for (int32_t i = 0, j; i < p->n; i = j) {
        int32_t a = first_visible(p->pos0 + i, p->window) - start, b = p->pos0 + i + 1 - start;

        a = a > 0 ? a : 0;
        b = b < S ? b : S;
        for (j = i + 1; j < p->n; j++) {
            int32_t a2 = first_visible(p->pos0 + j, p->window) - start;
            int32_t b2 = p->pos0 + j + 1 - start;

            if ((a2 > 0 ? a2 : 0) != a || (b2 < S ? b2 : S) != b)
                break;
        }
        if (a < b)
            run(p, w, i, j, a, b);
    }
}

void HOT(cpu_attn)(const cpu_attn_piece *p)
{
    int32_t n_rows = p->n * p->G, dp = (p->d + PANEL - 1) / PANEL * PANEL;
    rows w = {.dp = dp, .kt = p->scratch};

    w.vp = w.kt + (int64_t)S * p->d;
    w.s = w.vp + (int64_t)S * dp;
    w.acc = w.s + (int64_t)n_rows * S;
    w.m = w.acc + (int64_t)n_rows * dp;
    w.l = w.m + n_rows;
    memset(w.kt, 0, (size_t)S * (size_t)p->d * sizeof(float));
    memset(w.acc, 0, (size_t)n_rows * (size_t)dp * sizeof(float));
    for (int32_t r = 0; r < n_rows; r++) {
        w.m[r] = -__builtin_inff();
        w.l[r] = 0.0f;
    }
    for (int32_t n = first_visible(p->pos0, p->window) / S; n <= (p->pos0 + p->n - 1) / S; n++)
        page(p, &w, n);
    for (int32_t r = 0; r < n_rows; r++) {
        float *out = p->out + r / p->G * p->query_stride + (int64_t)(r % p->G) * p->d;
        float sink = p->sinks[r % p->G], top = w.m[r] > sink ? w.m[r] : sink;
        float mine = v_exp(v_set1(w.m[r] - top))[0], total = w.l[r] * mine;
        float f = mine / (total + v_exp(v_set1(sink - top))[0]);

        for (int32_t c = 0; c < p->d; c++)
            out[c] = w.acc[(int64_t)r * dp + c] * f;
    }
}
