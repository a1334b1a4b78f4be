/* kv_push_leg: one source's part of a push, on that source's thread. Its stages, in order:
 *
 *   PUTTING   put what the layers that are ready need; over when the engine has finished and all is
 *             posted, or something has failed (then what is queued is dropped)
 *   FLUSHING  wait until every put is in the decode worker's memory, or every message on its way
 *   NOTIFYING send the notice: only now, since messages may overtake puts
 *   DRAINING  a last flush, so that the notice has left this process
 *   CHECKING  let UCX look once more whether the peer is there: with all the above done at once, a
 *             peer that had died before it would go unnoticed
 *   OVER      wait for the engine's finish, if a failure came before it, then report
 *
 * A broken endpoint leads from anywhere to the report without a notice, once the endpoint is
 * closed. */
#include "common/kv_push_impl.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    LEG_PUTS_A_STEP = 256,  /* then progress: completions are not to wait for a long plan */
    LEG_EVENT_POLL_US = 50, /* a layer takes some hundreds at least; a poll about one */
};

kv_leg **kv_leg_link(kv_leg *leg)
{
    return &leg->next;
}

static void leg_fail(kv_leg *leg, td_status code, const char *fmt, ...) TD_PRINTF(3, 4);

static void leg_failed(kv_leg *leg, const td_error *err)
{
    if (leg->err.code != TD_OK)
        return;
    leg->err = *err;
    kv_push_fail(leg->push, err);
}

static void leg_fail(kv_leg *leg, td_status code, const char *fmt, ...)
{
    td_error err = {0};
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    td_fail(&err, code, "%s", text);
    leg_failed(leg, &err);
}

static void leg_on_put(kv_op *op, ucs_status_t status)
{
    td_kv_source *s = op->leg->source;

    (void)status; /* a failure has failed the peer, which every leg on it sees */
    op->leg->puts_in_flight--;
    op->next_free = s->free_ops;
    s->free_ops = op;
}

static void leg_on_op(kv_op *op, ucs_status_t status)
{
    (void)status;
    op->leg->op_running = false;
}

/* What the engine has said since. */
static void leg_read_inbox(kv_leg *leg, bool *ended)
{
    td_status end_status;
    bool canceled, oom;

    pthread_mutex_lock(&leg->source->mutex);
    *ended = leg->ended;
    end_status = leg->end_status;
    canceled = leg->canceled;
    oom = leg->jobs_oom;
    pthread_mutex_unlock(&leg->source->mutex);

    if (leg->stage > LEG_FLUSHING)
        return; /* the notice is under way and says OK or not already */
    if (oom)
        leg_fail(leg, TD_NOMEM, "KV push: no memory to queue a layer");
    if (canceled)
        leg_fail(leg, TD_CANCELED, "the push was canceled");
    if (*ended && end_status != TD_OK)
        leg_fail(leg, end_status, "prefill failed: %s", td_status_name(end_status));
}

static bool leg_peek_job(kv_leg *leg, leg_job *job)
{
    pthread_mutex_lock(&leg->source->mutex);
    bool some = leg->next_job < leg->n_jobs;

    if (some)
        *job = leg->jobs[leg->next_job];
    pthread_mutex_unlock(&leg->source->mutex);
    return some;
}

static void leg_drop_job(kv_leg *leg)
{
    pthread_mutex_lock(&leg->source->mutex);
    if (++leg->next_job == leg->n_jobs)
        leg->next_job = leg->n_jobs = 0;
    pthread_mutex_unlock(&leg->source->mutex);
}

/* Whether the layer is in memory. It is asked again and again and never waited for: this thread
 * drives the transfers of other layers and requests meanwhile. */
static bool leg_is_computed(kv_leg *leg, const leg_job *job)
{
    td_status (*query)(struct td_event *) = leg->source->opt.o.query_event;
    td_status st = query ? query(job->ready) : TD_OK;

    leg->awaits_event = st == TD_PENDING;
    if (st != TD_OK && st != TD_PENDING)
        leg_fail(leg, st, "KV push: layer %d was not computed: the device failed", job->layer);
    return st == TD_OK;
}

/* Plan the next layer that is ready. False: none is, or the leg has failed. */
static bool leg_plan_next(kv_leg *leg)
{
    td_kv_push *p = leg->push;
    td_kv_source *s = leg->source;
    td_error err = {0};
    leg_job job;

    if (!leg_peek_job(leg, &job) || !leg_is_computed(leg, &job))
        return false;
    leg_drop_job(leg);
    if (job.from != leg->covered[job.layer] || job.to < job.from || job.to > p->n_tokens) {
        leg_fail(leg, TD_INTERNAL, "KV push: layer %d pushes [%d, %d) of %d tokens after %d",
                 job.layer, job.from, job.to, p->n_tokens, leg->covered[job.layer]);
        return false;
    }
    leg->covered[job.layer] = job.to;
    td_kv_puts_clear(&leg->plan);
    leg->next_put = 0;
    leg->put_at = 0;
    if (td_kv_plan(&p->src, s->rank, &p->dst, p->n_tokens, job.layer, job.from, job.to, &leg->plan,
                   &err) != TD_OK) {
        leg_failed(leg, &err);
        return false;
    }
    if (s->opt.o.verify)
        leg->digest += td_kv_digest(&p->src, s->rank, s->region.base, p->n_tokens, job.layer,
                                    job.from, job.to);
    return true;
}

/* Post the next put, or as much of it as goes into one message. */
static void leg_put_one(kv_leg *leg)
{
    td_kv_source *s = leg->source;
    const td_kv_put *whole = &leg->plan.ptr[leg->next_put];
    uint64_t left = whole->bytes - leg->put_at;
    td_kv_put part = {
        .src_offset = whole->src_offset + leg->put_at,
        .dst_offset = whole->dst_offset + leg->put_at,
        .bytes = left < leg->peer->max_put ? left : leg->peer->max_put,
        .dst_rank = whole->dst_rank,
    };
    kv_op *op = s->free_ops;
    td_error err = {0};

    if (leg->puts + 1 == s->opt.o.fail_put_number) {
        leg_fail(leg, TD_UNAVAILABLE, "put %u was made to fail by a test option", leg->puts + 1);
        return;
    }
    s->free_ops = op->next_free;
    op->leg = leg;
    op->on_done = leg_on_put;
    leg->puts_in_flight++;
    if (kv_peer_put(leg->peer, op, &part, &err) != TD_OK) {
        leg->puts_in_flight--;
        op->next_free = s->free_ops;
        s->free_ops = op;
        leg_failed(leg, &err);
        return;
    }
    leg->bytes += part.bytes;
    leg->put_at += part.bytes;
    if (leg->put_at == whole->bytes) {
        leg->puts++;
        leg->next_put++;
        leg->put_at = 0;
    }
}

/* The fence: past the lease no put may start, and there is no point in waiting for more to put. */
static bool leg_lease_over(kv_leg *leg)
{
    td_usec late = td_now_us() - leg->push->lease_deadline;

    if (late < 0)
        return false;
    leg_fail(leg, TD_DEADLINE, "the reservation's lease ran out %lld ms ago",
             (long long)(late / TD_USEC_PER_MSEC));
    return true;
}

/* Start as many puts as may be in flight. True when everything queued so far was started. */
static bool leg_put(kv_leg *leg)
{
    td_kv_source *s = leg->source;

    for (int n = 0; leg->err.code == TD_OK && !leg->peer->failed; n++) {
        if (leg->next_put == leg->plan.len) {
            if (leg_plan_next(leg))
                continue;
            if (leg->err.code == TD_OK && leg->awaits_event)
                return leg_lease_over(leg); /* or a device that hangs would hold it for ever */
            return leg->err.code == TD_OK;
        }
        if (!s->free_ops || s->bytes_in_flight >= KV_MAX_BYTES_IN_FLIGHT)
            return false;
        if (n >= LEG_PUTS_A_STEP) {
            s->dirty = true;
            return false;
        }
        if (leg_lease_over(leg))
            return false;
        if (!leg->first_put_us)
            leg->first_put_us = td_now_us();
        leg_put_one(leg);
    }
    return false;
}

static void leg_check_complete(kv_leg *leg)
{
    const td_kv_push *p = leg->push;

    for (int32_t i = 0; i < p->src.g->n_layers; i++)
        if (leg->covered[i] != p->n_tokens)
            leg_fail(leg, TD_INTERNAL, "KV push: finished with %d of %d tokens of layer %d",
                     leg->covered[i], p->n_tokens, i);
}

static void leg_encode_notice(kv_leg *leg)
{
    const td_kv_push *p = leg->push;
    td_kv_notice n = {
        .request = p->request,
        .attempt = p->attempt,
        .epoch = p->epoch,
        .source_rank = (uint32_t)leg->source->rank,
        .n_sources = (uint32_t)p->n_legs,
        .status = leg->err.code,
        .bytes = leg->bytes,
        .puts = leg->puts,
        .has_digest = leg->source->opt.o.verify,
        .digest = leg->digest,
        .stream = leg->peer->stream,
        .after = leg->peer->messages,
    };

    pthread_mutex_lock(&leg->source->mutex);
    n.first_token = leg->first_token;
    n.index = leg->index;
    n.logprobs = leg->logprobs;
    pthread_mutex_unlock(&leg->source->mutex);
    td_kv_notice_encode(&n, leg->notice);
}

/* Post the request that the new stage consists of. Failing to do so is failing the endpoint: there
 * is no other way left to tell the decode worker anything. */
static void leg_enter(kv_leg *leg, leg_stage stage)
{
    td_error err = {0};
    td_status st = TD_OK;

    leg->stage = stage;
    leg->op = (kv_op){.leg = leg, .on_done = leg_on_op};
    leg->op_running = stage < LEG_CHECKING;
    if (stage == LEG_NOTIFYING) {
        leg_encode_notice(leg);
        st = kv_peer_notify(leg->peer, &leg->op, leg->notice, &err);
    } else if (stage < LEG_CHECKING) {
        st = kv_peer_flush(leg->peer, &leg->op, &err);
    }
    if (st != TD_OK) {
        leg->op_running = false;
        kv_peer_fail(leg->peer, TD_UNAVAILABLE, "%s", err.text);
    }
}

/* One endpoint per decode worker; a leg that gets none, or loses it, is mute. */
static void leg_check_peer(kv_leg *leg)
{
    td_kv_push *p = leg->push;
    td_error err = {0};

    if (leg->mute)
        return;
    if (!leg->peer) {
        if (kv_peer_take(leg->source, (td_slice){p->worker_id.ptr, p->worker_id.len},
                         p->incarnation, (td_slice){p->descriptor.ptr, p->descriptor.len},
                         &leg->peer, &err) != TD_OK) {
            leg_failed(leg, &err);
            leg->mute = true;
        }
    } else if (leg->peer->failed && leg->stage != LEG_OVER) {
        leg_failed(leg, &leg->peer->why);
        leg->mute = true;
    }
}

/* Go through the stages for as long as nothing has to be waited for. */
static void leg_advance(kv_leg *leg, bool ended)
{
    while (!leg->op_running && !leg->peer->failed) {
        switch (leg->stage) {
        case LEG_PUTTING: {
            bool all_started = leg_put(leg);

            if (leg->peer->failed)
                return;
            if (leg->err.code == TD_OK) {
                if (!all_started || (!ended && !leg_lease_over(leg)))
                    return;
                if (leg->err.code == TD_OK)
                    leg_check_complete(leg);
            }
            leg_enter(leg, LEG_FLUSHING);
            break;
        }
        case LEG_FLUSHING:
            if (leg->puts_in_flight > 0)
                return;
            leg->flushed_us = td_now_us();
            leg_enter(leg, LEG_NOTIFYING);
            break;
        case LEG_NOTIFYING: leg_enter(leg, LEG_DRAINING); break;
        case LEG_DRAINING:
            leg_enter(leg, LEG_CHECKING);
            leg->checked_from = leg->source->rounds;
            leg->source->dirty = true;
            return;
        case LEG_CHECKING:
            if (leg->source->rounds == leg->checked_from)
                return;
            leg_enter(leg, LEG_OVER);
            break;
        case LEG_OVER: return;
        }
    }
}

bool kv_leg_step(kv_leg *leg, td_usec *deadline)
{
    const td_kv_push *p = leg->push;
    bool ended;

    leg_read_inbox(leg, &ended);
    leg_check_peer(leg);
    if (!leg->mute) {
        leg_advance(leg, ended);
        leg_check_peer(leg); /* lost on the way: do not wait for the next step to say so */
    }
    if (leg->stage == LEG_PUTTING && leg->err.code == TD_OK && p->lease_deadline < *deadline)
        *deadline = p->lease_deadline;
    if (leg->stage == LEG_PUTTING && leg->err.code == TD_OK && leg->awaits_event) {
        td_usec poll_at = td_now_us() + LEG_EVENT_POLL_US;

        if (poll_at < *deadline)
            *deadline = poll_at;
    }
    bool over = leg->mute ? !leg->peer || leg->peer->closed : leg->stage == LEG_OVER;

    if (!over || !ended)
        return false;

    const char *transport = NULL;
    if (leg->peer) {
        transport = kv_peer_transport(leg->peer);
        kv_peer_give(leg->peer);
    }
    kv_push_leg_over(leg->push, leg, transport);
    return true;
}

void kv_leg_abandon(kv_leg *leg)
{
    pthread_mutex_lock(&leg->source->mutex);
    leg->ended = leg->canceled = true;
    pthread_mutex_unlock(&leg->source->mutex);
}
