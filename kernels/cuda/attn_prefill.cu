/* attn_prefill: many queries of one sequence over its paged keys, on warpgroup multiplies.
 *
 * A block takes M / G consecutive positions and the G query heads of one kv head as M rows: row r
 * is position r / G, head r % G. One warpgroup brings queries and tiles of PAGES pages of keys and
 * values into shared memory; the others take 64 rows each and go through the tiles in rising order:
 * scores of tile j are multiplied while the weights of tile j - 1 meet their values, and while the
 * other warpgroups take exponentials. Blocks stay and take one piece of work after the other, long
 * and short in turn, so that all end together; the next queries and keys come while the last
 * results leave.
 *
 * Tiles begin at multiples of their size whatever the query, and a tile in which a row sees nothing
 * leaves the row as it is: a row's bits do not depend on how positions are cut into blocks. Rows of
 * the cache that no query of the block sees may be NaN: keys are masked, values become zeros.
 *
 * Bound by the exponentials and the multiplies of heads of 64, about alike, as far as they overlap.
 * One H200, 2026-11-30, graph replays, 64 heads over 8, causal, 4 H d FLOP a visible key: 510
 * TFLOP/s at 8192 positions, 530 at 16384, 510 at 32768 (e4m3, which is widened here: 330, 350,
 * 355); windows of 128 take 14 us a thousand positions, bound by the edges of their few tiles. */
#include "kernels/cuda/attn_softmax.cuh"
#include "kernels/cuda/attn_wgmma.cuh"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/tensor_map.h"

/* Warpgroups that multiply; registers of a thread of these and of the one that brings data: 3 * 160
 * + 32 is what four of 128 have. Scores, weights and results of 64 x 128 take 128 of the 160. */
static const int WGS = 3, CONSUMER_REGS = 160, PRODUCER_REGS = 32;

struct prefill_params {
    CUtensorMap q;  /* [T][H][64], boxes of M / G positions and G heads */
    CUtensorMap kv; /* rows of 64, boxes of a page */
    __nv_bfloat16 *out;
    const uint8_t *bytes;             /* e4m3: the cache */
    int64_t head_stride, side_stride; /* rows of the cache */
    const int32_t *table;
    const float *sinks;
    int32_t T, H, K, G, pos0, window, wrap, tokens, works;
    float c;
};

/* Positions begin .. end - 1 of one kv head; what they see; the tiles that hold it. */
struct prefill_work {
    int head, begin, end, lo, hi, first, last;
};

/* The block's r-th piece. Long ones first; back and forth over the blocks, which evens them out. */
template <int PAGES>
static __device__ __forceinline__ bool work_at(const prefill_params &p, int r, prefill_work &w)
{
    const int n = gridDim.x;
    const int i = r * n + (r % 2 == 0 ? blockIdx.x : n - 1 - blockIdx.x);

    if (i >= p.works)
        return false;
    w.head = i % p.K;
    w.begin = p.pos0 + ((p.works - 1 - i) / p.K) * p.tokens;
    w.end = min(w.begin + p.tokens, p.pos0 + p.T);
    w.lo = p.window > 0 ? max(w.begin - p.window + 1, 0) : 0;
    w.hi = w.end - 1;
    w.first = w.lo / (PAGES * TD_KV_PAGE);
    w.last = w.hi / (PAGES * TD_KV_PAGE);
    return true;
}

/* Shared memory, in bytes from a 1024-byte boundary. */
template <int PAGES, bool E4M3> struct prefill_smem {
    static constexpr int M = WGS * 64, N = PAGES * TD_KV_PAGE, SIDE = N * 128;
    static constexpr int STAGES = (PAGES == 1 ? 6 : 3), RAW = E4M3 ? 2 : 0;
    static constexpr int q = 0, k = M * 128, v = k + STAGES * SIDE, raw = v + STAGES * SIDE;
    static constexpr int bars = raw + RAW * SIDE; /* a raw stage has both sides, half as large */
    static constexpr int q_full = bars, q_empty = bars + 8, fix = bars + 16, raw_full = bars + 24;
    static constexpr int k_full = raw_full + 8 * (RAW + 1), k_empty = k_full + 8 * STAGES;
    static constexpr int v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    static constexpr int bytes = v_empty + 8 * STAGES + 1024;
};

/* Zeros for the rows of a tile of values whose positions are outside lo .. hi. */
template <int N>
static __device__ __forceinline__ void blank_values(uint32_t v, int base, int lo, int hi, int lane)
{
    for (int i = lane; i < N * 8; i += 32)
        if (base + i / 8 < lo || base + i / 8 > hi)
            st_shared_128(v + i * 16, make_uint4(0, 0, 0, 0));
    fence_proxy_async_shared();
    __syncwarp();
}

/* One warp brings all: queries and pages by tensor copies. */
template <int PAGES>
static __device__ __forceinline__ void produce(const prefill_params &p, uint32_t smem)
{
    using S = prefill_smem<PAGES, false>;
    const int lane = threadIdx.x % 32;
    ring_place<S::STAGES> at = {0, 1};
    uint32_t fixed = 0; /* parity of the copies that are waited for here */
    prefill_work w;

    for (int r = 0; work_at<PAGES>(p, r, w); r++) {
        const int rows = (int)(w.head * p.head_stride), last_page = w.hi / TD_KV_PAGE;
        int table = 0, table_first = -32; /* of 32 pages from there on, one a lane */

        if (lane == 0) {
            mbarrier_wait(smem + S::q_empty, (r & 1) ^ 1);
            mbarrier_arrive_expect_tx(smem + S::q_full, p.tokens * p.G * 128);
            cp_async_tensor_3d(smem + S::q, &p.q, 0, w.head * p.G, w.begin - p.pos0,
                               smem + S::q_full, L2_EVICT_FIRST);
        }
        for (int tile = w.first; tile <= w.last; tile++, at.next()) {
            const int base = tile * S::N, page = tile * PAGES;
            const bool edge = base < w.lo || base + S::N - 1 > w.hi;
            const uint32_t k = smem + S::k + at.stage * S::SIDE;
            const uint32_t v = smem + S::v + at.stage * S::SIDE;
            const uint32_t k_full = smem + S::k_full + at.stage * 8;
            const uint32_t v_full = edge ? smem + S::fix : smem + S::v_full + at.stage * 8;
            int slot[PAGES];
            uint32_t bytes = 0;

            if (page + PAGES > table_first + 32) {
                table_first = page;
                table = page + lane <= last_page ? p.table[(page + lane) % p.wrap] : 0;
            }
#pragma unroll
            for (int i = 0; i < PAGES; i++) {
                const int pos = base + i * TD_KV_PAGE;

                slot[i] = __shfl_sync(~0u, table, page + i - table_first);
                if (pos > w.hi || pos + TD_KV_PAGE <= w.lo)
                    slot[i] = -1; /* nobody sees it */
                else
                    bytes += TD_KV_PAGE * 128;
            }
            if (lane == 0) {
                mbarrier_wait(smem + S::k_empty + at.stage * 8, at.parity);
                mbarrier_arrive_expect_tx(k_full, bytes);
#pragma unroll
                for (int i = 0; i < PAGES; i++)
                    if (slot[i] >= 0)
                        cp_async_tensor_2d(k + i * TD_KV_PAGE * 128, &p.kv, 0,
                                           rows + slot[i] * TD_KV_PAGE, k_full, L2_EVICT_LAST);
                mbarrier_wait(smem + S::v_empty + at.stage * 8, at.parity);
                mbarrier_arrive_expect_tx(v_full, bytes);
#pragma unroll
                for (int i = 0; i < PAGES; i++)
                    if (slot[i] >= 0)
                        cp_async_tensor_2d(v + i * TD_KV_PAGE * 128, &p.kv, 0,
                                           rows + (int)p.side_stride + slot[i] * TD_KV_PAGE, v_full,
                                           L2_EVICT_LAST);
            }
            __syncwarp();
            if (edge) {
                mbarrier_wait(smem + S::fix, fixed);
                fixed ^= 1;
                blank_values<S::N>(v, base, w.lo, w.hi, lane);
                if (lane == 0)
                    mbarrier_arrive(smem + S::v_full + at.stage * 8);
            }
        }
    }
}

/* Four e4m3 as two pairs of bf16. Exponents are shifted into place and set right by the
 * multiplication; subnormals come out right too. */
static __device__ __forceinline__ uint2 widen_e4m3(uint32_t x)
{
    const uint32_t lo = __byte_perm(x, 0, 0x1404), hi = __byte_perm(x, 0, 0x3424);

    return make_uint2(
        mul_bf16x2((lo & 0x80008000) | ((lo >> 4) & 0x07f007f0), 0x7b807b80), /* 2^120 */
        mul_bf16x2((hi & 0x80008000) | ((hi >> 4) & 0x07f007f0), 0x7b807b80));
}

/* One side of a tile, e4m3 in rows of 64 bytes, as swizzled bf16; rows outside lo .. hi as zeros. A
 * warpgroup together. */
template <int N>
static __device__ __forceinline__ void widen_side(uint32_t raw, uint32_t dst, int base, int lo,
                                                  int hi)
{
#pragma unroll
    for (int i = threadIdx.x; i < N * 4; i += 128) {
        const int r = i / 4, ch = i % 4 * 2;
        const bool seen = base + r >= lo && base + r <= hi;
        const uint4 x = seen ? ld_shared_128(raw + i * 16) : make_uint4(0, 0, 0, 0);
        const uint2 a = widen_e4m3(x.x), b = widen_e4m3(x.y), c = widen_e4m3(x.z),
                    d = widen_e4m3(x.w);

        st_shared_128(dst + r * 128 + ((ch ^ (r & 7)) * 16), make_uint4(a.x, a.y, b.x, b.y));
        st_shared_128(dst + r * 128 + (((ch + 1) ^ (r & 7)) * 16), make_uint4(c.x, c.y, d.x, d.y));
    }
    fence_proxy_async_shared();
    __syncwarp();
}

/* The same from an e4m3 cache: pages come as they are and are widened here, by the whole
 * warpgroup. */
template <int PAGES>
static __device__ __forceinline__ void produce_e4m3(const prefill_params &p, uint32_t smem)
{
    using S = prefill_smem<PAGES, true>;
    const int PAGE = TD_KV_PAGE * 64, t = threadIdx.x;
    ring_place<S::STAGES> at = {0, 1};
    ring_place<S::RAW> from = {0, 0}, to = {0, 0};
    prefill_work w;

    for (int r = 0; work_at<PAGES>(p, r, w); r++) {
        /* Two threads a page, one for each side. */
        const auto fetch = [&](int tile) {
            const int page = tile * PAGES + t / 2, pos = page * TD_KV_PAGE;
            const uint32_t bar = smem + S::raw_full + to.stage * 8;
            const uint32_t dst =
                smem + S::raw + to.stage * S::SIDE + (t % 2 * PAGES + t / 2) * PAGE;

            if (t < PAGES * 2 && pos <= w.hi && pos + TD_KV_PAGE > w.lo) {
                const int64_t row = w.head * p.head_stride + t % 2 * p.side_stride +
                                    (int64_t)p.table[page % p.wrap] * TD_KV_PAGE;

                mbarrier_arrive_expect_tx(bar, PAGE);
                cp_async_bulk(dst, p.bytes + row * 64, PAGE, bar, L2_EVICT_LAST);
            } else if (t < PAGES * 2) {
                mbarrier_arrive(bar);
            }
            to.next();
        };

        if (t == 0) {
            mbarrier_wait(smem + S::q_empty, (r & 1) ^ 1);
            mbarrier_arrive_expect_tx(smem + S::q_full, p.tokens * p.G * 128);
            cp_async_tensor_3d(smem + S::q, &p.q, 0, w.head * p.G, w.begin - p.pos0,
                               smem + S::q_full, L2_EVICT_FIRST);
        }
        for (int i = 0; i < S::RAW && w.first + i <= w.last; i++)
            fetch(w.first + i);
        for (int tile = w.first; tile <= w.last; tile++, at.next(), from.next()) {
            const uint32_t raw = smem + S::raw + from.stage * S::SIDE;

            mbarrier_wait(smem + S::raw_full + from.stage * 8, from.parity);
            mbarrier_wait(smem + S::k_empty + at.stage * 8, at.parity);
            widen_side<S::N>(raw, smem + S::k + at.stage * S::SIDE, tile * S::N, w.lo, w.hi);
            if (t % 32 == 0)
                mbarrier_arrive(smem + S::k_full + at.stage * 8);
            mbarrier_wait(smem + S::v_empty + at.stage * 8, at.parity);
            widen_side<S::N>(raw + S::SIDE / 2, smem + S::v + at.stage * S::SIDE, tile * S::N, w.lo,
                             w.hi);
            if (t % 32 == 0)
                mbarrier_arrive(smem + S::v_full + at.stage * 8);
            bar_sync(1, 128); /* all have read the raw stage: it may be filled again */
            if (tile + S::RAW <= w.last)
                fetch(tile + S::RAW);
        }
    }
}

/* 64 rows of each piece of work. */
template <int PAGES, bool E4M3>
static __device__ __forceinline__ void consume(const prefill_params &p, uint32_t smem)
{
    using S = prefill_smem<PAGES, E4M3>;
    const int wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    const int row0 = wg * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    const int token[2] = {row0 / p.G, (row0 + 8) / p.G};
    const int g[2] = {row0 % p.G, (row0 + 8) % p.G};
    const int token_lo = wg * 64 / p.G, token_hi = (wg * 64 + 63) / p.G; /* the warpgroup's */
    const uint64_t q = wgmma_desc(smem + S::q + wg * 64 * 128);
    /* Warpgroups enqueue their multiplies in turn, so that one's exponentials meet another's. */
    const auto turn = [&] { bar_sync(2 + wg, 256); };
    const auto pass_on = [&] { bar_arrive(2 + (wg + 1) % WGS, 256); };
    const auto release = [&](uint32_t bar) {
        if (lane == 0)
            mbarrier_arrive(bar);
    };
    ring_place<S::STAGES> at = {0, 0};
    prefill_work w;

    if (wg == WGS - 1)
        bar_arrive(2, 256);
    for (int r = 0; work_at<PAGES>(p, r, w); r++) {
        const int hi[2] = {w.begin + token[0], w.begin + token[1]};
        const int lo[2] = {p.window > 0 ? hi[0] - p.window + 1 : 0,
                           p.window > 0 ? hi[1] - p.window + 1 : 0};
        const int all_lo = p.window > 0 ? w.begin + token_hi - p.window + 1 : 0;
        const int all_hi = w.begin + token_lo;
        const float sink[2] = {p.sinks[w.head * p.G + g[0]], p.sinks[w.head * p.G + g[1]]};
        float s[S::N / 2], o[32] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {}, alpha[2];
        uint32_t pw[S::N / 4];
        const auto weigh = [&](int tile) {
            const int base = tile * S::N;

            if (base < all_lo || base + S::N - 1 > all_hi)
                attn_mask(s, base, p.window > 0, lo, hi);
            attn_softmax(s, m, l, alpha, p.c);
        };
        const auto pack = [&] {
#pragma unroll
            for (int i = 0; i < S::N / 4; i++)
                pw[i] = cvt_bf16x2(s[i * 2], s[i * 2 + 1]);
            attn_pin(pw);
        };

        mbarrier_wait(smem + S::q_full, r & 1);
        mbarrier_wait(smem + S::k_full + at.stage * 8, at.parity);
        wgmma_pin(s);
        wgmma_fence();
        wgmma_k64(s, q, wgmma_desc(smem + S::k + at.stage * S::SIDE));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(s);
        release(smem + S::k_empty + at.stage * 8);
        weigh(w.first);
        pack();
        for (int tile = w.first + 1; tile <= w.last; tile++) {
            const ring_place<S::STAGES> before = at;

            at.next();
            mbarrier_wait(smem + S::k_full + at.stage * 8, at.parity);
            turn();
            wgmma_pin(s);
            wgmma_pin(o);
            wgmma_fence();
            wgmma_k64(s, q, wgmma_desc(smem + S::k + at.stage * S::SIDE));
            wgmma_commit();
            mbarrier_wait(smem + S::v_full + before.stage * 8, before.parity);
            wgmma_fence();
            attn_values(o, pw, wgmma_desc_mn(smem + S::v + before.stage * S::SIDE, 0));
            wgmma_commit();
            pass_on();
            wgmma_wait<1>();
            wgmma_pin(s);
            release(smem + S::k_empty + at.stage * 8);
            weigh(tile);
            wgmma_wait<0>();
            wgmma_pin(o);
            release(smem + S::v_empty + before.stage * 8);
#pragma unroll
            for (int i = 0; i < 32; i++)
                o[i] *= alpha[i / 2 % 2];
            pack();
        }
        release(smem + S::q_empty);
        mbarrier_wait(smem + S::v_full + at.stage * 8, at.parity);
        wgmma_pin(o);
        wgmma_fence();
        attn_values(o, pw, wgmma_desc_mn(smem + S::v + at.stage * S::SIDE, 0));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(o);
        release(smem + S::v_empty + at.stage * 8);
        at.next();

#pragma unroll
        for (int i = 0; i < 2; i++) {
            l[i] += __shfl_xor_sync(~0u, l[i], 1);
            l[i] += __shfl_xor_sync(~0u, l[i], 2);
            if (token[i] >= p.tokens || hi[i] >= w.end)
                continue;
            const float f = attn_finish(m[i], l[i], sink[i]);
            __nv_bfloat16 *out =
                p.out + ((int64_t)(hi[i] - p.pos0) * p.H + w.head * p.G + g[i]) * 64 + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 8; n++)
                *(uint32_t *)(out + n * 8) =
                    cvt_bf16x2(o[n * 4 + i * 2] * f, o[n * 4 + i * 2 + 1] * f);
        }
    }
}

template <int PAGES, bool E4M3>
static __global__ void __launch_bounds__(WGS * 128 + 128, 1)
    prefill_kernel(const __grid_constant__ prefill_params p)
{
    using S = prefill_smem<PAGES, E4M3>;
    extern __shared__ uint8_t memory[];
    const uint32_t smem = (smem_addr(memory) + 1023) / 1024 * 1024;

    if (threadIdx.x == 0) {
        mbarrier_init(smem + S::q_full, 1);
        mbarrier_init(smem + S::q_empty, WGS * 4);
        mbarrier_init(smem + S::fix, 1);
        for (int i = 0; i < S::RAW; i++)
            mbarrier_init(smem + S::raw_full + i * 8, PAGES * 2);
        for (int i = 0; i < S::STAGES; i++) {
            mbarrier_init(smem + S::k_full + i * 8, E4M3 ? 4 : 1);
            mbarrier_init(smem + S::v_full + i * 8, E4M3 ? 4 : 1);
            mbarrier_init(smem + S::k_empty + i * 8, WGS * 4);
            mbarrier_init(smem + S::v_empty + i * 8, WGS * 4);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if constexpr (E4M3)
            produce_e4m3<PAGES>(p, smem);
        else if (threadIdx.x < 32)
            produce<PAGES>(p, smem);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        consume<PAGES, E4M3>(p, smem);
    }
}

/* Descriptors of the queries and, but for e4m3, of the cache as rows of 64. */
static td_status maps(const td_attn_prefill_args *a, int tokens, prefill_params *p, td_error *err)
{
    const int G = a->H / a->K;
    td_tensor q = {a->q, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, true, {}, {}, {}};
    td_tensor kv = {a->kv.base, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, true, {}, {}, {}};
    td_status st;

    q.dim[0] = 64;
    q.dim[1] = (uint64_t)a->H;
    q.dim[2] = (uint64_t)a->T;
    q.pitch[1] = 128;
    q.pitch[2] = (uint64_t)a->H * 128;
    q.box[0] = 64;
    q.box[1] = (uint32_t)G;
    q.box[2] = (uint32_t)tokens;
    if ((st = td_tensor_map(&q, &p->q, err)) != TD_OK || a->kv.elt == TD_ELT_E4M3)
        return st;
    kv.dim[0] = 64;
    kv.dim[1] = (uint64_t)((a->K - 1) * p->head_stride + 2 * p->side_stride);
    kv.pitch[1] = 128;
    kv.box[0] = 64;
    kv.box[1] = TD_KV_PAGE;
    return td_tensor_map(&kv, &p->kv, err);
}

template <int PAGES, bool E4M3>
static td_status launch(td_stream *s, const td_attn_prefill_args *a, td_error *err)
{
    using S = prefill_smem<PAGES, E4M3>;
    const auto kernel = prefill_kernel<PAGES, E4M3>;
    prefill_params p = {};
    int sms = 0;
    td_status st;

    p.G = a->H / a->K;
    p.tokens = S::M / p.G;
    p.out = (__nv_bfloat16 *)a->out;
    p.bytes = (const uint8_t *)a->kv.base;
    p.head_stride = a->kv.head_stride / 64;
    p.side_stride = a->kv.side_stride / 64;
    p.table = a->table;
    p.sinks = td_cuda_vector(a->sinks);
    p.T = a->T;
    p.H = a->H;
    p.K = a->K;
    p.pos0 = a->pos0;
    p.window = a->window;
    p.wrap = a->wrap;
    p.works = (a->T + p.tokens - 1) / p.tokens * a->K;
    p.c = a->scale * ATTN_LOG2E;
    if ((st = maps(a, p.tokens, &p, err)) != TD_OK ||
        (st = td_cuda_status(
             err, cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, s->dev->index),
             "asking for multiprocessors")) != TD_OK ||
        (st = td_cuda_status(
             err,
             cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::bytes),
             "attn_prefill's shared memory")) != TD_OK)
        return st;
    const unsigned grid = (unsigned)(p.works < sms ? p.works : sms);
    kernel<<<grid, WGS * 128 + 128, S::bytes, s->handle>>>(p);
    return td_cuda_launched(err, "attn_prefill");
}

td_status td_cuda_attn_prefill(td_stream *s, const td_attn_prefill_args *a, td_error *err)
{
    td_status st = td_cuda_check_heads("attn_prefill", a->H, a->K, a->d, err);

    if (st != TD_OK || (st = td_cuda_check_vector("attn_prefill", "sinks", a->sinks, a->H, err)))
        return st;
    if (a->T == 0)
        return TD_OK;
    if (!td_cuda_attn_fast(&a->kv, a->H, a->K, a->d))
        return td_cuda_attn_plain(s->handle, a->T, a->H, a->K, a->d, a->window, a->wrap, 0, a->pos0,
                                  a->scale, NULL, a->table, &a->kv, td_cuda_vector(a->sinks), a->q,
                                  a->out, err);
    if (a->kv.elt == TD_ELT_E4M3)
        return launch<2, true>(s, a, err);
    /* Smaller tiles waste less of what little a window sees. */
    return a->window > 0 ? launch<1, false>(s, a, err) : launch<2, false>(s, a, err);
}
