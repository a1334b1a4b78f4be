/* weights: from a checkpoint's tensors to what one rank's device holds.
 *
 * A rank gets its heads' rows of q, k and v stacked into one matrix, its heads' columns of the
 * output projection, its experts (packed MXFP4, or dense where the source has no MXFP4), and its
 * rows of both tables; norms, router and sinks (its heads') are small and whole. */
#ifndef TANDEM_COMMON_WEIGHTS_H
#define TANDEM_COMMON_WEIGHTS_H

#include "common/checkpoint.h"
#include "common/clock.h"
#include "common/shard.h"
#include "kernels/ops.h"

/* Where tensors come from: a checkpoint, or a test's own numbers. The roles and shapes are those of
 * checkpoint.h, with two liberties: any bf16 tensor may be f32; and the expert matrices may be
 * dense, given as TD_W_GATE_UP_BLOCKS [E, 2I, D] and TD_W_DOWN_BLOCKS [E, D, I] in bf16 or f32, in
 * which case the scales are not asked for. Called from several rank threads at once. */
typedef struct td_weight_source td_weight_source;
struct td_weight_source {
    void *user;
    td_status (*get)(void *user, td_weight role, int32_t layer, td_tensor *out, td_error *err);
    void (*release)(void *user, td_weight role, int32_t layer); /* no view is in use; may be NULL */
};

td_weight_source td_checkpoint_source(td_checkpoint *c); /* c must outlive it */

typedef struct td_layer_weights {
    td_matrix attn_norm, qkv, qkv_bias, sinks, o, o_bias;
    td_matrix mlp_norm, router, router_bias;
    td_matrix gate_up, gate_up_bias, down, down_bias;
} td_layer_weights;

typedef struct td_rank_weights {
    const td_ops *ops;
    td_dev *dev;
    int32_t n_layers;
    td_expert_format experts; /* of MXFP4 sources; the caller sets it between init and load */
    td_layer_weights *layer;  /* [n_layers] */
    td_matrix embed, final_norm, unembed;
    td_usec started, reported; /* for the log's lines of progress */
} td_rank_weights;

/* Memory for the tables, nothing loaded. TD_NOMEM. */
TD_MUST_CHECK td_status td_rank_weights_init(td_rank_weights *w, const td_ops *ops, td_dev *dev,
                                             int32_t n_layers, td_error *err);
void td_rank_weights_fini(td_rank_weights *w); /* a zeroed one is fine */

/* Load one layer's shard, or (layer < 0) the tables and the final norm, on the rank's thread.
 * The text of a failure names tensor and layer. Rank 0 logs how far it is, once a second.
 * TD_INVALID, TD_NOMEM, TD_DEVICE; what was loaded is freed by fini. */
TD_MUST_CHECK td_status td_rank_weights_load(td_rank_weights *w, const td_weight_source *src,
                                             const td_model_config *c, const td_shard *s,
                                             int32_t layer, td_error *err);

/* Every role of a layer (or, below 0, of the tables) is done with. */
void td_weight_source_release_layer(const td_weight_source *src, int32_t layer);

uint64_t td_rank_weights_bytes(const td_rank_weights *w); /* as loaded */

/* What loading such a shard will take of the device, for a source of the published types: bf16, and
 * experts in MXFP4 that are kept as `experts`. */
typedef struct td_weights_plan {
    uint64_t bytes, rounding; /* rounding: what the device's allocator adds */
} td_weights_plan;
td_weights_plan td_rank_weights_plan(const td_ops *ops, const td_model_config *c, const td_shard *s,
                                     td_expert_format experts);

/* What an allocation of so many bytes takes beyond them. */
static inline uint64_t td_alloc_rounding(const td_ops *ops, uint64_t bytes)
{
    uint64_t grain = ops->alloc_grain;

    return grain == 0 || bytes < grain / 2 ? 0 : (grain - bytes % grain) % grain;
}

#endif
