#include "router/rpc_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <utlist.h>

#include "common/log.h"
#include "common/mailbox.h"
#include "common/pb_arena.h"
#include "common/protocol.h"
#include "common/rpc.h"
#include "router/openai.h"

enum { TAKE = 64, GATEWAY_ID_BYTES = 96, URL_BYTES = 160, SILENT_MS = 10000, WATCH_MS = 500 };

typedef struct gateway gateway;

/* One answer on its way to a gateway. */
typedef struct stream {
    gateway *gateway;
    request *q;
    uint64_t id;          /* the request's, known to the gateway as the stream's number */
    char request_id[132]; /* the gateway's own */
    uint32_t index;       /* of the next event */
    struct stream *prev, *next;
} stream;

struct gateway {
    rpc_api *api;
    char id[GATEWAY_ID_BYTES];
    uint64_t epoch;
    rpc_push *push;
    uint64_t seq;
    td_buf pending; /* events, each already encoded as field 4 of GatewayEvents */
    stream *streams;
    td_usec last_seen;
    bool dead; /* its push has failed: dropped at the next turn */
    gateway *prev, *next;
};

typedef enum incoming_kind { IN_REQUEST, IN_DEAD } incoming_kind;

typedef struct incoming {
    incoming_kind kind;
    rpc_call *call;
    const void *bytes; /* the call's */
    size_t n;
    char gateway_id[GATEWAY_ID_BYTES]; /* DEAD */
    uint64_t epoch;
} incoming;

struct rpc_api {
    router *r;
    rpc_server *server;
    td_mailbox *mailbox;
    td_watch *watch;
    td_timer *timer;
    td_loop_task flush;
    uint64_t epoch;
    char id[64];
    gateway *gateways;
    td_pb_arena arena;
};

static ProtobufCBinaryData binary(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* ---- NNG's threads ---- */

static void drop_incoming(void *user, void *msg)
{
    incoming *in = msg;

    (void)user;
    if (in->call != NULL)
        rpc_call_drop(in->call);
}

static void on_request(void *user, rpc_call *call, const void *bytes, size_t n)
{
    rpc_api *a = user;
    incoming in = {.kind = IN_REQUEST, .call = call, .bytes = bytes, .n = n};

    if (td_mailbox_post(a->mailbox, &in) != TD_OK)
        rpc_call_drop(call);
}

static void report_dead(gateway *g)
{
    incoming in = {.kind = IN_DEAD, .epoch = g->epoch};

    memcpy(in.gateway_id, g->id, sizeof in.gateway_id);
    if (td_mailbox_post(g->api->mailbox, &in) != TD_OK)
        td_logerr("mailbox_full", "gateway=%s", g->id); /* its silence will be noticed instead */
}

static void on_push_dead(void *user, td_status why)
{
    (void)why;
    report_dead(user);
}

static void on_push_peer(void *user, bool up)
{
    if (!up)
        report_dead(user);
}

/* ---- events ---- */

static void send_pending(gateway *g)
{
    Tandem__GatewayEvents head = TANDEM__GATEWAY_EVENTS__INIT;
    rpc_api *a = g->api;
    td_buf whole = {0};
    uint8_t bytes[256];
    size_t n;

    if (g->pending.len == 0 || g->dead)
        return;
    head.router_id = binary(a->id);
    head.epoch = a->epoch;
    head.seq = ++g->seq;
    n = tandem__gateway_events__get_packed_size(&head);
    td_assert(n <= sizeof bytes);
    tandem__gateway_events__pack(&head, bytes);
    /* Fields of a message may come in pieces: the head and then the events are one message. */
    td_buf_add(&whole, bytes, n);
    td_buf_add(&whole, g->pending.ptr, g->pending.len);
    if (whole.oom || g->pending.oom ||
        rpc_push_send(g->push, whole.ptr, whole.len, NULL) != TD_OK) {
        g->dead = true; /* not dropped here: a request may be calling us */
        report_dead(g);
    }
    td_buf_clear(&g->pending);
    td_buf_free(&whole);
}

static void on_flush_task(void *arg)
{
    rpc_api *a = arg;
    gateway *g;

    DL_FOREACH(a->gateways, g)
    send_pending(g);
}

static void add_event(stream *s, Tandem__GatewayEvent *e)
{
    gateway *g = s->gateway;
    size_t n, left;
    uint8_t head[12];
    size_t h = 0;
    uint8_t *bytes;

    e->stream = s->id;
    e->index = s->index++;
    n = tandem__gateway_event__get_packed_size(e);
    bytes = malloc(n ? n : 1);
    if (bytes == NULL) {
        g->pending.oom = true;
    } else {
        tandem__gateway_event__pack(e, bytes);
        head[h++] = 4 << 3 | 2; /* field 4, length-delimited */
        for (left = n; left >= 0x80; left >>= 7)
            head[h++] = (uint8_t)(left | 0x80);
        head[h++] = (uint8_t)left;
        td_buf_add(&g->pending, head, h);
        td_buf_add(&g->pending, bytes, n);
        free(bytes);
    }
    if (!td_loop_post_task(g->api->r->loop, &g->api->flush))
        td_debug("flush_dropped", "gateway=%s", g->id);
}

static void drop_stream(stream *s)
{
    DL_DELETE(s->gateway->streams, s);
    free(s);
}

/* ---- the answer's callbacks ---- */

static void on_start(void *user, request *q)
{
    (void)user;
    (void)q;
}

static void on_reasoning(void *user, td_slice text)
{
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

    e.reasoning = (ProtobufCBinaryData){text.len, (uint8_t *)(uintptr_t)text.ptr};
    add_event(user, &e);
}

static void on_content(void *user, td_slice text)
{
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

    e.content = (ProtobufCBinaryData){text.len, (uint8_t *)(uintptr_t)text.ptr};
    add_event(user, &e);
}

static void on_call_begin(void *user, size_t index, const char *id, td_slice name)
{
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

    e.tool_index = (int32_t)index;
    e.tool_id = binary(id);
    e.tool_name = (ProtobufCBinaryData){name.len, (uint8_t *)(uintptr_t)name.ptr};
    add_event(user, &e);
}

static void on_call_args(void *user, size_t index, td_slice text)
{
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

    e.tool_index = (int32_t)index;
    e.tool_arguments = (ProtobufCBinaryData){text.len, (uint8_t *)(uintptr_t)text.ptr};
    add_event(user, &e);
}

static void on_flush(void *user)
{
    (void)user; /* a turn of the loop is the batch: see add_event() */
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    stream *s = user;
    const request_times *t = request_times_of(s->q);
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;
    Tandem__Usage usage = TANDEM__USAGE__INIT;
    Tandem__Timings times = TANDEM__TIMINGS__INIT;

    usage.prompt_tokens = u->prompt_tokens;
    usage.completion_tokens = u->completion_tokens;
    usage.reasoning_tokens = u->reasoning_tokens;
    usage.cached_tokens = u->cached_tokens;
    times.ttft_us = (uint64_t)(t->first_token - t->submitted);
    times.e2e_us = (uint64_t)(t->last_token - t->submitted);
    times.prefill_queue_us = t->prefill_queue_us;
    times.prefill_us = t->prefill_compute_us;
    times.kv_tail_us = t->push_tail_us;
    times.kv_bytes = t->kv_bytes;
    times.kv_puts = t->kv_puts;
    times.kv_transport = binary(t->kv_transport);
    times.retries = t->retries;
    e.finish_reason = binary(reason);
    e.usage = &usage;
    e.timings = &times;
    add_event(s, &e);
    drop_stream(s);
}

static void on_error(void *user, const td_error *err, uint32_t retry_s)
{
    stream *s = user;
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

    (void)retry_s;
    e.status = err->code;
    e.text = binary(err->text);
    add_event(s, &e);
    drop_stream(s);
}

static const answer callbacks = {.on_start = on_start,
                                 .on_reasoning = on_reasoning,
                                 .on_content = on_content,
                                 .on_call_begin = on_call_begin,
                                 .on_call_args = on_call_args,
                                 .on_flush = on_flush,
                                 .on_finish = on_finish,
                                 .on_error = on_error};

/* ---- gateways ---- */

static void drop_gateway(gateway *g, const char *why)
{
    rpc_api *a = g->api;
    size_t n = 0;

    while (g->streams != NULL) {
        stream *s = g->streams;

        request_cancel(s->q, "gateway_gone");
        drop_stream(s);
        n++;
    }
    td_info("gateway_gone", "gateway=%s why=\"%s\" streams=%zu", g->id, why, n);
    DL_DELETE(a->gateways, g);
    rpc_push_close(g->push);
    td_buf_free(&g->pending);
    free(g);
}

static gateway *find_gateway(rpc_api *a, const char *id, size_t n)
{
    gateway *g;

    DL_FOREACH(a->gateways, g)
    if (strlen(g->id) == n && memcmp(g->id, id, n) == 0)
        return g;
    return NULL;
}

static gateway *known(rpc_api *a, ProtobufCBinaryData id)
{
    gateway *g = find_gateway(a, (const char *)id.data, id.len);

    if (g != NULL && g->dead)
        return NULL;
    if (g != NULL)
        g->last_seen = td_now_us();
    return g;
}

static td_status open_gateway(rpc_api *a, const Tandem__GatewayHello *h, td_error *err)
{
    gateway *g = find_gateway(a, (const char *)h->gateway_id.data, h->gateway_id.len);
    char url[URL_BYTES];
    rpc_push_options po = {
        .url = url, .max_messages = 1024, .on_dead = on_push_dead, .on_peer = on_push_peer};
    td_status st;

    if (h->major != TD_PROTOCOL_MAJOR)
        return td_fail(err, TD_INVALID, "this router speaks protocol %d.%d, the gateway %u.%u",
                       TD_PROTOCOL_MAJOR, TD_PROTOCOL_MINOR, h->major, h->minor);
    if (h->gateway_id.len == 0 || h->gateway_id.len >= GATEWAY_ID_BYTES || h->events_url.len == 0 ||
        h->events_url.len >= URL_BYTES)
        return td_fail(err, TD_INVALID,
                       "hello needs a gateway_id of at most %d bytes and an "
                       "events_url of at most %d",
                       GATEWAY_ID_BYTES - 1, URL_BYTES - 1);
    for (size_t i = 0; i < h->gateway_id.len; i++)
        if (h->gateway_id.data[i] <= 0x20 || h->gateway_id.data[i] >= 0x7f)
            return td_fail(err, TD_INVALID, "gateway_id must be printable ASCII");
    if (g != NULL && g->epoch == h->epoch && !g->dead) {
        g->last_seen = td_now_us();
        return TD_OK; /* it says hello again */
    }
    if (g != NULL)
        drop_gateway(g, "it has started again");
    g = calloc(1, sizeof *g);
    if (g == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a gateway");
    g->api = a;
    g->epoch = h->epoch;
    g->last_seen = td_now_us();
    memcpy(g->id, h->gateway_id.data, h->gateway_id.len);
    memcpy(url, h->events_url.data, h->events_url.len);
    url[h->events_url.len] = '\0';
    po.user = g;
    st = rpc_push_open(&po, &g->push, err);
    if (st != TD_OK) {
        free(g);
        return td_wrap(err, "events_url");
    }
    DL_APPEND(a->gateways, g);
    td_info("gateway_joined", "gateway=%s events=%s", g->id, url);
    return TD_OK;
}

/* ---- requests ---- */

static void reply(rpc_call *call, Tandem__GatewayReply *m)
{
    size_t n = tandem__gateway_reply__get_packed_size(m);
    uint8_t *bytes = malloc(n ? n : 1);

    if (bytes == NULL) {
        rpc_call_drop(call);
        return;
    }
    tandem__gateway_reply__pack(m, bytes);
    if (rpc_reply(call, bytes, n) != TD_OK)
        td_debug("reply_failed", "bytes=%zu", n);
    free(bytes);
}

static void reply_error(rpc_call *call, const td_error *err, uint32_t retry_s)
{
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;

    m.status = err->code;
    m.text = binary(err->text);
    m.param = binary(err->param);
    m.retry_ms = retry_s * 1000;
    reply(call, &m);
}

static void take_hello(rpc_api *a, rpc_call *call, const Tandem__GatewayHello *h)
{
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;
    Tandem__GatewayWelcome w = TANDEM__GATEWAY_WELCOME__INIT;
    ProtobufCBinaryData model = binary(router_model(a->r));
    td_error err = {0};

    if (open_gateway(a, h, &err) != TD_OK) {
        reply_error(call, &err, 0);
        return;
    }
    w.major = TD_PROTOCOL_MAJOR;
    w.minor = TD_PROTOCOL_MINOR;
    w.router_id = binary(a->id);
    w.epoch = a->epoch;
    w.models = &model;
    w.n_models = model.len > 0;
    m.welcome = &w;
    reply(call, &m);
}

static bool same_request(const gateway *g, const char *request_id)
{
    const stream *s;

    DL_FOREACH(g->streams, s)
    if (strcmp(s->request_id, request_id) == 0)
        return true;
    return false;
}

static td_status start_stream(rpc_api *a, const Tandem__GatewayGenerate *m, stream **out,
                              uint32_t *retry_s, td_error *err)
{
    gateway *g = known(a, m->gateway_id);
    td_buf body = {0};
    char date[16];
    openai_defaults d = {.date = date,
                         .allow_ignore_eos = a->r->cfg->allow_ignore_eos,
                         .vocab = tokenizer_vocab(harmony_tokenizer(a->r->harmony))};
    generation gen;
    stream *s;
    td_status st;

    if (g == NULL)
        return td_fail(err, TD_UNAVAILABLE, "this gateway is not known here: say Hello first");
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a stream");
    s->gateway = g;
    snprintf(s->request_id, sizeof s->request_id, "%.*s",
             (int)(m->request_id.len < sizeof s->request_id ? m->request_id.len
                                                            : sizeof s->request_id - 1),
             (const char *)m->request_id.data);
    for (char *c = s->request_id; *c != '\0'; c++) /* it goes into log lines */
        if (*c <= ' ' || *c >= 0x7f || *c == '"')
            *c = '_';
    if (s->request_id[0] != '\0' && same_request(g, s->request_id)) {
        free(s);
        return td_fail(err, TD_INVALID, "a request with this request_id is running");
    }
    router_date(a->r, date);
    td_buf_add(&body, m->chat_json.data, m->chat_json.len); /* adds the NUL that the parser wants */
    st = body.oom ? td_fail(err, TD_NOMEM, "no memory for the body")
                  : openai_parse_chat(body.ptr, body.len, &d, &gen, err);
    if (body.oom)
        generation_init(&gen);
    if (st == TD_OK && gen.logprobs)
        st = td_fail_param(err, "logprobs",
                           "logprobs are not carried by GatewayEvent: ask for them "
                           "over HTTP");
    td_buf_free(&body);
    if (st == TD_OK)
        st = request_submit(a->r, &gen, s->request_id[0] ? s->request_id : g->id, &callbacks, s,
                            &s->q, retry_s, err);
    else
        generation_free(&gen);
    if (st != TD_OK) {
        free(s);
        return st;
    }
    s->id = request_id(s->q);
    DL_APPEND(g->streams, s);
    *out = s;
    return TD_OK;
}

static void take_generate(rpc_api *a, rpc_call *call, const Tandem__GatewayGenerate *g)
{
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;
    Tandem__GatewayAccepted accepted = TANDEM__GATEWAY_ACCEPTED__INIT;
    td_error err = {0};
    uint32_t retry_s = 0;
    stream *s = NULL;

    if (start_stream(a, g, &s, &retry_s, &err) != TD_OK) {
        reply_error(call, &err, retry_s);
        return;
    }
    accepted.stream = s->id;
    m.accepted = &accepted;
    reply(call, &m);
}

static bool is_canceled(const stream *s, const Tandem__GatewayCancel *m)
{
    if (m->stream != 0)
        return s->id == m->stream;
    return m->request_id.len > 0 && strlen(s->request_id) == m->request_id.len &&
           memcmp(s->request_id, m->request_id.data, m->request_id.len) == 0;
}

static void take_cancel(rpc_api *a, rpc_call *call, const Tandem__GatewayCancel *m)
{
    Tandem__GatewayReply ok = TANDEM__GATEWAY_REPLY__INIT;
    gateway *g = known(a, m->gateway_id);
    stream *s, *next;

    DL_FOREACH_SAFE(g != NULL ? g->streams : NULL, s, next)
    {
        Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

        if (!is_canceled(s, m))
            continue;
        request_cancel(s->q, "gateway_cancel");
        e.status = TD_CANCELED;
        e.text = binary("canceled");
        add_event(s, &e);
        drop_stream(s);
    }
    reply(call, &ok);
}

static void take_ping(rpc_api *a, rpc_call *call, const Tandem__GatewayPing *ping)
{
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;
    Tandem__GatewayPong pong = TANDEM__GATEWAY_PONG__INIT;
    gateway *g = known(a, ping->gateway_id);
    td_error err = {0};
    stream *s;

    if (g == NULL || g->epoch != ping->epoch) {
        td_fail(&err, TD_UNAVAILABLE, "this gateway is not known here: say Hello first");
        reply_error(call, &err, 0);
        return;
    }
    DL_FOREACH(g->streams, s)
    pong.live_streams++;
    pong.last_seq = g->seq;
    m.pong = &pong;
    reply(call, &m);
}

static void take_request(rpc_api *a, const incoming *in)
{
    td_error err = {0};
    Tandem__GatewayRequest *m =
        td_pb_unpack(&a->arena, &tandem__gateway_request__descriptor, in->bytes, in->n, &err);

    if (m == NULL) {
        reply_error(in->call, &err, 0);
        return;
    }
    switch (m->body_case) {
    case TANDEM__GATEWAY_REQUEST__BODY_HELLO: take_hello(a, in->call, m->hello); break;
    case TANDEM__GATEWAY_REQUEST__BODY_GENERATE: take_generate(a, in->call, m->generate); break;
    case TANDEM__GATEWAY_REQUEST__BODY_CANCEL: take_cancel(a, in->call, m->cancel); break;
    case TANDEM__GATEWAY_REQUEST__BODY_PING: take_ping(a, in->call, m->ping); break;
    default:
        td_fail(&err, TD_INVALID, "the request has no body that this version knows");
        reply_error(in->call, &err, 0);
    }
}

static void on_mail(void *arg, unsigned ready)
{
    rpc_api *a = arg;
    incoming batch[TAKE];
    size_t n = td_mailbox_take(a->mailbox, batch, TAKE);

    (void)ready;
    for (size_t i = 0; i < n; i++) {
        if (batch[i].kind == IN_REQUEST) {
            take_request(a, &batch[i]);
        } else {
            gateway *g = find_gateway(a, batch[i].gateway_id, strlen(batch[i].gateway_id));

            if (g != NULL && g->epoch == batch[i].epoch)
                drop_gateway(g, "its connection was lost");
        }
    }
}

static void on_watch(void *arg)
{
    rpc_api *a = arg;
    td_usec now = td_now_us();
    gateway *g, *next;

    DL_FOREACH_SAFE(a->gateways, g, next)
    if (now - g->last_seen > SILENT_MS * TD_USEC_PER_MSEC)
        drop_gateway(g, "it has not said a word for too long");
    td_timer_in(a->timer, WATCH_MS * TD_USEC_PER_MSEC);
}

td_status rpc_api_create(router *r, rpc_api **out, td_error *err)
{
    rpc_api *a = calloc(1, sizeof *a);
    rpc_server_options so = {
        .url = r->cfg->rpc_listen, .max_message_bytes = r->cfg->max_body, .on_request = on_request};
    td_status st;

    if (a == NULL)
        return td_fail(err, TD_NOMEM, "rpc: no memory");
    a->r = r;
    a->flush = (td_loop_task){.fn = on_flush_task, .arg = a};
    td_pb_arena_init(&a->arena);
    if (getrandom(&a->epoch, sizeof a->epoch, 0) != sizeof a->epoch)
        a->epoch = (uint64_t)td_wall_us();
    snprintf(a->id, sizeof a->id, "router-%016llx", (unsigned long long)a->epoch);
    so.user = a;
    st = td_mailbox_create(sizeof(incoming), 0, drop_incoming, NULL, &a->mailbox, err);
    if (st == TD_OK) {
        a->watch = td_watch_create(r->loop, td_mailbox_fd(a->mailbox), TD_READABLE, on_mail, a);
        a->timer = td_timer_create(r->loop, on_watch, a);
        if (a->watch == NULL || a->timer == NULL)
            st = td_fail(err, TD_NOMEM, "rpc: no memory for loop events");
    }
    if (st == TD_OK)
        st = rpc_server_open(&so, &a->server, err);
    if (st != TD_OK) {
        rpc_api_free(a);
        return td_wrap(err, "--rpc-listen");
    }
    td_timer_in(a->timer, WATCH_MS * TD_USEC_PER_MSEC);
    td_info("rpc_listening", "url=%s", rpc_server_url(a->server));
    *out = a;
    return TD_OK;
}

const char *rpc_api_url(const rpc_api *a)
{
    return rpc_server_url(a->server);
}

void rpc_api_free(rpc_api *a)
{
    if (a == NULL)
        return;
    rpc_server_close(a->server);
    while (a->gateways != NULL) {
        send_pending(a->gateways);
        if (rpc_push_flush(a->gateways->push, 200) != TD_OK)
            td_debug("gateway_not_flushed", "gateway=%s", a->gateways->id);
        drop_gateway(a->gateways, "this router stops");
    }
    td_timer_free(a->timer);
    td_watch_free(a->watch);
    td_mailbox_free(a->mailbox);
    td_pb_arena_fini(&a->arena);
    free(a);
}
