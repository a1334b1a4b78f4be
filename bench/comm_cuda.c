/* comm_cuda: how long collectives of CUDA ranks take, in every form, beside NCCL's.
 *
 *   comm_cuda [ranks]      default: as many as there are GPUs, at least 2; several to one GPU where
 *                          there are fewer (then the figures show that it works, no more)
 *
 * Sums of 1 to 128 tokens of gpt-oss (2880 wide, bf16) and of prefill's sizes, and the gather of
 * logits. Microseconds a call, median of replays of a graph in which call follows call (each needs
 * the one before: they add to the same x). "alone" is the launch and the memory of adding one
 * part. GB/s: 2 (n - 1) / n of the message over the time, as NCCL's tests count. NCCL is there
 * where its header was found and libnccl.so.2 can be loaded; its sums are compared with ours first:
 * with two ranks both add two bf16 in f32 and round once. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/comm.h"
#include "common/rank.h"
#include "kernels/cuda/comm.h"
#include "kernels/ops.h"
#ifdef TANDEM_HAS_NCCL
#include <nccl.h>
#endif

enum { D = 2880, V = 201088, MOST = 8192, REPLAYS = 15, FORMS = 4, ROWS = 128 };

typedef enum way { ALONE, FORM, NCCL = FORM + FORMS, GATHER } way;

static const char *const form_name[FORMS] = {"packets", "one shot", "two shot", "chosen"};

typedef struct rank {
    td_dev *dev;
    td_stream *s;
    td_buffer part[2], x, sum, columns;
    td_graph *graph;
    cudaEvent_t began, ended;
} rank;

typedef struct bench {
    const td_ops *ops;
    int32_t n, devices;
    td_ranks *ranks;
    rank r[TD_COMM_RANKS];
    td_comm *comm[FORMS];
    td_buffer out;
    /* the measurement that runs */
    way way;
    int32_t tokens, calls;
    float us; /* rank 0's, of one call */
#ifdef TANDEM_HAS_NCCL
    ncclComm_t nccl[TD_COMM_RANKS];
#endif
    bool has_nccl;
} bench;

static void check(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "%s: %s\n", td_status_name(st), err->text);
    exit(1);
}

/* --- NCCL, if it can be had --------------------------------------------------------------------
 */

#ifdef TANDEM_HAS_NCCL
static struct nccl_calls {
    ncclResult_t (*init_all)(ncclComm_t *comm, int n, const int *devices);
    ncclResult_t (*all_reduce)(const void *from, void *to, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t s);
    ncclResult_t (*version)(int *version);
} nccl;

static void open_nccl(bench *b)
{
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int devices[TD_COMM_RANKS], version = 0;

    if (lib == NULL || b->n > b->devices) {
        printf("NCCL: %s\n", lib == NULL ? dlerror() : "wants a GPU for each rank");
        return;
    }
    *(void **)&nccl.init_all = dlsym(lib, "ncclCommInitAll");
    *(void **)&nccl.all_reduce = dlsym(lib, "ncclAllReduce");
    *(void **)&nccl.version = dlsym(lib, "ncclGetVersion");
    for (int32_t i = 0; i < b->n; i++)
        devices[i] = i;
    if (nccl.init_all(b->nccl, b->n, devices) != ncclSuccess) {
        printf("NCCL: no communicator\n");
        return;
    }
    nccl.version(&version);
    printf("NCCL %d.%d.%d, NCCL_NVLS_ENABLE=%s\n", version / 10000, version / 100 % 100,
           version % 100, getenv("NCCL_NVLS_ENABLE"));
    b->has_nccl = true;
}

static td_status call_nccl(bench *b, int32_t i, const void *part, size_t n, td_error *err)
{
    rank *r = &b->r[i];
    ncclResult_t rc =
        nccl.all_reduce(part, r->sum.ptr, n, ncclBfloat16, ncclSum, b->nccl[i], r->s->handle);

    if (rc != ncclSuccess)
        return td_fail(err, TD_DEVICE, "ncclAllReduce: %d", (int)rc);
    return b->ops->add(
        r->s,
        &(td_add_args){
            .n = n, .n_parts = 1, .part = (const void *const[]){r->sum.ptr}, .x = r->x.ptr},
        err);
}
#else
static void open_nccl(bench *b)
{
    (void)b;
    printf("NCCL: nccl.h was not found when this was built\n");
}

static td_status call_nccl(bench *b, int32_t i, const void *part, size_t n, td_error *err)
{
    (void)b, (void)i, (void)part, (void)n;
    return td_fail(err, TD_UNAVAILABLE, "no NCCL");
}
#endif

/* --- one measurement ---------------------------------------------------------------------------
 */

static td_status call(bench *b, int32_t i, int32_t turn, td_error *err)
{
    rank *r = &b->r[i];
    const void *part = r->part[turn % 2].ptr;
    size_t n = (size_t)b->tokens * D;
    int32_t cols = V / b->n;

    if (b->way == ALONE)
        return b->ops->add(
            r->s,
            &(td_add_args){
                .n = n, .n_parts = 1, .part = (const void *const[]){part}, .x = r->x.ptr},
            err);
    if (b->way == NCCL)
        return call_nccl(b, i, part, n, err);
    if (b->way == GATHER)
        return td_comm_gather(b->comm[0], i, r->s, r->columns.ptr, b->tokens, cols, i * cols,
                              b->n * cols, b->out.ptr, err);
    return td_comm_reduce_add(b->comm[b->way - FORM], i, r->s, part, n, false, r->x.ptr, err);
}

static td_status capture(void *ctx, int32_t i, td_error *err)
{
    bench *b = ctx;
    rank *r = &b->r[i];
    td_status st = b->ops->dev_bind(r->dev, err);

    if (st == TD_OK && b->way == NCCL) { /* it connects at the first use of a size */
        st = call(b, i, 0, err);
        if (st == TD_OK)
            st = b->ops->sync(r->s, err);
    }
    if (st == TD_OK)
        st = b->ops->graph_begin(r->s, err);
    for (int32_t k = 0; st == TD_OK && k < b->calls; k++)
        st = call(b, i, k, err);
    return st == TD_OK ? b->ops->graph_end(r->s, &r->graph, err) : st;
}

/* A graph to bring the ranks together, then the one that is timed. */
static td_status replay(void *ctx, int32_t i, td_error *err)
{
    bench *b = ctx;
    rank *r = &b->r[i];
    td_status st = b->ops->dev_bind(r->dev, err);

    if (st == TD_OK)
        st = b->ops->graph_launch(r->s, r->graph, err);
    if (st == TD_OK && cudaEventRecord(r->began, r->s->handle) != cudaSuccess)
        st = td_fail(err, TD_DEVICE, "event");
    if (st == TD_OK)
        st = b->ops->graph_launch(r->s, r->graph, err);
    if (st == TD_OK && cudaEventRecord(r->ended, r->s->handle) != cudaSuccess)
        st = td_fail(err, TD_DEVICE, "event");
    if (st == TD_OK)
        st = b->ops->sync(r->s, err);
    for (int f = 0; st == TD_OK && f < FORMS; f++)
        st = td_comm_check(b->comm[f], i, err);
    if (st == TD_OK && i == 0 && cudaEventElapsedTime(&b->us, r->began, r->ended) != cudaSuccess)
        st = td_fail(err, TD_DEVICE, "event");
    return st;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double measure(bench *b, way w, int32_t tokens)
{
    float times[REPLAYS];
    td_error err = {0};

    b->way = w;
    b->tokens = tokens;
    b->calls = tokens <= 256 ? 40 : 8;
    check(td_ranks_run(b->ranks, capture, b, &err), &err);
    for (int i = 0; i < REPLAYS; i++) {
        check(td_ranks_run(b->ranks, replay, b, &err), &err);
        times[i] = b->us * 1000 / (float)b->calls;
    }
    for (int32_t i = 0; i < b->n; i++)
        b->ops->graph_free(b->r[i].graph);
    qsort(times, REPLAYS, sizeof times[0], by_value);
    return times[REPLAYS / 2];
}

/* --- our sums and NCCL's -----------------------------------------------------------------------
 */

static td_status sum_once(void *ctx, int32_t i, td_error *err)
{
    bench *b = ctx;
    rank *r = &b->r[i];
    td_status st = b->ops->dev_bind(r->dev, err);

    if (st == TD_OK &&
        cudaMemsetAsync(r->x.ptr, 0, (size_t)b->tokens * D * 4, r->s->handle) != cudaSuccess)
        st = td_fail(err, TD_DEVICE, "memset");
    if (st == TD_OK)
        st = call(b, i, 0, err);
    return st == TD_OK ? b->ops->sync(r->s, err) : st;
}

static float *sums_of(bench *b, way w, int32_t tokens, int32_t i)
{
    size_t bytes = (size_t)tokens * D * 4;
    float *x = malloc(bytes);
    td_error err = {0};

    b->way = w;
    b->tokens = tokens;
    check(td_ranks_run(b->ranks, sum_once, b, &err), &err);
    check(b->ops->dev_bind(b->r[i].dev, &err), &err);
    check(b->ops->copy_out(b->r[i].s, x, bytes, b->r[i].x.ptr, bytes, bytes, 1, &err), &err);
    check(b->ops->sync(b->r[i].s, &err), &err);
    return x;
}

/* On the last rank, whose parts come from all the others. */
static void compare_with_nccl(bench *b)
{
    for (int32_t tokens = 1; tokens <= MOST; tokens *= 8) {
        float *own = sums_of(b, FORM + FORMS - 1, tokens, b->n - 1);
        float *other = sums_of(b, NCCL, tokens, b->n - 1);
        size_t n = (size_t)tokens * D, differ = 0;
        double most = 0;

        for (size_t i = 0; i < n; i++) {
            double d = fabs((double)own[i] - other[i]);

            differ += !(d == 0);
            most = fmax(most, d / fmax(fabs((double)other[i]), 1e-30));
        }
        printf("%6d tokens: %zu of %zu sums differ from NCCL's, at most by %.4f%%\n", tokens,
               differ, n, 100 * most);
        free(own);
        free(other);
    }
}

/* --- set-up ------------------------------------------------------------------------------------
 */

static void fill(bench *b, rank *r, void *dst, size_t bytes, bool bf16)
{
    size_t block = 1 << 22;
    uint16_t *noise = malloc(block);
    static uint32_t rng = 1; /* goes on: ranks have different parts */
    td_error err = {0};

    for (size_t i = 0; i < block / 2; i++) {
        rng = rng * 1664525 + 1013904223;
        noise[i] = (uint16_t)((rng >> 16 & 0x80ff) + (bf16 || i % 2 == 1 ? 0x3c00 : 0));
    }
    for (size_t at = 0; at < bytes; at += block)
        check(b->ops->copy_in(r->s, (char *)dst + at, noise,
                              bytes - at < block ? bytes - at : block, &err),
              &err);
    check(b->ops->sync(r->s, &err), &err);
    free(noise);
}

static void open_ranks(bench *b)
{
    td_dev *dev[TD_COMM_RANKS];
    td_error err = {0};

    check(td_ranks_create(b->n, &b->ranks, &err), &err);
    for (int32_t i = 0; i < b->n; i++) {
        rank *r = &b->r[i];
        size_t part = (size_t)MOST * D * 2, columns = (size_t)ROWS * (size_t)(V / b->n) * 4;

        check(b->ops->dev_open(&(td_dev_options){.index = i % b->devices, .threads = 1}, &r->dev,
                               &err),
              &err);
        check(b->ops->dev_bind(r->dev, &err), &err);
        r->s = b->ops->dev_stream(r->dev);
        check(b->ops->alloc(r->dev, part, &r->part[0], &err), &err);
        check(b->ops->alloc(r->dev, part, &r->part[1], &err), &err);
        check(b->ops->alloc(r->dev, part, &r->sum, &err), &err);
        check(b->ops->alloc(r->dev, 2 * part, &r->x, &err), &err);
        check(b->ops->alloc(r->dev, columns, &r->columns, &err), &err);
        fill(b, r, r->part[0].ptr, part, true);
        fill(b, r, r->part[1].ptr, part, true);
        fill(b, r, r->columns.ptr, columns, false);
        if (i == 0)
            check(b->ops->alloc(r->dev, (size_t)ROWS * V * 4, &b->out, &err), &err);
        if (cudaEventCreate(&r->began) != cudaSuccess || cudaEventCreate(&r->ended) != cudaSuccess)
            exit(1);
        dev[i] = r->dev;
    }
    for (int f = 0; f < FORMS; f++) {
        cuda_comm_tuning t = td_cuda_comm_tuning(b->n, (b->n + b->devices - 1) / b->devices);
        size_t small = (size_t)TD_SMALL_STEP * D;

        if (f != FORMS - 1) {
            t.packet_bytes = f == 0 ? small * 2 : 0;
            t.one_shot_bytes = f == 1 ? small * 2 : 0;
        }
        check(td_cuda_comm_open_tuned(
                  &(td_comm_options){.dev = dev,
                                     .n = b->n,
                                     .max_elements = f < 2 ? small : (size_t)MOST * D,
                                     .timeout_ms = 5000},
                  &t, &b->comm[f], &err),
              &err);
    }
    open_nccl(b);
}

static double rate(const bench *b, int32_t tokens, double us)
{
    return (double)tokens * D * 2 * 2 * (b->n - 1) / b->n / us * 1e-3;
}

int main(int argc, char **argv)
{
    static bench b;
    td_error err = {0};

    check(td_ops_find("cuda", &b.ops, &err), &err);
    if (cudaGetDeviceCount(&b.devices) != cudaSuccess || b.devices < 1) {
        fprintf(stderr, "no CUDA device\n");
        return 1;
    }
    b.n = argc > 1 ? atoi(argv[1]) : b.devices > 1 ? b.devices : 2;
    if (b.n < 1 || b.n > TD_COMM_RANKS) {
        fprintf(stderr, "usage: comm_cuda [ranks, 1 to %d]\n", TD_COMM_RANKS);
        return 2;
    }
    printf("%d ranks on %d GPUs\n", b.n, b.n < b.devices ? b.n : b.devices);
    open_ranks(&b);
    if (b.has_nccl)
        compare_with_nccl(&b);
    printf("%6s %9s %8s", "tokens", "bytes", "alone");
    for (int f = 0; f < FORMS; f++)
        printf(" %9s", form_name[f]);
    printf(" %9s   us a sum\n", "NCCL");
    for (int32_t tokens = 1; tokens <= TD_SMALL_STEP; tokens *= 2) {
        printf("%6d %9d %8.2f", tokens, tokens * D * 2, measure(&b, ALONE, tokens));
        for (int f = 0; f < FORMS; f++)
            printf(" %9.2f", measure(&b, FORM + f, tokens));
        if (b.has_nccl)
            printf(" %9.2f", measure(&b, NCCL, tokens));
        printf("\n");
    }
    printf("%6s %9s %8s %9s %9s %9s %9s\n", "tokens", "MB", "alone", "own us", "GB/s", "NCCL us",
           "GB/s");
    for (int32_t tokens = 256; tokens <= MOST; tokens *= 2) {
        double own = measure(&b, FORM + FORMS - 1, tokens), other;

        printf("%6d %9.1f %8.1f %9.1f %9.1f", tokens, tokens * D * 2 / 1e6,
               measure(&b, ALONE, tokens), own, rate(&b, tokens, own));
        if (b.has_nccl) {
            other = measure(&b, NCCL, tokens);
            printf(" %9.1f %9.1f", other, rate(&b, tokens, other));
        }
        printf("\n");
    }
    printf("%6s %9s %9s\n", "rows", "gather us", "GB/s in");
    for (int32_t rows = 1; rows <= ROWS; rows *= 4) {
        double us = measure(&b, GATHER, rows);

        printf("%6d %9.1f %9.1f\n", rows, us, (double)rows * V * 4 * (b.n - 1) / b.n / us * 1e-3);
    }
    return 0;
}
