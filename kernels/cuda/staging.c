/* staging: see staging.h. */
#include "kernels/cuda/staging.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "kernels/cpu/pool.h"

enum {
    STAGES = 4,
    MAX_THREADS = 16,         /* more do not read faster than the bus copies */
    PIECE_BYTES = 256 * 1024, /* of a gather: what one thread takes at a time */
};

struct cuda_staging {
    cpu_pool *pool;
    cuda_stage stage[STAGES];
    uint32_t next;
    /* Where the time went, for the log. Host: gather, wait. Device: copy, place. */
    td_usec opened, gather_us, wait_us;
    double copy_ms, place_ms;
    uint64_t bytes;
};

static td_status make_stage(td_dev *dev, cuda_stage *b, bool raw, td_error *err)
{
    cudaEvent_t *const event[] = {&b->begun, &b->copied, &b->placed};
    td_status st = TD_OK;

    for (size_t i = 0; st == TD_OK && i < sizeof event / sizeof event[0]; i++)
        if (*event[i] == NULL)
            st = td_cuda_status(err, cudaEventCreateWithFlags(event[i], cudaEventBlockingSync),
                                "making an event");
    if (st == TD_OK && b->pinned == NULL) {
        st = td_cuda_status(
            err, cudaHostAlloc((void **)&b->pinned, TD_CUDA_STAGING, cudaHostAllocDefault),
            "pinned host memory for loading");
        if (st != TD_OK)
            st = td_wrap(err, "%d buffers of %d bytes", STAGES, TD_CUDA_STAGING);
    }
    if (st == TD_OK && raw && b->raw.ptr == NULL &&
        (st = td_cuda_alloc(dev, TD_CUDA_STAGING, &b->raw, err)) != TD_OK)
        st = td_wrap(err, "a buffer for loading, one of %d", STAGES);
    return st;
}

td_status td_cuda_staging_open(td_dev *dev, td_error *err)
{
    int32_t threads = dev->threads < MAX_THREADS ? dev->threads : MAX_THREADS;
    cuda_staging *g;
    td_status st;

    if (dev->staging != NULL)
        return TD_OK;
    if ((g = calloc(1, sizeof *g)) == NULL)
        return td_fail(err, TD_NOMEM, "cuda: no memory for loading");
    st = cpu_pool_create(threads > 1 ? threads : 1, &g->pool, err);
    if (st != TD_OK) {
        free(g);
        return st;
    }
    g->opened = td_now_us();
    dev->staging = g;
    return TD_OK;
}

/* What the events of a buffer's last use say. A failed copy shows in the stream, not here. */
static void count_times(cuda_staging *g, cuda_stage *b)
{
    float copy = 0, place = 0;

    if (!b->pending)
        return;
    b->pending = false;
    if (cudaEventElapsedTime(&copy, b->begun, b->copied) == cudaSuccess &&
        cudaEventElapsedTime(&place, b->copied, b->placed) == cudaSuccess) {
        g->copy_ms += (double)copy;
        g->place_ms += (double)place;
    }
}

td_status td_cuda_stage_take(td_dev *dev, bool raw, cuda_stage **out, td_error *err)
{
    td_status st = td_cuda_staging_open(dev, err);
    cuda_stage *b;
    td_usec t0;

    if (st != TD_OK)
        return st;
    b = &dev->staging->stage[dev->staging->next++ % STAGES];
    if ((st = make_stage(dev, b, raw, err)) != TD_OK)
        return st;
    t0 = td_now_us();
    st = td_cuda_status(err, cudaEventSynchronize(b->placed), "copying weights");
    dev->staging->wait_us += td_now_us() - t0;
    if (st != TD_OK)
        return st;
    count_times(dev->staging, b);
    *out = b;
    return TD_OK;
}

typedef struct gathering {
    char *dst;
    const char *src;
    size_t width;
    int64_t stride;
    int32_t rows, per_item;
} gathering;

static void gather_piece(void *ctx, int32_t item, int32_t thread)
{
    const gathering *g = ctx;
    int32_t first = item * g->per_item;
    int32_t rows = g->rows - first < g->per_item ? g->rows - first : g->per_item;
    char *dst = g->dst + (size_t)first * g->width;
    const char *src = g->src + first * g->stride;

    (void)thread;
    if (g->stride == (int64_t)g->width) {
        memcpy(dst, src, g->width * (size_t)rows);
        return;
    }
    for (int32_t r = 0; r < rows; r++, dst += g->width, src += g->stride)
        memcpy(dst, src, g->width);
}

void td_cuda_gather(td_dev *dev, char *dst, size_t width, const char *src, int64_t stride,
                    int32_t rows)
{
    gathering g = {dst, src, width, stride, rows, (int32_t)(PIECE_BYTES / (width > 0 ? width : 1))};
    td_usec t0 = td_now_us();

    if (g.per_item < 1)
        g.per_item = 1;
    td_cuda_staging_run(dev, (rows + g.per_item - 1) / g.per_item, (int64_t)width * rows,
                        gather_piece, &g);
    dev->staging->gather_us += td_now_us() - t0;
}

void td_cuda_staging_run(td_dev *dev, int32_t n, int64_t bytes,
                         void (*job)(void *ctx, int32_t item, int32_t thread), void *ctx)
{
    cpu_pool_run(dev->staging->pool, n, bytes, job, ctx);
}

td_status td_cuda_stage_copy(td_dev *dev, cuda_stage *b, void *dst, size_t pitch, size_t width,
                             int32_t rows, td_error *err)
{
    cudaStream_t s = dev->stream.handle;
    cudaError_t e = cudaEventRecord(b->begun, s);
    size_t bytes = width * (size_t)rows;

    if (e == cudaSuccess)
        e = pitch == width /* one long run: what the copy engine is fastest at */
                ? cudaMemcpyAsync(dst, b->pinned, bytes, cudaMemcpyHostToDevice, s)
                : cudaMemcpy2DAsync(dst, pitch, b->pinned, width, width, (size_t)rows,
                                    cudaMemcpyHostToDevice, s);
    if (e == cudaSuccess)
        e = cudaEventRecord(b->copied, s);
    dev->staging->bytes += bytes;
    return td_cuda_status(err, e, "copying weights");
}

td_status td_cuda_stage_give(td_dev *dev, cuda_stage *b, td_error *err)
{
    b->pending = true;
    return td_cuda_status(err, cudaEventRecord(b->placed, dev->stream.handle), "copying weights");
}

void td_cuda_staging_close(td_dev *dev)
{
    cuda_staging *g = dev->staging;

    if (g == NULL)
        return;
    td_cuda_ignore(cudaStreamSynchronize(dev->stream.handle), "cudaStreamSynchronize");
    for (int i = 0; i < STAGES; i++) {
        cuda_stage *b = &g->stage[i];
        cudaEvent_t event[] = {b->begun, b->copied, b->placed};

        count_times(g, b);
        for (size_t j = 0; j < sizeof event / sizeof event[0]; j++)
            if (event[j] != NULL)
                td_cuda_ignore(cudaEventDestroy(event[j]), "cudaEventDestroy");
        td_cuda_ignore(cudaFree(b->raw.ptr), "cudaFree");
        td_cuda_ignore(cudaFreeHost(b->pinned), "cudaFreeHost");
    }
    td_info("weights_copied",
            "device=%d bytes=%llu elapsed_ms=%lld threads=%d gather_ms=%lld wait_ms=%lld "
            "copy_ms=%.0f place_ms=%.0f",
            dev->index, (unsigned long long)g->bytes, (long long)(td_now_us() - g->opened) / 1000,
            cpu_pool_threads(g->pool), (long long)g->gather_us / 1000, (long long)g->wait_us / 1000,
            g->copy_ms, g->place_ms);
    cpu_pool_free(g->pool);
    free(g);
    dev->staging = NULL;
}
