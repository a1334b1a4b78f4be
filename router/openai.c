#include "router/openai.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/openai_fields.h"
#include "router/openai_json.h"

/* A number within [min, max]; absent leaves *out alone. */
static td_status take_number(const cJSON *root, const char *name, double min, double max,
                             double *out, td_error *err)
{
    const cJSON *v = openai_field(root, name);

    if (v == NULL)
        return TD_OK;
    if (!cJSON_IsNumber(v))
        return td_fail_param(err, name, "%s must be a number, not %s", name, openai_type_name(v));
    if (!isfinite(v->valuedouble) || v->valuedouble < min || v->valuedouble > max)
        return td_fail_param(err, name, "%s must be between %.10g and %.10g", name, min, max);
    *out = v->valuedouble;
    return TD_OK;
}

td_status openai_take_integer(const cJSON *root, const char *name, double min, double max,
                              int64_t *out, td_error *err)
{
    double d = NAN;
    td_status st = take_number(root, name, min, max, &d, err);

    if (st != TD_OK || isnan(d))
        return st;
    if (d != floor(d))
        return td_fail_param(err, name, "%s must be a whole number", name);
    *out = (int64_t)d;
    return TD_OK;
}

td_status openai_take_bool(const cJSON *v, const char *path, bool *out, td_error *err)
{
    if (v == NULL)
        return TD_OK;
    if (!cJSON_IsBool(v))
        return td_fail_param(err, path, "%s must be true or false, not %s", path,
                             openai_type_name(v));
    *out = cJSON_IsTrue(v);
    return TD_OK;
}

static td_status take_bool(const cJSON *root, const char *name, bool *out, td_error *err)
{
    return openai_take_bool(openai_field(root, name), name, out, err);
}

/* "-9223372036854775808" .. "18446744073709551615" as 64 bits; false: past either end. */
static bool exact_seed(const char *digits, uint64_t *out)
{
    errno = 0;
    *out = digits[0] == '-' ? (uint64_t)strtoll(digits, NULL, 10) : strtoull(digits, NULL, 10);
    return errno == 0;
}

static td_status take_seed(const cJSON *root, generation *g, td_error *err)
{
    const cJSON *v = openai_field(root, "seed");
    double d = v != NULL ? v->valuedouble : 0;

    if (v == NULL)
        return TD_OK;
    if (!cJSON_IsNumber(v) || !isfinite(d) || d != floor(d))
        return td_fail_param(err, "seed", "seed must be a whole number");
    g->has_seed = true;
    /* Past 2^53 a double no longer tells neighbours apart; chat_keep_numbers() kept the spelling.
     */
    if (v->valuestring != NULL && strpbrk(v->valuestring, ".eE") == NULL) {
        if (exact_seed(v->valuestring, &g->seed))
            return TD_OK;
    } else if (d >= -0x1p63 && d < 0x1p64) {
        g->seed = d < 0 ? (uint64_t)(int64_t)d : (uint64_t)d;
        return TD_OK;
    }
    return td_fail_param(err, "seed", "seed must be between -2^63 and 2^64 - 1");
}

static td_status take_stop(const cJSON *root, generation *g, td_error *err)
{
    const cJSON *v = openai_field(root, "stop"), *s;

    if (v == NULL)
        return TD_OK;
    if (cJSON_IsString(v)) {
        g->stop[g->n_stop++] = chat_str(&g->chat, v->valuestring);
    } else if (cJSON_IsArray(v)) {
        cJSON_ArrayForEach(s, v)
        {
            if (!cJSON_IsString(s))
                return td_fail_param(err, "stop", "stop must hold strings, not %s",
                                     openai_type_name(s));
            if (g->n_stop == GENERATION_MAX_STOPS)
                return td_fail_param(err, "stop", "stop may hold at most %d strings",
                                     GENERATION_MAX_STOPS);
            g->stop[g->n_stop++] = chat_str(&g->chat, s->valuestring);
        }
    } else {
        return td_fail_param(err, "stop", "stop must be a string or an array of strings, not %s",
                             openai_type_name(v));
    }
    for (size_t i = 0; i < g->n_stop; i++)
        if (g->stop[i].len == 0 || g->stop[i].len > OPENAI_MAX_STOP_BYTES)
            return td_fail_param(err, "stop", "a stop string must have 1 to %d bytes",
                                 OPENAI_MAX_STOP_BYTES);
    return TD_OK;
}

static td_status take_stream(const cJSON *root, generation *g, td_error *err)
{
    const cJSON *o = openai_field(root, "stream_options");
    td_status st = take_bool(root, "stream", &g->stream, err);
    bool always = false, padded = false;

    if (st != TD_OK || o == NULL)
        return st;
    if (!cJSON_IsObject(o))
        return td_fail_param(err, "stream_options", "stream_options must be an object, not %s",
                             openai_type_name(o));
    if (!g->stream)
        return td_fail_param(err, "stream_options", "stream_options needs stream: true");
    st = openai_take_bool(openai_field(o, "include_usage"), "stream_options.include_usage",
                          &g->include_usage, err);
    if (st == TD_OK)
        st = openai_take_bool(openai_field(o, "continuous_usage_stats"),
                              "stream_options.continuous_usage_stats", &always, err);
    if (st == TD_OK && always)
        st = td_fail_param(err, "stream_options.continuous_usage_stats",
                           "stream_options.continuous_usage_stats is not supported: usage comes "
                           "once, at the end");
    if (st == TD_OK)
        st = openai_take_bool(openai_field(o, "include_obfuscation"),
                              "stream_options.include_obfuscation", &padded, err);
    if (st == TD_OK && padded)
        st = td_fail_param(err, "stream_options.include_obfuscation",
                           "stream_options.include_obfuscation is not supported: events are not "
                           "padded");
    return st;
}

td_status openai_take_effort(const cJSON *v, const char *path, chat_effort *out, td_error *err)
{
    static const struct {
        const char *name;
        chat_effort effort;
    } words[] = {{"minimal", CHAT_EFFORT_LOW},
                 {"low", CHAT_EFFORT_LOW},
                 {"medium", CHAT_EFFORT_MEDIUM},
                 {"high", CHAT_EFFORT_HIGH}};

    if (v == NULL)
        return TD_OK;
    for (size_t i = 0; cJSON_IsString(v) && i < sizeof words / sizeof *words; i++) {
        if (strcmp(v->valuestring, words[i].name) == 0) {
            *out = words[i].effort;
            return TD_OK;
        }
    }
    return td_fail_param(err, path, "%s must be \"low\", \"medium\" or \"high\"", path);
}

/* A token's id as a member's name: digits without a leading 0, so that no id has two names. -1: it
 * is none, or not in the vocabulary. */
static int32_t token_id(const char *name, int32_t vocab)
{
    size_t n = strspn(name, "0123456789");
    long long id;

    if (n == 0 || n > 10 || name[n] != '\0' || (name[0] == '0' && n > 1))
        return -1;
    id = strtoll(name, NULL, 10);
    return id < vocab ? (int32_t)id : -1;
}

static int by_token(const void *a, const void *b)
{
    const td_token_bias *x = a, *y = b;

    return (x->token > y->token) - (x->token < y->token);
}

static td_status take_bias(const cJSON *root, const openai_defaults *d, generation *g,
                           td_error *err)
{
    const cJSON *o = openai_field(root, "logit_bias"), *v;
    size_t n;

    if (o == NULL)
        return TD_OK;
    if (!cJSON_IsObject(o))
        return td_fail_param(err, "logit_bias", "logit_bias must be an object, not %s",
                             openai_type_name(o));
    n = (size_t)cJSON_GetArraySize(o);
    if (n > GENERATION_MAX_BIAS)
        return td_fail_param(err, "logit_bias",
                             "logit_bias has %zu tokens, at most %d are possible", n,
                             GENERATION_MAX_BIAS);
    if (n == 0)
        return TD_OK;
    g->bias = calloc(n, sizeof *g->bias);
    if (g->bias == NULL)
        return td_fail(err, TD_NOMEM, "no memory for the request");
    cJSON_ArrayForEach(v, o)
    {
        int32_t token = token_id(v->string, d->vocab);

        if (token < 0)
            return td_fail_param(err, "logit_bias",
                                 "logit_bias has \"%.40s\": names must be ids of tokens, 0 to %d",
                                 v->string, d->vocab - 1);
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= -100 && v->valuedouble <= 100))
            return td_fail_param(err, "logit_bias",
                                 "logit_bias of token %d must be a number between -100 and 100",
                                 token);
        g->bias[g->n_bias++] = (td_token_bias){token, (float)v->valuedouble};
    }
    qsort(g->bias, n, sizeof *g->bias, by_token); /* no name is there twice, nor has an id two */
    return TD_OK;
}

static td_status take_penalties(const cJSON *root, generation *g, td_error *err)
{
    double frequency = 0, presence = 0;
    td_status st = take_number(root, "frequency_penalty", -2, 2, &frequency, err);

    if (st == TD_OK)
        st = take_number(root, "presence_penalty", -2, 2, &presence, err);
    g->frequency = (float)frequency;
    g->presence = (float)presence;
    return st;
}

static td_status take_logprobs(const cJSON *root, generation *g, td_error *err)
{
    int64_t top = 0;
    td_status st = take_bool(root, "logprobs", &g->logprobs, err);

    if (st == TD_OK)
        st = openai_take_integer(root, "top_logprobs", 0, TD_TOP_LOGPROBS, &top, err);
    if (st == TD_OK && top > 0 && !g->logprobs)
        st = td_fail_param(err, "top_logprobs", "top_logprobs needs logprobs: true");
    g->top_logprobs = (int32_t)top;
    return st;
}

static td_status take_limits(const cJSON *root, generation *g, td_error *err)
{
    int64_t a = 0, b = 0;
    td_status st = openai_take_integer(root, "max_tokens", 1, 4294967295.0, &a, err);

    if (st == TD_OK)
        st = openai_take_integer(root, "max_completion_tokens", 1, 4294967295.0, &b, err);
    if (st == TD_OK && a != 0 && b != 0 && a != b)
        st = td_fail_param(err, "max_tokens",
                           "max_tokens is %lld and max_completion_tokens %lld: give one of them",
                           (long long)a, (long long)b);
    if (a != 0 || b != 0)
        g->max_tokens = (uint32_t)(a ? a : b);
    return st;
}

/* With ignore_eos, as load tests have it, an answer has max_tokens anyway. */
static td_status take_min_tokens(const cJSON *root, const generation *g, td_error *err)
{
    int64_t n = 0;
    td_status st = openai_take_integer(root, "min_tokens", 0, 4294967295.0, &n, err);

    if (st == TD_OK && n > 0 && !g->ignore_eos)
        return td_fail_param(err, "min_tokens",
                             "min_tokens is not supported: an answer ends where the model ends it, "
                             "unless ignore_eos is true");
    if (st == TD_OK && g->max_tokens > 0 && n > g->max_tokens)
        return td_fail_param(err, "min_tokens", "min_tokens is %lld, more than max_tokens, %u",
                             (long long)n, g->max_tokens);
    return st;
}

static td_status take_sampling(const cJSON *root, const openai_defaults *d, generation *g,
                               td_error *err)
{
    double temperature = 1, top_p = 1;
    int64_t top_k = 0;
    td_status st = take_number(root, "temperature", 0, 2, &temperature, err);

    if (st == TD_OK)
        st = take_number(root, "top_p", 0, 1, &top_p, err);
    if (st == TD_OK) /* -1 is how vLLM's clients say "off" */
        st = openai_take_integer(root, "top_k", -1, 2147483647.0, &top_k, err);
    if (st == TD_OK)
        st = take_bool(root, "ignore_eos", &g->ignore_eos, err);
    if (st == TD_OK && g->ignore_eos && !d->allow_ignore_eos)
        st = td_fail_param(err, "ignore_eos", "ignore_eos is switched off on this server");
    if (st == TD_OK)
        st = take_min_tokens(root, g, err);
    if (st == TD_OK)
        st = take_seed(root, g, err);
    if (st == TD_OK)
        st = take_stop(root, g, err);
    if (st == TD_OK)
        st = take_penalties(root, g, err);
    if (st == TD_OK)
        st = take_bias(root, d, g, err);
    g->temperature = (float)temperature;
    /* The smallest set with mass 0 is the likeliest token: greedy. */
    g->top_p = top_p > 0 ? (float)top_p : 1;
    if (top_p <= 0 || !(g->top_p > 0))
        g->temperature = 0;
    if (!(g->top_p > 0))
        g->top_p = 1;
    g->top_k = top_k > 0 ? (int32_t)top_k : 0;
    return st;
}

td_status openai_take_n(const cJSON *root, const openai_defaults *d, generation *g, td_error *err)
{
    uint32_t most = d->max_choices ? d->max_choices : 1;
    int64_t n = 1;
    td_status st = openai_take_integer(root, "n", 1, 128, &n, err);

    if (st == TD_OK && n > most)
        st = td_fail_param(err, "n", "n is %lld: at most %u %s given to one request here",
                           (long long)n, most, most > 1 ? "answers are" : "answer is");
    g->n = (uint32_t)n;
    return st;
}

td_status openai_take_common(const cJSON *root, const openai_defaults *d, generation *g,
                             td_error *err)
{
    const cJSON *model = openai_field(root, "model");
    td_status st;

    if (model != NULL && !cJSON_IsString(model))
        return td_fail_param(err, "model", "model must be a string, not %s",
                             openai_type_name(model));
    if (model != NULL)
        g->model = chat_str(&g->chat, model->valuestring);
    st = take_limits(root, g, err);
    if (st == TD_OK)
        st = take_sampling(root, d, g, err);
    if (st == TD_OK)
        st = take_stream(root, g, err);
    return st;
}

/* How vLLM's clients say it: whether reasoning is sent, and whether a new message is begun, which
 * can only be the other side of continue_final_message. */
static td_status take_template(const cJSON *root, generation *g, td_error *err)
{
    bool reasoning = true, begin = !g->chat.continue_final;
    td_status st = take_bool(root, "include_reasoning", &reasoning, err);

    if (st == TD_OK)
        st = take_bool(root, "add_generation_prompt", &begin, err);
    if (st == TD_OK && begin == g->chat.continue_final)
        st = td_fail_param(err, "add_generation_prompt",
                           "add_generation_prompt must be %s continue_final_message",
                           begin ? "false with" : "true without");
    g->hide_reasoning = !reasoning;
    return st;
}

td_status openai_parse_chat(const char *body, size_t n, const openai_defaults *d, generation *g,
                            td_error *err)
{
    cJSON *root = NULL;
    td_status st;

    generation_init(g);
    st = openai_read_json(body, n, d, &root, err);
    if (st != TD_OK)
        return st;
    g->chat.date = chat_str(&g->chat, d->date);
    st = openai_take_messages(root, &g->chat, err);
    if (st == TD_OK)
        st = openai_take_tools(root, &g->chat, err);
    if (st == TD_OK)
        st = openai_take_effort(openai_field(root, "reasoning_effort"), "reasoning_effort",
                                &g->chat.effort, err);
    if (st == TD_OK)
        st = openai_take_format(cJSON_GetObjectItemCaseSensitive(root, "response_format"),
                                "response_format", "json_schema", &g->chat, err);
    if (st == TD_OK)
        st = openai_take_common(root, d, g, err);
    if (st == TD_OK)
        st = openai_take_n(root, d, g, err);
    if (st == TD_OK) /* /v1/completions has another form of it */
        st = take_logprobs(root, g, err);
    if (st == TD_OK)
        st = take_bool(root, "continue_final_message", &g->chat.continue_final, err);
    if (st == TD_OK)
        st = take_template(root, g, err);
    if (st == TD_OK)
        st = openai_check_chat(root, err);
    if (st == TD_OK)
        st = openai_check_common(root, err);
    if (st == TD_OK && g->chat.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the request");
    cJSON_Delete(root);
    return st;
}
