/* What is known of a state for all stacks: which tokens stay inside its rule, and which leave it.
 *
 * For a place, tokens are of three kinds: those that stay inside the rule in hand (and the rules
 * that it calls), those that cannot, and those that leave it. The first two do not depend on the
 * stack, so they are found once by a walk over the trie and remembered (gr_entry); of the third the
 * entry keeps what is left of them after the rule's end, as a small trie of its own, which is
 * walked from the frames at hand. In a string, where most of the vocabulary may follow, a mask is
 * then a copy and some hundred steps; elsewhere the lists are short.
 *
 * Counters are cut to the longest token first (grammar_cache.c): more makes no difference to one
 * token. Plain strings of bounded length would still have hundreds of entries, a full walk each;
 * theirs are derived from the unbounded one, which knows for each token how many characters it
 * adds. */
#include <stdlib.h>
#include <string.h>

#include "common/grammar_entry.h"

enum { JOIN_UP_TO = 40000 }; /* tokens that leave a rule: more are not sorted anew */

void gr_entry_free(gr_entry *e)
{
    if (e == NULL)
        return;
    free(e->list);
    free(e->dense);
    free(e->exits);
    free(e->used);
    free(e->exit_used);
    gr_trie_fini(&e->rests);
    free(e);
}

bool gr_entry_note_exit(gr_entry *e, uint32_t node, uint16_t used)
{
    if (e->n_exits == e->cap_exits) {
        size_t cap = e->cap_exits > 0 ? e->cap_exits * 2 : 16;
        uint32_t *p = realloc(e->exits, cap * sizeof *p);
        uint16_t *q = p == NULL ? NULL : realloc(e->exit_used, cap * sizeof *q);

        if (p != NULL)
            e->exits = p;
        if (q == NULL)
            return false;
        e->exit_used = q;
        e->cap_exits = cap;
    }
    e->exits[e->n_exits] = node;
    e->exit_used[e->n_exits++] = used;
    return true;
}

/* The rests of all tokens that leave, sorted: the same rest is then looked at once. */
static bool join(gr_entry *e, const gr_trie *t)
{
    size_t n = 0, bytes = 0;
    gr_piece *pieces;
    uint8_t *text, *at;
    bool ok;

    for (size_t i = 0; i < e->n_exits; i++) {
        const gr_node *top = &t->nodes[e->exits[i]];

        n += t->nodes[top->next].token - t->nodes[e->exits[i] + 1].token;
    }
    if (e->n_exits < 4 || n > JOIN_UP_TO)
        return true;
    /* Bytes of a token are those of the nodes above it, which come before it. */
    for (size_t i = 0; i < e->n_exits; i++) {
        uint32_t from = e->exits[i];

        for (uint32_t k = from + 1; k < t->nodes[from].next; k++)
            bytes += (size_t)(t->nodes[k].depth - t->nodes[from].depth) *
                     (t->nodes[k + 1].token - t->nodes[k].token);
    }
    pieces = malloc((n + 1) * sizeof *pieces);
    text = at = malloc(bytes + 1);
    ok = pieces != NULL && text != NULL;
    n = 0;
    for (size_t i = 0; ok && i < e->n_exits; i++) {
        uint8_t path[GR_MAX_PIECE];
        uint32_t from = e->exits[i];

        for (uint32_t k = from + 1; k < t->nodes[from].next; k++) {
            uint32_t d = t->nodes[k].depth - t->nodes[from].depth;

            path[d - 1] = t->nodes[k].byte;
            for (uint32_t x = t->nodes[k].token; x < t->nodes[k + 1].token; x++) {
                memcpy(at, path, d);
                pieces[n++] = (gr_piece){at, d, t->ids[x]};
                at += d;
            }
        }
    }
    ok = ok && gr_trie_build(&e->rests, pieces, n);
    e->joined = ok;
    free(pieces);
    free(text);
    return ok;
}

/* Few tokens are kept as a list, which is quicker to add and smaller. Takes mask. */
static bool pack(gr_entry *e, uint32_t *mask, size_t words)
{
    size_t n = 0;

    for (size_t i = 0; i < words; i++)
        n += (size_t)__builtin_popcount(mask[i]);
    if (n > words / 2) {
        e->dense = mask;
        return true;
    }
    e->list = malloc((n + 1) * sizeof *e->list);
    for (size_t i = 0; i < words && e->list != NULL; i++) {
        for (uint32_t bits = mask[i]; bits != 0; bits &= bits - 1)
            e->list[e->n_list++] = (int32_t)(i * 32) + __builtin_ctz(bits);
    }
    free(mask);
    return e->list != NULL;
}

/* All tokens are tried. False: no memory. */
static bool fill_by_walk(gr_entry *e, const td_grammar *g, const td_token_set *tokens, gr_config c,
                         uint32_t *mask)
{
    gr_run r;
    gr_walk w = {0};
    bool ok;

    if (gr_in_string(g, c.state) && c.need == 0 && c.room == GR_ANY) {
        e->used = malloc(((size_t)tokens->n + 1) * sizeof *e->used);
        if (e->used == NULL)
            return false;
        for (int i = 0; i < tokens->n; i++)
            e->used[i] = GR_NOT_ALLOWED;
        c.room = GR_FAR;
    }
    if (!gr_run_init(&r, g))
        return false;
    c.stack = 0;
    r.at[r.n++] = c;
    ok = gr_walk_init(&w, &r, &tokens->trie, mask);
    w.exits = e;
    w.used = e->used;
    ok = ok && gr_walk_nodes(&w, 0, tokens->trie.n_nodes, 0, 0, 1);
    gr_walk_fini(&w);
    gr_run_fini(&r);
    return ok;
}

/* From the entry without bounds: tokens with at most c->room characters of which those that close
 * the string have at least c->need. */
static bool fill_by_count(gr_entry *e, const gr_entry *whole, const td_token_set *tokens,
                          const gr_config *c, uint32_t *mask)
{
    for (int i = 0; i < tokens->n; i++) {
        uint32_t used = whole->used[i] & (GR_CLOSES - 1);

        if (whole->used[i] == GR_NOT_ALLOWED || used > c->room ||
            ((whole->used[i] & GR_CLOSES) != 0 && used < c->need))
            continue;
        mask[i / 32] |= 1u << i % 32;
    }
    for (size_t i = 0; i < whole->n_exits; i++) {
        if (whole->exit_used[i] <= c->room && whole->exit_used[i] >= c->need &&
            !gr_entry_note_exit(e, whole->exits[i], whole->exit_used[i]))
            return false;
    }
    return true;
}

/* Whether two entries have the same exits; order is of no interest. */
static bool same_exits(const gr_entry *a, const gr_entry *b, const gr_trie *t)
{
    uint8_t *in = a->n_exits == b->n_exits ? calloc(t->n_nodes / 8 + 1, 1) : NULL;
    bool same = in != NULL;

    for (size_t i = 0; same && i < a->n_exits; i++)
        in[a->exits[i] / 8] |= (uint8_t)(1u << a->exits[i] % 8);
    for (size_t i = 0; same && i < b->n_exits; i++)
        same = (in[b->exits[i] / 8] >> b->exits[i] % 8 & 1) != 0;
    free(in);
    return same;
}

/* From the entry of a state that is alike to gr_depths[j] bytes: longer tokens alone are tried. */
static bool fill_by_alike(gr_entry *e, const gr_entry *base, int j, const td_grammar *g,
                          const td_token_set *tokens, const gr_config *c, uint32_t *mask)
{
    const uint32_t *brief = tokens->brief[j];
    const gr_trie *t = &tokens->trie;
    gr_run r;
    gr_walk w = {0};
    bool ok;

    for (size_t i = 0; base->dense != NULL && i < tokens->words; i++)
        mask[i] = base->dense[i] & brief[i];
    for (size_t i = 0; i < base->n_list; i++) {
        uint32_t word = (uint32_t)base->list[i] / 32, bit = 1u << base->list[i] % 32;

        mask[word] |= brief[word] & bit;
    }
    for (size_t i = 0; i < base->n_exits; i++) {
        if (t->nodes[base->exits[i]].reach <= gr_depths[j] &&
            !gr_entry_note_exit(e, base->exits[i], 0))
            return false;
    }
    if (!gr_run_init(&r, g))
        return false;
    r.at[r.n++] = (gr_config){c->state, c->need, c->room, 0};
    ok = gr_walk_init(&w, &r, t, mask);
    w.exits = e;
    w.skip = (uint8_t)gr_depths[j];
    ok = ok && gr_walk_nodes(&w, 0, t->n_nodes, 0, 0, 1);
    gr_walk_fini(&w);
    gr_run_fini(&r);
    if (base->shares != NULL)
        base = base->shares;
    if (ok && base->joined && same_exits(e, base, t))
        e->shares = base;
    return ok;
}

gr_entry *gr_entry_make(const td_grammar *g, const td_token_set *tokens, const gr_config *c,
                        const gr_source *from)
{
    gr_entry *e = calloc(1, sizeof *e);
    uint32_t *mask = calloc(tokens->words + 1, sizeof *mask);
    bool ok = e != NULL && mask != NULL;

    if (ok) {
        *e = (gr_entry){
            .serial = tokens->serial, .state = c->state, .need = c->need, .room = c->room};
        if (from->whole != NULL)
            ok = fill_by_count(e, from->whole, tokens, c, mask);
        else if (from->alike != NULL)
            ok = fill_by_alike(e, from->alike, from->j, g, tokens, c, mask);
        else
            ok = fill_by_walk(e, g, tokens, *c, mask);
        ok = ok && (e->shares != NULL || join(e, &tokens->trie));
        if (e->used == NULL) { /* no other entry will be made from this one */
            free(e->exit_used);
            e->exit_used = NULL;
        }
    }
    if (ok && pack(e, mask, tokens->words))
        return e;
    if (!ok)
        free(mask);
    gr_entry_free(e);
    return NULL;
}

size_t gr_entry_bytes(const gr_entry *e, const td_token_set *tokens)
{
    return sizeof *e + e->n_list * sizeof *e->list + (e->dense != NULL ? tokens->words * 4 : 0) +
           e->cap_exits * (sizeof *e->exits + sizeof *e->exit_used) +
           (e->used != NULL ? (size_t)tokens->n * sizeof *e->used : 0) +
           e->rests.n_nodes * sizeof *e->rests.nodes + e->rests.n_ids * sizeof *e->rests.ids;
}
