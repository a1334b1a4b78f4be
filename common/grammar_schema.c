/* From a JSON Schema to rules.
 *
 * A schema becomes a rule when it is first called and is made later, from a list, so that recursion
 * costs neither stack nor states: a schema that refers to itself calls its own rule. Alternatives
 * (anyOf) are put into one rule, which makes a union that is told apart by a member deterministic;
 * strings and lists stay calls, since they count. */
#include "common/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

/* Without memory for its tables uthash would end the process. */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

#include "common/json_file.h"

enum {
    MAX_DEPTH = 128, /* of a schema's text */
    MAX_INLINE = 16, /* alternatives within alternatives, references to references */
    FEW_WORDS = 8,   /* values of an enum that is not worth a rule */
    MAX_RULES = 20000,
};

typedef enum rule_kind {
    ANY_KIND,
    STRING_KIND,
    NUMBER_KIND,
    INTEGER_KIND,
    OBJECT_KIND,
    ARRAY_KIND
} rule_kind;

typedef struct rule_key {
    const cJSON *node;
    intptr_t kind;
} rule_key;

struct gr_todo {
    rule_key key;
    int32_t rule;
    gr_path path;
    gr_todo *next; /* made after this one */
    bool lost;     /* there was no memory to add it */
    UT_hash_handle hh;
};

static td_status rule_of(gr_schema *c, const cJSON *node, rule_kind kind, const gr_path *path,
                         int32_t *rule)
{
    rule_key key = {node, kind};
    gr_todo *t;

    HASH_FIND(hh, c->todos, &key, sizeof key, t);
    if (t == NULL) {
        if (c->b.n_rules >= MAX_RULES)
            return gr_schema_fail(c, path, "too large: more than %d schemas", MAX_RULES);
        if ((t = calloc(1, sizeof *t)) == NULL || (t->rule = gr_build_rule(&c->b)) < 0) {
            free(t);
            return gr_schema_no_memory(c);
        }
        t->key = key;
        t->path = *path;
        HASH_ADD(hh, c->todos, key, sizeof t->key, t);
        if (t->lost) {
            free(t);
            return gr_schema_no_memory(c);
        }
        if (c->last != NULL)
            c->last->next = t;
        else
            c->next = t;
        c->last = t;
    }
    *rule = t->rule;
    return TD_OK;
}

static td_status call_of(gr_schema *c, const cJSON *node, rule_kind kind, const gr_path *path,
                         uint8_t flags, int32_t from, int32_t to)
{
    int32_t rule;
    td_status st = rule_of(c, node, kind, path, &rule);

    if (st == TD_OK)
        gr_nfa_call(&c->b.nfa, from, rule, 0, GR_ANY, flags, to);
    return st;
}

static td_status body(gr_schema *c, const cJSON *node, const gr_path *path, int depth, int32_t from,
                      int32_t to);

/* Keywords other than a and b that restrict values; NULL: none. */
static const char *restricts(const gr_view *v, gr_keyword a, gr_keyword b)
{
    for (int k = 0; k < GR_N_KEYWORDS; k++) {
        if (v->of[k] != NULL && k != (int)a && k != (int)b)
            return gr_keyword_names[k];
    }
    return NULL;
}

static td_status literals(gr_schema *c, const gr_view *v, const gr_path *path, int32_t from,
                          int32_t to)
{
    const cJSON *list = v->of[GR_KW_ENUM], *only = v->of[GR_KW_CONST], *item;
    bool within;
    int types;
    td_status st = gr_schema_types(c, v, path, &types);

    if (st != TD_OK)
        return st;
    if (v->of[GR_KW_TYPE] == NULL)
        types = GR_ALL_TYPES;
    for (int k = 0; k < GR_N_KEYWORDS; k++) {
        if (v->of[k] != NULL && k != GR_KW_ENUM && k != GR_KW_CONST && k != GR_KW_TYPE &&
            k != GR_KW_NULLABLE && !gr_schema_may_bound_literals((gr_keyword)k))
            return gr_schema_fail(c, path, "'%s' beside '%s' is not supported", gr_keyword_names[k],
                                  list != NULL ? "enum" : "const");
    }
    if (list != NULL && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0))
        return gr_schema_fail(c, path, "'enum' is %s, expected a list of values",
                              cJSON_IsArray(list) ? "empty" : "no list");
    if (list == NULL) {
        if ((st = gr_schema_within(c, v, path, only, &within)) != TD_OK)
            return st;
        within = within && gr_schema_has_type(only, types);
        return within ? gr_schema_literal(c, only, path, from, to) : TD_OK;
    }
    cJSON_ArrayForEach(item, list)
    {
        if ((st = gr_schema_within(c, v, path, item, &within)) != TD_OK)
            return st;
        if (!within || !gr_schema_has_type(item, types) ||
            (only != NULL && !cJSON_Compare(item, only, 1)))
            continue;
        if ((st = gr_schema_literal(c, item, path, from, to)) != TD_OK)
            return st;
    }
    return TD_OK;
}

/* Whether a schema is one of an object with properties, behind whatever references. */
static bool is_object(gr_schema *c, const cJSON *node, const gr_path *path)
{
    gr_path at = *path;

    for (int i = 0; i < MAX_INLINE && cJSON_IsObject(node); i++) {
        const cJSON *ref = cJSON_GetObjectItemCaseSensitive(node, "$ref");

        if (ref == NULL)
            return cJSON_GetObjectItemCaseSensitive(node, "properties") != NULL;
        if (gr_schema_resolve(c, ref, path, &node, &at) != TD_OK)
            return false;
    }
    return false;
}

static td_status alternatives(gr_schema *c, const cJSON *node, const gr_view *v, gr_keyword k,
                              const gr_path *path, int depth, int32_t from, int32_t to)
{
    const cJSON *list = v->of[k], *alt, *rest = NULL;
    int i = 0, objects = 0;
    td_status st;

    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0)
        return gr_schema_fail(c, path, "'%s' is %s, expected a list of schemas",
                              gr_keyword_names[k], cJSON_IsArray(list) ? "empty" : "no list");
    if (restricts(v, k, k) != NULL && (st = gr_schema_without(c, node, k, &rest)) != TD_OK)
        return st;
    cJSON_ArrayForEach(alt, list)
    {
        objects += is_object(c, alt, path);
        if ((st = gr_schema_spend(c, path, 1)) != TD_OK)
            return st;
    }
    cJSON_ArrayForEach(alt, list)
    {
        gr_path at = gr_path_index(path, gr_keyword_names[k], i++);
        const cJSON *schema = alt, *ref = NULL;

        if (rest != NULL) {
            st = gr_schema_merge(c, (const cJSON *[]){rest, alt}, 2, &at, &schema);
        } else {
            ref = cJSON_GetObjectItemCaseSensitive(alt, "$ref");
            st = TD_OK;
        }
        if (st != TD_OK)
            return st;
        /* A schema that others refer to as well is copied only where that tells objects apart. */
        if (depth >= MAX_INLINE || (ref != NULL && !(objects > 1 && is_object(c, alt, &at))))
            st = gr_schema_value(c, schema, &at, 0, from, to);
        else
            st = body(c, schema, &at, depth + 1, from, to);
        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}

static td_status reference(gr_schema *c, const cJSON *node, const gr_view *v, const gr_path *path,
                           int depth, int32_t from, int32_t to)
{
    const cJSON *target, *merged;
    gr_path at;
    td_status st = gr_schema_resolve(c, v->of[GR_KW_REF], path, &target, &at);

    if (st != TD_OK)
        return st;
    if (restricts(v, GR_KW_REF, GR_KW_REF) != NULL) {
        st = gr_schema_merge(c, &node, 1, path, &merged);
        return st == TD_OK ? body(c, merged, path, depth + 1, from, to) : st;
    }
    if (depth > 0 && depth < MAX_INLINE)
        return body(c, target, &at, depth + 1, from, to);
    return gr_schema_value(c, target, &at, 0, from, to);
}

static td_status by_type(gr_schema *c, const cJSON *node, const gr_view *v, const gr_path *path,
                         int32_t from, int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    uint32_t min = 0, max = GR_ANY;
    int types;
    td_status st = gr_schema_types(c, v, path, &types);

    if (st != TD_OK)
        return st;
    if (types & GR_NULL)
        gr_nfa_text(a, from, "null", 4, to);
    if (types & GR_BOOLEAN) {
        gr_nfa_text(a, from, "true", 4, to);
        gr_nfa_text(a, from, "false", 5, to);
    }
    if (types & GR_STRING) {
        if ((st = gr_schema_length(c, v, path, &min, &max)) != TD_OK)
            return st;
        if (gr_schema_plain_string(v))
            gr_nfa_call(a, from, GR_RULE_STRING, min, max, 0, to);
        else if ((st = call_of(c, node, STRING_KIND, path, 0, from, to)) != TD_OK)
            return st;
    }
    if (types & (GR_NUMBER | GR_INTEGER)) {
        bool integer = (types & GR_NUMBER) == 0;

        if (gr_schema_plain_number(v))
            gr_nfa_call(a, from, integer ? GR_RULE_INTEGER : GR_RULE_NUMBER, 0, GR_ANY, 0, to);
        else if ((st = call_of(c, node, integer ? INTEGER_KIND : NUMBER_KIND, path, 0, from, to)) !=
                 TD_OK)
            return st;
    }
    if (types & GR_ARRAY) {
        if (v->of[GR_KW_ITEMS] == NULL && v->of[GR_KW_PREFIX_ITEMS] == NULL &&
            v->of[GR_KW_MIN_ITEMS] == NULL && v->of[GR_KW_MAX_ITEMS] == NULL)
            gr_nfa_call(a, from, GR_RULE_ARRAY, 0, GR_ANY, 0, to);
        else if ((st = call_of(c, node, ARRAY_KIND, path, 0, from, to)) != TD_OK)
            return st;
    }
    if ((types & GR_OBJECT) == 0)
        return TD_OK;
    if (gr_schema_plain_object(v)) {
        gr_nfa_call(a, from, GR_RULE_OBJECT, 0, GR_ANY, 0, to);
        return TD_OK;
    }
    if (gr_schema_is_map(v))
        return call_of(c, node, OBJECT_KIND, path, 0, from, to);
    return gr_schema_object(c, v, path, NULL, from, to);
}

/* Any value of a schema, in line. depth: alternatives and references that we are in. */
static td_status body(gr_schema *c, const cJSON *node, const gr_path *path, int depth, int32_t from,
                      int32_t to)
{
    const cJSON *merged;
    gr_view v;
    td_status st;

    if (cJSON_IsTrue(node))
        gr_nfa_call(&c->b.nfa, from, GR_RULE_VALUE, 0, GR_ANY, 0, to);
    if (cJSON_IsBool(node))
        return TD_OK; /* false: no value, so no way from here to there */
    if (!cJSON_IsObject(node))
        return gr_schema_fail(c, path, "expected a schema: an object, true or false");
    if ((st = gr_schema_view(c, node, path, &v)) != TD_OK)
        return st;
    if (v.of[GR_KW_ALL_OF] != NULL) {
        st = gr_schema_merge(c, &node, 1, path, &merged);
        return st == TD_OK ? body(c, merged, path, depth, from, to) : st;
    }
    if (v.of[GR_KW_REF] != NULL)
        return reference(c, node, &v, path, depth, from, to);
    if (v.of[GR_KW_ANY_OF] != NULL && v.of[GR_KW_ONE_OF] != NULL)
        return gr_schema_fail(c, path, "'oneOf' beside 'anyOf' is not supported");
    if (v.of[GR_KW_ANY_OF] != NULL)
        return alternatives(c, node, &v, GR_KW_ANY_OF, path, depth, from, to);
    if (v.of[GR_KW_ONE_OF] != NULL)
        return alternatives(c, node, &v, GR_KW_ONE_OF, path, depth, from, to);
    if (v.of[GR_KW_ENUM] != NULL || v.of[GR_KW_CONST] != NULL)
        return literals(c, &v, path, from, to);
    return by_type(c, node, &v, path, from, to);
}

/* Whether a schema's values are so short to say that a rule of their own would cost more. */
static bool is_short(const cJSON *node)
{
    const cJSON *item, *value;
    int types = 0, words = 0;

    if (!cJSON_IsObject(node))
        return false;
    cJSON_ArrayForEach(item, node)
    {
        int k = 0;

        while (k < GR_N_KEYWORDS && strcmp(gr_keyword_names[k], item->string) != 0)
            k++;
        if (k == GR_KW_TYPE) {
            types = gr_schema_type_bit(item);
        } else if (k == GR_KW_ENUM || k == GR_KW_CONST) {
            words += k == GR_KW_CONST ? 1 : cJSON_GetArraySize(item);
            cJSON_ArrayForEach(value, item)
            {
                if (cJSON_IsArray(value) || cJSON_IsObject(value))
                    return false;
            }
        } else if (k < GR_N_KEYWORDS && k != GR_KW_MIN_LENGTH && k != GR_KW_MAX_LENGTH) {
            return false;
        }
    }
    if (words > 0)
        return words <= FEW_WORDS;
    return (types & ~(GR_OBJECT | GR_ARRAY)) != 0;
}

td_status gr_schema_value(gr_schema *c, const cJSON *node, const gr_path *path, uint8_t flags,
                          int32_t from, int32_t to)
{
    const cJSON *ref;
    gr_path at = *path;

    if (cJSON_IsTrue(node) || (cJSON_IsObject(node) && node->child == NULL)) {
        gr_nfa_call(&c->b.nfa, from, GR_RULE_VALUE, 0, GR_ANY, flags, to);
        return TD_OK;
    }
    if (flags == 0 && is_short(node))
        return body(c, node, path, 1, from, to);
    ref = cJSON_GetObjectItemCaseSensitive(node, "$ref");
    if (ref != NULL && ref->next == NULL && ref->prev == ref) {
        td_status st = gr_schema_resolve(c, ref, path, &node, &at);

        if (st != TD_OK)
            return st;
    }
    return call_of(c, node, ANY_KIND, &at, flags, from, to);
}

static td_status make_rule(gr_schema *c, const gr_todo *t)
{
    gr_nfa *a = &c->b.nfa;
    int32_t start = gr_nfa_state(a), end = gr_nfa_state(a);
    uint32_t need = 0, room = GR_ANY;
    gr_view v = {0};
    td_status st = TD_OK;

    if (t->key.kind != ANY_KIND)
        st = gr_schema_view(c, t->key.node, &t->path, &v);
    if (st != TD_OK)
        return st;
    switch ((rule_kind)t->key.kind) {
    case ANY_KIND: st = body(c, t->key.node, &t->path, 0, start, end); break;
    case STRING_KIND: st = gr_schema_string(c, &v, &t->path, start, end); break;
    case NUMBER_KIND: st = gr_schema_number(c, &v, &t->path, false, start, end); break;
    case INTEGER_KIND: st = gr_schema_number(c, &v, &t->path, true, start, end); break;
    case OBJECT_KIND:
        st = gr_schema_object(c, &v, &t->path, &(gr_counts){&need, &room}, start, end);
        break;
    case ARRAY_KIND:
        st = gr_schema_array(c, &v, &t->path, &(gr_counts){&need, &room}, start, end);
        break;
    }
    if (st != TD_OK)
        return st;
    c->b.rules[t->rule].need = need;
    c->b.rules[t->rule].room = room;
    if ((st = gr_build_close(&c->b, t->rule, start, end, GR_MAX_STATES, c->err)) != TD_OK)
        td_wrap(c->err, "%s", t->path.text);
    return st;
}

static void forget(gr_schema *c)
{
    gr_todo *t, *next;

    HASH_ITER(hh, c->todos, t, next)
    {
        HASH_DEL(c->todos, t);
        free(t);
    }
    for (size_t i = 0; i < c->n_made; i++)
        cJSON_Delete(c->made[i]);
    free(c->made);
    gr_build_free(&c->b);
}

td_status td_grammar_from_schema(const char *schema, size_t length, td_grammar **out, td_error *err)
{
    gr_schema c = {.err = err};
    gr_path top = {"#"};
    cJSON *root = NULL;
    char *text;
    int32_t rule, dead;
    td_status st;

    if (length > TD_GRAMMAR_MAX_SCHEMA)
        return td_fail(err, TD_INVALID, "a schema of %zu bytes, expected at most %d", length,
                       TD_GRAMMAR_MAX_SCHEMA);
    if ((text = malloc(length + 1)) == NULL)
        return gr_schema_no_memory(&c);
    memcpy(text, schema, length);
    text[length] = '\0';
    st = td_json_parse(text, length, MAX_DEPTH, "schema", &root, err);
    free(text);
    if (st != TD_OK)
        return st;
    c.root = root;
    st = gr_build_prelude(&c.b, err);
    if (st == TD_OK)
        st = rule_of(&c, root, ANY_KIND, &top, &rule);
    for (; st == TD_OK && c.next != NULL; c.next = c.next->next)
        st = make_rule(&c, c.next);
    if (st == TD_OK) {
        st = gr_build_finish(&c.b, rule, &dead, out, err);
        for (const gr_todo *t = c.todos; st == TD_INVALID && dead >= 0 && t != NULL;
             t = t->hh.next) {
            if (t->rule == dead)
                td_wrap(err, "%s", t->path.text);
        }
    }
    forget(&c);
    cJSON_Delete(root);
    return st;
}
