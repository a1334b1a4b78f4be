/* The model against numbers from elsewhere: the specification's float64 model, and Transformers on
 * small random checkpoints (make_golden.py). */
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
#include "tests/golden/spec_model.h"

static void check_ok(td_status st, const td_error *err)
{
    if (st != TD_OK)
        fail_msg("%s: %s", td_status_name(st), err->text);
}

static const float spec_logits_0[11] = {0.047814f,  -0.968686f, 1.078066f, 2.149162f,
                                        0.616890f,  0.259895f,  1.904376f, 1.318702f,
                                        -0.327032f, 0.890893f,  2.428161f};
static const float spec_logits_5[11] = {2.904717f,  -0.642221f, -0.210725f, -3.957322f,
                                        1.364347f,  0.377571f,  -2.336242f, -0.147091f,
                                        -0.576451f, 0.741895f,  3.015943f};

static void spec_model_on(int32_t tp, int32_t ep)
{
    const int32_t tokens[6] = {3, 1, 4, 1, 5, 9}, argmax[6] = {10, 1, 8, 4, 9, 10};
    const uint32_t pages[1] = {1};
    td_model_options opt = {.backend = "cpu",
                            .tp = tp,
                            .ep = ep,
                            .threads = 2,
                            .kv_dtype = TD_KV_F32,
                            .kv_pages = 2,
                            .kv_rings = 2,
                            .ring_pages = 1,
                            .max_tokens = 6};
    td_sampling greedy = {0};
    float logits[6 * 11], again[11];
    int32_t out = 0;
    td_error err = {0};
    td_model *m = NULL;
    spec_model s;

    spec_model_init(&s);
    assert_int_equal(s.last_state, 0x094d0d78);
    assert_float_equal(s.data[TD_W_EMBED][0][0], -0.5278640985, 1e-7);
    assert_float_equal(s.data[TD_W_UNEMBED][0][87], -0.9273360968, 1e-7);
    td_weight_source src = spec_model_source(&s);
    check_ok(td_model_open_source(&src, &s.cfg, &opt, &m, &err), &err);
    td_prefill_step p = {.tokens = tokens,
                         .n = 6,
                         .seq = {.pages = pages, .n_pages = 1, .ring = 1},
                         .sampling = &greedy,
                         .logits = logits};
    check_ok(td_model_prefill(m, &p, &err), &err);
    for (int i = 0; i < 11; i++) {
        assert_float_equal(logits[i], spec_logits_0[i], 1e-5);
        assert_float_equal(logits[5 * 11 + i], spec_logits_5[i], 1e-5);
    }
    for (int t = 0; t < 6; t++) {
        int best = 0;

        for (int i = 1; i < 11; i++)
            best = logits[t * 11 + i] > logits[t * 11 + best] ? i : best;
        assert_int_equal(best, argmax[t]);
    }
    assert_int_equal(p.token, 10);
    /* The same six tokens one by one, as decode steps: the same bits. */
    for (int t = 0; t < 6; t++) {
        td_seq seq = {.pages = (const uint32_t[]){0}, .n_pages = 1, .ring = 0, .pos = t};
        td_decode_step d = {.n = 1,
                            .seqs = &seq,
                            .tokens = &tokens[t],
                            .sampling = &greedy,
                            .logits = again,
                            .out = &out};

        check_ok(td_model_decode(m, &d, &err), &err);
        assert_memory_equal(again, logits + t * 11, sizeof again);
        assert_int_equal(out, argmax[t]);
    }
    td_model_close(m);
    spec_model_fini(&s);
}

static void test_golden_spec_model_on_one_rank(void **state)
{
    (void)state;
    spec_model_on(1, 1);
}

static void test_golden_spec_model_on_two_ranks(void **state)
{
    (void)state;
    spec_model_on(2, 2);
}

/* A .golden file; make_golden.py describes it. */
typedef struct golden_case {
    int32_t n_prompt, n_rows, n_greedy;
    const int32_t *prompt, *rows;
    const float *logits[2]; /* [n_rows, vocab], with an f32 and a bf16 cache */
    const int32_t *greedy[2];
} golden_case;

typedef struct golden {
    char *bytes;
    int32_t vocab, n_cases;
    golden_case c[8];
} golden;

static const void *take(const char **at, const char *end, size_t bytes)
{
    const void *p = *at;

    assert_true((size_t)(end - *at) >= bytes);
    *at += bytes;
    return p;
}

static void read_golden(const char *path, golden *g)
{
    FILE *f = fopen(path, "rb");
    const char *at, *end;
    long size;

    if (f == NULL)
        fail_msg("%s is missing: tests/golden/make_golden.py makes it", path);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    g->bytes = malloc((size_t)size);
    assert_non_null(g->bytes);
    assert_int_equal(fread(g->bytes, 1, (size_t)size, f), size);
    fclose(f);
    at = g->bytes;
    end = at + size;
    assert_memory_equal(take(&at, end, 8), "TDGOLD2", 8);
    memcpy(&g->vocab, take(&at, end, 4), 4);
    memcpy(&g->n_cases, take(&at, end, 4), 4);
    assert_in_range(g->n_cases, 1, 8);
    for (int32_t i = 0; i < g->n_cases; i++) {
        golden_case *c = &g->c[i];

        memcpy(&c->n_prompt, take(&at, end, 12), 12);
        c->prompt = take(&at, end, (size_t)c->n_prompt * 4);
        c->rows = take(&at, end, (size_t)c->n_rows * 4);
        for (int kind = 0; kind < 2; kind++) {
            c->logits[kind] = take(&at, end, (size_t)c->n_rows * (size_t)g->vocab * 4);
            c->greedy[kind] = take(&at, end, (size_t)c->n_greedy * 4);
        }
    }
    assert_ptr_equal(at, end);
}

/* Prefill in one chunk, compare the stored rows, then continue greedily. Returns the largest
 * difference of a logit; *same counts the greedy tokens before the first that differs. */
static double run_case(td_model *m, const golden *g, const golden_case *c, int kind, int32_t *same)
{
    const int32_t *greedy_ids = c->greedy[kind];
    enum { PAGES = 32 };
    uint32_t pages[PAGES];
    td_sampling greedy = {0};
    float *logits = malloc((size_t)c->n_prompt * (size_t)g->vocab * sizeof *logits);
    double worst = 0;
    int32_t token;
    td_error err = {0};

    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = (i * 7 + 3) % PAGES;
    td_prefill_step p = {.tokens = c->prompt,
                         .n = c->n_prompt,
                         .sampling = &greedy,
                         .seq = {.pages = pages, .n_pages = PAGES, .ring = 1},
                         .logits = logits};
    assert_non_null(logits);
    check_ok(td_model_prefill(m, &p, &err), &err);
    for (int32_t r = 0; r < c->n_rows; r++)
        for (int32_t i = 0; i < g->vocab; i++)
            worst = fmax(worst, fabs((double)logits[c->rows[r] * g->vocab + i] -
                                     c->logits[kind][r * g->vocab + i]));
    free(logits);
    token = p.token;
    for (*same = 0; *same < c->n_greedy && token == greedy_ids[*same]; ++*same) {
        td_seq seq = {.pages = pages, .n_pages = PAGES, .ring = 1, .pos = c->n_prompt + *same};
        td_decode_step d = {
            .n = 1, .seqs = &seq, .tokens = &greedy_ids[*same], .sampling = &greedy, .out = &token};

        check_ok(td_model_decode(m, &d, &err), &err);
    }
    return worst;
}

/* worst: the largest difference of a logit that is allowed, or NaN if only the tokens count. */
static void transformers_agree(const char *name, const char *folder, td_kv_dtype kv, double worst,
                               bool same_tokens)
{
    char path[256];
    golden g = {0};
    td_model_config cfg;
    td_checkpoint *ckpt = NULL;
    td_model *m = NULL;
    td_error err = {0};

    snprintf(path, sizeof path, "tests/golden/data/%s.golden", name);
    read_golden(path, &g);
    check_ok(td_model_config_read(folder, &cfg, &err), &err);
    check_ok(td_checkpoint_open(folder, &cfg, &ckpt, &err), &err);
    td_model_options opt = {.backend = "cpu",
                            .tp = 1,
                            .ep = 1,
                            .threads = 2,
                            .kv_dtype = kv,
                            .kv_pages = 32,
                            .kv_rings = 2,
                            .max_tokens = 1024,
                            .ring_pages = td_kv_ring_pages(cfg.window, 1024)};
    check_ok(td_model_open(ckpt, &cfg, &opt, &m, &err), &err);
    td_checkpoint_close(ckpt);
    assert_int_equal(g.vocab, cfg.vocab);
    for (int32_t i = 0; i < g.n_cases; i++) {
        int32_t same;
        double e = run_case(m, &g, &g.c[i], kv == TD_KV_BF16, &same);

        print_message("%s, %s keys and values, prompt of %d: largest logit error %.2g, %d of %d "
                      "greedy tokens\n",
                      name, kv == TD_KV_F32 ? "f32" : "bf16", g.c[i].n_prompt, e, same,
                      g.c[i].n_greedy);
        if (!isnan(worst))
            assert_true(e <= worst);
        if (same_tokens)
            assert_int_equal(same, g.c[i].n_greedy);
    }
    td_model_close(m);
    free(g.bytes);
}

static void test_golden_transformers_within_the_original_context(void **state)
{
    (void)state;
    transformers_agree("published", "tests/golden/data/published", TD_KV_F32, 4e-5, true);
    transformers_agree("published", "tests/golden/data/published", TD_KV_BF16, 1e-3, true);
}

static void test_golden_transformers_past_window_and_original_context(void **state)
{
    (void)state;
    transformers_agree("stretched", "tests/golden/data/stretched", TD_KV_F32, 4e-5, true);
    transformers_agree("stretched", "tests/golden/data/stretched", TD_KV_BF16, 1e-3, true);
}

/* The trained model that the repository carries. */
static void test_golden_transformers_on_tandem_tiny(void **state)
{
    (void)state;
    if (access("tests/golden/data/tandem-tiny.golden", R_OK) != 0 ||
        access("models/tandem-tiny/model.safetensors.index.json", R_OK) != 0)
        skip(); /* make_golden.py record models/tandem-tiny tests/golden/data/tandem-tiny.golden */
    transformers_agree("tandem-tiny", "models/tandem-tiny", TD_KV_F32, 2e-4, true);
    transformers_agree("tandem-tiny", "models/tandem-tiny", TD_KV_BF16, 1e-2, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_spec_model_on_one_rank),
        cmocka_unit_test(test_golden_spec_model_on_two_ranks),
        cmocka_unit_test(test_golden_transformers_within_the_original_context),
        cmocka_unit_test(test_golden_transformers_past_window_and_original_context),
        cmocka_unit_test(test_golden_transformers_on_tandem_tiny),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
