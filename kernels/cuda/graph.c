/* graph: captured steps, and host memory that the device reads and writes.
 *
 * A stream is captured in thread-local mode: other threads (other ranks, the KV transfer) go on
 * allocating and asking meanwhile. What was captured is instantiated and uploaded at once, so that
 * the first launch costs no more than the later ones. */
#include "kernels/cuda/backend.h"

#include <stdlib.h>
#include <string.h>

struct td_graph {
    cudaGraphExec_t exec;
};

td_status td_cuda_alloc_host(td_dev *dev, size_t bytes, td_buffer *out, td_error *err)
{
    void *p = NULL;
    td_status st;

    *out = (td_buffer){0};
    if (bytes == 0)
        return TD_OK;
    st = td_cuda_status(err, cudaHostAlloc(&p, bytes, cudaHostAllocPortable),
                        "allocating pinned memory");
    if (st != TD_OK)
        return td_wrap(err, "%zu bytes for device %d", bytes, dev->index);
    memset(p, 0, bytes);
    *out = (td_buffer){.dev = dev, .ptr = p, .bytes = bytes};
    return TD_OK;
}

void td_cuda_free_host(td_buffer *buf)
{
    if (buf->ptr != NULL)
        td_cuda_ignore(cudaFreeHost(buf->ptr), "cudaFreeHost");
    *buf = (td_buffer){0};
}

td_status td_cuda_graph_begin(td_stream *s, td_error *err)
{
    return td_cuda_status(err, cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal),
                          "beginning a graph");
}

td_status td_cuda_graph_end(td_stream *s, td_graph **out, td_error *err)
{
    cudaGraph_t graph = NULL;
    cudaError_t rc = cudaStreamEndCapture(s->handle, &graph);
    td_graph *g = NULL;
    td_status st = TD_OK;

    if (out == NULL) { /* dropped: a capture that a failed step broke is no news */
        if (rc != cudaSuccess)
            (void)cudaGetLastError();
        if (graph != NULL)
            td_cuda_ignore(cudaGraphDestroy(graph), "cudaGraphDestroy");
        return TD_OK;
    }
    *out = NULL;
    if ((st = td_cuda_status(err, rc, "ending a graph")) != TD_OK)
        return st;
    if ((g = calloc(1, sizeof *g)) == NULL)
        st = td_fail(err, TD_NOMEM, "cuda: no memory for a graph");
    else if ((st = td_cuda_status(err, cudaGraphInstantiate(&g->exec, graph, 0),
                                  "making a graph")) == TD_OK)
        st = td_cuda_status(err, cudaGraphUpload(g->exec, s->handle), "uploading a graph");
    td_cuda_ignore(cudaGraphDestroy(graph), "cudaGraphDestroy");
    if (st != TD_OK) {
        td_cuda_graph_free(g);
        return st;
    }
    *out = g;
    return TD_OK;
}

td_status td_cuda_graph_launch(td_stream *s, td_graph *g, td_error *err)
{
    return td_cuda_status(err, cudaGraphLaunch(g->exec, s->handle), "launching a graph");
}

void td_cuda_graph_free(td_graph *g)
{
    if (g == NULL)
        return;
    if (g->exec != NULL)
        td_cuda_ignore(cudaGraphExecDestroy(g->exec), "cudaGraphExecDestroy");
    free(g);
}
