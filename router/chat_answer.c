#include "router/chat_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

typedef struct chat_answer chat_answer;

/* One of the answers to the question. Whole ones are collected here. */
typedef struct choice {
    chat_answer *a;
    uint32_t index;
    request *q;         /* NULL: it has ended */
    const char *reason; /* of its end; a literal */
    td_buf reasoning, content, calls;
    size_t n_calls;
    td_buf tokens; /* elements of logprobs.content: of the whole answer, or of the next chunk */
} choice;

struct chat_answer {
    router *r;
    td_http_request *req;
    bool stream, include_usage, logprobs, begun;
    bool broken; /* memory ran out in mid stream: it ends visibly cut */
    td_timer *ping;
    char id[40];
    char label[132];
    int64_t created_s;
    td_buf out; /* one event of a stream, or the whole answer */
    answer_sum sum;
    uint32_t n, n_ended;
    choice choices[]; /* [n] */
};

/* ---- the end ---- */

static void free_answer(chat_answer *a)
{
    td_timer_free(a->ping);
    td_buf_free(&a->out);
    for (uint32_t i = 0; i < a->n; i++) {
        td_buf_free(&a->choices[i].reasoning);
        td_buf_free(&a->choices[i].content);
        td_buf_free(&a->choices[i].calls);
        td_buf_free(&a->choices[i].tokens);
    }
    free(a);
}

static void on_close(td_http_request *req, void *arg)
{
    chat_answer *a = arg;

    (void)req;
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->choices[i].q != NULL) { /* and with it the others */
            request_cancel(a->choices[i].q, "client_closed");
            break;
        }
    }
    free_answer(a);
}

/* ---- pieces of JSON ---- */

static void add_string(td_buf *b, td_slice text)
{
    td_buf_byte(b, '"');
    td_buf_json(b, text.ptr, text.len);
    td_buf_byte(b, '"');
}

/* `data: {...,"choices":[` of a chunk. */
static void chunk_head(chat_answer *a)
{
    const char *model = router_model(a->r);

    td_buf_clear(&a->out);
    td_buf_fmt(
        &a->out,
        "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":%lld,\"model\":\"",
        a->id, (long long)a->created_s);
    td_buf_json(&a->out, model, strlen(model));
    td_buf_str(&a->out, "\",\"choices\":[");
}

static void send(chat_answer *a)
{
    if (a->out.oom)
        a->broken = true; /* nothing more goes out: a hole would not be seen */
    if (a->broken)
        return;
    td_http_stream_write(a->req, a->out.ptr, a->out.len);
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

static void on_logprobs(void *user, const token_logprobs *list, size_t n)
{
    choice *c = user;

    chat_answer_logprobs(&c->tokens, c->a->r, list, n);
}

/* `,"logprobs":..` with what has come; null where there is none in a chunk, or none was wanted. */
static void add_logprobs(choice *c)
{
    td_buf *b = &c->a->out;

    td_buf_str(b, ",\"logprobs\":");
    if (!c->a->logprobs || (c->a->stream && c->tokens.len == 0)) {
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
    chunk_head(c->a);
    td_buf_fmt(&c->a->out, "{\"index\":%u,\"delta\":{", c->index);
}

/* The rest of a chunk after its delta; reason NULL: not yet. */
static void delta_end(choice *c, const char *reason)
{
    td_buf *b = &c->a->out;

    td_buf_byte(b, '}');
    add_logprobs(c);
    if (reason != NULL)
        td_buf_fmt(b, ",\"finish_reason\":\"%s\"}]", reason);
    else
        td_buf_str(b, ",\"finish_reason\":null}]");
    td_buf_str(b, c->a->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    send(c->a);
}

/* ---- the answer's callbacks ---- */

static void on_ping(void *arg)
{
    chat_answer *a = arg;

    td_http_stream_write(a->req, ": ping\n\n", 8);
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

static void on_start(void *user, request *q)
{
    choice *c = user;
    chat_answer *a = c->a;

    (void)q;
    if (!a->stream)
        return;
    if (!a->begun)
        td_http_stream_begin(
            a->req, 200, "text/event-stream; charset=utf-8",
            TD_HEADERS({"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}));
    a->begun = true;
    delta_begin(c);
    td_buf_str(&a->out, "\"role\":\"assistant\",\"content\":\"\"");
    delta_end(c, NULL);
}

static void on_reasoning(void *user, td_slice text)
{
    choice *c = user;
    td_buf *b = &c->a->out;

    if (!c->a->stream) {
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

    if (!c->a->stream) {
        td_buf_add(&c->content, text.ptr, text.len);
        return;
    }
    delta_begin(c);
    td_buf_str(&c->a->out, "\"content\":");
    add_string(&c->a->out, text);
    delta_end(c, NULL);
}

static void on_call_begin(void *user, size_t index, const char *id, td_slice name)
{
    choice *c = user;
    bool stream = c->a->stream;
    td_buf *b = stream ? &c->a->out : &c->calls;

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
    td_buf *b = &c->a->out;

    if (!c->a->stream) {
        td_buf_json(&c->calls, text.ptr, text.len);
        return;
    }
    delta_begin(c);
    td_buf_fmt(b, "\"tool_calls\":[{\"index\":%zu,\"function\":{\"arguments\":", index);
    add_string(b, text);
    td_buf_str(b, "}}]");
    delta_end(c, NULL);
}

/* Close the connection so that the client sees that its answer was cut. */
static void cut(chat_answer *a)
{
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_abort(a->req);
    free_answer(a);
}

static void on_flush(void *user)
{
    choice *c = user;
    chat_answer *a = c->a;

    if (a->begun && chat_answer_give_up(a->r, a->req, c->q, a->label, a->broken))
        cut(a);
}

/* All choices have ended. */
static void finish_stream(chat_answer *a)
{
    if (a->include_usage) {
        chunk_head(a);
        td_buf_str(&a->out, "],\"usage\":");
        chat_answer_usage(&a->out, &a->sum.usage);
        td_buf_str(&a->out, ",\"tandem\":");
        chat_answer_timings(&a->out, &a->sum.times);
        td_buf_str(&a->out, "}\n\n");
        send(a);
    }
    td_buf_clear(&a->out);
    td_buf_str(&a->out, "data: [DONE]\n\n");
    send(a);
    if (a->broken) {
        cut(a);
        return;
    }
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_stream_end(a->req);
    free_answer(a);
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

static void finish_whole(chat_answer *a)
{
    const char *model = router_model(a->r);
    td_buf *b = &a->out;

    td_buf_fmt(b, "{\"id\":\"%s\",\"object\":\"chat.completion\",\"created\":%lld,\"model\":\"",
               a->id, (long long)a->created_s);
    td_buf_json(b, model, strlen(model));
    td_buf_str(b, "\",\"choices\":[");
    for (uint32_t i = 0; i < a->n; i++) {
        if (i > 0)
            td_buf_byte(b, ',');
        add_choice(b, &a->choices[i]);
    }
    td_buf_str(b, "],\"usage\":");
    chat_answer_usage(b, &a->sum.usage);
    td_buf_str(b, ",\"tandem\":");
    chat_answer_timings(b, &a->sum.times);
    td_buf_byte(b, '}');
    td_http_request_on_close(a->req, NULL, NULL);
    if (b->oom)
        td_http_error(a->req, 503, "server_error", "no memory for the answer", NULL, NULL, NULL);
    else
        td_http_reply(a->req, 200, "application/json", b->ptr, b->len, NULL);
    free_answer(a);
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    choice *c = user;
    chat_answer *a = c->a;

    chat_answer_sum(&a->sum, u, request_times_of(c->q));
    if (a->stream) {
        delta_begin(c);
        delta_end(c, reason);
    }
    c->reason = reason;
    c->q = NULL;
    if (++a->n_ended < a->n)
        return;
    if (a->stream)
        finish_stream(a);
    else
        finish_whole(a);
}

/* Of one choice, and so of all. */
static void on_error(void *user, const td_error *err, uint32_t retry_s)
{
    chat_answer *a = ((choice *)user)->a;

    chat_answer_fail(a->req, &a->out, a->begun, err, retry_s);
    free_answer(a);
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
    uint32_t n = g->n, retry_s = 0;
    chat_answer *a = calloc(1, sizeof *a + n * sizeof *a->choices);
    void *users[GENERATION_MAX_CHOICES];
    request *out[GENERATION_MAX_CHOICES];
    td_error err = {0};

    if (a != NULL)
        a->ping = td_timer_create(r->loop, on_ping, a);
    if (a == NULL || a->ping == NULL) {
        free(a);
        generation_free(g);
        td_fail(&err, TD_NOMEM, "no memory for the request");
        chat_answer_error(req, &err, 1);
        return;
    }
    a->r = r;
    a->req = req;
    a->n = n;
    a->stream = g->stream;
    a->include_usage = g->include_usage;
    a->logprobs = g->logprobs;
    snprintf(a->label, sizeof a->label, "%s", td_http_request_id(req));
    for (uint32_t i = 0; i < n; i++) {
        a->choices[i].a = a;
        a->choices[i].index = i;
        users[i] = &a->choices[i];
    }
    if (request_submit_choices(r, g, a->label, &callbacks, users, out, &retry_s, &err) != TD_OK) {
        chat_answer_error(req, &err, retry_s);
        free_answer(a);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        a->choices[i].q = out[i];
    snprintf(a->id, sizeof a->id, "chatcmpl-%016llx", (unsigned long long)request_id(out[0]));
    a->created_s = request_created_s(out[0]);
    td_http_request_on_close(req, on_close, a);
}
