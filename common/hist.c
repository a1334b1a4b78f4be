#include "common/hist.h"

#include <math.h>

/* Below 256 a value is its own bucket. From there each power of two has 128 buckets, so that the
 * top eight bits of a value choose its bucket. */
static size_t bucket_of(uint64_t v)
{
    unsigned shift;

    if (v < 256)
        return (size_t)v;
    shift = 56u - (unsigned)__builtin_clzll(v); /* leaves the top eight bits: 128..255 */
    return 256 + (size_t)(shift - 1) * 128 + (size_t)((v >> shift) - 128);
}

/* The middle of bucket i, where its values are off by 1/256 of themselves at most. */
static uint64_t bucket_middle(size_t i)
{
    unsigned shift;

    if (i < 256)
        return i;
    shift = (unsigned)((i - 256) / 128) + 1;
    return ((uint64_t)(i - 256) % 128 + 128) << shift | 1ull << (shift - 1);
}

void td_hist_add(td_hist *h, uint64_t us)
{
    h->min = h->count == 0 || us < h->min ? us : h->min;
    h->max = us > h->max ? us : h->max;
    h->count++;
    h->sum += (double)us;
    h->sum_sq += (double)us * (double)us;
    h->bucket[bucket_of(us)]++;
}

void td_hist_merge(td_hist *into, const td_hist *from)
{
    if (from->count == 0)
        return;
    into->min = into->count == 0 || from->min < into->min ? from->min : into->min;
    into->max = from->max > into->max ? from->max : into->max;
    into->count += from->count;
    into->sum += from->sum;
    into->sum_sq += from->sum_sq;
    for (size_t i = 0; i < TD_HIST_BUCKETS; i++)
        into->bucket[i] += from->bucket[i];
}

uint64_t td_hist_quantile(const td_hist *h, double q)
{
    uint64_t need, seen = 0, v;
    double rank;

    if (h->count == 0)
        return 0;
    rank = ceil(q * (double)h->count);
    need = rank < 1 ? 1 : rank >= (double)h->count ? h->count : (uint64_t)rank;
    if (need == h->count)
        return h->max; /* exact, and what a worst case is quoted from */
    for (size_t i = 0; i < TD_HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen >= need) {
            v = bucket_middle(i);
            return v < h->min ? h->min : v > h->max ? h->max : v;
        }
    }
    return h->max;
}

double td_hist_mean(const td_hist *h)
{
    return h->count ? h->sum / (double)h->count : 0;
}

double td_hist_stddev(const td_hist *h)
{
    double mean = td_hist_mean(h), var;

    if (h->count == 0)
        return 0;
    var = h->sum_sq / (double)h->count - mean * mean;
    return var > 0 ? sqrt(var) : 0;
}
