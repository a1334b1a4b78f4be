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

/* What changes from step to step, as one array of i32 on the host and on each device. Offsets are
 * fixed at open, so that a captured graph finds its inputs in place. */
typedef struct step_inputs {
    size_t tokens, pos, slot_full, slot_window, len, rows; /* [max_tokens] each; rows [head_rows] */
    size_t table_full;   /* [table_rows, max_pages]; prefill uses the first row */
    size_t table_window; /* [table_rows, ring_pages] */
    size_t total;
    int32_t table_rows; /* sequences in one step: each has a ring of its own */
    int32_t max_pages;  /* of one sequence */
} step_inputs;

typedef struct model_rank {
    td_shard shard;
    td_dev *dev;
    td_stream *stream;
    td_rank_weights w;
    td_buffer cos, sin, kv;
    td_buffer inputs;    /* step_inputs.total i32 */
    td_buffer x;         /* resid [max_tokens, D] */
    td_buffer q;         /* act [max_tokens, H d]; attention's output too */
    td_buffer part[2];   /* act [max_tokens, D]: alternated, see comm.h */
    td_buffer t;         /* act [max_tokens, D]: the experts' input */
    td_buffer idx, prob; /* [max_tokens, top_k] */
    td_buffer logits;    /* f32 [head_rows, n_vocab] */
    td_buffer ws;
} model_rank;

/* The step that runs now; written by the caller, read by the ranks. */
typedef struct model_step {
    int32_t T;
    bool prefill;
    int32_t pos0;      /* prefill */
    int32_t n_tables;  /* rows of the tables that are in use */
    size_t head_first; /* rows[] entries head_first .. head_first + head_n get logits */
    int32_t head_n;
    bool layers; /* run the layers; false: only the head, on x as it is */
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
    int32_t *inputs;  /* the host's copy */
    float *logits;    /* host [head_rows, vocab] */
    int32_t *scratch; /* [vocab], for sampling */
    model_step step;
};

/* One rank's share of m->step; a td_rank_fn, ctx is the model. */
td_status model_forward(void *ctx, int32_t rank, td_error *err);

static inline const int32_t *rank_input(const model_rank *r, size_t offset)
{
    return (const int32_t *)r->inputs.ptr + offset;
}

#endif
