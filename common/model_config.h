/* model_config: what config.json says about a gpt-oss model, checked.
 *
 * Read from either published layout: Hugging Face's (rope_scaling + rope_theta, or rope_parameters)
 * and OpenAI's original one. A plain struct, filled once and then const. */
#ifndef TANDEM_COMMON_MODEL_CONFIG_H
#define TANDEM_COMMON_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { TD_MAX_LAYERS = 128, TD_MAX_EOS = 8, TD_MXFP4_BLOCK = 32 };

typedef struct td_model_config {
    int32_t n_layers;
    int32_t hidden;     /* D: width of the residual stream */
    int32_t n_q_heads;  /* query heads of the whole model */
    int32_t n_kv_heads; /* divides n_q_heads */
    int32_t head_dim;   /* d, even */
    int32_t n_experts;
    int32_t top_k;                /* experts per token */
    int32_t inter;                /* I: inner width of one expert */
    int32_t vocab;                /* rows of the embedding */
    int32_t window;               /* positions a sliding layer sees, the query's own included */
    bool windowed[TD_MAX_LAYERS]; /* layer_types: sliding_attention */
    int32_t max_positions;

    float eps;          /* RMSNorm */
    float swiglu_limit; /* clamp; alpha 1.702 and offset 1 are fixed in this family */
    double rope_theta, yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int32_t yarn_original_positions;
    bool yarn_truncate; /* absent means true, as in Transformers; published models say false */

    int32_t eos[TD_MAX_EOS]; /* generation_config.json's list if there is one, else config.json's */
    int32_t n_eos;
    bool original_layout; /* OpenAI's tensor names instead of Hugging Face's */
} td_model_config;

/* Read dir/config.json (and dir/generation_config.json where present). Every field is range-checked
 * and cross-checked; TD_INVALID names the file, the key and what was expected. TD_IO: unreadable.
 */
TD_MUST_CHECK td_status td_model_config_read(const char *dir, td_model_config *out, td_error *err);

/* The same from text instead of files; gen is generation_config.json's, NULL if there is none. Both
 * have a NUL after their len bytes. where names the folder in messages. */
TD_MUST_CHECK td_status td_model_config_parse(const char *text, size_t len, const char *gen,
                                              size_t gen_len, const char *where,
                                              td_model_config *out, td_error *err);

/* Whether the fields are in range and fit each other: what td_model_config_read() ends with, for a
 * struct that was filled by hand. TD_INVALID names the field by its key in config.json. */
TD_MUST_CHECK td_status td_model_config_check(const td_model_config *c, const char *where,
                                              td_error *err);

/* A 64-bit identity of everything that changes what the model computes (not eos). Two workers with
 * different identities must not share a request. */
uint64_t td_model_config_hash(const td_model_config *c);

/* Parameters of the whole model, for the log line at start. */
uint64_t td_model_config_params(const td_model_config *c);

#endif
