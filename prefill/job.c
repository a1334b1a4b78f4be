#include "prefill/job.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

typedef struct attempt_key {
    uint64_t request, attempt;
} attempt_key;

struct jobs {
    job *list;   /* utlist: in order of arrival */
    job *by_key; /* uthash */
    jobs_counts counts;
    td_recent recent; /* attempts that are over */
};

static td_status check(const Tandem__Prefill *m, int32_t vocab, uint32_t max_prompt, td_error *err)
{
    const Tandem__KvDestination *d = m->destination;

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
    if (m->index > m->n_tokens)
        return td_fail(err, TD_INVALID, "prefill: %u tokens of an answer in a prompt of %zu",
                       m->index, m->n_tokens);
    if (d == NULL || d->worker_id.len == 0 || d->worker_id.len >= JOB_ID_BYTES ||
        d->descriptor.len == 0 || d->n_extents == 0)
        return td_fail(err, TD_INVALID, "prefill: the destination is missing or incomplete");
    return TD_OK;
}

/* The earlier of two: so long after the message came, and the moment by the wall clock. The second
 * holds even if the message lay somewhere for longer than anyone knows. */
static td_usec lease_deadline(const Tandem__KvDestination *d, td_usec received)
{
    td_usec at = received + (td_usec)d->lease_ms * TD_USEC_PER_MSEC;
    int64_t wall_left = (int64_t)d->lease_end_wall_ms * 1000 - td_wall_us();
    td_usec by_wall = td_now_us() + wall_left;

    return d->lease_end_wall_ms != 0 && by_wall < at ? by_wall : at;
}

td_status job_create(const Tandem__Prefill *m, int32_t link, int32_t vocab, uint32_t max_prompt,
                     td_usec received, job **out, td_error *err)
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
    /* The tokens end with what earlier attempts have given of the answer. */
    st = td_generation_read(&j->generation, m->sampling, m->stop_ids, m->n_stop_ids,
                            m->tokens + (m->n_tokens - m->index), m->index, 0, err);
    if (st != TD_OK) {
        job_free(j);
        return st;
    }
    j->request = m->request;
    j->attempt = m->attempt;
    j->link = link;
    memcpy(j->tokens, m->tokens, m->n_tokens * sizeof *j->tokens);
    j->n_tokens = (int32_t)m->n_tokens;
    j->max_tokens = m->max_tokens;
    j->index = m->index;
    j->generation.sampling.index = m->index;
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
    j->lease_deadline = lease_deadline(d, received);
    j->queued_at = received;
    *out = j;
    return TD_OK;
}

void job_free(job *j)
{
    if (j == NULL)
        return;
    td_assert(!j->has_pages && j->push == NULL);
    td_generation_free(&j->generation);
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
    return td_recent_has(&q->recent, request, attempt);
}

void jobs_remember(jobs *q, uint64_t request, uint32_t attempt)
{
    td_recent_add(&q->recent, request, attempt);
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
