/* ops_cuda: how long each step of a layer takes on a GPU, beside its floor.
 *
 *   ops_cuda [--model 20b|120b|FOLDER] [--tp N] [--ep N] [--op NAME] [--quick] [--csv FILE]
 *            [--experts mxfp4|fp8|both] [--device N] [--hbm]
 *
 * One rank's share of a layer, alone on its GPU. A time is the median of replays of a CUDA graph
 * that holds the step many times, each time with other weights, other keys or another choice of
 * experts, so that what a model finds in memory is not found in the L2 here. Numbers are random.
 * The floor is the larger of bytes over 4.3 TB/s and arithmetic over 800 TFLOP/s (bf16) or 1220
 * (FP8): what an H200 was seen to reach. --hbm measures the first of these in the same run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/hbm.h"
#include "bench/shapes.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/kv_layout.h"
#include "common/shard.h"

enum {
    MOST = 8192,             /* rows of a step */
    SMALL = 128,             /* rows of a decode step */
    L2_BYTES = 60 << 20,     /* rotate through twice as much */
    BLOCK = 16 << 20,        /* of noise */
    SETS = 16,               /* choices of experts */
    REPLAYS = 9,             /* of a graph; the median counts */
    GRAPH_US = 1500,         /* of a graph */
    MOST_STEPS = 512,        /* in a graph */
    KV_BYTES_QUICK = 1 << 30 /* of the pool of pages: what --quick's longest rows need */
};

typedef struct settings {
    char *model, *op, *csv;
    uint32_t tp, ep, device;
    int32_t experts;
    bool quick, hbm;
} settings;

static const char *const experts_words[] = {"mxfp4", "fp8", "both", NULL};
static const td_option options[] = {
    {"model", TD_OPT_STR, offsetof(settings, model), "20b", 0, 0,
     "20b, 120b, or a folder with a config.json.", NULL},
    {"tp", TD_OPT_U32, offsetof(settings, tp), "1", 1, 64, "Ranks of the model; rank 0 is run.",
     NULL},
    {"ep", TD_OPT_U32, offsetof(settings, ep), "0", 0, 64, "Groups of whole experts. 0: as tp.",
     NULL},
    {"op", TD_OPT_STR, offsetof(settings, op), "", 0, 0,
     "Only steps whose name begins with this: attn_decode, experts ...", NULL},
    {"csv", TD_OPT_STR, offsetof(settings, csv), "", 0, 0, "A file for the rows.", NULL},
    {"device", TD_OPT_U32, offsetof(settings, device), "0", 0, 1024, "Which GPU.", NULL},
    {"experts", TD_OPT_ENUM, offsetof(settings, experts), "both", 0, 0,
     "Formats of expert weights.", experts_words},
    {"quick", TD_OPT_BOOL, offsetof(settings, quick), "false", 0, 0, "Fewer sizes.", NULL},
    {"hbm", TD_OPT_BOOL, offsetof(settings, hbm), "false", 0, 0,
     "Measure the rate of memory as well.", NULL},
};

/* Copies of a matrix, to be used in turn. */
typedef struct rotation {
    td_matrix *m;
    int n;
} rotation;

static struct bench {
    const td_ops *ops;
    td_dev *dev;
    td_stream *s;
    td_model_config c;
    td_shard shard;
    char *noise; /* [BLOCK] of alloc_host() or malloc() */
    uint64_t random;
    FILE *csv;

    rotation qkv, o, router;
    td_matrix norm, qkv_bias, o_bias, sinks, router_bias, embed, unembed;
    td_matrix gate_up[2], gate_up_bias, down[2], down_bias; /* [td_expert_format] */
    bool have[2];
    void *x, *q, *act, *out, *kv, *ws;
    int32_t *count, *perm, *tokens, *set[SETS], *set_host[SETS], *idx, *len, *slot, *token;
    float *rope, *prob, *set_prob, *logits;
    td_logprobs *logprobs;
    td_sample_row *sample_rows;
    int32_t n_pages; /* of bf16 keys; twice as many of e4m3 */
} b;

/* One line of the table. */
typedef struct row {
    const char *name, *variant; /* variant may be NULL */
    int32_t T, keys, window;
    td_expert_format format;
    td_elt elt;
    double bytes, flops, peak;
} row;

static void check(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "ops_cuda: %s: %s\n", td_status_name(st), err->text);
    exit(1);
}

static uint32_t bits(void)
{
    b.random ^= b.random << 13;
    b.random ^= b.random >> 7;
    b.random ^= b.random << 17;
    return (uint32_t)(b.random >> 16);
}

static void *memory(size_t bytes)
{
    td_buffer buf;
    td_error err = {0};

    check(b.ops->alloc(b.dev, bytes, &buf, &err), &err);
    return buf.ptr; /* until the process ends */
}

static void *random_memory(size_t bytes)
{
    char *p = memory(bytes);
    td_error err = {0};

    for (size_t at = 0; at < bytes; at += BLOCK)
        check(b.ops->copy_in(b.s, p + at, b.noise, bytes - at < BLOCK ? bytes - at : BLOCK, &err),
              &err);
    check(b.ops->sync(b.s, &err), &err);
    return p;
}

static void *to_device(const void *host, size_t bytes)
{
    void *p = memory(bytes);
    td_error err = {0};

    check(b.ops->copy_in(b.s, p, host, bytes, &err), &err);
    check(b.ops->sync(b.s, &err), &err);
    return p;
}

/* Rows of noise, over and over. */
static td_matrix matrix(td_form form, int32_t rows, int32_t cols)
{
    int32_t most = BLOCK / 2 / cols, n = (rows + most - 1) / most;
    td_host_block *block = calloc((size_t)n, sizeof *block);
    td_matrix m;
    td_error err = {0};

    for (int32_t i = 0; i < n; i++)
        block[i] = (td_host_block){b.noise, rows - i * most < most ? rows - i * most : most, cols};
    check(b.ops->load(b.dev, form, TD_ELT_BF16, block, n, cols, &m, &err), &err);
    free(block);
    return m;
}

static rotation rotate(int32_t rows, int32_t cols)
{
    int64_t bytes = 2 * (int64_t)rows * cols;
    rotation r = {.n = (int)(2 * (int64_t)L2_BYTES / bytes) + 1};

    r.n = r.n > MOST_STEPS ? MOST_STEPS : r.n;
    r.m = calloc((size_t)r.n, sizeof *r.m);
    for (int i = 0; i < r.n; i++)
        r.m[i] = matrix(TD_FORM_DENSE, rows, cols);
    return r;
}

/* Experts that all come from the same bytes; on the device each has its own. */
static bool packed(td_form form, td_expert_format format, int32_t rows, int32_t cols,
                   td_matrix *out)
{
    size_t n = (size_t)rows * (size_t)cols / 32;
    uint8_t *codes = malloc(n * 16), *scales = malloc(n);
    td_host_mxfp4 src = {.blocks = codes,
                         .scales = scales,
                         .row_blocks = cols / 2,
                         .row_scales = cols / 32,
                         .E = b.shard.n_experts,
                         .N = rows,
                         .K = cols};
    td_error err = {0};
    td_status st;

    for (size_t i = 0; i < n * 16; i++)
        codes[i] = (uint8_t)bits();
    for (size_t i = 0; i < n; i++)
        scales[i] = (uint8_t)(118 + bits() % 5);
    st = b.ops->load_mxfp4(b.dev, form, &src, format, out, &err);
    if (st != TD_OK)
        printf("%s: %s\n", td_status_name(st), err.text);
    free(codes);
    free(scales);
    return st == TD_OK;
}

/* --- the steps ------------------------------------------------------------------------------ */

static td_kv_view kv_view(td_elt elt)
{
    int64_t side = (int64_t)b.n_pages * TD_KV_PAGE * b.c.head_dim;

    side *= elt == TD_ELT_E4M3 ? 2 : 1;
    return (td_kv_view){b.kv, 2 * side, side, elt};
}

/* Pages for step i of a graph, each sequence's after the other's: other ones in each step as long
 * as there are some. */
static const int32_t *pages(int32_t sequences, int32_t each, int i)
{
    int32_t need = sequences * each, sets = b.n_pages / need;

    return b.perm + (sets > 0 ? i % sets : 0) * need;
}

static td_status run_embed(const row *r, int i, td_error *err)
{
    return b.ops->embed(b.s,
                        &(td_embed_args){.T = r->T,
                                         .D = b.c.hidden,
                                         .tokens = b.tokens + i % SETS * MOST,
                                         .table = &b.embed,
                                         .out = b.out},
                        err);
}

static td_status run_attn_in(const row *r, int i, td_error *err)
{
    return b.ops->attn_in(b.s,
                          &(td_attn_in_args){.T = r->T,
                                             .D = b.c.hidden,
                                             .H = b.shard.n_q,
                                             .K = b.shard.n_kv,
                                             .d = b.c.head_dim,
                                             .eps = b.c.eps,
                                             .x = b.x,
                                             .norm = &b.norm,
                                             .qkv = &b.qkv.m[i % b.qkv.n],
                                             .bias = &b.qkv_bias,
                                             .cos = b.rope,
                                             .sin = b.rope,
                                             .pos = b.count,
                                             .slot = b.slot,
                                             .kv = kv_view(r->elt),
                                             .q = b.q,
                                             .ws = b.ws},
                          err);
}

static td_status run_attn_prefill(const row *r, int i, td_error *err)
{
    int32_t wrap = r->keys / TD_KV_PAGE;

    if (r->window > 0)
        wrap = (int32_t)td_kv_ring_pages(r->window, r->T);
    return b.ops->attn_prefill(b.s,
                               &(td_attn_prefill_args){.T = r->T,
                                                       .H = b.shard.n_q,
                                                       .K = b.shard.n_kv,
                                                       .d = b.c.head_dim,
                                                       .pos0 = r->keys - r->T,
                                                       .window = r->window,
                                                       .wrap = wrap,
                                                       .scale = 0.125f,
                                                       .q = b.q,
                                                       .kv = kv_view(r->elt),
                                                       .table = pages(1, wrap, i),
                                                       .sinks = &b.sinks,
                                                       .out = b.out,
                                                       .ws = b.ws},
                               err);
}

static td_status run_attn_decode(const row *r, int i, td_error *err)
{
    int32_t wrap = r->keys / TD_KV_PAGE;

    if (r->window > 0)
        wrap = (int32_t)td_kv_ring_pages(r->window, 1);
    return b.ops->attn_decode(b.s,
                              &(td_attn_decode_args){.T = r->T,
                                                     .H = b.shard.n_q,
                                                     .K = b.shard.n_kv,
                                                     .d = b.c.head_dim,
                                                     .window = r->window,
                                                     .wrap = wrap,
                                                     .table_stride = wrap,
                                                     .scale = 0.125f,
                                                     .q = b.q,
                                                     .kv = kv_view(r->elt),
                                                     .len = b.len,
                                                     .table = pages(r->T, wrap, i),
                                                     .sinks = &b.sinks,
                                                     .out = b.out,
                                                     .ws = b.ws},
                              err);
}

static td_status run_attn_out(const row *r, int i, td_error *err)
{
    return b.ops->attn_out(b.s,
                           &(td_attn_out_args){.T = r->T,
                                               .D = b.c.hidden,
                                               .Hd = b.shard.n_q * b.c.head_dim,
                                               .o = b.q,
                                               .w = &b.o.m[i % b.o.n],
                                               .bias = &b.o_bias,
                                               .out = b.out,
                                               .ws = b.ws},
                           err);
}

static td_status run_add(const row *r, int i, td_error *err)
{
    (void)i;
    return b.ops->add(b.s,
                      &(td_add_args){.n = (size_t)r->T * (size_t)b.c.hidden,
                                     .n_parts = 1,
                                     .clear = r->keys < 0,
                                     .part = (const void *const[]){b.act},
                                     .x = b.x},
                      err);
}

static td_status run_router(const row *r, int i, td_error *err)
{
    return b.ops->router(b.s,
                         &(td_router_args){.T = r->T,
                                           .D = b.c.hidden,
                                           .M = b.c.n_experts,
                                           .k = b.c.top_k,
                                           .eps = b.c.eps,
                                           .x = b.x,
                                           .norm = &b.norm,
                                           .w = &b.router.m[i % b.router.n],
                                           .bias = &b.router_bias,
                                           .t = b.out,
                                           .idx = b.idx,
                                           .prob = b.prob,
                                           .ws = b.ws},
                         err);
}

static td_status run_experts(const row *r, int i, td_error *err)
{
    return b.ops->experts(b.s,
                          &(td_experts_args){.T = r->T,
                                             .D = b.c.hidden,
                                             .I = b.shard.n_inner,
                                             .E = b.shard.n_experts,
                                             .k = b.c.top_k,
                                             .expert_first = b.shard.expert_first,
                                             .limit = b.c.swiglu_limit,
                                             .t = b.act,
                                             .idx = b.set[i % SETS],
                                             .prob = b.set_prob,
                                             .gate_up = &b.gate_up[r->format],
                                             .gate_up_bias = &b.gate_up_bias,
                                             .down = &b.down[r->format],
                                             .down_bias = &b.down_bias,
                                             .out = b.out,
                                             .ws = b.ws},
                          err);
}

static td_status run_head(const row *r, int i, td_error *err)
{
    (void)i;
    return b.ops->head(b.s,
                       &(td_head_args){.n = r->T,
                                       .D = b.c.hidden,
                                       .V = b.shard.n_vocab,
                                       .eps = b.c.eps,
                                       .x = b.x,
                                       .rows = b.count,
                                       .norm = &b.norm,
                                       .w = &b.unembed,
                                       .out = b.logits,
                                       .ws = b.ws},
                       err);
}

/* keys: 0 greedy, 1 drawn. */
static td_status run_sample(const row *r, int i, td_error *err)
{
    (void)i;
    return b.ops->sample(b.s,
                         &(td_sample_args){.n = r->T,
                                           .V = b.c.vocab,
                                           .logits = b.logits,
                                           .rows = b.sample_rows + r->keys * SMALL,
                                           .token = b.token,
                                           .logprobs = b.logprobs,
                                           .ws = b.ws},
                         err);
}

/* --- measuring ------------------------------------------------------------------------------ */

typedef td_status (*run_fn)(const row *r, int i, td_error *err);

static td_status steps(const row *r, run_fn run, int n, td_error *err)
{
    td_status st = TD_OK;

    for (int i = 0; st == TD_OK && i < n; i++)
        st = run(r, i, err);
    return st;
}

/* Microseconds of one step; *graph says whether it came from a graph. */
static td_status time_steps(const row *r, run_fn run, double *us, td_error *err)
{
    td_graph *g = NULL;
    double t[REPLAYS];
    td_usec t0;
    td_status st;
    int n = 4;

    if ((st = steps(r, run, 1, err)) != TD_OK || (st = b.ops->sync(b.s, err)) != TD_OK)
        return st;
    t0 = td_now_us();
    if ((st = steps(r, run, n, err)) != TD_OK || (st = b.ops->sync(b.s, err)) != TD_OK)
        return st;
    n = (int)(GRAPH_US * n / (td_now_us() - t0 + 1)) + 1;
    n = n > MOST_STEPS ? MOST_STEPS : n;
    if (b.ops->graph_begin != NULL) {
        if ((st = b.ops->graph_begin(b.s, err)) != TD_OK)
            return st;
        st = steps(r, run, n, err);
        if (st != TD_OK) {
            (void)b.ops->graph_end(b.s, NULL, NULL);
            return st;
        }
        if ((st = b.ops->graph_end(b.s, &g, err)) != TD_OK)
            return st;
    }
    for (int i = -1; st == TD_OK && i < REPLAYS; i++) { /* the first time is a warm-up */
        t0 = td_now_us();
        st = g != NULL ? b.ops->graph_launch(b.s, g, err) : steps(r, run, n, err);
        if (st == TD_OK)
            st = b.ops->sync(b.s, err);
        if (i >= 0)
            t[i] = (double)(td_now_us() - t0) / n;
    }
    if (g != NULL)
        b.ops->graph_free(g);
    *us = bench_median(t, REPLAYS);
    return st;
}

static void measure(const settings *o, const row *r, run_fn run)
{
    double us = 0, floor_us, memory_us = r->bytes / bench_reached.hbm * 1e6;
    td_error err = {0};
    td_status st;
    char name[64];

    snprintf(name, sizeof name, "%s%s", r->name, r->variant != NULL ? r->variant : "");
    if (strncmp(name, o->op, strlen(o->op)) != 0)
        return;
    st = time_steps(r, run, &us, &err);
    if (st != TD_OK) { /* a shape without a kernel; after a fault nothing runs any more */
        printf("%-22s %5d %6d  %s\n", name, r->T, r->keys, err.text);
        if (st == TD_DEVICE)
            check(st, &err);
        return;
    }
    floor_us = r->peak > 0 ? r->flops / r->peak * 1e6 : 0;
    floor_us = memory_us > floor_us ? memory_us : floor_us;
    printf("%-22s %5d %6d %9.1f %7.0f %7.1f %9.1f %5.2f\n", name, r->T, r->keys, us,
           r->bytes / us / 1e3, r->flops / us / 1e6, floor_us, floor_us / us);
    fflush(stdout);
    if (b.csv != NULL)
        fprintf(b.csv, "%s,%s,%d,%d,%d,%d,%.2f,%.0f,%.0f,%.1f,%.2f,%.2f,%.3f\n", o->model, name,
                b.shard.tp, b.shard.ep, r->T, r->keys, us, r->bytes, r->flops, r->bytes / us / 1e3,
                r->flops / us / 1e6, floor_us, floor_us / us);
}

/* Distinct experts of this rank that T tokens touch, and choices that fall on it, a step. */
static void routed(int32_t T, double *touched, double *choices)
{
    *touched = *choices = 0;
    for (int set = 0; set < SETS; set++) {
        bool hit[1024] = {false};

        for (int32_t i = 0; i < T * b.c.top_k; i++) {
            int32_t e = b.set_host[set][i] - b.shard.expert_first;

            if (e < 0 || e >= b.shard.n_experts)
                continue;
            *touched += hit[e] ? 0 : 1;
            *choices += 1;
            hit[e] = true;
        }
    }
    *touched /= SETS;
    *choices /= SETS;
}

static void measure_dense(const settings *o, int32_t T)
{
    double D = b.c.hidden, d = b.c.head_dim, H = b.shard.n_q, K = b.shard.n_kv, M = b.c.n_experts;
    double n = T, N = (H + 2 * K) * d, V = b.shard.n_vocab, I = b.shard.n_inner, touched, choices;
    double bf16 = bench_reached.bf16, x = 4 * n * D, act = 2 * n * D;

    measure(o, &(row){.name = "embed", .T = T, .bytes = 2 * act}, run_embed);
    measure(o,
            &(row){.name = "attn_in",
                   .T = T,
                   .elt = TD_ELT_BF16,
                   .bytes = 2 * N * D + x + 2 * n * N,
                   .flops = 2 * n * N * D,
                   .peak = bf16},
            run_attn_in);
    measure(o,
            &(row){.name = "attn_out",
                   .T = T,
                   .bytes = 2 * D * H * d + 2 * n * H * d + act,
                   .flops = 2 * n * D * H * d,
                   .peak = bf16},
            run_attn_out);
    measure(o, &(row){.name = "add", .T = T, .bytes = 2 * x + act}, run_add);
    measure(o,
            &(row){.name = "router",
                   .T = T,
                   .bytes = 2 * M * D + x + act,
                   .flops = 2 * n * M * D,
                   .peak = bf16},
            run_router);
    routed(T, &touched, &choices);
    for (int f = 0; f < 2; f++) {
        td_model_config rank = b.c;
        td_expert_format format = f == 0 ? TD_EXPERTS_MXFP4 : TD_EXPERTS_FP8;

        rank.inter = b.shard.n_inner;
        if (b.have[format])
            measure(o,
                    &(row){.name = "experts",
                           .variant = format == TD_EXPERTS_FP8 ? "/fp8" : "/mxfp4",
                           .T = T,
                           .format = format,
                           .bytes = touched * bench_expert_bytes(&rank, format) + 2 * act,
                           .flops = 6 * choices * D * I,
                           .peak = format == TD_EXPERTS_FP8 ? bench_reached.fp8 : bf16},
                    run_experts);
    }
    if (T > SMALL)
        return;
    measure(o,
            &(row){.name = "head",
                   .T = T,
                   .bytes = 2 * V * D + x + 4 * n * V,
                   .flops = 2 * n * V * D,
                   .peak = bf16},
            run_head);
    for (int32_t drawn = 0; drawn < 2 && b.ops->sample != NULL; drawn++)
        measure(o,
                &(row){.name = drawn ? "sample_drawn" : "sample_greedy",
                       .T = T,
                       .keys = drawn,
                       .bytes = 4 * n * b.c.vocab},
                run_sample);
}

static void set_lengths(int32_t T, int32_t keys)
{
    int32_t *len = malloc((size_t)T * sizeof *len);
    td_error err = {0};

    for (int32_t i = 0; i < T; i++)
        len[i] = keys;
    check(b.ops->copy_in(b.s, b.len, len, (size_t)T * sizeof *len, &err), &err);
    check(b.ops->sync(b.s, &err), &err);
    free(len);
}

static void measure_attention(const settings *o, int32_t T, int32_t keys)
{
    static const char *const variant[2][2] = {{"/full", "/full/e4m3"}, {"/window", "/window/e4m3"}};
    double per_pair = 4.0 * b.shard.n_q * b.c.head_dim, rows = 4.0 * T * b.shard.n_q * b.c.head_dim;
    int32_t window = b.c.window;

    for (int e = 0; e < 2; e++) {
        td_elt elt = e == 0 ? TD_ELT_BF16 : TD_ELT_E4M3;
        double key = 2.0 * b.shard.n_kv * b.c.head_dim * (double)td_elt_bytes(elt);

        for (int w = 0; w < 2; w++) {
            row r = {.variant = variant[w][e],
                     .T = T,
                     .keys = keys,
                     .window = w ? window : 0,
                     .elt = elt,
                     .peak = bench_reached.bf16};

            if (T <= SMALL && (int64_t)T * keys <= (int64_t)b.n_pages * TD_KV_PAGE) {
                double seen = (double)T * (w && keys > window ? window : keys);

                r.name = "attn_decode";
                r.bytes = seen * key + rows;
                r.flops = seen * per_pair;
                set_lengths(T, keys);
                measure(o, &r, run_attn_decode);
            } else if (T > SMALL && T <= keys) {
                r.name = "attn_prefill";
                r.bytes = (w && keys > window + T ? window + T : keys) * key + rows;
                r.flops = per_pair * bench_visible(keys - T, T, r.window);
                measure(o, &r, run_attn_prefill);
            }
        }
    }
}

/* --- setting up ----------------------------------------------------------------------------- */

static void choose_experts(void)
{
    size_t n = (size_t)MOST * (size_t)b.c.top_k;
    float *prob = malloc(n * sizeof *prob);

    for (int set = 0; set < SETS; set++) {
        int32_t *idx = b.set_host[set] = malloc(n * sizeof *idx);

        for (int32_t *at = idx; at < idx + n; at += b.c.top_k)
            for (int32_t j = 0; j < b.c.top_k;) {
                bool again = false;

                at[j] = (int32_t)(bits() % (uint32_t)b.c.n_experts);
                for (int32_t i = 0; i < j; i++)
                    again |= at[i] == at[j];
                j += again ? 0 : 1;
            }
        b.set[set] = to_device(idx, n * sizeof *idx);
    }
    for (size_t i = 0; i < n; i++)
        prob[i] = 1.0f / (float)b.c.top_k;
    b.set_prob = to_device(prob, n * sizeof *prob);
    free(prob);
}

static void load_weights(const settings *o)
{
    const td_model_config *c = &b.c;
    const td_shard *s = &b.shard;
    int32_t D = c->hidden, N = (s->n_q + 2 * s->n_kv) * c->head_dim;

    b.norm = matrix(TD_FORM_VECTOR, D, 1);
    b.qkv_bias = matrix(TD_FORM_VECTOR, N, 1);
    b.o_bias = matrix(TD_FORM_VECTOR, D, 1);
    b.sinks = matrix(TD_FORM_VECTOR, s->n_q, 1);
    b.router_bias = matrix(TD_FORM_VECTOR, c->n_experts, 1);
    b.gate_up_bias = matrix(TD_FORM_VECTOR, s->n_experts * 2 * s->n_inner, 1);
    b.down_bias = matrix(TD_FORM_VECTOR, s->n_experts * D, 1);
    b.qkv = rotate(N, D);
    b.o = rotate(D, s->n_q * c->head_dim);
    b.router = rotate(c->n_experts, D);
    b.embed = matrix(TD_FORM_ROWS, s->n_vocab, D);
    b.unembed = matrix(TD_FORM_DENSE, s->n_vocab, D);
    for (int f = 0; f < 2; f++)
        if (o->experts == 2 || o->experts == f)
            b.have[f] =
                packed(TD_FORM_GATE_UP, (td_expert_format)f, 2 * s->n_inner, D, &b.gate_up[f]) &&
                packed(TD_FORM_DOWN, (td_expert_format)f, D, s->n_inner, &b.down[f]);
    if (b.ops->load_done != NULL)
        b.ops->load_done(b.dev);
}

static void make_lists(void)
{
    int32_t *n = malloc((size_t)(b.n_pages > SETS * MOST ? b.n_pages : SETS * MOST) * sizeof *n);

    for (int32_t i = 0; i < SETS * MOST; i++)
        n[i] = (int32_t)(bits() % (uint32_t)b.shard.n_vocab);
    b.tokens = to_device(n, SETS * MOST * sizeof *n);
    for (int32_t i = 0; i < MOST; i++)
        n[i] = i;
    b.count = to_device(n, MOST * sizeof *n);
    for (int32_t i = 0; i < b.n_pages; i++) { /* a page stands anywhere before or at its turn */
        int32_t j = (int32_t)(bits() % (uint32_t)(i + 1));

        n[i] = n[j];
        n[j] = i;
    }
    b.perm = to_device(n, (size_t)b.n_pages * sizeof *n);
    for (int32_t i = MOST - 1; i >= 0; i--) /* in place: page i / 64 is read last for row i = 0 */
        n[i] = n[i / TD_KV_PAGE] * TD_KV_PAGE + i % TD_KV_PAGE;
    b.slot = to_device(n, MOST * sizeof *n);
    b.len = memory(MOST * sizeof *n);
    free(n);
}

static void open_all(const settings *o)
{
    size_t page = 4 * TD_KV_PAGE * (size_t)b.c.head_dim * (size_t)b.shard.n_kv;
    size_t kv = (size_t)SMALL * (o->quick ? 8192 : 32768) / TD_KV_PAGE * page;
    size_t qd = (size_t)b.shard.n_q * (size_t)b.c.head_dim, D = (size_t)b.c.hidden;
    td_dims dims = {.T = MOST,
                    .D = b.c.hidden,
                    .H = b.shard.n_q,
                    .K = b.shard.n_kv,
                    .d = b.c.head_dim,
                    .M = b.c.n_experts,
                    .E = b.shard.n_experts,
                    .I = b.shard.n_inner,
                    .k = b.c.top_k,
                    .V = b.shard.n_vocab,
                    .head_rows = SMALL,
                    .sample_V = b.c.vocab};
    td_sample_row rows[2 * SMALL];
    td_error err = {0};

    check(
        b.ops->dev_open(&(td_dev_options){.index = (int32_t)o->device, .threads = 8}, &b.dev, &err),
        &err);
    check(b.ops->dev_bind(b.dev, &err), &err);
    b.s = b.ops->dev_stream(b.dev);
    b.random = 1;
    b.noise = malloc(BLOCK);
    for (size_t i = 0; i < BLOCK; i += 2) { /* bf16 of 2^-7 to 2, either sign, or two such e4m3 */
        uint32_t x = bits();
        uint16_t h = (uint16_t)((x & 0x8000) | (0x3c00 + (x & 0x3bf)));

        memcpy(b.noise + i, &h, 2);
    }
    load_weights(o);
    b.n_pages = (int32_t)(kv / page);
    b.kv = random_memory(kv);
    make_lists();
    b.x = memory(MOST * D * 4);
    b.act = random_memory(MOST * D * 2);
    b.q = random_memory(MOST * qd * 2);
    b.out = memory(MOST * (qd > D ? qd : D) * 2);
    b.rope = random_memory((size_t)MOST * (size_t)b.c.head_dim / 2 * 4);
    b.logits = random_memory((size_t)SMALL * (size_t)b.c.vocab * 4);
    b.idx = memory(MOST * (size_t)b.c.top_k * 4);
    b.prob = memory(MOST * (size_t)b.c.top_k * 4);
    b.token = memory(SMALL * 4);
    b.logprobs = memory(SMALL * sizeof *b.logprobs);
    for (uint32_t i = 0; i < 2 * SMALL; i++) /* the second half draws */
        rows[i] = (td_sample_row){.seed = i,
                                  .temperature = i < SMALL ? 0 : 1,
                                  .top_p = i < SMALL ? 1 : 0.95f,
                                  .mask = -1,
                                  .top_logprobs = -1};
    b.sample_rows = to_device(rows, sizeof rows);
    b.ws = memory(b.ops->workspace_bytes(b.dev, &dims));
    choose_experts();
    check(run_add(&(row){.T = MOST, .keys = -1}, 0, &err), &err); /* x = noise */
    check(b.ops->sync(b.s, &err), &err);
}

int main(int argc, char **argv)
{
    static const int32_t all[] = {1, 2, 4, 8, 16, 32, 64, 128, 1024, 8192};
    static const int32_t few[] = {1, 8, 64, 1024, 8192}, contexts[] = {1024, 8192, 32768};
    size_t n = sizeof options / sizeof options[0];
    td_config_action action;
    settings o = {0};
    td_usec t0 = td_now_us();
    td_error err = {0};
    td_status st = td_config_parse(options, n, "ops_cuda", "Times of the steps of a layer.", argc,
                                   argv, &o, &action, &err);

    if (st == TD_OK && action == TD_CONFIG_EXIT_OK)
        return 0;
    if (st == TD_OK)
        st = td_ops_find("cuda", &b.ops, &err);
    if (st == TD_OK)
        st = bench_config(o.model, &b.c, &err);
    if (st == TD_OK)
        st = td_shard_of(&b.c, (int32_t)o.tp, (int32_t)(o.ep ? o.ep : o.tp), 0, &b.shard, &err);
    check(st, &err);
    if (o.csv[0] != '\0' && (b.csv = fopen(o.csv, "w")) == NULL) {
        fprintf(stderr, "ops_cuda: --csv %s: cannot be written\n", o.csv);
        return 2;
    }
    open_all(&o);
    printf("%s, rank 0 of tp %d ep %d; set up in %.1f s; floors: %.1f TB/s, %.0f TFLOP/s bf16, "
           "%.0f FP8\n",
           o.model, b.shard.tp, b.shard.ep, (double)(td_now_us() - t0) / 1e6,
           bench_reached.hbm / 1e12, bench_reached.bf16 / 1e12, bench_reached.fp8 / 1e12);
    if (o.hbm)
        printf("reading memory: %.0f GB/s\n", bench_hbm_read((size_t)4 << 30) / 1e9);
    if (b.csv != NULL)
        fprintf(b.csv, "model,step,tp,ep,T,keys,us,bytes,flops,gbs,tflops,floor_us,fraction\n");
    printf("%-22s %5s %6s %9s %7s %7s %9s %5s\n", "step", "T", "keys", "us", "GB/s", "TFLOP/s",
           "floor us", "share");
    for (size_t i = 0; i < (o.quick ? sizeof few : sizeof all) / sizeof all[0]; i++)
        measure_dense(&o, o.quick ? few[i] : all[i]);
    for (size_t i = 0; i < (o.quick ? sizeof few : sizeof all) / sizeof all[0]; i++)
        for (size_t j = 0; j < sizeof contexts / sizeof contexts[0]; j++)
            measure_attention(&o, o.quick ? few[i] : all[i], contexts[j]);
    if (b.csv != NULL)
        fclose(b.csv);
    td_config_free(options, n, &o);
    return 0;
}
