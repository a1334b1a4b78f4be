/* The renderer and the parser at the end of a pipe, for harmony_oracle.py: a JSON object a line on
 * stdin, one a line on stdout. Usage: harmony_driver VOCABULARY
 *
 *   {"op":"render","keep_analysis":bool,"training":bool, ...request body...}  -> {"tokens":[...]}
 *   {"op":"message","author":..,"recipient":..,"channel":..,"content_type":..,"content":..,
 *    "end":"<|end|>"}                                                         -> {"tokens":[...]}
 *   {"op":"parse","tokens":[...],"declared":[names],"end":"stop"|"length"}
 *      -> {"reasoning":..,"content":..,"calls":[{"name":..,"arguments":..}],"finish_reason":..}
 *   {"op":"trace", as parse}
 *      -> {"events":[[i,kind,text],...],"done":n,"finish_reason":..}: what the token with index i
 *         made the parser send; kind R(easoning), C(ontent), B(egin of a call), A(rguments), or
 * E(nd of a message), whose text is the kind that ended and whether it was complete. An index past
 * the last token is the end; done is how many tokens the parser took
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

/* The answer that a line describes; `ids` and `c` are to be freed. */
static harmony_end answer_of(const cJSON *line, td_tokens *ids, chat *c)
{
    const char *end = cJSON_GetStringValue(get(line, "end"));

    chat_init(c);
    for (const cJSON *v = cJSON_GetArrayItem(get(line, "declared"), 0); v != NULL; v = v->next)
        chat_add_tool(c)->name = chat_str(c, cJSON_GetStringValue(v));
    for (const cJSON *v = cJSON_GetArrayItem(get(line, "tokens"), 0); v != NULL; v = v->next)
        td_tokens_push(ids, v->valueint);
    return end != NULL && strcmp(end, "length") == 0 ? HARMONY_END_LENGTH : HARMONY_END_STOP;
}

static void parse(const harmony *h, const cJSON *line, td_buf *out)
{
    static record r; /* too large for a stack */
    td_tokens ids = {0};
    chat c;
    harmony_end end = answer_of(line, &ids, &c);

    record_run(&r, h, &c, ids.ptr, ids.len, end);
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

/* Events as they come, each with the token that made it. */
typedef struct trace {
    td_buf *out;
    size_t token;
    bool any;
} trace;

static void put_event(trace *t, char kind, td_slice text)
{
    td_buf_fmt(t->out, "%s[%zu,\"%c\",\"", t->any ? "," : "", t->token, kind);
    td_buf_json(t->out, text.ptr, text.len);
    td_buf_str(t->out, "\"]");
    t->any = true;
}

static void trace_text(void *user, harmony_kind kind, td_slice text)
{
    put_event(user, kind == HARMONY_REASONING ? 'R' : 'C', text);
}

static void trace_begin(void *user, size_t index, td_slice name)
{
    (void)index;
    put_event(user, 'B', name);
}

static void trace_args(void *user, size_t index, td_slice text)
{
    (void)index;
    put_event(user, 'A', text);
}

static void trace_end(void *user, harmony_kind kind, size_t index, bool complete)
{
    const char text[2] = {"RCB"[kind], complete ? '1' : '0'};

    (void)index;
    put_event(user, 'E', (td_slice){text, 2});
}

static void run_trace(const harmony *h, const cJSON *line, td_buf *out)
{
    static const harmony_sink sink = {trace_text, trace_begin, trace_args, trace_end};
    harmony_parser *p = NULL;
    td_tokens ids = {0};
    trace t = {.out = out};
    chat c;
    harmony_end end = answer_of(line, &ids, &c);

    td_buf_str(out, "{\"events\":[");
    td_assert(harmony_parser_create(h, &c, &sink, &t, &p, NULL) == TD_OK);
    while (t.token < ids.len && !harmony_parse_push(p, ids.ptr[t.token]))
        t.token++;
    if (t.token < ids.len)
        t.token++; /* the token that ended it was taken */
    harmony_parse_finish(p, end);
    td_buf_fmt(out, "],\"done\":%zu,\"finish_reason\":\"%s\"}", t.token,
               harmony_finish_reason(p, end));
    harmony_parser_free(p);
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
    if (op != NULL && strcmp(op, "trace") == 0) {
        run_trace(h, line, out);
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
