/* bpe against a slow and obvious merge, over random vocabularies in which ranks are as tangled as
 * they can be, for pieces on both sides of the length up to which they are merged. Where a merge
 * comes before one that it needs, which training never gives, a vocabulary is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "router/bpe.h"
#include "router/tokenizer.h"
#include "tokenizer_json.h"

enum {
    MAX_TEXT = 2000,
};

static uint32_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

/* Precedence of joining two tokens, or -1; *whole is what they give. */
static int slow_rank(const toy_vocab *v, bool by_id, int left, int right, int *whole)
{
    char one[2], other[2], joined[2 * TOY_PIECE];
    int found = -1;

    snprintf(joined, sizeof joined, "%s%s", toy_piece(v, left, one), toy_piece(v, right, other));
    for (int i = 0; i < v->n; i++)
        if (strcmp(v->piece[i], joined) == 0)
            found = TOY_BYTES + i;
    *whole = found;
    if (by_id || found < 0)
        return found;
    for (int i = 0; i < v->n_merges; i++)
        if (v->merge[i][0] == left && v->merge[i][1] == right)
            return i;
    return -1;
}

static int slow_encode(const toy_vocab *v, bool by_id, const char *s, int n, int *ids)
{
    static int rank[MAX_TEXT], whole[MAX_TEXT];

    for (int i = 0; (by_id || v->ignore_merges) && i < v->n; i++) {
        if ((int)strlen(v->piece[i]) == n && memcmp(v->piece[i], s, (size_t)n) == 0) {
            ids[0] = TOY_BYTES + i;
            return 1;
        }
    }
    for (int i = 0; i < n; i++)
        ids[i] = (unsigned char)s[i];
    for (int i = 0; i + 1 < n; i++)
        rank[i] = slow_rank(v, by_id, ids[i], ids[i + 1], &whole[i]);
    for (;;) {
        int at = -1;

        for (int i = 0; i + 1 < n; i++)
            if (rank[i] >= 0 && (at < 0 || rank[i] < rank[at]))
                at = i;
        if (at < 0)
            return n;
        ids[at] = whole[at];
        for (int i = at + 1; i + 1 < n; i++) {
            ids[i] = ids[i + 1];
            rank[i - 1] = rank[i];
            whole[i - 1] = whole[i];
        }
        n--;
        for (int i = at > 0 ? at - 1 : 0; i <= at && i + 1 < n; i++)
            rank[i] = slow_rank(v, by_id, ids[i], ids[i + 1], &whole[i]);
    }
}

/* False: refused, since a merge comes before one that it needs. */
static bool compare(const toy_vocab *v, bool by_id, uint32_t seed)
{
    static char text[MAX_TEXT];
    static int want[MAX_TEXT];
    td_error err = {0};
    td_buf json = {0};
    char path[64];
    tokenizer *t = NULL;

    toy_write(v, &json);
    toy_file(&json, path);
    if (tokenizer_open(path, &t, &err) != TD_OK)
        assert_non_null(strstr(err.text, "no order that training leaves"));
    unlink(path);
    td_buf_free(&json);
    if (t == NULL)
        return false;
    for (int round = 0; round < 40; round++) {
        int n = 1 + (int)random_below(round < 30 ? 40 : MAX_TEXT), few = 1 + (int)random_below(4),
            n_want;
        td_tokens ids = {0};

        for (int i = 0; i < n; i++)
            text[i] = (char)('a' + random_below((uint32_t)few));
        if (round % 4 == 1) { /* a token, which merging need not give */
            strcpy(text, v->piece[random_below((uint32_t)v->n)]);
            n = (int)strlen(text);
        }
        if (round % 5 == 0) /* the same again and again */
            for (int i = 7; i < n; i++)
                text[i] = text[i % 7];
        assert_int_equal(tokenizer_encode(t, text, (size_t)n, &ids, &err), TD_OK);
        n_want = slow_encode(v, by_id, text, n, want);
        for (int i = 0; i < n_want && i < (int)ids.len; i++)
            if (ids.ptr[i] != want[i])
                fail_msg("seed %u, %.*s: token %d is %d, expected %d", seed, n, text, i, ids.ptr[i],
                         want[i]);
        assert_int_equal(ids.len, n_want);
        td_tokens_free(&ids);
    }
    tokenizer_close(t);
    return true;
}

static void test_bpe_lowest_id_first_where_every_split_is_a_merge(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 120; seed++) {
        toy_vocab v;
        toy_ids ids = seed % 2 ? TOY_MADE : seed % 4 ? TOY_SHUFFLED : TOY_INVERTED;

        toy_random(&v, seed, ids, TOY_ALL);
        v.merges_as_strings = seed % 3 == 0;
        assert_int_equal(compare(&v, true, seed), ids == TOY_MADE);
    }
}

static void test_bpe_keeps_to_the_order_of_a_list_of_merges(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 90; seed++) {
        toy_vocab v;
        toy_ids ids = (toy_ids)(seed % 3);
        bool unordered = seed % 4 == 0;

        toy_random(&v, seed, ids, unordered ? TOY_ALL_UNORDERED : TOY_ONE_EACH);
        v.ignore_merges = ids == TOY_MADE || seed % 2;
        assert_int_equal(compare(&v, false, seed), !unordered);
    }
}

static void test_bpe_scratch_serves_pieces_of_growing_and_shrinking_length(void **state)
{
    toy_vocab toy;
    td_buf json = {0};
    td_error err = {0};
    vocab v = {0};
    merges m = {0};
    bpe_scratch scratch = {0};
    static unsigned char text[5000];

    (void)state;
    toy_random(&toy, 11, TOY_MADE, TOY_ALL);
    toy_write(&toy, &json);
    assert_int_equal(vocab_load_json(&v, json.ptr, json.len, &err), TD_OK);
    assert_int_equal(merges_fill(&m, &v, &err), TD_OK);
    for (int i = 0; i < 60; i++) {
        size_t n = 1 + random_below(i % 3 ? 300 : sizeof text);
        td_tokens kept = {0}, fresh = {0};
        bpe_scratch own = {0};

        for (size_t k = 0; k < n; k++)
            text[k] = (unsigned char)('a' + random_below(4));
        assert_int_equal(bpe_merge(&v, &m, &scratch, text, n, &kept, &err), TD_OK);
        assert_int_equal(bpe_merge(&v, &m, &own, text, n, &fresh, &err), TD_OK);
        assert_int_equal(kept.len, fresh.len);
        assert_memory_equal(kept.ptr, fresh.ptr, kept.len * sizeof *kept.ptr);
        bpe_scratch_fini(&own);
        td_tokens_free(&kept);
        td_tokens_free(&fresh);
    }
    bpe_scratch_fini(&scratch);
    merges_fini(&m);
    vocab_fini(&v);
    td_buf_free(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe_lowest_id_first_where_every_split_is_a_merge),
        cmocka_unit_test(test_bpe_keeps_to_the_order_of_a_list_of_merges),
        cmocka_unit_test(test_bpe_scratch_serves_pieces_of_growing_and_shrinking_length),
    };

    random_state = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
