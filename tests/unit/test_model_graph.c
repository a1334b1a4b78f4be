/* Captured steps, on a backend made for it. Whatever a step gets wrong when it is kept (an input
 * that is not in its place, padding that shows, a table that was not sent) shows against the CPU
 * backend, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/model.h"
#include "tests/unit/graph_backend.h"
#include "tests/unit/model_fixture.h"

enum { SEQS = 12, PAGES = 5, STEPS = 150, COUNTS = 40 };

static td_model *open_rows(const td_ops *ops, int32_t rows, int32_t rings)
{
    td_model_options opt = {.backend = "cpu",
                            .ops = ops,
                            .tp = 1,
                            .ep = 1,
                            .threads = 2,
                            .kv_dtype = TD_KV_BF16,
                            .kv_pages = (uint32_t)rings * PAGES,
                            .kv_rings = (uint32_t)rings,
                            .ring_pages = td_kv_ring_pages(fixture_config.window, 1),
                            .max_tokens = rows};
    td_checkpoint *c = NULL;
    td_model *m = NULL;
    td_error err = {0};

    check_ok(td_checkpoint_random(&fixture_config, 11, &c, &err), &err);
    check_ok(td_model_open(c, &fixture_config, &opt, &m, &err), &err);
    td_checkpoint_close(c);
    return m;
}

static td_model *open_model(const td_ops *ops)
{
    return open_rows(ops, 16, SEQS);
}

/* Sequences that join, leave and change places: the same plan for both models. */
typedef struct plan {
    uint32_t pages[SEQS][PAGES];
    int32_t row[SEQS]; /* which sequence each row has */
    int32_t n;
    int32_t pos[SEQS], token[SEQS]; /* of sequences; pos 0: not begun */
    td_token_count counts[SEQS][COUNTS];
    td_token_bias bias[3];
    td_id_range banned[2];
    uint32_t mask[2][(515 + 31) / 32];
    uint32_t rng;
} plan;

static uint32_t next(plan *p)
{
    p->rng = p->rng * 1664525 + 1013904223;
    return p->rng >> 8;
}

static void begin(plan *p)
{
    memset(p, 0, sizeof *p);
    p->rng = 5;
    for (uint32_t s = 0; s < SEQS; s++)
        for (uint32_t i = 0; i < PAGES; i++)
            p->pages[s][i] = (i * SEQS + s) * 7 % (SEQS * PAGES);
    p->bias[0] = (td_token_bias){17, 1.5f};
    p->bias[1] = (td_token_bias){400, -3};
    p->bias[2] = (td_token_bias){514, 2};
    p->banned[0] = (td_id_range){0, 3};
    p->banned[1] = (td_id_range){500, INT32_MAX};
    memset(p->mask[0], 0x7b, sizeof p->mask[0]);
    memset(p->mask[1], 0x84, sizeof p->mask[1]);
}

static void change_batch(plan *p, int step)
{
    if (step % 3 == 0 || p->n == 0) { /* one joins, sometimes with another's old place */
        uint32_t s = next(p) % SEQS;
        bool there = false;

        for (int32_t i = 0; i < p->n; i++)
            there |= p->row[i] == (int32_t)s;
        if (!there) {
            p->row[p->n++] = (int32_t)s;
            p->pos[s] = (int32_t)(next(p) % 130); /* a cache of whatever was there before */
            p->token[s] = (int32_t)(next(p) % 515);
        }
    }
    if (step % 7 == 6 && p->n > 1) {
        uint32_t i = next(p) % (uint32_t)p->n;

        p->row[i] = p->row[--p->n];
    }
    if (step == 100) /* nearly empty again, in smaller sizes */
        p->n = 2;
}

static td_sampling how(plan *p, int32_t s)
{
    td_sampling a = {.temperature = s % 3 ? 1.0f : 0,
                     .top_p = s % 2 ? 0.9f : 1,
                     .top_k = s % 4 == 1 ? 30 : 0,
                     .seed = (uint64_t)s,
                     .index = (uint64_t)p->pos[s],
                     .logprobs = s % 5 == 2,
                     .top_logprobs = 4};

    if (s % 4 < 2) {
        a.banned = p->banned;
        a.n_banned = 2;
    }
    if (s % 3 == 1) {
        a.counts = p->counts[s];
        a.n_counts = p->pos[s] % COUNTS;
        a.frequency = 0.5f;
        for (int32_t i = 0; i < a.n_counts; i++)
            p->counts[s][i] = (td_token_count){(i * 13 + s) % 515, 1 + i % 3};
    }
    if (s % 6 == 4) {
        a.bias = p->bias;
        a.n_bias = 3;
    }
    if (s >= 8 && s <= 10) /* two have the same */
        a.mask = p->mask[s == 10];
    return a;
}

static void step_of(plan *p, td_model *m, int32_t *out, td_logprobs *lp)
{
    td_seq seqs[SEQS];
    td_sampling sampling[SEQS];
    int32_t tokens[SEQS];
    td_error err = {0};

    for (int32_t i = 0; i < p->n; i++) {
        int32_t s = p->row[i];

        seqs[i] =
            (td_seq){.pages = p->pages[s], .n_pages = PAGES, .ring = (uint32_t)s, .pos = p->pos[s]};
        tokens[i] = p->token[s];
        sampling[i] = how(p, s);
    }
    check_ok(td_model_decode(m,
                             &(td_decode_step){.n = p->n,
                                               .seqs = seqs,
                                               .tokens = tokens,
                                               .sampling = sampling,
                                               .logprobs = lp,
                                               .out = out},
                             &err),
             &err);
}

static void same_logprobs(const td_logprobs *a, const td_logprobs *b)
{
    assert_int_equal(a->n, b->n);
    if (a->n < 0)
        return;
    assert_memory_equal(&a->chosen, &b->chosen, sizeof a->chosen);
    assert_memory_equal(a->id, b->id, (size_t)a->n * sizeof *a->id);
    assert_memory_equal(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob);
}

static void run_plan(td_model *plain, td_model *graphs, int steps)
{
    static plan p;
    int32_t want[SEQS], got[SEQS];
    td_logprobs lp_want[SEQS], lp_got[SEQS];

    begin(&p);
    for (int step = 0; step < steps; step++) {
        change_batch(&p, step);
        step_of(&p, plain, want, lp_want);
        step_of(&p, graphs, got, lp_got);
        assert_memory_equal(got, want, (size_t)p.n * sizeof *got);
        for (int32_t i = 0; i < p.n; i++) {
            int32_t s = p.row[i];

            same_logprobs(&lp_got[i], &lp_want[i]);
            assert_in_range(got[i], 0, 514);
            if (s >= 8 && s <= 10)
                assert_true(p.mask[s == 10][got[i] / 32] >> got[i] % 32 & 1);
            p.token[s] = got[i];
            if (++p.pos[s] == PAGES * TD_PAGE_TOKENS)
                p.pos[s] = 0;
        }
    }
}

static void test_model_graph_gives_what_the_step_itself_gives(void **state)
{
    td_ops ops = ops_with_graphs();
    td_model *plain = open_model(NULL), *graphs = open_model(&ops);

    (void)state;
    run_plan(plain, graphs, STEPS);
    assert_int_equal(graph_seen.captured, 5); /* of 1, 2, 4, 8 and all 12 */
    assert_true(graph_seen.launched > STEPS - 2 * graph_seen.captured - 5);
    td_model_close(plain);
    td_model_close(graphs);
    assert_int_equal(graph_seen.alive, 0);
}

static void test_model_warm_up_captures_all_and_changes_nothing(void **state)
{
    td_ops ops = ops_with_graphs();
    td_model *plain = open_model(NULL), *graphs = open_model(&ops);
    uint64_t bytes = td_model_kv(graphs)->region_bytes;
    td_error err = {0};

    (void)state;
    check_ok(td_model_warm_up(plain, &err), &err); /* nothing to do */
    check_ok(td_model_warm_up(graphs, &err), &err);
    assert_int_equal(graph_seen.captured, 5);
    assert_memory_equal(td_model_kv_base(graphs, 0), td_model_kv_base(plain, 0), bytes);
    run_plan(plain, graphs, 40);
    assert_int_equal(graph_seen.captured, 5);
    td_model_close(plain);
    td_model_close(graphs);
}

static void test_model_graph_that_cannot_be_made_is_an_error_and_made_later(void **state)
{
    td_ops ops = ops_with_graphs();
    td_model *plain = open_model(NULL), *graphs = open_model(&ops);
    td_error err = {0};

    (void)state;
    graph_seen.refuse_captures = 1;
    assert_int_equal(td_model_warm_up(graphs, &err), TD_DEVICE);
    assert_non_null(strstr(err.text, "no graphs today"));
    graph_seen.refuse_captures = 0;
    run_plan(plain, graphs, 30);
    td_model_close(plain);
    td_model_close(graphs);
    assert_int_equal(graph_seen.alive, 0);
}

/* Lists that are too long to be on the device together are sampled in rounds. */
static void test_model_samples_in_rounds_when_lists_are_long(void **state)
{
    enum { N = 6, LONG = 4000 };
    td_ops ops = ops_with_graphs();
    td_model *graphs = open_model(&ops);
    static td_id_range banned[N][LONG];
    td_seq seqs[N];
    td_sampling sampling[N];
    int32_t tokens[N], together[N], alone;
    td_logprobs lp[N];
    uint32_t pages[N];
    td_error err = {0};

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        pages[i] = i;
        tokens[i] = (int32_t)i + 40;
        seqs[i] = (td_seq){.pages = &pages[i], .n_pages = 1, .ring = i};
        for (int32_t j = 0; j < LONG; j++)
            banned[i][j] = (td_id_range){(j * 7 + (int32_t)i) % 500, (j * 7 + (int32_t)i) % 500};
        sampling[i] = (td_sampling){
            .banned = banned[i], .n_banned = LONG, .logprobs = true, .top_logprobs = (int32_t)i};
    }
    td_decode_step d = {.n = N,
                        .seqs = seqs,
                        .tokens = tokens,
                        .sampling = sampling,
                        .logprobs = lp,
                        .out = together};
    check_ok(td_model_decode(graphs, &d, &err), &err);
    for (int32_t i = 0; i < N; i++) {
        d = (td_decode_step){.n = 1,
                             .seqs = &seqs[i],
                             .tokens = &tokens[i],
                             .sampling = &sampling[i],
                             .out = &alone};
        assert_in_range(together[i], 500, 514); /* all that the ranges leave */
        assert_int_equal(lp[i].n, i);
        check_ok(td_model_decode(graphs, &d, &err), &err);
        assert_int_equal(alone, together[i]);
    }
    sampling[2].n_bias = 20000;
    d.sampling = &sampling[2];
    assert_int_equal(td_model_decode(graphs, &d, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "20000 biases"));
    td_model_close(graphs);
}

/* However many rows have a mask of their own, a step is one graph. */
static void test_model_masks_of_a_large_batch_are_one_step(void **state)
{
    enum { N = TD_SMALL_STEP + 2 };
    static uint32_t masks[N][(515 + 31) / 32];
    td_ops ops = ops_with_graphs();
    td_model *graphs = open_rows(&ops, N, N);
    td_seq seqs[N];
    td_sampling sampling[N];
    int32_t tokens[N], out[N];
    uint32_t pages[N];
    td_error err = {0};
    td_decode_step d = {.n = N, .seqs = seqs, .tokens = tokens, .sampling = sampling, .out = out};

    (void)state;
    check_ok(td_model_warm_up(graphs, &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        pages[i] = i;
        tokens[i] = (int32_t)i;
        seqs[i] = (td_seq){.pages = &pages[i], .n_pages = 1, .ring = i};
        masks[i][(3 * i) / 32] = 1u << 3 * i % 32;
        sampling[i] = (td_sampling){.mask = masks[i]};
    }
    graph_seen.launched = 0;
    check_ok(td_model_decode(graphs, &d, &err), &err);
    assert_int_equal(graph_seen.launched, 1);
    for (int32_t i = 0; i < N; i++)
        assert_int_equal(out[i], 3 * i); /* all that its mask leaves */
    td_model_close(graphs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_graph_gives_what_the_step_itself_gives),
        cmocka_unit_test(test_model_warm_up_captures_all_and_changes_nothing),
        cmocka_unit_test(test_model_graph_that_cannot_be_made_is_an_error_and_made_later),
        cmocka_unit_test(test_model_samples_in_rounds_when_lists_are_long),
        cmocka_unit_test(test_model_masks_of_a_large_batch_are_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
