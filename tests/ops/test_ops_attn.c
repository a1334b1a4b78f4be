/* Attention against float64: pages in any order, rings that wrap, window edges, sinks, chunks, rows
 * that nobody wrote (NaN), padding; and that bits do not depend on the batch or on how queries are
 * cut into steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/harness.h"
#include "tests/ops/ref.h"

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

/* A sequence of n positions in a cache of its own, as a full layer or a ring holds it. */
typedef struct cached {
    int32_t n, K, d, wrap, pages;
    td_elt elt;
    double *k, *v; /* [K][n][d]: what was stored */
    int32_t *table;
    td_kv_view view;
    const int32_t *dev_table;
} cached;

static size_t slot_of(const cached *c, int32_t p)
{
    return (size_t)c->table[p / TD_KV_PAGE % c->wrap] * TD_KV_PAGE + (size_t)(p % TD_KV_PAGE);
}

/* Random e4m3 of less than 4 in magnitude, and what it stands for. */
static uint8_t random_e4m3(harness *h, double *value)
{
    uint32_t code = random_bits(h) % 72, sign = random_bits(h) & 0x80;
    double x = code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, (int)(code / 8) - 10);

    *value = sign ? -x : x;
    return (uint8_t)(code | sign);
}

/* Positions from `first` on are stored; all else in the cache is NaN. ring: its pages, 0: grow. */
static cached make_cache(harness *h, int32_t n, int32_t first, int32_t K, int32_t d, int32_t ring,
                         td_elt elt)
{
    cached c = {.n = n, .K = K, .d = d, .elt = elt};
    size_t nd = (size_t)K * (size_t)n * (size_t)d, side, bytes;
    float *k = random_floats(h, nd, 2, elt == TD_ELT_BF16);
    float *v = random_floats(h, nd, 1, elt == TD_ELT_BF16);
    char *host;

    c.wrap = ring > 0 ? ring : (n + TD_KV_PAGE - 1) / TD_KV_PAGE;
    c.pages = c.wrap + 3;
    c.table = (int32_t *)(void *)host_floats(h, (size_t)c.wrap);
    for (int32_t i = 0; i < c.wrap; i++) /* backwards, with a gap: order must not matter */
        c.table[i] = c.pages - 1 - i - (i > c.wrap / 2);
    c.k = (double *)(void *)host_floats(h, 2 * nd);
    c.v = (double *)(void *)host_floats(h, 2 * nd);
    side = (size_t)c.pages * TD_KV_PAGE * (size_t)d;
    bytes = td_elt_bytes(elt) * 2 * side * (size_t)K;
    host = malloc(bytes);
    assert_non_null(host);
    memset(host, 0xff, bytes);
    for (int32_t head = 0; head < K; head++)
        for (int32_t p = first; p < n; p++)
            for (int32_t i = 0; i < d; i++)
                for (int s = 0; s < 2; s++) {
                    size_t from = ((size_t)head * (size_t)n + (size_t)p) * (size_t)d + (size_t)i;
                    size_t at = ((size_t)head * 2 + (size_t)s) * side + slot_of(&c, p) * (size_t)d +
                                (size_t)i;
                    const float *x = s ? v + from : k + from;
                    uint32_t u;

                    if (elt == TD_ELT_E4M3) {
                        host[at] = (char)random_e4m3(h, &(s ? c.v : c.k)[from]);
                        continue;
                    }
                    (s ? c.v : c.k)[from] = *x;
                    memcpy(&u, x, 4);
                    if (elt == TD_ELT_F32)
                        memcpy(host + at * 4, &u, 4);
                    else
                        memcpy(host + at * 2, (char *)&u + 2,
                               2); /* little endian: the upper half */
                }
    c.view = (td_kv_view){.base = dev_bytes(h, host, bytes),
                          .head_stride = (int64_t)(2 * side),
                          .side_stride = (int64_t)side,
                          .elt = elt};
    c.dev_table = dev_i32(h, c.table, (size_t)c.wrap);
    free(host);
    return c;
}

static int32_t first_seen(int32_t pos, int32_t window)
{
    return window > 0 && pos - window + 1 > 0 ? pos - window + 1 : 0;
}

/* T queries from position pos on, in float64. */
static void attn_ref(const attn_case *c, const cached *kv, const float *q, const float *sinks,
                     bool bf16, double *out)
{
    int32_t G = c->H / c->K;
    double qd[1024];

    for (int32_t t = 0; t < c->T; t++)
        for (int32_t hd = 0; hd < c->H; hd++) {
            int32_t p = c->pos + t, lo = first_seen(p, c->window);
            size_t at = ((size_t)t * (size_t)c->H + (size_t)hd) * (size_t)c->d;
            size_t from = ((size_t)(hd / G) * (size_t)kv->n + (size_t)lo) * (size_t)c->d;

            for (int32_t i = 0; i < c->d; i++)
                qd[i] = bf16 ? round_bf16(q[at + (size_t)i]) : q[at + (size_t)i];
            ref_attention(p + 1 - lo, c->d, 1 / sqrt(c->d), qd, kv->k + from, kv->v + from,
                          sinks[hd], out + at);
        }
}

/* The case's queries, cache and sinks on the device; what its steps are made from. */
typedef struct attn_setup {
    cached kv;
    float *q;
    double *want;
    size_t row; /* elements of a query's heads */
    td_attn_prefill_args a;
} attn_setup;

/* sink: of all heads; NaN: random ones. */
static attn_setup set_up(harness *h, const attn_case *c, td_elt elt, float sink)
{
    int32_t n = c->pos + c->T, ring = 0;
    size_t nq = (size_t)(c->T * c->H * c->d);
    float *sinks = random_floats(h, (size_t)c->H, 2, true);
    td_dims dims = {
        .T = c->T, .D = 2, .H = c->H, .K = c->K, .d = c->d, .M = 1, .k = 1, .head_rows = 1};
    attn_setup s = {.row = (size_t)(c->H * c->d)};

    for (int32_t i = 0; i < c->H && !isnan(sink); i++)
        sinks[i] = sink;
    if (c->window > 0) /* the least that holds what the chunk sees and writes */
        ring = (c->window - 1 + c->T + TD_KV_PAGE - 1) / TD_KV_PAGE;
    s.kv = make_cache(h, n, first_seen(c->pos, c->window), c->K, c->d, ring, elt);
    s.q = random_floats(h, nq, 2, true);
    s.want = (double *)(void *)host_floats(h, 2 * nq);
    attn_ref(c, &s.kv, s.q, sinks, h->ops->act == TD_ELT_BF16, s.want);
    s.a = (td_attn_prefill_args){.T = c->T,
                                 .H = c->H,
                                 .K = c->K,
                                 .d = c->d,
                                 .pos0 = c->pos,
                                 .window = c->window,
                                 .wrap = s.kv.wrap,
                                 .scale = 1.0f / sqrtf((float)c->d),
                                 .q = dev_act(h, s.q, nq),
                                 .kv = s.kv.view,
                                 .table = s.kv.dev_table,
                                 .sinks =
                                     dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, sinks, 1, c->H, 1),
                                 .ws = dev_ws(h, &dims)};
    return s;
}

/* T queries from number `from` on. */
static void prefill_part(harness *h, const attn_setup *s, int32_t from, int32_t T, float *got)
{
    size_t act = td_elt_bytes(h->ops->act), n = (size_t)T * s->row;
    td_attn_prefill_args a = s->a;
    td_error err = {0};

    a.T = T;
    a.pos0 += from;
    a.q = (const char *)s->a.q + (size_t)from * s->row * act;
    a.out = dev_poison(h, n * act);
    check_ok(h->ops->attn_prefill(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, n, got);
}

/* All queries as one decode batch over the same cache, each with a table row of its own; every
 * seventh is padding. */
static td_attn_decode_args decode_batch(harness *h, const attn_setup *s, int32_t *len)
{
    int32_t T = s->a.T, stride = s->kv.wrap + 1;
    int32_t *tables = (int32_t *)(void *)host_floats(h, (size_t)(T * stride));

    for (int32_t t = 0; t < T; t++) {
        len[t] = t % 7 == 3 ? 0 : s->a.pos0 + t + 1;
        memcpy(tables + t * stride, s->kv.table, (size_t)s->kv.wrap * 4);
        tables[t * stride + s->kv.wrap] = INT32_MAX; /* past wrap: never looked at */
    }
    return (td_attn_decode_args){.T = T,
                                 .H = s->a.H,
                                 .K = s->a.K,
                                 .d = s->a.d,
                                 .window = s->a.window,
                                 .wrap = s->kv.wrap,
                                 .table_stride = stride,
                                 .scale = s->a.scale,
                                 .q = s->a.q,
                                 .kv = s->kv.view,
                                 .len = dev_i32(h, len, (size_t)T),
                                 .table = dev_i32(h, tables, (size_t)(T * stride)),
                                 .sinks = s->a.sinks,
                                 .out =
                                     dev_poison(h, (size_t)T * s->row * td_elt_bytes(h->ops->act)),
                                 .ws = s->a.ws};
}

static void attn_case_with(harness *h, const attn_case *c, td_elt elt, float sink)
{
    attn_setup s = set_up(h, c, elt, sink);
    size_t nq = (size_t)c->T * s.row;
    float *got = host_floats(h, nq), *again = host_floats(h, nq);
    int32_t *len = (int32_t *)(void *)host_floats(h, (size_t)c->T);
    int32_t half = (c->T + 1) / 2;
    const char *prefill = elt == TD_ELT_E4M3 ? "attn_prefill, e4m3" : "attn_prefill";
    const char *decode = elt == TD_ELT_E4M3 ? "attn_decode, e4m3" : "attn_decode";
    td_attn_decode_args b;
    td_error err = {0};

    prefill_part(h, &s, 0, c->T, got);
    check_close(prefill, got, s.want, nq, h->tol->attn);
    if (c->T > 1) { /* in two chunks */
        prefill_part(h, &s, 0, half, again);
        prefill_part(h, &s, half, c->T - half, again + (size_t)half * s.row);
        if (c->T <= TD_SMALL_STEP || h->ops->act == TD_ELT_F32)
            assert_memory_equal(again, got, nq * 4);
        else
            check_close(prefill, again, s.want, nq, h->tol->attn);
    }

    b = decode_batch(h, &s, len);
    check_ok(h->ops->attn_decode(h->s, &b, &err), &err);
    read_elts(h, b.out, h->ops->act, nq, again);
    for (int32_t t = 0; t < c->T; t++) {
        for (size_t i = (size_t)t * s.row; len[t] == 0 && i < (size_t)(t + 1) * s.row; i++) {
            assert_true(again[i] == 0);
            s.want[i] = got[i] = 0;
        }
    }
    check_close(decode, again, s.want, nq, h->tol->attn);
    if (h->ops->act == TD_ELT_F32) /* the CPU's kernels are one */
        assert_memory_equal(again, got, nq * 4);
    /* Some of them alone, and in place. */
    for (int32_t t = c->T - 1; t >= 0 && t >= c->T - 2; t--) {
        td_attn_decode_args one = b;

        one.T = 1;
        one.q = one.out = dev_act(h, s.q + (size_t)t * s.row, s.row);
        one.len += t;
        one.table += t * b.table_stride;
        check_ok(h->ops->attn_decode(h->s, &one, &err), &err);
        read_elts(h, one.out, h->ops->act, s.row, got);
        assert_memory_equal(got, again + (size_t)t * s.row, s.row * 4);
    }
    harness_clear(h);
}

static void attn_case_on(harness *h, const attn_case *c, td_elt elt)
{
    attn_case_with(h, c, elt, NAN);
}

/* Keys and values in e4m3: the CPU does without. */
static bool has_e4m3(const harness *h)
{
    return strcmp(h->ops->name, "cpu") != 0;
}

static void test_attention_agrees_with_float64_in_prefill_and_decode(void **state)
{
    for (size_t i = 0; i < N_OF(attn_cases); i++) {
        attn_case_on(*state, &attn_cases[i], TD_ELT_BF16);
        attn_case_on(*state, &attn_cases[i], TD_ELT_F32);
        if (has_e4m3(*state))
            attn_case_on(*state, &attn_cases[i], TD_ELT_E4M3);
    }
}

static void test_attention_at_every_length_around_window_and_page_edges(void **state)
{
    static const int32_t pos[] = {0,   1,   2,   31,  32,  61,  62,  63,  64,  65,  125, 126, 127,
                                  128, 129, 130, 190, 191, 192, 193, 254, 255, 256, 257, 999};

    if (HARNESS_FEW)
        skip();
    for (size_t i = 0; i < N_OF(pos); i += harness_small() ? 6 : 1)
        for (int32_t window = 0; window <= 128; window += 128) {
            attn_case c = {.T = 1, .pos = pos[i], .H = 8, .K = 1, .d = 64, .window = window};

            attn_case_on(*state, &c, TD_ELT_BF16);
            if (has_e4m3(*state))
                attn_case_on(*state, &c, TD_ELT_E4M3);
            c.T = 3;
            attn_case_on(*state, &c, TD_ELT_F32);
        }
}

/* Whole sequences, and the ends of long ones: sizes around pages, tiles of queries and chunks. */
static void test_attention_over_queries_of_every_length_around_tiles(void **state)
{
    static const attn_case cases[] = {
        {63, 0, 8, 1, 64, 0},     {64, 0, 8, 1, 64, 128},     {127, 0, 16, 2, 64, 0},
        {128, 0, 8, 1, 64, 128},  {129, 0, 8, 1, 64, 0},      {191, 0, 8, 1, 64, 128},
        {193, 0, 8, 1, 64, 0},    {257, 0, 8, 1, 64, 128},    {65, 4032, 8, 1, 64, 0},
        {130, 4000, 8, 1, 64, 0}, {130, 4000, 8, 1, 64, 128}, {9, 300, 7, 1, 64, 1},
        {30, 300, 6, 2, 64, 20},  {140, 100, 5, 1, 64, 64},   {140, 100, 3, 3, 64, 65},
        {3, 33000, 2, 1, 64, 0},
    };

    if (HARNESS_FEW)
        skip();
    for (size_t i = 0; i < N_OF(cases); i += harness_small() ? 4 : 1) {
        attn_case_on(*state, &cases[i], TD_ELT_BF16);
        if (has_e4m3(*state))
            attn_case_on(*state, &cases[i], TD_ELT_E4M3);
    }
}

static void test_attention_with_sinks_that_take_nothing_or_all(void **state)
{
    static const float sinks[] = {-INFINITY, -1e30f, 30, 200};
    harness *h = *state;

    for (size_t i = 0; i < N_OF(sinks); i++)
        for (int32_t window = 0; window <= 128; window += 128) {
            attn_case c = {.T = 40, .pos = 290, .H = 8, .K = 1, .d = 64, .window = window};
            attn_setup s;
            float *got;

            if (sinks[i] < 20) {
                attn_case_with(h, &c, TD_ELT_BF16, sinks[i]);
                continue;
            }
            s = set_up(h, &c, TD_ELT_BF16, sinks[i]);
            got = host_floats(h, (size_t)c.T * s.row);
            prefill_part(h, &s, 0, c.T, got);
            for (size_t j = 0; j < (size_t)c.T * s.row; j++)
                assert_float_equal(got[j], 0, sinks[i] > 100 ? 1e-30 : 1e-6);
            harness_clear(h);
        }
}

/* Zero scores, and one-hot values: key j counts in dimension j % 64. Who is seen shows in the
 * counts, whatever the kernel that heads of 64 get. */
static void test_attention_sees_the_keys_of_the_window_and_no_others(void **state)
{
    harness *h = *state;
    enum { N = 330, PAGES = 6, d = 64, H = 8 };
    const size_t side = (size_t)PAGES * TD_KV_PAGE * d;
    const int32_t table[PAGES] = {3, 0, 5, 1, 4, 2};
    td_dims dims = {.T = N, .D = 2, .H = H, .K = 1, .d = d, .M = 1, .k = 1, .head_rows = 1};
    td_error err = {0};

    for (int32_t window = 0; window <= 128; window += window == 0 ? 127 : 1) {
        float *q = host_floats(h, (size_t)N * H * d), *got = host_floats(h, (size_t)N * H * d);
        float *sinks = host_floats(h, H);
        uint16_t *cache = (uint16_t *)(void *)host_floats(h, side);

        for (int32_t j = 0; j < N; j++)
            cache[side + ((size_t)table[j / TD_KV_PAGE] * TD_KV_PAGE + (size_t)j % TD_KV_PAGE) * d +
                  (size_t)j % d] = 0x3f80;
        td_attn_prefill_args a = {.T = N,
                                  .H = H,
                                  .K = 1,
                                  .d = d,
                                  .window = window,
                                  .wrap = PAGES,
                                  .scale = 1,
                                  .q = dev_act(h, q, (size_t)N * H * d),
                                  .kv = {.base = dev_bytes(h, cache, 2 * side * 2),
                                         .side_stride = (int64_t)side,
                                         .head_stride = 2 * (int64_t)side,
                                         .elt = TD_ELT_BF16},
                                  .table = dev_i32(h, table, PAGES),
                                  .sinks =
                                      dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, sinks, 1, H, 1),
                                  .out = dev_poison(h, (size_t)N * H * d * 4),
                                  .ws = dev_ws(h, &dims)};
        check_ok(h->ops->attn_prefill(h->s, &a, &err), &err);
        read_elts(h, a.out, h->ops->act, (size_t)N * H * d, got);
        for (int32_t i = 0; i < N; i++) {
            int32_t lo = first_seen(i, window), seen[d] = {0};

            for (int32_t j = lo; j <= i; j++)
                seen[j % d]++;
            for (int32_t x = 0; x < H * d; x++) {
                double want = (double)seen[x % d] / (i - lo + 2);

                assert_float_equal(got[i * H * d + x], want, want * 6e-3);
            }
        }
        harness_clear(h);
    }
}

/* Query of one head of two dimensions whose scores over n keys are given. */
static float weighted(harness *h, int32_t n, const float *scores, const float *values, float sink)
{
    float k[64 * 4] = {0}, q[2] = {1.41421356f, 0}, out[2]; /* k: page 0 keys, then values */
    const int32_t table[1] = {0}, len[1] = {n};
    td_dims dims = {.T = 1, .D = 2, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .head_rows = 1};
    td_error err = {0};

    for (int32_t j = 0; j < n; j++) {
        k[2 * j] = scores[j];
        k[128 + 2 * j] = values[j];
    }
    td_attn_decode_args a = {.T = 1,
                             .H = 1,
                             .K = 1,
                             .d = 2,
                             .wrap = 1,
                             .table_stride = 1,
                             .scale = 0.70710678f,
                             .q = dev_act(h, q, 2),
                             .kv = {.base = dev_f32(h, k, 256),
                                    .head_stride = 256,
                                    .side_stride = 128,
                                    .elt = TD_ELT_F32},
                             .len = dev_i32(h, len, 1),
                             .table = dev_i32(h, table, 1),
                             .sinks = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, &sink, 1, 1, 1),
                             .out = dev_poison(h, 8),
                             .ws = dev_ws(h, &dims)};
    check_ok(h->ops->attn_decode(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, 2, out);
    harness_clear(h);
    return out[0];
}

/* got: want, within eps for f32; bf16 rounds the query (1.4142 to 1.4141) and the result. */
static void check_weighted(harness *h, float got, double want, double eps)
{
    assert_float_equal(got, want, h->ops->act == TD_ELT_F32 ? eps : fabs(want) * 6e-3);
}

static void test_attention_check_6_of_the_specification(void **state)
{
    harness *h = *state;
    const float scores[3] = {1, 2, 3}, values[3] = {10, 20, 30};
    const float a[3] = {1, 0, 0}, b[3] = {0, 1, 0}, c[3] = {0, 0, 1};

    check_weighted(h, weighted(h, 3, scores, values, 0.5f), 24.4186894714, 1e-5);
    check_weighted(h, weighted(h, 3, scores, a, 0.5f), 0.0853688935, 1e-6);
    check_weighted(h, weighted(h, 3, scores, b, 0.5f), 0.2320567119, 1e-6);
    check_weighted(h, weighted(h, 3, scores, c, 0.5f), 0.6307955432, 1e-6);
    check_weighted(h, weighted(h, 3, scores, values, -INFINITY), 25.7521038260, 1e-5);
    assert_float_equal(weighted(*state, 3, scores, values, 200.0f), 0, 1e-30);
    assert_float_equal(weighted(*state, 3, scores, values, 3e38f), 0, 1e-30);
}

static void test_attention_survives_huge_scores(void **state)
{
    const float scores[3] = {-3e4f, 3e4f, 2.9e4f}, values[3] = {10, 20, 30};

    assert_float_equal(weighted(*state, 3, scores, values, 0), 20, 1e-5);
}

/* Check 8: 300 tokens, value of key j = one-hot(j), zero scores: who is seen, and how much. */
static void test_attention_check_8_of_the_specification(void **state)
{
    harness *h = *state;
    enum { N = 300, PAGES = 5 };
    size_t side = (size_t)PAGES * TD_KV_PAGE * N;
    float *cache = host_floats(h, 2 * side), *q = host_floats(h, N * N),
          *got = host_floats(h, N * N);
    const float sink = 0.25f;
    const int32_t table[PAGES] = {0, 1, 2, 3, 4};
    td_dims dims = {.T = N, .D = 2, .H = 1, .K = 1, .d = N, .M = 1, .k = 1, .head_rows = 1};
    td_error err = {0};

    for (size_t j = 0; j < N; j++)
        cache[side + j * N + j] = 1;
    td_attn_prefill_args a = {.T = N,
                              .H = 1,
                              .K = 1,
                              .d = N,
                              .window = 128,
                              .wrap = PAGES,
                              .scale = 1,
                              .q = dev_act(h, q, N * N),
                              .kv = {.base = dev_f32(h, cache, 2 * side),
                                     .side_stride = (int64_t)side,
                                     .head_stride = 2 * (int64_t)side,
                                     .elt = TD_ELT_F32},
                              .table = dev_i32(h, table, PAGES),
                              .sinks = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_F32, &sink, 1, 1, 1),
                              .out = dev_poison(h, N * N * 4),
                              .ws = dev_ws(h, &dims)};
    check_ok(h->ops->attn_prefill(h->s, &a, &err), &err);
    read_elts(h, a.out, h->ops->act, N * N, got);
    for (int32_t i = 0; i < N; i++)
        for (int32_t j = 0; j < N; j++) {
            int32_t lo = i >= 127 ? i - 127 : 0;
            double want = j >= lo && j <= i ? 1 / (i - lo + 1 + exp(sink)) : 0;

            double eps = h->ops->act == TD_ELT_F32 ? 1e-8 : want * 4e-3;

            assert_float_equal(got[i * N + j], want, want == 0 ? 0 : eps);
        }
    harness_clear(h);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_agrees_with_float64_in_prefill_and_decode),
        cmocka_unit_test(test_attention_at_every_length_around_window_and_page_edges),
        cmocka_unit_test(test_attention_over_queries_of_every_length_around_tiles),
        cmocka_unit_test(test_attention_with_sinks_that_take_nothing_or_all),
        cmocka_unit_test(test_attention_sees_the_keys_of_the_window_and_no_others),
        cmocka_unit_test(test_attention_check_6_of_the_specification),
        cmocka_unit_test(test_attention_survives_huge_scores),
        cmocka_unit_test(test_attention_check_8_of_the_specification),
    };
    return RUN_CHOSEN_TESTS(tests, harness_open, harness_close);
}
