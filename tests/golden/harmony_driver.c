/* The renderer and the parser at the end of a pipe, for harmony_oracle.py: a JSON object a line on
 * stdin, one a line on stdout. Usage: harmony_driver VOCABULARY
 *
 *   {"op":"render","keep_analysis":bool,"training":bool, ...request body...}  -> {"tokens":[...]}
 *   {"op":"message","author":..,"recipient":..,"channel":..,"content_type":..,"content":..,
 *    "end":"<|end|>"}                                                         -> {"tokens":[...]}
 *   {"op":"parse","tokens":[...],"declared":[names],"end":"stop"|"length"}
 *      -> {"reasoning":..,"content":..,"calls":[{"name":..,"arguments":..}],"finish_reason":..}
 *
 * A failure is {"error":"..."}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/harmony_fixture.h"

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static td_slice text(const cJSON *o, const char *key)
{
    return td_slice_of(cJSON_GetStringValue(get(o, key)));
}

static void put_string(td_buf *out, const char *key, const td_buf *b)
{
    td_buf_fmt(out, "\"%s\":\"", key);
    td_buf_json(out, b->ptr, b->len);
    td_buf_str(out, "\"");
}

static void put_tokens(td_buf *out, const td_tokens *ids)
{
    td_buf_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < ids->len; i++)
        td_buf_fmt(out, i ? ",%d" : "%d", ids->ptr[i]);
    td_buf_str(out, "]}");
}

static td_status render(const tokenizer *tok, const cJSON *line, td_tokens *ids, td_error *err)
{
    harmony_options options = {.keep_analysis = cJSON_IsTrue(get(line, "keep_analysis"))};
    harmony *h = NULL;
    td_status st = harmony_open(tok, &options, &h, err);
    chat c;

    if (st != TD_OK)
        return st;
    fixture_chat(&c, line);
    if (cJSON_IsTrue(get(line, "training")))
        st = harmony_render_training(h, &c, ids, err);
    else
        st = harmony_render(h, &c, ids, err);
    chat_free(&c);
    harmony_close(h);
    return st;
}

static td_status message(const harmony *h, const cJSON *line, td_tokens *ids, td_error *err)
{
    const char *end = cJSON_GetStringValue(get(line, "end"));
    harmony_message m = {
        .author = text(line, "author"),
        .recipient = text(line, "recipient"),
        .channel = text(line, "channel"),
        .content_type = text(line, "content_type"),
        .content = text(line, "content"),
        .terminator = end != NULL ? tokenizer_special(harmony_tokenizer(h), end) : -1,
    };

    return harmony_render_message(h, &m, ids, err);
}

static void parse(const harmony *h, const cJSON *line, td_buf *out)
{
    static record r; /* too large for a stack */
    const char *end = cJSON_GetStringValue(get(line, "end"));
    td_tokens ids = {0};
    chat c;

    chat_init(&c);
    for (const cJSON *v = cJSON_GetArrayItem(get(line, "declared"), 0); v != NULL; v = v->next)
        chat_add_tool(&c)->name = chat_str(&c, cJSON_GetStringValue(v));
    for (const cJSON *v = cJSON_GetArrayItem(get(line, "tokens"), 0); v != NULL; v = v->next)
        td_tokens_push(&ids, v->valueint);
    record_run(&r, h, &c, ids.ptr, ids.len,
               end != NULL && strcmp(end, "length") == 0 ? HARMONY_END_LENGTH : HARMONY_END_STOP);
    td_buf_byte(out, '{');
    put_string(out, "reasoning", &r.reasoning);
    td_buf_byte(out, ',');
    put_string(out, "content", &r.content);
    td_buf_str(out, ",\"calls\":[");
    for (size_t i = 0; i < r.n_calls; i++) {
        td_buf_str(out, i ? ",{" : "{");
        put_string(out, "name", &r.calls[i].name);
        td_buf_byte(out, ',');
        put_string(out, "arguments", &r.calls[i].arguments);
        td_buf_byte(out, '}');
    }
    td_buf_fmt(out, "],\"finish_reason\":\"%s\"}", r.finish_reason);
    record_fini(&r);
    td_tokens_free(&ids);
    chat_free(&c);
}

static void answer(const harmony *h, const cJSON *line, td_buf *out)
{
    const char *op = cJSON_GetStringValue(get(line, "op"));
    td_tokens ids = {0};
    td_error err = {0};
    td_status st;

    td_buf_clear(out);
    if (op != NULL && strcmp(op, "parse") == 0) {
        parse(h, line, out);
        return;
    }
    if (op != NULL && strcmp(op, "message") == 0)
        st = message(h, line, &ids, &err);
    else
        st = render(harmony_tokenizer(h), line, &ids, &err);
    if (st == TD_OK) {
        put_tokens(out, &ids);
    } else {
        td_buf_str(out, "{\"error\":\"");
        td_buf_json(out, err.text, strlen(err.text));
        td_buf_str(out, "\"}");
    }
    td_tokens_free(&ids);
}

int main(int argc, char **argv)
{
    tokenizer *tok = NULL;
    harmony *h = NULL;
    td_error err;
    char *line = NULL;
    size_t cap = 0;
    td_buf out = {0};

    if (argc != 2) {
        fprintf(stderr, "usage: harmony_driver VOCABULARY\n");
        return 2;
    }
    if (tokenizer_open(argv[1], &tok, &err) != TD_OK ||
        harmony_open(tok, NULL, &h, &err) != TD_OK) {
        fprintf(stderr, "harmony_driver: %s\n", err.text);
        return 2;
    }
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        cJSON *root = fixture_json(line, (size_t)n);

        if (root != NULL)
            answer(h, root, &out);
        printf("%s\n", root != NULL ? out.ptr : "{\"error\":\"no JSON\"}");
        fflush(stdout);
        cJSON_Delete(root);
    }
    free(line);
    td_buf_free(&out);
    harmony_close(h);
    tokenizer_close(tok);
    return 0;
}
