/* cpu: what the files of the CPU backend share. */
#ifndef TANDEM_KERNELS_CPU_CPU_H
#define TANDEM_KERNELS_CPU_CPU_H

#include "kernels/cpu/hot.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

struct td_stream {
    td_dev *dev;
};

struct td_dev {
    const td_cpu_hot *hot;
    cpu_pool *pool;
    int32_t n_threads;
    td_stream stream; /* steps run when called, so there is nothing in it */
};

/* pack.c: weights into panels. cpu_matrix_panel() is panel i (columns 32 i ..) of expert e. */
td_status cpu_load(td_dev *dev, td_form form, td_elt elt, const td_host_block *blocks,
                   int32_t n_blocks, int32_t cols, td_matrix *out, td_error *err);
td_status cpu_load_mxfp4(td_dev *dev, td_form form, const td_host_mxfp4 *src,
                         td_expert_format format, td_matrix *out, td_error *err);
cpu_panel cpu_matrix_panel(const td_matrix *m, int32_t e, int32_t i);
static inline int32_t cpu_panels(int32_t n)
{
    return (n + CPU_PANEL - 1) / CPU_PANEL;
}
static inline const float *cpu_vector(const td_matrix *m)
{
    return m->mem.ptr;
}

td_status cpu_alloc(td_dev *dev, size_t bytes, td_buffer *out, td_error *err);
void cpu_wish_huge_pages(const td_buffer *buf); /* for what is read whole, over and over */

/* Cutting the workspace. First come the threads' scratch areas, then what a step takes in turn. */
typedef struct cpu_ws {
    char *next;
} cpu_ws;

/* Floats of one thread's scratch: the larger of what a GEMM and an attention piece need. */
int64_t cpu_scratch_floats(int32_t G, int32_t d);
void *cpu_ws_take(cpu_ws *w, size_t bytes); /* 64-byte aligned */

/* gemm.c: y = x W^T + bias for M rows. Row pointers are x + row[m] * ldx, or x + m * ldx when row
 * is NULL. scratch: n_threads areas of CPU_GEMM_SCRATCH floats. */
typedef struct cpu_gemm_args {
    const td_matrix *w;
    const float *bias; /* [N] or NULL */
    const float *x;
    int64_t ldx;
    int32_t M;
    float *y;
    int64_t ldy;
    float *scratch;
} cpu_gemm_args;

void cpu_gemm(td_dev *dev, const cpu_gemm_args *a);

/* norm.c: t[m] = rmsnorm(x[row[m]]) * g, or of x[m] when row is NULL. */
void cpu_rmsnorm(td_dev *dev, const float *x, const int32_t *row, const td_matrix *g, float eps,
                 int32_t M, int32_t D, float *t);

td_status cpu_attn_in(td_stream *s, const td_attn_in_args *a, td_error *err);
td_status cpu_attn_prefill(td_stream *s, const td_attn_prefill_args *a, td_error *err);
td_status cpu_attn_decode(td_stream *s, const td_attn_decode_args *a, td_error *err);
/* x += part, where a step was asked to; x NULL: nothing. */
td_status cpu_add_part(td_stream *s, size_t n, const void *part, void *x, td_error *err);
td_status cpu_attn_out(td_stream *s, const td_attn_out_args *a, td_error *err);
td_status cpu_embed(td_stream *s, const td_embed_args *a, td_error *err);
td_status cpu_add(td_stream *s, const td_add_args *a, td_error *err);
td_status cpu_router(td_stream *s, const td_router_args *a, td_error *err);
td_status cpu_experts(td_stream *s, const td_experts_args *a, td_error *err);
td_status cpu_head(td_stream *s, const td_head_args *a, td_error *err);
td_status cpu_sample(td_stream *s, const td_sample_args *a, td_error *err);
td_status cpu_edit(td_stream *s, const td_edit_args *a, td_error *err);
size_t cpu_sample_ws(const td_dev *dev, int32_t V);
size_t cpu_workspace_bytes(const td_dev *dev, const td_dims *dims);
size_t cpu_matrix_bytes(td_form form, int32_t E, int32_t N, int32_t K);
size_t cpu_mxfp4_bytes(td_expert_format format, int32_t E, int32_t N, int32_t K);

/* A step refuses a matrix of another shape than it was told: a wrong address is a wrong answer. */
td_status cpu_check_matrix(const char *step, const char *name, const td_matrix *m, int32_t E,
                           int32_t N, int32_t K, td_error *err);

#endif
