/* A PUSH socket, a queue, and one aio: with one send in flight at a time, order is kept.
 *
 * A send ends when the connection took the message, which it does when the message before it is
 * with the operating system. Invariant, while not dead: if something is queued, a send is in
 * flight, so its callback goes on with the queue. A push dies of its bounds or of a send that timed
 * out; the callback of the send in flight, which is then aborted, tells the user, so that on_dead
 * never runs inside rpc_push_send(). */
#include "common/rpc.h"

#include <stdlib.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/protocol/pipeline0/push.h>

#include "common/clock.h"
#include "common/rpc_nng.h"

enum { DEFAULT_MESSAGES = 64, DEFAULT_BYTES = 16 << 20, DEFAULT_STUCK_MS = 5000 };

struct rpc_push {
    rpc_push_options opt; /* its url is ours below */
    char *name, *url;     /* as given; as bound */
    nng_socket sock;      /* id 0: none yet */
    nng_aio *aio;
    rpc_peers peers;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t idle;  /* nothing is in flight any more, or the push is dead */
    bool closing;
    bool in_flight;
    bool aborted;      /* the send in flight is one of a push that died: its end means nothing */
    bool dead, unsaid; /* unsaid: on_dead is still to be called */
    td_status why;
    nng_msg **ring; /* waiting, opt.max_messages of them at most; the oldest at `first` */
    uint32_t first, n;
    size_t n_bytes, flight_bytes;
};

/* Lock held; nothing in flight. */
static void push_start(rpc_push *p, nng_msg *msg)
{
    p->in_flight = true;
    p->flight_bytes = nng_msg_len(msg);
    nng_aio_set_msg(p->aio, msg);
    nng_aio_set_timeout(p->aio, (nng_duration)p->opt.stuck_ms);
    nng_send_aio(p->sock, p->aio);
}

static nng_msg *ring_take(rpc_push *p)
{
    nng_msg *msg = p->ring[p->first];

    p->first = (p->first + 1) % p->opt.max_messages;
    p->n--;
    p->n_bytes -= nng_msg_len(msg);
    return msg;
}

/* Lock held. */
static void push_die(rpc_push *p, td_status why)
{
    p->dead = p->unsaid = true;
    p->why = why;
    while (p->n > 0)
        nng_msg_free(ring_take(p));
    pthread_cond_broadcast(&p->idle);
}

static void push_tell_dead(rpc_push *p, td_status why)
{
    if (p->opt.on_dead == NULL)
        return;
    pthread_mutex_lock(&p->peers.lock); /* not at the same time as an on_peer */
    if (!p->peers.closing) {
        rpc_callback_enter();
        p->opt.on_dead(p->opt.user, why);
        rpc_callback_leave();
    }
    pthread_mutex_unlock(&p->peers.lock);
}

static void push_on_aio(void *arg)
{
    rpc_push *p = arg;
    bool tell;
    td_status why;
    int rv;

    pthread_mutex_lock(&p->lock);
    rv = nng_aio_result(p->aio);
    if (rv != 0)
        rpc_nng_drop_msg(p->aio);
    p->in_flight = false;
    p->flight_bytes = 0;
    if (rv != 0 && !p->aborted && !p->dead && !p->closing)
        push_die(p, rv == NNG_ETIMEDOUT ? TD_DEADLINE : rpc_nng_status(rv));
    p->aborted = false;
    tell = p->unsaid;
    why = p->why;
    p->unsaid = false;
    if (!p->closing && p->n > 0)
        push_start(p, ring_take(p));
    else
        pthread_cond_broadcast(&p->idle);
    pthread_mutex_unlock(&p->lock);
    if (tell)
        push_tell_dead(p, why);
}

static void push_on_peer(void *owner, uint32_t peer, bool up)
{
    rpc_push *p = owner;

    (void)peer;
    if (p->opt.on_peer != NULL)
        p->opt.on_peer(p->opt.user, up);
}

static td_status push_start_socket(rpc_push *p, td_error *err)
{
    int rv = nng_push0_open(&p->sock);

    if (rv == 0)
        rv = rpc_peers_watch(&p->peers, p->sock);
    if (rv == 0)
        rv = nng_aio_alloc(&p->aio, push_on_aio, p);
    if (rv != 0)
        return rpc_nng_fail(err, rv, "push to '%s'", p->name);
    if (p->opt.listen)
        return rpc_nng_listen(p->sock, p->name, p->opt.max_message_bytes, &p->url, err);
    return rpc_nng_dial(p->sock, p->name, p->opt.max_message_bytes, err);
}

td_status rpc_push_open(const rpc_push_options *opt, rpc_push **out, td_error *err)
{
    rpc_push *p = calloc(1, sizeof *p);
    pthread_condattr_t monotonic;
    td_status st;

    if (p == NULL)
        return td_fail(err, TD_NOMEM, "push to '%s': no memory", opt->url);
    p->opt = *opt;
    if (p->opt.max_messages == 0)
        p->opt.max_messages = DEFAULT_MESSAGES;
    if (p->opt.max_bytes == 0)
        p->opt.max_bytes = DEFAULT_BYTES;
    if (p->opt.max_message_bytes == 0)
        p->opt.max_message_bytes = RPC_MAX_MESSAGE_BYTES;
    if (p->opt.stuck_ms == 0)
        p->opt.stuck_ms = DEFAULT_STUCK_MS;
    if (p->opt.stuck_ms > INT32_MAX)
        p->opt.stuck_ms = INT32_MAX;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    rpc_peers_init(&p->peers, true, push_on_peer, p);
    p->name = strdup(opt->url);
    p->ring = calloc(p->opt.max_messages, sizeof *p->ring);
    if (p->name == NULL || p->ring == NULL) {
        st = td_fail(err, TD_NOMEM, "push to '%s': no memory for %u messages", opt->url,
                     p->opt.max_messages);
        rpc_push_close(p);
        return st;
    }
    *out = p; /* before the first callback, which may want it */
    st = push_start_socket(p, err);
    if (st != TD_OK) {
        *out = NULL;
        rpc_push_close(p);
    }
    return st;
}

void rpc_push_close(rpc_push *p)
{
    if (p == NULL)
        return;
    rpc_not_in_callback(__func__);
    rpc_peers_close(&p->peers);
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    nng_aio_stop(p->aio);
    nng_aio_free(p->aio);
    if (p->sock.id != 0)
        nng_close(p->sock);
    while (p->n > 0)
        nng_msg_free(ring_take(p));
    rpc_peers_fini(&p->peers);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    free(p->ring);
    free(p->name);
    free(p->url);
    free(p);
}

const char *rpc_push_url(const rpc_push *p)
{
    return p->url != NULL ? p->url : p->name;
}

td_status rpc_push_send(rpc_push *p, const void *bytes, size_t n, td_error *err)
{
    td_status st = TD_OK;
    nng_msg *msg;

    if (n > p->opt.max_message_bytes)
        return td_fail(err, TD_TOOLARGE, "message of %zu bytes to %s: at most %zu", n, p->name,
                       p->opt.max_message_bytes);
    msg = rpc_nng_message(bytes, n);
    if (msg == NULL)
        return td_fail(err, TD_NOMEM, "message of %zu bytes to %s: no memory", n, p->name);

    pthread_mutex_lock(&p->lock);
    if (p->closing) {
        st = td_fail(err, TD_CANCELED, "message to %s: the push is being closed", p->name);
    } else if (p->dead) {
        st = td_fail(err, TD_UNAVAILABLE, "message to %s: the push is dead (%s)", p->name,
                     td_status_name(p->why));
    } else if (!p->in_flight) {
        push_start(p, msg);
    } else if (p->n < p->opt.max_messages && n <= p->opt.max_bytes - p->n_bytes) {
        p->ring[(p->first + p->n++) % p->opt.max_messages] = msg;
        p->n_bytes += n;
    } else {
        st = td_fail(err, TD_UNAVAILABLE, "message to %s: %u messages of %zu bytes wait already",
                     p->name, p->n, p->n_bytes);
        push_die(p, TD_BUSY);
        p->aborted = true;
        nng_aio_abort(p->aio, NNG_ECANCELED);
    }
    pthread_mutex_unlock(&p->lock);
    if (st != TD_OK)
        nng_msg_free(msg);
    return st;
}

void rpc_push_reset(rpc_push *p)
{
    pthread_mutex_lock(&p->lock);
    p->dead = p->unsaid = false;
    pthread_mutex_unlock(&p->lock);
}

void rpc_push_load(const rpc_push *p, size_t *n_messages, size_t *n_bytes)
{
    rpc_push *q = (rpc_push *)p; /* the lock is no part of what const promises */

    pthread_mutex_lock(&q->lock);
    if (n_messages != NULL)
        *n_messages = q->n + (size_t)q->in_flight;
    if (n_bytes != NULL)
        *n_bytes = q->n_bytes + q->flight_bytes;
    pthread_mutex_unlock(&q->lock);
}

td_status rpc_push_flush(rpc_push *p, uint32_t timeout_ms)
{
    struct timespec until = td_timespec(td_now_us() + (td_usec)timeout_ms * TD_USEC_PER_MSEC);
    td_status st;

    rpc_not_in_callback(__func__);
    pthread_mutex_lock(&p->lock);
    while (p->in_flight && !p->dead) {
        if (pthread_cond_timedwait(&p->idle, &p->lock, &until) != 0)
            break;
    }
    st = p->dead ? TD_UNAVAILABLE : p->in_flight ? TD_DEADLINE : TD_OK;
    pthread_mutex_unlock(&p->lock);
    return st;
}
