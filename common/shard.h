/* shard: which part of the model a rank holds. Pure.
 *
 * tp ranks split the attention heads (query heads with the kv head that they share), the vocabulary
 * rows of both tables, and the experts: ep groups of tp / ep consecutive ranks each own n_experts /
 * ep whole experts, and the ranks of a group split those experts' inner width in whole MXFP4
 * blocks. A bias that is added after a sum over ranks is added by one rank of that sum. */
#ifndef TANDEM_COMMON_SHARD_H
#define TANDEM_COMMON_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/model_config.h"
#include "common/status.h"

typedef struct td_shard {
    int32_t rank, tp, ep;
    int32_t q_first, n_q;   /* query heads */
    int32_t kv_first, n_kv; /* kv heads */
    int32_t expert_first, n_experts;
    int32_t inner_first, n_inner; /* inner columns of those experts; a multiple of 32 from 32 on */
    int32_t vocab_first, n_vocab; /* rows of embedding and unembedding */
    bool adds_out_bias;           /* of the attention's output projection */
    bool adds_down_bias;          /* of its experts' second matrix */
} td_shard;

/* Part `rank` of tp. TD_INVALID: the split does not fit the model; the text has the numbers and
 * what would fit. */
TD_MUST_CHECK td_status td_shard_of(const td_model_config *c, int32_t tp, int32_t ep, int32_t rank,
                                    td_shard *out, td_error *err);

#endif
