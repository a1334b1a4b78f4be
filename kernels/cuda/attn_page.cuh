/* attn_page: what prefill and decode attention have in common: 16 query rows of a warp against one
 * page of 64 keys, d = 64, and how results of pages and chunks are put together.
 *
 * Both kernels run this code on the same pages in the same order, cut into the same chunks, so that
 * a query gets the same bits from either. Arithmetic is in rounding intrinsics for the same reason.
 * A page in which a row sees nothing leaves the row's state as it was, bit for bit: prefill may go
 * through more pages than decode does.
 *
 * Scores are kept times scale * log2(e), so that a weight is one ex2. */
#ifndef TANDEM_KERNELS_CUDA_ATTN_PAGE_CUH
#define TANDEM_KERNELS_CUDA_ATTN_PAGE_CUH

#include <math.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tune.h"
#include "kernels/ops.h"

static const float ATTN_LOG2E = 1.44269504088896340736f;
static const int ATTN_SIDE = TD_KV_PAGE * 64 * 2; /* bytes of a page's keys, or of its values */

/* Of the two rows (lane / 4, and 8 on) that a lane holds a part of: the sum of weights over the
 * lane's own columns, until attn_row_sums(). */
struct attn_state {
    float m[2], l[2], o[8][4];

    __device__ void clear()
    {
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[i][j] = 0.0f;
    }
};

/* One page into shared memory, `threads` threads together; keys at smem, values behind them,
 * 16-byte chunk c of row r at c ^ (r & 7). Rows outside lo .. hi become zeros and are not read:
 * whatever lies there, a NaN perhaps, must not meet a weight of 0. */
__device__ __forceinline__ void attn_load_page(uint32_t smem, const __nv_bfloat16 *k,
                                               const __nv_bfloat16 *v, int page_slot, int pos,
                                               int lo, int hi, int thread, int threads)
{
    for (int i = thread; i < TD_KV_PAGE * 8; i += threads) {
        const int r = i / 8, c = i % 8;
        const uint32_t dst = smem + r * 128 + (c ^ (r & 7)) * 16;
        const bool there = pos + r >= lo && pos + r <= hi;
        const int64_t at = there ? (int64_t)page_slot * TD_KV_PAGE * 64 + r * 64 + c * 8 : 0;

        cp_async_16(dst, k + at, there ? 16 : 0);
        cp_async_16(dst + ATTN_SIDE, v + at, there ? 16 : 0);
    }
}

/* A lane's share of 16 rows of q: row i at q[i], NULL for a row of zeros. */
__device__ __forceinline__ void attn_load_q(uint32_t (&qf)[4][4], const __nv_bfloat16 *row0,
                                            const __nv_bfloat16 *row1)
{
    const int q = threadIdx.x % 4;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        qf[k][0] = row0 ? *(const uint32_t *)(row0 + k * 16 + q * 2) : 0;
        qf[k][1] = row1 ? *(const uint32_t *)(row1 + k * 16 + q * 2) : 0;
        qf[k][2] = row0 ? *(const uint32_t *)(row0 + k * 16 + 8 + q * 2) : 0;
        qf[k][3] = row1 ? *(const uint32_t *)(row1 + k * 16 + 8 + q * 2) : 0;
    }
}

/* The page whose first key is at position pos; lane's rows see keys lo[i] .. hi[i]. masked: some
 * row does not see all of it. c: scale * log2(e), positive. */
__device__ __forceinline__ void attn_page(attn_state &st, const uint32_t (&qf)[4][4], uint32_t smem,
                                          int pos, bool masked, const int (&lo)[2],
                                          const int (&hi)[2], float c)
{
    const int lane = threadIdx.x % 32, q = lane % 4;
    float s[8][4] = {};

#pragma unroll
    for (int n = 0; n < 8; n++) /* 8 keys by two times 32 dimensions */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = n * 8 + (lane & 7), ch = half * 4 + lane / 8;
            uint32_t b[4];

            ldmatrix_x4(b, smem + r * 128 + (ch ^ (r & 7)) * 16);
            mma_m16n8k16(s[n], qf[half * 2], b[0], b[1]);
            mma_m16n8k16(s[n], qf[half * 2 + 1], b[2], b[3]);
        }
    if (masked) {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = pos + n * 8 + q * 2 + e % 2;

                if (key < lo[e / 2] || key > hi[e / 2])
                    s[n][e] = -INFINITY;
            }
    }

    uint32_t p[4][4]; /* weights as the a operand of four steps of 16 keys */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = -INFINITY;

#pragma unroll
        for (int n = 0; n < 8; n++)
            top = fmaxf(top, fmaxf(s[n][i * 2], s[n][i * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));

        const float m = fmaxf(st.m[i], __fmul_rn(top, c));
        const float base = m == -INFINITY ? 0.0f : m; /* nothing seen yet: all weights are 0 */
        const float alpha = ex2_approx(__fsub_rn(st.m[i], base));
        float sum = 0.0f;

#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float x = ex2_approx(__fmaf_rn(s[n][i * 2], c, -base));
            const float y = ex2_approx(__fmaf_rn(s[n][i * 2 + 1], c, -base));

            sum = __fadd_rn(sum, __fadd_rn(x, y));
            p[n / 2][n % 2 * 2 + i] = cvt_bf16x2(x, y);
        }
        st.m[i] = m;
        st.l[i] = __fmaf_rn(st.l[i], alpha, sum);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            st.o[n][i * 2] = __fmul_rn(st.o[n][i * 2], alpha);
            st.o[n][i * 2 + 1] = __fmul_rn(st.o[n][i * 2 + 1], alpha);
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) /* 16 keys */
#pragma unroll
        for (int n = 0; n < 4; n++) { /* 16 dimensions */
            const int r = k * 16 + (lane & 15), ch = n * 2 + lane / 16;
            uint32_t b[4];

            ldmatrix_x4_trans(b, smem + ATTN_SIDE + r * 128 + (ch ^ (r & 7)) * 16);
            mma_m16n8k16(st.o[n * 2], p[k], b[0], b[1]);
            mma_m16n8k16(st.o[n * 2 + 1], p[k], b[2], b[3]);
        }
}

/* The row's sums of weights, from the four lanes that share it: the same bits in each. */
__device__ __forceinline__ void attn_row_sums(attn_state &st)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        st.l[i] = __fadd_rn(st.l[i], __shfl_xor_sync(~0u, st.l[i], 1));
        st.l[i] = __fadd_rn(st.l[i], __shfl_xor_sync(~0u, st.l[i], 2));
    }
}

/* How a chunk (m, l) joins what came before it (M, L): both are rescaled, by these. A chunk in
 * which nothing was seen (m = -inf) must be left out by the caller. */
struct attn_joint {
    float before, chunk;
};
__device__ __forceinline__ attn_joint attn_join(float &M, float &L, float m, float l)
{
    const float top = fmaxf(M, m);
    const attn_joint j = {ex2_approx(__fsub_rn(M, top)), ex2_approx(__fsub_rn(m, top))};

    M = top;
    L = __fmaf_rn(l, j.chunk, __fmul_rn(L, j.before));
    return j;
}
__device__ __forceinline__ float attn_join_value(attn_joint j, float before, float chunk)
{
    return __fmaf_rn(chunk, j.chunk, __fmul_rn(before, j.before));
}

/* The factor that turns a row's sum of values into its output: the sink, as a logit, joins the
 * denominator here and nowhere else. */
__device__ __forceinline__ float attn_finish(float M, float L, float sink)
{
    const float s = fminf(__fmul_rn(sink, ATTN_LOG2E), 3.0e38f);
    const float top = fmaxf(M, s);
    const float e = ex2_approx(__fsub_rn(M, top));

    return __fdiv_rn(e, __fmaf_rn(L, e, ex2_approx(__fsub_rn(s, top))));
}

#endif
