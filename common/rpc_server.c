/* Requests in, replies out. A held call keeps a copy of its request; the server's memory is
 * counted, one for the owner and one for each held call, so that a call may be answered after the
 * close. */
#include "common/rpc.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/rpc_link.h"

enum { DEFAULT_CALLS = 64 };

/* A reply that its connection does not take for so long: the peer does not read. */
#define REPLY_STUCK (5 * TD_USEC_PER_SEC)

struct rpc_call {
    rpc_server *server;
    uint32_t peer;
    size_t n_route, n;
    unsigned char bytes[]; /* the route, then the request */
};

struct rpc_server {
    rpc_link link; /* first: a link of a server is the server */
    rpc_server_options opt;
    size_t held; /* calls; link.lock. Held calls and the owner keep the memory */
    bool owned;
    char dropped[];
};

static void server_free(rpc_server *s)
{
    rpc_link_fini(&s->link);
    free(s);
}

static void server_on_peer(rpc_link *link, rpc_conn *conn, bool up)
{
    rpc_server *s = (rpc_server *)link;

    if (s->opt.on_peer != NULL)
        s->opt.on_peer(s->opt.user, conn->id, up);
}

static void server_on_up(rpc_link *link, rpc_conn *conn)
{
    server_on_peer(link, conn, true);
}

static void server_on_down(rpc_link *link, rpc_conn *conn)
{
    server_on_peer(link, conn, false);
}

static bool server_may_take(rpc_link *link)
{
    rpc_server *s = (rpc_server *)link;

    return s->held < s->opt.max_calls;
}

static void server_on_take(rpc_link *link)
{
    ((rpc_server *)link)->held++;
}

/* Lock held, and given up. */
static void server_release(rpc_server *s)
{
    bool last;

    if (s->held-- == s->opt.max_calls && !s->link.closing)
        rpc_link_kick(&s->link); /* connections may be parked */
    last = s->held == 0 && !s->owned;
    pthread_mutex_unlock(&s->link.lock);
    if (last)
        server_free(s);
}

static bool server_on_message(rpc_link *link, rpc_conn *conn, const unsigned char *bytes, size_t n)
{
    rpc_server *s = (rpc_server *)link;
    size_t route = rpc_route_bytes(bytes, n);
    rpc_call *call = route > 0 ? malloc(sizeof *call + n) : NULL;

    if (call == NULL) { /* no memory is as a lost connection to the peer: it knows what to do */
        pthread_mutex_lock(&link->lock);
        server_release(s);
        return false;
    }
    *call = (rpc_call){s, conn->id, route, n - route};
    memcpy(call->bytes, bytes, n);
    rpc_callback_enter();
    s->opt.on_request(s->opt.user, call, call->bytes + route, n - route);
    rpc_callback_leave();
    return true;
}

static const rpc_end_ops server_ops = {
    .self = RPC_SP_REP,
    .peer = RPC_SP_REQ,
    .route_room = RPC_MAX_ROUTE,
    .on_up = server_on_up,
    .on_down = server_on_down,
    .may_take = server_may_take,
    .on_take = server_on_take,
    .on_message = server_on_message,
};

/* The reply that says "given up" to whoever reads it as {status, text}. */
static size_t default_dropped(char *out, size_t cap)
{
    static const char text[] = "the call was dropped unanswered";
    size_t n = 0;

    td_assert(cap >= sizeof text + 4);
    out[n++] = 1 << 3; /* field 1, varint */
    out[n++] = TD_UNAVAILABLE;
    out[n++] = 2 << 3 | 2; /* field 2, bytes */
    out[n++] = sizeof text - 1;
    memcpy(out + n, text, sizeof text - 1);
    return n + sizeof text - 1;
}

td_status rpc_server_open(const rpc_server_options *opt, rpc_server **out, td_error *err)
{
    char dropped[64];
    td_slice d = opt->dropped;
    rpc_server *s;
    td_status st;

    if (d.ptr == NULL)
        d = (td_slice){dropped, default_dropped(dropped, sizeof dropped)};
    s = calloc(1, sizeof *s + d.len);
    if (s == NULL)
        return td_fail(err, TD_NOMEM, "rpc server on '%s': no memory", opt->url);
    s->opt = *opt;
    s->opt.dropped = (td_slice){s->dropped, d.len};
    memcpy(s->dropped, d.ptr, d.len);
    s->owned = true;
    if (s->opt.max_calls == 0)
        s->opt.max_calls = DEFAULT_CALLS;
    if (s->opt.max_message_bytes == 0)
        s->opt.max_message_bytes = RPC_MAX_MESSAGE_BYTES;
    st = rpc_link_init(&s->link, &server_ops, opt->url, s->opt.max_message_bytes, err);
    s->link.max_write = REPLY_STUCK;
    *out = s; /* before the first callback, which may want it */
    if (st == TD_OK)
        st = rpc_link_start(&s->link, true, err);
    if (st != TD_OK) {
        *out = NULL;
        rpc_server_close(s);
    }
    return st;
}

void rpc_server_close(rpc_server *s)
{
    bool last;

    if (s == NULL)
        return;
    rpc_not_in_callback(__func__);
    rpc_link_close(&s->link);
    pthread_mutex_lock(&s->link.lock);
    s->owned = false;
    last = s->held == 0;
    pthread_mutex_unlock(&s->link.lock);
    if (last)
        server_free(s);
}

const char *rpc_server_url(const rpc_server *s)
{
    return rpc_link_url(&s->link);
}

/* End a held call. TD_NOMEM: the reply could not be made. */
static td_status call_finish(rpc_call *call, const void *bytes, size_t n)
{
    rpc_server *s = call->server;
    rpc_frame *frame = rpc_frame_make(&s->link, 0, call->bytes, call->n_route, bytes, n);
    td_status st = frame != NULL ? TD_OK : TD_NOMEM;
    rpc_conn *conn;

    pthread_mutex_lock(&s->link.lock);
    conn = s->link.closing ? NULL : rpc_link_find(&s->link, call->peer);
    if (conn != NULL && frame != NULL) {
        rpc_conn_send(conn, frame);
        frame = NULL;
    } else if (conn != NULL) {
        rpc_conn_fail(conn); /* no memory to say even that: the peer must not wait for it */
    }
    server_release(s);
    rpc_frame_free(frame);
    free(call);
    return st;
}

td_status rpc_reply(rpc_call *call, const void *bytes, size_t n)
{
    rpc_server *s = call->server;

    if (n <= s->opt.max_message_bytes)
        return call_finish(call, bytes, n);
    td_warn("rpc_reply_too_large", "url=%s bytes=%zu max=%zu", rpc_link_url(&s->link), n,
            s->opt.max_message_bytes);
    rpc_call_drop(call);
    return TD_TOOLARGE;
}

void rpc_call_drop(rpc_call *call)
{
    td_slice dropped = call->server->opt.dropped;

    call_finish(call, dropped.ptr, dropped.len);
}
