/* worker: what a prefill and a decode worker have in common around their engines.
 *
 *   routers' PULL  <- PUSH  reports, token events, prefill events   one link per configured router
 *   routers' REQ   -> REP   Hello, Reserve, Prefill, Cancel, Drain  one server
 *   Kubernetes     -> HTTP  /health, /ready, /metrics               one admin thread
 *
 * Threads: NNG's call on_request and on_link; one heartbeat thread calls on_report. The engine owns
 * its state and takes messages from all of them by a mailbox. Hello is answered here; everything
 * else goes to the engine. */
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

enum { TD_MAX_LINKS = 16 };

/* Options of both roles. Each program's settings struct has a td_worker_options as its member
 * `worker`, and its table begins with TD_WORKER_OPTIONS(settings struct). */
typedef struct td_worker_options {
    char *model;             /* checkpoint folder */
    char *model_name;        /* as clients call it; "": the folder's name */
    char *random_weights;    /* "": the folder's tensors; a number: weights made from that seed */
    int32_t backend;         /* index into td_backend_words */
    uint32_t tp, ep;         /* ep 0: tp */
    td_strlist devices;      /* GPU of each rank; empty: 0 .. tp - 1 */
    double gpu_memory;       /* share of what is free on a GPU at start that this worker may take */
    int32_t expert_format;   /* index into td_expert_format_words */
    bool graphs;             /* decode steps as CUDA graphs */
    int64_t comm_timeout_ms; /* how long a rank waits on its GPU for another */
    uint32_t threads;        /* over all ranks: td_dev_options.threads; 0: all usable cores */
    int32_t kv_dtype;        /* td_kv_dtype */
    int32_t kv_transport;    /* td_kv_transport of common/kv_wire.h: auto, shm, tcp */
    int64_t step_timeout_ms; /* see td_worker_step_timeout_ms() */
    int64_t fault_step;      /* for fault tests: see the option */
    char *listen;            /* RPC, tcp://host:port; port 0 picks one */
    char *advertise;         /* URL that routers dial; "": what listen bound */
    td_strlist routers;      /* PULL URLs of the routers */
    char *worker_id;         /* "": role, host name and RPC port */
    char *admin_listen;      /* host:port; "": none */
    int64_t heartbeat_ms;
    int64_t drain_ms;  /* at most this long from SIGTERM to exit */
    int32_t log_level; /* td_log_level */
} td_worker_options;

extern const char *const td_backend_words[],
    *const td_expert_format_words[], *const td_kv_dtype_words[], *const td_kv_transport_words[],
                                                                     *const td_log_level_words[];

/* The table rows that fill `worker` in a program's settings struct T. */
#define TD_WORKER_OPTIONS(T) \
    {"model", \
     TD_OPT_STR, \
     offsetof(T, worker.model), \
     NULL, \
     0, \
     0, \
     "Checkpoint folder: config.json, safetensors, in Hugging Face's or OpenAI's layout.", \
     NULL}, \
        {"model-name", \
         TD_OPT_STR, \
         offsetof(T, worker.model_name), \
         "", \
         0, \
         0, \
         "Name of the model for clients. Empty: the folder's name.", \
         NULL}, \
        {"random-weights", \
         TD_OPT_STR, \
         offsetof(T, worker.random_weights), \
         "", \
         0, \
         0, \
         "A seed: make weights of config.json's shapes from it instead of reading tensors.", \
         NULL}, \
        {"backend", TD_OPT_ENUM, offsetof(T, worker.backend),    "cpu", \
         0,         0,           "Where the model is computed.", td_backend_words}, \
        {"tp", \
         TD_OPT_U32, \
         offsetof(T, worker.tp), \
         "1", \
         1, \
         64, \
         "Ranks: attention heads are split over them.", \
         NULL}, \
        {"ep", \
         TD_OPT_U32, \
         offsetof(T, worker.ep), \
         "0", \
         0, \
         64, \
         "Expert groups; divides --tp. Ranks of a group split each expert. 0: as many as --tp.", \
         NULL}, \
        {"devices", \
         TD_OPT_LIST, \
         offsetof(T, worker.devices), \
         "", \
         0, \
         64, \
         "CUDA backend: the GPU of each rank, comma separated; ranks may share one. Empty: 0 to " \
         "--tp - 1.", \
         NULL}, \
        {"gpu-memory", \
         TD_OPT_F64, \
         offsetof(T, worker.gpu_memory), \
         "0.9", \
         0.01, \
         1, \
         "CUDA backend: share of each GPU's memory that is free at start which this worker may " \
         "take. Where two workers share a GPU, say how.", \
         NULL}, \
        {"expert-format", \
         TD_OPT_ENUM, \
         offsetof(T, worker.expert_format), \
         "auto", \
         0, \
         0, \
         "How the experts' weights are kept. mxfp4: as they come; fp8: twice the matrix rate and " \
         "twice the bytes, CUDA only. auto: what suits role and backend.", \
         td_expert_format_words}, \
        {"cuda-graphs", \
         TD_OPT_BOOL, \
         offsetof(T, worker.graphs), \
         "true", \
         0, \
         0, \
         "CUDA backend: run decode steps as graphs. --no-cuda-graphs launches every kernel by " \
         "itself: slower, for profilers and for finding faults.", \
         NULL}, \
        {"collective-timeout", \
         TD_OPT_DURATION_MS, \
         offsetof(T, worker.comm_timeout_ms), \
         "2s", \
         50, \
         600000, \
         "CUDA backend with --tp over 1: a rank that another waits for longer than this has " \
         "failed: the worker names it and exits with code 3.", \
         NULL}, \
        {"step-timeout", \
         TD_OPT_DURATION_MS, \
         offsetof(T, worker.step_timeout_ms), \
         "0", \
         0, \
         86400000, \
         "A step that takes longer than this is a device that hangs: the worker logs it and " \
         "exits with code 4. 0: 30s on a GPU; never on the CPU, where long prompts take longer.", \
         NULL}, \
        {"fault-step", \
         TD_OPT_I64, \
         offsetof(T, worker.fault_step), \
         "0", \
         -1e9, \
         1e9, \
         "For fault tests: the step with this number fails as on a broken device; negative: it " \
         "never ends. 0: none.", \
         NULL}, \
        {"threads", \
         TD_OPT_U32, \
         offsetof(T, worker.threads), \
         "0", \
         0, \
         1024, \
         "Threads over all ranks: the CPU backend computes on them, CUDA loads weights. 0: all " \
         "usable cores.", \
         NULL}, \
        {"kv-dtype", \
         TD_OPT_ENUM, \
         offsetof(T, worker.kv_dtype), \
         "bf16", \
         0, \
         0, \
         "Element type of the KV-cache; the same on all workers. e4m3 is CUDA only.", \
         td_kv_dtype_words}, \
        {"kv-transport", \
         TD_OPT_ENUM, \
         offsetof(T, worker.kv_transport), \
         "auto", \
         0, \
         0, \
         "How KV crosses between workers: auto lets UCX choose among all but shared memory.", \
         td_kv_transport_words}, \
        {"listen", \
         TD_OPT_STR, \
         offsetof(T, worker.listen), \
         "tcp://127.0.0.1:0", \
         0, \
         0, \
         "Address for routers' requests; port 0 picks a free one.", \
         NULL}, \
        {"advertise", \
         TD_OPT_STR, \
         offsetof(T, worker.advertise), \
         "", \
         0, \
         0, \
         "URL at which routers reach this worker. Empty: what --listen bound, with this host's " \
         "name where that is a wildcard.", \
         NULL}, \
        {"router", \
         TD_OPT_LIST, \
         offsetof(T, worker.routers), \
         "tcp://127.0.0.1:7001", \
         1, \
         TD_MAX_LINKS, \
         "Workers' ports of the routers, comma separated.", \
         NULL}, \
        {"worker-id", \
         TD_OPT_STR, \
         offsetof(T, worker.worker_id), \
         "", \
         0, \
         0, \
         "Unique name, stable over restarts. Empty: role, host name and RPC port.", \
         NULL}, \
        {"admin-listen", \
         TD_OPT_STR, \
         offsetof(T, worker.admin_listen), \
         "", \
         0, \
         0, \
         "host:port for /health, /ready and /metrics. Empty: none.", \
         NULL}, \
        {"heartbeat", \
         TD_OPT_DURATION_MS, \
         offsetof(T, worker.heartbeat_ms), \
         "500ms", \
         20, \
         60000, \
         "Between reports to routers; four missed ones are death.", \
         NULL}, \
        {"drain", \
         TD_OPT_DURATION_MS, \
         offsetof(T, worker.drain_ms), \
         "10m", \
         0, \
         86400000, \
         "After SIGTERM, how long running work may take to finish.", \
         NULL}, \
    { \
        "log-level", TD_OPT_ENUM, offsetof(T, worker.log_level), "info", 0, 0, \
            "How much is logged.", td_log_level_words \
    }

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
} td_worker_callbacks;

/* What two workers and a router must agree on; the wire's ModelIdentity with memory of its own. */
typedef struct td_model_identity {
    char name[128];
    uint64_t config_hash, checkpoint_hash, kv_wire_hash;
    int32_t vocab, max_positions;
} td_model_identity;

/* What a role needs of its model. */
typedef struct td_worker_needs {
    Tandem__Role role;
    const char *kv_memory;  /* --kv-memory: bytes, all ranks together, or "auto" */
    uint32_t rings;         /* requests that hold KV at once */
    uint32_t chunk;         /* positions that are written before they attend; decode: 1 */
    int32_t max_tokens;     /* of one step */
    struct td_watch *watch; /* for the self-test, which is a step */
} td_worker_needs;

/* --step-timeout, or what suits the backend; 0: never. */
int64_t td_worker_step_timeout_ms(const td_worker_options *opt);

/* --kv-memory where it says auto and the backend's memory is the host's. */
#define TD_WORKER_KV_AUTO_BYTES ((uint64_t)256 << 20)

/* Load the model that opt names (config, checkpoint or random weights) and produce one token as a
 * self-test. Logs a line per phase with its time, and where the memory of each GPU goes.
 * TD_INVALID: options that do not fit each other, the model or the machine; the text names them.
 * TD_NOTFOUND and TD_IO of files, TD_NOMEM, TD_DEVICE. *model is the caller's, to td_model_close().
 */
TD_MUST_CHECK td_status td_worker_load_model(const td_worker_options *opt,
                                             const td_worker_needs *needs, td_model **model,
                                             td_model_identity *identity, td_error *err);

/* Bind the RPC server, dial the routers, start the heartbeat and the admin server. From here on
 * callbacks may run. metrics outlives the worker. TD_INVALID: an address or URL that is none;
 * TD_IO: it cannot be listened on; TD_NOMEM. *out is the caller's, to td_worker_stop(). */
TD_MUST_CHECK td_status td_worker_start(const td_worker_options *opt, Tandem__Role role,
                                        const td_model_identity *identity,
                                        const td_worker_callbacks *cb, void *user,
                                        td_metrics *metrics, td_worker **out, td_error *err);

/* Send events to one router, in order, without blocking. worker_id, incarnation and seq are filled
 * in here. Thread-safe. TD_UNAVAILABLE: the link is down or overrun, its streams are lost. */
td_status td_worker_send(td_worker *w, int32_t link, Tandem__WorkerMessage *msg, td_error *err);

/* Answer a request: a status and text, and `reserved` for a Reserve (else NULL). Consumes call. */
void td_worker_reply(rpc_call *call, td_status status, const char *text,
                     const Tandem__Reserved *reserved);

/* The model or its device has failed: no longer ready, routers place nothing here any more and know
 * it now. For good: the process is about to end. */
void td_worker_set_failed(td_worker *w, const char *why);

/* Change the state in the reports and push a report to every router now. */
void td_worker_set_state(td_worker *w, Tandem__WorkerState state);
void td_worker_report_now(td_worker *w); /* load changed enough to matter */

const char *td_worker_id(const td_worker *w);
uint64_t td_worker_incarnation(const td_worker *w);

/* Stop callbacks, close sockets, join threads. NULL is fine. Not from a callback. */
void td_worker_stop(td_worker *w);

#endif
