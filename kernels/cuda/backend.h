/* backend: what the files of the CUDA backend share.
 *
 * Choices: activations are bf16, the residual stream is f32 (its sums over layers lose nothing, and
 * its bytes are few). Weights and activations meet in the tensor cores with f32 accumulators;
 * norms, rotation, softmax, router logits and the experts' sum are f32.
 *
 * One order of additions per result, whatever the shape of the launch: a product's order follows
 * from its K and N (in blas.h, where only large steps go, from the step's rows in 128s too),
 * attention goes through the pages of fixed chunks and merges the chunks in order. That is how a
 * row keeps its bits in any batch. Arithmetic that several kernels must do alike is written with
 * rounding intrinsics, which the compiler neither fuses nor reorders.
 *
 * Host code here is C; .cu files hold kernels and, at their end, launchers with C linkage. */
#ifndef TANDEM_KERNELS_CUDA_BACKEND_H
#define TANDEM_KERNELS_CUDA_BACKEND_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/ops.h"
#include "kernels/cuda/mxfp4.h"

enum {
    TD_CUDA_EVENTS = 320,               /* more than two a layer of the deepest model */
    TD_CUDA_STAGING = 16 * 1024 * 1024, /* bytes of one buffer of staging.h */
};

struct td_stream {
    td_dev *dev;
    cudaStream_t handle;
};

typedef struct cuda_event {
    td_event head;
    cudaEvent_t handle;
} cuda_event;

typedef struct cuda_staging cuda_staging;

struct td_dev {
    int32_t index;
    int32_t held; /* processors that waiting kernels of other ranks on this GPU may occupy */
    bool counted; /* among those that are open: td_cuda_alone() */
    bool served;  /* by MPS: other processes' kernels run beside ours, and not in turns */
    td_stream stream;
    cuda_event event[TD_CUDA_EVENTS];
    uint32_t next_event;
    struct cuda_blas *blas; /* blas.h; NULL until a large step */
    int32_t threads;        /* of the host, that gather weights */
    cuda_staging *staging;  /* staging.h; NULL while nothing is being loaded */
};

typedef enum cuda_encoding {
    CUDA_F32,   /* vectors, and rows of an f32 table */
    CUDA_BF16,  /* rows of td_cuda_pitch(K) elements, zeros after the K-th */
    CUDA_MXFP4, /* see mxfp4.h; td_cuda_mxfp4_shift() scales the product */
    CUDA_FP8    /* experts only, see experts_fp8.h */
} cuda_encoding;

/* Elements from one row of a bf16 matrix to the next: whole steps of a GEMM. */
static inline int64_t td_cuda_pitch(int32_t K)
{
    return ((int64_t)K + 63) / 64 * 64;
}

/* The encoding holds the format and, for MXFP4, the power of two that was taken out of the scales:
 * the weights are what is stored times 2^shift. */
static inline int32_t td_cuda_encode(cuda_encoding e, int32_t shift)
{
    return (int32_t)e + (shift + 256) * 4;
}
static inline cuda_encoding td_cuda_format(const td_matrix *m)
{
    return (cuda_encoding)(m->encoding % 4);
}
static inline int32_t td_cuda_mxfp4_shift(const td_matrix *m)
{
    return m->encoding / 4 - 256;
}

/* --- status.c: the only place where a CUDA status becomes a td_status ---------------------- */

/* what: the call or step, for the text. cudaSuccess is TD_OK. */
TD_MUST_CHECK td_status td_cuda_status(td_error *err, cudaError_t e, const char *what);
/* After the launches of a step. */
TD_MUST_CHECK td_status td_cuda_launched(td_error *err, const char *step);
/* For paths that cannot fail: a device that breaks while it is torn down is logged, no more. */
void td_cuda_ignore(cudaError_t e, const char *what);

/* A step refuses a matrix of another shape or format than it was told. */
TD_MUST_CHECK td_status td_cuda_check_matrix(const char *step, const char *name, const td_matrix *m,
                                             int32_t E, int32_t N, int32_t K, td_error *err);
TD_MUST_CHECK td_status td_cuda_check_vector(const char *step, const char *name, const td_matrix *m,
                                             int32_t N, td_error *err);
TD_MUST_CHECK td_status td_cuda_check_experts(const td_experts_args *a, td_error *err);

static inline const float *td_cuda_vector(const td_matrix *m)
{
    return m != NULL ? (const float *)m->mem.ptr : NULL;
}

/* --- dev.c, load.c -------------------------------------------------------------------------- */

/* cudaMalloc()'s, as measured: 24 layers of gpt-oss-20b lose 150 MiB to it. */
enum { TD_CUDA_ALLOC_GRAIN = 2 << 20 };
/* No other rank of this process has this GPU open now, so all steps on it run on one stream; and no
 * other process runs on it at the same time. */
bool td_cuda_alone(const td_dev *dev);
td_status td_cuda_alloc(td_dev *dev, size_t bytes, td_buffer *out, td_error *err);
td_status td_cuda_alloc_raw(td_dev *dev, size_t bytes, td_buffer *out,
                            td_error *err); /* as it is */
td_status td_cuda_load(td_dev *dev, td_form form, td_elt elt, const td_host_block *blocks,
                       int32_t n_blocks, int32_t cols, td_matrix *out, td_error *err);
td_status td_cuda_load_mxfp4(td_dev *dev, td_form form, const td_host_mxfp4 *src,
                             td_expert_format format, td_matrix *out, td_error *err);
void td_cuda_unload(td_matrix *m);
size_t td_cuda_matrix_bytes(td_form form, int32_t E, int32_t N, int32_t K);
size_t td_cuda_mxfp4_bytes(td_expert_format format, int32_t E, int32_t N, int32_t K);
/* What loading needed is given back; a later load makes it again. */
void td_cuda_staging_close(td_dev *dev);

/* pack.cu: `rows` rows of K columns, as shipped and on the device, into the units that begin at
 * `units`: TD_MX_ROWS rows each, so only the last rows of a matrix may be fewer. */
td_status td_cuda_pack_mxfp4(cudaStream_t s, const uint8_t *blocks, const uint8_t *scales,
                             int32_t rows, int32_t K, int32_t shift, void *units, td_error *err);

/* --- graph.c -------------------------------------------------------------------------------- */

td_status td_cuda_alloc_host(td_dev *dev, size_t bytes, td_buffer *out, td_error *err);
void td_cuda_free_host(td_buffer *buf);
/* About what the driver keeps on the device for a graph of one step: 0.6 MiB for 24 layers, as
 * measured, and more for more. */
enum { TD_CUDA_GRAPH_BYTES = 1 << 20 };
td_status td_cuda_graph_begin(td_stream *s, td_error *err);
td_status td_cuda_graph_end(td_stream *s, td_graph **out, td_error *err);
td_status td_cuda_graph_launch(td_stream *s, td_graph *g, td_error *err);
void td_cuda_graph_free(td_graph *g);

/* --- workspace ------------------------------------------------------------------------------ */

/* Steps cut what they need from the workspace in turn; sizes as in td_cuda_workspace_bytes(). */
typedef struct cuda_ws {
    char *next;
} cuda_ws;

static inline size_t td_cuda_ws_round(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}
static inline void *td_cuda_ws_take(cuda_ws *w, size_t bytes)
{
    void *p = w->next;

    w->next += td_cuda_ws_round(bytes);
    return p;
}
/* Rows of activations in the workspace begin at 16-byte boundaries. */
static inline int64_t td_cuda_ws_pitch(int32_t n)
{
    return ((int64_t)n + 7) / 8 * 8;
}
/* attn_decode.cu: sequences in one launch, to bound the memory of partial results. */
enum { TD_CUDA_DECODE_GROUP = 128 };
size_t td_cuda_decode_ws(int32_t T, int32_t H, int32_t d);
size_t td_cuda_experts_ws(int32_t T, int32_t D, int32_t I, int32_t E, int32_t k);
size_t td_cuda_workspace_bytes(const td_dev *dev, const td_dims *dims);

/* --- norm.cu -------------------------------------------------------------------------------- */

/* t[m] = bf16(rmsnorm(x[row[m]]) * g), or of x[m] when row is NULL; t has pitch ldt. */
void td_cuda_rmsnorm(cudaStream_t s, const float *x, const int32_t *row, const float *g, float eps,
                     int32_t M, int32_t D, void *t, int64_t ldt);

/* --- steps ---------------------------------------------------------------------------------- */

td_status td_cuda_embed(td_stream *s, const td_embed_args *a, td_error *err);
td_status td_cuda_attn_in(td_stream *s, const td_attn_in_args *a, td_error *err);
td_status td_cuda_attn_prefill(td_stream *s, const td_attn_prefill_args *a, td_error *err);
td_status td_cuda_attn_decode(td_stream *s, const td_attn_decode_args *a, td_error *err);
td_status td_cuda_attn_out(td_stream *s, const td_attn_out_args *a, td_error *err);
td_status td_cuda_add(td_stream *s, const td_add_args *a, td_error *err);
/* x += part, where a step was asked to and its kernel does not; x NULL: nothing. */
td_status td_cuda_add_part(td_stream *s, size_t n, const void *part, void *x, td_error *err);
td_status td_cuda_router(td_stream *s, const td_router_args *a, td_error *err);
td_status td_cuda_experts(td_stream *s, const td_experts_args *a, td_error *err);
td_status td_cuda_head(td_stream *s, const td_head_args *a, td_error *err);
td_status td_cuda_sample(td_stream *s, const td_sample_args *a, td_error *err);
td_status td_cuda_edit(td_stream *s, const td_edit_args *a, td_error *err);

/* attn_plain.cu: attention of any shape, one warp a query head. len NULL: prefill. */
td_status td_cuda_attn_plain(cudaStream_t s, int32_t T, int32_t H, int32_t K, int32_t d,
                             int32_t window, int32_t wrap, int32_t table_stride, int32_t pos0,
                             float scale, const int32_t *len, const int32_t *table,
                             const td_kv_view *kv, const float *sinks, const void *q, void *out,
                             td_error *err);

/* Which shapes the tensor-core kernels of attention take: rows of 64 elements one after the other,
 * in bf16 or e4m3. */
static inline bool td_cuda_attn_fast(const td_kv_view *kv, int32_t H, int32_t K, int32_t d)
{
    return d == 64 && (kv->elt == TD_ELT_BF16 || kv->elt == TD_ELT_E4M3) && H / K <= 8 &&
           kv->head_stride % 64 == 0 && kv->side_stride % 64 == 0 && kv->head_stride >= 0 &&
           kv->side_stride > 0 && (uintptr_t)kv->base % 16 == 0;
}
td_status td_cuda_check_heads(const char *step, int32_t H, int32_t K, int32_t d, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
