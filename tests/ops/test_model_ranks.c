/* A whole model over several ranks on the backend under test (TANDEM_TEST_BACKEND) against the same
 * backend's one rank: logits of a prompt in chunks and of decode steps in batches. Ranks go to the
 * devices there are, several to one where there are fewer.
 *
 * Parts of a sum are rounded to the backend's activations on each rank, so logits differ a little
 * from one rank's, and by more in rows that fall on the other side of a near tie between experts;
 * bounds are on all rows together, as in test_model_backends.c. What must not differ at all: the
 * same row in prefill, in decode and in any batch. With TANDEM_TEST_LARGE set, layers of
 * gpt-oss-20b's shape with random weights as well. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/model.h"
#include "common/shard.h"
#include "common/weights.h"
#include "tests/ops/backend.h"
#include "tests/ops/choose.h"

/* The first chunk of a prompt is a large step (over TD_SMALL_STEP), the second a small one. */
enum { PAGES = 8, CHUNK = 150, RINGS = 4, PROMPT = 190, STEPS = 20 };

static int32_t devices = 1;

/* All the logits that one way of splitting the model gives for the same tokens. */
typedef struct logits {
    int32_t vocab;
    float *prompt; /* [PROMPT] */
    float *steps;  /* [STEPS, RINGS] */
} logits;

typedef struct split {
    int32_t tp, ep;
    td_expert_format experts;
} split;

/* Of tandem-tiny's files, or as published but for depth and vocabulary and made from a seed. */
static bool large;
static uint32_t wait_ms; /* td_model_options.comm_timeout_ms */
static const td_ops *ops;

static td_model *open_split(const td_model_config *cfg, split way)
{
    int32_t device[8];
    td_checkpoint *ckpt = NULL;
    td_model *m = NULL;
    td_error err = {0};

    for (int32_t i = 0; i < way.tp; i++)
        device[i] = i % devices;
    check_ok(large ? td_checkpoint_random(cfg, 1, &ckpt, &err)
                   : td_checkpoint_open(TINY, cfg, &ckpt, &err),
             &err);
    check_ok(td_model_open(ckpt, cfg,
                           &(td_model_options){.backend = backend(),
                                               .tp = way.tp,
                                               .ep = way.ep,
                                               .experts = way.experts,
                                               .devices = device,
                                               .kv_dtype = TD_KV_BF16,
                                               .kv_pages = RINGS * PAGES,
                                               .kv_rings = RINGS,
                                               .ring_pages = td_kv_ring_pages(cfg->window, CHUNK),
                                               .max_tokens = CHUNK,
                                               .comm_timeout_ms = wait_ms},
                           &m, &err),
             &err);
    td_checkpoint_close(ckpt);
    for (int32_t i = 0; i < way.tp; i++) { /* memory is planned to the byte, on this backend too */
        td_shard s;

        check_ok(td_shard_of(cfg, way.tp, way.ep, i, &s, &err), &err);
        assert_int_equal(td_rank_weights_plan(ops, cfg, &s, way.experts).bytes,
                         td_model_memory_of(m, i).weights);
    }
    return m;
}

static int32_t token_of(int32_t seq, int32_t pos, int32_t vocab)
{
    uint32_t h = (uint32_t)(seq * 1000 + pos) * 2654435761u;

    return (int32_t)((h >> 7) % (uint32_t)vocab);
}

static void pages_of(int32_t seq, uint32_t *pages)
{
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = RINGS * (PAGES - 1 - i) + (uint32_t)seq;
}

/* The prompt of sequence seq, with logits of every position if they are wanted. */
static void prefill(td_model *m, int32_t seq, int32_t chunk, int32_t vocab, float *out)
{
    uint32_t pages[PAGES];
    int32_t tokens[PROMPT];
    td_error err = {0};

    pages_of(seq, pages);
    for (int32_t i = 0; i < PROMPT; i++)
        tokens[i] = token_of(seq, i, vocab);
    for (int32_t at = 0; at < PROMPT; at += chunk) {
        td_prefill_step step = {
            .tokens = tokens + at,
            .n = PROMPT - at < chunk ? PROMPT - at : chunk,
            .seq = {.pages = pages, .n_pages = PAGES, .ring = (uint32_t)seq, .pos = at},
            .logits = out == NULL ? NULL : out + (size_t)at * (size_t)vocab};

        check_ok(td_model_prefill(m, &step, &err), &err);
    }
}

/* One step of sequences first .. first + n, all at position pos. */
static void decode(td_model *m, int32_t first, int32_t n, int32_t pos, int32_t vocab, float *out)
{
    const td_sampling greedy[RINGS] = {{0}};
    uint32_t pages[RINGS][PAGES];
    int32_t tokens[RINGS], sampled[RINGS];
    td_seq seqs[RINGS];
    td_error err = {0};

    for (int32_t i = 0; i < n; i++) {
        pages_of(first + i, pages[i]);
        tokens[i] = token_of(first + i, pos, vocab);
        seqs[i] = (td_seq){
            .pages = pages[i], .n_pages = PAGES, .ring = (uint32_t)(first + i), .pos = pos};
    }
    check_ok(td_model_decode(m,
                             &(td_decode_step){.n = n,
                                               .seqs = seqs,
                                               .tokens = tokens,
                                               .sampling = greedy,
                                               .logits = out,
                                               .out = sampled},
                             &err),
             &err);
}

static logits run(const td_model_config *cfg, split way)
{
    size_t V = (size_t)cfg->vocab;
    logits l = {.vocab = cfg->vocab,
                .prompt = malloc(PROMPT * V * sizeof(float)),
                .steps = malloc(STEPS * RINGS * V * sizeof(float))};
    float *again = malloc(RINGS * V * sizeof(float));
    td_model *m = open_split(cfg, way);

    assert_true(l.prompt != NULL && l.steps != NULL && again != NULL);
    for (int32_t s = RINGS - 1; s >= 0; s--)
        prefill(m, s, CHUNK, cfg->vocab, s == 0 ? l.prompt : NULL);
    for (int32_t i = 0; i < STEPS; i++)
        decode(m, 0, RINGS, PROMPT + i, cfg->vocab, l.steps + (size_t)i * RINGS * V);
    /* The last step of sequence 2 once more, alone. */
    decode(m, 2, 1, PROMPT + STEPS - 1, cfg->vocab, again);
    assert_memory_equal(again, l.steps + ((size_t)(STEPS - 1) * RINGS + 2) * V, V * sizeof(float));
    td_model_close(m);
    free(again);
    return l;
}

static void free_logits(logits *l)
{
    free(l->prompt);
    free(l->steps);
}

static int32_t best_of(const float *row, int32_t vocab)
{
    int32_t best = 0;

    for (int32_t i = 1; i < vocab; i++)
        best = row[i] > row[best] ? i : best;
    return best;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Bounds on the typical row and on all of them together. True: they hold. */
static bool close_enough(const char *what, const float *want, const float *got, int32_t rows,
                         int32_t vocab, double allowed)
{
    double largest = 0, all = 0, square[PROMPT];
    int32_t differ = 0;

    assert_true(rows <= PROMPT);
    for (int32_t r = 0; r < rows; r++, want += vocab, got += vocab) {
        square[r] = 0;
        for (int32_t i = 0; i < vocab; i++) {
            double d = (double)got[i] - want[i];

            assert_false(isnan(d));
            largest = fmax(largest, fabs(want[i]));
            square[r] += d * d / vocab;
        }
        all += square[r] / rows;
        differ += best_of(want, vocab) != best_of(got, vocab);
    }
    qsort(square, (size_t)rows, sizeof square[0], by_value);
    double typical = sqrt(square[rows / 2]) / largest, rms = sqrt(all) / largest;
    print_message("report: %s %s: rms difference %.3f%% of the largest logit (%.3f%% allowed), in "
                  "the median row %.3f%% (%.3f%%), another likeliest token in %d of %d rows\n",
                  backend(), what, 100 * rms, 100 * allowed, 100 * typical, 25 * allowed, differ,
                  rows);
    return rms <= allowed && typical <= allowed / 4 && differ <= rows / 5;
}

/* Each of n ways against one rank with experts in the same format. */
static void check_splits(const td_model_config *cfg, const split *ways, int n, double allowed)
{
    logits one = {0};
    int bad = 0;

    for (int i = 0; i < n; i++) {
        const char *format = ways[i].experts == TD_EXPERTS_FP8 ? " fp8" : "";
        char what[80];

        if (i == 0 || ways[i].experts != ways[i - 1].experts) {
            free_logits(&one);
            one = run(cfg, (split){1, 1, ways[i].experts});
        }
        logits many = run(cfg, ways[i]);
        snprintf(what, sizeof what, "%stp %d ep %d%s prompt", large ? "20b " : "", ways[i].tp,
                 ways[i].ep, format);
        bad += !close_enough(what, one.prompt, many.prompt, PROMPT, cfg->vocab, allowed);
        snprintf(what, sizeof what, "%stp %d ep %d%s decode", large ? "20b " : "", ways[i].tp,
                 ways[i].ep, format);
        bad += !close_enough(what, one.steps, many.steps, STEPS * RINGS, cfg->vocab, allowed);
        free_logits(&many);
    }
    free_logits(&one);
    assert_int_equal(bad, 0); /* after all of them: the pattern tells more than the first */
}

static void test_model_ranks_agree_with_one(void **state)
{
    static const split ways[] = {{2, 1, TD_EXPERTS_MXFP4}, {2, 2, TD_EXPERTS_MXFP4},
                                 {4, 1, TD_EXPERTS_MXFP4}, {4, 2, TD_EXPERTS_MXFP4},
                                 {4, 4, TD_EXPERTS_MXFP4}, {8, 2, TD_EXPERTS_MXFP4},
                                 {8, 8, TD_EXPERTS_MXFP4}};
    td_model_config cfg;
    td_error err = {0};

    (void)state;
    if (access(TINY "/config.json", R_OK) != 0)
        skip();
    check_ok(td_model_config_read(TINY, &cfg, &err), &err);
    check_splits(&cfg, ways, sizeof ways / sizeof ways[0],
                 strcmp(backend(), "cpu") == 0 ? 0.001 : 0.02);
}

static void test_layers_of_20b_agree_with_one_rank(void **state)
{
    static const split ways[] = {{2, 1, TD_EXPERTS_MXFP4}, {2, 2, TD_EXPERTS_MXFP4},
                                 {4, 1, TD_EXPERTS_MXFP4}, {4, 4, TD_EXPERTS_MXFP4},
                                 {2, 1, TD_EXPERTS_FP8},   {2, 2, TD_EXPERTS_FP8},
                                 {4, 4, TD_EXPERTS_FP8}};
    td_model_config cfg = {.n_layers = 4,
                           .hidden = 2880,
                           .n_q_heads = 64,
                           .n_kv_heads = 8,
                           .head_dim = 64,
                           .n_experts = 32,
                           .top_k = 4,
                           .inter = 2880,
                           .vocab = 4096,
                           .window = 128,
                           .windowed = {true, false, true, false},
                           .max_positions = 131072,
                           .eps = 1e-5f,
                           .swiglu_limit = 7,
                           .rope_theta = 150000,
                           .yarn_factor = 32,
                           .yarn_beta_fast = 32,
                           .yarn_beta_slow = 1,
                           .yarn_original_positions = 4096};
    bool cpu = strcmp(backend(), "cpu") == 0; /* it has no FP8 */

    (void)state;
    if (getenv("TANDEM_TEST_LARGE") == NULL)
        skip();
    large = true;
    check_splits(&cfg, ways, cpu ? 2 : sizeof ways / sizeof ways[0], cpu ? 0.001 : 0.03);
    large = false;
}

static void dawdle(void *user, int32_t rank, int32_t layer, td_event *ready)
{
    (void)user;
    (void)ready;
    if (rank == 1 && layer == 2)
        usleep(1500 * 1000);
}

/* A rank that comes late by more than the limit that the model was opened with is named with it. */
static void test_model_ranks_wait_as_long_as_they_are_told(void **state)
{
    td_model_config cfg;
    td_model *m = NULL;
    td_error err = {0};
    uint32_t pages[PAGES];
    const int32_t tokens[3] = {1, 2, 3};
    td_prefill_step step = {
        .tokens = tokens, .n = 3, .seq = {.pages = pages, .n_pages = PAGES}, .on_layer = dawdle};

    (void)state;
    if (strcmp(backend(), "cpu") == 0 || access(TINY "/config.json", R_OK) != 0)
        skip(); /* threads wait for each other as long as it takes */
    check_ok(td_model_config_read(TINY, &cfg, &err), &err);
    pages_of(0, pages);
    for (uint32_t ms = 300; ms <= 4000; ms += 3700) {
        td_status st;

        wait_ms = ms;
        m = open_split(&cfg, (split){2, 1, TD_EXPERTS_MXFP4});
        wait_ms = 0;
        st = td_model_prefill(m, &step, &err);
        if (ms == 300) {
            assert_int_equal(st, TD_DEVICE);
            assert_non_null(strstr(err.text, "rank 1 "));
            assert_non_null(strstr(err.text, "in 0.3 s"));
        } else {
            check_ok(st, &err);
        }
        td_model_close(m);
    }
}

/* Twice the same split, twice the same bits. */
static void test_model_ranks_repeat_themselves(void **state)
{
    td_model_config cfg;
    td_error err = {0};

    (void)state;
    if (access(TINY "/config.json", R_OK) != 0)
        skip();
    check_ok(td_model_config_read(TINY, &cfg, &err), &err);
    const split way = {4, 2, TD_EXPERTS_MXFP4};
    logits a = run(&cfg, way), b = run(&cfg, way);
    assert_memory_equal(a.prompt, b.prompt, PROMPT * (size_t)cfg.vocab * sizeof(float));
    assert_memory_equal(a.steps, b.steps, STEPS * RINGS * (size_t)cfg.vocab * sizeof(float));
    free_logits(&a);
    free_logits(&b);
}

/* How many devices the backend has: as many as it opens. The CPU's may all be device 0. */
static int32_t count_devices(void)
{
    td_error err = {0};
    int32_t n = 0;

    if (strcmp(ops->name, "cpu") == 0)
        return 1;
    for (td_dev *dev; n < 8; n++) {
        if (ops->dev_open(&(td_dev_options){.index = n, .threads = 1}, &dev, &err) != TD_OK)
            break;
        ops->dev_close(dev);
    }
    return n;
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_ranks_agree_with_one),
        cmocka_unit_test(test_layers_of_20b_agree_with_one_rank),
        cmocka_unit_test(test_model_ranks_repeat_themselves),
        cmocka_unit_test(test_model_ranks_wait_as_long_as_they_are_told),
    };
    td_error err = {0};

    if (td_ops_find(backend(), &ops, &err) != TD_OK || (devices = count_devices()) == 0) {
        print_message("[  SKIPPED ] backend %s has no device here\n", backend());
        return BACKEND_NOT_RUN;
    }
    return RUN_CHOSEN_TESTS(tests, NULL, NULL);
}
