/* A body before anything is made of it: checked as text, parsed, and its lists bounded. */
#include "router/openai_json.h"

#include <stdlib.h>
#include <string.h>

#include "router/json_escapes.h"
#include "router/openai.h"

const cJSON *openai_field(const cJSON *object, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, name);

    return v == NULL || cJSON_IsNull(v) ? NULL : v;
}

const char *openai_type_name(const cJSON *v)
{
    return cJSON_IsString(v)   ? "a string"
           : cJSON_IsNumber(v) ? "a number"
           : cJSON_IsBool(v)   ? "true or false"
           : cJSON_IsArray(v)  ? "an array"
           : cJSON_IsObject(v) ? "an object"
           : cJSON_IsNull(v)   ? "null"
                               : "something else";
}

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

/* Look through the text before anything makes a tree of it: how deep it nests, how many values it
 * has, whether a string holds an escaped NUL, at which cJSON would cut it without a word, and
 * whether numbers are JSON's: cJSON takes 01, and the spelling is kept and repeated in answers. */
static td_status scan(const char *body, size_t n, int max_depth, td_error *err)
{
    bool in_string = false;
    size_t values = 1;
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        char c = body[i];

        if (c == '\0')
            return td_fail(err, TD_INVALID, "the body is not JSON: it has a NUL byte at %zu", i);
        if (in_string) {
            if (c == '\\') {
                if (n - i > 5 && memcmp(body + i + 1, "u0000", 5) == 0)
                    return td_fail(err, TD_INVALID,
                                   "the body has a string with a NUL character (at byte %zu)", i);
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            size_t end = number_end(body, i, n);

            if (end == i)
                return td_fail(err, TD_INVALID,
                               "the body is not valid JSON near byte %zu: a number is not written "
                               "as JSON has it",
                               i);
            i = end - 1;
        } else if (c == '{' || c == '[') {
            if (++depth > max_depth)
                return td_fail(err, TD_INVALID, "the body nests deeper than %d levels", max_depth);
            values++; /* the first inside */
        } else if (c == ',') {
            values++;
        } else if (c == '}' || c == ']') {
            depth--;
        }
        if (values > OPENAI_MAX_VALUES)
            return td_fail(err, TD_INVALID, "the body has more than %d values", OPENAI_MAX_VALUES);
    }
    return TD_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Fields are looked for one by one, so there may not be very many members; and not two of a name,
 * of which whoever stands between the client and this server may have read the other. */
static td_status check_members(const cJSON *root, td_error *err)
{
    const char *names[OPENAI_MAX_MEMBERS];
    const cJSON *v;
    size_t n = 0;

    cJSON_ArrayForEach(v, root)
    {
        if (n == OPENAI_MAX_MEMBERS)
            return td_fail(err, TD_INVALID, "the body has more than %d members",
                           OPENAI_MAX_MEMBERS);
        names[n++] = v->string;
    }
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return td_fail_param(err, names[i], "the body has '%.*s' twice",
                                 chat_shown(td_slice_of(names[i])), names[i]);
    return TD_OK;
}

/* The lists of all endpoints that take time by their length. */
static td_status check_lists(const cJSON *root, const openai_defaults *d, td_error *err)
{
    uint32_t messages = d->max_messages ? d->max_messages : OPENAI_MAX_MESSAGES;
    uint32_t tools = d->max_tools ? d->max_tools : OPENAI_MAX_TOOLS;
    const struct {
        const char *name, *of;
        uint32_t most;
    } lists[] = {{"messages", "messages", messages},
                 {"input", "items", messages},
                 {"tools", "tools", tools}};

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const cJSON *list = openai_field(root, lists[i].name);

        if (cJSON_IsArray(list) && (uint32_t)cJSON_GetArraySize(list) > lists[i].most)
            return td_fail_param(err, lists[i].name, "%s has more than %u %s", lists[i].name,
                                 lists[i].most, lists[i].of);
    }
    return TD_OK;
}

/* text[n] is NUL. */
static td_status read_tree(const char *text, size_t n, cJSON **root, td_error *err)
{
    const char *end = NULL;

    *root = cJSON_ParseWithLengthOpts(text, n + 1, &end, 1);
    if (*root == NULL)
        return td_fail(err, TD_INVALID, "the body is not valid JSON near byte %zu",
                       end != NULL && end >= text ? (size_t)(end - text) : (size_t)0);
    chat_keep_numbers(*root, text, n);
    return TD_OK;
}

td_status openai_read_json(const char *body, size_t n, const openai_defaults *d, cJSON **root,
                           td_error *err)
{
    td_buf mended = {0};
    size_t bad;
    td_status st;

    if (n == 0)
        return td_fail(err, TD_INVALID, "the body is empty: a JSON object is expected");
    if (!td_utf8_valid(body, n, &bad))
        return td_fail(err, TD_INVALID, "the body is not valid UTF-8 at byte %zu", bad);
    st = scan(body, n, d->max_depth ? (int)d->max_depth : OPENAI_MAX_DEPTH, err);
    if (st != TD_OK)
        return st;
    if (json_mend_surrogates(body, n, &mended) == 0)
        st = read_tree(body, n, root, err);
    else if (mended.oom)
        st = td_fail(err, TD_NOMEM, "no memory for a copy of the body");
    else
        st = read_tree(mended.ptr, n, root, err);
    td_buf_free(&mended);
    if (st != TD_OK)
        return st;
    if (!cJSON_IsObject(*root)) {
        st = td_fail(err, TD_INVALID, "the body must be a JSON object, not %s",
                     openai_type_name(*root));
        cJSON_Delete(*root);
        *root = NULL;
        return st;
    }
    st = check_members(*root, err);
    if (st == TD_OK)
        st = check_lists(*root, d, err);
    if (st != TD_OK) {
        cJSON_Delete(*root);
        *root = NULL;
        return st;
    }
    return TD_OK;
}
