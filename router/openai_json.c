/* A body before anything is made of it: checked as text, parsed, and its lists bounded. */
#include "router/openai_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json_text.h"
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

/* The text before anything makes a tree of it; it is UTF-8. */
static td_status look(const char *body, size_t n, int max_depth, td_error *err)
{
    char place[sizeof err->param];
    size_t at = 0;

    switch (td_json_look(body, n, max_depth, OPENAI_MAX_VALUES, &at)) {
    case TD_JSON_NUL_BYTE:
        return td_fail(err, TD_INVALID, "the body is not JSON: it has a NUL byte at %zu", at);
    case TD_JSON_CONTROL:
        return td_fail(err, TD_INVALID,
                       "the body is not valid JSON near byte %zu: a control character must be "
                       "written as an escape, \\n or \\u%04x",
                       at, (unsigned)(unsigned char)body[at]);
    case TD_JSON_NUL_CHARACTER:
        td_json_place(body, at, place, sizeof place);
        return td_fail_param(err, place,
                             "%s has \\u0000 in a string (at byte %zu): a NUL character cannot be "
                             "taken, leave it out",
                             place[0] != '\0' ? place : "the body", at);
    case TD_JSON_ESCAPE:
        return td_fail(err, TD_INVALID,
                       "the body is not valid JSON near byte %zu: four hex digits follow \\u", at);
    case TD_JSON_NUMBER:
        return td_fail(err, TD_INVALID,
                       "the body is not valid JSON near byte %zu: a number is not written as JSON "
                       "has it",
                       at);
    case TD_JSON_DEPTH:
        return td_fail(err, TD_INVALID, "the body nests deeper than %d levels", max_depth);
    case TD_JSON_VALUES:
        return td_fail(err, TD_INVALID, "the body has more than %d values", OPENAI_MAX_VALUES);
    case TD_JSON_FINE: break;
    }
    return TD_OK;
}

/* ---- no object has a name twice ----
 *
 * Whoever stands between the client and this server may have read the other one. */

/* A value on the way from the root; the root has no `up`. */
typedef struct place {
    const struct place *up;
    const cJSON *at;
    size_t index; /* in an array */
} place;

/* "messages[3].content", "" for the root; cut to fit. */
static void spell(const place *p, char *out, size_t cap)
{
    size_t n;

    out[0] = '\0';
    if (p->up == NULL)
        return;
    spell(p->up, out, cap);
    n = strlen(out);
    if (cJSON_IsArray(p->up->at))
        snprintf(out + n, cap - n, "[%zu]", p->index);
    else
        snprintf(out + n, cap - n, "%s%.*s", n > 0 ? "." : "",
                 chat_shown(td_slice_of(p->at->string)), p->at->string);
}

static td_status fail_twin(const place *object, const char *name, td_error *err)
{
    char where[200], field[300];
    int shown = chat_shown(td_slice_of(name));

    spell(object, where, sizeof where);
    snprintf(field, sizeof field, "%s%s%.*s", where, where[0] ? "." : "", shown, name);
    return td_fail_param(err, field, "%s has '%.*s' twice", where[0] ? where : "the body", shown,
                         name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of one object, which are n. */
static td_status check_names(const place *object, size_t n, td_error *err)
{
    const char *few[16], **names = few;
    const cJSON *v;
    td_status st = TD_OK;
    size_t i = 0;

    if (n > sizeof few / sizeof *few)
        names = malloc(n * sizeof *names);
    if (names == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu members", n);
    cJSON_ArrayForEach(v, object->at) names[i++] = v->string;
    qsort(names, n, sizeof *names, by_name);
    for (i = 1; i < n && st == TD_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            st = fail_twin(object, names[i], err);
    if (names != few)
        free(names);
    return st;
}

/* No deeper than the text was found to nest. */
static td_status check_twins(const place *p, td_error *err)
{
    place in = {.up = p};
    const cJSON *v;
    td_status st = TD_OK;

    cJSON_ArrayForEach(v, p->at)
    {
        in.at = v;
        if (st == TD_OK && v->child != NULL)
            st = check_twins(&in, err);
        in.index++;
    }
    return st == TD_OK && cJSON_IsObject(p->at) ? check_names(p, in.index, err) : st;
}

/* Fields are looked for one by one, so the body itself may not have very many members. */
static td_status check_members(const cJSON *root, td_error *err)
{
    const place top = {.at = root};

    if (cJSON_GetArraySize(root) > OPENAI_MAX_MEMBERS)
        return td_fail(err, TD_INVALID, "the body has more than %d members", OPENAI_MAX_MEMBERS);
    return check_twins(&top, err);
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

    errno = 0; /* cJSON says no more than that there is no tree; malloc() says why */
    *root = cJSON_ParseWithLengthOpts(text, n + 1, &end, 1);
    if (*root == NULL && errno == ENOMEM)
        return td_fail(err, TD_NOMEM, "no memory for a body of %zu bytes", n);
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
    st = look(body, n, d->max_depth ? (int)d->max_depth : OPENAI_MAX_DEPTH, err);
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
