/* sample: from logits to tokens, and the edits of tables.
 *
 * A cluster of CLUSTER blocks has a row: the row is cut into as many parts, each block keeps its
 * part in shared memory, and everything after the one read of device memory happens there. Where
 * blocks must agree (the largest logit, sums over bins) they read each other's shared memory.
 *
 * Nothing is sorted. A token's place in the order is its key: falling logit, then rising id, as one
 * 64-bit number. Its weight exp((logit - best) / temperature) is an integer, in units of 2^-44, so
 * that sums do not depend on who adds when: 2^18 tokens of weight 1 still fit, and what rounds to
 * nothing is a token that no draw of 53 bits would meet in years. top_k, top_p and the draw are
 * then the same question: at which token, in order, do the counts or the weights first reach a
 * threshold? It is answered by a histogram over (best - logit) / temperature, whose bins are in
 * order, then within one bin by histograms over its keys, until at most GATHER tokens are left; of
 * those each finds the sum before it by itself. Equal logits in any number only take more rounds.
 *
 * Greedy rows end after the largest logit. Bound: reading the logits, 4 V bytes a row; the rest is
 * the latency of some 10 to 25 barriers between the blocks. */
#include "kernels/cuda/backend.h"

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

enum { CLUSTER = 8, THREADS = 512, WARPS = THREADS / 32, BINS = 2 * THREADS, GATHER = 256 };

/* Weights are in units of 2^-44. Further than LIMIT from the best they would round to 0: 45 ln 2 is
 * 31.1916. */
static constexpr double UNIT = 17592186044416.0, LIMIT = 31.19;
static constexpr double BINS_PER = BINS / LIMIT;
static constexpr uint64_t NO_KEY = ~0ull;

typedef unsigned long long u64; /* what atomics are made for */

struct stats {
    u64 least, most, sum; /* a minimum, a maximum, a sum */
};

/* With the logits, two blocks of gpt-oss' vocabulary fit into an SM: 2 x (13 + 98) KB. */
struct block_memory {
    union {
        struct { /* a histogram: weights in two words, counts */
            uint32_t lo[BINS], hi[BINS], count[BINS];
        };
        struct { /* what is left at the end of a search, in block 0 */
            u64 key[GATHER], weight[GATHER];
        };
    };
    td_sample_row p;
    stats warp[WARPS];
    stats block[2]; /* read by the cluster; alternated, so that one barrier a reduction is enough */
    double exps;
    u64 top[TD_TOP_LOGPROBS];
    u64 weight_before, count_before; /* of the bin that was chosen */
    u64 found_sum, found_key;
    uint32_t bin, n_gathered;
};

/* What a thread carries from step to step. */
struct row_state {
    cg::cluster_group cluster;
    block_memory *m;
    const float *l; /* this block's part of the row */
    int first, n;   /* tokens first .. first + n */
    unsigned turn;  /* of m->block */
    float best;
    double inv; /* 1 / temperature */
};

__device__ static u64 key_of(float logit, int token)
{
    const uint32_t b = __float_as_uint(logit + 0.0f); /* -0 is 0 */
    const uint32_t rising = (b >> 31) != 0 ? ~b : b | 0x80000000u;

    return (u64)~rising << 32 | (uint32_t)token;
}

__device__ static float logit_of(u64 key)
{
    const uint32_t rising = ~(uint32_t)(key >> 32);

    return __uint_as_float((rising >> 31) != 0 ? rising & 0x7fffffffu : ~rising);
}

__device__ static double distance(const row_state &r, float logit)
{
    return logit == r.best ? 0.0 : ((double)r.best - (double)logit) * r.inv;
}

__device__ static u64 weight_of(double distance)
{
    return distance < LIMIT ? (u64)(exp(-distance) * UNIT + 0.5) : 0;
}

__device__ static int bin_of(double distance)
{
    return min(BINS - 1, (int)(distance * BINS_PER));
}

__device__ static stats merge(stats a, stats b)
{
    return {min(a.least, b.least), max(a.most, b.most), a.sum + b.sum};
}

/* Over the cluster; every thread gets the result. */
__device__ static stats reduce(row_state &r, stats v)
{
    block_memory *m = r.m;

    for (int o = 16; o > 0; o /= 2) {
        const stats w = {__shfl_xor_sync(~0u, v.least, o), __shfl_xor_sync(~0u, v.most, o),
                         __shfl_xor_sync(~0u, v.sum, o)};
        v = merge(v, w);
    }
    __syncthreads(); /* m->warp was read by all */
    if (threadIdx.x % 32 == 0)
        m->warp[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++)
            v = merge(v, m->warp[w]);
        m->block[r.turn % 2] = v;
    }
    r.cluster.sync();
    v = *r.cluster.map_shared_rank(&m->block[r.turn % 2], 0);
    for (int b = 1; b < CLUSTER; b++)
        v = merge(v, *r.cluster.map_shared_rank(&m->block[r.turn % 2], b));
    r.turn++;
    return v;
}

/* --- histograms ----------------------------------------------------------------------------- */

/* Two bins a thread: 2 t and 2 t + 1, with the sums before the first of them. */
struct bins {
    u64 weight[2], count[2], weight_before, count_before;
};

__device__ static void clear_histogram(block_memory *m)
{
    for (int i = threadIdx.x; i < BINS; i += THREADS)
        m->lo[i] = m->hi[i] = m->count[i] = 0;
    __syncthreads();
}

__device__ static void put(block_memory *m, int bin, u64 weight, bool counts)
{
    const uint32_t lo = (uint32_t)weight, old = atomicAdd(&m->lo[bin], lo);
    const uint32_t hi = (uint32_t)(weight >> 32) + (old + lo < old);

    if (hi != 0)
        atomicAdd(&m->hi[bin], hi);
    if (counts)
        atomicAdd(&m->count[bin], 1u);
}

/* Sums over the cluster, and over the bins before. Every block computes all of it. */
__device__ static bins sum_histogram(row_state &r, bool counts)
{
    block_memory *m = r.m;
    bins b = {};
    u64 weight, count;

    r.cluster.sync();
    for (int c = 0; c < CLUSTER; c++) {
        const block_memory *o = r.cluster.map_shared_rank(m, c);

        for (int i = 0; i < 2; i++) {
            const int bin = 2 * threadIdx.x + i;

            b.weight[i] += (u64)o->hi[bin] << 32 | o->lo[bin];
            if (counts)
                b.count[i] += o->count[bin];
        }
    }
    weight = b.weight[0] + b.weight[1];
    count = b.count[0] + b.count[1];
    for (int o = 1; o < 32; o *= 2) {
        const u64 w = __shfl_up_sync(~0u, weight, o), n = __shfl_up_sync(~0u, count, o);

        if (threadIdx.x % 32 >= o) {
            weight += w;
            count += n;
        }
    }
    if (threadIdx.x % 32 == 31)
        m->warp[threadIdx.x / 32] = {weight, count, 0};
    r.cluster.sync(); /* and nobody reads this block's bins any more */
    b.weight_before = weight - b.weight[0] - b.weight[1];
    b.count_before = count - b.count[0] - b.count[1];
    for (int w = 0; w < threadIdx.x / 32; w++) {
        b.weight_before += m->warp[w].least;
        b.count_before += m->warp[w].most;
    }
    return b;
}

/* The bin in which the counts or the weights reach `threshold`, with the sums before it, in
 * m->bin and so on. `weight`, `count`: what has to be added to the bins' own sums. */
__device__ static void choose_bin(block_memory *m, const bins &b, u64 threshold, bool by_count,
                                  u64 weight, u64 count)
{
    weight += b.weight_before;
    count += b.count_before;
    __syncthreads(); /* the last choice was read by all */
    for (int i = 0; i < 2; i++) {
        const u64 before = by_count ? count : weight, own = by_count ? b.count[i] : b.weight[i];

        if (before < threshold && threshold <= before + own) {
            m->bin = 2 * threadIdx.x + i;
            m->weight_before = weight;
            m->count_before = count;
        }
        weight += b.weight[i];
        count += b.count[i];
    }
    __syncthreads();
}

/* --- finding a token ------------------------------------------------------------------------ */

/* Tokens with keys least .. most; `bin` >= 0: those of them in this bin of the first histogram. */
struct subset {
    u64 least, most;
    int bin;
};

__device__ static bool contains(const row_state &r, const subset &s, float logit, u64 key)
{
    if (s.bin < 0)
        return key >= s.least && key <= s.most;
    const double d = distance(r, logit);

    return d < LIMIT && bin_of(d) == s.bin;
}

struct found {
    u64 sum; /* of the weights up to and with the token */
    u64 key;
};

/* The last step: the tokens of the subset, at most GATHER, side by side in block 0. */
__device__ static found find_among(row_state &r, const subset &s, u64 threshold, bool by_count,
                                   u64 weight, u64 count)
{
    block_memory *m = r.m, *zero = r.cluster.map_shared_rank(m, 0);
    found f;

    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        const float logit = r.l[i];
        const u64 key = key_of(logit, r.first + i);

        if (logit == logit && contains(r, s, logit, key)) {
            const uint32_t at = atomicAdd(&zero->n_gathered, 1u);

            zero->key[at] = key;
            zero->weight[at] = weight_of(distance(r, logit));
        }
    }
    r.cluster.sync();
    if (r.cluster.block_rank() == 0 && threadIdx.x < m->n_gathered) {
        const u64 key = m->key[threadIdx.x], own = m->weight[threadIdx.x];
        const int n = m->n_gathered;

        for (int i = 0; i < n; i++) {
            const bool before = m->key[i] < key;

            weight += before ? m->weight[i] : 0;
            count += before;
        }
        const u64 sum = by_count ? count : weight;
        if (sum < threshold && threshold <= sum + (by_count ? 1 : own)) {
            m->found_sum = weight + own;
            m->found_key = key;
        }
    }
    r.cluster.sync();
    f.sum = zero->found_sum;
    f.key = zero->found_key;
    return f;
}

/* The first token in order at which the count of tokens, or the sum of weights, is at least
 * `threshold`, which is between 1 and the total. */
__device__ static found find(row_state &r, const bins &first, u64 threshold, bool by_count)
{
    block_memory *m = r.m;
    subset s = {0, NO_KEY, 0};

    choose_bin(m, first, threshold, by_count, 0, 0);
    s.bin = m->bin;
    for (;;) {
        const u64 weight = m->weight_before, count = m->count_before;
        stats v = {NO_KEY, 0, 0};

        if (threadIdx.x == 0)
            m->n_gathered = 0; /* read last before a barrier of the cluster; the next one follows */
        for (int i = threadIdx.x; i < r.n; i += THREADS) {
            const float logit = r.l[i];
            const u64 key = key_of(logit, r.first + i);

            if (logit == logit && contains(r, s, logit, key))
                v = merge(v, {key, key, 1});
        }
        v = reduce(r, v);
        if (v.sum <= GATHER)
            return find_among(r, s, threshold, by_count, weight, count);
        s = {v.least, v.most, -1};
        /* Keys differ in at most 64 - clz bits; the first ten of those choose the bin. */
        const int shift = max(0, 64 - __clzll((long long)(s.least ^ s.most)) - 10);
        const u64 origin = s.least >> shift >> 10 << 10;

        clear_histogram(m);
        for (int i = threadIdx.x; i < r.n; i += THREADS) {
            const float logit = r.l[i];
            const u64 key = key_of(logit, r.first + i);

            if (logit == logit && contains(r, s, logit, key))
                put(m, (int)((key >> shift) - origin), weight_of(distance(r, logit)), by_count);
        }
        const bins b = sum_histogram(r, by_count);
        choose_bin(m, b, threshold, by_count, weight, count);
        const u64 least = (origin + m->bin) << shift, most = least + ((u64)1 << shift) - 1;
        s = {max(s.least, least), min(s.most, most), -1};
    }
}

/* --- log-probabilities ---------------------------------------------------------------------- */

/* Of the row as it came: the logarithm of the sum of exponentials, relative to the best; in block
 * 0, the keys of the largest in m->top. *n: how many there are. */
__device__ static double top_logits(row_state &r, float best, int want, int *n)
{
    block_memory *m = r.m;
    double sum = 0;
    u64 last = 0;
    int got = 0;

    for (int i = threadIdx.x; i < r.n; i += THREADS)
        if (r.l[i] == r.l[i])
            sum += r.l[i] == best ? 1.0 : exp((double)r.l[i] - (double)best);
    for (int o = 16; o > 0; o /= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        m->warp[threadIdx.x / 32].sum = (u64)__double_as_longlong(sum);
    for (; got < want; got++) { /* this block's largest, one by one */
        u64 least = NO_KEY;

        for (int i = threadIdx.x; i < r.n; i += THREADS) {
            const u64 key = key_of(r.l[i], r.first + i);

            if (r.l[i] == r.l[i] && (got == 0 || key > last))
                least = min(least, key);
        }
        for (int o = 16; o > 0; o /= 2)
            least = min(least, __shfl_xor_sync(~0u, least, o));
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            m->warp[threadIdx.x / 32].least = least;
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            least = min(least, m->warp[w].least);
        if (threadIdx.x == 0)
            m->top[got] = least;
        last = least;
        if (least == NO_KEY)
            break;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += __longlong_as_double((long long)m->warp[w].sum);
        m->exps = sum;
        if (got < want)
            m->top[got] = NO_KEY;
    }
    r.cluster.sync();
    sum = 0;
    for (int c = 0; c < CLUSTER; c++)
        sum += *r.cluster.map_shared_rank(&m->exps, c);
    /* Warp 0 of block 0 merges: lane c has block c's list, and holds back its own until the end. */
    got = 0;
    if (r.cluster.block_rank() == 0 && threadIdx.x < 32) {
        const int lane = threadIdx.x;
        const u64 *list = r.cluster.map_shared_rank(m->top, lane % CLUSTER);
        u64 mine = NO_KEY;
        int at = 0;

        for (; got < want; got++) {
            u64 least = lane < CLUSTER && at < want ? list[at] : NO_KEY;
            const u64 own = least;

            for (int o = 16; o > 0; o /= 2)
                least = min(least, __shfl_xor_sync(~0u, least, o));
            if (least == NO_KEY)
                break;
            at += own == least;
            mine = lane == got ? least : mine;
        }
        __syncwarp();
        if (lane < got)
            m->top[lane] = mine;
    }
    *n = got;
    r.cluster.sync();
    return log(sum);
}

/* --- a row ---------------------------------------------------------------------------------- */

__device__ static u64 mix(u64 z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* td_sampling_uniform() */
__device__ static double uniform(u64 seed, u64 index)
{
    const u64 golden = 0x9e3779b97f4a7c15u;

    return (double)(mix(mix(seed + golden) + (index + 1) * golden) >> 11) * 0x1p-53;
}

__device__ static void load(const float *logits, float *l, int n, bool aligned)
{
    if (aligned) /* parts begin at multiples of 4 */
        for (int i = threadIdx.x; i < n / 4; i += THREADS)
            __pipeline_memcpy_async((float4 *)l + i, (const float4 *)logits + i, 16);
    for (int i = (aligned ? n / 4 * 4 : 0) + threadIdx.x; i < n; i += THREADS)
        __pipeline_memcpy_async(l + i, logits + i, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
}

/* What the request changes; the order is td_sampling's. */
__device__ static void change(const row_state &r, float *l, const td_sample_row &p,
                              const int2 *lists, const uint32_t *mask)
{
    for (int i = threadIdx.x; i < p.n_counts; i += THREADS) {
        const int2 c = lists[p.counts + i];
        const int at = c.x - r.first;

        if (at >= 0 && at < r.n)
            l[at] = (float)__dsub_rn(__dsub_rn((double)l[at], (double)p.presence),
                                     __dmul_rn((double)p.frequency, (double)c.y));
    }
    if (p.n_counts > 0 && p.n_bias > 0)
        __syncthreads();
    for (int i = threadIdx.x; i < p.n_bias; i += THREADS) {
        const int2 b = lists[p.bias + i];
        const int at = b.x - r.first;

        if (at >= 0 && at < r.n)
            l[at] = __fadd_rn(l[at], __int_as_float(b.y));
    }
    __syncthreads();
    if (mask != NULL)
        for (int i = threadIdx.x; i < r.n; i += THREADS) {
            const int token = r.first + i;

            if ((mask[token / 32] >> token % 32 & 1) == 0)
                l[i] = __int_as_float(0x7fffffff);
        }
    for (int b = 0; b < p.n_banned; b++) {
        const int2 range = lists[p.banned + b];
        const int last = min(range.y - r.first, r.n - 1); /* range.y may be INT32_MAX */

        for (int i = max(range.x, r.first) - r.first + threadIdx.x; i <= last; i += THREADS)
            l[i] = __int_as_float(0x7fffffff);
    }
    __syncthreads();
}

/* Key of the largest; NO_KEY: there is none. */
__device__ static u64 largest(row_state &r)
{
    u64 least = NO_KEY;

    for (int i = threadIdx.x; i < r.n; i += THREADS)
        if (r.l[i] == r.l[i])
            least = min(least, key_of(r.l[i], r.first + i));
    return reduce(r, {least, 0, 0}).least;
}

__device__ static int draw(row_state &r, const td_sample_row &p)
{
    u64 n = 0, total;
    bins first;

    clear_histogram(r.m);
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        const float logit = r.l[i];

        if (logit == logit) {
            const double d = distance(r, logit);
            const u64 w = weight_of(d);

            if (w != 0)
                put(r.m, bin_of(d), w, p.top_k > 0);
        }
    }
    first = sum_histogram(r, p.top_k > 0);
    if (threadIdx.x == THREADS - 1) {
        r.m->found_sum = first.weight_before + first.weight[0] + first.weight[1];
        r.m->found_key = first.count_before + first.count[0] + first.count[1];
    }
    __syncthreads();
    total = r.m->found_sum;
    n = r.m->found_key;
    __syncthreads();
    if (p.top_k > 0 && (u64)p.top_k < n)
        total = find(r, first, (u64)p.top_k, true).sum;
    if (p.top_p < 1.0f) {
        const double least = ceil((double)p.top_p * (double)total);

        total = find(r, first, least >= 1.0 ? min(total, (u64)least) : 1, false).sum;
    }
    const u64 below = (u64)(uniform(p.seed, p.index) * (double)total);
    return (int)(uint32_t)find(r, first, min(below + 1, total), false).key;
}

static __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2)
    sample_kernel(const float *logits, int V, int part, bool aligned, const td_sample_row *rows,
                  const int2 *lists, const uint32_t *masks, int32_t *token, td_logprobs *logprobs)
{
    extern __shared__ __align__(16) float l[];
    __shared__ block_memory m;
    const int row = blockIdx.y;
    const td_sample_row &p = m.p;
    row_state r = {cg::this_cluster(), &m, l, 0, 0, 0, 0, 0};
    const bool first_block = r.cluster.block_rank() == 0;
    double log_sum = 0;
    int n_top = -1, chosen;
    float best = 0;
    u64 key;

    if (threadIdx.x < sizeof p / 4)
        ((uint32_t *)&m.p)[threadIdx.x] = ((const uint32_t *)&rows[row])[threadIdx.x];
    __syncthreads();
    logits += (int64_t)row * V;
    if (p.skip != 0) {
        if (first_block && threadIdx.x == 0) {
            token[row] = -1;
            logprobs[row].n = -1;
        }
        return;
    }
    r.first = min(V, (int)r.cluster.block_rank() * part);
    r.n = min(V - r.first, part);
    load(logits + r.first, l, r.n, aligned);
    if (p.top_logprobs >= 0) {
        best = logit_of(largest(r));
        log_sum = top_logits(r, best, min(p.top_logprobs, (int)TD_TOP_LOGPROBS), &n_top);
    }
    change(r, l, p, lists, p.mask >= 0 ? masks + (int64_t)p.mask * ((V + 31) / 32) : NULL);
    key = largest(r);
    chosen = key == NO_KEY ? -1 : (int)(uint32_t)key;
    if (chosen >= 0 && p.temperature > 1e-4f) {
        r.best = logit_of(key);
        r.inv = 1.0 / (double)p.temperature;
        chosen = draw(r, p);
    }
    if (first_block && threadIdx.x < 32) {
        td_logprobs *out = &logprobs[row];

        if (chosen < 0)
            n_top = -1;
        if (threadIdx.x < n_top) { /* top ones: only block 0 has them */
            const u64 k = m.top[threadIdx.x];

            out->id[threadIdx.x] = (int)(uint32_t)k;
            out->logprob[threadIdx.x] =
                (float)((logit_of(k) == best ? 0.0 : (double)logit_of(k) - (double)best) - log_sum);
        }
        if (threadIdx.x == 0) {
            token[row] = chosen;
            out->n = n_top;
            if (n_top >= 0)
                out->chosen =
                    (float)((logits[chosen] == best ? 0.0 : (double)logits[chosen] - (double)best) -
                            log_sum);
        }
    }
    r.cluster.sync(); /* no block ends while another reads its memory */
}

static __global__ void edit_kernel(int n, const int2 *edits, int32_t *table)
{
    const int i = blockIdx.x * 256 + threadIdx.x;

    if (i < n)
        table[edits[i].x] = edits[i].y;
}

extern "C" td_status td_cuda_sample(td_stream *s, const td_sample_args *a, td_error *err)
{
    /* Parts of whole float4, and of no more than the shared memory that is left. */
    const int part = ((a->V + CLUSTER - 1) / CLUSTER + 3) / 4 * 4;
    const size_t bytes = (size_t)part * sizeof(float);
    const size_t most = 227 * 1024 - sizeof(block_memory) - 256;
    td_status st;

    if (a->V < 1 || bytes > most)
        return td_fail(err, TD_INVALID, "sample: a vocabulary of %d; 1 to %zu are possible", a->V,
                       most / sizeof(float) * CLUSTER);
    if (a->n == 0)
        return TD_OK;
    if (a->n < 0 || a->n > 65535)
        return td_fail(err, TD_INVALID, "sample: %d rows; 0 to 65535 are possible", a->n);
    st = td_cuda_status(err,
                        cudaFuncSetAttribute((const void *)sample_kernel,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)bytes),
                        "sample's shared memory");
    if (st != TD_OK)
        return st;
    sample_kernel<<<dim3(CLUSTER, (unsigned)a->n), THREADS, bytes, s->handle>>>(
        a->logits, a->V, part, a->V % 4 == 0 && (uintptr_t)a->logits % 16 == 0, a->rows,
        (const int2 *)a->lists, a->masks, a->token, a->logprobs);
    return td_cuda_launched(err, "sample");
}

extern "C" td_status td_cuda_edit(td_stream *s, const td_edit_args *a, td_error *err)
{
    if (a->n > 0)
        edit_kernel<<<(unsigned)(a->n + 255) / 256, 256, 0, s->handle>>>(
            a->n, (const int2 *)a->edits, a->table);
    return td_cuda_launched(err, "edit");
}
