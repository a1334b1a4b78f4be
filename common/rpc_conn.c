/* One connection: greeting, receive chain, writing. See rpc_link.h. */
#include "common/rpc_link.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "common/log.h"

enum {
    GREETING_BYTES = 8,
    GREETING_MS = 10000,
    IN_BYTES = 16 << 10,       /* kept by every connection */
    IN_BYTES_KEPT = 256 << 10, /* a buffer that grew past this is given back when it is empty */
};

#define GREETING_TAG UINT64_MAX

static atomic_uint last_id; /* relaxed: only uniqueness matters */

/* ---- writing; lock held in all of it ---- */

static void conn_write(rpc_conn *conn)
{
    nng_iov iov = {conn->out->bytes + conn->written, conn->out->n - conn->written};

    nng_aio_set_iov(conn->tx, 1, &iov);
    nng_stream_send(conn->stream, conn->tx);
}

static void conn_write_first(rpc_conn *conn)
{
    rpc_link *link = conn->link;

    conn->written = 0;
    conn->writing_since = td_now_us();
    if (link->max_write > 0)
        rpc_service_due(&link->entry, conn->writing_since + link->max_write);
    conn_write(conn);
}

void rpc_conn_send(rpc_conn *conn, rpc_frame *frame)
{
    frame->next = NULL;
    if (conn->out == NULL)
        conn->out = frame;
    else
        conn->out_last->next = frame;
    conn->out_last = frame;
    if (conn->writing_since == TD_USEC_NEVER && !conn->failed)
        conn_write_first(conn);
}

rpc_frame *rpc_conn_unsend(rpc_conn *conn, uint64_t tag)
{
    rpc_frame *before = conn->out, *frame;

    if (before == NULL) /* the first one is always being written */
        return NULL;
    for (; (frame = before->next) != NULL; before = frame) {
        if (frame->tag == tag) {
            before->next = frame->next;
            if (frame == conn->out_last)
                conn->out_last = before;
            return frame;
        }
    }
    return NULL;
}

static void conn_on_tx(void *arg)
{
    rpc_conn *conn = arg;
    rpc_link *link = conn->link;
    rpc_frame *frame;

    pthread_mutex_lock(&link->lock);
    frame = conn->out;
    if (nng_aio_result(conn->tx) != 0)
        rpc_conn_fail(conn);
    else
        conn->written += nng_aio_count(conn->tx);
    if (!conn->failed && conn->written < frame->n) {
        conn_write(conn);
        pthread_mutex_unlock(&link->lock);
        return;
    }
    conn->out = frame->next;
    conn->writing_since = TD_USEC_NEVER;
    if (conn->out != NULL && !conn->failed)
        conn_write_first(conn);
    if (frame->tag != GREETING_TAG && link->ops->on_written != NULL)
        link->ops->on_written(link, frame);
    pthread_mutex_unlock(&link->lock);
    rpc_frame_free(frame);
}

void rpc_conn_fail(rpc_conn *conn)
{
    if (conn->failed)
        return;
    conn->failed = true;
    nng_stream_close(conn->stream); /* ends what its aios do, with their callbacks */
    if (!conn->chain)
        rpc_link_kick(conn->link);
}

/* ---- the receive chain ---- */

/* Up or down. By the chain, or by who may take its place. */
static void conn_tell(rpc_conn *conn, void (*tell)(rpc_link *, rpc_conn *))
{
    rpc_link *link = conn->link;

    pthread_mutex_lock(&link->events);
    if (tell != NULL && !link->muted) {
        rpc_callback_enter();
        tell(link, conn);
        rpc_callback_leave();
    }
    pthread_mutex_unlock(&link->events);
}

static void conn_end(rpc_conn *conn)
{
    rpc_link *link = conn->link;
    rpc_conn *other;

    if (conn->state == CONN_UP)
        conn_tell(conn, link->ops->on_down);
    pthread_mutex_lock(&link->lock);
    conn->state = CONN_ENDED;
    conn->chain = false;
    DL_DELETE(link->conns, conn);
    DL_APPEND(link->ended, conn);
    DL_FOREACH(link->conns, other)
    {
        if (other->state == CONN_WAITING && !other->failed) {
            rpc_conn_start(other);
            break;
        }
    }
    if (link->dialer != NULL)
        rpc_link_retry_later(link);
    rpc_link_kick(link);
    pthread_mutex_unlock(&link->lock);
}

typedef enum cut { CUT_NOTHING, CUT_GREETING, CUT_MESSAGE, CUT_BROKEN } cut;

static const char *sp_name(unsigned protocol)
{
    switch (protocol) {
    case RPC_SP_REQ: return "REQ";
    case RPC_SP_REP: return "REP";
    case RPC_SP_PUSH: return "PUSH";
    case RPC_SP_PULL: return "PULL";
    default: return "other";
    }
}

static cut conn_cut_greeting(const rpc_conn *conn, const unsigned char *p, size_t have)
{
    unsigned peer = conn->link->ops->peer;
    unsigned char want[GREETING_BYTES] = {0, 'S', 'P', 0, peer >> 8, peer & 255, 0, 0};

    if (memcmp(p, want, have < sizeof want ? have : sizeof want) != 0) {
        bool sp = have >= sizeof want && memcmp(p, want, 4) == 0;

        td_warn("rpc_wrong_greeting",
                "url=%s found=%s expected=%s what=\"workers dial a router's --workers-listen, "
                "gateways its --rpc-listen\"",
                rpc_link_url(conn->link), sp_name(sp ? (unsigned)p[4] << 8 | p[5] : 0),
                sp_name(peer));
        return CUT_BROKEN;
    }
    return have < sizeof want ? CUT_NOTHING : CUT_GREETING;
}

/* What the received bytes begin with; head..head + n are a whole message's. *want: bytes that are
 * needed in all to know more. */
static cut conn_cut(const rpc_conn *conn, size_t *head, size_t *n, size_t *want)
{
    const unsigned char *p = conn->in + conn->in_pos;
    size_t have = conn->in_len - conn->in_pos;
    uint64_t length = 0;

    if (conn->state == CONN_GREETING) {
        *head = 0;
        *n = *want = GREETING_BYTES;
        return conn_cut_greeting(conn, p, have);
    }
    *head = conn->link->lead ? 9 : 8;
    *want = *head;
    if (have < *head)
        return CUT_NOTHING;
    if (conn->link->lead && p[0] != 1)
        return CUT_BROKEN;
    for (size_t i = *head - 8; i < *head; i++)
        length = length << 8 | p[i];
    if (length > conn->link->max_message_bytes + conn->link->ops->route_room) {
        td_warn("rpc_message_too_large", "url=%s peer=%u bytes=%llu max=%zu",
                rpc_link_url(conn->link), conn->id, (unsigned long long)length,
                conn->link->max_message_bytes);
        return CUT_BROKEN;
    }
    *n = (size_t)length;
    *want = *head + *n;
    return have < *want ? CUT_NOTHING : CUT_MESSAGE;
}

/* Room for at least one byte more, towards `want` bytes in all. Grows with what really comes, not
 * with what was announced. */
static bool conn_make_room(rpc_conn *conn, size_t want)
{
    size_t have = conn->in_len - conn->in_pos, cap = conn->in_cap;
    unsigned char *in;

    if (conn->in_pos > 0) {
        memmove(conn->in, conn->in + conn->in_pos, have);
        conn->in_pos = 0;
        conn->in_len = have;
    }
    if (have == cap)
        cap = want < cap * 2 ? want : cap * 2;
    else if (have == 0 && cap > IN_BYTES_KEPT)
        cap = IN_BYTES;
    if (cap == conn->in_cap && cap > 0)
        return true;
    if (cap < IN_BYTES)
        cap = IN_BYTES;
    in = realloc(conn->in, cap);
    if (in == NULL)
        return false;
    conn->in = in;
    conn->in_cap = cap;
    return true;
}

/* Whether the chain goes on: with the lock held then. */
static bool conn_lock(rpc_conn *conn)
{
    pthread_mutex_lock(&conn->link->lock);
    if (!conn->failed)
        return true;
    pthread_mutex_unlock(&conn->link->lock);
    return false;
}

/* Lock not held. False: the connection has failed. */
static bool conn_greeted(rpc_conn *conn)
{
    rpc_link *link = conn->link;

    if (!conn_lock(conn))
        return false;
    conn->state = CONN_UP;
    link->retry_after = 0;
    pthread_mutex_unlock(&link->lock);
    conn_tell(conn, link->ops->on_up);
    return true;
}

/* Consume what was received, then receive more. The caller has the chain. */
static void conn_run(rpc_conn *conn)
{
    rpc_link *link = conn->link;

    for (;;) {
        size_t head, n, want;
        cut c = conn_cut(conn, &head, &n, &want);
        const unsigned char *bytes = conn->in + conn->in_pos + head;
        bool go_on;

        if (c == CUT_BROKEN)
            break;
        if (c == CUT_GREETING) {
            conn->in_pos += n;
            if (!conn_greeted(conn))
                break;
        } else if (c == CUT_MESSAGE) {
            if (!conn_lock(conn))
                break;
            go_on = link->ops->may_take == NULL || link->ops->may_take(link);
            conn->chain = go_on;
            if (go_on && link->ops->on_take != NULL)
                link->ops->on_take(link);
            pthread_mutex_unlock(&link->lock);
            if (!go_on)
                return; /* parked, with the message; rpc_conn_resume() goes on, maybe already */
            conn->in_pos += head + n;
            if (!link->ops->on_message(link, conn, bytes, n))
                break;
        } else {
            nng_iov iov;

            if (!conn_make_room(conn, want) || !conn_lock(conn))
                break;
            iov = (nng_iov){conn->in + conn->in_len, conn->in_cap - conn->in_len};
            nng_aio_set_iov(conn->rx, 1, &iov);
            nng_stream_recv(conn->stream, conn->rx);
            pthread_mutex_unlock(&link->lock);
            return;
        }
    }
    pthread_mutex_lock(&link->lock);
    rpc_conn_fail(conn);
    pthread_mutex_unlock(&link->lock);
    conn_end(conn);
}

static void conn_on_rx(void *arg)
{
    rpc_conn *conn = arg;

    if (nng_aio_result(conn->rx) == 0) {
        conn->in_len += nng_aio_count(conn->rx);
    } else {
        pthread_mutex_lock(&conn->link->lock);
        rpc_conn_fail(conn);
        pthread_mutex_unlock(&conn->link->lock);
    }
    conn_run(conn);
}

void rpc_conn_resume(rpc_conn *conn)
{
    bool failed = conn->failed;

    conn->chain = true;
    pthread_mutex_unlock(&conn->link->lock);
    if (failed)
        conn_end(conn);
    else
        conn_run(conn);
    pthread_mutex_lock(&conn->link->lock);
}

/* ---- begin and end ---- */

bool rpc_conn_create(rpc_link *link, nng_stream *stream)
{
    rpc_conn *conn = calloc(1, sizeof *conn), *other;

    if (conn == NULL || nng_aio_alloc(&conn->rx, conn_on_rx, conn) != 0 ||
        nng_aio_alloc(&conn->tx, conn_on_tx, conn) != 0 || !conn_make_room(conn, 0)) {
        if (conn != NULL) {
            nng_aio_free(conn->rx); /* never used: nothing to wait for */
            nng_aio_free(conn->tx);
            free(conn);
        }
        nng_stream_free(stream);
        return false;
    }
    conn->link = link;
    conn->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
    conn->stream = stream;
    conn->state = CONN_WAITING;
    conn->writing_since = TD_USEC_NEVER;
    if (link->ops->single && link->conns != NULL) {
        DL_FOREACH(link->conns, other)
        {
            rpc_conn_fail(other);
        }
        DL_APPEND(link->conns, conn);
        return true;
    }
    DL_APPEND(link->conns, conn);
    rpc_conn_start(conn);
    return true;
}

void rpc_conn_start(rpc_conn *conn)
{
    unsigned self = conn->link->ops->self;
    unsigned char greeting[GREETING_BYTES] = {0, 'S', 'P', 0, self >> 8, self & 255, 0, 0};
    rpc_frame *frame = malloc(sizeof *frame + sizeof greeting);
    nng_iov iov = {conn->in, conn->in_cap};

    if (frame == NULL) {
        rpc_conn_fail(conn);
        return;
    }
    *frame = (rpc_frame){.tag = GREETING_TAG, .n = sizeof greeting};
    memcpy(frame->bytes, greeting, sizeof greeting);
    conn->state = CONN_GREETING;
    conn->deadline = td_now_us() + GREETING_MS * TD_USEC_PER_MSEC;
    rpc_service_due(&conn->link->entry, conn->deadline);
    rpc_conn_send(conn, frame);
    conn->chain = true;
    nng_aio_set_iov(conn->rx, 1, &iov);
    nng_stream_recv(conn->stream, conn->rx);
}

void rpc_conn_free(rpc_conn *conn)
{
    rpc_frame *next;

    nng_aio_stop(conn->rx);
    nng_aio_stop(conn->tx);
    nng_aio_free(conn->rx);
    nng_aio_free(conn->tx);
    nng_stream_free(conn->stream);
    for (rpc_frame *f = conn->out; f != NULL; f = next) {
        next = f->next;
        rpc_frame_free(f);
    }
    free(conn->in);
    free(conn);
}
