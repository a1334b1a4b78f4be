/* Reading a schema: its keywords, where it stands, what it refers to. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar_schema.h"
#include "common/json_file.h"

enum { MAX_WORK = 20 * 1000 * 1000 };

const char *const gr_keyword_names[GR_N_KEYWORDS] = {
#define GR_X(id, name, type) name,
    GR_KEYWORDS(GR_X)
#undef GR_X
};

const int gr_keyword_types[GR_N_KEYWORDS] = {
#define GR_X(id, name, type) type,
    GR_KEYWORDS(GR_X)
#undef GR_X
};

/* Keywords that say nothing about which values are valid. */
static const char *const annotations[] = {
    "$anchor",         "$comment",         "$defs",        "$id",
    "$schema",         "default",          "definitions",  "deprecated",
    "description",     "discriminator",    "example",      "examples",
    "contentEncoding", "contentMediaType", "externalDocs", "readOnly",
    "title",           "writeOnly",        "xml"};

/* --- Errors and paths. */

td_status gr_schema_fail(gr_schema *c, const gr_path *path, const char *fmt, ...)
{
    char text[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return td_fail(c->err, TD_INVALID, "%s: %s", path->text, text);
}

td_status gr_schema_no_memory(gr_schema *c)
{
    return td_fail(c->err, TD_NOMEM, "no memory for the grammar of a schema");
}

/* Append text, a name in it escaped; false: it does not fit. */
static bool append(char *out, size_t cap, size_t *n, const char *text, bool name)
{
    for (; *text != '\0'; text++) {
        bool escape = name && (*text == '~' || *text == '/');

        if (*n + 2 >= cap)
            return false;
        out[(*n)++] = escape ? '~' : *text;
        if (escape)
            out[(*n)++] = *text == '~' ? '0' : '1';
    }
    out[*n] = '\0';
    return true;
}

gr_path gr_path_add(const gr_path *path, const char *a, const char *b)
{
    gr_path out = *path;
    size_t n = strlen(path->text), cap = sizeof out.text - sizeof "/...", start = n;

    if (n >= 4 && strcmp(out.text + n - 4, "/...") == 0)
        return out;
    if (!append(out.text, cap, &n, "/", false) || !append(out.text, cap, &n, a, true) ||
        (b != NULL &&
         (!append(out.text, cap, &n, "/", false) || !append(out.text, cap, &n, b, true))))
        strcpy(out.text + start, "/...");
    return out;
}

td_status gr_schema_spend(gr_schema *c, const gr_path *path, uint64_t steps)
{
    c->work += steps;
    return c->work <= MAX_WORK ? TD_OK : gr_schema_fail(c, path, "the schema is too large");
}

gr_path gr_path_index(const gr_path *path, const char *a, int i)
{
    char number[16];

    snprintf(number, sizeof number, "%d", i);
    return gr_path_add(path, a, number);
}

/* --- Reading one schema. */

static bool is_annotation(const char *name)
{
    for (size_t i = 0; i < sizeof annotations / sizeof *annotations; i++) {
        if (strcmp(annotations[i], name) == 0)
            return true;
    }
    return strncmp(name, "x-", 2) == 0;
}

td_status gr_schema_view(gr_schema *c, const cJSON *node, const gr_path *path, gr_view *v)
{
    const cJSON *item;

    *v = (gr_view){0};
    cJSON_ArrayForEach(item, node)
    {
        int k = 0;

        while (k < GR_N_KEYWORDS && strcmp(gr_keyword_names[k], item->string) != 0)
            k++;
        if (k < GR_N_KEYWORDS) {
            if (v->of[k] != NULL)
                return gr_schema_fail(c, path, "'%s' appears twice", item->string);
            v->of[k] = item;
        } else if (strcmp(item->string, "uniqueItems") == 0 && cJSON_IsFalse(item)) {
            continue;
        } else if (!is_annotation(item->string)) {
            return gr_schema_fail(c, path, "'%.100s' is not supported", item->string);
        }
    }
    return TD_OK;
}

int gr_schema_type_bit(const cJSON *name)
{
    static const char *const names[] = {"null",    "boolean", "string", "number",
                                        "integer", "object",  "array"};

    for (int i = 0; i < 7 && cJSON_IsString(name); i++) {
        if (strcmp(names[i], name->valuestring) == 0)
            return 1 << i;
    }
    return 0;
}

td_status gr_schema_types(gr_schema *c, const gr_view *v, const gr_path *path, int *types)
{
    const cJSON *t = v->of[GR_KW_TYPE], *item;
    char shown[64];

    *types = t == NULL ? GR_ALL_TYPES : cJSON_IsArray(t) ? 0 : gr_schema_type_bit(t);
    if (cJSON_IsArray(t)) {
        cJSON_ArrayForEach(item, t)
        {
            if (gr_schema_type_bit(item) == 0)
                return gr_schema_fail(c, path, "'type' has %s, which is no type",
                                      td_json_show(item, shown, sizeof shown));
            *types |= gr_schema_type_bit(item);
        }
    }
    if (*types == 0)
        return gr_schema_fail(c, path, "'type' is %s, expected a type or a list of types",
                              td_json_show(t, shown, sizeof shown));
    if (t == NULL) {
        /* Restrictions of one type without a type mean that type; without any, all types. */
        int only = 0;

        for (int k = 0; k < GR_N_KEYWORDS; k++)
            only |= v->of[k] != NULL ? gr_keyword_types[k] : 0;
        if (only != 0)
            *types = only;
    }
    if (cJSON_IsTrue(v->of[GR_KW_NULLABLE]))
        *types |= GR_NULL;
    if (*types & GR_NUMBER)
        *types &= ~GR_INTEGER;
    return TD_OK;
}

td_status gr_schema_count(gr_schema *c, const gr_view *v, gr_keyword k, const gr_path *path,
                          uint32_t *out)
{
    int64_t n;
    char shown[64];

    if (v->of[k] == NULL)
        return TD_OK;
    if (!td_json_int(v->of[k], 0, INT32_MAX - 1, &n))
        return gr_schema_fail(c, path, "'%s' is %s, expected a whole number of 0 to %d",
                              gr_keyword_names[k], td_json_show(v->of[k], shown, sizeof shown),
                              INT32_MAX - 1);
    *out = (uint32_t)n;
    return TD_OK;
}

/* Decode one step of a JSON pointer in place: ~1 is a slash, ~0 a tilde, %41 an A. */
static void decode_step(char *s)
{
    char *out = s;

    while (*s != '\0') {
        unsigned hex;

        if (s[0] == '~' && (s[1] == '0' || s[1] == '1')) {
            *out++ = s[1] == '0' ? '~' : '/';
            s += 2;
        } else if (s[0] == '%' && strspn(s + 1, "0123456789abcdefABCDEF") >= 2 &&
                   sscanf(s + 1, "%2x", &hex) == 1 && hex != 0) {
            *out++ = (char)hex;
            s += 3;
        } else {
            *out++ = *s++;
        }
    }
    *out = '\0';
}

td_status gr_schema_resolve(gr_schema *c, const cJSON *ref, const gr_path *path,
                            const cJSON **target, gr_path *target_path)
{
    const cJSON *at = c->root;
    char *copy, *step, *rest;

    if (!cJSON_IsString(ref))
        return gr_schema_fail(c, path, "'$ref' is no string");
    if (ref->valuestring[0] != '#' || (ref->valuestring[1] != '\0' && ref->valuestring[1] != '/'))
        return gr_schema_fail(c, path,
                              "'$ref' is \"%.100s\", but only references into the schema itself "
                              "are supported (\"#/$defs/...\")",
                              ref->valuestring);
    if ((copy = strdup(ref->valuestring + 1)) == NULL)
        return gr_schema_no_memory(c);
    *target_path = (gr_path){"#"};
    for (step = *copy == '/' ? copy + 1 : NULL; step != NULL && at != NULL; step = rest) {
        const cJSON *found = NULL, *item;

        if ((rest = strchr(step, '/')) != NULL)
            *rest++ = '\0';
        decode_step(step);
        if (cJSON_IsArray(at)) {
            char *end;
            long i = strtol(step, &end, 10);

            if (end != step && *end == '\0' && i >= 0 && i < INT32_MAX)
                found = cJSON_GetArrayItem(at, (int)i);
        } else {
            cJSON_ArrayForEach(item, at)
            {
                c->work++;
                if (strcmp(item->string, step) == 0)
                    found = item;
            }
        }
        *target_path = gr_path_add(target_path, step, NULL);
        at = found;
    }
    free(copy);
    if (at == NULL)
        return gr_schema_fail(c, path, "'$ref' is \"%.100s\", which is not there",
                              ref->valuestring);
    *target = at;
    return gr_schema_spend(c, path, 1);
}
