/* dev: a GPU as a device: memory, its one stream, events. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/comm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTED = 64 }; /* GPUs of a process whose ranks are counted */
static atomic_int open_here[COUNTED];

bool td_cuda_alone(const td_dev *dev)
{
    return !dev->served && dev->counted && atomic_load(&open_here[dev->index]) == 1;
}

static void dev_close(td_dev *dev)
{
    if (dev == NULL)
        return;
    if (dev->counted)
        atomic_fetch_sub(&open_here[dev->index], 1);
    td_cuda_ignore(cudaSetDevice(dev->index), "cudaSetDevice");
    if (dev->stream.handle != NULL)
        td_cuda_ignore(cudaStreamSynchronize(dev->stream.handle), "cudaStreamSynchronize");
    td_cuda_staging_close(dev);
    td_cuda_blas_close(dev->blas);
    for (int i = 0; i < TD_CUDA_EVENTS; i++)
        if (dev->event[i].handle != NULL)
            td_cuda_ignore(cudaEventDestroy(dev->event[i].handle), "cudaEventDestroy");
    if (dev->stream.handle != NULL)
        td_cuda_ignore(cudaStreamDestroy(dev->stream.handle), "cudaStreamDestroy");
    free(dev);
}

static td_status event_query(td_event *e)
{
    cudaError_t rc = cudaEventQuery(((cuda_event *)e)->handle);

    if (rc == cudaErrorNotReady) /* recorded as this thread's last error: not one */
        (void)cudaGetLastError();
    return rc == cudaErrorNotReady ? TD_PENDING : td_cuda_status(NULL, rc, "waiting for an event");
}

static td_status check_device(int32_t index, td_error *err)
{
    int n = 0, major = 0, minor = 0;
    td_status st = td_cuda_status(err, cudaGetDeviceCount(&n), "looking for devices");

    if (st == TD_UNAVAILABLE)
        return td_wrap(err, "no GPU that can be used; --backend cpu needs none");
    if (st != TD_OK)
        return st;
    if (n == 0)
        return td_fail(err, TD_UNAVAILABLE,
                       "cuda: no device in this machine; --backend cpu needs none");
    if (index < 0 || index >= n)
        return td_fail(err, TD_INVALID,
                       "cuda: there is no device %d: this process sees %d, numbered from 0", index,
                       n);
    if ((st = td_cuda_status(
             err, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index),
             "asking for the device's kind")) != TD_OK ||
        (st = td_cuda_status(
             err, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index),
             "asking for the device's kind")) != TD_OK)
        return st;
    if (major != 9 || minor != 0)
        return td_fail(
            err, TD_DEVICE,
            "cuda: device %d has compute capability %d.%d; the kernels are built for 9.0 "
            "(H100, H200)",
            index, major, minor);
    return TD_OK;
}

/* Drivers that are too old for the question say that it is not valid. */
static bool mps_serves(int32_t index)
{
    int yes = 0;

    if (cudaDeviceGetAttribute(&yes, cudaDevAttrMpsEnabled, index) == cudaSuccess)
        return yes != 0;
    (void)cudaGetLastError();
    return false;
}

static td_status make_events(td_dev *dev, td_error *err)
{
    td_status st = TD_OK;

    for (int i = 0; st == TD_OK && i < TD_CUDA_EVENTS; i++) {
        dev->event[i].head = (td_event){.query = event_query};
        st = td_cuda_status(err,
                            cudaEventCreateWithFlags(&dev->event[i].handle, cudaEventDisableTiming),
                            "making an event");
    }
    return st;
}

static td_status dev_open(const td_dev_options *opt, td_dev **out, td_error *err)
{
    td_status st = check_device(opt->index, err);
    td_dev *dev;

    if (st != TD_OK || (st = td_cuda_blas_ready(err)) != TD_OK)
        return st;
    dev = calloc(1, sizeof *dev);
    if (dev == NULL)
        return td_fail(err, TD_NOMEM, "cuda device %d: no memory", opt->index);
    dev->index = opt->index;
    dev->threads = opt->threads;
    dev->stream.dev = dev;
    dev->served = mps_serves(dev->index);
    dev->counted = dev->index < COUNTED;
    if (dev->counted)
        atomic_fetch_add(&open_here[dev->index], 1);
    /* Non-blocking: nothing else in the process, on the default stream, makes a step wait. */
    if ((st = td_cuda_status(err, cudaSetDevice(dev->index), "choosing the device")) != TD_OK ||
        (st = td_cuda_status(err,
                             cudaStreamCreateWithFlags(&dev->stream.handle, cudaStreamNonBlocking),
                             "making a stream")) != TD_OK ||
        (st = make_events(dev, err)) != TD_OK) {
        dev_close(dev);
        return st;
    }
    *out = dev;
    return TD_OK;
}

static td_status dev_bind(td_dev *dev, td_error *err)
{
    return td_cuda_status(err, cudaSetDevice(dev->index), "choosing the device");
}

static td_status dev_use(int32_t index, td_error *err)
{
    return td_cuda_status(err, cudaSetDevice(index), "choosing the device");
}

static td_status dev_memory(int32_t index, uint64_t *free_bytes, uint64_t *total, td_error *err)
{
    td_status st = check_device(index, err);
    size_t left = 0, all = 0;

    if (st != TD_OK || (st = dev_use(index, err)) != TD_OK ||
        (st = td_cuda_status(err, cudaMemGetInfo(&left, &all), "asking for free memory")) != TD_OK)
        return st;
    *free_bytes = left;
    *total = all;
    return TD_OK;
}

static td_stream *dev_stream(td_dev *dev)
{
    return &dev->stream;
}

td_status td_cuda_alloc_raw(td_dev *dev, size_t bytes, td_buffer *out, td_error *err)
{
    void *p = NULL;
    size_t left = 0, all = 0;
    cudaError_t e;
    td_status st;

    *out = (td_buffer){0};
    if (bytes == 0)
        return TD_OK;
    e = cudaMalloc(&p, bytes);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        td_cuda_ignore(cudaMemGetInfo(&left, &all), "cudaMemGetInfo");
        return td_fail(err, TD_NOMEM, "cuda device %d: %zu bytes wanted, %zu of %zu free",
                       dev->index, bytes, left, all);
    }
    if ((st = td_cuda_status(err, e, "cudaMalloc")) == TD_OK)
        *out = (td_buffer){.dev = dev, .ptr = p, .bytes = bytes};
    return st;
}

td_status td_cuda_alloc(td_dev *dev, size_t bytes, td_buffer *out, td_error *err)
{
    td_status st = td_cuda_alloc_raw(dev, bytes, out, err);

    if (st != TD_OK || bytes == 0)
        return st;
    /* Waited for, because others than the stream may write next: a peer's transfer does. */
    if ((st = td_cuda_status(err, cudaMemsetAsync(out->ptr, 0, bytes, dev->stream.handle),
                             "zeroing memory")) != TD_OK ||
        (st = td_cuda_status(err, cudaStreamSynchronize(dev->stream.handle), "zeroing memory")) !=
            TD_OK) {
        td_cuda_ignore(cudaFree(out->ptr), "cudaFree");
        *out = (td_buffer){0};
    }
    return st;
}

static void release(td_buffer *buf)
{
    if (buf->ptr != NULL)
        td_cuda_ignore(cudaFree(buf->ptr), "cudaFree"); /* waits for the device */
    *buf = (td_buffer){0};
}

void td_cuda_unload(td_matrix *m)
{
    release(&m->mem);
    *m = (td_matrix){0};
}

static td_status copy_in(td_stream *s, void *dst, const void *src, size_t bytes, td_error *err)
{
    if (bytes == 0)
        return TD_OK;
    return td_cuda_status(err, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, s->handle),
                          "copying in");
}

static td_status copy_out(td_stream *s, void *dst, size_t dst_pitch, const void *src,
                          size_t src_pitch, size_t bytes, size_t rows, td_error *err)
{
    if (bytes == 0 || rows == 0)
        return TD_OK;
    return td_cuda_status(err,
                          cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, bytes, rows,
                                            cudaMemcpyDeviceToHost, s->handle),
                          "copying out");
}

static td_status sync_stream(td_stream *s, td_error *err)
{
    return td_cuda_status(err, cudaStreamSynchronize(s->handle), "a step");
}

static td_status event_record(td_stream *s, td_event **out, td_error *err)
{
    td_dev *dev = s->dev;
    cuda_event *e = &dev->event[dev->next_event++ % TD_CUDA_EVENTS];
    td_status st = td_cuda_status(err, cudaEventRecord(e->handle, s->handle), "recording an event");

    if (st == TD_OK)
        *out = &e->head;
    return st;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The steps take their buffers from one workspace in turn, so the largest step decides. */
size_t td_cuda_workspace_bytes(const td_dev *dev, const td_dims *m)
{
    size_t T = (size_t)m->T, norm = (size_t)td_cuda_ws_pitch(m->D) * 2;
    size_t qkv = (size_t)(m->H + 2 * m->K) * (size_t)m->d * sizeof(float);
    size_t best = td_cuda_decode_ws(m->T, m->H, m->d);

    (void)dev;
    best = larger(best, td_cuda_ws_round(T * norm) + td_cuda_ws_round(T * qkv)); /* attn_in */
    best = larger(best, td_cuda_ws_round(T * (size_t)m->M * sizeof(float)));     /* router */
    best = larger(best, td_cuda_experts_ws(m->T, m->D, m->I, m->E, m->k));
    best = larger(best, td_cuda_ws_round((size_t)m->head_rows * norm));
    return best + 256;
}

const td_ops td_ops_cuda = {
    .name = "cuda",
    .act = TD_ELT_BF16,
    .resid = TD_ELT_F32,
    .dev_open = dev_open,
    .dev_close = dev_close,
    .dev_bind = dev_bind,
    .dev_stream = dev_stream,
    .dev_use = dev_use,
    .dev_memory = dev_memory,
    .alloc = td_cuda_alloc,
    .release = release,
    .alloc_host = td_cuda_alloc_host,
    .free_host = td_cuda_free_host,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .sync = sync_stream,
    .event_record = event_record,
    .comm_open = td_cuda_comm_open,
    .graph_begin = td_cuda_graph_begin,
    .graph_end = td_cuda_graph_end,
    .graph_launch = td_cuda_graph_launch,
    .graph_free = td_cuda_graph_free,
    .load = td_cuda_load,
    .load_mxfp4 = td_cuda_load_mxfp4,
    .load_done = td_cuda_staging_close,
    .unload = td_cuda_unload,
    .workspace_bytes = td_cuda_workspace_bytes,
    .matrix_bytes = td_cuda_matrix_bytes,
    .mxfp4_bytes = td_cuda_mxfp4_bytes,
    .comm_bytes = td_cuda_comm_bytes,
    .graph_bytes = TD_CUDA_GRAPH_BYTES,
    .alloc_grain = TD_CUDA_ALLOC_GRAIN,
    .embed = td_cuda_embed,
    .attn_in = td_cuda_attn_in,
    .attn_prefill = td_cuda_attn_prefill,
    .attn_decode = td_cuda_attn_decode,
    .attn_out = td_cuda_attn_out,
    .add = td_cuda_add,
    .router = td_cuda_router,
    .experts = td_cuda_experts,
    .head = td_cuda_head,
    .sample = td_cuda_sample,
    .edit = td_cuda_edit,
};
