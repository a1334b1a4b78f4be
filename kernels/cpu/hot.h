/* hot: the inner loops of the CPU backend, compiled once per instruction set.
 *
 * The drivers (gemm.c, attn.c, moe.c, norm.c) cut a step into pieces, hand them to threads, and
 * call through td_cpu_hot for each piece; the table is chosen once, when the first device opens.
 *
 * What makes a row independent of its batch: an element of y = x W^T is one chain of multiply-adds
 * over k in rising order, starting from the bias, in one lane of one accumulator. Tiles, threads
 * and the choice to unpack weights first or on the fly change who computes the chain, never its
 * order. */
#ifndef TANDEM_KERNELS_CPU_HOT_H
#define TANDEM_KERNELS_CPU_HOT_H

#include <stdint.h>

enum {
    CPU_PANEL = 32, /* weight rows (columns of y) in a panel */
    CPU_KB = 192,   /* k unpacked at a time: 24 KiB of f32 beside the rows in L1; 2880 = 15 * 192 */
    CPU_ROWS = 128  /* rows of x in one piece; bounds the scratch */
};

/* How a panel stores the 32 weights of one k. */
typedef enum cpu_encoding {
    CPU_F32,  /* [K][32] f32 */
    CPU_BF16, /* [K][32] bf16 */
    CPU_MXFP4 /* [K][16] bytes: byte j holds weight j low, weight 16 + j high; then [K/32][32]
                 scales */
} cpu_encoding;

/* One panel of a matrix: 32 columns of y. */
typedef struct cpu_panel {
    cpu_encoding encoding;
    int32_t K;
    const void *w;
    const uint8_t *scales; /* MXFP4 only */
} cpu_panel;

/* y[m][0..n) = bias[0..n) + x[m] W^T for m in 0..M, M <= CPU_ROWS.
 *   x        M row pointers, each K floats
 *   bias     32 floats, or NULL for zeros
 *   y, ldy   n <= 32 columns are written in each row
 *   scratch  cpu_gemm_scratch floats, 64-byte aligned */
typedef struct cpu_gemm_piece {
    cpu_panel panel;
    int32_t M, n;
    const float *const *x;
    const float *bias;
    float *y;
    int64_t ldy;
    float *scratch;
} cpu_gemm_piece;

enum { CPU_GEMM_SCRATCH = CPU_KB * CPU_PANEL + CPU_ROWS * CPU_PANEL };

/* Attention of n consecutive queries of one sequence, all query heads of one kv head.
 *   k, v     element (slot 0) of this head
 *   q, out   first query's first head; head_stride d, query_stride between queries, in floats
 *   scratch  cpu_attn_scratch() floats, 64-byte aligned */
typedef struct cpu_attn_piece {
    const void *k, *v;
    int32_t kv_bf16, d, G, n, pos0, window, wrap;
    float scale;
    const int32_t *table;
    const float *q, *sinks;
    float *out;
    int64_t query_stride;
    float *scratch;
} cpu_attn_piece;

/* Queries in one attention piece, so that their rows stay near CPU_ROWS. */
static inline int32_t cpu_attn_queries(int32_t G)
{
    return G >= CPU_ROWS ? 1 : CPU_ROWS / G;
}

/* Floats: key panels, value panels, scores, accumulators, and two a row. */
static inline int64_t cpu_attn_scratch(int32_t G, int32_t d)
{
    int64_t rows = (int64_t)cpu_attn_queries(G) * G, dp = (d + 31) / 32 * 32;

    return 64 * (int64_t)d + 64 * dp + rows * (64 + dp + 2) + 64;
}

typedef struct td_cpu_hot {
    const char *name;
    void (*gemm)(const cpu_gemm_piece *p);
    void (*attn)(const cpu_attn_piece *p);
    /* y = x / sqrt(mean(x^2) + eps) * g */
    void (*rmsnorm)(const float *x, const float *g, float eps, int32_t n, float *y);
    /* a[m][0..n) from u[m]: 16 gates then 16 ups; n <= 16 */
    void (*swiglu)(const float *u, int32_t M, int32_t n, float limit, float *a, int64_t lda);
    void (*axpy)(float w, const float *x, float *y, int32_t n); /* y += w x */
    void (*to_bf16)(const float *x, uint16_t *y, int32_t n);    /* to nearest, ties to even */
} td_cpu_hot;

extern const td_cpu_hot td_cpu_hot_generic;
#if defined(__x86_64__)
extern const td_cpu_hot td_cpu_hot_avx2, td_cpu_hot_avx512;
#endif

/* Each hot_*.c is compiled with TD_ISA set to the set's name. */
#define CPU_CAT2(a, b) a##_##b
#define CPU_CAT(a, b) CPU_CAT2(a, b)
#define HOT(name) CPU_CAT(name, TD_ISA)

#endif
