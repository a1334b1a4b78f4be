#include "prefill/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

enum { RECENT = 1024 };

typedef struct attempt_key {
    uint64_t request, attempt;
} attempt_key;

struct jobs {
    job *list;   /* utlist: in order of arrival */
    job *by_key; /* uthash */
    jobs_counts counts;
    attempt_key recent[RECENT];
    size_t recent_at;
};

static td_status check(const Tandem__Prefill *m, int32_t vocab, uint32_t max_prompt, td_error *err)
{
    const Tandem__KvDestination *d = m->destination;
    const Tandem__Sampling *s = m->sampling;

    if (m->request == 0 || m->max_tokens == 0 || m->n_tokens == 0)
        return td_fail(err, TD_INVALID,
                       "prefill: request, tokens and max_tokens must not be empty");
    if (m->n_tokens > max_prompt)
        return td_fail(err, TD_INVALID, "prefill: a prompt of %zu tokens, this worker takes %u",
                       m->n_tokens, max_prompt);
    for (size_t i = 0; i < m->n_tokens; i++)
        if (m->tokens[i] < 0 || m->tokens[i] >= vocab)
            return td_fail(err, TD_INVALID, "prefill: token %d at %zu, the vocabulary has %d",
                           m->tokens[i], i, vocab);
    if (s == NULL || !isfinite(s->temperature) || s->temperature < 0 || !(s->top_p > 0) ||
        !(s->top_p <= 1) || s->top_k < 0)
        return td_fail(err, TD_INVALID, "prefill: sampling parameters are missing or out of range");
    if (m->n_stop_ids > JOB_MAX_STOPS || s->n_banned > JOB_MAX_BANNED)
        return td_fail(err, TD_INVALID,
                       "prefill: %zu stop ids (at most %d), %zu banned ranges (at "
                       "most %d)",
                       m->n_stop_ids, JOB_MAX_STOPS, s->n_banned, JOB_MAX_BANNED);
    if (d == NULL || d->worker_id.len == 0 || d->worker_id.len >= JOB_ID_BYTES ||
        d->descriptor.len == 0 || d->n_extents == 0)
        return td_fail(err, TD_INVALID, "prefill: the destination is missing or incomplete");
    return TD_OK;
}

td_status job_create(const Tandem__Prefill *m, int32_t link, int32_t vocab, uint32_t max_prompt,
                     td_usec now, job **out, td_error *err)
{
    const Tandem__KvDestination *d = m->destination;
    td_status st = check(m, vocab, max_prompt, err);
    job *j;

    if (st != TD_OK)
        return st;
    j = calloc(1, sizeof *j);
    if (j == NULL)
        return td_fail(err, TD_NOMEM, "prefill: no memory for a job");
    j->tokens = malloc(m->n_tokens * sizeof *j->tokens);
    j->descriptor = malloc(d->descriptor.len);
    j->dst_ext = malloc(d->n_extents * sizeof *j->dst_ext);
    if (j->tokens == NULL || j->descriptor == NULL || j->dst_ext == NULL) {
        job_free(j);
        return td_fail(err, TD_NOMEM, "prefill: no memory for a prompt of %zu tokens", m->n_tokens);
    }
    j->request = m->request;
    j->attempt = m->attempt;
    j->link = link;
    memcpy(j->tokens, m->tokens, m->n_tokens * sizeof *j->tokens);
    j->n_tokens = (int32_t)m->n_tokens;
    j->max_tokens = m->max_tokens;
    j->index = m->index;
    j->n_stops = (int32_t)m->n_stop_ids;
    for (size_t i = 0; i < m->n_stop_ids; i++)
        j->stops[i] = m->stop_ids[i];
    for (size_t i = 0; i < m->sampling->n_banned; i++)
        j->banned[i] = (td_id_range){m->sampling->banned[i]->first, m->sampling->banned[i]->last};
    j->sampling = (td_sampling){.temperature = m->sampling->temperature,
                                .top_p = m->sampling->top_p,
                                .top_k = m->sampling->top_k,
                                .seed = m->sampling->seed,
                                .index = m->index,
                                .banned = j->banned,
                                .n_banned = (int32_t)m->sampling->n_banned};
    memcpy(j->worker_id, d->worker_id.data, d->worker_id.len);
    j->incarnation = d->incarnation;
    j->epoch = d->epoch;
    memcpy(j->descriptor, d->descriptor.data, d->descriptor.len);
    j->descriptor_len = d->descriptor.len;
    j->dst_tp = d->tp;
    j->dst_n_pages = d->n_pages;
    j->dst_n_rings = d->n_rings;
    j->dst_ring_pages = d->ring_pages;
    j->dst_ring = d->ring;
    j->dst_n_ext = d->n_extents;
    for (size_t i = 0; i < d->n_extents; i++)
        j->dst_ext[i] = (td_kv_extent){d->extents[i]->first, d->extents[i]->count};
    j->lease_deadline = now + (td_usec)d->lease_ms * TD_USEC_PER_MSEC;
    j->queued_at = now;
    *out = j;
    return TD_OK;
}

void job_free(job *j)
{
    if (j == NULL)
        return;
    td_assert(!j->has_pages && j->push == NULL);
    free(j->tokens);
    free(j->descriptor);
    free(j->dst_ext);
    free(j->pages);
    free(j);
}

td_status jobs_create(jobs **out, td_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? TD_OK : td_fail(err, TD_NOMEM, "jobs: no memory");
}

void jobs_free(jobs *q)
{
    job *j, *next;

    if (q == NULL)
        return;
    DL_FOREACH_SAFE(q->list, j, next)
    jobs_remove(q, j);
    free(q);
}

static void count(jobs *q, const job *j, int by)
{
    uint32_t *n = j->state == JOB_QUEUED      ? &q->counts.queued
                  : j->state == JOB_COMPUTING ? &q->counts.computing
                                              : &q->counts.pushing;

    *n += (uint32_t)by;
    if (j->state != JOB_PUSHING)
        q->counts.tokens += (uint64_t)((int64_t)by * j->n_tokens);
}

void jobs_add(jobs *q, job *j)
{
    DL_APPEND(q->list, j);
    HASH_ADD(hh, q->by_key, request, sizeof(attempt_key), j);
    count(q, j, 1);
}

job *jobs_find(jobs *q, uint64_t request, uint32_t attempt)
{
    attempt_key key = {request, attempt};
    job *j;

    HASH_FIND(hh, q->by_key, &key, sizeof key, j);
    return j;
}

bool jobs_was_here(const jobs *q, uint64_t request, uint32_t attempt)
{
    for (size_t i = 0; i < RECENT; i++)
        if (q->recent[i].request == request && q->recent[i].attempt == attempt)
            return true;
    return false;
}

void jobs_remember(jobs *q, uint64_t request, uint32_t attempt)
{
    q->recent[q->recent_at++ % RECENT] = (attempt_key){request, attempt};
}

job *jobs_first_queued(jobs *q)
{
    job *j;

    DL_FOREACH(q->list, j)
    if (j->state == JOB_QUEUED)
        return j;
    return NULL;
}

job *jobs_of_link(jobs *q, int32_t link)
{
    job *j;

    DL_FOREACH(q->list, j)
    if (!j->canceled && (link < 0 || j->link == link))
        return j;
    return NULL;
}

void jobs_set_state(jobs *q, job *j, job_state s)
{
    count(q, j, -1);
    j->state = s;
    count(q, j, 1);
}

void jobs_remove(jobs *q, job *j)
{
    count(q, j, -1);
    HASH_DEL(q->by_key, j);
    DL_DELETE(q->list, j);
    jobs_remember(q, j->request, (uint32_t)j->attempt);
    job_free(j);
}

jobs_counts jobs_count(const jobs *q)
{
    return q->counts;
}
