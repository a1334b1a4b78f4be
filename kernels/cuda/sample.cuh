/* sample: a row of logits in the shared memory of a cluster: keys, distances and weights of its
 * tokens, reductions and histograms over the cluster. See sample.cu for the idea. */
#ifndef TANDEM_KERNELS_CUDA_SAMPLE_CUH
#define TANDEM_KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/backend.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

enum { CLUSTER = 8, THREADS = 512, WARPS = THREADS / 32, BINS = THREADS, GATHER = 256 };
enum { UNIT_BITS = 44, TOP_KEYS = 1024 };

/* Distances, in powers of two. Beyond LIMIT a weight would round to 0. */
static constexpr double HEAD = 12, LIMIT = UNIT_BITS + 0.998;
static constexpr double HEAD_SCALE = (BINS - 1) / HEAD, TAIL_SCALE = (BINS - 1) / (LIMIT - HEAD);
/* Added to a number below 2^51, it leaves the nearest integer in the low bits of the sum. */
static constexpr double TO_INT = 6755399441055744.0;
static constexpr double LOG2_E = 1.4426950408889634;
static constexpr uint64_t NO_KEY = ~0ull;

typedef unsigned long long u64; /* what atomics are made for */

struct stats {
    u64 least, most, sum, count; /* a minimum, a maximum, two sums */
};

/* With the logits, two blocks of gpt-oss' vocabulary fit into an SM: 2 x (9 + 98) KB. */
struct block_memory {
    union {
        struct { /* a histogram: weights in two words, counts */
            uint2 weight[BINS];
            uint32_t count[BINS];
        };
        struct { /* what is left at the end of a search, in block 0 */
            u64 key[GATHER], key_weight[GATHER];
        };
        u64 top_keys[TOP_KEYS]; /* among which a block's largest logits are */
    };
    td_sample_row p;
    stats warp[WARPS];
    stats block[2]; /* read by the cluster; alternated, so that one barrier a reduction is enough */
    stats all;      /* the reduction's result */
    u64 top[TD_TOP_LOGPROBS];
    u64 weight_before, count_before; /* of the bin that was chosen */
    u64 found_sum, found_key;
    uint32_t n_gathered[2]; /* of block 0, alternated */
    uint32_t bin, n_top_keys;
};

/* What a thread carries from step to step. */
struct row_state {
    cg::cluster_group cluster;
    block_memory *m;
    const float *l; /* this block's part of the row */
    int first, n;   /* tokens first .. first + n */
    unsigned turn;  /* of m->block */
    unsigned tries; /* of m->n_gathered */
    float best;
    double bits; /* powers of two in a logit */
};

__device__ static u64 key_of(float logit, int token)
{
    const uint32_t b = __float_as_uint(logit + 0.0f); /* -0 is 0 */
    const uint32_t rising = b ^ (0x80000000u | (uint32_t)((int32_t)b >> 31));

    return (u64)~rising << 32 | (uint32_t)token;
}

__device__ static float logit_of(u64 key)
{
    const uint32_t rising = ~(uint32_t)(key >> 32);

    return __uint_as_float((rising >> 31) != 0 ? rising & 0x7fffffffu : ~rising);
}

/* NaN for NaN. */
__device__ static double distance(const row_state &r, float logit)
{
    return logit == r.best ? 0.0 : ((double)r.best - (double)logit) * r.bits;
}

/* Of a distance below LIMIT; at least 1. The polynomial is 2^x on -1/2 .. 1/2 within 2^-45. */
__device__ static u64 weight_of(double distance)
{
    const double power = UNIT_BITS - distance, n = power + TO_INT, x = power - (n - TO_INT);
    double p = 0x1.b6571de2f2351p-24;

    p = fma(p, x, 0x1.63ef969a64d3cp-20);
    p = fma(p, x, 0x1.ffcb76789860fp-17);
    p = fma(p, x, 0x1.43088e257f341p-13);
    p = fma(p, x, 0x1.5d87fe908f88ap-10);
    p = fma(p, x, 0x1.3b2ab72b175eep-7);
    p = fma(p, x, 0x1.c6b08d7044119p-5);
    p = fma(p, x, 0x1.ebfbdff8149f2p-3);
    p = fma(p, x, 0x1.62e42fefa39f7p-1);
    p = fma(p, x, 0x1.000000000003dp+0);
    /* times 2^n, in the exponent; then to an integer */
    p = __hiloint2double(__double2hiint(p) + (__double2loint(n) << 20), __double2loint(p));
    return (u64)(__double_as_longlong(p + TO_INT) - __double_as_longlong(TO_INT));
}

__device__ static int bin_of(double distance)
{
    const double at = distance < HEAD ? distance * HEAD_SCALE : (distance - HEAD) * TAIL_SCALE;

    return __double2loint(at + TO_INT);
}

__device__ static stats merge(stats a, stats b)
{
    return {min(a.least, b.least), max(a.most, b.most), a.sum + b.sum, a.count + b.count};
}

template <int LANES> __device__ static stats merge_lanes(stats v)
{
    for (int o = LANES / 2; o > 0; o /= 2) {
        const stats w = {__shfl_xor_sync(~0u, v.least, o), __shfl_xor_sync(~0u, v.most, o),
                         __shfl_xor_sync(~0u, v.sum, o), __shfl_xor_sync(~0u, v.count, o)};
        v = merge(v, w);
    }
    return v;
}

/* Over the cluster; every thread gets the result. */
__device__ static stats reduce(row_state &r, stats v)
{
    block_memory *m = r.m;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    v = merge_lanes<32>(v);
    __syncthreads(); /* m->warp and m->all were read */
    if (lane == 0)
        m->warp[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = merge_lanes<WARPS>(m->warp[lane % WARPS]);
        if (lane == 0)
            m->block[r.turn % 2] = v;
    }
    r.cluster.sync();
    if (warp == 0) {
        v = *r.cluster.map_shared_rank(&m->block[r.turn % 2], lane % CLUSTER);
        v = merge_lanes<CLUSTER>(v);
        if (lane == 0)
            m->all = v;
    }
    r.turn++;
    __syncthreads();
    return m->all;
}

/* --- histograms ----------------------------------------------------------------------------- */

/* This thread's bin, summed over the cluster, and what is before it. */
struct bins {
    u64 weight, count, weight_before, count_before;
};

__device__ static void clear_histogram(block_memory *m)
{
    m->weight[threadIdx.x] = make_uint2(0, 0);
    m->count[threadIdx.x] = 0;
    __syncthreads();
}

__device__ static void put(block_memory *m, int bin, u64 weight, bool counts)
{
    const uint32_t lo = (uint32_t)weight, old = atomicAdd(&m->weight[bin].x, lo);
    const uint32_t hi = (uint32_t)(weight >> 32) + (old + lo < old);

    if (hi != 0)
        atomicAdd(&m->weight[bin].y, hi);
    if (counts)
        atomicAdd(&m->count[bin], 1u);
}

/* Every block computes all of it. */
__device__ static bins sum_histogram(row_state &r, bool counts)
{
    block_memory *m = r.m;
    bins b = {};
    u64 weight, count;

    r.cluster.sync();
#pragma unroll
    for (int c = 0; c < CLUSTER; c++) {
        const uint2 w = *r.cluster.map_shared_rank(&m->weight[threadIdx.x], c);

        b.weight += (u64)w.y << 32 | w.x;
        if (counts)
            b.count += *r.cluster.map_shared_rank(&m->count[threadIdx.x], c);
    }
    weight = b.weight;
    count = b.count;
    for (int o = 1; o < 32; o *= 2) {
        const u64 w = __shfl_up_sync(~0u, weight, o), n = __shfl_up_sync(~0u, count, o);

        if (threadIdx.x % 32 >= o) {
            weight += w;
            count += n;
        }
    }
    if (threadIdx.x % 32 == 31) {
        m->warp[threadIdx.x / 32].sum = weight;
        m->warp[threadIdx.x / 32].count = count;
    }
    r.cluster.sync(); /* and nobody reads this block's bins any more */
    b.weight_before = weight - b.weight;
    b.count_before = count - b.count;
    for (int w = 0; w < threadIdx.x / 32; w++) {
        b.weight_before += m->warp[w].sum;
        b.count_before += m->warp[w].count;
    }
    return b;
}

/* The bin in which the counts or the weights reach `threshold`, with the sums before it, in
 * m->bin and so on. */
__device__ static void choose_bin(block_memory *m, const bins &b, u64 threshold, bool by_count)
{
    const u64 before = by_count ? b.count_before : b.weight_before;

    __syncthreads(); /* the last choice was read by all */
    if (before < threshold && threshold <= before + (by_count ? b.count : b.weight)) {
        m->bin = threadIdx.x;
        m->weight_before = b.weight_before;
        m->count_before = b.count_before;
    }
    __syncthreads();
}

#endif
