/* What http_server.c, http_conn.c, http_request.c and http_reply.c share; nobody else includes it.
 */
#ifndef TANDEM_COMMON_HTTP_INTERNAL_H
#define TANDEM_COMMON_HTTP_INTERNAL_H

#include <event2/event_struct.h>
#include <uthash.h>

#include "common/http_server.h"

struct bufferevent;
struct evbuffer;
struct evbuffer_cb_entry;
struct evconnlistener;
struct evhttp;
struct evhttp_bound_socket;
struct evhttp_connection;
struct evhttp_request;

/* What a connection waits for, and with that which clock runs. */
typedef enum http_phase {
    HTTP_IDLE,     /* the first byte of a request: read timeout, then close */
    HTTP_READING,  /* the rest of a request: read timeout from its first byte on */
    HTTP_BUSY,     /* the program: no clock */
    HTTP_FLUSHING, /* the kernel to take a finished reply: progress within the read timeout */
    HTTP_CLOSING   /* nothing: closed as soon as libevent's stack is unwound */
} http_phase;

typedef struct http_conn {
    td_http_server *server;
    UT_hash_handle hh; /* in server->conns, by bev */
    struct bufferevent *bev;
    struct evhttp_connection *evcon; /* NULL until adopted, in the loop round that accepted it */
    struct evbuffer_cb_entry *on_input, *on_output;
    struct event soon; /* made active for work that must not be done inside evhttp's own calls */
    td_timer *timer;
    http_phase phase;
    bool page_pending; /* evhttp wrote something by itself: look at it soon */
    bool page_sent;    /* it was an error page, and what we made of it is going out */
    bool unsent;       /* in server->unsent */
    struct http_conn *next_unsent;
    bool refused;         /* over max_connections: closed as soon as it is adopted */
    bool linger;          /* read on for a while after the close, see http_linger_start() */
    td_usec since;        /* of HTTP_IDLE or HTTP_READING */
    size_t bytes_in;      /* since the last reply */
    size_t left;          /* HTTP_FLUSHING: bytes not taken at the last look */
    td_http_request *req; /* the one with the program, or NULL */
} http_conn;

/* A closed connection whose client may still be sending. */
typedef struct http_linger {
    struct http_linger *next;
    td_http_server *server;
    int fd;
    td_watch *watch;
    td_timer *timer;
} http_linger;

struct td_http_request {
    http_conn *conn;
    struct evhttp_request *ev;
    td_http_method method;
    bool streaming; /* the head of a reply has gone out */
    bool ended;     /* on_close runs: nothing may be answered any more */
    char *path;     /* decoded; path and query are one allocation */
    char *query;
    td_slice body;
    td_http_fn on_close;
    void *on_close_arg;
    char id[132];
};

struct td_http_server {
    td_http_server *next_known; /* http_server.c: known */
    td_loop *loop;
    td_http_options options; /* with the defaults filled in; listen is NULL */
    struct evhttp *http;
    struct evhttp_bound_socket *bound; /* NULL when it does not accept */
    struct evconnlistener *listener;   /* bound's */
    struct evbuffer *scratch;          /* empty between calls */
    td_timer *accept_timer;            /* runs while accepting rests for want of descriptors */
    struct event idle_ev;
    td_loop_fn on_idle;
    void *on_idle_arg;
    bool stopping;
    uint16_t port;
    http_conn *conns;
    size_t n_unsent;
    http_conn *unsent;    /* streams that were written to in this turn of the loop */
    struct event send_ev; /* made active for them */
    http_linger *lingers;
    uint64_t id_base, id_next;
};

/* http_conn.c */
struct bufferevent *http_conn_accept(td_http_server *s); /* NULL: no memory */
http_conn *http_conn_of(td_http_server *s, struct evhttp_connection *evcon);
void http_conn_set_phase(http_conn *c, http_phase phase);
void http_conn_orphan(http_conn *c); /* the server goes and evhttp never knew it well enough */
void http_linger_free(http_linger *l);
void http_server_check_idle(td_http_server *s);

/* http_request.c. gencb of evhttp; arg is the server. */
void http_on_evhttp_request(struct evhttp_request *ev, void *arg);
void http_request_free(td_http_request *req); /* our half; evhttp's belongs to evhttp */
void http_request_make_id(td_http_server *s, char out[static 132]);

/* http_reply.c */
void http_send_unsent(evutil_socket_t fd, short what, void *server); /* of send_ev */
void http_forget_unsent(http_conn *c); /* evhttp sends what it has, or nobody does any more */
const char *http_phrase(int status);
/* Answer with an error and close the connection after it: for requests after which the next one
 * cannot be found, or must not be believed. */
void http_refuse(td_http_request *req, int status, const char *message);

#endif
