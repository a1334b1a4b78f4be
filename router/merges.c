/* Two kinds of vocabularies exist. tiktoken's has no list of merges: any two neighbours whose bytes
 * together are a token may merge, the lowest id first. Hugging Face's has a list, which for a
 * converted tiktoken vocabulary holds every such split, ordered by the id that results; only the
 * order among splits of one token is made up. There the tiktoken rule is used, since it is the
 * reference; any other list is taken at its word, its order being the precedence. */
#include "router/merges.h"

#include <stdlib.h>
#include <string.h>

static td_status make_slots(merges *m, size_t n, td_error *err)
{
    size_t count;

    m->slot_bits = 1;
    while ((size_t)1 << m->slot_bits < 2 * n + 2)
        m->slot_bits++;
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

/* Every way in which tokens are two tokens side by side, by id of the whole. Both arrays are the
 * caller's to free, also after failure. */
static td_status all_splits(const vocab *v, vocab_merge **pairs, uint32_t **whole, size_t *n,
                            td_error *err)
{
    size_t cap = v->start[v->n_ordinary]; /* bytes: more than there are places to split */

    *pairs = malloc(cap * sizeof **pairs);
    *whole = malloc(cap * sizeof **whole);
    if (*pairs == NULL || *whole == NULL)
        return td_fail(err, TD_NOMEM, "no memory for the splits of %d tokens", v->n_ordinary);
    for (int32_t id = 0; id < v->n_ordinary; id++) {
        td_slice p = vocab_bytes(v, id);

        for (size_t at = 1; at < p.len; at++) {
            int32_t left = vocab_find(v, p.ptr, at), right;

            if (left < 0)
                continue;
            right = vocab_find(v, p.ptr + at, p.len - at);
            if (right < 0)
                continue;
            (*pairs)[*n] = (vocab_merge){(uint32_t)left, (uint32_t)right};
            (*whole)[(*n)++] = (uint32_t)id;
        }
    }
    return TD_OK;
}

static td_status fill_from_splits(merges *m, const vocab *v, const vocab_merge *pairs,
                                  const uint32_t *whole, size_t n, td_error *err)
{
    td_status st = make_slots(m, n, err);

    for (size_t i = 0; st == TD_OK && i < n; i++)
        td_assert(insert(m, pairs[i].left, pairs[i].right, whole[i]));
    m->n_ranks = (uint32_t)v->n_ordinary;
    m->whole_piece_first = true;
    return st;
}

/* Sets m->results; *in_id_order: no merge gives a lower id than the one before. */
static td_status fill_from_list(merges *m, const vocab *v, bool *in_id_order, td_error *err)
{
    char joined[2 * VOCAB_MAX_PIECE];
    td_status st = make_slots(m, v->n_merges, err);

    if (st != TD_OK)
        return st;
    m->results = malloc((v->n_merges + 1) * sizeof *m->results);
    if (m->results == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu merges", v->n_merges);
    *in_id_order = true;
    for (size_t i = 0; i < v->n_merges; i++) {
        vocab_merge p = v->merges[i];
        td_slice a = vocab_bytes(v, (int32_t)p.left), b = vocab_bytes(v, (int32_t)p.right);
        int32_t id;

        memcpy(joined, a.ptr, a.len);
        memcpy(joined + a.len, b.ptr, b.len);
        id = vocab_find(v, joined, a.len + b.len);
        if (id < 0)
            return td_fail(err, TD_INVALID, "merge %zu joins tokens %u and %u to no token", i,
                           p.left, p.right);
        if (!insert(m, p.left, p.right, (uint32_t)i))
            return td_fail(err, TD_INVALID, "merge %zu, of tokens %u and %u, is given twice", i,
                           p.left, p.right);
        if (i > 0 && (uint32_t)id < m->results[i - 1])
            *in_id_order = false;
        m->results[i] = (uint32_t)id;
    }
    m->n_ranks = (uint32_t)v->n_merges;
    m->whole_piece_first = v->whole_piece_first;
    return TD_OK;
}

/* After slots are complete. */
static td_status fill_of_bytes(merges *m, const vocab *v, td_error *err)
{
    m->of_bytes = malloc((size_t)256 * 256 * sizeof *m->of_bytes);
    if (m->of_bytes == NULL)
        return td_fail(err, TD_NOMEM, "no memory for the merges of bytes");
    for (size_t i = 0; i < (size_t)256 * 256; i++)
        m->of_bytes[i] =
            merges_find(m, (uint32_t)v->byte_id[i >> 8], (uint32_t)v->byte_id[i & 255]);
    return TD_OK;
}

td_status merges_fill(merges *m, const vocab *v, td_error *err)
{
    vocab_merge *pairs = NULL;
    uint32_t *whole = NULL;
    size_t n = 0;
    bool in_id_order = true;
    td_status st = TD_OK;

    if (v->merges != NULL)
        st = fill_from_list(m, v, &in_id_order, err);
    if (st == TD_OK && in_id_order)
        st = all_splits(v, &pairs, &whole, &n, err);
    /* The list has no pair twice and each pair is a split, so an equal count is an equal set. */
    if (st == TD_OK && in_id_order && (v->merges == NULL || n == v->n_merges)) {
        merges_fini(m);
        st = fill_from_splits(m, v, pairs, whole, n, err);
    }
    free(pairs);
    free(whole);
    return st == TD_OK ? fill_of_bytes(m, v, err) : st;
}

void merges_fini(merges *m)
{
    free(m->slots);
    free(m->maybe);
    free(m->of_bytes);
    free(m->results);
    *m = (merges){0};
}
