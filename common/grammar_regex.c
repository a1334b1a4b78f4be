/* Regular expressions (ECMA-262's syntax) over the inside of a JSON string.
 *
 * The parser builds the NFA as it reads. What is repeated is read again for each repetition, so
 * there is no tree; a first pass over it, which builds nothing, finds the quantifier behind. What
 * is no regular language, or depends on what stands beside a character (look-around, references
 * back, word boundaries, anchors inside), is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_impl.h"

enum {
    MAX_GROUPS = 50,   /* inside one another */
    MAX_REPEAT = 1000, /* in {n,m} */
    MAX_RANGES = 256,  /* of one class */
    MAX_CODE = 0x10ffff,
};

typedef struct parser {
    gr_nfa *a;
    const unsigned char *start, *at, *end;
    uint8_t flags; /* for the first byte of every character */
    int depth;     /* groups that we are in */
    int skip;      /* > 0: read without building */
    td_status st;
    td_error *err;
} parser;

typedef struct range {
    uint32_t lo, hi;
} range;

typedef struct class
{
    range of[MAX_RANGES];
    size_t n;
} class;

static void bad(parser *p, const char *what)
{
    if (p->st == TD_OK)
        p->st = td_fail(p->err, TD_INVALID, "%s at byte %zu of \"%.100s\"", what,
                        (size_t)(p->at - p->start), (const char *)p->start);
    p->at = p->end;
}

static bool more(const parser *p)
{
    return p->at < p->end && p->st == TD_OK;
}

static bool eat(parser *p, const char *text)
{
    size_t n = strlen(text);

    if (p->st != TD_OK || (size_t)(p->end - p->at) < n || memcmp(p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* --- Classes of characters. */

static void class_add(parser *p, class *c, uint32_t lo, uint32_t hi)
{
    if (c->n == MAX_RANGES)
        bad(p, "a class of too many ranges");
    else
        c->of[c->n++] = (range){lo, hi};
}

static int compare_ranges(const void *x, const void *y)
{
    const range *a = x, *b = y;

    return (a->lo > b->lo) - (a->lo < b->lo);
}

/* Sorted, without overlap; turned into its complement if asked. */
static void class_close(parser *p, class *c, bool negate)
{
    class out = {.n = 0};
    uint32_t next = 0; /* the first character that is in none so far */

    qsort(c->of, c->n, sizeof *c->of, compare_ranges);
    for (size_t i = 0; i < c->n; i++) {
        range r = c->of[i];

        if (negate) {
            if (r.lo > next)
                class_add(p, &out, next, r.lo - 1);
        } else if (out.n > 0 && r.lo <= next) {
            if (r.hi > out.of[out.n - 1].hi)
                out.of[out.n - 1].hi = r.hi;
        } else {
            class_add(p, &out, r.lo, r.hi);
        }
        if (r.hi + 1 > next)
            next = r.hi + 1;
    }
    if (negate && next <= MAX_CODE)
        class_add(p, &out, next, MAX_CODE);
    *c = out;
}

static const range digit_ranges[] = {{'0', '9'}};
static const range word_ranges[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
/* White space of both ECMA-262 and Python's re, and of either: with the first for \s and without
 * the second for \S, a string is valid for whoever looks at it. */
static const range space_ranges[] = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},
                                     {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                     {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
static const range spacy_ranges[] = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},
                                     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                                     {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                     {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const range line_ranges[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static void class_of(parser *p, class *out, const range *ranges, size_t n, bool negate)
{
    class c = {.n = 0};

    for (size_t i = 0; i < n; i++)
        class_add(p, &c, ranges[i].lo, ranges[i].hi);
    class_close(p, &c, negate);
    for (size_t i = 0; i < c.n; i++)
        class_add(p, out, c.of[i].lo, c.of[i].hi);
}

/* \d and the like, after the backslash. */
static bool named_class(parser *p, class *out)
{
    switch (more(p) ? *p->at : 0) {
    case 'd': class_of(p, out, digit_ranges, 1, false); break;
    case 'D': class_of(p, out, digit_ranges, 1, true); break;
    case 'w': class_of(p, out, word_ranges, 4, false); break;
    case 'W': class_of(p, out, word_ranges, 4, true); break;
    case 's': class_of(p, out, space_ranges, 9, false); break;
    case 'S': class_of(p, out, spacy_ranges, 11, true); break;
    default: return false;
    }
    p->at++;
    return true;
}

static uint32_t hex(parser *p, int min, int max)
{
    uint32_t v = 0;
    int n = 0;

    for (; n < max && more(p); n++, p->at++) {
        unsigned char c = *p->at, low = c | 0x20;

        if (c >= '0' && c <= '9')
            v = v * 16 + (c - '0');
        else if (low >= 'a' && low <= 'f')
            v = v * 16 + (uint32_t)(low - 'a' + 10);
        else
            break;
    }
    if (n < min)
        bad(p, "an escape without its hexadecimal digits");
    return v;
}

static uint32_t unicode_escape(parser *p)
{
    uint32_t cp, low;

    if (eat(p, "{")) {
        cp = hex(p, 1, 6);
        if (!eat(p, "}") || cp > MAX_CODE)
            bad(p, "a wrong \\u{...}");
        return cp;
    }
    cp = hex(p, 4, 4);
    if (cp >= 0xd800 && cp <= 0xdbff && eat(p, "\\u")) {
        low = hex(p, 4, 4);
        if (low < 0xdc00 || low > 0xdfff)
            bad(p, "half a surrogate pair");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    return cp;
}

/* One character after a backslash. */
static uint32_t escaped(parser *p, bool in_class)
{
    static const char names[] = "tnrfv", values[] = "\t\n\r\f\v";
    unsigned char c = more(p) ? *p->at : 0;
    const char *at = c != 0 ? strchr(names, c) : NULL;

    if (c == 0) {
        bad(p, "a backslash at the end");
        return 0;
    }
    if ((c >= '1' && c <= '9') || c == 'k')
        bad(p, "a reference back (not supported)");
    else if ((c == 'b' && !in_class) || c == 'B')
        bad(p, "a word boundary (not supported)");
    else if (c == 'p' || c == 'P')
        bad(p, "a Unicode property (not supported)");
    if (p->st != TD_OK)
        return 0;
    p->at++;
    if (at != NULL)
        return (uint32_t)values[at - names];
    if (c == 'b')
        return '\b';
    if (c == '0')
        return 0;
    if (c == 'x')
        return hex(p, 2, 2);
    if (c == 'u')
        return unicode_escape(p);
    if (c == 'c' && more(p) && ((*p->at | 0x20) >= 'a' && (*p->at | 0x20) <= 'z'))
        return *p->at++ & 0x1f;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80) {
        p->at--;
        bad(p, "an escape that is not known");
    }
    return c;
}

static uint32_t plain(parser *p)
{
    int n = td_utf8_next(p->at, (size_t)(p->end - p->at));
    uint32_t cp = *p->at;

    if (n < 1) {
        bad(p, "bytes that are no character");
        return 0;
    }
    if (n > 1) {
        cp &= 0xffu >> (n + 1);
        for (int i = 1; i < n; i++)
            cp = cp << 6 | (p->at[i] & 0x3f);
    }
    p->at += n;
    return cp;
}

/* [...] after the opening bracket. */
static void bracket(parser *p, class *c)
{
    bool negate = eat(p, "^");

    while (more(p) && *p->at != ']') {
        uint32_t lo, hi;

        if (*p->at == '\\') {
            p->at++;
            if (named_class(p, c)) {
                if (more(p) && *p->at == '-' && p->at + 1 < p->end && p->at[1] != ']')
                    bad(p, "a range that begins with a class");
                continue;
            }
            lo = escaped(p, true);
        } else {
            lo = plain(p);
        }
        hi = lo;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            class other = {.n = 0};

            p->at++;
            if (*p->at == '\\') {
                p->at++;
                if (named_class(p, &other)) {
                    bad(p, "a range that ends with a class");
                    return;
                }
                hi = escaped(p, true);
            } else {
                hi = plain(p);
            }
            if (hi < lo)
                bad(p, "a range whose end is before its begin");
        }
        class_add(p, c, lo, hi);
    }
    if (!eat(p, "]"))
        bad(p, "a class without its end");
    class_close(p, c, negate);
}

/* --- Expressions. Each takes the state to go on from and returns where it ends. */

static int32_t alternation(parser *p, int32_t from);

static int32_t chars(parser *p, int32_t from, const class *c)
{
    int32_t to;

    if (p->skip > 0 || p->st != TD_OK)
        return from;
    to = gr_nfa_state(p->a);
    for (size_t i = 0; i < c->n; i++)
        gr_nfa_chars(p->a, from, c->of[i].lo, c->of[i].hi, p->flags, to);
    return to;
}

static int32_t group(parser *p, int32_t from)
{
    if (eat(p, "?")) {
        if (eat(p, "=") || eat(p, "!") || eat(p, "<=") || eat(p, "<!")) {
            bad(p, "look-around (not supported)");
        } else if (eat(p, "<")) {
            while (more(p) && *p->at != '>')
                p->at++;
            if (!eat(p, ">"))
                bad(p, "a group's name without its end");
        } else if (!eat(p, ":")) {
            bad(p, "a kind of group (not supported)");
        }
    }
    if (++p->depth > MAX_GROUPS)
        bad(p, "too many groups inside one another");
    from = alternation(p, from);
    p->depth--;
    if (!eat(p, ")"))
        bad(p, "a group without its end");
    return from;
}

static int32_t atom(parser *p, int32_t from)
{
    class c = {.n = 0};
    uint32_t cp;

    if (eat(p, "("))
        return group(p, from);
    if (eat(p, "[")) {
        bracket(p, &c);
    } else if (eat(p, ".")) {
        class_of(p, &c, line_ranges, 3, true);
    } else if (eat(p, "\\")) {
        if (!named_class(p, &c)) {
            cp = escaped(p, false);
            class_add(p, &c, cp, cp);
        }
    } else if (*p->at == '^' || *p->at == '$') {
        bad(p, *p->at == '^' ? "'^' not at the begin (not supported)"
                             : "'$' not at the end (not supported)");
    } else if (strchr("*+?", *p->at) != NULL) {
        bad(p, "a quantifier of nothing");
    } else {
        cp = plain(p);
        class_add(p, &c, cp, cp);
    }
    return chars(p, from, &c);
}

static uint32_t count(parser *p)
{
    uint32_t n = 0;
    const unsigned char *first = p->at;

    for (; more(p) && *p->at >= '0' && *p->at <= '9'; p->at++)
        n = n > MAX_REPEAT ? n : n * 10 + (uint32_t)(*p->at - '0');
    if (p->at == first)
        bad(p, "a quantifier without its number");
    if (n > MAX_REPEAT)
        bad(p, "a repetition of more than 1000 times (not supported)");
    return n;
}

/* min and max of what stands here; 1 and 1 if nothing does. */
static void quantifier(parser *p, uint32_t *min, uint32_t *max)
{
    *min = *max = 1;
    if (eat(p, "*")) {
        *min = 0;
        *max = GR_ANY;
    } else if (eat(p, "+")) {
        *max = GR_ANY;
    } else if (eat(p, "?")) {
        *min = 0;
    } else if (eat(p, "{")) {
        *min = *max = count(p);
        if (eat(p, ","))
            *max = more(p) && *p->at == '}' ? GR_ANY : count(p);
        if (!eat(p, "}"))
            bad(p, "a quantifier without its end");
        if (*max < *min)
            bad(p, "a quantifier whose end is before its begin");
    } else {
        return;
    }
    eat(p, "?"); /* lazy: the same strings */
    if (more(p) && strchr("*+?{", *p->at) != NULL)
        bad(p, "a quantifier of a quantifier");
}

static int32_t repeated(parser *p, int32_t from)
{
    const unsigned char *first = p->at, *after;
    uint32_t min, max;
    int32_t end;

    p->skip++;
    atom(p, from);
    p->skip--;
    quantifier(p, &min, &max);
    if (p->skip > 0 || p->st != TD_OK)
        return from;
    after = p->at;
    for (uint32_t i = 0; i < min && !p->a->large && !p->a->oom; i++) {
        p->at = first;
        from = atom(p, from);
    }
    if (max == GR_ANY) {
        int32_t loop = gr_nfa_state(p->a);

        gr_nfa_eps(p->a, from, loop);
        p->at = first;
        gr_nfa_eps(p->a, atom(p, loop), loop);
        from = loop;
    } else if (max > min) {
        end = gr_nfa_state(p->a);
        for (uint32_t i = min; i < max && !p->a->large && !p->a->oom; i++) {
            gr_nfa_eps(p->a, from, end);
            p->at = first;
            from = atom(p, from);
        }
        gr_nfa_eps(p->a, from, end);
        from = end;
    }
    if (p->st == TD_OK)
        p->at = after;
    return from;
}

/* Whether a '$' stands here that ends an alternative of the whole expression. */
static bool at_dollar(const parser *p)
{
    return p->depth == 0 && p->skip == 0 && *p->at == '$' &&
           (p->at + 1 == p->end || p->at[1] == '|');
}

static int32_t sequence(parser *p, int32_t from)
{
    while (more(p) && *p->at != '|' && *p->at != ')' && !at_dollar(p))
        from = repeated(p, from);
    return from;
}

static int32_t alternation(parser *p, int32_t from)
{
    int32_t end = p->skip > 0 ? from : gr_nfa_state(p->a);

    do {
        int32_t begin = from, last;

        if (p->skip == 0) { /* its own state: a loop at its begin is not the others' */
            begin = gr_nfa_state(p->a);
            gr_nfa_eps(p->a, from, begin);
        }
        last = sequence(p, begin);
        if (p->skip == 0)
            gr_nfa_eps(p->a, last, end);
    } while (eat(p, "|"));
    return end;
}

/* Any characters, as many as there may be. */
static int32_t anything(parser *p, int32_t from)
{
    int32_t loop = gr_nfa_state(p->a);

    gr_nfa_eps(p->a, from, loop);
    gr_nfa_chars(p->a, loop, 0, MAX_CODE, p->flags, loop);
    return loop;
}

td_status gr_regex_nfa(gr_nfa *a, int32_t from, const char *pattern, uint8_t flags, int32_t to,
                       td_error *err)
{
    const unsigned char *text = (const unsigned char *)pattern;
    parser p = {.a = a,
                .start = text,
                .at = text,
                .end = text + strlen(pattern),
                .flags = flags,
                .err = err};

    do {
        int32_t state = gr_nfa_state(a);

        gr_nfa_eps(a, from, state);
        if (!eat(&p, "^"))
            state = anything(&p, state);
        state = sequence(&p, state);
        if (!eat(&p, "$"))
            state = anything(&p, state);
        gr_nfa_eps(a, state, to);
    } while (eat(&p, "|"));
    if (more(&p))
        bad(&p, "a ')' without its group");
    return p.st;
}
