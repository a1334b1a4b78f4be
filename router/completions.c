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
#include "router/completion_logprobs.h"

typedef struct completion completion;

/* One of the answers to the prompt. */
typedef struct choice {
    completion *a;
    uint32_t index;
    request *q;         /* NULL: it has ended */
    const char *reason; /* of its end; a literal */
    td_buf text;        /* of a whole answer */
    completion_logprobs logprobs;
} choice;

struct completion {
    router *r;
    td_http_request *req;
    bool stream, include_usage, begun;
    bool broken; /* memory ran out in mid stream: it ends visibly cut */
    td_timer *ping;
    char id[40];
    char label[132];
    int64_t created_s;
    td_buf out; /* one event, or the whole answer */
    answer_sum sum;
    uint32_t n, n_ended;
    choice choices[]; /* [n] */
};

static void free_completion(completion *a)
{
    td_timer_free(a->ping);
    td_buf_free(&a->out);
    for (uint32_t i = 0; i < a->n; i++) {
        td_buf_free(&a->choices[i].text);
        completion_logprobs_free(&a->choices[i].logprobs);
    }
    free(a);
}

static void on_close(td_http_request *req, void *arg)
{
    completion *a = arg;

    (void)req;
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->choices[i].q != NULL) { /* and with it the others */
            request_cancel(a->choices[i].q, "client_closed");
            break;
        }
    }
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
static void add_choice(choice *c, td_slice text, const char *reason)
{
    td_buf *b = &c->a->out;

    td_buf_fmt(b, "{\"index\":%u,\"text\":\"", c->index);
    td_buf_json(b, text.ptr, text.len);
    td_buf_str(b, "\",\"logprobs\":");
    completion_logprobs_write(&c->logprobs, b);
    if (reason != NULL)
        td_buf_fmt(b, ",\"finish_reason\":\"%s\"}", reason);
    else
        td_buf_str(b, ",\"finish_reason\":null}");
}

static void add_usage(completion *a)
{
    td_buf_str(&a->out, ",\"usage\":");
    chat_answer_usage(&a->out, &a->sum.usage);
    td_buf_str(&a->out, ",\"tandem\":");
    chat_answer_timings(&a->out, &a->sum.times);
}

static void add_event(choice *c, td_slice text, const char *reason)
{
    td_buf *b = &c->a->out;

    td_buf_str(b, "data: ");
    add_head(c->a);
    add_choice(c, text, reason);
    td_buf_str(b, c->a->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
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
    completion *a = ((choice *)user)->a;

    (void)q;
    if (!a->stream || a->begun)
        return;
    a->begun = true;
    td_http_stream_begin(a->req, 200, "text/event-stream; charset=utf-8",
                         TD_HEADERS({"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}));
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

static void on_content(void *user, td_slice text)
{
    choice *c = user;

    completion_logprobs_text(&c->logprobs, text);
    if (!c->a->stream) {
        td_buf_add(&c->text, text.ptr, text.len);
        return;
    }
    add_event(c, text, NULL);
    send(c->a);
}

static void on_logprobs(void *user, const token_logprobs *list, size_t n)
{
    choice *c = user;

    completion_logprobs_push(&c->logprobs, c->a->r->tokenizer, list, n);
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
    choice *c = user;
    completion *a = c->a;

    if (a->begun && chat_answer_give_up(a->r, a->req, c->q, a->label, a->broken))
        cut(a);
}

/* All choices have ended. */
static void finish_stream(completion *a)
{
    if (a->include_usage) {
        td_buf_str(&a->out, "data: ");
        add_head(a);
        td_buf_byte(&a->out, ']');
        add_usage(a);
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

static void finish_whole(completion *a)
{
    td_buf *b = &a->out;

    add_head(a);
    for (uint32_t i = 0; i < a->n; i++) {
        choice *c = &a->choices[i];

        if (i > 0)
            td_buf_byte(b, ',');
        add_choice(c, (td_slice){c->text.ptr, c->text.len}, c->reason);
        b->oom = b->oom || c->text.oom;
    }
    td_buf_byte(b, ']');
    add_usage(a);
    td_buf_byte(b, '}');
    td_http_request_on_close(a->req, NULL, NULL);
    if (b->oom)
        td_http_error(a->req, 503, "server_error", "no memory for the answer", NULL, NULL, NULL);
    else
        td_http_reply(a->req, 200, "application/json", b->ptr, b->len, NULL);
    free_completion(a);
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    choice *c = user;
    completion *a = c->a;

    completion_logprobs_text(&c->logprobs, TD_SLICE(""));
    chat_answer_sum(&a->sum, u, request_times_of(c->q));
    c->reason = reason;
    c->q = NULL;
    if (a->stream) {
        add_event(c, TD_SLICE(""), reason);
        send(a);
    }
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
    completion *a = ((choice *)user)->a;

    chat_answer_fail(a->req, &a->out, a->begun, err, retry_s);
    free_completion(a);
}

/* A raw generation has content only. */
static const answer callbacks = {.on_start = on_start,
                                 .on_content = on_content,
                                 .on_logprobs = on_logprobs,
                                 .on_flush = on_flush,
                                 .on_finish = on_finish,
                                 .on_error = on_error};

/* *g is moved. */
static void submit(router *r, td_http_request *req, generation *g)
{
    uint32_t n = g->n, retry_s = 0;
    completion *a = calloc(1, sizeof *a + n * sizeof *a->choices);
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
    snprintf(a->label, sizeof a->label, "%s", td_http_request_id(req));
    for (uint32_t i = 0; i < n; i++) {
        a->choices[i].a = a;
        a->choices[i].index = i;
        users[i] = &a->choices[i];
    }
    if (request_submit_choices(r, g, a->label, &callbacks, users, out, &retry_s, &err) != TD_OK) {
        chat_answer_error(req, &err, retry_s);
        free_completion(a);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        a->choices[i].q = out[i];
    snprintf(a->id, sizeof a->id, "cmpl-%016llx", (unsigned long long)request_id(out[0]));
    a->created_s = request_created_s(out[0]);
    td_http_request_on_close(req, on_close, a);
}

void completions_start(router *r, td_http_request *req)
{
    td_slice body = td_http_request_body(req);
    char date[16];
    openai_defaults d = router_defaults(r, date);
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
