/* attn_in (norm, projection, bias, rotation, keys and values into the cache) against float64, over
 * sizes of steps and types of caches, and each row against itself in other steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/harness.h"
#include "tests/ops/ref.h"

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

typedef struct in_ref {
    double *q, *k, *v; /* [T, H, d], [T, K, d] */
} in_ref;

static in_ref attn_in_ref(harness *h, const attn_in_case *c, const float *x, const float *g,
                          const float *w, const float *b, const float *cos, const float *sin,
                          const int32_t *pos)
{
    int32_t N = (c->H + 2 * c->K) * c->d;
    double *t = (double *)(void *)host_floats(h, 2 * (size_t)(c->T * c->D));
    double *y = (double *)(void *)host_floats(h, 2 * (size_t)(c->T * N));
    in_ref r = {(double *)(void *)host_floats(h, 2 * (size_t)(c->T * c->H * c->d)),
                (double *)(void *)host_floats(h, 2 * (size_t)(c->T * c->K * c->d)),
                (double *)(void *)host_floats(h, 2 * (size_t)(c->T * c->K * c->d))};

    ref_rmsnorm(c->T, c->D, 1e-5, x, g, t);
    ref_dense(c->T, N, c->D, t, w, b, y);
    for (int32_t i = 0; i < c->T; i++) {
        double *row = y + (size_t)i * (size_t)N;

        for (int32_t head = 0; head < c->H + c->K; head++)
            ref_rope(c->d, cos + pos[i] * (c->d / 2), sin + pos[i] * (c->d / 2), row + head * c->d);
        memcpy(r.q + i * c->H * c->d, row, (size_t)(c->H * c->d) * sizeof(double));
        memcpy(r.k + i * c->K * c->d, row + c->H * c->d, (size_t)(c->K * c->d) * sizeof(double));
        memcpy(r.v + i * c->K * c->d, row + (c->H + c->K) * c->d,
               (size_t)(c->K * c->d) * sizeof(double));
    }
    return r;
}

/* Inputs for c.T rows, of which a step takes the rows it likes. */
typedef struct in_setup {
    attn_in_case c;
    td_attn_in_args a; /* of all rows; q and the cache are poisoned by run_in() */
    in_ref want;
    int32_t *slot, slots, head_stride;
    size_t cache; /* elements */
} in_setup;

static in_setup set_up_in(harness *h, const attn_in_case *c)
{
    int32_t N = (c->H + 2 * c->K) * c->d, positions = c->T + 70;
    float *x = random_floats(h, (size_t)(c->T * c->D), 4, true);
    float *g = random_floats(h, (size_t)c->D, 2, true);
    float *w = random_floats(h, (size_t)N * (size_t)c->D, 0.1, true);
    float *b = random_floats(h, (size_t)N, 1, true);
    float *cos = random_floats(h, (size_t)(positions * (c->d / 2)), 1.3, false);
    float *sin = random_floats(h, (size_t)(positions * (c->d / 2)), 1.3, false);
    int32_t *pos = (int32_t *)(void *)host_floats(h, (size_t)c->T);
    in_setup s = {.c = *c, .slots = 2 * c->T + 3};
    td_dims dims = {
        .T = c->T, .D = c->D, .H = c->H, .K = c->K, .d = c->d, .M = 1, .k = 1, .head_rows = 1};

    s.slot = (int32_t *)(void *)host_floats(h, (size_t)c->T);
    for (int32_t t = 0; t < c->T; t++) {
        pos[t] = (t * 7) % positions;
        s.slot[t] = t % 40 == 2 ? -1 : 2 * (c->T - 1 - t) + 1;
    }
    s.head_stride = 2 * s.slots * c->d + 10; /* heads lie apart: stride, not size */
    s.cache = (size_t)c->K * (size_t)s.head_stride;
    s.want = attn_in_ref(h, c, x, g, w, b, cos, sin, pos);
    s.a = (td_attn_in_args){
        .T = c->T,
        .D = c->D,
        .H = c->H,
        .K = c->K,
        .d = c->d,
        .eps = 1e-5f,
        .x = dev_resid(h, x, (size_t)(c->T * c->D)),
        .norm = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, g, 1, c->D, 1),
        .qkv = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, N, c->D),
        .bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, b, 1, N, 1),
        .cos = dev_f32(h, cos, (size_t)(positions * (c->d / 2))),
        .sin = dev_f32(h, sin, (size_t)(positions * (c->d / 2))),
        .pos = dev_i32(h, pos, (size_t)c->T),
        .slot = dev_i32(h, s.slot, (size_t)c->T),
        .kv = {.base = dev_poison(h, s.cache * sizeof(float)),
               .head_stride = s.head_stride,
               .side_stride = s.slots * c->d},
        .q = dev_poison(h, (size_t)(c->T + 1) * (size_t)(c->H * c->d) * td_elt_bytes(h->ops->act)),
        .ws = dev_ws(h, &dims)};
    return s;
}

static double e4m3_value(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double x = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);

    if ((code & 0x7f) == 0x7f)
        x = NAN;
    return code & 0x80 ? -x : x;
}

/* read_elts(), for caches of any type. */
static void read_cache(harness *h, const void *dev, td_elt elt, size_t n, float *out)
{
    td_error err = {0};

    if (elt != TD_ELT_E4M3) {
        read_elts(h, dev, elt, n, out);
        return;
    }
    check_ok(h->ops->copy_out(h->s, out, n, dev, n, n, 1, &err), &err);
    check_ok(h->ops->sync(h->s, &err), &err);
    for (size_t i = n; i-- > 0;)
        out[i] = (float)e4m3_value(((const uint8_t *)(const void *)out)[i]);
}

/* Everything that a step writes, and the row after it. */
typedef struct in_got {
    float *q, *cache;
} in_got;

/* A step of rows first .. first + T - 1. */
static in_got run_in(harness *h, const in_setup *s, int32_t first, int32_t T, td_elt kv)
{
    size_t row = (size_t)(s->c.H * s->c.d), nq = (size_t)(T + 1) * row;
    td_elt act = h->ops->act;
    in_got got = {host_floats(h, nq), host_floats(h, s->cache)};
    td_attn_in_args a = s->a;
    char *ones = malloc(s->cache * 4 + nq * 4);
    td_error err = {0};

    assert_non_null(ones);
    memset(ones, 0xff, s->cache * 4 + nq * 4);
    check_ok(h->ops->copy_in(h->s, a.kv.base, ones, s->cache * 4, &err), &err);
    check_ok(h->ops->copy_in(h->s, a.q, ones, nq * td_elt_bytes(act), &err), &err);
    a.T = T;
    a.x = (const char *)a.x + (size_t)first * (size_t)a.D * td_elt_bytes(h->ops->resid);
    a.pos += first;
    a.slot += first;
    a.kv.elt = kv;
    check_ok(h->ops->attn_in(h->s, &a, &err), &err);
    read_elts(h, a.q, act, nq, got.q);
    read_cache(h, a.kv.base, kv, s->cache, got.cache);
    free(ones);
    for (size_t i = nq - row; i < nq; i++)
        assert_true(isnan(got.q[i]));
    return got;
}

static void forget(harness *h, int n_host) /* what run_in() took, many times over */
{
    while (h->n_host > n_host)
        free(h->host[--h->n_host]);
}

static const float *cache_row(const in_setup *s, const in_got *got, int32_t k, int side,
                              int32_t slot)
{
    return got->cache + k * s->head_stride + side * s->slots * s->c.d + slot * s->c.d;
}

/* One head's key or value. FP8: half a step of three bits of mantissa, and the largest is 448. */
static void check_kv(harness *h, const float *have, const double *want, int32_t d, td_elt elt)
{
    double top = 0;

    if (elt != TD_ELT_E4M3) {
        check_close("cache", have, want, (size_t)d, elt == TD_ELT_BF16 ? 8e-3 : 4 * h->tol->dense);
        return;
    }
    for (int32_t i = 0; i < d; i++)
        top = fmax(top, fabs(want[i]));
    for (int32_t i = 0; i < d; i++)
        assert_true(fabs(have[i] - want[i]) <= fabs(want[i]) / 16 + 8e-3 * top + ldexp(1, -10));
}

/* The cache after attn_in: slots hold k and v, rounded; everything else is untouched. */
static void check_cache(harness *h, const in_setup *s, const in_got *got, int32_t first, int32_t T,
                        td_elt elt)
{
    const attn_in_case *c = &s->c;

    for (int32_t slot = 0; slot < s->slots; slot++) {
        int32_t t = first;

        while (t < first + T && s->slot[t] != slot)
            t++;
        for (int32_t k = 0; k < c->K; k++)
            for (int side = 0; side < 2; side++) {
                const float *have = cache_row(s, got, k, side, slot);

                if (t < first + T)
                    check_kv(h, have, (side ? s->want.v : s->want.k) + (t * c->K + k) * c->d, c->d,
                             elt);
                else
                    for (int32_t i = 0; i < c->d; i++)
                        assert_true(isnan(have[i]));
            }
    }
}

static void check_in(harness *h, const in_setup *s, int32_t first, int32_t T, td_elt kv)
{
    int n_host = h->n_host;
    size_t row = (size_t)(s->c.H * s->c.d);
    in_got got = run_in(h, s, first, T, kv);

    check_close("attn_in q", got.q, s->want.q + (size_t)first * row, (size_t)T * row,
                2 * h->tol->dense);
    check_cache(h, s, &got, first, T, kv);
    forget(h, n_host);
}

/* The cache's types; the CPU keeps no FP8. */
static int kv_types(const harness *h)
{
    return h->ops->act == TD_ELT_F32 ? 2 : 3;
}
static const td_elt kv_type[] = {TD_ELT_BF16, TD_ELT_F32, TD_ELT_E4M3};

static void test_attn_in_agrees_with_float64_and_fills_only_its_slots(void **state)
{
    harness *h = *state;

    for (size_t i = 0; i < N_OF(attn_in_cases); i++) {
        in_setup s = set_up_in(h, &attn_in_cases[i]);

        for (int kv = 0; kv < kv_types(h); kv++)
            check_in(h, &s, 0, s.c.T, kv_type[kv]);
        harness_clear(h);
    }
}

/* Shapes for step_rows: tandem-tiny, heads that are not 64 wide, K that is not whole blocks of 64,
 * one block, a shard of gpt-oss. */
static const attn_in_case step_shapes[] = {
    {513, 256, 16, 8, 64}, {513, 264, 5, 1, 48},  {513, 72, 2, 1, 16},
    {200, 8, 2, 2, 32},    {129, 2880, 8, 1, 64},
};

static void test_attn_in_agrees_with_float64_at_every_size_of_step(void **state)
{
    harness *h = *state;

    if (HARNESS_FEW)
        skip();
    for (size_t i = 0; i < N_OF(step_shapes); i++) {
        in_setup s = set_up_in(h, &step_shapes[i]);

        for (size_t j = 0; j < N_OF(step_rows); j++)
            if (step_rows[j] <= s.c.T && (!harness_small() || j % 3 == 0))
                for (int kv = 0; kv < kv_types(h); kv++)
                    check_in(h, &s, (s.c.T - step_rows[j]) / 2, step_rows[j], kv_type[kv]);
        harness_clear(h);
    }
}

static void check_same_rows(harness *h, const in_setup *s, const in_got *all, int32_t first,
                            int32_t T)
{
    int n_host = h->n_host;
    size_t row = (size_t)(s->c.H * s->c.d), d = (size_t)s->c.d;
    in_got got = run_in(h, s, first, T, TD_ELT_F32);

    assert_memory_equal(got.q, all->q + (size_t)first * row, (size_t)T * row * 4);
    for (int32_t t = first; t < first + T; t++)
        for (int32_t k = 0; k < s->c.K && s->slot[t] >= 0; k++)
            for (int side = 0; side < 2; side++)
                assert_memory_equal(cache_row(s, &got, k, side, s->slot[t]),
                                    cache_row(s, all, k, side, s->slot[t]), d * 4);
    forget(h, n_host);
}

/* Bit for bit: of how many rows a small step is, and which of them a row is, changes nothing. */
static void test_attn_in_rows_are_the_same_in_every_small_step(void **state)
{
    harness *h = *state;

    if (HARNESS_FEW)
        skip();
    for (size_t i = 0; i < N_OF(step_shapes); i++) {
        attn_in_case c = step_shapes[i];
        c.T = TD_SMALL_STEP;
        in_setup s = set_up_in(h, &c);
        in_got all = run_in(h, &s, 0, c.T, TD_ELT_F32);

        for (int32_t T = 1; T < c.T; T += harness_small() ? 42 : T < 20 ? 1 : 9) {
            check_same_rows(h, &s, &all, 0, T);
            check_same_rows(h, &s, &all, (c.T - T) / 3, T);
            check_same_rows(h, &s, &all, c.T - T, T);
        }
        harness_clear(h);
    }
}

/* Keys whose values are given: no product, no rotation, the value as bias. */
static void test_attn_in_rounds_to_fp8_to_nearest_and_saturates(void **state)
{
    enum { D = 8, DIM = 16, N = 3 * DIM, MOST = 129 };
    static const float in[DIM] = {1.0625f,  1.1875f,    500,    -1000, 448, 464,  1e30f, -0.0f,
                                  0x1p-10f, 0x1.8p-10f, 0.002f, 17,    -17, 0.3f, 240,   1e-9f};
    static const float want[DIM] = {1, 1.25f,   448,     -448, 448, 448,     448, 0,
                                    0, 0x1p-9f, 0x1p-9f, 16,   -16, 0.3125f, 240, 0};
    harness *h = *state;
    float *x = random_floats(h, MOST * D, 1, true), *g = random_floats(h, D, 1, true);
    float *w = host_floats(h, N * D), *b = host_floats(h, N), *got = host_floats(h, MOST * DIM * 2);
    float *one = host_floats(h, DIM / 2), *zero = host_floats(h, DIM / 2);
    int32_t pos[MOST] = {0}, slot[MOST];
    td_dims dims = {.T = MOST, .D = D, .H = 1, .K = 1, .d = DIM, .M = 1, .k = 1, .head_rows = 1};
    td_error err = {0};

    if (kv_types(h) < 3)
        skip();
    for (int32_t i = 0; i < MOST; i++)
        slot[i] = i;
    for (int i = 0; i < DIM / 2; i++)
        one[i] = 1;
    for (int i = 0; i < 2 * DIM; i++) /* keys and values */
        b[DIM + i] = in[i % DIM];
    td_attn_in_args a = {.D = D,
                         .H = 1,
                         .K = 1,
                         .d = DIM,
                         .eps = 1e-5f,
                         .x = dev_resid(h, x, MOST * D),
                         .norm = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, g, 1, D, 1),
                         .qkv = dev_matrix(h, TD_FORM_DENSE, TD_ELT_BF16, w, 1, N, D),
                         .bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, b, 1, N, 1),
                         .cos = dev_f32(h, one, DIM / 2),
                         .sin = dev_f32(h, zero, DIM / 2),
                         .pos = dev_i32(h, pos, MOST),
                         .slot = dev_i32(h, slot, MOST),
                         .kv = {.base = dev_poison(h, MOST * DIM * 2),
                                .head_stride = MOST * DIM * 2,
                                .side_stride = MOST * DIM,
                                .elt = TD_ELT_E4M3},
                         .q = dev_poison(h, MOST * DIM * 2),
                         .ws = dev_ws(h, &dims)};
    for (a.T = 1; a.T <= MOST; a.T += 64) {
        check_ok(h->ops->attn_in(h->s, &a, &err), &err);
        read_cache(h, a.kv.base, TD_ELT_E4M3, MOST * DIM * 2, got);
        for (int32_t t = 0; t < a.T; t++)
            for (int i = 0; i < DIM; i++) {
                assert_true(got[t * DIM + i] == want[i]);
                assert_true(got[(MOST + t) * DIM + i] == want[i]);
            }
    }
    harness_clear(h);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attn_in_agrees_with_float64_and_fills_only_its_slots),
        cmocka_unit_test(test_attn_in_agrees_with_float64_at_every_size_of_step),
        cmocka_unit_test(test_attn_in_rows_are_the_same_in_every_small_step),
        cmocka_unit_test(test_attn_in_rounds_to_fp8_to_nearest_and_saturates),
    };
    return RUN_CHOSEN_TESTS(tests, harness_open, harness_close);
}
