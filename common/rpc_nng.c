#include "common/rpc_nng.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

enum { RECONNECT_MIN_MS = 100, RECONNECT_MAX_MS = 5000 };

td_status rpc_nng_status(int rv)
{
    switch (rv) {
    case 0: return TD_OK;
    case NNG_ENOMEM: return TD_NOMEM;
    case NNG_EINVAL:
    case NNG_EADDRINVAL:
    case NNG_ENOTSUP: return TD_INVALID;
    case NNG_EMSGSIZE: return TD_TOOLARGE;
    case NNG_ETIMEDOUT: return TD_DEADLINE;
    case NNG_ECANCELED: return TD_CANCELED;
    case NNG_ECLOSED:
    case NNG_ECONNRESET:
    case NNG_ECONNABORTED:
    case NNG_ECONNREFUSED:
    case NNG_ECONNSHUT:
    case NNG_EUNREACHABLE: return TD_UNAVAILABLE;
    case NNG_EADDRINUSE:
    case NNG_EPERM:
    case NNG_ENOFILES: return TD_IO;
    default: return TD_INTERNAL;
    }
}

td_status rpc_nng_fail(td_error *err, int rv, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return td_fail(err, rpc_nng_status(rv), "%s: %s", text, nng_strerror(rv));
}

td_status rpc_nng_listen(nng_socket sock, const char *url, size_t max_message_bytes, char **bound,
                         td_error *err)
{
    nng_listener l;
    char *found;
    int rv = nng_listener_create(&l, sock, url);

    if (rv == 0)
        rv = nng_listener_set_size(l, NNG_OPT_RECVMAXSZ, max_message_bytes + RPC_HEADER_ROOM);
    if (rv == 0) {
        nng_listener_set_bool(l, NNG_OPT_TCP_KEEPALIVE, true); /* not known to ipc and inproc */
        rv = nng_listener_start(l, 0);
    }
    if (rv == 0)
        rv = nng_listener_get_string(l, NNG_OPT_URL, &found);
    if (rv != 0)
        return rpc_nng_fail(err, rv, "listening on '%s'", url);
    *bound = strdup(found);
    nng_strfree(found);
    return *bound != NULL ? TD_OK : td_fail(err, TD_NOMEM, "listening on '%s': no memory", url);
}

td_status rpc_nng_dial(nng_socket sock, const char *url, size_t max_message_bytes, td_error *err)
{
    nng_dialer d;
    int rv = nng_dialer_create(&d, sock, url);

    if (rv == 0)
        rv = nng_dialer_set_size(d, NNG_OPT_RECVMAXSZ, max_message_bytes + RPC_HEADER_ROOM);
    if (rv == 0)
        rv = nng_dialer_set_ms(d, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS);
    if (rv == 0)
        rv = nng_dialer_set_ms(d, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS);
    if (rv == 0) {
        nng_dialer_set_bool(d, NNG_OPT_TCP_KEEPALIVE, true); /* not known to ipc and inproc */
        rv = nng_dialer_start(d, NNG_FLAG_NONBLOCK);
    }
    return rv == 0 ? TD_OK : rpc_nng_fail(err, rv, "dialling '%s'", url);
}

nng_msg *rpc_nng_message(const void *bytes, size_t n)
{
    nng_msg *msg;

    if (nng_msg_alloc(&msg, n) != 0)
        return NULL;
    if (n > 0)
        memcpy(nng_msg_body(msg), bytes, n);
    return msg;
}

void rpc_nng_drop_msg(nng_aio *aio)
{
    nng_msg *msg = nng_aio_get_msg(aio);

    nng_aio_set_msg(aio, NULL);
    if (msg != NULL)
        nng_msg_free(msg);
}

static _Thread_local int callback_depth;

void rpc_callback_enter(void)
{
    callback_depth++;
}

void rpc_callback_leave(void)
{
    callback_depth--;
}

void rpc_not_in_callback(const char *function)
{
    if (callback_depth == 0)
        return;
    td_logerr("rpc_blocking_call_in_callback", "function=%s", function);
    td_assert(callback_depth == 0);
}

/* ---- peers ---- */

void rpc_peers_init(rpc_peers *t, bool single, void (*on_peer)(void *, uint32_t, bool), void *owner)
{
    *t = (rpc_peers){.single = single, .on_peer = on_peer, .owner = owner};
    pthread_mutex_init(&t->lock, NULL);
}

void rpc_peers_fini(rpc_peers *t)
{
    pthread_mutex_destroy(&t->lock);
    free(t->peers);
    t->peers = NULL;
}

static rpc_peer *peers_find(rpc_peers *t, uint32_t id)
{
    for (size_t i = 0; i < t->n; i++) {
        if (t->peers[i].id == id)
            return &t->peers[i];
    }
    return NULL;
}

static void peers_tell(rpc_peers *t, uint32_t id, bool up)
{
    if (t->on_peer == NULL || t->closing)
        return;
    rpc_callback_enter();
    t->on_peer(t->owner, id, up);
    rpc_callback_leave();
}

static void peers_up(rpc_peers *t, rpc_peer *p)
{
    if (!p->up) {
        p->up = true;
        peers_tell(t, p->id, true);
    }
}

static void peers_remove(rpc_peers *t, rpc_peer *p)
{
    rpc_peer gone = *p;

    *p = t->peers[--t->n];
    if (gone.up)
        peers_tell(t, gone.id, false);
}

/* A pipe that is never heard of again costs an entry, so every entry is made here and ended by
 * REM_POST, which follows ADD_PRE always. */
static void peers_add(rpc_peers *t, nng_pipe pipe)
{
    rpc_peer *grown;

    if (t->n == t->cap) {
        size_t cap = t->cap == 0 ? 4 : t->cap * 2;

        grown = realloc(t->peers, cap * sizeof *grown);
        if (grown == NULL) {
            nng_pipe_close(pipe); /* the peer dials again */
            return;
        }
        t->peers = grown;
        t->cap = cap;
    }
    while (t->single && t->n > 0) {
        nng_pipe old = {.id = t->peers[0].id};

        peers_remove(t, &t->peers[0]);
        nng_pipe_close(old);
    }
    t->peers[t->n++] = (rpc_peer){.id = (uint32_t)nng_pipe_id(pipe)};
}

static void peers_on_pipe(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
    rpc_peers *t = arg;
    rpc_peer *p;

    pthread_mutex_lock(&t->lock);
    p = peers_find(t, (uint32_t)nng_pipe_id(pipe));
    if (ev == NNG_PIPE_EV_ADD_PRE)
        peers_add(t, pipe);
    else if (ev == NNG_PIPE_EV_ADD_POST && p != NULL)
        peers_up(t, p);
    else if (ev == NNG_PIPE_EV_REM_POST && p != NULL)
        peers_remove(t, p);
    pthread_mutex_unlock(&t->lock);
}

int rpc_peers_watch(rpc_peers *t, nng_socket sock)
{
    static const nng_pipe_ev all[] = {NNG_PIPE_EV_ADD_PRE, NNG_PIPE_EV_ADD_POST,
                                      NNG_PIPE_EV_REM_POST};
    int rv = 0;

    for (size_t i = 0; i < sizeof all / sizeof all[0] && rv == 0; i++)
        rv = nng_pipe_notify(sock, all[i], peers_on_pipe, t);
    return rv;
}

bool rpc_peers_enter(rpc_peers *t, uint32_t peer)
{
    rpc_peer *p;

    pthread_mutex_lock(&t->lock);
    p = peers_find(t, peer);
    if (p == NULL || t->closing) {
        pthread_mutex_unlock(&t->lock);
        return false;
    }
    peers_up(t, p);
    return true;
}

void rpc_peers_leave(rpc_peers *t)
{
    pthread_mutex_unlock(&t->lock);
}

void rpc_peers_close(rpc_peers *t)
{
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    pthread_mutex_unlock(&t->lock);
}
