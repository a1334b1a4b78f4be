/* The steps made of one matrix product, and those around them: embed, add, attn_out, router, head,
 * each against float64, and each row against itself alone. attn_in: test_ops_attn_in.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/harness.h"
#include "tests/ops/ref.h"

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

/* Host copy of activations as the device has them. */
static double *widen(harness *h, const float *x, size_t n, td_elt elt)
{
    double *d = (double *)(void *)host_floats(h, 2 * n);

    for (size_t i = 0; i < n; i++)
        d[i] = elt == TD_ELT_F32 ? x[i] : round_bf16(x[i]);
    return d;
}

/* Steps whose rows have the bits of any other such step. */
static bool small_step(const harness *h, int32_t T)
{
    return T <= TD_SMALL_STEP || h->ops->act == TD_ELT_F32; /* the CPU has one kernel for all */
}

static void attn_out_case(harness *h, const dense_case *c, td_elt elt)
{
    size_t n = (size_t)c->T * (size_t)c->N, nx = (size_t)c->T * (size_t)c->K;
    float *x = random_floats(h, nx, 1, true);
    float *w = random_floats(h, (size_t)c->N * (size_t)c->K, 0.1, elt == TD_ELT_BF16);
    float *b = random_floats(h, (size_t)c->N, 1, true), *got = host_floats(h, n);
    float *alone = host_floats(h, (size_t)c->N);
    double *want = (double *)(void *)host_floats(h, 2 * n);
    size_t act = td_elt_bytes(h->ops->act);
    td_dims dims = {.T = c->T, .D = c->N, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .head_rows = 1};
    td_attn_out_args a = {.T = c->T,
                          .D = c->N,
                          .Hd = c->K,
                          .o = dev_act(h, x, nx),
                          .w = dev_matrix(h, TD_FORM_DENSE, elt, w, 1, c->N, c->K),
                          .bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b, 1, c->N, 1),
                          .out = dev_poison(h, n * act),
                          .ws = dev_ws(h, &dims)};
    td_error err = {0};
    float *before;

    check_ok(h->ops->attn_out(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, n, got);
    ref_dense(c->T, c->N, c->K, widen(h, x, nx, h->ops->act), w, b, want);
    check_close("attn_out", got, want, n, h->tol->dense);
    /* A row alone: the same bits, if this is not a step that may have other kernels. */
    for (int32_t t = 0; t < c->T && small_step(h, c->T); t += c->T / 5 + 1) {
        td_attn_out_args one = a;

        one.T = 1;
        one.o = (const char *)a.o + (size_t)t * (size_t)c->K * act;
        one.out = dev_poison(h, (size_t)c->N * act);
        check_ok(h->ops->attn_out(h->s, &one, &err), &err);
        read_elts(h, one.out, h->ops->act, (size_t)c->N, alone);
        assert_memory_equal(alone, got + (size_t)t * (size_t)c->N, (size_t)c->N * 4);
    }
    a.x = some_resid(h, n);
    before = read_resid(h, a.x, n);
    check_ok(h->ops->attn_out(h->s, &a, &err), &err);
    if (small_step(h, c->T)) {
        check_added(h, a.x, before, got, n);
    } else { /* perhaps without rounding to what out holds */
        const float *after = read_resid(h, a.x, n);

        for (size_t i = 0; i < n; i++)
            got[i] = after[i] - before[i];
        check_close("attn_out to x", got, want, n, h->tol->dense);
    }
    a.x = NULL;
    a.bias = NULL;
    check_ok(h->ops->attn_out(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, n, got);
    ref_dense(c->T, c->N, c->K, widen(h, x, nx, h->ops->act), w, NULL, want);
    check_close("attn_out without bias", got, want, n, h->tol->dense);
    harness_clear(h);
}

static void test_attn_out_agrees_with_float64(void **state)
{
    for (size_t i = 0; i < N_OF(dense_cases); i++) {
        attn_out_case(*state, &dense_cases[i], TD_ELT_BF16);
        if (((harness *)*state)->ops->act == TD_ELT_F32)
            attn_out_case(*state, &dense_cases[i], TD_ELT_F32);
    }
}

static void test_attn_out_refuses_a_matrix_of_another_shape(void **state)
{
    harness *h = *state;
    float *w = random_floats(h, 64, 1, true);
    const td_matrix *m = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, 8, 8);
    td_error err = {0};

    assert_int_equal(
        h->ops->attn_out(h->s, &(td_attn_out_args){.T = 1, .D = 8, .Hd = 9, .w = m}, &err),
        TD_INVALID);
    assert_non_null(strstr(err.text, "[8, 9]"));
    harness_clear(h);
}

static void embed_case(harness *h, int32_t D, td_elt elt)
{
    enum { FIRST = 10, ROWS = 5, T = 4 };
    size_t n = (size_t)(T * D);
    float *table = random_floats(h, (size_t)(ROWS * D), 1, true), *got = host_floats(h, n);
    const int32_t tokens[T] = {12, 9, 14, 15};
    td_error err = {0};
    td_embed_args a = {.T = T,
                       .D = D,
                       .first = FIRST,
                       .tokens = dev_i32(h, tokens, T),
                       .table = dev_matrix(h, TD_FORM_ROWS, elt, table, 1, ROWS, D),
                       .out = dev_poison(h, n * 4)};

    check_ok(h->ops->embed(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, n, got);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) {
            bool mine = tokens[t] >= FIRST && tokens[t] < FIRST + ROWS;
            float want = mine ? table[(tokens[t] - FIRST) * D + i] : 0;
            assert_true(got[t * D + i] == want);
        }
    harness_clear(h);
}

static void test_embed_gathers_its_rows_and_zeros_the_others(void **state)
{
    embed_case(*state, 65, TD_ELT_BF16);
    embed_case(*state, 2880, TD_ELT_BF16);
    embed_case(*state, 64, TD_ELT_F32);
}

static void test_add_sums_parts_in_rank_order(void **state)
{
    harness *h = *state;
    const size_t sizes[] = {1, 63, 9001, 9004};

    for (int parts = 1; parts <= 8; parts++)
        for (size_t s = 0; s < N_OF(sizes); s++)
            for (int clear = 0; clear < 2; clear++) {
                size_t n = sizes[s];
                float *x = random_floats(h, n, 1, true), *got = host_floats(h, n), *p[8];
                double *want = (double *)(void *)host_floats(h, 2 * n);
                const void *dev[8];
                td_error err = {0};
                td_add_args a = {
                    .n = n, .n_parts = parts, .clear = clear, .part = dev, .x = dev_resid(h, x, n)};

                for (int r = 0; r < parts; r++) {
                    p[r] = random_floats(h, n, 1, true);
                    dev[r] = dev_act(h, p[r], n);
                }
                check_ok(h->ops->add(h->s, &a, &err), &err);
                read_elts(h, a.x, h->ops->resid, n, got);
                for (size_t i = 0; i < n; i++) {
                    float sum = p[0][i];

                    for (int r = 1; r < parts; r++)
                        sum += p[r][i];
                    want[i] = clear ? sum : x[i] + sum;
                }
                check_close("add", got, want, n, h->ops->resid == TD_ELT_F32 ? 1e-7 : 4e-3);
                harness_clear(h);
            }
}

static void out_steps(harness *h, int32_t N, int32_t K, int32_t most)
{
    size_t n = (size_t)(most + 1) * (size_t)N, act = td_elt_bytes(h->ops->act);
    float *x = random_floats(h, (size_t)most * (size_t)K, 1, true);
    float *w = random_floats(h, (size_t)N * (size_t)K, 0.1, true);
    float *b = random_floats(h, (size_t)N, 1, true), *all = host_floats(h, n);
    float *got = host_floats(h, n);
    double *want = (double *)(void *)host_floats(h, 2 * n);
    td_dims dims = {.T = most, .D = N, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .head_rows = 1};
    td_attn_out_args a = {.D = N,
                          .Hd = K,
                          .w = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, N, K),
                          .bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b, 1, N, 1),
                          .ws = dev_ws(h, &dims)};
    const char *o = dev_act(h, x, (size_t)most * (size_t)K);
    char *ones = malloc(n * act);
    td_error err = {0};

    assert_non_null(ones);
    memset(ones, 0xff, n * act);
    a.out = dev_poison(h, n * act);
    ref_dense(most, N, K, widen(h, x, (size_t)most * (size_t)K, h->ops->act), w, b, want);
    for (int i = -1; i < (int)N_OF(step_rows); i++) {
        int32_t T = i < 0 ? TD_SMALL_STEP : step_rows[i], first = i < 0 ? 0 : (most - T) / 3;
        size_t nt = (size_t)T * (size_t)N, at = (size_t)first * (size_t)N;

        if (T > most || (harness_small() && i > 0 && i % 3 != 0))
            continue;
        check_ok(h->ops->copy_in(h->s, a.out, ones, n * act, &err), &err);
        a.T = T;
        a.o = o + (size_t)first * (size_t)K * act;
        check_ok(h->ops->attn_out(h->s, &a, &err), &err);
        read_elts(h, a.out, h->ops->act, nt + (size_t)N, i < 0 ? all : got);
        if (i < 0)
            continue;
        check_close("attn_out", got, want + at, nt, h->tol->dense);
        for (size_t j = nt; j < nt + (size_t)N; j++)
            assert_true(isnan(got[j]));
        if (first + T <= TD_SMALL_STEP) /* bit for bit what the step of 128 gave */
            assert_memory_equal(got, all + at, nt * 4);
    }
    free(ones);
    harness_clear(h);
}

static void test_attn_out_agrees_at_every_size_of_step_and_rows_stay_the_same(void **state)
{
    if (HARNESS_FEW)
        skip();
    out_steps(*state, 256, 1024, 513); /* tandem-tiny */
    out_steps(*state, 131, 72, 200);   /* rows that are no multiple of anything */
    out_steps(*state, 2880, 512, 128); /* a shard of gpt-oss */
    out_steps(*state, 40, 4096, 128);
    out_steps(*state, 24, 8, 129);
}

/* Any run of a step's tokens, as a step of its own on the same side of TD_SMALL_STEP, gets the same
 * bits; and so does the step when its last rows are padding, which choose nobody. */
static void router_parts(harness *h, const td_router_args *all, const float *t, const int32_t *idx,
                         const float *prob)
{
    static const int32_t sizes[] = {1, 2, 3, 8, 9, 17, 64, 65, TD_SMALL_STEP + 1, 192};
    const int32_t T = all->T, D = all->D, k = all->k;
    size_t act = td_elt_bytes(h->ops->act), resid = td_elt_bytes(h->ops->resid);
    float *t2 = host_floats(h, (size_t)(T * D)), *prob2 = host_floats(h, (size_t)(T * k));
    int32_t *idx2 = (int32_t *)(void *)host_floats(h, (size_t)(T * k)), live = T / 2;
    td_router_args a = *all;
    td_error err = {0};

    for (size_t i = 0; i < N_OF(sizes) && sizes[i] <= T; i++)
        for (int32_t from = 0; from + sizes[i] <= T; from += harness_small() ? T : T / 3 + 1) {
            size_t n = (size_t)sizes[i];

            if (T > TD_SMALL_STEP && sizes[i] <= TD_SMALL_STEP)
                break;
            a.T = sizes[i];
            a.x = (const char *)all->x + (size_t)(from * D) * resid;
            check_ok(h->ops->router(h->s, &a, &err), &err);
            read_elts(h, a.t, h->ops->act, n * (size_t)D, t2);
            read_i32(h, a.idx, n * (size_t)k, idx2);
            read_elts(h, a.prob, TD_ELT_F32, n * (size_t)k, prob2);
            assert_memory_equal(t2, t + from * D, n * (size_t)D * 4);
            assert_memory_equal(idx2, idx + from * k, n * (size_t)k * 4);
            assert_memory_equal(prob2, prob + from * k, n * (size_t)k * 4);
        }
    a = *all;
    a.t = dev_poison(h, (size_t)(T * D) * act);
    a.live = dev_i32(h, &live, 1);
    check_ok(h->ops->router(h->s, &a, &err), &err);
    read_i32(h, a.idx, (size_t)(T * k), idx2);
    read_elts(h, a.prob, TD_ELT_F32, (size_t)(T * k), prob2);
    assert_memory_equal(idx2, idx, (size_t)(live * k) * 4);
    assert_memory_equal(prob2, prob, (size_t)(live * k) * 4);
    for (int32_t i = live * k; i < T * k; i++) {
        assert_int_equal(idx2[i], -1);
        assert_float_equal(prob2[i], 0, 0);
    }
}

static void router_case_on(harness *h, const router_case *c)
{
    size_t nt = (size_t)(c->T * c->D), nk = (size_t)(c->T * c->k), nm = (size_t)(c->T * c->M);
    float *x = random_floats(h, nt, 4, true), *g = random_floats(h, (size_t)c->D, 2, true);
    float *w = random_floats(h, (size_t)(c->M * c->D), 1, true);
    float *b = random_floats(h, (size_t)c->M, 1, true);
    float *t = host_floats(h, nt), *prob = host_floats(h, nk);
    int32_t *idx = (int32_t *)(void *)host_floats(h, nk);

    if (c->T > TD_SMALL_STEP) { /* the first and the last expert are always of one mind */
        memcpy(w + (c->M - 1) * c->D, w, (size_t)c->D * sizeof *w);
        b[c->M - 1] = b[0];
    }
    double *wt = (double *)(void *)host_floats(h, 2 * nt);
    double *wl = (double *)(void *)host_floats(h, 2 * nm), *wp = wt;
    td_dims dims = {
        .T = c->T, .D = c->D, .H = 1, .K = 1, .d = 2, .M = c->M, .k = c->k, .head_rows = 1};
    td_router_args a = {.T = c->T,
                        .D = c->D,
                        .M = c->M,
                        .k = c->k,
                        .eps = 1e-5f,
                        .x = dev_resid(h, x, nt),
                        .norm = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, g, 1, c->D, 1),
                        .w = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, c->M, c->D),
                        .bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b, 1, c->M, 1),
                        .t = dev_poison(h, nt * td_elt_bytes(h->ops->act)),
                        .idx = dev_poison(h, nk * 4),
                        .prob = dev_poison(h, nk * 4),
                        .ws = dev_ws(h, &dims)};
    td_error err = {0};

    check_ok(h->ops->router(h->s, &a, &err), &err);
    read_elts(h, a.t, h->ops->act, nt, t);
    read_i32(h, a.idx, nk, idx);
    read_elts(h, a.prob, TD_ELT_F32, nk, prob);
    ref_rmsnorm(c->T, c->D, 1e-5, x, g, wt);
    check_close("router t", t, wt, nt, h->tol->norm);
    if (h->ops->act == TD_ELT_BF16) /* choose from what the device has, or ties differ */
        for (size_t i = 0; i < nt; i++)
            wt[i] = t[i];
    ref_dense(c->T, c->M, c->D, wt, w, b, wl);
    for (int32_t r = 0; r < c->T; r++) {
        int32_t want[128];

        ref_top_k(c->M, c->k, wl + r * c->M, want, wp);
        for (int32_t j = 0; j < c->k; j++) {
            assert_int_equal(idx[r * c->k + j], want[j]);
            assert_float_equal(prob[r * c->k + j], wp[j], 2e-4);
        }
    }
    router_parts(h, &a, t, idx, prob);
    harness_clear(h);
}

static void test_router_agrees_with_float64(void **state)
{
    for (size_t i = 0; i < N_OF(router_cases); i++)
        router_case_on(*state, &router_cases[i]);
}

/* Steps of one token and of many, the latter of rows that are whole 16-byte chunks or not. */
typedef struct route_shape {
    int32_t T, D;
} route_shape;
static const route_shape route_shapes[] = {{1, 2}, {TD_SMALL_STEP + 5, 8}, {TD_SMALL_STEP + 2, 3}};

/* The router on logits that are given: zero weights, the logits as bias. All T rows choose alike:
 * idx and prob are of one. */
static void route(harness *h, const route_shape *s, const float *logits, int32_t M, int32_t k,
                  int32_t *idx, float *prob)
{
    size_t nt = (size_t)(s->T * s->D), nk = (size_t)(s->T * k);
    float *x = host_floats(h, nt), *w = host_floats(h, (size_t)(M * s->D));
    int32_t *all_idx = (int32_t *)(void *)host_floats(h, nk);
    float *all_prob = host_floats(h, nk);
    td_dims dims = {.T = s->T, .D = s->D, .H = 1, .K = 1, .d = 2, .M = M, .k = k, .head_rows = 1};
    td_error err = {0};

    for (size_t i = 0; i < nt; i++)
        x[i] = 1;
    td_router_args a = {.T = s->T,
                        .D = s->D,
                        .M = M,
                        .k = k,
                        .eps = 1e-5f,
                        .x = dev_resid(h, x, nt),
                        .norm = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, x, 1, s->D, 1),
                        .w = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, M, s->D),
                        .bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, logits, 1, M, 1),
                        .t = dev_poison(h, nt * 4),
                        .idx = dev_poison(h, nk * 4),
                        .prob = dev_poison(h, nk * 4),
                        .ws = dev_ws(h, &dims)};
    check_ok(h->ops->router(h->s, &a, &err), &err);
    read_i32(h, a.idx, nk, all_idx);
    read_elts(h, a.prob, TD_ELT_F32, nk, all_prob);
    memcpy(idx, all_idx, (size_t)k * 4);
    memcpy(prob, all_prob, (size_t)k * 4);
    for (int32_t t = 1; t < s->T; t++) {
        assert_memory_equal(all_idx + t * k, idx, (size_t)k * 4);
        assert_memory_equal(all_prob + t * k, prob, (size_t)k * 4);
    }
    harness_clear(h);
}

static void test_router_check_7_of_the_specification(void **state)
{
    const float logits[8] = {0.1f, 2, -1, 1.5f, 2.5f, 0, 1.75f, -3};
    const int32_t want[4] = {4, 1, 6, 3};
    const double weights[4] = {0.4087009734, 0.2478896710, 0.1930566699, 0.1503526857};
    int32_t idx[4];
    float prob[4];

    for (size_t s = 0; s < N_OF(route_shapes); s++) {
        route(*state, &route_shapes[s], logits, 8, 4, idx, prob);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(idx[i], want[i]);
            assert_float_equal(prob[i], weights[i], 1e-6);
        }
    }
}

static void test_router_breaks_ties_by_the_lower_expert(void **state)
{
    const float logits[8] = {1, 2, 2, 0, 2, 1, -1, 2};
    const int32_t want[6] = {1, 2, 4, 7, 0, 5};
    int32_t idx[6];
    float prob[6];

    for (size_t s = 0; s < N_OF(route_shapes); s++) {
        route(*state, &route_shapes[s], logits, 8, 6, idx, prob);
        for (int i = 0; i < 6; i++)
            assert_int_equal(idx[i], want[i]);
        assert_float_equal(prob[0], prob[3], 0);
    }
}

/* Many experts of few values, zeros of both signs and NaN among them: each value's in turn. */
static void test_router_breaks_many_ties_by_the_lower_expert(void **state)
{
    static const float values[6] = {2, 0, -0.0f, -1, NAN, 1}, falling[4] = {2, 1, 0, -1};
    static const int32_t experts[] = {32, 33, 64, 128, 300};
    harness *h = *state;

    for (size_t i = 0; i < N_OF(experts); i++)
        for (size_t s = 0; s < N_OF(route_shapes); s++) {
            const int32_t M = experts[i], k = M * 3 / 5;
            float logits[300], prob[300];
            int32_t idx[300], n = 0;

            for (int32_t e = 0; e < M; e++)
                logits[e] = values[(e * 7 + e / 5) % 6];
            route(h, &route_shapes[s], logits, M, k, idx, prob);
            for (int v = 0; v < 4; v++)
                for (int32_t e = 0; e < M && n < k; e++)
                    if (logits[e] == falling[v]) {
                        assert_int_equal(idx[n], e);
                        assert_float_equal(prob[n], prob[0] * exp(falling[v] - 2), 1e-6);
                        n++;
                    }
            assert_int_equal(n, k);
        }
}

static void test_router_stays_in_range_on_nan(void **state)
{
    const float logits[4] = {NAN, NAN, 1, NAN};

    for (size_t s = 0; s < N_OF(route_shapes); s++) {
        int32_t idx[3], seen = 0;
        float prob[3];

        route(*state, &route_shapes[s], logits, 4, 3, idx, prob);
        assert_int_equal(idx[0], 2);
        for (int i = 0; i < 3; i++) {
            assert_in_range(idx[i], 0, 3);
            seen |= 1 << idx[i];
        }
        assert_int_equal(__builtin_popcount((unsigned)seen), 3);
    }
}

/* RMSNorm, seen through the router's t. */
static void normed(harness *h, const float *x, const float *g, int32_t D, float *t)
{
    float w[8] = {0}, b[1] = {0};
    td_dims dims = {.T = 1, .D = D, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .head_rows = 1};
    td_router_args a = {.T = 1,
                        .D = D,
                        .M = 1,
                        .k = 1,
                        .eps = 1e-5f,
                        .x = dev_resid(h, x, (size_t)D),
                        .norm = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, g, 1, D, 1),
                        .w = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, 1, D),
                        .bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b, 1, 1, 1),
                        .t = dev_poison(h, (size_t)D * 4),
                        .idx = dev_poison(h, 4),
                        .prob = dev_poison(h, 4),
                        .ws = dev_ws(h, &dims)};
    td_error err = {0};

    check_ok(h->ops->router(h->s, &a, &err), &err);
    read_elts(h, a.t, h->ops->act, (size_t)D, t);
    harness_clear(h);
}

static void test_rmsnorm_check_4_of_the_specification(void **state)
{
    harness *h = *state;
    const float x[4] = {1, -2, 3, -4}, g[4] = {1, .5f, 2, 1}, ones[4] = {1, 1, 1, 1};
    const float tiny[4] = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
    const double want[4] = {0.3651481282, -0.3651481282, 2.1908887694, -1.4605925130};
    double eps = h->ops->act == TD_ELT_F32 ? 1e-6 : 1e-2;
    float t[4];

    normed(h, x, g, 4, t);
    for (int i = 0; i < 4; i++)
        assert_float_equal(t[i], want[i], eps);
    normed(h, tiny, ones, 4, t);
    for (int i = 0; i < 4; i++)
        assert_float_equal(t[i], 0.3015113446, eps); /* epsilon under the root, not after it */
}

static void head_case(harness *h, const dense_case *c)
{
    int32_t D = c->K, V = c->N, n = (c->T + 1) / 2;
    size_t nx = (size_t)c->T * (size_t)D, nl = (size_t)n * (size_t)V;
    float *x = random_floats(h, nx, 4, true), *g = random_floats(h, (size_t)D, 2, true);
    float *w = random_floats(h, (size_t)V * (size_t)D, 0.1, true), *got = host_floats(h, nl);
    int32_t *rows = (int32_t *)(void *)host_floats(h, (size_t)n);
    double *t = (double *)(void *)host_floats(h, 2 * nx), *want;
    double *picked = (double *)(void *)host_floats(h, 2 * (size_t)n * (size_t)D);
    td_dims dims = {.T = c->T, .D = D, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .head_rows = n};
    td_error err = {0};

    want = (double *)(void *)host_floats(h, 2 * nl);
    ref_rmsnorm(c->T, D, 1e-5, x, g, t);
    for (int32_t i = 0; i < n; i++) {
        rows[i] = c->T - 1 - 2 * i >= 0 ? c->T - 1 - 2 * i : 0;
        memcpy(picked + (size_t)i * (size_t)D, t + (size_t)rows[i] * (size_t)D,
               (size_t)D * sizeof *t);
    }
    ref_dense(n, V, D, picked, w, NULL, want);
    td_head_args a = {.n = n,
                      .D = D,
                      .V = V,
                      .eps = 1e-5f,
                      .x = dev_resid(h, x, nx),
                      .rows = dev_i32(h, rows, (size_t)n),
                      .norm = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, g, 1, D, 1),
                      .w = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, V, D),
                      .out = dev_poison(h, nl * 4),
                      .ws = dev_ws(h, &dims)};
    check_ok(h->ops->head(h->s, &a, &err), &err);
    read_elts(h, a.out, TD_ELT_F32, nl, got);
    check_close("head", got, want, nl, 2 * h->tol->dense);
    harness_clear(h);
}

static void test_head_agrees_with_float64(void **state)
{
    for (size_t i = 0; i < N_OF(dense_cases); i++)
        head_case(*state, &dense_cases[i]);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attn_out_agrees_with_float64),
        cmocka_unit_test(test_attn_out_refuses_a_matrix_of_another_shape),
        cmocka_unit_test(test_embed_gathers_its_rows_and_zeros_the_others),
        cmocka_unit_test(test_add_sums_parts_in_rank_order),
        cmocka_unit_test(test_attn_out_agrees_at_every_size_of_step_and_rows_stay_the_same),
        cmocka_unit_test(test_router_agrees_with_float64),
        cmocka_unit_test(test_router_check_7_of_the_specification),
        cmocka_unit_test(test_router_breaks_ties_by_the_lower_expert),
        cmocka_unit_test(test_router_breaks_many_ties_by_the_lower_expert),
        cmocka_unit_test(test_router_stays_in_range_on_nan),
        cmocka_unit_test(test_rmsnorm_check_4_of_the_specification),
        cmocka_unit_test(test_head_agrees_with_float64),
    };
    return RUN_CHOSEN_TESTS(tests, harness_open, harness_close);
}
