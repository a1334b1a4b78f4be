/* attn_decode: one query a sequence, its keys split into chunks over the machine.
 *
 * A warp takes one chunk of one kv head of one sequence: the G query heads are the first rows of
 * its mma (the others are zeros: in decode arithmetic is free, bytes are not). Pages stream through
 * shared memory, three at once: 48 KiB a block, four blocks on a multiprocessor. A sequence of one
 * chunk is finished in place; else every chunk leaves (m, l, o) and a second kernel joins them in
 * order. How keys are cut depends on the position alone, so a sequence keeps its bits in any batch.
 *
 * Bound by the keys and values that must be read. One H200, 2026-11-30, bench/ops_cuda, 8192
 * keys: 3.9 TB/s at 64 sequences, 2.7 at 8, 1.3 at one. */
#include "kernels/cuda/attn_page.cuh"
#include "kernels/cuda/backend.h"

static const int STAGES = 3;

struct decode_params {
    const __nv_bfloat16 *q, *kv;
    __nv_bfloat16 *out;
    int64_t head_stride, side_stride;
    const int32_t *len, *table;
    const float *sinks;
    int32_t H, G, window, wrap, table_stride;
    float c;
    float2 *ml; /* [sequences of a launch, H, chunks] */
    float *o;   /* the same, 64 each */
};

/* A sequence's chunks: pages first .. last, the first chunk's number, how many there are. */
struct cut {
    int pos, lo, first, last, pages, chunk0, chunks;
};

static __device__ __forceinline__ cut cut_of(const decode_params &p, int t)
{
    cut c;

    c.pos = p.len[t] - 1;
    c.lo = p.window > 0 ? max(c.pos - p.window + 1, 0) : 0;
    c.first = c.lo / TD_KV_PAGE;
    c.last = c.pos / TD_KV_PAGE;
    c.pages = td_tune_chunk_pages(c.pos);
    c.chunk0 = c.first / c.pages;
    c.chunks = c.last / c.pages - c.chunk0 + 1;
    return c;
}

static __global__ void __launch_bounds__(32) decode_kernel(const __grid_constant__ decode_params p)
{
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t smem = smem_addr(ring);
    const int lane = threadIdx.x, head = blockIdx.y, t = blockIdx.z, G = p.G;
    const cut c = cut_of(p, t);
    const int chunk = c.chunk0 + blockIdx.x;
    const int first = max(chunk * c.pages, c.first);
    const int last = min((chunk + 1) * c.pages - 1, c.last);
    const int32_t *table = p.table + (int64_t)t * p.table_stride;
    const __nv_bfloat16 *k = p.kv + head * p.head_stride, *v = k + p.side_stride;
    const int64_t heads = (int64_t)t * p.H + head * G; /* the sequence's first head of this group */
    const int lo[2] = {c.lo, c.lo}, hi[2] = {c.pos, c.pos};
    uint32_t qf[4][4];
    attn_state st;

    if ((int)blockIdx.x >= c.chunks)
        return;
    attn_load_q(qf, lane / 4 < G ? p.q + (heads + lane / 4) * 64 : NULL,
                lane / 4 + 8 < G ? p.q + (heads + lane / 4 + 8) * 64 : NULL);
    st.clear();
    for (int s = 0; s < STAGES - 1; s++) {
        const int page = first + s;

        if (page <= last)
            attn_load_page(smem + s * 2 * ATTN_SIDE, k, v, table[page % p.wrap], page * TD_KV_PAGE,
                           c.lo, c.pos, lane, 32);
        cp_async_commit();
    }
    for (int page = first; page <= last; page++) {
        const int n = page - first, next = page + STAGES - 1, pos = page * TD_KV_PAGE;

        cp_async_wait<STAGES - 2>();
        __syncwarp(); /* this page is here for all lanes, and all are done with the one before */
        if (next <= last)
            attn_load_page(smem + (n + STAGES - 1) % STAGES * 2 * ATTN_SIDE, k, v,
                           table[next % p.wrap], next * TD_KV_PAGE, c.lo, c.pos, lane, 32);
        cp_async_commit();
        attn_page(st, qf, smem + n % STAGES * 2 * ATTN_SIDE, pos,
                  pos < c.lo || pos + TD_KV_PAGE - 1 > c.pos, lo, hi, p.c);
    }
    attn_row_sums(st);

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int g = lane / 4 + i * 8;
        const int64_t row = heads + g;

        if (g >= G)
            continue;
        if (c.chunks > 1) {
            const int64_t at = row * TD_CUDA_CHUNKS + blockIdx.x;

            if (lane % 4 == 0)
                p.ml[at] = make_float2(st.m[i], st.l[i]);
#pragma unroll
            for (int d = 0; d < 8; d++)
                *(float2 *)(p.o + at * 64 + d * 8 + lane % 4 * 2) =
                    make_float2(st.o[d][i * 2], st.o[d][i * 2 + 1]);
            continue;
        }
        float M = -INFINITY, L = 0.0f;
        const attn_joint j = attn_join(M, L, st.m[i], st.l[i]);
        const float f = attn_finish(M, L, p.sinks[head * G + g]);
#pragma unroll
        for (int d = 0; d < 8; d++)
            *(uint32_t *)(p.out + row * 64 + d * 8 + lane % 4 * 2) =
                cvt_bf16x2(__fmul_rn(attn_join_value(j, 0.0f, st.o[d][i * 2]), f),
                           __fmul_rn(attn_join_value(j, 0.0f, st.o[d][i * 2 + 1]), f));
    }
}

/* One warp a query head, two dimensions a lane. */
static __global__ void __launch_bounds__(32) join_kernel(const __grid_constant__ decode_params p)
{
    const int h = blockIdx.x, t = blockIdx.y, lane = threadIdx.x;
    const cut c = cut_of(p, t);
    const int64_t row = (int64_t)t * p.H + h;
    float M = -INFINITY, L = 0.0f, x = 0.0f, y = 0.0f;

    if (c.chunks <= 1)
        return;
    for (int i = 0; i < c.chunks; i++) {
        const int64_t at = row * TD_CUDA_CHUNKS + i;
        const float2 ml = p.ml[at], o = *(const float2 *)(p.o + at * 64 + lane * 2);
        const attn_joint j = attn_join(M, L, ml.x, ml.y);

        x = attn_join_value(j, x, o.x);
        y = attn_join_value(j, y, o.y);
    }
    const float f = attn_finish(M, L, p.sinks[h]);
    *(uint32_t *)(p.out + row * 64 + lane * 2) = cvt_bf16x2(__fmul_rn(x, f), __fmul_rn(y, f));
}

static size_t partials(int64_t T, int32_t H)
{
    const int64_t group = TD_CUDA_DECODE_GROUP;

    return (size_t)((T < group ? T : group) * H * TD_CUDA_CHUNKS);
}

size_t td_cuda_decode_ws(int32_t T, int32_t H, int32_t d)
{
    return d == 64 ? td_cuda_ws_round(partials(T, H) * sizeof(float2)) +
                         td_cuda_ws_round(partials(T, H) * 64 * sizeof(float))
                   : 0;
}

/* The most chunks that a query can have. */
static int most_chunks(int32_t window, int32_t wrap)
{
    int64_t pages = window > 0 ? ((int64_t)window + TD_KV_PAGE - 2) / TD_KV_PAGE + 1 : wrap;
    int64_t chunks = (pages + 3) / 4 + (window > 0); /* a window may begin inside a chunk */

    return chunks < TD_CUDA_CHUNKS ? (int)chunks : (int)TD_CUDA_CHUNKS;
}

td_status td_cuda_attn_decode(td_stream *s, const td_attn_decode_args *a, td_error *err)
{
    const int bytes = STAGES * 2 * ATTN_SIDE;
    td_status st = td_cuda_check_heads("attn_decode", a->H, a->K, a->d, err);
    cuda_ws ws = {(char *)a->ws};
    decode_params p = {};

    if (st != TD_OK || (st = td_cuda_check_vector("attn_decode", "sinks", a->sinks, a->H, err)))
        return st;
    if (a->T == 0)
        return TD_OK;
    if (!td_cuda_attn_fast(&a->kv, a->H, a->K, a->d))
        return td_cuda_attn_plain(s->handle, a->T, a->H, a->K, a->d, a->window, a->wrap,
                                  a->table_stride, 0, a->scale, a->len, a->table, &a->kv,
                                  td_cuda_vector(a->sinks), a->q, a->out, err);
    p.kv = (const __nv_bfloat16 *)a->kv.base;
    p.head_stride = a->kv.head_stride;
    p.side_stride = a->kv.side_stride;
    p.sinks = td_cuda_vector(a->sinks);
    p.H = a->H;
    p.G = a->H / a->K;
    p.window = a->window;
    p.wrap = a->wrap;
    p.table_stride = a->table_stride;
    p.c = a->scale * ATTN_LOG2E;
    p.ml = (float2 *)td_cuda_ws_take(&ws, partials(a->T, a->H) * sizeof(float2));
    p.o = (float *)td_cuda_ws_take(&ws, partials(a->T, a->H) * 64 * sizeof(float));
    for (int32_t t = 0; t < a->T; t += TD_CUDA_DECODE_GROUP) { /* partials of one group at a time */
        const unsigned n =
            (unsigned)(a->T - t < TD_CUDA_DECODE_GROUP ? a->T - t : TD_CUDA_DECODE_GROUP);
        const int chunks = most_chunks(a->window, a->wrap);

        p.q = (const __nv_bfloat16 *)a->q + (int64_t)t * a->H * 64;
        p.out = (__nv_bfloat16 *)a->out + (int64_t)t * a->H * 64;
        p.len = a->len + t;
        p.table = a->table + (int64_t)t * a->table_stride;
        decode_kernel<<<dim3((unsigned)chunks, (unsigned)a->K, n), 32, bytes, s->handle>>>(p);
        if (chunks > 1)
            join_kernel<<<dim3((unsigned)a->H, n), 32, 0, s->handle>>>(p);
    }
    return td_cuda_launched(err, "attn_decode");
}
