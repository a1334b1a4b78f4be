/* Messages come in on NNG's thread and go through a mailbox; gateway_next() unpacks one at a time
 * and hands out its events one by one. A list of running streams with the next event number of each
 * is all that is needed to know that nothing is missing. */
#include "client/gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <utlist.h>

#include "common/mailbox.h"
#include "common/pb_arena.h"
#include "common/pb_pack.h"
#include "common/pb_text.h"
#include "common/protocol.h"
#include "common/rpc.h"
#include "common/sampling.h"
#include "proto/tandem.pb-c.h"

enum { PING_MS = 2000, TIMEOUT_MS = 5000, ID_BYTES = 96 };

typedef struct stream {
    uint64_t id;
    uint32_t index;
    uint32_t open; /* choices that have not finished */
    struct stream *prev, *next;
} stream;

typedef struct incoming {
    uint8_t *bytes; /* owned; NULL: the router's connection has gone */
    size_t n;
} incoming;

struct gateway {
    char id[ID_BYTES];
    char model[128];
    uint32_t router_minor;
    uint64_t epoch, router_epoch, seq;
    uint64_t requests; /* started, for ids of our own */
    uint32_t timeout_ms;
    rpc_client *client;
    rpc_pull *pull;
    td_mailbox *mailbox;
    td_pb_arena arena, reply_arena;
    Tandem__GatewayEvents *batch; /* in arena */
    size_t batch_at;
    gateway_token top[TD_TOP_LOGPROBS]; /* of the last event */
    stream *streams;
    td_usec next_ping;
    td_error lost; /* why the router is lost; code TD_OK while it is not */
};

static td_slice slice(ProtobufCBinaryData b)
{
    return (td_slice){(const char *)b.data, b.len};
}

static void drop_incoming(void *user, void *msg)
{
    (void)user;
    free(((incoming *)msg)->bytes);
}

static void post(gateway *g, incoming *in)
{
    if (td_mailbox_post(g->mailbox, in) != TD_OK)
        free(in->bytes); /* shows as a gap */
}

static void on_message(void *user, uint32_t peer, const void *bytes, size_t n)
{
    incoming in = {.bytes = malloc(n ? n : 1), .n = n};

    (void)peer;
    if (in.bytes == NULL)
        return; /* shows as a gap */
    memcpy(in.bytes, bytes, n);
    post(user, &in);
}

static void on_peer(void *user, uint32_t peer, bool up)
{
    incoming in = {.bytes = NULL};

    (void)peer;
    if (!up)
        post(user, &in);
}

/* ---- calls ---- */

/* Send a request and unpack the reply into reply_arena. */
static td_status call(gateway *g, const Tandem__GatewayRequest *req, Tandem__GatewayReply **out,
                      td_error *err)
{
    size_t n;
    uint8_t *bytes = td_pb_pack(&req->base, &n);
    td_buf reply = {0};
    Tandem__GatewayReply *m = NULL;
    td_status st;

    if (bytes == NULL)
        return td_fail(err, TD_NOMEM, "gateway: no memory for a request of %zu bytes", n);
    st = rpc_client_call_wait(g->client, bytes, n, g->timeout_ms, &reply, err);
    free(bytes);
    if (st == TD_OK) {
        m = td_pb_unpack(&g->reply_arena, &tandem__gateway_reply__descriptor, reply.ptr, reply.len,
                         err);
        st = m == NULL ? err->code : TD_OK;
    }
    td_buf_free(&reply);
    if (st != TD_OK)
        return td_wrap(err, "router");
    if (m->status != TD_OK) {
        st = m->status < TD_STATUS_COUNT ? (td_status)m->status : TD_INTERNAL;
        td_fail(err, st, "%.*s", (int)(m->text.len < 400 ? m->text.len : 400),
                (const char *)m->text.data);
        snprintf(err->param, sizeof err->param, "%.*s",
                 (int)(m->param.len < sizeof err->param ? m->param.len : sizeof err->param - 1),
                 (const char *)m->param.data);
        return st;
    }
    *out = m;
    return TD_OK;
}

static td_status hello(gateway *g, const char *events_url, td_error *err)
{
    Tandem__GatewayRequest req = TANDEM__GATEWAY_REQUEST__INIT;
    Tandem__GatewayHello h = TANDEM__GATEWAY_HELLO__INIT;
    Tandem__GatewayReply *reply;
    td_status st;

    h.major = TD_PROTOCOL_MAJOR;
    h.minor = TD_PROTOCOL_MINOR;
    h.gateway_id = td_pb_text(g->id);
    h.events_url = td_pb_text(events_url);
    h.epoch = g->epoch;
    req.body_case = TANDEM__GATEWAY_REQUEST__BODY_HELLO;
    req.hello = &h;
    st = call(g, &req, &reply, err);
    if (st != TD_OK)
        return st;
    if (reply->welcome == NULL)
        return td_fail(err, TD_INTERNAL, "the router's answer to Hello is empty");
    if (reply->welcome->major != TD_PROTOCOL_MAJOR)
        return td_fail(err, TD_INVALID, "this gateway speaks protocol %d.%d, the router %u.%u",
                       TD_PROTOCOL_MAJOR, TD_PROTOCOL_MINOR, reply->welcome->major,
                       reply->welcome->minor);
    g->router_minor = reply->welcome->minor;
    g->router_epoch = reply->welcome->epoch;
    if (reply->welcome->n_models > 0)
        snprintf(g->model, sizeof g->model, "%.*s", (int)reply->welcome->models[0].len,
                 (const char *)reply->welcome->models[0].data);
    return TD_OK;
}

td_status gateway_open(const gateway_options *opt, gateway **out, td_error *err)
{
    gateway *g = calloc(1, sizeof *g);
    rpc_pull_options po = {.url = opt->listen ? opt->listen : "tcp://127.0.0.1:0",
                           .on_message = on_message,
                           .on_peer = on_peer,
                           .user = g};
    rpc_client_options co = {.url = opt->router};
    char host[48] = "localhost";
    td_status st;

    if (g == NULL)
        return td_fail(err, TD_NOMEM, "gateway: no memory");
    gethostname(host, sizeof host - 1);
    if (opt->id != NULL)
        snprintf(g->id, sizeof g->id, "%s", opt->id);
    else
        snprintf(g->id, sizeof g->id, "gateway-%s-%ld", host, (long)getpid());
    if (getrandom(&g->epoch, sizeof g->epoch, 0) != sizeof g->epoch)
        g->epoch = (uint64_t)td_wall_us();
    g->timeout_ms = opt->timeout_ms ? opt->timeout_ms : TIMEOUT_MS;
    g->next_ping = td_now_us() + PING_MS * TD_USEC_PER_MSEC;
    td_pb_arena_init(&g->arena);
    td_pb_arena_init(&g->reply_arena);
    st = td_mailbox_create(sizeof(incoming), 0, drop_incoming, NULL, &g->mailbox, err);
    if (st == TD_OK)
        st = rpc_pull_open(&po, &g->pull, err);
    if (st == TD_OK)
        st = rpc_client_open(&co, &g->client, err);
    if (st == TD_OK)
        st = hello(g, opt->advertise ? opt->advertise : rpc_pull_url(g->pull), err);
    if (st != TD_OK) {
        gateway_close(g);
        return st;
    }
    *out = g;
    return TD_OK;
}

void gateway_close(gateway *g)
{
    stream *s, *next;

    if (g == NULL)
        return;
    rpc_client_close(g->client);
    rpc_pull_close(g->pull);
    td_mailbox_free(g->mailbox);
    DL_FOREACH_SAFE(g->streams, s, next)
    free(s);
    td_pb_arena_fini(&g->arena);
    td_pb_arena_fini(&g->reply_arena);
    free(g);
}

const char *gateway_model(const gateway *g)
{
    return g->model;
}

/* By its number, or by the request_id of a call that was not answered. */
static td_status cancel(gateway *g, uint64_t id, const char *request_id, td_error *err)
{
    Tandem__GatewayRequest req = TANDEM__GATEWAY_REQUEST__INIT;
    Tandem__GatewayCancel m = TANDEM__GATEWAY_CANCEL__INIT;
    Tandem__GatewayReply *reply;

    m.stream = id;
    m.gateway_id = td_pb_text(g->id);
    m.request_id = td_pb_text(request_id);
    req.body_case = TANDEM__GATEWAY_REQUEST__BODY_CANCEL;
    req.cancel = &m;
    return call(g, &req, &reply, err);
}

td_status gateway_cancel(gateway *g, uint64_t id, td_error *err)
{
    return cancel(g, id, "", err);
}

/* m has the body. */
static td_status generate(gateway *g, Tandem__GatewayGenerate *m, const char *request_id,
                          uint64_t *out, td_error *err)
{
    Tandem__GatewayRequest req = TANDEM__GATEWAY_REQUEST__INIT;
    Tandem__GatewayReply *reply;
    char own_id[48];
    stream *s;
    td_status st;

    if (g->lost.code != TD_OK)
        return td_fail(err, TD_UNAVAILABLE, "the router is lost: %s", g->lost.text);
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return td_fail(err, TD_NOMEM, "gateway: no memory for a stream");
    m->gateway_id = td_pb_text(g->id);
    snprintf(own_id, sizeof own_id, "%016llx-%llu", (unsigned long long)g->epoch,
             (unsigned long long)++g->requests);
    request_id = request_id ? request_id : own_id;
    m->request_id = td_pb_text(request_id);
    req.body_case = TANDEM__GATEWAY_REQUEST__BODY_GENERATE;
    req.generate = m;
    st = call(g, &req, &reply, err);
    if (st == TD_OK && reply->accepted == NULL)
        st = td_fail(err, TD_INTERNAL, "the router accepted nothing");
    if (st != TD_OK) {
        td_error ignored;

        /* Without an answer it may be running all the same, with nobody to read it. */
        if ((st == TD_DEADLINE || st == TD_INTERNAL) && cancel(g, 0, request_id, &ignored) != TD_OK)
            td_fail(&g->lost, TD_UNAVAILABLE, "%s", ignored.text);
        free(s);
        return st;
    }
    *out = s->id = reply->accepted->stream;
    s->open = reply->accepted->choices > 0 ? reply->accepted->choices : 1;
    DL_APPEND(g->streams, s);
    return TD_OK;
}

td_status gateway_generate(gateway *g, td_slice chat_json, const char *request_id, uint64_t *out,
                           td_error *err)
{
    Tandem__GatewayGenerate m = TANDEM__GATEWAY_GENERATE__INIT;

    m.chat_json = (ProtobufCBinaryData){chat_json.len, (uint8_t *)(uintptr_t)chat_json.ptr};
    return generate(g, &m, request_id, out, err);
}

td_status gateway_complete(gateway *g, td_slice completion_json, const char *request_id,
                           uint64_t *out, td_error *err)
{
    Tandem__GatewayGenerate m = TANDEM__GATEWAY_GENERATE__INIT;

    if (g->router_minor < TD_COMPLETIONS_MINOR)
        return td_fail(err, TD_UNAVAILABLE,
                       "the router speaks protocol %d.%u; completions need %d.%d: upgrade it",
                       TD_PROTOCOL_MAJOR, g->router_minor, TD_PROTOCOL_MAJOR, TD_COMPLETIONS_MINOR);
    if (completion_json.len == 0) /* an empty field is none at all */
        return td_fail(err, TD_INVALID, "the body is empty");
    m.completion_json =
        (ProtobufCBinaryData){completion_json.len, (uint8_t *)(uintptr_t)completion_json.ptr};
    return generate(g, &m, request_id, out, err);
}

/* ---- events ---- */

static stream *find(gateway *g, uint64_t id)
{
    stream *s;

    DL_FOREACH(g->streams, s)
    if (s->id == id)
        return s;
    return NULL;
}

static void forget(gateway *g, stream *s)
{
    DL_DELETE(g->streams, s);
    free(s);
}

static void ping(gateway *g)
{
    Tandem__GatewayRequest req = TANDEM__GATEWAY_REQUEST__INIT;
    Tandem__GatewayPing m = TANDEM__GATEWAY_PING__INIT;
    Tandem__GatewayReply *reply;
    td_error err = {0};

    m.gateway_id = td_pb_text(g->id);
    m.epoch = g->epoch;
    m.last_seq = g->seq;
    req.body_case = TANDEM__GATEWAY_REQUEST__BODY_PING;
    req.ping = &m;
    if (call(g, &req, &reply, &err) != TD_OK)
        td_fail(&g->lost, TD_UNAVAILABLE, "no answer to a ping: %s", err.text);
    g->next_ping = td_now_us() + PING_MS * TD_USEC_PER_MSEC;
}

static gateway_token token_of(const Tandem__GatewayToken *t)
{
    return (gateway_token){.id = t->id, .text = slice(t->text), .logprob = t->logprob};
}

/* Turn one event of the wire into *out. false: it is not for anyone here. */
static bool read_event(gateway *g, const Tandem__GatewayEvent *e, gateway_event *out)
{
    stream *s = find(g, e->stream);
    td_error err = {0};

    if (s == NULL)
        return false;
    *out = (gateway_event){.stream = e->stream, .index = e->tool_index, .choice = e->choice};
    if (e->index != s->index++) {
        out->kind = GATEWAY_FAILED;
        out->status = TD_UNAVAILABLE;
        out->text = TD_SLICE("pieces of the answer were lost");
        if (cancel(g, s->id, "", &err) != TD_OK)
            g->lost = err;
        forget(g, s);
        return true;
    }
    if (e->status != TD_OK) {
        out->kind = GATEWAY_FAILED;
        out->status = e->status < TD_STATUS_COUNT ? (td_status)e->status : TD_INTERNAL;
        out->text = slice(e->text);
        out->param = slice(e->param);
        forget(g, s);
    } else if (e->finish_reason.len > 0) {
        out->kind = GATEWAY_FINISHED;
        out->text = slice(e->finish_reason);
        if (e->usage != NULL) {
            out->prompt_tokens = e->usage->prompt_tokens;
            out->completion_tokens = e->usage->completion_tokens;
            out->reasoning_tokens = e->usage->reasoning_tokens;
            out->cached_tokens = e->usage->cached_tokens;
        }
        if (e->timings != NULL) {
            out->ttft_us = e->timings->ttft_us;
            out->e2e_us = e->timings->e2e_us;
            out->prefill_queue_us = e->timings->prefill_queue_us;
            out->prefill_us = e->timings->prefill_us;
            out->kv_tail_us = e->timings->kv_tail_us;
            out->kv_bytes = e->timings->kv_bytes;
            out->kv_puts = e->timings->kv_puts;
            out->retries = e->timings->retries;
            out->kv_transport = slice(e->timings->kv_transport);
        }
        out->open = --s->open;
        if (s->open == 0)
            forget(g, s);
    } else if (e->tool_name.len > 0) {
        out->kind = GATEWAY_CALL;
        out->id = slice(e->tool_id);
        out->text = slice(e->tool_name);
    } else if (e->tool_arguments.len > 0) {
        out->kind = GATEWAY_ARGUMENTS;
        out->text = slice(e->tool_arguments);
    } else if (e->token != NULL) {
        out->kind = GATEWAY_TOKEN;
        out->token = token_of(e->token);
        for (size_t i = 0; i < e->n_top && i < TD_TOP_LOGPROBS; i++)
            g->top[out->n_top++] = token_of(e->top[i]);
        out->top = g->top;
    } else if (e->reasoning.len > 0) {
        out->kind = GATEWAY_REASONING;
        out->text = slice(e->reasoning);
    } else {
        out->kind = GATEWAY_CONTENT;
        out->text = slice(e->content);
    }
    return true;
}

/* Take the next message in; g->batch is set when it has events. */
static void take_message(gateway *g)
{
    incoming in;
    td_error err = {0};

    if (td_mailbox_take(g->mailbox, &in, 1) == 0)
        return;
    if (in.bytes == NULL) {
        td_fail(&g->lost, TD_UNAVAILABLE, "the router has closed its connection");
        return;
    }
    g->batch = td_pb_unpack(&g->arena, &tandem__gateway_events__descriptor, in.bytes, in.n, &err);
    g->batch_at = 0;
    free(in.bytes);
    if (g->batch == NULL)
        td_fail(&g->lost, TD_INTERNAL, "the router's events cannot be read: %s", err.text);
    else if (g->batch->epoch != g->router_epoch)
        td_fail(&g->lost, TD_UNAVAILABLE, "the router has started again");
    else if (g->batch->seq != g->seq + 1)
        td_fail(&g->lost, TD_UNAVAILABLE, "events of the router were lost");
    else
        g->seq = g->batch->seq;
    if (g->lost.code != TD_OK)
        g->batch = NULL;
}

td_status gateway_next(gateway *g, td_usec deadline, gateway_event *out, td_error *err)
{
    for (;;) {
        td_usec now = td_now_us(), until;

        while (g->batch != NULL && g->batch_at < g->batch->n_events)
            if (read_event(g, g->batch->events[g->batch_at++], out))
                return TD_OK;
        g->batch = NULL;
        if (g->lost.code != TD_OK) {
            if (g->streams == NULL)
                return td_fail(err, TD_UNAVAILABLE, "%s", g->lost.text);
            *out = (gateway_event){.kind = GATEWAY_FAILED,
                                   .stream = g->streams->id,
                                   .status = TD_UNAVAILABLE,
                                   .text = td_slice_of(g->lost.text)};
            forget(g, g->streams);
            return TD_OK;
        }
        if (now >= g->next_ping) {
            ping(g);
            continue;
        }
        until = deadline < g->next_ping ? deadline : g->next_ping;
        if (td_mailbox_wait(g->mailbox, until) == TD_OK)
            take_message(g);
        else if (td_now_us() >= deadline)
            return td_fail(err, TD_DEADLINE, "no event in time");
    }
}
