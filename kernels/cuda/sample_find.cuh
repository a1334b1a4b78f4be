/* sample_find: at which token, in order, do the counts or the weights reach a threshold? See
 * sample.cu for the idea. */
#ifndef TANDEM_KERNELS_CUDA_SAMPLE_FIND_CUH
#define TANDEM_KERNELS_CUDA_SAMPLE_FIND_CUH

#include "kernels/cuda/sample.cuh"

/* What a row's tokens are, all in all. */
struct totals {
    u64 weight, count, head_weight, head_count;
    bins head;
};

/* Tokens with keys least .. most; `bin` >= 0: those of them in this bin of a histogram over
 * distances. Either way they have logits low .. high, which is quicker to ask. */
struct subset {
    u64 least, most;
    int bin;
    bool tail;
    float low, high;
};

__device__ static bool contains(const row_state &r, const subset &s, int i)
{
    const float logit = r.l[i];

    if (!(logit >= s.low && logit <= s.high))
        return false;
    if (s.bin < 0) {
        const u64 key = key_of(logit, r.first + i);

        return key >= s.least && key <= s.most;
    }
    const double d = distance(r, logit);

    return d < LIMIT && (d >= HEAD) == s.tail && bin_of(d) == s.bin;
}

__device__ static subset subset_of_bin(const row_state &r, int bin, bool tail)
{
    const double from = tail ? HEAD + (bin - 1) / TAIL_SCALE : (bin - 1) / HEAD_SCALE;
    const double to = tail ? HEAD + (bin + 1) / TAIL_SCALE : (bin + 1) / HEAD_SCALE;
    subset s = {0, NO_KEY, bin, tail, -INFINITY, INFINITY};

    if (fabsf(r.best) < 1e30f) { /* a bin more on each side, so that rounding does not matter */
        s.low = (float)((double)r.best - to / r.bits) - 1e-5f * (1 + fabsf(r.best));
        s.high = (float)((double)r.best - from / r.bits) + 1e-5f * (1 + fabsf(r.best));
    }
    return s;
}

__device__ static subset subset_of_keys(u64 least, u64 most)
{
    return {least, most, -1, false, logit_of(most), logit_of(least)};
}

struct found {
    u64 sum; /* of the weights up to and with the token */
    u64 key;
};

/* The end of a search: the tokens of the subset side by side in block 0. False: there are more than
 * GATHER. */
__device__ static bool find_among(row_state &r, const subset &s, u64 threshold, bool by_count,
                                  u64 weight, u64 count, found *f)
{
    block_memory *m = r.m, *zero = r.cluster.map_shared_rank(m, 0);
    const unsigned turn = r.tries++ % 2;

    for (int i = threadIdx.x; i < r.n; i += THREADS)
        if (contains(r, s, i)) {
            const uint32_t at = atomicAdd(&zero->n_gathered[turn], 1u);

            if (at < GATHER) {
                zero->key[at] = key_of(r.l[i], r.first + i);
                zero->key_weight[at] = weight_of(distance(r, r.l[i]));
            }
        }
    r.cluster.sync();
    const int n = (int)zero->n_gathered[turn];
    if (r.cluster.block_rank() == 0 && threadIdx.x == 0)
        m->n_gathered[turn ^ 1] = 0; /* last read before this barrier, next used after another */
    if (n <= GATHER && r.cluster.block_rank() == 0 && (int)threadIdx.x < n) {
        const u64 key = m->key[threadIdx.x], own = m->key_weight[threadIdx.x];

        for (int i = 0; i < n; i++) {
            const bool before = m->key[i] < key;

            weight += before ? m->key_weight[i] : 0;
            count += before;
        }
        const u64 sum = by_count ? count : weight;
        if (sum < threshold && threshold <= sum + (by_count ? 1 : own)) {
            m->found_sum = weight + own;
            m->found_key = key;
        }
    }
    r.cluster.sync();
    f->sum = zero->found_sum;
    f->key = zero->found_key;
    return n <= GATHER;
}

/* The first token in order at which the count of tokens, or the sum of weights, is at least
 * `threshold`, which is between 1 and the total. */
__device__ static found find(row_state &r, const totals &t, u64 threshold, bool by_count)
{
    block_memory *m = r.m;
    const bool tail = threshold > (by_count ? t.head_count : t.head_weight);
    bins b = t.head;
    subset s;

    if (tail) {
        clear_histogram(m);
        for (int i = threadIdx.x; i < r.n; i += THREADS) {
            const double d = distance(r, r.l[i]);

            if (d >= HEAD && d < LIMIT)
                put(m, bin_of(d), weight_of(d), by_count);
        }
        b = sum_histogram(r, by_count);
        b.weight_before += t.head_weight;
        b.count_before += t.head_count;
    }
    choose_bin(m, b, threshold, by_count);
    s = subset_of_bin(r, m->bin, tail);
    for (;;) {
        const u64 weight = m->weight_before, count = m->count_before;
        stats v = {NO_KEY, 0, 0, 0};
        found f;

        if (find_among(r, s, threshold, by_count, weight, count, &f))
            return f;
        for (int i = threadIdx.x; i < r.n; i += THREADS)
            if (contains(r, s, i)) {
                const u64 key = key_of(r.l[i], r.first + i);

                v = merge(v, {key, key, 0, 0});
            }
        v = reduce(r, v);
        s = subset_of_keys(v.least, v.most);
        /* Keys differ in at most 64 - clz bits; the first nine of those choose the bin. */
        const int shift = max(0, 64 - __clzll((long long)(s.least ^ s.most)) - 9);
        const u64 origin = s.least >> shift >> 9 << 9;

        clear_histogram(m);
        for (int i = threadIdx.x; i < r.n; i += THREADS)
            if (contains(r, s, i))
                put(m, (int)((key_of(r.l[i], r.first + i) >> shift) - origin),
                    weight_of(distance(r, r.l[i])), by_count);
        b = sum_histogram(r, by_count);
        b.weight_before += weight;
        b.count_before += count;
        choose_bin(m, b, threshold, by_count);
        const u64 least = (origin + m->bin) << shift, most = least + ((u64)1 << shift) - 1;
        s = subset_of_keys(max(s.least, least), min(s.most, most));
    }
}

#endif
