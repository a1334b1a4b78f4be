/* What a worker is to routers: the requests that it takes, its names, its beginning and end. Its
 * links are worker_links.c's. */
#include "common/worker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/random.h>

#include "common/clock.h"
#include "common/http_admin.h"
#include "common/log.h"
#include "common/pb_arena.h"
#include "common/pb_pack.h"
#include "common/pb_text.h"
#include "common/protocol.h"
#include "common/worker_impl.h"
#include "common/worker_links.h"

const char *const td_backend_words[] = {"cpu", "cuda", NULL};
const char *const td_expert_format_words[] = {"auto", "mxfp4", "fp8", NULL};
const char *const td_kv_dtype_words[] = {"bf16", "f32", "e4m3", NULL}; /* td_kv_dtype */
const char *const td_kv_transport_words[] = {"auto", "shm", "tcp", NULL};
const char *const td_log_level_words[] = {"error", "warn", "info", "debug",
                                          NULL}; /* td_log_level */

/* ---- requests ---- */

void td_worker_reply(rpc_call *call, td_status status, const char *text,
                     const Tandem__Reserved *reserved)
{
    Tandem__WorkerReply reply = TANDEM__WORKER_REPLY__INIT;
    uint8_t *bytes;
    size_t n;

    reply.status = status;
    reply.text = td_pb_text(text);
    reply.reserved = (Tandem__Reserved *)(uintptr_t)reserved; /* packed only */
    bytes = td_pb_pack(&reply.base, &n);
    if (bytes == NULL) {
        rpc_call_drop(call);
        return;
    }
    if (rpc_reply(call, bytes, n) != TD_OK)
        td_warn("reply_failed", "bytes=%zu", n);
    free(bytes);
}

static void answer_hello(td_worker *w, rpc_call *call, const Tandem__Hello *h)
{
    char text[256] = "";
    td_status st = TD_OK;

    if (h->major != TD_PROTOCOL_MAJOR) {
        st = TD_INVALID;
        snprintf(text, sizeof text, "this worker speaks protocol %d.%d, the router %u.%u",
                 TD_PROTOCOL_MAJOR, TD_PROTOCOL_MINOR, h->major, h->minor);
    } else if (h->link >= (uint32_t)w->n_links || h->router_id.len == 0 ||
               h->router_id.len >= ROUTER_ID_BYTES) {
        st = TD_INVALID;
        snprintf(text, sizeof text, "hello names link %u of %d, router id of %zu bytes", h->link,
                 w->n_links, h->router_id.len);
    } else if (h->refused.len > 0) {
        link_state *l = &w->links[h->link];
        bool was_registered;

        pthread_mutex_lock(&w->lock);
        was_registered = l->registered;
        l->registered = false;
        pthread_mutex_unlock(&w->lock);
        td_logerr("registration_refused", "router=%s why=\"%.*s\"", l->url,
                  (int)(h->refused.len < 400 ? h->refused.len : 400),
                  (const char *)h->refused.data);
        if (was_registered) /* given up while it was frozen, and its id is another's by now */
            w->cb.on_link(w->user, l->number, false);
    } else {
        link_state *l = &w->links[h->link];
        bool again;

        pthread_mutex_lock(&w->lock);
        again = l->registered;
        memcpy(l->router_id, h->router_id.data, h->router_id.len);
        l->router_id[h->router_id.len] = '\0';
        l->registered = true;
        pthread_mutex_unlock(&w->lock);
        /* A router that greets again has taken this worker for dead and knows of nothing here. */
        if (again)
            w->cb.on_link(w->user, l->number, false);
        td_info("registered", "router=%s router_id=%s", l->url, l->router_id);
    }
    td_worker_reply(call, st, text, NULL);
}

static void on_request(void *user, rpc_call *call, const void *bytes, size_t n)
{
    td_worker *w = user;
    td_pb_arena arena;
    Tandem__WorkerRequest *req;
    ProtobufCBinaryData router_id = {0, NULL};
    int32_t link = -1;
    bool needs_link = false;
    td_error err = {0};

    td_pb_arena_init(&arena);
    req = td_pb_unpack(&arena, &tandem__worker_request__descriptor, bytes, n, &err);
    if (req == NULL) {
        td_warn("bad_request", "bytes=%zu error=\"%s\"", n, err.text);
        td_worker_reply(call, err.code, err.text, NULL);
        td_pb_arena_fini(&arena);
        return;
    }
    switch (req->body_case) {
    case TANDEM__WORKER_REQUEST__BODY_HELLO:
        answer_hello(w, call, req->hello);
        td_pb_arena_fini(&arena);
        return;
    case TANDEM__WORKER_REQUEST__BODY_RESERVE:
        router_id = req->reserve->router_id;
        needs_link = true;
        break;
    case TANDEM__WORKER_REQUEST__BODY_PREFILL:
        router_id = req->prefill->router_id;
        needs_link = true;
        break;
    default: break;
    }
    if (router_id.len > 0)
        link = worker_link_of(w, router_id);
    if (needs_link && link < 0) /* its events would have nowhere to go */
        td_worker_reply(call, TD_UNAVAILABLE, "this router has not said Hello on a live link",
                        NULL);
    else
        w->cb.on_request(w->user, req, link, call);
    td_pb_arena_fini(&arena);
}

/* ---- start and stop ---- */

static bool on_ready(void *arg, td_buf *why)
{
    td_worker *w = arg;
    bool failed;

    pthread_mutex_lock(&w->lock);
    failed = w->failed[0] != '\0';
    if (failed)
        td_buf_str(why, w->failed);
    pthread_mutex_unlock(&w->lock);
    if (failed)
        return false;
    if (!worker_is_registered(w)) {
        td_buf_str(why, "no router has accepted the registration");
        return false;
    }
    return true; /* the model gave its self-test token before the worker was started */
}

/* The URL that others dial: a wildcard host means nothing to them. */
static void advertised_url(const char *bound, const char *host, char *out, size_t cap)
{
    const char *wild[] = {"tcp://0.0.0.0:", "tcp://[::]:", "tcp://*:"};

    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        if (strncmp(bound, wild[i], strlen(wild[i])) == 0) {
            snprintf(out, cap, "tcp://%s:%s", host, bound + strlen(wild[i]));
            return;
        }
    }
    snprintf(out, cap, "%s", bound);
}

/* What others know this worker by. */
static td_status take_names(td_worker *w, const td_worker_options *opt, const char *role,
                            td_error *err)
{
    char host[64] = "localhost";
    const char *colon;

    gethostname(host, sizeof host - 1);
    if (opt->advertise[0] == '\0') {
        advertised_url(rpc_server_url(w->server), host, w->url, sizeof w->url);
    } else {
        colon = strrchr(opt->advertise, ':');
        if (!td_is_word(opt->advertise, sizeof w->url - 1) ||
            (strncmp(opt->advertise, "tcp://", 6) == 0
                 ? colon == opt->advertise + 3 || atoi(colon + 1) < 1 || atoi(colon + 1) > 65535
                 : strncmp(opt->advertise, "ipc://", 6) != 0))
            return td_fail(err, TD_INVALID,
                           "--advertise: '%.100s' is not a URL for others to dial, such as "
                           "tcp://10.0.0.7:7100",
                           opt->advertise);
        snprintf(w->url, sizeof w->url, "%s", opt->advertise);
    }
    if (opt->worker_id[0] == '\0') {
        snprintf(w->id, sizeof w->id, "%s-%s-%s", role, host, strrchr(w->url, ':') + 1);
        return TD_OK;
    }
    if (!td_is_word(opt->worker_id, sizeof w->id - 1))
        return td_fail(err, TD_INVALID,
                       "--worker-id: '%.100s' is not one word of at most %zu printable ASCII "
                       "characters",
                       opt->worker_id, sizeof w->id - 1);
    snprintf(w->id, sizeof w->id, "%s", opt->worker_id);
    return TD_OK;
}

td_status td_worker_start(const td_worker_options *opt, Tandem__Role role,
                          const td_model_identity *identity, const td_worker_callbacks *cb,
                          void *user, td_metrics *metrics, td_worker **out, td_error *err)
{
    td_worker *w = calloc(1, sizeof *w);
    rpc_server_options so = {.url = opt->listen, .on_request = on_request, .user = w};
    const char *role_name = role == TANDEM__ROLE__ROLE_DECODE ? "decode" : "prefill";
    pthread_condattr_t attr;
    td_status st;

    if (w == NULL)
        return td_fail(err, TD_NOMEM, "worker: no memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    w->role = role;
    w->identity = *identity;
    w->tp = (int32_t)opt->tp;
    w->ep = (int32_t)(opt->ep ? opt->ep : opt->tp);
    w->heartbeat_ms = opt->heartbeat_ms;
    w->cb = *cb;
    w->user = user;
    w->state = TANDEM__WORKER_STATE__STATE_READY;
    if (getrandom(&w->incarnation, sizeof w->incarnation, 0) != sizeof w->incarnation)
        w->incarnation = (uint64_t)td_wall_us();

    st = rpc_server_open(&so, &w->server, err);
    if (st != TD_OK) {
        td_wrap(err, "--listen");
        goto fail;
    }
    st = take_names(w, opt, role_name, err);
    if (st == TD_OK)
        st = worker_links_open(w, opt, err);
    if (st != TD_OK)
        goto fail;
    if (opt->admin_listen[0] != '\0') {
        st = td_http_admin_start(opt->admin_listen, metrics, on_ready, w, &w->admin, err);
        if (st != TD_OK) {
            td_wrap(err, "--admin-listen");
            goto fail;
        }
    }
    if (pthread_create(&w->reporter, NULL, worker_reporter_main, w) != 0) {
        st = td_fail(err, TD_NOMEM, "worker: no thread for the heartbeat");
        goto fail;
    }
    w->reporter_started = true;
    worker_faults_begin();
    td_info("worker_started", "id=%s rpc=%s routers=%d admin_port=%u incarnation=%016llx", w->id,
            w->url, w->n_links, w->admin ? td_http_admin_port(w->admin) : 0,
            (unsigned long long)w->incarnation);
    *out = w;
    return TD_OK;

fail:
    td_worker_stop(w);
    return st;
}

void td_worker_stop(td_worker *w)
{
    if (w == NULL)
        return;
    rpc_server_close(w->server);
    if (w->reporter_started) {
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->reporter, NULL);
    }
    worker_links_close(w);
    td_http_admin_stop(w->admin);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

const char *td_worker_id(const td_worker *w)
{
    return w->id;
}

uint64_t td_worker_incarnation(const td_worker *w)
{
    return w->incarnation;
}
