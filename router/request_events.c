/* What workers say of requests, and what their silence means. */
#include "router/request_impl.h"

#include <string.h>

#include <utlist.h>

/* A failure as a worker tells it. What a worker calls invalid is not the client's mistake, which
 * was looked for before anything was sent: to the client it is ours, and another worker may be
 * tried. */
static void worker_error(td_error *err, uint32_t status, ProtobufCBinaryData text)
{
    td_status st = status > 0 && status < TD_STATUS_COUNT ? (td_status)status : TD_INTERNAL;

    td_fail(err, request_blame(st), "%.*s", (int)(text.len < 400 ? text.len : 400),
            text.len > 0 ? (const char *)text.data : "");
}

static request *find(router *r, uint64_t id, uint32_t attempt)
{
    request *q;

    HASH_FIND(hh, r->by_id, &id, sizeof id, q);
    return q != NULL && !q->gone && q->attempt == attempt && q->phase >= RQ_PREFILL ? q : NULL;
}

/* Tokens of the current attempt, and whether its worker has ended it. */
static void take_tokens(request *q, uint32_t index, const int32_t *tokens, size_t n,
                        Tandem__TokenLogprobs *const *logprobs, size_t n_logprobs,
                        Tandem__Finish end)
{
    td_error err = {0};
    output_state state;
    td_status st = request_output_tokens(q, index, tokens, n, logprobs, n_logprobs, &state, &err);

    if (st != TD_OK) {
        request_fail(q, &err, true, false);
        return;
    }
    q->phase = RQ_STREAM;
    q->place_deadline = 0;
    q->deadline = td_now_us() + q->r->cfg->stall_ms * TD_USEC_PER_MSEC;
    switch (state) {
    case OUTPUT_GONE:
        q->cancel_wanted = false;
        request_cancel(q, q->cancel_why);
        return;
    case OUTPUT_STOP: request_finish(q, HARMONY_END_STOP); return;
    case OUTPUT_STOP_STRING: request_finish(q, HARMONY_END_STOP_STRING); return;
    case OUTPUT_LENGTH: request_finish(q, HARMONY_END_LENGTH); return;
    case OUTPUT_MORE: break;
    }
    if (end == TANDEM__FINISH__FINISH_STOP) {
        request_finish(q, HARMONY_END_STOP);
    } else if (end == TANDEM__FINISH__FINISH_LENGTH) {
        /* The reservation is used up, the answer is not at its end: go on under a new one. */
        td_counter_add(q->r->m.continued, 1);
        request_release(q);
        q->attempt++;
        q->phase = RQ_PLACE;
        request_advance(q);
    }
}

void request_on_tokens(router *r, const Tandem__TokenEvent *e)
{
    request *q = find(r, e->request, e->attempt);
    td_error err = {0};

    if (q == NULL)
        return; /* of an attempt that is over */
    if (e->finish != TANDEM__FINISH__FINISH_NONE)
        q->reserved = false; /* it has let go of the pages by itself, or is about to */
    if (e->finish == TANDEM__FINISH__FINISH_ERROR || e->finish == TANDEM__FINISH__FINISH_CANCELED) {
        worker_error(&err, e->status, e->text);
        request_fail(q, &err, q->transferred, !q->transferred);
        return;
    }
    q->transferred = true; /* it has everything, or it would have no tokens */
    take_tokens(q, e->index, e->tokens, e->n_tokens, e->logprobs, e->n_logprobs, e->finish);
}

void request_on_prefill(router *r, const Tandem__PrefillEvent *e)
{
    request *q = find(r, e->request, e->attempt);
    td_error err = {0};

    if (q == NULL)
        return;
    if (e->status != TD_OK) {
        worker_error(&err, e->status, e->text);
        request_fail(q, &err, false, true);
        return;
    }
    q->times.prefill_queue_us += e->queue_us;
    q->times.prefill_compute_us += e->compute_us;
    q->usage.cached_tokens += e->cached_tokens;
    /* An end in the first token is the decode worker's to say as well; ours comes sooner. */
    take_tokens(q, e->index, &e->first_token, 1, &e->logprobs, e->logprobs != NULL,
                TANDEM__FINISH__FINISH_NONE);
}

void request_on_transfer(router *r, const Tandem__TransferEvent *e)
{
    request *q = find(r, e->request, e->attempt);
    size_t n = e->transport.len;

    if (q == NULL)
        return;
    if (e->status == TD_OK) /* the sources have reported to the decode worker as well */
        q->transferred = true;
    q->times.kv_bytes += e->kv_bytes;
    q->times.kv_puts += e->kv_puts;
    q->times.push_tail_us += e->tail_us;
    td_histogram_observe_us(r->m.kv_tail, (td_usec)e->tail_us);
    if (n >= sizeof q->times.kv_transport)
        n = sizeof q->times.kv_transport - 1;
    if (n > 0)
        memcpy(q->times.kv_transport, e->transport.data, n);
    q->times.kv_transport[n] = '\0';
    if (e->status != TD_OK && !q->transferred) {
        td_error err = {0};

        if (e->kv_bytes == 0) /* it is over and has written nothing: no page needs a quarantine */
            q->prefill_sent = false;
        worker_error(&err, e->status, e->text);
        request_fail(q, &err, true, false);
    }
}

static bool runs_on(const request *q, const char *id, uint64_t incarnation, bool *decode)
{
    *decode = q->decode_incarnation == incarnation && strcmp(q->decode, id) == 0;
    if (*decode)
        return q->phase >= RQ_RESERVE;
    /* Once the KV has been handed over, the prefill worker may go. */
    return q->prefill_incarnation == incarnation && strcmp(q->prefill, id) == 0 &&
           q->phase >= RQ_PREFILL && !q->transferred;
}

void request_on_lost(router *r, const char *worker_id, uint64_t incarnation, const char *why)
{
    request *q, *next;

    td_counter_add(r->m.lost_workers, 1);
    HASH_ITER(hh, r->by_id, q, next)
    {
        td_error err = {0};
        bool decode;

        if (q->gone || !runs_on(q, worker_id, incarnation, &decode))
            continue;
        td_fail(&err, TD_UNAVAILABLE, "worker %s: %s", worker_id, why);
        request_fail(q, &err, decode, !decode);
    }
}

void request_on_change(router *r)
{
    request *q, *next;

    DL_FOREACH_SAFE(r->waiting, q, next)
    {
        request_advance(q);
        /* In order: one that must still wait is not overtaken, or large ones would starve. */
        if (r->waiting == q)
            break;
    }
}

void request_on_tick(router *r, td_usec now)
{
    request *q, *next;

    HASH_ITER(hh, r->by_id, q, next)
    {
        td_error err = {0};

        if (now < q->deadline)
            continue;
        if (q->waits) {
            request_advance(q); /* placement ends it, with the reason */
            continue;
        }
        td_fail(&err, TD_DEADLINE, "no %s from %s for too long",
                q->phase == RQ_STREAM ? "token" : "KV", q->decode);
        request_fail(q, &err, true, q->phase == RQ_PREFILL);
    }
}
