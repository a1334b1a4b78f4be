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
    request_group_drop(q->group);
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
    request_group_leave(q);
    if (!q->rendering)
        forget(q);
}

void request_cancel(request *q, const char *why)
{
    request_group_dismiss(q, why);
    if (q->in_output) { /* inside its own callback: the caller up there sees it through */
        q->cancel_wanted = true;
        q->cancel_why = why;
        return;
    }
    td_counter_add(q->r->m.finished_abort, 1);
    log_end(q, "canceled", why);
    leave(q);
}

void request_cancel_choices(request *const *q, uint32_t n, const char *why)
{
    for (uint32_t i = 0; i < n; i++) {
        if (q[i] != NULL) { /* and with it the others */
            request_cancel(q[i], why);
            return;
        }
    }
}

void request_end_in_error(request *q, const td_error *err)
{
    answer a = q->answer;
    void *user = q->user;
    td_error copy = *err;
    uint32_t retry_s = q->retry_s;

    td_counter_add(err->code == TD_BUSY ? q->r->m.refused : q->r->m.finished_error, 1);
    log_end(q, td_status_name(err->code), err->text);
    request_group_dismiss(q, "choice_failed");
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
    request_group_rendered(q);
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
    if (room > 0 && n >= room) {
        td_fail_param(
            err, q->g.raw ? "prompt" : "messages",
            "the prompt is %zu tokens long; of the context window of %d tokens the workers "
            "here have memory for %zu, which must hold the answer too",
            n, m->max_positions, room);
        return TD_INVALID;
    }
    if (room > n && q->max_tokens > room - n)
        q->max_tokens = (uint32_t)(room - n);
    return TD_OK;
}

static td_status step_render(request *q, td_error *err)
{
    td_status st;

    if (!q->rendered && q->choice > 0)
        return TD_PENDING; /* the first one's prompt is this one's too */
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

/* The first choice that comes here takes a place for each, since all or none are answered. */
static td_status step_admit(request *q, td_error *err)
{
    router *r = q->r;
    request_group *group = q->group;
    uint64_t tokens =
        q->prompt.len +
        (q->max_tokens < r->cfg->reserve_tokens ? q->max_tokens : r->cfg->reserve_tokens);
    uint32_t n = 0;
    td_status st;

    if (q->admitted)
        return TD_OK;
    for (uint32_t i = 0; i < group->n; i++)
        n += group->members[i] != NULL;
    st = admission_enter(&r->admission, n, tokens, &q->retry_s, err);
    if (st != TD_OK)
        return st;
    for (uint32_t i = 0; i < group->n; i++) {
        if (group->members[i] == NULL)
            continue;
        group->members[i]->admitted = true;
        group->members[i]->admitted_tokens = tokens;
    }
    td_gauge_add(r->m.running, n);
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

/* Another choice's seed: as far from its neighbours' as any two. Choice 0 keeps the client's. */
static uint64_t seed_of(uint64_t seed, uint32_t choice)
{
    uint64_t x = seed + choice * 0x9e3779b97f4a7c15u;

    if (choice == 0)
        return seed;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static td_status make_request(router *r, const char *label, const answer *a, void *user,
                              request **out, td_error *err)
{
    request *q = calloc(1, sizeof *q);

    if (q == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a request");
    q->r = r;
    q->id = ++r->next_id;
    snprintf(q->label, sizeof q->label, "%s", label);
    q->created_s = td_wall_us() / 1000000;
    q->answer = *a;
    q->user = user;
    q->attempt = 1;
    q->retries_left = r->cfg->retries;
    q->deadline = TD_USEC_NEVER;
    q->times.submitted = td_now_us();
    *out = q;
    return TD_OK;
}

/* Whether n more can come in at all. */
static td_status door_open(router *r, uint32_t n, uint32_t *retry_s, td_error *err)
{
    const char *why;
    size_t inside = HASH_COUNT(r->by_id), most = r->admission.max_requests;

    if (r->draining || !router_ready(r, &why)) {
        *retry_s = 1;
        return td_fail(err, TD_UNAVAILABLE, "%s",
                       r->draining ? "this router is shutting down" : why);
    }
    if (inside + n > most || r->admission.requests + n > most) {
        td_counter_add(r->m.refused, 1);
        *retry_s = 1;
        return td_fail(err, TD_BUSY, "the server is full: %u requests are in it", (unsigned)inside);
    }
    return TD_OK;
}

td_status request_submit_choices(router *r, generation *g, const char *label, const answer *a,
                                 void *const *users, request **out, uint32_t *retry_s,
                                 td_error *err)
{
    request_group *group = NULL;
    uint32_t n = g->n, made = 0;
    uint64_t seed = g->seed;
    td_status st;

    *retry_s = 0;
    st = door_open(r, n, retry_s, err);
    if (st == TD_OK)
        st = generation_guide(g, err);
    if (st != TD_OK) {
        generation_free(g);
        generation_init(g);
        return st;
    }
    if (!g->has_seed && getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint64_t)td_wall_us();
    st = request_group_create(g, &group, err);
    while (st == TD_OK && made < n) {
        st = make_request(r, label, a, users[made], &out[made], err);
        made += st == TD_OK;
    }
    if (st != TD_OK) {
        while (made > 0)
            free(out[--made]);
        request_group_drop(group);
        return st;
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i]->seed = seed_of(seed, i);
        request_group_join(group, out[i], i);
        HASH_ADD(hh, r->by_id, id, sizeof out[i]->id, out[i]);
    }
    request_group_drop(group); /* its members have it now */
    request_advance(out[0]);   /* to the pool: nothing can end it before this returns */
    return TD_OK;
}

td_status request_submit(router *r, generation *g, const char *label, const answer *a, void *user,
                         request **out, uint32_t *retry_s, td_error *err)
{
    td_assert(g->n == 1);
    return request_submit_choices(r, g, label, a, &user, out, retry_s, err);
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
