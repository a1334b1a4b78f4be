#include "router/completion_body.h"

#include <math.h>
#include <stdio.h>

#include "router/openai_fields.h"
#include "router/openai_json.h"

td_status completion_take_ids(const cJSON *array, const char *name, const tokenizer *t,
                              td_tokens *out, td_error *err)
{
    const cJSON *v;
    size_t i = 0;

    cJSON_ArrayForEach(v, array)
    {
        double d = v->valuedouble;
        char path[64];
        td_slice bytes;

        snprintf(path, sizeof path, "%s[%zu]", name, i++);
        if (!cJSON_IsNumber(v))
            return td_fail_param(err, path, "%s must be a token id, not %s", path,
                                 openai_type_name(v));
        if (!isfinite(d) || d != floor(d) || d < 0 || d >= tokenizer_vocab(t))
            return td_fail_param(err, path,
                                 "%s must be a token id, a whole number between 0 and %d", path,
                                 tokenizer_vocab(t) - 1);
        if (!tokenizer_bytes(t, (int32_t)d, &bytes))
            return td_fail_param(err, path, "%s: the vocabulary has no token %d", path, (int32_t)d);
        td_tokens_push(out, (int32_t)d);
    }
    return out->oom ? td_fail(err, TD_NOMEM, "no memory for tokens") : TD_OK;
}

/* A string, an array of ids, or an array of just one of either. */
static td_status take_prompt(const cJSON *root, const tokenizer *t, generation *g, td_error *err)
{
    const cJSON *v = openai_field(root, "prompt");
    const char *name = "prompt";

    if (v == NULL)
        return td_fail_param(err, "prompt", "prompt is missing");
    if (cJSON_IsArray(v) && (cJSON_IsString(v->child) || cJSON_IsArray(v->child))) {
        if (v->child->next != NULL)
            return td_fail_param(err, "prompt",
                                 "several prompts in one request are not supported: send one each");
        v = v->child;
        name = "prompt[0]";
    }
    if (cJSON_IsArray(v)) {
        if (v->child == NULL)
            return td_fail_param(err, "prompt", "prompt is empty: at least one token is needed");
        return completion_take_ids(v, name, t, &g->raw_tokens, err);
    }
    if (!cJSON_IsString(v))
        return td_fail_param(err, "prompt",
                             "prompt must be a string or an array of token ids, not %s",
                             openai_type_name(v));
    if (v->valuestring[0] == '\0')
        return td_fail_param(err, "prompt", "prompt is empty: at least one token is needed");
    g->raw_text = chat_str(&g->chat, v->valuestring);
    return TD_OK;
}

/* The number of rivals: 0 asks for the drawn tokens' own values. */
static td_status take_logprobs(const cJSON *root, generation *g, td_error *err)
{
    int64_t n = -1;
    td_status st = openai_take_integer(root, "logprobs", 0, TD_TOP_LOGPROBS, &n, err);

    g->logprobs = n >= 0;
    g->top_logprobs = n >= 0 ? (int32_t)n : 0;
    return st;
}

td_status completion_parse(const char *body, size_t n, const openai_defaults *d, const tokenizer *t,
                           generation *g, td_error *err)
{
    cJSON *root = NULL;
    td_status st;

    generation_init(g);
    g->raw = true;
    g->max_tokens = COMPLETION_MAX_TOKENS;
    st = openai_read_json(body, n, d, &root, err);
    if (st != TD_OK)
        return st;
    st = openai_check_completion(root, err);
    if (st == TD_OK)
        st = openai_take_common(root, d, g, err);
    if (st == TD_OK)
        st = openai_take_n(root, d, g, err);
    if (st == TD_OK)
        st = take_logprobs(root, g, err);
    if (st == TD_OK)
        st = take_prompt(root, t, g, err);
    if (st == TD_OK && g->chat.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the request");
    cJSON_Delete(root);
    return st;
}
