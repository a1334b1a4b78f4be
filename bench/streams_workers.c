#include "bench/streams_workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/pb_arena.h"
#include "common/pb_pack.h"
#include "common/pb_text.h"
#include "common/protocol.h"
#include "common/rpc.h"
#include "proto/tandem.pb-c.h"

enum {
    REPORT_US = 500000,
    PAGES = 1 << 24,
};

typedef struct mock_stream {
    uint64_t request;
    uint32_t attempt, number, n_head, sent, max;
    bool over;
} mock_stream;

/* One of the two, as the router sees it. */
typedef struct mock_worker {
    const char *id;
    Tandem__Role role;
    rpc_server *server;
    rpc_push *push;
    uint64_t seq; /* under the lock */
} mock_worker;

struct stream_workers {
    mock_worker prefill, decode;
    uint32_t max_streams, max_tokens;
    td_usec step_us;
    int32_t vocab, letter;
    int32_t head[3], digits[10], blank;
    _Atomic(td_usec) *sent; /* [max_streams][max_tokens] */
    pthread_mutex_t lock;   /* guards the rest, and the order of messages */
    mock_stream *running;   /* [max_streams] */
    size_t n_running;
    uint32_t n_streams;
    pthread_t thread;
    atomic_bool stop;
};

/* ---- what a stream says ---- */

static uint32_t n_digits(uint32_t number)
{
    uint32_t n = 1;

    for (; number >= 10; number /= 10)
        n++;
    return n;
}

/* Channel, number, blank. */
static uint32_t head_of(uint32_t number)
{
    return 3 + n_digits(number) + 1;
}

static int32_t token_of(const stream_workers *w, const mock_stream *s, uint32_t i)
{
    uint32_t digits = n_digits(s->number), at, value = s->number;

    if (i < 3)
        return w->head[i];
    if (i == s->n_head - 1)
        return w->blank;
    if (i >= s->n_head)
        return w->letter;
    for (at = digits - 1; at > i - 3; at--)
        value /= 10;
    return w->digits[value % 10];
}

/* ---- messages ---- */

/* The lock is held. */
static void send_message(mock_worker *m, Tandem__WorkerMessage *message)
{
    size_t n;
    uint8_t *bytes;

    message->worker_id = td_pb_text(m->id);
    message->incarnation = 1;
    message->seq = ++m->seq;
    bytes = td_pb_pack(&message->base, &n);
    if (bytes == NULL)
        abort();
    if (rpc_push_send(m->push, bytes, n, NULL) != TD_OK) {
        fprintf(stderr, "bench_streams: the router does not take what the workers send\n");
        exit(1);
    }
    free(bytes);
}

static void report(stream_workers *w, mock_worker *m)
{
    Tandem__WorkerMessage message = TANDEM__WORKER_MESSAGE__INIT;
    Tandem__WorkerReport r = TANDEM__WORKER_REPORT__INIT;
    Tandem__ModelIdentity model = TANDEM__MODEL_IDENTITY__INIT;

    model.name = td_pb_text("tandem-tiny");
    model.config_hash = model.checkpoint_hash = model.kv_wire_hash = 1;
    model.vocab = w->vocab;
    model.max_positions = 131072;
    r.role = m->role;
    r.state = TANDEM__WORKER_STATE__STATE_READY;
    r.rpc_url = td_pb_text(rpc_server_url(m->server));
    r.model = &model;
    r.tp = r.ep = 1;
    r.heartbeat_ms = REPORT_US / 1000;
    r.pages_total = r.pages_free = PAGES;
    r.rings_total = r.rings_free = r.max_batch = PAGES;
    r.running = (uint32_t)w->n_running;
    r.max_prompt_tokens = 131072;
    r.major = TD_PROTOCOL_MAJOR;
    r.minor = TD_PROTOCOL_MINOR;
    message.report = &r;
    send_message(m, &message);
}

static void reply(rpc_call *call, Tandem__WorkerReply *m)
{
    uint8_t bytes[512];

    if (tandem__worker_reply__get_packed_size(m) > sizeof bytes)
        abort();
    if (rpc_reply(call, bytes, tandem__worker_reply__pack(m, bytes)) != TD_OK)
        fprintf(stderr, "bench_streams: a reply was not sent\n");
}

static void reply_reserved(const stream_workers *w, rpc_call *call)
{
    Tandem__WorkerReply m = TANDEM__WORKER_REPLY__INIT;
    Tandem__Reserved reserved = TANDEM__RESERVED__INIT;
    Tandem__KvDestination d = TANDEM__KV_DESTINATION__INIT;

    d.worker_id = td_pb_text(w->decode.id);
    d.incarnation = 1;
    d.descriptor = td_pb_text("none");
    d.tp = 1;
    reserved.destination = &d;
    m.reserved = &reserved;
    reply(call, &m);
}

/* It is read at once: the first token goes out, and the stream runs from the next step on. */
static void begin_stream(stream_workers *w, const Tandem__Prefill *p)
{
    Tandem__WorkerMessage message = TANDEM__WORKER_MESSAGE__INIT;
    Tandem__PrefillEvent e = TANDEM__PREFILL_EVENT__INIT, *es = &e;
    Tandem__TransferEvent t = TANDEM__TRANSFER_EVENT__INIT, *ts = &t;
    mock_stream *s;

    pthread_mutex_lock(&w->lock);
    if (w->n_streams == w->max_streams || w->n_running == w->max_streams) {
        fprintf(stderr, "bench_streams: more than %u streams\n", w->max_streams);
        exit(1);
    }
    s = &w->running[w->n_running++];
    *s = (mock_stream){.request = p->request,
                       .attempt = p->attempt,
                       .number = w->n_streams++,
                       .max = p->max_tokens < w->max_tokens ? p->max_tokens : w->max_tokens};
    s->n_head = head_of(s->number);
    e.request = t.request = p->request;
    e.attempt = t.attempt = p->attempt;
    e.first_token = token_of(w, s, 0);
    t.transport = td_pb_text("none");
    message.prefills = &es;
    message.n_prefills = 1;
    message.transfers = &ts;
    message.n_transfers = 1;
    send_message(&w->prefill, &message);
    pthread_mutex_unlock(&w->lock);
}

static void end_stream(stream_workers *w, uint64_t request)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_running; i++)
        if (w->running[i].request == request)
            w->running[i].over = true;
    pthread_mutex_unlock(&w->lock);
}

static void on_request(void *user, rpc_call *call, const void *bytes, size_t n)
{
    stream_workers *w = user;
    Tandem__WorkerReply ok = TANDEM__WORKER_REPLY__INIT;
    Tandem__WorkerRequest *m = tandem__worker_request__unpack(NULL, n, bytes);

    if (m == NULL) {
        rpc_call_drop(call);
        return;
    }
    switch (m->body_case) {
    case TANDEM__WORKER_REQUEST__BODY_RESERVE: reply_reserved(w, call); break;
    case TANDEM__WORKER_REQUEST__BODY_PREFILL:
        reply(call, &ok);
        begin_stream(w, m->prefill);
        break;
    case TANDEM__WORKER_REQUEST__BODY_CANCEL:
        end_stream(w, m->cancel->request);
        reply(call, &ok);
        break;
    default: reply(call, &ok);
    }
    tandem__worker_request__free_unpacked(m, NULL);
}

/* ---- the steps ---- */

typedef struct step {
    Tandem__TokenEvent *events, **list; /* [max_streams] */
    int32_t *tokens;                    /* [max_streams] */
} step;

/* A token for each stream; those that have had their last are forgotten. */
static void run_step(stream_workers *w, step *p)
{
    Tandem__WorkerMessage message = TANDEM__WORKER_MESSAGE__INIT;
    td_usec now;

    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_running;) {
        if (w->running[i].over || w->running[i].sent == w->running[i].max)
            w->running[i] = w->running[--w->n_running];
        else
            i++;
    }
    for (size_t i = 0; i < w->n_running; i++) {
        mock_stream *s = &w->running[i];
        Tandem__TokenEvent *e = &p->events[i];

        tandem__token_event__init(e);
        p->tokens[i] = token_of(w, s, s->sent);
        e->request = s->request;
        e->attempt = s->attempt;
        e->index = s->sent;
        e->tokens = &p->tokens[i];
        e->n_tokens = 1;
        e->finish =
            s->sent + 1 == s->max ? TANDEM__FINISH__FINISH_LENGTH : TANDEM__FINISH__FINISH_NONE;
        p->list[i] = e;
    }
    now = td_now_us();
    for (size_t i = 0; i < w->n_running; i++) {
        mock_stream *s = &w->running[i];

        atomic_store_explicit(&w->sent[(size_t)s->number * w->max_tokens + s->sent++], now,
                              memory_order_relaxed);
    }
    message.tokens = p->list;
    message.n_tokens = w->n_running;
    if (w->n_running > 0)
        send_message(&w->decode, &message);
    pthread_mutex_unlock(&w->lock);
}

static void *run(void *arg)
{
    stream_workers *w = arg;
    td_usec next = td_now_us(), next_report = 0;
    step p = {.events = calloc(w->max_streams, sizeof *p.events),
              .list = calloc(w->max_streams, sizeof *p.list),
              .tokens = calloc(w->max_streams, sizeof *p.tokens)};

    if (p.events == NULL || p.list == NULL || p.tokens == NULL)
        abort();
    while (!atomic_load(&w->stop)) {
        struct timespec at;

        if (td_now_us() >= next_report) {
            next_report = td_now_us() + REPORT_US;
            pthread_mutex_lock(&w->lock);
            report(w, &w->prefill);
            report(w, &w->decode);
            pthread_mutex_unlock(&w->lock);
        }
        run_step(w, &p);
        next += w->step_us;
        if (next < td_now_us()) /* late: the pace is kept from here on, not made up for */
            next = td_now_us();
        at = td_timespec(next);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    free(p.events);
    free(p.list);
    free(p.tokens);
    return NULL;
}

/* ---- life ---- */

static td_status open_worker(stream_workers *w, mock_worker *m, const char *id, Tandem__Role role,
                             const char *router_url, td_error *err)
{
    rpc_server_options so = {.url = "tcp://127.0.0.1:0", .on_request = on_request, .user = w};
    rpc_push_options po = {.url = router_url, .max_messages = 4096, .max_bytes = 256u << 20};
    td_status st;

    m->id = id;
    m->role = role;
    st = rpc_server_open(&so, &m->server, err);
    return st == TD_OK ? rpc_push_open(&po, &m->push, err) : st;
}

static td_status one_token(const tokenizer *t, const char *text, int32_t *out, td_error *err)
{
    td_tokens ids = {0};
    td_status st = tokenizer_encode_special(t, text, strlen(text), &ids, err);

    if (st == TD_OK && ids.len != 1)
        st = td_fail(err, TD_INVALID, "\"%s\" is not one token of this vocabulary", text);
    if (st == TD_OK)
        *out = ids.ptr[0];
    td_tokens_free(&ids);
    return st;
}

static td_status find_tokens(stream_workers *w, const tokenizer *t, td_error *err)
{
    td_status st = one_token(t, "<|channel|>", &w->head[0], err);

    if (st == TD_OK)
        st = one_token(t, "final", &w->head[1], err);
    if (st == TD_OK)
        st = one_token(t, "<|message|>", &w->head[2], err);
    if (st == TD_OK)
        st = one_token(t, " ", &w->blank, err);
    if (st == TD_OK)
        st = one_token(t, "x", &w->letter, err);
    for (int i = 0; st == TD_OK && i < 10; i++)
        st = one_token(t, (char[]){(char)('0' + i), '\0'}, &w->digits[i], err);
    w->vocab = tokenizer_vocab(t);
    return st;
}

td_status stream_workers_start(const char *router_url, const tokenizer *t, uint32_t max_streams,
                               uint32_t max_tokens, td_usec step_us, stream_workers **out,
                               td_error *err)
{
    stream_workers *w = calloc(1, sizeof *w);
    td_status st;

    if (w == NULL)
        return td_fail(err, TD_NOMEM, "no memory for workers");
    w->max_streams = max_streams;
    w->max_tokens = max_tokens;
    w->step_us = step_us;
    pthread_mutex_init(&w->lock, NULL);
    w->sent = calloc((size_t)max_streams * max_tokens, sizeof *w->sent);
    w->running = calloc(max_streams, sizeof *w->running);
    if (w->sent == NULL || w->running == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %u streams", max_streams);
    st = find_tokens(w, t, err);
    if (st == TD_OK)
        st = open_worker(w, &w->prefill, "prefill", TANDEM__ROLE__ROLE_PREFILL, router_url, err);
    if (st == TD_OK)
        st = open_worker(w, &w->decode, "decode", TANDEM__ROLE__ROLE_DECODE, router_url, err);
    if (st == TD_OK && pthread_create(&w->thread, NULL, run, w) != 0)
        st = td_fail(err, TD_NOMEM, "no thread for the workers");
    *out = w; /* a program that fails here ends: nothing is taken down */
    return st;
}

void stream_workers_stop(stream_workers *w)
{
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    rpc_server_close(w->prefill.server);
    rpc_server_close(w->decode.server);
    rpc_push_close(w->prefill.push);
    rpc_push_close(w->decode.push);
    pthread_mutex_destroy(&w->lock);
    free(w->sent);
    free(w->running);
    free(w);
}

uint32_t stream_workers_first(const stream_workers *w, uint32_t stream)
{
    (void)w;
    return head_of(stream);
}

td_usec stream_workers_sent(const stream_workers *w, uint32_t stream, uint32_t token)
{
    if (stream >= w->max_streams || token >= w->max_tokens)
        return 0;
    return atomic_load_explicit(&w->sent[(size_t)stream * w->max_tokens + token],
                                memory_order_relaxed);
}
