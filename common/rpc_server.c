/* A REP socket with one context for each call that may be open at once.
 *
 * A context goes RECEIVING -> HELD (the user has the call) -> SENDING -> RECEIVING. While all are
 * held no context receives and further requests stay in their connections, which is the bound.
 * Calls outlive rpc_server_close() if their holder has not answered: the server's memory is
 * counted, one for the owner and one for each held call, but NNG's part ends with the close. */
#include "common/rpc.h"

#include <stdlib.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#include "common/log.h"
#include "common/rpc_nng.h"

/* A reply that its connection will not take for so long: the peer does not read, and would hold the
 * context for ever. */
enum { REPLY_STUCK_MS = 5000, DEFAULT_CALLS = 64 };

typedef enum call_state { CALL_RECEIVING, CALL_HELD, CALL_SENDING } call_state;

struct rpc_call {
    rpc_server *server;
    nng_ctx ctx; /* id 0: none yet */
    nng_aio *aio;
    call_state state;
    nng_msg *request; /* while HELD */
    uint32_t peer;
};

struct rpc_server {
    rpc_server_options opt; /* url is not kept */
    char *url;
    nng_socket sock; /* id 0: none yet */
    rpc_peers peers;
    pthread_mutex_t lock; /* of closing, refs, and of the state of calls */
    bool closing;
    size_t refs;
    rpc_call *calls; /* opt.max_calls */
    char dropped[];
};

static void server_free(rpc_server *s)
{
    rpc_peers_fini(&s->peers);
    pthread_mutex_destroy(&s->lock);
    free(s->calls);
    free(s->url);
    free(s);
}

/* Lock held. */
static void call_receive(rpc_call *call)
{
    if (call->server->closing)
        return;
    call->state = CALL_RECEIVING;
    nng_aio_set_timeout(call->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(call->ctx, call->aio);
}

/* End a held call: send msg, which is taken; NULL: let the client run into its deadline. */
static void call_finish(rpc_call *call, nng_msg *msg)
{
    rpc_server *s = call->server;
    nng_msg *request;
    bool last;

    pthread_mutex_lock(&s->lock);
    td_assert(call->state == CALL_HELD);
    request = call->request;
    call->request = NULL;
    if (msg == NULL || s->closing) {
        call_receive(call);
    } else {
        call->state = CALL_SENDING;
        nng_aio_set_msg(call->aio, msg);
        nng_aio_set_timeout(call->aio, REPLY_STUCK_MS);
        nng_ctx_send(call->ctx, call->aio);
        msg = NULL;
    }
    last = --s->refs == 0;
    pthread_mutex_unlock(&s->lock);
    nng_msg_free(request);
    if (msg != NULL)
        nng_msg_free(msg);
    if (last)
        server_free(s);
}

/* A request is in. From here on the call may be answered, and used for another request, by any
 * thread: nothing of it is read after on_request. */
static void call_held(rpc_call *call, nng_msg *msg)
{
    rpc_server *s = call->server;

    if (!rpc_peers_enter(&s->peers, call->peer)) { /* nobody is left to answer to */
        call_finish(call, NULL);
        return;
    }
    rpc_peers_leave(&s->peers);
    rpc_callback_enter();
    s->opt.on_request(s->opt.user, call, nng_msg_body(msg), nng_msg_len(msg));
    rpc_callback_leave();
}

static void call_on_aio(void *arg)
{
    rpc_call *call = arg;
    rpc_server *s = call->server;
    nng_msg *msg = NULL;
    int rv;

    pthread_mutex_lock(&s->lock);
    rv = nng_aio_result(call->aio);
    if (call->state == CALL_RECEIVING && rv == 0) {
        msg = nng_aio_get_msg(call->aio);
        nng_aio_set_msg(call->aio, NULL);
        call->request = msg;
        call->peer = (uint32_t)nng_pipe_id(nng_msg_get_pipe(msg));
        call->state = CALL_HELD;
        s->refs++;
    } else {
        if (call->state == CALL_SENDING && rv != 0) {
            rpc_nng_drop_msg(call->aio);
            if (rv == NNG_ETIMEDOUT && !s->closing) {
                td_warn("rpc_peer_does_not_read", "url=%s peer=%u waited_ms=%d", s->url, call->peer,
                        REPLY_STUCK_MS);
                nng_pipe_close((nng_pipe){.id = call->peer});
            }
        }
        call_receive(call);
    }
    pthread_mutex_unlock(&s->lock);
    if (msg != NULL)
        call_held(call, msg);
}

static void server_on_peer(void *owner, uint32_t peer, bool up)
{
    rpc_server *s = owner;

    if (s->opt.on_peer != NULL)
        s->opt.on_peer(s->opt.user, peer, up);
}

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

static int server_start(rpc_server *s)
{
    int rv = nng_rep0_open(&s->sock);

    if (rv == 0)
        rv = rpc_peers_watch(&s->peers, s->sock);
    for (uint32_t i = 0; i < s->opt.max_calls && rv == 0; i++) {
        rpc_call *call = &s->calls[i];

        call->server = s;
        rv = nng_aio_alloc(&call->aio, call_on_aio, call);
        if (rv == 0)
            rv = nng_ctx_open(&call->ctx, s->sock);
    }
    return rv;
}

td_status rpc_server_open(const rpc_server_options *opt, rpc_server **out, td_error *err)
{
    char dropped[64];
    td_slice d = opt->dropped;
    rpc_server *s;
    td_status st;
    int rv;

    if (d.ptr == NULL)
        d = (td_slice){dropped, default_dropped(dropped, sizeof dropped)};
    s = calloc(1, sizeof *s + d.len);
    if (s == NULL)
        return td_fail(err, TD_NOMEM, "rpc server on '%s': no memory", opt->url);
    s->opt = *opt;
    s->opt.dropped = (td_slice){s->dropped, d.len};
    memcpy(s->dropped, d.ptr, d.len);
    if (s->opt.max_calls == 0)
        s->opt.max_calls = DEFAULT_CALLS;
    if (s->opt.max_message_bytes == 0)
        s->opt.max_message_bytes = RPC_MAX_MESSAGE_BYTES;
    s->refs = 1;
    pthread_mutex_init(&s->lock, NULL);
    rpc_peers_init(&s->peers, false, server_on_peer, s);
    s->calls = calloc(s->opt.max_calls, sizeof *s->calls);
    if (s->calls == NULL) {
        s->opt.max_calls = 0;
        st = td_fail(err, TD_NOMEM, "rpc server on '%s': no memory for its calls", opt->url);
        goto fail;
    }
    rv = server_start(s);
    if (rv != 0) {
        st = rpc_nng_fail(err, rv, "rpc server on '%s'", opt->url);
        goto fail;
    }
    st = rpc_nng_listen(s->sock, opt->url, s->opt.max_message_bytes, &s->url, err);
    if (st != TD_OK)
        goto fail;
    *out = s;
    /* Last: a request may come at once, and its callback may want *out. */
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->opt.max_calls; i++)
        call_receive(&s->calls[i]);
    pthread_mutex_unlock(&s->lock);
    return TD_OK;

fail:
    rpc_server_close(s);
    return st;
}

void rpc_server_close(rpc_server *s)
{
    bool last;

    if (s == NULL)
        return;
    rpc_not_in_callback(__func__);
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    rpc_peers_close(&s->peers);
    for (uint32_t i = 0; i < s->opt.max_calls; i++)
        nng_aio_stop(s->calls[i].aio);
    for (uint32_t i = 0; i < s->opt.max_calls; i++) {
        nng_aio_free(s->calls[i].aio);
        if (s->calls[i].ctx.id != 0)
            nng_ctx_close(s->calls[i].ctx);
    }
    if (s->sock.id != 0)
        nng_close(s->sock);
    pthread_mutex_lock(&s->lock);
    last = --s->refs == 0;
    pthread_mutex_unlock(&s->lock);
    if (last)
        server_free(s);
}

const char *rpc_server_url(const rpc_server *s)
{
    return s->url;
}

td_status rpc_reply(rpc_call *call, const void *bytes, size_t n)
{
    const rpc_server_options *opt = &call->server->opt;
    nng_msg *msg = NULL;
    td_status st = TD_OK;

    if (n > opt->max_message_bytes) {
        st = TD_TOOLARGE;
        td_warn("rpc_reply_too_large", "url=%s bytes=%zu max=%zu", call->server->url, n,
                opt->max_message_bytes);
    } else {
        msg = rpc_nng_message(bytes, n);
        if (msg == NULL)
            st = TD_NOMEM;
    }
    if (st != TD_OK)
        msg = rpc_nng_message(opt->dropped.ptr, opt->dropped.len);
    call_finish(call, msg);
    return st;
}

void rpc_call_drop(rpc_call *call)
{
    const rpc_server_options *opt = &call->server->opt;

    call_finish(call, rpc_nng_message(opt->dropped.ptr, opt->dropped.len));
}

uint32_t rpc_call_peer(const rpc_call *call)
{
    return call->peer;
}
