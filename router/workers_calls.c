/* Calls to workers: requests sent, their replies and time limits, and the greeting. */
#include "router/workers_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "common/log.h"
#include "common/pb_pack.h"
#include "common/pb_text.h"
#include "common/protocol.h"

enum {
    HELLO_MS = 3000,
    RESERVE_MS = 15000, /* both are answered between two steps or chunks of the worker */
    PREFILL_MS = 30000,
    CANCEL_MS = 3000,
    CANCEL_TRIES = 3
};

static void on_reply(void *user, td_status status, const void *bytes, size_t n)
{
    workers_call *call = user;
    incoming in = {.kind = IN_REPLY, .call = call, .status = status};

    if (status == TD_OK && !workers_copy_bytes(&in, bytes, n))
        in.status = TD_NOMEM;
    workers_post(call->w, &in);
}

peer *workers_find_peer(workers *w, const char *id, uint64_t incarnation)
{
    peer *p;

    DL_FOREACH(w->peers, p)
    if (p->incarnation == incarnation && strcmp(p->id, id) == 0)
        return p;
    return NULL;
}

void workers_free_call(workers *w, workers_call *call)
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
    peer *p = workers_find_peer(w, call->id, call->incarnation);
    td_status st = TD_UNAVAILABLE;

    if (p != NULL)
        st = rpc_client_call(p->client, bytes, n, timeout_ms, on_reply, call, NULL);
    if (st != TD_OK) {
        incoming in = {.kind = IN_REPLY, .call = call, .status = st};

        workers_post(w, &in);
    }
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
    bytes = td_pb_pack(&req->base, &n);
    if (bytes == NULL) {
        workers_free_call(w, call);
        return NULL;
    }
    send_call(w, call, bytes, n, timeout_ms);
    free(bytes);
    return call;
}

workers_call *workers_reserve(workers *w, const char *id, uint64_t incarnation,
                              const Tandem__Reserve *m, uint32_t pages, workers_reply_fn fn,
                              void *arg)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Reserve reserve = *m;

    reserve.router_id = td_pb_text(w->router_id);
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

    prefill.router_id = td_pb_text(w->router_id);
    req.body_case = TANDEM__WORKER_REQUEST__BODY_PREFILL;
    req.prefill = &prefill;
    return start_call(w, id, incarnation, &req, PREFILL_MS, fn, arg);
}

void workers_cancel(workers *w, const char *id, uint64_t incarnation, const Tandem__Cancel *m)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Cancel cancel = *m;
    workers_call *call;

    if (workers_find_peer(w, id, incarnation) == NULL)
        return; /* that life of it is over, and with it what it held */
    call = new_call(w, CALL_CANCEL, id, incarnation, NULL, NULL);
    req.body_case = TANDEM__WORKER_REQUEST__BODY_CANCEL;
    req.cancel = &cancel;
    if (call == NULL || (call->packed = td_pb_pack(&req.base, &call->n_packed)) == NULL) {
        td_logerr("cancel_lost", "worker=%s error=\"no memory\"", id);
        if (call != NULL)
            workers_free_call(w, call);
        return;
    }
    call->tries = CANCEL_TRIES;
    send_call(w, call, call->packed, call->n_packed, CANCEL_MS);
}

void workers_forget(workers_call *call)
{
    call->fn = NULL;
}

void workers_greet(workers *w, peer *p, const worker_view *v)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Hello hello = TANDEM__HELLO__INIT;
    workers_call *call = new_call(w, CALL_HELLO, p->id, p->incarnation, NULL, NULL);
    uint8_t *bytes;
    size_t n;

    hello.major = TD_PROTOCOL_MAJOR;
    hello.minor = TD_PROTOCOL_MINOR;
    hello.router_id = td_pb_text(w->router_id);
    hello.link = v->link;
    hello.refused = td_pb_text(v->state == WORKER_REFUSED ? v->refused : "");
    req.body_case = TANDEM__WORKER_REQUEST__BODY_HELLO;
    req.hello = &hello;
    if (call == NULL || (bytes = td_pb_pack(&req.base, &n)) == NULL) {
        td_logerr("hello_lost", "worker=%s error=\"no memory\"", p->id);
        if (call != NULL)
            workers_free_call(w, call);
        return;
    }
    send_call(w, call, bytes, n, HELLO_MS);
    free(bytes);
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

void workers_take_reply(workers *w, const incoming *in)
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
            peer *p = workers_find_peer(w, call->id, call->incarnation);

            td_warn("hello_failed", "worker=%s error=\"%s\"", call->id, err.text);
            if (p != NULL && in->status != TD_CANCELED)
                workers_greet(w, p, v);
        }
        break;
    case CALL_CANCEL:
        if (st != TD_OK && --call->tries > 0 &&
            workers_find_peer(w, call->id, call->incarnation) != NULL) {
            send_call(w, call, call->packed, call->n_packed, CANCEL_MS);
            return;
        }
        if (st != TD_OK && in->status != TD_CANCELED)
            td_warn("cancel_unanswered", "worker=%s error=\"%s\"", call->id, err.text);
        break;
    }
    workers_free_call(w, call);
}
