/* One option's text and its typed field: reading, checking, describing. A field is written only
 * after the whole value was found good. */
#include "common/config_internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Digits only: strtoull() would also take blanks, signs and a silent wrap-around of "-1". */
static bool parse_digits(const char *s, size_t n, uint64_t *out)
{
    uint64_t v = 0;

    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)s[i]) || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    }
    *out = v;
    return true;
}

/* "12.5unit" times the unit's factor, rounded down; *exact is whether nothing was lost. At most
 * nine digits of fraction, so that the product stays in 128 bits. */
static bool parse_scaled(const char *s, size_t n_number, uint64_t factor, uint64_t *out,
                         bool *exact)
{
    const char *dot = memchr(s, '.', n_number);
    size_t n_whole = dot ? (size_t)(dot - s) : n_number;
    uint64_t whole, frac = 0, scale = 1;
    unsigned __int128 part;

    if (!parse_digits(s, n_whole, &whole))
        return false;
    if (dot != NULL) {
        size_t n_frac = n_number - n_whole - 1;

        if (n_frac > 9 || !parse_digits(dot + 1, n_frac, &frac))
            return false;
        for (size_t i = 0; i < n_frac; i++)
            scale *= 10;
    }
    part = (unsigned __int128)frac * factor;
    *exact = part % scale == 0;
    return !__builtin_mul_overflow(whole, factor, out) &&
           !__builtin_add_overflow(*out, (uint64_t)(part / scale), out);
}

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit;

/* The unit that was used, or NULL when the text is wrong. */
static const unit *parse_with_unit(const char *s, const unit *u, uint64_t *out, bool *exact)
{
    size_t n_number = strspn(s, "0123456789.");

    for (; u->name != NULL; u++) {
        if (strcmp(s + n_number, u->name) == 0)
            return parse_scaled(s, n_number, u->factor, out, exact) ? u : NULL;
    }
    return NULL;
}

bool td_parse_bytes(const char *text, uint64_t *out)
{
    static const unit units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", 1 << 10},
        {"Ki", 1 << 10},
        {"MiB", 1 << 20},
        {"Mi", 1 << 20},
        {"GiB", 1 << 30},
        {"Gi", 1 << 30},
        {"TiB", 1ull << 40},
        {"Ti", 1ull << 40},
        {NULL, 0},
    };
    const unit *used;
    uint64_t v;
    bool exact;

    used = parse_with_unit(text, units, &v, &exact);
    if (used == NULL || (!exact && used->factor == 1)) /* "1.5" is a slip, 1.3GiB is not */
        return false;
    *out = v;
    return true;
}

bool td_parse_duration_ms(const char *text, int64_t *out)
{
    static const unit units[] = {
        {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}, {NULL, 0},
    };
    uint64_t v;
    bool exact;

    if (strcmp(text, "0") == 0) { /* the one number that means the same in every unit */
        *out = 0;
        return true;
    }
    if (!parse_with_unit(text, units, &v, &exact) || !exact || v > INT64_MAX)
        return false;
    *out = (int64_t)v;
    return true;
}

static bool parse_i64(const char *s, int64_t *out)
{
    bool negative = *s == '-';
    uint64_t v;

    s += negative;
    if (!parse_digits(s, strlen(s), &v) || v > (uint64_t)INT64_MAX + negative)
        return false;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

static bool parse_f64(const char *s, double *out)
{
    char *end;
    double v;

    if (*s == '\0' || isspace((unsigned char)*s))
        return false;
    errno = 0;
    v = strtod(s, &end);
    if (*end != '\0' || !isfinite(v))
        return false;
    *out = v;
    return true;
}

static bool in_range(const td_option *o, double v)
{
    return (o->min == 0 && o->max == 0) || (v >= o->min && v <= o->max);
}

static void strlist_free(td_strlist *l)
{
    for (size_t i = 0; i < l->len; i++)
        free(l->ptr[i]);
    free(l->ptr);
    *l = (td_strlist){0};
}

/* "a,b,c" to a list. Blanks around an item are dropped; an empty item is a slip, and refused. */
static td_status strlist_parse(const td_option *o, const char *text, td_strlist *out, td_error *err)
{
    td_strlist l = {0};
    size_t n = *text != '\0';

    for (const char *p = text; *p != '\0'; p++)
        n += *p == ',';
    if (!in_range(o, (double)n))
        goto bad;
    l.ptr = calloc(n + 1, sizeof *l.ptr);
    if (l.ptr == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a list");
    while (l.len < n) {
        size_t len = strcspn(text, ",");
        const char *from = text, *to = text + len;

        text += len + (text[len] == ',');
        while (from < to && isspace((unsigned char)*from))
            from++;
        while (to > from && isspace((unsigned char)to[-1]))
            to--;
        if (from == to)
            goto bad;
        l.ptr[l.len] = strndup(from, (size_t)(to - from));
        if (l.ptr[l.len++] == NULL) {
            strlist_free(&l);
            return td_fail(err, TD_NOMEM, "no memory for a list");
        }
    }
    *out = l;
    return TD_OK;

bad:
    strlist_free(&l);
    return TD_INVALID;
}

static bool parse_bool(const char *s, bool *out)
{
    if (strcmp(s, "true") == 0 || strcmp(s, "1") == 0)
        *out = true;
    else if (strcmp(s, "false") == 0 || strcmp(s, "0") == 0)
        *out = false;
    else
        return false;
    return true;
}

static bool parse_word(const td_option *o, const char *s, int32_t *out)
{
    for (int32_t i = 0; o->words[i] != NULL; i++) {
        if (strcmp(o->words[i], s) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

td_status cfg_value_set(const td_option *o, const char *text, void *out, td_error *err)
{
    char *field = (char *)out + o->offset;
    td_status st = TD_INVALID;
    td_buf allowed = {0};
    uint64_t u;
    int64_t i;
    double d;

    if (o->def == NULL && *text == '\0') /* as a script's unset variable has it */
        return td_fail(err, TD_INVALID, "it must be given, and is empty");
    switch (o->type) {
    case TD_OPT_U32:
        if (parse_digits(text, strlen(text), &u) && u <= UINT32_MAX && in_range(o, (double)u)) {
            *(uint32_t *)field = (uint32_t)u;
            return TD_OK;
        }
        break;
    case TD_OPT_U64:
    case TD_OPT_BYTES:
        if ((o->type == TD_OPT_U64 ? parse_digits(text, strlen(text), &u)
                                   : td_parse_bytes(text, &u)) &&
            in_range(o, (double)u)) {
            *(uint64_t *)field = u;
            return TD_OK;
        }
        break;
    case TD_OPT_I64:
    case TD_OPT_DURATION_MS:
        if ((o->type == TD_OPT_I64 ? parse_i64(text, &i) : td_parse_duration_ms(text, &i)) &&
            in_range(o, (double)i)) {
            *(int64_t *)field = i;
            return TD_OK;
        }
        break;
    case TD_OPT_F64:
        if (parse_f64(text, &d) && in_range(o, d)) {
            *(double *)field = d;
            return TD_OK;
        }
        break;
    case TD_OPT_BOOL:
        if (parse_bool(text, (bool *)field))
            return TD_OK;
        break;
    case TD_OPT_ENUM:
        if (parse_word(o, text, (int32_t *)field))
            return TD_OK;
        break;
    case TD_OPT_STR: {
        char *copy = strdup(text);

        if (copy == NULL)
            return td_fail(err, TD_NOMEM, "no memory for a string");
        free(*(char **)field);
        *(char **)field = copy;
        return TD_OK;
    }
    case TD_OPT_LIST: {
        td_strlist l;

        st = strlist_parse(o, text, &l, err);
        if (st == TD_OK) {
            strlist_free((td_strlist *)field);
            *(td_strlist *)field = l;
            return TD_OK;
        }
        if (st != TD_INVALID)
            return st;
        break;
    }
    }
    cfg_value_describe(o, &allowed);
    td_fail(err, TD_INVALID, "\"%.100s\" is not %s", text, allowed.ptr ? allowed.ptr : "allowed");
    td_buf_free(&allowed);
    return TD_INVALID;
}

void cfg_value_free(const td_option *o, void *out)
{
    char *field = (char *)out + o->offset;

    if (o->type == TD_OPT_STR) {
        free(*(char **)field);
        *(char **)field = NULL;
    } else if (o->type == TD_OPT_LIST) {
        strlist_free((td_strlist *)field);
    }
}

static void describe_bytes(double v, td_buf *b)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;

    while (i < 4 && v >= 1024 && fmod(v, 1024) == 0) {
        v /= 1024;
        i++;
    }
    td_buf_fmt(b, "%.0f%s", v, names[i]);
}

static void describe_ms(double v, td_buf *b)
{
    if (v >= 3600e3 && fmod(v, 3600e3) == 0)
        td_buf_fmt(b, "%.0fh", v / 3600e3);
    else if (v >= 60e3 && fmod(v, 60e3) == 0)
        td_buf_fmt(b, "%.0fm", v / 60e3);
    else if (v >= 1e3 && fmod(v, 1e3) == 0)
        td_buf_fmt(b, "%.0fs", v / 1e3);
    else if (v == 0)
        td_buf_str(b, "0");
    else
        td_buf_fmt(b, "%.0fms", v);
}

static void describe_bound(const td_option *o, double v, td_buf *b)
{
    if (o->type == TD_OPT_BYTES)
        describe_bytes(v, b);
    else if (o->type == TD_OPT_DURATION_MS)
        describe_ms(v, b);
    else if (o->type == TD_OPT_F64)
        td_buf_fmt(b, "%g", v);
    else
        td_buf_fmt(b, "%.0f", v);
}

static const char *what_is(td_opt_type type)
{
    switch (type) {
    case TD_OPT_U32:
    case TD_OPT_U64:
    case TD_OPT_I64: return "a whole number";
    case TD_OPT_F64: return "a number";
    case TD_OPT_BOOL: return "true or false";
    case TD_OPT_STR: return "text";
    case TD_OPT_ENUM: return "one of";
    case TD_OPT_BYTES: return "a size (such as 512KiB or 64MiB)";
    case TD_OPT_DURATION_MS: return "a time (such as 500ms, 5s or 2m)";
    case TD_OPT_LIST: return "a comma-separated list without empty items";
    }
    return "";
}

void cfg_value_describe(const td_option *o, td_buf *b)
{
    td_buf_str(b, what_is(o->type));
    if (o->type == TD_OPT_ENUM) {
        for (size_t i = 0; o->words[i] != NULL; i++)
            td_buf_fmt(b, "%s %s", i ? "," : "", o->words[i]);
    } else if (o->min != 0 || o->max != 0) {
        td_buf_str(b, o->type == TD_OPT_LIST ? ", items: " : " from ");
        describe_bound(o, o->min, b);
        td_buf_str(b, " to ");
        describe_bound(o, o->max, b);
    } else if (o->type == TD_OPT_U32) {
        td_buf_fmt(b, " from 0 to %u", UINT32_MAX);
    } else if (o->type == TD_OPT_U64) {
        td_buf_str(b, " from 0 up");
    }
}

void cfg_value_usage(const td_option *o, td_buf *b)
{
    switch (o->type) {
    case TD_OPT_U32:
    case TD_OPT_U64:
    case TD_OPT_I64: td_buf_str(b, " N"); break;
    case TD_OPT_F64: td_buf_str(b, " X"); break;
    case TD_OPT_BOOL: td_buf_str(b, "[=BOOL]"); break;
    case TD_OPT_STR: td_buf_str(b, " TEXT"); break;
    case TD_OPT_BYTES: td_buf_str(b, " SIZE"); break;
    case TD_OPT_DURATION_MS: td_buf_str(b, " TIME"); break;
    case TD_OPT_LIST: td_buf_str(b, " A,B,..."); break;
    case TD_OPT_ENUM:
        for (size_t i = 0; o->words[i] != NULL; i++)
            td_buf_fmt(b, "%c%s", i ? '|' : ' ', o->words[i]);
        break;
    }
}
