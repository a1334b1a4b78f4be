/* Calls over one connection, told apart by the request ids that the replies bring back.
 *
 * A call waits (for a connection), then is sent, then ends: by its reply, its deadline, the end of
 * the connection or of the client. Whoever takes it out of its slot, under the lock, calls its
 * callback, so that is called once. A request is given to one connection only, ever. */
#include "common/rpc.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/rpc_link.h"

enum { DEFAULT_CALLS = 4096, MOST_CALLS = 1 << 16, FIRST_SLOTS = 16 };

/* A request id: 1, 15 bits that change with each use of the slot, 16 bits of the slot's number. */
enum { SLOT_BITS = 16, SLOT_MASK = MOST_CALLS - 1, NO_SLOT = UINT32_MAX };

typedef struct client_slot {
    bool used;
    uint32_t id;   /* of the call in it, or the last one */
    uint32_t conn; /* that has the request; 0: it waits in `frame` */
    rpc_frame *frame;
    td_usec deadline;
    rpc_reply_fn cb;
    void *user;
    uint32_t next; /* free, or waiting for a connection */
} client_slot;

struct rpc_client {
    rpc_link link; /* first: a link of a client is the client. Its lock is of all below */
    rpc_client_options opt;
    client_slot *slots;
    uint32_t n_slots, n_calls;
    uint32_t free_first, free_last; /* first in, first out: an id comes again as late as can be */
    uint32_t wait_first, wait_last;
};

/* What is left of a call once it is out of its slot. */
typedef struct ended_call {
    rpc_reply_fn cb;
    void *user;
} ended_call;

static void call_tell(ended_call call, td_status st, const void *bytes, size_t n)
{
    rpc_callback_enter();
    call.cb(call.user, st, bytes, n);
    rpc_callback_leave();
}

/* ---- slots; lock held in all of it ---- */

static void list_append(client_slot *slots, uint32_t *first, uint32_t *last, uint32_t i)
{
    slots[i].next = NO_SLOT;
    if (*first == NO_SLOT)
        *first = i;
    else
        slots[*last].next = i;
    *last = i;
}

static uint32_t list_take(client_slot *slots, uint32_t *first)
{
    uint32_t i = *first;

    *first = slots[i].next;
    return i;
}

static bool slots_grow(rpc_client *c)
{
    uint32_t n = c->n_slots == 0 ? FIRST_SLOTS : c->n_slots * 2;
    client_slot *slots;

    if (n > c->opt.max_calls)
        n = c->opt.max_calls;
    slots = realloc(c->slots, n * sizeof *slots);
    if (slots == NULL)
        return false;
    c->slots = slots;
    for (uint32_t i = c->n_slots; i < n; i++) {
        slots[i] = (client_slot){.id = UINT32_C(1) << 31 | i};
        list_append(slots, &c->free_first, &c->free_last, i);
    }
    c->n_slots = n;
    return true;
}

static client_slot *slot_of(rpc_client *c, uint32_t id)
{
    uint32_t i = id & SLOT_MASK;

    return i < c->n_slots && c->slots[i].used && c->slots[i].id == id ? &c->slots[i] : NULL;
}

static void wait_remove(rpc_client *c, uint32_t i)
{
    uint32_t before = NO_SLOT, at = c->wait_first;

    for (; at != i; at = c->slots[at].next)
        before = at;
    if (before == NO_SLOT)
        c->wait_first = c->slots[i].next;
    else
        c->slots[before].next = c->slots[i].next;
    if (c->wait_last == i)
        c->wait_last = before;
}

static ended_call slot_end(rpc_client *c, client_slot *slot)
{
    ended_call call = {slot->cb, slot->user};
    uint32_t i = (uint32_t)(slot - c->slots), use = slot->id >> SLOT_BITS;
    rpc_conn *conn;

    if (slot->conn == 0) {
        wait_remove(c, i);
        rpc_frame_free(slot->frame);
    } else if ((conn = rpc_link_find(&c->link, slot->conn)) != NULL) {
        rpc_frame_free(rpc_conn_unsend(conn, slot->id)); /* past its deadline it is not sent */
    }
    slot->used = false;
    slot->frame = NULL;
    slot->id = ((use + 1) | UINT32_C(1) << 15) << SLOT_BITS | i;
    c->n_calls--;
    list_append(c->slots, &c->free_first, &c->free_last, i);
    return call;
}

/* ---- the link's side ---- */

static void client_on_up(rpc_link *link, rpc_conn *conn)
{
    rpc_client *c = (rpc_client *)link;

    pthread_mutex_lock(&link->lock);
    while (c->wait_first != NO_SLOT && !conn->failed) {
        client_slot *slot = &c->slots[list_take(c->slots, &c->wait_first)];

        slot->conn = conn->id;
        rpc_conn_send(conn, slot->frame);
        slot->frame = NULL;
    }
    pthread_mutex_unlock(&link->lock);
    if (c->opt.on_peer != NULL)
        c->opt.on_peer(c->opt.user, true);
}

/* End the calls that a connection had (0: of any, and waiting ones), and whose deadline has come.
 * Returns the earliest deadline of the others. Lock not held. */
static td_usec client_end_calls(rpc_client *c, uint32_t conn, td_usec now, td_status st)
{
    td_usec next = TD_USEC_NEVER;

    pthread_mutex_lock(&c->link.lock);
    for (uint32_t i = 0; i < c->n_slots && c->n_calls > 0; i++) {
        client_slot *slot = &c->slots[i]; /* anew each time: a callback may make them grow */
        ended_call call;

        if (!slot->used || (conn != 0 && slot->conn != conn))
            continue;
        if (slot->deadline > now) {
            next = slot->deadline < next ? slot->deadline : next;
            continue;
        }
        call = slot_end(c, slot);
        pthread_mutex_unlock(&c->link.lock);
        call_tell(call, st, NULL, 0);
        pthread_mutex_lock(&c->link.lock);
    }
    pthread_mutex_unlock(&c->link.lock);
    return next;
}

static void client_on_down(rpc_link *link, rpc_conn *conn)
{
    rpc_client *c = (rpc_client *)link;

    client_end_calls(c, conn->id, TD_USEC_NEVER, TD_UNAVAILABLE);
    if (c->opt.on_peer != NULL)
        c->opt.on_peer(c->opt.user, false);
}

static bool client_on_message(rpc_link *link, rpc_conn *conn, const unsigned char *bytes, size_t n)
{
    rpc_client *c = (rpc_client *)link;
    uint32_t id;
    client_slot *slot;
    ended_call call;

    if (n < 4)
        return false;
    id = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    pthread_mutex_lock(&link->lock);
    slot = slot_of(c, id);
    if (slot == NULL || slot->conn != conn->id) {
        pthread_mutex_unlock(&link->lock);
        return true; /* past its deadline */
    }
    call = slot_end(c, slot);
    pthread_mutex_unlock(&link->lock);
    call_tell(call, TD_OK, bytes + 4, n - 4);
    return true;
}

static td_usec client_on_tick(rpc_link *link, td_usec now)
{
    return client_end_calls((rpc_client *)link, 0, now, TD_DEADLINE);
}

static const rpc_end_ops client_ops = {
    .self = RPC_SP_REQ,
    .peer = RPC_SP_REP,
    .route_room = 4,
    .single = true,
    .on_up = client_on_up,
    .on_down = client_on_down,
    .on_message = client_on_message,
    .on_tick = client_on_tick,
};

/* ---- the user's side ---- */

td_status rpc_client_open(const rpc_client_options *opt, rpc_client **out, td_error *err)
{
    rpc_client *c = calloc(1, sizeof *c);
    td_status st;

    if (c == NULL)
        return td_fail(err, TD_NOMEM, "rpc client of '%s': no memory", opt->url);
    c->opt = *opt;
    if (c->opt.max_calls == 0)
        c->opt.max_calls = DEFAULT_CALLS;
    if (c->opt.max_calls > MOST_CALLS)
        c->opt.max_calls = MOST_CALLS;
    if (c->opt.max_message_bytes == 0)
        c->opt.max_message_bytes = RPC_MAX_MESSAGE_BYTES;
    c->free_first = c->free_last = c->wait_first = c->wait_last = NO_SLOT;
    st = rpc_link_init(&c->link, &client_ops, opt->url, c->opt.max_message_bytes, err);
    *out = c; /* before the first callback, which may want it */
    if (st == TD_OK)
        st = rpc_link_start(&c->link, false, err);
    if (st != TD_OK) {
        *out = NULL;
        rpc_client_close(c);
    }
    return st;
}

void rpc_client_close(rpc_client *c)
{
    if (c == NULL)
        return;
    rpc_not_in_callback(__func__);
    rpc_link_close(&c->link);
    client_end_calls(c, 0, TD_USEC_NEVER, TD_CANCELED);
    rpc_link_fini(&c->link);
    free(c->slots);
    free(c);
}

td_status rpc_client_call(rpc_client *c, const void *bytes, size_t n, uint32_t timeout_ms,
                          rpc_reply_fn cb, void *user, td_error *err)
{
    const char *url = c->link.name;
    static const unsigned char no_id[4];
    td_status st = TD_OK;
    client_slot *slot;
    rpc_frame *frame;
    rpc_conn *conn;

    if (n > c->opt.max_message_bytes)
        return td_fail(err, TD_TOOLARGE, "request of %zu bytes to %s: at most %zu", n, url,
                       c->opt.max_message_bytes);
    frame = rpc_frame_make(&c->link, 0, no_id, sizeof no_id, bytes, n);
    if (frame == NULL)
        return td_fail(err, TD_NOMEM, "request of %zu bytes to %s: no memory", n, url);

    pthread_mutex_lock(&c->link.lock);
    if (c->link.closing)
        st = td_fail(err, TD_CANCELED, "request to %s: its client is being closed", url);
    else if (c->n_calls >= c->opt.max_calls)
        st = td_fail(err, TD_BUSY, "request to %s: %u calls are outstanding", url, c->n_calls);
    else if (c->free_first == NO_SLOT && !slots_grow(c))
        st = td_fail(err, TD_NOMEM, "request to %s: no memory for another call", url);
    if (st != TD_OK) {
        pthread_mutex_unlock(&c->link.lock);
        rpc_frame_free(frame);
        return st;
    }
    slot = &c->slots[list_take(c->slots, &c->free_first)];
    slot->used = true;
    slot->cb = cb;
    slot->user = user;
    slot->deadline = td_now_us() + (td_usec)timeout_ms * TD_USEC_PER_MSEC;
    c->n_calls++;
    rpc_frame_set_id(&c->link, frame, slot->id);
    conn = rpc_link_up(&c->link);
    if (conn != NULL) {
        slot->conn = conn->id;
        rpc_conn_send(conn, frame);
    } else {
        slot->conn = 0;
        slot->frame = frame;
        list_append(c->slots, &c->wait_first, &c->wait_last, (uint32_t)(slot - c->slots));
    }
    rpc_service_due(&c->link.entry, slot->deadline);
    pthread_mutex_unlock(&c->link.lock);
    return TD_OK;
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
            td_fail(err, st, "request to %s: %s after at most %u ms", c->link.name,
                    td_status_name(st), timeout_ms);
    }
    pthread_cond_destroy(&w.done);
    pthread_mutex_destroy(&w.lock);
    return st;
}
