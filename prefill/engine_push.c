/* What becomes of a job beside its compute: pages on this side, its push, and how it leaves. All on
 * the engine's thread but on_push_done(). */
#include "prefill/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"

typedef struct done_target {
    prefill_engine *engine;
    job *job;
} done_target;

/* The router hears of it here, on the source's thread, and not from the engine, which may be in the
 * middle of another prompt's chunk: by then a short answer would be over. What is read of the job
 * was written before the push was finished or canceled. A cancel is nobody's news. */
static void on_push_done(void *user, const td_kv_push_result *r)
{
    done_target *t = user;
    message m = {.kind = MSG_DONE,
                 .job = t->job,
                 .status = r->status,
                 .bytes = r->bytes,
                 .puts = r->puts,
                 .last_flush_us = r->last_flush_us};

    if (r->status == TD_OK)
        prefill_log_transfer(t->job, r);
    if (r->status != TD_CANCELED)
        prefill_send_transfer_event(t->engine, t->job, r);
    snprintf(m.text, sizeof m.text, "%s", r->text ? r->text : "");
    prefill_post(t->engine, &m);
    free(t);
}

td_status prefill_open_push(prefill_engine *e, job *j, td_error *err)
{
    done_target *t = malloc(sizeof *t);
    td_kv_push_params p = {.request = j->request,
                           .attempt = (uint32_t)j->attempt,
                           .n_tokens = j->n_tokens,
                           .pages = j->pages,
                           .n_pages = j->n_pages,
                           .ring = j->ring,
                           .worker_id = td_slice_of(j->worker_id),
                           .incarnation = j->incarnation,
                           .epoch = j->epoch,
                           .descriptor = {j->descriptor, j->descriptor_len},
                           .dst_tp = j->dst_tp,
                           .dst_n_pages = j->dst_n_pages,
                           .dst_n_rings = j->dst_n_rings,
                           .dst_ring_pages = j->dst_ring_pages,
                           .dst_extents = j->dst_ext,
                           .dst_n_extents = j->dst_n_ext,
                           .dst_ring = j->dst_ring,
                           .lease_deadline = j->lease_deadline,
                           .on_done = on_push_done,
                           .user = t};
    td_status st;

    if (t == NULL)
        return td_fail(err, TD_NOMEM, "prefill: no memory for a transfer");
    *t = (done_target){e, j};
    st = td_kv_push_open(e->sources, e->n_sources, &p, &j->push, err);
    if (st != TD_OK)
        free(t);
    return st;
}

td_status prefill_take_pages(prefill_engine *e, job *j, td_error *err)
{
    uint32_t n = td_kv_pages_for((uint64_t)j->n_tokens);
    td_status st;

    j->pages = malloc(n * sizeof *j->pages);
    if (j->pages == NULL)
        return td_fail(err, TD_NOMEM, "prefill: no memory for a table of %u pages", n);
    st = td_kv_pool_take(e->pool, n, j->ext, JOB_MAX_EXTENTS, &j->n_ext, &j->ring, err);
    if (st != TD_OK) {
        free(j->pages);
        j->pages = NULL;
        return st;
    }
    for (size_t i = 0; i < j->n_ext; i++)
        for (uint32_t p = 0; p < j->ext[i].count; p++)
            j->pages[j->n_pages++] = j->ext[i].first + p;
    j->has_pages = true;
    return TD_OK;
}

void prefill_drop_job(prefill_engine *e, job *j)
{
    if (j->has_pages)
        td_kv_pool_give(e->pool, j->ext, j->n_ext, j->ring);
    j->has_pages = false;
    td_kv_push_free(j->push);
    j->push = NULL;
    jobs_remove(e->jobs, j);
    e->load_dirty = true;
}

/* End a job that has not been computed: the decode side holds pages for it until its sources have
 * said that they write nothing. */
void prefill_abandon_queued(prefill_engine *e, job *j, td_status why)
{
    td_error err = {0};

    if (j->pages == NULL) { /* nothing will be read: any page will do for the checks */
        j->n_pages = td_kv_pages_for((uint64_t)j->n_tokens);
        j->pages = calloc(j->n_pages, sizeof *j->pages);
    }
    if (j->pages == NULL || prefill_open_push(e, j, &err) != TD_OK) {
        /* No way to tell: the lease will. */
        td_warn("abandon_failed", "request=%016llx error=\"%s\"", (unsigned long long)j->request,
                err.text);
        prefill_drop_job(e, j);
        return;
    }
    jobs_set_state(e->jobs, j, JOB_PUSHING);
    if (why == TD_CANCELED)
        td_kv_push_cancel(j->push);
    else
        td_kv_push_finish(j->push, why, 0, 0, NULL);
}

void prefill_cancel_job(prefill_engine *e, job *j)
{
    if (j->canceled)
        return;
    j->canceled = true;
    td_counter_add(e->c_canceled, 1);
    switch (j->state) {
    case JOB_QUEUED: prefill_abandon_queued(e, j, TD_CANCELED); break;
    case JOB_COMPUTING: break; /* seen by compute() at the end of this chunk */
    case JOB_PUSHING: td_kv_push_cancel(j->push); break;
    }
}
