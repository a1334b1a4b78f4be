/* The rules of JSON itself, in every grammar under the same state numbers. */
#include "common/grammar_impl.h"

enum {
    INT_DIGITS = 18, /* fits an int64_t; and no model can write digits for ever */
    FRACTION_DIGITS = 20,
    EXPONENT_DIGITS = 2,
};

static void hex(gr_nfa *a, int32_t from, int32_t to)
{
    gr_nfa_bytes(a, from, '0', '9', 0, to);
    gr_nfa_bytes(a, from, 'a', 'f', 0, to);
    gr_nfa_bytes(a, from, 'A', 'F', 0, to);
}

/* A letter in either case. */
static void letters(gr_nfa *a, int32_t from, char lo, char hi, int32_t to)
{
    gr_nfa_bytes(a, from, (uint8_t)lo, (uint8_t)hi, 0, to);
    gr_nfa_bytes(a, from, (uint8_t)(lo - 'a' + 'A'), (uint8_t)(hi - 'a' + 'A'), 0, to);
}

/* \uXXXX after its u: a surrogate only as a pair, which is one character. */
static void unicode(gr_nfa *a, int32_t u, int32_t to)
{
    int32_t h1 = gr_nfa_state(a), h2 = gr_nfa_state(a), h3 = gr_nfa_state(a);
    int32_t d = gr_nfa_state(a), p[6];

    gr_nfa_bytes(a, u, '0', '9', 0, h1);
    letters(a, u, 'a', 'c', h1);
    letters(a, u, 'e', 'f', h1);
    letters(a, u, 'd', 'd', d);
    hex(a, h1, h2);
    hex(a, h2, h3);
    hex(a, h3, to);
    gr_nfa_bytes(a, d, '0', '7', 0, h2);
    for (size_t i = 0; i < 6; i++)
        p[i] = gr_nfa_state(a);
    gr_nfa_bytes(a, d, '8', '9', 0, p[0]);
    letters(a, d, 'a', 'b', p[0]);
    hex(a, p[0], p[1]);
    hex(a, p[1], p[2]);
    gr_nfa_bytes(a, p[2], '\\', '\\', 0, p[3]);
    gr_nfa_bytes(a, p[3], 'u', 'u', 0, p[4]);
    letters(a, p[4], 'd', 'd', p[5]);
    letters(a, p[5], 'c', 'f', h2);
}

static int32_t string(gr_nfa *a, int32_t end)
{
    static const char simple[] = "\"\\/bfnrt";
    int32_t start = gr_nfa_state(a), inside = gr_nfa_state(a);
    int32_t escape = gr_nfa_state(a), u = gr_nfa_state(a);

    gr_nfa_bytes(a, start, '"', '"', 0, inside);
    gr_nfa_chars(a, inside, 0x20, '"' - 1, GR_COUNT, inside);
    gr_nfa_chars(a, inside, '"' + 1, '\\' - 1, GR_COUNT, inside);
    gr_nfa_chars(a, inside, '\\' + 1, 0x10ffff, GR_COUNT, inside);
    gr_nfa_bytes(a, inside, 0x7f, 0x7f, GR_COUNT, inside); /* raw too */
    gr_nfa_bytes(a, inside, '\\', '\\', GR_COUNT, escape);
    for (const char *c = simple; *c != '\0'; c++)
        gr_nfa_bytes(a, escape, (uint8_t)*c, (uint8_t)*c, 0, inside);
    gr_nfa_bytes(a, escape, 'u', 'u', 0, u);
    unicode(a, u, inside);
    gr_nfa_bytes(a, inside, '"', '"', GR_CLOSE, end);
    return start;
}

static int32_t gap(gr_nfa *a, int32_t end)
{
    int32_t start = gr_nfa_state(a), line = gr_nfa_state(a);

    gr_nfa_eps(a, start, end);
    gr_nfa_bytes(a, start, ' ', ' ', 0, end);
    gr_nfa_bytes(a, start, '\n', '\n', 0, line);
    gr_nfa_bytes(a, line, ' ', ' ', GR_COUNT, line);
    gr_nfa_eps(a, line, end);
    return start;
}

/* 1 to n digits. */
static void digits(gr_nfa *a, int32_t from, int n, int32_t to)
{
    for (int i = 0; i < n; i++) {
        int32_t next = gr_nfa_state(a);

        gr_nfa_bytes(a, from, '0', '9', 0, next);
        gr_nfa_eps(a, next, to);
        from = next;
    }
}

/* 0, or digits without a leading zero. */
static void natural(gr_nfa *a, int32_t from, int32_t to)
{
    int32_t more = gr_nfa_state(a);

    gr_nfa_bytes(a, from, '1', '9', 0, more);
    gr_nfa_eps(a, more, to);
    digits(a, more, INT_DIGITS - 1, to);
}

static int32_t integer(gr_nfa *a, int32_t end)
{
    int32_t start = gr_nfa_state(a), minus = gr_nfa_state(a);

    gr_nfa_bytes(a, start, '0', '0', 0, end);
    natural(a, start, end);
    gr_nfa_bytes(a, start, '-', '-', 0, minus);
    natural(a, minus, end);
    return start;
}

static int32_t number(gr_nfa *a, int32_t end)
{
    int32_t start = gr_nfa_state(a), magnitude = gr_nfa_state(a), whole = gr_nfa_state(a);
    int32_t point = gr_nfa_state(a), mantissa = gr_nfa_state(a);
    int32_t e = gr_nfa_state(a), exponent = gr_nfa_state(a);

    gr_nfa_bytes(a, start, '-', '-', 0, magnitude);
    gr_nfa_eps(a, start, magnitude);
    gr_nfa_bytes(a, magnitude, '0', '0', 0, whole);
    natural(a, magnitude, whole);
    gr_nfa_bytes(a, whole, '.', '.', 0, point);
    digits(a, point, FRACTION_DIGITS, mantissa);
    gr_nfa_eps(a, whole, mantissa);
    gr_nfa_eps(a, mantissa, end);
    letters(a, mantissa, 'e', 'e', e);
    gr_nfa_bytes(a, e, '+', '+', 0, exponent);
    gr_nfa_bytes(a, e, '-', '-', 0, exponent);
    gr_nfa_eps(a, e, exponent);
    digits(a, exponent, EXPONENT_DIGITS, end);
    return start;
}

static int32_t value(gr_nfa *a, int32_t end)
{
    static const char *const words[] = {"true", "false", "null"};
    static const size_t lengths[] = {4, 5, 4};
    int32_t start = gr_nfa_state(a);

    for (size_t i = 0; i < 3; i++)
        gr_nfa_text(a, start, words[i], lengths[i], end);
    for (int32_t rule = GR_RULE_STRING; rule < GR_N_PRELUDE; rule++) {
        if (rule != GR_RULE_VALUE && rule != GR_RULE_INTEGER)
            gr_nfa_call(a, start, rule, 0, GR_ANY, 0, end);
    }
    return start;
}

/* open, then items and commas, then close; an item is what lies between `item` and `after`. */
static int32_t list(gr_nfa *a, char open, int32_t item, int32_t after, char close, int32_t end)
{
    int32_t start = gr_nfa_state(a), opened = gr_nfa_state(a), inside = gr_nfa_state(a);
    int32_t comma = gr_nfa_state(a), last = gr_nfa_state(a);

    gr_nfa_bytes(a, start, (uint8_t)open, (uint8_t)open, 0, opened);
    gr_nfa_gap(a, opened, inside);
    gr_nfa_bytes(a, inside, (uint8_t)close, (uint8_t)close, 0, end);
    gr_nfa_eps(a, inside, item);
    gr_nfa_bytes(a, after, ',', ',', 0, comma);
    gr_nfa_gap(a, comma, item);
    gr_nfa_gap(a, after, last);
    gr_nfa_bytes(a, last, (uint8_t)close, (uint8_t)close, 0, end);
    return start;
}

static int32_t array(gr_nfa *a, int32_t end)
{
    int32_t item = gr_nfa_state(a), after = gr_nfa_state(a);

    gr_nfa_call(a, item, GR_RULE_VALUE, 0, GR_ANY, 0, after);
    return list(a, '[', item, after, ']', end);
}

static int32_t object(gr_nfa *a, int32_t end)
{
    int32_t item = gr_nfa_state(a), key = gr_nfa_state(a), colon = gr_nfa_state(a);
    int32_t member = gr_nfa_state(a), after = gr_nfa_state(a);

    gr_nfa_call(a, item, GR_RULE_STRING, 0, GR_ANY, 0, key);
    gr_nfa_bytes(a, key, ':', ':', 0, colon);
    gr_nfa_gap(a, colon, member);
    gr_nfa_call(a, member, GR_RULE_VALUE, 0, GR_ANY, 0, after);
    return list(a, '{', item, after, '}', end);
}

td_status gr_build_prelude(gr_build *b, td_error *err)
{
    static int32_t (*const make[GR_N_PRELUDE])(gr_nfa * a, int32_t end) = {
        [GR_RULE_GAP] = gap,       [GR_RULE_STRING] = string, [GR_RULE_INTEGER] = integer,
        [GR_RULE_NUMBER] = number, [GR_RULE_VALUE] = value,   [GR_RULE_OBJECT] = object,
        [GR_RULE_ARRAY] = array};

    for (int32_t i = 0; i < GR_N_PRELUDE; i++) {
        if (gr_build_rule(b) < 0)
            return td_fail(err, TD_NOMEM, "no memory for the grammar");
        b->rules[i].call_counts = true;
    }
    for (int32_t i = 0; i < GR_N_PRELUDE; i++) {
        int32_t end = gr_nfa_state(&b->nfa);
        int32_t start = make[i](&b->nfa, end);
        td_status st = gr_build_close(b, i, start, end, GR_MAX_STATES, err);

        if (st != TD_OK)
            return st;
    }
    b->n_prelude = b->n_states;
    return TD_OK;
}

/* A grammar of the prelude alone that starts with one of its rules. */
static td_status standard(int32_t rule, td_grammar **out, td_error *err)
{
    gr_build b = {0};
    int32_t dead;
    td_status st = gr_build_prelude(&b, err);

    if (st == TD_OK)
        st = gr_build_finish(&b, rule, &dead, out, err);
    gr_build_free(&b);
    return st;
}

td_status td_grammar_any_object(td_grammar **out, td_error *err)
{
    return standard(GR_RULE_OBJECT, out, err);
}

td_status td_grammar_any_value(td_grammar **out, td_error *err)
{
    return standard(GR_RULE_VALUE, out, err);
}

td_status td_grammar_from_strings(const td_slice *strings, size_t n, td_grammar **out,
                                  td_error *err)
{
    gr_build b = {0};
    int32_t rule, start, end, dead;
    td_status st = gr_build_prelude(&b, err);

    if (st != TD_OK)
        goto done;
    if ((rule = gr_build_rule(&b)) < 0) {
        st = td_fail(err, TD_NOMEM, "no memory for the grammar");
        goto done;
    }
    start = gr_nfa_state(&b.nfa);
    end = gr_nfa_state(&b.nfa);
    for (size_t i = 0; i < n; i++)
        gr_nfa_text(&b.nfa, start, strings[i].ptr, strings[i].len, end);
    st = gr_build_close(&b, rule, start, end, GR_MAX_STATES, err);
    if (st == TD_OK)
        st = gr_build_finish(&b, rule, &dead, out, err);
done:
    gr_build_free(&b);
    return st;
}
