#include "router/http_answer.h"

#include <stdio.h>

void http_answer_fini(http_answer *a)
{
    td_timer_free(a->ping);
    td_buf_free(&a->out);
}

static void on_close(td_http_request *req, void *arg)
{
    http_answer *a = arg;

    (void)req;
    request_cancel_choices(a->q, a->n, "client_closed");
    a->free_owner(a);
}

static void ping_later(http_answer *a)
{
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

static void on_ping(void *arg)
{
    http_answer *a = arg;

    td_http_stream_write(a->req, ": ping\n\n", 8);
    ping_later(a);
}

void http_answer_submit(http_answer *a, router *r, td_http_request *req, generation *g,
                        const char *prefix, const answer *callbacks, void **users,
                        void (*free_owner)(http_answer *a))
{
    td_error err = {0};
    uint32_t retry_s = 1;
    td_status st = TD_OK;

    if (a != NULL) {
        a->r = r;
        a->req = req;
        a->n = g->n;
        a->stream = g->stream;
        a->include_usage = g->include_usage;
        a->free_owner = free_owner;
        snprintf(a->label, sizeof a->label, "%s", td_http_request_id(req));
        a->ping = td_timer_create(r->loop, on_ping, a);
    }
    if (a == NULL || a->ping == NULL) {
        generation_free(g);
        st = td_fail(&err, TD_NOMEM, "no memory for the request");
    }
    if (st == TD_OK)
        st = request_submit_choices(r, g, a->label, callbacks, users, a->q, &retry_s, &err);
    if (st != TD_OK) {
        chat_answer_error(req, &err, retry_s);
        if (a != NULL)
            free_owner(a);
        return;
    }
    snprintf(a->id, sizeof a->id, "%s%016llx", prefix, (unsigned long long)request_id(a->q[0]));
    a->created_s = request_created_s(a->q[0]);
    td_http_request_on_close(req, on_close, a);
}

void http_answer_begin(http_answer *a)
{
    if (a->begun)
        return;
    a->begun = true;
    td_http_stream_begin(a->req, 200, "text/event-stream; charset=utf-8",
                         TD_HEADERS({"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}));
    ping_later(a);
}

void http_answer_send(http_answer *a)
{
    if (a->out.oom)
        a->broken = true; /* nothing more goes out: a hole would not be seen */
    if (!a->broken) {
        td_http_stream_write(a->req, a->out.ptr, a->out.len);
        ping_later(a);
    }
    td_buf_clear(&a->out);
}

void http_answer_add_usage(http_answer *a)
{
    td_buf_str(&a->out, "],\"usage\":");
    chat_answer_usage(&a->out, &a->sum.usage);
    td_buf_str(&a->out, ",\"tandem\":");
    chat_answer_timings(&a->out, &a->sum.times);
    td_buf_byte(&a->out, '}');
}

bool http_answer_choice_ended(http_answer *a, uint32_t choice, const request_usage *u)
{
    chat_answer_sum(&a->sum, u, request_times_of(a->q[choice]));
    a->q[choice] = NULL;
    return ++a->n_ended == a->n;
}

/* Close the connection so that the client sees that its answer was cut. */
static void cut(http_answer *a)
{
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_abort(a->req);
    a->free_owner(a);
}

void http_answer_flush(http_answer *a, uint32_t choice)
{
    if (a->begun && chat_answer_give_up(a->r, a->req, a->q[choice], a->label, a->broken))
        cut(a);
}

void http_answer_end_stream(http_answer *a)
{
    td_buf_str(&a->out, "data: [DONE]\n\n");
    http_answer_send(a);
    if (a->broken) {
        cut(a);
        return;
    }
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_stream_end(a->req);
    a->free_owner(a);
}

void http_answer_end_whole(http_answer *a)
{
    td_http_request_on_close(a->req, NULL, NULL);
    if (a->out.oom)
        td_http_error(a->req, 503, "server_error", "no memory for the answer", NULL, NULL, NULL);
    else
        td_http_reply(a->req, 200, "application/json", a->out.ptr, a->out.len, NULL);
    a->free_owner(a);
}

void http_answer_fail(http_answer *a, const td_error *err, uint32_t retry_s)
{
    chat_answer_fail(a->req, &a->out, a->begun, err, retry_s);
    a->free_owner(a);
}
