/* Masks: the entries of all places, and what leaves their rules walked from their stacks. Whole
 * masks of the last sets are kept, since a place in a string is the same after each token. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/grammar_entry.h"
#include "common/grammar_matcher.h"

/* --- Memos. */

void gr_memo_clear(gr_memo *m)
{
    for (size_t i = 0; i < GR_MEMOS; i++)
        m->of[i].n = 0;
}

void gr_memo_fini(gr_memo *m)
{
    for (size_t i = 0; i < GR_MEMOS; i++) {
        free(m->of[i].key);
        free(m->of[i].mask);
    }
    *m = (gr_memo){0};
}

/* Counters are compared as they are: a bounded string has a new mask until it is far from both. */
static bool same_place(const gr_config *x, const gr_config *y, uint32_t longest)
{
    uint32_t xn = x->need < longest ? x->need : longest, yn = y->need < longest ? y->need : longest;
    uint32_t xr = x->room < longest ? x->room : longest, yr = y->room < longest ? y->room : longest;

    return x->state == y->state && x->stack == y->stack && xn == yn && xr == yr;
}

static const uint32_t *recall(const td_matcher *m)
{
    for (size_t i = 0; i < GR_MEMOS; i++) {
        const struct gr_memo_mask *memo = &m->memo.of[i];
        size_t k = 0;

        if (memo->n != m->n)
            continue;
        while (k < m->n && same_place(&memo->key[k], &m->run.at[k], m->tokens->trie.max_depth))
            k++;
        if (k == m->n)
            return memo->mask;
    }
    return NULL;
}

/* Without memory for it the mask is made again next time. */
static void remember(td_matcher *m, const uint32_t *mask)
{
    struct gr_memo_mask *memo = &m->memo.of[m->memo.next];
    size_t words = m->tokens->words;

    if (memo->mask == NULL && (memo->mask = malloc(words * sizeof *mask)) == NULL)
        return;
    if (memo->cap < m->n) {
        gr_config *key = realloc(memo->key, m->n * sizeof *key);

        if (key == NULL)
            return;
        memo->key = key;
        memo->cap = m->n;
    }
    memcpy(memo->key, m->run.at, m->n * sizeof *memo->key);
    memo->n = m->n;
    memcpy(memo->mask, mask, words * sizeof *mask);
    m->memo.next = (m->memo.next + 1) % GR_MEMOS;
}

/* --- The mask of a set. */

static void add_inside(const gr_entry *e, uint32_t *mask, size_t words)
{
    if (e->dense != NULL) {
        for (size_t i = 0; i < words; i++)
            mask[i] |= e->dense[i];
        return;
    }
    for (size_t i = 0; i < e->n_list; i++)
        mask[e->list[i] / 32] |= 1u << e->list[i] % 32;
}

/* Tokens that leave the rule of a place whose frame is `stack`. */
static bool add_leaving(td_matcher *m, const gr_entry *e, uint32_t stack, uint32_t *mask)
{
    const gr_entry *rests = e->shares != NULL ? e->shares : e;
    const gr_trie *t = rests->joined ? &rests->rests : &m->tokens->trie;
    gr_run *r = &m->run;
    uint32_t frames = r->n_frames;
    size_t first = r->n, n;
    gr_walk w;
    bool ok = true;

    if (e->n_exits == 0 || stack == 0)
        return true;
    n = gr_run_pop(r, stack);
    ok = gr_walk_init(&w, r, t, mask) && !r->oom;
    if (ok && n > 0 && rests->joined) {
        ok = gr_walk_nodes(&w, 0, t->n_nodes, 0, first, n);
    } else {
        for (size_t i = 0; ok && n > 0 && i < e->n_exits; i++) {
            const gr_node *top = &t->nodes[e->exits[i]];

            ok = gr_walk_nodes(&w, e->exits[i] + 1, top->next, top->depth, first, n);
        }
    }
    gr_walk_fini(&w);
    r->n = first;
    gr_run_cut_frames(r, frames);
    return ok;
}

bool td_matcher_mask(td_matcher *m, uint32_t *mask)
{
    size_t words = m->tokens->words;
    const uint32_t *known = recall(m);
    bool ok = true;

    if (known != NULL) {
        memcpy(mask, known, words * sizeof *mask);
        return true;
    }
    memset(mask, 0, words * sizeof *mask);
    for (size_t i = 0; ok && i < m->n; i++) {
        gr_config c = m->run.at[i];
        bool own;
        gr_entry *e;

        if (c.state == GR_END)
            continue;
        e = gr_entry_of(m->g, m->tokens, c, &own);
        if ((ok = e != NULL)) {
            add_inside(e, mask, words);
            ok = add_leaving(m, e, c.stack, mask);
            if (own)
                gr_entry_free(e);
        }
    }
    m->run.oom = false;
    if (!ok) {
        memset(mask, 0, words * sizeof *mask);
        return false;
    }
    remember(m, mask);
    return true;
}

void td_grammar_prepare(const td_grammar *g, const td_token_set *tokens, int64_t budget_us)
{
    td_usec until = td_now_us() + budget_us;

    for (size_t s = 0; s < g->n_states && td_now_us() < until; s++) {
        gr_config c = {(int32_t)s, 0, GR_ANY, 0};
        bool own = false;
        gr_entry *e;

        if (g->states[s].n_edges == 0)
            continue;
        e = gr_entry_of(g, tokens, c, &own);
        if (own)
            gr_entry_free(e);
        if (e == NULL || own)
            return;
    }
}
