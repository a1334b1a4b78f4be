/* grammar_schema: what the files that read a JSON Schema share. */
#ifndef TANDEM_COMMON_GRAMMAR_SCHEMA_H
#define TANDEM_COMMON_GRAMMAR_SCHEMA_H

#include <cjson/cJSON.h>

#include "common/grammar_impl.h"

/* Keywords that have an effect: name, and whether it restricts values of one type only. */
#define GR_KEYWORDS(X) \
    X(TYPE, "type", 0) \
    X(ENUM, "enum", 0) \
    X(CONST, "const", 0) \
    X(REF, "$ref", 0) \
    X(ANY_OF, "anyOf", 0) \
    X(ONE_OF, "oneOf", 0) \
    X(ALL_OF, "allOf", 0) \
    X(NULLABLE, "nullable", 0) \
    X(PROPERTIES, "properties", GR_OBJECT) \
    X(REQUIRED, "required", GR_OBJECT) \
    X(ADDITIONAL, "additionalProperties", GR_OBJECT) \
    X(PATTERN_PROPERTIES, "patternProperties", GR_OBJECT) \
    X(PROPERTY_NAMES, "propertyNames", GR_OBJECT) \
    X(MIN_PROPERTIES, "minProperties", GR_OBJECT) \
    X(MAX_PROPERTIES, "maxProperties", GR_OBJECT) \
    X(ITEMS, "items", GR_ARRAY) \
    X(PREFIX_ITEMS, "prefixItems", GR_ARRAY) \
    X(MIN_ITEMS, "minItems", GR_ARRAY) \
    X(MAX_ITEMS, "maxItems", GR_ARRAY) \
    X(MIN_LENGTH, "minLength", GR_STRING) \
    X(MAX_LENGTH, "maxLength", GR_STRING) \
    X(PATTERN, "pattern", GR_STRING) \
    X(FORMAT, "format", GR_STRING) \
    X(MINIMUM, "minimum", GR_NUMBER) \
    X(MAXIMUM, "maximum", GR_NUMBER) \
    X(EXCLUSIVE_MINIMUM, "exclusiveMinimum", GR_NUMBER) \
    X(EXCLUSIVE_MAXIMUM, "exclusiveMaximum", GR_NUMBER) \
    X(MULTIPLE_OF, "multipleOf", GR_NUMBER)

enum { GR_MAX_MEMBERS = 2000 }; /* of one object or prefixItems */

/* Types of values, as bits. An integer is also a number. */
enum {
    GR_NULL = 1,
    GR_BOOLEAN = 2,
    GR_STRING = 4,
    GR_NUMBER = 8,
    GR_INTEGER = 16,
    GR_OBJECT = 32,
    GR_ARRAY = 64,
    GR_ALL_TYPES = 127
};

typedef enum gr_keyword {
#define GR_X(id, name, type) GR_KW_##id,
    GR_KEYWORDS(GR_X)
#undef GR_X
        GR_N_KEYWORDS
} gr_keyword;

extern const char *const gr_keyword_names[GR_N_KEYWORDS];
extern const int gr_keyword_types[GR_N_KEYWORDS];

/* One schema's keywords; those without effect are left out. */
typedef struct gr_view {
    const cJSON *of[GR_N_KEYWORDS]; /* NULL: absent */
} gr_view;

/* Where a schema stands: a JSON pointer, cut when it is long. */
typedef struct gr_path {
    char text[256];
} gr_path;

typedef struct gr_todo gr_todo;

typedef struct gr_schema {
    gr_build b;
    const cJSON *root;
    gr_todo *todos; /* rules, by schema and kind (uthash) */
    gr_todo *next;  /* the first that is not made */
    gr_todo *last;
    cJSON **made; /* merged schemas, kept until the end */
    size_t n_made, cap_made;
    uint64_t work; /* spent so far, see gr_schema_spend() */
    td_error *err;
} gr_schema;

/* TD_INVALID with "path: text". */
td_status gr_schema_fail(gr_schema *c, const gr_path *path, const char *fmt, ...) TD_PRINTF(3, 4);
td_status gr_schema_no_memory(gr_schema *c);

/* Before loops that are quadratic in what a stranger sends: TD_INVALID when it has been too much.
 */
td_status gr_schema_spend(gr_schema *c, const gr_path *path, uint64_t steps);

/* Keep a schema that was made on the way until c is done. It is deleted on failure too. */
td_status gr_schema_keep(gr_schema *c, cJSON *made);

/* path + "/a/b"; b may be NULL. */
gr_path gr_path_add(const gr_path *path, const char *a, const char *b);
gr_path gr_path_index(const gr_path *path, const char *a, int i);

/* The keywords of a schema object. TD_INVALID: one that is not known, or twice. */
td_status gr_schema_view(gr_schema *c, const cJSON *node, const gr_path *path, gr_view *v);

/* The bit of a type's name; 0: it is none. */
int gr_schema_type_bit(const cJSON *name);

/* The bits of `type`; all of them when it is absent. */
td_status gr_schema_types(gr_schema *c, const gr_view *v, const gr_path *path, int *types);

/* What a local reference names. */
td_status gr_schema_resolve(gr_schema *c, const cJSON *ref, const gr_path *path,
                            const cJSON **target, gr_path *target_path);

/* A schema of the values that all of parts[0..n) allow; what is referred to is resolved at the top
 * level, deeper parts are left as allOf. It lives as long as c. */
td_status gr_schema_merge(gr_schema *c, const cJSON *const *parts, size_t n, const gr_path *path,
                          const cJSON **out);

/* A copy of node without a keyword; it lives as long as c. */
td_status gr_schema_without(gr_schema *c, const cJSON *node, gr_keyword k, const cJSON **out);

/* A literal value, as enum and const have them. */
td_status gr_schema_literal(gr_schema *c, const cJSON *value, const gr_path *path, int32_t from,
                            int32_t to);

/* item as a whole number of 0 to 2^31 - 2, or bad: absent is fine and leaves *out. */
td_status gr_schema_count(gr_schema *c, const gr_view *v, gr_keyword k, const gr_path *path,
                          uint32_t *out);

/* Whether a literal is of one of these types. */
bool gr_schema_has_type(const cJSON *value, int types);

/* minLength and maxLength. TD_INVALID also when nothing is between them. */
td_status gr_schema_length(gr_schema *c, const gr_view *v, const gr_path *path, uint32_t *min,
                           uint32_t *max);

/* Whether the rules of every grammar do for the strings (but for their length), numbers, objects of
 * a schema; and whether an object has no members of its own, but bounds or rules for their names.
 */
bool gr_schema_plain_string(const gr_view *v);
bool gr_schema_plain_number(const gr_view *v);
bool gr_schema_plain_object(const gr_view *v);
bool gr_schema_is_map(const gr_view *v);

/* Whether an object's names are free. */
bool gr_schema_any_names(const gr_view *v);

/* The counters that a rule starts with. */
typedef struct gr_counts {
    uint32_t *need, *room;
} gr_counts;

/* Whether an 'enum' or 'const' may stand beside this keyword: one that a value can be held to here.
 */
bool gr_schema_may_bound_literals(gr_keyword k);

/* Holds a value to these keywords. */
td_status gr_schema_within(gr_schema *c, const gr_view *v, const gr_path *path, const cJSON *item,
                           bool *within);

/* Values of one type, in the NFA in hand, between two states. counts: for a list, and for a map;
 * NULL otherwise. */
td_status gr_schema_string(gr_schema *c, const gr_view *v, const gr_path *path, int32_t from,
                           int32_t to);
td_status gr_schema_number(gr_schema *c, const gr_view *v, const gr_path *path, bool integer,
                           int32_t from, int32_t to);
td_status gr_schema_object(gr_schema *c, const gr_view *v, const gr_path *path,
                           const gr_counts *counts, int32_t from, int32_t to);
td_status gr_schema_map(gr_schema *c, const gr_view *v, const gr_path *path,
                        const gr_counts *counts, int32_t from, int32_t to);
td_status gr_schema_array(gr_schema *c, const gr_view *v, const gr_path *path,
                          const gr_counts *counts, int32_t from, int32_t to);

/* Any value of a schema between two states: in line where that is short, by a call otherwise. */
td_status gr_schema_value(gr_schema *c, const cJSON *node, const gr_path *path, uint8_t flags,
                          int32_t from, int32_t to);

#endif
