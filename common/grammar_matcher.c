/* A place in a grammar that moves on: the set of a gr_run, and the last masks that were made. */
#include "common/grammar_matcher.h"

#include <stdlib.h>
#include <string.h>

enum { COMPACT_FROM = 1024 }; /* frames before the unused ones are worth looking for */

td_status td_matcher_create(const td_grammar *g, const td_token_set *tokens, td_matcher **out,
                            td_error *err)
{
    td_matcher *m = calloc(1, sizeof *m);

    if (m != NULL) {
        m->g = g;
        m->tokens = tokens;
        if (gr_run_init(&m->run, g)) {
            m->n = gr_run_start(&m->run);
            if (!m->run.oom) {
                m->compact_at = COMPACT_FROM;
                *out = m;
                return TD_OK;
            }
        }
    }
    td_matcher_free(m);
    return td_fail(err, TD_NOMEM, "no memory for a matcher");
}

void td_matcher_free(td_matcher *m)
{
    if (m == NULL)
        return;
    gr_run_fini(&m->run);
    gr_memo_fini(&m->memo);
    free(m);
}

void td_matcher_reset(td_matcher *m)
{
    m->run.n = 0;
    m->n = gr_run_start(&m->run);
}

/* The set after bytes, at the end of run.at; 0: they cannot follow. *first is where it is. */
static size_t advance(td_matcher *m, const uint8_t *bytes, size_t n, size_t *first)
{
    gr_run *r = &m->run;
    size_t count = m->n;

    *first = 0;
    for (size_t i = 0; i < n && count > 0; i++) {
        size_t next = r->n, made = gr_run_step(r, *first, count, bytes[i]);

        /* Only the newest set is kept behind the one that we came from. */
        memmove(r->at + m->n, r->at + next, made * sizeof *r->at);
        r->n = m->n + made;
        *first = m->n;
        count = made;
    }
    return count;
}

static void undo(td_matcher *m, uint32_t frames)
{
    m->run.n = m->n;
    gr_run_cut_frames(&m->run, frames);
    m->run.oom = false;
}

bool td_matcher_accept(td_matcher *m, const uint8_t *bytes, size_t n)
{
    gr_run *r = &m->run;
    uint32_t frames = r->n_frames;
    size_t first, count = advance(m, bytes, n, &first);

    if (count == 0) {
        undo(m, frames);
        return false;
    }
    if (r->n_frames >= m->compact_at) {
        gr_run_compact(r, first, count);
        m->compact_at = r->n_frames * 2 > COMPACT_FROM ? r->n_frames * 2 : COMPACT_FROM;
        gr_memo_clear(&m->memo); /* frames have new numbers */
    } else {
        memmove(r->at, r->at + first, count * sizeof *r->at);
        r->n = count;
    }
    m->n = count;
    return true;
}

bool td_matcher_can_accept(td_matcher *m, const uint8_t *bytes, size_t n)
{
    uint32_t frames = m->run.n_frames;
    size_t first;
    bool ok = advance(m, bytes, n, &first) > 0;

    undo(m, frames);
    return ok;
}

bool td_matcher_may_end(const td_matcher *m)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->run.at[i].state == GR_END)
            return true;
    }
    return false;
}
