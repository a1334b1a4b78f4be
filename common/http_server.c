/* The listener and the life of a server. What a connection does is in http_conn.c, requests are in
 * http_request.c, answers in http_reply.c. */
#include "common/http_server.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <netinet/in.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>

#include "common/http_internal.h"
#include "common/log.h"
#include "common/loop_internal.h"

enum {
    BACKLOG = 4096, /* evhttp's own 128 costs a burst of clients seconds of SYN retries */
    ACCEPT_REST_US = 100000,
};

/* evhttp is the argument of all callbacks of its listener, and gives no way back to its server. So
 * the callback for accept errors looks here. */
static struct {
    pthread_mutex_t lock; /* guards first and the next_known of those on the list */
    td_http_server *first;
} known = {PTHREAD_MUTEX_INITIALIZER, NULL};

static void know(td_http_server *s)
{
    pthread_mutex_lock(&known.lock);
    s->next_known = known.first;
    known.first = s;
    pthread_mutex_unlock(&known.lock);
}

static void forget(td_http_server *s)
{
    td_http_server **at;

    pthread_mutex_lock(&known.lock);
    for (at = &known.first; *at != NULL && *at != s; at = &(*at)->next_known)
        continue;
    if (*at == s)
        *at = s->next_known;
    pthread_mutex_unlock(&known.lock);
}

static td_http_server *server_of(const struct evhttp *http)
{
    td_http_server *s;

    pthread_mutex_lock(&known.lock);
    for (s = known.first; s != NULL && s->http != http; s = s->next_known)
        continue;
    pthread_mutex_unlock(&known.lock);
    return s; /* it stays: only the thread that is here frees it */
}

/* "host:port", "[v6]:port", ":port" (all addresses). */
static td_status resolve(const char *listen, struct addrinfo **out, td_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const char *colon = listen ? strrchr(listen, ':') : NULL;
    char host[256];
    size_t n;
    int rc;

    if (colon == NULL || colon[1] == '\0' || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strlen(colon + 1) > 5 || atoi(colon + 1) > 65535)
        return td_fail(err, TD_INVALID,
                       "listen address \"%s\": write host:port, such as "
                       "0.0.0.0:8000",
                       listen ? listen : "");
    n = (size_t)(colon - listen);
    if (n >= 2 && listen[0] == '[' && colon[-1] == ']') {
        listen++;
        n -= 2;
    }
    if (n >= sizeof host)
        return td_fail(err, TD_INVALID, "listen address: the host is too long");
    memcpy(host, listen, n);
    host[n] = '\0';
    rc = getaddrinfo(n ? host : NULL, colon + 1, &hints, out);
    if (rc != 0)
        return td_fail(err, TD_INVALID, "listen address \"%s\": %s", host, gai_strerror(rc));
    return TD_OK;
}

static struct bufferevent *on_accept(struct event_base *base, void *arg)
{
    (void)base;
    return http_conn_accept(arg);
}

static void accept_again(void *arg)
{
    td_http_server *s = arg;

    if (s->listener != NULL)
        evconnlistener_enable(s->listener);
}

/* Out of descriptors, most likely. The connection stays in the backlog, so trying again at once
 * would spin: rest, in the hope that one is closed meanwhile. */
static void on_accept_error(struct evconnlistener *l, void *http)
{
    td_http_server *s = server_of(http);

    td_warn("http_accept_failed", "error=\"%s\" connections=%u", strerror(errno),
            HASH_COUNT(s->conns));
    evconnlistener_disable(l);
    td_timer_in(s->accept_timer, ACCEPT_REST_US);
}

static void on_idle(evutil_socket_t fd, short what, void *arg)
{
    td_http_server *s = arg;
    td_loop_fn fn = s->on_idle;

    (void)fd;
    (void)what;
    s->on_idle = NULL;
    if (fn != NULL)
        fn(s->on_idle_arg); /* last: it may free the server */
}

void http_server_check_idle(td_http_server *s)
{
    if (s->stopping && s->conns == NULL && s->lingers == NULL && s->on_idle != NULL)
        event_active(&s->idle_ev, EV_TIMEOUT, 0);
}

static td_status start_listening(td_http_server *s, const char *listen, td_error *err)
{
    unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE |
                     (s->options.reuse_port ? LEV_OPT_REUSEABLE_PORT : 0u);
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct addrinfo *addr;
    td_status st = resolve(listen, &addr, err);
    int error;

    if (st != TD_OK)
        return st;
    s->listener = evconnlistener_new_bind(td_loop_base(s->loop), NULL, NULL, flags, BACKLOG,
                                          addr->ai_addr, (int)addr->ai_addrlen);
    error = errno;
    freeaddrinfo(addr);
    if (s->listener == NULL)
        return td_fail(err, TD_IO, "cannot listen on %s: %s", listen, strerror(error));
    know(s);
    s->bound = evhttp_bind_listener(s->http, s->listener);
    if (s->bound == NULL) {
        evconnlistener_free(s->listener);
        s->listener = NULL;
        return td_fail(err, TD_NOMEM, "no memory for an HTTP server");
    }
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    if (getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&at, &len) != 0)
        return td_fail(err, TD_IO, "%s: getsockname: %s", listen, strerror(errno));
    s->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                             : ((struct sockaddr_in *)&at)->sin_port);
    return TD_OK;
}

td_status td_http_server_create(td_loop *loop, const td_http_options *options, td_http_server **out,
                                td_error *err)
{
    td_http_server *s = calloc(1, sizeof *s);
    td_status st;

    if (s == NULL)
        return td_fail(err, TD_NOMEM, "no memory for an HTTP server");
    td_assert(options->on_request != NULL && td_loop_here(loop));
    s->loop = loop;
    s->options = *options;
    s->options.listen = NULL;
    if (s->options.max_body_bytes == 0)
        s->options.max_body_bytes = 4 << 20;
    if (s->options.max_header_bytes == 0)
        s->options.max_header_bytes = 64 << 10;
    if (s->options.read_timeout_us == 0)
        s->options.read_timeout_us = 60 * TD_USEC_PER_SEC;
    if (s->options.idle_timeout_us == 0)
        s->options.idle_timeout_us = s->options.read_timeout_us;
    if (getrandom(&s->id_base, sizeof s->id_base, 0) < 0) /* ids need to differ, not be secret */
        s->id_base = (uint64_t)td_wall_us();
    event_assign(&s->idle_ev, td_loop_base(loop), -1, 0, on_idle, s);
    event_assign(&s->send_ev, td_loop_base(loop), -1, 0, http_send_unsent, s);
    s->scratch = evbuffer_new();
    s->http = evhttp_new(td_loop_base(loop));
    s->accept_timer = td_timer_create(loop, accept_again, s);
    if (s->scratch == NULL || s->http == NULL || s->accept_timer == NULL) {
        td_http_server_free(s);
        return td_fail(err, TD_NOMEM, "no memory for an HTTP server");
    }
    evhttp_set_max_headers_size(s->http, (ev_ssize_t)s->options.max_header_bytes);
    evhttp_set_max_body_size(s->http, (ev_ssize_t)s->options.max_body_bytes);
    evhttp_set_default_content_type(s->http, NULL);
    evhttp_set_allowed_methods(s->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST |
                                            EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                            EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
    evhttp_set_bevcb(s->http, on_accept, s);
    evhttp_set_gencb(s->http, http_on_evhttp_request, s);
    st = start_listening(s, options->listen, err);
    if (st != TD_OK) {
        td_http_server_free(s);
        return st;
    }
    *out = s;
    return TD_OK;
}

uint16_t td_http_server_port(const td_http_server *s)
{
    return s->port;
}

void td_http_server_stop(td_http_server *s, td_loop_fn fn, void *arg)
{
    td_assert(td_loop_here(s->loop) && !s->stopping);
    s->stopping = true;
    s->on_idle = fn;
    s->on_idle_arg = arg;
    td_timer_stop(s->accept_timer);
    evhttp_del_accept_socket(s->http, s->bound);
    s->bound = NULL;
    s->listener = NULL;
    for (http_conn *c = s->conns; c != NULL; c = c->hh.next) {
        int unread = 0;

        /* One whose next request is in the kernel already is served like those being read. */
        if (c->evcon != NULL && c->phase == HTTP_IDLE &&
            ioctl(bufferevent_getfd(c->bev), FIONREAD, &unread) == 0 && unread == 0)
            http_conn_set_phase(c, HTTP_CLOSING);
    }
    http_server_check_idle(s);
}

void td_http_server_free(td_http_server *s)
{
    http_conn *c, *next;

    if (s == NULL)
        return;
    forget(s);
    s->on_idle = NULL;
    if (s->http != NULL)
        evhttp_free(s->http); /* each connection's close callback runs */
    HASH_ITER(hh, s->conns, c, next) http_conn_orphan(c); /* accepted a moment ago */
    while (s->lingers != NULL)
        http_linger_free(s->lingers);
    event_del(&s->idle_ev);
    event_del(&s->send_ev);
    td_timer_free(s->accept_timer);
    if (s->scratch != NULL)
        evbuffer_free(s->scratch);
    free(s);
}
