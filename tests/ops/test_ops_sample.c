/* The sample step against td_sample() and, where they differ, against the exact distribution; its
 * log-probabilities against float64; edits of tables; graphs, where the backend has them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/sampling.h"
#include "tests/ops/harness.h"

#define N_OF(x) (sizeof(x) / sizeof(x)[0])

enum { ROWS = 64, LIST = 24, LARGE = 201088 };

typedef enum kind { /* of logits */
                    NORMAL,
                    TIES,   /* few values */
                    EQUAL,  /* one value, and nothing else to go by than ids */
                    PEAKED, /* one token has nearly all of the mass */
                    BAND,   /* neighbours in float */
                    ODD,    /* infinities, NaN, zeros of both signs */
                    KINDS
} kind;

/* A batch: logits, how each row is sampled, and the memory of its lists. */
typedef struct batch {
    int32_t n, V;
    float *logits;
    td_sampling s[ROWS];
    td_id_range banned[ROWS][LIST];
    td_token_count counts[ROWS][LIST];
    td_token_bias bias[ROWS][LIST];
    uint32_t *masks; /* [ROWS, words] */
    int32_t token[ROWS];
    td_logprobs logprobs[ROWS];
} batch;

static double uniform(harness *h)
{
    return random_bits(h) / 4294967296.0;
}

static int32_t below(harness *h, int32_t n)
{
    return (int32_t)(uniform(h) * n);
}

static void fill_logits(harness *h, float *l, int32_t V, kind k)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1.0f, -1e30f, 3.0f};
    int32_t few = 1 + below(h, 7);

    for (int32_t i = 0; i < V; i++) {
        double x = 4 * (uniform(h) + uniform(h) + uniform(h) - 1.5);

        switch (k) {
        case TIES: x = floor(x); break;
        case EQUAL: x = 2.5; break;
        case PEAKED: x = i == V / 3 ? 25 : x - 5; break;
        case BAND: x = 1 + (double)(random_bits(h) % 4096) * 0x1p-23; break;
        case ODD: x = (double)odd[1 + (uint32_t)below(h, few)]; break;
        case NORMAL:
        case KINDS: break;
        }
        l[i] = (float)x;
    }
    if (k == ODD && few == 7) /* the rarer one */
        l[below(h, V)] = l[below(h, V)] = INFINITY;
}

/* `n` distinct ids, some of them not in the vocabulary. */
static void distinct(harness *h, int32_t V, int32_t n, int32_t *id)
{
    int32_t step = 1 + below(h, V / LIST + 1), at = below(h, V + 2) - 1;

    for (int32_t i = 0; i < n; i++, at += step)
        id[i] = at;
}

static td_sampling random_sampling(harness *h, batch *b, int32_t i)
{
    static const float temperatures[] = {0, 1e-5f, 0.01f, 0.3f, 0.7f, 1, 1.5f, 2};
    static const float top_ps[] = {1, 1, 0.99f, 0.9f, 0.5f, 0.05f, 1e-9f};
    const int32_t top_ks[] = {0, 0, 1, 2, 40, 300, 1000, b->V};
    size_t words = ((size_t)b->V + 31) / 32;
    int32_t id[LIST], n;
    td_sampling s = {.temperature = temperatures[below(h, N_OF(temperatures))],
                     .top_p = top_ps[below(h, N_OF(top_ps))],
                     .top_k = top_ks[below(h, N_OF(top_ks))],
                     .seed = (uint64_t)random_bits(h) << 32 | random_bits(h),
                     .index = random_bits(h) % 100000};

    if (below(h, 4) == 0) {
        n = s.n_counts = 1 + below(h, LIST);
        distinct(h, b->V, n, id);
        for (int32_t j = 0; j < n; j++)
            b->counts[i][j] = (td_token_count){id[j], 1 + below(h, 5)};
        s.presence = (float)(4 * uniform(h) - 2);
        s.frequency = (float)(4 * uniform(h) - 2);
    }
    if (below(h, 4) == 0) {
        n = s.n_bias = 1 + below(h, LIST);
        distinct(h, b->V, n, id);
        for (int32_t j = 0; j < n; j++)
            b->bias[i][j] = (td_token_bias){id[j], (float)(40 * uniform(h) - 20)};
    }
    if (below(h, 2) == 0) {
        n = s.n_banned = 1 + below(h, 4);
        for (int32_t j = 0; j < n; j++) {
            int32_t first = below(h, b->V + 5) - 2;

            b->banned[i][j] = (td_id_range){first, j == 3 ? INT32_MAX : first + below(h, 4)};
        }
    }
    if (below(h, 4) == 0) {
        uint32_t *mask = b->masks + (size_t)i * words;
        uint32_t keep = below(h, 8) == 0 ? 0 : ~0u; /* now and then nothing is allowed */

        for (size_t w = 0; w < words; w++)
            mask[w] = random_bits(h) & random_bits(h) & keep;
        s.mask = mask;
    }
    s.banned = b->banned[i];
    s.counts = b->counts[i];
    s.bias = b->bias[i];
    if (below(h, 3) == 0) {
        s.logprobs = true;
        s.top_logprobs = below(h, TD_TOP_LOGPROBS + 1);
    }
    return s;
}

static int32_t put_list(int32_t *lists, int32_t *used, const void *pairs, int32_t n)
{
    int32_t at = *used;

    if (n > 0)
        memcpy(lists + 2 * at, pairs, (size_t)n * 8);
    *used += n;
    return at;
}

/* Run rows first .. first + n of the batch as one step. */
static void run(harness *h, batch *b, int32_t first, int32_t n)
{
    static int32_t lists[2 * 3 * ROWS * LIST];
    td_sample_row rows[ROWS];
    int32_t used = 0;
    size_t words = ((size_t)b->V + 31) / 32;
    td_dims dims = {.T = 1, .D = 1, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .sample_V = b->V};
    td_error err = {0};

    for (int32_t i = 0; i < n; i++) {
        const td_sampling *s = &b->s[first + i];

        rows[i] = (td_sample_row){.seed = s->seed,
                                  .index = s->index,
                                  .temperature = s->temperature,
                                  .top_p = s->top_p,
                                  .top_k = s->top_k,
                                  .presence = s->presence,
                                  .frequency = s->frequency,
                                  .n_counts = s->n_counts,
                                  .n_bias = s->n_bias,
                                  .n_banned = s->n_banned,
                                  .mask = s->mask != NULL ? first + i : -1,
                                  .top_logprobs = s->logprobs ? s->top_logprobs : -1};
        rows[i].bias = put_list(lists, &used, s->bias, s->n_bias);
        rows[i].counts = put_list(lists, &used, s->counts, s->n_counts);
        rows[i].banned = put_list(lists, &used, s->banned, s->n_banned);
    }
    td_sample_args a = {
        .n = n,
        .V = b->V,
        .logits = dev_f32(h, b->logits + (size_t)first * (size_t)b->V, (size_t)n * (size_t)b->V),
        .rows = dev_bytes(h, rows, (size_t)n * sizeof *rows),
        .lists = dev_bytes(h, lists, sizeof lists),
        .masks = dev_bytes(h, b->masks, ROWS * words * 4),
        .token = dev_poison(h, (size_t)n * 4),
        .logprobs = dev_poison(h, (size_t)n * sizeof(td_logprobs)),
        .ws = dev_ws(h, &dims)};
    check_ok(h->ops->sample(h->s, &a, &err), &err);
    read_i32(h, a.token, (size_t)n, b->token + first);
    read_i32(h, a.logprobs, (size_t)n * sizeof(td_logprobs) / 4,
             (int32_t *)(void *)(b->logprobs + first));
}

static batch *make_batch(harness *h, int32_t n, int32_t V)
{
    batch *b = (batch *)(void *)host_floats(h, sizeof *b / 4 + 1);

    b->n = n;
    b->V = V;
    b->logits = host_floats(h, (size_t)n * (size_t)V);
    b->masks = (uint32_t *)(void *)host_floats(h, ROWS * (((size_t)V + 31) / 32));
    for (int32_t i = 0; i < n; i++) {
        fill_logits(h, b->logits + (size_t)i * (size_t)V, V, (kind)((uint32_t)below(h, KINDS)));
        b->s[i] = random_sampling(h, b, i);
    }
    return b;
}

/* --- the exact distribution ----------------------------------------------------------------- */

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

/* Tokens and log-probabilities of all rows; how many tokens td_sample() would have chosen
 * otherwise, all of them by rounding. */
static int32_t check_rows(const batch *b, float *work, int32_t *scratch)
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

/* --- tests ---------------------------------------------------------------------------------- */

static void test_sample_chooses_what_td_sample_chooses(void **state)
{
    static const int32_t vocabs[] = {1, 2, 3, 7, 33, 100, 515, 1000, 2048, 4099, 5000};
    harness *h = *state;
    int32_t cases = 0, differ = 0;
    float *work = malloc(LARGE * sizeof *work);
    int32_t *scratch = malloc(LARGE * sizeof *scratch);

    assert_non_null(work);
    assert_non_null(scratch);
    for (int round = 0; round < 200; round += harness_smallest() ? 49 : harness_small() ? 33 : 1) {
        /* Every size of batch too; the last rounds with gpt-oss' vocabulary. */
        int32_t n = 1 + (round * 7 + 63) % ROWS, V = vocabs[(uint32_t)round % N_OF(vocabs)];
        batch *b;

        if (round >= 195)
            V = LARGE - round % 4;
        else if (round % 3)
            n = ROWS;
        if (harness_small() && n > 8)
            n = harness_smallest() ? 3 : 8;
        b = make_batch(h, n, V);
        run(h, b, 0, n);
        differ += check_rows(b, work, scratch);
        cases += n;
        harness_clear(h);
    }
    print_message("report: %s sample: %d of %d draws differ, by rounding\n", h->ops->name, differ,
                  cases);
    assert_true(differ * 1000 <= cases);
    free(work);
    free(scratch);
}

static void test_sample_does_not_depend_on_the_batch(void **state)
{
    harness *h = *state;

    for (int round = 0; round < (harness_smallest() ? 1 : harness_small() ? 2 : 3); round++) {
        batch *b = make_batch(h, ROWS, round == 2 ? 50001 : 700 + 1001 * round), *alone;

        alone = (batch *)(void *)host_floats(h, sizeof *b / 4 + 1);
        memcpy(alone, b, sizeof *b);
        run(h, b, 0, ROWS);
        for (int32_t i = 0; i < ROWS; i += harness_smallest() ? 9 : 1 + i % 5) {
            run(h, alone, i, 1);
            assert_int_equal(alone->token[i], b->token[i]);
            assert_int_equal(alone->logprobs[i].n, b->logprobs[i].n);
            if (b->logprobs[i].n >= 0) {
                size_t top = (size_t)b->logprobs[i].n;

                assert_memory_equal(&alone->logprobs[i].chosen, &b->logprobs[i].chosen, 4);
                assert_memory_equal(alone->logprobs[i].id, b->logprobs[i].id, 4 * top);
                assert_memory_equal(alone->logprobs[i].logprob, b->logprobs[i].logprob, 4 * top);
            }
            while (h->n_held > 7) /* what the run took */
                h->ops->release(&h->held[--h->n_held]);
        }
        harness_clear(h);
    }
}

/* 1e5 draws of one row against the exact probabilities: nothing outside the support, and the
 * chi-square statistic within 5 standard deviations. Seeds are fixed. */
static void draws_follow(harness *h, int32_t V, td_sampling s)
{
    enum { DRAWS = 100000, TOGETHER = 2000 };
    float *l = host_floats(h, TOGETHER * (size_t)V);
    int32_t *seen = (int32_t *)(void *)host_floats(h, (size_t)V);
    candidate *c = (candidate *)(void *)host_floats(h, (size_t)V * sizeof *c / 4);
    int32_t *token = (int32_t *)(void *)host_floats(h, TOGETHER), n = V, kept = 0, cells = 0;
    td_sample_row *rows = (td_sample_row *)(void *)host_floats(h, TOGETHER * sizeof *rows / 4);
    double total = 0, mass = 0, chi = 0, rest = 0, rest_seen = 0;
    td_dims dims = {.T = 1, .D = 1, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .sample_V = V};
    td_error err = {0};

    fill_logits(h, l, V, NORMAL);
    for (int32_t i = 1; i < TOGETHER; i++)
        memcpy(l + (size_t)i * (size_t)V, l, (size_t)V * sizeof *l);
    for (int32_t i = 0; i < V; i++)
        c[i] = (candidate){i, l[i], 0};
    qsort(c, (size_t)V, sizeof *c, by_logit);
    if (s.top_k > 0 && s.top_k < n)
        n = s.top_k;
    for (int32_t i = 0; i < n; i++)
        total += c[i].p = exp(((double)c[i].logit - (double)c[0].logit) / (double)s.temperature);
    while (kept < n && (kept == 0 || s.top_p >= 1 || mass < (double)s.top_p * total))
        mass += c[kept++].p;
    td_sample_args a = {.n = TOGETHER,
                        .V = V,
                        .logits = dev_f32(h, l, TOGETHER * (size_t)V),
                        .rows = dev_poison(h, TOGETHER * sizeof *rows),
                        .token = dev_poison(h, TOGETHER * 4),
                        .logprobs = dev_poison(h, TOGETHER * sizeof(td_logprobs)),
                        .ws = dev_ws(h, &dims)};
    for (int32_t at = 0; at < DRAWS; at += TOGETHER) {
        for (int32_t i = 0; i < TOGETHER; i++)
            rows[i] = (td_sample_row){.seed = s.seed,
                                      .index = (uint64_t)(at + i),
                                      .temperature = s.temperature,
                                      .top_p = s.top_p,
                                      .top_k = s.top_k,
                                      .mask = -1,
                                      .top_logprobs = -1};
        check_ok(
            h->ops->copy_in(h->s, (void *)(uintptr_t)a.rows, rows, TOGETHER * sizeof *rows, &err),
            &err);
        check_ok(h->ops->sample(h->s, &a, &err), &err);
        read_i32(h, a.token, TOGETHER, token);
        for (int32_t i = 0; i < TOGETHER; i++) {
            assert_in_range(token[i], 0, V - 1);
            seen[token[i]]++;
        }
    }
    for (int32_t i = 0; i < V; i++) {
        double expected = i < kept ? c[i].p / mass * DRAWS : 0, got = seen[c[i].id];

        if (i >= kept)
            assert_int_equal(seen[c[i].id], 0);
        else if (expected < 5) {
            rest += expected;
            rest_seen += got;
        } else {
            chi += (got - expected) * (got - expected) / expected;
            cells++;
        }
    }
    if (rest > 5) {
        chi += (rest_seen - rest) * (rest_seen - rest) / rest;
        cells++;
    }
    print_message("report: %s sample: chi-square %.1f over %d cells, %d of %d tokens possible\n",
                  h->ops->name, chi, cells, kept, V);
    assert_true(cells > 1);
    assert_true(chi <= cells - 1 + 5 * sqrt(2.0 * (cells - 1)));
    harness_clear(h);
}

static void test_sample_follows_the_exact_probabilities(void **state)
{
    if (HARNESS_FEW || harness_small())
        skip();
    draws_follow(*state, 300, (td_sampling){.temperature = 1, .top_p = 1, .seed = 7});
    draws_follow(*state, 500, (td_sampling){.temperature = 2, .top_p = 0.9f, .seed = 8});
    draws_follow(*state, 500,
                 (td_sampling){.temperature = 0.8f, .top_p = 0.95f, .top_k = 60, .seed = 9});
}

/* The largest logits in few of every 512, as a backend's threads may go through them, and rising:
 * each thread has many. */
static void test_sample_reports_top_logits_that_come_in_stripes(void **state)
{
    enum { WIDE = 400000 };
    harness *h = *state;
    batch *b = make_batch(h, 2, WIDE);
    float *work = host_floats(h, WIDE);
    int32_t *scratch = (int32_t *)(void *)host_floats(h, WIDE);

    for (int32_t i = 0; i < b->n; i++) {
        for (int32_t j = 0; j < WIDE; j++)
            b->logits[i * WIDE + j] =
                (float)(j % 512 < 20 ? (double)j / WIDE : -1 - (double)(j % 997) / 1000);
        b->s[i] = (td_sampling){.temperature = (float)i,
                                .top_p = 0.5f,
                                .seed = 3,
                                .logprobs = true,
                                .top_logprobs = TD_TOP_LOGPROBS};
    }
    run(h, b, 0, b->n);
    assert_true(check_rows(b, work, scratch) <= 1);
    harness_clear(h);
}

static void test_sample_skips_padding(void **state)
{
    harness *h = *state;
    td_sample_row rows[3] = {{.skip = 1}, {.mask = -1, .top_logprobs = 2}, {.skip = 1}};
    const float logits[3][4] = {{NAN, NAN, NAN, NAN}, {0, 3, 1, 2}, {0, 0, 0, 0}};
    td_dims dims = {.T = 1, .D = 1, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .sample_V = 4};
    int32_t token[3];
    td_logprobs lp[3];
    td_error err = {0};
    td_sample_args a = {.n = 3,
                        .V = 4,
                        .logits = dev_f32(h, logits[0], 12),
                        .rows = dev_bytes(h, rows, sizeof rows),
                        .token = dev_poison(h, sizeof token),
                        .logprobs = dev_poison(h, sizeof lp),
                        .ws = dev_ws(h, &dims)};

    check_ok(h->ops->sample(h->s, &a, &err), &err);
    read_i32(h, a.token, 3, token);
    read_i32(h, a.logprobs, sizeof lp / 4, (int32_t *)(void *)lp);
    assert_int_equal(token[0], -1);
    assert_int_equal(token[1], 1);
    assert_int_equal(token[2], -1);
    assert_int_equal(lp[0].n, -1);
    assert_int_equal(lp[1].n, 2);
    assert_int_equal(lp[1].id[0], 1);
    assert_int_equal(lp[1].id[1], 3);
    assert_true(fabsf(lp[1].chosen + 0.44019f) < 1e-5f);
    assert_int_equal(lp[2].n, -1);
    harness_clear(h);
}

static void test_edit_sets_its_words_only(void **state)
{
    harness *h = *state;
    int32_t table[1000], edits[300][2], got[1000];
    td_error err = {0};

    for (int32_t i = 0; i < 1000; i++)
        table[i] = i;
    td_edit_args a = {.table = dev_i32(h, table, 1000)};
    for (int32_t n = 0; n <= 300; n += 75) {
        for (int32_t i = 0; i < n; i++) {
            edits[i][0] = (i * 7 + n) % 1000;
            edits[i][1] = -i - n;
            table[edits[i][0]] = edits[i][1];
        }
        a.n = n;
        a.edits = dev_i32(h, edits[0], 600);
        check_ok(h->ops->edit(h->s, &a, &err), &err);
        read_i32(h, a.table, 1000, got);
        assert_memory_equal(got, table, sizeof table);
    }
    harness_clear(h);
}

/* Copy in, edit, copy out, kept as a graph: it does nothing until it is launched, then sees what
 * has changed in the memory that it names; one that is dropped leaves the stream as it was. */
static void test_graph_replays_with_new_inputs(void **state)
{
    harness *h = *state;
    const td_ops *ops = h->ops;
    td_buffer in = {0}, out = {0};
    td_graph *g = NULL;
    int32_t zeros[8] = {0}, *edit, *seen;
    td_error err = {0};
    void *dev;

    check_ok(ops->alloc_host(h->dev, 8, &in, &err), &err);
    check_ok(ops->alloc_host(h->dev, sizeof zeros, &out, &err), &err);
    edit = in.ptr;
    seen = out.ptr;
    assert_int_equal(seen[7], 0);
    if (ops->graph_begin != NULL) {
        td_edit_args a = {.n = 1, .edits = dev = dev_i32(h, zeros, 2)};

        a.table = dev_i32(h, zeros, 8);
        for (int dropped = 1; dropped >= 0; dropped--) {
            check_ok(ops->graph_begin(h->s, &err), &err);
            check_ok(ops->copy_in(h->s, dev, edit, 8, &err), &err);
            check_ok(ops->edit(h->s, &a, &err), &err);
            check_ok(ops->copy_out(h->s, seen, 32, a.table, 32, 32, 1, &err), &err);
            check_ok(ops->graph_end(h->s, dropped ? NULL : &g, &err), &err);
            edit[1] = 99;
            check_ok(ops->sync(h->s, &err), &err);
            assert_int_equal(seen[0], 0);
        }
        for (int32_t i = 0; i < 8; i++) {
            edit[0] = i;
            edit[1] = 100 + i;
            check_ok(ops->graph_launch(h->s, g, &err), &err);
            check_ok(ops->sync(h->s, &err), &err);
            for (int32_t j = 0; j < 8; j++)
                assert_int_equal(seen[j], j <= i ? 100 + j : 0);
        }
        ops->graph_free(g);
        ops->graph_free(NULL);
    }
    ops->free_host(&in);
    ops->free_host(&out);
    ops->free_host(&out);
    harness_clear(h);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_chooses_what_td_sample_chooses),
        cmocka_unit_test(test_sample_does_not_depend_on_the_batch),
        cmocka_unit_test(test_sample_follows_the_exact_probabilities),
        cmocka_unit_test(test_sample_reports_top_logits_that_come_in_stripes),
        cmocka_unit_test(test_sample_skips_padding),
        cmocka_unit_test(test_edit_sets_its_words_only),
        cmocka_unit_test(test_graph_replays_with_new_inputs),
    };
    return RUN_CHOSEN_TESTS(tests, harness_open, harness_close);
}
