/* bench_model: how fast a whole model prefills and decodes, beside the least time that it could
 * take, and what a million tokens costs.
 *
 *   bench_model prefill|decode|load|all [--model 20b|120b|FOLDER] [--backend cuda|cpu]
 *               [--devices 0,1,2,3] [--ep N] [--experts mxfp4|fp8] [--kv bf16|e4m3|f32] [--csv
 * FILE]
 *
 * 20b and 120b have random weights (one layer's, in every layer: time does not depend on them, but
 * memory does, and every layer has its own). A FOLDER's weights are read. Prompts are random, keys
 * and values before the first decode step too. A prefill is all chunks of a prompt and the first
 * token; a decode step is one token for each sequence, from the call to the sampled tokens. Times
 * are medians. Decode steps all stand at the same position; what does not fit in memory is left
 * out.
 *
 * Floors (shapes.h) count weights, keys and values at 4.3 TB/s and arithmetic at the datasheet's
 * rates, and no traffic between devices; "reached" has the best measured rates instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/shapes.h"
#include "common/checkpoint.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/kv_layout.h"
#include "common/log.h"
#include "common/model.h"
#include "common/weights.h"

enum {
    MOST_CASES = 32,
    MOST_RANKS = 64,
    MOST_STEPS = 200,
    NOISE_BYTES = 32 << 20,
    TOKENS = 1 << 18, /* of random input, used over and over */
};

typedef struct settings {
    char *model, *csv, *devices, *lengths, *batches, *contexts;
    int32_t backend, experts, kv;
    uint32_t ep, chunk, threads;
    double usd, seconds, case_seconds;
    bool graphs;
} settings;

static const char *const backend_words[] = {"cpu", "cuda", NULL};
static const char *const experts_words[] = {"mxfp4", "fp8", NULL};
static const char *const kv_words[] = {"bf16", "f32", "e4m3", NULL}; /* as td_kv_dtype */
static const td_option options[] = {
    {"model", TD_OPT_STR, offsetof(settings, model), "20b", 0, 0,
     "20b or 120b with random weights, or a checkpoint's folder.", NULL},
    {"backend", TD_OPT_ENUM, offsetof(settings, backend), "cuda", 0, 0, "cpu or cuda.",
     backend_words},
    {"devices", TD_OPT_STR, offsetof(settings, devices), "0", 0, 0,
     "The device of each rank: 0,1,2,3. As many ranks as numbers.", NULL},
    {"ep", TD_OPT_U32, offsetof(settings, ep), "0", 0, MOST_RANKS,
     "Groups of whole experts. 0: one a rank.", NULL},
    {"experts", TD_OPT_ENUM, offsetof(settings, experts), "mxfp4", 0, 0,
     "How experts are kept: mxfp4 or fp8.", experts_words},
    {"kv", TD_OPT_ENUM, offsetof(settings, kv), "bf16", 0, 0, "Keys and values: bf16, f32, e4m3.",
     kv_words},
    {"chunk", TD_OPT_U32, offsetof(settings, chunk), "8192", 1, 1 << 20,
     "Most tokens in one step of a prefill.", NULL},
    {"threads", TD_OPT_U32, offsetof(settings, threads), "0", 0, 1024,
     "Threads of the host. 0: as many as cores.", NULL},
    {"lengths", TD_OPT_STR, offsetof(settings, lengths), "1k,2k,4k,8k,16k,32k,64k,128k", 0, 0,
     "Prompts to prefill, in tokens.", NULL},
    {"batches", TD_OPT_STR, offsetof(settings, batches), "1,2,4,8,16,32,64,128", 0, 0,
     "Sequences in a decode step.", NULL},
    {"contexts", TD_OPT_STR, offsetof(settings, contexts), "1k,8k,32k", 0, 0,
     "Positions that each of them sees.", NULL},
    {"usd", TD_OPT_F64, offsetof(settings, usd), "3.00", 0, 1000, "Price of a device for an hour.",
     NULL},
    {"case-seconds", TD_OPT_F64, offsetof(settings, case_seconds), "1", 0, 1000,
     "How long each case is repeated.", NULL},
    {"seconds", TD_OPT_F64, offsetof(settings, seconds), "100000", 1, 1e6,
     "Start no further case after this time.", NULL},
    {"graphs", TD_OPT_BOOL, offsetof(settings, graphs), "true", 0, 0,
     "Replay decode steps as graphs, where the backend has them.", NULL},
    {"csv", TD_OPT_STR, offsetof(settings, csv), "", 0, 0, "A file for the rows.", NULL},
};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static td_usec began;

typedef struct bench {
    settings o;
    td_model_config cfg;
    td_model_options opt;
    bench_split split;
    int32_t device[MOST_RANKS];
    bool random;
    td_checkpoint *ckpt;
    int32_t *tokens; /* [TOKENS] */
    uint32_t *pages; /* [pages of the pool] in no order */
    FILE *csv;
} bench;

static void check(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "bench_model: %s: %s%s%s\n", td_status_name(st), err->param,
            err->param[0] ? ": " : "", err->text);
    exit(st == TD_INVALID ? 2 : 1);
}

static double since(td_usec t)
{
    return (double)(td_now_us() - t) / 1e6;
}

static uint32_t bits(void)
{
    static uint64_t x = 1;

    x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(x >> 33);
}

/* The first layer's random tensors, for all layers: making 60 GB of them would take long. */
static td_status get_first(void *user, td_weight role, int32_t layer, td_tensor *out, td_error *err)
{
    (void)layer;
    return td_checkpoint_get(user, role, 0, out, err);
}

/* Bytes under 2 in magnitude as bf16 and as e4m3, everywhere in the pool of every rank. */
static void fill_cache(const bench *b, td_model *m)
{
    const td_ops *ops;
    td_error err = {0};

    check(td_ops_find(b->opt.backend, &ops, &err), &err);
    for (int32_t r = 0; r < b->opt.tp; r++) {
        uint64_t bytes = td_model_kv(m)->region_bytes;
        char *to = td_model_kv_base(m, r);
        td_dev_options dev = {.index = b->device[r], .threads = 1};
        td_dev *d = NULL;
        td_buffer noise = {0};

        check(ops->dev_open(&dev, &d, &err), &err);
        check(ops->dev_bind(d, &err), &err);
        check(ops->alloc_host(d, NOISE_BYTES, &noise, &err), &err);
        for (size_t i = 0; i < NOISE_BYTES; i += 2) {
            uint32_t x = bits();
            uint16_t h = (uint16_t)((x & 0x8000) | (0x3c00 + (x & 0x3bf)));

            memcpy((char *)noise.ptr + i, &h, 2);
        }
        for (uint64_t at = 0; at < bytes; at += NOISE_BYTES)
            check(ops->copy_in(ops->dev_stream(d), to + at, noise.ptr,
                               bytes - at < NOISE_BYTES ? bytes - at : NOISE_BYTES, &err),
                  &err);
        check(ops->sync(ops->dev_stream(d), &err), &err);
        ops->free_host(&noise);
        ops->dev_close(d);
    }
}

/* A model with `pages` pages, or as many as fit, for steps of at most max_tokens. */
static td_model *open_model(bench *b, uint64_t pages, uint32_t rings, int32_t chunk, int32_t tokens)
{
    td_weight_source src = td_checkpoint_source(b->ckpt);
    td_usec t0 = td_now_us();
    const td_ops *ops;
    td_model *m = NULL;
    td_error err = {0};
    uint32_t n;

    check(td_ops_find(b->opt.backend, &ops, &err), &err);
    b->opt.kv_pages = (uint32_t)pages;
    b->opt.kv_rings = rings;
    b->opt.ring_pages = td_kv_ring_pages(b->cfg.window, chunk);
    b->opt.max_tokens = tokens;
    b->opt.device_bytes = 0;
    b->opt.kv_pages_least = 1;
    for (int32_t r = 0; ops->dev_memory != NULL && r < b->opt.tp; r++) {
        uint64_t left, all;

        check(ops->dev_memory(b->device[r], &left, &all, &err), &err);
        left -= left / 50; /* the driver's own: modules, graphs */
        if (r == 0 || left < b->opt.device_bytes)
            b->opt.device_bytes = left;
    }
    if (b->random) {
        src.get = get_first;
        src.release = NULL;
    }
    check(td_model_open_source(&src, &b->cfg, &b->opt, &m, &err), &err);
    printf("%s: %.2f GB of weights on %d ranks in %.2f s; %.2f s since the start\n", b->o.model,
           (double)td_model_weight_bytes(m) / 1e9, b->opt.tp, since(t0), since(began));
    n = td_model_kv(m)->n_pages;
    b->pages = realloc(b->pages, n * sizeof *b->pages);
    for (uint32_t i = 0; i < n; i++) { /* a page stands anywhere before or at its turn */
        uint32_t j = bits() % (i + 1);

        b->pages[i] = b->pages[j];
        b->pages[j] = i;
    }
    return m;
}

/* One prompt of n tokens, all chunks. */
static void prefill(const bench *b, td_model *m, int32_t n, int32_t first)
{
    const td_sampling greedy = {.top_p = 1};
    td_error err = {0};

    for (int32_t at = 0, part; at < n; at += part) {
        td_prefill_step step = {
            .tokens = b->tokens + (first + at) % (TOKENS / 2),
            .seq = {.pages = b->pages, .n_pages = td_kv_pages_for((uint64_t)n), .pos = at}};

        part = n - at < (int32_t)b->o.chunk ? n - at : (int32_t)b->o.chunk;
        step.n = part;
        step.sampling = at + part == n ? &greedy : NULL;
        check(td_model_prefill(m, &step, &err), &err);
    }
}

static void run_prefill(bench *b)
{
    int32_t length[MOST_CASES], n = bench_parse_list(b->o.lengths, length, MOST_CASES), longest = 0;
    int32_t most;
    td_model *m;

    for (int i = 0; i < n; i++)
        longest = length[i] > longest ? length[i] : longest;
    most = (int32_t)b->o.chunk < longest ? (int32_t)b->o.chunk : longest;
    m = open_model(b, td_kv_pages_for((uint64_t)longest), 1, most, most);
    printf("%8s %10s %9s %6s %9s %6s %10s %9s\n", "prefill", "ms", "floor ms", "share", "reached",
           "share", "tokens/s", "USD/M");
    prefill(b, m, most, 0); /* the first run of every kernel */
    for (int i = 0; i < n && since(began) < b->o.seconds; i++) {
        double t[MOST_STEPS], ms, floor_ms, reached;
        td_usec t0 = td_now_us();
        int runs = 0;

        while (runs < MOST_STEPS && (runs < 1 || since(t0) < b->o.case_seconds)) {
            td_usec t1 = td_now_us();

            prefill(b, m, length[i], runs * 977);
            t[runs++] = since(t1) * 1e3;
        }
        ms = bench_median(t, runs);
        floor_ms = bench_prefill_floor(&b->cfg, &b->split, length[i], &bench_paper) * 1e3;
        reached = bench_prefill_floor(&b->cfg, &b->split, length[i], &bench_reached) * 1e3;
        printf("%8d %10.2f %9.2f %6.2f %9.2f %6.2f %10.0f %9.4f\n", length[i], ms, floor_ms,
               floor_ms / ms, reached, reached / ms, length[i] / ms * 1e3,
               bench_usd_per_million(b->o.usd, b->opt.tp, length[i] / ms * 1e3));
        fflush(stdout);
        if (b->csv != NULL)
            fprintf(b->csv, "prefill,%s,%d,%d,%s,1,%d,%.4f,%.4f,%.4f,%.1f,%.5f\n", b->o.model,
                    b->opt.tp, b->opt.ep, experts_words[b->o.experts], length[i], ms, floor_ms,
                    floor_ms / ms, length[i] / ms * 1e3,
                    bench_usd_per_million(b->o.usd, b->opt.tp, length[i] / ms * 1e3));
    }
    td_model_close(m);
}

/* Milliseconds of a step of `batch` sequences at position context - 1. */
static double decode(const bench *b, td_model *m, int32_t batch, int32_t context)
{
    uint32_t each = td_kv_pages_for((uint64_t)context);
    td_seq *seq = calloc((size_t)batch, sizeof *seq);
    td_sampling *sampling = calloc((size_t)batch, sizeof *sampling);
    int32_t *out = calloc((size_t)batch, sizeof *out);
    double t[MOST_STEPS], ms;
    td_usec t0 = td_now_us();
    td_error err = {0};
    int runs = -2; /* a step that captures, a step that warms up */

    for (int32_t i = 0; i < batch; i++) {
        seq[i] = (td_seq){.pages = b->pages + (size_t)i * each,
                          .n_pages = each,
                          .ring = (uint32_t)i,
                          .pos = context - 1};
        sampling[i].top_p = 1;
    }
    while (runs < MOST_STEPS && (runs < 5 || since(t0) < b->o.case_seconds)) {
        td_decode_step step = {.n = batch,
                               .seqs = seq,
                               .tokens = b->tokens + (runs + 2) * 977 % (TOKENS / 2),
                               .sampling = sampling,
                               .out = out};
        td_usec t1 = td_now_us();

        check(td_model_decode(m, &step, &err), &err);
        if (runs >= 0)
            t[runs] = since(t1) * 1e3;
        runs++;
    }
    ms = bench_median(t, runs);
    free(seq);
    free(sampling);
    free(out);
    return ms;
}

static void run_decode(bench *b)
{
    int32_t batch[MOST_CASES], context[MOST_CASES], most = 0;
    int n = bench_parse_list(b->o.batches, batch, MOST_CASES);
    int k = bench_parse_list(b->o.contexts, context, MOST_CASES);
    uint64_t pages = 0;
    td_model *m;

    for (int i = 0; i < n; i++) {
        most = batch[i] > most ? batch[i] : most;
        for (int j = 0; j < k; j++) {
            uint64_t want = (uint64_t)batch[i] * td_kv_pages_for((uint64_t)context[j]);

            pages = want > pages ? want : pages;
        }
    }
    m = open_model(b, pages, (uint32_t)most, 1, most);
    fill_cache(b, m);
    printf("%6s %8s %10s %9s %6s %10s %9s %9s\n", "batch", "context", "ms/step", "floor ms",
           "share", "tokens/s", "each", "USD/M");
    for (int j = 0; j < k; j++)
        for (int i = 0; i < n && since(began) < b->o.seconds; i++) {
            uint64_t want = (uint64_t)batch[i] * td_kv_pages_for((uint64_t)context[j]);
            double ms, floor_ms, rate;

            if (want > td_model_kv(m)->n_pages) {
                printf("%6d %8d   %llu pages; %u fit\n", batch[i], context[j],
                       (unsigned long long)want, td_model_kv(m)->n_pages);
                continue;
            }
            ms = decode(b, m, batch[i], context[j]);
            floor_ms = bench_decode_floor(&b->cfg, &b->split, batch[i], context[j]) * 1e3;
            rate = batch[i] / ms * 1e3;
            printf("%6d %8d %10.3f %9.3f %6.2f %10.0f %9.1f %9.4f\n", batch[i], context[j], ms,
                   floor_ms, floor_ms / ms, rate, 1e3 / ms,
                   bench_usd_per_million(b->o.usd, b->opt.tp, rate));
            fflush(stdout);
            if (b->csv != NULL)
                fprintf(b->csv, "decode,%s,%d,%d,%s,%d,%d,%.4f,%.4f,%.4f,%.1f,%.5f\n", b->o.model,
                        b->opt.tp, b->opt.ep, experts_words[b->o.experts], batch[i], context[j], ms,
                        floor_ms, floor_ms / ms, rate,
                        bench_usd_per_million(b->o.usd, b->opt.tp, rate));
        }
    td_model_close(m);
}

/* From the start of the program to a first token, as a worker does it. */
static void run_load(bench *b)
{
    td_model *m = open_model(b, 64, 1, 1, 128);
    td_usec t0 = td_now_us();

    prefill(b, m, 1, 0);
    printf("first token in %.3f s; ready %.2f s after the start\n", since(t0), since(began));
    td_model_close(m);
}

static void parse(bench *b, int argc, char **argv)
{
    td_config_action action;
    td_error err = {0};
    char *at, *end;

    check(td_config_parse(options, N_OPTIONS, "bench_model prefill|decode|load|all",
                          "Speed of a whole model.", argc - 1, argv + 1, &b->o, &action, &err),
          &err);
    if (action == TD_CONFIG_EXIT_OK)
        exit(0);
    at = b->o.devices;
    for (b->opt.tp = 0; b->opt.tp < MOST_RANKS && *at != '\0'; b->opt.tp++) {
        b->device[b->opt.tp] = (int32_t)strtol(at, &end, 10);
        if (end == at || (*end != '\0' && *end != ','))
            check(td_fail_param(&err, "--devices", "\"%s\": numbers with commas, as in 0,1,2,3",
                                b->o.devices),
                  &err);
        at = *end == ',' ? end + 1 : end;
    }
    if (bench_parse_list(b->o.lengths, (int32_t[MOST_CASES]){0}, MOST_CASES) < 1 ||
        bench_parse_list(b->o.batches, (int32_t[MOST_CASES]){0}, MOST_CASES) < 1 ||
        bench_parse_list(b->o.contexts, (int32_t[MOST_CASES]){0}, MOST_CASES) < 1)
        check(
            td_fail(&err, TD_INVALID,
                    "--lengths, --batches and --contexts are lists such as 1k,8k: 1 to %d numbers "
                    "up to 1024k",
                    MOST_CASES),
            &err);
    b->opt.backend = backend_words[b->o.backend];
    b->opt.devices = b->device;
    b->opt.ep = b->o.ep ? (int32_t)b->o.ep : b->opt.tp;
    b->opt.threads = (int32_t)b->o.threads;
    b->opt.experts = (td_expert_format)b->o.experts;
    b->opt.kv_dtype = (td_kv_dtype)b->o.kv;
    b->opt.no_graphs = !b->o.graphs;
    b->split = (bench_split){b->opt.tp, b->opt.ep, b->opt.experts,
                             b->opt.kv_dtype == TD_KV_F32    ? 4
                             : b->opt.kv_dtype == TD_KV_BF16 ? 2
                                                             : 1};
}

int main(int argc, char **argv)
{
    bench b = {0};
    const char *what = argc > 1 ? argv[1] : "";
    bool all = strcmp(what, "all") == 0;
    td_error err = {0};

    began = td_now_us();
    if (!all && strcmp(what, "prefill") != 0 && strcmp(what, "decode") != 0 &&
        strcmp(what, "load") != 0) {
        fprintf(stderr, "usage: bench_model prefill|decode|load|all [--help | options]\n");
        return 2;
    }
    td_log_init("bench", TD_LOG_INFO);
    parse(&b, argc, argv);
    check(bench_config(b.o.model, &b.cfg, &err), &err);
    b.random = strcmp(b.o.model, "20b") == 0 || strcmp(b.o.model, "120b") == 0;
    check(b.random ? td_checkpoint_random(&b.cfg, 1, &b.ckpt, &err)
                   : td_checkpoint_open(b.o.model, &b.cfg, &b.ckpt, &err),
          &err);
    if (b.o.csv[0] != '\0' && (b.csv = fopen(b.o.csv, "w")) == NULL) {
        fprintf(stderr, "bench_model: --csv %s: cannot be written\n", b.o.csv);
        return 2;
    }
    if (b.csv != NULL)
        setvbuf(b.csv, NULL, _IOLBF, 0); /* rows of a run that is cut short are rows */
    if (b.csv != NULL)
        fprintf(b.csv, "what,model,tp,ep,experts,batch,tokens,ms,floor_ms,share,tokens_s,usd_m\n");
    b.tokens = malloc(TOKENS * sizeof *b.tokens);
    for (int32_t i = 0; i < TOKENS; i++)
        b.tokens[i] = (int32_t)(bits() % (uint32_t)b.cfg.vocab);
    if (strcmp(what, "load") == 0)
        run_load(&b);
    if (all || strcmp(what, "prefill") == 0)
        run_prefill(&b);
    if (all || strcmp(what, "decode") == 0)
        run_decode(&b);
    if (b.csv != NULL)
        fclose(b.csv);
    free(b.tokens);
    free(b.pages);
    td_checkpoint_close(b.ckpt);
    td_config_free(options, N_OPTIONS, &b.o);
    return 0;
}
