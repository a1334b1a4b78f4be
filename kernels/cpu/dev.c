/* dev: the CPU as a device. Memory is host memory, a stream runs its steps at once, and a device is
 * little more than its rank's compute threads. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MADV_HUGEPAGE */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* From here on memory comes from the kernel: zeroed when first touched, so that a large KV pool
 * costs nothing until it is used. Under AddressSanitizer all
 * of it is from the heap, which has red zones. */
#if defined(__SANITIZE_ADDRESS__)
#define MAP_FROM SIZE_MAX
#else
#define MAP_FROM ((size_t)1 << 20)
#endif

/* The fastest set that this CPU has; TANDEM_CPU_ISA=generic|avx2|avx512 asks for a lesser one. */
static const td_cpu_hot *pick_hot(void)
{
    const char *wish = getenv("TANDEM_CPU_ISA");
    const td_cpu_hot *best = &td_cpu_hot_generic;

    if (wish != NULL && strcmp(wish, "generic") == 0)
        return best;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        best = &td_cpu_hot_avx2;
    if (wish != NULL && strcmp(wish, "avx2") == 0)
        return best;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        best = &td_cpu_hot_avx512;
#endif
    return best;
}

static void dev_close(td_dev *dev)
{
    if (dev == NULL)
        return;
    cpu_pool_free(dev->pool);
    free(dev);
}

static td_status dev_open(const td_dev_options *opt, td_dev **out, td_error *err)
{
    td_dev *dev;
    td_status st;

    if (opt->threads < 1 || opt->threads > 1024)
        return td_fail(err, TD_INVALID, "cpu device %d: %d threads; 1 to 1024 are possible",
                       opt->index, opt->threads);
    dev = calloc(1, sizeof *dev);
    if (dev == NULL)
        return td_fail(err, TD_NOMEM, "cpu device %d: no memory", opt->index);
    dev->hot = pick_hot();
    dev->n_threads = opt->threads;
    dev->stream.dev = dev;
    st = cpu_pool_create(opt->threads, &dev->pool, err);
    if (st != TD_OK) {
        dev_close(dev);
        return st;
    }
    *out = dev;
    return TD_OK;
}

static td_status dev_bind(td_dev *dev, td_error *err)
{
    (void)dev;
    (void)err;
    return TD_OK;
}

static td_stream *dev_stream(td_dev *dev)
{
    return &dev->stream;
}

td_status cpu_alloc(td_dev *dev, size_t bytes, td_buffer *out, td_error *err)
{
    size_t rounded = bytes + (-bytes & 63);
    void *p = NULL;

    *out = (td_buffer){0};
    if (bytes == 0)
        return TD_OK;
    if (bytes >= MAP_FROM) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        p = p == MAP_FAILED ? NULL : p;
    } else if (rounded >= bytes && (p = aligned_alloc(64, rounded)) != NULL) {
        memset(p, 0, rounded);
    }
    if (p == NULL)
        return td_fail(err, TD_NOMEM, "cpu device: no memory for %zu bytes", bytes);
    *out = (td_buffer){.dev = dev, .ptr = p, .bytes = bytes};
    return TD_OK;
}

void cpu_wish_huge_pages(const td_buffer *buf)
{
    if (buf->bytes >= MAP_FROM)
        (void)madvise(buf->ptr, buf->bytes, MADV_HUGEPAGE);
}

static void release(td_buffer *buf)
{
    if (buf->bytes >= MAP_FROM)
        munmap(buf->ptr, buf->bytes);
    else
        free(buf->ptr);
    *buf = (td_buffer){0};
}

static td_status copy_in(td_stream *s, void *dst, const void *src, size_t bytes, td_error *err)
{
    (void)s;
    (void)err;
    memcpy(dst, src, bytes);
    return TD_OK;
}

static td_status copy_out(td_stream *s, void *dst, size_t dst_pitch, const void *src,
                          size_t src_pitch, size_t bytes, size_t rows, td_error *err)
{
    (void)s;
    (void)err;
    for (size_t i = 0; i < rows; i++)
        memcpy((char *)dst + i * dst_pitch, (const char *)src + i * src_pitch, bytes);
    return TD_OK;
}

static td_status sync_stream(td_stream *s, td_error *err)
{
    (void)s;
    (void)err;
    return TD_OK;
}

static td_status event_record(td_stream *s, td_event **out, td_error *err)
{
    (void)s;
    (void)err;
    *out = NULL;
    return TD_OK;
}

static void unload(td_matrix *m)
{
    release(&m->mem);
    *m = (td_matrix){0};
}

td_status cpu_check_matrix(const char *step, const char *name, const td_matrix *m, int32_t E,
                           int32_t N, int32_t K, td_error *err)
{
    if (m->E == E && m->N == N && m->K == K)
        return TD_OK;
    return td_fail(err, TD_INVALID, "%s: %s is [%d][%d, %d], wanted [%d][%d, %d]", step, name, m->E,
                   m->N, m->K, E, N, K);
}

void *cpu_ws_take(cpu_ws *w, size_t bytes)
{
    void *p = w->next;

    w->next += (bytes + 63) / 64 * 64;
    return p;
}

int64_t cpu_scratch_floats(int32_t G, int32_t d)
{
    int64_t attn = cpu_attn_scratch(G, d), gemm = CPU_GEMM_SCRATCH;

    return ((attn > gemm ? attn : gemm) + 15) / 16 * 16;
}

const td_ops td_ops_cpu = {
    .name = "cpu",
    .act = TD_ELT_F32,
    .resid = TD_ELT_F32,
    .dev_open = dev_open,
    .dev_close = dev_close,
    .dev_bind = dev_bind,
    .dev_stream = dev_stream,
    .alloc = cpu_alloc,
    .release = release,
    .alloc_host = cpu_alloc,
    .free_host = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .sync = sync_stream,
    .event_record = event_record,
    .load = cpu_load,
    .load_mxfp4 = cpu_load_mxfp4,
    .unload = unload,
    .workspace_bytes = cpu_workspace_bytes,
    .matrix_bytes = cpu_matrix_bytes,
    .mxfp4_bytes = cpu_mxfp4_bytes,
    .embed = cpu_embed,
    .attn_in = cpu_attn_in,
    .attn_prefill = cpu_attn_prefill,
    .attn_decode = cpu_attn_decode,
    .attn_out = cpu_attn_out,
    .add = cpu_add,
    .router = cpu_router,
    .experts = cpu_experts,
    .head = cpu_head,
    .sample = cpu_sample,
    .edit = cpu_edit,
};
