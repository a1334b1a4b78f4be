/* What is counted: lists, and objects that have no members of their own (maps).
 *
 * Items take from the counters of the rule's activation, so bounds cost no states; items of
 * prefixItems are told apart by states. The closing bracket, and the white space before it, wait
 * until there are enough, the comma is there only while there may be more. */
#include <string.h>

#include "common/grammar_schema.h"

/* What follows an item: a comma and another one, or the end. The item itself, which counts, is
 * between `item` and `after`. */
static void counted(gr_nfa *a, int32_t item, int32_t after, char close, int32_t to)
{
    int32_t comma = gr_nfa_state(a), last = gr_nfa_state(a);

    gr_nfa_bytes(a, after, ',', ',', GR_MORE, comma);
    gr_nfa_gap(a, comma, item);
    /* The check is before the white space too, or that would lead where nothing may follow. */
    gr_nfa_call(a, after, GR_RULE_GAP, 0, GR_MAX_INDENT, GR_CLOSE, last);
    gr_nfa_bytes(a, last, (uint8_t)close, (uint8_t)close, 0, to);
}

static td_status check_order(gr_schema *c, const gr_path *path, gr_keyword min_key, uint32_t min,
                             gr_keyword max_key, uint32_t max)
{
    if (min > max)
        return gr_schema_fail(c, path, "'%s' of %u and '%s' of %u leave nothing",
                              gr_keyword_names[min_key], min, gr_keyword_names[max_key], max);
    return TD_OK;
}

/* --- Maps. */

/* {"type": "string"} and the like: true of every name. */
static bool any_name(const cJSON *names)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(names, "type");

    return names == NULL || cJSON_IsTrue(names) ||
           (cJSON_IsObject(names) &&
            (names->child == NULL ||
             (names->child == type && type->next == NULL && cJSON_IsString(type) &&
              strcmp(type->valuestring, "string") == 0)));
}

bool gr_schema_any_names(const gr_view *v)
{
    const cJSON *patterns = v->of[GR_KW_PATTERN_PROPERTIES];

    return any_name(v->of[GR_KW_PROPERTY_NAMES]) &&
           (patterns == NULL || (cJSON_IsObject(patterns) && patterns->child == NULL));
}

bool gr_schema_plain_object(const gr_view *v)
{
    const cJSON *more = v->of[GR_KW_ADDITIONAL];

    return v->of[GR_KW_PROPERTIES] == NULL && v->of[GR_KW_REQUIRED] == NULL &&
           v->of[GR_KW_MIN_PROPERTIES] == NULL && v->of[GR_KW_MAX_PROPERTIES] == NULL &&
           gr_schema_any_names(v) &&
           (more == NULL || cJSON_IsTrue(more) || (cJSON_IsObject(more) && more->child == NULL));
}

bool gr_schema_is_map(const gr_view *v)
{
    if (v->of[GR_KW_PROPERTIES] != NULL && v->of[GR_KW_ADDITIONAL] == NULL &&
        gr_schema_any_names(v))
        return false; /* there are no others, also where there is none */
    return (v->of[GR_KW_MIN_PROPERTIES] != NULL || v->of[GR_KW_MAX_PROPERTIES] != NULL ||
            !gr_schema_any_names(v)) &&
           cJSON_GetArraySize(v->of[GR_KW_PROPERTIES]) == 0 &&
           cJSON_GetArraySize(v->of[GR_KW_REQUIRED]) == 0;
}

/* A member's name, which counts; *values: what its value must be, NULL: anything. */
static td_status map_name(gr_schema *c, const gr_view *v, const gr_path *path, const cJSON **values,
                          gr_path *values_path, int32_t from, int32_t to)
{
    const cJSON *names = v->of[GR_KW_PROPERTY_NAMES], *list = v->of[GR_KW_PATTERN_PROPERTIES];
    const cJSON *more = v->of[GR_KW_ADDITIONAL], *schema;
    gr_path at = gr_path_add(path, "propertyNames", NULL);
    cJSON *made;
    td_status st;

    *values = more;
    *values_path = gr_path_add(path, "additionalProperties", NULL);
    if (gr_schema_any_names(v)) {
        gr_nfa_call(&c->b.nfa, from, GR_RULE_STRING, 0, GR_ANY, GR_COUNT, to);
        return TD_OK;
    }
    made = cJSON_CreateObject();
    if ((st = gr_schema_keep(c, made)) != TD_OK)
        return st;
    if (cJSON_AddStringToObject(made, "type", "string") == NULL)
        return gr_schema_no_memory(c);
    if (cJSON_GetArraySize(list) > 0) {
        if (!any_name(names) || cJSON_GetArraySize(list) > 1 ||
            (more != NULL && !cJSON_IsFalse(more)))
            return gr_schema_fail(c, path,
                                  "'patternProperties' is supported with one pattern, and without "
                                  "'propertyNames' and other additional properties");
        *values = list->child;
        *values_path = at = gr_path_add(path, "patternProperties", list->child->string);
        if (cJSON_AddStringToObject(made, "pattern", list->child->string) == NULL)
            return gr_schema_no_memory(c);
        return gr_schema_value(c, made, &at, GR_COUNT, from, to);
    }
    if ((st = gr_schema_merge(c, (const cJSON *[]){made, names}, 2, &at, &schema)) != TD_OK)
        return st;
    return gr_schema_value(c, schema, &at, GR_COUNT, from, to);
}

/* An object without members of its own. */
td_status gr_schema_map(gr_schema *c, const gr_view *v, const gr_path *path,
                        const gr_counts *counts, int32_t from, int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    const cJSON *values;
    gr_path at;
    int32_t open = gr_nfa_state(a), first = gr_nfa_state(a), item = gr_nfa_state(a);
    int32_t after = gr_nfa_state(a), key = gr_nfa_state(a), colon = gr_nfa_state(a);
    int32_t value = gr_nfa_state(a);
    td_status st = gr_schema_count(c, v, GR_KW_MIN_PROPERTIES, path, counts->need);

    if (st == TD_OK)
        st = gr_schema_count(c, v, GR_KW_MAX_PROPERTIES, path, counts->room);
    if (st == TD_OK && *counts->need > 1) /* a name may come twice, and then is one property */
        st = gr_schema_fail(c, path, "'minProperties' over 1 is not supported");
    if (st == TD_OK)
        st = check_order(c, path, GR_KW_MIN_PROPERTIES, *counts->need, GR_KW_MAX_PROPERTIES,
                         *counts->room);
    if (st != TD_OK)
        return st;
    gr_nfa_bytes(a, from, '{', '{', 0, open);
    gr_nfa_gap(a, open, first);
    if (*counts->need == 0)
        gr_nfa_bytes(a, first, '}', '}', 0, to);
    if (*counts->room == 0)
        return TD_OK;
    gr_nfa_eps(a, first, item);
    if ((st = map_name(c, v, path, &values, &at, item, key)) != TD_OK)
        return st;
    gr_nfa_bytes(a, key, ':', ':', 0, colon);
    gr_nfa_gap(a, colon, value);
    if (values == NULL)
        gr_nfa_call(a, value, GR_RULE_VALUE, 0, GR_ANY, 0, after);
    else if ((st = gr_schema_value(c, values, &at, 0, value, after)) != TD_OK)
        return st;
    counted(a, item, after, '}', to);
    return TD_OK;
}

/* --- Lists. */

static td_status prefix(gr_schema *c, const cJSON *list, uint32_t min, uint32_t max,
                        const gr_path *path, int32_t *state, uint32_t *n, int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    const cJSON *item;
    int32_t at = *state; /* where the next item may begin; behind the white space at first */
    td_status st;

    cJSON_ArrayForEach(item, list)
    {
        gr_path here = gr_path_index(path, "prefixItems", (int)*n);
        int32_t begin = at, after = gr_nfa_state(a), last = gr_nfa_state(a);

        if (*n >= max)
            break;
        if (*n > 0) {
            int32_t comma = gr_nfa_state(a);

            begin = gr_nfa_state(a);
            gr_nfa_bytes(a, at, ',', ',', 0, comma);
            gr_nfa_gap(a, comma, begin);
        }
        if ((st = gr_schema_value(c, item, &here, 0, begin, after)) != TD_OK)
            return st;
        if (++*n >= min) {
            gr_nfa_gap(a, after, last);
            gr_nfa_bytes(a, last, ']', ']', 0, to);
        }
        at = after;
    }
    *state = at;
    return TD_OK;
}

td_status gr_schema_array(gr_schema *c, const gr_view *v, const gr_path *path,
                          const gr_counts *counts, int32_t from, int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    const cJSON *items = v->of[GR_KW_ITEMS], *list = v->of[GR_KW_PREFIX_ITEMS];
    gr_path at = gr_path_add(path, "items", NULL);
    uint32_t min = 0, max = GR_ANY, n = 0;
    int32_t open = gr_nfa_state(a), state = gr_nfa_state(a), after = gr_nfa_state(a);
    int32_t item = gr_nfa_state(a);
    td_status st = gr_schema_count(c, v, GR_KW_MIN_ITEMS, path, &min);

    if (st == TD_OK)
        st = gr_schema_count(c, v, GR_KW_MAX_ITEMS, path, &max);
    if (st == TD_OK)
        st = check_order(c, path, GR_KW_MIN_ITEMS, min, GR_KW_MAX_ITEMS, max);
    if (st != TD_OK)
        return st;
    if (cJSON_IsArray(items))
        return gr_schema_fail(c, path, "'items' as a list is not supported: use 'prefixItems'");
    if (list != NULL && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > GR_MAX_MEMBERS))
        return gr_schema_fail(c, path, "'prefixItems' is no list of at most %d schemas",
                              GR_MAX_MEMBERS);
    /* Like an object's members: a list with prefixItems and without items has no others. */
    if (list != NULL && items == NULL && max > (uint32_t)cJSON_GetArraySize(list) &&
        min <= (uint32_t)cJSON_GetArraySize(list))
        max = (uint32_t)cJSON_GetArraySize(list);
    gr_nfa_bytes(a, from, '[', '[', 0, open);
    gr_nfa_gap(a, open, state);
    if (min == 0)
        gr_nfa_bytes(a, state, ']', ']', 0, to);
    if ((st = prefix(c, list, min, max, path, &state, &n, to)) != TD_OK || n >= max)
        return st;
    *counts->need = min > n ? min - n : 0;
    *counts->room = max == GR_ANY ? GR_ANY : max - n;
    if (n == 0) {
        gr_nfa_eps(a, state, item);
    } else {
        int32_t comma = gr_nfa_state(a);

        gr_nfa_bytes(a, state, ',', ',', 0, comma);
        gr_nfa_gap(a, comma, item);
    }
    if (items == NULL)
        gr_nfa_call(a, item, GR_RULE_VALUE, 0, GR_ANY, GR_COUNT, after);
    else if ((st = gr_schema_value(c, items, &at, GR_COUNT, item, after)) != TD_OK)
        return st;
    counted(a, item, after, ']', to);
    return TD_OK;
}
