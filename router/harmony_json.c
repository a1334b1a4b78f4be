/* Compact JSON with the spelling of serde_json, which the reference prints defaults with. cJSON's
 * own printer differs in numbers (1e+20, 0.1000000001 at 15 digits) and cannot keep 1.0. */
#include "router/harmony_tools.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As ryu lays out the shortest digits that read back as v: plain up to 16 places, 1e16 above. */
static void add_float(td_buf *out, double v)
{
    char digits[40], body[24];
    int len, exp, point;

    if (!isfinite(v)) {
        td_buf_str(out, "null");
        return;
    }
    if (v == 0) {
        td_buf_str(out, signbit(v) ? "-0.0" : "0.0");
        return;
    }
    for (int p = 0; p <= 16; p++) {
        snprintf(digits, sizeof digits, "%.*e", p, fabs(v));
        if (strtod(digits, NULL) == fabs(v))
            break;
    }
    exp = atoi(strchr(digits, 'e') + 1);
    len = 0;
    for (const char *d = digits; *d != 'e'; d++)
        if (*d != '.')
            body[len++] = *d;
    while (len > 1 && body[len - 1] == '0')
        len--;
    body[len] = '\0';

    point = exp + 1; /* digits before the decimal point */
    if (v < 0)
        td_buf_byte(out, '-');
    if (point >= len && point <= 16) {
        td_buf_fmt(out, "%s%.*s.0", body, point - len, "0000000000000000");
    } else if (point > 0 && point <= 16) {
        td_buf_fmt(out, "%.*s.%s", point, body, body + point);
    } else if (point > -5 && point <= 0) {
        td_buf_fmt(out, "0.%.*s%s", -point, "00000", body);
    } else {
        td_buf_fmt(out, "%c%s%se%d", body[0], len > 1 ? "." : "", body + 1, exp);
    }
}

static void add_number(td_buf *out, const cJSON *value)
{
    const char *s = value->valuestring; /* the client's spelling, see chat_keep_numbers() */
    double v = value->valuedouble;

    if (s != NULL && strpbrk(s, ".eE") == NULL && strcmp(s, "-0") != 0) {
        errno = 0;
        if (s[0] == '-')
            (void)strtoll(s, NULL, 10);
        else
            (void)strtoull(s, NULL, 10);
        if (errno == 0) {
            td_buf_str(out, s);
            return;
        }
    }
    if (s != NULL && !isfinite(v)) { /* it is a number, if none that fits a double: not null */
        td_buf_str(out, s);
        return;
    }
    if (s == NULL && v == floor(v) && fabs(v) <= 9007199254740992.0)
        td_buf_fmt(out, "%.0f", v);
    else
        add_float(out, v);
}

static void add_string(td_buf *out, const char *s)
{
    td_buf_byte(out, '"');
    for (const char *p = s; *p != '\0'; p++) {
        unsigned char ch = (unsigned char)*p;

        switch (ch) {
        case '"': td_buf_str(out, "\\\""); break;
        case '\\': td_buf_str(out, "\\\\"); break;
        case '\b': td_buf_str(out, "\\b"); break;
        case '\f': td_buf_str(out, "\\f"); break;
        case '\n': td_buf_str(out, "\\n"); break;
        case '\r': td_buf_str(out, "\\r"); break;
        case '\t': td_buf_str(out, "\\t"); break;
        default:
            if (ch < 0x20)
                td_buf_fmt(out, "\\u%04x", ch);
            else
                td_buf_byte(out, *p);
        }
    }
    td_buf_byte(out, '"');
}

void harmony_json_compact(td_buf *out, const cJSON *value)
{
    if (cJSON_IsTrue(value)) {
        td_buf_str(out, "true");
    } else if (cJSON_IsFalse(value)) {
        td_buf_str(out, "false");
    } else if (cJSON_IsNumber(value)) {
        add_number(out, value);
    } else if (cJSON_IsString(value)) {
        add_string(out, value->valuestring);
    } else if (cJSON_IsArray(value) || cJSON_IsObject(value)) {
        bool object = cJSON_IsObject(value);

        td_buf_byte(out, object ? '{' : '[');
        for (const cJSON *v = value->child; v != NULL; v = v->next) {
            if (v != value->child)
                td_buf_byte(out, ',');
            if (object) {
                add_string(out, v->string);
                td_buf_byte(out, ':');
            }
            harmony_json_compact(out, v); /* as deep as the parser allowed, so bounded */
        }
        td_buf_byte(out, object ? '}' : ']');
    } else {
        td_buf_str(out, "null");
    }
}
