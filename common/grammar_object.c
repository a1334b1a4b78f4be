/* Objects with members of their own.
 *
 * An object's members come in the order of `properties`, each once; optional ones may be left out.
 * What additionalProperties allows comes after them, under names that are none of theirs. Without
 * additionalProperties an object that has `properties` takes no others: that is stricter than JSON
 * Schema, and every value is still valid. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_schema.h"

enum {
    MAX_NAME = 256, /* bytes of a property's name */
};

static const cJSON anything = {.type = cJSON_True};

typedef struct member {
    const char *name;
    const cJSON *schema; /* NULL: any value */
    gr_path path;
    bool required;
} member;

/* --- Names that are none of the members'. */

/* Where a name may go from this state of a character to `to`, but for the bytes in `taken`. */
static void others(gr_nfa *a, int32_t from, uint8_t lo, uint8_t hi, const bool *taken, int32_t to)
{
    for (int c = lo; c <= hi; c++) {
        int last = c;

        if (taken[c])
            continue;
        while (last < hi && !taken[last + 1])
            last++;
        gr_nfa_bytes(a, from, (uint8_t)c, (uint8_t)last, 0, to);
        c = last;
    }
}

/* The inside of a name as td_buf_json() writes it, byte by byte: lo..hi lead from a state to the
 * next. Both the members' trie and the loop that leaves it follow this. */
enum { IN_NAME, TAIL1, TAIL2, TAIL3, E0, ED, F0, F4, ESCAPE, N_INSIDE };

static const struct inside {
    uint8_t from, lo, hi, to;
} inside[] = {
    {IN_NAME, 0x20, 0x21, IN_NAME}, {IN_NAME, 0x23, 0x5b, IN_NAME}, {IN_NAME, 0x5d, 0x7e, IN_NAME},
    {IN_NAME, 0xc2, 0xdf, TAIL1},   {IN_NAME, 0xe0, 0xe0, E0},      {IN_NAME, 0xe1, 0xec, TAIL2},
    {IN_NAME, 0xed, 0xed, ED},      {IN_NAME, 0xee, 0xef, TAIL2},   {IN_NAME, 0xf0, 0xf0, F0},
    {IN_NAME, 0xf1, 0xf3, TAIL3},   {IN_NAME, 0xf4, 0xf4, F4},      {IN_NAME, '\\', '\\', ESCAPE},
    {TAIL1, 0x80, 0xbf, IN_NAME},   {TAIL2, 0x80, 0xbf, TAIL1},     {TAIL3, 0x80, 0xbf, TAIL2},
    {E0, 0xa0, 0xbf, TAIL1},        {ED, 0x80, 0x9f, TAIL1},        {F0, 0x90, 0xbf, TAIL2},
    {F4, 0x80, 0x8f, TAIL2},        {ESCAPE, '"', '"', IN_NAME},    {ESCAPE, '\\', '\\', IN_NAME},
    {ESCAPE, 'n', 'n', IN_NAME},    {ESCAPE, 'r', 'r', IN_NAME},    {ESCAPE, 't', 't', IN_NAME},
};
enum { N_STEPS = sizeof inside / sizeof *inside };

/* sorted[0..n) are members' names that begin alike for `at` bytes, which ended in `state`. */
static void other_names(gr_nfa *a, td_slice *sorted, size_t n, size_t at, int state,
                        const int32_t *plain, int32_t from, int32_t end)
{
    bool taken[256] = {false}, whole = false;

    for (size_t i = 0; i < n;) {
        size_t k = i + 1;
        uint8_t byte;

        if (sorted[i].len == at) {
            whole = true;
            i++;
            continue;
        }
        byte = (uint8_t)sorted[i].ptr[at];
        while (k < n && sorted[k].len > at && (uint8_t)sorted[k].ptr[at] == byte)
            k++;
        taken[byte] = true;
        for (size_t e = 0; e < N_STEPS; e++) {
            if (inside[e].from == state && inside[e].lo <= byte && byte <= inside[e].hi) {
                int32_t next = gr_nfa_state(a);

                gr_nfa_bytes(a, from, byte, byte, 0, next);
                other_names(a, sorted + i, k - i, at + 1, inside[e].to, plain, next, end);
            }
        }
        i = k;
    }
    for (size_t e = 0; e < N_STEPS; e++) {
        if (inside[e].from == state)
            others(a, from, inside[e].lo, inside[e].hi, taken, plain[inside[e].to]);
    }
    if (state == IN_NAME && !whole)
        gr_nfa_bytes(a, from, '"', '"', 0, end);
}

static int compare_names(const void *x, const void *y)
{
    const td_slice *a = x, *b = y;
    int c = memcmp(a->ptr, b->ptr, a->len < b->len ? a->len : b->len);

    return c != 0 ? c : (a->len > b->len) - (a->len < b->len);
}

/* A quoted name that no member has. */
static td_status another_name(gr_schema *c, const member *members, size_t n, int32_t from,
                              int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    int32_t plain[N_INSIDE], quote = gr_nfa_state(a);
    td_slice *sorted = calloc(n + 1, sizeof *sorted);
    td_buf text = {0};
    td_status st = TD_OK;

    for (size_t i = 0; i < n && sorted != NULL; i++) {
        size_t at = text.len;

        td_buf_json(&text, members[i].name, strlen(members[i].name));
        sorted[i].len = text.len - at;
    }
    if (sorted == NULL || text.oom) {
        st = gr_schema_no_memory(c);
    } else {
        for (size_t i = 0, at = 0; i < n; at += sorted[i++].len)
            sorted[i].ptr = text.ptr + at;
        if (n > 0)
            qsort(sorted, n, sizeof *sorted, compare_names);
        for (size_t i = 0; i < N_INSIDE; i++)
            plain[i] = gr_nfa_state(a);
        for (size_t e = 0; e < N_STEPS; e++)
            gr_nfa_bytes(a, plain[inside[e].from], inside[e].lo, inside[e].hi, 0,
                         plain[inside[e].to]);
        gr_nfa_bytes(a, plain[IN_NAME], '"', '"', 0, to);
        gr_nfa_bytes(a, from, '"', '"', 0, quote);
        other_names(a, sorted, n, 0, IN_NAME, plain, quote, to);
    }
    free(sorted);
    td_buf_free(&text);
    return st;
}

/* --- Objects. */

static td_status add_member(gr_schema *c, const gr_path *path, member *m, const char *name,
                            const cJSON *schema)
{
    if (strlen(name) > MAX_NAME)
        return gr_schema_fail(c, path, "a property's name of %zu bytes, expected at most %d",
                              strlen(name), MAX_NAME);
    *m = (member){.name = name, .schema = schema, .path = gr_path_add(path, "properties", name)};
    return TD_OK;
}

/* The members by name, those first that `properties` has. Room for all is in *members. */
static td_status list_members(gr_schema *c, const gr_view *v, const gr_path *path, member *members,
                              size_t *n)
{
    const cJSON *item, *more = v->of[GR_KW_ADDITIONAL];
    td_status st;

    cJSON_ArrayForEach(item, v->of[GR_KW_PROPERTIES])
    {
        for (size_t i = 0; i < *n; i++) {
            if (strcmp(members[i].name, item->string) == 0)
                return gr_schema_fail(c, path, "property '%.100s' appears twice", item->string);
        }
        if ((st = add_member(c, path, &members[(*n)++], item->string, item)) != TD_OK)
            return st;
    }
    cJSON_ArrayForEach(item, v->of[GR_KW_REQUIRED])
    {
        size_t i = 0;

        if (!cJSON_IsString(item))
            return gr_schema_fail(c, path, "'required' has what is no string");
        while (i < *n && strcmp(members[i].name, item->valuestring) != 0)
            i++;
        if (i == *n) {
            if (cJSON_IsFalse(more))
                return gr_schema_fail(c, path,
                                      "'required' names '%.100s', which is not among the "
                                      "properties, and no others are allowed",
                                      item->valuestring);
            if ((st = add_member(c, path, &members[(*n)++], item->valuestring, more)) != TD_OK)
                return st;
        }
        members[i].required = true;
    }
    return TD_OK;
}

static td_status value_of(gr_schema *c, const member *m, int32_t from, int32_t to)
{
    if (m->schema != NULL)
        return gr_schema_value(c, m->schema, &m->path, 0, from, to);
    gr_nfa_call(&c->b.nfa, from, GR_RULE_VALUE, 0, GR_ANY, 0, to);
    return TD_OK;
}

/* minProperties and maxProperties beside members, where they ask for nothing that the members do
 * not give anyway, or for one at least. */
static td_status check_bounds(gr_schema *c, const gr_view *v, const gr_path *path,
                              const member *members, size_t n, bool more, bool *one)
{
    uint32_t min = 0, max = GR_ANY;
    size_t required = 0;
    td_status st = gr_schema_count(c, v, GR_KW_MIN_PROPERTIES, path, &min);

    if (st == TD_OK)
        st = gr_schema_count(c, v, GR_KW_MAX_PROPERTIES, path, &max);
    if (st != TD_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        required += members[i].required;
    *one = min == 1;
    if (min > 1 && min > required)
        return gr_schema_fail(c, path,
                              "'minProperties' over 1 beside 'properties' is not supported");
    if (max != GR_ANY && (more || max < n))
        return gr_schema_fail(c, path, "'maxProperties' beside 'properties' is not supported");
    return TD_OK;
}

static td_status members_body(gr_schema *c, const gr_path *path, const member *members, size_t n,
                              const cJSON *more, bool one, int32_t from, int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    int32_t none = gr_nfa_state(a), some = gr_nfa_state(a), last = gr_nfa_state(a);
    int32_t open = gr_nfa_state(a);
    td_status st;

    /* `none`: inside, nothing written yet; `some`: after a member. */
    gr_nfa_bytes(a, from, '{', '{', 0, open);
    gr_nfa_gap(a, open, none);
    for (size_t i = 0; i < n; i++) {
        const member *m = &members[i];
        int32_t key = gr_nfa_state(a), comma = gr_nfa_state(a), name = gr_nfa_state(a);
        int32_t named = gr_nfa_state(a), colon = gr_nfa_state(a), value = gr_nfa_state(a);
        int32_t next_none = gr_nfa_state(a), next_some = gr_nfa_state(a), quoted = gr_nfa_state(a);

        gr_nfa_eps(a, none, key);
        gr_nfa_bytes(a, some, ',', ',', 0, comma);
        gr_nfa_gap(a, comma, key);
        gr_nfa_bytes(a, key, '"', '"', 0, name);
        gr_nfa_quoted(a, name, m->name, strlen(m->name), quoted);
        gr_nfa_bytes(a, quoted, '"', '"', 0, named);
        gr_nfa_bytes(a, named, ':', ':', 0, colon);
        gr_nfa_gap(a, colon, value);
        if ((st = value_of(c, m, value, next_some)) != TD_OK)
            return st;
        if (!m->required) {
            gr_nfa_eps(a, none, next_none);
            gr_nfa_eps(a, some, next_some);
        }
        none = next_none;
        some = next_some;
    }
    if (more != NULL && !cJSON_IsFalse(more)) {
        gr_path at = gr_path_add(path, "additionalProperties", NULL);
        int32_t key = gr_nfa_state(a), comma = gr_nfa_state(a), named = gr_nfa_state(a);
        int32_t colon = gr_nfa_state(a), value = gr_nfa_state(a), after = gr_nfa_state(a);

        gr_nfa_eps(a, some, after);
        gr_nfa_eps(a, none, key);
        gr_nfa_bytes(a, after, ',', ',', 0, comma);
        gr_nfa_gap(a, comma, key);
        if ((st = another_name(c, members, n, key, named)) != TD_OK)
            return st;
        gr_nfa_bytes(a, named, ':', ':', 0, colon);
        gr_nfa_gap(a, colon, value);
        if ((st = gr_schema_value(c, more, &at, 0, value, after)) != TD_OK)
            return st;
        some = after;
    }
    if (!one)
        gr_nfa_bytes(a, none, '}', '}', 0, to);
    gr_nfa_gap(a, some, last);
    gr_nfa_bytes(a, last, '}', '}', 0, to);
    return TD_OK;
}

td_status gr_schema_object(gr_schema *c, const gr_view *v, const gr_path *path,
                           const gr_counts *counts, int32_t from, int32_t to)
{
    const cJSON *properties = v->of[GR_KW_PROPERTIES], *required = v->of[GR_KW_REQUIRED];
    const cJSON *more = v->of[GR_KW_ADDITIONAL];
    size_t room, n = 0;
    member *members;
    bool one;
    td_status st;

    if (properties != NULL && !cJSON_IsObject(properties))
        return gr_schema_fail(c, path, "'properties' is no object");
    if (required != NULL && !cJSON_IsArray(required))
        return gr_schema_fail(c, path, "'required' is no list");
    if (more != NULL && !cJSON_IsBool(more) && !cJSON_IsObject(more))
        return gr_schema_fail(c, path, "'additionalProperties' is no schema");
    if (v->of[GR_KW_PATTERN_PROPERTIES] != NULL && !cJSON_IsObject(v->of[GR_KW_PATTERN_PROPERTIES]))
        return gr_schema_fail(c, path, "'patternProperties' is no object");
    if (counts != NULL)
        return gr_schema_map(c, v, path, counts, from, to);
    if (!gr_schema_any_names(v))
        return gr_schema_fail(c, path,
                              "'patternProperties' or 'propertyNames' beside 'properties' or "
                              "'required' is not supported");
    if (properties == NULL && more == NULL)
        more = &anything;
    room = (size_t)cJSON_GetArraySize(properties) + (size_t)cJSON_GetArraySize(required);
    if (cJSON_GetArraySize(properties) > GR_MAX_MEMBERS)
        return gr_schema_fail(c, path, "%d properties, expected at most %d",
                              cJSON_GetArraySize(properties), GR_MAX_MEMBERS);
    if (room > 2 * (size_t)GR_MAX_MEMBERS)
        return gr_schema_fail(c, path, "'required' has %d names, expected at most %d",
                              cJSON_GetArraySize(required),
                              2 * GR_MAX_MEMBERS - cJSON_GetArraySize(properties));
    if ((st = gr_schema_spend(c, path, room * room)) != TD_OK) /* each is compared with all */
        return st;
    if ((members = calloc(room + 1, sizeof *members)) == NULL)
        return gr_schema_no_memory(c);
    st = list_members(c, v, path, members, &n);
    if (st == TD_OK)
        st = check_bounds(c, v, path, members, n, more != NULL && !cJSON_IsFalse(more), &one);
    if (st == TD_OK)
        st = members_body(c, path, members, n, more, one, from, to);
    free(members);
    return st;
}
