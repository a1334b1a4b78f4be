/* model_step: a step from the caller's side: check it whole, lay out its inputs, run the ranks,
 * sample. Nothing is written anywhere before everything has been checked. */
#include <string.h>

#include "common/model.h"
#include "common/model_impl.h"

void td_event_wait(td_event *e)
{
    if (e != NULL)
        e->wait(e);
}

td_status td_event_query(td_event *e)
{
    return e == NULL ? TD_OK : e->query(e);
}

static td_status check_tokens(const td_model *m, const int32_t *tokens, int32_t n, td_error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= m->cfg.vocab)
            return td_fail(err, TD_INVALID, "token %d of %d is %d; the vocabulary ends at %d", i, n,
                           tokens[i], m->cfg.vocab - 1);
    return TD_OK;
}

/* Sequence i of the step, which puts n tokens at s->pos. */
static td_status check_seq(const td_model *m, int32_t i, const td_seq *s, int32_t n, td_error *err)
{
    int64_t end = (int64_t)s->pos + n;
    int64_t room = (int64_t)m->in.max_pages * TD_PAGE_TOKENS;
    uint32_t pages;

    if (s->pos < 0 || end > m->cfg.max_positions || end > room)
        return td_fail(err, TD_INVALID,
                       "sequence %d: positions %d to %lld; the model has %d and the KV pool %lld",
                       i, s->pos, (long long)end - 1, m->cfg.max_positions, (long long)room);
    pages = td_kv_pages_for((uint64_t)end);
    if (m->kv.n_full > 0) {
        if (s->n_pages < pages)
            return td_fail(err, TD_INVALID, "sequence %d: %u pages do not cover %lld positions", i,
                           s->n_pages, (long long)end);
        for (uint32_t p = 0; p < pages; p++)
            if (s->pages[p] >= m->kv.n_pages)
                return td_fail(err, TD_INVALID, "sequence %d: page %u of a pool of %u", i,
                               s->pages[p], m->kv.n_pages);
    }
    if (m->kv.n_window > 0) {
        int64_t before = s->pos < m->cfg.window - 1 ? s->pos : m->cfg.window - 1;

        if (s->ring >= m->kv.n_rings)
            return td_fail(err, TD_INVALID, "sequence %d: ring %u of %u", i, s->ring,
                           m->kv.n_rings);
        if (before + n > (int64_t)m->kv.ring_pages * TD_PAGE_TOKENS)
            return td_fail(err, TD_INVALID,
                           "sequence %d: a ring of %u pages cannot hold %d new positions and the "
                           "%lld before them that they see",
                           i, m->kv.ring_pages, n, (long long)before);
    }
    return TD_OK;
}

/* Where position p of s is stored, in the full layers and in the window layers. */
static void place(const td_model *m, const td_seq *s, int32_t p, int32_t *full, int32_t *window)
{
    int32_t page = p / TD_PAGE_TOKENS, row = p % TD_PAGE_TOKENS;

    *full = m->kv.n_full > 0 ? (int32_t)s->pages[page] * TD_PAGE_TOKENS + row : -1;
    *window = m->kv.n_window > 0
                  ? (int32_t)(s->ring * m->kv.ring_pages + (uint32_t)page % m->kv.ring_pages) *
                            TD_PAGE_TOKENS +
                        row
                  : -1;
}

/* Row `row` of both tables: the pages of s that hold n positions. */
static void fill_tables(td_model *m, const td_seq *s, int32_t row, int64_t n)
{
    int32_t *full = m->inputs + m->in.table_full + (size_t)row * (size_t)m->in.max_pages;
    int32_t *ring = m->inputs + m->in.table_window + (size_t)row * m->kv.ring_pages;
    uint32_t pages = m->kv.n_full > 0 ? td_kv_pages_for((uint64_t)n) : 0;

    for (uint32_t p = 0; p < pages; p++)
        full[p] = (int32_t)s->pages[p];
    if (m->kv.n_window > 0)
        for (uint32_t p = 0; p < m->kv.ring_pages; p++)
            ring[p] = (int32_t)(s->ring * m->kv.ring_pages + p);
}

static td_status run(td_model *m, td_error *err)
{
    td_status st = td_ranks_run(m->ranks, model_forward, m, err);

    if (st != TD_OK && m->comm != NULL)
        td_comm_reset(m->comm);
    return st;
}

/* Logits of rows first .. first + n of the step, in m->logits. */
static td_status run_head(td_model *m, int32_t first, int32_t n, td_error *err)
{
    m->step.head_first = (size_t)first;
    m->step.head_n = n;
    if (m->step.layers) { /* the first group comes with the layers, in one go */
        td_status st = run(m, err);

        m->step.layers = false;
        return st;
    }
    return run(m, err);
}

td_status td_model_prefill(td_model *m, td_prefill_step *step, td_error *err)
{
    int32_t n = step->n, *in = m->inputs, first;
    size_t V = (size_t)m->cfg.vocab;
    td_status st;

    step->token = -1;
    if (n < 1 || n > m->opt.max_tokens)
        return td_fail(err, TD_INVALID, "a prefill step of %d tokens; 1 to %d are possible", n,
                       m->opt.max_tokens);
    if ((st = check_tokens(m, step->tokens, n, err)) != TD_OK ||
        (st = check_seq(m, 0, &step->seq, n, err)) != TD_OK)
        return st;
    memcpy(in + m->in.tokens, step->tokens, (size_t)n * sizeof *in);
    for (int32_t i = 0; i < n; i++) {
        int32_t p = step->seq.pos + i;

        in[m->in.pos + (size_t)i] = p;
        in[m->in.len + (size_t)i] = p + 1;
        in[m->in.rows + (size_t)i] = i;
        place(m, &step->seq, p, &in[m->in.slot_full + (size_t)i],
              &in[m->in.slot_window + (size_t)i]);
    }
    fill_tables(m, &step->seq, 0, (int64_t)step->seq.pos + n);
    m->step = (model_step){.T = n,
                           .prefill = true,
                           .pos0 = step->seq.pos,
                           .n_tables = 1,
                           .layers = true,
                           .on_layer = step->on_layer,
                           .user = step->user};
    if (step->sampling == NULL && step->logits == NULL)
        return run(m, err);
    first = step->logits != NULL ? 0 : n - 1;
    for (int32_t at = first, rows; at < n; at += rows) {
        rows = n - at < m->head_rows ? n - at : m->head_rows;
        if ((st = run_head(m, at, rows, err)) != TD_OK)
            return st;
        if (step->logits != NULL)
            memcpy(step->logits + (size_t)at * V, m->logits, (size_t)rows * V * sizeof(float));
        if (step->sampling != NULL && at + rows == n)
            step->token = td_sample(m->logits + (size_t)(rows - 1) * V, m->cfg.vocab,
                                    step->sampling, m->scratch);
    }
    return TD_OK;
}

td_status td_model_decode(td_model *m, const td_decode_step *step, td_error *err)
{
    int32_t n = step->n, *in = m->inputs;
    size_t V = (size_t)m->cfg.vocab;
    td_status st;

    if (n < 1 || n > m->opt.max_tokens)
        return td_fail(err, TD_INVALID, "a decode step of %d sequences; 1 to %d are possible", n,
                       m->opt.max_tokens);
    if (n > m->in.table_rows)
        return td_fail(err, TD_INVALID, "a decode step of %d sequences with %d window rings", n,
                       m->in.table_rows);
    if ((st = check_tokens(m, step->tokens, n, err)) != TD_OK)
        return st;
    for (int32_t i = 0; i < n; i++)
        if ((st = check_seq(m, i, &step->seqs[i], 1, err)) != TD_OK)
            return st;
    memcpy(in + m->in.tokens, step->tokens, (size_t)n * sizeof *in);
    for (int32_t i = 0; i < n; i++) {
        const td_seq *s = &step->seqs[i];

        in[m->in.pos + (size_t)i] = s->pos;
        in[m->in.len + (size_t)i] = s->pos + 1;
        in[m->in.rows + (size_t)i] = i;
        place(m, s, s->pos, &in[m->in.slot_full + (size_t)i], &in[m->in.slot_window + (size_t)i]);
        fill_tables(m, s, i, (int64_t)s->pos + 1);
    }
    m->step = (model_step){.T = n, .n_tables = n, .layers = true};
    for (int32_t at = 0, rows; at < n; at += rows) {
        rows = n - at < m->head_rows ? n - at : m->head_rows;
        if ((st = run_head(m, at, rows, err)) != TD_OK)
            return st;
        if (step->logits != NULL)
            memcpy(step->logits + (size_t)at * V, m->logits, (size_t)rows * V * sizeof(float));
        for (int32_t i = 0; i < rows; i++)
            step->out[at + i] = td_sample(m->logits + (size_t)i * V, m->cfg.vocab,
                                          &step->sampling[at + i], m->scratch);
    }
    return TD_OK;
}
