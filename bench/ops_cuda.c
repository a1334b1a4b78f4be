/* ops_cuda: how long each step of a layer takes on a GPU, beside its floor.
 *
 *   ops_cuda [--model 20b|120b|FOLDER] [--tp N] [--ep N] [--op NAME] [--sizes 1,1k]
 *            [--contexts 1k,8k] [--quick] [--csv FILE] [--experts mxfp4|fp8|both] [--device N]
 *            [--hbm]
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
#include "bench/ops_rank.h"
#include "common/clock.h"
#include "common/config.h"

enum {
    REPLAYS = 9,     /* of a graph; the median counts */
    GRAPH_US = 1500, /* of a graph */
    MOST_SIZES = 32,
};
#define ALL_SIZES "1,2,4,8,16,32,64,128,1k,8k"
#define FEW_SIZES "1,8,64,1k,8k"

typedef struct settings {
    char *model, *op, *sizes, *contexts, *csv;
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
    {"sizes", TD_OPT_STR, offsetof(settings, sizes), "", 0, 0,
     "Tokens in a step, as in 1,64,8k; at most 8k. Default: 10 sizes, with --quick 5.", NULL},
    {"contexts", TD_OPT_STR, offsetof(settings, contexts), "1k,8k,32k", 0, 0,
     "Keys that attention sees.", NULL},
    {"csv", TD_OPT_STR, offsetof(settings, csv), "", 0, 0, "A file for the rows.", NULL},
    {"device", TD_OPT_U32, offsetof(settings, device), "0", 0, 1024, "Which GPU.", NULL},
    {"experts", TD_OPT_ENUM, offsetof(settings, experts), "both", 0, 0,
     "Formats of expert weights.", experts_words},
    {"quick", TD_OPT_BOOL, offsetof(settings, quick), "false", 0, 0, "Fewer sizes.", NULL},
    {"hbm", TD_OPT_BOOL, offsetof(settings, hbm), "false", 0, 0,
     "Measure the rate of memory as well.", NULL},
};

static FILE *csv; /* NULL: none wanted */

static td_status steps(const row *r, run_fn run, int n, td_error *err)
{
    td_status st = TD_OK;

    for (int i = 0; st == TD_OK && i < n; i++)
        st = run(r, i, err);
    return st;
}

/* Microseconds of one step, from a graph where the backend has them. */
static td_status time_steps(const row *r, run_fn run, double *us, td_error *err)
{
    td_graph *g = NULL;
    double t[REPLAYS];
    td_usec t0;
    td_status st;
    int n = 4;

    if ((st = steps(r, run, 1, err)) != TD_OK || (st = rank.ops->sync(rank.s, err)) != TD_OK)
        return st;
    t0 = td_now_us();
    if ((st = steps(r, run, n, err)) != TD_OK || (st = rank.ops->sync(rank.s, err)) != TD_OK)
        return st;
    n = (int)(GRAPH_US * n / (td_now_us() - t0 + 1)) + 1;
    n = n > MOST_STEPS ? MOST_STEPS : n;
    if (rank.ops->graph_begin != NULL) {
        if ((st = rank.ops->graph_begin(rank.s, err)) != TD_OK)
            return st;
        st = steps(r, run, n, err);
        if (st != TD_OK) {
            (void)rank.ops->graph_end(rank.s, NULL, NULL);
            return st;
        }
        if ((st = rank.ops->graph_end(rank.s, &g, err)) != TD_OK)
            return st;
    }
    for (int i = -1; st == TD_OK && i < REPLAYS; i++) { /* the first time is a warm-up */
        t0 = td_now_us();
        st = g != NULL ? rank.ops->graph_launch(rank.s, g, err) : steps(r, run, n, err);
        if (st == TD_OK)
            st = rank.ops->sync(rank.s, err);
        if (i >= 0)
            t[i] = (double)(td_now_us() - t0) / n;
    }
    if (g != NULL)
        rank.ops->graph_free(g);
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
        printf("%-24s %5d %6d  %s\n", name, r->T, r->keys, err.text);
        if (st == TD_DEVICE)
            check(st, &err);
        return;
    }
    floor_us = r->peak > 0 ? r->flops / r->peak * 1e6 : 0;
    floor_us = memory_us > floor_us ? memory_us : floor_us;
    printf("%-24s %5d %6d %9.1f %7.0f %7.1f %9.1f %5.2f\n", name, r->T, r->keys, us,
           r->bytes / us / 1e3, r->flops / us / 1e6, floor_us, floor_us / us);
    fflush(stdout);
    if (csv != NULL)
        fprintf(csv, "%s,%s,%d,%d,%d,%d,%.2f,%.0f,%.0f,%.1f,%.2f,%.2f,%.3f\n", o->model, name,
                rank.shard.tp, rank.shard.ep, r->T, r->keys, us, r->bytes, r->flops,
                r->bytes / us / 1e3, r->flops / us / 1e6, floor_us, floor_us / us);
}

/* Distinct experts of this rank that T tokens touch, and choices that fall on it, a step. */
static void routed(int32_t T, double *touched, double *choices)
{
    *touched = *choices = 0;
    for (int set = 0; set < SETS; set++) {
        bool hit[1024] = {false};

        for (int32_t i = 0; i < T * rank.c.top_k; i++) {
            int32_t e = rank.set_host[set][i] - rank.shard.expert_first;

            if (e < 0 || e >= rank.shard.n_experts)
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
    double D = rank.c.hidden, d = rank.c.head_dim, H = rank.shard.n_q, K = rank.shard.n_kv,
           M = rank.c.n_experts;
    double n = T, N = (H + 2 * K) * d, V = rank.shard.n_vocab, I = rank.shard.n_inner, touched,
           choices;
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
        td_model_config part = rank.c;
        td_expert_format format = f == 0 ? TD_EXPERTS_MXFP4 : TD_EXPERTS_FP8;

        part.inter = rank.shard.n_inner;
        if (rank.have[format])
            measure(o,
                    &(row){.name = "experts",
                           .variant = format == TD_EXPERTS_FP8 ? "/fp8" : "/mxfp4",
                           .T = T,
                           .format = format,
                           .bytes = touched * bench_expert_bytes(&part, format) + 2 * act,
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
    for (int32_t drawn = 0; drawn < 2 && rank.ops->sample != NULL; drawn++)
        measure(o,
                &(row){.name = drawn ? "sample_drawn" : "sample_greedy",
                       .T = T,
                       .keys = drawn,
                       .bytes = 4 * n * rank.c.vocab},
                run_sample);
}

static void set_lengths(int32_t T, int32_t keys)
{
    int32_t *len = malloc((size_t)T * sizeof *len);
    td_error err = {0};

    for (int32_t i = 0; i < T; i++)
        len[i] = keys;
    check(rank.ops->copy_in(rank.s, rank.len, len, (size_t)T * sizeof *len, &err), &err);
    check(rank.ops->sync(rank.s, &err), &err);
    free(len);
}

static void measure_attention(const settings *o, int32_t T, int32_t keys)
{
    static const char *const variant[2][2] = {{"/full", "/full/e4m3"}, {"/window", "/window/e4m3"}};
    double per_pair = 4.0 * rank.shard.n_q * rank.c.head_dim,
           rows = 4.0 * T * rank.shard.n_q * rank.c.head_dim;
    int32_t window = rank.c.window;

    for (int e = 0; e < 2; e++) {
        td_elt elt = e == 0 ? TD_ELT_BF16 : TD_ELT_E4M3;
        double key = 2.0 * rank.shard.n_kv * rank.c.head_dim * (double)td_elt_bytes(elt);

        for (int w = 0; w < 2; w++) {
            row r = {.variant = variant[w][e],
                     .T = T,
                     .keys = keys,
                     .window = w ? window : 0,
                     .elt = elt,
                     .peak = bench_reached.bf16};

            if (T <= SMALL && (int64_t)T * keys <= (int64_t)rank.n_pages * TD_KV_PAGE) {
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

static int list(const char *text, const char *option, int32_t most, int32_t *out)
{
    int n = bench_parse_list(text, out, MOST_SIZES);

    for (int i = 0; i < n; i++)
        n = out[i] <= most ? n : -1;
    if (n < 1) {
        fprintf(stderr, "ops_cuda: %s %s: 1 to %d numbers up to %d with commas, as in 1,64,8k\n",
                option, text, MOST_SIZES, most);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    size_t n = sizeof options / sizeof options[0];
    int32_t size[MOST_SIZES], context[MOST_SIZES];
    int sizes, contexts;
    td_config_action action;
    settings o = {0};
    td_usec t0 = td_now_us();
    td_error err = {0};
    td_status st = td_config_parse(options, n, "ops_cuda", "Times of the steps of a layer.", argc,
                                   argv, &o, &action, &err);

    if (st == TD_OK && action == TD_CONFIG_EXIT_OK)
        return 0;
    if (st == TD_OK)
        st = td_ops_find("cuda", &rank.ops, &err);
    if (st == TD_OK)
        st = bench_config(o.model, &rank.c, &err);
    if (st == TD_OK)
        st = td_shard_of(&rank.c, (int32_t)o.tp, (int32_t)(o.ep ? o.ep : o.tp), 0, &rank.shard,
                         &err);
    check(st, &err);
    sizes = list(o.sizes[0] ? o.sizes : o.quick ? FEW_SIZES : ALL_SIZES, "--sizes", MOST, size);
    contexts = list(o.contexts, "--contexts", 1 << 20, context);
    if (o.csv[0] != '\0' && (csv = fopen(o.csv, "w")) == NULL) {
        fprintf(stderr, "ops_cuda: --csv %s: cannot be written\n", o.csv);
        return 2;
    }
    open_rank((int32_t)o.device, o.experts, o.quick ? 8192 : 32768);
    printf("%s, rank 0 of tp %d ep %d; set up in %.1f s; floors: %.1f TB/s, %.0f TFLOP/s bf16, "
           "%.0f FP8\n",
           o.model, rank.shard.tp, rank.shard.ep, (double)(td_now_us() - t0) / 1e6,
           bench_reached.hbm / 1e12, bench_reached.bf16 / 1e12, bench_reached.fp8 / 1e12);
    if (o.hbm)
        printf("reading memory: %.0f GB/s\n", bench_hbm_read((size_t)4 << 30) / 1e9);
    if (csv != NULL)
        fprintf(csv, "model,step,tp,ep,T,keys,us,bytes,flops,gbs,tflops,floor_us,fraction\n");
    printf("%-24s %5s %6s %9s %7s %7s %9s %5s\n", "step", "T", "keys", "us", "GB/s", "TFLOP/s",
           "floor us", "share");
    for (int i = 0; i < sizes; i++)
        measure_dense(&o, size[i]);
    for (int i = 0; i < sizes; i++)
        for (int j = 0; j < contexts; j++)
            measure_attention(&o, size[i], context[j]);
    if (csv != NULL)
        fclose(csv);
    td_config_free(options, n, &o);
    return 0;
}
