/* experts_small: both products of the experts, and their sum, in one launch; decode steps.
 *
 * Bound by the stream of packed weights: 13.24 MB an expert of gpt-oss. So the weights of the
 * touched experts are one list of slabs (16 rows by all of K, contiguous: 24,480 bytes at K =
 * 2880), first all of gate_up, then all of down, and each block streams its share of both through
 * one ring in shared memory. The copies do not wait for activations, so while the blocks wait for
 * each other between the products, the ring fills with the second product's weights.
 *
 * The 15 math warps cut K among them. A warp keeps its part of the activations in registers, as the
 * b operands of mma.m16n8k16 (n is the token), for as long as the block stays with an expert; per
 * slab it reads its 3 units of weights, unpacks them into a operands and leaves its 16 x n sums in
 * shared memory. There a warp adds the 15 parts in order, applies bias and activation and stores;
 * the warps take turns, one slab behind, so that nobody waits. The service warp refills the ring.
 * Where K is cut depends on K alone, and an mma's columns do not touch each other, so a token's
 * bits depend neither on T nor on its place.
 *
 * An expert with more than CHUNK tokens is a list entry for each CHUNK of them, and its weights are
 * streamed (from L2, at best) and unpacked again for each.
 *
 * Who works on what follows from idx, which every block reads and sorts for itself. Blocks meet
 * twice, after each product, at a barrier in global memory; the launch is cooperative, so all of
 * them run at once. */
#include "kernels/cuda/experts_small.h"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/hopper.cuh"

#include <math.h>

static const int MATH_WARPS = 15, THREADS = 32 * (MATH_WARPS + 1), SERVICE = MATH_WARPS;
static const int MOST_UNITS = 3; /* of a slab, in one warp */
static const int TILES = 3, CHUNK = 8 * TILES;
static const int MOST_SLOTS = 32;
static const int PART = MATH_WARPS * 32 * 16; /* bytes: one 8-token tile's sums of all warps */
static const int MOST_PARTS = 4;              /* buffers of sums */

/* The two products differ in this. */
struct product {
    const uint8_t *w;
    int64_t expert_bytes;
    const float *bias;
    int32_t units, slabs, N, K;
    float scale;
};

struct small_params {
    product p[2]; /* gate_up, down */
    const __nv_bfloat16 *t;
    const int32_t *idx;
    const float *prob;
    __nv_bfloat16 *act;
    float *y;
    __nv_bfloat16 *out;
    int64_t lda; /* of act */
    int32_t T, k, D, I, E, first;
    float limit;
    int32_t slots, slot_bytes;
    int32_t tiles, parts; /* of 8 tokens, the most in a chunk; buffers of sums */
    /* Offsets in shared memory. */
    int32_t sums, masks, items, sorted, source;
};

/* A chunk of an expert's tokens: pairs sorted[first .. first + n). */
struct item {
    uint16_t expert, first, n, unused;
};

struct grid_barrier {
    unsigned count, round;
};
/* One step at a time runs on a device's stream, and two streams' cooperative launches of this size
 * do not overlap before their last barrier. Zero when loaded, and count is zero after each use. */
static __device__ grid_barrier blocks_met;

static __device__ __forceinline__ unsigned load_acquire(const unsigned *p)
{
    unsigned v;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
    return v;
}
static __device__ __forceinline__ unsigned add_acq_rel(unsigned *p, unsigned x)
{
    unsigned v;

    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;\n"
                 : "=r"(v)
                 : "l"(p), "r"(x)
                 : "memory");
    return v;
}
/* One thread of each block; what it has seen happen before is visible to all after. */
static __device__ void meet_blocks()
{
    const unsigned round = load_acquire(&blocks_met.round);

    if (add_acq_rel(&blocks_met.count, 1) == gridDim.x - 1) {
        blocks_met.count = 0;
        add_acq_rel(&blocks_met.round, 1);
    } else {
        while (load_acquire(&blocks_met.round) == round) {
        }
    }
}

static __device__ __forceinline__ uint4 ld_shared_128(uint32_t addr)
{
    uint4 v;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(addr)
                 : "memory");
    return v;
}

/* td_mx_factor() of byte i of four scales. */
static __device__ __forceinline__ uint32_t factor(uint32_t scales, int i)
{
    return __byte_perm(scales, 0, 0x4040 + i * 0x0101) * 0x80 + 0x3f003f00u;
}

/* Sorts the step's pairs by expert and token into the tables in shared memory; returns the number
 * of items. All threads. */
static __device__ int sort_pairs(const small_params &p, uint8_t *smem)
{
    __shared__ uint32_t warp_sum[THREADS / 32];
    uint32_t *mask = (uint32_t *)(smem + p.masks);            /* [E][4]: a bit a token */
    uint32_t *start = (uint32_t *)(smem + p.masks) + p.E * 4; /* [E]: the first sorted pair */
    item *items = (item *)(smem + p.items);
    uint16_t *sorted = (uint16_t *)(smem + p.sorted);
    int16_t *source = (int16_t *)(smem + p.source);
    const int tid = threadIdx.x, lane = tid % 32, pairs = p.T * p.k;
    uint32_t before = 0; /* pairs in the low half, items in the high half */

    for (int i = tid; i < p.E * 4; i += THREADS)
        mask[i] = 0;
    __syncthreads();
    for (int i = tid; i < pairs; i += THREADS) {
        const int e = p.idx[i] - p.first, t = i / p.k;

        if (e >= 0 && e < p.E)
            atomicOr(&mask[e * 4 + t / 32], 1u << t % 32);
    }
    __syncthreads();
    for (int base = 0; base < p.E; base += THREADS) {
        const int e = base + tid;
        int n = 0;

        if (e < p.E)
            for (int i = 0; i < 4; i++)
                n += __popc(mask[e * 4 + i]);
        const uint32_t mine = n | (n + CHUNK - 1) / CHUNK << 16;
        uint32_t sum = mine, all = 0;
        for (int o = 1; o < 32; o *= 2) {
            const uint32_t left = __shfl_up_sync(~0u, sum, o);

            sum += lane >= o ? left : 0;
        }
        if (lane == 31)
            warp_sum[tid / 32] = sum;
        __syncthreads();
        sum += before - mine;
        for (int w = 0; w < THREADS / 32; w++) {
            sum += w < tid / 32 ? warp_sum[w] : 0;
            all += warp_sum[w];
        }
        before += all;
        if (e < p.E)
            start[e] = sum & 0xffff;
        for (int i = 0; i * CHUNK < n; i++) {
            const item c = {(uint16_t)e, (uint16_t)((sum & 0xffff) + i * CHUNK),
                            (uint16_t)(n - i * CHUNK < CHUNK ? n - i * CHUNK : CHUNK), 0};

            items[(sum >> 16) + i] = c;
        }
        __syncthreads();
    }
    for (int i = tid; i < pairs; i += THREADS) {
        const int e = p.idx[i] - p.first, t = i / p.k;
        int from = -1;

        if (e >= 0 && e < p.E) {
            from = t * p.k; /* an expert named twice is computed once */
            while (p.idx[from] - p.first != e)
                from++;
            if (from == i) {
                int at = start[e] + __popc(mask[e * 4 + t / 32] & ((1u << t % 32) - 1));

                for (int w = 0; w < t / 32; w++)
                    at += __popc(mask[e * 4 + w]);
                sorted[at] = (uint16_t)i;
            }
        }
        source[i] = (int16_t)from;
    }
    __syncthreads();
    return (int)(before >> 16);
}

/* Where the block is in its list of slabs: an item and a slab of its expert. */
struct cursor {
    int item, slab;

    __device__ __forceinline__ cursor(const product &p, int at)
        : item(at / p.slabs), slab(at % p.slabs)
    {
    }
    __device__ __forceinline__ void next(const product &p)
    {
        if (++slab == p.slabs) {
            slab = 0;
            item++;
        }
    }
};

/* A block's share of a product's slabs. */
struct share {
    int from, to;

    __device__ __forceinline__ share(const product &p, int n_items)
    {
        const int64_t all = (int64_t)p.slabs * n_items;

        from = (int)(all * blockIdx.x / gridDim.x);
        to = (int)(all * (blockIdx.x + 1) / gridDim.x);
    }
};

struct ring {
    uint32_t slot, parity;

    __device__ __forceinline__ void next(uint32_t slots)
    {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* In static shared memory, 8 bytes each. */
struct barriers {
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS];    /* slots of the ring */
    uint64_t summed[MOST_PARTS], stored[MOST_PARTS]; /* buffers of sums: filled, added up */
    uint64_t finished;                               /* the block's part of a product */
    uint64_t second;                                 /* all blocks' part of the first one */
};

/* What a math warp carries from slab to slab. */
struct math_state {
    ring weights, sums;
    int turn; /* the warp that stores the next slab's first tile */
};

/* Sums of tile j in fragment order, the 15 parts one after the other. */
static __device__ __forceinline__ void add_parts(float (&c)[4], uint32_t sums, float scale)
{
#pragma unroll
    for (int i = 0; i < MATH_WARPS; i += 3) {
        uint4 v[3];

#pragma unroll
        for (int j = 0; j < 3; j++)
            v[j] = ld_shared_128(sums + (i + j) * 512);
#pragma unroll
        for (int j = 0; j < 3; j++) {
            c[0] = i + j ? __fadd_rn(c[0], __uint_as_float(v[j].x)) : __uint_as_float(v[j].x);
            c[1] = i + j ? __fadd_rn(c[1], __uint_as_float(v[j].y)) : __uint_as_float(v[j].y);
            c[2] = i + j ? __fadd_rn(c[2], __uint_as_float(v[j].z)) : __uint_as_float(v[j].z);
            c[3] = i + j ? __fadd_rn(c[3], __uint_as_float(v[j].w)) : __uint_as_float(v[j].w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = __fmul_rn(c[i], scale);
}

/* Rows g and g + 8 of a slab for tokens 2q and 2q + 1 of a tile: even rows are gates, odd ones ups.
 * The lane 4 on has the other half; each of the two makes one column of two tokens. */
static __device__ __forceinline__ void store_act(const small_params &p, const float (&c)[4],
                                                 int slab, int n_left, const uint16_t *pairs)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const bool up = g % 2 != 0;
    const float other0 = __shfl_xor_sync(~0u, up ? c[0] : c[2], 4);
    const float other1 = __shfl_xor_sync(~0u, up ? c[1] : c[3], 4);
    const int column = slab * 8 + g / 2 + (up ? 4 : 0);

    if (column >= p.I)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float mine = up ? c[2 + i] : c[i], other = i ? other1 : other0;

        if (2 * q + i < n_left)
            p.act[(int64_t)pairs[2 * q + i] * p.lda + column] =
                __float2bfloat16_rn(gemm_swiglu(up ? other : mine, up ? mine : other, p.limit));
    }
}

static __device__ __forceinline__ void store_y(const small_params &p, const float (&c)[4], int slab,
                                               int n_left, const uint16_t *pairs)
{
    const int lane = threadIdx.x % 32, q = lane % 4, row = slab * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < 2; i++)
        if (2 * q + i < n_left) {
            float *y = p.y + (int64_t)pairs[2 * q + i] * p.D + row;

            if (row < p.D)
                y[0] = c[i];
            if (row + 8 < p.D)
                y[8] = c[2 + i];
        }
}

/* Which tile of the slab whose turn is `turn` this warp stores; none: TILES or more. */
static __device__ __forceinline__ int my_tile(int turn)
{
    const int late = (int)threadIdx.x / 32 - turn + (threadIdx.x / 32 < turn ? MATH_WARPS : 0);

    return late % (MATH_WARPS / TILES) == 0 ? late / (MATH_WARPS / TILES) : TILES;
}

/* The biases of a slab's rows that this lane will add; on the way while others compute. */
static __device__ __forceinline__ float2 load_bias(const product &w, int expert, int slab)
{
    const int row = slab * 16 + threadIdx.x % 32 / 4;
    const float *bias = w.bias + (int64_t)expert * w.N;
    float2 b = {0.0f, 0.0f};

    if (w.bias != NULL) {
        b.x = row < w.N ? __ldg(bias + row) : 0.0f;
        b.y = row + 8 < w.N ? __ldg(bias + row + 8) : 0.0f;
    }
    return b;
}

/* Tile j of a slab, whose sums lie in buffer `sums`. */
static __device__ __forceinline__ void store_tile(const small_params &p, const product &w,
                                                  int which, uint32_t smem, barriers *b, ring sums,
                                                  int j, const uint16_t *pairs, int n, int slab,
                                                  float2 bias)
{
    const int lane = threadIdx.x % 32;

    if (j * 8 < n) {
        float v[4];

        mbarrier_wait(smem_addr(&b->summed[sums.slot]), sums.parity);
        add_parts(v, smem + p.sums + (sums.slot * p.tiles + j) * PART + lane * 16, w.scale);
        v[0] = __fadd_rn(v[0], bias.x);
        v[1] = __fadd_rn(v[1], bias.x);
        v[2] = __fadd_rn(v[2], bias.y);
        v[3] = __fadd_rn(v[3], bias.y);
        if (which == 0)
            store_act(p, v, slab, n - j * 8, pairs + j * 8);
        else
            store_y(p, v, slab, n - j * 8, pairs + j * 8);
        __syncwarp();
    }
    if (lane == 0)
        mbarrier_arrive(smem_addr(&b->stored[sums.slot]));
}

/* `n_slabs` slabs of one item, from `slab` on: TILES_ tiles of 8 tokens; WHOLE: this warp has
 * MOST_UNITS units. */
template <int TILES_, bool WHOLE>
static __device__ void multiply(const small_params &p, const product &w, int which, uint32_t smem,
                                barriers *b, int expert, const uint16_t *pairs, int n, int slab,
                                int n_slabs, math_state &st)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const int first = warp * w.units / MATH_WARPS;
    const int units = WHOLE ? MOST_UNITS : (warp + 1) * w.units / MATH_WARPS - first;
    uint32_t x[MOST_UNITS][4][TILES_][2];

#pragma unroll
    for (int j = 0; j < TILES_; j++) {
        const int row = j * 8 + g, pair = pairs[row < n ? row : 0]; /* others: sums not stored */
        const __nv_bfloat16 *from =
            which == 0 ? p.t + (int64_t)(pair / p.k) * p.D : p.act + (int64_t)pair * p.lda;

        from += first * TD_MX_COLS + 2 * q;
#pragma unroll
        for (int u = 0; u < MOST_UNITS; u++)
#pragma unroll
            for (int s = 0; s < 4; s++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int k = u * TD_MX_COLS + s * 16 + h * 8;
                    const bool there = WHOLE || (u < units && first * TD_MX_COLS + k + 2 * q < w.K);

                    x[u][s][j][h] = there ? __ldcg((const uint32_t *)(from + k)) : 0;
                }
    }
    int tile = TILES; /* of the slab before: what this warp has to store */
    ring tile_sums = {0, 0};
    float2 bias = {0.0f, 0.0f};
    for (int i = 0; i < n_slabs; i++) {
        const uint32_t unit0 =
            smem + st.weights.slot * p.slot_bytes + first * TD_MX_UNIT + lane * 16;
        const uint32_t scale0 =
            smem + st.weights.slot * p.slot_bytes + first * TD_MX_UNIT + TD_MX_CODES + g * 4;
        float c[TILES_][4] = {};

        if (tile * 8 < n)
            bias = load_bias(w, expert, slab + i - 1);
        mbarrier_wait(smem_addr(&b->full[st.weights.slot]), st.weights.parity);
#pragma unroll
        for (int u = 0; u < MOST_UNITS; u++) {
            if (!WHOLE && u >= units)
                break;
            const uint4 word = ld_shared_128(unit0 + u * TD_MX_UNIT);
            const uint32_t scale = ld_shared_32(scale0 + u * TD_MX_UNIT);
#pragma unroll
            for (int block = 0; block < 2; block++) {
                const uint32_t lo = block ? word.z : word.x, hi = block ? word.w : word.y;
                const uint32_t f_lo = factor(scale, block * 2), f_hi = factor(scale, block * 2 + 1);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t a[4] = {mul_bf16x2(td_mx_pair(lo, half * 2), f_lo),
                                           mul_bf16x2(td_mx_pair(hi, half * 2), f_hi),
                                           mul_bf16x2(td_mx_pair(lo, half * 2 + 1), f_lo),
                                           mul_bf16x2(td_mx_pair(hi, half * 2 + 1), f_hi)};
#pragma unroll
                    for (int j = 0; j < TILES_; j++)
                        mma_m16n8k16(c[j], a, x[u][block * 2 + half][j][0],
                                     x[u][block * 2 + half][j][1]);
                }
            }
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(smem_addr(&b->empty[st.weights.slot]));
        mbarrier_wait(smem_addr(&b->stored[st.sums.slot]), st.sums.parity ^ 1);
        const uint32_t sums =
            smem + p.sums + st.sums.slot * (p.tiles * PART) + warp * 512 + lane * 16;
#pragma unroll
        for (int j = 0; j < TILES_; j++)
            if (WHOLE || j * 8 < n)
                st_shared_128(sums + j * PART,
                              make_uint4(__float_as_uint(c[j][0]), __float_as_uint(c[j][1]),
                                         __float_as_uint(c[j][2]), __float_as_uint(c[j][3])));
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(smem_addr(&b->summed[st.sums.slot]));
        if (tile < p.tiles)
            store_tile(p, w, which, smem, b, tile_sums, tile, pairs, n, slab + i - 1, bias);
        tile = my_tile(st.turn);
        tile_sums = st.sums;
        st.turn = st.turn + 1 < MATH_WARPS ? st.turn + 1 : 0;
        st.weights.next(p.slots);
        st.sums.next(p.parts);
    }
    if (tile < p.tiles) {
        bias = load_bias(w, expert, slab + n_slabs - 1);
        store_tile(p, w, which, smem, b, tile_sums, tile, pairs, n, slab + n_slabs - 1, bias);
    }
}

static __device__ void math_warp(const small_params &p, uint8_t *mem, barriers *b, int n_items)
{
    const item *items = (const item *)(mem + p.items);
    const uint16_t *sorted = (const uint16_t *)(mem + p.sorted);
    const uint32_t smem = smem_addr(mem);
    const int warp = threadIdx.x / 32;
    math_state st = {};

    for (int which = 0; which < 2; which++) {
        const product &w = p.p[which];
        const share s(w, n_items);
        const bool whole =
            (warp + 1) * w.units / MATH_WARPS - warp * w.units / MATH_WARPS == MOST_UNITS &&
            w.K % TD_MX_COLS == 0;

        if (which == 1) /* all of act is there */
            mbarrier_wait(smem_addr(&b->second), 0);
        for (int at = s.from; at < s.to;) {
            const int i = at / w.slabs, end = (i + 1) * w.slabs < s.to ? (i + 1) * w.slabs : s.to;
            const item c = items[i];
            const int slab = at - i * w.slabs, run = end - at;
            const uint16_t *pairs = sorted + c.first;

            if (!whole)
                multiply<TILES, false>(p, w, which, smem, b, c.expert, pairs, c.n, slab, run, st);
            else if (c.n <= 8)
                multiply<1, true>(p, w, which, smem, b, c.expert, pairs, c.n, slab, run, st);
            else if (c.n <= 16)
                multiply<2, true>(p, w, which, smem, b, c.expert, pairs, c.n, slab, run, st);
            else
                multiply<3, true>(p, w, which, smem, b, c.expert, pairs, c.n, slab, run, st);
            at = end;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(smem_addr(&b->finished));
    }
}

/* The next slab of the block's list into the next slot, once. One thread. */
struct feeder {
    cursor at;
    int which, left; /* of this product */
    ring to;

    __device__ __forceinline__ feeder(const small_params &p, int n_items)
        : at(p.p[0], share(p.p[0], n_items).from), which(0), to({0, 0})
    {
        const share s(p.p[0], n_items);

        left = s.to - s.from;
    }
    __device__ __forceinline__ bool feed(const small_params &p, const item *items, int n_items,
                                         uint32_t smem, barriers *b)
    {
        if (left == 0 && which == 0) {
            const share s(p.p[1], n_items);

            which = 1;
            at = cursor(p.p[1], s.from);
            left = s.to - s.from;
        }
        if (left == 0)
            return false;
        const product &w = p.p[which];
        const uint32_t bytes = w.units * TD_MX_UNIT, bar = smem_addr(&b->full[to.slot]);

        mbarrier_arrive_expect_tx(bar, bytes);
        cp_async_bulk(smem + to.slot * p.slot_bytes,
                      w.w + items[at.item].expert * w.expert_bytes + (int64_t)at.slab * bytes,
                      bytes, bar, L2_EVICT_FIRST);
        at.next(w);
        to.next(p.slots);
        left--;
        return true;
    }
};

/* One thread: keeps the ring full, and meets the other blocks when this one has finished. */
static __device__ void serve(const small_params &p, uint8_t *mem, barriers *b, int n_items)
{
    const item *items = (const item *)(mem + p.items);
    const uint32_t smem = smem_addr(mem);
    feeder f(p, n_items);
    ring freed = {0, 0};

    for (int i = 0; i < p.slots && f.feed(p, items, n_items, smem, b); i++) {
    }
    for (int which = 0; which < 2; which++) {
        const share s(p.p[which], n_items);

        for (int i = s.from; i < s.to; i++) {
            mbarrier_wait(smem_addr(&b->empty[freed.slot]), freed.parity);
            f.feed(p, items, n_items, smem, b);
            freed.next(p.slots);
        }
        mbarrier_wait(smem_addr(&b->finished), which);
        meet_blocks();
        if (which == 0)
            mbarrier_arrive(smem_addr(&b->second));
    }
}

/* out = sum over a token's choices of prob * y, in the router's order. */
static __device__ void add_choices(const small_params &p, const int16_t *source)
{
    const int half = (p.D + 1) / 2;

    for (int64_t i = (int64_t)threadIdx.x * gridDim.x + blockIdx.x; i < (int64_t)p.T * half;
         i += (int64_t)THREADS * gridDim.x) {
        const int t = (int)(i / half), column = (int)(i % half) * 2;
        const bool second = column + 1 < p.D;
        float x = 0.0f, y = 0.0f;

        for (int j = 0; j < p.k; j++) {
            const int from = source[t * p.k + j];

            if (from >= 0) {
                const float *v = p.y + (int64_t)from * p.D + column;
                const float prob = p.prob[t * p.k + j];

                x = __fmaf_rn(prob, __ldcg(v), x);
                y = second ? __fmaf_rn(prob, __ldcg(v + 1), y) : 0.0f;
            }
        }
        p.out[(int64_t)t * p.D + column] = __float2bfloat16_rn(x);
        if (second)
            p.out[(int64_t)t * p.D + column + 1] = __float2bfloat16_rn(y);
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    experts_small_kernel(const __grid_constant__ small_params p)
{
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ barriers b;

    if (threadIdx.x == 0) {
        for (int i = 0; i < p.slots; i++) {
            mbarrier_init(smem_addr(&b.full[i]), 1);
            mbarrier_init(smem_addr(&b.empty[i]), MATH_WARPS);
        }
        for (int i = 0; i < p.parts; i++) {
            mbarrier_init(smem_addr(&b.summed[i]), MATH_WARPS);
            mbarrier_init(smem_addr(&b.stored[i]), p.tiles);
        }
        mbarrier_init(smem_addr(&b.finished), MATH_WARPS);
        mbarrier_init(smem_addr(&b.second), 1);
        fence_mbarrier_init();
    }
    const int n_items = sort_pairs(p, mem);
    if (threadIdx.x == 32 * SERVICE)
        serve(p, mem, &b, n_items);
    else if (threadIdx.x < 32 * SERVICE)
        math_warp(p, mem, &b, n_items);
    __syncthreads(); /* all blocks have finished: y is complete */
    add_choices(p, (const int16_t *)(mem + p.source));
}

static int round16(int n)
{
    return (n + 15) / 16 * 16;
}

/* Cuts shared memory for a step of T tokens, the ring first; false if not even two slots fit. */
static bool cut_shared(small_params *p, int most, int *bytes)
{
    const int pairs = p->T * p->k, chunks = pairs < p->E ? pairs : p->E;
    const int units = p->p[0].units > p->p[1].units ? p->p[0].units : p->p[1].units;
    int used;

    p->tiles = p->T < CHUNK ? (p->T + 7) / 8 : TILES;
    p->slot_bytes = units * TD_MX_UNIT;
    p->parts = p->tiles < TILES ? 4 : 3;
    p->sums = 0;
    p->masks = p->sums + p->parts * p->tiles * PART;
    p->items = p->masks + round16(p->E * 20);
    p->sorted = p->items + round16((chunks + pairs / CHUNK) * (int)sizeof(item));
    p->source = p->sorted + round16(pairs * 2);
    used = p->source + round16(pairs * 2);
    p->slots = (most - used) / p->slot_bytes;
    if (p->slots > MOST_SLOTS)
        p->slots = MOST_SLOTS;
    const int ring_bytes = p->slots * p->slot_bytes;
    p->sums += ring_bytes;
    p->masks += ring_bytes;
    p->items += ring_bytes;
    p->sorted += ring_bytes;
    p->source += ring_bytes;
    *bytes = used + ring_bytes;
    return p->slots >= 2;
}

static product make_product(const td_matrix *m, const td_matrix *bias)
{
    product w = {};

    w.w = (const uint8_t *)m->mem.ptr;
    w.expert_bytes = (int64_t)td_mx_bytes(m->N, m->K);
    w.bias = td_cuda_vector(bias);
    w.units = (int32_t)td_mx_units(m->K);
    w.slabs = (int32_t)td_mx_slabs(m->N);
    w.N = m->N;
    w.K = m->K;
    w.scale = ldexpf(1.0f, td_cuda_mxfp4_shift(m));
    return w;
}

/* false: not for these weights. */
static bool make_params(const td_dev *dev, const td_experts_args *a, small_params *p, int *bytes)
{
    int most = 0;

    if (td_cuda_format(a->gate_up) != CUDA_MXFP4 || td_cuda_format(a->down) != CUDA_MXFP4 ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, dev->index) !=
            cudaSuccess)
        return false;
    *p = {};
    p->p[0] = make_product(a->gate_up, a->gate_up_bias);
    p->p[1] = make_product(a->down, a->down_bias);
    p->T = a->T;
    p->k = a->k;
    p->D = a->D;
    p->I = a->I;
    p->E = a->E;
    p->first = a->expert_first;
    return p->p[0].units <= MOST_UNITS * MATH_WARPS && p->p[1].units <= MOST_UNITS * MATH_WARPS &&
           a->E <= 1024 && cut_shared(p, most - (int)sizeof(barriers) - 512, bytes);
}

bool td_cuda_experts_small_fits(const td_dev *dev, const td_experts_args *a)
{
    td_experts_args most = *a;
    small_params p;
    int bytes;

    most.T = TD_SMALL_STEP;
    return make_params(dev, &most, &p, &bytes);
}

td_status td_cuda_experts_small(td_stream *s, const td_experts_args *a, void *act, float *y,
                                td_error *err)
{
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute cooperative = {};
    small_params p;
    int bytes = 0, blocks = 0;
    cudaError_t e;

    if (!make_params(s->dev, a, &p, &bytes))
        return td_fail(err, TD_INVALID, "experts: %d columns are too many for a small step", a->D);
    p.t = (const __nv_bfloat16 *)a->t;
    p.idx = a->idx;
    p.prob = a->prob;
    p.act = (__nv_bfloat16 *)act;
    p.lda = td_cuda_ws_pitch(a->I);
    p.y = y;
    p.out = (__nv_bfloat16 *)a->out;
    p.limit = a->limit;
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    if ((e = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, s->dev->index)) !=
            cudaSuccess ||
        (e = cudaFuncSetAttribute(experts_small_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes)) != cudaSuccess)
        return td_cuda_status(err, e, "experts");
    /* All blocks start at once or not at all: not on those that wait for this rank. */
    blocks = blocks > s->dev->held ? blocks - s->dev->held : 1;
    launch.gridDim = dim3((unsigned)blocks);
    launch.blockDim = dim3(THREADS);
    launch.dynamicSmemBytes = (size_t)bytes;
    launch.stream = s->handle;
    launch.attrs = &cooperative;
    launch.numAttrs = 1;
    return td_cuda_status(err, cudaLaunchKernelEx(&launch, experts_small_kernel, p), "experts");
}
