/* Messages and their texts. */
#include "router/openai_json.h"

#include <stdio.h>
#include <string.h>

#include "router/openai_fields.h"

/* "messages[3].content", for errors. */
typedef struct path {
    char text[64];
} path;

static path at(size_t i, const char *field)
{
    path p;

    snprintf(p.text, sizeof p.text, "messages[%zu]%s%s", i, field[0] ? "." : "", field);
    return p;
}

/* Whether a part may be of this type: the APIs have different words for text. */
static bool is_text(const char *type, const char *also)
{
    return strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 ||
           strcmp(type, "output_text") == 0 || (also != NULL && strcmp(type, also) == 0);
}

td_status openai_take_text(const cJSON *v, const char *where, const char *also, chat *c,
                           td_slice *out, td_error *err)
{
    const cJSON *part;
    td_buf joined = {0};
    td_status st = TD_OK;
    int k = 0;

    if (v == NULL)
        return TD_OK;
    if (cJSON_IsString(v)) {
        *out = chat_str(c, v->valuestring);
        return TD_OK;
    }
    if (!cJSON_IsArray(v))
        return td_fail_param(err, where, "%s must be a string or an array of parts, not %s", where,
                             openai_type_name(v));
    cJSON_ArrayForEach(part, v)
    {
        const cJSON *type = cJSON_IsObject(part) ? openai_field(part, "type") : NULL;
        const char *name = "text";
        const cJSON *text;
        char which[96];

        snprintf(which, sizeof which, "%s[%d]", where, k++);
        if (!cJSON_IsString(type)) {
            st = td_fail_param(err, which, "%s must be an object with a type", which);
            break;
        }
        if (strcmp(type->valuestring, "refusal") == 0) {
            name = "refusal"; /* text as well, in a member of this name */
        } else if (!is_text(type->valuestring, also)) {
            st = td_fail_param(err, which, "%s has type \"%.40s\": only text is supported", which,
                               type->valuestring);
            break;
        }
        text = openai_field(part, name);
        if (!cJSON_IsString(text)) {
            st = td_fail_param(err, which, "%s.%s must be a string", which, name);
            break;
        }
        td_buf_str(&joined, text->valuestring);
    }
    if (st == TD_OK && joined.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the request");
    if (st == TD_OK)
        *out = chat_text(c, joined.ptr ? joined.ptr : "", joined.len);
    td_buf_free(&joined);
    return st;
}

static td_status take_content(const cJSON *m, size_t i, const char *name, chat *c, td_slice *out,
                              td_error *err)
{
    return openai_take_text(openai_field(m, name), at(i, name).text, NULL, c, out, err);
}

td_status openai_take_string(const cJSON *o, const char *name, const char *where, bool needed,
                             chat *c, td_slice *out, td_error *err)
{
    const cJSON *v = openai_field(o, name);
    char full[128];

    snprintf(full, sizeof full, "%s.%s", where, name);
    if (v == NULL && needed)
        return td_fail_param(err, full, "%s is missing", full);
    if (v == NULL)
        return TD_OK;
    if (!cJSON_IsString(v))
        return td_fail_param(err, full, "%s must be a string, not %s", full, openai_type_name(v));
    *out = chat_str(c, v->valuestring);
    return TD_OK;
}

static td_status take_calls(const cJSON *m, size_t i, chat *c, chat_message *out, td_error *err)
{
    const cJSON *v = openai_field(m, "tool_calls"), *call;
    int k = 0;

    if (v == NULL)
        return TD_OK;
    if (!cJSON_IsArray(v))
        return td_fail_param(err, at(i, "tool_calls").text, "%s must be an array, not %s",
                             at(i, "tool_calls").text, openai_type_name(v));
    cJSON_ArrayForEach(call, v)
    {
        chat_tool_call *t = chat_add_tool_call(c, out);
        const cJSON *type, *function;
        char where[96], inner[112];
        td_status st;

        snprintf(where, sizeof where, "%s[%d]", at(i, "tool_calls").text, k++);
        snprintf(inner, sizeof inner, "%s.function", where);
        if (!cJSON_IsObject(call))
            return td_fail_param(err, where, "%s must be an object, not %s", where,
                                 openai_type_name(call));
        type = openai_field(call, "type");
        if (type != NULL && !(cJSON_IsString(type) && strcmp(type->valuestring, "function") == 0))
            return td_fail_param(err, where, "%s.type must be \"function\"", where);
        function = openai_field(call, "function");
        if (!cJSON_IsObject(function))
            return td_fail_param(err, inner, "%s must be an object", inner);
        st = openai_take_string(call, "id", where, true, c, &t->id, err);
        if (st == TD_OK)
            st = openai_take_string(function, "name", inner, true, c, &t->name, err);
        if (st == TD_OK)
            st = openai_take_string(function, "arguments", inner, true, c, &t->arguments, err);
        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}

/* Members that would be lost without a word: old forms, and what belongs to another role. */
static td_status check_message(const cJSON *m, size_t i, chat_role role, td_error *err)
{
    static const openai_rule rules[] = {
        {"name", ANY_STRING, NULL},
        {"refusal", ANY_STRING, NULL},
        {"function_call", ONLY_NOTHING, "it is the old form: use tool_calls"},
        {"audio", ONLY_NOTHING, "the model reads and writes text"},
        {"prefix", ONLY_FALSE, "use continue_final_message"},
    };
    static const openai_rule of_assistants[] = {
        {"tool_calls", ONLY_EMPTY, "only assistant messages have calls"},
    };
    const path where = at(i, "");
    td_status st = openai_check_rules(m, where.text, rules, sizeof rules / sizeof *rules, err);

    if (st == TD_OK && role != CHAT_ASSISTANT)
        st = openai_check_rules(m, where.text, of_assistants, 1, err);
    return st;
}

static td_status take_message(const cJSON *m, size_t i, chat *c, td_error *err)
{
    static const struct {
        const char *name;
        chat_role role;
    } roles[] = {{"system", CHAT_SYSTEM},
                 {"developer", CHAT_DEVELOPER},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT},
                 {"tool", CHAT_TOOL}};
    const cJSON *role = cJSON_IsObject(m) ? openai_field(m, "role") : NULL;
    chat_message *out = NULL;
    td_status st;

    if (!cJSON_IsObject(m))
        return td_fail_param(err, at(i, "").text, "%s must be an object, not %s", at(i, "").text,
                             openai_type_name(m));
    for (size_t k = 0; cJSON_IsString(role) && k < sizeof roles / sizeof *roles; k++)
        if (strcmp(role->valuestring, roles[k].name) == 0)
            out = chat_add_message(c, roles[k].role);
    if (out == NULL)
        return td_fail_param(err, at(i, "role").text,
                             "%s must be system, developer, user, assistant or tool",
                             at(i, "role").text);
    st = check_message(m, i, out->role, err);
    if (st == TD_OK)
        st = take_content(m, i, "content", c, &out->content, err);
    if (st != TD_OK)
        return st;
    if (out->content.ptr == NULL && out->role != CHAT_ASSISTANT)
        return td_fail_param(err, at(i, "content").text, "%s is missing", at(i, "content").text);
    if (out->role == CHAT_TOOL)
        return openai_take_string(m, "tool_call_id", at(i, "").text, true, c, &out->tool_call_id,
                                  err);
    if (out->role != CHAT_ASSISTANT)
        return openai_take_string(m, "name", at(i, "").text, false, c, &out->name, err);
    /* What other models say in place of an answer is one, to a model that has no word for it. */
    if (out->content.ptr == NULL)
        st = openai_take_string(m, "refusal", at(i, "").text, false, c, &out->content, err);
    /* Two names are in use for one thing; a client that sends both sends the same. */
    if (st == TD_OK)
        st = take_content(m, i, "reasoning_content", c, &out->reasoning, err);
    if (st == TD_OK && openai_field(m, "reasoning") != NULL)
        st = take_content(m, i, "reasoning", c, &out->reasoning, err);
    if (st == TD_OK)
        st = take_calls(m, i, c, out, err);
    return st;
}

td_status openai_take_messages(const cJSON *root, chat *c, td_error *err)
{
    const cJSON *list = openai_field(root, "messages"), *m;
    size_t i = 0;

    if (!cJSON_IsArray(list))
        return td_fail_param(err, "messages",
                             list == NULL ? "messages is missing" : "messages must be an array");
    if (list->child == NULL)
        return td_fail_param(err, "messages", "messages is empty: at least one is needed");
    cJSON_ArrayForEach(m, list)
    {
        td_status st;

        st = take_message(m, i++, c, err);
        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}
