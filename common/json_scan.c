#include "common/json_scan.h"

#include <string.h>

enum {
    MAX_DEPTH = 64, /* of a skipped value; a bit each in a word */
};

static bool miss(json_scan *s, const char *wanted)
{
    if (s->wanted == NULL)
        s->wanted = wanted;
    return false;
}

static void skip_space(json_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

static bool take(json_scan *s, char c, const char *wanted)
{
    if (s->wanted != NULL)
        return false;
    skip_space(s);
    if (s->at == s->end || *s->at != c)
        return miss(s, wanted);
    s->at++;
    return true;
}

void json_scan_init(json_scan *s, td_slice text)
{
    *s = (json_scan){.start = text.ptr, .at = text.ptr, .end = text.ptr + text.len};
}

bool json_scan_enter(json_scan *s, char bracket)
{
    return take(s, bracket, bracket == '{' ? "an object" : "an array");
}

bool json_scan_more(json_scan *s, char closing, bool *first)
{
    if (s->wanted != NULL)
        return false;
    skip_space(s);
    if (s->at < s->end && *s->at == closing) {
        s->at++;
        return false;
    }
    if (!*first)
        return take(s, ',', closing == '}' ? "',' or '}'" : "',' or ']'");
    *first = false;
    return true;
}

static bool hex4(json_scan *s, uint32_t *out)
{
    *out = 0;
    if (s->end - s->at < 4)
        return miss(s, "four hex digits");
    for (int i = 0; i < 4; i++) {
        char c = *s->at;
        uint32_t digit;

        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return miss(s, "four hex digits");
        *out = *out << 4 | digit;
        s->at++;
    }
    return true;
}

static void add_utf8(td_buf *out, uint32_t cp)
{
    if (cp < 0x80) {
        td_buf_byte(out, (char)cp);
        return;
    }
    if (cp < 0x800) {
        td_buf_byte(out, (char)(0xc0 | cp >> 6));
    } else {
        if (cp < 0x10000) {
            td_buf_byte(out, (char)(0xe0 | cp >> 12));
        } else {
            td_buf_byte(out, (char)(0xf0 | cp >> 18));
            td_buf_byte(out, (char)(0x80 | (cp >> 12 & 0x3f)));
        }
        td_buf_byte(out, (char)(0x80 | (cp >> 6 & 0x3f)));
    }
    td_buf_byte(out, (char)(0x80 | (cp & 0x3f)));
}

/* Behind a backslash. */
static bool escape(json_scan *s, td_buf *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name;
    uint32_t cp, low;

    if (s->at == s->end)
        return miss(s, "an escape");
    if (*s->at != 'u') {
        name = *s->at != '\0' ? strchr(names, *s->at) : NULL;
        if (name == NULL)
            return miss(s, "an escape");
        td_buf_byte(out, values[name - names]);
        s->at++;
        return true;
    }
    s->at++;
    if (!hex4(s, &cp))
        return false;
    if (cp >= 0xdc00 && cp < 0xe000)
        return miss(s, "a high surrogate before a low one");
    if (cp >= 0xd800 && cp < 0xdc00) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
            return miss(s, "a low surrogate");
        s->at += 2;
        if (!hex4(s, &low))
            return false;
        if (low < 0xdc00 || low >= 0xe000)
            return miss(s, "a low surrogate");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    add_utf8(out, cp);
    return true;
}

bool json_scan_string(json_scan *s, td_buf *out)
{
    const char *from;

    td_buf_clear(out);
    if (!take(s, '"', "a string"))
        return false;
    for (from = s->at; s->at < s->end; s->at++) {
        unsigned char c = (unsigned char)*s->at;

        if (c == '"') {
            td_buf_add(out, from, (size_t)(s->at - from));
            s->at++;
            s->oom = s->oom || out->oom;
            return !out->oom || miss(s, "memory");
        }
        if (c < 0x20)
            return miss(s, "a string without control characters");
        if (c == '\\') {
            td_buf_add(out, from, (size_t)(s->at - from));
            s->at++;
            if (!escape(s, out))
                return false;
            from = s->at--;
        }
    }
    return miss(s, "the end of a string");
}

bool json_scan_name(json_scan *s, td_buf *out)
{
    return json_scan_string(s, out) && take(s, ':', "':'");
}

bool json_scan_uint(json_scan *s, uint64_t *out)
{
    const char *from;
    uint64_t n = 0;

    if (s->wanted != NULL)
        return false;
    skip_space(s);
    for (from = s->at; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        n = n * 10 + (uint64_t)(*s->at - '0');
        if (n >= (uint64_t)1 << 53)
            return miss(s, "a whole number below 2^53");
    }
    if (s->at == from || (s->at < s->end && (*s->at == '.' || (*s->at | 0x20) == 'e')))
        return miss(s, "a whole number");
    *out = n;
    return true;
}

static bool skip_string(json_scan *s)
{
    for (s->at++; s->at < s->end; s->at++) {
        if (*s->at == '"') {
            s->at++;
            return true;
        }
        if (*s->at == '\\' && ++s->at == s->end)
            break;
    }
    return miss(s, "the end of a string");
}

static bool skip_atom(json_scan *s)
{
    const char *from = s->at;

    while (s->at < s->end && *s->at != '\0' && strchr(",:[]{}\" \t\r\n", *s->at) == NULL)
        s->at++;
    return s->at > from || miss(s, "a value");
}

bool json_scan_value(json_scan *s, td_slice *out)
{
    uint64_t is_object = 0; /* a bit an open bracket, the innermost lowest */
    unsigned depth = 0;

    if (s->wanted != NULL)
        return false;
    skip_space(s);
    out->ptr = s->at;
    do {
        skip_space(s);
        if (s->at == s->end)
            return miss(s, "the end of a value");
        switch (*s->at) {
        case '"':
            if (!skip_string(s))
                return false;
            break;
        case '{':
        case '[':
            if (++depth > MAX_DEPTH)
                return miss(s, "less nesting");
            is_object = is_object << 1 | (*s->at == '{');
            s->at++;
            break;
        case '}':
        case ']':
            if (depth == 0 || (*s->at == '}') != (is_object & 1))
                return miss(s, "the matching bracket");
            depth--;
            is_object >>= 1;
            s->at++;
            break;
        case ',':
        case ':':
            if (depth == 0)
                return miss(s, "a value");
            s->at++;
            break;
        default:
            if (!skip_atom(s))
                return false;
        }
    } while (depth > 0);
    out->len = (size_t)(s->at - out->ptr);
    return true;
}

char json_scan_peek(json_scan *s)
{
    skip_space(s);
    return s->wanted == NULL && s->at < s->end ? *s->at : '\0';
}

bool json_scan_end(json_scan *s)
{
    if (s->wanted != NULL)
        return false;
    skip_space(s);
    return s->at == s->end || miss(s, "the end of the text");
}

td_status json_scan_error(const json_scan *s, td_error *err)
{
    if (s->wanted == NULL)
        return TD_OK;
    if (s->oom)
        return td_fail(err, TD_NOMEM, "no memory to read JSON");
    return td_fail(err, TD_INVALID, "JSON: expected %s at byte %zu", s->wanted,
                   (size_t)(s->at - s->start));
}
