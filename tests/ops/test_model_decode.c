/* Decode steps of batches that change from step to step, on the backend under test
 * (TANDEM_TEST_BACKEND): as graphs they give what the steps give, tokens are those that td_sample()
 * chooses, and two ranks choose what one does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/model.h"
#include "tests/ops/backend.h"
#include "tests/ops/choose.h"

/* More than TD_SMALL_STEP rows at times. */
enum { SEQS = 170, SEQ_PAGES = 8, BATCH_STEPS = 300, BANNED_FROM = 2030 };

/* Sequences that join, leave and change places; what every model of a test is asked alike. */
typedef struct traffic {
    uint32_t pages[SEQS][SEQ_PAGES];
    int32_t row[SEQS], n; /* which sequence each row has */
    int32_t pos[SEQS], token[SEQS];
    td_id_range banned;
    td_token_count counts[SEQS];
    uint32_t rng;
} traffic;

static uint32_t next(traffic *t)
{
    t->rng = t->rng * 1664525 + 1013904223;
    return t->rng >> 8;
}

static void begin(traffic *t)
{
    memset(t, 0, sizeof *t);
    t->banned = (td_id_range){BANNED_FROM, INT32_MAX};
    for (uint32_t s = 0; s < SEQS; s++) {
        t->token[s] = START;
        for (uint32_t i = 0; i < SEQ_PAGES; i++)
            t->pages[s][i] = (i * SEQS + s) * 11 % (SEQS * SEQ_PAGES);
    }
}

/* More and more for a while, then fewer, so that every size of step is met in both directions. */
static void change_batch(traffic *t, int step)
{
    bool more = step % 150 < 90;

    for (int i = 0; i < 5; i++) {
        int32_t s = (int32_t)(next(t) % SEQS);
        bool there = false;

        for (int32_t j = 0; j < t->n; j++)
            there |= t->row[j] == s;
        if ((more || t->n == 0) && !there)
            t->row[t->n++] = s;
    }
    for (int left = more ? step % 5 == 0 : 3; left > 0 && t->n > 1; left--) {
        uint32_t i = next(t) % (uint32_t)t->n;

        t->row[i] = t->row[--t->n];
    }
}

static td_sampling how(traffic *t, int32_t s)
{
    td_sampling a = {.temperature = s % 3 ? 1.0f : 0,
                     .top_p = s % 2 ? 0.9f : 1,
                     .top_k = s % 4 == 1 ? 30 : 0,
                     .seed = (uint64_t)s,
                     .index = (uint64_t)t->pos[s],
                     .banned = &t->banned,
                     .n_banned = s % 7 != 0,
                     .logprobs = s % 5 == 2,
                     .top_logprobs = 3};

    if (s % 3 == 1) {
        t->counts[s] = (td_token_count){t->token[s], 2};
        a.counts = &t->counts[s];
        a.n_counts = 1;
        a.presence = 1;
        a.frequency = 0.5f;
    }
    return a;
}

static void traffic_step(traffic *t, td_model *m, float *logits, int32_t *out, td_logprobs *lp)
{
    td_seq seqs[SEQS];
    td_sampling sampling[SEQS];
    int32_t tokens[SEQS];
    td_error err = {0};

    for (int32_t i = 0; i < t->n; i++) {
        int32_t s = t->row[i];

        seqs[i] = (td_seq){
            .pages = t->pages[s], .n_pages = SEQ_PAGES, .ring = (uint32_t)s, .pos = t->pos[s]};
        tokens[i] = t->token[s];
        sampling[i] = how(t, s);
    }
    check_ok(td_model_decode(m,
                             &(td_decode_step){.n = t->n,
                                               .seqs = seqs,
                                               .tokens = tokens,
                                               .sampling = sampling,
                                               .logits = logits,
                                               .logprobs = lp,
                                               .out = out},
                             &err),
             &err);
}

static void go_on(traffic *t, const int32_t *out)
{
    for (int32_t i = 0; i < t->n; i++) {
        int32_t s = t->row[i];

        t->token[s] = out[i];
        if (++t->pos[s] == SEQ_PAGES * TD_PAGE_TOKENS)
            t->pos[s] = 0;
    }
}

static td_model *open_for_decode(int32_t tp, bool no_graphs)
{
    td_model_config cfg;
    td_checkpoint *ckpt = NULL;
    td_model *m = NULL;
    td_error err = {0};

    check_ok(td_model_config_read(TINY, &cfg, &err), &err);
    check_ok(td_checkpoint_open(TINY, &cfg, &ckpt, &err), &err);
    td_model_options opt = {.backend = backend(),
                            .tp = tp,
                            .ep = tp,
                            .kv_dtype = TD_KV_BF16,
                            .kv_pages = SEQS * SEQ_PAGES,
                            .kv_rings = SEQS,
                            .ring_pages = td_kv_ring_pages(cfg.window, 1),
                            .max_tokens = SEQS,
                            .no_graphs = no_graphs};
    check_ok(td_model_open(ckpt, &cfg, &opt, &m, &err), &err);
    td_checkpoint_close(ckpt);
    return m;
}

static void test_graphs_give_what_the_steps_give(void **state)
{
    static traffic t;
    td_model *plain, *graphs;
    int32_t want[SEQS], got[SEQS];
    td_logprobs lp_want[SEQS], lp_got[SEQS];
    td_usec plain_us = 0, graph_us = 0, one_plain_us = 0, one_graph_us = 0;
    uint64_t rows = 0, before = 0, after = 0, total = 0;
    td_error err = {0};

    (void)state;
    if (backend_ops()->graph_begin == NULL || access(TINY "/config.json", R_OK) != 0)
        skip();
    plain = open_for_decode(1, true);
    graphs = open_for_decode(1, false);
    if (backend_ops()->dev_memory != NULL)
        check_ok(backend_ops()->dev_memory(0, &before, &total, &err), &err);
    td_usec t0 = td_now_us();
    check_ok(td_model_warm_up(graphs, &err), &err);
    t0 = td_now_us() - t0;
    if (backend_ops()->dev_memory != NULL)
        check_ok(backend_ops()->dev_memory(0, &after, &total, &err), &err);
    begin(&t);
    for (int step = 0; step < BATCH_STEPS; step++) {
        td_usec t1, t2;

        change_batch(&t, step);
        t1 = td_now_us();
        traffic_step(&t, plain, NULL, want, lp_want);
        t2 = td_now_us();
        traffic_step(&t, graphs, NULL, got, lp_got);
        plain_us += t2 - t1;
        graph_us += td_now_us() - t2;
        rows += (uint64_t)t.n;
        for (int32_t i = 0; i < t.n; i++) {
            if (got[i] != want[i])
                fail_msg("step %d, row %d of %d: token %d, wanted %d", step, i, t.n, got[i],
                         want[i]);
            assert_int_equal(lp_got[i].n, lp_want[i].n);
            if (lp_got[i].n >= 0)
                assert_memory_equal(&lp_got[i].chosen, &lp_want[i].chosen, sizeof(float));
        }
        go_on(&t, got);
    }
    t.n = 1; /* mostly the host's share */
    for (int step = 0; step < 200; step++) {
        td_usec t1 = td_now_us(), t2;

        traffic_step(&t, plain, NULL, want, NULL);
        t2 = td_now_us();
        traffic_step(&t, graphs, NULL, got, NULL);
        one_graph_us += td_now_us() - t2;
        one_plain_us += t2 - t1;
        assert_int_equal(got[0], want[0]);
        go_on(&t, got);
    }
    print_message("report: %s: 200 steps of one row: %.0f us each, as graphs %.0f us\n", backend(),
                  (double)one_plain_us / 200, (double)one_graph_us / 200);
    print_message("report: %s: %d steps of %.1f rows: %.0f us each, as graphs %.0f us; warming up "
                  "%.1f ms and %.1f MB\n",
                  backend(), BATCH_STEPS, (double)rows / BATCH_STEPS,
                  (double)plain_us / BATCH_STEPS, (double)graph_us / BATCH_STEPS, (double)t0 / 1e3,
                  ((double)before - (double)after) / 1e6);
    td_model_close(plain);
    td_model_close(graphs);
}

/* The token of each row is td_sample()'s of the logits that the step reports. */
static void test_tokens_are_those_that_td_sample_chooses(void **state)
{
    static traffic t;
    td_model *m;
    size_t V;
    float *logits;
    int32_t *scratch, out[SEQS], token, draws = 0, differ = 0;
    td_logprobs lp[SEQS], want;

    (void)state;
    if (access(TINY "/config.json", R_OK) != 0)
        skip();
    m = open_for_decode(1, false);
    V = (size_t)td_model_config_of(m)->vocab;
    logits = malloc(SEQS * V * sizeof *logits);
    scratch = malloc(V * sizeof *scratch);
    assert_non_null(logits);
    assert_non_null(scratch);
    begin(&t);
    for (int step = 0; step < 40; step++) {
        change_batch(&t, step);
        traffic_step(&t, m, logits, out, lp);
        for (int32_t i = 0; i < t.n; i++) {
            td_sampling s = how(&t, t.row[i]);
            float *row = logits + (size_t)i * V;

            td_logprobs_of(row, (int32_t)V, s.logprobs ? out[i] : -1, s.top_logprobs, &want);
            token = td_sample(row, (int32_t)V, &s, scratch);
            draws++;
            differ += token != out[i];
            assert_int_equal(lp[i].n, want.n);
            if (want.n >= 0) {
                assert_true(fabsf(lp[i].chosen - want.chosen) < 1e-5f);
                assert_memory_equal(lp[i].id, want.id, (size_t)want.n * sizeof *want.id);
            }
        }
        go_on(&t, out);
    }
    assert_true(draws > 500);
    assert_true(differ <= 1); /* a draw next to a boundary may fall to its other side */
    free(logits);
    free(scratch);
    td_model_close(m);
}

/* Two ranks against one: the same text where the model is sure, and graphs that hold collectives
 * against the steps themselves. On a GPU each has its own: kernels that wait for all of their
 * blocks cannot share one with a rank that waits for theirs. */
static void test_two_ranks_agree_with_one(void **state)
{
    static traffic t;
    td_model *one, *plain, *graphs;
    int32_t want[SEQS], got[SEQS], single[SEQS], rows = 0, differ = 0;
    uint64_t left, total;
    td_error err = {0};

    (void)state;
    if (access(TINY "/config.json", R_OK) != 0 ||
        (backend_ops()->dev_memory != NULL &&
         backend_ops()->dev_memory(1, &left, &total, &err) != TD_OK))
        skip();
    one = open_for_decode(1, false);
    plain = open_for_decode(2, true);
    graphs = open_for_decode(2, false);
    check_ok(td_model_warm_up(graphs, &err), &err);
    begin(&t);
    for (int step = 0; step < 60; step++) {
        change_batch(&t, step);
        traffic_step(&t, one, NULL, single, NULL);
        traffic_step(&t, plain, NULL, want, NULL);
        traffic_step(&t, graphs, NULL, got, NULL);
        assert_memory_equal(got, want, (size_t)t.n * sizeof *got);
        for (int32_t i = 0; i < t.n; i++)
            differ += single[i] != got[i];
        rows += t.n;
        go_on(&t, got);
    }
    print_message("report: %s: two ranks choose another token than one in %d of %d rows\n",
                  backend(), differ, rows);
    assert_true(differ * 20 < rows);
    td_model_close(one);
    td_model_close(plain);
    td_model_close(graphs);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_give_what_the_steps_give),
        cmocka_unit_test(test_tokens_are_those_that_td_sample_chooses),
        cmocka_unit_test(test_two_ranks_agree_with_one),
    };

    if (backend_ops() == NULL)
        return BACKEND_NOT_RUN;
    return RUN_CHOSEN_TESTS(tests, NULL, NULL);
}
