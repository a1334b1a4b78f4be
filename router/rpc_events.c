/* Events are packed as they come, into one message a gateway and turn of the loop. A stream that
 * has ended is forgotten at once: its last event is with the others. */
#include "router/rpc_api_impl.h"

#include <stdlib.h>

#include <utlist.h>

#include "common/log.h"
#include "common/pb_pack.h"
#include "common/pb_text.h"
#include "router/tokenizer.h"

void rpc_api_send_pending(gateway *g)
{
    Tandem__GatewayEvents head = TANDEM__GATEWAY_EVENTS__INIT;
    rpc_api *a = g->api;
    td_buf whole = {0};
    uint8_t bytes[256];
    size_t n;

    if (g->pending.len == 0 || g->dead)
        return;
    head.router_id = td_pb_text(a->id);
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
        rpc_api_report_dead(g);
    }
    td_buf_clear(&g->pending);
    td_buf_free(&whole);
}

void rpc_api_flush(void *arg)
{
    rpc_api *a = arg;
    gateway *g;

    DL_FOREACH(a->gateways, g)
    rpc_api_send_pending(g);
}

void rpc_api_add_event(stream *s, Tandem__GatewayEvent *e)
{
    gateway *g = s->gateway;
    size_t n, left;
    uint8_t head[12];
    size_t h = 0;
    uint8_t *bytes;

    e->stream = s->id;
    e->index = s->index++;
    bytes = td_pb_pack(&e->base, &n);
    if (bytes == NULL) {
        g->pending.oom = true;
    } else {
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

void rpc_api_drop_stream(stream *s)
{
    DL_DELETE(s->gateway->streams, s);
    free(s);
}

/* ---- the answer's callbacks ---- */

static void add_event(const stream_choice *c, Tandem__GatewayEvent *e)
{
    e->choice = c->number;
    rpc_api_add_event(c->stream, e);
}

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

static void fill_token(const stream_choice *c, Tandem__GatewayToken *t, int32_t id, float logprob)
{
    td_slice bytes = {"", 0};

    tandem__gateway_token__init(t);
    /* None for an id that is only in the model. */
    tokenizer_bytes(c->stream->gateway->api->r->tokenizer, id, &bytes);
    t->id = id;
    t->text = (ProtobufCBinaryData){bytes.len, (uint8_t *)(uintptr_t)bytes.ptr};
    t->logprob = logprob;
}

static void on_logprobs(void *user, const token_logprobs *list, size_t n)
{
    Tandem__GatewayToken token, top[TD_TOP_LOGPROBS], *tops[TD_TOP_LOGPROBS];

    for (size_t i = 0; i < n; i++) {
        Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;
        const td_logprobs *l = &list[i].logprobs;

        fill_token(user, &token, list[i].token, l->chosen);
        for (int32_t k = 0; k < l->n; k++) {
            fill_token(user, &top[k], l->id[k], l->logprob[k]);
            tops[k] = &top[k];
        }
        e.token = &token;
        e.top = tops;
        e.n_top = l->n > 0 ? (size_t)l->n : 0;
        add_event(user, &e);
    }
}

static void on_call_begin(void *user, size_t index, const char *id, td_slice name)
{
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

    e.tool_index = (int32_t)index;
    e.tool_id = td_pb_text(id);
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
    (void)user; /* a turn of the loop is the batch: see rpc_api_add_event() */
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    stream_choice *c = user;
    const request_times *t = request_times_of(c->stream->q[c->number]);
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
    times.kv_transport = td_pb_text(t->kv_transport);
    times.retries = t->retries;
    e.finish_reason = td_pb_text(reason);
    e.usage = &usage;
    e.timings = &times;
    add_event(c, &e);
    c->stream->q[c->number] = NULL;
    if (--c->stream->n_open == 0)
        rpc_api_drop_stream(c->stream);
}

/* Of one choice, and so of all. */
static void on_error(void *user, const td_error *err, uint32_t retry_s)
{
    stream_choice *c = user;
    Tandem__GatewayEvent e = TANDEM__GATEWAY_EVENT__INIT;

    (void)retry_s;
    e.status = err->code;
    e.text = td_pb_text(err->text);
    e.param = td_pb_text(err->param);
    add_event(c, &e);
    rpc_api_drop_stream(c->stream);
}

const answer rpc_api_answer = {.on_start = on_start,
                               .on_reasoning = on_reasoning,
                               .on_content = on_content,
                               .on_logprobs = on_logprobs,
                               .on_call_begin = on_call_begin,
                               .on_call_args = on_call_args,
                               .on_flush = on_flush,
                               .on_finish = on_finish,
                               .on_error = on_error};
