/* Any bytes as the body of each endpoint: refused with a reason, or a generation whose numbers are
 * in range and whose prompt has the format's own control tokens, those alone, each in its place. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "router/completion_body.h"
#include "router/openai.h"
#include "router/responses_body.h"
#include "router/tokenize_body.h"
#include "tests/unit/harmony_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static openai_defaults defaults(void)
{
    return (openai_defaults){.date = "2025-06-28",
                             .allow_ignore_eos = true,
                             .vocab = tokenizer_vocab(harmony_tokenizer(fixture_harmony()))};
}

static void check_refusal(td_status st, const td_error *err)
{
    td_assert(err->code == st && err->text[0] != '\0');
    td_assert(td_utf8_valid(err->text, strlen(err->text), NULL));
    td_assert(td_utf8_valid(err->param, strlen(err->param), NULL));
}

static void check_numbers(const generation *g)
{
    td_assert(g->temperature >= 0 && g->temperature <= 2);
    td_assert(g->top_p > 0 && g->top_p <= 1 && g->top_k >= 0);
    td_assert(fabsf(g->presence) <= 2 && fabsf(g->frequency) <= 2);
    td_assert(g->n_stop <= GENERATION_MAX_STOPS && g->n_bias <= GENERATION_MAX_BIAS);
    for (size_t i = 0; i < g->n_stop; i++)
        td_assert(g->stop[i].len > 0 && td_utf8_valid(g->stop[i].ptr, g->stop[i].len, NULL));
    for (size_t i = 0; i < g->n_bias; i++)
        td_assert(g->bias[i].token >= 0 && g->bias[i].token < defaults().vocab);
}

/* Every message opens and closes once, and one is open at the end; nothing else is special. */
static void check_prompt(const harmony *h, const td_tokens *ids)
{
    const harmony_ids *k = harmony_ids_of(h);
    bool open = false, content = false;

    for (size_t i = 0; i < ids->len; i++) {
        int32_t id = ids->ptr[i];

        if (!tokenizer_is_special(harmony_tokenizer(h), id))
            continue;
        if (id == k->start) {
            td_assert(!open);
            open = true;
            content = false;
        } else if (id == k->end || id == k->call) {
            td_assert(open && content);
            open = false;
        } else if (id == k->message) {
            td_assert(open && !content);
            content = true;
        } else {
            td_assert((id == k->channel || id == k->constrain) && open && !content);
        }
    }
    td_assert(open);
}

static void check_generation(const generation *g)
{
    const harmony *h = fixture_harmony();
    td_tokens ids = {0};
    td_error err = {0};
    td_status st;

    check_numbers(g);
    st = generation_render(g, h, &ids, &err);
    if (st != TD_OK)
        check_refusal(st, &err);
    else if (!g->raw)
        check_prompt(h, &ids);
    td_tokens_free(&ids);
}

/* ---- what a response repeats and keeps ---- */

static bool find(void *arg, td_slice id, td_slice *items)
{
    (void)arg;
    *items = TD_SLICE("{\"role\":\"user\",\"content\":\"hi\"}");
    return td_slice_eq(id, TD_SLICE("resp_1"));
}

static bool find_item(void *arg, td_slice id, td_slice *json)
{
    (void)arg;
    *json = TD_SLICE("{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"a\","
                     "\"name\":\"f\",\"arguments\":\"{}\"},{");
    return td_slice_eq(id, TD_SLICE("fc_1"));
}

static void check_same(const chat_message *a, const chat_message *b)
{
    td_assert(a->role == b->role && a->preamble == b->preamble && a->n_calls == b->n_calls);
    td_assert(td_slice_eq(a->content, b->content) && td_slice_eq(a->reasoning, b->reasoning));
    td_assert(td_slice_eq(a->tool_call_id, b->tool_call_id));
    for (size_t i = 0; i < a->n_calls; i++)
        td_assert(td_slice_eq(a->calls[i].id, b->calls[i].id) &&
                  td_slice_eq(a->calls[i].name, b->calls[i].name) &&
                  td_slice_eq(a->calls[i].arguments, b->calls[i].arguments));
}

/* What is kept reads back as the same conversation, but for the instructions. */
static void check_kept(const responses_request *q)
{
    const openai_defaults d = defaults();
    responses_request again;
    td_error err = {0};
    td_buf body = {0};
    size_t skip;

    td_buf_str(&body, "{\"input\":[");
    td_buf_add(&body, q->items.ptr, q->items.len);
    td_buf_str(&body, "]}");
    td_assert(responses_parse(body.ptr, body.len, &d, NULL, &again, &err) == TD_OK);
    td_assert(q->g.chat.n_messages >= again.g.chat.n_messages);
    skip = q->g.chat.n_messages - again.g.chat.n_messages;
    td_assert(skip <= 1);
    for (size_t i = 0; i < again.g.chat.n_messages; i++)
        check_same(&q->g.chat.messages[skip + i], &again.g.chat.messages[i]);
    responses_request_free(&again);
    td_buf_free(&body);
}

static void check_response(const responses_request *q)
{
    td_buf echo = {0};
    cJSON *root;

    td_buf_byte(&echo, '{');
    td_buf_add(&echo, q->echo.ptr, q->echo.len);
    td_buf_byte(&echo, '}');
    root = cJSON_ParseWithLength(echo.ptr, echo.len);
    td_assert(cJSON_IsObject(root) && cJSON_GetArraySize(root) == 19);
    cJSON_Delete(root);
    td_buf_free(&echo);
    td_assert(q->store == (q->items.len > 0));
    if (q->store)
        check_kept(q);
}

static void as_generations(const char *body, size_t n)
{
    const responses_history history = {.find = find, .find_item = find_item};
    const openai_defaults d = defaults();
    responses_request q;
    generation g;
    td_error err = {0};
    td_status st = openai_parse_chat(body, n, &d, &g, &err);

    st == TD_OK ? check_generation(&g) : check_refusal(st, &err);
    generation_free(&g);

    err = (td_error){0};
    st = completion_parse(body, n, &d, harmony_tokenizer(fixture_harmony()), &g, &err);
    st == TD_OK ? check_generation(&g) : check_refusal(st, &err);
    generation_free(&g);

    err = (td_error){0};
    st = responses_parse(body, n, &d, &history, &q, &err);
    st == TD_OK ? check_generation(&q.g) : check_refusal(st, &err);
    if (st == TD_OK)
        check_response(&q);
    responses_request_free(&q);
}

static void check_json(const td_buf *out)
{
    cJSON *root = cJSON_ParseWithLength(out->ptr, out->len);

    td_assert(root != NULL && td_utf8_valid(out->ptr, out->len, NULL));
    cJSON_Delete(root);
}

static void as_tokenizing(const char *body, size_t n)
{
    const tokenize_facts f = {.defaults = defaults(), .model = "", .max_model_len = 4096};
    td_buf out = {0};
    td_error err = {0};
    td_status st = tokenize_text(body, n, &f, fixture_harmony(), &out, &err);

    st == TD_OK ? check_json(&out) : check_refusal(st, &err);
    td_buf_clear(&out);
    err = (td_error){0};
    st = tokenize_back(body, n, &f, fixture_harmony(), &out, &err);
    st == TD_OK ? check_json(&out) : check_refusal(st, &err);
    td_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *body;

    if (size > 1 << 16)
        return 0;
    body = malloc(size + 1); /* exact, so that reading past the NUL is seen */
    td_assert(body != NULL);
    if (size > 0)
        memcpy(body, data, size);
    body[size] = '\0';
    as_generations(body, size);
    as_tokenizing(body, size);
    free(body);
    return 0;
}
