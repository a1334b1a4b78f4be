/* A schema becomes a type by recursive descent over the tree, written straight into one buffer.
 * The rules are ordered: oneOf, a list of types, then the one type. What none of them knows is
 * "any". Nothing in a schema is an error except its depth: a client's schema may say anything. */
#define _GNU_SOURCE /* memmem */
#include "router/harmony_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ts {
    td_buf *out;
    bool union_any_of;
    bool too_deep;
} ts;

static void add_type(ts *t, const cJSON *schema, int indent, int depth);

static const cJSON *field(const cJSON *schema, const char *key)
{
    return cJSON_IsObject(schema) ? cJSON_GetObjectItemCaseSensitive(schema, key) : NULL;
}

/* The text of a string field, NULL when it is absent or no string. */
static const char *text_field(const cJSON *schema, const char *key)
{
    return cJSON_GetStringValue(field(schema, key));
}

static const cJSON *array_field(const cJSON *schema, const char *key)
{
    const cJSON *f = field(schema, key);

    return cJSON_IsArray(f) ? f : NULL;
}

static void add_indent(ts *t, int indent)
{
    td_buf_fmt(t->out, "%*s", indent, "");
}

/* indent, "// ", text, LF. The text is not split into lines: the reference does not either. */
static void add_comment(ts *t, int indent, const char *text)
{
    add_indent(t, indent);
    td_buf_str(t->out, "// ");
    td_buf_str(t->out, text);
    td_buf_byte(t->out, '\n');
}

/* "default: X". A string is quoted as it is; that of an enum stays bare, or in a union that is no
 * property's own (json_enum) is JSON. */
static void add_default(ts *t, const cJSON *schema, bool json_enum)
{
    const cJSON *value = field(schema, "default");
    const cJSON *members = array_field(schema, "enum");
    bool is_enum = members != NULL && members->child != NULL;

    td_buf_str(t->out, "default: ");
    if (cJSON_IsString(value) && !is_enum) {
        td_buf_byte(t->out, '"');
        td_buf_str(t->out, value->valuestring);
        td_buf_byte(t->out, '"');
    } else if (cJSON_IsString(value) && !json_enum) {
        td_buf_str(t->out, value->valuestring);
    } else {
        harmony_json_compact(t->out, value);
    }
}

/* TYPE, and " | null" when the schema is nullable and the type does not say null by itself. */
static void add_nullable_type(ts *t, const cJSON *schema, int indent, int depth)
{
    size_t from = t->out->len;

    add_type(t, schema, indent, depth);
    if (cJSON_IsTrue(field(schema, "nullable")) && !t->out->oom &&
        memmem(t->out->ptr + from, t->out->len - from, "null", 4) == NULL)
        td_buf_str(t->out, " | null");
}

/* One line of a union: " | TYPE // description default: X", without LF. */
static void add_variant(ts *t, const cJSON *variant, int indent, int depth, const char *description,
                        bool json_enum)
{
    bool has_default = field(variant, "default") != NULL;

    add_indent(t, indent);
    td_buf_str(t->out, " | ");
    add_nullable_type(t, variant, indent + 3, depth);
    if (description != NULL || has_default)
        td_buf_str(t->out, " // ");
    if (description != NULL)
        td_buf_str(t->out, description);
    if (description != NULL && has_default)
        td_buf_byte(t->out, ' ');
    if (has_default)
        add_default(t, variant, json_enum);
}

static void add_one_of(ts *t, const cJSON *variants, int indent, int depth)
{
    for (const cJSON *v = variants->child; v != NULL; v = v->next) {
        td_buf_byte(t->out, '\n');
        add_variant(t, v, indent, depth + 1, text_field(v, "description"), true);
    }
}

/* The names in "required", sorted, so that a hostile schema of many properties stays cheap. */
typedef struct names {
    const char **ptr;
    size_t n;
} names;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static names required_names(ts *t, const cJSON *object)
{
    const cJSON *required = array_field(object, "required");
    names r = {NULL, 0};

    if (required == NULL || required->child == NULL)
        return r;
    r.ptr = malloc((size_t)cJSON_GetArraySize(required) * sizeof *r.ptr);
    if (r.ptr == NULL) {
        t->out->oom = true;
        return r;
    }
    for (const cJSON *m = required->child; m != NULL; m = m->next)
        if (cJSON_IsString(m))
            r.ptr[r.n++] = m->valuestring;
    qsort(r.ptr, r.n, sizeof *r.ptr, by_name);
    return r;
}

static void add_property_head(ts *t, const names *required, const char *name, int indent)
{
    bool found = required->n > 0 &&
                 bsearch(&name, required->ptr, required->n, sizeof *required->ptr, by_name);

    add_indent(t, indent);
    td_buf_str(t->out, name);
    td_buf_str(t->out, found ? ":" : "?:");
}

/* A property that is a union has its own layout: default above, a line each variant, a comma. */
static void add_union_property(ts *t, const names *required, const cJSON *property, int indent,
                               int depth)
{
    const cJSON *variants = field(property, "oneOf");
    const char *own = text_field(property, "description");
    const char *first = text_field(variants->child, "description");
    bool own_above = own != NULL && (first == NULL || strcmp(own, first) != 0);

    if (own_above)
        add_comment(t, indent, own);
    if (field(property, "default") != NULL) {
        add_indent(t, indent);
        td_buf_str(t->out, "// ");
        add_default(t, property, false);
        td_buf_byte(t->out, '\n');
    }
    add_property_head(t, required, property->string, indent);
    td_buf_byte(t->out, '\n');
    for (const cJSON *v = variants->child; v != NULL; v = v->next) {
        const char *description = text_field(v, "description");

        if ((v == variants->child && own_above) ||
            (description != NULL && own != NULL && strcmp(description, own) == 0))
            description = NULL;
        add_variant(t, v, indent, depth + 1, description, false);
        td_buf_byte(t->out, '\n');
    }
    add_indent(t, indent);
    td_buf_str(t->out, ",\n");
}

static void add_property(ts *t, const names *required, const cJSON *property, int indent, int depth)
{
    const char *title = text_field(property, "title");
    const char *description = text_field(property, "description");
    const cJSON *examples = array_field(property, "examples");
    const cJSON *one_of = field(property, "oneOf");

    if (title != NULL) {
        add_comment(t, indent, title);
        add_indent(t, indent);
        td_buf_str(t->out, "//\n");
    }
    if (one_of == NULL && description != NULL)
        add_comment(t, indent, description);
    if (examples != NULL && examples->child != NULL) {
        add_comment(t, indent, "Examples:");
        for (const cJSON *e = examples->child; e != NULL; e = e->next) {
            if (!cJSON_IsString(e))
                continue;
            add_indent(t, indent);
            td_buf_str(t->out, "// - \"");
            td_buf_str(t->out, e->valuestring);
            td_buf_str(t->out, "\"\n");
        }
    }
    if (cJSON_IsArray(one_of)) {
        add_union_property(t, required, property, indent, depth);
        return;
    }
    add_property_head(t, required, property->string, indent);
    td_buf_byte(t->out, ' ');
    add_nullable_type(t, property, indent + 4, depth + 1);
    td_buf_byte(t->out, ',');
    if (one_of == NULL && field(property, "default") != NULL) {
        td_buf_str(t->out, " // ");
        add_default(t, property, false);
    }
    td_buf_byte(t->out, '\n');
}

static void add_object(ts *t, const cJSON *schema, int indent, int depth)
{
    const char *description = text_field(schema, "description");
    const cJSON *properties = field(schema, "properties");
    names required = required_names(t, schema);

    if (description != NULL)
        add_comment(t, indent, description);
    td_buf_str(t->out, "{\n");
    if (cJSON_IsObject(properties))
        for (const cJSON *p = properties->child; p != NULL; p = p->next)
            add_property(t, &required, p, indent, depth);
    add_indent(t, indent);
    td_buf_byte(t->out, '}');
    free(required.ptr);
}

/* "a" | "b" from the string members of an enum; false when there are none. */
static bool add_enum(ts *t, const cJSON *members)
{
    bool any = false;

    if (members == NULL)
        return false;
    for (const cJSON *m = members->child; m != NULL; m = m->next) {
        if (!cJSON_IsString(m))
            continue;
        td_buf_str(t->out, any ? " | \"" : "\"");
        td_buf_str(t->out, m->valuestring);
        td_buf_byte(t->out, '"');
        any = true;
    }
    return any;
}

static bool add_type_list(ts *t, const cJSON *types)
{
    bool any = false;

    if (types == NULL)
        return false;
    for (const cJSON *m = types->child; m != NULL; m = m->next) {
        if (!cJSON_IsString(m))
            continue;
        if (any)
            td_buf_str(t->out, " | ");
        td_buf_str(t->out, strcmp(m->valuestring, "integer") == 0 ? "number" : m->valuestring);
        any = true;
    }
    return any;
}

/* Behind a switch: anyOf as a union on one line, where "null" is a type of its own. */
static bool add_any_of(ts *t, const cJSON *variants, int indent, int depth)
{
    if (variants == NULL || variants->child == NULL)
        return false;
    for (const cJSON *v = variants->child; v != NULL; v = v->next) {
        const char *name = text_field(v, "type");

        if (v != variants->child)
            td_buf_str(t->out, " | ");
        if (name != NULL && strcmp(name, "null") == 0)
            td_buf_str(t->out, "null");
        else
            add_type(t, v, indent, depth + 1);
    }
    return true;
}

static void add_type(ts *t, const cJSON *schema, int indent, int depth)
{
    const cJSON *one_of = array_field(schema, "oneOf");
    const char *name = text_field(schema, "type");
    const cJSON *items = field(schema, "items");

    if (depth > HARMONY_MAX_SCHEMA_DEPTH) {
        t->too_deep = true;
        return;
    }
    if (one_of != NULL) {
        add_one_of(t, one_of, indent, depth);
    } else if (add_type_list(t, array_field(schema, "type"))) {
        /* written */
    } else if (name == NULL) {
        if (!t->union_any_of || !add_any_of(t, array_field(schema, "anyOf"), indent, depth))
            td_buf_str(t->out, "any");
    } else if (strcmp(name, "object") == 0) {
        add_object(t, schema, indent, depth);
    } else if (strcmp(name, "string") == 0) {
        if (!add_enum(t, array_field(schema, "enum")))
            td_buf_str(t->out, "string");
    } else if (strcmp(name, "number") == 0 || strcmp(name, "integer") == 0) {
        td_buf_str(t->out, "number");
    } else if (strcmp(name, "boolean") == 0) {
        td_buf_str(t->out, "boolean");
    } else if (strcmp(name, "array") == 0 && items == NULL) {
        td_buf_str(t->out, "Array<any>");
    } else if (strcmp(name, "array") == 0) {
        add_type(t, items, indent, depth + 1);
        td_buf_str(t->out, "[]");
    } else {
        td_buf_str(t->out, "any");
    }
}

/* Whether a name may be declared: 1 to 64 of [a-zA-Z0-9_-]. */
static bool name_ok(td_slice name)
{
    if (name.len < 1 || name.len > 64)
        return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-'))
            return false;
    }
    return true;
}

/* Each line of a description behind "// "; an empty description is no line, a trailing LF adds
 * none, and a CR before an LF goes. */
static void add_description(td_buf *out, td_slice text)
{
    size_t from = 0;

    while (from < text.len) {
        const char *lf = memchr(text.ptr + from, '\n', text.len - from);
        size_t end = lf != NULL ? (size_t)(lf - text.ptr) : text.len;
        size_t n = end - from;

        if (lf != NULL && n > 0 && text.ptr[end - 1] == '\r')
            n--;
        td_buf_str(out, "// ");
        td_buf_add(out, text.ptr + from, n);
        td_buf_byte(out, '\n');
        from = end + 1;
    }
}

td_status harmony_tools_section(const chat *c, bool union_any_of, td_buf *out, td_error *err)
{
    size_t n = chat_visible_tools(c);
    ts t = {.out = out, .union_any_of = union_any_of};
    char param[64];

    if (n == 0)
        return TD_OK;
    td_buf_str(out, "# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for (size_t i = 0; i < n; i++) {
        const chat_tool *tool = &c->tools[i];
        td_slice name = chat_bare_name(tool->name);

        if (!name_ok(name)) {
            snprintf(param, sizeof param, "tools[%zu].function.name", i);
            return td_fail_param(err, param,
                                 "a tool name is 1 to 64 of a-z A-Z 0-9 _ -, got '%.*s'",
                                 chat_shown(name), name.ptr ? name.ptr : "");
        }
        add_description(out, tool->description);
        td_buf_str(out, "type ");
        td_buf_add(out, name.ptr, name.len);
        if (tool->parameters == NULL || cJSON_IsNull(tool->parameters)) {
            td_buf_str(out, " = () => any;\n\n");
            continue;
        }
        td_buf_str(out, " = (_: ");
        add_type(&t, tool->parameters, 0, 0);
        td_buf_str(out, ") => any;\n\n");
        if (t.too_deep) {
            snprintf(param, sizeof param, "tools[%zu].function.parameters", i);
            return td_fail_param(err, param, "the schema nests more than %d types",
                                 HARMONY_MAX_SCHEMA_DEPTH);
        }
    }
    td_buf_str(out, "} // namespace functions");
    return TD_OK;
}
