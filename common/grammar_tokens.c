/* A vocabulary as a trie in one array: nodes in the order of bytes, each with where its subtree
 * ends, so that what cannot follow is skipped in one step. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar_impl.h"

enum {
    WARM_US = 5 * 1000 * 1000, /* far more than a real vocabulary needs */
    CACHE_BYTES = 64 << 20,    /* masks of the rules that all grammars share */
};

static int compare_pieces(const void *x, const void *y)
{
    const gr_piece *a = x, *b = y;
    uint32_t n = a->length < b->length ? a->length : b->length;
    int c = memcmp(a->bytes, b->bytes, n);

    if (c != 0)
        return c;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static uint32_t common_prefix(const gr_piece *a, const gr_piece *b)
{
    uint32_t n = a->length < b->length ? a->length : b->length, i = 0;

    while (i < n && a->bytes[i] == b->bytes[i])
        i++;
    return i;
}

bool gr_trie_build(gr_trie *t, gr_piece *pieces, size_t n)
{
    uint32_t *path, depth = 0;
    size_t nodes = 1;

    *t = (gr_trie){0};
    qsort(pieces, n, sizeof *pieces, compare_pieces);
    for (size_t i = 0; i < n; i++) {
        nodes += pieces[i].length - (i > 0 ? common_prefix(&pieces[i - 1], &pieces[i]) : 0);
        if (pieces[i].length > t->max_depth)
            t->max_depth = pieces[i].length;
    }
    t->nodes = malloc(nodes * sizeof *t->nodes);
    t->ids = malloc((n + 1) * sizeof *t->ids);
    path = malloc((t->max_depth + 1) * sizeof *path);
    if (t->nodes == NULL || t->ids == NULL || path == NULL) {
        free(path);
        gr_trie_fini(t);
        return false;
    }
    for (size_t i = 0; i <= n; i++) {
        uint32_t keep = i > 0 && i < n ? common_prefix(&pieces[i - 1], &pieces[i]) : 0;

        while (depth > keep) {
            gr_node *node = &t->nodes[path[--depth]];

            node->next = t->n_nodes;
            if (depth > 0 && t->nodes[path[depth - 1]].reach < node->reach)
                t->nodes[path[depth - 1]].reach = node->reach;
        }
        if (i == n)
            break;
        for (; depth < pieces[i].length; depth++) {
            path[depth] = t->n_nodes;
            t->nodes[t->n_nodes++] = (gr_node){.token = (uint32_t)i,
                                               .depth = (uint16_t)(depth + 1),
                                               .reach = (uint8_t)(depth < 254 ? depth + 1 : 255),
                                               .byte = pieces[i].bytes[depth]};
        }
        t->ids[t->n_ids++] = pieces[i].id;
    }
    t->nodes[t->n_nodes] = (gr_node){.next = t->n_nodes + 1, .token = t->n_ids};
    free(path);
    return true;
}

void gr_trie_fini(gr_trie *t)
{
    free(t->nodes);
    free(t->ids);
    *t = (gr_trie){0};
}

static bool brief(td_token_set *t, const uint32_t *lengths)
{
    for (int j = 0; j < GR_DEPTHS; j++) {
        t->brief[j] = calloc(t->words + 1, sizeof *t->brief[j]);
        if (t->brief[j] == NULL)
            return false;
        for (int i = 0; i < t->n; i++) {
            if (lengths[i] <= gr_depths[j])
                t->brief[j][i / 32] |= 1u << i % 32;
        }
    }
    return true;
}

td_status td_token_set_create(const uint8_t *const *pieces, const uint32_t *lengths, int n,
                              td_token_set **out, td_error *err)
{
    static atomic_uint_fast64_t serials;
    td_token_set *t = calloc(1, sizeof *t);
    gr_piece *list = malloc(((size_t)(n > 0 ? n : 0) + 1) * sizeof *list);
    td_grammar *json = NULL;
    size_t n_list = 0;
    bool ok = t != NULL && list != NULL;

    for (int i = 0; ok && i < n; i++) {
        if (lengths[i] > GR_MAX_PIECE) {
            free(list);
            td_token_set_free(t);
            return td_fail(err, TD_INVALID, "token %d has %u bytes, expected at most %d", i,
                           lengths[i], GR_MAX_PIECE);
        }
        if (lengths[i] > 0)
            list[n_list++] = (gr_piece){pieces[i], lengths[i], i};
    }
    if (ok) {
        t->n = n;
        t->words = ((size_t)(n > 0 ? n : 0) + 31) / 32;
        t->serial = ++serials;
        t->cache = gr_cache_create(CACHE_BYTES);
        ok = t->cache != NULL && gr_trie_build(&t->trie, list, n_list) && brief(t, lengths);
    }
    free(list);
    if (!ok || td_grammar_any_value(&json, err) != TD_OK) {
        td_token_set_free(t);
        return td_fail(err, TD_NOMEM, "no memory for a set of %d tokens", n);
    }
    /* Masks of the rules that every grammar has, the slowest of which are those of plain strings.
     */
    td_grammar_prepare(json, t, WARM_US);
    td_grammar_free(json);
    *out = t;
    return TD_OK;
}

void td_token_set_free(td_token_set *t)
{
    if (t == NULL)
        return;
    gr_trie_fini(&t->trie);
    for (int j = 0; j < GR_DEPTHS; j++)
        free(t->brief[j]);
    gr_cache_free(t->cache);
    free(t);
}

size_t td_token_set_words(const td_token_set *t)
{
    return t->words;
}
