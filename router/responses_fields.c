/* Each function here takes one field of the body and appends the member of the Response object that
 * repeats it. */
#include "router/responses_fields.h"

#include <stdio.h>
#include <string.h>

#include "router/harmony_tools.h"
#include "router/openai_fields.h"
#include "router/openai_json.h"

enum { MAX_METADATA = 16, MAX_METADATA_KEY = 64, MAX_METADATA_VALUE = 512 };

static bool is_word(const cJSON *v, const char *word)
{
    return cJSON_IsString(v) && strcmp(v->valuestring, word) == 0;
}

/* One of the words of a list that ends with NULL. */
static bool is_one_of(const cJSON *v, const char *const *words)
{
    for (; cJSON_IsString(v) && *words != NULL; words++)
        if (strcmp(v->valuestring, *words) == 0)
            return true;
    return false;
}

/* ---- the fields ---- */

static void echo_text(td_buf *b, const char *name, td_slice text)
{
    td_buf_fmt(b, ",\"%s\":", name);
    if (text.ptr == NULL) {
        td_buf_str(b, "null");
        return;
    }
    td_buf_byte(b, '"');
    td_buf_json(b, text.ptr, text.len);
    td_buf_byte(b, '"');
}

/* A text that is only repeated in the answer. */
static td_status take_label(const cJSON *root, const char *name, td_buf *echo, td_error *err)
{
    const cJSON *v = openai_field(root, name);

    if (v != NULL && !cJSON_IsString(v))
        return td_fail_param(err, name, "%s must be a string, not %s", name, openai_type_name(v));
    echo_text(echo, name, v != NULL ? td_slice_of(v->valuestring) : (td_slice){NULL, 0});
    return TD_OK;
}

/* Of valid UTF-8. */
static size_t characters(const char *text)
{
    size_t n = 0;

    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static td_status take_metadata(const cJSON *root, td_buf *echo, td_error *err)
{
    const cJSON *o = openai_field(root, "metadata"), *v;

    td_buf_str(echo, ",\"metadata\":");
    if (o == NULL) {
        td_buf_str(echo, "{}");
        return TD_OK;
    }
    if (!cJSON_IsObject(o))
        return td_fail_param(err, "metadata", "metadata must be an object, not %s",
                             openai_type_name(o));
    if (cJSON_GetArraySize(o) > MAX_METADATA)
        return td_fail_param(err, "metadata", "metadata may have at most %d members", MAX_METADATA);
    cJSON_ArrayForEach(v, o)
    {
        if (!cJSON_IsString(v) || characters(v->string) > MAX_METADATA_KEY ||
            characters(v->valuestring) > MAX_METADATA_VALUE)
            return td_fail_param(err, "metadata",
                                 "metadata[\"%.*s\"]: names have at most %d characters, values "
                                 "are strings of at most %d",
                                 chat_shown(td_slice_of(v->string)), v->string, MAX_METADATA_KEY,
                                 MAX_METADATA_VALUE);
    }
    harmony_json_compact(echo, o);
    return TD_OK;
}

static td_status take_limits(const cJSON *root, responses_request *q, td_error *err)
{
    int64_t tokens = 0, calls = 0;
    td_status st = openai_take_integer(root, "max_output_tokens", 1, 4294967295.0, &tokens, err);

    if (st == TD_OK) /* it bounds calls of tools that run here, of which there are none */
        st = openai_take_integer(root, "max_tool_calls", 0, 4294967295.0, &calls, err);
    if (st != TD_OK)
        return st;
    q->g.max_tokens = (uint32_t)tokens;
    if (tokens > 0)
        td_buf_fmt(&q->echo, ",\"max_output_tokens\":%lld", (long long)tokens);
    else
        td_buf_str(&q->echo, ",\"max_output_tokens\":null");
    if (openai_field(root, "max_tool_calls") != NULL)
        td_buf_fmt(&q->echo, ",\"max_tool_calls\":%lld", (long long)calls);
    else
        td_buf_str(&q->echo, ",\"max_tool_calls\":null");
    return TD_OK;
}

/* Values were checked by openai_take_common(). */
static void echo_number(const cJSON *root, const char *name, const char *otherwise, td_buf *echo)
{
    const cJSON *v = openai_field(root, name);

    td_buf_fmt(echo, ",\"%s\":", name);
    if (v != NULL)
        harmony_json_compact(echo, v);
    else
        td_buf_str(echo, otherwise);
}

static td_status take_reasoning(const cJSON *root, responses_request *q, td_error *err)
{
    static const char *const efforts[] = {"low", "medium", "high"};
    static const char *const summaries[] = {"auto", "concise", "detailed", "none", NULL};
    static const char *const names[] = {"summary", "generate_summary"}; /* now, and once */
    const cJSON *o = openai_field(root, "reasoning"), *summary;
    char field[40];
    td_status st;

    if (o != NULL && !cJSON_IsObject(o))
        return td_fail_param(err, "reasoning", "reasoning must be an object, not %s",
                             openai_type_name(o));
    st = openai_take_effort(openai_field(o, "effort"), "reasoning.effort", &q->g.chat.effort, err);
    if (st != TD_OK)
        return st;
    /* Nothing is hidden that a summary would have to stand for: the reasoning itself is sent. */
    for (size_t i = 0; i < 2; i++) {
        summary = openai_field(o, names[i]);
        if (summary == NULL || is_one_of(summary, summaries))
            continue;
        snprintf(field, sizeof field, "reasoning.%s", names[i]);
        return td_fail_param(err, field, "%s must be auto, concise or detailed", field);
    }
    td_buf_fmt(&q->echo, ",\"reasoning\":{\"effort\":\"%s\",\"summary\":null}",
               efforts[q->g.chat.effort]);
    return TD_OK;
}

/* What the answer is held to, as it was understood. */
static void echo_format(const chat *c, td_buf *b)
{
    static const char *const types[] = {[CHAT_FORMAT_TEXT] = "text",
                                        [CHAT_FORMAT_JSON_OBJECT] = "json_object",
                                        [CHAT_FORMAT_JSON_SCHEMA] = "json_schema"};

    td_buf_fmt(b, ",\"text\":{\"format\":{\"type\":\"%s\"", types[c->format]);
    if (c->format == CHAT_FORMAT_JSON_SCHEMA) {
        echo_text(b, "name", c->format_name);
        echo_text(b, "description", c->format_description);
        td_buf_str(b, ",\"schema\":");
        if (c->format_schema != NULL)
            harmony_json_compact(b, c->format_schema);
        else
            td_buf_str(b, "{}");
        td_buf_fmt(b, ",\"strict\":%s", c->format_loose ? "false" : "true");
    }
    /* Models of this family know no verbosity; what they do is the middle one. */
    td_buf_str(b, "},\"verbosity\":\"medium\"}");
}

static td_status take_text(cJSON *root, responses_request *q, td_error *err)
{
    static const char *const words[] = {"low", "medium", "high", NULL};
    cJSON *o = cJSON_GetObjectItemCaseSensitive(root, "text");
    const cJSON *verbosity;
    td_status st = TD_OK;

    if (o != NULL && !cJSON_IsNull(o) && !cJSON_IsObject(o))
        return td_fail_param(err, "text", "text must be an object, not %s", openai_type_name(o));
    verbosity = openai_field(o, "verbosity");
    if (verbosity != NULL && !is_one_of(verbosity, words))
        return td_fail_param(err, "text.verbosity", "text.verbosity must be low, medium or high");
    st = openai_take_format(cJSON_GetObjectItemCaseSensitive(o, "format"), "text.format", NULL,
                            &q->g.chat, err);
    if (st == TD_OK)
        echo_format(&q->g.chat, &q->echo);
    return st;
}

/* What may be asked for beside the answer. All but the log-probabilities concern tools that do not
 * run here, and reasoning that is not encrypted: nothing is missing from the answer without them.
 */
static td_status take_include(const cJSON *root, responses_request *q, td_error *err)
{
    static const char *const words[] = {"file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "message.input_image.image_url",
                                        "computer_call_output.output.image_url",
                                        "code_interpreter_call.outputs",
                                        "reasoning.encrypted_content",
                                        NULL};
    const cJSON *list = openai_field(root, "include"), *v;
    int64_t top = 0;
    td_status st = openai_take_integer(root, "top_logprobs", 0, TD_TOP_LOGPROBS, &top, err);

    if (st != TD_OK)
        return st;
    if (list != NULL && !cJSON_IsArray(list))
        return td_fail_param(err, "include", "include must be an array, not %s",
                             openai_type_name(list));
    cJSON_ArrayForEach(v, list)
    {
        if (is_word(v, "message.output_text.logprobs"))
            q->g.logprobs = true;
        else if (!is_one_of(v, words))
            return td_fail_param(err, "include", "include has %s%.60s, which is unknown",
                                 cJSON_IsString(v) ? "" : openai_type_name(v),
                                 cJSON_IsString(v) ? v->valuestring : "");
    }
    if (top > 0 && !q->g.logprobs)
        return td_fail_param(err, "top_logprobs",
                             "top_logprobs needs include: [\"message.output_text.logprobs\"]");
    q->g.top_logprobs = (int32_t)top;
    td_buf_fmt(&q->echo, ",\"top_logprobs\":%d", (int)top);
    return TD_OK;
}

/* ---- tools ---- */

static void echo_tools(const chat *c, td_buf *b)
{
    td_buf_str(b, ",\"tools\":[");
    for (size_t i = 0; i < c->n_tools; i++) {
        const chat_tool *t = &c->tools[i];

        td_buf_fmt(b, "%s{\"type\":\"function\"", i > 0 ? "," : "");
        echo_text(b, "name", t->name);
        echo_text(b, "description", t->description);
        td_buf_str(b, ",\"parameters\":");
        harmony_json_compact(b, t->parameters);
        td_buf_fmt(b, ",\"strict\":%s}", t->strict ? "true" : "false");
    }
    td_buf_byte(b, ']');
}

static td_status take_tools(cJSON *root, responses_request *q, td_error *err)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "tools"), *t, *next;
    char where[32];
    size_t i = 0;

    if (list != NULL && !cJSON_IsNull(list) && !cJSON_IsArray(list))
        return td_fail_param(err, "tools", "tools must be an array, not %s",
                             openai_type_name(list));
    for (t = list != NULL ? list->child : NULL; t != NULL; t = next) {
        const cJSON *type = cJSON_IsObject(t) ? openai_field(t, "type") : NULL;
        td_status st;

        next = t->next;
        snprintf(where, sizeof where, "tools[%zu]", i);
        i++;
        if (!cJSON_IsString(type))
            return td_fail_param(err, where, "%s must be an object with a type", where);
        if (!is_word(type, "function"))
            return td_fail_param(err, where,
                                 "%s has type \"%.40s\": only \"function\" is supported", where,
                                 type->valuestring);
        st = openai_take_function(t, where, &q->g.chat, err);
        if (st != TD_OK)
            return st;
    }
    echo_tools(&q->g.chat, &q->echo);
    return openai_check_tool_names(&q->g.chat, "", err);
}

static td_status take_tool_choice(const cJSON *root, responses_request *q, td_error *err)
{
    static const char *const words[] = {
        [CHAT_TOOL_AUTO] = "auto", [CHAT_TOOL_NONE] = "none", [CHAT_TOOL_REQUIRED] = "required"};
    td_status st = openai_take_tool_choice(root, &q->g.chat, err);

    if (st != TD_OK)
        return st;
    td_buf_str(&q->echo, ",\"tool_choice\":");
    if (q->g.chat.tool_choice == CHAT_TOOL_NAMED) {
        td_buf_str(&q->echo, "{\"type\":\"function\"");
        echo_text(&q->echo, "name", q->g.chat.tool_choice_name);
        td_buf_byte(&q->echo, '}');
    } else {
        td_buf_fmt(&q->echo, "\"%s\"", words[q->g.chat.tool_choice]);
    }
    return TD_OK;
}

static td_status take_parallel(const cJSON *root, responses_request *q, td_error *err)
{
    /* The model ends its turn with each call, so that either wish is met. */
    bool parallel = true;
    td_status st = openai_take_bool(openai_field(root, "parallel_tool_calls"),
                                    "parallel_tool_calls", &parallel, err);

    td_buf_fmt(&q->echo, ",\"parallel_tool_calls\":%s", parallel ? "true" : "false");
    return st;
}

/* ---- all of them ---- */

td_status responses_take_fields(cJSON *root, const openai_defaults *d, responses_request *q,
                                td_error *err)
{
    static const char *const tiers[] = {"auto",     "default", "flex",      "scale",
                                        "priority", "fast",    "ultrafast", NULL};
    static const char *const labels[] = {"instructions", "previous_response_id", "prompt_cache_key",
                                         "safety_identifier", "user"};
    const cJSON *tier = openai_field(root, "service_tier");
    td_status st = openai_check_responses(root, err);

    if (st == TD_OK)
        st = openai_take_common(root, d, &q->g, err);
    if (st == TD_OK)
        st = openai_take_bool(openai_field(root, "store"), "store", &q->store, err);
    if (st == TD_OK && tier != NULL && !is_one_of(tier, tiers))
        st = td_fail_param(err, "service_tier", "service_tier must be auto or default");
    td_buf_str(&q->echo, "\"background\":false,\"service_tier\":\"default\","
                         "\"truncation\":\"disabled\"");
    echo_number(root, "temperature", "1.0", &q->echo);
    echo_number(root, "top_p", "1.0", &q->echo);
    for (size_t i = 0; st == TD_OK && i < sizeof labels / sizeof *labels; i++)
        st = take_label(root, labels[i], &q->echo, err);
    if (st == TD_OK)
        st = take_limits(root, q, err);
    if (st == TD_OK)
        st = take_metadata(root, &q->echo, err);
    if (st == TD_OK)
        st = take_reasoning(root, q, err);
    if (st == TD_OK)
        st = take_text(root, q, err);
    if (st == TD_OK)
        st = take_include(root, q, err);
    if (st == TD_OK)
        st = take_tools(root, q, err);
    if (st == TD_OK)
        st = take_tool_choice(root, q, err);
    if (st == TD_OK)
        st = take_parallel(root, q, err);
    return st;
}
