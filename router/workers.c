/* NNG's threads put everything that comes in (messages, replies, lost connections) into one
 * mailbox; the loop watches it and does the rest. So the registry, the peers and the calls have one
 * thread.
 *
 * A worker is lost when its connection goes, when it is silent too long, when it comes back as
 * another incarnation, or when its numbering shows that messages are missing. Each means the same
 * to the requests that it ran: they go elsewhere. */
#include "router/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "common/log.h"
#include "common/mailbox.h"
#include "common/pb_arena.h"
#include "common/protocol.h"
#include "common/rpc.h"

enum {
    TAKE = 64,
    HELLO_MS = 3000,
    RESERVE_MS = 15000, /* both are answered between two steps or chunks of the worker */
    PREFILL_MS = 30000,
    CANCEL_MS = 3000,
    CANCEL_TRIES = 3,
    WATCH_MS = 250
};

typedef struct peer {
    char id[REGISTRY_ID_BYTES];
    uint64_t incarnation;
    uint32_t pull_peer; /* the connection that its messages come by */
    rpc_client *client;
    struct peer *prev, *next;
} peer;

typedef enum call_kind { CALL_USER, CALL_HELLO, CALL_CANCEL } call_kind;

struct workers_call {
    workers *w;
    call_kind kind;
    char id[REGISTRY_ID_BYTES]; /* of the worker, to find it again: it may be gone by then */
    uint64_t incarnation;
    workers_reply_fn fn; /* NULL: the caller has gone */
    void *arg;
    int tries;
    uint8_t *packed; /* CANCEL: to be sent again */
    size_t n_packed;
    workers_call *prev, *next;
};

typedef enum incoming_kind { IN_MESSAGE, IN_PEER_DOWN, IN_REPLY } incoming_kind;

typedef struct incoming {
    incoming_kind kind;
    uint32_t pull_peer;
    uint8_t *bytes; /* owned; NULL if none */
    size_t n;
    workers_call *call;
    td_status status;
} incoming;

struct workers {
    td_loop *loop;
    char router_id[REGISTRY_ID_BYTES];
    workers_callbacks cb;
    void *user;
    registry *registry;
    rpc_pull *pull;
    td_mailbox *mailbox;
    td_watch *watch;
    td_timer *timer;
    td_usec watched_at; /* when silence was last looked for */
    peer *peers;
    workers_call *calls;
    td_pb_arena arena, reply_arena;
};

static void drop_incoming(void *user, void *msg)
{
    (void)user;
    free(((incoming *)msg)->bytes);
}

/* ---- NNG's threads ---- */

static void post(workers *w, incoming *in)
{
    if (td_mailbox_post(w->mailbox, in) != TD_OK) {
        /* Out of memory: a lost message shows as a gap, a lost reply as a call that workers_free()
         * ends; neither goes unnoticed for ever, and the process has larger worries. */
        td_logerr("mailbox_full", "kind=%d", (int)in->kind);
        free(in->bytes);
    }
}

static bool copy_bytes(incoming *in, const void *bytes, size_t n)
{
    in->bytes = malloc(n ? n : 1);
    in->n = n;
    if (in->bytes != NULL && n > 0)
        memcpy(in->bytes, bytes, n);
    return in->bytes != NULL;
}

static void on_message(void *user, uint32_t pull_peer, const void *bytes, size_t n)
{
    incoming in = {.kind = IN_MESSAGE, .pull_peer = pull_peer};

    if (copy_bytes(&in, bytes, n))
        post(user, &in);
}

static void on_pull_peer(void *user, uint32_t pull_peer, bool up)
{
    incoming in = {.kind = IN_PEER_DOWN, .pull_peer = pull_peer};

    if (!up)
        post(user, &in);
}

static void on_reply(void *user, td_status status, const void *bytes, size_t n)
{
    workers_call *call = user;
    incoming in = {.kind = IN_REPLY, .call = call, .status = status};

    if (status == TD_OK && !copy_bytes(&in, bytes, n))
        in.status = TD_NOMEM;
    post(call->w, &in);
}

/* ---- calls ---- */

static peer *find_peer(workers *w, const char *id, uint64_t incarnation)
{
    peer *p;

    DL_FOREACH(w->peers, p)
    if (p->incarnation == incarnation && strcmp(p->id, id) == 0)
        return p;
    return NULL;
}

static void free_call(workers *w, workers_call *call)
{
    DL_DELETE(w->calls, call);
    free(call->packed);
    free(call);
}

static workers_call *new_call(workers *w, call_kind kind, const char *id, uint64_t incarnation,
                              workers_reply_fn fn, void *arg)
{
    workers_call *call = calloc(1, sizeof *call);

    if (call == NULL)
        return NULL;
    call->w = w;
    call->kind = kind;
    snprintf(call->id, sizeof call->id, "%s", id);
    call->incarnation = incarnation;
    call->fn = fn;
    call->arg = arg;
    DL_APPEND(w->calls, call);
    return call;
}

/* Send; what fails at once comes back through the mailbox like any other reply, so that a caller is
 * never called from inside its own call. */
static void send_call(workers *w, workers_call *call, const uint8_t *bytes, size_t n,
                      uint32_t timeout_ms)
{
    peer *p = find_peer(w, call->id, call->incarnation);
    td_status st = TD_UNAVAILABLE;

    if (p != NULL)
        st = rpc_client_call(p->client, bytes, n, timeout_ms, on_reply, call, NULL);
    if (st != TD_OK) {
        incoming in = {.kind = IN_REPLY, .call = call, .status = st};

        post(w, &in);
    }
}

/* Pack a request into *bytes (the caller's); false: no memory. */
static bool pack(const Tandem__WorkerRequest *req, uint8_t **bytes, size_t *n)
{
    *n = tandem__worker_request__get_packed_size(req);
    *bytes = malloc(*n ? *n : 1);
    if (*bytes != NULL)
        tandem__worker_request__pack(req, *bytes);
    return *bytes != NULL;
}

static workers_call *start_call(workers *w, const char *id, uint64_t incarnation,
                                const Tandem__WorkerRequest *req, uint32_t timeout_ms,
                                workers_reply_fn fn, void *arg)
{
    workers_call *call = new_call(w, CALL_USER, id, incarnation, fn, arg);
    uint8_t *bytes;
    size_t n;

    if (call == NULL)
        return NULL;
    if (!pack(req, &bytes, &n)) {
        free_call(w, call);
        return NULL;
    }
    send_call(w, call, bytes, n, timeout_ms);
    free(bytes);
    return call;
}

static ProtobufCBinaryData binary(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

workers_call *workers_reserve(workers *w, const char *id, uint64_t incarnation,
                              const Tandem__Reserve *m, uint32_t pages, workers_reply_fn fn,
                              void *arg)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Reserve reserve = *m;

    reserve.router_id = binary(w->router_id);
    req.body_case = TANDEM__WORKER_REQUEST__BODY_RESERVE;
    req.reserve = &reserve;
    registry_sent_reserve(w->registry, id, pages);
    return start_call(w, id, incarnation, &req, RESERVE_MS, fn, arg);
}

void workers_plan_prefill(workers *w, const char *id, uint32_t tokens)
{
    registry_sent_prefill(w->registry, id, tokens);
}

workers_call *workers_prefill(workers *w, const char *id, uint64_t incarnation,
                              const Tandem__Prefill *m, workers_reply_fn fn, void *arg)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Prefill prefill = *m;

    prefill.router_id = binary(w->router_id);
    req.body_case = TANDEM__WORKER_REQUEST__BODY_PREFILL;
    req.prefill = &prefill;
    return start_call(w, id, incarnation, &req, PREFILL_MS, fn, arg);
}

void workers_cancel(workers *w, const char *id, uint64_t incarnation, const Tandem__Cancel *m)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Cancel cancel = *m;
    workers_call *call;

    if (find_peer(w, id, incarnation) == NULL)
        return; /* that life of it is over, and with it what it held */
    call = new_call(w, CALL_CANCEL, id, incarnation, NULL, NULL);
    req.body_case = TANDEM__WORKER_REQUEST__BODY_CANCEL;
    req.cancel = &cancel;
    if (call == NULL || !pack(&req, &call->packed, &call->n_packed)) {
        td_logerr("cancel_lost", "worker=%s error=\"no memory\"", id);
        if (call != NULL)
            free_call(w, call);
        return;
    }
    call->tries = CANCEL_TRIES;
    send_call(w, call, call->packed, call->n_packed, CANCEL_MS);
}

void workers_forget(workers_call *call)
{
    call->fn = NULL;
}

/* ---- peers ---- */

static void greet(workers *w, peer *p, const worker_view *v)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Hello hello = TANDEM__HELLO__INIT;
    workers_call *call = new_call(w, CALL_HELLO, p->id, p->incarnation, NULL, NULL);
    uint8_t *bytes;
    size_t n;

    hello.major = TD_PROTOCOL_MAJOR;
    hello.minor = TD_PROTOCOL_MINOR;
    hello.router_id = binary(w->router_id);
    hello.link = v->link;
    hello.refused = binary(v->state == WORKER_REFUSED ? v->refused : "");
    req.body_case = TANDEM__WORKER_REQUEST__BODY_HELLO;
    req.hello = &hello;
    if (call == NULL || !pack(&req, &bytes, &n)) {
        td_logerr("hello_lost", "worker=%s error=\"no memory\"", p->id);
        if (call != NULL)
            free_call(w, call);
        return;
    }
    send_call(w, call, bytes, n, HELLO_MS);
    free(bytes);
}

static void drop_peer(workers *w, peer *p)
{
    DL_DELETE(w->peers, p);
    rpc_client_close(p->client); /* its calls end with CANCELED, through the mailbox */
    free(p);
}

/* A worker has joined, or come back: dial it. */
static void meet(workers *w, const worker_view *v, uint32_t pull_peer)
{
    rpc_client_options co = {.url = v->rpc_url};
    td_error err = {0};
    peer *p, *next;

    DL_FOREACH_SAFE(w->peers, p, next)
    if (strcmp(p->id, v->id) == 0)
        drop_peer(w, p);
    p = calloc(1, sizeof *p);
    if (p == NULL || rpc_client_open(&co, &p->client, &err) != TD_OK) {
        td_logerr("worker_unreachable", "worker=%s url=%s error=\"%s\"", v->id, v->rpc_url,
                  p == NULL ? "no memory" : err.text);
        free(p);
        return;
    }
    memcpy(p->id, v->id, sizeof p->id);
    p->incarnation = v->incarnation;
    p->pull_peer = pull_peer;
    DL_APPEND(w->peers, p);
    greet(w, p, v);
}

static void lose(workers *w, const char *id, uint64_t incarnation, const char *why)
{
    char name[REGISTRY_ID_BYTES];
    peer *p = find_peer(w, id, incarnation);

    snprintf(name, sizeof name, "%s", id); /* id may live in what is removed now */
    td_warn("worker_lost", "worker=%s why=\"%s\"", name, why);
    registry_remove(w->registry, name);
    if (p != NULL)
        drop_peer(w, p);
    w->cb.on_lost(w->user, name, incarnation, why);
}

/* ---- the loop's thread ---- */

static void take_events(workers *w, const Tandem__WorkerMessage *m)
{
    for (size_t i = 0; i < m->n_prefills; i++)
        w->cb.on_prefill(w->user, m->prefills[i]);
    for (size_t i = 0; i < m->n_transfers; i++)
        w->cb.on_transfer(w->user, m->transfers[i]);
    for (size_t i = 0; i < m->n_tokens; i++)
        w->cb.on_tokens(w->user, m->tokens[i]);
}

static void take_message(workers *w, const incoming *in)
{
    td_error err = {0};
    const worker_view *v, *old = NULL;
    registry_change change;
    char id[REGISTRY_ID_BYTES];
    uint64_t old_incarnation = 0, incarnation;
    peer *p;
    Tandem__WorkerMessage *m =
        td_pb_unpack(&w->arena, &tandem__worker_message__descriptor, in->bytes, in->n, &err);

    if (m != NULL && m->worker_id.len < sizeof id) {
        memcpy(id, m->worker_id.data, m->worker_id.len);
        id[m->worker_id.len] = '\0';
        old = registry_find(w->registry, id);
        old_incarnation = old ? old->incarnation : 0;
    }
    if (m == NULL || registry_message(w->registry, m, td_now_us(), &v, &change, &err) != TD_OK) {
        td_warn("bad_worker_message", "bytes=%zu error=\"%s\"", in->n, err.text);
        return;
    }
    incarnation = v->incarnation;
    switch (change) {
    case REGISTRY_RESTARTED:
        td_warn("worker_restarted", "worker=%s", id);
        w->cb.on_lost(w->user, id, old_incarnation, "the worker was restarted");
        v = registry_find(w->registry, id);
        meet(w, v, in->pull_peer);
        break;
    case REGISTRY_JOINED:
        td_info("worker_joined", "worker=%s role=%s rpc=%s tp=%u ep=%u", id,
                v->role == WORKER_DECODE ? "decode" : "prefill", v->rpc_url, v->tp, v->ep);
        meet(w, v, in->pull_peer);
        break;
    case REGISTRY_REFUSED:
        td_warn("worker_refused", "worker=%s why=\"%s\"", id, v->refused);
        if (old != NULL)
            w->cb.on_lost(w->user, id, old_incarnation, "the worker came back as another");
        v = registry_find(w->registry, id);
        meet(w, v, in->pull_peer);
        break;
    case REGISTRY_GAP:
        td_warn("worker_gap", "worker=%s seq=%llu", id, (unsigned long long)m->seq);
        w->cb.on_lost(w->user, id, incarnation, "messages of the worker were lost");
        break;
    case REGISTRY_STATE:
    case REGISTRY_NONE: break;
    }
    v = registry_find(w->registry, id);
    if (v == NULL || v->state == WORKER_REFUSED)
        return;
    p = find_peer(w, id, incarnation);
    if (p != NULL)
        p->pull_peer = in->pull_peer; /* it may have come back by another connection */
    take_events(w, m);
    if (m->report != NULL)
        w->cb.on_change(w->user);
}

static void take_peer_down(workers *w, uint32_t pull_peer)
{
    peer *p;

    DL_FOREACH(w->peers, p)
    {
        if (p->pull_peer != pull_peer)
            continue;
        lose(w, p->id, p->incarnation, "the connection to the worker was lost");
        return;
    }
}

/* What the worker said, or why it did not. *reply is set when st is TD_OK. */
static td_status read_reply(workers *w, const incoming *in, const Tandem__WorkerReply **reply,
                            bool *answered, td_error *err)
{
    Tandem__WorkerReply *r;

    if (in->status != TD_OK)
        return td_fail(err, in->status, "worker %s did not answer: %s", in->call->id,
                       td_status_name(in->status));
    r = td_pb_unpack(&w->reply_arena, &tandem__worker_reply__descriptor, in->bytes, in->n, err);
    if (r == NULL)
        return td_fail(err, TD_INTERNAL, "worker %s answered with something unreadable",
                       in->call->id);
    *answered = true;
    if (r->status != TD_OK) {
        size_t n = r->text.len < 300 ? r->text.len : 300;

        return td_fail(err, r->status < TD_STATUS_COUNT ? (td_status)r->status : TD_INTERNAL,
                       "%.*s", (int)n, n > 0 ? (const char *)r->text.data : "");
    }
    *reply = r;
    return TD_OK;
}

static void take_reply(workers *w, const incoming *in)
{
    workers_call *call = in->call;
    const Tandem__WorkerReply *reply = NULL;
    td_error err = {0};
    bool answered = false;
    td_status st = read_reply(w, in, &reply, &answered, &err);
    const worker_view *v;

    switch (call->kind) {
    case CALL_USER:
        if (call->fn != NULL)
            call->fn(call->arg, st, answered, reply, &err);
        break;
    case CALL_HELLO:
        v = registry_find(w->registry, call->id);
        if (v == NULL || v->incarnation != call->incarnation || v->state == WORKER_REFUSED)
            break;
        if (st == TD_OK) {
            registry_greeted(w->registry, call->id, call->incarnation);
            w->cb.on_change(w->user);
        } else if (st == TD_INVALID) {
            td_logerr("hello_refused", "worker=%s error=\"%s\"", call->id, err.text);
        } else { /* it lives, since it reports: try again */
            peer *p = find_peer(w, call->id, call->incarnation);

            td_warn("hello_failed", "worker=%s error=\"%s\"", call->id, err.text);
            if (p != NULL && in->status != TD_CANCELED)
                greet(w, p, v);
        }
        break;
    case CALL_CANCEL:
        if (st != TD_OK && --call->tries > 0 && find_peer(w, call->id, call->incarnation) != NULL) {
            send_call(w, call, call->packed, call->n_packed, CANCEL_MS);
            return;
        }
        if (st != TD_OK && in->status != TD_CANCELED)
            td_warn("cancel_unanswered", "worker=%s error=\"%s\"", call->id, err.text);
        break;
    }
    free_call(w, call);
}

static void on_mail(void *arg, unsigned ready)
{
    workers *w = arg;
    incoming batch[TAKE];
    size_t n = td_mailbox_take(w->mailbox, batch, TAKE);

    (void)ready;
    for (size_t i = 0; i < n; i++) {
        switch (batch[i].kind) {
        case IN_MESSAGE: take_message(w, &batch[i]); break;
        case IN_PEER_DOWN: take_peer_down(w, batch[i].pull_peer); break;
        case IN_REPLY: take_reply(w, &batch[i]); break;
        }
        free(batch[i].bytes);
    }
}

static void on_watch(void *arg)
{
    workers *w = arg;
    const worker_view *v;
    td_usec now = td_now_us();

    /* A router that was itself held up has heartbeats waiting to be read: those first. */
    if (w->watched_at != 0 && now - w->watched_at > 3 * WATCH_MS * TD_USEC_PER_MSEC) {
        w->watched_at = now;
        td_timer_in(w->timer, WATCH_MS * TD_USEC_PER_MSEC);
        return;
    }
    w->watched_at = now;
    while ((v = registry_expired(w->registry, td_now_us())) != NULL)
        lose(w, v->id, v->incarnation, "no heartbeat in time");
    td_timer_in(w->timer, WATCH_MS * TD_USEC_PER_MSEC);
}

td_status workers_create(td_loop *loop, const char *listen, const char *router_id, int32_t vocab,
                         const workers_callbacks *cb, void *user, workers **out, td_error *err)
{
    workers *w = calloc(1, sizeof *w);
    rpc_pull_options po = {
        .url = listen, .on_message = on_message, .on_peer = on_pull_peer, .user = w};
    td_status st;

    if (w == NULL)
        return td_fail(err, TD_NOMEM, "workers: no memory");
    w->loop = loop;
    w->cb = *cb;
    w->user = user;
    snprintf(w->router_id, sizeof w->router_id, "%s", router_id);
    td_pb_arena_init(&w->arena);
    td_pb_arena_init(&w->reply_arena);
    st = registry_create(vocab, &w->registry, err);
    if (st == TD_OK)
        st = td_mailbox_create(sizeof(incoming), 0, drop_incoming, NULL, &w->mailbox, err);
    if (st == TD_OK) {
        w->watch = td_watch_create(loop, td_mailbox_fd(w->mailbox), TD_READABLE, on_mail, w);
        w->timer = td_timer_create(loop, on_watch, w);
        if (w->watch == NULL || w->timer == NULL)
            st = td_fail(err, TD_NOMEM, "workers: no memory for loop events");
    }
    if (st == TD_OK)
        st = rpc_pull_open(&po, &w->pull, err);
    if (st != TD_OK) {
        workers_free(w);
        return st;
    }
    td_timer_in(w->timer, WATCH_MS * TD_USEC_PER_MSEC);
    *out = w;
    return TD_OK;
}

void workers_free(workers *w)
{
    if (w == NULL)
        return;
    rpc_pull_close(w->pull);
    while (w->peers != NULL)
        drop_peer(w, w->peers);
    while (w->calls != NULL)
        free_call(w, w->calls);
    td_timer_free(w->timer);
    td_watch_free(w->watch);
    td_mailbox_free(w->mailbox);
    registry_free(w->registry);
    td_pb_arena_fini(&w->arena);
    td_pb_arena_fini(&w->reply_arena);
    free(w);
}

const registry *workers_registry(const workers *w)
{
    return w->registry;
}

const char *workers_url(const workers *w)
{
    return rpc_pull_url(w->pull);
}
