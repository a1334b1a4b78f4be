/* sampling: exact support sets, distributions against exact probabilities, and odd inputs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/sampling.h"

enum { MOST = 5000 };

static int32_t sample(const float *logits, int32_t vocab, const td_sampling *s)
{
    float work[MOST];
    int32_t scratch[MOST];

    memcpy(work, logits, (size_t)vocab * sizeof *work);
    return td_sample(work, vocab, s, scratch);
}

static float noise(uint64_t i)
{
    return (float)(4 * (td_sampling_uniform(99, i) + td_sampling_uniform(98, i) - 1));
}

/* The same by sorting everything: probabilities of the candidates, slow and plain. */
typedef struct candidate {
    int32_t id;
    float logit;
    double p;
} candidate;

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

static int32_t model(const float *logits, int32_t vocab, const td_sampling *s, candidate *c)
{
    double total = 0, mass = 0;
    int32_t n = 0, kept = 0;

    for (int32_t i = 0; i < vocab; i++) {
        bool banned = isnan(logits[i]);

        for (int32_t b = 0; b < s->n_banned; b++)
            banned |= i >= s->banned[b].first && i <= s->banned[b].last;
        if (!banned)
            c[n++] = (candidate){i, logits[i], 0};
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (s->top_k > 0 && n > s->top_k)
        n = s->top_k;
    for (int32_t i = 0; i < n; i++)
        total += c[i].p = exp(((double)c[i].logit - (double)c[0].logit) / (double)s->temperature);
    while (kept < n && (kept == 0 || s->top_p >= 1 || mass < (double)s->top_p * total))
        mass += c[kept++].p;
    for (int32_t i = 0; i < kept; i++)
        c[i].p /= mass;
    return kept;
}

/* Many draws against the exact probabilities: the chi-square statistic over cells of at least 5
 * expected draws is within 5 standard deviations of its mean. Seeds are fixed, so this either
 * always passes or always fails. */
static void check_distribution(const float *logits, int32_t vocab, td_sampling s, int draws)
{
    static candidate c[MOST];
    static int32_t seen[MOST];
    double chi = 0, rest = 0, rest_seen = 0;
    int32_t n = model(logits, vocab, &s, c), cells = 0, total = 0;

    memset(seen, 0, sizeof seen);
    for (int i = 0; i < draws; i++) {
        s.index = (uint64_t)i;
        int32_t id = sample(logits, vocab, &s);
        assert_in_range(id, 0, vocab - 1);
        seen[id]++;
    }
    for (int32_t i = 0; i < n; i++) {
        double expected = c[i].p * draws;

        total += seen[c[i].id];
        if (expected < 5) {
            rest += expected;
            rest_seen += seen[c[i].id];
            continue;
        }
        chi += (seen[c[i].id] - expected) * (seen[c[i].id] - expected) / expected;
        cells++;
    }
    assert_int_equal(total, draws); /* nothing outside the support, ever */
    if (rest > 5) {
        chi += (rest_seen - rest) * (rest_seen - rest) / rest;
        cells++;
    }
    if (cells > 1 && !(chi <= cells - 1 + 5 * sqrt(2.0 * (cells - 1)) + 5))
        fail_msg("chi-square %.1f over %d cells", chi, cells);
}

static void test_sampling_follows_the_exact_probabilities(void **state)
{
    static const int32_t vocabs[] = {1, 2, 7, 64, 65, 130, 300};
    static const float temperatures[] = {0.2f, 0.7f, 1.0f, 2.0f};
    static const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.01f};
    static const int32_t top_ks[] = {0, 1, 3, 100};
    float logits[MOST];
    int n = 0;

    (void)state;
    for (int i = 0; i < MOST; i++)
        logits[i] = noise((uint64_t)i);
    for (size_t v = 0; v < 7; v++)
        for (size_t t = 0; t < 4; t++)
            for (size_t p = 0; p < 4; p++)
                for (size_t k = 0; k < 4; k++)
                    check_distribution(logits, vocabs[v],
                                       (td_sampling){.temperature = temperatures[t],
                                                     .top_p = top_ps[p],
                                                     .top_k = top_ks[k],
                                                     .seed = (uint64_t)n++},
                                       600);
    check_distribution(logits, 100, (td_sampling){.temperature = 1, .top_p = 1, .seed = 7}, 50000);
    check_distribution(logits, 5000, (td_sampling){.temperature = 2, .top_p = 1, .seed = 8}, 3000);
}

/* Draw by draw: what td_sample() returns is what walking the fully sorted list returns. */
static void test_sampling_equals_a_full_sort(void **state)
{
    static candidate c[MOST];
    float logits[MOST];

    (void)state;
    for (uint64_t round = 0; round < 150; round++) {
        int32_t vocab = (int32_t)(1 + round * 33);
        td_sampling s = {.temperature = 1.5f,
                         .top_p = round % 3 ? 1.0f : 0.9f,
                         .seed = round,
                         .top_k = round % 2 ? 0 : (int32_t)round,
                         .index = round};
        double sum = 0, u = td_sampling_uniform(s.seed, s.index);
        int32_t n, want = -1;

        for (int32_t i = 0; i < vocab; i++) /* few values: ties everywhere in half of the rounds */
            logits[i] = round % 4 < 2 ? noise(round * MOST + (uint64_t)i)
                                      : (float)(int)noise(round * MOST + (uint64_t)i);
        n = model(logits, vocab, &s, c);
        for (int32_t i = 0; i < n && want < 0; i++)
            if ((sum += c[i].p) > u)
                want = c[i].id;
        assert_int_equal(sample(logits, vocab, &s), want);
    }
}

static void test_sampling_greedy_takes_the_largest_and_the_lowest_of_equals(void **state)
{
    const float logits[6] = {1, 5, NAN, 5, -INFINITY, 4};
    const td_id_range ban[2] = {{-10, 1}, {5, 100}};
    td_sampling s = {0};

    (void)state;
    assert_int_equal(sample(logits, 6, &s), 1);
    s.temperature = 1e-4f;
    assert_int_equal(sample(logits, 6, &s), 1);
    s.temperature = 1e-5f;
    assert_int_equal(sample(logits, 6, &s), 1);
    s.temperature = NAN;
    assert_int_equal(sample(logits, 6, &s), 1);
    s.banned = ban;
    s.n_banned = 2;
    assert_int_equal(sample(logits, 6, &s), 3);
}

static void test_sampling_never_takes_nan_or_banned(void **state)
{
    const float logits[5] = {NAN, 1, 2, NAN, 3};
    const td_id_range ban[1] = {{4, 4}}, all[1] = {{0, 4}};
    td_sampling s = {.temperature = 2, .top_p = 1, .banned = ban, .n_banned = 1};

    (void)state;
    for (s.index = 0; s.index < 500; s.index++)
        assert_in_range(sample(logits, 5, &s), 1, 2);
    s.banned = all;
    assert_int_equal(sample(logits, 5, &s), -1);
    s.temperature = 0;
    assert_int_equal(sample(logits, 5, &s), -1);
    s.n_banned = 0;
    const float nans[2] = {NAN, NAN};
    assert_int_equal(sample(nans, 2, &s), -1);
    s.temperature = 1;
    assert_int_equal(sample(nans, 2, &s), -1);
}

static void test_sampling_extremes(void **state)
{
    const float huge[4] = {1e30f, -1e30f, 1e30f, 9e29f}, inf[4] = {1, INFINITY, 2, INFINITY};
    const float none[3] = {-INFINITY, -INFINITY, -INFINITY}, equal[3] = {2, 2, 2};
    td_sampling s = {.temperature = 1.0f, .top_p = 1};
    int seen[4] = {0};

    (void)state;
    for (s.index = 0; s.index < 200; s.index++)
        seen[sample(huge, 4, &s)]++;
    assert_true(seen[0] > 50 && seen[2] > 50 && seen[1] + seen[3] == 0);
    memset(seen, 0, sizeof seen);
    for (s.index = 0; s.index < 200; s.index++)
        seen[sample(inf, 4, &s)]++;
    assert_true(seen[1] > 50 && seen[3] > 50 && seen[0] + seen[2] == 0);
    for (s.index = 0; s.index < 20; s.index++)
        assert_in_range(sample(none, 3, &s), 0, 2);
    s.temperature = 1.0001e-4f; /* the least that is not greedy */
    assert_int_equal(sample(huge, 4, &s) % 2, 0);
    s.temperature = 1;
    s.top_p = 1e-30f; /* the likeliest alone, ties to the lowest */
    for (s.index = 0; s.index < 20; s.index++)
        assert_int_equal(sample(equal, 3, &s), 0);
    s.top_p = 0; /* out of its range, but never an empty set */
    assert_int_equal(sample(equal, 3, &s), 0);
    s.top_p = 0.34f;
    for (s.index = 0; s.index < 50; s.index++)
        assert_in_range(sample(equal, 3, &s), 0, 1);
}

static void test_sampling_is_a_function_of_seed_and_index(void **state)
{
    float logits[1000];
    td_sampling a = {.temperature = 1, .top_p = 0.9f, .seed = 5, .index = 17}, b = a;
    int differ = 0;

    (void)state;
    for (int i = 0; i < 1000; i++)
        logits[i] = noise((uint64_t)i) / 4;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(sample(logits, 1000, &a), sample(logits, 1000, &a));
        b.index = a.index + 1;
        differ += sample(logits, 1000, &a) != sample(logits, 1000, &b);
        a.index++;
    }
    assert_true(differ > 40);
    assert_true(td_sampling_uniform(0, 0) != td_sampling_uniform(0, 1));
    assert_true(td_sampling_uniform(0, 1) != td_sampling_uniform(1, 0));
    for (uint64_t i = 0; i < 1000; i++) {
        double u = td_sampling_uniform(i, ~i);
        assert_true(u >= 0 && u < 1);
    }
}

/* Each change by itself, and their order: penalties, bias, mask, bans. */
static void test_sampling_changes_logits_as_asked(void **state)
{
    const float logits[5] = {1, 2, 3, 4, 5};
    const td_token_count counts[3] = {{4, 1}, {3, 3}, {99, 7}};
    const td_token_bias bias[3] = {{0, 4.5f}, {-1, 100}, {5, 100}};
    const td_id_range ban[1] = {{0, 0}};
    uint32_t mask[1] = {0xffffffe6}; /* not 0, 3, 4 */
    td_sampling s = {.counts = counts, .n_counts = 3};

    (void)state;
    assert_int_equal(sample(logits, 5, &s), 4); /* penalties of 0 */
    s.presence = 1.5f;                          /* 1 2 3 2.5 3.5 */
    assert_int_equal(sample(logits, 5, &s), 4);
    s.frequency = 0.75f; /* 1 2 3 0.25 2.75 */
    assert_int_equal(sample(logits, 5, &s), 2);
    s.presence = s.frequency = -10; /* the more often the likelier */
    assert_int_equal(sample(logits, 5, &s), 3);
    s.n_counts = 0;
    s.bias = bias;
    s.n_bias = 3; /* 5.5 2 3 4 5 */
    assert_int_equal(sample(logits, 5, &s), 0);
    s.banned = ban;
    s.n_banned = 1;
    assert_int_equal(sample(logits, 5, &s), 4);
    s.mask = mask;
    assert_int_equal(sample(logits, 5, &s), 2);
    mask[0] = 1; /* only what is banned */
    assert_int_equal(sample(logits, 5, &s), -1);
    s.temperature = 1;
    assert_int_equal(sample(logits, 5, &s), -1);
    mask[0] = 6; /* 1 and 2, 1 : e */
    s.top_p = 1;
    for (int n = 0; s.index < 1000; s.index++) {
        n += sample(logits, 5, &s) == 2;
        if (s.index == 999)
            assert_in_range(n, 700, 760);
    }
}

static void test_sampling_logprobs_are_of_the_raw_logits(void **state)
{
    const float logits[7] = {1, 3, NAN, 3, -INFINITY, 2, 3}, nans[2] = {NAN, NAN};
    const float inf[3] = {INFINITY, 1, INFINITY};
    double total = log(exp(1) + 3 * exp(3) + exp(2));
    float many[TD_TOP_LOGPROBS + 9];
    td_logprobs l;

    (void)state;
    td_logprobs_of(logits, 7, 5, 4, &l);
    assert_int_equal(l.n, 4);
    assert_int_equal(l.id[0], 1);
    assert_int_equal(l.id[1], 3);
    assert_int_equal(l.id[2], 6);
    assert_int_equal(l.id[3], 5);
    assert_true(fabs(l.logprob[0] - (3 - total)) < 1e-6);
    assert_true(l.logprob[1] == l.logprob[0] && l.logprob[2] == l.logprob[0]);
    assert_true(fabs(l.logprob[3] - (2 - total)) < 1e-6);
    assert_true(l.chosen == l.logprob[3]);
    td_logprobs_of(logits, 7, 0, 0, &l); /* the chosen one alone */
    assert_int_equal(l.n, 0);
    assert_true(fabs(l.chosen - (1 - total)) < 1e-6);
    td_logprobs_of(logits, 7, 4, 20, &l); /* fewer than were asked for */
    assert_int_equal(l.n, 6);
    assert_int_equal(l.id[5], 4);
    assert_true(isinf(l.logprob[5]) && isinf(l.chosen));
    td_logprobs_of(logits, 7, -1, 4, &l);
    assert_int_equal(l.n, -1);
    td_logprobs_of(nans, 2, 0, 2, &l);
    assert_int_equal(l.n, -1);
    td_logprobs_of(inf, 3, 1, 3, &l);
    assert_int_equal(l.n, 3);
    assert_true(fabs(l.logprob[1] + log(2)) < 1e-6 && l.id[1] == 2 && isinf(l.chosen));
    for (int i = 0; i < TD_TOP_LOGPROBS + 9; i++)
        many[i] = noise((uint64_t)i);
    td_logprobs_of(many, TD_TOP_LOGPROBS + 9, 0, TD_TOP_LOGPROBS, &l);
    assert_int_equal(l.n, TD_TOP_LOGPROBS);
    for (int j = 0; j < l.n; j++) {
        int above = 0;

        for (int i = 0; i < TD_TOP_LOGPROBS + 9; i++)
            above += many[i] > many[l.id[j]];
        assert_int_equal(above, j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampling_follows_the_exact_probabilities),
        cmocka_unit_test(test_sampling_equals_a_full_sort),
        cmocka_unit_test(test_sampling_greedy_takes_the_largest_and_the_lowest_of_equals),
        cmocka_unit_test(test_sampling_never_takes_nan_or_banned),
        cmocka_unit_test(test_sampling_extremes),
        cmocka_unit_test(test_sampling_is_a_function_of_seed_and_index),
        cmocka_unit_test(test_sampling_changes_logits_as_asked),
        cmocka_unit_test(test_sampling_logprobs_are_of_the_raw_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
