/* vocab: what the loaders take and what they refuse, with the reason in the message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "router/merges.h"
#include "router/sha256.h"
#include "router/vocab_o200k.h"
#include "router/tokenizer.h"
#include "common/vocab.h"
#include "tokenizer_json.h"

static void hello_json(td_buf *json)
{
    toy_vocab v;

    toy_hello(&v);
    toy_write(&v, json);
}

/* Replace the first occurrence. */
static void replace(td_buf *json, const char *old, const char *new)
{
    char *at = strstr(json->ptr, old);
    td_buf out = {0};

    if (at == NULL)
        fail_msg("the text has no %s", old);
    td_buf_add(&out, json->ptr, (size_t)(at - json->ptr));
    td_buf_str(&out, new);
    td_buf_str(&out, at + strlen(old));
    td_buf_free(json);
    *json = out;
}

static td_status load(const td_buf *json, td_error *err)
{
    vocab v = {0};
    merges m = {0};
    char *exact = malloc(json->len); /* so that a sanitizer sees reads past the end */
    td_status st;

    assert_non_null(exact);
    memcpy(exact, json->ptr, json->len);
    st = vocab_load_json(&v, exact, json->len, err);
    if (st == TD_OK)
        st = merges_fill(&m, &v, err);
    merges_fini(&m);
    vocab_fini(&v);
    free(exact);
    return st;
}

static void test_vocab_loads_a_tokenizer_json(void **state)
{
    td_buf json = {0};
    td_error err = {0};
    vocab v = {0};
    const vocab_special *s;

    (void)state;
    hello_json(&json);
    if (vocab_load_json(&v, json.ptr, json.len, &err) != TD_OK)
        fail_msg("%s", err.text);
    assert_int_equal(v.n_ordinary, 261);
    assert_int_equal(v.n_ids, 264);
    assert_int_equal(v.max_ordinary, 5);
    assert_int_equal(v.max_piece, 9);
    assert_int_equal(vocab_find(&v, "hello", 5), 260);
    assert_int_equal(vocab_find(&v, "hell", 4), 258);
    assert_int_equal(vocab_find(&v, "hel", 3), -1);
    assert_int_equal(vocab_find(&v, "", 0), -1);
    for (int c = 0; c < 256; c++)
        assert_int_equal(v.byte_id[c], c);
    s = vocab_find_special(&v, "<|end|>", 7);
    assert_non_null(s);
    assert_int_equal(s->id, 263);
    assert_int_equal(vocab_bytes(&v, 262).len, 0); /* the gap */
    vocab_fini(&v);
    td_buf_free(&json);
}

static void test_vocab_says_what_it_cannot_use(void **state)
{
    static const struct {
        const char *old, *new, *why;
    } cases[] = {
        {"\"BPE\"", "\"Unigram\"", "model.type is \"Unigram\""},
        {"\"type\":\"BPE\",", "", "model.type is absent"},
        {"\"dropout\":null", "\"dropout\":0.1", "dropout"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback"},
        {"\"byte_fallback\"", "\"continuing_subword_prefix\":\"##\",\"x\"",
         "continuing_subword_prefix"},
        {"\"byte_fallback\"", "\"end_of_word_suffix\":\"</w>\",\"x\"", "end_of_word_suffix"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "normalizer"},
        {"{1,3}", "{1,2}", "another pattern than that of o200k"},
        {"\"Isolated\"", "\"Removed\"", "Split is \"Removed\""},
        {"\"invert\":false", "\"invert\":true", "not inverted"},
        {"\"use_regex\":false", "\"use_regex\":true", "use_regex"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "add_prefix_space"},
        {"\"type\":\"Split\"", "\"type\":\"Digits\"", "Sequence of Split and ByteLevel"},
        {"\"pre_tokenizer\"", "\"other\"", "no pre_tokenizer"},
        {"\"model\"", "\"other\"", "no \"model\""},
        {"\"vocab\"", "\"other\"", "no \"vocab\""},
        {"\"merges\"", "\"other\"", "no \"merges\""},
        {"\"version\":\"1.0\"", "\"model\":{}", "\"model\" is given twice"},
        {"\"hell\":258", "\"hell\":259", "id 259 is given twice"},
        {"\"hell\":258", "\"hell\":300", "none of the added tokens"},
        {"\"hell\":258,", "", "without gaps"},
        {"\"hell\":258", "\"he\":258", "same bytes"},
        {"\"hell\":258", "\"he ll\":258", "byte alphabet"},
        {"\"hell\":258", "\"he\\u0144\":258", "byte alphabet"},
        {"\"hell\":258", "\"he\xff\":258", "byte alphabet"},
        {"\"hell\":258", "\"\":258", "byte alphabet"},
        {"\"hell\":258", "\"hell\":-1", "whole number"},
        {"\"hell\":258", "\"hell\":2.5", "whole number"},
        {"\"hell\":258", "\"hell\":99999999999999999999", "below 2^53"},
        {"\"hell\":258", "\"hell\":\"258\"", "whole number"},
        {"\"\\u0100\":0", "\"zz\":0", "single byte 0x00"},
        {"[\"he\",\"ll\"]", "[\"he\",\"o\"]", "merge 2 joins"},
        {"[\"he\",\"ll\"]", "[\"he\",\"nope\"]", "merge 2 is not of two tokens"},
        {"[\"he\",\"ll\"]", "[\"he\"]", "merge 2 is not two tokens"},
        {"[\"he\",\"ll\"]", "[\"he\",\"ll\",\"o\"]", "merge 2 is not two tokens"},
        {"[\"he\",\"ll\"]", "\"hell\"", "merge 2 is not of two tokens"},
        {"[\"he\",\"ll\"]", "[\"h\",\"e\"]", "merge 2, of tokens 104 and 101, is given twice"},
        {"[\"he\",\"ll\"]", "7", "a string"},
        {"\"id\":263", "\"id\":260", "none of the added tokens"},
        {"\"id\":263", "\"id\":99999999", "over the limit"},
        {"\"id\":263,", "", "needs an id"},
        {"<|end|>", "<|start|>", "given twice"},
        {"<|end|>", "", "0 bytes"},
        {"<|end|>", "\\ud800", "low surrogate"},
        {"<|end|>", "\\udc00", "high surrogate"},
        {"<|end|>", "\\x", "an escape"},
        {"<|end|>", "\n", "control characters"},
        {"\"version\":", "\"version\"", "':'"},
        {"\"version\":\"1.0\",", "\"version\":\"1.0\" ", "','"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_buf json = {0};
        td_error err = {0};

        hello_json(&json);
        replace(&json, cases[i].old, cases[i].new);
        if (load(&json, &err) != TD_INVALID || strstr(err.text, cases[i].why) == NULL)
            fail_msg("case %zu, %s: expected \"%s\", got \"%s\"", i, cases[i].new, cases[i].why,
                     err.text);
        td_buf_free(&json);
    }
}

static void test_vocab_takes_what_other_writers_do(void **state)
{
    static const struct {
        const char *old, *new;
    } cases[] = {
        {"\"dropout\":null", "\"dropout\":0.0"},
        {"\"byte_fallback\"",
         "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,\"fuse_unk\""},
        {"\"Isolated\",\"invert\":false", "\"Removed\",\"invert\":true"},
        {"\"hell\":258", "\"\\u0068el\\u006c\":258"},
        {"[\"he\",\"ll\"]", "\"he ll\""},
        {"\"hello\":260", "\"hello\":260,\"<|start|>\":261,\"<|end|>\":263"},
        {"<|end|>", "<|\\ud83d\\ude00|>"},
        {",", " ,\r\n\t"},
        {"\"version\":\"1.0\"", "\"x\":[[{\"a\":[1,-2.5e3,true,null,\"]}\\\"\"]}]]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_buf json = {0};
        td_error err = {0};

        hello_json(&json);
        replace(&json, cases[i].old, cases[i].new);
        if (load(&json, &err) != TD_OK)
            fail_msg("case %zu, %s: %s", i, cases[i].new, err.text);
        td_buf_free(&json);
    }
}

static void test_vocab_refuses_a_file_cut_at_any_byte(void **state)
{
    td_buf json = {0};
    td_error err = {0};
    size_t n;

    (void)state;
    hello_json(&json);
    n = json.len;
    for (json.len = 0; json.len < n; json.len++)
        assert_int_equal(load(&json, &err), TD_INVALID);
    assert_int_equal(load(&json, &err), TD_OK);
    td_buf_byte(&json, '}');
    assert_int_equal(load(&json, &err), TD_INVALID);
    td_buf_free(&json);
}

static void test_vocab_nesting_is_bounded(void **state)
{
    td_buf json = {0};
    td_error err = {0};

    (void)state;
    td_buf_str(&json, "{\"x\":");
    for (int i = 0; i < 1000000; i++)
        td_buf_byte(&json, '[');
    assert_int_equal(load(&json, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "less nesting"));
    td_buf_free(&json);
}

static void test_vocab_build_keeps_special_ids_above_the_others(void **state)
{
    vocab_list ordinary = {0}, special = {0};
    td_error err = {0};
    vocab v = {0};

    (void)state;
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;

        assert_int_equal(vocab_list_add(&ordinary, &byte, 1, (uint64_t)c, &err), TD_OK);
    }
    assert_int_equal(vocab_list_add(&special, "<|end|>", 7, 255, &err), TD_OK);
    assert_int_equal(vocab_build(&v, &ordinary, &special, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "<|end|> has id 255, which is an ordinary token"));
    vocab_fini(&v);
    vocab_list_fini(&ordinary);
    vocab_list_fini(&special);
}

static void test_merges_tell_a_list_of_all_splits_from_an_order_of_its_own(void **state)
{
    (void)state;
    for (int every = 0; every < 2; every++) {
        toy_vocab toy;
        td_buf json = {0};
        td_error err = {0};
        vocab v = {0};
        merges m = {0};

        toy_random(&toy, 3, TOY_MADE, every ? TOY_ALL : TOY_ONE_EACH);
        toy_write(&toy, &json);
        assert_int_equal(vocab_load_json(&v, json.ptr, json.len, &err), TD_OK);
        assert_int_equal(merges_fill(&m, &v, &err), TD_OK);
        assert_int_equal(m.results == NULL, every);
        assert_int_equal(m.whole_piece_first, every);
        merges_fini(&m);
        vocab_fini(&v);
        td_buf_free(&json);
    }
}

static void test_vocab_refuses_another_tiktoken_file(void **state)
{
    vocab v = {0};
    td_error err = {0};

    (void)state;
    assert_int_equal(vocab_load_o200k(&v, "IQ== 0\n", 7, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "expected 446a9538"));
    vocab_fini(&v);
}

static void test_tokenizer_open_names_the_file(void **state)
{
    static const char *const paths[] = {"/nonexistent/tokenizer.json",
                                        "/nonexistent/o200k_base.tiktoken", "/dev/null", "tests",
                                        ""};
    td_buf json = {0};
    char path[64];

    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        tokenizer *t = NULL;
        td_error err = {0};

        assert_int_not_equal(tokenizer_open(paths[i], &t, &err), TD_OK);
        assert_null(t);
        if (paths[i][0] == '/')
            assert_non_null(strstr(err.text, strrchr(paths[i], '/')));
    }
    td_buf_str(&json, "{}");
    toy_file(&json, path);
    for (int i = 0; i < 2; i++) {
        tokenizer *t = NULL;
        td_error err = {0};

        assert_int_equal(tokenizer_open(path, &t, &err), TD_INVALID);
        assert_non_null(strstr(err.text, path));
        assert_non_null(strstr(err.text, "is this a tokenizer.json?"));
    }
    unlink(path);
    tokenizer_close(NULL);
    td_buf_free(&json);
}

static void test_sha256_of_known_texts(void **state)
{
    static const struct {
        size_t n;
        const char *sum; /* of n times 'a' */
    } cases[] = {
        {0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
        {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
        {1000, "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3"},
    };
    char text[1000], sum[SHA256_HEX];

    (void)state;
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sha256_hex(text, cases[i].n, sum);
        assert_string_equal(sum, cases[i].sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocab_loads_a_tokenizer_json),
        cmocka_unit_test(test_vocab_says_what_it_cannot_use),
        cmocka_unit_test(test_vocab_takes_what_other_writers_do),
        cmocka_unit_test(test_vocab_refuses_a_file_cut_at_any_byte),
        cmocka_unit_test(test_vocab_nesting_is_bounded),
        cmocka_unit_test(test_vocab_build_keeps_special_ids_above_the_others),
        cmocka_unit_test(test_merges_tell_a_list_of_all_splits_from_an_order_of_its_own),
        cmocka_unit_test(test_vocab_refuses_another_tiktoken_file),
        cmocka_unit_test(test_tokenizer_open_names_the_file),
        cmocka_unit_test(test_sha256_of_known_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
