/* allOf, and keywords beside anyOf or $ref: one schema of the values that all parts allow.
 *
 * Parts are first taken apart (references resolved, their allOf opened) and then joined keyword by
 * keyword. What is deeper, such as the same property in two parts, becomes an allOf of its own that
 * is joined when its turn comes. A merged schema is made of references to the parts' items. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_schema.h"

enum {
    MAX_PARTS = 256,
    MAX_MADE = 4000, /* merged schemas: past it a schema refers to itself through allOf */
};

typedef struct parts {
    gr_view of[MAX_PARTS];
    size_t n;
    bool nothing; /* one is false */
} parts;

td_status gr_schema_keep(gr_schema *c, cJSON *made)
{
    if (made == NULL)
        return gr_schema_no_memory(c);
    if (c->n_made == c->cap_made) {
        size_t cap = c->cap_made > 0 ? c->cap_made * 2 : 16;
        cJSON **p = realloc(c->made, cap * sizeof *p);

        if (p == NULL) {
            cJSON_Delete(made);
            return gr_schema_no_memory(c);
        }
        c->made = p;
        c->cap_made = cap;
    }
    c->made[c->n_made++] = made;
    return TD_OK;
}

static td_status collect(gr_schema *c, const cJSON *node, const gr_path *path, int depth, parts *p)
{
    const cJSON *item;
    gr_view *v;
    td_status st;
    int i = 0;

    if (cJSON_IsBool(node)) {
        p->nothing |= cJSON_IsFalse(node);
        return TD_OK;
    }
    if (!cJSON_IsObject(node))
        return gr_schema_fail(c, path, "expected a schema: an object, true or false");
    if (p->n == MAX_PARTS || depth > MAX_PARTS)
        return gr_schema_fail(c, path, "more than %d schemas in one allOf, or it refers to itself",
                              MAX_PARTS);
    v = &p->of[p->n++];
    if ((st = gr_schema_view(c, node, path, v)) != TD_OK)
        return st;
    if (v->of[GR_KW_REF] != NULL) {
        const cJSON *target;
        gr_path at;

        st = gr_schema_resolve(c, v->of[GR_KW_REF], path, &target, &at);
        if (st == TD_OK)
            st = collect(c, target, &at, depth + 1, p);
        if (st != TD_OK)
            return st;
    }
    if (v->of[GR_KW_PROPERTIES] != NULL && !cJSON_IsObject(v->of[GR_KW_PROPERTIES]))
        return gr_schema_fail(c, path, "'properties' is no object");
    if (v->of[GR_KW_ALL_OF] != NULL && !cJSON_IsArray(v->of[GR_KW_ALL_OF]))
        return gr_schema_fail(c, path, "'allOf' is no list");
    cJSON_ArrayForEach(item, v->of[GR_KW_ALL_OF])
    {
        gr_path at = gr_path_index(path, "allOf", i++);

        if ((st = collect(c, item, &at, depth + 1, p)) != TD_OK)
            return st;
    }
    return TD_OK;
}

/* --- Joining. Items of cJSON are added by reference: the parts outlive what is made of them. */

static bool put(cJSON *object, const char *name, const cJSON *item)
{
    return cJSON_AddItemReferenceToObject(object, name, (cJSON *)item);
}

/* An allOf of two schemas; either may be NULL. NULL: no memory. */
static cJSON *both(const cJSON *a, const cJSON *b)
{
    cJSON *made = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(made, "allOf");

    if (list == NULL || !cJSON_AddItemReferenceToArray(list, (cJSON *)a) ||
        !cJSON_AddItemReferenceToArray(list, (cJSON *)b)) {
        cJSON_Delete(made);
        return NULL;
    }
    return made;
}

/* A number as the strictest of all parts. */
static bool put_bound(cJSON *out, const parts *p, gr_keyword k, bool largest)
{
    const cJSON *best = NULL;

    for (size_t i = 0; i < p->n; i++) {
        const cJSON *x = p->of[i].of[k];

        if (x != NULL && (best == NULL || (largest ? x->valuedouble > best->valuedouble
                                                   : x->valuedouble < best->valuedouble)))
            best = x;
    }
    return best == NULL || put(out, gr_keyword_names[k], best);
}

/* A keyword that only one part may have, unless they agree. */
static td_status put_only(gr_schema *c, cJSON *out, const parts *p, gr_keyword k,
                          const gr_path *path)
{
    const cJSON *only = NULL;

    for (size_t i = 0; i < p->n; i++) {
        const cJSON *x = p->of[i].of[k];

        if (x == NULL)
            continue;
        if (only != NULL && !cJSON_Compare(only, x, 1))
            return gr_schema_fail(c, path, "two different '%s' for one value are not supported",
                                  gr_keyword_names[k]);
        only = x;
    }
    if (only != NULL && !put(out, gr_keyword_names[k], only))
        return gr_schema_no_memory(c);
    return TD_OK;
}

static td_status put_types(gr_schema *c, cJSON *out, const parts *p, const gr_path *path,
                           bool *nothing)
{
    static const char *const names[] = {"null",    "boolean", "string", "number",
                                        "integer", "object",  "array"};
    int types = GR_ALL_TYPES;
    bool any = false;
    cJSON *list;

    for (size_t i = 0; i < p->n; i++) {
        gr_view only = {.of[GR_KW_TYPE] = p->of[i].of[GR_KW_TYPE],
                        .of[GR_KW_NULLABLE] = p->of[i].of[GR_KW_NULLABLE]};
        int t;
        td_status st;

        if (only.of[GR_KW_TYPE] == NULL)
            continue;
        if ((st = gr_schema_types(c, &only, path, &t)) != TD_OK)
            return st;
        if (t & GR_NUMBER)
            t |= GR_INTEGER; /* every integer is a number */
        types &= t;
        any = true;
    }
    if (types == 0)
        *nothing = true;
    if (!any || types == 0)
        return TD_OK;
    if ((list = cJSON_AddArrayToObject(out, "type")) == NULL)
        return gr_schema_no_memory(c);
    for (int i = 0; i < 7; i++) {
        if ((types >> i & 1) != 0 &&
            !cJSON_AddItemToArray(list, cJSON_CreateStringReference(names[i])))
            return gr_schema_no_memory(c);
    }
    return TD_OK;
}

static td_status put_required(gr_schema *c, cJSON *out, const parts *p)
{
    cJSON *list = NULL;
    const cJSON *item;

    for (size_t i = 0; i < p->n; i++) {
        cJSON_ArrayForEach(item, p->of[i].of[GR_KW_REQUIRED])
        {
            if (list == NULL &&
                (list = cJSON_AddArrayToObject(out, gr_keyword_names[GR_KW_REQUIRED])) == NULL)
                return gr_schema_no_memory(c);
            if (!cJSON_AddItemReferenceToArray(list, (cJSON *)item))
                return gr_schema_no_memory(c);
        }
    }
    return TD_OK;
}

/* What a part says of a property: its schema for it, or what it allows other ones; NULL: nothing.
 */
static const cJSON *says(const gr_view *v, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(v->of[GR_KW_PROPERTIES], name);

    return item != NULL ? item : v->of[GR_KW_ADDITIONAL];
}

static td_status put_property(gr_schema *c, cJSON *properties, const parts *p, const char *name)
{
    const cJSON *schema = NULL;
    cJSON *made = NULL;

    if (cJSON_GetObjectItemCaseSensitive(properties, name) != NULL)
        return TD_OK;
    for (size_t i = 0; i < p->n; i++) {
        const cJSON *item = says(&p->of[i], name);

        if (item == NULL || item == schema)
            continue;
        if (schema != NULL) {
            made = both(schema, item);
            if (gr_schema_keep(c, made) != TD_OK)
                return TD_NOMEM;
            item = made;
        }
        schema = item;
    }
    return put(properties, name, schema) ? TD_OK : gr_schema_no_memory(c);
}

static td_status put_members(gr_schema *c, cJSON *out, const parts *p, const gr_path *path)
{
    cJSON *properties = NULL, *made;
    const cJSON *item, *more = NULL;
    uint64_t per_member = 0;
    int speak = 0; /* parts that speak of objects */
    bool names = false;
    td_status st;

    for (size_t i = 0; i < p->n; i++) {
        bool speaks = false;

        for (int k = 0; k < GR_N_KEYWORDS; k++)
            speaks |= p->of[i].of[k] != NULL && gr_keyword_types[k] == GR_OBJECT;
        speak += speaks;
        names |= p->of[i].of[GR_KW_PATTERN_PROPERTIES] != NULL ||
                 p->of[i].of[GR_KW_PROPERTY_NAMES] != NULL;
        per_member += 2 * (uint64_t)cJSON_GetArraySize(p->of[i].of[GR_KW_PROPERTIES]);
    }
    if (speak > 1 && names)
        return gr_schema_fail(c, path,
                              "'patternProperties' or 'propertyNames' of a part of 'allOf' is not "
                              "supported beside other parts about objects");
    for (size_t i = 0; i < p->n; i++) {
        const cJSON *x = p->of[i].of[GR_KW_ADDITIONAL];

        if (p->of[i].of[GR_KW_PROPERTIES] != NULL && properties == NULL &&
            (properties = cJSON_AddObjectToObject(out, "properties")) == NULL)
            return gr_schema_no_memory(c);
        cJSON_ArrayForEach(item, p->of[i].of[GR_KW_PROPERTIES])
        {
            /* Looked for among those that there are, and in every part. */
            if ((st = gr_schema_spend(c, path, per_member)) != TD_OK)
                return st;
            if ((st = put_property(c, properties, p, item->string)) != TD_OK)
                return st;
        }
        if (x == NULL || cJSON_IsTrue(x) || cJSON_IsFalse(more))
            more = more == NULL ? x : more;
        else if (more == NULL || cJSON_IsTrue(more) || cJSON_IsFalse(x))
            more = x;
        else if (gr_schema_keep(c, made = both(more, x)) != TD_OK)
            return gr_schema_no_memory(c);
        else
            more = made;
    }
    if (more != NULL && !put(out, gr_keyword_names[GR_KW_ADDITIONAL], more))
        return gr_schema_no_memory(c);
    return TD_OK;
}

static td_status put_items(gr_schema *c, cJSON *out, const parts *p)
{
    const cJSON *items = NULL;

    for (size_t i = 0; i < p->n; i++) {
        const cJSON *x = p->of[i].of[GR_KW_ITEMS];
        cJSON *made;

        if (x == NULL)
            continue;
        if (items != NULL) {
            if (gr_schema_keep(c, made = both(items, x)) != TD_OK)
                return gr_schema_no_memory(c);
            x = made;
        }
        items = x;
    }
    return items == NULL || put(out, "items", items) ? TD_OK : gr_schema_no_memory(c);
}

static td_status put_enum(gr_schema *c, cJSON *out, const parts *p, bool *nothing)
{
    const cJSON *first = NULL, *item, *other;
    cJSON *list;

    for (size_t i = 0; i < p->n && first == NULL; i++)
        first = p->of[i].of[GR_KW_ENUM];
    if (first == NULL)
        return TD_OK;
    if ((list = cJSON_AddArrayToObject(out, "enum")) == NULL)
        return gr_schema_no_memory(c);
    cJSON_ArrayForEach(item, first)
    {
        bool in_all = true;

        for (size_t i = 0; i < p->n && in_all; i++) {
            bool in = p->of[i].of[GR_KW_ENUM] == NULL;

            cJSON_ArrayForEach(other, p->of[i].of[GR_KW_ENUM])
            {
                in |= cJSON_Compare(item, other, 1) != 0;
            }
            in_all = in;
        }
        if (in_all && !cJSON_AddItemReferenceToArray(list, (cJSON *)item))
            return gr_schema_no_memory(c);
    }
    *nothing |= cJSON_GetArraySize(list) == 0;
    return TD_OK;
}

static td_status join(gr_schema *c, const parts *p, const gr_path *path, cJSON *out, bool *nothing)
{
    static const gr_keyword lower[] = {GR_KW_MIN_PROPERTIES, GR_KW_MIN_ITEMS, GR_KW_MIN_LENGTH,
                                       GR_KW_MINIMUM, GR_KW_EXCLUSIVE_MINIMUM};
    static const gr_keyword upper[] = {GR_KW_MAX_PROPERTIES, GR_KW_MAX_ITEMS, GR_KW_MAX_LENGTH,
                                       GR_KW_MAXIMUM, GR_KW_EXCLUSIVE_MAXIMUM};
    static const gr_keyword only[] = {
        GR_KW_CONST,         GR_KW_ANY_OF, GR_KW_ONE_OF,      GR_KW_PREFIX_ITEMS,
        GR_KW_PATTERN,       GR_KW_FORMAT, GR_KW_MULTIPLE_OF, GR_KW_PATTERN_PROPERTIES,
        GR_KW_PROPERTY_NAMES};
    td_status st;
    bool ok = true;

    for (size_t i = 0; i < 5; i++)
        ok = ok && put_bound(out, p, lower[i], true) && put_bound(out, p, upper[i], false);
    if (!ok)
        return gr_schema_no_memory(c);
    for (size_t i = 0; i < sizeof only / sizeof *only; i++) {
        if ((st = put_only(c, out, p, only[i], path)) != TD_OK)
            return st;
    }
    if ((st = put_types(c, out, p, path, nothing)) != TD_OK ||
        (st = put_required(c, out, p)) != TD_OK || (st = put_members(c, out, p, path)) != TD_OK ||
        (st = put_items(c, out, p)) != TD_OK)
        return st;
    return put_enum(c, out, p, nothing);
}

td_status gr_schema_merge(gr_schema *c, const cJSON *const *nodes, size_t n, const gr_path *path,
                          const cJSON **out)
{
    static const cJSON none = {.type = cJSON_False};
    parts *p = calloc(1, sizeof *p);
    cJSON *made = cJSON_CreateObject();
    td_status st = p == NULL || made == NULL ? gr_schema_no_memory(c) : TD_OK;
    bool nothing = false;

    if (st == TD_OK && c->n_made >= MAX_MADE)
        st = gr_schema_fail(c, path, "'allOf' refers to itself, or is too large");
    for (size_t i = 0; i < n && st == TD_OK; i++)
        st = collect(c, nodes[i], path, 0, p);
    if (st == TD_OK)
        st = join(c, p, path, made, &nothing);
    if (st == TD_OK) {
        *out = nothing || p->nothing ? &none : made;
        st = gr_schema_keep(c, made);
        made = NULL;
    }
    cJSON_Delete(made);
    free(p);
    return st;
}

td_status gr_schema_without(gr_schema *c, const cJSON *node, gr_keyword k, const cJSON **out)
{
    cJSON *made = cJSON_CreateObject();
    const cJSON *item;

    cJSON_ArrayForEach(item, node)
    {
        if (made != NULL && strcmp(item->string, gr_keyword_names[k]) != 0 &&
            !put(made, item->string, item)) {
            cJSON_Delete(made);
            made = NULL;
        }
    }
    if (made == NULL)
        return gr_schema_no_memory(c);
    *out = made;
    return gr_schema_keep(c, made);
}
