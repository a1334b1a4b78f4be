#include "router/tokenize_body.h"

#include <string.h>

#include "router/completion_body.h"
#include "router/openai_fields.h"
#include "router/openai_json.h"
#include "router/utf8_stream.h"

static td_status check_model(const cJSON *root, const tokenize_facts *f, td_error *err)
{
    const cJSON *v = openai_field(root, "model");

    if (v == NULL)
        return TD_OK;
    if (!cJSON_IsString(v))
        return td_fail_param(err, "model", "model must be a string, not %s", openai_type_name(v));
    return generation_check_model(td_slice_of(v->valuestring), f->model, err);
}

static td_status take_flag(const cJSON *root, const char *name, bool *out, td_error *err)
{
    const cJSON *v = openai_field(root, name);

    if (v == NULL)
        return TD_OK;
    if (!cJSON_IsBool(v))
        return td_fail_param(err, name, "%s must be true or false, not %s", name,
                             openai_type_name(v));
    *out = cJSON_IsTrue(v);
    return TD_OK;
}

/* The bytes of ids[0..n) as the inside of a JSON string. */
static void add_text(const tokenizer *t, const int32_t *ids, size_t n, td_buf *scratch, td_buf *out)
{
    utf8_stream utf8 = {0};
    td_slice bytes;

    td_buf_clear(scratch);
    for (size_t i = 0; i < n; i++)
        if (tokenizer_bytes(t, ids[i], &bytes))
            utf8_stream_push(&utf8, bytes, scratch);
    utf8_stream_end(&utf8, scratch);
    if (scratch->oom)
        out->oom = true;
    else
        td_buf_json(out, scratch->ptr, scratch->len);
}

static void add_answer(const tokenizer *t, const td_tokens *ids, const tokenize_facts *f,
                       bool strings, td_buf *out)
{
    td_buf scratch = {0};

    td_buf_fmt(out, "{\"count\":%zu,\"max_model_len\":", ids->len);
    if (f->max_model_len > 0)
        td_buf_fmt(out, "%d", f->max_model_len);
    else
        td_buf_str(out, "null");
    td_buf_str(out, ",\"tokens\":[");
    for (size_t i = 0; i < ids->len; i++)
        td_buf_fmt(out, i > 0 ? ",%d" : "%d", ids->ptr[i]);
    td_buf_str(out, "],\"token_strs\":");
    for (size_t i = 0; strings && i < ids->len; i++) {
        td_buf_str(out, i > 0 ? "\",\"" : "[\"");
        add_text(t, &ids->ptr[i], 1, &scratch, out);
    }
    td_buf_str(out, !strings ? "null}" : ids->len > 0 ? "\"]}" : "[]}");
    td_buf_free(&scratch);
}

static td_status encode_prompt(const cJSON *prompt, const tokenizer *t, td_tokens *ids,
                               td_error *err)
{
    if (!cJSON_IsString(prompt))
        return td_fail_param(err, "prompt", "prompt must be a string, not %s",
                             openai_type_name(prompt));
    return tokenizer_encode(t, prompt->valuestring, strlen(prompt->valuestring), ids, err);
}

/* As the chat endpoint reads it, from the body on. */
static td_status render_chat(const char *body, size_t n, const tokenize_facts *f, const harmony *h,
                             td_tokens *ids, td_error *err)
{
    generation g;
    td_status st = openai_parse_chat(body, n, &f->defaults, &g, err);

    if (st == TD_OK)
        st = generation_render(&g, h, ids, err);
    generation_free(&g);
    return st;
}

td_status tokenize_text(const char *body, size_t n, const tokenize_facts *f, const harmony *h,
                        td_buf *out, td_error *err)
{
    static const openai_rule of_messages[] = {
        {"tools", ONLY_EMPTY, "it goes with messages"},
        {"continue_final_message", ONLY_FALSE, "it goes with messages"},
    };
    const tokenizer *t = harmony_tokenizer(h);
    const cJSON *prompt, *messages;
    /* o200k_harmony adds no token to a text, so that either value of the first is what is done; the
     * last is looked at again with messages. */
    bool add_special = true, strings = false, add_generation_prompt = true;
    cJSON *root = NULL;
    td_tokens ids = {0};
    td_status st = openai_read_json(body, n, &f->defaults, &root, err);

    if (st != TD_OK)
        return st;
    prompt = openai_field(root, "prompt");
    messages = openai_field(root, "messages");
    st = check_model(root, f, err);
    if (st == TD_OK)
        st = take_flag(root, "add_special_tokens", &add_special, err);
    if (st == TD_OK)
        st = take_flag(root, "return_token_strs", &strings, err);
    if (st == TD_OK)
        st = take_flag(root, "add_generation_prompt", &add_generation_prompt, err);
    if (st == TD_OK && prompt != NULL && messages != NULL)
        st = td_fail_param(err, "prompt", "give prompt or messages, not both");
    if (st == TD_OK && prompt != NULL)
        st = openai_check_rules(root, "", of_messages, sizeof of_messages / sizeof *of_messages,
                                err);
    if (st == TD_OK && prompt == NULL && messages == NULL)
        st = td_fail_param(err, "prompt", "prompt is missing, and so is messages");
    if (st == TD_OK && prompt != NULL)
        st = encode_prompt(prompt, t, &ids, err);
    cJSON_Delete(root);
    if (st == TD_OK && messages != NULL)
        st = render_chat(body, n, f, h, &ids, err);
    if (st == TD_OK && ids.oom)
        st = td_fail(err, TD_NOMEM, "no memory for tokens");
    if (st == TD_OK) {
        add_answer(t, &ids, f, strings, out);
        if (out->oom)
            st = td_fail(err, TD_NOMEM, "no memory for the answer");
    }
    td_tokens_free(&ids);
    return st;
}

td_status tokenize_back(const char *body, size_t n, const tokenize_facts *f, const harmony *h,
                        td_buf *out, td_error *err)
{
    const tokenizer *t = harmony_tokenizer(h);
    const cJSON *tokens;
    cJSON *root = NULL;
    td_tokens ids = {0};
    td_buf scratch = {0};
    td_status st = openai_read_json(body, n, &f->defaults, &root, err);

    if (st != TD_OK)
        return st;
    tokens = openai_field(root, "tokens");
    st = check_model(root, f, err);
    if (st == TD_OK && tokens == NULL)
        st = td_fail_param(err, "tokens", "tokens is missing");
    if (st == TD_OK && !cJSON_IsArray(tokens))
        st = td_fail_param(err, "tokens", "tokens must be an array of token ids, not %s",
                           openai_type_name(tokens));
    if (st == TD_OK)
        st = completion_take_ids(tokens, "tokens", t, &ids, err);
    cJSON_Delete(root);
    if (st == TD_OK) {
        td_buf_str(out, "{\"prompt\":\"");
        add_text(t, ids.ptr, ids.len, &scratch, out);
        td_buf_str(out, "\"}");
        if (out->oom)
            st = td_fail(err, TD_NOMEM, "no memory for the answer");
    }
    td_buf_free(&scratch);
    td_tokens_free(&ids);
    return st;
}
