/* sampling: see sampling.h.
 *
 * Most draws fall on one of the few likeliest tokens, so nothing sorts the vocabulary: candidates
 * are selected and sorted in growing batches (64, then as many as there are already), only as far
 * as the draw goes. The order is total (falling logit, then rising id), so batches do not show. */
#include "common/sampling.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double td_sampling_uniform(uint64_t seed, uint64_t index)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;

    return (double)(mix(mix(seed + golden) + (index + 1) * golden) >> 11) * 0x1p-53;
}

typedef struct order {
    const float *logits;
    int32_t *id;
} order;

static bool before(const order *o, int32_t a, int32_t b)
{
    float x = o->logits[a], y = o->logits[b];

    return x > y || (x == y && a < b);
}

static void swap(int32_t *a, int32_t *b)
{
    int32_t t = *a;

    *a = *b;
    *b = t;
}

/* Heap sort of id[lo..hi): no recursion, no memory, no bad case. */
static void sift(const order *o, int32_t *id, int32_t i, int32_t n)
{
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(o, id[child], id[child + 1]))
            child++;
        if (!before(o, id[i], id[child]))
            return;
        swap(&id[i], &id[child]);
    }
}

static void sort(const order *o, int32_t lo, int32_t hi)
{
    int32_t *id = o->id + lo, n = hi - lo;

    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift(o, id, i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        swap(&id[0], &id[end]);
        sift(o, id, 0, end);
    }
}

/* Reorder id[lo..hi) so that its first k come before the rest. Quickselect; a run of bad pivots is
 * ended by sorting what is left. */
static void select_first(const order *o, int32_t lo, int32_t hi, int32_t k)
{
    int32_t want = lo + k;

    for (int round = 0; hi - lo > 16 && round < 64; round++) {
        int32_t *id = o->id, mid = lo + (hi - lo) / 2, i = lo, j = hi - 1, pivot;

        if (before(o, id[mid], id[lo]))
            swap(&id[mid], &id[lo]);
        if (before(o, id[hi - 1], id[lo]))
            swap(&id[hi - 1], &id[lo]);
        if (before(o, id[hi - 1], id[mid]))
            swap(&id[hi - 1], &id[mid]);
        pivot = id[mid];
        while (i <= j) {
            while (before(o, id[i], pivot))
                i++;
            while (before(o, pivot, id[j]))
                j--;
            if (i <= j)
                swap(&id[i++], &id[j--]);
        }
        /* [lo, j] <= pivot < ... < [i, hi); between them only the pivot itself. */
        if (want <= j)
            hi = j + 1;
        else if (want > i)
            lo = i;
        else
            return;
    }
    sort(o, lo, hi);
}

/* How far a logit is above the best one; never above 0. Equal infinities count as equal. */
static double above(float logit, float best)
{
    return logit == best ? 0.0 : (double)logit - (double)best;
}

/* A candidate's weight relative to the best one. */
static double weight(float logit, float best, double temperature)
{
    return exp(above(logit, best) / temperature);
}

static int32_t greedy(const float *logits, int32_t vocab)
{
    int32_t best = -1;

    for (int32_t i = 0; i < vocab; i++)
        if (logits[i] == logits[i] && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best;
}

/* The sorted prefix, grown on demand. */
static void grow(const order *o, int32_t *sorted, int32_t n)
{
    int32_t more = *sorted < 64 ? 64 : *sorted;

    if (more > n - *sorted)
        more = n - *sorted;
    if (more < n - *sorted)
        select_first(o, *sorted, n, more);
    sort(o, *sorted, *sorted + more);
    *sorted += more;
}

static bool has(int32_t vocab, int32_t token)
{
    return token >= 0 && token < vocab;
}

/* What the request changes about the logits. In double: frequency * count is exact there, so that
 * no compiler's contraction of it shows. */
static void edit(float *logits, int32_t vocab, const td_sampling *s)
{
    for (int32_t i = 0; i < s->n_counts; i++) {
        td_token_count c = s->counts[i];

        if (has(vocab, c.token))
            logits[c.token] =
                (float)((double)logits[c.token] - s->presence - (double)s->frequency * c.count);
    }
    for (int32_t i = 0; i < s->n_bias; i++)
        if (has(vocab, s->bias[i].token))
            logits[s->bias[i].token] += s->bias[i].bias;
    for (int32_t i = 0; s->mask != NULL && i < vocab; i++)
        if ((s->mask[i / 32] >> i % 32 & 1) == 0)
            logits[i] = NAN;
    for (int32_t b = 0; b < s->n_banned; b++) {
        int32_t first = s->banned[b].first > 0 ? s->banned[b].first : 0;

        for (int32_t i = first; i < vocab && i <= s->banned[b].last; i++)
            logits[i] = NAN;
    }
}

int32_t td_sample(float *logits, int32_t vocab, const td_sampling *s, int32_t *scratch)
{
    order o = {logits, scratch};
    int32_t n = 0, sorted = 0, kept = 0, last = -1;
    double total = 0, mass = 0, sum = 0, t = s->temperature, target;
    float best = -INFINITY;

    edit(logits, vocab, s);
    if (!(s->temperature > 1e-4f))
        return greedy(logits, vocab);
    for (int32_t i = 0; i < vocab; i++)
        if (logits[i] == logits[i]) {
            scratch[n++] = i;
            best = logits[i] > best ? logits[i] : best;
        }
    if (n == 0)
        return -1;
    if (s->top_k > 0 && s->top_k < n) {
        select_first(&o, 0, n, s->top_k);
        n = s->top_k;
    }
    for (int32_t i = 0; i < n; i++)
        total += weight(logits[scratch[i]], best, t);
    mass = total;
    kept = n;
    if (s->top_p < 1.0f) { /* the likeliest tokens with mass >= top_p, at least one */
        mass = 0;
        for (kept = 0; kept < n && (kept == 0 || mass < s->top_p * total); kept++) {
            if (kept == sorted)
                grow(&o, &sorted, n);
            mass += weight(logits[scratch[kept]], best, t);
        }
    }
    target = td_sampling_uniform(s->seed, s->index) * mass;
    for (int32_t i = 0; i < kept; i++) {
        double w;

        if (i == sorted)
            grow(&o, &sorted, n);
        w = weight(logits[scratch[i]], best, t);
        if (w <= 0)
            break; /* sorted: nothing after it has any weight */
        last = scratch[i];
        sum += w;
        if (sum > target)
            break;
    }
    return last; /* past the end only by the rounding of the sums: the last with any weight */
}

void td_logprobs_of(const float *logits, int32_t vocab, int32_t token, int32_t top,
                    td_logprobs *out)
{
    order o = {logits, out->id};
    int32_t best = greedy(logits, vocab), n = 0;
    double sum = 0, log_sum;

    *out = (td_logprobs){.n = -1};
    if (best < 0 || token < 0)
        return;
    top = top < TD_TOP_LOGPROBS ? top : TD_TOP_LOGPROBS;
    for (int32_t i = 0; i < vocab; i++) {
        int32_t at = n;

        if (logits[i] != logits[i])
            continue;
        sum += weight(logits[i], logits[best], 1);
        /* Insertion into the top ones; i is the highest id yet, so it goes behind its equals. */
        while (at > 0 && before(&o, i, out->id[at - 1]))
            at--;
        if (at >= top)
            continue;
        n += n < top;
        for (int32_t j = n - 1; j > at; j--)
            out->id[j] = out->id[j - 1];
        out->id[at] = i;
    }
    log_sum = log(sum);
    out->n = n;
    for (int32_t j = 0; j < n; j++)
        out->logprob[j] = (float)(above(logits[out->id[j]], logits[best]) - log_sum);
    out->chosen = (float)(above(logits[token], logits[best]) - log_sum);
}
