#include "tests/unit/grammar_random.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_KIDS = 6, MAX_DEPTH = 4, MAX_NODES = 200, MAX_TEXT = 4000 };

typedef enum kind {
    K_NULL,
    K_BOOL,
    K_INT,
    K_NUMBER,
    K_STRING,
    K_PATTERN,
    K_ENUM,
    K_LIST,
    K_TUPLE,
    K_OBJECT,
    K_ANY_OF,
    K_REF,
    K_ANY,
    N_KINDS
} kind;

typedef struct node {
    kind kind;
    int64_t min, max; /* of values, characters, items; max -1: none */
    int which;        /* pattern, multiple */
    struct node *kid[MAX_KIDS];
    bool required[MAX_KIDS];
    int n_kids;
    struct node *rest; /* items, additionalProperties; NULL: none are allowed */
} node;

struct random_schema {
    uint64_t state;
    node nodes[MAX_NODES];
    int n_nodes;
    node *root;
    node *shared;   /* "#/$defs/shared": may hold itself */
    int style;      /* of white space */
    int places;     /* where a text can be made wrong, so far */
    int wrong_at;   /* at which it is; -1: none */
    bool open;      /* inside what takes anything, or one of several: nothing wrong can be told */
    int fuel;       /* references that may still be followed */
    bool long_text; /* more than is worth a test: given up */
};

static const char *const names[MAX_KIDS] = {"id",  "idx", "name", "na\\\"me", "\xc3\xa9t\xc3\xa9",
                                            "type"};

static const struct pattern {
    const char *schema, *good[3], *bad[3];
} patterns[] = {
    {"\"pattern\":\"^[a-z]{2,4}$\"", {"ab", "abc", "zzzz"}, {"a", "abcde", "aB"}},
    {"\"pattern\":\"[0-9]\"",
     {"1", "abc9",
      "\xc3\xa9"
      "4x"},
     {"", "abc", "\\n"}},
    {"\"pattern\":\"^(ab|cd)*e?$\"", {"", "abcde", "cdcd"}, {"a", "abe ", "ee"}},
    {"\"pattern\":\"^[^x]*x$\"", {"x", "\\nx", "\xe4\xbd\xa0x"}, {"", "xx", "y"}},
    {"\"format\":\"date\"", {"2026-11-30", "2024-02-29", "0001-01-01"}, {"2026-02-29", "", "x"}},
    {"\"format\":\"ipv4\"", {"1.2.3.4", "255.0.0.255", "10.20.30.40"}, {"1.2.3", "256.1.1.1", ""}},
    {"\"pattern\":\"^\\\\d+$\",\"maxLength\":3", {"1", "12", "123"}, {"", "1234", "x"}},
};
enum { N_PATTERNS = sizeof patterns / sizeof *patterns };

uint32_t random_schema_below(random_schema *s, uint32_t n)
{
    s->state = s->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((s->state >> 33) % n);
}

/* --- Schemas. */

static node *make(random_schema *s, int depth)
{
    node *x = &s->nodes[s->n_nodes++];
    uint32_t kinds = depth >= MAX_DEPTH || s->n_nodes > MAX_NODES - 60 ? K_LIST : N_KINDS;

    *x = (node){.kind = (kind)random_schema_below(s, kinds), .max = -1};
    if (depth == 0 && random_schema_below(s, 3) > 0)
        x->kind = K_OBJECT;
    x->which = (int)random_schema_below(s, 1000);
    switch (x->kind) {
    case K_INT:
        x->min = (int64_t)random_schema_below(s, 3000) - 1500;
        x->max = x->min + random_schema_below(s, 2000);
        break;
    case K_NUMBER:
        x->min = (int64_t)random_schema_below(s, 40) - 20;
        x->max = x->min + 1 + random_schema_below(s, 30);
        break;
    case K_STRING:
        x->min = random_schema_below(s, 4);
        x->max = random_schema_below(s, 2) ? x->min + random_schema_below(s, 12) : -1;
        break;
    case K_LIST:
        x->min = random_schema_below(s, 3);
        x->max = random_schema_below(s, 2) ? x->min + random_schema_below(s, 4) : -1;
        x->rest = make(s, depth + 1);
        break;
    case K_TUPLE:
        x->n_kids = 1 + (int)random_schema_below(s, 3);
        for (int i = 0; i < x->n_kids; i++)
            x->kid[i] = make(s, depth + 1);
        x->rest = random_schema_below(s, 2) ? make(s, depth + 1) : NULL;
        x->min = random_schema_below(s, (uint32_t)x->n_kids + 1);
        break;
    case K_OBJECT:
        x->n_kids = (int)random_schema_below(s, MAX_KIDS + 1);
        for (int i = 0; i < x->n_kids; i++) {
            x->kid[i] = make(s, depth + 1);
            x->required[i] = random_schema_below(s, 2) != 0;
        }
        x->rest = random_schema_below(s, 3) == 0 ? make(s, depth + 1) : NULL;
        break;
    case K_ANY_OF:
        x->n_kids = 1 + (int)random_schema_below(s, 3);
        for (int i = 0; i < x->n_kids; i++)
            x->kid[i] = make(s, depth + 1);
        break;
    default: break;
    }
    return x;
}

random_schema *random_schema_create(uint64_t seed)
{
    random_schema *s = calloc(1, sizeof *s);

    s->state = seed * 2654435761u + 12345;
    s->shared = make(s, 1);
    while (s->shared->kind == K_REF)
        s->shared = make(s, 1);
    s->root = make(s, 0);
    return s;
}

void random_schema_free(random_schema *s)
{
    free(s);
}

static void write_node(const node *x, td_buf *out)
{
    bool first = true;

    switch (x->kind) {
    case K_NULL: td_buf_str(out, "{\"type\":\"null\"}"); break;
    case K_BOOL: td_buf_str(out, "{\"type\":[\"boolean\"]}"); break;
    case K_INT:
        td_buf_fmt(out, "{\"type\":\"integer\",\"minimum\":%ld,\"exclusiveMaximum\":%ld}",
                   (long)x->min, (long)x->max + 1);
        break;
    case K_NUMBER:
        td_buf_fmt(out, "{\"type\":\"number\",\"exclusiveMinimum\":%ld,\"maximum\":%ld}",
                   (long)x->min, (long)x->max);
        break;
    case K_STRING:
        td_buf_fmt(out, "{\"type\":\"string\",\"minLength\":%ld", (long)x->min);
        if (x->max >= 0)
            td_buf_fmt(out, ",\"maxLength\":%ld", (long)x->max);
        td_buf_str(out, "}");
        break;
    case K_PATTERN:
        td_buf_fmt(out, "{\"type\":\"string\",%s}", patterns[x->which % N_PATTERNS].schema);
        break;
    case K_ENUM:
        td_buf_str(out, "{\"enum\":[\"red\",\"red2\",\"\",12,123,null,{\"a\":[1]}]}");
        break;
    case K_LIST:
        td_buf_fmt(out, "{\"type\":\"array\",\"minItems\":%ld", (long)x->min);
        if (x->max >= 0)
            td_buf_fmt(out, ",\"maxItems\":%ld", (long)x->max);
        td_buf_str(out, ",\"items\":");
        write_node(x->rest, out);
        td_buf_str(out, "}");
        break;
    case K_TUPLE:
        td_buf_fmt(out, "{\"type\":\"array\",\"minItems\":%ld,\"prefixItems\":[", (long)x->min);
        for (int i = 0; i < x->n_kids; i++) {
            td_buf_str(out, i > 0 ? "," : "");
            write_node(x->kid[i], out);
        }
        td_buf_str(out, "],\"items\":");
        if (x->rest != NULL)
            write_node(x->rest, out);
        else
            td_buf_str(out, "false");
        td_buf_str(out, "}");
        break;
    case K_OBJECT:
        td_buf_str(out, "{\"type\":\"object\",\"properties\":{");
        for (int i = 0; i < x->n_kids; i++) {
            td_buf_fmt(out, "%s\"%s\":", i > 0 ? "," : "", names[i]);
            write_node(x->kid[i], out);
        }
        td_buf_str(out, "},\"required\":[");
        for (int i = 0; i < x->n_kids; i++) {
            if (x->required[i])
                td_buf_fmt(out, "%s\"%s\"", first ? "" : ",", names[i]);
            first &= !x->required[i];
        }
        td_buf_str(out, "],\"additionalProperties\":");
        if (x->rest != NULL)
            write_node(x->rest, out);
        else
            td_buf_str(out, "false");
        td_buf_str(out, "}");
        break;
    case K_ANY_OF:
        td_buf_str(out, x->which % 2 ? "{\"anyOf\":[" : "{\"oneOf\":[");
        for (int i = 0; i < x->n_kids; i++) {
            td_buf_str(out, i > 0 ? "," : "");
            write_node(x->kid[i], out);
        }
        td_buf_str(out, "]}");
        break;
    case K_REF: td_buf_str(out, "{\"$ref\":\"#/$defs/shared\"}"); break;
    default: td_buf_str(out, x->which % 2 ? "{}" : "true"); break;
    }
}

void random_schema_write(random_schema *s, td_buf *out)
{
    td_buf_str(out, "{\"$defs\":{\"shared\":");
    write_node(s->shared, out);
    td_buf_str(out, "},\"allOf\":[");
    if (s->root->which % 2) { /* or plainly, so that both are met */
        out->len -= strlen("\"allOf\":[");
        out->ptr[out->len] = '\0';
        td_buf_str(out, "\"anyOf\":[");
    }
    write_node(s->root, out);
    td_buf_str(out, "]}");
}

/* --- Texts. */

static void gap(random_schema *s, td_buf *out)
{
    static const char *const gaps[] = {"", " ", "\n  ", "\n"};

    if (s->style == 1)
        td_buf_str(out, " ");
    else if (s->style == 2)
        td_buf_str(out, gaps[random_schema_below(s, 4)]);
}

/* Whether this is the place to be wrong. */
static bool wrong(random_schema *s)
{
    return !s->open && s->places++ == s->wrong_at;
}

static void characters(random_schema *s, td_buf *out, int64_t n)
{
    static const char *const some[] = {"a",
                                       "Z",
                                       " ",
                                       "9",
                                       "\\\"",
                                       "\\\\",
                                       "\\n",
                                       "\\u00e9",
                                       "\\ud83d\\ude00",
                                       "\xc3\xa9",
                                       "\xe4\xbd\xa0",
                                       "\xf0\x9f\x98\x80",
                                       "}",
                                       ",",
                                       ":",
                                       "\\/",
                                       "{",
                                       "]"};

    for (int64_t i = 0; i < n; i++)
        td_buf_str(out, some[random_schema_below(s, sizeof some / sizeof *some)]);
}

static void value(random_schema *s, const node *x, td_buf *out);

static void anything(random_schema *s, td_buf *out)
{
    static const char *const some[] = {"null",   "[1,[],{}]",   "{\"a\": {\"b\":\"c\"}}",
                                       "-1.5e3", "\"\\u0041\"", "true"};

    td_buf_str(out, some[random_schema_below(s, 6)]);
}

static void list(random_schema *s, const node *x, td_buf *out)
{
    int64_t least = x->min, most, n;

    most = x->max >= 0 ? x->max : least + 3;
    if (x->kind == K_TUPLE)
        most = x->rest != NULL ? x->n_kids + 2 : x->n_kids;
    n = least + random_schema_below(s, (uint32_t)(most - least) + 1);
    if (s->fuel <= 0)
        n = least;
    if (least > 0 && wrong(s))
        n = least - 1;
    else if ((x->max >= 0 || (x->kind == K_TUPLE && x->rest == NULL)) && wrong(s))
        n = most + 1;
    td_buf_byte(out, '[');
    for (int64_t i = 0; i < n; i++) {
        const node *item = x->kind == K_TUPLE && i < x->n_kids ? x->kid[i] : x->rest;

        td_buf_str(out, i > 0 ? "," : "");
        gap(s, out);
        if (item != NULL)
            value(s, item, out);
        else
            td_buf_str(out, "null");
    }
    gap(s, out);
    td_buf_byte(out, ']');
}

static void object(random_schema *s, const node *x, td_buf *out)
{
    static const char *const others[] = {"i", "idxx", "", "types", "\xc3\xa9"};
    int left_out = -1, n = 0;
    bool swapped = false;

    for (int i = 0; i < x->n_kids && left_out < 0; i++) {
        if (x->required[i] && wrong(s))
            left_out = i;
    }
    if (left_out < 0 && wrong(s)) { /* a name that is not allowed, or one that comes too late */
        swapped = true;
    }
    td_buf_byte(out, '{');
    for (int i = 0; i < x->n_kids; i++) {
        if (i == left_out || (!x->required[i] && (s->fuel <= 0 || random_schema_below(s, 2))))
            continue;
        td_buf_str(out, n++ > 0 ? "," : "");
        gap(s, out);
        td_buf_fmt(out, "\"%s\":", names[i]);
        gap(s, out);
        value(s, x->kid[i], out);
    }
    for (int i = 0; i < 5 && x->rest != NULL && s->fuel > 0; i++) {
        if (random_schema_below(s, 3) > 0)
            continue;
        td_buf_str(out, n++ > 0 ? "," : "");
        gap(s, out);
        td_buf_fmt(out, "\"%s\":", others[i]);
        gap(s, out);
        value(s, x->rest, out);
    }
    if (swapped) {
        td_buf_str(out, n++ > 0 ? "," : "");
        /* A name of its own schema that has been passed; or none that is allowed. */
        if (x->rest != NULL && x->n_kids == 0)
            td_buf_str(out, "\"a\" :null");
        else
            td_buf_fmt(out, "\"%s\":\x01", x->n_kids > 0 ? names[0] : "a");
    }
    gap(s, out);
    td_buf_byte(out, '}');
}

static void string(random_schema *s, const node *x, td_buf *out)
{
    int64_t most = x->max >= 0 ? x->max : x->min + 9;
    int64_t n = x->min + random_schema_below(s, (uint32_t)(most - x->min) + 1);

    if (x->min > 0 && wrong(s))
        n = x->min - 1;
    else if (x->max >= 0 && wrong(s))
        n = x->max + 1;
    td_buf_byte(out, '"');
    characters(s, out, n);
    if (wrong(s))
        td_buf_str(out, random_schema_below(s, 2) ? "\xed\xa0\x80" : "\\ud800");
    td_buf_byte(out, '"');
}

static void value(random_schema *s, const node *x, td_buf *out)
{
    static const char *const words[] = {"\"red\"", "\"red2\"", "\"\"",        "12",
                                        "123",     "null",     "{\"a\": [1]}"};
    bool open = s->open;

    if (out->len > MAX_TEXT)
        s->long_text = true;
    if (s->long_text)
        return;
    switch (x->kind) {
    case K_NULL: td_buf_str(out, wrong(s) ? "nil" : "null"); break;
    case K_BOOL:
        td_buf_str(out, wrong(s) ? "\"true\"" : random_schema_below(s, 2) ? "true" : "false");
        break;
    case K_INT: {
        int64_t v = x->min + random_schema_below(s, (uint32_t)(x->max - x->min) + 1);

        if (wrong(s))
            v = random_schema_below(s, 2) ? x->max + 1 + random_schema_below(s, 200)
                                          : x->min - 1 - random_schema_below(s, 200);
        td_buf_fmt(out, wrong(s) ? "%ld.5" : "%ld", (long)v);
        break;
    }
    case K_NUMBER: {
        /* min is outside, max is inside. */
        int64_t v = x->min + 1 + random_schema_below(s, (uint32_t)(x->max - x->min));

        if (wrong(s))
            td_buf_fmt(out, "%ld%s", (long)(random_schema_below(s, 2) ? x->max + 1 : x->min),
                       random_schema_below(s, 2) ? ".0" : "");
        else if (v > 0 && v < x->max)
            td_buf_fmt(out, "%ld.%u", (long)v, random_schema_below(s, 10000));
        else
            td_buf_fmt(out, "%ld", (long)v);
        break;
    }
    case K_STRING: string(s, x, out); break;
    case K_PATTERN: {
        const struct pattern *p = &patterns[x->which % N_PATTERNS];
        uint32_t i = random_schema_below(s, 3);

        td_buf_fmt(out, "\"%s\"", wrong(s) ? p->bad[i] : p->good[i]);
        break;
    }
    case K_ENUM: td_buf_str(out, wrong(s) ? "\"re\"" : words[random_schema_below(s, 7)]); break;
    case K_LIST:
    case K_TUPLE: list(s, x, out); break;
    case K_OBJECT: object(s, x, out); break;
    case K_ANY_OF:
        s->open = true;
        value(s, x->kid[random_schema_below(s, (uint32_t)x->n_kids)], out);
        s->open = open;
        break;
    case K_REF:
        if (s->fuel-- < -50)
            s->long_text = true;
        value(s, s->shared, out);
        break;
    default: anything(s, out); break;
    }
}

static void text(random_schema *s, td_buf *out)
{
    s->places = 0;
    s->open = s->long_text = false;
    s->fuel = 8;
    s->style = (int)random_schema_below(s, 3);
    value(s, s->root, out);
}

bool random_schema_valid(random_schema *s, td_buf *out)
{
    s->wrong_at = -1;
    text(s, out);
    return !s->long_text;
}

bool random_schema_invalid(random_schema *s, td_buf *out)
{
    td_buf count = {0};

    for (int tries = 0; tries < 20; tries++) {
        s->wrong_at = -1;
        td_buf_clear(&count);
        text(s, &count);
        if (s->places == 0 || s->long_text)
            continue;
        s->wrong_at = (int)random_schema_below(s, (uint32_t)s->places);
        td_buf_clear(out);
        text(s, out);
        if (s->places > s->wrong_at && !s->long_text) { /* the place was reached */
            td_buf_free(&count);
            return true;
        }
    }
    td_buf_free(&count);
    return false;
}
