/* The order of events of a request. request_advance() runs it forward until it waits or ends;
 * replies (request_attempt.c), events of workers, deadlines and lost workers (request_events.c) all
 * come back through it or through request_fail(), which goes back to PLACE while there is budget.
 * Nothing else moves a phase. */
#include "router/request_impl.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/log.h"
#include "router/placement.h"

/* ---- the end ---- */

static void log_end(const request *q, const char *how, const char *why)
{
    const request_times *t = &q->times;
    td_usec now = td_now_us();
    char text[256];

    /* Error texts quote what clients wrote; a quote of theirs must not end ours. */
    snprintf(text, sizeof text, "%s", why);
    for (char *c = text; *c != '\0'; c++)
        if (*c == '"')
            *c = '\'';
    why = text;

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

    request_release(q);
    request_stop_waiting(q);
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
        q->cancel_why = why;
        return;
    }
    td_counter_add(q->r->m.finished_abort, 1);
    log_end(q, "canceled", why);
    leave(q);
}

void request_end_in_error(request *q, const td_error *err)
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

void request_finish(request *q, harmony_end end)
{
    answer a = q->answer;
    void *user = q->user;
    const char *reason = request_output_finish(q, end);
    request_usage usage = q->usage;
    router *r = q->r;

    if (q->cancel_wanted) {
        q->cancel_wanted = false;
        request_cancel(q, q->cancel_why);
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
void request_fail(request *q, const td_error *err, bool decode_at_fault, bool prefill_at_fault)
{
    if (!td_status_retryable(err->code) || q->retries_left == 0 || q->phase < RQ_PLACE) {
        request_end_in_error(q, err);
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
    request_release(q);
    q->attempt++;
    q->phase = RQ_PLACE;
    q->place_deadline = 0;
    request_advance(q);
}

td_status request_blame(td_status said)
{
    switch (said) {
    case TD_INVALID:
    case TD_NOTFOUND:
    case TD_TOOLARGE:
    case TD_IO: return TD_INTERNAL;
    case TD_CANCELED: return TD_UNAVAILABLE;
    default: return said;
    }
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
    const worker_view *view;
    size_t n = q->prompt.len, room, count;

    if (!m->known)
        return td_fail(err, TD_UNAVAILABLE, "no worker is ready");
    if (n >= (size_t)m->max_positions) {
        td_fail_param(
            err, q->g.raw ? "prompt" : "messages",
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
    /* The workers may hold less than the model could: then the answer ends there, as "length". */
    view = registry_view(workers_registry(q->r->workers), &count);
    room = placement_capacity(view, count);
    if (room > n && q->max_tokens > room - n)
        q->max_tokens = (uint32_t)(room - n);
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

static td_status step_admit(request *q, td_error *err)
{
    router *r = q->r;
    td_status st;

    q->admitted_tokens =
        q->prompt.len +
        (q->max_tokens < r->cfg->reserve_tokens ? q->max_tokens : r->cfg->reserve_tokens);
    st = admission_enter(&r->admission, q->admitted_tokens, &q->retry_s, err);
    if (st != TD_OK)
        return st;
    q->admitted = true;
    td_gauge_add(r->m.running, 1);
    return TD_OK;
}

/* ---- the order ---- */

/* One phase. A phase that waits returns TD_PENDING, and its reply brings the request on. */
static td_status request_step(request *q, td_error *err)
{
    switch (q->phase) {
    case RQ_RENDER: return step_render(q, err);
    case RQ_ADMIT: return step_admit(q, err);
    case RQ_PLACE: return request_step_place(q, err);
    case RQ_RESERVE: return request_step_reserve(q, err);
    case RQ_PREFILL: return request_step_prefill(q, err);
    case RQ_STREAM: return TD_PENDING;
    case RQ_DONE: break;
    }
    return TD_OK;
}

void request_advance(request *q)
{
    while (q->phase != RQ_DONE) {
        td_error err = {0};
        td_status st = request_step(q, &err);

        if (st == TD_PENDING)
            return;
        if (st != TD_OK) {
            /* Placement has looked at every worker: trying again is waiting, which it has done. */
            if (st == TD_INVALID && q->out.len > 0) /* it has outgrown every worker */
                request_finish(q, HARMONY_END_LENGTH);
            else if (q->phase <= RQ_PLACE)
                request_end_in_error(q, &err);
            else
                request_fail(q, &err, false, false);
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

void request_end_all(router *r, const td_error *err)
{
    request *q, *next;

    HASH_ITER(hh, r->by_id, q, next)
    if (!q->gone)
        request_end_in_error(q, err);
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
