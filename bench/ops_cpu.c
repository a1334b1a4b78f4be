/* ops_cpu: how fast the CPU backend runs a model, beside what this machine could do.
 *
 *   ops_cpu [threads]
 *
 * A small model (tandem-tiny's shape) in tokens per second and milliseconds a step, and one layer
 * of the 20b's shape in GFLOP/s and GB/s. The ceilings are measured on the spot: multiply-adds in
 * registers, and reading memory much larger than the caches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/model.h"
#include "common/rank.h"

static const td_model_config tiny = {
    .n_layers = 4,
    .hidden = 256,
    .n_q_heads = 16,
    .n_kv_heads = 8,
    .head_dim = 64,
    .n_experts = 8,
    .top_k = 4,
    .inter = 256,
    .vocab = 2048,
    .window = 128,
    .windowed = {true, false, true, false},
    .max_positions = 131072,
    .eps = 1e-5f,
    .swiglu_limit = 7,
    .rope_theta = 150000,
    .yarn_factor = 32,
    .yarn_beta_fast = 32,
    .yarn_beta_slow = 1,
    .yarn_original_positions = 4096,
};

static td_model_config one_layer_of_20b(void)
{
    td_model_config c = tiny;

    c.n_layers = 1;
    c.windowed[0] = false;
    c.hidden = c.inter = 2880;
    c.n_q_heads = 64;
    c.n_experts = 32;
    return c;
}

typedef struct ceiling {
    double gflops, gbytes;
} ceiling;

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2,fma", "default")))
#endif
static float
multiply_add(long n)
{
    enum { LANES = 256 };
    static _Thread_local float a[LANES];
    float s[LANES];

    memset(s, 0, sizeof s);
    for (long i = 0; i < n; i++)
        for (int j = 0; j < LANES; j++)
            s[j] = s[j] * 0.999f + 0.001f;
    memcpy(a, s, sizeof a);
    return a[n % LANES];
}

typedef struct probe {
    const uint64_t *mem;
    size_t words;
    int32_t n;
    uint64_t sum[64];
} probe;

static td_status flops_rank(void *ctx, int32_t rank, td_error *err)
{
    probe *p = ctx;

    (void)err;
    p->sum[rank] = (uint64_t)multiply_add(2000000);
    return TD_OK;
}

static td_status bytes_rank(void *ctx, int32_t rank, td_error *err)
{
    probe *p = ctx;
    size_t first = p->words / (size_t)p->n * (size_t)rank, n = p->words / (size_t)p->n;
    uint64_t s = 0;

    (void)err;
    for (size_t i = 0; i < n; i++)
        s += p->mem[first + i];
    p->sum[rank] = s;
    return TD_OK;
}

static ceiling measure_ceiling(int32_t threads)
{
    probe p = {.words = (size_t)1 << 26, .n = threads};
    uint64_t *mem = malloc(p.words * 8);
    ceiling best = {0};
    td_ranks *r = NULL;

    if (mem == NULL || td_ranks_create(threads, &r, NULL) != TD_OK)
        exit(1);
    memset(mem, 1, p.words * 8);
    p.mem = mem;
    for (int i = 0; i < 3; i++) {
        td_usec t0 = td_now_us(), t1, t2;

        if (td_ranks_run(r, flops_rank, &p, NULL) != TD_OK)
            exit(1);
        t1 = td_now_us();
        if (td_ranks_run(r, bytes_rank, &p, NULL) != TD_OK)
            exit(1);
        t2 = td_now_us();
        double f = 2.0 * 256 * 2e6 * threads / (double)(t1 - t0) / 1e3;
        double b = (double)p.words * 8 / (double)(t2 - t1) / 1e3;
        best.gflops = f > best.gflops ? f : best.gflops;
        best.gbytes = b > best.gbytes ? b : best.gbytes;
    }
    td_ranks_free(r);
    free(mem);
    return best;
}

static void need(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static td_model *open_model(const td_model_config *c, int32_t threads, int32_t chunk)
{
    td_model_options opt = {.backend = "cpu",
                            .tp = 1,
                            .ep = 1,
                            .threads = threads,
                            .kv_pages = 64 * 20,
                            .kv_rings = 64,
                            .max_tokens = chunk,
                            .ring_pages = td_kv_ring_pages(c->window, chunk)};
    td_checkpoint *ckpt = NULL;
    td_model *m = NULL;
    td_error err = {0};

    need(td_checkpoint_random(c, 1, &ckpt, &err), &err);
    need(td_model_open(ckpt, c, &opt, &m, &err), &err);
    td_checkpoint_close(ckpt);
    return m;
}

/* Microseconds of one prefill of n tokens, the best of some. */
static double time_prefill(td_model *m, int32_t n, int rounds)
{
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    uint32_t pages[20];
    td_sampling greedy = {0};
    double best = 1e30;
    td_error err = {0};

    for (int32_t i = 0; i < n; i++)
        tokens[i] = i * 131 % td_model_config_of(m)->vocab;
    for (uint32_t i = 0; i < 20; i++)
        pages[i] = i;
    for (int i = 0; i < rounds; i++) {
        td_prefill_step p = {
            .tokens = tokens, .n = n, .sampling = &greedy, .seq = {.pages = pages, .n_pages = 20}};
        td_usec t0 = td_now_us();

        need(td_model_prefill(m, &p, &err), &err);
        double t = (double)(td_now_us() - t0);
        best = t < best ? t : best;
    }
    free(tokens);
    return best;
}

/* Microseconds of one decode step of n sequences with `pos` tokens cached, the best of some. */
static double time_decode(td_model *m, int32_t n, int32_t pos, int rounds)
{
    static uint32_t pages[64][20];
    td_seq seqs[64];
    td_sampling greedy[64] = {{0}};
    int32_t tokens[64], out[64];
    double best = 1e30;
    td_error err = {0};

    for (int32_t i = 0; i < n; i++) {
        for (uint32_t p = 0; p < 20; p++)
            pages[i][p] = (uint32_t)i * 20 + p;
        seqs[i] = (td_seq){.pages = pages[i], .n_pages = 20, .ring = (uint32_t)i, .pos = pos};
        tokens[i] = i * 57 % td_model_config_of(m)->vocab;
    }
    for (int i = 0; i < rounds; i++) {
        td_decode_step d = {.n = n, .seqs = seqs, .tokens = tokens, .sampling = greedy, .out = out};
        td_usec t0 = td_now_us();

        need(td_model_decode(m, &d, &err), &err);
        double t = (double)(td_now_us() - t0);
        best = t < best ? t : best;
    }
    return best;
}

static void small_model(int32_t threads)
{
    td_model *m = open_model(&tiny, threads, 512);
    double p512 = time_prefill(m, 512, 10), p16 = time_prefill(m, 16, 20);

    printf("tandem-tiny's shape: prefill of 512 %.0f tokens/s, of 16 %.0f tokens/s (%.2f ms)\n",
           512e6 / p512, 16e6 / p16, p16 / 1e3);
    for (int32_t n = 1; n <= 64; n *= 4)
        for (int32_t pos = 64; pos <= 1024; pos *= 16) {
            double t = time_decode(m, n, pos, 30);
            printf("tandem-tiny's shape: decode of %2d at %4d %7.3f ms, %.0f tokens/s\n", n, pos,
                   t / 1e3, n * 1e6 / t);
        }
    td_model_close(m);
}

static void large_layer(int32_t threads, const ceiling *top)
{
    td_model_config c = one_layer_of_20b();
    td_model *m = open_model(&c, threads, 512);
    double attn = (5120.0 * 2880 + 2880 * 4096), expert = 3.0 * 2880 * 2880;
    double head = (double)c.vocab * 2880, t, flops, bytes;

    t = time_prefill(m, 512, 2);
    flops = 2 * 512 * (attn + 4 * expert) + 4.0 * 4096 * 512 * 256 + 2 * head;
    printf("20b layer: prefill of 512 %.0f ms, %.0f GFLOP/s (%.0f%% of %.0f)\n", t / 1e3,
           flops / t / 1e3, flops / t / 10 / top->gflops, top->gflops);
    for (int32_t n = 1; n <= 64; n *= 8) {
        /* Distinct experts of n uniform choices of 4 in 32. */
        double touched = 32, miss = 1;

        for (int i = 0; i < n; i++)
            miss *= 1 - 4.0 / 32;
        touched *= 1 - miss;
        t = time_decode(m, n, 64, 5);
        bytes = 2 * (attn + head) + touched * expert * 17 / 32;
        printf("20b layer: decode of %2d %.2f ms, %.1f GB/s of weights (%.0f%% of %.1f), %.0f "
               "GFLOP/s\n",
               n, t / 1e3, bytes / t / 1e3, bytes / t / 10 / top->gbytes, top->gbytes,
               2 * n * (attn + 4 * expert + head) / t / 1e3);
    }
    td_model_close(m);
}

int main(int argc, char **argv)
{
    int32_t threads = argc > 1 ? atoi(argv[1]) : td_usable_cores();
    ceiling top;

    if (threads < 1 || threads > 64) {
        fprintf(stderr, "usage: ops_cpu [threads, 1 to 64]\n");
        return 2;
    }
    top = measure_ceiling(threads);
    printf("%d threads: %.0f GFLOP/s in registers, %.1f GB/s from memory\n", threads, top.gflops,
           top.gbytes);
    small_model(threads);
    large_layer(threads, &top);
    return 0;
}
