/* model_step: a step from the caller's side: check it whole, lay out its inputs, run the ranks,
 * read what they chose. Nothing is written anywhere before everything has been checked.
 *
 * Decode steps on a backend with graphs come in a few sizes: rows up to the next size are padding,
 * which stores nothing, sees nothing and chooses no expert. Each size's step is run once as it is,
 * so that nothing happens for the first time while it is being captured, then captured, then
 * replayed. */
#include <stdio.h>
#include <string.h>

#include "common/model.h"
#include "common/model_impl.h"

enum { MOST_NAMED = 8 };

void td_model_late(const void *model, char *out, size_t size)
{
    static const char *const does[] = {[TD_RANK_WORKS] = "does not come to its end",
                                       [TD_RANK_DEVICE] = "waits for its device",
                                       [TD_RANK_OTHERS] = "waits for other ranks"};
    const td_model *m = model;
    int32_t late[MOST_NAMED];
    td_rank_state state;
    int32_t n = td_ranks_late(m->ranks, MOST_NAMED, late, &state);
    size_t at = 0;

    if (n == 0)
        snprintf(out, size, "none: all ranks have returned");
    for (int32_t i = 0; i < n && at < size; i++) {
        char device[24] = "";

        if (m->ops->comm_open != NULL) /* ranks have devices of their own */
            snprintf(device, sizeof device, " (device %d)", m->rank[late[i]].device);
        at += (size_t)snprintf(out + at, size - at, "%srank %d%s %s", i > 0 ? ", " : "", late[i],
                               device, does[state]);
    }
}

td_status td_event_query(td_event *e)
{
    return e == NULL ? TD_OK : e->query(e);
}

static td_status failed(td_model *m, td_status st)
{
    m->changes.n_edits = m->changes.n_runs = 0;
    model_forget_tables(m); /* who knows what has arrived */
    if (m->comm != NULL)
        td_comm_reset(m->comm);
    return st;
}

static td_status run(td_model *m, td_error *err)
{
    td_status st = td_ranks_run(m->ranks, model_forward, m, err);

    if (st != TD_OK)
        return failed(m, st);
    m->changes.n_edits = m->changes.n_runs = 0;
    return TD_OK;
}

static const td_logprobs *logprobs_of(const td_model *m)
{
    return (const void *)((const int32_t *)m->out.ptr + m->in.table_rows_even);
}

td_status td_model_prefill(td_model *m, td_prefill_step *step, td_error *err)
{
    int32_t n = step->n;
    td_status st;

    step->token = -1;
    step->logprobs.n = -1;
    if (n < 1 || n > m->opt.max_tokens)
        return td_fail(err, TD_INVALID, "a prefill step of %d tokens; 1 to %d are possible", n,
                       m->opt.max_tokens);
    if ((st = model_check_tokens(m, step->tokens, n, err)) != TD_OK ||
        (st = model_check_seq(m, 0, &step->seq, n, err)) != TD_OK ||
        (step->sampling != NULL && (st = model_check_sampling(m, 0, step->sampling, err)) != TD_OK))
        return st;
    m->step = (model_step){.T = n,
                           .prefill = true,
                           .pos0 = step->seq.pos,
                           .layers = true,
                           .head_first = step->logits != NULL ? 0 : n - 1,
                           .head_end = step->logits != NULL || step->sampling != NULL ? n : 0,
                           .sample_first = step->sampling != NULL ? n - 1 : n,
                           .logits = step->logits,
                           .on_layer = step->on_layer,
                           .user = step->user};
    for (int32_t i = 0; i < n; i++)
        model_put_row(m, i, step->tokens[i], &step->seq, step->seq.pos + i);
    ((int32_t *)m->inputs.ptr)[m->in.live] = n;
    model_put_tables(m, 0, &step->seq, (int64_t)step->seq.pos + n);
    if (step->sampling != NULL && model_put_sampling(m, step->sampling, 1) != 1)
        td_assert(false); /* checked: one row always fits */
    if ((st = run(m, err)) == TD_OK && step->sampling != NULL) {
        step->token = *(const int32_t *)m->out.ptr;
        step->logprobs = logprobs_of(m)[0];
    }
    return st;
}

/* The size of graph that n rows fit into; NULL: none. */
static model_bucket *bucket_of(td_model *m, int32_t n)
{
    for (int32_t i = 0; i < m->n_buckets; i++)
        if (m->bucket[i].T >= n)
            return &m->bucket[i];
    return NULL;
}

/* The step that is laid out in n rows, padded to a bucket's size. */
static td_status run_bucket(td_model *m, model_bucket *b, int32_t n, td_error *err)
{
    td_status st;

    m->step.T = m->step.head_end = b->T;
    m->step.graph = (int32_t)(b - m->bucket);
    model_put_padding(m, n, b->T);
    /* All ranks capture before any of them runs: a graph that waits for another rank's on the
     * device must not meet one that is still being made. */
    if (b->warm == STEP_CAPTURE) {
        m->step.mode = STEP_CAPTURE;
        if ((st = td_ranks_run(m->ranks, model_forward, m, err)) != TD_OK)
            return failed(m, st);
        b->warm = STEP_REPLAY;
    }
    m->step.mode = b->warm;
    if ((st = run(m, err)) == TD_OK && b->warm == STEP_PLAIN)
        b->warm = STEP_CAPTURE;
    return st;
}

td_status td_model_decode(td_model *m, const td_decode_step *step, td_error *err)
{
    int32_t n = step->n, rows;
    td_status st;

    if (n < 1 || n > m->opt.max_tokens)
        return td_fail(err, TD_INVALID, "a decode step of %d sequences; 1 to %d are possible", n,
                       m->opt.max_tokens);
    if (n > m->in.table_rows)
        return td_fail(err, TD_INVALID, "a decode step of %d sequences with %d window rings", n,
                       m->in.table_rows);
    if ((st = model_check_tokens(m, step->tokens, n, err)) != TD_OK)
        return st;
    for (int32_t i = 0; i < n; i++)
        if ((st = model_check_seq(m, i, &step->seqs[i], 1, err)) != TD_OK ||
            (st = model_check_sampling(m, i, &step->sampling[i], err)) != TD_OK)
            return st;
    for (int32_t i = 0; i < n; i++) {
        model_put_row(m, i, step->tokens[i], &step->seqs[i], step->seqs[i].pos);
        model_put_tables(m, i, &step->seqs[i], (int64_t)step->seqs[i].pos + 1);
    }
    ((int32_t *)m->inputs.ptr)[m->in.live] = n;
    /* One round, unless the rows' lists are too long to be on the device together: then the later
     * rounds make the logits once more. */
    for (int32_t at = 0; at < n; at += rows) {
        m->step = (model_step){.T = n, .layers = at == 0, .head_first = at, .sample_first = at};
        rows = model_put_sampling(m, step->sampling + at, n - at);
        m->step.head_end = at + rows;
        if (step->logits != NULL)
            m->step.logits = step->logits + (size_t)at * (size_t)m->cfg.vocab;
        if (rows == n && step->logits == NULL && bucket_of(m, n) != NULL)
            st = run_bucket(m, bucket_of(m, n), n, err);
        else
            st = run(m, err);
        if (st != TD_OK)
            return st;
        memcpy(step->out + at, m->out.ptr, (size_t)rows * sizeof *step->out);
        if (step->logprobs != NULL)
            memcpy(step->logprobs + at, logprobs_of(m), (size_t)rows * sizeof *step->logprobs);
    }
    return TD_OK;
}

td_status td_model_warm_up(td_model *m, td_error *err)
{
    for (int32_t i = m->n_buckets - 1; i >= 0; i--) /* the largest first: it needs the most */
        for (;;) { /* as it is, then captured and replayed, if not done already */
            bool last = m->bucket[i].warm != STEP_PLAIN;
            td_status st;

            m->step = (model_step){.layers = true};
            st = run_bucket(m, &m->bucket[i], 0, err);
            if (st != TD_OK)
                return td_wrap(err, "warming up decode steps of %d", m->bucket[i].T);
            if (last)
                break;
        }
    return TD_OK;
}
