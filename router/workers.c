/* NNG's threads put everything that comes in (messages, replies, lost connections) into one
 * mailbox; the loop watches it and does the rest. So the registry, the peers and the calls have one
 * thread.
 *
 * A worker is lost when its connection goes, when it is silent too long, when it comes back as
 * another incarnation, or when its numbering shows that messages are missing. Each means the same
 * to the requests that it ran: they go elsewhere. */
#include "router/workers_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "common/log.h"

enum { TAKE = 64, WATCH_MS = 250 };

static void drop_incoming(void *user, void *msg)
{
    (void)user;
    free(((incoming *)msg)->bytes);
}

/* ---- NNG's threads ---- */

void workers_post(workers *w, incoming *in)
{
    if (td_mailbox_post(w->mailbox, in) != TD_OK) {
        /* Out of memory: a lost message shows as a gap, a lost reply as a call that workers_free()
         * ends; neither goes unnoticed for ever, and the process has larger worries. */
        td_logerr("mailbox_full", "kind=%d", (int)in->kind);
        free(in->bytes);
    }
}

bool workers_copy_bytes(incoming *in, const void *bytes, size_t n)
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

    if (workers_copy_bytes(&in, bytes, n))
        workers_post(user, &in);
}

static void on_pull_peer(void *user, uint32_t pull_peer, bool up)
{
    incoming in = {.kind = IN_PEER_DOWN, .pull_peer = pull_peer};

    if (!up)
        workers_post(user, &in);
}

/* ---- peers ---- */

static void drop_peer(workers *w, peer *p)
{
    DL_DELETE(w->peers, p);
    rpc_client_close(p->client); /* its calls end with CANCELED, through the mailbox */
    free(p);
}

/* Whether it is the worker of that id, and not a former life or a twin of it. */
static bool is_known(const workers *w, const peer *p)
{
    const worker_view *v = registry_find(w->registry, p->id);

    return v != NULL && v->incarnation == p->incarnation;
}

/* A worker has joined, or come back, or is to be told why it has not: dial it. */
static void meet(workers *w, const worker_view *v, uint32_t pull_peer)
{
    rpc_client_options co = {.url = v->rpc_url};
    td_error err = {0};
    peer *p, *next;

    DL_FOREACH_SAFE(w->peers, p, next)
    if (strcmp(p->id, v->id) == 0 && (p->incarnation == v->incarnation || !is_known(w, p)))
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
    workers_greet(w, p, v);
}

static void lose(workers *w, const char *id, uint64_t incarnation, const char *why)
{
    char name[REGISTRY_ID_BYTES];
    peer *p = workers_find_peer(w, id, incarnation);

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
    char id[REGISTRY_ID_BYTES] = "";
    uint64_t old_incarnation = 0, incarnation;
    peer *p;
    Tandem__WorkerMessage *m =
        td_pb_unpack(&w->arena, &tandem__worker_message__descriptor, in->bytes, in->n, &err);

    if (m != NULL && m->worker_id.len > 0 && m->worker_id.len < sizeof id) {
        memcpy(id, m->worker_id.data, m->worker_id.len);
        id[m->worker_id.len] = '\0';
        old = registry_find(w->registry, id);
        old_incarnation = old ? old->incarnation : 0;
    }
    if (m == NULL || registry_message(w->registry, m, td_now_us(), &v, &change, &err) != TD_OK) {
        td_warn("bad_worker_message", "bytes=%zu error=\"%s\"", in->n, err.text);
        return;
    }
    if (v == NULL) {
        td_debug("message_of_nobody", "worker=%s bytes=%zu", id, in->n);
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
    case REGISTRY_TWIN:
        if (workers_find_peer(w, id, incarnation) == NULL) { /* it has not been told yet */
            td_warn("worker_refused", "worker=%s rpc=%s why=\"%s\"", id, v->rpc_url, v->refused);
            meet(w, v, in->pull_peer);
        }
        return;
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
    p = workers_find_peer(w, id, incarnation);
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
        if (is_known(w, p))
            lose(w, p->id, p->incarnation, "the connection to the worker was lost");
        else
            drop_peer(w, p);
        return;
    }
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
        case IN_REPLY: workers_take_reply(w, &batch[i]); break;
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
    if (st == TD_OK) {
        st = rpc_pull_open(&po, &w->pull, err);
        if (st != TD_OK)
            td_wrap(err, "--workers-listen");
    }
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
        workers_free_call(w, w->calls);
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
