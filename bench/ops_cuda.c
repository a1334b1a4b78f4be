/* ops_cuda: how long each step of a layer takes on the GPU, beside the bytes or the arithmetic that
 * it cannot do without.
 *
 *   ops_cuda [device]
 *
 * Shapes of gpt-oss-20b on one rank, random data, weights rotated past the caches where a step
 * reads few of them. A time is the best of five runs of many steps, enqueued one after the other
 * without a graph: short steps are bound by their launches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "kernels/ops.h"

enum {
    D = 2880,
    H = 64,
    K = 8,
    d = 64,
    E = 32,
    I = 2880,
    TOP = 4,
    V = 201088,
    N = (H + 2 * K) * d
};
enum { COPIES = 4, SETS = 8, MOST = 8192, POSITIONS = 1 << 19, BLOCK = 1 << 24 };

static const td_ops *ops;
static td_dev *dev;
static td_stream *s;
static uint64_t state = 1;
static char *noise; /* BLOCK random bytes */

static void check(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "%s: %s\n", td_status_name(st), err->text);
    exit(1);
}

static uint32_t bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static void *memory(size_t bytes)
{
    td_buffer b;
    td_error err = {0};

    check(ops->alloc(dev, bytes, &b, &err), &err);
    return b.ptr; /* until the process ends */
}

/* bytes of random bf16 under 2 in magnitude */
static void *random_memory(size_t bytes)
{
    char *p = memory(bytes);
    td_error err = {0};

    for (size_t at = 0; at < bytes; at += BLOCK)
        check(ops->copy_in(s, p + at, noise, bytes - at < BLOCK ? bytes - at : BLOCK, &err), &err);
    check(ops->sync(s, &err), &err);
    return p;
}

static void *to_device(const void *host, size_t bytes)
{
    void *p = memory(bytes);
    td_error err = {0};

    check(ops->copy_in(s, p, host, bytes, &err), &err);
    check(ops->sync(s, &err), &err);
    return p;
}

/* Rows of noise, over and over. */
static td_matrix matrix(td_form form, int32_t rows, int32_t cols)
{
    int32_t most = BLOCK / 2 / cols;
    int32_t n = (rows + most - 1) / most;
    td_host_block *b = calloc((size_t)n, sizeof *b);
    td_matrix m;
    td_error err = {0};

    for (int32_t i = 0; i < n; i++)
        b[i] = (td_host_block){noise, rows - i * most < most ? rows - i * most : most, cols};
    check(ops->load(dev, form, TD_ELT_BF16, b, n, cols, &m, &err), &err);
    free(b);
    return m;
}

static td_matrix packed(td_form form, int32_t rows, int32_t cols)
{
    size_t blocks = (size_t)rows * (size_t)cols / 2, scales = (size_t)rows * (size_t)cols / 32;
    uint8_t *b = malloc(blocks), *sc = malloc(scales);
    td_matrix m;
    td_error err = {0};

    for (size_t i = 0; i < blocks; i++)
        b[i] = (uint8_t)noise[i * 7 % BLOCK];
    for (size_t i = 0; i < scales; i++)
        sc[i] = (uint8_t)(118 + i % 5);
    check(ops->load_mxfp4(dev, form,
                          &(td_host_mxfp4){.blocks = b,
                                           .scales = sc,
                                           .row_blocks = cols / 2,
                                           .row_scales = cols / 32,
                                           .E = E,
                                           .N = rows,
                                           .K = cols},
                          TD_EXPERTS_MXFP4, &m, &err),
          &err);
    free(b);
    free(sc);
    return m;
}

static struct setup {
    td_matrix norm, qkv[COPIES], qkv_bias, o[COPIES], o_bias, sinks, router, router_bias;
    td_matrix gate_up, gate_up_bias, down, down_bias, unembed;
    void *x, *q, *o_in, *t, *out, *ws, *kv, *ids;
    int32_t *pos, *slot, *table, *len, *rows, *set_idx[SETS], *idx;
    float *rope, *prob, *set_prob, *logits;
    int32_t T, keys, window;
    int turn;
} w;

static void run_attn_in(td_error *err)
{
    td_attn_in_args a = {
        .T = w.T,
        .D = D,
        .H = H,
        .K = K,
        .d = d,
        .eps = 1e-5f,
        .x = w.x,
        .norm = &w.norm,
        .qkv = &w.qkv[w.turn++ % COPIES],
        .bias = &w.qkv_bias,
        .cos = w.rope,
        .sin = w.rope,
        .pos = w.pos,
        .slot = w.slot,
        .kv = {w.kv, (int64_t)POSITIONS * d * 2, (int64_t)POSITIONS * d, TD_ELT_BF16},
        .q = w.q,
        .ws = w.ws};
    check(ops->attn_in(s, &a, err), err);
}

static void run_attn_out(td_error *err)
{
    td_attn_out_args a = {.T = w.T,
                          .D = D,
                          .Hd = H * d,
                          .o = w.o_in,
                          .w = &w.o[w.turn++ % COPIES],
                          .bias = &w.o_bias,
                          .out = w.out,
                          .ws = w.ws};
    check(ops->attn_out(s, &a, err), err);
}

static void run_prefill(td_error *err)
{
    td_attn_prefill_args a = {
        .T = w.T,
        .H = H,
        .K = K,
        .d = d,
        .pos0 = w.keys - w.T,
        .window = w.window,
        .wrap = w.keys / TD_KV_PAGE,
        .scale = 0.125f,
        .q = w.q,
        .kv = {w.kv, (int64_t)POSITIONS * d * 2, (int64_t)POSITIONS * d, TD_ELT_BF16},
        .table = w.table,
        .sinks = &w.sinks,
        .out = w.out,
        .ws = w.ws};
    check(ops->attn_prefill(s, &a, err), err);
}

static void run_decode(td_error *err)
{
    td_attn_decode_args a = {
        .T = w.T,
        .H = H,
        .K = K,
        .d = d,
        .window = w.window,
        .wrap = w.keys / TD_KV_PAGE,
        .table_stride = w.keys / TD_KV_PAGE,
        .scale = 0.125f,
        .q = w.q,
        .kv = {w.kv, (int64_t)POSITIONS * d * 2, (int64_t)POSITIONS * d, TD_ELT_BF16},
        .len = w.len,
        .table = w.table,
        .sinks = &w.sinks,
        .out = w.out,
        .ws = w.ws};
    check(ops->attn_decode(s, &a, err), err);
}

static void run_router(td_error *err)
{
    td_router_args a = {.T = w.T,
                        .D = D,
                        .M = E,
                        .k = TOP,
                        .eps = 1e-5f,
                        .x = w.x,
                        .norm = &w.norm,
                        .w = &w.router,
                        .bias = &w.router_bias,
                        .t = w.out,
                        .idx = w.idx,
                        .prob = w.prob,
                        .ws = w.ws};
    check(ops->router(s, &a, err), err);
}

static void run_experts(td_error *err)
{
    td_experts_args a = {.T = w.T,
                         .D = D,
                         .I = I,
                         .E = E,
                         .k = TOP,
                         .limit = 7,
                         .t = w.t,
                         .idx = w.set_idx[w.turn++ % SETS],
                         .prob = w.set_prob,
                         .gate_up = &w.gate_up,
                         .gate_up_bias = &w.gate_up_bias,
                         .down = &w.down,
                         .down_bias = &w.down_bias,
                         .out = w.out,
                         .ws = w.ws};
    check(ops->experts(s, &a, err), err);
}

static void run_head(td_error *err)
{
    td_head_args a = {.n = w.T,
                      .D = D,
                      .V = V,
                      .eps = 1e-5f,
                      .x = w.x,
                      .rows = w.rows,
                      .norm = &w.norm,
                      .w = &w.unembed,
                      .out = w.logits,
                      .ws = w.ws};
    check(ops->head(s, &a, err), err);
}

static void run_add(td_error *err)
{
    check(ops->add(
              s,
              &(td_add_args){
                  .n = (size_t)w.T * D, .n_parts = 1, .part = (const void *const[]){w.t}, .x = w.x},
              err),
          err);
}

/* One line: what must be read and written, what must be multiplied. */
static void measure(const char *name, void (*run)(td_error *), double bytes, double flops)
{
    td_error err = {0};
    double best = 1e30;
    int n = 1;

    run(&err);
    check(ops->sync(s, &err), &err);
    for (int round = 0; round < 6; round++) {
        td_usec t0 = td_now_us(), t1;

        for (int i = 0; i < n; i++)
            run(&err);
        check(ops->sync(s, &err), &err);
        t1 = td_now_us();
        if (round == 0) /* about 4 ms a round */
            n = t1 > t0 ? (int)(4000 / (t1 - t0)) + 1 : 400;
        else if ((double)(t1 - t0) / n < best)
            best = (double)(t1 - t0) / n;
    }
    printf("%-28s %5d %7d %10.1f us %8.0f GB/s %8.1f TFLOP/s\n", name, w.T, w.keys, best,
           bytes / best / 1e3, flops / best / 1e6);
}

static void choose_experts(void)
{
    int32_t *idx = malloc(MOST * TOP * sizeof *idx);
    float *prob = malloc(MOST * TOP * sizeof *prob);

    for (int set = 0; set < SETS; set++) {
        for (int t = 0; t < MOST; t++)
            for (int j = 0; j < TOP; j++) {
                int again;

                do {
                    idx[t * TOP + j] = (int32_t)(bits() % E);
                    again = 0;
                    for (int i = 0; i < j; i++)
                        again |= idx[t * TOP + i] == idx[t * TOP + j];
                } while (again);
                prob[t * TOP + j] = 0.25f;
            }
        w.set_idx[set] = to_device(idx, MOST * TOP * sizeof *idx);
    }
    w.set_prob = to_device(prob, MOST * TOP * sizeof *prob);
    free(idx);
    free(prob);
}

static void open_all(int device)
{
    const td_dims dims = {MOST, D, H, K, d, E, E, I, TOP, V, 64};
    int32_t *n = malloc(POSITIONS * sizeof *n);
    td_error err = {0};

    check(td_ops_find("cuda", &ops, &err), &err);
    check(ops->dev_open(&(td_dev_options){.index = device}, &dev, &err), &err);
    check(ops->dev_bind(dev, &err), &err);
    s = ops->dev_stream(dev);
    noise = malloc(BLOCK);
    for (size_t i = 0; i < BLOCK / 2; i++) { /* sign, exponents 2^-7 .. 1, mantissa */
        uint32_t b = bits();
        uint16_t h = (uint16_t)((b & 0x8000) | (0x3c00 + (b & 0x3ff)));

        memcpy(noise + 2 * i, &h, 2);
    }
    w.norm = matrix(TD_FORM_VECTOR, D, 1);
    w.qkv_bias = matrix(TD_FORM_VECTOR, N, 1);
    w.o_bias = matrix(TD_FORM_VECTOR, D, 1);
    w.sinks = matrix(TD_FORM_VECTOR, H, 1);
    w.router_bias = matrix(TD_FORM_VECTOR, E, 1);
    w.gate_up_bias = matrix(TD_FORM_VECTOR, E * 2 * I, 1);
    w.down_bias = matrix(TD_FORM_VECTOR, E * D, 1);
    for (int i = 0; i < COPIES; i++) {
        w.qkv[i] = matrix(TD_FORM_DENSE, N, D);
        w.o[i] = matrix(TD_FORM_DENSE, D, H * d);
    }
    w.router = matrix(TD_FORM_DENSE, E, D);
    w.unembed = matrix(TD_FORM_DENSE, V, D);
    w.gate_up = packed(TD_FORM_GATE_UP, 2 * I, D);
    w.down = packed(TD_FORM_DOWN, D, I);
    w.x = memory((size_t)MOST * D * 4);
    w.t = random_memory((size_t)MOST * D * 2);
    w.q = random_memory((size_t)MOST * H * d * 2);
    w.o_in = random_memory((size_t)MOST * H * d * 2);
    w.out = memory((size_t)MOST * H * d * 2);
    w.kv = random_memory((size_t)POSITIONS * d * 2 * K * 2);
    w.rope = random_memory((size_t)MOST * d / 2 * 4);
    w.logits = memory((size_t)64 * V * 4);
    w.idx = memory(MOST * TOP * 4);
    w.prob = memory(MOST * TOP * 4);
    for (int32_t i = 0; i < POSITIONS; i++)
        n[i] = i < MOST ? i : i % MOST;
    w.pos = w.rows = to_device(n, MOST * sizeof *n);
    w.slot = w.pos;
    for (int32_t i = 0; i < POSITIONS; i++)
        n[i] = i;
    w.table = to_device(n, POSITIONS / TD_KV_PAGE * sizeof *n);
    w.len = memory(MOST * sizeof *n);
    w.ws = memory(ops->workspace_bytes(dev, &dims));
    choose_experts();
    w.T = MOST;
    run_add(&err); /* a residual stream that is not zero */
    free(n);
}

static void set_lengths(int32_t T, int32_t keys, int32_t window)
{
    int32_t *len = malloc((size_t)T * sizeof *len);
    td_error err = {0};

    w.T = T;
    w.keys = keys;
    w.window = window;
    for (int32_t i = 0; i < T; i++)
        len[i] = keys;
    check(ops->copy_in(s, w.len, len, (size_t)T * sizeof *len, &err), &err);
    check(ops->sync(s, &err), &err);
    free(len);
}

/* Distinct experts of the tokens, on average over uniform choices. */
static double touched(int32_t T)
{
    double none = 1;

    for (int32_t i = 0; i < T; i++)
        none *= 1 - (double)TOP / E;
    return E * (1 - none);
}

int main(int argc, char **argv)
{
    static const int32_t sizes[] = {1, 8, 64, 512, 2048, 8192};
    td_usec t0 = td_now_us();

    open_all(argc > 1 ? atoi(argv[1]) : 0);
    printf("loaded in %.1f s\n%-28s %5s %7s\n", (double)(td_now_us() - t0) / 1e6, "step", "T",
           "keys");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double T = sizes[i], e = touched(sizes[i]);

        w.T = sizes[i];
        w.keys = 0;
        measure("attn_in", run_attn_in, 2.0 * N * D, 2 * T * N * D);
        measure("attn_out", run_attn_out, 2.0 * D * H * d, 2 * T * D * H * d);
        measure("add", run_add, T * D * 10, 0);
        measure("router", run_router, T * D * 6 + 2.0 * E * D, 2 * T * E * D);
        measure("experts", run_experts, e * 3 * I * (double)D * 17 / 32, 2 * T * TOP * 3 * I * D);
        if (sizes[i] <= 64)
            measure("head", run_head, 2.0 * V * D, 2 * T * V * D);
    }
    for (int32_t keys = 2048; keys <= 8192; keys *= 4) {
        set_lengths(keys, keys, 0);
        measure("attn_prefill, full", run_prefill, 0, 2.0 * keys * keys * H * d);
        set_lengths(keys, keys, 128);
        measure("attn_prefill, window", run_prefill, 0, 4.0 * keys * 128 * H * d);
    }
    for (int32_t T = 1; T <= 64; T *= 8) {
        set_lengths(T, POSITIONS / 64, 0);
        measure("attn_decode, full", run_decode, 4.0 * K * d * T * w.keys, 0);
        set_lengths(T, POSITIONS / 64, 128);
        measure("attn_decode, window", run_decode, 4.0 * K * d * T * 128, 0);
    }
    return 0;
}
