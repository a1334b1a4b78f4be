/* The two layouts spell the same facts differently:
 *
 *   Hugging Face                              OpenAI original
 *   num_local_experts                         num_experts
 *   num_experts_per_tok                       experts_per_token
 *   rope_scaling {factor, beta_fast, ...}     rope_scaling_factor, rope_ntk_beta, rope_ntk_alpha
 *     + rope_theta, or rope_parameters        rope_theta
 *   max_position_embeddings                   initial_context_length * rope_scaling_factor
 *   layer_types                               even layers slide
 *   rms_norm_eps                              1e-5 by definition
 *   eos_token_id, generation_config.json      the Harmony stop tokens by definition
 *
 * A reader remembers its first failure and then does nothing, so that the key list below reads as a
 * table; whoever called it looks at st once. */
#include "common/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json_file.h"
#include "common/model_config_limits.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_DEPTH = 32 };

/* <|return|>, <|endoftext|>, <|call|> of o200k_harmony, the only vocabulary of the original layout.
 */
static const int32_t harmony_eos[] = {200002, 199999, 200012};

typedef struct reader {
    const char *what; /* file, for messages */
    td_status st;
    td_error *err;
} reader;

static const cJSON *get(reader *r, const cJSON *o, const char *key)
{
    const cJSON *item = NULL;

    if (r->st == TD_OK)
        r->st = td_json_key(o, key, r->what, &item, r->err);
    return cJSON_IsNull(item) ? NULL : item; /* null means absent in these files */
}

static void refuse(reader *r, const char *key, const char *expected, const cJSON *found)
{
    char shown[80];

    if (r->st == TD_OK)
        r->st = td_fail(r->err, TD_INVALID, "%s: %s: expected %s, found %s", r->what, key, expected,
                        td_json_show(found, shown, sizeof shown));
}

static int32_t get_int(reader *r, const cJSON *o, const char *key, int32_t lo, int32_t hi)
{
    const cJSON *item = get(r, o, key);
    char expected[80];
    int64_t v = lo;

    snprintf(expected, sizeof expected, "an integer from %d to %d", lo, hi);
    if (!td_json_int(item, lo, hi, &v))
        refuse(r, key, expected, item);
    return (int32_t)v;
}

static bool num_in(const cJSON *item, double lo, double hi, double *out)
{
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble) || item->valuedouble < lo ||
        item->valuedouble > hi)
        return false;
    *out = item->valuedouble;
    return true;
}

static double get_num(reader *r, const cJSON *o, const char *key, double lo, double hi)
{
    const cJSON *item = get(r, o, key);
    char expected[80];
    double v = lo;

    snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
    if (!num_in(item, lo, hi, &v))
        refuse(r, key, expected, item);
    return v;
}

static double get_num_or(reader *r, const cJSON *o, const char *key, double lo, double hi,
                         double absent)
{
    return get(r, o, key) == NULL ? absent : get_num(r, o, key, lo, hi);
}

static bool get_bool_or(reader *r, const cJSON *o, const char *key, bool absent)
{
    const cJSON *item = get(r, o, key);

    if (item == NULL)
        return absent;
    if (!cJSON_IsBool(item))
        refuse(r, key, "true or false", item);
    return cJSON_IsTrue(item);
}

/* A key that says which variant of the family this is; only one is implemented. */
static void want_bool(reader *r, const cJSON *o, const char *key, bool want)
{
    if (get_bool_or(r, o, key, want) != want)
        refuse(r, key, want ? "true, as in gpt-oss" : "false, as in gpt-oss", get(r, o, key));
}

static void want_string(reader *r, const cJSON *o, const char *key, const char *want, bool needed)
{
    const cJSON *item = get(r, o, key);
    char expected[80];

    if (item == NULL && !needed)
        return;
    snprintf(expected, sizeof expected, "\"%s\"", want);
    if (!cJSON_IsString(item) || strcmp(item->valuestring, want) != 0)
        refuse(r, key, expected, item);
}

/* A key that restates another; if both are there they must agree, or one of them is a lie. */
static void want_same(reader *r, const cJSON *o, const char *key, double v)
{
    const cJSON *item = get(r, o, key);
    char expected[80];

    snprintf(expected, sizeof expected, "%.17g as the key that says the same", v);
    if (item != NULL && (!cJSON_IsNumber(item) || item->valuedouble != v))
        refuse(r, key, expected, item);
}

static void read_widths(reader *r, const cJSON *o, td_model_config *c)
{
    c->n_layers = get_int(r, o, "num_hidden_layers", 1, TD_MAX_LAYERS);
    c->hidden = get_int(r, o, "hidden_size", 1, MAX_WIDTH);
    c->n_q_heads = get_int(r, o, "num_attention_heads", 1, MAX_HEADS);
    c->n_kv_heads = get_int(r, o, "num_key_value_heads", 1, MAX_HEADS);
    c->head_dim = get_int(r, o, "head_dim", 1, MAX_HEAD_DIM);
    c->inter = get_int(r, o, "intermediate_size", 1, MAX_WIDTH);
    c->vocab = get_int(r, o, "vocab_size", 1, MAX_VOCAB);
    c->window = get_int(r, o, "sliding_window", 1, MAX_POSITIONS);
    c->swiglu_limit = (float)get_num_or(r, o, "swiglu_limit", 1e-3, 1e6, 7.0);
}

static void read_layer_types(reader *r, const cJSON *o, td_model_config *c)
{
    const cJSON *list = get(r, o, "layer_types");
    const cJSON *item;
    char expected[80];
    int32_t n = 0;

    for (int32_t l = 0; l < c->n_layers; l++)
        c->windowed[l] = l % 2 == 0;
    if (list == NULL)
        return;
    snprintf(expected, sizeof expected, "a list of num_hidden_layers = %d entries", c->n_layers);
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layers) {
        refuse(r, "layer_types", expected, list);
        return;
    }
    cJSON_ArrayForEach(item, list)
    {
        bool full = cJSON_IsString(item) && strcmp(item->valuestring, "full_attention") == 0;

        if (!full &&
            (!cJSON_IsString(item) || strcmp(item->valuestring, "sliding_attention") != 0)) {
            refuse(r, "layer_types", "\"sliding_attention\" or \"full_attention\"", item);
            return;
        }
        c->windowed[n++] = !full;
    }
}

/* An object that holds YaRN's numbers: rope_scaling, or rope_parameters with the base in it. */
static void read_yarn(reader *r, const cJSON *o, const cJSON *root, td_model_config *c)
{
    double mscale;

    if (get(r, o, "rope_type") == NULL && get(r, o, "type") != NULL)
        want_string(r, o, "type", "yarn", true); /* the key's name before Transformers 4.43 */
    else
        want_string(r, o, "rope_type", "yarn", true);
    c->yarn_factor = get_num(r, o, "factor", 1, 1e4);
    c->yarn_beta_fast = get_num_or(r, o, "beta_fast", 1e-3, 1e6, 32);
    c->yarn_beta_slow = get_num_or(r, o, "beta_slow", 1e-3, 1e6, 1);
    c->yarn_truncate = get_bool_or(r, o, "truncate", true);
    if (get(r, o, "original_max_position_embeddings") != NULL)
        c->yarn_original_positions =
            get_int(r, o, "original_max_position_embeddings", 1, MAX_POSITIONS);
    else
        c->yarn_original_positions = get_int(r, root, "initial_context_length", 1, MAX_POSITIONS);
    /* The factor on cos and sin is computed, never read: a file that sets its own is not ours. */
    mscale = 0.1 * log(c->yarn_factor) + 1.0;
    if (fabs(get_num_or(r, o, "attention_factor", 0, 1e6, mscale) - mscale) > 1e-6)
        refuse(r, "attention_factor", "none, or 0.1 * ln(factor) + 1",
               get(r, o, "attention_factor"));
    if (get(r, o, "mscale") != NULL)
        refuse(r, "mscale", "none, as in gpt-oss", get(r, o, "mscale"));
}

static void read_rope_hf(reader *r, const cJSON *root, td_model_config *c)
{
    const cJSON *params = get(r, root, "rope_parameters");
    const cJSON *scaling = get(r, root, "rope_scaling");
    td_model_config other = {0};

    if (params == NULL && scaling == NULL) {
        refuse(r, "rope_scaling", "an object with rope_type \"yarn\" (or rope_parameters)", NULL);
        return;
    }
    if (params != NULL && !cJSON_IsObject(params))
        refuse(r, "rope_parameters", "an object", params);
    if (scaling != NULL && !cJSON_IsObject(scaling))
        refuse(r, "rope_scaling", "an object", scaling);
    read_yarn(r, params != NULL ? params : scaling, root, c);
    c->rope_theta =
        get_num(r, params != NULL && get(r, params, "rope_theta") != NULL ? params : root,
                "rope_theta", 1.0001, 1e12);
    if (params == NULL || r->st != TD_OK)
        return;
    want_same(r, root, "rope_theta", c->rope_theta);
    if (scaling == NULL)
        return;
    read_yarn(r, scaling, root, &other);
    if (other.yarn_factor != c->yarn_factor || other.yarn_beta_fast != c->yarn_beta_fast ||
        other.yarn_beta_slow != c->yarn_beta_slow || other.yarn_truncate != c->yarn_truncate ||
        other.yarn_original_positions != c->yarn_original_positions)
        refuse(r, "rope_scaling", "the same as rope_parameters", scaling);
}

static void read_quantization(reader *r, const cJSON *root)
{
    const cJSON *q = get(r, root, "quantization_config");

    /* Absent is fine here: if the tensors are not MXFP4 either, opening them says so by name. */
    if (q == NULL)
        return;
    if (!cJSON_IsObject(q))
        refuse(r, "quantization_config", "an object", q);
    else
        want_string(r, q, "quant_method", "mxfp4", true);
}

static void read_hf(reader *r, const cJSON *o, td_model_config *c)
{
    want_string(r, o, "model_type", "gpt_oss", true);
    read_widths(r, o, c);
    c->n_experts = get_int(r, o, "num_local_experts", 1, MAX_EXPERTS);
    c->top_k = get_int(r, o,
                       get(r, o, "num_experts_per_tok") != NULL ? "num_experts_per_tok"
                                                                : "experts_per_token",
                       1, MAX_EXPERTS);
    want_same(r, o, "experts_per_token", c->top_k);
    c->max_positions = get_int(r, o, "max_position_embeddings", 1, MAX_POSITIONS);
    c->eps = (float)get_num(r, o, "rms_norm_eps", 1e-12, 1e-1);
    read_layer_types(r, o, c);
    read_rope_hf(r, o, c);
    read_quantization(r, o);
    want_string(r, o, "hidden_act", "silu", false);
    want_bool(r, o, "attention_bias", true);
    want_bool(r, o, "tie_word_embeddings", false);
}

static void read_original(reader *r, const cJSON *o, td_model_config *c)
{
    double positions;

    c->original_layout = true;
    read_widths(r, o, c);
    c->n_experts = get_int(r, o, "num_experts", 1, MAX_EXPERTS);
    c->top_k = get_int(r, o, "experts_per_token", 1, MAX_EXPERTS);
    c->eps = 1e-5f;
    read_layer_types(r, o, c);
    c->rope_theta = get_num(r, o, "rope_theta", 1.0001, 1e12);
    c->yarn_factor = get_num(r, o, "rope_scaling_factor", 1, 1e4);
    c->yarn_beta_slow = get_num(r, o, "rope_ntk_alpha", 1e-3, 1e6);
    c->yarn_beta_fast = get_num(r, o, "rope_ntk_beta", 1e-3, 1e6);
    c->yarn_truncate = false;
    c->yarn_original_positions = get_int(r, o, "initial_context_length", 1, MAX_POSITIONS);
    positions = floor(c->yarn_original_positions * c->yarn_factor);
    if (positions > MAX_POSITIONS)
        refuse(r, "rope_scaling_factor", "at most 2^24 positions with initial_context_length",
               get(r, o, "rope_scaling_factor"));
    else
        c->max_positions = (int32_t)positions;
}

static void add_eos(reader *r, const cJSON *item, td_model_config *c)
{
    char expected[80];
    int64_t id = 0;

    snprintf(expected, sizeof expected, "token ids from 0 to vocab_size - 1 = %d", c->vocab - 1);
    if (!td_json_int(item, 0, c->vocab - 1, &id)) {
        refuse(r, "eos_token_id", expected, item);
        return;
    }
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return;
    if (c->n_eos == TD_MAX_EOS) {
        snprintf(expected, sizeof expected, "at most %d ids", TD_MAX_EOS);
        refuse(r, "eos_token_id", expected, item);
        return;
    }
    c->eos[c->n_eos++] = (int32_t)id;
}

static void read_eos(reader *r, const cJSON *o, td_model_config *c)
{
    const cJSON *eos = get(r, o, "eos_token_id");
    const cJSON *item;

    if (eos == NULL)
        return;
    if (!cJSON_IsArray(eos)) {
        add_eos(r, eos, c);
        return;
    }
    cJSON_ArrayForEach(item, eos)
    {
        if (r->st == TD_OK)
            add_eos(r, item, c);
    }
}

/* Stop tokens, from the most to the least specific source. */
static void find_eos(reader *r, const cJSON *config, const char *gen, size_t gen_len,
                     const char *where, td_model_config *c)
{
    td_model_config other = {.vocab = c->vocab};
    char what[256];
    cJSON *root = NULL;

    if (gen != NULL && r->st == TD_OK) {
        reader g = {what, TD_OK, r->err};

        snprintf(what, sizeof what, "%s/generation_config.json", where);
        g.st = td_json_parse(gen, gen_len, MAX_DEPTH, what, &root, r->err);
        if (g.st == TD_OK)
            read_eos(&g, root, c);
        cJSON_Delete(root);
        r->st = g.st;
    }
    /* Those of config.json stand back, but are no less looked at. */
    read_eos(r, config, c->n_eos == 0 ? c : &other);
    if (c->n_eos == 0 && c->original_layout && c->vocab > 200012)
        for (size_t i = 0; i < sizeof harmony_eos / sizeof harmony_eos[0]; i++)
            c->eos[c->n_eos++] = harmony_eos[i];
    if (c->n_eos == 0 && !c->original_layout)
        refuse(r, "eos_token_id", "a token id or a list here or in generation_config.json", NULL);
}

td_status td_model_config_parse(const char *text, size_t len, const char *gen, size_t gen_len,
                                const char *where, td_model_config *out, td_error *err)
{
    char what[256];
    td_model_config c;
    cJSON *root = NULL;
    reader r = {what, TD_OK, err};

    memset(&c, 0, sizeof c);
    where = td_path_tail(where);
    snprintf(what, sizeof what, "%s/config.json", where);
    r.st = td_json_parse(text, len, MAX_DEPTH, what, &root, err);
    if (r.st != TD_OK)
        return r.st;
    /* Only the original spells it num_experts; only Hugging Face's has a model_type. */
    if (get(&r, root, "num_experts") != NULL && get(&r, root, "model_type") == NULL)
        read_original(&r, root, &c);
    else
        read_hf(&r, root, &c);
    if (r.st == TD_OK)
        find_eos(&r, root, gen, gen_len, where, &c);
    if (r.st == TD_OK)
        r.st = td_model_config_check(&c, what, err);
    cJSON_Delete(root);
    if (r.st == TD_OK)
        *out = c;
    return r.st;
}

td_status td_model_config_read(const char *dir, td_model_config *out, td_error *err)
{
    char path[4352];
    td_buf text = {0}, gen = {0};
    td_status st;

    if (strlen(dir) > 4096)
        return td_fail(err, TD_INVALID, "model folder: its name is over 4096 bytes");
    snprintf(path, sizeof path, "%s/config.json", dir);
    st = td_file_read(path, MAX_CONFIG_BYTES, &text, err);
    if (st == TD_NOTFOUND)
        st = td_fail(err, TD_NOTFOUND,
                     "%s: not found; expected the folder of a gpt-oss model, with config.json and "
                     "safetensors files in it",
                     td_path_tail(path));
    if (st != TD_OK)
        goto done;
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    st = td_file_read(path, MAX_CONFIG_BYTES, &gen, err);
    if (st != TD_OK && st != TD_NOTFOUND)
        goto done;
    st = td_model_config_parse(text.len > 0 ? text.ptr : "", text.len,
                               st == TD_NOTFOUND ? NULL : (gen.len > 0 ? gen.ptr : ""), gen.len,
                               dir, out, err);
done:
    td_buf_free(&text);
    td_buf_free(&gen);
    return st;
}
