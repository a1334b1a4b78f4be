/* Tools, which of them must be called, and the form of the answer. */
#include "router/openai_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the form of the answer ---- */

static bool format_name_ok(td_slice name)
{
    for (size_t i = 0; i < name.len; i++) {
        char ch = name.ptr[i];

        if (!((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
              ch == '_' || ch == '-'))
            return false;
    }
    return name.len > 0 && name.len <= 64;
}

static td_status take_json_schema(cJSON *spec, const char *where, chat *c, td_error *err)
{
    cJSON *schema = cJSON_GetObjectItemCaseSensitive(spec, "schema");
    char field[96];
    bool strict = true; /* what is not said to be loose is held to */
    td_status st = openai_take_string(spec, "name", where, true, c, &c->format_name, err);

    snprintf(field, sizeof field, "%s.name", where);
    if (st == TD_OK && !format_name_ok(c->format_name))
        st = td_fail_param(err, field, "%s must be 1 to 64 of a-z, A-Z, 0-9, _ and -", field);
    if (st == TD_OK)
        st = openai_take_string(spec, "description", where, false, c, &c->format_description, err);
    snprintf(field, sizeof field, "%s.strict", where);
    if (st == TD_OK)
        st = openai_take_bool(openai_field(spec, "strict"), field, &strict, err);
    if (st != TD_OK)
        return st;
    c->format = CHAT_FORMAT_JSON_SCHEMA;
    c->format_loose = !strict;
    snprintf(field, sizeof field, "%s.schema", where);
    c->format_param = chat_str(c, field);
    if (schema == NULL || cJSON_IsNull(schema))
        return TD_OK;
    if (!cJSON_IsObject(schema))
        return td_fail_param(err, field, "%s must be a JSON schema, an object, not %s", field,
                             openai_type_name(schema));
    chat_set_format_schema(c, cJSON_DetachItemViaPointer(spec, schema));
    return TD_OK;
}

td_status openai_take_format(cJSON *format, const char *where, const char *inside, chat *c,
                             td_error *err)
{
    const cJSON *type;
    cJSON *spec = format;
    char field[96];

    if (format == NULL || cJSON_IsNull(format))
        return TD_OK;
    type = cJSON_IsObject(format) ? openai_field(format, "type") : NULL;
    if (!cJSON_IsString(type))
        return td_fail_param(err, where, "%s must be an object with a type", where);
    if (strcmp(type->valuestring, "text") == 0)
        return TD_OK;
    if (strcmp(type->valuestring, "json_object") == 0) {
        c->format = CHAT_FORMAT_JSON_OBJECT;
        return TD_OK;
    }
    snprintf(field, sizeof field, "%s.type", where);
    if (strcmp(type->valuestring, "json_schema") != 0)
        return td_fail_param(err, field, "%s \"%.40s\" is none of text, json_object, json_schema",
                             field, type->valuestring);
    if (inside == NULL)
        return take_json_schema(spec, where, c, err);
    snprintf(field, sizeof field, "%s.%s", where, inside);
    spec = cJSON_GetObjectItemCaseSensitive(format, inside);
    if (!cJSON_IsObject(spec))
        return td_fail_param(err, field, "%s must be an object", field);
    return take_json_schema(spec, field, c, err);
}

/* ---- tools ---- */

typedef struct named {
    td_slice name;
    size_t i;
} named;

static int by_tool(const void *pa, const void *pb)
{
    const named *a = pa, *b = pb;
    size_t n = a->name.len < b->name.len ? a->name.len : b->name.len;
    int d = n > 0 ? memcmp(a->name.ptr, b->name.ptr, n) : 0;

    if (d == 0 && a->name.len != b->name.len)
        d = a->name.len < b->name.len ? -1 : 1;
    return d != 0 ? d : (a->i > b->i) - (a->i < b->i);
}

td_status openai_check_tool_names(const chat *c, const char *inside, td_error *err)
{
    named *list = c->oom ? NULL : calloc(c->n_tools + 1, sizeof *list);
    td_status st = TD_OK;
    char field[64];

    if (list == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu tools", c->n_tools);
    for (size_t i = 0; i < c->n_tools; i++)
        list[i] = (named){chat_bare_name(c->tools[i].name), i};
    qsort(list, c->n_tools, sizeof *list, by_tool);
    for (size_t i = 1; st == TD_OK && i < c->n_tools; i++) {
        if (!td_slice_eq(list[i - 1].name, list[i].name))
            continue;
        snprintf(field, sizeof field, "tools[%zu]%s.name", list[i].i, inside);
        st = td_fail_param(err, field, "%s: '%.*s' is the name of tools[%zu] already", field,
                           chat_shown(list[i].name), list[i].name.ptr, list[i - 1].i);
    }
    free(list);
    return st;
}

td_status openai_take_function(cJSON *function, const char *where, chat *c, td_error *err)
{
    chat_tool *out = chat_add_tool(c);
    const cJSON *strict;
    cJSON *params;
    char field[96];
    td_status st = openai_take_string(function, "name", where, true, c, &out->name, err);

    if (st == TD_OK)
        st = openai_take_string(function, "description", where, false, c, &out->description, err);
    if (st != TD_OK)
        return st;
    strict = openai_field(function, "strict");
    snprintf(field, sizeof field, "%s.strict", where);
    if (strict != NULL && !cJSON_IsBool(strict))
        return td_fail_param(err, field, "%s must be true or false, not %s", field,
                             openai_type_name(strict));
    out->strict = cJSON_IsTrue(strict);
    params = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    if (params == NULL || cJSON_IsNull(params))
        return TD_OK;
    snprintf(field, sizeof field, "%s.parameters", where);
    out->param = chat_str(c, field);
    if (!cJSON_IsObject(params))
        return td_fail_param(err, field, "%s must be a JSON schema, an object, not %s", field,
                             openai_type_name(params));
    chat_set_parameters(c, out, cJSON_DetachItemViaPointer(function, params));
    return TD_OK;
}

static td_status take_tool(cJSON *t, size_t i, chat *c, td_error *err)
{
    char where[64], inner[80];
    const cJSON *type = cJSON_IsObject(t) ? openai_field(t, "type") : NULL;
    cJSON *function;

    snprintf(where, sizeof where, "tools[%zu]", i);
    snprintf(inner, sizeof inner, "tools[%zu].function", i);
    if (!cJSON_IsString(type))
        return td_fail_param(err, where, "%s must be an object with a type", where);
    if (strcmp(type->valuestring, "function") != 0)
        return td_fail_param(err, where, "%s has type \"%.40s\": only \"function\" is supported",
                             where, type->valuestring);
    function = cJSON_GetObjectItemCaseSensitive(t, "function");
    if (!cJSON_IsObject(function))
        return td_fail_param(err, inner, "%s must be an object", inner);
    return openai_take_function(function, inner, c, err);
}

td_status openai_take_tool_choice(const cJSON *root, chat *c, td_error *err)
{
    const cJSON *v = openai_field(root, "tool_choice"), *f;

    if (v == NULL)
        return TD_OK;
    if (cJSON_IsString(v)) {
        if (strcmp(v->valuestring, "auto") == 0)
            c->tool_choice = CHAT_TOOL_AUTO;
        else if (strcmp(v->valuestring, "none") == 0)
            c->tool_choice = CHAT_TOOL_NONE;
        else if (strcmp(v->valuestring, "required") == 0)
            c->tool_choice = CHAT_TOOL_REQUIRED;
        else
            return td_fail_param(err, "tool_choice",
                                 "tool_choice must be auto, none, required or a function");
        if (c->tool_choice == CHAT_TOOL_REQUIRED && c->n_tools == 0)
            return td_fail_param(err, "tool_choice",
                                 "tool_choice is required, but there are no tools");
        return TD_OK;
    }
    f = cJSON_IsObject(v) ? openai_field(v, "type") : NULL;
    if (f != NULL && !cJSON_IsString(f))
        return td_fail_param(err, "tool_choice.type", "tool_choice.type must be a string, not %s",
                             openai_type_name(f));
    if (f != NULL && strcmp(f->valuestring, "function") != 0)
        return td_fail_param(
            err, "tool_choice.type",
            "tool_choice of type \"%.40s\" is not supported: it must be auto, none, "
            "required or a function",
            f->valuestring);
    c->tool_choice = CHAT_TOOL_NAMED;
    if (f != NULL && openai_field(v, "function") == NULL &&
        openai_field(v, "name") != NULL) /* as /v1/responses has it */
        return openai_take_string(v, "name", "tool_choice", true, c, &c->tool_choice_name, err);
    f = cJSON_IsObject(v) ? openai_field(v, "function") : NULL;
    if (!cJSON_IsObject(f))
        return td_fail_param(err, "tool_choice",
                             "tool_choice must be auto, none, required or a function");
    return openai_take_string(f, "name", "tool_choice.function", true, c, &c->tool_choice_name,
                              err);
}

td_status openai_take_tools(cJSON *root, chat *c, td_error *err)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "tools"), *t, *next;
    size_t i = 0;
    td_status st;

    if (list != NULL && !cJSON_IsNull(list)) {
        if (!cJSON_IsArray(list))
            return td_fail_param(err, "tools", "tools must be an array, not %s",
                                 openai_type_name(list));
        for (t = list->child; t != NULL; t = next) {
            next = t->next;
            st = take_tool(t, i++, c, err);
            if (st != TD_OK)
                return st;
        }
    }
    st = openai_check_tool_names(c, ".function", err);
    return st == TD_OK ? openai_take_tool_choice(root, c, err) : st;
}
