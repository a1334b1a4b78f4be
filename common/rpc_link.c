#include "common/rpc_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

#include "common/log.h"

#define RETRY_FIRST (100 * TD_USEC_PER_MSEC)
#define RETRY_MOST (5 * TD_USEC_PER_SEC)

static td_status nng_to_status(int rv)
{
    switch (rv) {
    case 0: return TD_OK;
    case NNG_ENOMEM: return TD_NOMEM;
    case NNG_EINVAL:
    case NNG_EADDRINVAL:
    case NNG_ENOTSUP: return TD_INVALID;
    default: return TD_IO;
    }
}

/* ---- frames ---- */

rpc_frame *rpc_frame_make(const rpc_link *link, uint64_t tag, const void *route, size_t n_route,
                          const void *payload, size_t n)
{
    size_t lead = link->lead ? 1 : 0;
    uint64_t length = n_route + n;
    rpc_frame *f = malloc(sizeof *f + lead + 8 + n_route + n);
    unsigned char *p;

    if (f == NULL)
        return NULL;
    *f = (rpc_frame){.tag = tag, .payload_bytes = n, .n = lead + 8 + n_route + n};
    p = f->bytes;
    if (link->lead)
        *p++ = 1;
    for (int shift = 56; shift >= 0; shift -= 8)
        *p++ = (unsigned char)(length >> shift);
    if (n_route > 0)
        memcpy(p, route, n_route);
    if (n > 0)
        memcpy(p + n_route, payload, n);
    return f;
}

void rpc_frame_set_id(const rpc_link *link, rpc_frame *frame, uint32_t id)
{
    unsigned char *route = frame->bytes + (link->lead ? 9 : 8);

    frame->tag = id;
    for (int i = 0; i < 4; i++)
        route[i] = (unsigned char)(id >> (24 - 8 * i));
}

void rpc_frame_free(rpc_frame *frame)
{
    free(frame);
}

size_t rpc_route_bytes(const unsigned char *bytes, size_t n)
{
    for (size_t at = 0; at + 4 <= n && at < RPC_MAX_ROUTE; at += 4) {
        if (bytes[at] & 0x80)
            return at + 4;
    }
    return 0;
}

/* ---- connecting ---- */

static void link_connect(rpc_link *link)
{
    link->connecting = true;
    if (link->dialer != NULL)
        nng_stream_dialer_dial(link->dialer, link->connector);
    else
        nng_stream_listener_accept(link->listener, link->connector);
}

/* Dialling that fails goes on at longer and longer intervals, until a connection has come up. */
void rpc_link_retry_later(rpc_link *link)
{
    td_usec after = link->retry_after * 2;

    after = after < RETRY_FIRST ? RETRY_FIRST : after > RETRY_MOST ? RETRY_MOST : after;
    link->retry_after = after;
    /* Spread, so that many do not come at once when a peer is back. */
    link->retry_at = td_now_us() + after / 2 + td_now_us() % (after / 2);
    rpc_service_due(&link->entry, link->retry_at);
}

static void link_on_connect(void *arg)
{
    rpc_link *link = arg;
    nng_stream *stream = NULL;
    int rv;

    pthread_mutex_lock(&link->lock);
    link->connecting = false;
    rv = nng_aio_result(link->connector);
    if (rv == 0)
        stream = nng_aio_get_output(link->connector, 0);
    if (link->closing) {
        if (stream != NULL)
            nng_stream_free(stream);
    } else if (stream == NULL) {
        if (link->listener != NULL)
            td_warn("rpc_accept_failed", "url=%s error=\"%s\"", rpc_link_url(link),
                    nng_strerror(rv));
        rpc_link_retry_later(link);
    } else if (!rpc_conn_create(link, stream)) {
        rpc_link_retry_later(link);
    } else if (link->listener != NULL) {
        link->retry_after = 0;
        link_connect(link);
    }
    pthread_mutex_unlock(&link->lock);
}

/* ---- the tick ---- */

void rpc_link_kick(rpc_link *link)
{
    rpc_service_due(&link->entry, 0);
}

static bool conn_wants_resume(const rpc_link *link, const rpc_conn *conn)
{
    if (conn->chain)
        return false;
    if (conn->failed)
        return true;
    return conn->state == CONN_UP &&
           (link->ops->may_take == NULL || link->ops->may_take((rpc_link *)link));
}

/* Lock held; given up and taken again while a connection runs. */
static void link_resume_conns(rpc_link *link)
{
    rpc_conn *conn;

restart:
    DL_FOREACH(link->conns, conn)
    {
        if (conn_wants_resume(link, conn)) {
            rpc_conn_resume(conn);
            goto restart;
        }
    }
}

/* Fail what has waited too long; when the next will have. Lock held. */
static td_usec link_check_times(rpc_link *link, td_usec now)
{
    td_usec next = TD_USEC_NEVER, at;
    rpc_conn *conn;

    DL_FOREACH(link->conns, conn)
    {
        at = TD_USEC_NEVER;
        if (conn->state == CONN_GREETING)
            at = conn->deadline;
        else if (link->max_write > 0 && conn->writing_since != TD_USEC_NEVER)
            at = conn->writing_since + link->max_write;
        if (conn->failed || at == TD_USEC_NEVER)
            continue;
        if (at > now) {
            next = at < next ? at : next;
            continue;
        }
        td_warn("rpc_peer_silent", "url=%s peer=%u greeted=%d", rpc_link_url(link), conn->id,
                conn->state == CONN_UP);
        rpc_conn_fail(conn);
    }
    return next;
}

/* Lock held. When to look again. */
static td_usec link_check_connect(rpc_link *link, td_usec now)
{
    if (link->connecting || link->closing || (link->dialer != NULL && link->conns != NULL))
        return TD_USEC_NEVER;
    if (link->retry_at > now)
        return link->retry_at;
    link_connect(link);
    return TD_USEC_NEVER;
}

static void link_tick(rpc_service_entry *entry)
{
    rpc_link *link = (rpc_link *)((char *)entry - offsetof(rpc_link, entry));
    td_usec now = td_now_us(), next, at;
    rpc_conn *ended, *conn, *after;

    pthread_mutex_lock(&link->lock);
    link_resume_conns(link);
    next = link_check_times(link, now);
    at = link_check_connect(link, now);
    next = at < next ? at : next;
    ended = link->ended;
    link->ended = NULL;
    pthread_mutex_unlock(&link->lock);
    DL_FOREACH_SAFE(ended, conn, after)
    {
        rpc_conn_free(conn);
    }
    if (link->ops->on_tick != NULL) {
        at = link->ops->on_tick(link, now);
        next = at < next ? at : next;
    }
    if (next != TD_USEC_NEVER)
        rpc_service_due(entry, next);
}

/* ---- begin and end ---- */

td_status rpc_link_init(rpc_link *link, const rpc_end_ops *ops, const char *url,
                        size_t max_message_bytes, td_error *err)
{
    link->ops = ops;
    link->entry.tick = link_tick;
    link->max_message_bytes = max_message_bytes;
    pthread_mutex_init(&link->events, NULL);
    pthread_mutex_init(&link->lock, NULL);
    link->name = strdup(url);
    if (link->name == NULL)
        return td_fail(err, TD_NOMEM, "rpc '%s': no memory", url);
    return TD_OK;
}

/* The URL for NNG's streams, into out. They have no inproc: a name that only this process uses. */
static bool stream_url(rpc_link *link, char *out, size_t cap)
{
    static const char inproc[] = "inproc://";
    static const char *const known[] = {"tcp://", "tcp4://", "tcp6://", "ipc://", "abstract://"};
    int n = -1;

    if (strncmp(link->name, inproc, sizeof inproc - 1) == 0) {
        link->lead = true;
        n = snprintf(out, cap, "abstract://tandem.%d.%s", (int)getpid(),
                     link->name + sizeof inproc - 1);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strncmp(link->name, known[i], strlen(known[i])) != 0)
            continue;
        link->lead = known[i][0] != 't';
        n = snprintf(out, cap, "%s", link->name);
    }
    return n >= 0 && (size_t)n < cap;
}

static int link_listen(rpc_link *link, const char *url)
{
    int port = 0, rv = nng_stream_listener_alloc(&link->listener, url);
    size_t room = strlen(link->name) + 8;
    char *colon;

    if (rv != 0)
        return rv;
    /* Not known to ipc. */
    nng_stream_listener_set_bool(link->listener, NNG_OPT_TCP_NODELAY, true);
    nng_stream_listener_set_bool(link->listener, NNG_OPT_TCP_KEEPALIVE, true);
    rv = nng_stream_listener_listen(link->listener);
    if (rv != 0)
        return rv;
    link->url = malloc(room);
    if (link->url == NULL)
        return NNG_ENOMEM;
    memcpy(link->url, link->name, strlen(link->name) + 1);
    if (!link->lead)
        rv = nng_stream_listener_get_int(link->listener, NNG_OPT_TCP_BOUND_PORT, &port);
    colon = strrchr(link->url, ':');
    if (rv == 0 && !link->lead)
        snprintf(colon, room - (size_t)(colon - link->url), ":%d", port);
    return rv;
}

static int link_dial(rpc_link *link, const char *url)
{
    int rv = nng_stream_dialer_alloc(&link->dialer, url);

    if (rv != 0)
        return rv;
    nng_stream_dialer_set_bool(link->dialer, NNG_OPT_TCP_NODELAY, true);
    nng_stream_dialer_set_bool(link->dialer, NNG_OPT_TCP_KEEPALIVE, true);
    return 0;
}

td_status rpc_link_start(rpc_link *link, bool listen, td_error *err)
{
    const char *what = listen ? "listening on" : "dialling";
    char url[256];
    td_status st;
    int rv;

    if (!stream_url(link, url, sizeof url))
        return td_fail(err, TD_INVALID,
                       "%s '%s': not a URL of tcp://host:port, ipc:///path or inproc://name", what,
                       link->name);
    rv = nng_aio_alloc(&link->connector, link_on_connect, link);
    if (rv == 0)
        rv = listen ? link_listen(link, url) : link_dial(link, url);
    if (rv != 0)
        return td_fail(err, nng_to_status(rv), "%s '%s': %s", what, link->name, nng_strerror(rv));
    st = rpc_service_add(&link->entry, err);
    if (st != TD_OK)
        return st;
    pthread_mutex_lock(&link->lock);
    link_connect(link);
    pthread_mutex_unlock(&link->lock);
    return TD_OK;
}

/* Free the connections. Their chains have ended or parked, or are about to: their streams are
 * closed, and the tick, which could revive one, is over. */
static void link_free_conns(rpc_link *link)
{
    for (;;) {
        rpc_conn *conn;

        pthread_mutex_lock(&link->lock);
        conn = link->conns != NULL ? link->conns : link->ended;
        pthread_mutex_unlock(&link->lock);
        if (conn == NULL)
            return;
        nng_aio_stop(conn->rx);
        nng_aio_stop(conn->tx);
        pthread_mutex_lock(&link->lock);
        if (conn->state == CONN_ENDED)
            DL_DELETE(link->ended, conn);
        else
            DL_DELETE(link->conns, conn);
        pthread_mutex_unlock(&link->lock);
        rpc_conn_free(conn);
    }
}

void rpc_link_close(rpc_link *link)
{
    rpc_conn *conn;

    pthread_mutex_lock(&link->events);
    link->muted = true;
    pthread_mutex_unlock(&link->events);
    pthread_mutex_lock(&link->lock);
    link->closing = true;
    if (link->dialer != NULL)
        nng_stream_dialer_close(link->dialer);
    if (link->listener != NULL)
        nng_stream_listener_close(link->listener);
    DL_FOREACH(link->conns, conn)
    {
        rpc_conn_fail(conn);
    }
    pthread_mutex_unlock(&link->lock);
    rpc_service_remove(&link->entry);
    if (link->connector != NULL)
        nng_aio_stop(link->connector);
    link_free_conns(link);
    nng_aio_free(link->connector);
    link->connector = NULL;
    nng_stream_dialer_free(link->dialer);
    link->dialer = NULL;
    nng_stream_listener_free(link->listener);
    link->listener = NULL;
}

void rpc_link_fini(rpc_link *link)
{
    pthread_mutex_destroy(&link->events);
    pthread_mutex_destroy(&link->lock);
    free(link->name);
    free(link->url);
}

const char *rpc_link_url(const rpc_link *link)
{
    return link->url != NULL ? link->url : link->name;
}

rpc_conn *rpc_link_up(const rpc_link *link)
{
    rpc_conn *conn;

    DL_FOREACH(link->conns, conn)
    {
        if (conn->state == CONN_UP && !conn->failed)
            return conn;
    }
    return NULL;
}

rpc_conn *rpc_link_find(const rpc_link *link, uint32_t id)
{
    rpc_conn *conn;

    DL_FOREACH(link->conns, conn)
    {
        if (conn->id == id && conn->state == CONN_UP && !conn->failed)
            return conn;
    }
    return NULL;
}
