/* attn_prefill: many queries of one sequence over its paged keys.
 *
 * A block takes 16 consecutive positions and the query heads of one kv head: G warps of 16 rows,
 * row r being position r / G, head r % G. Pages of keys and values come once a block, three in
 * flight, and only those that some row sees. Tiles of positions begin at multiples of 16, so that
 * all rows of a tile cut their keys into chunks of the same length. Late tiles have the most pages
 * and go first.
 *
 * Bound by mma.sync and ex2 together, about alike at d = 64. One H200, 2026-11-30, bench/ops_cuda:
 * 184 TFLOP/s at 8192 causal queries, where wgmma kernels reach 460. */
#include "kernels/cuda/attn_page.cuh"
#include "kernels/cuda/backend.h"

static const int TILE = 16, STAGES = 3;

struct prefill_params {
    const __nv_bfloat16 *q, *kv;
    __nv_bfloat16 *out;
    int64_t head_stride, side_stride;
    const int32_t *table;
    const float *sinks;
    int32_t T, H, G, pos0, window, wrap;
    float c;
};

static __global__ void __launch_bounds__(256, 1)
    prefill_kernel(const __grid_constant__ prefill_params p)
{
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t smem = smem_addr(ring);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x, G = p.G;
    const int tile = (p.pos0 / TILE + gridDim.y - 1 - blockIdx.y) * TILE;
    const int begin = max(tile, p.pos0), end = min(tile + TILE, p.pos0 + p.T); /* positions */
    const int seen_lo = p.window > 0 ? max(begin - p.window + 1, 0) : 0, seen_hi = end - 1;
    const int first = seen_lo / TD_KV_PAGE, last = seen_hi / TD_KV_PAGE;
    const int chunk = td_tune_chunk_pages(begin);
    const __nv_bfloat16 *k = p.kv + head * p.head_stride, *v = k + p.side_stride;
    const __nv_bfloat16 *row[2];
    int64_t at[2]; /* the rows' places in q and out; -1: no such query */
    int lo[2], hi[2], warp_lo, warp_hi, all_lo, all_hi;
    uint32_t qf[4][4];
    attn_state st, sum;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = warp * 16 + i * 8 + lane / 4, pos = tile + r / G;

        at[i] = -1;
        row[i] = NULL;
        lo[i] = 0;
        hi[i] = -1;
        if (pos >= begin && pos < end) {
            at[i] = ((int64_t)(pos - p.pos0) * p.H + head * G + r % G) * 64;
            row[i] = p.q + at[i];
            hi[i] = pos;
            lo[i] = p.window > 0 ? max(pos - p.window + 1, 0) : 0;
        }
    }
    /* What the warp's positions see at least and at most: which pages need no mask, which no work.
     */
    const int p_lo = max(tile + warp * 16 / G, begin);
    const int p_hi = min(tile + (warp * 16 + 15) / G, end - 1);
    warp_lo = p.window > 0 ? max(p_lo - p.window + 1, 0) : 0;
    warp_hi = p_hi;
    all_lo = p.window > 0 ? max(p_hi - p.window + 1, 0) : 0;
    all_hi = p_lo;
    attn_load_q(qf, row[0], row[1]);
    st.clear();
    sum.clear();

    for (int s = 0; s < STAGES - 1; s++) {
        const int page = first + s;

        if (page <= last)
            attn_load_page(smem + s * 2 * ATTN_SIDE, k, v, p.table[page % p.wrap],
                           page * TD_KV_PAGE, seen_lo, seen_hi, threadIdx.x, blockDim.x);
        cp_async_commit();
    }
    for (int page = first; page <= last; page++) {
        const int n = page - first, next = page + STAGES - 1, pos = page * TD_KV_PAGE;

        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* this page is here for all, and all are done with the one before */
        if (next <= last)
            attn_load_page(smem + (n + STAGES - 1) % STAGES * 2 * ATTN_SIDE, k, v,
                           p.table[next % p.wrap], next * TD_KV_PAGE, seen_lo, seen_hi, threadIdx.x,
                           blockDim.x);
        cp_async_commit();
        if (pos <= warp_hi && pos + TD_KV_PAGE > warp_lo)
            attn_page(st, qf, smem + n % STAGES * 2 * ATTN_SIDE, pos,
                      pos < all_lo || pos + TD_KV_PAGE - 1 > all_hi, lo, hi, p.c);
        if ((page + 1) % chunk != 0 && page != last)
            continue;
        attn_row_sums(st);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (st.m[i] == -INFINITY)
                continue;
            const attn_joint j = attn_join(sum.m[i], sum.l[i], st.m[i], st.l[i]);
#pragma unroll
            for (int d = 0; d < 8; d++) {
                sum.o[d][i * 2] = attn_join_value(j, sum.o[d][i * 2], st.o[d][i * 2]);
                sum.o[d][i * 2 + 1] = attn_join_value(j, sum.o[d][i * 2 + 1], st.o[d][i * 2 + 1]);
            }
        }
        st.clear();
    }
    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (at[i] < 0)
            continue;
        const int r = warp * 16 + i * 8 + lane / 4;
        const float f = attn_finish(sum.m[i], sum.l[i], p.sinks[head * G + r % G]);
#pragma unroll
        for (int d = 0; d < 8; d++)
            *(uint32_t *)(p.out + at[i] + d * 8 + lane % 4 * 2) =
                cvt_bf16x2(__fmul_rn(sum.o[d][i * 2], f), __fmul_rn(sum.o[d][i * 2 + 1], f));
    }
}

td_status td_cuda_attn_prefill(td_stream *s, const td_attn_prefill_args *a, td_error *err)
{
    const int bytes = STAGES * 2 * ATTN_SIDE;
    td_status st = td_cuda_check_heads("attn_prefill", a->H, a->K, a->d, err);
    prefill_params p = {};

    if (st != TD_OK || (st = td_cuda_check_vector("attn_prefill", "sinks", a->sinks, a->H, err)))
        return st;
    if (a->T == 0)
        return TD_OK;
    if (!td_cuda_attn_fast(&a->kv, a->H, a->K, a->d))
        return td_cuda_attn_plain(s->handle, a->T, a->H, a->K, a->d, a->window, a->wrap, 0, a->pos0,
                                  a->scale, NULL, a->table, &a->kv, td_cuda_vector(a->sinks), a->q,
                                  a->out, err);
    p.q = (const __nv_bfloat16 *)a->q;
    p.kv = (const __nv_bfloat16 *)a->kv.base;
    p.out = (__nv_bfloat16 *)a->out;
    p.head_stride = a->kv.head_stride;
    p.side_stride = a->kv.side_stride;
    p.table = a->table;
    p.sinks = td_cuda_vector(a->sinks);
    p.T = a->T;
    p.H = a->H;
    p.G = a->H / a->K;
    p.pos0 = a->pos0;
    p.window = a->window;
    p.wrap = a->wrap;
    p.c = a->scale * ATTN_LOG2E;
    const int tiles = (a->pos0 + a->T - 1) / TILE - a->pos0 / TILE + 1;
    prefill_kernel<<<dim3((unsigned)a->K, (unsigned)tiles), 32 * p.G, bytes, s->handle>>>(p);
    return td_cuda_launched(err, "attn_prefill");
}
