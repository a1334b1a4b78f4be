/* One thread runs everything: requests from routers, notices from the KV sink and lost links come
 * in by the mailbox and are handled between two steps. Nothing here locks but `load`, the copy of
 * the counters that the heartbeat thread reads. */
#include "decode/engine_impl.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

enum { TAKE = 64, ALIVE_MS = 2000 };

td_status engine_create(const decode_config *cfg, td_model *model, td_guides *guides,
                        td_metrics *metrics, engine **out, td_error *err)
{
    engine *e = calloc(1, sizeof *e);
    const td_kv_geometry *g = td_model_kv(model);
    td_status st;

    if (e == NULL)
        return td_fail(err, TD_NOMEM, "engine: no memory");
    e->cfg = cfg;
    e->model = model;
    e->guides = guides;
    e->geometry = g;
    pthread_mutex_init(&e->load_lock, NULL);
    td_pb_arena_init(&e->arena);
    engine_make_metrics(e, metrics);
    e->ends = calloc(e->cfg->max_batch, sizeof *e->ends);
    st = e->ends ? td_kv_pool_create(g->n_pages, g->n_rings, &e->pool, err)
                 : td_fail(err, TD_NOMEM, "engine: no memory");
    if (st == TD_OK) {
        reservations_options ro = {.geometry = g,
                                   .pool = e->pool,
                                   .vocab = td_model_config_of(e->model)->vocab,
                                   .max_positions = td_model_config_of(e->model)->max_positions,
                                   .lease_max_ms = e->cfg->lease_max_ms,
                                   .grace_ms = e->cfg->grace_ms};

        st = reservations_create(&ro, &e->reservations, err);
    }
    if (st == TD_OK)
        st = scheduler_create(e->cfg->max_batch, &e->sched, err);
    if (st == TD_OK) /* a step's tokens, and an error for every reservation there can be */
        st = token_sink_create((int32_t)e->cfg->worker.routers.len,
                               e->cfg->max_batch + 3 * g->n_rings + TAKE, &e->tokens, err);
    if (st == TD_OK)
        st = td_mailbox_create(sizeof(message), 0, engine_drop_message, e, &e->mailbox, err);
    if (st != TD_OK) {
        engine_free(e);
        return st;
    }
    e->load = (struct engine_load){.pages_free = g->n_pages, .rings_free = g->n_rings};
    *out = e;
    return TD_OK;
}

void engine_free(engine *e)
{
    if (e == NULL)
        return;
    td_mailbox_free(e->mailbox);
    token_sink_free(e->tokens);
    scheduler_free(e->sched);
    reservations_free(e->reservations);
    td_kv_pool_free(e->pool);
    td_pb_arena_fini(&e->arena);
    pthread_mutex_destroy(&e->load_lock);
    free(e->ends);
    free(e);
}

void engine_attach(engine *e, td_worker *worker, td_kv_sink *sink, td_watch *watch)
{
    e->watch = watch;
    e->worker = worker;
    e->sink = sink;
}

static ProtobufCBinaryData binary(const void *p, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)p};
}

/* Answer a Reserve with where the KV goes. */
static void reply_reserved(engine *e, rpc_call *call, const reservation *r)
{
    Tandem__Reserved reserved = TANDEM__RESERVED__INIT;
    Tandem__KvDestination d = TANDEM__KV_DESTINATION__INIT;
    Tandem__PageExtent ext[RESERVATION_MAX_EXTENTS];
    Tandem__PageExtent *list[RESERVATION_MAX_EXTENTS];
    td_slice descriptor = td_kv_sink_descriptor(e->sink);
    const char *id = td_worker_id(e->worker);
    td_usec left = r->lease_end - td_now_us();

    for (size_t i = 0; i < r->n_ext; i++) {
        tandem__page_extent__init(&ext[i]);
        ext[i].first = r->ext[i].first;
        ext[i].count = r->ext[i].count;
        list[i] = &ext[i];
    }
    d.worker_id = binary(id, strlen(id));
    d.incarnation = td_worker_incarnation(e->worker);
    d.epoch = r->epoch;
    d.descriptor = binary(descriptor.ptr, descriptor.len);
    d.tp = e->geometry->tp;
    d.n_pages = e->geometry->n_pages;
    d.n_rings = e->geometry->n_rings;
    d.ring_pages = e->geometry->ring_pages;
    d.extents = list;
    d.n_extents = r->n_ext;
    d.ring = r->ring;
    d.lease_ms = (uint32_t)(left > 0 ? left / TD_USEC_PER_MSEC : 0);
    d.lease_end_wall_ms = (uint64_t)(td_wall_us() + (left > 0 ? left : 0)) / 1000;
    reserved.destination = &d;
    td_worker_reply(call, TD_OK, "", &reserved);
}

static void take_reserve(engine *e, message *m)
{
    td_error err = {0};
    reservation *r;
    Tandem__Reserve *req =
        td_pb_unpack(&e->arena, &tandem__reserve__descriptor, m->packed, m->n_packed, &err);
    td_status st = req == NULL ? err.code : TD_OK;

    if (st == TD_OK && e->draining)
        st = td_fail(&err, TD_BUSY, "this decode worker is draining");
    if (st == TD_OK)
        st = reservation_open(e->reservations, req, m->link, td_now_us(), &r, &err);
    if (st == TD_OK) {
        td_counter_add(e->c_reserved, 1);
        if (r->generation.guide == NULL && m->guide != NULL) { /* else it was here already */
            td_counter_add(e->c_guided, 1);
            r->generation.guide = m->guide;
            m->guide = NULL;
        }
        reply_reserved(e, m->call, r);
    } else {
        td_counter_add(e->c_busy, st == TD_BUSY);
        td_debug("reserve_refused", "status=%s error=\"%s\"", td_status_name(st), err.text);
        td_worker_reply(m->call, st, err.text, NULL);
    }
    free(m->packed);
    td_guide_free(m->guide);
}

/* The request is over here, whatever it was doing. */
static void end_request(engine *e, reservation *r, bool source_may_write)
{
    if (r->state == RESERVATION_RUNNING)
        scheduler_remove(e->sched, r);
    reservation_close(e->reservations, r, source_may_write);
    e->load_dirty = true;
}

/* The same, and the router hears why. */
static void fail_request(engine *e, reservation *r, const td_error *err)
{
    td_info("request_failed", "request=%016llx attempt=%u status=%s error=\"%s\"",
            (unsigned long long)r->request, (unsigned)r->attempt, td_status_name(err->code),
            err->text);
    token_sink_error(e->tokens, r, err);
    end_request(e, r, true);
}

static void take_cancel(engine *e, const message *m)
{
    reservation *r = reservation_find(e->reservations, m->request, m->attempt);

    if (r == NULL) {
        reservation_refuse(e->reservations, m->request, m->attempt);
    } else if (r->state != RESERVATION_QUARANTINE) {
        td_counter_add(e->c_canceled, 1);
        end_request(e, r, m->source_may_write);
    }
    td_worker_reply(m->call, TD_OK, "", NULL);
}

/* Say how a request has ended, with the token that ended it. */
static void finish_request(engine *e, reservation *r, sched_end end)
{
    td_error err = {0};

    td_counter_add(e->c_end[end], 1);
    td_debug("request_done", "request=%016llx attempt=%u tokens=%u end=%d",
             (unsigned long long)r->request, (unsigned)r->attempt, r->produced, (int)end);
    if (end == SCHED_FAILED) {
        if (r->failed.code != TD_OK)
            err = r->failed;
        else
            td_fail(&err, TD_INTERNAL, "no token could be sampled: all logits are banned or NaN");
        token_sink_error(e->tokens, r, &err);
    } else {
        token_sink_token(e->tokens, r,
                         end == SCHED_STOP ? TANDEM__FINISH__FINISH_STOP
                                           : TANDEM__FINISH__FINISH_LENGTH);
    }
    reservation_close(e->reservations, r, false);
    e->load_dirty = true;
}

static void take_notice(engine *e, const td_kv_notice *n)
{
    td_error err = {0};
    reservation *r;
    sched_end end;

    switch (reservation_notice(e->reservations, n, td_now_us(), &r, &err)) {
    case RESERVATION_NOTHING:
        td_counter_add(e->c_stray, r == NULL || err.code != TD_OK);
        e->load_dirty = true;
        break;
    case RESERVATION_LANDED:
        td_counter_add(e->c_landed, 1);
        td_histogram_observe_us(e->h_arrival, r->landed_at - r->opened_at);
        end = scheduler_admit(e->sched, r);
        /* Prefill has sent this token too. Sent again it makes this stream whole by itself, so that
         * nothing depends on which of two connections is faster. */
        if (end == SCHED_GOES_ON)
            token_sink_token(e->tokens, r, TANDEM__FINISH__FINISH_NONE);
        else
            finish_request(e, r, end);
        break;
    case RESERVATION_LOST:
        td_counter_add(e->c_lost, 1);
        fail_request(e, r, &err);
        break;
    }
}

static void take_link_down(engine *e, int32_t link)
{
    uint32_t n = 0;
    reservation *r;

    while ((r = reservations_of_link(e->reservations, link)) != NULL) {
        end_request(e, r, true);
        n++;
    }
    if (n > 0)
        td_warn("router_gone", "link=%d requests_ended=%u", link, n);
}

static void take_drain(engine *e, const message *m)
{
    td_usec at = td_now_us() + m->deadline_ms * TD_USEC_PER_MSEC;

    if (!e->draining || at < e->drain_deadline)
        e->drain_deadline = at;
    e->draining = true;
    td_worker_set_state(e->worker, TANDEM__WORKER_STATE__STATE_DRAINING);
    td_info("draining", "running=%u waiting=%u open=%u deadline_ms=%lld",
            scheduler_running(e->sched), scheduler_waiting(e->sched),
            reservations_count(e->reservations).open, (long long)m->deadline_ms);
    if (m->call != NULL)
        td_worker_reply(m->call, TD_OK, "", NULL);
}

static void take_messages(engine *e)
{
    message batch[TAKE];
    size_t n = td_mailbox_take(e->mailbox, batch, TAKE);

    for (size_t i = 0; i < n; i++) {
        switch (batch[i].kind) {
        case MSG_RESERVE: take_reserve(e, &batch[i]); break;
        case MSG_CANCEL: take_cancel(e, &batch[i]); break;
        case MSG_NOTICE: take_notice(e, &batch[i].notice); break;
        case MSG_LINK_DOWN: take_link_down(e, batch[i].link); break;
        case MSG_DRAIN: take_drain(e, &batch[i]); break;
        }
    }
}

static void settle_sink(void *arg)
{
    td_kv_sink_settle(arg);
}

static void watch_deadlines(engine *e)
{
    td_usec now = td_now_us();
    td_error err = {0};
    reservation *r;

    while ((r = reservations_expired(e->reservations, now)) != NULL) {
        td_counter_add(e->c_expired, 1);
        td_fail(&err, TD_DEADLINE,
                "the KV did not arrive within the lease: %u of the sources have "
                "reported",
                (unsigned)__builtin_popcountll(r->arrival.seen));
        fail_request(e, r, &err);
    }
    reservations_reap(e->reservations, now, settle_sink, e->sink);
    if (e->draining && now >= e->drain_deadline) {
        td_fail(&err, TD_UNAVAILABLE,
                "this decode worker has shut down before the answer was done");
        while ((r = reservations_of_link(e->reservations, -1)) != NULL)
            fail_request(e, r, &err);
    }
}

/* A request that waits for a place in the batch has no tokens to show: say so now and then. */
static void show_waiting(engine *e)
{
    td_usec now = td_now_us();

    if (now < e->next_alive)
        return;
    e->next_alive = now + ALIVE_MS * TD_USEC_PER_MSEC;
    for (const reservation *r = scheduler_first_waiting(e->sched); r != NULL; r = r->next)
        token_sink_alive(e->tokens, r);
}

static void publish_load(engine *e)
{
    reservations_counts c = reservations_count(e->reservations);
    struct engine_load load = {.pages_free = td_kv_pool_pages_free(e->pool),
                               .rings_free = td_kv_pool_rings_free(e->pool),
                               .running = c.running,
                               .reserved = c.open,
                               .quarantined_pages = c.quarantined_pages};
    uint32_t total = e->geometry->n_pages;

    pthread_mutex_lock(&e->load_lock);
    e->load = load;
    pthread_mutex_unlock(&e->load_lock);
    td_gauge_set(e->g_running, scheduler_running(e->sched));
    td_gauge_set(e->g_waiting, scheduler_waiting(e->sched));
    td_gauge_set(e->g_reserved, c.open);
    td_gauge_set(e->g_quarantined, c.quarantined_pages);
    td_gauge_set(e->g_kv_used, total ? (double)(total - load.pages_free) / total : 0);
    if (e->load_dirty) /* room has come free: a router may be waiting for it */
        td_worker_report_now(e->worker);
    e->load_dirty = false;
}

static td_status run_step(engine *e, const td_decode_step *plan, td_error *err)
{
    td_usec t0 = td_now_us();
    td_status st;

    td_watch_begin(e->watch, "decode", plan->n);
    st = td_model_decode(e->model, plan, err);
    td_watch_end(e->watch);
    if (st != TD_OK)
        return td_wrap(err, "step of %d requests", plan->n);
    scheduler_apply(e->sched, e->ends);
    td_histogram_observe_us(e->h_step, td_now_us() - t0);
    td_histogram_observe(e->h_batch, plan->n);
    td_counter_add(e->c_steps, 1);
    td_counter_add(e->c_tokens, (uint64_t)plan->n);
    for (int32_t i = 0; i < plan->n; i++) {
        reservation *r = scheduler_row(e->sched, i);

        if (e->ends[i] == SCHED_GOES_ON) {
            token_sink_token(e->tokens, r, TANDEM__FINISH__FINISH_NONE);
            if (r->generation.guide != NULL)
                td_histogram_observe_us(e->h_mask, td_guide_mask_us(r->generation.guide));
        } else {
            finish_request(e, r, e->ends[i]);
        }
    }
    return TD_OK;
}

static bool drained(const engine *e)
{
    reservations_counts c = reservations_count(e->reservations);

    /* Quarantined pages do not hold the process: its memory goes with it. */
    return e->draining && c.open == 0 && c.running == 0;
}

td_status engine_run(engine *e, td_error *err)
{
    td_status st = TD_OK;

    while (st == TD_OK && !drained(e)) {
        const td_decode_step *plan;

        take_messages(e);
        watch_deadlines(e);
        plan = scheduler_plan(e->sched);
        if (plan != NULL)
            st = run_step(e, plan, err);
        show_waiting(e);
        token_sink_flush(e->tokens, e->worker);
        publish_load(e);
        if (plan == NULL && !drained(e)) { /* sleep until a message, a lease or a fence */
            td_usec at = reservations_next_deadline(e->reservations);
            td_status woke = td_mailbox_wait(
                e->mailbox, e->draining && e->drain_deadline < at ? e->drain_deadline : at);

            td_assert(woke == TD_OK || woke == TD_DEADLINE);
        }
    }
    if (st != TD_OK) { /* the model is not to be trusted any more: say so to every stream */
        reservation *r;

        td_worker_set_failed(e->worker, err->text);
        while ((r = reservations_of_link(e->reservations, -1)) != NULL)
            fail_request(e, r, err);
        token_sink_flush(e->tokens, e->worker);
    }
    return st;
}

bool engine_awaits_sources(const engine *e)
{
    return reservations_count(e->reservations).quarantined > 0;
}
