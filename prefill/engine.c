/* The engine computes a prompt chunk by chunk and looks at its mailbox between chunks, so a cancel
 * waits for one chunk at most. The layer hook runs on the rank threads and only queues puts. A push
 * ends on a source's thread, which posts MSG_DONE; until then the job keeps its pages, because the
 * puts read from them. Nothing here locks but `load`, which the heartbeat thread reads. */
#include "prefill/engine_impl.h"

#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"

enum { TAKE = 64 };

td_status prefill_engine_create(const prefill_config *cfg, td_model *model, td_guides *guides,
                                td_metrics *metrics, prefill_engine **out, td_error *err)
{
    prefill_engine *e = calloc(1, sizeof *e);
    const td_kv_geometry *g = td_model_kv(model);
    uint64_t room = (uint64_t)g->n_pages * TD_PAGE_TOKENS;
    td_status st;

    if (e == NULL)
        return td_fail(err, TD_NOMEM, "engine: no memory");
    e->cfg = cfg;
    e->model = model;
    e->guides = guides;
    e->geometry = g;
    e->max_prompt = (uint32_t)td_model_config_of(model)->max_positions;
    if (room < e->max_prompt)
        e->max_prompt = (uint32_t)room;
    pthread_mutex_init(&e->load_lock, NULL);
    td_pb_arena_init(&e->arena);
    prefill_make_metrics(e, metrics);
    st = td_kv_pool_create(g->n_pages, g->n_rings, &e->pool, err);
    if (st == TD_OK)
        st = jobs_create(&e->jobs, err);
    if (st == TD_OK)
        st = td_mailbox_create(sizeof(message), 0, prefill_drop_message, e, &e->mailbox, err);
    if (st != TD_OK) {
        prefill_engine_free(e);
        return st;
    }
    *out = e;
    return TD_OK;
}

void prefill_engine_free(prefill_engine *e)
{
    if (e == NULL)
        return;
    td_mailbox_free(e->mailbox);
    jobs_free(e->jobs);
    td_kv_pool_free(e->pool);
    td_pb_arena_fini(&e->arena);
    pthread_mutex_destroy(&e->load_lock);
    free(e);
}

void prefill_engine_attach(prefill_engine *e, td_worker *worker, td_kv_source *const *sources,
                           int32_t n_sources, td_watch *watch)
{
    e->watch = watch;
    e->worker = worker;
    e->sources = sources;
    e->n_sources = n_sources;
}

/* On a rank's thread. */
static void on_layer(void *user, int32_t rank, int32_t layer, td_event *ready)
{
    const job *j = user;

    td_kv_push_layer(j->push, rank, layer, j->from, j->to, ready);
}

/* ---- the engine's thread ---- */

static void take_prefill(prefill_engine *e, message *m)
{
    td_error err = {0};
    job *j = NULL;
    Tandem__Prefill *req =
        td_pb_unpack(&e->arena, &tandem__prefill__descriptor, m->packed, m->n_packed, &err);
    td_status st = req == NULL ? err.code : TD_OK;

    if (st == TD_OK && (jobs_find(e->jobs, req->request, req->attempt) != NULL ||
                        jobs_was_here(e->jobs, req->request, req->attempt))) {
        td_counter_add(e->c_repeated, 1); /* it runs once, however often it is asked for */
        td_worker_reply(m->call, TD_OK, "", NULL);
        free(m->packed);
        td_guide_free(m->guide);
        return;
    }
    if (st == TD_OK && e->draining)
        st = td_fail(&err, TD_BUSY, "this prefill worker is draining");
    if (st == TD_OK && jobs_count(e->jobs).queued >= e->cfg->queue_limit)
        st = td_fail(&err, TD_BUSY, "this prefill worker's queue is full: %u prompts wait",
                     jobs_count(e->jobs).queued);
    if (st == TD_OK)
        st = job_create(req, m->link, td_model_config_of(e->model)->vocab, e->max_prompt,
                        m->received, &j, &err);
    if (st == TD_OK) {
        j->generation.guide = m->guide;
        if (m->guide != NULL) {
            td_counter_add(e->c_guided, 1);
            td_histogram_observe_us(e->h_mask, td_guide_mask_us(m->guide));
        }
        jobs_add(e->jobs, j);
        td_counter_add(e->c_admitted, 1);
    } else {
        td_guide_free(m->guide);
        td_counter_add(e->c_refused, 1);
    }
    td_worker_reply(m->call, st, st == TD_OK ? "" : err.text, NULL);
    free(m->packed);
}

static void take_cancel(prefill_engine *e, const message *m)
{
    job *j = jobs_find(e->jobs, m->request, m->attempt);

    if (j != NULL)
        prefill_cancel_job(e, j);
    else /* its Prefill may be behind it: then it must not run */
        jobs_remember(e->jobs, m->request, m->attempt);
    td_worker_reply(m->call, TD_OK, "", NULL);
}

static void take_done(prefill_engine *e, const message *m)
{
    job *j = m->job;

    td_counter_add(e->c_kv_bytes, m->bytes);
    td_counter_add(e->c_kv_puts, m->puts);
    if (m->status == TD_OK) {
        td_histogram_observe_us(e->h_tail, prefill_tail_of(j, m->last_flush_us));
        td_histogram_observe(e->h_bytes, (double)m->bytes);
    } else if (m->status !=
               TD_CANCELED) { /* the router may have given it up by now: it failed first */
        td_counter_add(e->c_kv_failed, 1);
        td_warn("transfer_failed", "request=%016llx attempt=%u to=%s status=%s error=\"%s\"",
                (unsigned long long)j->request, (unsigned)j->attempt, j->worker_id,
                td_status_name(m->status), m->text);
    }
    prefill_drop_job(e, j);
}

static void take_link_down(prefill_engine *e, int32_t link)
{
    job *j;

    while ((j = jobs_of_link(e->jobs, link)) != NULL)
        prefill_cancel_job(e, j);
}

static void take_drain(prefill_engine *e, const message *m)
{
    td_usec at = td_now_us() + m->deadline_ms * TD_USEC_PER_MSEC;

    if (!e->draining || at < e->drain_deadline)
        e->drain_deadline = at;
    e->draining = true;
    td_worker_set_state(e->worker, TANDEM__WORKER_STATE__STATE_DRAINING);
    td_info("draining", "queued=%u computing=%u pushing=%u deadline_ms=%lld",
            jobs_count(e->jobs).queued, jobs_count(e->jobs).computing, jobs_count(e->jobs).pushing,
            (long long)m->deadline_ms);
    if (m->call != NULL)
        td_worker_reply(m->call, TD_OK, "", NULL);
}

static void publish_load(prefill_engine *e)
{
    jobs_counts c = jobs_count(e->jobs);
    uint32_t total = e->geometry->n_pages;

    pthread_mutex_lock(&e->load_lock);
    e->load = c;
    pthread_mutex_unlock(&e->load_lock);
    td_gauge_set(e->g_running, c.computing);
    td_gauge_set(e->g_waiting, c.queued);
    td_gauge_set(e->g_pushing, c.pushing);
    td_gauge_set(e->g_tokens, (double)c.tokens);
    td_gauge_set(e->g_kv_used,
                 total ? (double)(total - td_kv_pool_pages_free(e->pool)) / total : 0);
    if (e->load_dirty && e->worker != NULL)
        td_worker_report_now(e->worker);
    e->load_dirty = false;
}

static void take_messages(prefill_engine *e)
{
    message batch[TAKE];
    size_t n = td_mailbox_take(e->mailbox, batch, TAKE);

    for (size_t i = 0; i < n; i++) {
        switch (batch[i].kind) {
        case MSG_PREFILL: take_prefill(e, &batch[i]); break;
        case MSG_CANCEL: take_cancel(e, &batch[i]); break;
        case MSG_DONE: take_done(e, &batch[i]); break;
        case MSG_LINK_DOWN: take_link_down(e, batch[i].link); break;
        case MSG_DRAIN: take_drain(e, &batch[i]); break;
        }
    }
    if (n > 0)
        publish_load(e);
}

static void enforce_drain_deadline(prefill_engine *e)
{
    job *j;

    if (!e->draining || td_now_us() < e->drain_deadline)
        return;
    while ((j = jobs_of_link(e->jobs, -1)) != NULL) {
        if (j->state != JOB_PUSHING)
            prefill_send_event(e, j, TD_UNAVAILABLE, "this prefill worker has shut down", 0,
                               TANDEM__FINISH__FINISH_NONE);
        prefill_cancel_job(e, j);
    }
}

/* Compute j chunk by chunk. TD_OK: *token is its first. Anything else: why it stopped; *fatal when
 * the model itself failed. */
static td_status compute(prefill_engine *e, job *j, int32_t *token, bool *fatal, td_error *err)
{
    td_status st;

    *fatal = false;
    st = td_generation_mask(&j->generation, err);
    if (st != TD_OK)
        return st;
    for (j->from = 0; j->from < j->n_tokens; j->from = j->to) {
        td_prefill_step step;

        j->to = j->n_tokens - j->from > (int32_t)e->cfg->chunk ? j->from + (int32_t)e->cfg->chunk
                                                               : j->n_tokens;
        take_messages(e); /* also the cancel of this very job */
        enforce_drain_deadline(e);
        if (j->canceled)
            return td_fail(err, TD_CANCELED, "canceled");
        if (td_now_us() >= j->lease_deadline)
            return td_fail(err, TD_DEADLINE, "the decode worker's lease ended at %d of %d tokens",
                           j->from, j->n_tokens);
        st = td_kv_push_status(j->push);
        if (st != TD_OK)
            return td_fail(err, st, "the KV transfer to %s failed", j->worker_id);
        step = (td_prefill_step){
            .tokens = j->tokens + j->from,
            .n = j->to - j->from,
            .seq = {.pages = j->pages, .n_pages = j->n_pages, .ring = j->ring, .pos = j->from},
            .sampling = j->to == j->n_tokens ? &j->generation.sampling : NULL,
            .on_layer = on_layer,
            .user = j};
        td_watch_begin(e->watch, "prefill", step.n);
        st = td_model_prefill(e->model, &step, err);
        td_watch_end(e->watch);
        if (st != TD_OK) {
            *fatal = true;
            return td_wrap(err, "prefill of positions %d to %d", j->from, j->to);
        }
        td_counter_add(e->c_prompt_tokens, (uint64_t)(j->to - j->from));
        *token = step.token;
        j->logprobs = step.logprobs;
    }
    if (*token < 0)
        return td_fail(err, TD_INTERNAL, "no token could be sampled: all logits are banned or NaN");
    return TD_OK;
}

static Tandem__Finish finish_of(const job *j, int32_t token)
{
    if (td_generation_stops(&j->generation, token))
        return TANDEM__FINISH__FINISH_STOP;
    return j->max_tokens <= 1 ? TANDEM__FINISH__FINISH_LENGTH : TANDEM__FINISH__FINISH_NONE;
}

/* One prompt from the queue to its first token. */
static td_status run_job(prefill_engine *e, job *j, td_error *err)
{
    int32_t token = -1;
    bool fatal;
    td_status st;

    jobs_set_state(e->jobs, j, JOB_COMPUTING);
    j->started_at = td_now_us();
    td_histogram_observe_us(e->h_queue, j->started_at - j->queued_at);
    publish_load(e);
    st = prefill_open_push(e, j, err);
    if (st != TD_OK) { /* a destination that does not fit: only the router can be told */
        td_counter_add(e->c_failed, 1);
        prefill_send_event(e, j, st, err->text, 0, TANDEM__FINISH__FINISH_NONE);
        prefill_drop_job(e, j);
        return TD_OK;
    }
    st = compute(e, j, &token, &fatal, err);
    j->computed_at = td_now_us();
    jobs_set_state(e->jobs, j, JOB_PUSHING);
    if (st == TD_OK) {
        td_histogram_observe_us(e->h_compute, j->computed_at - j->started_at);
        prefill_send_event(e, j, TD_OK, "", token, finish_of(j, token));
        td_kv_push_finish(j->push, TD_OK, token, j->index,
                          j->generation.sampling.logprobs ? &j->logprobs : NULL);
    } else if (st == TD_CANCELED) {
        td_kv_push_cancel(j->push);
    } else {
        td_counter_add(e->c_failed, 1);
        prefill_send_event(e, j, st, err->text, 0, TANDEM__FINISH__FINISH_NONE);
        td_kv_push_finish(j->push, st, 0, 0, NULL);
    }
    e->load_dirty = true;
    publish_load(e);
    return fatal ? st : TD_OK;
}

static bool drained(const prefill_engine *e)
{
    jobs_counts c = jobs_count(e->jobs);

    return e->draining && c.queued + c.computing + c.pushing == 0;
}

td_status prefill_engine_run(prefill_engine *e, td_error *err)
{
    td_status st = TD_OK;

    while (st == TD_OK && !drained(e)) {
        job *j;

        take_messages(e);
        enforce_drain_deadline(e);
        j = jobs_first_queued(e->jobs);
        /* No room: a transfer holds it, and its end is a message. */
        if (j != NULL) {
            td_status room = prefill_take_pages(e, j, err);

            if (room == TD_OK) {
                st = run_job(e, j, err);
                continue;
            }
            if (room != TD_BUSY || jobs_count(e->jobs).pushing == 0) {
                prefill_send_event(e, j, room, err->text, 0, TANDEM__FINISH__FINISH_NONE);
                prefill_abandon_queued(e, j, room);
                continue;
            }
        }
        if (!drained(e)) {
            td_status woke =
                td_mailbox_wait(e->mailbox, e->draining ? e->drain_deadline : TD_USEC_NEVER);

            /* Past the drain's deadline all is canceled; what is left ends by itself. */
            if (woke == TD_DEADLINE)
                e->drain_deadline = td_now_us() + TD_USEC_PER_SEC;
        }
    }
    if (st != TD_OK) {
        job *j;

        td_worker_set_failed(e->worker, err->text);
        e->draining = true; /* nothing may begin any more: the sources are about to close */
        while ((j = jobs_of_link(e->jobs, -1)) != NULL) {
            if (j->state == JOB_QUEUED)
                prefill_send_event(e, j, st, err->text, 0, TANDEM__FINISH__FINISH_NONE);
            prefill_cancel_job(e, j);
        }
    }
    return st;
}

void prefill_engine_settle(prefill_engine *e)
{
    jobs_counts c = jobs_count(e->jobs);

    while (c.pushing > 0) { /* the sources are closed: every end has been posted */
        take_messages(e);
        c = jobs_count(e->jobs);
    }
}
