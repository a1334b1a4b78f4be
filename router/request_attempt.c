/* One attempt of a request: a place in the line, the two workers, the calls to them, and giving
 * back what they hold.
 *
 * An attempt holds pages on one decode worker and, until the transfer has ended, may have a prefill
 * worker writing into them. request_release() tells both, whatever state they are in; each side
 * takes such a message at any time and any number of times. */
#include "router/request_impl.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "common/kv_layout.h"
#include "common/pb_pack.h"
#include "router/guided.h"
#include "router/placement.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- the line ---- */

void request_stop_waiting(request *q)
{
    if (q->waits)
        DL_DELETE(q->r->waiting, q);
    q->waits = false;
}

/* Give back what the attempt holds on workers. */
void request_release(request *q)
{
    Tandem__Cancel m = TANDEM__CANCEL__INIT;

    if (q->call != NULL)
        workers_forget(q->call);
    q->call = NULL;
    m.request = q->id;
    m.attempt = q->attempt;
    m.source_may_write = q->prefill_sent && !q->transferred;
    if (m.source_may_write)
        workers_cancel(q->r->workers, q->prefill, q->prefill_incarnation, &m);
    if (q->reserved)
        workers_cancel(q->r->workers, q->decode, q->decode_incarnation, &m);
    q->reserved = q->prefill_sent = q->transferred = false;
    free(q->destination);
    q->destination = NULL;
}

/* Answers that have begun come first: their readers wait in mid sentence. */
static void wait_in_line(request *q)
{
    if (!q->waits && q->out.len > 0)
        DL_PREPEND(q->r->waiting, q);
    else if (!q->waits)
        DL_APPEND(q->r->waiting, q);
    q->waits = true;
}

/* A worker was fuller than its last report: wait for the next one, in line. */
static void wait_for_room(request *q, td_status why, const td_error *err)
{
    td_usec now = td_now_us();
    td_error full = *err;

    request_release(q);
    q->attempt++;
    q->phase = RQ_PLACE;
    if (q->place_deadline == 0 || (now >= q->place_deadline && request_group_runs(q)))
        q->place_deadline = now + q->r->cfg->queue_ms * TD_USEC_PER_MSEC;
    if (now >= q->place_deadline) {
        full.code = why;
        q->retry_s = 5;
        request_end_in_error(q, &full);
        return;
    }
    q->deadline = q->place_deadline;
    wait_in_line(q); /* not at once: the next report of a worker brings it on */
}

td_status request_step_place(request *q, td_error *err)
{
    router *r = q->r;
    uint32_t done = (uint32_t)q->out.len;
    placement_need need = {.prompt_tokens = (uint32_t)q->prompt.len + done,
                           .max_backlog = r->cfg->prefill_backlog,
                           .guides = q->g.guide != NULL,
                           .avoid_decode = q->avoid_decode,
                           .avoid_prefill = q->avoid_prefill};
    placement p;
    size_t n;
    const worker_view *view = registry_view(workers_registry(r->workers), &n);
    td_usec now = td_now_us();
    td_status st;

    /* One wait has one deadline, however often it is looked at. */
    if (q->place_deadline == 0 || (now >= q->place_deadline && request_group_runs(q)))
        q->place_deadline =
            now + (q->attempt > 1 ? r->cfg->recovery_ms : r->cfg->queue_ms) * TD_USEC_PER_MSEC;
    q->attempt_max = smaller(q->max_tokens - done, r->cfg->reserve_tokens);
    need.max_tokens = q->attempt_max;
    st = placement_choose(view, n, &need, &p, err);
    /* Whoever waits already is not overtaken by a newcomer, or large requests would starve. */
    if (st == TD_OK && !q->waits && r->waiting != NULL && done == 0)
        st = td_fail(err, TD_BUSY, "other requests wait for room");
    /* A server without workers says so at once to a new request; one that waits, or whose answer
     * has begun, waits for a worker to come back. */
    if (st == TD_BUSY || (st == TD_UNAVAILABLE && (q->attempt > 1 || q->waits))) {
        if (now >= q->place_deadline) {
            q->retry_s = 5;
            return st;
        }
        q->deadline = q->place_deadline;
        wait_in_line(q);
        return TD_PENDING;
    }
    request_stop_waiting(q);
    if (st != TD_OK) {
        q->retry_s = 1;
        return st;
    }
    memcpy(q->decode, p.decode->id, sizeof q->decode);
    q->decode_incarnation = p.decode->incarnation;
    memcpy(q->prefill, p.prefill->id, sizeof q->prefill);
    q->prefill_incarnation = p.prefill->incarnation;
    workers_plan_prefill(r->workers, q->prefill, need.prompt_tokens);
    if (q->times.placed == 0) {
        q->times.placed = now;
        td_histogram_observe_us(r->m.queue, q->times.placed - q->times.submitted);
    }
    q->deadline = TD_USEC_NEVER; /* the calls have deadlines of their own */
    return TD_OK;
}

/* ---- RESERVE, PREFILL ---- */

/* What both messages say about sampling; the lists are the request's. */
typedef struct wire_sampling {
    Tandem__Sampling pb;
    Tandem__IdRange ranges[ROUTER_MAX_BANNED + HARMONY_MAX_STOPS];
    Tandem__IdRange *list[ROUTER_MAX_BANNED + HARMONY_MAX_STOPS];
    int32_t bias_ids[GENERATION_MAX_BIAS];
    float bias_values[GENERATION_MAX_BIAS];
} wire_sampling;

static void fill_sampling(const request *q, wire_sampling *s)
{
    size_t n;

    tandem__sampling__init(&s->pb);
    s->pb.temperature = q->g.temperature;
    s->pb.top_p = q->g.top_p;
    s->pb.top_k = q->g.top_k;
    s->pb.seed = q->seed;
    for (size_t i = 0; i < q->r->n_banned; i++) {
        tandem__id_range__init(&s->ranges[i]);
        s->ranges[i].first = q->r->banned[i].first;
        s->ranges[i].last = q->r->banned[i].last;
        s->list[i] = &s->ranges[i];
    }
    n = q->r->n_banned;
    /* Past its end a model has nothing to say: with ignore_eos it is kept from getting there. */
    for (size_t i = 0; q->g.ignore_eos && i < q->r->n_stop_ids; i++, n++) {
        tandem__id_range__init(&s->ranges[n]);
        s->ranges[n].first = s->ranges[n].last = q->r->stop_ids[i];
        s->list[n] = &s->ranges[n];
    }
    s->pb.banned = s->list;
    s->pb.n_banned = n;
    s->pb.presence = q->g.presence;
    s->pb.frequency = q->g.frequency;
    for (size_t i = 0; i < q->g.n_bias; i++) {
        s->bias_ids[i] = q->g.bias[i].token;
        s->bias_values[i] = q->g.bias[i].bias;
    }
    s->pb.bias_ids = s->bias_ids;
    s->pb.bias_values = s->bias_values;
    s->pb.n_bias_ids = s->pb.n_bias_values = q->g.n_bias;
    s->pb.logprobs = q->g.logprobs;
    s->pb.top_logprobs = q->g.top_logprobs;
}

/* Packed only. */
static Tandem__Guide *guide_of(const request *q)
{
    return q->g.guide != NULL ? (Tandem__Guide *)(uintptr_t)guided_message(q->g.guide) : NULL;
}

static void on_reserved(void *arg, td_status st, bool answered, const Tandem__WorkerReply *reply,
                        const td_error *err)
{
    request *q = arg;
    td_error e = *err;

    q->call = NULL;
    if (answered && st != TD_OK)
        q->reserved = false; /* it says that it holds nothing */
    if (st == TD_OK && (reply->reserved == NULL || reply->reserved->destination == NULL))
        st = td_fail(&e, TD_INTERNAL, "worker %s reserved nothing", q->decode);
    if (st == TD_OK) {
        q->destination = td_pb_pack(&reply->reserved->destination->base, &q->n_destination);
        if (q->destination == NULL)
            st = td_fail(&e, TD_NOMEM, "no memory for a reservation");
    }
    if (st == TD_OK) {
        q->phase = RQ_PREFILL;
        request_advance(q);
    } else if (st == TD_BUSY) {
        wait_for_room(q, st, &e);
    } else {
        e.code = request_blame(st);
        request_fail(q, &e, true, false);
    }
}

td_status request_step_reserve(request *q, td_error *err)
{
    Tandem__Reserve m = TANDEM__RESERVE__INIT;
    wire_sampling s;

    fill_sampling(q, &s);
    m.request = q->id;
    m.attempt = q->attempt;
    m.prompt_tokens = (uint32_t)(q->prompt.len + q->out.len);
    m.max_tokens = q->attempt_max;
    m.index = (uint32_t)q->out.len;
    m.sampling = &s.pb;
    m.stop_ids = q->g.ignore_eos ? NULL : q->r->stop_ids;
    m.n_stop_ids = q->g.ignore_eos ? 0 : q->r->n_stop_ids;
    m.lease_ms = (uint32_t)q->r->cfg->lease_ms;
    m.guide = guide_of(q);
    if (m.guide != NULL || q->g.presence != 0 ||
        q->g.frequency != 0) { /* prefill finds them in its tokens */
        m.answer = q->out.ptr;
        m.n_answer = q->out.len;
    }
    q->reserve_sent = td_now_us();
    q->reserved = true; /* from here on it may have pages for us, whatever we hear */
    q->call =
        workers_reserve(q->r->workers, q->decode, q->decode_incarnation, &m,
                        td_kv_pages_for(m.prompt_tokens + (uint64_t)m.max_tokens), on_reserved, q);
    return q->call ? TD_PENDING : td_fail(err, TD_NOMEM, "no memory for a call");
}

static void on_prefill_answered(void *arg, td_status st, bool answered,
                                const Tandem__WorkerReply *reply, const td_error *err)
{
    request *q = arg;
    td_error e = *err;

    (void)reply;
    q->call = NULL;
    if (st == TD_OK)
        q->place_deadline = 0;                /* the wait is over */
    if (st == TD_OK || q->phase == RQ_STREAM) /* in STREAM its tokens were faster than its word */
        return;
    if (answered) /* a "no" means that it has not begun; silence means that we do not know */
        q->prefill_sent = false;
    e.code = request_blame(st);
    if (st == TD_BUSY)
        wait_for_room(q, st, &e);
    else
        request_fail(q, &e, false, true);
}

td_status request_step_prefill(request *q, td_error *err)
{
    Tandem__Prefill m = TANDEM__PREFILL__INIT;
    Tandem__KvDestination *d =
        tandem__kv_destination__unpack(NULL, q->n_destination, q->destination);
    td_tokens all = {0};
    wire_sampling s;
    int64_t passed_ms = (td_now_us() - q->reserve_sent) / TD_USEC_PER_MSEC;

    td_tokens_add(&all, q->prompt.ptr, q->prompt.len);
    td_tokens_add(&all, q->out.ptr, q->out.len);
    if (d == NULL || all.oom) {
        if (d != NULL)
            tandem__kv_destination__free_unpacked(d, NULL);
        td_tokens_free(&all);
        return td_fail(err, TD_NOMEM, "no memory for a prefill");
    }
    /* The lease runs since decode granted it. The source counts from when the message reaches its
     * host, so what has passed by now is taken off here. */
    d->lease_ms = d->lease_ms > passed_ms ? d->lease_ms - (uint32_t)passed_ms : 0;
    fill_sampling(q, &s);
    m.request = q->id;
    m.attempt = q->attempt;
    m.tokens = all.ptr;
    m.n_tokens = all.len;
    m.max_tokens = q->attempt_max;
    m.index = (uint32_t)q->out.len;
    m.sampling = &s.pb;
    m.stop_ids = q->g.ignore_eos ? NULL : q->r->stop_ids;
    m.n_stop_ids = q->g.ignore_eos ? 0 : q->r->n_stop_ids;
    m.guide = guide_of(q);
    m.destination = d;
    q->prefill_sent = true;
    q->call = workers_prefill(q->r->workers, q->prefill, q->prefill_incarnation, &m,
                              on_prefill_answered, q);
    tandem__kv_destination__free_unpacked(d, NULL);
    td_tokens_free(&all);
    /* The decode worker ends the attempt at the lease; this is for one that says nothing at all. */
    q->deadline = td_now_us() + (q->r->cfg->lease_ms + q->r->cfg->stall_ms) * TD_USEC_PER_MSEC;
    return q->call ? TD_PENDING : td_fail(err, TD_NOMEM, "no memory for a call");
}
