/* tokenizer and bpe: known tokens, a slow and obvious merge to compare with, what must never
 * happen.
 *
 * tests/data/tokenizer holds a cut-down vocabulary and texts with the tokens that the reference
 * gives (make_tokenizer_fixture.py). TANDEM_O200K=<path of o200k_base.tiktoken> adds the full
 * vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/clock.h"
#include "router/tokenizer.h"

#define FIXTURE "tests/data/tokenizer"

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static tokenizer *open_or_fail(const char *path)
{
    td_error err = {0};
    tokenizer *t = NULL;

    if (tokenizer_open(path, &t, &err) != TD_OK)
        fail_msg("%s", err.text);
    return t;
}

static td_tokens encode(const tokenizer *t, const char *text, size_t n)
{
    td_error err = {0};
    td_tokens ids = {0};

    if (tokenizer_encode(t, text, n, &ids, &err) != TD_OK)
        fail_msg("%s", err.text);
    return ids;
}

static void repeat(td_buf *b, const char *unit, size_t times)
{
    td_buf_clear(b);
    while (times-- > 0)
        td_buf_str(b, unit);
}

/* ---- golden.txt: hex text, ids of the full vocabulary, hex tokens */

static size_t from_hex(char *hex)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned byte;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        hex[i] = (char)byte;
    }
    return n;
}

typedef void golden_fn(const tokenizer *t, const char *text, size_t n, char *ids, char *tokens);

static void each_golden(const tokenizer *t, golden_fn *check)
{
    static char line[1 << 16];
    FILE *f = fopen(FIXTURE "/golden.txt", "r");
    int n_lines = 0;

    assert_non_null(f);
    for (; fgets(line, sizeof line, f) != NULL; n_lines++) {
        char *text = strtok(line, " \n"), *ids = strtok(NULL, " \n"), *tokens = strtok(NULL, " \n");

        assert_non_null(tokens);
        check(t, text, from_hex(text), ids, tokens);
    }
    assert_true(n_lines > 80);
    fclose(f);
}

static void check_bytes(const tokenizer *t, const char *text, size_t n, char *ids, char *tokens)
{
    td_tokens got;
    size_t k = 0;
    char *save;

    (void)ids;
    if (strcmp(tokens, "-") == 0)
        return;
    got = encode(t, text, n);
    for (char *hex = strtok_r(tokens, ",", &save); hex; hex = strtok_r(NULL, ",", &save), k++) {
        size_t len = from_hex(hex);
        td_slice piece;

        assert_true(k < got.len);
        assert_true(tokenizer_bytes(t, got.ptr[k], &piece));
        assert_int_equal(piece.len, len);
        assert_memory_equal(piece.ptr, hex, len);
    }
    assert_int_equal(got.len, k);
    td_tokens_free(&got);
}

static void check_ids(const tokenizer *t, const char *text, size_t n, char *ids, char *tokens)
{
    td_tokens got = encode(t, text, n);
    size_t k = 0;
    char *save;

    (void)tokens;
    for (char *id = strtok_r(ids, ",", &save); id; id = strtok_r(NULL, ",", &save), k++) {
        assert_true(k < got.len);
        assert_int_equal(got.ptr[k], atoi(id));
    }
    assert_int_equal(got.len, k);
    td_tokens_free(&got);
}

static void test_tokenizer_gives_the_reference_tokens(void **state)
{
    tokenizer *t = open_or_fail(FIXTURE);

    (void)state;
    each_golden(t, check_bytes);
    tokenizer_close(t);
}

/* C001: one piece of 200,000 characters. C011: marks belong to their letters. */
static void check_cases(const tokenizer *t)
{
    static const char greeting[] = "नमस्ते दुनिया";
    static const int32_t want[] = {998, 1637, 14681, 628, 64593};
    static char carets[200000];
    td_tokens ids = encode(t, greeting, sizeof greeting - 1);

    assert_int_equal(ids.len, sizeof want / sizeof *want);
    assert_memory_equal(ids.ptr, want, sizeof want);
    td_tokens_free(&ids);
    memset(carets, '^', sizeof carets);
    ids = encode(t, carets, sizeof carets);
    assert_int_equal(ids.len, 25000);
    for (size_t i = 0; i < ids.len; i++)
        assert_int_equal(ids.ptr[i], 168586);
    td_tokens_free(&ids);
}

static void test_tokenizer_gives_the_reference_ids_of_o200k(void **state)
{
    const char *path = getenv("TANDEM_O200K");
    tokenizer *t;
    td_slice piece;

    (void)state;
    if (path == NULL)
        skip(); /* set TANDEM_O200K to an o200k_base.tiktoken */
    t = open_or_fail(path);
    each_golden(t, check_ids);
    check_cases(t);
    assert_int_equal(tokenizer_vocab(t), 201088);
    assert_int_equal(tokenizer_max_piece(t), 128);
    assert_int_equal(tokenizer_special(t, "<|start|>"), 200006);
    assert_int_equal(tokenizer_special(t, "<|endofprompt|>"), 200018);
    assert_true(tokenizer_bytes(t, 200018, &piece));
    assert_true(td_slice_eq(piece, TD_SLICE("<|reserved_200018|>")));
    assert_true(tokenizer_bytes(t, 201087, &piece));
    assert_false(tokenizer_bytes(t, 201088, &piece));
    tokenizer_close(t);
}

/* ---- ordinary text and special tokens */

static void test_tokenizer_special_names_in_text_are_text(void **state)
{
    static const char text[] = "<|start|>system<|message|>x<|end|>";
    tokenizer *t = open_or_fail(FIXTURE);
    td_error err = {0};
    td_tokens ids = encode(t, text, sizeof text - 1), special = {0};

    (void)state;
    for (size_t i = 0; i < ids.len; i++)
        assert_false(tokenizer_is_special(t, ids.ptr[i]));
    assert_int_equal(tokenizer_encode_special(t, text, sizeof text - 1, &special, &err), TD_OK);
    assert_int_equal(special.len, 5);
    assert_int_equal(special.ptr[0], tokenizer_special(t, "<|start|>"));
    assert_int_equal(special.ptr[2], tokenizer_special(t, "<|message|>"));
    assert_int_equal(special.ptr[4], tokenizer_special(t, "<|end|>"));
    assert_true(tokenizer_is_special(t, special.ptr[0]));
    assert_int_equal(tokenizer_special(t, "<|start"), -1);
    assert_int_equal(tokenizer_special(t, ""), -1);
    assert_int_equal(tokenizer_special(t, "hello"), -1);

    special.len = 0; /* names that begin like another, and one cut by the end */
    assert_int_equal(tokenizer_encode_special(t, "<|<|end|><|endoftext|><|en", 26, &special, &err),
                     0);
    assert_true(special.len > 4);
    for (size_t i = 0, n_special = 0; i < special.len; i++) {
        n_special += tokenizer_is_special(t, special.ptr[i]);
        assert_true(i + 1 < special.len || n_special == 2);
    }
    td_tokens_free(&ids);
    td_tokens_free(&special);
    tokenizer_close(t);
}

static void test_tokenizer_answers_for_any_id(void **state)
{
    static const int32_t odd[] = {-1, INT32_MIN, INT32_MAX, 1 << 22};
    tokenizer *t = open_or_fail(FIXTURE);
    td_error err = {0};
    td_buf text = {0};
    td_slice piece;
    int32_t n = tokenizer_vocab(t), ids[2] = {0, n};
    size_t longest = 0;

    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        assert_false(tokenizer_bytes(t, odd[i], &piece));
        assert_int_equal(piece.len, 0);
        assert_false(tokenizer_is_special(t, odd[i]));
    }
    for (int32_t id = 0; id < n; id++) {
        assert_true(tokenizer_bytes(t, id, &piece));
        longest = piece.len > longest ? piece.len : longest;
    }
    assert_int_equal(longest, tokenizer_max_piece(t));
    assert_false(tokenizer_bytes(t, n, &piece));

    td_buf_str(&text, "kept");
    assert_int_equal(tokenizer_decode(t, ids, 2, &text, &err), TD_INVALID);
    assert_string_equal(text.ptr, "kept");
    assert_non_null(strstr(err.text, "token 1 of 2"));
    td_buf_free(&text);
    tokenizer_close(t);
}

static void test_tokenizer_appends(void **state)
{
    tokenizer *t = open_or_fail(FIXTURE);
    td_error err = {0};
    td_tokens ids = {0};
    td_buf text = {0};

    (void)state;
    assert_int_equal(tokenizer_encode(t, NULL, 0, &ids, &err), TD_OK);
    assert_int_equal(ids.len, 0);
    assert_int_equal(tokenizer_encode(t, "user", 4, &ids, &err), TD_OK);
    assert_int_equal(tokenizer_encode(t, " code", 5, &ids, &err), TD_OK);
    assert_int_equal(ids.len, 2);
    td_buf_str(&text, "> ");
    assert_int_equal(tokenizer_decode(t, ids.ptr, ids.len, &text, &err), TD_OK);
    assert_string_equal(text.ptr, "> user code");
    td_tokens_free(&ids);
    td_buf_free(&text);
    tokenizer_close(t);
}

/* In a long text words come again; each must give what it gives alone. */
static void test_tokenizer_words_give_the_same_in_any_text(void **state)
{
    static const char *const letters[] = {"a", "e",        "t", "\xc3\xa9", "n",
                                          "s", "\xc3\x9f", "i", "r"};
    tokenizer *t = open_or_fail(FIXTURE);
    td_buf text = {0};
    td_tokens want = {0}, got;

    (void)state;
    random_state = 7;
    for (int i = 0; i < 20000; i++) {
        uint32_t word = 1 + random_below(random_below(10) < 7 ? 2000 : 1u << 30);
        size_t from = text.len;
        td_tokens ids;

        td_buf_byte(&text, ' ');
        for (; word > 0; word /= 9)
            td_buf_str(&text, letters[word % 9]);
        ids = encode(t, text.ptr + from, text.len - from);
        td_tokens_add(&want, ids.ptr, ids.len);
        td_tokens_free(&ids);
    }
    got = encode(t, text.ptr, text.len);
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.ptr, want.ptr, want.len * sizeof *want.ptr);
    td_tokens_free(&got);
    td_tokens_free(&want);
    td_buf_free(&text);
    tokenizer_close(t);
}

static void test_tokenizer_decode_undoes_encode(void **state)
{
    tokenizer *t = open_or_fail(FIXTURE);
    td_error err = {0};
    td_buf back = {0};

    (void)state;
    random_state = 5;
    for (int i = 0; i < 20000; i++) {
        unsigned char text[96];
        size_t n = random_below(sizeof text), at = 0;
        td_tokens ids;

        for (size_t k = 0; k < n; k++)
            text[k] = (unsigned char)(random_below(3) ? 'a' + random_below(4) : random_below(256));
        if (!td_utf8_valid(text, n, &at))
            n = at; /* the valid beginning */
        ids = encode(t, (const char *)text, n);
        td_buf_clear(&back);
        assert_int_equal(tokenizer_decode(t, ids.ptr, ids.len, &back, &err), TD_OK);
        assert_int_equal(back.len, n);
        if (n > 0)
            assert_memory_equal(back.ptr, text, n);
        td_tokens_free(&ids);
    }
    td_buf_free(&back);
    tokenizer_close(t);
}

static void test_tokenizer_bad_utf8_becomes_one_replacement_for_each_part(void **state)
{
    static const struct {
        const char *in, *out; /* out: ? stands for U+FFFD */
    } cases[] = {
        {"a\xff"
         "b",
         "a?b"},
        {"\xc3", "?"},
        {"\xe2\x82", "?"},
        {"\xe2\x82x", "?x"},
        {"\xf0\x9f\x92", "?"},
        {"\xf0\x9f\x92\xf0\x9f", "??"},
        {"\xc0\xaf", "??"},
        {"\xe0\x80\x80", "???"},
        {"\xed\xa0\x80", "???"},
        {"\xf4\x90\x80\x80", "????"},
        {"\xf0\x80\x80", "???"},
        {"\xc3\xa9\x80\xc3\xa9", "\xc3\xa9?\xc3\xa9"},
        {"\xf8\x88\x80\x80\x80", "?????"},
    };
    tokenizer *t = open_or_fail(FIXTURE);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_error err = {0};
        td_buf want = {0}, got = {0};
        td_tokens ids = encode(t, cases[i].in, strlen(cases[i].in));

        for (const char *p = cases[i].out; *p; p++)
            *p == '?' ? td_buf_str(&want, "\xef\xbf\xbd") : td_buf_byte(&want, *p);
        assert_int_equal(tokenizer_decode(t, ids.ptr, ids.len, &got, &err), TD_OK);
        assert_string_equal(got.ptr, want.ptr);
        td_tokens_free(&ids);
        td_buf_free(&want);
        td_buf_free(&got);
    }
    tokenizer_close(t);
}

/* ---- long input */

static void test_tokenizer_200000_carets_are_25000_equal_tokens(void **state)
{
    tokenizer *t = open_or_fail(FIXTURE);
    td_buf text = {0};
    td_tokens ids;
    td_slice piece;

    (void)state;
    repeat(&text, "^", 200000);
    ids = encode(t, text.ptr, text.len);
    assert_int_equal(ids.len, 25000);
    for (size_t i = 0; i < ids.len; i++)
        assert_int_equal(ids.ptr[i], ids.ptr[0]);
    assert_true(tokenizer_bytes(t, ids.ptr[0], &piece));
    assert_int_equal(piece.len, 8);
    td_tokens_free(&ids);
    td_buf_free(&text);
    tokenizer_close(t);
}

/* A merge that is quadratic in the length of a piece takes minutes for one of these; the bound is
 * far above what even a sanitizer build needs, so it does not depend on how busy the machine is. */
static void test_tokenizer_takes_a_mebibyte_of_anything(void **state)
{
    static const char *const units[] = {
        "a",        "A",         "ab",
        " ",        "\n",        " \n",
        "7",        "^",         "({[<;:!?>]})",
        "'s",       "it's",      "\xe6\x96\x87",
        "\xcc\x81", "e\xcc\x81", "\xf0\x9f\xab\xa0",
        "\xff",     "\x01",      "abcabd",
        "^a",       "aA",        "\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c"};
    tokenizer *t = open_or_fail(FIXTURE);
    td_buf text = {0};

    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        td_usec start = td_now_us();
        td_tokens ids;

        repeat(&text, units[i], (1 << 20) / strlen(units[i]));
        ids = encode(t, text.ptr, text.len);
        assert_true(ids.len > 0 && ids.len <= 3 * text.len);
        assert_true(td_now_us() - start < 20 * TD_USEC_PER_SEC);
        td_tokens_free(&ids);
    }
    td_buf_free(&text);
    tokenizer_close(t);
}

static void test_tokenizer_refuses_what_is_too_long(void **state)
{
    tokenizer *t = open_or_fail(FIXTURE);
    td_error err = {0};
    td_tokens ids = {0};

    (void)state;
    assert_int_equal(tokenizer_encode(t, "", SIZE_MAX / 2, &ids, &err), TD_TOOLARGE);
    assert_int_equal(ids.len, 0);
    tokenizer_close(t);
}

/* ---- threads */

typedef struct job {
    const tokenizer *t;
    const td_buf *text;
    const td_tokens *want;
    bool equal;
} job;

static void *encode_again(void *arg)
{
    job *j = arg;

    j->equal = true;
    for (int i = 0; i < 20; i++) {
        td_tokens ids = {0};

        j->equal = j->equal &&
                   tokenizer_encode(j->t, j->text->ptr, j->text->len, &ids, NULL) == TD_OK &&
                   ids.len == j->want->len &&
                   memcmp(ids.ptr, j->want->ptr, ids.len * sizeof *ids.ptr) == 0;
        td_tokens_free(&ids);
    }
    return NULL;
}

static void test_tokenizer_is_shared_by_threads(void **state)
{
    tokenizer *t = open_or_fail(FIXTURE);
    td_buf text = {0};
    td_tokens want;
    pthread_t threads[4];
    job jobs[4];

    (void)state;
    repeat(&text, "hello world ^^^^ the theater's abcabdabcabd\n", 100);
    for (int i = 0; i < 1000; i++)
        td_buf_str(&text, "abd");
    want = encode(t, text.ptr, text.len);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){t, &text, &want, false};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_again, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(jobs[i].equal);
    }
    td_tokens_free(&want);
    td_buf_free(&text);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_gives_the_reference_tokens),
        cmocka_unit_test(test_tokenizer_gives_the_reference_ids_of_o200k),
        cmocka_unit_test(test_tokenizer_special_names_in_text_are_text),
        cmocka_unit_test(test_tokenizer_answers_for_any_id),
        cmocka_unit_test(test_tokenizer_appends),
        cmocka_unit_test(test_tokenizer_words_give_the_same_in_any_text),
        cmocka_unit_test(test_tokenizer_decode_undoes_encode),
        cmocka_unit_test(test_tokenizer_bad_utf8_becomes_one_replacement_for_each_part),
        cmocka_unit_test(test_tokenizer_200000_carets_are_25000_equal_tokens),
        cmocka_unit_test(test_tokenizer_takes_a_mebibyte_of_anything),
        cmocka_unit_test(test_tokenizer_refuses_what_is_too_long),
        cmocka_unit_test(test_tokenizer_is_shared_by_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
