/* A queue in front of one connection, which has at most one of its messages at a time: the next is
 * given when that is with the operating system. So the queue's bounds hold for all that is not, and
 * a lost connection takes no more than one message with it that was not sent for sure.
 *
 * A push dies of its bounds, or of a foremost message that waited too long. The service thread
 * tells the user, so that on_dead never runs inside rpc_push_send(). */
#include "common/rpc.h"

#include <stdlib.h>

#include "common/clock.h"
#include "common/rpc_link.h"

enum { DEFAULT_MESSAGES = 64, DEFAULT_BYTES = 16 << 20, DEFAULT_STUCK_MS = 5000 };

struct rpc_push {
    rpc_link link; /* first: a link of a push is the push. Its lock is of all below */
    rpc_push_options opt;
    pthread_cond_t idle;     /* nothing waits and nothing is being written, or the push is dead */
    rpc_frame *first, *last; /* waiting */
    bool writing;            /* a connection has one */
    size_t n, n_bytes;       /* waiting or being written */
    td_usec since;           /* since when the foremost is that; if n > 0 */
    bool dead, unsaid;       /* unsaid: on_dead is still to be called */
    td_status why;
};

/* ---- the queue; lock held in all of it ---- */

static void push_next(rpc_push *p)
{
    rpc_conn *conn;
    rpc_frame *frame;

    if (p->writing || p->first == NULL || (conn = rpc_link_up(&p->link)) == NULL)
        return;
    frame = p->first;
    p->first = frame->next;
    p->writing = true;
    rpc_conn_send(conn, frame);
}

static void push_append(rpc_push *p, rpc_frame *frame)
{
    frame->next = NULL;
    if (p->first == NULL)
        p->first = frame;
    else
        p->last->next = frame;
    p->last = frame;
    if (p->n == 0) {
        p->since = td_now_us();
        rpc_service_due(&p->link.entry, p->since + p->opt.stuck_ms * TD_USEC_PER_MSEC);
    }
    p->n++;
    p->n_bytes += frame->payload_bytes;
}

static void push_drop_waiting(rpc_push *p)
{
    rpc_frame *frame;

    while ((frame = p->first) != NULL) {
        p->first = frame->next;
        p->n--;
        p->n_bytes -= frame->payload_bytes;
        rpc_frame_free(frame);
    }
}

static void push_die(rpc_push *p, td_status why)
{
    rpc_conn *conn = rpc_link_up(&p->link);

    p->dead = p->unsaid = true;
    p->why = why;
    push_drop_waiting(p);
    /* A message may be half written: what comes after a reset needs a stream of its own. */
    if (conn != NULL && p->writing)
        rpc_conn_fail(conn);
    pthread_cond_broadcast(&p->idle);
    rpc_link_kick(&p->link);
}

/* ---- the link's side ---- */

static void push_on_up(rpc_link *link, rpc_conn *conn)
{
    rpc_push *p = (rpc_push *)link;

    (void)conn;
    pthread_mutex_lock(&link->lock);
    push_next(p);
    pthread_mutex_unlock(&link->lock);
    if (p->opt.on_peer != NULL)
        p->opt.on_peer(p->opt.user, true);
}

static void push_on_down(rpc_link *link, rpc_conn *conn)
{
    rpc_push *p = (rpc_push *)link;

    (void)conn;
    if (p->opt.on_peer != NULL)
        p->opt.on_peer(p->opt.user, false);
}

static void push_on_written(rpc_link *link, const rpc_frame *frame)
{
    rpc_push *p = (rpc_push *)link;

    p->writing = false;
    p->n--;
    p->n_bytes -= frame->payload_bytes;
    p->since = td_now_us();
    push_next(p);
    if (p->n == 0)
        pthread_cond_broadcast(&p->idle);
}

/* A puller has nothing to say. */
static bool push_on_message(rpc_link *link, rpc_conn *conn, const unsigned char *bytes, size_t n)
{
    (void)link;
    (void)conn;
    (void)bytes;
    (void)n;
    return true;
}

static td_usec push_on_tick(rpc_link *link, td_usec now)
{
    rpc_push *p = (rpc_push *)link;
    td_usec stuck_at = TD_USEC_NEVER;
    td_status why;
    bool tell;

    pthread_mutex_lock(&link->lock);
    if (p->n > 0 && !p->dead) {
        stuck_at = p->since + p->opt.stuck_ms * TD_USEC_PER_MSEC;
        if (stuck_at <= now) {
            push_die(p, TD_DEADLINE);
            stuck_at = TD_USEC_NEVER;
        }
    }
    tell = p->unsaid;
    why = p->why;
    p->unsaid = false;
    pthread_mutex_unlock(&link->lock);
    if (tell && p->opt.on_dead != NULL) {
        pthread_mutex_lock(&link->events);
        if (!link->muted) {
            rpc_callback_enter();
            p->opt.on_dead(p->opt.user, why);
            rpc_callback_leave();
        }
        pthread_mutex_unlock(&link->events);
    }
    return stuck_at;
}

static const rpc_end_ops push_ops = {
    .self = RPC_SP_PUSH,
    .peer = RPC_SP_PULL,
    .single = true,
    .on_up = push_on_up,
    .on_down = push_on_down,
    .on_message = push_on_message,
    .on_written = push_on_written,
    .on_tick = push_on_tick,
};

/* ---- the user's side ---- */

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
    if (p->opt.max_message_bytes > p->opt.max_bytes)
        p->opt.max_message_bytes = p->opt.max_bytes;
    if (p->opt.stuck_ms == 0)
        p->opt.stuck_ms = DEFAULT_STUCK_MS;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    st = rpc_link_init(&p->link, &push_ops, opt->url, p->opt.max_message_bytes, err);
    *out = p; /* before the first callback, which may want it */
    if (st == TD_OK)
        st = rpc_link_start(&p->link, opt->listen, err);
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
    rpc_link_close(&p->link);
    push_drop_waiting(p);
    rpc_link_fini(&p->link);
    pthread_cond_destroy(&p->idle);
    free(p);
}

const char *rpc_push_url(const rpc_push *p)
{
    return rpc_link_url(&p->link);
}

td_status rpc_push_send(rpc_push *p, const void *bytes, size_t n, td_error *err)
{
    const char *url = p->link.name;
    td_status st = TD_OK;
    rpc_frame *frame;

    if (n > p->opt.max_message_bytes)
        return td_fail(err, TD_TOOLARGE, "message of %zu bytes to %s: at most %zu", n, url,
                       p->opt.max_message_bytes);
    frame = rpc_frame_make(&p->link, 0, NULL, 0, bytes, n);
    if (frame == NULL)
        return td_fail(err, TD_NOMEM, "message of %zu bytes to %s: no memory", n, url);

    pthread_mutex_lock(&p->link.lock);
    if (p->link.closing) {
        st = td_fail(err, TD_CANCELED, "message to %s: the push is being closed", url);
    } else if (p->dead) {
        st = td_fail(err, TD_UNAVAILABLE, "message to %s: the push is dead (%s)", url,
                     td_status_name(p->why));
    } else if (p->n >= p->opt.max_messages || n > p->opt.max_bytes - p->n_bytes) {
        st = td_fail(err, TD_UNAVAILABLE, "message to %s: %zu messages of %zu bytes wait already",
                     url, p->n, p->n_bytes);
        push_die(p, TD_BUSY);
    } else {
        push_append(p, frame);
        frame = NULL;
        push_next(p);
    }
    pthread_mutex_unlock(&p->link.lock);
    rpc_frame_free(frame);
    return st;
}

void rpc_push_reset(rpc_push *p)
{
    pthread_mutex_lock(&p->link.lock);
    p->dead = p->unsaid = false;
    pthread_mutex_unlock(&p->link.lock);
}

void rpc_push_load(const rpc_push *p, size_t *n_messages, size_t *n_bytes)
{
    rpc_push *q = (rpc_push *)p; /* the lock is no part of what const promises */

    pthread_mutex_lock(&q->link.lock);
    if (n_messages != NULL)
        *n_messages = q->n;
    if (n_bytes != NULL)
        *n_bytes = q->n_bytes;
    pthread_mutex_unlock(&q->link.lock);
}

td_status rpc_push_flush(rpc_push *p, uint32_t timeout_ms)
{
    struct timespec until = td_timespec(td_now_us() + (td_usec)timeout_ms * TD_USEC_PER_MSEC);
    td_status st;

    rpc_not_in_callback(__func__);
    pthread_mutex_lock(&p->link.lock);
    while (p->n > 0 && !p->dead) {
        if (pthread_cond_timedwait(&p->idle, &p->link.lock, &until) != 0)
            break;
    }
    st = p->dead ? TD_UNAVAILABLE : p->n > 0 ? TD_DEADLINE : TD_OK;
    pthread_mutex_unlock(&p->link.lock);
    return st;
}
