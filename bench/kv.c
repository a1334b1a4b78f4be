/* bench_kv: how fast KV crosses from one process to another, by size of put.
 *
 *   bench_kv [--transport shm|tcp|auto] [--method put|message] [--mib N] [--reps N]
 *            [--cuda SOURCE,SINK]
 *
 * A child process opens a sink, this one a source. For each size a prompt is pushed whose pages lie
 * so that every put has that size: the rate is the bytes of the push over the time from the first
 * td_kv_push_layer() to the notice in the sink's process (both read the machine's monotonic clock);
 * the latency is that of a push of one key and one value put. Without options all combinations that
 * work on a CPU are measured. With --cuda the memory is that of two GPUs (which may be one, twice)
 * and every byte of the first push is compared. The last column is the share of a memcpy() of the
 * same bytes, on the host. */
#include "common/clock.h"
#include "common/kv_push.h"
#include "common/kv_wire.h"
#include "common/log.h"
#include "kernels/ops.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PAGE_BYTES = TD_PAGE_TOKENS * 64 * 2, /* of one head and side: 8 KiB */
    MIN_KIB = 8,
    MAX_KIB = 16 << 10,
};

typedef struct bench {
    char transport[8];
    td_kv_method method;
    uint32_t pages; /* of a big push, per side */
    int reps;       /* of the latency */
    bool cuda;
    int32_t device[2]; /* the source's, the sink's */
} bench;

/* One side's memory. */
typedef struct memory {
    const td_ops *ops; /* NULL: the host's */
    td_dev *dev;
    td_buffer buf;
    td_kv_region region;
} memory;

typedef struct landed {
    uint64_t request;
    td_usec at;
    int32_t status;
} landed;

static void die(const char *what, const td_error *err)
{
    fprintf(stderr, "bench_kv: %s: %s\n", what, err->text);
    exit(1);
}

static td_kv_geometry bench_geometry(const bench *b)
{
    td_model_config c = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 64, .window = 1};
    td_kv_geometry g;
    td_error err = {0};

    /* Twice the pages: with runs of one page there is a gap after each. */
    if (td_kv_geometry_init(&g, &c, 1, TD_KV_BF16, 2 * b->pages + 2, 1, 1, &err) != TD_OK)
        die("geometry", &err);
    return g;
}

static td_status use_device(int32_t device, td_error *err)
{
    const td_ops *ops;
    td_status st = td_ops_find("cuda", &ops, err);

    return st == TD_OK ? ops->dev_use(device, err) : st;
}

static td_kv_wire_options bench_options(const bench *b)
{
    return (td_kv_wire_options){
        .transport = b->transport,
        .method = b->method,
        .stall_us = 60 * TD_USEC_PER_SEC,
        .use_device = b->cuda ? use_device : NULL,
    };
}

static char *host_memory(uint64_t bytes)
{
    char *p = malloc(bytes);

    if (p)
        return p;
    fprintf(stderr, "bench_kv: no memory for %llu bytes: use a smaller --mib\n",
            (unsigned long long)bytes);
    exit(1);
}

/* What byte i of a source's region is. */
static char content(uint64_t i)
{
    return (char)(1 + (i * UINT64_C(0x9e3779b97f4a7c15) >> 57));
}

static void fill(char *p, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        p[i] = content(i);
}

static memory memory_open(const bench *b, const td_kv_geometry *g, int side)
{
    memory m = {.region = {.bytes = g->region_bytes, .device = b->device[side]}};
    char *host = host_memory(g->region_bytes);
    td_error err = {0};

    if (side == 0)
        fill(host, g->region_bytes);
    else
        memset(host, 0, g->region_bytes);
    m.region.base = host;
    if (!b->cuda)
        return m;
    const td_dev_options o = {.index = b->device[side], .threads = 1};
    if (td_ops_find("cuda", &m.ops, &err) != TD_OK || m.ops->dev_open(&o, &m.dev, &err) != TD_OK ||
        m.ops->dev_bind(m.dev, &err) != TD_OK ||
        m.ops->alloc(m.dev, g->region_bytes, &m.buf, &err) != TD_OK ||
        m.ops->copy_in(m.ops->dev_stream(m.dev), m.buf.ptr, host, m.buf.bytes, &err) != TD_OK ||
        m.ops->sync(m.ops->dev_stream(m.dev), &err) != TD_OK)
        die("--cuda", &err);
    free(host);
    m.region.base = m.buf.ptr;
    m.region.memory = TD_KV_CUDA;
    return m;
}

/* Bytes of the first `pages` pages of both sides that are not the source's. */
static uint64_t memory_wrong(const memory *m, const td_kv_geometry *g, uint32_t pages)
{
    char *host = m->region.base;
    uint64_t wrong = 0, half = g->region_bytes / 2;
    td_error err = {0};

    if (m->ops) {
        host = host_memory(g->region_bytes);
        if (m->ops->copy_out(m->ops->dev_stream(m->dev), host, m->buf.bytes, m->buf.ptr,
                             m->buf.bytes, m->buf.bytes, 1, &err) != TD_OK ||
            m->ops->sync(m->ops->dev_stream(m->dev), &err) != TD_OK)
            die("--cuda", &err);
    }
    for (uint64_t side = 0; side < 2; side++)
        for (uint64_t i = 0; i < (uint64_t)pages * PAGE_BYTES; i++)
            wrong += host[side * half + i] != content(side * half + i);
    if (m->ops)
        free(host);
    return wrong;
}

static void memory_close(memory *m)
{
    if (m->ops) {
        m->ops->release(&m->buf);
        m->ops->dev_close(m->dev);
    } else {
        free(m->region.base);
    }
}

/* ------------------------------------------------------------------ the sink's process */

static void on_notice(void *user, const td_kv_notice *n)
{
    landed l = {n->request, td_now_us(), (int32_t)n->status};

    if (send(*(int *)user, &l, sizeof l, MSG_NOSIGNAL) != sizeof l)
        exit(1);
}

static void sink_main(const bench *b, int fd)
{
    td_kv_geometry g = bench_geometry(b);
    td_kv_wire_options opt = bench_options(b);
    memory mem = memory_open(b, &g, 1);
    td_kv_sink *sink;
    td_error err = {0};
    uint64_t wrong;
    char word;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (td_kv_sink_open(&opt, td_kv_wire_hash(&g), &mem.region, 1, on_notice, &fd, &sink, &err) !=
        TD_OK)
        die("sink", &err);
    td_slice d = td_kv_sink_descriptor(sink);
    if (send(fd, d.ptr, d.len, MSG_NOSIGNAL) != (ssize_t)d.len)
        exit(1);
    while (recv(fd, &word, 1, 0) > 0) { /* "compare"; the end: the source has ended */
        wrong = memory_wrong(&mem, &g, b->pages);
        if (send(fd, &wrong, sizeof wrong, MSG_NOSIGNAL) != sizeof wrong)
            exit(1);
    }
    td_kv_sink_close(sink);
    memory_close(&mem);
    exit(0);
}

/* ------------------------------------------------------------------ the source's process */

typedef struct run {
    const bench *b;
    td_kv_geometry g;
    td_kv_source *source;
    int fd;
    char descriptor[8192];
    size_t descriptor_len;
    uint64_t request;
    uint32_t *src_pages;
    td_kv_extent *extents;
    char via[64];
    uint32_t puts;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool done;
} run;

static void on_done(void *user, const td_kv_push_result *r)
{
    run *x = user;

    pthread_mutex_lock(&x->mutex);
    if (r->status != TD_OK) {
        fprintf(stderr, "bench_kv: push: %s\n", r->text);
        exit(1);
    }
    snprintf(x->via, sizeof x->via, "%s", r->transport);
    x->puts = r->puts;
    x->done = true;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->mutex);
}

/* Push `pages` pages a side in runs of run_pages; returns the microseconds until they had landed.
 */
static td_usec push_once(run *x, uint32_t pages, uint32_t run_pages)
{
    size_t n_ext = 0;
    td_kv_push *push;
    td_error err = {0};
    landed l;

    for (uint32_t at = 0; at < pages; at += run_pages, n_ext++)
        x->extents[n_ext] = (td_kv_extent){at + (uint32_t)n_ext, run_pages};
    x->done = false;
    td_kv_push_params a = {
        .request = ++x->request,
        .n_tokens = (int32_t)(pages * TD_PAGE_TOKENS),
        .pages = x->src_pages,
        .n_pages = pages,
        .worker_id = TD_SLICE("bench"),
        .descriptor = {x->descriptor, x->descriptor_len},
        .dst_tp = 1,
        .dst_n_pages = x->g.n_pages,
        .dst_n_rings = 1,
        .dst_ring_pages = 1,
        .dst_extents = x->extents,
        .dst_n_extents = n_ext,
        .lease_deadline = TD_USEC_NEVER,
        .on_done = on_done,
        .user = x,
    };
    if (td_kv_push_open(&x->source, 1, &a, &push, &err) != TD_OK)
        die("push", &err);
    td_usec start = td_now_us();
    td_kv_push_layer(push, 0, 0, 0, a.n_tokens, NULL);
    td_kv_push_finish(push, TD_OK, 0, 0, NULL);
    td_kv_push_free(push);
    if (recv(x->fd, &l, sizeof l, 0) != sizeof l || l.request != x->request) {
        fprintf(stderr, "bench_kv: the sink's process is gone\n");
        exit(1);
    }
    pthread_mutex_lock(&x->mutex);
    while (!x->done)
        pthread_cond_wait(&x->changed, &x->mutex);
    pthread_mutex_unlock(&x->mutex);
    return l.at - start;
}

static int compare_usec(const void *a, const void *b)
{
    td_usec x = *(const td_usec *)a, y = *(const td_usec *)b;

    return (x > y) - (x < y);
}

static td_usec median_of(run *x, uint32_t pages, uint32_t run_pages, int reps, td_usec *p99)
{
    td_usec *t = malloc((size_t)reps * sizeof *t);

    for (int i = 0; i < reps; i++)
        t[i] = push_once(x, pages, run_pages);
    qsort(t, (size_t)reps, sizeof *t, compare_usec);
    td_usec median = t[reps / 2];
    *p99 = t[(reps * 99 + 99) / 100 - 1];
    free(t);
    return median;
}

static double memcpy_gb_per_s(size_t bytes)
{
    char *from = malloc(bytes), *to = malloc(bytes);
    td_usec best = TD_USEC_NEVER;

    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for (int i = 0; i < 5; i++) {
        td_usec start = td_now_us();

        memcpy(to, from, bytes);
        __asm__ volatile("" : : "r"(to) : "memory");
        td_usec t = td_now_us() - start;
        if (t < best)
            best = t;
    }
    free(from);
    free(to);
    return (double)bytes / (double)(best > 0 ? best : 1) * 1e-3;
}

/* The pages are where the source has them: the regions must be equal. */
static void compare(const run *x)
{
    uint64_t wrong = 1;

    if (send(x->fd, "?", 1, MSG_NOSIGNAL) != 1 ||
        recv(x->fd, &wrong, sizeof wrong, 0) != sizeof wrong || wrong != 0) {
        fprintf(stderr, "bench_kv: %llu bytes of the first push are wrong\n",
                (unsigned long long)wrong);
        exit(1);
    }
}

static void measure(run *x)
{
    size_t bytes = 2 * (size_t)x->b->pages * PAGE_BYTES;
    double copy = memcpy_gb_per_s(bytes);
    td_usec p99;

    push_once(x, x->b->pages, x->b->pages); /* connect, touch the pages */
    compare(x);
    for (uint32_t kib = MIN_KIB; kib <= MAX_KIB && kib / 8 <= x->b->pages; kib *= 4) {
        td_usec t = median_of(x, x->b->pages, kib / 8, 5, &p99);
        uint32_t puts = x->puts;
        td_usec latency = median_of(x, kib / 8, kib / 8, x->b->reps, &p99);
        double rate = (double)bytes / (double)t * 1e-3;

        printf("%-9s %-8s %-12s %8u %7u %8.2f %10lld %10lld %9.0f%%\n", x->b->transport,
               x->b->method == TD_KV_METHOD_PUT ? "put" : "message", x->via, kib, puts, rate,
               (long long)latency, (long long)p99, 100 * rate / copy);
        fflush(stdout);
    }
}

static void source_main(const bench *b, int fd)
{
    run x = {.b = b, .fd = fd, .g = bench_geometry(b)};
    td_kv_wire_options opt = bench_options(b);
    memory mem = memory_open(b, &x.g, 0);
    td_error err = {0};
    ssize_t n = recv(fd, x.descriptor, sizeof x.descriptor, 0);

    if (n <= 0)
        exit(1); /* the child has said why */
    x.descriptor_len = (size_t)n;
    pthread_mutex_init(&x.mutex, NULL);
    pthread_cond_init(&x.changed, NULL);
    x.src_pages = malloc(b->pages * sizeof *x.src_pages);
    x.extents = malloc(b->pages * sizeof *x.extents);
    for (uint32_t i = 0; i < b->pages; i++)
        x.src_pages[i] = i;
    if (td_kv_source_open(&opt, &x.g, 0, &mem.region, &x.source, &err) != TD_OK)
        die("source", &err);
    measure(&x);
    td_kv_source_close(x.source);
    free(x.src_pages);
    free(x.extents);
    memory_close(&mem);
}

/* Each combination in two fresh processes: UCX keeps what it was first told. */
static int bench_pair(const bench *b)
{
    int fds[2], status;

    fflush(stdout);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0)
        return 1;
    pid_t sink = fork();
    if (sink == 0) {
        close(fds[0]);
        sink_main(b, fds[1]);
    }
    pid_t source = fork();
    if (source == 0) {
        close(fds[1]);
        source_main(b, fds[0]);
        exit(0);
    }
    close(fds[0]);
    close(fds[1]);
    waitpid(source, &status, 0);
    int failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (failed)
        kill(sink, SIGKILL);
    waitpid(sink, &status, 0);
    return failed;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_kv [--transport shm|tcp|auto] [--method put|message] [--mib N] "
                    "[--reps N] [--cuda SOURCE,SINK]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"transport", required_argument, NULL, 't'}, {"method", required_argument, NULL, 'm'},
        {"mib", required_argument, NULL, 'b'},       {"reps", required_argument, NULL, 'r'},
        {"cuda", required_argument, NULL, 'c'},      {NULL, 0, NULL, 0},
    };
    const char *transport = NULL, *method = NULL;
    long mib = 64, reps = 200;
    bench cuda = {0};
    int failed = 0;

    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (c == 't')
            transport = optarg;
        else if (c == 'm')
            method = optarg;
        else if (c == 'b')
            mib = strtol(optarg, NULL, 10);
        else if (c == 'r')
            reps = strtol(optarg, NULL, 10);
        else if (c == 'c' && sscanf(optarg, "%d,%d", &cuda.device[0], &cuda.device[1]) == 2)
            cuda.cuda = true;
        else
            return usage();
    }
    if (optind != argc || mib < 1 || mib > 16384 || reps < 1 || reps > 100000 ||
        (method && strcmp(method, "put") != 0 && strcmp(method, "message") != 0))
        return usage();
    td_log_init("bench_kv", TD_LOG_WARN);
    printf("%-9s %-8s %-12s %8s %7s %8s %10s %10s %10s\n", "transport", "method", "via", "put KiB",
           "puts", "GB/s", "p50 us", "p99 us", "of memcpy");
    const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++)
        for (int m = TD_KV_METHOD_PUT; m <= TD_KV_METHOD_MESSAGE; m++) {
            bench b = cuda;

            b.method = (td_kv_method)m;
            b.pages = (uint32_t)(mib * 64);
            b.reps = (int)reps;
            if (transport ? t == 1 : false)
                continue; /* the one asked for, once */
            if (b.cuda && m == TD_KV_METHOD_MESSAGE)
                continue; /* host memory only */
            if (method && (strcmp(method, "put") == 0) != (m == TD_KV_METHOD_PUT))
                continue;
            snprintf(b.transport, sizeof b.transport, "%s", transport ? transport : transports[t]);
            failed |= bench_pair(&b);
        }
    return failed;
}
