/* model_impl: what the files of the model share; nobody else includes it. */
#ifndef TANDEM_COMMON_MODEL_IMPL_H
#define TANDEM_COMMON_MODEL_IMPL_H

#include "common/comm.h"
#include "common/model.h"
#include "common/rank.h"
#include "common/rope.h"
#include "common/shard.h"
#include "common/weights.h"
#include "kernels/ops.h"

enum {
    MAX_EDITS = 256,  /* of the full layers' tables in one step, as edits */
    FEW_EDITS = 4,    /* changes of a row that are more are copied */
    MAX_BUCKETS = 48, /* sizes of captured steps */
    MAX_BUCKET_T = 2048
};

/* What changes from step to step, as one array of i32 on the host and on each device. Offsets are
 * fixed at open, so that a captured graph finds its inputs in place. */
typedef struct step_inputs {
    size_t tokens, pos, slot_full, slot_window, len, rows; /* [max_tokens] each */
    size_t live;                                           /* rows that are not padding */
    size_t sample;                                         /* td_sample_row [table_rows] */
    size_t table_window;                                   /* [table_rows, ring_pages] */
    size_t edits;                                          /* [MAX_EDITS, 2] */
    size_t lists; /* [max_pairs, 2], of sampling; copied as far as it is used */
    size_t total;
    int32_t table_rows; /* sequences in one step: each has a ring of its own */
    int32_t table_rows_even;
    int32_t max_pages; /* of one sequence */
    int32_t max_pairs, max_masks;
} step_inputs;

/* What the devices' full-layer tables lack. */
typedef struct model_run {
    size_t at, n; /* entries of the table */
} model_run;

typedef struct model_changes {
    model_run *run; /* [table_rows] */
    int32_t n_runs, n_edits;
} model_changes;

typedef struct model_rank {
    td_shard shard;
    td_dev *dev;
    int32_t device; /* its number */
    td_stream *stream;
    td_rank_weights w;
    td_buffer cos, sin, kv;
    td_buffer inputs;    /* step_inputs.total i32 */
    td_buffer table;     /* i32 [table_rows, max_pages]: the full layers' pages */
    td_buffer x;         /* resid [max_tokens, D] */
    td_buffer q;         /* act [max_tokens, H d]; attention's output too */
    td_buffer part[2];   /* act [max_tokens, D]: alternated, see comm.h */
    td_buffer t;         /* act [max_tokens, D]: the experts' input */
    td_buffer idx, prob; /* [max_tokens, top_k] */
    td_buffer logits;    /* f32 [head_rows, n_vocab] */
    td_buffer full;      /* rank 0 of several: f32 [head_rows, vocab] */
    td_buffer masks;     /* rank 0: u32 [max_masks, (vocab + 31) / 32] */
    td_buffer out;       /* rank 0: tokens i32 [table_rows_even], td_logprobs [table_rows] */
    td_buffer ws;
    /* model_memory.c; work: all buffers but kv; rounding: of all allocations but kv. */
    uint64_t work_bytes, comm_bytes, graph_bytes, rounding;
    td_graph *graph[MAX_BUCKETS];
} model_rank;

typedef enum step_mode { STEP_PLAIN, STEP_CAPTURE, STEP_REPLAY } step_mode;

/* A size of decode step. */
typedef struct model_bucket {
    int32_t T;
    step_mode warm; /* how the next step of this size is run */
} model_bucket;

/* The step that runs now; written by the caller, read by the ranks. */
typedef struct model_step {
    int32_t T;
    bool prefill;
    int32_t pos0;                 /* prefill */
    bool layers;                  /* run the layers; false: only the head, on x as it is */
    int32_t head_first, head_end; /* rows that get logits */
    int32_t sample_first;         /* rows from here on are sampled, as rows 0, 1, .. of out */
    int32_t n_pairs, n_masks;     /* of sampling, in use */
    float *logits;                /* NULL, or the caller's, for rows head_first .. head_end */
    step_mode mode;
    int32_t graph; /* bucket, unless plain */
    td_layer_hook on_layer;
    void *user;
} model_step;

struct td_model {
    td_model_config cfg;
    td_model_options opt;
    td_kv_geometry kv;
    const td_ops *ops;
    td_ranks *ranks;
    td_comm *comm;    /* NULL with one rank */
    model_rank *rank; /* [tp] */
    int32_t head_rows;
    step_inputs in;
    /* The host's side; what the devices copy from and to. */
    td_buffer inputs, table, masks, out; /* as in model_rank; table: what has been sent */
    model_changes changes;
    model_bucket bucket[MAX_BUCKETS]; /* rising */
    int32_t n_buckets;                /* 0: no graphs */
    model_step step;
};

/* One rank's share of m->step; a td_rank_fn, ctx is the model. */
td_status model_forward(void *ctx, int32_t rank, td_error *err);

/* Attention's products on the first T rows: x to q, keys and values; q to part[0]. */
td_status model_attn_in(const td_model *m, int32_t rank, int32_t layer, int32_t T, td_error *err);
td_status model_attn_out(const td_model *m, int32_t rank, int32_t layer, int32_t T, td_error *err);

/* model_memory.c. A rank's buffers but kv, with their sizes; returns how many. */
typedef struct model_buffer {
    td_buffer *buf;
    size_t bytes;
} model_buffer;
enum { MODEL_BUFFERS = 16 };
int model_buffers(const td_model *m, model_rank *r, model_buffer out[MODEL_BUFFERS]);
td_comm_options model_comm_options(const td_model *m, td_dev *const *dev);
/* What every rank will need, before anything of it is there: work_bytes and the like. */
void model_plan_memory(td_model *m);
/* As many pages as every rank's device has room for, its weights being loaded or as planned. */
td_status model_fit_kv(td_model *m, bool loaded, td_error *err);

/* model_warm.c: at the end of opening. */
td_status model_warm_ranks(td_model *m, td_error *err);

/* model_inputs.c: checks. Sequence i of the step puts n tokens at s->pos. */
td_status model_check_tokens(const td_model *m, const int32_t *tokens, int32_t n, td_error *err);
td_status model_check_seq(const td_model *m, int32_t i, const td_seq *s, int32_t n, td_error *err);
td_status model_check_sampling(const td_model *m, int32_t i, const td_sampling *s, td_error *err);
/* Row `row` of the step: `token` at position p of s. Padding: rows first .. end. */
void model_put_row(td_model *m, int32_t row, int32_t token, const td_seq *s, int32_t p);
void model_put_padding(td_model *m, int32_t first, int32_t end);
/* Row `row` of both tables: the pages of s that hold n positions. */
void model_put_tables(td_model *m, int32_t row, const td_seq *s, int64_t n);
void model_forget_tables(td_model *m); /* everything has to be sent again */
/* How rows 0 .. n are sampled, into m->step too; returns how many of them there was room for. */
int32_t model_put_sampling(td_model *m, const td_sampling *sampling, int32_t n);
td_status model_copy_inputs(td_model *m, int32_t rank, td_error *err);

static inline const int32_t *rank_input(const model_rank *r, size_t offset)
{
    return (const int32_t *)r->inputs.ptr + offset;
}

#endif
