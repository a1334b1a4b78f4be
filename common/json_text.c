#include "common/json_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PLACE_DEPTH = 64, PLACE_NAME = 40 };

static size_t skip_digits(const char *s, size_t i, size_t n)
{
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return i;
}

/* Where the number that begins at `from` ends; `from`: JSON has no such number. */
static size_t number_end(const char *s, size_t from, size_t n)
{
    size_t i = from + (s[from] == '-'), digits = i;

    i = skip_digits(s, i, n);
    if (i == digits || (s[digits] == '0' && i > digits + 1))
        return from;
    if (i < n && s[i] == '.') {
        digits = i + 1;
        i = skip_digits(s, digits, n);
        if (i == digits)
            return from;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        digits = i + 1;
        if (digits < n && (s[digits] == '+' || s[digits] == '-'))
            digits++;
        i = skip_digits(s, digits, n);
        if (i == digits)
            return from;
    }
    return i;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* The escape whose backslash is at s[i]; the parser knows the letters that may follow it. */
static td_json_fault look_at_escape(const char *s, size_t i, size_t n)
{
    if (n - i < 2 || s[i + 1] != 'u')
        return TD_JSON_FINE;
    if (n - i < 6)
        return TD_JSON_ESCAPE;
    for (size_t k = i + 2; k < i + 6; k++)
        if (!is_hex(s[k]))
            return TD_JSON_ESCAPE;
    return memcmp(s + i + 2, "0000", 4) == 0 ? TD_JSON_NUL_CHARACTER : TD_JSON_FINE;
}

/* What stands between strings, at s[*i]; moves *i to the last character that it took. */
static td_json_fault look_outside(const char *s, size_t n, size_t *i)
{
    size_t end;

    if (s[*i] != '-' && (s[*i] < '0' || s[*i] > '9'))
        return TD_JSON_FINE;
    end = number_end(s, *i, n);
    if (end == *i)
        return TD_JSON_NUMBER;
    *i = end - 1;
    return TD_JSON_FINE;
}

static td_json_fault control_fault(unsigned char c, bool in_string)
{
    if (c == 0)
        return TD_JSON_NUL_BYTE;
    if (c < 0x20 && (in_string || (c != '\t' && c != '\n' && c != '\r')))
        return TD_JSON_CONTROL;
    return TD_JSON_FINE;
}

td_json_fault td_json_look(const char *text, size_t n, int max_depth, size_t max_values, size_t *at)
{
    bool in_string = false;
    size_t values = 1;
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        td_json_fault fault = control_fault((unsigned char)c, in_string);

        *at = i;
        if (fault != TD_JSON_FINE)
            return fault;
        if (c == '"') {
            in_string = !in_string;
        } else if (in_string) {
            fault = c == '\\' ? look_at_escape(text, i, n) : TD_JSON_FINE;
            i += c == '\\';
        } else if (c == '{' || c == '[') {
            if (++depth > max_depth)
                return TD_JSON_DEPTH;
            values++; /* the first inside */
        } else if (c == ',') {
            values++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else {
            fault = look_outside(text, n, &i);
        }
        if (fault != TD_JSON_FINE)
            return fault;
        if (values > max_values)
            return TD_JSON_VALUES;
    }
    return TD_JSON_FINE;
}

/* One list or object around a place. */
typedef struct around {
    bool list;
    bool named;       /* behind the colon of a member */
    size_t index;     /* of the element in hand */
    size_t name, end; /* the last string, which before a colon is a name */
} around;

static void put_place(const char *text, const around *a, char *out, size_t cap)
{
    size_t used = strlen(out);
    char name[PLACE_NAME + 1];
    int n = 0;

    if (a->list) {
        snprintf(out + used, cap - used, "[%zu]", a->index);
        return;
    }
    for (size_t i = a->name; a->named && i < a->end && n < PLACE_NAME; i++)
        name[n++] = text[i] > ' ' && text[i] < 0x7f ? text[i] : '?';
    if (n > 0)
        snprintf(out + used, cap - used, "%s%.*s", used > 0 ? "." : "", n, name);
}

void td_json_place(const char *text, size_t at, char *out, size_t cap)
{
    around stack[PLACE_DEPTH] = {{0}};
    size_t depth = 0, opened = 0;
    bool in_string = false;

    for (size_t i = 0; i < at; i++) {
        around *in = depth > 0 && depth <= PLACE_DEPTH ? &stack[depth - 1] : NULL;
        char c = text[i];

        if (c == '"') {
            in_string = !in_string;
            if (in_string)
                opened = i + 1;
            else if (in != NULL && !in->named) {
                in->name = opened;
                in->end = i;
            }
        } else if (in_string) {
            i += c == '\\';
        } else if (c == '{' || c == '[') {
            if (depth++ < PLACE_DEPTH)
                stack[depth - 1] = (around){.list = c == '['};
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (in != NULL && c == ':') {
            in->named = true;
        } else if (in != NULL && c == ',') {
            in->named = false;
            in->index++;
        }
    }
    out[0] = '\0';
    for (size_t i = 0; i < depth && i < PLACE_DEPTH; i++)
        put_place(text, &stack[i], out, cap);
}
