/* Two kinds of vocabularies exist. tiktoken's has no list of merges: any two neighbours whose bytes
 * together are a token may merge, the lowest id first. Hugging Face's has a list, which for a
 * converted tiktoken vocabulary holds every such split, ordered by the id that results; only the
 * order among splits of one token is made up. There the tiktoken rule is used, since it is the
 * reference; any other list is taken at its word, its order being the precedence.
 *
 * Merges are taken in their order. A pair becomes the halves of a token if the merges before it
 * leave the two as they are: then it is what merging the token's bytes ends with. That is all of it
 * as long as no merge is needed by an earlier one, which is checked at the end. */
#include "router/merges.h"

#include <stdlib.h>
#include <string.h>

/* One merge of a list, or one split of a token. */
typedef struct candidate {
    uint32_t left, right, whole, rank;
} candidate;

typedef struct candidates {
    candidate *c;
    size_t n, cap;
} candidates;

static td_status add(candidates *list, candidate c, td_error *err)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 4096;
        candidate *p = realloc(list->c, cap * sizeof *p);

        if (p == NULL)
            return td_fail(err, TD_NOMEM, "no memory for %zu merges", cap);
        list->c = p;
        list->cap = cap;
    }
    list->c[list->n++] = c;
    return TD_OK;
}

/* Every way in which tokens are two tokens side by side, by id of the whole. */
static td_status all_splits(const vocab *v, candidates *out, td_error *err)
{
    td_status st = TD_OK;

    for (int32_t id = 0; st == TD_OK && id < v->n_ordinary; id++) {
        td_slice p = vocab_bytes(v, id);

        for (size_t at = 1; st == TD_OK && at < p.len; at++) {
            int32_t left = vocab_find(v, p.ptr, at), right;

            if (left < 0)
                continue;
            right = vocab_find(v, p.ptr + at, p.len - at);
            if (right >= 0)
                st = add(
                    out,
                    (candidate){(uint32_t)left, (uint32_t)right, (uint32_t)id, (uint32_t)id + 1},
                    err);
        }
    }
    return st;
}

/* *in_id_order: no merge gives a lower id than the one before. */
static td_status read_list(const vocab *v, candidates *out, bool *in_id_order, td_error *err)
{
    char joined[2 * VOCAB_MAX_PIECE];
    td_status st = TD_OK;

    *in_id_order = true;
    for (size_t i = 0; st == TD_OK && i < v->n_merges; i++) {
        vocab_merge p = v->merges[i];
        td_slice a = vocab_bytes(v, (int32_t)p.left), b = vocab_bytes(v, (int32_t)p.right);
        int32_t id;

        memcpy(joined, a.ptr, a.len);
        memcpy(joined + a.len, b.ptr, b.len);
        id = vocab_find(v, joined, a.len + b.len);
        if (id < 0)
            return td_fail(err, TD_INVALID, "merge %zu joins tokens %u and %u to no token", i,
                           p.left, p.right);
        if (i > 0 && (uint32_t)id < out->c[i - 1].whole)
            *in_id_order = false;
        st = add(out, (candidate){p.left, p.right, (uint32_t)id, (uint32_t)i + 1}, err);
    }
    return st;
}

static unsigned bits_for(size_t n)
{
    unsigned bits = 1;

    while ((size_t)1 << bits < 2 * n + 2)
        bits++;
    return bits;
}

static td_status make_slots(merges *m, size_t n, td_error *err)
{
    size_t count;

    free(m->slots);
    free(m->maybe);
    m->slot_bits = bits_for(n);
    count = (size_t)1 << m->slot_bits;
    m->slots = malloc(count * sizeof *m->slots);
    m->maybe = calloc(count / 16 + 1, sizeof *m->maybe);
    if (m->slots == NULL || m->maybe == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a table of %zu merges", count);
    memset(m->slots, 0xff, count * sizeof *m->slots); /* MERGE_NONE */
    return TD_OK;
}

/* False when the pair is there already. */
static bool insert(merges *m, uint32_t left, uint32_t right, uint32_t rank)
{
    size_t mask = ((size_t)1 << m->slot_bits) - 1;
    size_t i = merge_slot_of(left, right, m->slot_bits);

    for (; m->slots[i].rank != MERGE_NONE; i = (i + 1) & mask)
        if (m->slots[i].left == left && m->slots[i].right == right)
            return false;
    m->slots[i] = (merge_slot){left, right, rank};
    i = merge_slot_of(left, right, m->slot_bits + 2);
    m->maybe[i / 64] |= (uint64_t)1 << i % 64;
    return true;
}

static td_status no_pair_twice(merges *m, const candidates *list, td_error *err)
{
    td_status st = make_slots(m, list->n, err);

    for (size_t i = 0; st == TD_OK && i < list->n; i++)
        if (!insert(m, list->c[i].left, list->c[i].right, 0))
            st = td_fail(err, TD_INVALID, "merge %zu, of tokens %u and %u, is given twice", i,
                         list->c[i].left, list->c[i].right);
    return st;
}

/* Whether the two of a merge are ever left side by side by the merges that are in the table. */
static bool meet(const merges *m, const candidate *c)
{
    return m->tokens[c->left].rank != MERGE_NONE && m->tokens[c->right].rank != MERGE_NONE &&
           merges_stay_apart(m, c->left, c->right);
}

static td_status fill_tokens(merges *m, const vocab *v, const candidates *list, td_error *err)
{
    td_status st = make_slots(m, (size_t)v->n_ordinary, err);

    if (st != TD_OK)
        return st;
    m->tokens = malloc(((size_t)v->n_ordinary + 1) * sizeof *m->tokens);
    if (m->tokens == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %d tokens", v->n_ordinary);
    memset(m->tokens, 0xff, ((size_t)v->n_ordinary + 1) * sizeof *m->tokens); /* MERGE_NONE */
    for (int c = 0; c < 256; c++)
        m->tokens[v->byte_id[c]].rank = 0;
    for (size_t i = 0; i < list->n; i++) {
        const candidate *c = &list->c[i];

        if (m->tokens[c->whole].rank != MERGE_NONE || !meet(m, c))
            continue;
        m->tokens[c->whole] = (merge_token){c->left, c->right, c->rank, MERGE_NONE};
        td_assert(insert(m, c->left, c->right, c->rank));
    }
    for (size_t i = 0; i < list->n; i++) {
        const candidate *c = &list->c[i];

        if (m->tokens[c->whole].rank == MERGE_NONE && meet(m, c))
            return td_fail(err, TD_INVALID,
                           "tokens %u and %u merge to %u before there are merges that give them: "
                           "no order that training leaves",
                           c->left, c->right, c->whole);
    }
    return TD_OK;
}

/* What merging begins with, and what it gives. */
static td_status fill_ranks(merges *m, const vocab *v, const candidates *list, bool by_id,
                            td_error *err)
{
    m->of_bytes = malloc((size_t)256 * 256 * sizeof *m->of_bytes);
    if (m->of_bytes == NULL)
        return td_fail(err, TD_NOMEM, "no memory for the merges of bytes");
    for (size_t i = 0; i < (size_t)256 * 256; i++)
        m->of_bytes[i] =
            merges_find(m, (uint32_t)v->byte_id[i >> 8], (uint32_t)v->byte_id[i & 255]);
    if (by_id)
        return TD_OK;
    m->results = malloc((list->n + 1) * sizeof *m->results);
    if (m->results == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu merges", list->n);
    for (size_t i = 0; i < list->n; i++)
        m->results[list->c[i].rank] = list->c[i].whole;
    return TD_OK;
}

/* After tokens. */
typedef struct tree {
    merges *m;
    size_t n_nodes, n_edges, cap_nodes;
} tree;

static void put_edge(merges *m, merge_edge e)
{
    size_t mask = ((size_t)1 << m->edge_bits) - 1, i = merge_edge_of(e.from, m->edge_bits);

    while (m->edges[i].from != MERGE_NONE)
        i = (i + 1) & mask;
    m->edges[i] = e;
}

/* Room for one edge and one node more. */
static bool grow(tree *t)
{
    merges *m = t->m;

    if (m->edges == NULL || 2 * (t->n_edges + 1) > (size_t)1 << m->edge_bits) {
        merge_edge *old = m->edges;
        size_t n_old = old != NULL ? (size_t)1 << m->edge_bits : 0;
        unsigned bits = old != NULL ? m->edge_bits + 1 : 10;

        m->edges = malloc(sizeof *m->edges << bits);
        if (m->edges == NULL) {
            m->edges = old;
            return false;
        }
        m->edge_bits = bits;
        memset(m->edges, 0xff, sizeof *m->edges << bits); /* MERGE_NONE */
        for (size_t i = 0; i < n_old; i++)
            if (old[i].from != MERGE_NONE)
                put_edge(m, old[i]);
        free(old);
    }
    if (t->n_nodes >= t->cap_nodes) {
        size_t cap = t->cap_nodes ? 2 * t->cap_nodes : 1024;
        uint32_t *p = realloc(m->node_token, cap * sizeof *p);

        if (p == NULL)
            return false;
        memset(p + t->cap_nodes, 0xff, (cap - t->cap_nodes) * sizeof *p); /* MERGE_NONE */
        m->node_token = p;
        t->cap_nodes = cap;
    }
    return true;
}

/* The node over these bytes, made where there is none; 0 when there is no memory. */
static uint32_t node_of(tree *t, td_slice p)
{
    uint32_t node = 1;

    for (size_t i = 0; i < p.len; i++) {
        unsigned char byte = (unsigned char)p.ptr[i];
        uint32_t to = merges_step(t->m, node, byte);

        if (to == 0) {
            if (t->n_nodes >= (size_t)1 << 24 || !grow(t))
                return 0;
            to = (uint32_t)t->n_nodes++ << 1;
            put_edge(t->m, (merge_edge){node << 8 | byte, to});
            t->n_edges++;
        }
        node = to >> 1;
    }
    return node;
}

/* Marks the edges at whose end there is a token, and finds what each token begins with. */
static void link_tokens(merges *m, const vocab *v)
{
    for (size_t i = 0; i < (size_t)1 << m->edge_bits; i++)
        if (m->edges[i].from != MERGE_NONE && m->node_token[m->edges[i].to >> 1] != MERGE_NONE)
            m->edges[i].to |= 1;
    for (int32_t id = 0; id < v->n_ordinary; id++) {
        td_slice p = vocab_bytes(v, id);
        uint32_t node = 1;

        for (size_t i = 0; m->tokens[id].rank != MERGE_NONE && i + 1 < p.len; i++) {
            uint32_t to = merges_step(m, node, (unsigned char)p.ptr[i]);

            node = to >> 1;
            if (to & 1)
                m->tokens[id].shorter = m->node_token[node];
        }
    }
    for (uint32_t i = 0; i < 256 * 256; i++) {
        uint32_t to = merges_step(m, 1, (unsigned char)(i >> 8));

        m->two_bytes[i] = merges_step(m, to >> 1, (unsigned char)i);
    }
}

static td_status fill_tree(merges *m, const vocab *v, td_error *err)
{
    tree t = {.m = m, .n_nodes = 2}; /* 0: none, 1: the root */

    m->two_bytes = malloc((size_t)256 * 256 * sizeof *m->two_bytes);
    if (m->two_bytes == NULL || !grow(&t))
        return td_fail(err, TD_NOMEM, "no memory for a tree of tokens");
    for (int32_t id = 0; id < v->n_ordinary; id++) {
        uint32_t node;

        if (m->tokens[id].rank == MERGE_NONE)
            continue;
        node = node_of(&t, vocab_bytes(v, id));
        if (node == 0)
            return td_fail(err, TD_NOMEM, "no room for a tree of %d tokens", v->n_ordinary);
        m->node_token[node] = (uint32_t)id;
    }
    link_tokens(m, v);
    return TD_OK;
}

td_status merges_fill(merges *m, const vocab *v, td_error *err)
{
    candidates list = {0}, splits = {0};
    bool in_id_order = true, by_id = v->merges == NULL;
    td_status st = TD_OK;

    if (v->merges != NULL) {
        st = read_list(v, &list, &in_id_order, err);
        if (st == TD_OK)
            st = no_pair_twice(m, &list, err);
    }
    if (st == TD_OK && in_id_order)
        st = all_splits(v, &splits, err);
    /* The list has no pair twice and each pair is a split, so an equal count is an equal set. */
    if (st == TD_OK && in_id_order && splits.n == list.n)
        by_id = true;
    if (st == TD_OK)
        st = fill_tokens(m, v, by_id ? &splits : &list, err);
    if (st == TD_OK)
        st = fill_ranks(m, v, &list, by_id, err);
    if (st == TD_OK)
        st = fill_tree(m, v, err);
    m->whole_piece_first = by_id || v->whole_piece_first;
    free(list.c);
    free(splits.c);
    return st;
}

void merges_fini(merges *m)
{
    free(m->tokens);
    free(m->slots);
    free(m->maybe);
    free(m->of_bytes);
    free(m->results);
    free(m->edges);
    free(m->node_token);
    free(m->two_bytes);
    *m = (merges){0};
}
