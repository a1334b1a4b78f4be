/* Experts against float64: packed and dense weights, empty experts, all tokens on one, none here,
 * splits of the inner width; every MXFP4 byte; the activation's worked values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/harness.h"
#include "tests/ops/ref.h"

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

/* Random weights [E][N][K] and how they are loaded: x is what they mean. */
static const td_matrix *make_weights(harness *h, td_form form, expert_weights kind, int32_t E,
                                     int32_t N, int32_t K, double scale, float **x)
{
    size_t n = (size_t)E * (size_t)N * (size_t)K;
    uint8_t *blocks, *scales;
    td_matrix m;
    td_error err = {0};

    if (kind != WEIGHTS_MXFP4) {
        td_elt elt = kind == WEIGHTS_F32 ? TD_ELT_F32 : TD_ELT_BF16;

        *x = random_floats(h, n, scale, elt == TD_ELT_BF16);
        return dev_matrix(h, form, elt, *x, E, N, K);
    }
    *x = host_floats(h, n);
    blocks = malloc(n / 2);
    scales = malloc(n / 32);
    assert_non_null(blocks);
    assert_non_null(scales);
    for (size_t i = 0; i < n / 2; i++)
        blocks[i] = (uint8_t)random_bits(h);
    for (size_t i = 0; i < n / 32; i++)
        scales[i] = (uint8_t)(120 + random_bits(h) % 5);
    for (size_t i = 0; i < n; i++)
        (*x)[i] = (float)ref_mxfp4(i % 2 ? blocks[i / 2] >> 4 : blocks[i / 2] & 15, scales[i / 32]);
    check_ok(h->ops->load_mxfp4(h->dev, form,
                                &(td_host_mxfp4){.blocks = blocks,
                                                 .scales = scales,
                                                 .expert_blocks = (int64_t)N * K / 2,
                                                 .expert_scales = (int64_t)N * K / 32,
                                                 .row_blocks = K / 2,
                                                 .row_scales = K / 32,
                                                 .E = E,
                                                 .N = N,
                                                 .K = K},
                                TD_EXPERTS_MXFP4, &m, &err),
             &err);
    free(blocks);
    free(scales);
    return keep_matrix(h, &m);
}

typedef struct made {
    float *t, *prob, *w1, *b1, *w2, *b2;
    int32_t *idx;
} made;

static void choose(harness *h, const expert_case *c, made *m)
{
    for (int32_t t = 0; t < c->T; t++)
        for (int32_t j = 0; j < c->k; j++) {
            int32_t e, again;

            do { /* distinct experts, as the router promises */
                e = (int32_t)(random_bits(h) % (uint32_t)c->M);
                if (c->spread == SPREAD_ONE && j == 0)
                    e = c->first;
                if (c->spread == SPREAD_SAME)
                    e = (3 * j + 1) % c->M;
                if (c->spread == SPREAD_LOCAL_NONE && e >= c->first && e < c->first + c->E)
                    e = (e + c->E) % c->M;
                again = 0;
                for (int32_t i = 0; i < j; i++)
                    again |= m->idx[t * c->k + i] == e;
            } while (again);
            m->idx[t * c->k + j] = e;
            m->prob[t * c->k + j] = 1.0f / (float)(j + 1);
        }
}

static void experts_ref(const expert_case *c, const made *m, double *out)
{
    int32_t D = c->D, I = c->I;
    double *td = malloc((size_t)D * 8), *u = malloc((size_t)I * 16), *y = malloc((size_t)D * 8);

    memset(out, 0, (size_t)(c->T * D) * sizeof *out);
    for (int32_t t = 0; t < c->T; t++)
        for (int32_t j = 0; j < c->k; j++) {
            int32_t e = m->idx[t * c->k + j] - c->first;

            if (e < 0 || e >= c->E)
                continue;
            for (int32_t i = 0; i < D; i++)
                td[i] = m->t[t * D + i];
            ref_dense(1, 2 * I, D, td, m->w1 + (size_t)e * 2 * (size_t)I * (size_t)D,
                      m->b1 + e * 2 * I, u);
            for (int32_t i = 0; i < I; i++)
                u[i] = ref_swiglu(u[2 * i], u[2 * i + 1], 7);
            ref_dense(1, D, I, u, m->w2 + (size_t)e * (size_t)I * (size_t)D, m->b2 + e * D, y);
            for (int32_t i = 0; i < D; i++)
                out[t * D + i] += m->prob[t * c->k + j] * y[i];
        }
    free(td);
    free(u);
    free(y);
}

/* The case's inputs, made and on the device; out and the workspace start as NaN. */
static td_experts_args set_up(harness *h, const expert_case *c, made *m)
{
    size_t nt = (size_t)(c->T * c->D), nk = (size_t)(c->T * c->k);
    td_dims dims = {.T = c->T,
                    .D = c->D,
                    .H = 1,
                    .K = 1,
                    .d = 2,
                    .M = c->M,
                    .E = c->E,
                    .I = c->I,
                    .k = c->k,
                    .head_rows = 1};

    *m = (made){.t = random_floats(h, nt, 1, true),
                .prob = host_floats(h, nk),
                .idx = (int32_t *)(void *)host_floats(h, nk),
                .b1 = random_floats(h, (size_t)(c->E * 2 * c->I), 2, true),
                .b2 = random_floats(h, (size_t)(c->E * c->D), 2, true)};
    choose(h, c, m);
    return (td_experts_args){
        .T = c->T,
        .D = c->D,
        .I = c->I,
        .E = c->E,
        .k = c->k,
        .expert_first = c->first,
        .limit = 7,
        .t = dev_act(h, m->t, nt),
        .idx = dev_i32(h, m->idx, nk),
        .prob = dev_f32(h, m->prob, nk),
        .gate_up = make_weights(h, TD_FORM_GATE_UP, c->weights, c->E, 2 * c->I, c->D, .2, &m->w1),
        .gate_up_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, m->b1, 1, c->E * 2 * c->I, 1),
        .down = make_weights(h, TD_FORM_DOWN, c->weights, c->E, c->D, c->I, .2, &m->w2),
        .down_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, m->b2, 1, c->E * c->D, 1),
        .out = dev_poison(h, nt * td_elt_bytes(h->ops->act)),
        .ws = dev_ws(h, &dims)};
}

/* Tokens `from` .. from + T of a step, into got. */
static void run_part(harness *h, const td_experts_args *all, int32_t from, int32_t T, float *got)
{
    size_t act = td_elt_bytes(h->ops->act), n = (size_t)(T * all->D);
    td_experts_args a = *all;
    td_error err = {0};

    a.T = T;
    a.t = (const char *)all->t + (size_t)(from * all->D) * act;
    a.idx = all->idx + from * all->k;
    a.prob = all->prob + from * all->k;
    a.out = dev_poison(h, n * act);
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, n, got);
    h->ops->release(&h->held[--h->n_held]);
}

static void expert_case_on(harness *h, const expert_case *c)
{
    size_t nt = (size_t)(c->T * c->D);
    float *got = host_floats(h, nt), *alone = host_floats(h, (size_t)c->D);
    double *want = (double *)(void *)host_floats(h, 2 * nt);
    td_error err = {0};
    made m;

    if (h->ops->act == TD_ELT_BF16 && c->weights == WEIGHTS_F32)
        return; /* a form for checking f32 backends */
    td_experts_args a = set_up(h, c, &m);
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, nt, got);
    experts_ref(c, &m, want);
    check_close("experts", got, want, nt, h->tol->expert);
    check_experts_add(h, &a, got);
    if (c->T > TD_SMALL_STEP) { /* the last ones in the shortest step of this kind: the same bits */
        const int32_t T = TD_SMALL_STEP + 1;
        float *last = host_floats(h, (size_t)(T * c->D));

        run_part(h, &a, c->T - T, T, last);
        assert_memory_equal(last, got + nt - (size_t)(T * c->D), (size_t)(T * c->D) * 4);
    }
    for (int32_t t = 0; c->T <= TD_SMALL_STEP && t < c->T; t += c->T / 5 + 1) {
        run_part(h, &a, t, 1, alone); /* a token alone: the same bits */
        assert_memory_equal(alone, got + (size_t)t * (size_t)c->D, (size_t)c->D * 4);
    }
    harness_clear(h);
}

static void test_experts_agree_with_float64(void **state)
{
    for (size_t i = 0; i < N_OF(expert_cases); i++)
        expert_case_on(*state, &expert_cases[i]);
}

/* Of a step of TD_SMALL_STEP tokens, checked against float64, any run of tokens gives the same bits
 * as a step of its own, and the whole does so every time. */
static void decode_case_on(harness *h, const expert_case *c)
{
    size_t D = (size_t)c->D, nt = (size_t)c->T * D;
    float *all = host_floats(h, nt), *part = host_floats(h, nt);
    double *want = (double *)(void *)host_floats(h, 2 * nt);
    made m;
    td_experts_args a = set_up(h, c, &m);

    run_part(h, &a, 0, c->T, all);
    experts_ref(c, &m, want);
    check_close("experts, decode", all, want, nt, h->tol->expert);
    for (int32_t T = 1; T <= c->T; T *= 2) {
        td_experts_args few = a;

        few.T = T;
        check_experts_add(h, &few, all);
    }
    for (size_t i = 0; i < N_OF(decode_sizes); i += harness_small() ? 3 : 1) {
        int32_t T = decode_sizes[i], step = T == 1 && !harness_small() ? 7 : T < 20 ? 37 : 63;

        for (int32_t from = 0; from + T <= c->T; from += step) {
            run_part(h, &a, from, T, part);
            for (int32_t t = 0; t < T; t++)
                if (memcmp(part + (size_t)t * D, all + (size_t)(from + t) * D, D * 4) != 0)
                    fail_msg("token %d of %d has other bits at place %d of %d", from + t, c->T, t,
                             T);
        }
    }
    for (int i = 0; i < (harness_small() ? 2 : 20); i++) {
        run_part(h, &a, 0, c->T, part);
        assert_memory_equal(part, all, nt * 4);
    }
    harness_clear(h);
}

static void test_experts_in_decode_keep_their_bits_in_any_batch(void **state)
{
    harness *h = *state;

    for (size_t i = 0; i < N_OF(decode_cases); i++)
        if (decode_cases[i].D * decode_cases[i].I < 1 << 20 ||
            (h->ops->act == TD_ELT_BF16 && !harness_small()))
            decode_case_on(h, &decode_cases[i]); /* the CPU has no kernels of large shapes' own */
}

/* Padding rows, whose choices are -1, and rows without an expert here become zeros, and the others
 * keep their bits, whatever the workspace held. */
static void test_experts_leave_padding_rows_zero(void **state)
{
    harness *h = *state;
    enum { T = 20, LIVE = 11, K = 3 };
    const expert_case c = {T, 96, 64, 9, 6, 2, K, SPREAD_RANDOM, WEIGHTS_MXFP4};
    size_t n = (size_t)(T * c.D);
    float *got = host_floats(h, n), *want = host_floats(h, n);
    int32_t idx[T * K];
    td_error err = {0};
    made m;
    td_experts_args a = set_up(h, &c, &m);

    run_part(h, &a, 0, LIVE, want);
    memcpy(idx, m.idx, sizeof idx);
    for (int i = LIVE * K; i < T * K; i++)
        idx[i] = -1;
    a.idx = dev_i32(h, idx, T * K);
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, n, got);
    assert_memory_equal(got, want, (size_t)(LIVE * c.D) * 4);
    for (size_t i = (size_t)(LIVE * c.D); i < n; i++)
        assert_float_equal(got[i], 0, 0);
    for (int i = 0; i < T * K; i++) /* nobody has anything here */
        idx[i] = i % K == 0 ? 0 : i % K == 1 ? 8 : -1;
    a.idx = dev_i32(h, idx, T * K);
    a.out = dev_poison(h, n * td_elt_bytes(h->ops->act));
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, n, got);
    for (size_t i = 0; i < n; i++)
        assert_float_equal(got[i], 0, 0);
    check_experts_add(h, &a, got);
    a.T = 5; /* with few tokens another way is taken */
    check_experts_add(h, &a, got);
    harness_clear(h);
}

/* One expert, one token: with zero weights the biases are what the activation sees, and an identity
 * as the second matrix shows what it made of them. */
static void test_swiglu_check_5_of_the_specification(void **state)
{
    harness *h = *state;
    enum { N = 9 };
    static const float pairs[2 * N] = {0, 0, 1, 0,  1,   1,   -1, 2,   7,
                                       7, 8, 8, 20, -20, -20, 20, -20, -20};
    static const double want[N] = {0,
                                   0.8457957659,
                                   1.6915915319,
                                   -0.4626127022,
                                   55.9996250264,
                                   55.9996250264,
                                   -41.9997187698,
                                   -2.6347282e-13,
                                   1.9760461e-13};
    float t[N] = {0}, w1[2 * N * N] = {0}, w2[N * N] = {0}, b2[N] = {0}, prob = 1, got[N];
    int32_t idx = 0;
    td_dims dims = {
        .T = 1, .D = N, .H = 1, .K = 1, .d = 2, .M = 1, .E = 1, .I = N, .k = 1, .head_rows = 1};
    td_error err = {0};

    for (int i = 0; i < N; i++)
        w2[i * N + i] = 1;
    td_experts_args a = {.T = 1,
                         .D = N,
                         .I = N,
                         .E = 1,
                         .k = 1,
                         .limit = 7,
                         .t = dev_act(h, t, N),
                         .idx = dev_i32(h, &idx, 1),
                         .prob = dev_f32(h, &prob, 1),
                         .gate_up = dev_matrix(h, TD_FORM_GATE_UP, TD_ELT_BF16, w1, 1, 2 * N, N),
                         .gate_up_bias =
                             dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, pairs, 1, 2 * N, 1),
                         .down = dev_matrix(h, TD_FORM_DOWN, TD_ELT_BF16, w2, 1, N, N),
                         .down_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b2, 1, N, 1),
                         .out = dev_poison(h, sizeof got),
                         .ws = dev_ws(h, &dims)};
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, N, got);
    for (int i = 0; i < N; i++)
        assert_float_equal(got[i], want[i],
                           fabs(want[i]) * (h->ops->act == TD_ELT_F32 ? 1e-6 : 8e-3));
    harness_clear(h);
}

/* A very negative gate must give 0 and not NaN; a NaN must not be clamped away. */
static void test_swiglu_extremes(void **state)
{
    harness *h = *state;
    enum { N = 4 };
    static const float pairs[2 * N] = {-3e38f, 5, -100, 7, NAN, 1, 1, NAN};
    float t[N] = {0}, w1[2 * N * N] = {0}, w2[N * N] = {0}, b2[N] = {0}, prob = 1, got[N];
    int32_t idx = 0;
    td_dims dims = {
        .T = 1, .D = N, .H = 1, .K = 1, .d = 2, .M = 1, .E = 1, .I = N, .k = 1, .head_rows = 1};
    td_error err = {0};

    w2[0] = w2[5] = 1; /* outputs 0 and 1 see columns 0 and 1; NaN times 0 is NaN in all */
    for (int nan = 0; nan < 2; nan++) {
        float b1[2 * N];

        memcpy(b1, pairs, sizeof b1);
        if (!nan)
            memset(b1 + 4, 0, 4 * sizeof *b1);
        td_experts_args a = {
            .T = 1,
            .D = N,
            .I = N,
            .E = 1,
            .k = 1,
            .limit = 7,
            .t = dev_act(h, t, N),
            .idx = dev_i32(h, &idx, 1),
            .prob = dev_f32(h, &prob, 1),
            .gate_up = dev_matrix(h, TD_FORM_GATE_UP, TD_ELT_BF16, w1, 1, 2 * N, N),
            .gate_up_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, b1, 1, 2 * N, 1),
            .down = dev_matrix(h, TD_FORM_DOWN, TD_ELT_BF16, w2, 1, N, N),
            .down_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b2, 1, N, 1),
            .out = dev_poison(h, sizeof got),
            .ws = dev_ws(h, &dims)};
        check_ok(h->ops->experts(h->s, &a, &err), &err);
        read_elts(h, a.out, h->ops->act, N, got);
        if (nan) {
            assert_true(isnan(got[0]));
        } else {
            assert_float_equal(got[0], 0, 1e-30);
            assert_float_equal(got[1], 0, 1e-30);
        }
        harness_clear(h);
    }
}

/* Check 9: all byte values with these scales, and the worked example, each weight read back
 * exactly: row r of the second matrix holds bytes 16 r .. 16 r + 15, and one column at a time is
 * not 0. */
static void mxfp4_bytes(harness *h, int scale, const uint8_t *blocks, int rows)
{
    enum { I = 32 };
    static const uint8_t no_blocks[2 * I * 16], no_scales[2 * I];
    const td_host_mxfp4 zeros = {.blocks = no_blocks,
                                 .scales = no_scales,
                                 .row_blocks = 16,
                                 .row_scales = 1,
                                 .E = 1,
                                 .N = 2 * I,
                                 .K = rows};
    const float gate =
        scale > 252 ? 0x1p-9f : 1;  /* or the largest weights' products are infinite */
    const bool packed = rows == 32; /* the first matrix too: where both are, kernels may differ */
    float *b2 = host_floats(h, (size_t)rows), *got = host_floats(h, (size_t)rows), prob = 1;
    uint8_t scales[32];
    int32_t idx = 0;
    td_matrix down, gate_up;
    td_error err = {0};
    td_dims dims = {
        .T = 1, .D = rows, .H = 1, .K = 1, .d = 2, .M = 1, .E = 1, .I = I, .k = 1, .head_rows = 1};

    memset(scales, scale, sizeof scales);
    check_ok(h->ops->load_mxfp4(h->dev, TD_FORM_DOWN,
                                &(td_host_mxfp4){.blocks = blocks,
                                                 .scales = scales,
                                                 .expert_blocks = 16 * rows,
                                                 .expert_scales = rows,
                                                 .row_blocks = 16,
                                                 .row_scales = 1,
                                                 .E = 1,
                                                 .N = rows,
                                                 .K = I},
                                TD_EXPERTS_MXFP4, &down, &err),
             &err);
    const td_matrix *down_kept = keep_matrix(h, &down);
    float *x = host_floats(h, (size_t)rows), *wz = host_floats(h, 2 * I * (size_t)rows);
    for (int col = 0; col < I; col += harness_smallest() ? 8 : 1) {
        float b1[2 * I] = {0};

        b1[2 * col] = gate; /* gate 0 gives 0: only this column is not 0, but swiglu(gate, 0) */
        if (packed)
            check_ok(h->ops->load_mxfp4(h->dev, TD_FORM_GATE_UP, &zeros, TD_EXPERTS_MXFP4, &gate_up,
                                        &err),
                     &err);
        td_experts_args a = {
            .T = 1,
            .D = rows,
            .I = I,
            .E = 1,
            .k = 1,
            .limit = 7,
            .t = dev_act(h, x, (size_t)rows),
            .idx = dev_i32(h, &idx, 1),
            .prob = dev_f32(h, &prob, 1),
            .gate_up = packed ? keep_matrix(h, &gate_up)
                              : dev_matrix(h, TD_FORM_GATE_UP, TD_ELT_BF16, wz, 1, 2 * I, rows),
            .gate_up_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b1, 1, 2 * I, 1),
            .down = down_kept,
            .down_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b2, 1, rows, 1),
            .out = dev_poison(h, (size_t)rows * 4),
            .ws = dev_ws(h, &dims)};
        check_ok(h->ops->experts(h->s, &a, &err), &err);
        read_elts(h, a.out, h->ops->act, (size_t)rows, got);
        for (int r = 0; r < rows; r++) {
            uint8_t byte = blocks[16 * r + col / 2];
            double w = ref_mxfp4(col % 2 ? byte >> 4 : byte & 15, scale);
            bool f32 = h->ops->act == TD_ELT_F32;
            double tol = f32 ? 4e-7 : 8e-3, want = w * ref_swiglu(gate, 0, 7);

            /* Scale 0: subnormal, in steps of the result's type. */
            assert_true(fabs(got[r] - want) <= fabs(want) * tol + (f32 ? 0x1p-149 : 0x1p-133));
        }
        /* Matrices of this column go; the packed one stays. */
        while (h->n_matrices > 1)
            h->ops->unload(&h->matrices[--h->n_matrices]);
        while (h->n_held > 0)
            h->ops->release(&h->held[--h->n_held]);
    }
    harness_clear(h);
}

static void test_mxfp4_check_9_of_the_specification(void **state)
{
    harness *h = *state;
    static const int scales[] = {0, 1, 3, 119, 127, 135, 252, 254};
    uint8_t all[512] = {0}, example[16] = {0x21, 0x43, 0x65, 0x87};

    for (int i = 0; i < 512; i++) /* each in two places */
        all[i] = (uint8_t)(i < 256 ? i : 7 - i);
    for (size_t i = 0; i < N_OF(scales); i += harness_smallest() ? 8 : harness_small() ? 4 : 1) {
        if (scales[i] > 252 && h->ops->act == TD_ELT_F32)
            continue; /* as f32, its largest weights are infinite */
        mxfp4_bytes(h, scales[i], all, 16);
        mxfp4_bytes(h, scales[i], all, 32);
    }
    mxfp4_bytes(h, 122, example, 1);
}

static void test_mxfp4_refuses_a_scale_that_is_not_a_number(void **state)
{
    harness *h = *state;
    uint8_t blocks[16] = {0}, scales[1] = {255};
    td_matrix m;
    td_error err = {0};

    assert_int_equal(
        h->ops->load_mxfp4(
            h->dev, TD_FORM_DOWN,
            &(td_host_mxfp4){.blocks = blocks, .scales = scales, .E = 1, .N = 1, .K = 32},
            TD_EXPERTS_MXFP4, &m, &err),
        TD_INVALID);
    assert_null(m.mem.ptr);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_agree_with_float64),
        cmocka_unit_test(test_experts_in_decode_keep_their_bits_in_any_batch),
        cmocka_unit_test(test_experts_leave_padding_rows_zero),
        cmocka_unit_test(test_swiglu_check_5_of_the_specification),
        cmocka_unit_test(test_swiglu_extremes),
        cmocka_unit_test(test_mxfp4_check_9_of_the_specification),
        cmocka_unit_test(test_mxfp4_refuses_a_scale_that_is_not_a_number),
    };
    return RUN_CHOSEN_TESTS(tests, harness_open, harness_close);
}
