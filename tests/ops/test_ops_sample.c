/* The sample step against td_sample() and, where they differ, against the exact distribution; its
 * log-probabilities against float64; edits of tables; graphs, where the backend has them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/sample_batch.h"

enum { LARGE = 201088 };

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
        run_batch(h, b, 0, n);
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
        run_batch(h, b, 0, ROWS);
        for (int32_t i = 0; i < ROWS; i += harness_smallest() ? 9 : 1 + i % 5) {
            run_batch(h, alone, i, 1);
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
    run_batch(h, b, 0, b->n);
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
