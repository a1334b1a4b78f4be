/* What a description of a model is held to, however it came by its numbers, and what follows from
 * them. model_config_read.c is where they come from. */
#include "common/model_config.h"

#include "common/hash.h"
#include "common/model_config_limits.h"

static td_status bad(td_error *err, const char *where, const char *key, const char *expected,
                     double found)
{
    return td_fail(err, TD_INVALID, "%s: %s: expected %s, found %g", where, key, expected, found);
}

td_status td_model_config_check(const td_model_config *c, const char *where, td_error *err)
{
    const struct {
        const char *key;
        int32_t v, hi;
    } ranges[] = {
        {"num_hidden_layers", c->n_layers, TD_MAX_LAYERS},
        {"hidden_size", c->hidden, MAX_WIDTH},
        {"num_attention_heads", c->n_q_heads, MAX_HEADS},
        {"num_key_value_heads", c->n_kv_heads, MAX_HEADS},
        {"head_dim", c->head_dim, MAX_HEAD_DIM},
        {"num_local_experts", c->n_experts, MAX_EXPERTS},
        {"num_experts_per_tok", c->top_k, c->n_experts},
        {"intermediate_size", c->inter, MAX_WIDTH},
        {"vocab_size", c->vocab, MAX_VOCAB},
        {"sliding_window", c->window, MAX_POSITIONS},
        {"max_position_embeddings", c->max_positions, MAX_POSITIONS},
        {"original_max_position_embeddings", c->yarn_original_positions, MAX_POSITIONS},
    };

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i].v < 1 || ranges[i].v > ranges[i].hi)
            return td_fail(err, TD_INVALID, "%s: %s: expected 1 to %d, found %d", where,
                           ranges[i].key, ranges[i].hi, ranges[i].v);
    if (c->hidden % TD_MXFP4_BLOCK != 0)
        return bad(err, where, "hidden_size", "a multiple of 32, the MXFP4 block", c->hidden);
    if (c->inter % TD_MXFP4_BLOCK != 0)
        return bad(err, where, "intermediate_size", "a multiple of 32, the MXFP4 block", c->inter);
    if (c->head_dim % 2 != 0)
        return bad(err, where, "head_dim", "an even number (RoPE rotates pairs)", c->head_dim);
    if (c->n_q_heads % c->n_kv_heads != 0)
        return td_fail(err, TD_INVALID,
                       "%s: num_attention_heads: expected a multiple of num_key_value_heads = %d, "
                       "found %d",
                       where, c->n_kv_heads, c->n_q_heads);
    if (!(c->eps > 0 && c->eps <= 0.1f))
        return bad(err, where, "rms_norm_eps", "a number over 0 and up to 0.1", (double)c->eps);
    if (!(c->swiglu_limit > 0 && c->swiglu_limit <= 1e6f))
        return bad(err, where, "swiglu_limit", "a number over 0", (double)c->swiglu_limit);
    if (!(c->rope_theta > 1 && c->rope_theta <= 1e12))
        return bad(err, where, "rope_theta", "a number over 1", c->rope_theta);
    if (!(c->yarn_factor >= 1 && c->yarn_factor <= 1e4))
        return bad(err, where, "factor", "a number of at least 1", c->yarn_factor);
    if (!(c->yarn_beta_slow > 0 && c->yarn_beta_slow <= 1e6))
        return bad(err, where, "beta_slow", "a number over 0", c->yarn_beta_slow);
    if (!(c->yarn_beta_fast > c->yarn_beta_slow && c->yarn_beta_fast <= 1e6))
        return td_fail(err, TD_INVALID,
                       "%s: beta_fast: expected a number over beta_slow = %g, found %g", where,
                       c->yarn_beta_slow, c->yarn_beta_fast);
    if (c->n_eos < 0 || c->n_eos > TD_MAX_EOS)
        return bad(err, where, "eos_token_id", "at most 8 ids", c->n_eos);
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] < 0 || c->eos[i] >= c->vocab)
            return bad(err, where, "eos_token_id", "ids below vocab_size", c->eos[i]);
    return TD_OK;
}

uint64_t td_model_config_hash(const td_model_config *c)
{
    const int64_t ints[] = {c->n_layers,     c->hidden,        c->n_q_heads,
                            c->n_kv_heads,   c->head_dim,      c->n_experts,
                            c->top_k,        c->inter,         c->vocab,
                            c->window,       c->max_positions, c->yarn_original_positions,
                            c->yarn_truncate};
    const double reals[] = {(double)c->eps, (double)c->swiglu_limit, c->rope_theta,
                            c->yarn_factor, c->yarn_beta_fast,       c->yarn_beta_slow};
    uint64_t h = TD_HASH_START;

    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        h = td_hash_u64(h, (uint64_t)ints[i]);
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        h = td_hash_f64(h, reals[i]);
    for (int32_t l = 0; l < c->n_layers; l++)
        h = td_hash_u64(h, c->windowed[l]);
    return td_hash_end(h);
}

uint64_t td_model_config_params(const td_model_config *c)
{
    const uint64_t D = (uint64_t)c->hidden, I = (uint64_t)c->inter, E = (uint64_t)c->n_experts;
    const uint64_t hq = (uint64_t)c->n_q_heads * (uint64_t)c->head_dim;
    const uint64_t hk = (uint64_t)c->n_kv_heads * (uint64_t)c->head_dim;
    const uint64_t attention =
        (hq + 2 * hk) * (D + 1) + D * (hq + 1) + (uint64_t)c->n_q_heads + 2 * D;
    const uint64_t moe = E * (D + 1) + E * (2 * I * (D + 1) + D * (I + 1));

    return (uint64_t)c->n_layers * (attention + moe) + 2 * (uint64_t)c->vocab * D + D;
}
