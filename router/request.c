/* The order of events of a request. request_advance() runs it forward until it waits or ends;
 * replies, events of workers, deadlines and lost workers all come back through it or through
 * fail(), which goes back to PLACE while there is budget. Nothing else moves a phase.
 *
 * An attempt holds pages on one decode worker and, until the transfer has ended, may have a prefill
 * worker writing into them. release() tells both, whatever state they are in; each side takes such
 * a message at any time and any number of times. */
#include "router/request_impl.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <utlist.h>

#include "common/kv_layout.h"
#include "common/log.h"
#include "router/placement.h"

static void request_advance(request *q);

/* ---- the end ---- */

static void stop_waiting(request *q)
{
    if (q->waits)
        DL_DELETE(q->r->waiting, q);
    q->waits = false;
}

/* Give back what the attempt holds on workers. */
static void release(request *q)
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
    q->reserved = q->prefill_sent = q->transferred = q->prefill_answered = false;
    free(q->destination);
    q->destination = NULL;
}

static void log_end(const request *q, const char *how, const char *why)
{
    const request_times *t = &q->times;
    td_usec now = td_now_us();

    td_info("request",
            "request=%016llx client_id=\"%s\" end=%s prompt_tokens=%u completion_tokens=%u "
            "ttft_ms=%lld e2e_ms=%lld queue_ms=%lld attempts=%u retries=%u kv_bytes=%llu "
            "kv_transport=%s decode=%s prefill=%s%s%s%s",
            (unsigned long long)q->id, q->label, how, q->usage.prompt_tokens,
            q->usage.completion_tokens,
            (long long)(t->first_token ? (t->first_token - t->submitted) / 1000 : -1),
            (long long)(now - t->submitted) / 1000,
            (long long)(t->placed ? (t->placed - t->submitted) / 1000 : -1), q->attempt, t->retries,
            (unsigned long long)t->kv_bytes, t->kv_transport[0] ? t->kv_transport : "-", q->decode,
            q->prefill, why[0] ? " error=\"" : "", why, why[0] ? "\"" : "");
}

static void free_request(request *q)
{
    request_output_close(q);
    td_tokens_free(&q->prompt);
    td_tokens_free(&q->render.prompt);
    td_tokens_free(&q->out);
    generation_free(&q->g);
    free(q->destination);
    free(q);
}

static void forget(request *q)
{
    router *r = q->r;

    HASH_DEL(r->by_id, q);
    free_request(q);
    router_request_gone(r);
}

/* Take the request out of everything; its memory goes at once unless the pool still has it. */
static void leave(request *q)
{
    router *r = q->r;

    release(q);
    stop_waiting(q);
    q->phase = RQ_DONE;
    q->deadline = TD_USEC_NEVER;
    if (q->admitted) {
        admission_leave(&r->admission, q->admitted_tokens, td_now_us());
        td_gauge_add(r->m.running, -1);
        td_histogram_observe_us(r->m.e2e, td_now_us() - q->times.submitted);
        td_histogram_observe(r->m.generation, (double)q->out.len);
    }
    q->gone = true;
    if (!q->rendering)
        forget(q);
}

void request_cancel(request *q, const char *why)
{
    if (q->in_output) { /* inside its own callback: the caller up there sees it through */
        q->cancel_wanted = true;
        return;
    }
    td_counter_add(q->r->m.finished_abort, 1);
    log_end(q, "canceled", why);
    leave(q);
}

static void end_in_error(request *q, const td_error *err)
{
    answer a = q->answer;
    void *user = q->user;
    td_error copy = *err;
    uint32_t retry_s = q->retry_s;

    td_counter_add(err->code == TD_BUSY ? q->r->m.refused : q->r->m.finished_error, 1);
    log_end(q, td_status_name(err->code), err->text);
    leave(q);
    a.on_error(user, &copy, retry_s);
}

static void finish(request *q, harmony_end end)
{
    answer a = q->answer;
    void *user = q->user;
    const char *reason = request_output_finish(q, end);
    request_usage usage = q->usage;
    router *r = q->r;

    if (q->cancel_wanted) {
        q->cancel_wanted = false;
        request_cancel(q, "client_closed");
        return;
    }
    td_counter_add(strcmp(reason, "stop") == 0     ? r->m.finished_stop
                   : strcmp(reason, "length") == 0 ? r->m.finished_length
                                                   : r->m.finished_calls,
                   1);
    log_end(q, reason, "");
    /* Before leave(): the answer may want to look at the request's times. */
    q->in_output = true;
    a.on_finish(user, reason, &usage);
    q->in_output = false;
    leave(q);
}

/* An attempt has failed: another one, within the budget, or the end. */
static void fail(request *q, const td_error *err, bool decode_at_fault, bool prefill_at_fault)
{
    if (!td_status_retryable(err->code) || q->retries_left == 0 || q->phase < RQ_PLACE) {
        end_in_error(q, err);
        return;
    }
    td_warn("attempt_failed",
            "request=%016llx attempt=%u phase=%d tokens=%zu retries_left=%u "
            "decode=%s prefill=%s status=%s error=\"%s\"",
            (unsigned long long)q->id, q->attempt, (int)q->phase, q->out.len, q->retries_left,
            q->decode, q->prefill, td_status_name(err->code), err->text);
    td_counter_add(q->r->m.retried, 1);
    q->retries_left--;
    q->times.retries++;
    if (decode_at_fault)
        memcpy(q->avoid_decode, q->decode, sizeof q->avoid_decode);
    if (prefill_at_fault)
        memcpy(q->avoid_prefill, q->prefill, sizeof q->avoid_prefill);
    release(q);
    q->attempt++;
    q->phase = RQ_PLACE;
    q->deadline = td_now_us() + q->r->cfg->recovery_ms * TD_USEC_PER_MSEC;
    request_advance(q);
}

/* ---- RENDER ---- */

static void on_rendered(render_job *job)
{
    request *q = (request *)((char *)job - offsetof(request, render));

    q->rendering = false;
    if (q->gone) {
        forget(q);
        return;
    }
    q->rendered = true;
    request_advance(q);
}

/* How many tokens the answer may have; a prompt that leaves no room is the client's mistake. */
static td_status bound_answer(request *q, td_error *err)
{
    const registry_model *m = registry_model_of(workers_registry(q->r->workers));
    size_t n = q->prompt.len, room;

    if (!m->known)
        return td_fail(err, TD_UNAVAILABLE, "no worker is ready");
    if (n >= (size_t)m->max_positions) {
        td_fail_param(
            err, "messages",
            "the prompt is %zu tokens long; the context window is %d tokens and must hold "
            "the answer too",
            n, m->max_positions);
        return TD_INVALID;
    }
    room = (size_t)m->max_positions - n;
    if (q->g.max_tokens > room) {
        td_fail_param(err, "max_tokens",
                      "%u tokens wanted after a prompt of %zu; the context window is %d tokens, "
                      "which leaves %zu",
                      q->g.max_tokens, n, m->max_positions, room);
        return TD_INVALID;
    }
    q->max_tokens = q->g.max_tokens ? q->g.max_tokens : (uint32_t)room;
    return TD_OK;
}

static td_status step_render(request *q, td_error *err)
{
    td_status st;

    if (!q->rendered) {
        q->render.generation = &q->g;
        q->render.done = on_rendered;
        q->rendering = true;
        render_pool_submit(q->r->pool, &q->render);
        return TD_PENDING;
    }
    if (q->render.status != TD_OK) {
        *err = q->render.err;
        return q->render.status;
    }
    q->prompt = q->render.prompt;
    q->render.prompt = (td_tokens){0};
    if (q->prompt.oom)
        return td_fail(err, TD_NOMEM, "no memory for the prompt");
    q->times.rendered = td_now_us();
    q->usage.prompt_tokens = (uint32_t)q->prompt.len;
    st = bound_answer(q, err);
    if (st == TD_OK)
        st = request_output_open(q, err);
    if (st == TD_OK) {
        td_counter_add(q->r->m.prompt_tokens, q->prompt.len);
        td_histogram_observe(q->r->m.prompt, (double)q->prompt.len);
    }
    return st;
}

/* ---- ADMIT, PLACE ---- */

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static td_status step_admit(request *q, td_error *err)
{
    router *r = q->r;
    td_status st;

    q->admitted_tokens = q->prompt.len + smaller(q->max_tokens, r->cfg->reserve_tokens);
    st = admission_enter(&r->admission, q->admitted_tokens, &q->retry_s, err);
    if (st != TD_OK)
        return st;
    q->admitted = true;
    td_gauge_add(r->m.running, 1);
    q->deadline = td_now_us() + r->cfg->queue_ms * TD_USEC_PER_MSEC;
    return TD_OK;
}

static td_status step_place(request *q, td_error *err)
{
    router *r = q->r;
    uint32_t done = (uint32_t)q->out.len;
    placement_need need = {.prompt_tokens = (uint32_t)q->prompt.len + done,
                           .avoid_decode = q->avoid_decode,
                           .avoid_prefill = q->avoid_prefill};
    placement p;
    size_t n;
    const worker_view *view = registry_view(workers_registry(r->workers), &n);
    td_status st;

    q->attempt_max = smaller(q->max_tokens - done, r->cfg->reserve_tokens);
    need.max_tokens = q->attempt_max;
    st = placement_choose(view, n, &need, &p, err);
    /* Before the first token a server without workers says so at once; later the stream waits for
     * another worker to come. */
    if (st == TD_BUSY || (st == TD_UNAVAILABLE && q->attempt > 1)) {
        if (td_now_us() >= q->deadline) {
            q->retry_s = 5;
            return st;
        }
        if (!q->waits)
            DL_APPEND(r->waiting, q);
        q->waits = true;
        return TD_PENDING;
    }
    stop_waiting(q);
    if (st != TD_OK) {
        q->retry_s = 1;
        return st;
    }
    memcpy(q->decode, p.decode->id, sizeof q->decode);
    q->decode_incarnation = p.decode->incarnation;
    memcpy(q->prefill, p.prefill->id, sizeof q->prefill);
    q->prefill_incarnation = p.prefill->incarnation;
    if (q->times.placed == 0) {
        q->times.placed = td_now_us();
        td_histogram_observe_us(r->m.queue, q->times.placed - q->times.submitted);
    }
    q->deadline = TD_USEC_NEVER; /* the calls have deadlines of their own */
    return TD_OK;
}

/* ---- RESERVE, PREFILL ---- */

/* What both messages say about sampling; the lists are the request's. */
typedef struct wire_sampling {
    Tandem__Sampling pb;
    Tandem__IdRange ranges[ROUTER_MAX_BANNED];
    Tandem__IdRange *list[ROUTER_MAX_BANNED];
} wire_sampling;

static void fill_sampling(const request *q, wire_sampling *s)
{
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
    s->pb.banned = s->list;
    s->pb.n_banned = q->r->n_banned;
}

/* A worker was fuller than its last report: wait for the next one, like those that found no room in
 * the first place. */
static void wait_for_room(request *q)
{
    release(q);
    q->attempt++;
    q->phase = RQ_PLACE;
    q->deadline = q->times.submitted + q->r->cfg->queue_ms * TD_USEC_PER_MSEC;
    DL_APPEND(q->r->waiting, q);
    q->waits = true;
}

static void on_reserved(void *arg, td_status st, const Tandem__WorkerReply *reply,
                        const td_error *err)
{
    request *q = arg;
    td_error e = *err;

    q->call = NULL;
    if (st == TD_OK && (reply->reserved == NULL || reply->reserved->destination == NULL))
        st = td_fail(&e, TD_INTERNAL, "worker %s reserved nothing", q->decode);
    if (st == TD_OK) {
        const Tandem__KvDestination *d = reply->reserved->destination;

        q->n_destination = tandem__kv_destination__get_packed_size(d);
        q->destination = malloc(q->n_destination);
        if (q->destination == NULL)
            st = td_fail(&e, TD_NOMEM, "no memory for a reservation");
        else
            tandem__kv_destination__pack(d, q->destination);
    }
    if (st == TD_OK) {
        q->times.reserved = td_now_us();
        q->phase = RQ_PREFILL;
        request_advance(q);
    } else if (st == TD_BUSY) {
        wait_for_room(q);
    } else {
        fail(q, &e, true, false);
    }
}

static td_status step_reserve(request *q, td_error *err)
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
    q->reserved = true; /* from here on it may have pages for us, whatever we hear */
    q->call =
        workers_reserve(q->r->workers, q->decode, q->decode_incarnation, &m,
                        td_kv_pages_for(m.prompt_tokens + (uint64_t)m.max_tokens), on_reserved, q);
    return q->call ? TD_PENDING : td_fail(err, TD_NOMEM, "no memory for a call");
}

static void on_prefill_answered(void *arg, td_status st, const Tandem__WorkerReply *reply,
                                const td_error *err)
{
    request *q = arg;

    (void)reply;
    q->call = NULL;
    if (st == TD_OK) {
        q->prefill_answered = true;
        return;
    }
    /* An answer means that it has not begun; silence means that we do not know. */
    if (st != TD_UNAVAILABLE && st != TD_DEADLINE && st != TD_CANCELED)
        q->prefill_sent = false;
    if (st == TD_BUSY)
        wait_for_room(q);
    else
        fail(q, err, false, true);
}

static td_status step_prefill(request *q, td_error *err)
{
    Tandem__Prefill m = TANDEM__PREFILL__INIT;
    Tandem__KvDestination *d =
        tandem__kv_destination__unpack(NULL, q->n_destination, q->destination);
    td_tokens all = {0};
    wire_sampling s;

    td_tokens_add(&all, q->prompt.ptr, q->prompt.len);
    td_tokens_add(&all, q->out.ptr, q->out.len);
    if (d == NULL || all.oom) {
        if (d != NULL)
            tandem__kv_destination__free_unpacked(d, NULL);
        td_tokens_free(&all);
        return td_fail(err, TD_NOMEM, "no memory for a prefill");
    }
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

/* ---- the order ---- */

/* One phase. A phase that waits returns TD_PENDING, and its reply brings the request on. */
static td_status request_step(request *q, td_error *err)
{
    switch (q->phase) {
    case RQ_RENDER: return step_render(q, err);
    case RQ_ADMIT: return step_admit(q, err);
    case RQ_PLACE: return step_place(q, err);
    case RQ_RESERVE: return step_reserve(q, err);
    case RQ_PREFILL: return step_prefill(q, err);
    case RQ_STREAM: return TD_PENDING;
    case RQ_DONE: break;
    }
    return TD_OK;
}

static void request_advance(request *q)
{
    while (q->phase != RQ_DONE) {
        td_error err = {0};
        td_status st = request_step(q, &err);

        if (st == TD_PENDING)
            return;
        if (st != TD_OK) {
            /* Placement has looked at every worker: trying again is waiting, which it has done. */
            if (q->phase <= RQ_PLACE)
                end_in_error(q, &err);
            else
                fail(q, &err, false, false);
            return;
        }
        q->phase++;
    }
}

td_status request_submit(router *r, generation *g, const char *label, const answer *a, void *user,
                         request **out, uint32_t *retry_s, td_error *err)
{
    request *q;
    const char *why;

    *retry_s = 0;
    if (r->draining || !router_ready(r, &why)) {
        td_fail(err, TD_UNAVAILABLE, "%s", r->draining ? "this router is shutting down" : why);
        *retry_s = 1;
    } else if (r->admission.requests >= r->admission.max_requests ||
               HASH_COUNT(r->by_id) >= r->admission.max_requests) {
        td_fail(err, TD_BUSY, "the server is full: %u requests are in it",
                (unsigned)HASH_COUNT(r->by_id));
        td_counter_add(r->m.refused, 1);
        *retry_s = 1;
    } else if ((q = calloc(1, sizeof *q)) == NULL) {
        td_fail(err, TD_NOMEM, "no memory for a request");
    } else {
        q->r = r;
        q->id = ++r->next_id;
        snprintf(q->label, sizeof q->label, "%s", label);
        q->created_s = td_wall_us() / 1000000;
        q->answer = *a;
        q->user = user;
        q->g = *g;
        generation_init(g);
        q->attempt = 1;
        q->retries_left = r->cfg->retries;
        q->deadline = TD_USEC_NEVER;
        q->seed = q->g.seed;
        if (!q->g.has_seed && getrandom(&q->seed, sizeof q->seed, 0) != sizeof q->seed)
            q->seed = (uint64_t)td_wall_us();
        q->times.submitted = td_now_us();
        HASH_ADD(hh, r->by_id, id, sizeof q->id, q);
        *out = q;
        request_advance(q); /* to the pool: nothing can end it before this returns */
        return TD_OK;
    }
    generation_free(g);
    generation_init(g);
    return err ? err->code : TD_INTERNAL;
}

/* ---- what workers say ---- */

static request *find(router *r, uint64_t id, uint32_t attempt)
{
    request *q;

    HASH_FIND(hh, r->by_id, &id, sizeof id, q);
    return q != NULL && !q->gone && q->attempt == attempt && q->phase >= RQ_PREFILL ? q : NULL;
}

/* Tokens of the current attempt, and whether its worker has ended it. */
static void take_tokens(request *q, uint32_t index, const int32_t *tokens, size_t n,
                        Tandem__Finish end)
{
    td_error err = {0};
    output_state state;
    td_status st = request_output_tokens(q, index, tokens, n, &state, &err);

    if (st != TD_OK) {
        fail(q, &err, true, false);
        return;
    }
    q->phase = RQ_STREAM;
    q->deadline = td_now_us() + q->r->cfg->stall_ms * TD_USEC_PER_MSEC;
    switch (state) {
    case OUTPUT_GONE:
        q->cancel_wanted = false;
        request_cancel(q, "client_closed");
        return;
    case OUTPUT_STOP: finish(q, HARMONY_END_STOP); return;
    case OUTPUT_STOP_STRING: finish(q, HARMONY_END_STOP_STRING); return;
    case OUTPUT_LENGTH: finish(q, HARMONY_END_LENGTH); return;
    case OUTPUT_MORE: break;
    }
    if (end == TANDEM__FINISH__FINISH_STOP) {
        finish(q, HARMONY_END_STOP);
    } else if (end == TANDEM__FINISH__FINISH_LENGTH) {
        /* The reservation is used up, the answer is not at its end: go on under a new one. */
        td_counter_add(q->r->m.continued, 1);
        release(q);
        q->attempt++;
        q->phase = RQ_PLACE;
        q->deadline = td_now_us() + q->r->cfg->queue_ms * TD_USEC_PER_MSEC;
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
        td_fail(&err,
                e->status > 0 && e->status < TD_STATUS_COUNT ? (td_status)e->status : TD_INTERNAL,
                "%.*s", (int)(e->text.len < 400 ? e->text.len : 400), (const char *)e->text.data);
        if (err.code == TD_CANCELED)
            err.code = TD_UNAVAILABLE; /* not by us */
        fail(q, &err, q->transferred, !q->transferred);
        return;
    }
    q->transferred = true; /* it has everything, or it would have no tokens */
    take_tokens(q, e->index, e->tokens, e->n_tokens, e->finish);
}

void request_on_prefill(router *r, const Tandem__PrefillEvent *e)
{
    request *q = find(r, e->request, e->attempt);
    td_error err = {0};

    if (q == NULL)
        return;
    if (e->status != TD_OK) {
        td_fail(&err, e->status < TD_STATUS_COUNT ? (td_status)e->status : TD_INTERNAL, "%.*s",
                (int)(e->text.len < 400 ? e->text.len : 400), (const char *)e->text.data);
        fail(q, &err, false, true);
        return;
    }
    q->times.prefill_queue_us += e->queue_us;
    q->times.prefill_compute_us += e->compute_us;
    q->usage.cached_tokens += e->cached_tokens;
    /* An end in the first token is the decode worker's to say as well; ours comes sooner. */
    take_tokens(q, e->index, &e->first_token, 1, TANDEM__FINISH__FINISH_NONE);
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
    memcpy(q->times.kv_transport, e->transport.data, n);
    q->times.kv_transport[n] = '\0';
    if (e->status != TD_OK && !q->transferred) {
        td_error err = {0};

        td_fail(&err, e->status < TD_STATUS_COUNT ? (td_status)e->status : TD_INTERNAL,
                "KV transfer: %.*s", (int)(e->text.len < 300 ? e->text.len : 300),
                (const char *)e->text.data);
        fail(q, &err, true, false);
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
        fail(q, &err, decode, !decode);
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
        fail(q, &err, true, q->phase == RQ_PREFILL);
    }
}

void request_end_all(router *r, const td_error *err)
{
    request *q, *next;

    HASH_ITER(hh, r->by_id, q, next)
        if (!q->gone)
            end_in_error(q, err);
}

size_t request_count(const router *r)
{
    return HASH_COUNT(r->by_id);
}

request *request_next_waiting(const request *q)
{
    return q->next;
}

void request_free_all(router *r)
{
    request *q, *next;

    HASH_ITER(hh, r->by_id, q, next)
    {
        HASH_DEL(r->by_id, q);
        free_request(q);
    }
    r->waiting = NULL;
}

uint64_t request_id(const request *q)
{
    return q->id;
}

int64_t request_created_s(const request *q)
{
    return q->created_s;
}

const request_times *request_times_of(const request *q)
{
    return &q->times;
}

const request_usage *request_usage_of(const request *q)
{
    return &q->usage;
}
