/* compare_logits: a checkpoint of any size, here and in Transformers.
 *
 *   compare_logits FOLDER REFERENCE [--backend cuda|cpu] [--experts mxfp4|fp8] [--kv bf16|f32|e4m3]
 *                  [--allow FACTOR] [--chunk N]
 *
 * REFERENCE is a file of reference_logits.py: logits of some prompts in float32, and in bfloat16 as
 * Transformers computes it. Every prompt is prefilled, and again up to its last few tokens, which
 * are then decoded one at a time. Printed for both ways: the root mean square and the largest
 * difference from float32, over the spread (standard deviation) of the logits, and the share of
 * rows with the same largest logit; beside them what bfloat16 in Transformers loses, which is the
 * measure: exit 1 if an error is more than FACTOR (1.25) times that. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checkpoint.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/kv_layout.h"
#include "common/model.h"

enum { DECODED = 8 };

typedef struct settings {
    int32_t backend, experts, kv;
    uint32_t chunk;
    double allow;
} settings;

static const char *const backend_words[] = {"cpu", "cuda", NULL};
static const char *const experts_words[] = {"mxfp4", "fp8", NULL};
static const char *const kv_words[] = {"bf16", "f32", "e4m3", NULL}; /* as td_kv_dtype */
static const td_option options[] = {
    {"backend", TD_OPT_ENUM, offsetof(settings, backend), "cuda", 0, 0, "cpu or cuda.",
     backend_words},
    {"experts", TD_OPT_ENUM, offsetof(settings, experts), "mxfp4", 0, 0,
     "How experts are kept: mxfp4 or fp8.", experts_words},
    {"kv", TD_OPT_ENUM, offsetof(settings, kv), "bf16", 0, 0, "Keys and values: bf16, f32, e4m3.",
     kv_words},
    {"chunk", TD_OPT_U32, offsetof(settings, chunk), "8192", 1, 1 << 20,
     "Most tokens in one step of a prefill.", NULL},
    {"allow", TD_OPT_F64, offsetof(settings, allow), "1.25", 0, 1e6,
     "How many times the error of bfloat16 in Transformers is still right.", NULL},
};

/* One prompt of the reference. */
typedef struct reference {
    int32_t n, n_rows;
    int32_t *tokens, *rows;
    float *exact, *bf16; /* [n_rows, vocab] */
} reference;

typedef struct comparison {
    double square, worst, spread;
    int64_t same, rows;
} comparison;

static void check(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "compare_logits: %s: %s\n", td_status_name(st), err->text);
    exit(2);
}

static void *read_all(FILE *f, const char *path, size_t bytes)
{
    void *p = malloc(bytes + 1);

    if (p == NULL || fread(p, 1, bytes, f) != bytes) {
        fprintf(stderr, "compare_logits: %s: %zu bytes could not be read: make it again\n", path,
                bytes);
        exit(2);
    }
    return p;
}

static reference *read_reference(const char *path, int32_t vocab, int32_t *n_cases)
{
    FILE *f = fopen(path, "rb");
    struct {
        char magic[8];
        int32_t vocab, cases;
    } head;
    reference *r;

    if (f == NULL || fread(&head, sizeof head, 1, f) != 1 ||
        memcmp(head.magic, "TDREF1\0", 8) != 0 || head.vocab != vocab || head.cases < 1 ||
        head.cases > 1000) {
        fprintf(stderr, "compare_logits: %s: not a file of reference_logits.py for %d tokens\n",
                path, vocab);
        exit(2);
    }
    r = calloc((size_t)head.cases, sizeof *r);
    for (int32_t i = 0; i < head.cases; i++) {
        int32_t *n = read_all(f, path, 2 * sizeof *n);
        size_t bytes = (size_t)n[1] * (size_t)vocab * sizeof(float);

        r[i].n = n[0];
        r[i].n_rows = n[1];
        r[i].tokens = read_all(f, path, (size_t)n[0] * sizeof *n);
        r[i].rows = read_all(f, path, (size_t)n[1] * sizeof *n);
        r[i].exact = read_all(f, path, bytes);
        r[i].bf16 = read_all(f, path, bytes);
        free(n);
    }
    fclose(f);
    *n_cases = head.cases;
    return r;
}

static int32_t largest(const float *x, int32_t n)
{
    int32_t best = 0;

    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static void compare_row(comparison *c, const float *got, const float *want, int32_t vocab)
{
    double sum = 0, squares = 0, square = 0;

    for (int32_t i = 0; i < vocab; i++) {
        double d = (double)got[i] - (double)want[i];

        sum += (double)want[i];
        squares += (double)want[i] * (double)want[i];
        square += d * d;
        if (!(fabs(d) <= c->worst)) /* a NaN is the worst of all */
            c->worst = isnan(d) ? INFINITY : fabs(d);
    }
    c->square += square / vocab;
    c->spread += squares / vocab - (sum / vocab) * (sum / vocab);
    c->same += largest(got, vocab) == largest(want, vocab);
    c->rows++;
}

static double rms(const comparison *c)
{
    return sqrt(c->square / c->spread);
}

static bool report(const char *how, int32_t n, const comparison *ours, const comparison *theirs,
                   double allow)
{
    double scale = sqrt(ours->spread / (double)ours->rows);
    bool good = rms(ours) <= allow * rms(theirs); /* false for NaN */

    printf("%6d %-8s %5lld   %8.5f %7.4f %6.3f     %8.5f %7.4f %6.3f   %5.2f%s\n", n, how,
           (long long)ours->rows, rms(ours), ours->worst / scale,
           (double)ours->same / (double)ours->rows, rms(theirs), theirs->worst / scale,
           (double)theirs->same / (double)theirs->rows, rms(ours) / rms(theirs),
           good ? "" : "  too far");
    fflush(stdout);
    return good;
}

static td_seq seq_at(const uint32_t *pages, int32_t n, int32_t pos)
{
    return (td_seq){.pages = pages, .n_pages = td_kv_pages_for((uint64_t)n), .pos = pos};
}

static bool prefill_case(const settings *o, td_model *m, const reference *r, const uint32_t *pages,
                         int32_t vocab)
{
    comparison ours = {0}, theirs = {0};
    td_error err = {0};
    int32_t chunk = (int32_t)o->chunk < r->n ? (int32_t)o->chunk : r->n, i = 0;
    float *logits = malloc((size_t)chunk * (size_t)vocab * sizeof *logits);

    for (int32_t at = 0; at < r->n; at += chunk) {
        td_prefill_step step = {.tokens = r->tokens + at,
                                .n = r->n - at < chunk ? r->n - at : chunk,
                                .seq = seq_at(pages, r->n, at),
                                .logits = logits};

        check(td_model_prefill(m, &step, &err), &err);
        for (; i < r->n_rows && r->rows[i] < at + step.n; i++) {
            size_t row = (size_t)i * (size_t)vocab;

            compare_row(&ours, logits + (size_t)(r->rows[i] - at) * (size_t)vocab, r->exact + row,
                        vocab);
            compare_row(&theirs, r->bf16 + row, r->exact + row, vocab);
        }
    }
    free(logits);
    return report("prefill", r->n, &ours, &theirs, o->allow);
}

/* The last positions, one token a step, after a prefill of those before. */
static bool decode_case(const settings *o, td_model *m, const reference *r, const uint32_t *pages,
                        int32_t vocab)
{
    const td_sampling greedy = {.top_p = 1};
    float *logits = malloc((size_t)vocab * sizeof *logits);
    comparison ours = {0}, theirs = {0};
    int32_t first = r->n - DECODED, out;
    td_error err = {0};

    for (int32_t at = 0, n; at < first; at += n) {
        n = first - at < (int32_t)o->chunk ? first - at : (int32_t)o->chunk;
        check(td_model_prefill(m,
                               &(td_prefill_step){.tokens = r->tokens + at,
                                                  .n = n,
                                                  .seq = seq_at(pages, r->n, at)},
                               &err),
              &err);
    }
    for (int32_t pos = first; pos < r->n; pos++) {
        td_seq seq = seq_at(pages, r->n, pos);
        size_t row = (size_t)(r->n_rows - (r->n - pos)) * (size_t)vocab; /* the last rows follow */

        check(td_model_decode(m,
                              &(td_decode_step){.n = 1,
                                                .seqs = &seq,
                                                .tokens = r->tokens + pos,
                                                .sampling = &greedy,
                                                .logits = logits,
                                                .out = &out},
                              &err),
              &err);
        compare_row(&ours, logits, r->exact + row, vocab);
        compare_row(&theirs, r->bf16 + row, r->exact + row, vocab);
    }
    free(logits);
    return report("decode", r->n, &ours, &theirs, o->allow);
}

int main(int argc, char **argv)
{
    settings o = {0};
    td_config_action action;
    td_model_config cfg;
    td_checkpoint *ckpt = NULL;
    td_model *m = NULL;
    reference *r;
    uint32_t *pages, n_pages;
    int32_t n_cases, longest = 0;
    bool good = true;
    td_usec t0 = td_now_us();
    td_error err = {0};

    if (argc < 3 || argv[1][0] == '-' || argv[2][0] == '-') {
        fprintf(stderr, "usage: compare_logits FOLDER REFERENCE [--help | options]\n");
        return 2;
    }
    check(td_config_parse(options, sizeof options / sizeof options[0], "compare_logits",
                          "Logits here and in Transformers.", argc - 2, argv + 2, &o, &action,
                          &err),
          &err);
    if (action == TD_CONFIG_EXIT_OK)
        return 0;
    check(td_model_config_read(argv[1], &cfg, &err), &err);
    check(td_checkpoint_open(argv[1], &cfg, &ckpt, &err), &err);
    r = read_reference(argv[2], cfg.vocab, &n_cases);
    for (int32_t i = 0; i < n_cases; i++)
        longest = r[i].n > longest ? r[i].n : longest;
    o.chunk = (int32_t)o.chunk < longest ? o.chunk : (uint32_t)longest;
    n_pages = td_kv_pages_for((uint64_t)longest);
    pages = calloc(n_pages, sizeof *pages);
    for (uint32_t i = 0; i < n_pages; i++)
        pages[i] = n_pages - 1 - i;
    check(td_model_open(
              ckpt, &cfg,
              &(td_model_options){.backend = backend_words[o.backend],
                                  .tp = 1,
                                  .ep = 1,
                                  .experts = (td_expert_format)o.experts,
                                  .kv_dtype = (td_kv_dtype)o.kv,
                                  .kv_pages = n_pages,
                                  .kv_rings = 1,
                                  .ring_pages = td_kv_ring_pages(cfg.window, (int32_t)o.chunk),
                                  .max_tokens = (int32_t)o.chunk},
              &m, &err),
          &err);
    printf("%s, experts %s, keys and values %s; ready after %.1f s\n"
           "                           ours against float32         bfloat16 against float32\n"
           "tokens how       rows        rms     max   same          rms     max   same   ratio\n",
           backend_words[o.backend], experts_words[o.experts], kv_words[o.kv],
           (double)(td_now_us() - t0) / 1e6);
    for (int32_t i = 0; i < n_cases; i++) {
        good &= prefill_case(&o, m, &r[i], pages, cfg.vocab);
        if (r[i].n > DECODED)
            good &= decode_case(&o, m, &r[i], pages, cfg.vocab);
    }
    td_model_close(m);
    td_checkpoint_close(ckpt);
    for (int32_t i = 0; i < n_cases; i++) {
        free(r[i].tokens);
        free(r[i].rows);
        free(r[i].exact);
        free(r[i].bf16);
    }
    free(r);
    free(pages);
    return good ? 0 : 1;
}
