#include "decode/scheduler.h"

#include <stdlib.h>
#include <string.h>

struct scheduler {
    uint32_t max_batch;
    reservation **batch; /* [n_batch] in no order that matters: rows do not depend on each other */
    uint32_t n_batch;
    reservation *first_waiting, **last_waiting;
    uint32_t n_waiting;

    /* The step's arrays, filled by plan; rows point to the batch as it was then. */
    reservation **rows;
    td_seq *seqs;
    int32_t *tokens, *out;
    td_sampling *sampling;
    td_logprobs *logprobs;
    td_decode_step step;
};

td_status scheduler_create(uint32_t max_batch, scheduler **out, td_error *err)
{
    scheduler *s = calloc(1, sizeof *s);

    if (s == NULL)
        return td_fail(err, TD_NOMEM, "scheduler: no memory");
    s->max_batch = max_batch;
    s->last_waiting = &s->first_waiting;
    s->batch = calloc(max_batch, sizeof *s->batch);
    s->rows = calloc(max_batch, sizeof *s->rows);
    s->seqs = calloc(max_batch, sizeof *s->seqs);
    s->tokens = calloc(max_batch, sizeof *s->tokens);
    s->out = calloc(max_batch, sizeof *s->out);
    s->sampling = calloc(max_batch, sizeof *s->sampling);
    s->logprobs = calloc(max_batch, sizeof *s->logprobs);
    if (!s->batch || !s->rows || !s->seqs || !s->tokens || !s->out || !s->sampling ||
        !s->logprobs) {
        scheduler_free(s);
        return td_fail(err, TD_NOMEM, "scheduler: no memory for a batch of %u", max_batch);
    }
    *out = s;
    return TD_OK;
}

void scheduler_free(scheduler *s)
{
    if (s == NULL)
        return;
    free(s->batch);
    free(s->rows);
    free(s->seqs);
    free(s->tokens);
    free(s->out);
    free(s->sampling);
    free(s->logprobs);
    free(s);
}

/* Count a sampled token and say whether it is the last. */
static sched_end take_token(reservation *r, int32_t token, const td_logprobs *logprobs)
{
    if (token < 0)
        return SCHED_FAILED;
    r->token = token;
    if (r->generation.sampling.logprobs)
        r->logprobs = *logprobs;
    td_generation_count(&r->generation, token);
    r->produced++;
    if (td_generation_stops(&r->generation, token))
        return SCHED_STOP;
    if (r->produced >= r->max_tokens)
        return SCHED_LENGTH;
    if (td_generation_guide(&r->generation, token, &r->failed) != TD_OK ||
        td_generation_mask(&r->generation, &r->failed) != TD_OK)
        return SCHED_FAILED;
    return SCHED_GOES_ON;
}

sched_end scheduler_admit(scheduler *s, reservation *r)
{
    sched_end end;

    r->pos = (int32_t)r->prompt_tokens;
    r->produced = 0;
    end = take_token(r, r->arrival.first_token, &r->arrival.logprobs);
    if (end != SCHED_GOES_ON)
        return end;
    r->next = NULL;
    *s->last_waiting = r;
    s->last_waiting = &r->next;
    s->n_waiting++;
    return SCHED_GOES_ON;
}

static void leave_batch(scheduler *s, reservation *r)
{
    for (uint32_t i = 0; i < s->n_batch; i++) {
        if (s->batch[i] == r) {
            s->batch[i] = s->batch[--s->n_batch];
            r->in_batch = false;
            return;
        }
    }
}

void scheduler_remove(scheduler *s, reservation *r)
{
    if (r->in_batch) {
        leave_batch(s, r);
        return;
    }
    for (reservation **at = &s->first_waiting; *at != NULL; at = &(*at)->next) {
        if (*at != r)
            continue;
        *at = r->next;
        if (s->last_waiting == &r->next)
            s->last_waiting = at;
        s->n_waiting--;
        return;
    }
}

const td_decode_step *scheduler_plan(scheduler *s)
{
    bool logprobs = false;

    while (s->n_batch < s->max_batch && s->first_waiting != NULL) {
        reservation *r = s->first_waiting;

        s->first_waiting = r->next;
        if (s->first_waiting == NULL)
            s->last_waiting = &s->first_waiting;
        s->n_waiting--;
        r->in_batch = true;
        s->batch[s->n_batch++] = r;
    }
    if (s->n_batch == 0)
        return NULL;
    for (uint32_t i = 0; i < s->n_batch; i++) {
        reservation *r = s->batch[i];

        s->rows[i] = r;
        s->seqs[i] =
            (td_seq){.pages = r->pages, .n_pages = r->n_pages, .ring = r->ring, .pos = r->pos};
        s->tokens[i] = r->token;
        s->sampling[i] = r->generation.sampling;
        s->sampling[i].index = (uint64_t)r->base_index + r->produced;
        logprobs |= s->sampling[i].logprobs;
    }
    s->step = (td_decode_step){.n = (int32_t)s->n_batch,
                               .seqs = s->seqs,
                               .tokens = s->tokens,
                               .sampling = s->sampling,
                               .out = s->out,
                               .logprobs = logprobs ? s->logprobs : NULL};
    return &s->step;
}

reservation *scheduler_row(const scheduler *s, int32_t row)
{
    td_assert(row >= 0 && row < s->step.n);
    return s->rows[row];
}

void scheduler_apply(scheduler *s, sched_end *ends)
{
    for (int32_t i = 0; i < s->step.n; i++) {
        reservation *r = s->rows[i];

        r->pos++;
        ends[i] = take_token(r, s->out[i], &s->logprobs[i]);
        if (ends[i] != SCHED_GOES_ON)
            leave_batch(s, r);
    }
}

reservation *scheduler_first_waiting(const scheduler *s)
{
    return s->first_waiting;
}

uint32_t scheduler_running(const scheduler *s)
{
    return s->n_batch;
}

uint32_t scheduler_waiting(const scheduler *s)
{
    return s->n_waiting;
}
