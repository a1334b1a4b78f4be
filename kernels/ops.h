/* ops: the fused steps of a gpt-oss layer, as a table of functions that each backend fills.
 *
 * A backend ("cpu", "cuda") offers devices, memory, a way to load weights into the form its kernels
 * want, and one function a fused step, listed here in the order in which a layer runs them. What is
 * on a device is reached only through these functions: the forward pass never looks inside.
 *
 * Letters, rightmost index contiguous:
 *
 *   T tokens (rows) of the step      D model width            d head size, even
 *   H query heads of this rank       K kv heads of this rank  G = H / K
 *   E experts of this rank           I inner columns of this rank's experts
 *   M experts of the whole model     k experts a token        S = TD_KV_PAGE positions in a page
 *   V vocabulary rows of this rank   P positions a query may look up in its table
 *
 * Element types: `act` is the backend's type of activations, `resid` that of the residual stream
 * (td_ops.act, td_ops.resid; both f32 on the CPU). f32 and i32 mean themselves.
 *
 * Every step enqueues on its stream and returns. It allocates nothing and waits for nothing, so a
 * graph can capture a whole forward pass; pointers and scalars must then stay the same from replay
 * to replay, and what changes (tokens, positions, slots, lengths, tables, rows) is in device
 * memory. On the CPU a step has run when the call returns.
 *
 * A row of a result is a function of that row's inputs alone, bit for bit: not of its place in the
 * batch, of the other rows, of the thread count. Nor of T, with one seam: a backend may sum in
 * another order in steps of more than TD_SMALL_STEP rows, where other kernels are faster (the CPU
 * does not). Decode steps are all on one side of it, so a sequence gets the same bits in any batch.
 * On the CPU, attention of a query at position p gives the same bits from attn_prefill and
 * attn_decode.
 *
 * rmsnorm(x) is x / sqrt(mean of x^2 + eps). Formulas are those of the published gpt-oss models, as
 * in Transformers' GptOss, which tests/golden compares with.
 *
 * Each step gets the stream's workspace: workspace_bytes() of it, content free before and after,
 * one for all steps because they run in order. Unless stated otherwise outputs alias no input.
 * Errors: TD_INVALID for a shape or element type that this backend has no kernel for (known before
 * anything is enqueued), TD_DEVICE when a launch failed. Tolerances against float64: tests/ops. */
#ifndef TANDEM_KERNELS_OPS_H
#define TANDEM_KERNELS_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "common/sampling.h"
#include "common/status.h"

enum { TD_KV_PAGE = 64, TD_SMALL_STEP = 128 };

typedef enum td_elt { TD_ELT_F32, TD_ELT_BF16, TD_ELT_E4M3 } td_elt; /* E4M3: keys, values only */

static inline size_t td_elt_bytes(td_elt e)
{
    return e == TD_ELT_F32 ? 4 : e == TD_ELT_BF16 ? 2 : 1;
}

typedef struct td_dev td_dev;       /* one rank's device; opaque */
typedef struct td_stream td_stream; /* a queue of steps on a device; opaque */
typedef struct td_graph td_graph;   /* steps that were captured; opaque */
typedef struct td_comm td_comm;     /* what several ranks do together: common/comm.h */

/* A point in a stream; NULL: already reached. Every backend's event begins with this, so that
 * whoever holds one can ask. */
typedef struct td_event td_event;
struct td_event {
    /* TD_OK: reached; TD_PENDING; TD_DEVICE: it never will be. Any thread, waits for nothing. */
    td_status (*query)(td_event *e);
};

typedef struct td_dev_options {
    int32_t index;   /* which device (CUDA: its ordinal) */
    int32_t threads; /* of the host, the caller's included, at least 1. CPU: compute; CUDA: gather
                      * weights while they are loaded */
} td_dev_options;

/* Device memory, with what is needed to give it back. Zeroed: none. */
typedef struct td_buffer {
    td_dev *dev;
    void *ptr; /* aligned to 64 bytes at least */
    size_t bytes;
} td_buffer;

/* --- weights ------------------------------------------------------------------------------- */

/* What a matrix is for; the backend picks the layout that its kernel for this use reads. */
typedef enum td_form {
    TD_FORM_VECTOR,  /* [N]: norms, biases, sinks; expert biases as [E * N] */
    TD_FORM_ROWS,    /* [N, K]: rows are gathered (embedding) */
    TD_FORM_DENSE,   /* [N, K]: y = x W^T */
    TD_FORM_GATE_UP, /* [E][N = 2I, K]: rows 2j gate, 2j + 1 up of inner column j */
    TD_FORM_DOWN     /* [E][N, K = I] */
} td_form;

/* How expert weights that were shipped as MXFP4 are kept.
 *
 *   MXFP4  packed as they came: fewest bytes, what decode is bound by
 *   FP8    e4m3 with one power-of-two scale a block of 64 x 128: twice the matrix rate, what
 *          prefill is bound by; activations are quantised too. Backends may lack it. */
typedef enum td_expert_format { TD_EXPERTS_MXFP4, TD_EXPERTS_FP8 } td_expert_format;

/* A loaded weight. Open so that it can live by value in tables; only backends read mem. */
typedef struct td_matrix {
    td_form form;
    int32_t E, N, K;  /* E is 1 except for experts; a vector has K = 1 */
    int32_t encoding; /* the backend's own */
    int64_t inexact;  /* elements that a conversion to FP8 had to round */
    td_buffer mem;
} td_matrix;

/* A rectangle of a host matrix: rows of `cols` elements, row_stride elements apart. May be
 * unaligned. A piece of a vector is a rectangle with cols = 1 and row_stride = 1. */
typedef struct td_host_block {
    const void *ptr;
    int32_t rows;
    int64_t row_stride;
} td_host_block;

/* MXFP4 weights of E experts on the host, as checkpoints ship them: 32 elements along K are 16
 * bytes (element 2i in the low nibble of byte i) and one E8M0 scale byte. Strides are in bytes, so
 * that a view can take some experts, some rows and a run of whole blocks along K. */
typedef struct td_host_mxfp4 {
    const uint8_t *blocks, *scales;
    int64_t expert_blocks, expert_scales; /* from one expert to the next */
    int64_t row_blocks, row_scales;       /* from one row to the next */
    int32_t E, N, K;                      /* K is a multiple of 32 */
} td_host_mxfp4;

/* --- keys and values ----------------------------------------------------------------------- */

/* One layer's keys and values on this rank: [K] heads, each [2] key then value, [pages][S][d]. A
 * slot is page * S + row. See common/kv_layout.h for the whole region. */
typedef struct td_kv_view {
    void *base;          /* element (head 0, key, slot 0) */
    int64_t head_stride; /* elements from one head's keys to the next head's */
    int64_t side_stride; /* elements from a head's keys to its values */
    td_elt elt;
} td_kv_view;

/* --- steps --------------------------------------------------------------------------------- */

/* Embedding. Rows of tokens whose id is not on this rank become zeros, so that the sum over ranks
 * is the embedding.
 *
 *   tokens [T]      i32   in
 *   table  [V, D]         in   TD_FORM_ROWS; row i belongs to token first + i
 *   out    [T, D]   act   out */
typedef struct td_embed_args {
    int32_t T, D, first;
    const int32_t *tokens;
    const td_matrix *table;
    void *out;
} td_embed_args;

/* x += part[0] + part[1] + ... in this order, on n elements.
 *
 *   x      [n]      resid in, out
 *   part   n_parts  act   in   [n] each; may be another device's memory
 *   clear           bool       start from x = 0 instead */
typedef struct td_add_args {
    size_t n;
    int32_t n_parts;
    bool clear;
    const void *const *part; /* host array */
    void *x;
} td_add_args;

/* Attention inputs: t = rmsnorm(x) * norm; qkv = t Wqkv^T + bias; q and k rotated (half-split: i
 * with i + d/2) by the tables' row pos; k and v rounded to the cache's type and stored.
 *
 *   x        [T, D]         resid in
 *   norm     [D]                  in
 *   qkv      [(H + 2K) d, D]      in   DENSE: this rank's q heads, then k heads, then v heads
 *   bias     [(H + 2K) d]         in
 *   cos, sin [positions, d/2] f32 in   YaRN's factor included
 *   pos      [T]            i32   in   row of the tables
 *   slot     [T]            i32   in   where to store k and v; distinct; -1: nowhere
 *   kv                            out  this layer
 *   q        [T, H, d]      act   out */
typedef struct td_attn_in_args {
    int32_t T, D, H, K, d;
    float eps;
    const void *x;
    const td_matrix *norm, *qkv, *bias;
    const float *cos, *sin;
    const int32_t *pos, *slot;
    td_kv_view kv;
    void *q;
    void *ws;
} td_attn_in_args;

/* Where a query at position p looks: positions max(0, p - window + 1) .. p, or 0 .. p when window
 * is 0. Position j is row j % S of page table[(j / S) % wrap]: wrap is the ring's pages for a
 * window layer; for a full layer, the table's length. The sink is a logit without a value,
 * unscaled, in the denominator once. Rows of the cache outside that range are never read. */

/* Prefill attention: T queries of one sequence at positions pos0 .. pos0 + T - 1, over keys that
 * are already in the cache (the chunk's own included).
 *
 *   q      [T, H, d]  act  in
 *   kv                     in   this layer
 *   table  [wrap]     i32  in
 *   sinks  [H]             in   vector
 *   out    [T, H, d]  act  out  may be q
 *
 * Work: 4 * H * d * sum of visible keys FLOP. */
typedef struct td_attn_prefill_args {
    int32_t T, H, K, d, pos0, window, wrap;
    float scale; /* 1 / sqrt(d) */
    const void *q;
    td_kv_view kv;
    const int32_t *table;
    const td_matrix *sinks;
    void *out;
    void *ws;
} td_attn_prefill_args;

/* Decode attention: one query of each of T sequences.
 *
 *   len    [T]               i32  in   positions visible without the window: the query's is len -
 *                                      1; 0: padding, the row of out becomes zeros
 *   table  [T, table_stride] i32  in   each sequence's pages; wrap <= table_stride
 *
 * The rest as attn_prefill. Bytes that must move: 2 * K * d * elt * sum of visible keys. */
typedef struct td_attn_decode_args {
    int32_t T, H, K, d, window, wrap, table_stride;
    float scale;
    const void *q;
    td_kv_view kv;
    const int32_t *len, *table;
    const td_matrix *sinks;
    void *out;
    void *ws;
} td_attn_decode_args;

/* Output projection: out = o W^T + bias, this rank's part of the sum over ranks.
 *
 *   o     [T, H d]  act    in
 *   w     [D, H d]         in       DENSE: the columns of this rank's heads
 *   bias  [D]              in       NULL on all ranks but one
 *   out   [T, D]    act    out
 *   x     [T, D]    resid  in, out  NULL, or x += out, bit for bit what add() would make of it (in
 *                                   steps of more than TD_SMALL_STEP rows out may be added before
 *                                   it is rounded); what is in out then is not defined */
typedef struct td_attn_out_args {
    int32_t T, D, Hd;
    const void *o;
    const td_matrix *w, *bias;
    void *out;
    void *x;
    void *ws;
} td_attn_out_args;

/* Router: t = rmsnorm(x) * norm; logits = t Wr^T + bias in f32, not rounded; the k largest in
 * falling order, ties to the lower expert; weights are a softmax over those k alone. Every rank
 * computes all of it, so that all ranks choose alike.
 *
 *   x     [T, D]  resid in
 *   w     [M, D]        in   DENSE
 *   bias  [M]           in
 *   live          i32   in   NULL, or one number: rows from there on are padding, and choose -1,
 *                            an expert that lives nowhere
 *   t     [T, D]  act   out  the experts' input
 *   idx   [T, k]  i32   out  0 .. M - 1, distinct even if a logit is NaN
 *   prob  [T, k]  f32   out */
typedef struct td_router_args {
    int32_t T, D, M, k;
    float eps;
    const void *x;
    const int32_t *live;
    const td_matrix *norm, *w, *bias;
    void *t;
    int32_t *idx;
    float *prob;
    void *ws;
} td_router_args;

/* Experts: for each token, the sum over its experts that live here, in the router's order, of
 * prob * (a W2^T + b2), where a = swiglu(t W1^T + b1): gate * sigmoid(1.702 gate) * (up + 1), gate
 * clamped from above and up on both sides at `limit` before. Zeros for a token none of whose
 * experts live here. With the inner width split over ranks, this rank's I columns contribute, and
 * b2 comes from one rank of the group only.
 *
 *   t         [T, D]        act  in
 *   idx, prob [T, k]             in
 *   gate_up   [E][2I, D]         in   GATE_UP; expert e is the model's expert_first + e
 *   gate_up_bias [E * 2I]        in   vector, rows in the same order
 *   down      [E][D, I]          in   DOWN
 *   down_bias [E * D]            in   NULL: another rank of the group adds it
 *   out       [T, D]        act  out
 *   x         [T, D]       resid in, out  as in attn_out
 *
 * Bytes that must move: the touched experts' weights. */
typedef struct td_experts_args {
    int32_t T, D, I, E, k, expert_first;
    float limit;
    const void *t;
    const int32_t *idx;
    const float *prob;
    const td_matrix *gate_up, *gate_up_bias, *down, *down_bias;
    void *out;
    void *x;
    void *ws;
} td_experts_args;

/* Head: logits of some rows. out = (rmsnorm(x[rows]) * norm) Wu^T, this rank's vocabulary rows.
 *
 *   x     [T, D]  resid in
 *   rows  [n]     i32   in
 *   w     [V, D]        in   DENSE
 *   out   [n, V]  f32   out */
typedef struct td_head_args {
    int32_t n, D, V;
    float eps;
    const void *x;
    const int32_t *rows;
    const td_matrix *norm, *w;
    float *out;
    void *ws;
} td_head_args;

/* A row of the sample step, in device memory. Its lists are runs of `lists`, which holds pairs of
 * i32: list `banned` is pairs banned .. banned + n_banned, and so on. */
typedef struct td_sample_row {
    uint64_t seed, index; /* td_sampling_uniform()'s */
    float temperature, top_p;
    int32_t top_k;
    float presence, frequency;
    int32_t counts, n_counts; /* token, count */
    int32_t bias, n_bias;     /* token, bits of a float */
    int32_t banned, n_banned; /* first, last */
    int32_t mask;             /* row of masks; -1: none */
    int32_t top_logprobs;     /* -1: no log-probabilities wanted */
    int32_t skip;             /* not 0: padding; token -1, logits not read */
} td_sample_row;

/* Sampling: what td_sample() of common/sampling.h chooses, row by row, with the log-probabilities
 * of td_logprobs_of(). A backend may add up weights in another way than td_sample(): draws that
 * differ lie within 1e-6 of the boundary between the two tokens.
 *
 *   logits    [n, V]            f32  in
 *   rows      [n]                    in
 *   lists     [pairs, 2]        i32  in   what the rows refer to
 *   masks     [rows, (V+31)/32] u32  in   what the rows refer to
 *   token     [n]               i32  out  -1: nothing can be sampled
 *   logprobs  [n]                    out  n = -1 where a row wants none
 *
 * Bytes that must move: 4 * n * V. */
typedef struct td_sample_args {
    int32_t n, V;
    const float *logits;
    const td_sample_row *rows;
    const int32_t *lists;
    const uint32_t *masks;
    int32_t *token;
    td_logprobs *logprobs;
    void *ws;
} td_sample_args;

/* Changes to a table of i32 that stays on the device: table[at] = value for each of n pairs (at,
 * value), no two with the same at.
 *
 *   edits  [n, 2]  i32  in
 *   table          i32  in, out */
typedef struct td_edit_args {
    int32_t n;
    const int32_t *edits;
    int32_t *table;
} td_edit_args;

/* Collectives (common/comm.h). Gather: out[r, first_col + j] = part[r, j] on rank 0.
 *
 *   part  [rows, cols]        f32  in
 *   out   [rows, total_cols]  f32  out  rank 0's memory, on every rank */
typedef struct td_gather_args {
    int32_t rows, cols, first_col, total_cols;
    const float *part;
    float *out;
} td_gather_args;

typedef struct td_comm_options {
    td_dev *const *dev; /* [n] of the ranks; several may be one and the same GPU */
    int32_t n;
    size_t max_elements; /* most in one reduction */
    uint32_t timeout_ms; /* how long a rank waits for another on the device; 0: 2000 */
} td_comm_options;

/* The largest shapes that a rank will ask for; what the workspace is sized by. */
typedef struct td_dims {
    int32_t T, D, H, K, d, M, E, I, k, V;
    int32_t head_rows; /* most rows in one head step */
    int32_t sample_V;  /* vocabulary of the sample step; 0 on ranks that do not sample */
} td_dims;

typedef struct td_ops {
    const char *name; /* "cpu" or "cuda", as --backend spells it */
    td_elt act, resid;

    /* Devices. A device belongs to the thread that runs its rank: dev_bind() makes it current there
     * and comes before any other call from that thread; cheap when it is current already. */
    td_status (*dev_open)(const td_dev_options *opt, td_dev **out, td_error *err);
    void (*dev_close)(td_dev *dev); /* NULL is fine; gives back no buffers */
    td_status (*dev_bind)(td_dev *dev, td_error *err);
    td_stream *(*dev_stream)(td_dev *dev); /* lives with the device */
    /* For threads that touch a device's memory and are no rank's (KV transfer): makes device
     * `index` current on the calling thread. NULL where there is nothing to make current. */
    td_status (*dev_use)(int32_t index, td_error *err);
    /* Bytes that are free on device `index` now, and all it has; errors as dev_open(). NULL where a
     * device has no memory of its own. */
    td_status (*dev_memory)(int32_t index, uint64_t *free, uint64_t *total, td_error *err);

    /* Memory. alloc: zeroed; bytes 0 gives a buffer without memory. release: accepts a zeroed one.
     */
    td_status (*alloc)(td_dev *dev, size_t bytes, td_buffer *out, td_error *err);
    void (*release)(td_buffer *buf);
    /* Host memory that a device copies from and to in stream order (CUDA: pinned, for every
     * device); zeroed. free_host: accepts a zeroed one. */
    td_status (*alloc_host)(td_dev *dev, size_t bytes, td_buffer *out, td_error *err);
    void (*free_host)(td_buffer *buf);
    /* In stream order; src may be changed once the stream has been synced (from other host memory
     * than alloc_host()'s: once the call returns). */
    td_status (*copy_in)(td_stream *s, void *dst, const void *src, size_t bytes, td_error *err);
    /* `rows` rows of `bytes` bytes each; dst is complete after the next sync(). */
    td_status (*copy_out)(td_stream *s, void *dst, size_t dst_pitch, const void *src,
                          size_t src_pitch, size_t bytes, size_t rows, td_error *err);
    td_status (*sync)(td_stream *s, td_error *err);
    /* *out is NULL where nothing needs waiting for. An event is the device's and is reused: it
     * stays valid for at least as many later records as a model has layers, twice over. */
    td_status (*event_record)(td_stream *s, td_event **out, td_error *err);

    /* Graphs: steps and copies that are enqueued between graph_begin and graph_end do not run but
     * are kept, with their pointers and scalars, to be run as often as graph_launch() is called.
     * Copies must be from and to alloc_host()'s memory. graph_end: with out NULL, or after a step
     * that failed, what was kept is dropped. The stream is free for other work afterwards in any
     * case. NULL, all four: the backend has none, and a step costs no more without. */
    td_status (*graph_begin)(td_stream *s, td_error *err);
    td_status (*graph_end)(td_stream *s, td_graph **out, td_error *err);
    td_status (*graph_launch)(td_stream *s, td_graph *g, td_error *err);
    void (*graph_free)(td_graph *g); /* NULL is fine */

    /* Collectives over several ranks' devices. NULL: a step has run when its call returns and ranks
     * read each other's memory, so threads can do it (td_comm_threads_open()). */
    td_status (*comm_open)(const td_comm_options *o, td_comm **out, td_error *err);

    /* Weights. load: blocks of `cols` columns stacked from top to bottom; for the expert forms, one
     * block an expert. On failure *out is left zeroed. The host memory may go afterwards. */
    td_status (*load)(td_dev *dev, td_form form, td_elt elt, const td_host_block *blocks,
                      int32_t n_blocks, int32_t cols, td_matrix *out, td_error *err);
    /* Expert forms only. TD_INVALID: a scale byte of 255, which is not a number; a format that this
     * backend lacks. */
    td_status (*load_mxfp4)(td_dev *dev, td_form form, const td_host_mxfp4 *src,
                            td_expert_format format, td_matrix *out, td_error *err);
    /* No more loads are near: memory and threads that only they need may go. A later load works.
     * NULL where loading keeps nothing. */
    void (*load_done)(td_dev *dev);
    void (*unload)(td_matrix *m); /* accepts a zeroed one */

    size_t (*workspace_bytes)(const td_dev *dev, const td_dims *dims);

    /* What things will take of a device, for whoever plans before loading: a matrix by load() from
     * bf16 and by load_mxfp4(), each rank's share of comm_open(), and about what a step's graph
     * does. The last two are NULL and 0 where they take nothing of a device. */
    size_t (*matrix_bytes)(td_form form, int32_t E, int32_t N, int32_t K);
    size_t (*mxfp4_bytes)(td_expert_format format, int32_t E, int32_t N, int32_t K);
    size_t (*comm_bytes)(const td_comm_options *o);
    size_t graph_bytes;
    size_t alloc_grain; /* what alloc() takes in whole numbers of, from half of it on; 0: bytes */

    /* Steps, in the order in which a forward pass runs them. */
    td_status (*embed)(td_stream *s, const td_embed_args *a, td_error *err);
    td_status (*attn_in)(td_stream *s, const td_attn_in_args *a, td_error *err);
    td_status (*attn_prefill)(td_stream *s, const td_attn_prefill_args *a, td_error *err);
    td_status (*attn_decode)(td_stream *s, const td_attn_decode_args *a, td_error *err);
    td_status (*attn_out)(td_stream *s, const td_attn_out_args *a, td_error *err);
    td_status (*add)(td_stream *s, const td_add_args *a, td_error *err);
    td_status (*router)(td_stream *s, const td_router_args *a, td_error *err);
    td_status (*experts)(td_stream *s, const td_experts_args *a, td_error *err);
    td_status (*head)(td_stream *s, const td_head_args *a, td_error *err);
    td_status (*sample)(td_stream *s, const td_sample_args *a, td_error *err);
    td_status (*edit)(td_stream *s, const td_edit_args *a, td_error *err);
} td_ops;

/* The backend called name. TD_INVALID names those that this build has. */
TD_MUST_CHECK td_status td_ops_find(const char *name, const td_ops **out, td_error *err);

extern const td_ops td_ops_cpu;

#endif
