/* Results of the sample step against td_sample(); where they differ, against the exact
 * distribution. */
#include "tests/ops/sample_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

/* What a row's logits become, written anew here. */
static float changed(const batch *b, int32_t row, int32_t id)
{
    const td_sampling *s = &b->s[row];
    float l = b->logits[(size_t)row * (size_t)b->V + (size_t)id];

    for (int32_t j = 0; j < s->n_counts; j++)
        if (s->counts[j].token == id)
            l = (float)(l - (double)s->presence - (double)s->frequency * s->counts[j].count);
    for (int32_t j = 0; j < s->n_bias; j++)
        if (s->bias[j].token == id)
            l += s->bias[j].bias;
    for (int32_t j = 0; j < s->n_banned; j++)
        if (id >= s->banned[j].first && id <= s->banned[j].last)
            return NAN;
    return s->mask == NULL || (s->mask[id / 32] >> id % 32 & 1) ? l : NAN;
}

/* Is `token`, which td_sample() did not choose, as good within 1e-6 of the whole mass? */
static bool within_rounding(const batch *b, int32_t row, int32_t token)
{
    const td_sampling *s = &b->s[row];
    candidate *c = malloc((size_t)b->V * sizeof *c);
    double total = 0, mass = 0, sum = 0, u = td_sampling_uniform(s->seed, s->index);
    int32_t n = 0, kept = 0, at = 0;
    bool good = false;

    assert_non_null(c);
    for (int32_t i = 0; i < b->V; i++) {
        float l = changed(b, row, i);

        if (!isnan(l))
            c[n++] = (candidate){i, l, 0};
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (s->top_k > 0 && n > s->top_k)
        n = s->top_k;
    for (int32_t i = 0; i < n; i++) {
        double x = (double)c[i].logit - (double)c[0].logit;

        total += c[i].p = c[i].logit == c[0].logit ? 1 : exp(x / (double)s->temperature);
    }
    while (kept < n && (kept == 0 || s->top_p >= 1 || mass < (double)s->top_p * total))
        mass += c[kept++].p;
    while (at < n && c[at].id != token)
        sum += c[at++].p;
    if (at < n && s->temperature > 1e-4f)
        good = u * mass >= sum - 1e-6 * total && u * mass <= sum + c[at].p + 1e-6 * total &&
               (at < kept || (kept == at && fabs(mass - (double)s->top_p * total) < 1e-6 * total));
    free(c);
    return good;
}

int32_t check_rows(const batch *b, float *work, int32_t *scratch)
{
    int32_t differ = 0;

    for (int32_t i = 0; i < b->n; i++) {
        const float *l = b->logits + (size_t)i * (size_t)b->V;
        const td_logprobs *got = &b->logprobs[i];
        td_logprobs want;
        int32_t token;

        memcpy(work, l, (size_t)b->V * sizeof *work);
        token = td_sample(work, b->V, &b->s[i], scratch);
        if (token != b->token[i]) {
            if (token < 0 || b->token[i] < 0 || !within_rounding(b, i, b->token[i]))
                fail_msg(
                    "row %d of %d, vocabulary %d: token %d, wanted %d; temperature %g top_p %g "
                    "top_k %d",
                    i, b->n, b->V, b->token[i], token, (double)b->s[i].temperature,
                    (double)b->s[i].top_p, b->s[i].top_k);
            differ++;
        }
        td_logprobs_of(l, b->V, b->s[i].logprobs ? b->token[i] : -1, b->s[i].top_logprobs, &want);
        if (got->n != want.n)
            fail_msg("row %d, vocabulary %d: %d log-probabilities, wanted %d", i, b->V, got->n,
                     want.n);
        for (int32_t j = 0; j < want.n; j++) {
            if (got->id[j] != want.id[j])
                fail_msg("row %d, vocabulary %d: top token %d of %d is %d, wanted %d", i, b->V, j,
                         want.n, got->id[j], want.id[j]);
            assert_true(got->logprob[j] == want.logprob[j] ||
                        fabsf(got->logprob[j] - want.logprob[j]) <=
                            1e-6f * fmaxf(1, fabsf(want.logprob[j])));
        }
        if (want.n >= 0)
            assert_true(got->chosen == want.chosen ||
                        fabsf(got->chosen - want.chosen) <= 1e-6f * fmaxf(1, fabsf(want.chosen)));
    }
    return differ;
}
