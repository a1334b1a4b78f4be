/* Replies and streams. The end of a request always goes the same way: take what is needed out of
 * our half, detach it from the connection (so that the close callback has nothing to report), free
 * it, and hand evhttp its half, which it frees when the last byte has been written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>

#include "common/http_internal.h"

const char *http_phrase(int status)
{
    static const struct {
        int status;
        const char *phrase;
    } phrases[] = {
        {200, "OK"},
        {202, "Accepted"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };

    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++) {
        if (phrases[i].status == status)
            return phrases[i].phrase;
    }
    return "Status"; /* the number says it; clients do not read this */
}

static void check(const td_http_request *req)
{
    td_assert(td_loop_here(req->conn->server->loop));
    td_assert(!req->ended);
}

static void add_header(td_http_request *req, const char *name, const char *value)
{
    /* Refused by evhttp: a line break, with which a value could add headers of its own. */
    td_assert(strpbrk(value, "\r\n") == NULL);
    evhttp_add_header(evhttp_request_get_output_headers(req->ev), name, value);
}

/* Have the connection close after this reply. evhttp decides by the headers of both sides. */
static void close_after(td_http_request *req)
{
    struct evkeyvalq *in = evhttp_request_get_input_headers(req->ev);

    /* An HTTP/1.0 client's wish to keep it would add a second Connection header. */
    while (evhttp_remove_header(in, "Connection") == 0)
        continue;
    evhttp_remove_header(evhttp_request_get_output_headers(req->ev), "Connection");
    add_header(req, "Connection", "close");
}

static void add_head(td_http_request *req, const char *content_type, const td_http_header *extra)
{
    if (content_type != NULL)
        add_header(req, "Content-Type", content_type);
    add_header(req, "x-request-id", req->id);
    for (; extra != NULL && extra->name != NULL; extra++)
        add_header(req, extra->name, extra->value);
    if (req->conn->server->stopping)
        close_after(req);
}

/* The reply has been written whole; evhttp is about to free its half and read on, or to close. */
static void on_complete(struct evhttp_request *ev, void *arg)
{
    http_conn *c = arg;

    (void)ev;
    c->bytes_in = evbuffer_get_length(bufferevent_get_input(c->bev));
    http_conn_set_phase(c, HTTP_IDLE);
    if (c->bytes_in > 0) /* pipelined */
        http_conn_set_phase(c, HTTP_READING);
    else if (c->server->stopping)
        http_conn_set_phase(c, HTTP_CLOSING);
}

/* Our half ends here. The caller hands the rest to evhttp, after which even the connection may be
 * gone. */
static struct evhttp_request *detach(td_http_request *req)
{
    struct evhttp_request *ev = req->ev;
    http_conn *c = req->conn;

    if (c->unsent) {
        http_forget_unsent(c);
        bufferevent_enable(c->bev, EV_WRITE); /* evhttp counts on that its bytes are under way */
    }
    evhttp_request_set_on_complete_cb(ev, on_complete, c);
    http_conn_set_phase(c, HTTP_FLUSHING);
    c->req = NULL;
    http_request_free(req);
    return ev;
}

/* Whether replies with this status have a body at all, be it empty. */
static bool has_body(int status)
{
    return status >= 200 && status != 204 && status != 304;
}

void td_http_reply(td_http_request *req, int status, const char *content_type, const void *bytes,
                   size_t n, const td_http_header *extra)
{
    http_conn *c = req->conn;
    struct evbuffer *body = c->server->scratch;
    bool head_only = req->method == TD_HTTP_HEAD || !has_body(status);
    struct evhttp_request *ev;
    char length[24];

    check(req);
    td_assert(!req->streaming);
    add_head(req, content_type, extra);
    if (has_body(status)) {
        snprintf(length, sizeof length, "%zu", n);
        add_header(req, "Content-Length", length);
    }
    /* evhttp would send the body of a HEAD along. */
    if (!head_only && evbuffer_add(body, bytes, n) != 0) {
        td_http_abort(req); /* no memory for what the Content-Length has promised */
        return;
    }
    ev = detach(req);
    evhttp_send_reply(ev, status, http_phrase(status), head_only ? NULL : body);
    /* Nothing to cancel any more: a client that has shut down its sending side, as one-shot clients
     * do, still gets its answer. evhttp reads again for the next request. */
    bufferevent_disable(c->bev, EV_READ);
}

/* Text from anywhere, as the inside of a JSON string: what is not UTF-8 becomes U+FFFD. */
static void add_json_text(td_buf *b, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text);

    while (left > 0) {
        int len = td_utf8_next(p, left);

        if (len > 0)
            td_buf_json(b, (const char *)p, (size_t)len);
        else
            td_buf_str(b, "\xef\xbf\xbd");
        len = len > 0 ? len : 1;
        p += len;
        left -= (size_t)len;
    }
}

static void add_member(td_buf *b, const char *name, const char *value)
{
    td_buf_fmt(b, "\"%s\":", name);
    if (value == NULL) {
        td_buf_str(b, "null");
        return;
    }
    td_buf_byte(b, '"');
    add_json_text(b, value);
    td_buf_byte(b, '"');
}

void td_http_error_json(td_buf *b, const char *type, const char *message, const char *param,
                        const char *code)
{
    td_buf_str(b, "{\"error\":{");
    add_member(b, "message", message);
    td_buf_byte(b, ',');
    add_member(b, "type", type);
    td_buf_byte(b, ',');
    add_member(b, "param", param);
    td_buf_byte(b, ',');
    add_member(b, "code", code);
    td_buf_str(b, "}}");
}

void td_http_error(td_http_request *req, int status, const char *type, const char *message,
                   const char *param, const char *code, const td_http_header *extra)
{
    td_buf b = {0};

    td_http_error_json(&b, type, message, param, code);
    if (b.oom)
        td_http_abort(req);
    else
        td_http_reply(req, status, "application/json", b.ptr, b.len, extra);
    td_buf_free(&b);
}

void http_refuse(td_http_request *req, int status, const char *message)
{
    req->conn->linger = true;
    close_after(req);
    td_http_error(req, status, status == 503 ? "server_error" : "invalid_request_error", message,
                  NULL, NULL, NULL);
}

void td_http_stream_begin(td_http_request *req, int status, const char *content_type,
                          const td_http_header *extra)
{
    check(req);
    td_assert(!req->streaming && has_body(status));
    req->streaming = true;
    add_head(req, content_type, extra);
    /* HTTP/1.0 has no chunks: the body ends with the connection. (For a kept-alive one evhttp would
     * write "Content-Length: 0" here.) */
    if (req->ev->minor == 0)
        close_after(req);
    evhttp_send_reply_start(req->ev, status, http_phrase(status));
}

/* ---- writing a stream ----
 *
 * evhttp writes when epoll has said that the socket can be written: for each token of each stream a
 * call to ask for that and one to ask no more, beside the write. Sockets of streams can nearly
 * always be written, so we write at the end of the turn of the loop, and leave to evhttp what is
 * then left: a third of the router's time at a thousand streams. */

enum { MAX_UNSENT = 32 };

void http_forget_unsent(http_conn *c)
{
    http_conn **at = &c->server->unsent;

    if (!c->unsent)
        return;
    while (*at != c)
        at = &(*at)->next_unsent;
    *at = c->next_unsent;
    c->unsent = false;
    c->server->n_unsent--;
}

void http_send_unsent(evutil_socket_t fd, short what, void *server)
{
    td_http_server *s = server;
    http_conn *c;

    (void)fd;
    (void)what;
    while ((c = s->unsent) != NULL) {
        struct evbuffer *out = bufferevent_get_output(c->bev);

        s->unsent = c->next_unsent;
        s->n_unsent--;
        c->unsent = false;
        evbuffer_unfreeze(out, 1);
        evbuffer_write(out, bufferevent_getfd(c->bev)); /* an error is found again by evhttp */
        evbuffer_freeze(out, 1);
        if (evbuffer_get_length(out) > 0)
            bufferevent_enable(c->bev, EV_WRITE);
    }
}

/* Whether we write what is added now: not behind bytes that evhttp is about to write. */
static bool take_over(http_conn *c)
{
    td_http_server *s = c->server;

    if (c->unsent)
        return true;
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0)
        return false;
    if (s->n_unsent == MAX_UNSENT) /* a step of a thousand streams does not wait for its last */
        http_send_unsent(-1, 0, s);
    bufferevent_disable(c->bev, EV_WRITE);
    c->unsent = true;
    s->n_unsent++;
    c->next_unsent = s->unsent;
    if (s->unsent == NULL)
        event_active(&s->send_ev, EV_TIMEOUT, 0);
    s->unsent = c;
    return true;
}

/* As evhttp_send_reply_chunk() has it. */
static bool add_chunk(struct evbuffer *out, bool framed, const void *bytes, size_t n)
{
    /* Room first: half a chunk would spoil all that follows. */
    if (evbuffer_expand(out, n + 24) != 0)
        return false;
    if (framed)
        evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, bytes, n);
    if (framed)
        evbuffer_add(out, "\r\n", 2);
    return true;
}

void td_http_stream_write(td_http_request *req, const void *bytes, size_t n)
{
    http_conn *c = req->conn;
    struct evbuffer *chunk = c->server->scratch;

    check(req);
    td_assert(req->streaming);
    if (n == 0 || req->method == TD_HTTP_HEAD)
        return;
    if (take_over(c))
        add_chunk(bufferevent_get_output(c->bev), req->ev->chunked, bytes, n);
    else if (evbuffer_add(chunk, bytes, n) == 0)
        evhttp_send_reply_chunk(req->ev, chunk);
}

void td_http_stream_end(td_http_request *req)
{
    check(req);
    td_assert(req->streaming);
    evhttp_send_reply_end(detach(req));
}

void td_http_stream_cut(td_http_request *req)
{
    struct evhttp_request *ev;

    check(req);
    td_assert(req->streaming);
    /* The head is out: this header only tells evhttp to close. Without its mark of a chunked reply
     * evhttp writes no last chunk. */
    close_after(req);
    ev = detach(req);
    ev->chunked = 0;
    evhttp_send_reply_end(ev);
}

size_t td_http_stream_pending(const td_http_request *req)
{
    check(req);
    return evbuffer_get_length(bufferevent_get_output(req->conn->bev));
}

void td_http_abort(td_http_request *req)
{
    static const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    http_conn *c = req->conn;

    check(req);
    c->req = NULL;
    http_request_free(req);
    /* A reset, so that the kernel forgets what it could not send to a client that reads too slowly;
     * a plain close keeps that for minutes. */
    setsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    evhttp_connection_free(c->evcon); /* with evhttp's half of the request */
}
