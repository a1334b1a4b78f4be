#include "router/chat_answer.h"

#include <stdlib.h>
#include <string.h>

#include "router/http_answer.h"

typedef struct chat_answer chat_answer;

/* One of the answers to the question. Whole ones are collected here. */
typedef struct choice {
    chat_answer *a;
    uint32_t index;
    const char *reason; /* of its end; a literal */
    td_buf reasoning, content, calls;
    size_t n_calls;
    td_buf tokens; /* elements of logprobs.content: of the whole answer, or of the next chunk */
} choice;

struct chat_answer {
    http_answer h; /* first: it is the HTTP side's owner */
    bool logprobs;
    choice choices[]; /* [h.n] */
};

static void free_answer(http_answer *h)
{
    chat_answer *a = (chat_answer *)h;

    http_answer_fini(h);
    for (uint32_t i = 0; i < h->n; i++) {
        td_buf_free(&a->choices[i].reasoning);
        td_buf_free(&a->choices[i].content);
        td_buf_free(&a->choices[i].calls);
        td_buf_free(&a->choices[i].tokens);
    }
    free(a);
}

/* ---- pieces of JSON ---- */

static void add_string(td_buf *b, td_slice text)
{
    td_buf_byte(b, '"');
    td_buf_json(b, text.ptr, text.len);
    td_buf_byte(b, '"');
}

/* Up to and with `"choices":[`. */
static void add_head(http_answer *h, const char *object)
{
    const char *model = router_model(h->r);

    td_buf_fmt(&h->out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":\"", h->id,
               object, (long long)h->created_s);
    td_buf_json(&h->out, model, strlen(model));
    td_buf_str(&h->out, "\",\"choices\":[");
}

static void chunk_head(http_answer *h)
{
    td_buf_str(&h->out, "data: ");
    add_head(h, "chat.completion.chunk");
}

static void on_logprobs(void *user, const token_logprobs *list, size_t n)
{
    choice *c = user;

    chat_answer_logprobs(&c->tokens, c->a->h.r, list, n);
}

/* `,"logprobs":..` with what has come; null where there is none in a chunk, or none was wanted. */
static void add_logprobs(choice *c)
{
    td_buf *b = &c->a->h.out;

    td_buf_str(b, ",\"logprobs\":");
    if (!c->a->logprobs || (c->a->h.stream && c->tokens.len == 0)) {
        td_buf_str(b, "null");
        return;
    }
    td_buf_str(b, "{\"content\":[");
    td_buf_add(b, c->tokens.ptr, c->tokens.len);
    td_buf_str(b, "],\"refusal\":null}");
    b->oom = b->oom || c->tokens.oom;
    td_buf_clear(&c->tokens);
}

static void delta_begin(choice *c)
{
    chunk_head(&c->a->h);
    td_buf_fmt(&c->a->h.out, "{\"index\":%u,\"delta\":{", c->index);
}

/* The rest of a chunk after its delta; reason NULL: not yet. */
static void delta_end(choice *c, const char *reason)
{
    td_buf *b = &c->a->h.out;

    td_buf_byte(b, '}');
    add_logprobs(c);
    if (reason != NULL)
        td_buf_fmt(b, ",\"finish_reason\":\"%s\"}]", reason);
    else
        td_buf_str(b, ",\"finish_reason\":null}]");
    td_buf_str(b, c->a->h.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    http_answer_send(&c->a->h);
}

/* ---- the answer's callbacks ---- */

static void on_start(void *user, request *q)
{
    choice *c = user;

    (void)q;
    if (!c->a->h.stream)
        return;
    http_answer_begin(&c->a->h);
    delta_begin(c);
    td_buf_str(&c->a->h.out, "\"role\":\"assistant\",\"content\":\"\"");
    delta_end(c, NULL);
}

static void on_reasoning(void *user, td_slice text)
{
    choice *c = user;
    td_buf *b = &c->a->h.out;

    if (!c->a->h.stream) {
        td_buf_add(&c->reasoning, text.ptr, text.len);
        return;
    }
    /* Two names are in use among clients for one thing; each reads its own. */
    delta_begin(c);
    td_buf_str(b, "\"reasoning\":");
    add_string(b, text);
    td_buf_str(b, ",\"reasoning_content\":");
    add_string(b, text);
    delta_end(c, NULL);
}

static void on_content(void *user, td_slice text)
{
    choice *c = user;

    if (!c->a->h.stream) {
        td_buf_add(&c->content, text.ptr, text.len);
        return;
    }
    delta_begin(c);
    td_buf_str(&c->a->h.out, "\"content\":");
    add_string(&c->a->h.out, text);
    delta_end(c, NULL);
}

static void on_call_begin(void *user, size_t index, const char *id, td_slice name)
{
    choice *c = user;
    bool stream = c->a->h.stream;
    td_buf *b = stream ? &c->a->h.out : &c->calls;

    if (stream) {
        delta_begin(c);
        td_buf_fmt(b, "\"tool_calls\":[{\"index\":%zu,", index);
    } else {
        td_buf_str(b, c->n_calls > 0 ? "\"}},{" : "{"); /* closes the call before */
    }
    c->n_calls++;
    td_buf_fmt(b, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
    add_string(b, name);
    td_buf_str(b, ",\"arguments\":\"");
    if (stream) {
        td_buf_str(b, "\"}}]");
        delta_end(c, NULL);
    }
}

static void on_call_args(void *user, size_t index, td_slice text)
{
    choice *c = user;
    td_buf *b = &c->a->h.out;

    if (!c->a->h.stream) {
        td_buf_json(&c->calls, text.ptr, text.len);
        return;
    }
    delta_begin(c);
    td_buf_fmt(b, "\"tool_calls\":[{\"index\":%zu,\"function\":{\"arguments\":", index);
    add_string(b, text);
    td_buf_str(b, "}}]");
    delta_end(c, NULL);
}

static void on_flush(void *user)
{
    choice *c = user;

    http_answer_flush(&c->a->h, c->index);
}

static void add_choice(td_buf *b, choice *c)
{
    td_buf_fmt(b, "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (c->content.len == 0 && c->n_calls > 0)
        td_buf_str(b, "null");
    else
        add_string(b, (td_slice){c->content.ptr, c->content.len});
    td_buf_str(b, ",\"refusal\":null");
    if (c->reasoning.len > 0) {
        td_buf_str(b, ",\"reasoning\":");
        add_string(b, (td_slice){c->reasoning.ptr, c->reasoning.len});
        td_buf_str(b, ",\"reasoning_content\":");
        add_string(b, (td_slice){c->reasoning.ptr, c->reasoning.len});
    }
    if (c->n_calls > 0) {
        td_buf_str(b, ",\"tool_calls\":[");
        td_buf_add(b, c->calls.ptr, c->calls.len);
        td_buf_str(b, "\"}}]");
    }
    td_buf_byte(b, '}');
    add_logprobs(c);
    td_buf_fmt(b, ",\"finish_reason\":\"%s\"}", c->reason);
    b->oom = b->oom || c->content.oom || c->reasoning.oom || c->calls.oom;
}

static void finish_stream(http_answer *h)
{
    if (h->include_usage) {
        chunk_head(h);
        http_answer_add_usage(h);
        td_buf_str(&h->out, "\n\n");
        http_answer_send(h);
    }
    http_answer_end_stream(h);
}

static void finish_whole(chat_answer *a)
{
    td_buf *b = &a->h.out;

    add_head(&a->h, "chat.completion");
    for (uint32_t i = 0; i < a->h.n; i++) {
        if (i > 0)
            td_buf_byte(b, ',');
        add_choice(b, &a->choices[i]);
    }
    http_answer_add_usage(&a->h);
    http_answer_end_whole(&a->h);
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    choice *c = user;
    http_answer *h = &c->a->h;
    bool last = http_answer_choice_ended(h, c->index, u);

    c->reason = reason;
    if (h->stream) {
        delta_begin(c);
        delta_end(c, reason);
    }
    if (last && h->stream)
        finish_stream(h);
    else if (last)
        finish_whole(c->a);
}

/* Of one choice, and so of all. */
static void on_error(void *user, const td_error *err, uint32_t retry_s)
{
    choice *c = user;

    http_answer_fail(&c->a->h, err, retry_s);
}

static const answer callbacks = {.on_start = on_start,
                                 .on_reasoning = on_reasoning,
                                 .on_content = on_content,
                                 .on_logprobs = on_logprobs,
                                 .on_call_begin = on_call_begin,
                                 .on_call_args = on_call_args,
                                 .on_flush = on_flush,
                                 .on_finish = on_finish,
                                 .on_error = on_error};

void chat_answer_start(router *r, td_http_request *req, generation *g)
{
    chat_answer *a = calloc(1, sizeof *a + g->n * sizeof *a->choices);
    void *users[GENERATION_MAX_CHOICES];

    for (uint32_t i = 0; a != NULL && i < g->n; i++) {
        a->choices[i].a = a;
        a->choices[i].index = i;
        users[i] = &a->choices[i];
    }
    if (a != NULL)
        a->logprobs = g->logprobs;
    http_answer_submit(a != NULL ? &a->h : NULL, r, req, g, "chatcmpl-", &callbacks, users,
                       free_answer);
}
