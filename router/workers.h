/* workers: the router's side of the wire to prefill and decode workers.
 *
 * Listens with PULL for their messages, keeps the registry, dials each one's RPC server, greets it,
 * and sends Reserve, Prefill and Cancel. Everything that comes back is handed on by callbacks on
 * the loop's thread; NNG's threads only post. */
#ifndef TANDEM_ROUTER_WORKERS_H
#define TANDEM_ROUTER_WORKERS_H

#include "common/loop.h"
#include "proto/tandem.pb-c.h"
#include "router/registry.h"

typedef struct workers workers;

typedef struct workers_callbacks {
    void (*on_tokens)(void *user, const Tandem__TokenEvent *e);
    void (*on_prefill)(void *user, const Tandem__PrefillEvent *e);
    void (*on_transfer)(void *user, const Tandem__TransferEvent *e);
    /* Everything that this worker held for us is lost: it died, restarted, or messages are missing.
     * Called after the registry has been brought up to date. */
    void (*on_lost)(void *user, const char *worker_id, uint64_t incarnation, const char *why);
    /* The registry changed so that placement may decide otherwise (join, load, state). */
    void (*on_change)(void *user);
} workers_callbacks;

/* listen: the PULL URL, tcp://host:port (port 0: pick). router_id names this router to workers.
 * vocab: ids of the tokenizer, as for registry_create(). TD_INVALID, TD_IO, TD_NOMEM. */
TD_MUST_CHECK td_status workers_create(td_loop *loop, const char *listen, const char *router_id,
                                       int32_t vocab, const workers_callbacks *cb, void *user,
                                       workers **out, td_error *err);
void workers_free(workers *w); /* calls in flight are dropped without a callback; NULL is fine */

const registry *workers_registry(const workers *w);
const char *workers_url(const workers *w); /* what listen bound */

/* Done once, on the loop's thread, never inside the call that started it. reply lives for the call
 * and is NULL unless st is TD_OK (then the worker's own status is OK too). answered: the status is
 * the worker's own word; otherwise nobody knows whether it has acted. */
typedef void (*workers_reply_fn)(void *arg, td_status st, bool answered,
                                 const Tandem__WorkerReply *reply, const td_error *err);

/* Each names the worker by id and incarnation: another life of it answers TD_UNAVAILABLE. The
 * message is packed before return. fn is called exactly once, unless the handle is forgotten. NULL:
 * no memory, and fn will not be called. pages: of the reservation, counted as load at once. */
typedef struct workers_call workers_call;
TD_MUST_CHECK workers_call *workers_reserve(workers *w, const char *id, uint64_t incarnation,
                                            const Tandem__Reserve *m, uint32_t pages,
                                            workers_reply_fn fn, void *arg);
TD_MUST_CHECK workers_call *workers_prefill(workers *w, const char *id, uint64_t incarnation,
                                            const Tandem__Prefill *m, workers_reply_fn fn,
                                            void *arg);
/* A request has been placed and its prompt will go to this prefill worker: counted as load from now
 * on, since a burst is placed before the first of its prompts is sent. */
void workers_plan_prefill(workers *w, const char *id, uint32_t tokens);
/* No reply is waited for by the caller; repeated a few times until the worker has answered. */
void workers_cancel(workers *w, const char *id, uint64_t incarnation, const Tandem__Cancel *m);

/* The caller of a call has gone: fn will not be called. */
void workers_forget(workers_call *call);

#endif
