#include "router/responses_input.h"

#include <stdio.h>
#include <string.h>

#include "router/harmony_calls.h"
#include "router/openai_json.h"

/* "input[3].content", for errors. */
typedef struct path {
    char text[64];
} path;

typedef struct reader {
    chat *c;
    const char *name; /* of the array */
    size_t i;         /* item at hand */
    bool takes_calls; /* the last message of the chat, which the model went on from with a call */
    td_error *err;
} reader;

static path at(const reader *r, const char *field)
{
    path p;

    snprintf(p.text, sizeof p.text, "%s[%zu]%s%s", r->name, r->i, field[0] ? "." : "", field);
    return p;
}

static bool is_word(const cJSON *v, const char *word)
{
    return cJSON_IsString(v) && strcmp(v->valuestring, word) == 0;
}

static td_status take_assistant(reader *r, const cJSON *item, td_slice content)
{
    const cJSON *phase = openai_field(item, "phase");
    chat_message *m;

    if (phase != NULL && !is_word(phase, "commentary") && !is_word(phase, "final_answer"))
        return td_fail_param(r->err, at(r, "phase").text,
                             "%s must be \"commentary\" or \"final_answer\"", at(r, "phase").text);
    if (content.len == 0) /* it says nothing, and separates nothing */
        return TD_OK;
    m = chat_add_message(r->c, CHAT_ASSISTANT);
    m->content = content;
    m->preamble = is_word(phase, "commentary");
    /* Without a phase, as from other servers, what stands before a call was its preamble. */
    r->takes_calls = !is_word(phase, "final_answer");
    return TD_OK;
}

static td_status take_message(reader *r, const cJSON *item)
{
    static const struct {
        const char *name;
        chat_role role;
    } roles[] = {{"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT},
                 {"system", CHAT_SYSTEM},
                 {"developer", CHAT_DEVELOPER}};
    const cJSON *role = openai_field(item, "role");
    td_slice content = {NULL, 0};
    td_status st = openai_take_text(openai_field(item, "content"), at(r, "content").text, NULL,
                                    r->c, &content, r->err);

    if (st != TD_OK)
        return st;
    for (size_t k = 0; cJSON_IsString(role) && k < sizeof roles / sizeof *roles; k++) {
        if (strcmp(role->valuestring, roles[k].name) != 0)
            continue;
        if (content.ptr == NULL)
            return td_fail_param(r->err, at(r, "content").text, "%s is missing",
                                 at(r, "content").text);
        if (roles[k].role == CHAT_ASSISTANT)
            return take_assistant(r, item, content);
        chat_add_message(r->c, roles[k].role)->content = content;
        r->takes_calls = false;
        return TD_OK;
    }
    return td_fail_param(r->err, at(r, "role").text,
                         "%s must be user, assistant, system or developer", at(r, "role").text);
}

static td_status take_reasoning(reader *r, const cJSON *item)
{
    td_slice text = {NULL, 0};
    td_status st = openai_take_text(openai_field(item, "content"), at(r, "content").text,
                                    "reasoning_text", r->c, &text, r->err);

    if (st != TD_OK || text.len == 0)
        return st;
    chat_add_message(r->c, CHAT_ASSISTANT)->reasoning = text;
    r->takes_calls = true;
    return TD_OK;
}

static td_status take_call(reader *r, const cJSON *item)
{
    chat_tool_call call = {0};
    chat_message *m;
    const path where = at(r, "");
    td_status st = openai_take_string(item, "call_id", where.text, true, r->c, &call.id, r->err);

    if (st == TD_OK)
        st = openai_take_string(item, "name", where.text, true, r->c, &call.name, r->err);
    if (st == TD_OK)
        st = openai_take_string(item, "arguments", where.text, true, r->c, &call.arguments, r->err);
    if (st != TD_OK)
        return st;
    if (!harmony_call_name_ok(chat_bare_name(call.name)))
        return td_fail_param(r->err, at(r, "name").text, "%s: '%.*s' cannot be a function's name",
                             at(r, "name").text, chat_shown(call.name), call.name.ptr);
    if (r->takes_calls && r->c->n_messages > 0) /* none when memory has ended */
        m = &r->c->messages[r->c->n_messages - 1];
    else
        m = chat_add_message(r->c, CHAT_ASSISTANT);
    *chat_add_tool_call(r->c, m) = call;
    r->takes_calls = true;
    return TD_OK;
}

/* The call stands just before its output nearly always. */
static bool is_known_call(const chat *c, td_slice id)
{
    for (size_t i = c->n_messages; i-- > 0;)
        for (size_t k = c->messages[i].n_calls; k-- > 0;)
            if (td_slice_eq(c->messages[i].calls[k].id, id))
                return true;
    return false;
}

static td_status take_call_output(reader *r, const cJSON *item)
{
    td_slice id = {NULL, 0}, output = {NULL, 0};
    chat_message *m;
    td_status st = openai_take_string(item, "call_id", at(r, "").text, true, r->c, &id, r->err);

    if (st == TD_OK)
        st = openai_take_text(openai_field(item, "output"), at(r, "output").text, NULL, r->c,
                              &output, r->err);
    if (st != TD_OK)
        return st;
    if (output.ptr == NULL)
        return td_fail_param(r->err, at(r, "output").text, "%s is missing", at(r, "output").text);
    if (id.len == 0)
        return td_fail_param(r->err, at(r, "call_id").text, "%s is empty", at(r, "call_id").text);
    if (!r->c->oom && !is_known_call(r->c, id))
        return td_fail_param(r->err, at(r, "call_id").text,
                             "%s: no function_call before it has the call_id '%.*s'",
                             at(r, "call_id").text, chat_shown(id), id.ptr);
    m = chat_add_message(r->c, CHAT_TOOL);
    m->content = output;
    m->tool_call_id = id;
    r->takes_calls = false;
    return TD_OK;
}

const char *responses_reference(const cJSON *item)
{
    const cJSON *type = openai_field(item, "type"), *id = openai_field(item, "id");

    if (!cJSON_IsString(id) || (type == NULL && openai_field(item, "role") != NULL))
        return NULL;
    return type == NULL || is_word(type, "item_reference") ? id->valuestring : NULL;
}

static td_status take_item(reader *r, const cJSON *item)
{
    static const struct {
        const char *type;
        td_status (*take)(reader *r, const cJSON *item);
    } kinds[] = {{"message", take_message},
                 {"reasoning", take_reasoning},
                 {"function_call", take_call},
                 {"function_call_output", take_call_output}};
    const cJSON *type;

    if (!cJSON_IsObject(item))
        return td_fail_param(r->err, at(r, "").text, "%s must be an object, not %s", at(r, "").text,
                             openai_type_name(item));
    type = openai_field(item, "type");
    if (type == NULL && openai_field(item, "role") != NULL)
        return take_message(r, item);
    if (!cJSON_IsString(type))
        return td_fail_param(r->err, at(r, "type").text, "%s must be a string", at(r, "type").text);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (strcmp(type->valuestring, kinds[k].type) == 0)
            return kinds[k].take(r, item);
    if (is_word(type, "item_reference")) /* none that named an item, which was put in its place */
        return td_fail_param(r->err, at(r, "id").text, "%s must be the id of an item",
                             at(r, "id").text);
    return td_fail_param(r->err, at(r, "type").text,
                         "%s \"%.40s\" is not supported: items are message, reasoning, "
                         "function_call and function_call_output",
                         at(r, "type").text, type->valuestring);
}

td_status responses_take_items(const cJSON *array, const char *name, chat *c, td_error *err)
{
    reader r = {.c = c, .name = name, .err = err};
    const cJSON *item;

    cJSON_ArrayForEach(item, array)
    {
        td_status st;

        st = take_item(&r, item);
        if (st != TD_OK)
            return st;
        r.i++;
    }
    return TD_OK;
}
