/* Literal values, strings and numbers of a schema. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar_schema.h"
#include "common/json_file.h"

enum { MAX_PATTERN_STATES = 10000, MAX_COUNTED_STATES = 50000 };

static const double exact = 9007199254740992.0; /* 2^53: neighbours are no longer told apart */

/* --- Literals. */

bool gr_schema_has_type(const cJSON *value, int types)
{
    if (cJSON_IsNumber(value)) {
        bool whole = value->valuedouble == floor(value->valuedouble);

        return (types & GR_NUMBER) != 0 || ((types & GR_INTEGER) != 0 && whole);
    }
    return (cJSON_IsNull(value) && (types & GR_NULL)) ||
           (cJSON_IsBool(value) && (types & GR_BOOLEAN)) ||
           (cJSON_IsString(value) && (types & GR_STRING)) ||
           (cJSON_IsArray(value) && (types & GR_ARRAY)) ||
           (cJSON_IsObject(value) && (types & GR_OBJECT));
}

static td_status literal_number(gr_schema *c, double v, const gr_path *path, int32_t from,
                                int32_t to)
{
    char text[64];
    int precision = 15;

    if (fabs(v) >= exact)
        return gr_schema_fail(c, path,
                              "a number of 2^53 or more in 'enum' or 'const' is not supported");
    if (v == floor(v)) {
        snprintf(text, sizeof text, "%.0f", v == 0 ? 0 : v);
    } else {
        do
            snprintf(text, sizeof text, "%.*g", precision, v);
        while (strtod(text, NULL) != v && ++precision <= 17);
    }
    gr_nfa_text(&c->b.nfa, from, text, strlen(text), to);
    return TD_OK;
}

static int32_t quoted(gr_nfa *a, int32_t from, const char *text)
{
    int32_t open = gr_nfa_state(a), close = gr_nfa_state(a), end = gr_nfa_state(a);

    gr_nfa_bytes(a, from, '"', '"', 0, open);
    gr_nfa_quoted(a, open, text, strlen(text), close);
    gr_nfa_bytes(a, close, '"', '"', 0, end);
    return end;
}

static td_status literal_list(gr_schema *c, const cJSON *value, const gr_path *path, int32_t from,
                              int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    bool object = cJSON_IsObject(value);
    const cJSON *item;
    int32_t at = gr_nfa_state(a), last = gr_nfa_state(a);
    td_status st;

    gr_nfa_bytes(a, from, object ? '{' : '[', object ? '{' : '[', 0, at);
    cJSON_ArrayForEach(item, value)
    {
        int32_t begin = gr_nfa_state(a), after = gr_nfa_state(a), comma;

        if (item != value->child) {
            comma = gr_nfa_state(a);
            gr_nfa_bytes(a, at, ',', ',', 0, comma);
            at = comma;
        }
        gr_nfa_gap(a, at, begin);
        if (object) {
            int32_t name = quoted(a, begin, item->string), colon = gr_nfa_state(a);

            begin = gr_nfa_state(a);
            gr_nfa_bytes(a, name, ':', ':', 0, colon);
            gr_nfa_gap(a, colon, begin);
        }
        if ((st = gr_schema_literal(c, item, path, begin, after)) != TD_OK)
            return st;
        at = after;
    }
    gr_nfa_gap(a, at, last);
    gr_nfa_bytes(a, last, object ? '}' : ']', object ? '}' : ']', 0, to);
    return TD_OK;
}

td_status gr_schema_literal(gr_schema *c, const cJSON *value, const gr_path *path, int32_t from,
                            int32_t to)
{
    gr_nfa *a = &c->b.nfa;

    if (cJSON_IsNumber(value))
        return literal_number(c, value->valuedouble, path, from, to);
    if (cJSON_IsArray(value) || cJSON_IsObject(value))
        return literal_list(c, value, path, from, to);
    if (cJSON_IsString(value))
        gr_nfa_eps(a, quoted(a, from, value->valuestring), to);
    else if (cJSON_IsNull(value))
        gr_nfa_text(a, from, "null", 4, to);
    else
        gr_nfa_text(a, from, cJSON_IsTrue(value) ? "true" : "false", cJSON_IsTrue(value) ? 4 : 5,
                    to);
    return TD_OK;
}

/* --- Strings. */

td_status gr_schema_length(gr_schema *c, const gr_view *v, const gr_path *path, uint32_t *min,
                           uint32_t *max)
{
    td_status st = gr_schema_count(c, v, GR_KW_MIN_LENGTH, path, min);

    if (st == TD_OK)
        st = gr_schema_count(c, v, GR_KW_MAX_LENGTH, path, max);
    if (st == TD_OK && *min > *max)
        st = gr_schema_fail(c, path, "'minLength' of %u and 'maxLength' of %u leave nothing", *min,
                            *max);
    return st;
}

bool gr_schema_plain_string(const gr_view *v)
{
    return v->of[GR_KW_PATTERN] == NULL && v->of[GR_KW_FORMAT] == NULL;
}

/* A pattern's automaton beside the number of characters so far: its states once for each number up
 * to where more makes no difference. */
static td_status with_length(gr_schema *c, const gr_build *p, int32_t start, uint32_t min,
                             uint32_t max, const gr_path *path, int32_t from, int32_t to)
{
    gr_nfa *a = &c->b.nfa;
    uint32_t n = (max == GR_ANY ? min : max) + 1; /* numbers that are told apart */
    int32_t *at;

    if ((uint64_t)n * p->n_states > MAX_COUNTED_STATES)
        return gr_schema_fail(
            c, path, "'pattern' or 'format' beside a length of %u needs too many states", n - 1);
    if ((at = malloc(n * p->n_states * sizeof *at)) == NULL)
        return gr_schema_no_memory(c);
    for (size_t i = 0; i < n * p->n_states; i++)
        at[i] = gr_nfa_state(a);
    for (size_t s = 0; s < p->n_states; s++) {
        const gr_state *state = &p->states[s];

        for (uint32_t k = 0; k < n; k++) {
            int32_t here = at[s * n + k];

            if (state->final && k >= min)
                gr_nfa_eps(a, here, to);
            for (size_t e = state->edge; e < state->edge + state->n_edges; e++) {
                const gr_edge *edge = &p->edges[e];
                uint32_t next = k + ((edge->flags & GR_COUNT) != 0);

                if (next == n && max == GR_ANY)
                    next = k;
                if (next < n)
                    gr_nfa_bytes(a, here, edge->lo, edge->hi, 0, at[(size_t)edge->to * n + next]);
            }
        }
    }
    gr_nfa_eps(a, from, at[(size_t)start * n]);
    free(at);
    return TD_OK;
}

td_status gr_schema_string(gr_schema *c, const gr_view *v, const gr_path *path, int32_t from,
                           int32_t to)
{
    const cJSON *pattern = v->of[GR_KW_PATTERN], *format = v->of[GR_KW_FORMAT];
    const char *text = cJSON_GetStringValue(pattern),
               *what = pattern != NULL ? "pattern" : "format";
    uint32_t min = 0, max = GR_ANY;
    int32_t open = gr_nfa_state(&c->b.nfa), close = gr_nfa_state(&c->b.nfa), start, end, rule;
    gr_build p = {0};
    char shown[80];
    td_status st = gr_schema_length(c, v, path, &min, &max);

    if (st != TD_OK)
        return st;
    if (pattern != NULL && format != NULL)
        return gr_schema_fail(c, path, "'pattern' beside 'format' is not supported");
    if (format != NULL && (text = cJSON_GetStringValue(format)) != NULL &&
        (text = gr_format_pattern(text)) == NULL)
        return gr_schema_fail(c, path, "'format' of %s is not supported",
                              td_json_show(format, shown, sizeof shown));
    if (text == NULL)
        return gr_schema_fail(c, path, "'%s' is no string", what);
    gr_nfa_bytes(&c->b.nfa, from, '"', '"', 0, open);
    gr_nfa_bytes(&c->b.nfa, close, '"', '"', 0, to);
    /* Made deterministic on its own first, so that an error is the pattern's. */
    start = gr_nfa_state(&p.nfa);
    end = gr_nfa_state(&p.nfa);
    if ((rule = gr_build_rule(&p)) < 0)
        st = gr_schema_no_memory(c);
    if (st == TD_OK)
        st = gr_regex_nfa(&p.nfa, start, text, GR_COUNT, end, c->err);
    if (st == TD_OK)
        st = gr_build_close(&p, rule, start, end, MAX_PATTERN_STATES, c->err);
    if (st == TD_INVALID)
        td_wrap(c->err, "%s: '%s'", path->text, what);
    if (st == TD_OK)
        st = with_length(c, &p, p.rules[rule].start, min, max, path, open, close);
    gr_build_free(&p);
    return st;
}

/* --- Bounds. */

/* Narrow one side by a keyword; sign is -1 for upper bounds. */
static td_status bound(gr_schema *c, const gr_view *v, gr_keyword k, const gr_path *path,
                       double sign, bool out, bool *has, double *value, bool *is_out)
{
    const cJSON *item = v->of[k];
    char shown[64];
    double x;

    if (item == NULL)
        return TD_OK;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return gr_schema_fail(c, path, "'%s' is %s, expected a number", gr_keyword_names[k],
                              td_json_show(item, shown, sizeof shown));
    x = item->valuedouble;
    if (fabs(x) >= exact && fabs(x) < 1e18)
        return gr_schema_fail(c, path,
                              "'%s' is %.17g: bounds of 2^53 or more, but below 10^18, are not "
                              "supported",
                              gr_keyword_names[k], x);
    if (!*has || sign * x > sign * *value || (x == *value && out)) {
        *has = true;
        *value = x;
        *is_out = out;
    }
    return TD_OK;
}

static td_status bounds(gr_schema *c, const gr_view *v, const gr_path *path, gr_range *r)
{
    td_status st;

    if ((st = bound(c, v, GR_KW_MINIMUM, path, 1, false, &r->has_lo, &r->lo, &r->lo_out)) !=
            TD_OK ||
        (st = bound(c, v, GR_KW_EXCLUSIVE_MINIMUM, path, 1, true, &r->has_lo, &r->lo,
                    &r->lo_out)) != TD_OK ||
        (st = bound(c, v, GR_KW_MAXIMUM, path, -1, false, &r->has_hi, &r->hi, &r->hi_out)) != TD_OK)
        return st;
    return bound(c, v, GR_KW_EXCLUSIVE_MAXIMUM, path, -1, true, &r->has_hi, &r->hi, &r->hi_out);
}

/* --- Values that are spelled out. */

bool gr_schema_may_bound_literals(gr_keyword k)
{
    return k == GR_KW_MIN_LENGTH || k == GR_KW_MAX_LENGTH || k == GR_KW_MINIMUM ||
           k == GR_KW_MAXIMUM || k == GR_KW_EXCLUSIVE_MINIMUM || k == GR_KW_EXCLUSIVE_MAXIMUM;
}

static uint32_t characters(const char *s)
{
    uint32_t n = 0;

    for (; *s != '\0'; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

td_status gr_schema_within(gr_schema *c, const gr_view *v, const gr_path *path, const cJSON *item,
                           bool *within)
{
    gr_range r = {0};
    uint32_t min = 0, max = GR_ANY, n;
    td_status st;

    *within = true;
    if ((st = gr_schema_count(c, v, GR_KW_MIN_LENGTH, path, &min)) != TD_OK ||
        (st = gr_schema_count(c, v, GR_KW_MAX_LENGTH, path, &max)) != TD_OK ||
        (st = bounds(c, v, path, &r)) != TD_OK)
        return st;
    if (cJSON_IsString(item)) {
        n = characters(item->valuestring);
        *within = n >= min && n <= max;
    } else if (cJSON_IsNumber(item)) {
        double x = item->valuedouble;

        *within = !(r.has_lo && (x < r.lo || (x == r.lo && r.lo_out))) &&
                  !(r.has_hi && (x > r.hi || (x == r.hi && r.hi_out)));
    }
    return TD_OK;
}

/* --- Numbers. */

bool gr_schema_plain_number(const gr_view *v)
{
    return v->of[GR_KW_MINIMUM] == NULL && v->of[GR_KW_MAXIMUM] == NULL &&
           v->of[GR_KW_EXCLUSIVE_MINIMUM] == NULL && v->of[GR_KW_EXCLUSIVE_MAXIMUM] == NULL &&
           v->of[GR_KW_MULTIPLE_OF] == NULL;
}

td_status gr_schema_number(gr_schema *c, const gr_view *v, const gr_path *path, bool integer,
                           int32_t from, int32_t to)
{
    const cJSON *multiple = v->of[GR_KW_MULTIPLE_OF];
    gr_range r = {.integer = integer};
    char shown[64];
    td_status st;

    if ((st = bounds(c, v, path, &r)) != TD_OK)
        return st;
    if (multiple != NULL &&
        (!cJSON_IsNumber(multiple) || !gr_number_multiple(multiple->valuedouble, &r)))
        return gr_schema_fail(c, path,
                              "'multipleOf' is %s: up to 1000 times a power of ten from 1e-9 to 1 "
                              "are supported",
                              td_json_show(multiple, shown, sizeof shown));
    if ((st = gr_number_nfa(&c->b.nfa, from, &r, to, c->err)) != TD_OK)
        td_wrap(c->err, "%s", path->text);
    return st;
}
