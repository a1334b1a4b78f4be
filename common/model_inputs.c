/* model_inputs: what a step needs on the devices, laid out on the host.
 *
 * Everything small (tokens, positions, slots, how rows are sampled, the window layers' tables) is
 * one array that is copied whole in every step; lists that rows refer to follow it and are copied
 * as far as they are used. The full layers' tables, which are large and hardly change from step to
 * step, stay on the device: the host keeps what it has sent, and sends what differs, single pages
 * as edits and the rest as copies of runs. */
#include <string.h>

#include "common/model_impl.h"

td_status model_check_tokens(const td_model *m, const int32_t *tokens, int32_t n, td_error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= m->cfg.vocab)
            return td_fail(err, TD_INVALID, "token %d of %d is %d; the vocabulary ends at %d", i, n,
                           tokens[i], m->cfg.vocab - 1);
    return TD_OK;
}

td_status model_check_seq(const td_model *m, int32_t i, const td_seq *s, int32_t n, td_error *err)
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

td_status model_check_sampling(const td_model *m, int32_t i, const td_sampling *s, td_error *err)
{
    int64_t pairs = (int64_t)s->n_counts + s->n_bias + s->n_banned;

    if (s->n_counts < 0 || s->n_bias < 0 || s->n_banned < 0 || pairs > m->in.max_pairs)
        return td_fail(
            err, TD_INVALID,
            "sequence %d: %d token counts, %d biases and %d banned ranges; %d all in all "
            "are possible",
            i, s->n_counts, s->n_bias, s->n_banned, m->in.max_pairs);
    if (s->logprobs && (s->top_logprobs < 0 || s->top_logprobs > TD_TOP_LOGPROBS))
        return td_fail(err, TD_INVALID,
                       "sequence %d: %d top log-probabilities; 0 to %d are possible", i,
                       s->top_logprobs, TD_TOP_LOGPROBS);
    return TD_OK;
}

void model_put_row(td_model *m, int32_t row, int32_t token, const td_seq *s, int32_t p)
{
    int32_t *in = m->inputs.ptr, page = p / TD_PAGE_TOKENS, at = p % TD_PAGE_TOKENS;
    size_t i = (size_t)row;

    in[m->in.tokens + i] = token;
    in[m->in.pos + i] = p;
    in[m->in.len + i] = p + 1;
    in[m->in.rows + i] = row;
    in[m->in.slot_full + i] = m->kv.n_full > 0 ? (int32_t)s->pages[page] * TD_PAGE_TOKENS + at : -1;
    in[m->in.slot_window + i] =
        m->kv.n_window > 0
            ? (int32_t)(s->ring * m->kv.ring_pages + (uint32_t)page % m->kv.ring_pages) *
                      TD_PAGE_TOKENS +
                  at
            : -1;
}

void model_put_padding(td_model *m, int32_t first, int32_t end)
{
    int32_t *in = m->inputs.ptr;
    td_sample_row *sample = (void *)(in + m->in.sample);

    for (int32_t row = first; row < end; row++) {
        size_t i = (size_t)row;

        in[m->in.tokens + i] = in[m->in.pos + i] = in[m->in.len + i] = 0;
        in[m->in.slot_full + i] = in[m->in.slot_window + i] = -1;
        in[m->in.rows + i] = row;
        sample[row] = (td_sample_row){.skip = 1, .mask = -1, .top_logprobs = -1};
    }
    in[m->in.live] = first;
}

/* Entries at .. at + n of the tables, all in one row, differ from what the device has. */
static void send(td_model *m, size_t at, size_t n)
{
    int32_t *in = m->inputs.ptr;
    const int32_t *table = m->table.ptr;
    model_changes *c = &m->changes;

    if (n > FEW_EDITS || c->n_edits + (int32_t)n > MAX_EDITS) {
        c->run[c->n_runs++] = (model_run){at, n};
        return;
    }
    for (size_t i = at; i < at + n; i++) {
        in[m->in.edits + 2 * (size_t)c->n_edits] = (int32_t)i;
        in[m->in.edits + 2 * (size_t)c->n_edits + 1] = table[i];
        c->n_edits++;
    }
}

void model_put_tables(td_model *m, int32_t row, const td_seq *s, int64_t n)
{
    size_t at = (size_t)row * (size_t)m->in.max_pages;
    int32_t *full = (int32_t *)m->table.ptr + at;
    int32_t *ring = (int32_t *)m->inputs.ptr + m->in.table_window + (size_t)row * m->kv.ring_pages;
    size_t pages = m->kv.n_full > 0 ? td_kv_pages_for((uint64_t)n) : 0, first = 0;

    if (m->kv.n_window > 0)
        for (uint32_t p = 0; p < m->kv.ring_pages; p++)
            ring[p] = (int32_t)(s->ring * m->kv.ring_pages + p);
    if (pages == 0 || memcmp(full, s->pages, pages * sizeof *full) == 0)
        return;
    while (full[first] == (int32_t)s->pages[first])
        first++;
    while (full[pages - 1] == (int32_t)s->pages[pages - 1])
        pages--;
    memcpy(full + first, s->pages + first, (pages - first) * sizeof *full);
    send(m, at + first, pages - first);
}

void model_forget_tables(td_model *m)
{
    memset(m->table.ptr, 0xff, m->table.bytes); /* no page has this number */
}

/* --- sampling ------------------------------------------------------------------------------- */

_Static_assert(sizeof(td_token_count) == 8 && sizeof(td_token_bias) == 8 &&
                   sizeof(td_id_range) == 8 && sizeof(td_sample_row) % 8 == 0,
               "lists are pairs of i32");

static int32_t put_list(td_model *m, const void *pairs, int32_t n)
{
    int32_t at = m->step.n_pairs;

    if (n > 0)
        memcpy((int32_t *)m->inputs.ptr + m->in.lists + 2 * (size_t)at, pairs, (size_t)n * 8);
    m->step.n_pairs += n;
    return at;
}

/* The banned ranges of row i. Most requests ban the same: then the row before has them already. */
static int32_t put_banned(td_model *m, const td_sample_row *before, const td_sampling *s)
{
    const int32_t *lists = (const int32_t *)m->inputs.ptr + m->in.lists;

    if (before != NULL && s->n_banned > 0 && before->n_banned == s->n_banned &&
        memcmp(lists + 2 * (size_t)before->banned, s->banned, (size_t)s->n_banned * 8) == 0)
        return before->banned;
    return put_list(m, s->banned, s->n_banned);
}

/* Where the mask of row i is already; -1: nowhere. Answers in the same kind of free text have the
 * same one. */
static int32_t shared_mask(const td_sample_row *rows, const td_sampling *sampling, int32_t i)
{
    for (int32_t j = i - 1; j >= 0; j--)
        if (sampling[j].mask == sampling[i].mask)
            return rows[j].mask;
    return -1;
}

int32_t model_put_sampling(td_model *m, const td_sampling *sampling, int32_t n)
{
    td_sample_row *rows = (void *)((int32_t *)m->inputs.ptr + m->in.sample);
    size_t words = ((size_t)m->cfg.vocab + 31) / 32;

    m->step.n_pairs = m->step.n_masks = 0;
    for (int32_t i = 0; i < n; i++) {
        const td_sampling *s = &sampling[i];
        td_sample_row *r = &rows[i];

        if (m->step.n_pairs + s->n_counts + s->n_bias + s->n_banned > m->in.max_pairs ||
            (s->mask != NULL && m->step.n_masks == m->in.max_masks))
            return i;
        *r = (td_sample_row){.seed = s->seed,
                             .index = s->index,
                             .temperature = s->temperature,
                             .top_p = s->top_p,
                             .top_k = s->top_k,
                             .presence = s->presence,
                             .frequency = s->frequency,
                             .counts = put_list(m, s->counts, s->n_counts),
                             .n_counts = s->n_counts,
                             .bias = put_list(m, s->bias, s->n_bias),
                             .n_bias = s->n_bias,
                             .banned = put_banned(m, i > 0 ? r - 1 : NULL, s),
                             .n_banned = s->n_banned,
                             .mask = -1,
                             .top_logprobs = s->logprobs ? s->top_logprobs : -1};
        if (s->mask != NULL) {
            r->mask = shared_mask(rows, sampling, i);
            if (r->mask < 0) {
                r->mask = m->step.n_masks++;
                memcpy((uint32_t *)m->masks.ptr + (size_t)r->mask * words, s->mask,
                       words * sizeof *s->mask);
            }
        }
    }
    return n;
}

/* --- onto the device ------------------------------------------------------------------------ */

td_status model_copy_inputs(td_model *m, int32_t rank, td_error *err)
{
    const td_ops *ops = m->ops;
    model_rank *r = &m->rank[rank];
    size_t words = ((size_t)m->cfg.vocab + 31) / 32;
    size_t all = m->in.lists + (rank == 0 ? 2 * (size_t)m->step.n_pairs : 0);
    const model_changes *c = &m->changes;
    td_status st =
        ops->copy_in(r->stream, r->inputs.ptr, m->inputs.ptr, all * sizeof(int32_t), err);

    for (int32_t i = 0; st == TD_OK && i < c->n_runs; i++)
        st = ops->copy_in(r->stream, (int32_t *)r->table.ptr + c->run[i].at,
                          (const int32_t *)m->table.ptr + c->run[i].at,
                          c->run[i].n * sizeof(int32_t), err);
    if (st == TD_OK && c->n_edits > 0)
        st = ops->edit(r->stream,
                       &(td_edit_args){.n = c->n_edits,
                                       .edits = rank_input(r, m->in.edits),
                                       .table = r->table.ptr},
                       err);
    if (st == TD_OK && rank == 0 && m->step.n_masks > 0)
        st = ops->copy_in(r->stream, r->masks.ptr, m->masks.ptr,
                          (size_t)m->step.n_masks * words * sizeof(uint32_t), err);
    return st;
}
