/* worker: what a prefill and a decode worker have in common around their engines.
 *
 *   routers' PULL  <- PUSH  reports, token events, prefill events   one link per configured router
 *   routers' REQ   -> REP   Hello, Reserve, Prefill, Cancel, Drain  one server
 *   Kubernetes     -> HTTP  /health, /ready, /metrics               one admin thread
 *
 * Threads: NNG's call on_request and on_link; one heartbeat thread calls on_report; the admin
 * thread calls on_ready. The engine owns its state and takes messages from all of them by a
 * mailbox. Hello is answered here; everything else goes to the engine. */
#ifndef TANDEM_COMMON_WORKER_H
#define TANDEM_COMMON_WORKER_H

#include "common/checkpoint.h"
#include "common/config.h"
#include "common/kv_layout.h"
#include "common/metrics.h"
#include "common/model.h"
#include "common/rpc.h"
#include "common/status.h"
#include "proto/tandem.pb-c.h"

enum { TD_PROTOCOL_MAJOR = 1, TD_PROTOCOL_MINOR = 0, TD_MAX_LINKS = 16 };

/* Options of both roles. Each program's settings struct has a td_worker_options as its member
 * `worker`, and its table begins with TD_WORKER_OPTIONS(settings struct). */
typedef struct td_worker_options {
    char *model;          /* checkpoint folder */
    char *model_name;     /* as clients call it; "": the folder's name */
    char *random_weights; /* "": the folder's tensors; a number: weights made from that seed */
    int32_t backend;      /* index into td_backend_words */
    uint32_t tp, ep;      /* ep 0: tp */
    uint32_t threads;     /* CPU backend: compute threads; 0: all usable cores */
    int32_t kv_dtype;     /* td_kv_dtype */
    int32_t kv_transport; /* td_kv_transport of common/kv_wire.h: auto, shm, tcp */
    char *listen;         /* RPC, tcp://host:port; port 0 picks one */
    char *advertise;      /* URL that routers dial; "": what listen bound */
    td_strlist routers;   /* PULL URLs of the routers */
    char *worker_id;      /* "": role, host name and RPC port */
    char *admin_listen;   /* host:port; "": none */
    int64_t heartbeat_ms;
    int64_t drain_ms;  /* at most this long from SIGTERM to exit */
    int32_t log_level; /* td_log_level */
} td_worker_options;

extern const char *const td_backend_words[],
    *const td_kv_dtype_words[], *const td_kv_transport_words[], *const td_log_level_words[];

typedef struct td_worker td_worker;

typedef struct td_worker_callbacks {
    /* A request other than Hello, on an NNG thread; must not block. req lives until return (its
     * arena is reset then); link is the router that sent it, for td_worker_send(). The engine
     * answers through td_worker_reply(call, ...), once, now or later, from any thread. */
    void (*on_request)(void *user, const Tandem__WorkerRequest *req, int32_t link, rpc_call *call);
    /* Fill role-specific load fields of a report; any thread, must not block. */
    void (*on_report)(void *user, Tandem__WorkerReport *report);
    /* A router's link came up or went down. Down: its events in flight may be lost. */
    void (*on_link)(void *user, int32_t link, bool up);
    /* Readiness beyond "registered with a router": false puts the reason into *why. Admin thread.
     */
    bool (*on_ready)(void *user, td_buf *why);
} td_worker_callbacks;

/* What two workers and a router must agree on; the wire's ModelIdentity with memory of its own. */
typedef struct td_model_identity {
    char name[128];
    uint64_t config_hash, checkpoint_hash, kv_wire_hash;
    int32_t vocab, max_positions;
} td_model_identity;

/* Load the model that opt names (config, checkpoint or random weights) with the KV pool given, and
 * produce one token as a self-test. Logs a line per phase with its time. */
TD_MUST_CHECK td_status td_worker_load_model(const td_worker_options *opt, uint32_t kv_pages,
                                             uint32_t kv_rings, uint32_t ring_pages,
                                             int32_t max_tokens, td_model **model,
                                             td_model_identity *identity, td_error *err);

/* Bind the RPC server, dial the routers, start the heartbeat and the admin server. From here on
 * callbacks may run. metrics outlives the worker. */
TD_MUST_CHECK td_status td_worker_start(const td_worker_options *opt, Tandem__Role role,
                                        const td_model_identity *identity, int32_t tp, int32_t ep,
                                        const td_worker_callbacks *cb, void *user,
                                        td_metrics *metrics, td_worker **out, td_error *err);

/* Send events to one router, in order, without blocking. worker_id, incarnation and seq are filled
 * in here. Thread-safe. TD_UNAVAILABLE: the link is down or overrun, its streams are lost. */
td_status td_worker_send(td_worker *w, int32_t link, Tandem__WorkerMessage *msg, td_error *err);

/* Answer a request: a status and text, and `reserved` for a Reserve (else NULL). Consumes call. */
void td_worker_reply(rpc_call *call, td_status status, const char *text,
                     const Tandem__Reserved *reserved);

/* Change the state in the reports and push a report to every router now. */
void td_worker_set_state(td_worker *w, Tandem__WorkerState state);
void td_worker_report_now(td_worker *w); /* load changed enough to matter */

const char *td_worker_id(const td_worker *w);
uint64_t td_worker_incarnation(const td_worker *w);
bool td_worker_registered(
    const td_worker *w); /* at least one router said Hello and did not refuse */

/* Stop callbacks, close sockets, join threads. NULL is fine. Not from a callback. */
void td_worker_stop(td_worker *w);

#endif
