/* A whole model on the backend under test (TANDEM_TEST_BACKEND) against the CPU's, whose own
 * numbers tests/golden holds against Transformers: logits of a prompt in chunks, greedy
 * continuation, and that a row's logits keep their bits in prefill, in decode and in any batch.
 *
 * Activations are bf16 on a GPU and f32 on the CPU, so logits differ by a little in every row, and
 * by more in those where the two ways fall on different sides of a near tie between experts (bf16
 * keys and values alone do that to the CPU's own logits). So the bounds are on all rows together:
 * the root of the mean square difference against the largest logit, the divergence of the
 * distributions per token, and how often the likeliest token differs. With TANDEM_TEST_LARGE set,
 * two layers of gpt-oss-20b's shape with random weights as well. Steps as graphs, and tokens chosen
 * on the device: test_model_decode.c. */
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

enum { PAGES = 32, CHUNK = 200, RINGS = 4, STEPS = 24 };

typedef struct bounds {
    double rms;    /* over the largest logit */
    double kl;     /* nats a token */
    double differ; /* share of rows with another likeliest token */
} bounds;

/* The same weights on both. */
typedef struct pair {
    td_model *cpu, *other;
    int32_t vocab;
    uint32_t pages[RINGS][PAGES];
} pair;

static td_model *open_on(const char *name, td_checkpoint *ckpt, const td_model_config *cfg)
{
    td_model_options opt = {.backend = name,
                            .tp = 1,
                            .ep = 1,
                            .kv_dtype = TD_KV_BF16,
                            .kv_pages = RINGS * PAGES,
                            .kv_rings = RINGS,
                            .ring_pages = td_kv_ring_pages(cfg->window, CHUNK),
                            .max_tokens = CHUNK};
    td_usec t0 = td_now_us();
    td_model *m = NULL;
    td_error err = {0};

    check_ok(td_model_open(ckpt, cfg, &opt, &m, &err), &err);
    print_message("report: %s: weights of %.1f MB in %.2f s\n", name,
                  (double)td_model_weight_bytes(m) / 1e6, (double)(td_now_us() - t0) / 1e6);
    return m;
}

static void open_pair(pair *p, td_checkpoint *ckpt, const td_model_config *cfg)
{
    p->cpu = open_on("cpu", ckpt, cfg);
    p->other = open_on(backend(), ckpt, cfg);
    p->vocab = cfg->vocab;
    for (uint32_t s = 0; s < RINGS; s++) /* sequences' pages interleaved, backwards */
        for (uint32_t i = 0; i < PAGES; i++)
            p->pages[s][i] = RINGS * (PAGES - 1 - i) + s;
    td_checkpoint_close(ckpt);
}

static void close_pair(pair *p)
{
    td_model_close(p->cpu);
    td_model_close(p->other);
}

static td_seq seq_at(const pair *p, uint32_t s, int32_t pos)
{
    return (td_seq){.pages = p->pages[s], .n_pages = PAGES, .ring = s, .pos = pos};
}

/* Logits of tokens[0 .. n) at positions 0 .. n - 1 of sequence s, in chunks. */
static float *prefill(const pair *p, td_model *m, uint32_t s, const int32_t *tokens, int32_t n,
                      int32_t chunk)
{
    float *logits = malloc((size_t)n * (size_t)p->vocab * sizeof *logits);
    td_error err = {0};

    assert_non_null(logits);
    for (int32_t at = 0; at < n; at += chunk) {
        td_prefill_step step = {.tokens = tokens + at,
                                .n = n - at < chunk ? n - at : chunk,
                                .seq = seq_at(p, s, at),
                                .logits = logits + (size_t)at * (size_t)p->vocab};

        check_ok(td_model_prefill(m, &step, &err), &err);
    }
    return logits;
}

/* One token a sequence: sequences seqs[0 .. n), all at their own positions. */
static void decode(const pair *p, td_model *m, int32_t n, const uint32_t *seqs, const int32_t *pos,
                   const int32_t *tokens, float *logits, int32_t *out)
{
    const td_sampling greedy[RINGS] = {{0}};
    td_seq s[RINGS];
    td_error err = {0};

    for (int32_t i = 0; i < n; i++)
        s[i] = seq_at(p, seqs[i], pos[i]);
    check_ok(td_model_decode(m,
                             &(td_decode_step){.n = n,
                                               .seqs = s,
                                               .tokens = tokens,
                                               .sampling = greedy,
                                               .logits = logits,
                                               .out = out},
                             &err),
             &err);
}

typedef struct comparison {
    double largest, worst, square, kl; /* logits; differences; sum over rows */
    int32_t rows, differ;
} comparison;

static int32_t best_of(const float *row, int32_t vocab)
{
    int32_t best = 0;

    for (int32_t i = 1; i < vocab; i++)
        best = row[i] > row[best] ? i : best;
    return best;
}

/* log sum exp */
static double log_total(const float *row, int32_t vocab)
{
    double top = row[best_of(row, vocab)], sum = 0;

    for (int32_t i = 0; i < vocab; i++)
        sum += exp(row[i] - top);
    return top + log(sum);
}

static void compare(comparison *c, const pair *p, const float *want, const float *got, int32_t rows)
{
    for (int32_t r = 0; r < rows; r++, want += p->vocab, got += p->vocab) {
        double zw = log_total(want, p->vocab), zg = log_total(got, p->vocab);

        for (int32_t i = 0; i < p->vocab; i++) {
            double d = (double)got[i] - want[i];

            assert_false(isnan(d));
            c->largest = fmax(c->largest, fabs(want[i]));
            c->worst = fmax(c->worst, fabs(d));
            c->square += d * d;
            c->kl += exp(want[i] - zw) * (zg - zw - d);
        }
        c->rows++;
        c->differ += best_of(want, p->vocab) != best_of(got, p->vocab);
    }
}

static void check_comparison(const char *what, const pair *p, const comparison *c, bounds b)
{
    double n = c->rows, rms = sqrt(c->square / (n * p->vocab)) / c->largest;

    print_message("report: %s %s: %d rows, largest logit %.2f, rms difference %.3f%% of it (%.3f%% "
                  "allowed), worst %.2f%%; divergence %.2g nats a token (%.2g); another likeliest "
                  "token in %d (%d)\n",
                  backend(), what, c->rows, c->largest, 100 * rms, 100 * b.rms,
                  100 * c->worst / c->largest, c->kl / n, b.kl, c->differ, (int)(n * b.differ));
    assert_true(rms <= b.rms);
    assert_true(c->kl / n <= b.kl);
    assert_true(c->differ <= n * b.differ);
}

static void random_tokens(int32_t *tokens, int32_t n, int32_t vocab, uint32_t state)
{
    for (int32_t i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        tokens[i] = (int32_t)((state >> 8) % (uint32_t)vocab);
    }
}

/* A text of the model's own: what it was trained for. tokens[0] is given. */
static void sample_text(pair *p, int32_t *tokens, int32_t n)
{
    td_sampling s = {.temperature = 1, .top_p = 1, .seed = 5};
    td_error err = {0};

    for (int32_t i = 0; i + 1 < n; i++) {
        td_seq seq = seq_at(p, 0, i);

        s.index = (uint64_t)i;
        check_ok(td_model_decode(p->cpu,
                                 &(td_decode_step){.n = 1,
                                                   .seqs = &seq,
                                                   .tokens = &tokens[i],
                                                   .sampling = &s,
                                                   .out = &tokens[i + 1]},
                                 &err),
                 &err);
    }
}

/* The prompt on both, then the CPU's greedy continuation on both, token by token. */
static void agree(pair *p, const char *what, const int32_t *prompt, int32_t n, int32_t steps,
                  bounds b)
{
    float *row = malloc(2 * (size_t)p->vocab * sizeof *row), *want, *got;
    comparison all = {0}, generated = {0};
    int32_t token, next, other;

    assert_non_null(row);
    want = prefill(p, p->cpu, 1, prompt, n, CHUNK);
    got = prefill(p, p->other, 1, prompt, n, CHUNK);
    compare(&all, p, want, got, n);
    next = best_of(want + (size_t)(n - 1) * (size_t)p->vocab, p->vocab);
    for (int32_t pos = n; pos < n + steps; pos++) {
        token = next;
        decode(p, p->other, 1, (uint32_t[]){1}, &pos, &token, row + p->vocab, &other);
        decode(p, p->cpu, 1, (uint32_t[]){1}, &pos, &token, row, &next);
        assert_int_equal(other, best_of(row + p->vocab, p->vocab));
        compare(&generated, p, row, row + p->vocab, 1);
    }
    check_comparison(what, p, &all, b);
    check_comparison("its greedy continuation", p, &generated, b);
    free(got);
    free(want);
    free(row);
}

/* One row, one result: whatever the chunks of up to TD_SMALL_STEP tokens, alone or in a batch.
 * Larger chunks may give other bits, but always the same; so may prefill and decode, except on the
 * CPU. */
static void keep_bits(pair *p, int32_t n)
{
    enum { SMALL = 100 };
    size_t row = (size_t)p->vocab * sizeof(float);
    int32_t tokens[RINGS][2 * CHUNK], out[RINGS];
    float *once, *again, *whole[RINGS], *batch = malloc(RINGS * row), *alone = malloc(row);
    bool cpu = strcmp(backend(), "cpu") == 0;

    assert_true(n + RINGS <= 2 * CHUNK && n > TD_SMALL_STEP && (int)SMALL <= (int)TD_SMALL_STEP);
    assert_non_null(batch);
    assert_non_null(alone);
    for (uint32_t s = 0; s < RINGS; s++) {
        random_tokens(tokens[s], n + RINGS, p->vocab, 100 + s);
        whole[s] = prefill(p, p->other, s, tokens[s], n + (int32_t)s, SMALL);
    }
    once = prefill(p, p->other, 0, tokens[0], n, CHUNK);
    again = prefill(p, p->other, 0, tokens[0], n, CHUNK);
    assert_memory_equal(again, once, (size_t)n * row);
    free(again);
    free(once);
    again = prefill(p, p->other, 0, tokens[0], n, 67); /* also what is in the cache from here on */
    assert_memory_equal(again, whole[0], (size_t)n * row);
    free(again);
    for (int32_t step = 2; step > 0; step--) { /* the last tokens once more, as decode steps */
        uint32_t seqs[RINGS] = {3, 0, 2, 1};
        int32_t pos[RINGS], token[RINGS];

        for (int i = 0; i < RINGS; i++) {
            pos[i] = n + (int32_t)seqs[i] - step;
            token[i] = tokens[seqs[i]][pos[i]];
        }
        decode(p, p->other, RINGS, seqs, pos, token, batch, out);
        for (int i = 0; i < RINGS; i++) {
            float *in_batch = batch + (size_t)i * (size_t)p->vocab;

            decode(p, p->other, 1, &seqs[i], &pos[i], &token[i], alone, out);
            assert_memory_equal(in_batch, alone, row);
            if (cpu)
                assert_memory_equal(in_batch, whole[seqs[i]] + (size_t)pos[i] * (size_t)p->vocab,
                                    row);
        }
    }
    for (uint32_t s = 0; s < RINGS; s++)
        free(whole[s]);
    free(batch);
    free(alone);
}

static void test_tandem_tiny_agrees_with_the_cpu(void **state)
{
    td_model_config cfg;
    int32_t tokens[300] = {START};
    td_checkpoint *ckpt = NULL;
    td_error err = {0};
    pair p;

    (void)state;
    if (access(TINY "/config.json", R_OK) != 0)
        skip();
    check_ok(td_model_config_read(TINY, &cfg, &err), &err);
    check_ok(td_checkpoint_open(TINY, &cfg, &ckpt, &err), &err);
    open_pair(&p, ckpt, &cfg);
    sample_text(&p, tokens, 300);
    agree(&p, "tandem-tiny", tokens, 300, STEPS, (bounds){0.01, 0.01, 0.05});
    keep_bits(&p, 190);
    close_pair(&p);
}

/* As published but for depth and vocabulary, which cost the CPU time and show nothing more. */
static void test_layers_of_20b_agree_with_the_cpu(void **state)
{
    td_model_config cfg = {.n_layers = 2,
                           .hidden = 2880,
                           .n_q_heads = 64,
                           .n_kv_heads = 8,
                           .head_dim = 64,
                           .n_experts = 32,
                           .top_k = 4,
                           .inter = 2880,
                           .vocab = 4096,
                           .window = 128,
                           .windowed = {true},
                           .max_positions = 131072,
                           .eps = 1e-5f,
                           .swiglu_limit = 7,
                           .rope_theta = 150000,
                           .yarn_factor = 32,
                           .yarn_beta_fast = 32,
                           .yarn_beta_slow = 1,
                           .yarn_original_positions = 4096};
    int32_t tokens[300] = {START};
    td_checkpoint *ckpt = NULL;
    td_error err = {0};
    pair p;

    (void)state;
    if (getenv("TANDEM_TEST_LARGE") == NULL)
        skip();
    check_ok(td_checkpoint_random(&cfg, 1, &ckpt, &err), &err);
    open_pair(&p, ckpt, &cfg);
    random_tokens(tokens, 260, p.vocab, 7);
    agree(&p, "two layers of 20b", tokens, 260, STEPS, (bounds){0.01, 0.01, 0.1});
    keep_bits(&p, 140);
    close_pair(&p);
}

static void test_a_rank_on_no_device_is_refused(void **state)
{
    const td_ops *ops = backend_ops();
    td_error err = {0};
    td_model_config cfg;
    td_checkpoint *ckpt = NULL;
    td_model *m = NULL;

    (void)state;
    if (strcmp(ops->name, "cpu") == 0 || access(TINY "/config.json", R_OK) != 0)
        skip();
    check_ok(td_model_config_read(TINY, &cfg, &err), &err);
    check_ok(td_checkpoint_open(TINY, &cfg, &ckpt, &err), &err);
    td_model_options opt = {.backend = backend(),
                            .tp = 2,
                            .ep = 1,
                            .devices = (const int32_t[]){0, 99},
                            .kv_pages = 4,
                            .kv_rings = 1,
                            .ring_pages = td_kv_ring_pages(cfg.window, 1),
                            .max_tokens = 1};
    assert_int_equal(td_model_open(ckpt, &cfg, &opt, &m, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "no device 99"));
    td_checkpoint_close(ckpt);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tandem_tiny_agrees_with_the_cpu),
        cmocka_unit_test(test_layers_of_20b_agree_with_the_cpu),
        cmocka_unit_test(test_a_rank_on_no_device_is_refused),
    };

    if (backend_ops() == NULL)
        return BACKEND_NOT_RUN;
    return RUN_CHOSEN_TESTS(tests, NULL, NULL);
}
