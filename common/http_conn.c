/* One accepted connection: its clock, its end, and what evhttp 2.1 does not do by itself.
 *
 * evhttp reads, parses and writes; it owns the connection and frees it. We hold a record beside it,
 * found by bufferevent, and learn of the end from evhttp's close callback, which we set in the
 * round of the loop that accepted the connection, before any byte of it is read. That needs the
 * evhttp connection, which the accept hook does not tell: it is the argument of the callbacks that
 * evhttp has set on the bufferevent.
 *
 * Added here:
 * - Timeouts. evhttp's count from the last byte, so a client that sends one now and then holds its
 *   connection for ever, and they also end a quiet stream. Ours run for a phase of the connection.
 * - Error pages. evhttp answers what it cannot parse with HTML of its own. Such a page is written
 * in one go with writing not yet begun, so it is replaced before the first byte goes out.
 * - Lingering. Closing a socket with unread bytes resets it, and a client that still sends its
 *   oversize body would lose the 413. So we read and drop for a while, at most LINGER_US.
 * - A bound on connections: the one that is missed least gives way, see make_room().
 * - A bound on what is read: a client that sends while it is answered, or a chunk header without
 *   end, would else grow the input buffer without limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>

#include "common/http_internal.h"
#include "common/loop_internal.h"

enum {
    BUSY_INPUT_BYTES = 64 << 10, /* bytes behind a request that has no whole reply yet */
    FLUSH_INPUT_BYTES = BUSY_INPUT_BYTES / 2, /* so that the next request does not start full */
    READ_SLACK_BYTES = 64 << 10,              /* over head and body: chunk framing */
    LINGER_US = 2000000,
    SLOW_READ_US = 1000000, /* a request that comes for longer may be given up for another client */
    N_KEEPALIVE_IDLE_S = 30, /* a client that vanished without a FIN is noticed in a minute */
};

static void conn_free(http_conn *c)
{
    td_http_server *s = c->server;

    event_del(&c->soon);
    http_forget_unsent(c);
    td_timer_free(c->timer);
    HASH_DEL(s->conns, c);
    if (s->options.connections != NULL)
        td_gauge_add(s->options.connections, -1);
    free(c);
    http_server_check_idle(s);
}

/* --- Lingering --- */

void http_linger_free(http_linger *l)
{
    http_linger **at = &l->server->lingers;

    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    td_watch_free(l->watch);
    td_timer_free(l->timer);
    close(l->fd);
    free(l);
}

static void linger_end(void *arg)
{
    http_linger *l = arg;
    td_http_server *s = l->server;

    http_linger_free(l);
    http_server_check_idle(s);
}

static void linger_read(void *arg, unsigned ready)
{
    http_linger *l = arg;
    char drop[16384];
    ssize_t n = read(l->fd, drop, sizeof drop);

    (void)ready;
    if (n <=
        0) /* EOF, an error, or a wake-up for nothing, after which nobody is worth waiting for */
        linger_end(l);
}

/* A duplicate, since evhttp is about to close its descriptor; it sends the FIN. */
static void linger_start(td_http_server *s, int fd)
{
    http_linger *l = calloc(1, sizeof *l);

    if (l == NULL)
        return;
    l->server = s;
    l->fd = dup(fd);
    l->next = s->lingers;
    s->lingers = l;
    l->watch = td_watch_create(s->loop, l->fd, TD_READABLE, linger_read, l);
    l->timer = td_timer_create(s->loop, linger_end, l);
    if (l->fd < 0 || l->watch == NULL || l->timer == NULL)
        http_linger_free(l);
    else
        td_timer_in(l->timer, LINGER_US);
}

/* --- The end --- */

/* evhttp is freeing the connection: the client went away, or one of us closed it. */
static void on_evhttp_close(struct evhttp_connection *evcon, void *arg)
{
    http_conn *c = arg;
    td_http_request *req = c->req;

    (void)evcon;
    evbuffer_remove_cb_entry(bufferevent_get_input(c->bev), c->on_input);
    evbuffer_remove_cb_entry(bufferevent_get_output(c->bev), c->on_output);
    if (req != NULL) {
        struct evhttp_request *ev = req->ev;

        c->req = NULL;
        req->ended = true;
        if (req->on_close != NULL)
            req->on_close(req, req->on_close_arg);
        http_request_free(req);
        /* After an EOF evhttp leaves an unanswered request to its user; in all other cases it is
         * still on evhttp's list, and freed from there. */
        if (evhttp_request_get_connection(ev) == NULL)
            evhttp_request_free(ev);
    }
    if (c->linger)
        linger_start(c->server, bufferevent_getfd(c->bev));
    conn_free(c);
}

void http_conn_orphan(http_conn *c)
{
    struct bufferevent *bev = c->bev;

    conn_free(c);
    bufferevent_decref(bev);
}

/* --- Clocks --- */

void http_conn_set_phase(http_conn *c, http_phase phase)
{
    const td_http_options *o = &c->server->options;
    size_t most = phase == HTTP_BUSY ? BUSY_INPUT_BYTES
                  : phase == HTTP_FLUSHING
                      ? FLUSH_INPUT_BYTES
                      : o->max_header_bytes + o->max_body_bytes + READ_SLACK_BYTES;

    if (c->phase == HTTP_CLOSING) /* nothing brings it back */
        return;
    bufferevent_setwatermark(c->bev, EV_READ, 0, most);
    c->phase = phase;
    c->left = SIZE_MAX;
    if (phase == HTTP_CLOSING)
        event_active(&c->soon, EV_TIMEOUT, 0);
    else if (phase == HTTP_BUSY)
        td_timer_stop(c->timer);
    else
        td_timer_in(c->timer, phase == HTTP_IDLE ? o->idle_timeout_us : o->read_timeout_us);
    if (phase == HTTP_IDLE || phase == HTTP_READING)
        c->since = td_now_us();
}

static void on_timer(void *arg)
{
    http_conn *c = arg;
    size_t left = evbuffer_get_length(bufferevent_get_output(c->bev));

    if (c->phase == HTTP_FLUSHING && left < c->left) { /* slow, but it moves */
        c->left = left;
        td_timer_in(c->timer, c->server->options.read_timeout_us);
    } else {
        evhttp_connection_free(c->evcon); /* calls on_evhttp_close() */
    }
}

static void on_input(struct evbuffer *b, const struct evbuffer_cb_info *info, void *arg)
{
    http_conn *c = arg;

    if (info->n_added == 0)
        return;
    c->bytes_in += info->n_added;
    if (c->phase == HTTP_IDLE)
        http_conn_set_phase(c, HTTP_READING);
    else if (c->phase == HTTP_BUSY && evbuffer_get_length(b) >= BUSY_INPUT_BYTES)
        /* Reading rests here, and behind what is not read the client's going would not be seen. */
        http_conn_set_phase(c, HTTP_CLOSING);
}

/* --- evhttp's own pages --- */

/* While no reply of ours is under way, whoever writes is evhttp: "100 Continue" or an error page.
 * The page is complete when evhttp's call has returned, so it is looked at soon. */
static void on_output(struct evbuffer *b, const struct evbuffer_cb_info *info, void *arg)
{
    http_conn *c = arg;

    if (c->page_sent && info->n_deleted > 0 && evbuffer_get_length(b) == 0) {
        /* evhttp closes too, but not after every method (CONNECT) */
        http_conn_set_phase(c, HTTP_CLOSING);
        return;
    }
    if (info->n_added == 0 || c->page_pending ||
        (c->phase != HTTP_IDLE && c->phase != HTTP_READING))
        return;
    c->page_pending = true;
    event_active(&c->soon, EV_TIMEOUT, 0);
}

static void say_why(const http_conn *c, int *status, td_buf *why)
{
    const td_http_options *o = &c->server->options;

    switch (*status) {
    case 413:
        td_buf_fmt(why,
                   "the request body is larger than %zu bytes, or in chunks that are malformed or "
                   "have extensions",
                   o->max_body_bytes);
        break;
    case 417: td_buf_str(why, "only 100-continue can be expected"); break;
    case 0: /* evhttp's answer to a method that it has never heard of */
    case 501:
        *status = 501;
        td_buf_str(why, "no such method");
        break;
    default: /* evhttp has one code for both */
        *status = c->bytes_in > o->max_header_bytes ? 431 : 400;
        if (*status == 431)
            td_buf_fmt(why, "the request line and headers are larger than %zu bytes",
                       o->max_header_bytes);
        else
            td_buf_str(why, "not an HTTP/1.1 request");
    }
}

/* Put our JSON in place of evhttp's page. */
static void replace_page(http_conn *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct evbuffer *out = bufferevent_get_output(c->bev);
    char head[sizeof go_on + 16] = "", id[132];
    td_buf why = {0}, body = {0};
    const char *line = head;
    bool went_on;
    int status = 0;

    evbuffer_unfreeze(out, 1); /* a bufferevent freezes the front, against all but its own writes */
    evbuffer_copyout(out, head, sizeof head - 1);
    evbuffer_freeze(out, 1);
    went_on = strncmp(head, go_on, sizeof go_on - 1) == 0;
    if (went_on)
        line += sizeof go_on - 1;
    if (*line == '\0' || sscanf(line, "HTTP/%*d.%*d %d", &status) != 1)
        return; /* a "100 Continue" alone: nothing is wrong */
    say_why(c, &status, &why);
    td_http_error_json(&body, "invalid_request_error", why.ptr ? why.ptr : "", NULL, NULL);
    http_request_make_id(c->server, id);
    c->linger = true;
    http_conn_set_phase(c, HTTP_FLUSHING);
    evbuffer_unfreeze(out, 1);
    evbuffer_drain(out, evbuffer_get_length(out));
    evbuffer_freeze(out, 1);
    if (went_on)
        evbuffer_add(out, go_on, sizeof go_on - 1);
    evbuffer_add_printf(
        out,
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
        "x-request-id: %s\r\nConnection: close\r\n\r\n",
        status, http_phrase(status), body.len, id);
    evbuffer_add(out, body.ptr, body.len);
    c->page_sent = true;
    td_buf_free(&why);
    td_buf_free(&body);
}

/* --- The beginning --- */

/* How much a connection may be missed, the least first: idle ones are kept for their clients'
 * convenience only; then a request that has been coming for long, as those of an attack do. */
static int worth(const http_conn *c, td_usec now)
{
    return c->evcon == NULL                                            ? 2
           : c->phase == HTTP_IDLE                                     ? 0
           : c->phase == HTTP_READING && now - c->since > SLOW_READ_US ? 1
                                                                       : 2;
}

/* Room for one more, or the newest is too much. Those that are closing already have made room. */
static void make_room(td_http_server *s, http_conn *newest)
{
    http_conn *c, *least = NULL;
    td_usec now = td_now_us();
    size_t n = 0;

    if (s->options.max_connections == 0 || HASH_COUNT(s->conns) <= s->options.max_connections)
        return;
    for (c = s->conns; c != NULL; c = c->hh.next) {
        int w = worth(c, now);

        n += c->phase != HTTP_CLOSING && !c->refused;
        if (c != newest && w < 2 &&
            (least == NULL || w < worth(least, now) ||
             (w == worth(least, now) && c->since < least->since)))
            least = c;
    }
    if (n <= s->options.max_connections)
        return;
    if (s->options.refused != NULL)
        td_counter_add(s->options.refused, 1);
    if (least != NULL)
        http_conn_set_phase(least, HTTP_CLOSING);
    else
        newest->refused = true;
}

/* Whatever fits into an empty socket, which this is: it is sent, and the client may read why. */
static void refuse(int fd)
{
    static const char page[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        "Content-Length: 130\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
        "{\"error\":{\"message\":\"the server has as many connections as it takes\","
        "\"type\":\"service_unavailable_error\",\"param\":null,\"code\":null}}";

    if (send(fd, page, sizeof page - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* it is closed all the same */
}

static void adopt(http_conn *c)
{
    bufferevent_data_cb read_cb, write_cb;
    bufferevent_event_cb event_cb;
    int fd = bufferevent_getfd(c->bev), one = 1, idle = N_KEEPALIVE_IDLE_S, every = 10, times = 3;
    void *evcon;

    bufferevent_getcb(c->bev, &read_cb, &write_cb, &event_cb, &evcon);
    if (evcon == NULL) { /* evhttp gave up on it right after the accept */
        http_conn_orphan(c);
        return;
    }
    c->evcon = evcon;
    bufferevent_decref(c->bev); /* from here on the close callback comes before its end */
    evhttp_connection_set_closecb(c->evcon, on_evhttp_close, c);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a token is a small packet */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    http_conn_set_phase(c, HTTP_IDLE);
    if (c->refused) {
        refuse(fd);
        c->linger = true; /* its request may be on the way, and a reset would take our words back */
        http_conn_set_phase(c, HTTP_CLOSING);
    }
}

static void on_soon(evutil_socket_t fd, short what, void *arg)
{
    http_conn *c = arg;

    (void)fd;
    (void)what;
    if (c->evcon == NULL) {
        adopt(c);
    } else if (c->phase == HTTP_CLOSING) {
        evhttp_connection_free(c->evcon);
    } else if (c->page_pending) {
        c->page_pending = false;
        replace_page(c);
    }
}

/* evhttp asks for a bufferevent as it accepts. A reference is kept until adopt(). */
struct bufferevent *http_conn_accept(td_http_server *s)
{
    struct event_base *base = td_loop_base(s->loop);
    http_conn *c = calloc(1, sizeof *c);

    if (c == NULL)
        return NULL;
    c->server = s;
    c->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    c->timer = td_timer_create(s->loop, on_timer, c);
    if (c->bev == NULL || c->timer == NULL)
        goto fail;
    c->on_input = evbuffer_add_cb(bufferevent_get_input(c->bev), on_input, c);
    c->on_output = evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c);
    if (c->on_input == NULL || c->on_output == NULL)
        goto fail;
    event_assign(&c->soon, base, -1, 0, on_soon, c);
    bufferevent_incref(c->bev);
    HASH_ADD_PTR(s->conns, bev, c);
    if (s->options.connections != NULL)
        td_gauge_add(s->options.connections, 1);
    event_active(&c->soon, EV_TIMEOUT, 0);
    make_room(s, c);
    return c->bev;

fail:
    if (c->bev != NULL)
        bufferevent_free(c->bev);
    td_timer_free(c->timer);
    free(c);
    return NULL;
}

http_conn *http_conn_of(td_http_server *s, struct evhttp_connection *evcon)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(evcon);
    http_conn *c;

    HASH_FIND_PTR(s->conns, &bev, c);
    return c;
}
