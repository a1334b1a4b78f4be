/* sample: from logits to tokens, and the edits of tables.
 *
 * A cluster of CLUSTER blocks has a row: the row is cut into as many parts, each block keeps its
 * part in shared memory, and everything after the one read of device memory happens there. Where
 * blocks must agree (the largest logit, sums over bins) they read each other's shared memory.
 *
 * Nothing is sorted. A token's place in the order is its key: falling logit, then rising id, as one
 * 64-bit number. Its distance is how many powers of two its probability is below the best one's;
 * its weight, 2^-distance, is an integer in units of 2^-44, so that sums do not depend on who adds
 * when. 2^18 tokens of weight 1 still fit, and what rounds to nothing is a token that no draw of 53
 * bits would meet in years. top_k, top_p and the draw are then one question: at which token, in
 * order, does the count of tokens, or the sum of their weights, first reach a threshold? It is
 * answered by a histogram over distances, whose bins are in order, then within one bin by
 * histograms over keys, until at most GATHER tokens are left; each of those finds the sum before it
 * by itself. Equal logits in any number only take more rounds. Nearly always the answer is within
 * HEAD of the best, where few tokens are: the others are added up, and get a histogram only when
 * they are asked about.
 *
 * Greedy rows end after the largest logit. Bound: reading the logits, 4 V bytes a row, then the
 * double-precision arithmetic of the weights; with few rows, the latency of the barriers. On an
 * H200, vocabulary 201088 (bench/ops_cuda has these steps): greedy 7 us for 1 row and 29 us for 64,
 * 41% of what HBM could read; drawn with top_p from logits of which most are far below the best, as
 * a model's are, 29 us and 105 us; from normal ones of deviation 3, 45 us and 172 us; with 20 top
 * log-probabilities 30 us and 105 us more. Flatter distributions cost more: all is in the head. */
#include "kernels/cuda/sample_find.cuh"

#include <cuda_pipeline.h>

/* --- log-probabilities ---------------------------------------------------------------------- */

/* The smallest key of this thread's tokens above `after`; NO_KEY: none. */
__device__ static u64 next_key(const row_state &r, bool any, u64 after)
{
    u64 least = NO_KEY;

    for (int i = threadIdx.x; i < r.n; i += THREADS)
        if (r.l[i] == r.l[i]) {
            const u64 key = key_of(r.l[i], r.first + i);

            if (any || key > after)
                least = min(least, key);
        }
    return least;
}

/* The smallest of the block's. */
__device__ static u64 block_least(block_memory *m, u64 least)
{
    for (int o = 16; o > 0; o /= 2)
        least = min(least, __shfl_xor_sync(~0u, least, o));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        m->warp[threadIdx.x / 32].least = least;
    __syncthreads();
    least = m->warp[threadIdx.x % WARPS].least;
    for (int o = WARPS / 2; o > 0; o /= 2)
        least = min(least, __shfl_xor_sync(~0u, least, o));
    return least;
}

/* This block's `want` smallest keys, in order, then NO_KEY. They are among the tokens up to the
 * want-th smallest of the threads' smallest: hardly more than those in practice. */
__device__ static void block_top(row_state &r, int want)
{
    block_memory *m = r.m;
    const u64 smallest = next_key(r, true, 0);
    u64 mine = smallest, bound = 0;

    for (int i = 0; i < want; i++) {
        bound = block_least(m, mine);
        mine = mine == bound ? NO_KEY : mine;
    }
    if (threadIdx.x == 0)
        m->n_top_keys = 0;
    if (threadIdx.x < TD_TOP_LOGPROBS)
        m->top[threadIdx.x] = NO_KEY;
    __syncthreads();
    if (smallest <= bound)
        for (int i = threadIdx.x; i < r.n; i += THREADS) {
            const u64 key = key_of(r.l[i], r.first + i);

            if (r.l[i] == r.l[i] && key <= bound) {
                const uint32_t at = atomicAdd(&m->n_top_keys, 1u);

                if (at < TOP_KEYS)
                    m->top_keys[at] = key;
            }
        }
    __syncthreads();
    const int n = (int)m->n_top_keys;
    if (n <= TOP_KEYS) {
        for (int j = threadIdx.x; j < n; j += THREADS) {
            const u64 key = m->top_keys[j];
            int rank = 0;

            for (int i = 0; i < n; i++)
                rank += m->top_keys[i] < key;
            if (rank < want)
                m->top[rank] = key;
        }
        return;
    }
    /* Too many, in runs of rising logits: one by one, each thread's next when its own was taken. */
    mine = smallest;
    for (int i = 0; i < want; i++) {
        const u64 least = block_least(m, mine);

        if (threadIdx.x == 0)
            m->top[i] = least;
        if (mine == least && mine != NO_KEY)
            mine = next_key(r, false, mine);
    }
}

/* Of the row as it came, whose best logit is r.best: the logarithm of the sum of exponentials
 * relative to it; in block 0, the keys of the largest in m->top. *n: how many there are. */
__device__ static double top_logits(row_state &r, int want, int *n)
{
    block_memory *m = r.m;
    stats v = {NO_KEY, 0, 0, 0};
    int got = 0;

    r.bits = LOG2_E;
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        const double d = distance(r, r.l[i]);

        if (d < LIMIT)
            v.sum += weight_of(d);
    }
    block_top(r, want);
    v = reduce(r, v); /* and every block's list is there */
    /* Warp 0 of block 0 merges: lane c has block c's list, and keeps its own place of the result.
     */
    if (r.cluster.block_rank() == 0 && threadIdx.x < 32) {
        const int lane = threadIdx.x;
        const u64 *list = r.cluster.map_shared_rank(m->top, lane % CLUSTER);
        u64 mine = NO_KEY;
        int at = 0;

        for (; got < want; got++) {
            const u64 own = lane < CLUSTER && at < want ? list[at] : NO_KEY;
            u64 least = own;

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
    return log((double)v.sum * 0x1p-44);
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
    for (int b = threadIdx.x / 32; b < p.n_banned; b += WARPS) {
        const int2 range = lists[p.banned + b];
        const int last = min(range.y - r.first, r.n - 1); /* range.y may be INT32_MAX */

        for (int i = max(range.x - r.first, 0) + (int)threadIdx.x % 32; i <= last; i += 32)
            l[i] = __int_as_float(0x7fffffff);
    }
    __syncthreads();
}

/* Key of the largest; NO_KEY: there is none. */
__device__ static u64 largest(row_state &r)
{
    return reduce(r, {next_key(r, true, 0), 0, 0, 0}).least;
}

__device__ static int draw(row_state &r, const td_sample_row &p)
{
    const bool counts = p.top_k > 0;
    stats tail = {NO_KEY, 0, 0, 0};
    totals t;
    u64 mass;

    clear_histogram(r.m);
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        const double d = distance(r, r.l[i]);

        if (d < LIMIT) {
            const u64 w = weight_of(d);

            if (d < HEAD) {
                put(r.m, bin_of(d), w, counts);
            } else {
                tail.sum += w;
                tail.count++;
            }
        }
    }
    t.head = sum_histogram(r, counts);
    tail = reduce(r, tail);
    if (threadIdx.x == THREADS - 1) {
        r.m->weight_before = t.head.weight_before + t.head.weight;
        r.m->count_before = t.head.count_before + t.head.count;
    }
    __syncthreads();
    t.head_weight = r.m->weight_before;
    t.head_count = r.m->count_before;
    t.weight = mass = t.head_weight + tail.sum;
    t.count = t.head_count + tail.count;
    if (counts && (u64)p.top_k < t.count)
        mass = find(r, t, (u64)p.top_k, true).sum;
    if (p.top_p < 1.0f) {
        const double least = ceil((double)p.top_p * (double)mass);

        mass = find(r, t, least >= 1.0 ? min(mass, (u64)least) : 1, false).sum;
    }
    const u64 below = (u64)(uniform(p.seed, p.index) * (double)mass);
    return (int)(uint32_t)find(r, t, min(below + 1, mass), false).key;
}

/* Log-probability of a logit. */
__device__ static float logprob(float logit, float best, double log_sum)
{
    return (float)((logit == best ? 0.0 : (double)logit - (double)best) - log_sum);
}

static __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2)
    sample_kernel(const float *logits, int V, int part, bool aligned, const td_sample_row *rows,
                  const int2 *lists, const uint32_t *masks, int32_t *token, td_logprobs *logprobs)
{
    extern __shared__ __align__(16) float l[];
    __shared__ block_memory m;
    const int row = blockIdx.y;
    const td_sample_row &p = m.p;
    row_state r = {cg::this_cluster(), &m, l, 0, 0, 0, 0, 0, 0};
    const bool first_block = r.cluster.block_rank() == 0;
    double log_sum = 0;
    int n_top = -1, chosen;
    float best = 0;
    u64 key;

    if (threadIdx.x < 2)
        m.n_gathered[threadIdx.x] = 0; /* a reduction comes before they are used */
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
        best = r.best = logit_of(largest(r));
        log_sum = top_logits(r, min(p.top_logprobs, (int)TD_TOP_LOGPROBS), &n_top);
    }
    change(r, l, p, lists, p.mask >= 0 ? masks + (int64_t)p.mask * ((V + 31) / 32) : NULL);
    key = largest(r);
    chosen = key == NO_KEY ? -1 : (int)(uint32_t)key;
    if (chosen >= 0 && p.temperature > 1e-4f) {
        r.best = logit_of(key);
        r.bits = LOG2_E / (double)p.temperature;
        chosen = draw(r, p);
    }
    if (first_block) { /* only it has the top ones */
        td_logprobs *out = &logprobs[row];

        if (chosen < 0)
            n_top = -1;
        if ((int)threadIdx.x < n_top) {
            out->id[threadIdx.x] = (int)(uint32_t)m.top[threadIdx.x];
            out->logprob[threadIdx.x] = logprob(logit_of(m.top[threadIdx.x]), best, log_sum);
        }
        if (threadIdx.x == 0) {
            token[row] = chosen;
            out->n = n_top;
            if (n_top >= 0)
                out->chosen = logprob(logits[chosen], best, log_sum);
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
