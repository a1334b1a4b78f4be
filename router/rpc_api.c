#include "router/rpc_api_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include <utlist.h>

#include "common/log.h"
#include "common/pb_pack.h"
#include "common/pb_text.h"
#include "common/protocol.h"
#include "router/completion_body.h"
#include "router/openai.h"

enum { TAKE = 64, SILENT_MS = 10000, WATCH_MS = 500 };

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

/* ---- requests ---- */

static void reply(rpc_call *call, Tandem__GatewayReply *m)
{
    size_t n;
    uint8_t *bytes = td_pb_pack(&m->base, &n);

    if (bytes == NULL) {
        rpc_call_drop(call);
        return;
    }
    if (rpc_reply(call, bytes, n) != TD_OK)
        td_debug("reply_failed", "bytes=%zu", n);
    free(bytes);
}

static void reply_error(rpc_call *call, const td_error *err, uint32_t retry_s)
{
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;

    m.status = err->code;
    m.text = td_pb_text(err->text);
    m.param = td_pb_text(err->param);
    m.retry_ms = retry_s * 1000;
    reply(call, &m);
}

static void take_hello(rpc_api *a, rpc_call *call, const Tandem__GatewayHello *h)
{
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;
    Tandem__GatewayWelcome w = TANDEM__GATEWAY_WELCOME__INIT;
    ProtobufCBinaryData model = td_pb_text(router_model(a->r));
    td_error err = {0};

    if (rpc_api_open_gateway(a, h, &err) != TD_OK) {
        reply_error(call, &err, 0);
        return;
    }
    w.major = TD_PROTOCOL_MAJOR;
    w.minor = TD_PROTOCOL_MINOR;
    w.router_id = td_pb_text(a->id);
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

/* *gen is to be freed whatever is returned. */
static td_status parse_body(const gateway *g, const Tandem__GatewayGenerate *m, generation *gen,
                            td_error *err)
{
    const router *r = g->api->r;
    const tokenizer *t = harmony_tokenizer(r->harmony);
    char date[16];
    openai_defaults d = router_defaults(r, date);
    bool raw = m->completion_json.len > 0;
    ProtobufCBinaryData from = raw ? m->completion_json : m->chat_json;
    td_buf body = {0};
    td_status st;

    generation_init(gen);
    if (raw && m->chat_json.len > 0)
        return td_fail_param(err, "completion_json",
                             "chat_json and completion_json exclude each other");
    if (g->minor < TD_CHOICES_MINOR)
        d.max_choices = 1;                  /* it would take the end of one for the end of all */
    td_buf_add(&body, from.data, from.len); /* adds the NUL that the parser wants */
    if (body.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the body");
    else if (raw)
        st = completion_parse(body.ptr, body.len, &d, t, gen, err);
    else
        st = openai_parse_chat(body.ptr, body.len, &d, gen, err);
    td_buf_free(&body);
    return st == TD_OK ? generation_check_model(gen->model, router_model(r), err) : st;
}

/* The gateway's name for its request, fit for log lines; n bytes of *out. Whole and as it was said,
 * or a Cancel that names it would miss it. */
static td_status take_request_id(ProtobufCBinaryData from, char *out, size_t n, td_error *err)
{
    if (from.len >= n)
        return td_fail_param(err, "request_id",
                             "request_id has %zu bytes, at most %zu are possible", from.len, n - 1);
    for (size_t i = 0; i < from.len; i++) {
        out[i] = (char)from.data[i];
        if (out[i] <= ' ' || out[i] >= 0x7f || out[i] == '"')
            return td_fail_param(err, "request_id",
                                 "request_id must be printable ASCII without spaces and quotes");
    }
    out[from.len] = '\0';
    return TD_OK;
}

/* A stream of gen->n answers, not begun; NULL: no memory. */
static stream *make_stream(gateway *g, const generation *gen, const char *request_id)
{
    stream *s = calloc(1, sizeof *s + gen->n * sizeof *s->choices);

    if (s == NULL)
        return NULL;
    s->gateway = g;
    s->n = s->n_open = gen->n;
    for (uint32_t i = 0; i < s->n; i++)
        s->choices[i] = (stream_choice){.stream = s, .number = i};
    snprintf(s->request_id, sizeof s->request_id, "%s", request_id);
    return s;
}

static td_status start_stream(rpc_api *a, const Tandem__GatewayGenerate *m, stream **out,
                              uint32_t *retry_s, td_error *err)
{
    gateway *g = rpc_api_known(a, m->gateway_id);
    void *users[GENERATION_MAX_CHOICES];
    char name[sizeof((stream *)0)->request_id];
    generation gen;
    stream *s = NULL;
    td_status st;

    if (g == NULL)
        return td_fail(err, TD_UNAVAILABLE, "this gateway is not known here: say Hello first");
    st = take_request_id(m->request_id, name, sizeof name, err);
    if (st != TD_OK)
        return st;
    if (name[0] != '\0' && same_request(g, name))
        return td_fail_param(err, "request_id", "a request with this request_id is running");
    st = parse_body(g, m, &gen, err);
    if (st == TD_OK && (s = make_stream(g, &gen, name)) == NULL)
        st = td_fail(err, TD_NOMEM, "no memory for a stream");
    if (st != TD_OK) {
        generation_free(&gen);
        return st;
    }
    for (uint32_t i = 0; i < s->n; i++)
        users[i] = &s->choices[i];
    st = request_submit_choices(a->r, &gen, name[0] ? s->request_id : g->id, &rpc_api_answer, users,
                                s->q, retry_s, err);
    if (st != TD_OK) {
        free(s);
        return st;
    }
    s->id = request_id(s->q[0]);
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
    accepted.choices = s->n;
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
    gateway *g = rpc_api_known(a, m->gateway_id);
    stream *s, *next;

    DL_FOREACH_SAFE(g != NULL ? g->streams : NULL, s, next)
    {
        Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

        if (!is_canceled(s, m))
            continue;
        request_cancel_choices(s->q, s->n, "gateway_cancel");
        e.status = TD_CANCELED;
        e.text = td_pb_text("canceled");
        rpc_api_add_event(s, &e);
        rpc_api_drop_stream(s);
    }
    reply(call, &ok);
}

static void take_ping(rpc_api *a, rpc_call *call, const Tandem__GatewayPing *ping)
{
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;
    Tandem__GatewayPong pong = TANDEM__GATEWAY_PONG__INIT;
    gateway *g = rpc_api_known(a, ping->gateway_id);
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
            gateway *g = rpc_api_find_gateway(a, batch[i].gateway_id, strlen(batch[i].gateway_id));

            if (g != NULL && g->epoch == batch[i].epoch)
                rpc_api_drop_gateway(g, "its connection was lost");
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
        rpc_api_drop_gateway(g, "it has not said a word for too long");
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
    a->flush = (td_loop_task){.fn = rpc_api_flush, .arg = a};
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

void rpc_api_free(rpc_api *a)
{
    if (a == NULL)
        return;
    rpc_server_close(a->server);
    while (a->gateways != NULL) {
        rpc_api_send_pending(a->gateways);
        if (rpc_push_flush(a->gateways->push, 200) != TD_OK)
            td_debug("gateway_not_flushed", "gateway=%s", a->gateways->id);
        rpc_api_drop_gateway(a->gateways, "this router stops");
    }
    td_timer_free(a->timer);
    td_watch_free(a->watch);
    td_mailbox_free(a->mailbox);
    td_pb_arena_fini(&a->arena);
    free(a);
}
