#include "router/openai_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/json_escapes.h"
#include "router/openai.h"

const cJSON *openai_field(const cJSON *object, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, name);

    return v == NULL || cJSON_IsNull(v) ? NULL : v;
}

const char *openai_type_name(const cJSON *v)
{
    return cJSON_IsString(v)   ? "a string"
           : cJSON_IsNumber(v) ? "a number"
           : cJSON_IsBool(v)   ? "true or false"
           : cJSON_IsArray(v)  ? "an array"
           : cJSON_IsObject(v) ? "an object"
           : cJSON_IsNull(v)   ? "null"
                               : "something else";
}

static size_t skip_digits(const char *s, size_t i, size_t n)
{
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return i;
}

/* Where the number that begins at `from` ends; `from`: JSON has no such number. */
static size_t number_end(const char *s, size_t from, size_t n)
{
    size_t i = from + (s[from] == '-'), digits = i;

    i = skip_digits(s, i, n);
    if (i == digits || (s[digits] == '0' && i > digits + 1))
        return from;
    if (i < n && s[i] == '.') {
        digits = i + 1;
        i = skip_digits(s, digits, n);
        if (i == digits)
            return from;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        digits = i + 1;
        if (digits < n && (s[digits] == '+' || s[digits] == '-'))
            digits++;
        i = skip_digits(s, digits, n);
        if (i == digits)
            return from;
    }
    return i;
}

/* Look through the text before anything makes a tree of it: how deep it nests, how many values it
 * has, whether a string holds an escaped NUL, at which cJSON would cut it without a word, and
 * whether numbers are JSON's: cJSON takes 01, and the spelling is kept and repeated in answers. */
static td_status scan(const char *body, size_t n, int max_depth, td_error *err)
{
    bool in_string = false;
    size_t values = 1;
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        char c = body[i];

        if (c == '\0')
            return td_fail(err, TD_INVALID, "the body is not JSON: it has a NUL byte at %zu", i);
        if (in_string) {
            if (c == '\\') {
                if (n - i > 5 && memcmp(body + i + 1, "u0000", 5) == 0)
                    return td_fail(err, TD_INVALID,
                                   "the body has a string with a NUL character (at byte %zu)", i);
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            size_t end = number_end(body, i, n);

            if (end == i)
                return td_fail(err, TD_INVALID,
                               "the body is not valid JSON near byte %zu: a number is not written "
                               "as JSON has it",
                               i);
            i = end - 1;
        } else if (c == '{' || c == '[') {
            if (++depth > max_depth)
                return td_fail(err, TD_INVALID, "the body nests deeper than %d levels", max_depth);
            values++; /* the first inside */
        } else if (c == ',') {
            values++;
        } else if (c == '}' || c == ']') {
            depth--;
        }
        if (values > OPENAI_MAX_VALUES)
            return td_fail(err, TD_INVALID, "the body has more than %d values", OPENAI_MAX_VALUES);
    }
    return TD_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Fields are looked for one by one, so there may not be very many members; and not two of a name,
 * of which whoever stands between the client and this server may have read the other. */
static td_status check_members(const cJSON *root, td_error *err)
{
    const char *names[OPENAI_MAX_MEMBERS];
    const cJSON *v;
    size_t n = 0;

    cJSON_ArrayForEach(v, root)
    {
        if (n == OPENAI_MAX_MEMBERS)
            return td_fail(err, TD_INVALID, "the body has more than %d members",
                           OPENAI_MAX_MEMBERS);
        names[n++] = v->string;
    }
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return td_fail_param(err, names[i], "the body has '%.*s' twice",
                                 chat_shown(td_slice_of(names[i])), names[i]);
    return TD_OK;
}

/* The lists of all endpoints that take time by their length. */
static td_status check_lists(const cJSON *root, const openai_defaults *d, td_error *err)
{
    uint32_t messages = d->max_messages ? d->max_messages : OPENAI_MAX_MESSAGES;
    uint32_t tools = d->max_tools ? d->max_tools : OPENAI_MAX_TOOLS;
    const struct {
        const char *name, *of;
        uint32_t most;
    } lists[] = {{"messages", "messages", messages},
                 {"input", "items", messages},
                 {"tools", "tools", tools}};

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const cJSON *list = openai_field(root, lists[i].name);

        if (cJSON_IsArray(list) && (uint32_t)cJSON_GetArraySize(list) > lists[i].most)
            return td_fail_param(err, lists[i].name, "%s has more than %u %s", lists[i].name,
                                 lists[i].most, lists[i].of);
    }
    return TD_OK;
}

/* text[n] is NUL. */
static td_status read_tree(const char *text, size_t n, cJSON **root, td_error *err)
{
    const char *end = NULL;

    *root = cJSON_ParseWithLengthOpts(text, n + 1, &end, 1);
    if (*root == NULL)
        return td_fail(err, TD_INVALID, "the body is not valid JSON near byte %zu",
                       end != NULL && end >= text ? (size_t)(end - text) : (size_t)0);
    chat_keep_numbers(*root, text, n);
    return TD_OK;
}

td_status openai_read_json(const char *body, size_t n, const openai_defaults *d, cJSON **root,
                           td_error *err)
{
    td_buf mended = {0};
    size_t bad;
    td_status st;

    if (n == 0)
        return td_fail(err, TD_INVALID, "the body is empty: a JSON object is expected");
    if (!td_utf8_valid(body, n, &bad))
        return td_fail(err, TD_INVALID, "the body is not valid UTF-8 at byte %zu", bad);
    st = scan(body, n, d->max_depth ? (int)d->max_depth : OPENAI_MAX_DEPTH, err);
    if (st != TD_OK)
        return st;
    if (json_mend_surrogates(body, n, &mended) == 0)
        st = read_tree(body, n, root, err);
    else if (mended.oom)
        st = td_fail(err, TD_NOMEM, "no memory for a copy of the body");
    else
        st = read_tree(mended.ptr, n, root, err);
    td_buf_free(&mended);
    if (st != TD_OK)
        return st;
    if (!cJSON_IsObject(*root)) {
        st = td_fail(err, TD_INVALID, "the body must be a JSON object, not %s",
                     openai_type_name(*root));
        cJSON_Delete(*root);
        *root = NULL;
        return st;
    }
    st = check_members(*root, err);
    if (st == TD_OK)
        st = check_lists(*root, d, err);
    if (st != TD_OK) {
        cJSON_Delete(*root);
        *root = NULL;
        return st;
    }
    return TD_OK;
}

/* ---- messages ---- */

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
        const cJSON *text = cJSON_IsObject(part) ? openai_field(part, "text") : NULL;
        char which[96];

        snprintf(which, sizeof which, "%s[%d]", where, k++);
        if (!cJSON_IsString(type)) {
            st = td_fail_param(err, which, "%s must be an object with a type", which);
            break;
        }
        if (!is_text(type->valuestring, also)) {
            st = td_fail_param(err, which, "%s has type \"%.40s\": only text is supported", which,
                               type->valuestring);
            break;
        }
        if (!cJSON_IsString(text)) {
            st = td_fail_param(err, which, "%s.text must be a string", which);
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
    /* Two names are in use for one thing; a client that sends both sends the same. */
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
    if (cJSON_IsString(f) && strcmp(f->valuestring, "function") != 0)
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
