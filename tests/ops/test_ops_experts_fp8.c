/* Experts in FP8 on the GPU. Quantised activations cost about 4% of a result, so one bound on it
 * would hide a bug; instead each stage is compared with float64 that starts from what the stage
 * before left in the workspace:
 *
 *   plan        exactly, but for the order of an expert's rows
 *   weights     every element against its MXFP4 value; the count of those that had to be rounded
 *   quantise    codes and scales, bit for bit
 *   gate_up     h8 is the float64 result's e4m3 code, or (rarely) the one next to it
 *   down        2.5e-3 of the sum, of which two roundings to bf16 are 2.3e-3; a single token, with
 *               few elements to average over, 3.5e-3
 *   whole step  6% of float64 from bf16 activations */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/experts_fp8.h"
#include "tests/ops/harness.h"
#include "tests/ops/ref.h"

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

enum { LOTS = 8 };

/* Of the weights that make_weights() makes, with exponents 120 .. 124. */
static const double WEIGHT_RMS = 0.19;

/* Tokens in the first experts, when they are given (then k is 1); else choices are random over M
 * experts, some of them -1. */
typedef struct fp8_case {
    const char *name;
    int32_t T, D, I, M, E, first, k;
    float limit;
    int32_t count[LOTS];
    float hot;    /* factor on the rows of expert 1's tokens */
    float bias;   /* magnitude of the biases */
    int32_t span; /* exponents 120 .. 120 + span; above 14 some weights are rounded */
    bool no_down_bias;
    double whole; /* bound on the whole step; 0: 6% */
} fp8_case;

static const fp8_case cases[] = {
    {"counts", 0, 416, 736, 12, 7, 2, 1, 7, {0, 1, 63, 64, 65, 129, 300}, 1, 2, 4, false, 0},
    {"narrow", 50, 96, 32, 6, 4, 1, 2, 7, {0}, 1, 2, 4, false, 0},
    {"smallest", 1, 32, 32, 1, 1, 0, 1, 7, {0}, 1, 2, 4, false, 0},
    {"published width", 0, 2880, 2880, 3, 3, 0, 1, 7, {0, 20, 1}, 1, 2, 4, false, 0},
    {"quarter of the columns", 90, 2880, 704, 32, 3, 4, 4, 7, {0}, 1, 2, 4, true, 0},
    {"many experts", 200, 160, 352, 128, 128, 0, 4, 7, {0}, 1, 2, 4, false, 0},
    {"one expert", 0, 256, 192, 2, 1, 1, 1, 7, {1500}, 1, 2, 4, false, 0},
    {"an odd lot", 0, 128, 288, 3, 2, 0, 1, 7, {257, 384}, 1, 2, 4, false, 0},
    {"none here", 40, 96, 64, 4, 2, 30, 2, 7, {0}, 1, 2, 4, false, 0},
    /* Where all is clamped, what remains of a sum is its sign, which a little noise turns over. */
    {"hot rows", 0, 384, 320, 4, 3, 0, 1, 7, {70, 130, 40}, 1e4f, 2, 4, false, 0.35},
    {"large bias", 0, 384, 320, 4, 3, 0, 1, 7, {70, 130, 40}, 1e-3f, 1000, 4, false, 0},
    {"wide exponents", 0, 320, 224, 4, 3, 0, 1, 7, {33, 150, 12}, 1, 2, 24, false, 0},
    {"low limit", 60, 192, 96, 4, 4, 0, 2, 2, {0}, 1, 2, 4, false, 0},
    {"high limit", 60, 192, 96, 4, 4, 0, 2, 30, {0}, 1, 20, 4, false, 0},
    {"several planners", 1361, 96, 64, 40, 30, 5, 7, 7, {0}, 1, 2, 4, false, 0},
};

static double e4m3(uint8_t c)
{
    int e = c >> 3 & 15, m = c & 7;
    double x = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);

    if ((c & 0x7f) == 0x7f)
        return NAN;
    return c & 0x80 ? -x : x;
}

/* Nearest, ties to even, the largest for what is larger. */
static uint8_t to_e4m3(double x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0, best = 0;
    int e;
    double a = fabs(x), step;

    if (isnan(x))
        return 0x7f;
    if (a >= 448)
        return sign | 0x7e;
    (void)frexp(a, &e); /* a = [0.5, 1) 2^e */
    step = ldexp(1, e - 1 < -6 ? -9 : e - 4);
    a = nearbyint(a / step) * step;
    if (a != 0) {
        (void)frexp(a, &e);
        best = e - 1 < -6 ? (uint8_t)ldexp(a, 9)
                          : (uint8_t)((e + 6) << 3 | ((int)ldexp(a, 4 - e) & 7));
    }
    return sign | best;
}

typedef struct mx {
    uint8_t *blocks, *scales;
    float *x; /* what the device's codes mean */
    const td_matrix *m;
} mx;

static void fetch(harness *h, void *dst, const void *src, size_t bytes)
{
    td_error err = {0};

    check_ok(h->ops->copy_out(h->s, dst, bytes, src, bytes, bytes, 1, &err), &err);
    check_ok(h->ops->sync(h->s, &err), &err);
}

/* Random weights, and every element of what the device made of them. */
static mx make_weights(harness *h, td_form form, int32_t E, int32_t N, int32_t K, int32_t span)
{
    const size_t n = (size_t)E * (size_t)N * (size_t)K;
    const td_fp8_layout l = td_fp8_layout_of(E, N, K);
    mx w = {.x = host_floats(h, n),
            .blocks = (uint8_t *)host_floats(h, n / 8),
            .scales = (uint8_t *)host_floats(h, n / 128 + 1)};
    uint8_t *got = malloc(l.bytes);
    td_matrix m;
    td_error err = {0};
    int64_t rounded = 0;

    assert_non_null(got);
    for (size_t i = 0; i < n / 2; i++)
        w.blocks[i] = (uint8_t)random_bits(h);
    for (size_t i = 0; i < n / 32; i++)
        w.scales[i] = (uint8_t)(124 - (int)(random_bits(h) % (uint32_t)(span + 1)));
    check_ok(h->ops->load_mxfp4(h->dev, form,
                                &(td_host_mxfp4){.blocks = w.blocks,
                                                 .scales = w.scales,
                                                 .expert_blocks = (int64_t)N * K / 2,
                                                 .expert_scales = (int64_t)N * K / 32,
                                                 .row_blocks = K / 2,
                                                 .row_scales = K / 32,
                                                 .E = E,
                                                 .N = N,
                                                 .K = K},
                                TD_EXPERTS_FP8, &m, &err),
             &err);
    w.m = keep_matrix(h, &m);
    fetch(h, got, m.mem.ptr, l.bytes);
    for (int32_t e = 0; e < E; e++)
        for (int32_t r = 0; r < N; r++)
            for (int32_t k = 0; k < K; k++) {
                size_t at = ((size_t)e * (size_t)N + (size_t)r) * (size_t)K + (size_t)k;
                size_t row = (size_t)e * (size_t)td_fp8_rows(N) + (size_t)td_fp8_place(r);
                size_t s = (((size_t)e * (size_t)td_fp8_blocks(K) + (size_t)k / 128) *
                                (size_t)td_fp8_tiles(N) +
                            (size_t)r / 192) *
                               4 +
                           (size_t)r % 192 / 64;
                uint8_t byte = w.blocks[at / 2];
                double want = ref_mxfp4(k % 2 ? byte >> 4 : byte & 15, w.scales[at / 32]), x;
                float scale;

                memcpy(&scale, got + l.scale + 4 * s, 4);
                x = e4m3(got[row * (size_t)K + (size_t)k]) * scale;
                w.x[at] = (float)x;
                if (x == want)
                    continue;
                rounded++;
                if (!(fabs(x - want) <= scale * 0x1p-10))
                    fail_msg("[%d][%d, %d]: weight %.9g became %.9g, scale %g", e, r, k, want, x,
                             scale);
            }
    free(got);
    if (m.inexact != rounded)
        fail_msg("%lld weights counted as rounded, %lld were", (long long)m.inexact,
                 (long long)rounded);
    assert_true((span <= 14) == (rounded == 0));
    return w;
}

typedef struct made {
    td_experts_args a;
    float *t, *prob, *b1, *b2;
    int32_t *idx;
    mx w1, w2;
} made;

static void choose(harness *h, const fp8_case *c, int32_t T, made *m)
{
    int32_t at = 0;

    for (int32_t e = 0; e < LOTS; e++)
        for (int32_t i = 0; i < c->count[e]; i++) {
            /* Experts' tokens are interleaved as far as they reach. */
            while (m->idx[at % T] >= 0)
                at++;
            m->idx[at % T] = c->first + e;
            at += 7;
        }
    if (at > 0)
        return;
    for (int32_t t = 0; t < T; t++)
        for (int32_t j = 0; j < c->k; j++) {
            int32_t *one = &m->idx[t * c->k + j], again;

            do {
                *one = (int32_t)(random_bits(h) % (uint32_t)c->M);
                again = 0;
                for (int32_t i = 0; i < j; i++)
                    again |= m->idx[t * c->k + i] == *one;
            } while (again);
            if (random_bits(h) % 16 == 0 && T > 1)
                *one = -1;
        }
}

static made make_case(harness *h, const fp8_case *c)
{
    int32_t T = c->T, k = c->k, D = c->D, I = c->I, E = c->E;
    made m = {0};

    for (int32_t e = 0; e < LOTS; e++)
        T += c->count[e];
    m.t = random_floats(h, (size_t)(T * D), 1, true);
    m.prob = random_floats(h, (size_t)(T * k), 1, false);
    m.idx = (int32_t *)(void *)host_floats(h, (size_t)(T * k));
    for (int32_t i = 0; i < T * k; i++)
        m.idx[i] = -1;
    choose(h, c, T, &m);
    for (int32_t i = 0; i < T; i++) {
        if (m.idx[i * k] == c->first + 1)
            for (int32_t d = 0; d < D; d++)
                m.t[i * D + d] = (float)round_bf16(m.t[i * D + d] * c->hot);
        if (T > 8 && D > 128 && i % 5 == 2) /* a block of zeros, one of small numbers */
            for (int32_t d = 0; d < 256 && d < D; d++)
                m.t[i * D + d] *= d < 128 ? 0 : 0x1p-100f;
    }
    m.b1 = random_floats(h, (size_t)(E * 2 * I), c->bias, true);
    m.b2 = random_floats(h, (size_t)(E * D), c->bias, true);
    m.w1 = make_weights(h, TD_FORM_GATE_UP, E, 2 * I, D, c->span);
    m.w2 = make_weights(h, TD_FORM_DOWN, E, D, I, c->span);
    td_dims dims = {
        .T = T, .D = D, .H = 1, .K = 1, .d = 2, .M = c->M, .E = E, .I = I, .k = k, .head_rows = 1};
    m.a = (td_experts_args){
        .T = T,
        .D = D,
        .I = I,
        .E = E,
        .k = k,
        .expert_first = c->first,
        .limit = c->limit,
        .t = dev_act(h, m.t, (size_t)(T * D)),
        .idx = dev_i32(h, m.idx, (size_t)(T * k)),
        .prob = dev_f32(h, m.prob, (size_t)(T * k)),
        .gate_up = m.w1.m,
        .gate_up_bias = dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, m.b1, 1, E * 2 * I, 1),
        .down = m.w2.m,
        .down_bias =
            c->no_down_bias ? NULL : dev_matrix(h, TD_FORM_VECTOR, TD_ELT_BF16, m.b2, 1, E * D, 1),
        .out = dev_poison(h, (size_t)(T * D) * 2),
        .ws = dev_ws(h, &dims)};
    if (c->no_down_bias)
        memset(m.b2, 0, (size_t)(E * D) * 4);
    return m;
}

static void run_step(harness *h, const td_experts_args *a, float *out)
{
    td_error err = {0};

    check_ok(h->ops->experts(h->s, a, &err), &err);
    read_elts(h, a->out, TD_ELT_BF16, (size_t)a->T * (size_t)a->D, out);
}

/* The row of x8 that token t's row must be, and its scales. */
static void quantise_ref(const float *t, int32_t D, uint8_t *code, float *scale)
{
    for (int32_t b = 0; b < D; b += 128) {
        float most = 1e-30f, f;

        for (int32_t i = b; i < D && i < b + 128; i++)
            most = fmaxf(most, fabsf(t[i]));
        f = 448.0f / most;
        scale[b / 128] = most / 448.0f;
        for (int32_t i = b; i < D && i < b + 128; i++)
            code[i] = to_e4m3(t[i] * f);
    }
}

/* What is seen of a pair's way through the step. */
typedef struct seen {
    double out_error, out_mass;   /* squares, of this token */
    double full_error, full_mass; /* of all tokens */
    int64_t codes, neighbours;    /* of h8 */
} seen;

static double sq(double x)
{
    return x * x;
}

/* The wanted h8, and how far the sums' own error can move it: the tensor cores keep about 14 bits
 * of a sum of products that are as large as `mass` together. */
static double wanted_h(const double *u, double mass, double limit, double h_scale, double *slack)
{
    const double d = 0x1p-12 * mass, want = ref_swiglu(u[0], u[1], limit);

    *slack = 0;
    for (int i = 0; i < 4; i++) {
        double near = ref_swiglu(u[0] + (i & 1 ? d : -d), u[1] + (i & 2 ? d : -d), limit);

        *slack = fmax(*slack, fabs(near - want) * h_scale);
    }
    return want * h_scale;
}

/* h8 of a pair against float64 of x; h becomes what the device's codes mean. */
static void check_h(const fp8_case *c, const double *x, const made *m, int32_t e, const uint8_t *h8,
                    float h_scale, double *u, double *h, seen *s)
{
    const size_t D = (size_t)c->D, I = (size_t)c->I;

    double mass = 0;

    ref_dense(1, 2 * c->I, c->D, x, m->w1.x + (size_t)e * 2 * I * D, m->b1 + (size_t)e * 2 * I, u);
    for (size_t i = 0; i < D; i++)
        mass += sq(x[i]);
    mass = sqrt(mass) * WEIGHT_RMS;
    for (size_t i = 0; i < I; i++) {
        double slack, want = wanted_h(u + 2 * i, mass, c->limit, h_scale, &slack),
                      got = e4m3(h8[i]);
        double half = fmax(ldexp(fabs(want) + slack, -4), 0x1p-10); /* a step, at most */

        h[i] = got / h_scale;
        s->codes++;
        s->neighbours += to_e4m3(want) != h8[i];
        if (!(fabs(got - want) <= half + slack))
            fail_msg("%s: expert %d, column %zu: h8 is %g, wanted %g within %g", c->name, e, i, got,
                     want, half + slack);
    }
}

static void check_token(harness *h, const fp8_case *c, const made *m, const td_fp8_ws *ws,
                        const int32_t *place, int32_t t, float h_scale, const float *got, seen *s)
{
    const int32_t D = c->D, I = c->I, k = c->k;
    const int64_t R = td_fp8_most_rows((int64_t)m->a.T * k, c->E);
    uint8_t *x8 = malloc((size_t)D), *code = malloc((size_t)D), *h8 = malloc((size_t)I);
    double *x = malloc((size_t)D * 8), *u = malloc((size_t)I * 16), *hx = malloc((size_t)I * 8),
           *y = malloc((size_t)D * 8), *sum = calloc((size_t)D, 8), *full = calloc((size_t)D, 8);
    float *scale = malloc((size_t)D * 4);
    double error = 0, mass = 0;

    for (int32_t j = 0; j < k; j++) {
        const int32_t e = m->idx[t * k + j] - c->first, at = place[t * k + j];
        const double prob = m->prob[t * k + j];

        if (e < 0 || e >= c->E || m->idx[t * k + j] < 0) {
            assert_int_equal(at, -1);
            continue;
        }
        assert_in_range(at, 0, (size_t)R - 1);
        fetch(h, x8, ws->x8 + at * td_fp8_pitch(D), (size_t)D);
        fetch(h, h8, ws->h8 + at * td_fp8_pitch(I), (size_t)I);
        quantise_ref(m->t + (size_t)t * (size_t)D, D, code, scale);
        for (int32_t b = 0; b < td_fp8_blocks(D); b++) {
            float device;

            fetch(h, &device, ws->x8_scale + b * R + at, 4);
            if (device != scale[b])
                fail_msg("%s: token %d, block %d: scale %.9g, wanted %.9g", c->name, t, b, device,
                         scale[b]);
        }
        for (int32_t i = 0; i < D; i++) {
            if (code[i] != x8[i])
                fail_msg("%s: token %d, channel %d: %.9g over %.9g is code %02x, wanted %02x",
                         c->name, t, i, m->t[t * D + i], scale[i / 128], x8[i], code[i]);
            x[i] = e4m3(x8[i]) * scale[i / 128];
        }
        check_h(c, x, m, e, h8, h_scale, u, hx, s);
        ref_dense(1, D, I, hx, m->w2.x + (size_t)e * (size_t)I * (size_t)D,
                  m->b2 + (size_t)e * (size_t)D, y);
        for (int32_t i = 0; i < D; i++) {
            sum[i] += prob * y[i];
            mass += sq(prob * y[i]);
            x[i] = m->t[t * D + i];
        }
        ref_dense(1, 2 * I, D, x, m->w1.x + (size_t)e * 2 * (size_t)I * (size_t)D,
                  m->b1 + (size_t)e * 2 * (size_t)I, u);
        for (int32_t i = 0; i < I; i++)
            hx[i] = ref_swiglu(u[2 * i], u[2 * i + 1], c->limit);
        ref_dense(1, D, I, hx, m->w2.x + (size_t)e * (size_t)I * (size_t)D,
                  m->b2 + (size_t)e * (size_t)D, y);
        for (int32_t i = 0; i < D; i++)
            full[i] += prob * y[i];
    }
    for (int32_t i = 0; i < D; i++) {
        error += sq(got[t * D + i] - sum[i]);
        s->full_error += sq(got[t * D + i] - full[i]);
        s->full_mass += sq(full[i]);
        if (mass == 0 && got[t * D + i] != 0)
            fail_msg("%s: token %d has no expert here, and %g", c->name, t, got[t * D + i]);
    }
    if (!(error <= sq(3.5e-3) * mass))
        fail_msg("%s: token %d: error %.3g of the sum", c->name, t, sqrt(error / mass));
    s->out_error += mass > 0 ? error / mass : 0;
    s->out_mass += mass > 0;
    free(x8);
    free(code);
    free(h8);
    free(x);
    free(u);
    free(hx);
    free(y);
    free(sum);
    free(full);
    free(scale);
}

/* Each pair of an expert of this rank has a row of the expert's, others none. How many units a
 * number of rows is, the products know; here only that they lie one after the other. */
static void check_plan(harness *h, const fp8_case *c, int32_t pairs, const int32_t *idx,
                       const td_fp8_ws *ws, const int32_t *place)
{
    const int32_t E = c->E, n = E + 1;
    int32_t *plan = calloc((size_t)(4 * n), 4), *rows = calloc((size_t)n, 4), end = 0;
    bool *taken = calloc((size_t)td_fp8_most_rows(pairs, E), 1);

    read_i32(h, ws->plan, (size_t)E, plan); /* [E] of the first two is never written */
    read_i32(h, ws->plan + n, (size_t)E, plan + n);
    read_i32(h, ws->plan + 2 * n, (size_t)(2 * n), plan + 2 * n);
    for (int32_t i = 0; i < pairs; i++)
        if (idx[i] >= c->first && idx[i] < c->first + E)
            rows[idx[i] - c->first]++;
    for (int32_t e = 0; e < E; e++) {
        assert_int_equal(plan[e], end);
        assert_int_equal(plan[n + e], rows[e]);
        end += (rows[e] + 3) / 4 * 4;
    }
    for (int32_t product = 2; product < 4; product++) {
        const int32_t *before = plan + product * n;

        assert_int_equal(before[0], 0);
        for (int32_t e = 0; e < E; e++)
            assert_true(rows[e] == 0 ? before[e + 1] == before[e] : before[e + 1] > before[e]);
    }
    for (int32_t i = 0; i < pairs; i++) {
        const int32_t e = idx[i] - c->first;

        if (idx[i] < 0 || e < 0 || e >= E) {
            assert_int_equal(place[i], -1);
            continue;
        }
        if (place[i] < plan[e] || place[i] >= plan[e] + rows[e] || taken[place[i]])
            fail_msg("%s: pair %d of expert %d is in row %d; its rows are %d from %d on", c->name,
                     i, e, place[i], rows[e], plan[e]);
        taken[place[i]] = true;
    }
    free(plan);
    free(rows);
    free(taken);
}

static void case_on(harness *h, const fp8_case *c)
{
    made m = make_case(h, c);
    const int32_t T = m.a.T;
    float *got = host_floats(h, (size_t)(T * c->D)), h_scale;
    int32_t *place = (int32_t *)(void *)host_floats(h, (size_t)(T * c->k));
    size_t bytes;
    td_fp8_ws ws = td_fp8_cut_ws(m.a.ws, (int64_t)T * c->k, c->D, c->I, c->E, &bytes);
    td_error err = {0};
    seen s = {0};

    check_ok(td_fp8_h_scale(c->limit, &h_scale, &err), &err);
    run_step(h, &m.a, got);
    check_experts_add(h, &m.a, got);
    read_i32(h, ws.place, (size_t)(T * c->k), place);
    check_plan(h, c, T * c->k, m.idx, &ws, place);
    /* About 60 tokens, those at the ends of each expert's rows among them by chance and by step. */
    for (int32_t t = 0; t<T; t += T> 90 ? T / 60 : 1)
        check_token(h, c, &m, &ws, place, t, h_scale, got, &s);
    for (int32_t t = 0; t < T; t++) /* every element was written */
        for (int32_t i = 0; i < c->D; i++)
            if (!isfinite(got[t * c->D + i]))
                fail_msg("%s: token %d, element %d: %g", c->name, t, i, got[t * c->D + i]);
    double out = s.out_mass > 0 ? sqrt(s.out_error / s.out_mass) : 0;
    double full = s.full_mass > 0 ? sqrt(s.full_error / s.full_mass) : 0;
    double near = s.codes > 0 ? (double)s.neighbours / (double)s.codes : 0;
    print_message("report: cuda experts_fp8, %s: %.3g%% of h8 beside the nearest code, down %.3g, "
                  "whole step %.3g\n",
                  c->name, 100 * near, out, full);
    assert_true(near <= 0.02);
    assert_true(out <= (s.out_mass * c->D > 1000 ? 2.5e-3 : 3.5e-3));
    assert_true(full <= (c->whole > 0 ? c->whole : 0.06));
    harness_clear(h);
}

static void test_experts_fp8_agree_with_float64(void **state)
{
    for (size_t i = 0; i < N_OF(cases); i++)
        if (!harness_small() || cases[i].D * cases[i].I < 1 << 22)
            case_on(*state, &cases[i]);
}

/* 20 runs; each token alone; all tokens in another order. */
static void test_experts_fp8_row_keeps_its_bits(void **state)
{
    static const fp8_case c = {"bits", 300, 416, 224, 9, 8, 1, 3, 7, {0}, 1, 2, 4, false, 0};
    harness *h = *state;
    made m = make_case(h, &c);
    const int32_t T = c.T, D = c.D, k = c.k;
    const size_t n = (size_t)(T * D);
    float *first = host_floats(h, n), *got = host_floats(h, n), *t = host_floats(h, n),
          *prob = host_floats(h, (size_t)(T * k));
    int32_t *idx = (int32_t *)(void *)host_floats(h, (size_t)(T * k));
    td_experts_args a = m.a;

    run_step(h, &a, first);
    for (int i = 0; i < (harness_small() ? 2 : 20); i++) {
        run_step(h, &a, got);
        assert_memory_equal(got, first, n * 4);
    }
    for (int32_t i = 0; i < T; i += 13) {
        a.T = 1;
        a.t = (const char *)m.a.t + (size_t)i * (size_t)D * 2;
        a.idx = m.a.idx + i * k;
        a.prob = m.a.prob + i * k;
        run_step(h, &a, got);
        assert_memory_equal(got, first + i * D, (size_t)D * 4);
    }
    for (int32_t i = 0; i < T; i++) { /* 77 and 300 have no common divisor */
        memcpy(t + i * D, m.t + i * 77 % T * D, (size_t)D * 4);
        memcpy(prob + i * k, m.prob + i * 77 % T * k, (size_t)k * 4);
        memcpy(idx + i * k, m.idx + i * 77 % T * k, (size_t)k * 4);
    }
    a = m.a;
    a.t = dev_act(h, t, n);
    a.prob = dev_f32(h, prob, (size_t)(T * k));
    a.idx = dev_i32(h, idx, (size_t)(T * k));
    run_step(h, &a, got);
    for (int32_t i = 0; i < T; i++)
        assert_memory_equal(got + i * D, first + i * 77 % T * D, (size_t)D * 4);
    harness_clear(h);
}

/* Two steps in one graph, which share their workspace: one must not begin with what the other still
 * needs. */
static void test_experts_fp8_in_a_graph(void **state)
{
    static const fp8_case c = {"graph", 200, 288, 160, 8, 8, 0, 2, 7, {0}, 1, 2, 4, false, 0};
    harness *h = *state;
    made m = make_case(h, &c);
    const size_t n = (size_t)(c.T * c.D);
    float *one = host_floats(h, n), *two = host_floats(h, n), *got = host_floats(h, n);
    td_experts_args a = m.a, b = m.a;
    td_graph *g = NULL;
    td_error err = {0};

    b.t = dev_act(h, random_floats(h, n, 3, true), n);
    b.out = dev_poison(h, n * 2);
    run_step(h, &a, one);
    run_step(h, &b, two);
    a.out = dev_poison(h, n * 2);
    b.out = dev_poison(h, n * 2);
    check_ok(h->ops->graph_begin(h->s, &err), &err);
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    check_ok(h->ops->experts(h->s, &b, &err), &err);
    check_ok(h->ops->graph_end(h->s, &g, &err), &err);
    for (int i = 0; i < 5; i++)
        check_ok(h->ops->graph_launch(h->s, g, &err), &err);
    read_elts(h, a.out, TD_ELT_BF16, n, got);
    assert_memory_equal(got, one, n * 4);
    read_elts(h, b.out, TD_ELT_BF16, n, got);
    assert_memory_equal(got, two, n * 4);
    h->ops->graph_free(g);
    harness_clear(h);
}

/* A NaN and an infinity spoil their own rows and no other bit. */
static void test_experts_fp8_nan_stays_in_its_row(void **state)
{
    static const fp8_case c = {"nan", 140, 256, 96, 2, 2, 0, 1, 7, {0}, 1, 2, 4, false, 0};
    harness *h = *state;
    made m = make_case(h, &c);
    const int32_t T = c.T, D = c.D;
    float *first = host_floats(h, (size_t)(T * D)), *got = host_floats(h, (size_t)(T * D));
    td_experts_args a = m.a;

    run_step(h, &a, first);
    m.t[17 * D + 130] = NAN;
    m.t[80 * D + 3] = INFINITY;
    m.idx[17] = m.idx[80] = 1;
    m.a.idx = dev_i32(h, m.idx, (size_t)T);
    m.a.t = dev_act(h, m.t, (size_t)(T * D));
    run_step(h, &m.a, got);
    for (int32_t t = 0; t < T; t++)
        for (int32_t i = 0; i < D; i++)
            if (t == 17 || t == 80)
                assert_true(isnan(got[t * D + i]));
            else
                assert_memory_equal(&got[t * D + i], &first[t * D + i], 4);
    harness_clear(h);
}

/* Numbers of pairs on either side of what one block plans, of what registers hold, and no multiple
 * of anything; experts without pairs; nothing for this rank; all tokens with the same choices. */
static void test_experts_fp8_plan(void **state)
{
    static const struct {
        int32_t T, k, M, E, first;
        int32_t apart; /* above 0: the choices are `apart` from each other, from `first` on */
    } plans[] = {
        {2048, 2, 6, 3, 1, 0},    {4097, 1, 3, 3, 0, 0},       {2053, 4, 64, 61, 1, 20},
        {4999, 1, 2, 2, 200, 0},  {8191, 4, 128, 32, 32, 0},   {1873, 7, 60, 1024, 11, 0},
        {20011, 4, 32, 32, 0, 0}, {20011, 4, 128, 128, 0, 31},
    };
    harness *h = *state;

    for (size_t i = 0; i < N_OF(plans); i++) {
        const int32_t T = plans[i].T, k = plans[i].k, pairs = T * k;
        const fp8_case c = {"plan", T, 32, 32, plans[i].M, plans[i].E, plans[i].first, k, 7,
                            {0},    1, 2,  4,  false,      0};
        size_t bytes;

        if (harness_small() && (pairs > 10000 || c.E > 128))
            continue;
        made m = make_case(h, &c);
        const td_fp8_ws ws = td_fp8_cut_ws(m.a.ws, pairs, c.D, c.I, c.E, &bytes);
        float *out = host_floats(h, (size_t)(T * c.D));
        int32_t *idx = (int32_t *)(void *)host_floats(h, (size_t)pairs),
                *place = (int32_t *)(void *)host_floats(h, (size_t)pairs);
        td_experts_args a = m.a;

        /* All in the last expert first, so that nothing is right because it was there. */
        for (int32_t j = 0; j < pairs; j++) {
            idx[j] = c.first + c.E - 1;
            if (plans[i].apart > 0)
                m.idx[j] = c.first + j % k * plans[i].apart;
        }
        a.idx = dev_i32(h, idx, (size_t)pairs);
        run_step(h, &a, out);
        read_i32(h, ws.place, (size_t)pairs, place);
        check_plan(h, &c, pairs, idx, &ws, place);
        a.idx = dev_i32(h, m.idx, (size_t)pairs);
        run_step(h, &a, out);
        read_i32(h, ws.place, (size_t)pairs, place);
        check_plan(h, &c, pairs, m.idx, &ws, place);
        harness_clear(h);
    }
}

static void test_experts_fp8_refuses(void **state)
{
    static const fp8_case c = {"", 2, 64, 32, 2, 2, 0, 1, 7, {0}, 1, 2, 4, false, 0};
    static const float bad[] = {0, -7, NAN, INFINITY, 1e9f};
    harness *h = *state;
    made m = make_case(h, &c);
    float *w = random_floats(h, 2 * 64 * 32, 1, true);
    td_experts_args a = m.a;
    td_error err = {0};

    for (size_t i = 0; i < N_OF(bad); i++) {
        a.limit = bad[i];
        assert_int_equal(h->ops->experts(h->s, &a, &err), TD_INVALID);
    }
    a = m.a;
    a.down = dev_matrix(h, TD_FORM_DOWN, TD_ELT_BF16, w, 2, 64, 32);
    assert_int_equal(h->ops->experts(h->s, &a, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "FP8"));
    a = m.a;
    a.D = 96;
    assert_int_equal(h->ops->experts(h->s, &a, &err), TD_INVALID);
    a = m.a;
    a.T = (1 << 24) + 1;
    assert_int_equal(h->ops->experts(h->s, &a, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "16777217"));
    a = m.a;
    a.T = 0;
    check_ok(h->ops->experts(h->s, &a, &err), &err);
    harness_clear(h);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_fp8_agree_with_float64),
        cmocka_unit_test(test_experts_fp8_row_keeps_its_bits),
        cmocka_unit_test(test_experts_fp8_in_a_graph),
        cmocka_unit_test(test_experts_fp8_nan_stays_in_its_row),
        cmocka_unit_test(test_experts_fp8_plan),
        cmocka_unit_test(test_experts_fp8_refuses),
    };

    if (strcmp(backend(), "cuda") != 0) {
        print_message("[  SKIPPED ] experts in FP8: for TANDEM_TEST_BACKEND=cuda\n");
        return BACKEND_NOT_RUN;
    }
    return RUN_CHOSEN_TESTS(tests, harness_open, harness_close);
}
