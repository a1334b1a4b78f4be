#include "router/chat_answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "router/tokenizer.h"
#include "router/utf8_stream.h"

typedef struct chat_answer {
    router *r;
    td_http_request *req;
    request *q;
    bool stream, include_usage, logprobs, begun;
    bool broken; /* memory ran out in mid stream: it ends visibly cut */
    td_timer *ping;
    char id[40];
    char label[132];
    int64_t created_s;

    /* Whole answers are collected here. Streams use `out` for one event at a time. */
    td_buf out, reasoning, content, calls;
    size_t n_calls;
    td_buf tokens; /* elements of logprobs.content: of the whole answer, or of the next chunk */
} chat_answer;

/* ---- errors ---- */

static const char *error_type(td_status s)
{
    switch (s) {
    case TD_INVALID:
    case TD_TOOLARGE: return "invalid_request_error";
    case TD_NOTFOUND: return "invalid_request_error";
    case TD_BUSY: return "rate_limit_error";
    case TD_UNAVAILABLE: return "service_unavailable_error";
    default: return "server_error";
    }
}

static const char *error_code(const td_error *err)
{
    td_status s = err->code;

    return strstr(err->text, "context window") != NULL && s == TD_INVALID
               ? "context_length_exceeded"
           : s == TD_NOTFOUND    ? "model_not_found"
           : s == TD_BUSY        ? "rate_limit_exceeded"
           : s == TD_UNAVAILABLE ? "service_unavailable"
                                 : NULL;
}

void chat_answer_error(td_http_request *req, const td_error *err, uint32_t retry_s)
{
    char seconds[16];
    td_http_header retry[] = {{"Retry-After", seconds}, {NULL, NULL}};

    snprintf(seconds, sizeof seconds, "%u", retry_s);
    td_http_error(req, td_status_http(err->code), error_type(err->code), err->text,
                  err->param[0] ? err->param : NULL, error_code(err), retry_s > 0 ? retry : NULL);
}

void chat_answer_error_event(td_buf *b, const td_error *err)
{
    td_buf_str(b, "data: ");
    td_http_error_json(b, error_type(err->code), err->text, err->param[0] ? err->param : NULL,
                       error_code(err));
    td_buf_str(b, "\n\n");
}

/* ---- the end ---- */

static void free_answer(chat_answer *a)
{
    td_timer_free(a->ping);
    td_buf_free(&a->out);
    td_buf_free(&a->reasoning);
    td_buf_free(&a->content);
    td_buf_free(&a->calls);
    td_buf_free(&a->tokens);
    free(a);
}

static void on_close(td_http_request *req, void *arg)
{
    chat_answer *a = arg;

    (void)req;
    if (a->q != NULL)
        request_cancel(a->q, "client_closed");
    free_answer(a);
}

/* ---- pieces of JSON ---- */

void chat_answer_usage(td_buf *b, const request_usage *u)
{
    td_buf_fmt(b,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
               u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens,
               u->cached_tokens, u->reasoning_tokens);
}

void chat_answer_timings(td_buf *b, const request_times *t)
{
    td_buf_fmt(b,
               "{\"ttft_ms\":%.3f,\"e2e_ms\":%.3f,\"prefill_queue_ms\":%.3f,\"prefill_ms\":%.3f,"
               "\"kv_tail_ms\":%.3f,\"kv_bytes\":%llu,\"kv_puts\":%u,\"kv_transport\":\"",
               (double)(t->first_token - t->submitted) / 1e3,
               (double)(t->last_token - t->submitted) / 1e3, (double)t->prefill_queue_us / 1e3,
               (double)t->prefill_compute_us / 1e3, (double)t->push_tail_us / 1e3,
               (unsigned long long)t->kv_bytes, t->kv_puts);
    td_buf_json(b, t->kv_transport, strlen(t->kv_transport));
    td_buf_fmt(b, "\",\"retries\":%u}", t->retries);
}

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

/* A log-probability as JSON can have it: what cannot be is very unlikely. */
static void add_logprob(td_buf *b, float v)
{
    td_buf_fmt(b, "%.9g", isfinite(v) ? (double)v : -9999.0);
}

/* `"token":..,"logprob":..,"bytes":[..]`; a token may be a part of a character, which `token` shows
 * as U+FFFD. */
static void add_token(td_buf *b, const router *r, int32_t id, float logprob)
{
    td_buf text = {0};
    utf8_stream u = {0};
    td_slice bytes = {"", 0};

    tokenizer_bytes(r->tokenizer, id, &bytes); /* none for an id that is only in the model */
    utf8_stream_push(&u, bytes, &text);
    utf8_stream_end(&u, &text);
    td_buf_str(b, "\"token\":");
    add_string(b, (td_slice){text.ptr, text.len});
    td_buf_str(b, ",\"logprob\":");
    add_logprob(b, logprob);
    td_buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++)
        td_buf_fmt(b, "%s%u", i > 0 ? "," : "", (unsigned)(unsigned char)bytes.ptr[i]);
    td_buf_byte(b, ']');
    b->oom = b->oom || text.oom;
    td_buf_free(&text);
}

void chat_answer_logprobs(td_buf *b, const router *r, const token_logprobs *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const td_logprobs *l = &list[i].logprobs;

        td_buf_str(b, b->len > 0 ? ",{" : "{");
        add_token(b, r, list[i].token, l->chosen);
        td_buf_str(b, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < l->n; k++) {
            td_buf_str(b, k > 0 ? ",{" : "{");
            add_token(b, r, l->id[k], l->logprob[k]);
            td_buf_byte(b, '}');
        }
        td_buf_str(b, "]}");
    }
}

static void on_logprobs(void *user, const token_logprobs *list, size_t n)
{
    chat_answer *a = user;

    chat_answer_logprobs(&a->tokens, a->r, list, n);
}

/* `,"logprobs":..` with what has come; null where there is none in a chunk, or none was wanted. */
static void add_logprobs(chat_answer *a)
{
    td_buf_str(&a->out, ",\"logprobs\":");
    if (!a->logprobs || (a->stream && a->tokens.len == 0)) {
        td_buf_str(&a->out, "null");
        return;
    }
    td_buf_str(&a->out, "{\"content\":[");
    td_buf_add(&a->out, a->tokens.ptr, a->tokens.len);
    td_buf_str(&a->out, "],\"refusal\":null}");
    a->out.oom = a->out.oom || a->tokens.oom;
    td_buf_clear(&a->tokens);
}

/* One chunk whose delta has been put into a->out after chunk_head() and `{"index":0,"delta":{`. */
static void chunk_tail(chat_answer *a)
{
    td_buf_byte(&a->out, '}');
    add_logprobs(a);
    td_buf_str(&a->out, ",\"finish_reason\":null}]");
    if (a->include_usage)
        td_buf_str(&a->out, ",\"usage\":null");
    td_buf_str(&a->out, "}\n\n");
    send(a);
}

static void delta_begin(chat_answer *a)
{
    chunk_head(a);
    td_buf_str(&a->out, "{\"index\":0,\"delta\":{");
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
    chat_answer *a = user;

    (void)q;
    if (!a->stream)
        return;
    a->begun = true;
    td_http_stream_begin(a->req, 200, "text/event-stream; charset=utf-8",
                         TD_HEADERS({"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}));
    delta_begin(a);
    td_buf_str(&a->out, "\"role\":\"assistant\",\"content\":\"\"");
    chunk_tail(a);
}

static void on_reasoning(void *user, td_slice text)
{
    chat_answer *a = user;

    if (!a->stream) {
        td_buf_add(&a->reasoning, text.ptr, text.len);
        return;
    }
    /* Two names are in use among clients for one thing; each reads its own. */
    delta_begin(a);
    td_buf_str(&a->out, "\"reasoning\":");
    add_string(&a->out, text);
    td_buf_str(&a->out, ",\"reasoning_content\":");
    add_string(&a->out, text);
    chunk_tail(a);
}

static void on_content(void *user, td_slice text)
{
    chat_answer *a = user;

    if (!a->stream) {
        td_buf_add(&a->content, text.ptr, text.len);
        return;
    }
    delta_begin(a);
    td_buf_str(&a->out, "\"content\":");
    add_string(&a->out, text);
    chunk_tail(a);
}

static void on_call_begin(void *user, size_t index, const char *id, td_slice name)
{
    chat_answer *a = user;
    td_buf *b = a->stream ? &a->out : &a->calls;

    if (a->stream) {
        delta_begin(a);
        td_buf_fmt(b, "\"tool_calls\":[{\"index\":%zu,", index);
    } else {
        td_buf_str(b, a->n_calls > 0 ? "\"}},{" : "{"); /* closes the call before */
    }
    a->n_calls++;
    td_buf_fmt(b, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
    add_string(b, name);
    td_buf_str(b, ",\"arguments\":\"");
    if (a->stream) {
        td_buf_str(b, "\"}}]");
        chunk_tail(a);
    }
}

static void on_call_args(void *user, size_t index, td_slice text)
{
    chat_answer *a = user;

    if (!a->stream) {
        td_buf_json(&a->calls, text.ptr, text.len);
        return;
    }
    delta_begin(a);
    td_buf_fmt(&a->out, "\"tool_calls\":[{\"index\":%zu,\"function\":{\"arguments\":", index);
    add_string(&a->out, text);
    td_buf_str(&a->out, "}}]");
    chunk_tail(a);
}

bool chat_answer_give_up(const router *r, td_http_request *req, request *q, const char *label,
                         bool broken)
{
    size_t pending = td_http_stream_pending(req);
    const char *why = broken ? "no_memory" : "slow_client";

    if (!broken && pending <= r->cfg->slow_client_bytes)
        return false;
    td_warn("answer_cut", "client_id=\"%s\" why=%s pending_bytes=%zu", label, why, pending);
    request_cancel(q, why);
    return true;
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
    chat_answer *a = user;

    if (a->begun && chat_answer_give_up(a->r, a->req, a->q, a->label, a->broken))
        cut(a);
}

static void finish_stream(chat_answer *a, const char *reason, const request_usage *u)
{
    delta_begin(a);
    td_buf_byte(&a->out, '}');
    add_logprobs(a);
    td_buf_fmt(&a->out, ",\"finish_reason\":\"%s\"}]%s}\n\n", reason,
               a->include_usage ? ",\"usage\":null" : "");
    if (a->include_usage) {
        td_buf last = {0};

        td_buf_add(&last, a->out.ptr, a->out.len);
        chunk_head(a);
        td_buf_str(&a->out, "],\"usage\":");
        chat_answer_usage(&a->out, u);
        td_buf_str(&a->out, ",\"tandem\":");
        chat_answer_timings(&a->out, request_times_of(a->q));
        td_buf_str(&a->out, "}\n\n");
        td_buf_add(&last, a->out.ptr, a->out.len);
        last.oom = last.oom || a->out.oom;
        td_buf_free(&a->out);
        a->out = last;
    }
    td_buf_str(&a->out, "data: [DONE]\n\n");
    a->q = NULL;
    send(a);
    if (a->broken) {
        cut(a);
        return;
    }
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_stream_end(a->req);
    free_answer(a);
}

static void finish_whole(chat_answer *a, const char *reason, const request_usage *u)
{
    const char *model = router_model(a->r);
    td_buf *b = &a->out;
    bool oom;

    td_buf_fmt(b, "{\"id\":\"%s\",\"object\":\"chat.completion\",\"created\":%lld,\"model\":\"",
               a->id, (long long)a->created_s);
    td_buf_json(b, model, strlen(model));
    td_buf_str(b, "\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    if (a->content.len == 0 && a->n_calls > 0)
        td_buf_str(b, "null");
    else
        add_string(b, (td_slice){a->content.ptr, a->content.len});
    td_buf_str(b, ",\"refusal\":null");
    if (a->reasoning.len > 0) {
        td_buf_str(b, ",\"reasoning\":");
        add_string(b, (td_slice){a->reasoning.ptr, a->reasoning.len});
        td_buf_str(b, ",\"reasoning_content\":");
        add_string(b, (td_slice){a->reasoning.ptr, a->reasoning.len});
    }
    if (a->n_calls > 0) {
        td_buf_str(b, ",\"tool_calls\":[");
        td_buf_add(b, a->calls.ptr, a->calls.len);
        td_buf_str(b, "\"}}]");
    }
    td_buf_byte(b, '}');
    add_logprobs(a);
    td_buf_fmt(b, ",\"finish_reason\":\"%s\"}],\"usage\":", reason);
    chat_answer_usage(b, u);
    td_buf_str(b, ",\"tandem\":");
    chat_answer_timings(b, request_times_of(a->q));
    td_buf_byte(b, '}');
    oom = b->oom || a->content.oom || a->reasoning.oom || a->calls.oom;
    a->q = NULL;
    td_http_request_on_close(a->req, NULL, NULL);
    if (oom)
        td_http_error(a->req, 503, "server_error", "no memory for the answer", NULL, NULL, NULL);
    else
        td_http_reply(a->req, 200, "application/json", b->ptr, b->len, NULL);
    free_answer(a);
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    chat_answer *a = user;

    if (a->stream)
        finish_stream(a, reason, u);
    else
        finish_whole(a, reason, u);
}

static void on_error(void *user, const td_error *err, uint32_t retry_s)
{
    chat_answer *a = user;

    a->q = NULL;
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
    chat_answer *a = calloc(1, sizeof *a);
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
    a->logprobs = g->logprobs;
    snprintf(a->label, sizeof a->label, "%s", td_http_request_id(req));
    if (request_submit(r, g, a->label, &callbacks, a, &a->q, &retry_s, &err) != TD_OK) {
        chat_answer_error(req, &err, retry_s);
        free_answer(a);
        return;
    }
    snprintf(a->id, sizeof a->id, "chatcmpl-%016llx", (unsigned long long)request_id(a->q));
    a->created_s = request_created_s(a->q);
    td_http_request_on_close(req, on_close, a);
}
