/* The life of a link: down -> (connection) up -> (Hello) registered. Only an up link is sent
 * anything, so nothing piles up for a router that is not there; what a connection loses on its way
 * down shows as a gap in seq at the router, which then gives those streams up.
 *
 * Locks: worker.lock guards the state in the reports and the links' registration; each link.lock
 * covers numbering and sending, so that seq is the order on the wire. Never both at once, and no
 * callback is made under either. */
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
#include "common/protocol.h"
#include "common/worker_impl.h"

enum { ID_BYTES = 96, URL_BYTES = 160, ROUTER_ID_BYTES = 96 };

typedef struct link_state {
    td_worker *worker;
    int32_t number;
    char url[URL_BYTES];
    rpc_push *push;
    pthread_mutex_t lock;
    uint64_t seq; /* lock: of the last message handed to push */
    bool up;      /* lock */
    /* worker.lock: */
    char router_id[ROUTER_ID_BYTES]; /* from its Hello; "" before */
    bool registered;
} link_state;

struct td_worker {
    char id[ID_BYTES];
    char url[URL_BYTES];
    uint64_t incarnation;
    Tandem__Role role;
    td_model_identity identity;
    int32_t tp, ep;
    int64_t heartbeat_ms;
    td_worker_callbacks cb;
    void *user;

    rpc_server *server;
    td_http_admin *admin;
    link_state links[TD_MAX_LINKS];
    int32_t n_links;

    pthread_t reporter;
    bool reporter_started;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* reporter: stop, or report_wanted */
    bool stop, report_wanted;
    Tandem__WorkerState state;
    char failed[200]; /* why; "": it has not */
};

const char *const td_backend_words[] = {"cpu", "cuda", NULL};
const char *const td_expert_format_words[] = {"auto", "mxfp4", "fp8", NULL};
const char *const td_kv_dtype_words[] = {"bf16", "f32", "e4m3", NULL}; /* td_kv_dtype */
const char *const td_kv_transport_words[] = {"auto", "shm", "tcp", NULL};
const char *const td_log_level_words[] = {"error", "warn", "info", "debug",
                                          NULL}; /* td_log_level */

static ProtobufCBinaryData view(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* ---- sending ---- */

static td_status link_send(link_state *l, Tandem__WorkerMessage *msg, td_error *err)
{
    td_worker *w = l->worker;
    td_status st = TD_OK;
    uint8_t *bytes;
    size_t n;

    msg->worker_id = view(w->id);
    msg->incarnation = w->incarnation;
    pthread_mutex_lock(&l->lock);
    if (!l->up) {
        pthread_mutex_unlock(&l->lock);
        return td_fail(err, TD_UNAVAILABLE, "router %s is not connected", l->url);
    }
    msg->seq = l->seq + 1;
    n = tandem__worker_message__get_packed_size(msg);
    bytes = malloc(n ? n : 1);
    if (bytes == NULL) {
        st = td_fail(err, TD_NOMEM, "no memory for a message of %zu bytes", n);
    } else {
        tandem__worker_message__pack(msg, bytes);
        st = rpc_push_send(l->push, bytes, n, err);
        free(bytes);
    }
    l->seq++; /* also when it failed: the router must see the gap */
    pthread_mutex_unlock(&l->lock);
    return st;
}

td_status td_worker_send(td_worker *w, int32_t link, Tandem__WorkerMessage *msg, td_error *err)
{
    td_assert(link >= 0 && link < w->n_links);
    return link_send(&w->links[link], msg, err);
}

static void link_report(link_state *l)
{
    td_worker *w = l->worker;
    Tandem__WorkerMessage msg = TANDEM__WORKER_MESSAGE__INIT;
    Tandem__WorkerReport report = TANDEM__WORKER_REPORT__INIT;
    Tandem__ModelIdentity model = TANDEM__MODEL_IDENTITY__INIT;
    td_error err = {0};

    model.name = view(w->identity.name);
    model.config_hash = w->identity.config_hash;
    model.checkpoint_hash = w->identity.checkpoint_hash;
    model.kv_wire_hash = w->identity.kv_wire_hash;
    model.vocab = w->identity.vocab;
    model.max_positions = w->identity.max_positions;
    report.role = w->role;
    pthread_mutex_lock(&w->lock);
    report.state = w->state;
    pthread_mutex_unlock(&w->lock);
    report.rpc_url = view(w->url);
    report.link = (uint32_t)l->number;
    report.model = &model;
    report.tp = w->tp;
    report.ep = w->ep;
    report.heartbeat_ms = (uint32_t)w->heartbeat_ms;
    report.major = TD_PROTOCOL_MAJOR;
    report.minor = TD_PROTOCOL_MINOR;
    w->cb.on_report(w->user, &report);
    msg.report = &report;
    if (link_send(l, &msg, &err) != TD_OK && err.code != TD_UNAVAILABLE)
        td_warn("report_failed", "router=%s error=\"%s\"", l->url, err.text);
}

static void *reporter_main(void *arg)
{
    td_worker *w = arg;
    td_usec next = td_now_us();

    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until = td_timespec(next);

        if (!w->report_wanted && pthread_cond_timedwait(&w->wake, &w->lock, &until) == 0)
            continue; /* look again at what is wanted */
        w->report_wanted = false;
        pthread_mutex_unlock(&w->lock);
        for (int32_t i = 0; i < w->n_links; i++)
            link_report(&w->links[i]);
        next = td_now_us() + w->heartbeat_ms * TD_USEC_PER_MSEC;
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void td_worker_report_now(td_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->report_wanted = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void td_worker_set_state(td_worker *w, Tandem__WorkerState state)
{
    pthread_mutex_lock(&w->lock);
    w->state = state;
    w->report_wanted = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void td_worker_set_failed(td_worker *w, const char *why)
{
    pthread_mutex_lock(&w->lock);
    snprintf(w->failed, sizeof w->failed, "%s", why);
    pthread_mutex_unlock(&w->lock);
    td_worker_set_state(w, TANDEM__WORKER_STATE__STATE_DRAINING); /* takes nothing new */
}

/* ---- links ---- */

static void on_link_peer(void *user, bool up)
{
    link_state *l = user;
    td_worker *w = l->worker;
    bool was_registered;

    pthread_mutex_lock(&w->lock);
    was_registered = l->registered;
    l->registered = false; /* until this router says Hello (again) */
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_lock(&l->lock);
    l->up = up;
    if (!up)
        l->seq++; /* the engine ends what this router had here: it must not miss that */
    pthread_mutex_unlock(&l->lock);
    td_info(up ? "router_connected" : "router_lost", "router=%s", l->url);
    if (up) {
        rpc_push_reset(l->push);
        td_worker_report_now(w);
    }
    if (was_registered || up)
        w->cb.on_link(w->user, l->number, up);
}

static void on_link_dead(void *user, td_status why)
{
    link_state *l = user;

    pthread_mutex_lock(&l->lock);
    l->up = false; /* its queue is lost; the next connection starts it again */
    pthread_mutex_unlock(&l->lock);
    td_warn("router_stuck", "router=%s why=%s", l->url, td_status_name(why));
    l->worker->cb.on_link(l->worker->user, l->number, false);
}

static int32_t link_of_router(td_worker *w, ProtobufCBinaryData router_id)
{
    int32_t found = -1;

    pthread_mutex_lock(&w->lock);
    for (int32_t i = 0; i < w->n_links && found < 0; i++)
        if (w->links[i].registered && router_id.len == strlen(w->links[i].router_id) &&
            memcmp(router_id.data, w->links[i].router_id, router_id.len) == 0)
            found = i;
    pthread_mutex_unlock(&w->lock);
    return found;
}

/* At least one router said Hello and did not refuse. */
static bool is_registered(td_worker *w)
{
    bool any = false;

    pthread_mutex_lock(&w->lock);
    for (int32_t i = 0; i < w->n_links; i++)
        any = any || w->links[i].registered;
    pthread_mutex_unlock(&w->lock);
    return any;
}

/* ---- requests ---- */

void td_worker_reply(rpc_call *call, td_status status, const char *text,
                     const Tandem__Reserved *reserved)
{
    Tandem__WorkerReply reply = TANDEM__WORKER_REPLY__INIT;
    uint8_t *bytes;
    size_t n;

    reply.status = status;
    reply.text = view(text);
    reply.reserved = (Tandem__Reserved *)(uintptr_t)reserved; /* packed only */
    n = tandem__worker_reply__get_packed_size(&reply);
    bytes = malloc(n ? n : 1);
    if (bytes == NULL) {
        rpc_call_drop(call);
        return;
    }
    tandem__worker_reply__pack(&reply, bytes);
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
        link = link_of_router(w, router_id);
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
    if (!is_registered(w)) {
        td_buf_str(why, "no router has accepted the registration");
        return false;
    }
    return w->cb.on_ready(w->user, why);
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

/* All links are set up before the first is dialled, since its callbacks look at all of them. */
static td_status start_links(td_worker *w, const td_worker_options *opt, td_error *err)
{
    for (size_t i = 0; i < opt->routers.len; i++) {
        link_state *l = &w->links[i];

        l->worker = w;
        l->number = (int32_t)i;
        snprintf(l->url, sizeof l->url, "%s", opt->routers.ptr[i]);
        pthread_mutex_init(&l->lock, NULL);
        w->n_links = (int32_t)i + 1;
    }
    for (int32_t i = 0; i < w->n_links; i++) {
        link_state *l = &w->links[i];
        rpc_push_options po = {.url = l->url,
                               .max_messages = 1024,
                               .on_dead = on_link_dead,
                               .on_peer = on_link_peer,
                               .user = l};

        if (rpc_push_open(&po, &l->push, err) != TD_OK)
            return td_wrap(err, "--router");
    }
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
        st = start_links(w, opt, err);
    if (st != TD_OK)
        goto fail;
    if (opt->admin_listen[0] != '\0') {
        st = td_http_admin_start(opt->admin_listen, metrics, on_ready, w, &w->admin, err);
        if (st != TD_OK) {
            td_wrap(err, "--admin-listen");
            goto fail;
        }
    }
    if (pthread_create(&w->reporter, NULL, reporter_main, w) != 0) {
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
    for (int32_t i = 0; i < w->n_links; i++) {
        if (w->links[i].push != NULL && rpc_push_flush(w->links[i].push, 200) != TD_OK)
            td_debug("push_not_flushed", "router=%s", w->links[i].url);
        rpc_push_close(w->links[i].push);
        pthread_mutex_destroy(&w->links[i].lock);
    }
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
