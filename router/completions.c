/* One answer owns its HTTP request from the submit on: it ends it exactly once and frees itself.
 * If the client goes first, it cancels the generation. Chat answers are chat_answer.c's; the two
 * differ in nearly all that they write, so that they share pieces of JSON and no state. */
#include "router/completions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "router/chat_answer.h"
#include "router/completion_body.h"

typedef struct completion {
    router *r;
    td_http_request *req;
    request *q;
    bool stream, include_usage, begun;
    bool broken; /* memory ran out in mid stream: it ends visibly cut */
    td_timer *ping;
    char id[40];
    char label[132];
    int64_t created_s;
    td_buf out;  /* one event, or the whole answer */
    td_buf text; /* of a whole answer */
} completion;

static void free_completion(completion *a)
{
    td_timer_free(a->ping);
    td_buf_free(&a->out);
    td_buf_free(&a->text);
    free(a);
}

static void on_close(td_http_request *req, void *arg)
{
    completion *a = arg;

    (void)req;
    request_cancel(a->q, "client_closed");
    free_completion(a);
}

/* ---- pieces of JSON ---- */

/* Up to and with `"choices":[`: events and whole answers begin alike. */
static void add_head(completion *a)
{
    const char *model = router_model(a->r);

    td_buf_fmt(&a->out,
               "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":\"", a->id,
               (long long)a->created_s);
    td_buf_json(&a->out, model, strlen(model));
    td_buf_str(&a->out, "\",\"choices\":[");
}

/* reason NULL: not yet. */
static void add_choice(completion *a, td_slice text, const char *reason)
{
    td_buf_str(&a->out, "{\"index\":0,\"text\":\"");
    td_buf_json(&a->out, text.ptr, text.len);
    td_buf_str(&a->out, "\",\"logprobs\":null,\"finish_reason\":");
    if (reason != NULL)
        td_buf_fmt(&a->out, "\"%s\"}]", reason);
    else
        td_buf_str(&a->out, "null}]");
}

static void add_usage(completion *a, const request_usage *u)
{
    td_buf_str(&a->out, ",\"usage\":");
    chat_answer_usage(&a->out, u);
    td_buf_str(&a->out, ",\"tandem\":");
    chat_answer_timings(&a->out, request_times_of(a->q));
}

static void add_event(completion *a, td_slice text, const char *reason)
{
    td_buf_str(&a->out, "data: ");
    add_head(a);
    add_choice(a, text, reason);
    td_buf_str(&a->out, a->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void send(completion *a)
{
    if (a->out.oom)
        a->broken = true; /* nothing more goes out: a hole would not be seen */
    if (!a->broken) {
        td_http_stream_write(a->req, a->out.ptr, a->out.len);
        td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
    }
    td_buf_clear(&a->out);
}

/* ---- the answer's callbacks ---- */

static void on_ping(void *arg)
{
    completion *a = arg;

    td_http_stream_write(a->req, ": ping\n\n", 8);
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

static void on_start(void *user, request *q)
{
    completion *a = user;

    (void)q;
    if (!a->stream)
        return;
    a->begun = true;
    td_http_stream_begin(a->req, 200, "text/event-stream; charset=utf-8",
                         TD_HEADERS({"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}));
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

static void on_content(void *user, td_slice text)
{
    completion *a = user;

    if (!a->stream) {
        td_buf_add(&a->text, text.ptr, text.len);
        return;
    }
    add_event(a, text, NULL);
    send(a);
}

/* Close the connection so that the client sees that its answer was cut. */
static void cut(completion *a)
{
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_abort(a->req);
    free_completion(a);
}

static void on_flush(void *user)
{
    completion *a = user;

    if (a->begun && chat_answer_give_up(a->r, a->req, a->q, a->label, a->broken))
        cut(a);
}

static void finish_stream(completion *a, const char *reason, const request_usage *u)
{
    add_event(a, TD_SLICE(""), reason);
    if (a->include_usage) {
        td_buf_str(&a->out, "data: ");
        add_head(a);
        td_buf_byte(&a->out, ']');
        add_usage(a, u);
        td_buf_str(&a->out, "}\n\n");
    }
    td_buf_str(&a->out, "data: [DONE]\n\n");
    send(a);
    if (a->broken) {
        cut(a);
        return;
    }
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_stream_end(a->req);
    free_completion(a);
}

static void finish_whole(completion *a, const char *reason, const request_usage *u)
{
    td_buf *b = &a->out;

    add_head(a);
    add_choice(a, (td_slice){a->text.ptr, a->text.len}, reason);
    add_usage(a, u);
    td_buf_byte(b, '}');
    td_http_request_on_close(a->req, NULL, NULL);
    if (b->oom || a->text.oom)
        td_http_error(a->req, 503, "server_error", "no memory for the answer", NULL, NULL, NULL);
    else
        td_http_reply(a->req, 200, "application/json", b->ptr, b->len, NULL);
    free_completion(a);
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    completion *a = user;

    if (a->stream)
        finish_stream(a, reason, u);
    else
        finish_whole(a, reason, u);
}

static void on_error(void *user, const td_error *err, uint32_t retry_s)
{
    completion *a = user;

    td_http_request_on_close(a->req, NULL, NULL);
    if (a->begun) {
        /* The status is long gone: the error is an event, and [DONE] does not follow. */
        td_buf_clear(&a->out);
        chat_answer_error_event(&a->out, err);
        td_http_stream_write(a->req, a->out.ptr, a->out.len);
        td_http_stream_cut(a->req);
    } else {
        chat_answer_error(a->req, err, retry_s);
    }
    free_completion(a);
}

/* A raw generation has content only. */
static const answer callbacks = {.on_start = on_start,
                                 .on_content = on_content,
                                 .on_flush = on_flush,
                                 .on_finish = on_finish,
                                 .on_error = on_error};

/* *g is moved. */
static void submit(router *r, td_http_request *req, generation *g)
{
    completion *a = calloc(1, sizeof *a);
    td_error err = {0};
    uint32_t retry_s = 0;

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
    a->stream = g->stream;
    a->include_usage = g->include_usage;
    snprintf(a->label, sizeof a->label, "%s", td_http_request_id(req));
    if (request_submit(r, g, a->label, &callbacks, a, &a->q, &retry_s, &err) != TD_OK) {
        chat_answer_error(req, &err, retry_s);
        free_completion(a);
        return;
    }
    snprintf(a->id, sizeof a->id, "cmpl-%016llx", (unsigned long long)request_id(a->q));
    a->created_s = request_created_s(a->q);
    td_http_request_on_close(req, on_close, a);
}

void completions_start(router *r, td_http_request *req)
{
    td_slice body = td_http_request_body(req);
    openai_defaults d = {.date = "",
                         .allow_ignore_eos = r->cfg->allow_ignore_eos,
                         .vocab = tokenizer_vocab(r->tokenizer)};
    generation g;
    td_error err = {0};
    td_status st = completion_parse(body.ptr, body.len, &d, r->tokenizer, &g, &err);

    if (st == TD_OK)
        st = generation_check_model(g.model, router_model(r), &err);
    if (st == TD_OK) {
        submit(r, req, &g);
        return;
    }
    chat_answer_error(req, &err, 0);
    generation_free(&g);
}
