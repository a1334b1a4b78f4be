/* Grammars of random schemas: valid texts are accepted in whatever way they are cut into tokens,
 * wrong ones are not, and a mask is what trying every token one by one would give. On a small
 * vocabulary, and on the model's own where TANDEM_O200K names an o200k_base.tiktoken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "common/grammar.h"
#include "router/tokenizer.h"
#include "tests/unit/grammar_random.h"

#ifdef __SANITIZE_THREAD__
enum { N_SCHEMAS = 50, TEXTS = 6 }; /* one thread's work: only the shared grammar is of interest */
#else
enum { N_SCHEMAS = 400, TEXTS = 6 };
#endif

/* --- A small vocabulary: all bytes, two of them twice, holes, and what JSON is often cut into. */

static const char *const words[] = {
    "{\"",    "\":",   "\": ",     "\",",       "\", \"",     "\"}",          "\"]",
    "},",     "}}",    "]]",       "[[",        "[{",         "[\"",          "\":\"",
    "\":[",   "\":{",  "{}",       "[]",        "true",       "tr",           "ue",
    "false",  "null",  "nu",       "ll",        "id",         "idx",          "name",
    "na\\",   "type",  "red",      "red2",      "12",         "123",          "1",
    "0",      "00",    "-1",       "1.5",       ".5",         ".0",           "1,",
    "2]",     "3}",    " ",        "  ",        "\n",         "\n  ",         "\n    ",
    ", ",     ": ",    ",\n",      "{\n",       "[\n",        "}\n",          "a",
    "ab",     "abc",   "aZ",       " a",        "\\n",        "\\\"",         "\\\\",
    "\\u",    "\\u00", "e9",       "d83d",      "\\ud83d\\u", "de00",         "\xc3\xa9",
    "\xc3",   "\xa9t", "\xe4\xbd", "\xa0\"",    "\xf0\x9f",   "\x98\x80",     "a\"}",
    "a\",\"", "\"\"",  "\"\"}",    "a\":1}",    "\"id\":",    "\"name\": \"", "2026-",
    "-11",    "-30",   "255.",     "1.2",       "cd",         "abcd",         "zzzz",
    "e\"",    "x\"",   "    ",     "\"a\": [1", "\x7f",       "\xed\xa0\x80", "\xff\xfe",
    "}}}",    "}]",    "],",       "],\"",      "1]",         "]}",           "null]",
    "null,"};

enum { N_WORDS = sizeof words / sizeof *words, N_SMALL = 256 + N_WORDS + 4 };

typedef struct vocabulary {
    const uint8_t *piece[N_SMALL];
    uint32_t length[N_SMALL];
    uint8_t bytes[256];
    td_token_set *set;
} vocabulary;

static vocabulary small;

static int make_small(void **state)
{
    td_error err;

    (void)state;
    for (int i = 0; i < 256; i++) {
        small.bytes[i] = (uint8_t)i;
        small.piece[i] = &small.bytes[i];
        small.length[i] = 1;
    }
    for (size_t i = 0; i < N_WORDS; i++) {
        small.piece[256 + i] = (const uint8_t *)words[i];
        small.length[256 + i] = (uint32_t)strlen(words[i]);
    }
    small.piece[N_SMALL - 4] = &small.bytes['"']; /* the same bytes under a second id */
    small.length[N_SMALL - 4] = 1;
    return td_token_set_create(small.piece, small.length, N_SMALL, &small.set, &err);
}

static int free_small(void **state)
{
    (void)state;
    td_token_set_free(small.set);
    return 0;
}

static td_matcher *matcher(const td_grammar *g, const td_token_set *set)
{
    td_matcher *m = NULL;
    td_error err;

    assert_int_equal(td_matcher_create(g, set, &m, &err), TD_OK);
    return m;
}

static void check_mask(td_matcher *m, const td_buf *schema, const td_buf *text, size_t at)
{
    uint32_t mask[(N_SMALL + 31) / 32];

    assert_true(td_matcher_mask(m, mask));
    for (int i = 0; i < N_SMALL; i++) {
        bool in = (mask[i / 32] >> i % 32 & 1) != 0;
        bool fits =
            small.length[i] > 0 && td_matcher_can_accept(m, small.piece[i], small.length[i]);

        if (in != fits)
            fail_msg("%s\n  token %d '%.*s' after %.*s: in the mask %d, accepted %d", schema->ptr,
                     i, (int)small.length[i], small.piece[i], (int)at, text->ptr, in, fits);
    }
}

/* Accept all of text by tokens that are drawn among those that fit it; masks are checked on the
 * way. False: it stopped, or is not whole. */
static bool by_tokens(random_schema *s, const td_grammar *g, const td_buf *schema,
                      const td_buf *text, bool check)
{
    td_matcher *m = matcher(g, small.set);
    size_t at = 0;
    bool ok = true;

    while (ok && at < text->len) {
        int fits[N_SMALL], n = 0, id;

        if (check && random_schema_below(s, 4) == 0)
            check_mask(m, schema, text, at);
        for (int i = 0; i < N_SMALL; i++) {
            if (small.length[i] > 0 && small.length[i] <= text->len - at &&
                memcmp(small.piece[i], text->ptr + at, small.length[i]) == 0)
                fits[n++] = i;
        }
        id = fits[random_schema_below(s, (uint32_t)n)];
        ok = td_matcher_accept(m, small.piece[id], small.length[id]);
        at += small.length[id];
    }
    if (check && ok)
        check_mask(m, schema, text, at);
    ok = ok && td_matcher_may_end(m);
    td_matcher_free(m);
    return ok;
}

/* NULL: it matches nothing, which a random schema may. */
static td_grammar *compile(random_schema *s, td_buf *schema)
{
    td_grammar *g = NULL;
    td_error err;

    td_buf_clear(schema);
    random_schema_write(s, schema);
    if (td_grammar_from_schema(schema->ptr, schema->len, &g, &err) != TD_OK &&
        strstr(err.text, "matches no value") == NULL)
        fail_msg("%s\n  %s", schema->ptr, err.text);
    return g;
}

static void test_random_schemas(void **state)
{
    td_buf schema = {0}, text = {0};
    int valid = 0, invalid = 0, made = 0;

    (void)state;
    for (uint64_t seed = 0; seed < N_SCHEMAS; seed++) {
        random_schema *s = random_schema_create(seed);
        td_grammar *g = compile(s, &schema);

        for (int i = 0; g != NULL && i < TEXTS; i++) {
            td_buf_clear(&text);
            if (random_schema_valid(s, &text)) {
                valid++;
                if (!by_tokens(s, g, &schema, &text, text.len < 200))
                    fail_msg("seed %d: %s\n  should allow %s", (int)seed, schema.ptr, text.ptr);
            }
            if (random_schema_invalid(s, &text)) {
                invalid++;
                if (by_tokens(s, g, &schema, &text, false))
                    fail_msg("seed %d: %s\n  should not allow %s", (int)seed, schema.ptr, text.ptr);
            }
        }
        made += g != NULL;
        td_grammar_free(g);
        random_schema_free(s);
    }
    print_message("%d schemas, %d valid and %d wrong texts\n", made, valid, invalid);
    assert_true(made > N_SCHEMAS * 3 / 4 && valid > N_SCHEMAS * 3 && invalid > N_SCHEMAS * 2);
    td_buf_free(&schema);
    td_buf_free(&text);
}

/* Draw from masks until the end may come: there is always a way on, whatever was drawn. */
static void test_no_dead_ends(void **state)
{
    uint32_t mask[(N_SMALL + 31) / 32];
    td_buf schema = {0};

    (void)state;
    for (uint64_t seed = 1000; seed < 1000 + N_SCHEMAS; seed++) {
        random_schema *s = random_schema_create(seed);
        td_grammar *g = compile(s, &schema);
        td_matcher *m = g == NULL ? NULL : matcher(g, small.set);

        for (int step = 0; m != NULL && step < 150; step++) {
            int allowed[N_SMALL], n = 0, id;

            assert_true(td_matcher_mask(m, mask));
            for (int i = 0; i < N_SMALL; i++) {
                if (mask[i / 32] >> i % 32 & 1)
                    allowed[n++] = i;
            }
            if (n == 0) {
                if (!td_matcher_may_end(m))
                    fail_msg("seed %d: %s: nothing may follow", (int)seed, schema.ptr);
                break;
            }
            id = allowed[random_schema_below(s, (uint32_t)n)];
            assert_true(td_matcher_accept(m, small.piece[id], small.length[id]));
        }
        td_matcher_free(m);
        td_grammar_free(g);
        random_schema_free(s);
    }
    td_buf_free(&schema);
}

/* Bounds far from the length of any token, and close to it, from both sides: every mask on the way.
 */
static void test_bounds(void **state)
{
    static const struct {
        const char *schema, *open, *item;
        int n;
    } cases[] = {
        {"{\"type\":\"string\",\"minLength\":25,\"maxLength\":40}", "\"", "a", 40},
        {"{\"type\":\"string\",\"minLength\":30}", "\"", "\xc3\xa9", 40},
        {"{\"type\":\"string\",\"pattern\":\"^[^x]*$\",\"minLength\":8,\"maxLength\":20}", "\"",
         "\\n", 20},
        {"{\"type\":\"array\",\"items\":{\"enum\":[1,12]},\"minItems\":10,\"maxItems\":18}", "[12",
         ",1", 17},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_grammar *g = NULL;
        td_error err;
        td_buf schema = {0}, text = {0};
        td_matcher *m;

        td_buf_str(&schema, cases[i].schema);
        td_buf_str(&text, cases[i].open);
        assert_int_equal(td_grammar_from_schema(schema.ptr, schema.len, &g, &err), TD_OK);
        m = matcher(g, small.set);
        check_mask(m, &schema, &text, 0);
        assert_true(td_matcher_accept(m, (const uint8_t *)text.ptr, text.len));
        for (int k = 0; k < cases[i].n; k++) {
            const char *item = cases[i].item;

            check_mask(m, &schema, &text, text.len);
            for (size_t c = 0; item[c] != '\0'; c++) {
                assert_true(td_matcher_accept(m, (const uint8_t *)item + c, 1));
                check_mask(m, &schema, &text, text.len);
            }
            td_buf_str(&text, item);
        }
        td_matcher_free(m);
        td_grammar_free(g);
        td_buf_free(&schema);
        td_buf_free(&text);
    }
}

/* States of a pattern that differ late: masks of one are made from those of another, in whatever
 * order they are met. */
static void test_states_that_are_alike(void **state)
{
    static const struct {
        const char *pattern, *item;
        int n;
    } cases[] = {
        {"^.{1,40}$", "a", 40},
        {"^.{1,40}$", "\xc3\xa9", 40},
        {"^[a-z\\\\x22]{5,30}$", "z", 30},
        {"^(ab?,){3,20}x*$", "ab,", 20},
        {"^[^b]{3}(a|[b-z]{9}){0,4}\\\\n.{0,20}$", "a", 6},
        {"^(aa|\\\\x22b){0,12}$", "aa", 12},
        {"^\\\\S{2,12} .{2,12}$", "a", 12},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int step = 1; step < 30; step += 6) { /* orders in which states are met */
            td_grammar *g = NULL;
            td_error err;
            td_buf schema = {0}, text = {0};

            td_buf_fmt(&schema, "{\"type\":\"array\",\"items\":{\"pattern\":\"%s\"}}",
                       cases[i].pattern);
            if (td_grammar_from_schema(schema.ptr, schema.len, &g, &err) != TD_OK)
                fail_msg("%s: %s", schema.ptr, err.text);
            for (int k = 0; k <= cases[i].n; k++) {
                td_matcher *m = matcher(g, small.set);

                td_buf_clear(&text);
                td_buf_str(&text, "[\"");
                for (int n = k * step % (cases[i].n + 1); n > 0; n--)
                    td_buf_str(&text, cases[i].item);
                assert_true(td_matcher_accept(m, (const uint8_t *)text.ptr, text.len));
                check_mask(m, &schema, &text, text.len);
                td_matcher_free(m);
            }
            td_grammar_free(g);
            td_buf_free(&schema);
            td_buf_free(&text);
        }
    }
}

/* Several threads, one grammar: they find the same masks, in a cache that all of them fill. */

typedef struct reader {
    const td_grammar *g;
    uint32_t sum;
} reader;

static void *read_masks(void *arg)
{
    static const char text[] = "{\"id\":1,\"name\":\"a\xc3\xa9\\n\",\"tags\":[\"red\",\"x\"]}";
    reader *r = arg;
    uint32_t mask[(N_SMALL + 31) / 32];
    td_matcher *m = matcher(r->g, small.set);

    for (int round = 0; round < 20; round++) {
        td_matcher_reset(m);
        for (size_t i = 0; i < sizeof text - 1; i++) {
            if (!td_matcher_mask(m, mask))
                break;
            for (size_t k = 0; k < (N_SMALL + 31) / 32; k++)
                r->sum = r->sum * 31 + mask[k];
            if (!td_matcher_accept(m, (const uint8_t *)text + i, 1))
                break;
        }
    }
    td_matcher_free(m);
    return NULL;
}

static void test_threads_share_a_grammar(void **state)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\",\"minimum\":0},\"name\":"
        "{\"type\":\"string\",\"maxLength\":9},\"tags\":{\"type\":\"array\",\"items\":{\"type\":"
        "\"string\",\"pattern\":\"^[a-z]+$\"}}},\"required\":[\"id\",\"name\",\"tags\"]}";
    td_grammar *g = NULL;
    td_error err;
    reader readers[4];
    pthread_t threads[4];

    (void)state;
    assert_int_equal(td_grammar_from_schema(schema, sizeof schema - 1, &g, &err), TD_OK);
    for (int i = 0; i < 4; i++) {
        readers[i] = (reader){g, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, read_masks, &readers[i]), 0);
    }
    td_grammar_prepare(g, small.set, 1000000);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 1; i < 4; i++)
        assert_int_equal(readers[i].sum, readers[0].sum);
    assert_int_not_equal(readers[0].sum, 0);
    td_grammar_free(g);
}

/* --- The model's vocabulary. */

static void test_o200k(void **state)
{
    const char *path = getenv("TANDEM_O200K");
    tokenizer *tok = NULL;
    td_token_set *set = NULL;
    td_error err = {0};
    td_buf schema = {0}, text = {0};
    const uint8_t **pieces;
    uint32_t *lengths, *mask;
    int n, checked = 0;

    (void)state;
    if (path == NULL)
        skip(); /* set TANDEM_O200K to an o200k_base.tiktoken */
    if (tokenizer_open(path, &tok, &err) != TD_OK)
        fail_msg("%s", err.text);
    n = tokenizer_vocab(tok);
    pieces = calloc((size_t)n, sizeof *pieces);
    lengths = calloc((size_t)n, sizeof *lengths);
    for (int i = 0; i < n; i++) {
        td_slice piece;

        if (!tokenizer_is_special(tok, i) && tokenizer_bytes(tok, i, &piece)) {
            pieces[i] = (const uint8_t *)piece.ptr;
            lengths[i] = (uint32_t)piece.len;
        }
    }
    assert_int_equal(td_token_set_create(pieces, lengths, n, &set, &err), TD_OK);
    mask = calloc(td_token_set_words(set), sizeof *mask);
    for (uint64_t seed = 5000; checked < 24; seed++) {
        random_schema *s = random_schema_create(seed);
        td_grammar *g = compile(s, &schema);
        td_matcher *m = g == NULL ? NULL : matcher(g, set);
        td_tokens ids = {0};
        size_t stop;

        td_buf_clear(&text);
        if (m != NULL && random_schema_valid(s, &text) && text.len > 2) {
            assert_int_equal(tokenizer_encode(tok, text.ptr, text.len, &ids, &err), TD_OK);
            stop = random_schema_below(s, (uint32_t)ids.len + 1);
            for (size_t i = 0; i < ids.len; i++) {
                if (i == stop) {
                    assert_true(td_matcher_mask(m, mask));
                    checked++;
                    for (int k = 0; k < n; k++) {
                        bool in = (mask[k / 32] >> k % 32 & 1) != 0;

                        if (in !=
                            (lengths[k] > 0 && td_matcher_can_accept(m, pieces[k], lengths[k])))
                            fail_msg("%s\n  token %d in the mask: %d", schema.ptr, k, in);
                    }
                }
                if (!td_matcher_accept(m, pieces[ids.ptr[i]], lengths[ids.ptr[i]]))
                    fail_msg("%s\n  should allow %s", schema.ptr, text.ptr);
            }
            assert_true(td_matcher_may_end(m));
        }
        td_tokens_free(&ids);
        td_matcher_free(m);
        td_grammar_free(g);
        random_schema_free(s);
    }
    td_buf_free(&schema);
    td_buf_free(&text);
    td_token_set_free(set);
    tokenizer_close(tok);
    free(pieces);
    free(lengths);
    free(mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schemas),
        cmocka_unit_test(test_no_dead_ends),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_states_that_are_alike),
        cmocka_unit_test(test_threads_share_a_grammar),
        cmocka_unit_test(test_o200k),
    };

    return cmocka_run_group_tests(tests, make_small, free_small);
}
