/* The model's interface: refusals, the layer hook, failures of a rank, no allocation in a step. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/comm.h"
#include "common/rank.h"
#include "common/weights.h"
#include "tests/unit/model_fixture.h"

static td_status try_open(const td_model_options *opt, td_error *err)
{
    td_checkpoint *c = NULL;
    td_model *m = NULL;
    td_status st;

    check_ok(td_checkpoint_random(&fixture_config, 1, &c, err), err);
    st = td_model_open(c, &fixture_config, opt, &m, err);
    td_model_close(m);
    td_checkpoint_close(c);
    return st;
}

static void test_model_open_refuses_what_does_not_fit(void **state)
{
    const td_model_options good = {.backend = "cpu",
                                   .tp = 1,
                                   .ep = 1,
                                   .threads = 1,
                                   .kv_pages = 4,
                                   .kv_rings = 1,
                                   .ring_pages = 3,
                                   .max_tokens = 8};
    td_model_options o;
    td_error err = {0};

    (void)state;
    check_ok(try_open(&good, &err), &err);
    o = good, o.backend = "abacus";
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "abacus"));
    o = good, o.tp = 3;
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    assert_string_equal(err.param, "tp");
    o = good, o.tp = 0;
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    o = good, o.tp = 4, o.ep = 3;
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    assert_string_equal(err.param, "ep");
    o = good, o.max_tokens = 0;
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    o = good, o.threads = -1;
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    o = good, o.kv_pages = 0;
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    o = good, o.kv_pages = 1u << 30;
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    o = good, o.ring_pages = 1; /* less than a window */
    assert_int_equal(try_open(&o, &err), TD_INVALID);
    td_model_close(NULL);
}

static void refused(td_status st, const td_error *err, const char *want)
{
    assert_int_equal(st, TD_INVALID);
    if (strstr(err->text, want) == NULL)
        fail_msg("\"%s\" is not in: %s", want, err->text);
}

static void test_model_steps_refuse_bad_input_and_write_nothing(void **state)
{
    fixture f = fixture_open(2, 1, TD_KV_BF16, 64, 4);
    uint64_t bytes = td_model_kv(f.m)->region_bytes;
    char *before = malloc(bytes);
    int32_t tokens[65] = {1, 2, 3}, out[65];
    td_sampling greedy[65] = {0};
    td_seq seq = {.pages = f.pages[0], .n_pages = FIXTURE_PAGES}, seqs[2] = {seq, seq};
    td_prefill_step p = {.tokens = tokens, .n = 3, .seq = seq, .sampling = greedy};
    td_decode_step d = {.n = 2, .seqs = seqs, .tokens = tokens, .sampling = greedy, .out = out};
    uint32_t bad_page[1] = {4 * FIXTURE_PAGES};
    td_error err = {0};

    (void)state;
    assert_non_null(before);
    check_ok(td_model_prefill(f.m, &p, &err), &err);
    memcpy(before, td_model_kv_base(f.m, 0), bytes);

    tokens[2] = 515;
    refused(td_model_prefill(f.m, &p, &err), &err, "515");
    tokens[2] = -1;
    refused(td_model_prefill(f.m, &p, &err), &err, "vocabulary ends at 514");
    assert_int_equal(p.token, -1);
    tokens[2] = 3;
    p.n = 0;
    refused(td_model_prefill(f.m, &p, &err), &err, "0 tokens");
    p.n = 65;
    refused(td_model_prefill(f.m, &p, &err), &err, "1 to 64");
    p.n = 3;
    p.seq.n_pages = 0;
    refused(td_model_prefill(f.m, &p, &err), &err, "0 pages do not cover 3");
    p.seq = seq;
    p.seq.pages = bad_page;
    p.seq.n_pages = 1;
    refused(td_model_prefill(f.m, &p, &err), &err, "page 320");
    p.seq = seq;
    p.seq.ring = 4;
    refused(td_model_prefill(f.m, &p, &err), &err, "ring 4 of 4");
    p.seq = seq;
    p.seq.pos = -1;
    refused(td_model_prefill(f.m, &p, &err), &err, "positions -1");
    p.seq.pos = 8190;
    refused(td_model_prefill(f.m, &p, &err), &err, "8192");
    p.seq.pos = INT32_MAX;
    refused(td_model_prefill(f.m, &p, &err), &err, "the model has 8192");
    seqs[1].pos = 64;
    seqs[1].n_pages = 1;
    refused(td_model_decode(f.m, &d, &err), &err, "sequence 1: 1 pages do not cover 65");
    seqs[1] = seq;
    tokens[1] = 1000;
    refused(td_model_decode(f.m, &d, &err), &err, "token 1 of 2");
    tokens[1] = 1;
    d.n = 65;
    refused(td_model_decode(f.m, &d, &err), &err, "1 to 64");
    d.n = 5;
    refused(td_model_decode(f.m, &d, &err), &err, "5 sequences with 4 window rings");
    d.n = 0;
    refused(td_model_decode(f.m, &d, &err), &err, "0 sequences");
    assert_memory_equal(before, td_model_kv_base(f.m, 0), bytes);
    fixture_close(&f);
    /* A ring that holds a window and a chunk of 1 cannot take a chunk of 64 after 127 others. */
    f = fixture_open(1, 1, TD_KV_BF16, 1, 4);
    p.seq = (td_seq){.pages = f.pages[0], .n_pages = FIXTURE_PAGES, .pos = 500};
    p.n = 2;
    refused(td_model_prefill(f.m, &p, &err), &err, "ring of 2 pages");
    fixture_close(&f);
    free(before);
}

/* What the hook sees: on every rank all layers in order, with this step's rows already there. */
typedef struct seen {
    fixture *f;
    int32_t next[8]; /* by rank */
    int32_t written[8];
} seen;

static void on_layer(void *user, int32_t rank, int32_t layer, td_event *ready)
{
    seen *s = user;
    const td_kv_geometry *g = td_model_kv(s->f->m);
    uint32_t page = g->windowed[layer] ? 0 : s->f->pages[0][0];
    const uint16_t *k = (const void *)((const char *)td_model_kv_base(s->f->m, rank) +
                                       td_kv_offset(g, layer, 0, 0, page, 4));

    if (td_event_query(ready) == TD_OK && s->next[rank] == layer)
        s->next[rank]++;
    for (int32_t i = 0; i < g->head_dim; i++)
        s->written[rank] += k[i] != 0;
}

static void test_model_hook_runs_on_each_rank_once_a_layer_after_the_rows_are_written(void **state)
{
    fixture f = fixture_open(4, 2, TD_KV_BF16, 64, 4);
    int32_t tokens[5] = {1, 2, 3, 4, 5};
    seen s = {.f = &f};
    td_prefill_step p = {.tokens = tokens,
                         .n = 5,
                         .on_layer = on_layer,
                         .user = &s,
                         .seq = {.pages = f.pages[0], .n_pages = 1}};
    td_error err = {0};

    (void)state;
    check_ok(td_model_prefill(f.m, &p, &err), &err);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(s.next[r], 4);
        assert_in_range(s.written[r], 4 * 30, 4 * 32); /* a zero by chance is fine */
    }
    assert_int_equal(p.token, -1); /* none was wanted */
    fixture_close(&f);
}

/* Weights whose tensor cannot be read on one layer: opening fails with the reason and frees all. */
static td_status broken_get(void *user, td_weight role, int32_t layer, td_tensor *out,
                            td_error *err)
{
    if (role == TD_W_O && layer == 2)
        return td_fail(err, TD_IO, "the disk is gone");
    return td_checkpoint_get(user, role, layer, out, err);
}

static void test_model_open_fails_whole_when_a_tensor_cannot_be_read(void **state)
{
    td_model_options o = {.backend = "cpu",
                          .tp = 4,
                          .ep = 1,
                          .threads = 1,
                          .kv_pages = 4,
                          .kv_rings = 1,
                          .ring_pages = 3,
                          .max_tokens = 8};
    td_checkpoint *c = NULL;
    td_model *m = NULL;
    td_error err = {0};

    (void)state;
    check_ok(td_checkpoint_random(&fixture_config, 1, &c, &err), &err);
    td_weight_source src = {c, broken_get, NULL};
    assert_int_equal(td_model_open_source(&src, &fixture_config, &o, &m, &err), TD_IO);
    assert_non_null(strstr(err.text, "the disk is gone"));
    assert_null(m);
    td_checkpoint_close(c);
}

/* Ranks that fail: nobody hangs, the reason comes out, and the next run works. */
typedef struct failing {
    td_comm *comm;
    td_stream *stream;
    int32_t bad;                  /* the rank that fails before the second reduction; -1: none */
    int32_t odd;                  /* buffers alternate, so that a stale pointer shows */
    float a[2][4][3], b[2][4][3]; /* others may read a part until all ranks are done */
    float x[4][3];
} failing;

static td_status fail_in_the_middle(void *ctx, int32_t rank, td_error *err)
{
    failing *f = ctx;
    float *a = f->a[f->odd][rank], *b = f->b[f->odd][rank];
    td_status st;

    a[0] = (float)rank, a[1] = 1, a[2] = 2;
    b[0] = 1, b[1] = 0, b[2] = (float)rank;
    st = td_comm_reduce_add(f->comm, rank, f->stream, a, 3, true, f->x[rank], err);

    if (st == TD_OK && rank == f->bad) {
        td_comm_abort(f->comm);
        return td_fail(err, TD_DEVICE, "rank %d fell over", rank);
    }
    if (st == TD_OK)
        st = td_comm_reduce_add(f->comm, rank, f->stream, b, 3, false, f->x[rank], err);
    return st;
}

static void test_comm_a_rank_that_fails_ends_the_step_for_all(void **state)
{
    const td_ops *ops;
    td_dev *dev;
    td_ranks *ranks = NULL;
    failing f = {.bad = -1};
    td_error err = {0};

    (void)state;
    check_ok(td_ops_find("cpu", &ops, &err), &err);
    check_ok(ops->dev_open(&(td_dev_options){.threads = 1}, &dev, &err), &err);
    f.stream = ops->dev_stream(dev);
    check_ok(td_ranks_create(4, &ranks, &err), &err);
    check_ok(td_comm_threads_open(ops, 4, &f.comm, &err), &err);
    for (int round = 0; round < 200; round++) {
        f.bad = round % 5 - 1;
        memset(f.a[f.odd], 0xff, sizeof f.a[0]);
        memset(f.b[f.odd], 0xff, sizeof f.b[0]);
        f.odd ^= 1;
        td_status st = td_ranks_run(ranks, fail_in_the_middle, &f, &err);

        if (f.bad < 0) {
            check_ok(st, &err);
            for (int r = 0; r < 4; r++) {
                assert_true(f.x[r][0] == 0 + 1 + 2 + 3 + 4);
                assert_true(f.x[r][1] == 4);
                assert_true(f.x[r][2] == 8 + 6);
            }
            continue;
        }
        assert_int_equal(st, TD_DEVICE); /* and not the others' TD_CANCELED */
        assert_non_null(strstr(err.text, "fell over"));
        td_comm_reset(f.comm);
    }
    td_comm_close(f.comm);
    td_ranks_free(ranks);
    ops->dev_close(dev);
}

/* --- a backend whose ranks wait for each other on devices ------------------------------------- */

enum { LARGE_STEP = 300 };

static _Atomic int products[LARGE_STEP + 1], stored; /* by rows; rows that went to the cache */

static td_status own_comm(const td_comm_options *o, td_comm **out, td_error *err)
{
    return td_comm_threads_open(&td_ops_cpu, o->n, out, err);
}

static td_status counted_attn_in(td_stream *s, const td_attn_in_args *a, td_error *err)
{
    atomic_fetch_add(&products[a->T], 1);
    for (int32_t i = 0; i < a->T; i++)
        atomic_fetch_add(&stored, a->slot[i] != -1);
    return td_ops_cpu.attn_in(s, a, err);
}

static void test_model_runs_products_of_every_size_on_each_rank_before_a_step(void **state)
{
    td_ops ops = td_ops_cpu;
    td_model_options opt = {.backend = "cpu",
                            .ops = &ops,
                            .tp = 2,
                            .ep = 1,
                            .threads = 2,
                            .kv_dtype = TD_KV_BF16,
                            .kv_pages = 2,
                            .kv_rings = 1,
                            .ring_pages = td_kv_ring_pages(fixture_config.window, LARGE_STEP),
                            .max_tokens = LARGE_STEP};
    td_checkpoint *c = NULL;
    td_model *m = NULL;
    td_error err = {0};

    (void)state;
    ops.comm_open = own_comm;
    ops.attn_in = counted_attn_in;
    check_ok(td_checkpoint_random(&fixture_config, 11, &c, &err), &err);
    check_ok(td_model_open(c, &fixture_config, &opt, &m, &err), &err);
    td_checkpoint_close(c);
    for (int rows = 0; rows <= LARGE_STEP; rows++)
        assert_int_equal(products[rows], rows == 2 * TD_SMALL_STEP || rows == LARGE_STEP ? 2 : 0);
    assert_int_equal(stored, 0);
    td_model_close(m);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static size_t in_use(void)
{
    struct mallinfo2 i = mallinfo2();

    return i.uordblks + i.hblkhd;
}

static void test_model_steps_allocate_nothing(void **state)
{
    fixture f = fixture_open(2, 1, TD_KV_BF16, 64, 8);
    int32_t tokens[64], out[8];
    td_sampling sampling[8];
    td_seq seqs[8];
    td_error err = {0};
    size_t before;

    (void)state;
    for (int i = 0; i < 64; i++)
        tokens[i] = fixture_token(i);
    for (int i = 0; i < 8; i++) {
        seqs[i] = (td_seq){.pages = f.pages[i % 4], .n_pages = 4, .ring = (uint32_t)i, .pos = 64};
        sampling[i] = (td_sampling){.temperature = 1, .top_p = 0.9f, .top_k = 50};
    }
    td_prefill_step p = {.tokens = tokens, .n = 64, .sampling = sampling, .seq = seqs[0]};
    td_decode_step d = {.n = 8, .seqs = seqs, .tokens = tokens, .sampling = sampling, .out = out};
    p.seq.pos = 0;
    before = in_use();
    for (int i = 0; i < 3; i++) {
        check_ok(td_model_prefill(f.m, &p, &err), &err);
        check_ok(td_model_decode(f.m, &d, &err), &err);
        assert_int_equal(in_use(), before);
    }
    fixture_close(&f);
}
#endif

/* Prefill's and decode's, against the logits that the step itself gives. */
static void same_logprobs(const float *logits, int32_t vocab, int32_t token, const td_logprobs *got)
{
    td_logprobs want;

    td_logprobs_of(logits, vocab, token, 7, &want);
    assert_int_equal(got->n, 7);
    assert_true(fabsf(got->chosen - want.chosen) < 1e-4f);
    for (int32_t i = 0; i < want.n; i++) {
        assert_int_equal(got->id[i], want.id[i]);
        assert_true(fabsf(got->logprob[i] - want.logprob[i]) < 1e-4f);
    }
}

static void test_model_logprobs_are_those_of_its_logits(void **state)
{
    enum { PROMPT = 8, ROWS = 3 };
    fixture f = fixture_open(2, 1, TD_KV_BF16, 64, 4);
    const td_token_bias bias = {11, 50};
    td_sampling sampling[ROWS] = {{.logprobs = true, .top_logprobs = 7},
                                  {.logprobs = true, .top_logprobs = 7, .n_bias = 1, .bias = &bias},
                                  {.logprobs = false}};
    float *logits = malloc((size_t)PROMPT * (size_t)f.vocab * sizeof *logits);
    int32_t tokens[PROMPT], out[ROWS];
    td_logprobs got[ROWS];
    td_seq seqs[ROWS];
    td_error err = {0};

    (void)state;
    assert_non_null(logits);
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = fixture_token(i);
    for (int i = 0; i < ROWS; i++) {
        td_prefill_step p = {.tokens = tokens,
                             .n = PROMPT,
                             .seq = {.pages = f.pages[i], .n_pages = 1, .ring = (uint32_t)i},
                             .sampling = &sampling[i],
                             .logits = logits};

        check_ok(td_model_prefill(f.m, &p, &err), &err);
        if (i < 2)
            same_logprobs(logits + (size_t)(PROMPT - 1) * (size_t)f.vocab, f.vocab, p.token,
                          &p.logprobs);
        else
            assert_int_equal(p.logprobs.n, -1);
        seqs[i] = p.seq;
        seqs[i].pos = PROMPT;
    }
    td_decode_step d = {.n = ROWS,
                        .seqs = seqs,
                        .tokens = tokens,
                        .sampling = sampling,
                        .logits = logits,
                        .out = out,
                        .logprobs = got};
    check_ok(td_model_decode(f.m, &d, &err), &err);
    for (int i = 0; i < 2; i++)
        same_logprobs(logits + (size_t)i * (size_t)f.vocab, f.vocab, out[i], &got[i]);
    assert_int_equal(got[2].n, -1);
    assert_int_equal(out[1], 11); /* forced; what the model thought of it is another matter */
    assert_true(got[1].chosen < got[1].logprob[0]);
    free(logits);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_open_refuses_what_does_not_fit),
        cmocka_unit_test(test_model_steps_refuse_bad_input_and_write_nothing),
        cmocka_unit_test(test_model_hook_runs_on_each_rank_once_a_layer_after_the_rows_are_written),
        cmocka_unit_test(test_model_open_fails_whole_when_a_tensor_cannot_be_read),
        cmocka_unit_test(test_comm_a_rank_that_fails_ends_the_step_for_all),
        cmocka_unit_test(test_model_logprobs_are_those_of_its_logits),
        cmocka_unit_test(test_model_runs_products_of_every_size_on_each_rank_before_a_step),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_model_steps_allocate_nothing),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
