#include "router/responses_body.h"

#include <stdio.h>
#include <string.h>

#include "router/harmony_tools.h"
#include "router/openai_json.h"
#include "router/responses_fields.h"
#include "router/responses_input.h"

/* A reference is short, and an item may be long, and far into what its response has: how many one
 * body may have, and the bytes of all that they stand for. */
enum { MAX_REFERENCES = 1024, MAX_REFERENCED = 4 << 20 };

static void keep_items(const cJSON *input, td_buf *items)
{
    const cJSON *v;

    if (cJSON_IsString(input)) {
        td_buf_fmt(items, "%s{\"type\":\"message\",\"role\":\"user\",\"content\":\"",
                   items->len > 0 ? "," : "");
        td_buf_json(items, input->valuestring, strlen(input->valuestring));
        td_buf_str(items, "\"}");
        return;
    }
    cJSON_ArrayForEach(v, input)
    {
        if (items->len > 0)
            td_buf_byte(items, ',');
        harmony_json_compact(items, v);
    }
}

static const char *why_not(const responses_history *h)
{
    return h == NULL ? "this server does not store responses"
                     : "it was not stored, or not for this long";
}

/* The items that led to an earlier response, and its own. */
static td_status take_previous(const cJSON *root, const openai_defaults *d,
                               const responses_history *h, responses_request *q, td_error *err)
{
    const cJSON *id = openai_field(root, "previous_response_id");
    td_slice items = {NULL, 0}, name;
    td_buf text = {0};
    cJSON *tree = NULL;
    td_status st;

    if (id == NULL)
        return TD_OK;
    name = td_slice_of(id->valuestring);
    if (h == NULL || !h->find(h->arg, name, &items)) {
        td_fail_param(err, "previous_response_id",
                      "previous_response_id: there is no response '%.*s' here (%s); send its items "
                      "as input",
                      chat_shown(name), name.ptr, why_not(h));
        return err->code = TD_NOTFOUND;
    }
    /* Read like a body: a chain of turns that were within its bounds may not be so any more. */
    td_buf_str(&text, "{\"input\":[");
    td_buf_add(&text, items.ptr, items.len);
    td_buf_str(&text, "]}");
    if (text.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the earlier conversation");
    else
        st = openai_read_json(text.ptr, text.len, d, &tree, err);
    if (st == TD_INVALID)
        st = td_fail_param(err, "previous_response_id",
                           "previous_response_id: the conversation has become too large to go on "
                           "with; send fewer items as input");
    if (st == TD_OK)
        st = responses_take_items(openai_field(tree, "input"), "previous_response_id", &q->g.chat,
                                  err);
    cJSON_Delete(tree);
    td_buf_free(&text);
    if (st == TD_OK && q->store)
        td_buf_add(&q->items, items.ptr, items.len);
    return st;
}

/* In the place of each reference the item itself, which then is read and kept like any other. */
static td_status resolve_references(cJSON *input, const responses_history *h, td_error *err)
{
    cJSON *item, *next;
    size_t i = 0, n = 0, bytes = 0;

    for (item = input->child; item != NULL; item = next, i++) {
        const char *id = responses_reference(item), *end = NULL;
        td_slice json;
        cJSON *found;
        char where[48];

        next = item->next;
        if (id == NULL)
            continue;
        snprintf(where, sizeof where, "input[%zu]", i);
        if (++n > MAX_REFERENCES)
            return td_fail_param(err, where, "%s: input may refer to at most %d items", where,
                                 MAX_REFERENCES);
        if (h == NULL || !h->find_item(h->arg, td_slice_of(id), &json))
            return td_fail_param(err, where,
                                 "%s is an item_reference: there is no item '%.*s' here (%s); send "
                                 "the item itself",
                                 where, chat_shown(td_slice_of(id)), id, why_not(h));
        found = cJSON_ParseWithLengthOpts(json.ptr, json.len, &end, 0);
        bytes += found != NULL ? (size_t)(end - json.ptr) : 0;
        if (bytes > MAX_REFERENCED) {
            cJSON_Delete(found);
            return td_fail_param(err, where, "%s: what is referred to has more than %d bytes",
                                 where, MAX_REFERENCED);
        }
        if (found == NULL || !cJSON_ReplaceItemViaPointer(input, item, found)) {
            cJSON_Delete(found);
            return td_fail(err, TD_NOMEM, "no memory for %s", where);
        }
    }
    return TD_OK;
}

static td_status take_input(cJSON *root, const responses_history *h, responses_request *q,
                            td_error *err)
{
    cJSON *input = cJSON_GetObjectItemCaseSensitive(root, "input");
    size_t before = q->g.chat.n_messages;
    td_status st = TD_OK;

    if (cJSON_IsString(input))
        chat_add_message(&q->g.chat, CHAT_USER)->content = chat_str(&q->g.chat, input->valuestring);
    else if (cJSON_IsArray(input))
        st = resolve_references(input, h, err);
    else
        return td_fail_param(err, "input",
                             input == NULL || cJSON_IsNull(input)
                                 ? "input is missing"
                                 : "input must be a string or an array of items, not %s",
                             openai_type_name(input));
    if (st == TD_OK && cJSON_IsArray(input))
        st = responses_take_items(input, "input", &q->g.chat, err);
    if (st == TD_OK && q->g.chat.n_messages == before && !q->g.chat.oom)
        return td_fail_param(err, "input", "input has nothing for the model to read");
    if (st == TD_OK && q->store)
        keep_items(input, &q->items);
    return st;
}

static void take_instructions(const cJSON *root, chat *c)
{
    const cJSON *v = openai_field(root, "instructions"); /* a string: the fields were checked */

    if (v != NULL && v->valuestring[0] != '\0')
        chat_add_message(c, CHAT_DEVELOPER)->content = chat_str(c, v->valuestring);
}

td_status responses_parse(const char *body, size_t n, const openai_defaults *d,
                          const responses_history *h, responses_request *q, td_error *err)
{
    cJSON *root = NULL;
    td_status st;

    *q = (responses_request){.store = true};
    generation_init(&q->g);
    st = openai_read_json(body, n, d, &root, err);
    if (st != TD_OK)
        return st;
    q->g.chat.date = chat_str(&q->g.chat, d->date);
    st = responses_take_fields(root, d, q, err);
    q->store = q->store && h != NULL;
    if (st == TD_OK) {
        take_instructions(root, &q->g.chat); /* those of this request alone */
        st = take_previous(root, d, h, q, err);
    }
    if (st == TD_OK)
        st = take_input(root, h, q, err);
    cJSON_Delete(root);
    if (st == TD_OK && (q->g.chat.oom || q->echo.oom || q->items.oom))
        st = td_fail(err, TD_NOMEM, "no memory for the request");
    return st;
}

void responses_request_free(responses_request *q)
{
    if (q == NULL)
        return;
    generation_free(&q->g);
    td_buf_free(&q->echo);
    td_buf_free(&q->items);
}
