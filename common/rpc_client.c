/* A REQ socket with one context for each call in flight.
 *
 * A slot is a context and its aio. It goes IDLE -> SENDING (waiting for a connection, or for the
 * one there is to take the request) -> RECEIVING -> IDLE; one deadline covers both waits. Slots are
 * made when needed and kept. Idle ones queue first in, first out: see client_early().
 *
 * REQ resends by itself, after a time and at once when a connection is lost: a server that died
 * with a request would get it again when it is back. NNG_OPT_REQ_RESENDTIME infinite turns off
 * both, and a lost connection then ends the calls on it with NNG_ECONNRESET. */
#include "common/rpc.h"

#include <stdlib.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>

#include "common/clock.h"
#include "common/rpc_nng.h"

enum { DEFAULT_CALLS = 4096 };

typedef enum slot_state { SLOT_IDLE, SLOT_SENDING, SLOT_RECEIVING } slot_state;

typedef struct client_slot {
    rpc_client *client;
    nng_ctx ctx;
    nng_aio *aio;
    slot_state state;
    td_usec deadline;
    rpc_reply_fn cb;
    void *user;
    struct client_slot *next_idle, *next; /* next: of all slots */
} client_slot;

struct rpc_client {
    rpc_client_options opt; /* its url is ours below */
    char *url;
    nng_socket sock; /* id 0: none yet */
    rpc_peers peers;
    pthread_mutex_t lock; /* of all below, and of the slots */
    bool closing;
    uint32_t n_slots;
    client_slot *slots;
    client_slot *idle_first, *idle_last;
};

static void idle_append(rpc_client *c, client_slot *slot)
{
    slot->state = SLOT_IDLE;
    slot->next_idle = NULL;
    if (c->idle_last != NULL)
        c->idle_last->next_idle = slot;
    else
        c->idle_first = slot;
    c->idle_last = slot;
}

static client_slot *idle_take(rpc_client *c)
{
    client_slot *slot = c->idle_first;

    if (slot == NULL)
        return NULL;
    c->idle_first = slot->next_idle;
    if (c->idle_first == NULL)
        c->idle_last = NULL;
    return slot;
}

/* NNG's expiry thread can cancel the operation that follows the one that it meant, when that ended
 * at the same moment. The slot queue makes it unlikely; the clock tells it from a deadline. The
 * request may have been executed, so it ends as if its connection had been lost. */
static bool client_early(const client_slot *slot)
{
    return td_now_us() < slot->deadline - 2 * TD_USEC_PER_MSEC;
}

static td_status client_status(const client_slot *slot, int rv)
{
    if (rv != 0 && slot->client->closing)
        return TD_CANCELED;
    switch (rv) {
    case 0: return TD_OK;
    case NNG_ETIMEDOUT: return client_early(slot) ? TD_UNAVAILABLE : TD_DEADLINE;
    case NNG_ENOMEM: return TD_NOMEM;
    default: return TD_UNAVAILABLE;
    }
}

/* The request is with a connection; wait for the reply. Lock held. False: it is over, with *rv. */
static bool slot_receive(client_slot *slot, int *rv)
{
    td_usec left = slot->deadline - td_now_us();

    if (slot->client->closing || left <= 0) {
        *rv = NNG_ETIMEDOUT;
        return false;
    }
    slot->state = SLOT_RECEIVING;
    nng_aio_set_timeout(slot->aio, (nng_duration)(left / TD_USEC_PER_MSEC + 1));
    nng_ctx_recv(slot->ctx, slot->aio);
    return true;
}

static void slot_on_aio(void *arg)
{
    client_slot *slot = arg;
    rpc_client *c = slot->client;
    nng_msg *msg = NULL;
    rpc_reply_fn cb;
    td_status st;
    void *user;
    int rv;

    pthread_mutex_lock(&c->lock);
    rv = nng_aio_result(slot->aio);
    if (rv == 0 && slot->state == SLOT_SENDING) {
        if (slot_receive(slot, &rv)) {
            pthread_mutex_unlock(&c->lock);
            return;
        }
    } else if (rv == 0) {
        msg = nng_aio_get_msg(slot->aio);
        nng_aio_set_msg(slot->aio, NULL);
    } else {
        rpc_nng_drop_msg(slot->aio);
    }
    st = client_status(slot, rv);
    cb = slot->cb;
    user = slot->user;
    /* Idle before cb, so that cb can make the next call within the bound; the slot is not ours any
     * more then. */
    idle_append(c, slot);
    pthread_mutex_unlock(&c->lock);

    rpc_callback_enter();
    cb(user, st, msg != NULL ? nng_msg_body(msg) : NULL, msg != NULL ? nng_msg_len(msg) : 0);
    rpc_callback_leave();
    if (msg != NULL)
        nng_msg_free(msg);
}

/* Lock held. */
static client_slot *slot_create(rpc_client *c)
{
    client_slot *slot = calloc(1, sizeof *slot);

    if (slot == NULL)
        return NULL;
    slot->client = c;
    if (nng_aio_alloc(&slot->aio, slot_on_aio, slot) != 0) {
        free(slot);
        return NULL;
    }
    if (nng_ctx_open(&slot->ctx, c->sock) != 0) {
        nng_aio_free(slot->aio); /* never used: has no callback to wait for */
        free(slot);
        return NULL;
    }
    slot->next = c->slots;
    c->slots = slot;
    c->n_slots++;
    return slot;
}

static void client_on_peer(void *owner, uint32_t peer, bool up)
{
    rpc_client *c = owner;

    (void)peer;
    if (c->opt.on_peer != NULL)
        c->opt.on_peer(c->opt.user, up);
}

td_status rpc_client_open(const rpc_client_options *opt, rpc_client **out, td_error *err)
{
    rpc_client *c = calloc(1, sizeof *c);
    td_status st;
    int rv;

    if (c == NULL)
        return td_fail(err, TD_NOMEM, "rpc client of '%s': no memory", opt->url);
    c->opt = *opt;
    if (c->opt.max_calls == 0)
        c->opt.max_calls = DEFAULT_CALLS;
    if (c->opt.max_message_bytes == 0)
        c->opt.max_message_bytes = RPC_MAX_MESSAGE_BYTES;
    pthread_mutex_init(&c->lock, NULL);
    rpc_peers_init(&c->peers, true, client_on_peer, c);
    c->url = strdup(opt->url);
    if (c->url == NULL) {
        st = td_fail(err, TD_NOMEM, "rpc client of '%s': no memory", opt->url);
        goto fail;
    }
    rv = nng_req0_open(&c->sock);
    if (rv == 0) /* before any context, which takes it from the socket */
        rv = nng_socket_set_ms(c->sock, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (rv == 0)
        rv = rpc_peers_watch(&c->peers, c->sock);
    if (rv != 0) {
        st = rpc_nng_fail(err, rv, "rpc client of '%s'", opt->url);
        goto fail;
    }
    *out = c; /* before the first callback, which may want it */
    st = rpc_nng_dial(c->sock, opt->url, c->opt.max_message_bytes, err);
    if (st == TD_OK)
        return TD_OK;
    *out = NULL;

fail:
    rpc_client_close(c);
    return st;
}

void rpc_client_close(rpc_client *c)
{
    client_slot *next;

    if (c == NULL)
        return;
    rpc_not_in_callback(__func__);
    rpc_peers_close(&c->peers);
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_mutex_unlock(&c->lock);
    /* No operation starts and no slot is added from here on. */
    for (client_slot *s = c->slots; s != NULL; s = s->next)
        nng_aio_stop(s->aio);
    for (client_slot *s = c->slots; s != NULL; s = next) {
        next = s->next;
        td_assert(s->state == SLOT_IDLE);
        nng_aio_free(s->aio);
        nng_ctx_close(s->ctx);
        free(s);
    }
    if (c->sock.id != 0)
        nng_close(c->sock);
    rpc_peers_fini(&c->peers);
    pthread_mutex_destroy(&c->lock);
    free(c->url);
    free(c);
}

td_status rpc_client_call(rpc_client *c, const void *bytes, size_t n, uint32_t timeout_ms,
                          rpc_reply_fn cb, void *user, td_error *err)
{
    uint32_t ms = timeout_ms > INT32_MAX ? INT32_MAX : timeout_ms > 0 ? timeout_ms : 1;
    client_slot *slot = NULL;
    td_status st = TD_OK;
    nng_msg *msg;

    if (n > c->opt.max_message_bytes)
        return td_fail(err, TD_TOOLARGE, "request of %zu bytes to %s: at most %zu", n, c->url,
                       c->opt.max_message_bytes);
    msg = rpc_nng_message(bytes, n);
    if (msg == NULL)
        return td_fail(err, TD_NOMEM, "request of %zu bytes to %s: no memory", n, c->url);

    pthread_mutex_lock(&c->lock);
    if (c->closing) {
        st = td_fail(err, TD_CANCELED, "request to %s: its client is being closed", c->url);
    } else {
        slot = idle_take(c);
        if (slot == NULL && c->n_slots >= c->opt.max_calls)
            st = td_fail(err, TD_BUSY, "request to %s: %u calls are outstanding", c->url,
                         c->n_slots);
        else if (slot == NULL && (slot = slot_create(c)) == NULL)
            st = td_fail(err, TD_NOMEM, "request to %s: no memory for another call", c->url);
    }
    if (st == TD_OK) {
        slot->cb = cb;
        slot->user = user;
        slot->deadline = td_now_us() + (td_usec)ms * TD_USEC_PER_MSEC;
        slot->state = SLOT_SENDING;
        nng_aio_set_msg(slot->aio, msg);
        nng_aio_set_timeout(slot->aio, (nng_duration)ms);
        nng_ctx_send(slot->ctx, slot->aio);
    }
    pthread_mutex_unlock(&c->lock);
    if (st != TD_OK)
        nng_msg_free(msg);
    return st;
}

typedef struct call_wait {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool over;
    td_status st;
    td_buf *reply;
} call_wait;

static void call_wait_on_reply(void *user, td_status st, const void *bytes, size_t n)
{
    call_wait *w = user;

    pthread_mutex_lock(&w->lock);
    w->over = true;
    w->st = st;
    if (st == TD_OK) {
        td_buf_add(w->reply, bytes, n);
        if (w->reply->oom)
            w->st = TD_NOMEM;
    }
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

td_status rpc_client_call_wait(rpc_client *c, const void *bytes, size_t n, uint32_t timeout_ms,
                               td_buf *reply, td_error *err)
{
    call_wait w = {.reply = reply};
    td_status st;

    rpc_not_in_callback(__func__);
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.done, NULL);
    st = rpc_client_call(c, bytes, n, timeout_ms, call_wait_on_reply, &w, err);
    if (st == TD_OK) {
        pthread_mutex_lock(&w.lock);
        while (!w.over) /* ends by the call's own deadline */
            pthread_cond_wait(&w.done, &w.lock);
        pthread_mutex_unlock(&w.lock);
        st = w.st;
        if (st != TD_OK)
            td_fail(err, st, "request to %s: %s after at most %u ms", c->url, td_status_name(st),
                    timeout_ms);
    }
    pthread_cond_destroy(&w.done);
    pthread_mutex_destroy(&w.lock);
    return st;
}
