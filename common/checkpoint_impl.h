/* What the two kinds of checkpoint share: files (checkpoint.c) and random weights
 * (checkpoint_random.c). Nobody else includes this. */
#ifndef TANDEM_COMMON_CHECKPOINT_IMPL_H
#define TANDEM_COMMON_CHECKPOINT_IMPL_H

#include "common/checkpoint.h"

/* First member of each kind. */
struct td_checkpoint {
    td_model_config cfg;
    uint64_t hash, bytes;
    td_status (*get)(td_checkpoint *c, td_weight role, int32_t layer, td_tensor *out,
                     td_error *err);
    void (*release)(td_checkpoint *c, td_weight role, int32_t layer);
    void (*close)(td_checkpoint *c);
};

/* The tensors of a whole model have the model's own first, then TD_W_COUNT a layer; the slots that
 * this leaves unused are cheaper than a second numbering. */
static inline bool td_weight_is_global(td_weight role)
{
    return role <= TD_W_UNEMBED;
}

static inline size_t td_weight_slots(const td_model_config *c)
{
    return (size_t)c->n_layers * TD_W_COUNT;
}

static inline size_t td_weight_slot(td_weight role, int32_t layer)
{
    return td_weight_is_global(role) ? (size_t)role : (size_t)layer * TD_W_COUNT + (size_t)role;
}

/* Type, shape and bytes of a role; data is NULL. */
td_tensor td_weight_shape(const td_model_config *c, td_weight role);

/* Sum over the whole model. */
uint64_t td_weight_total_bytes(const td_model_config *c);

#endif
