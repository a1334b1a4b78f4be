/* completion_logprobs: the four lists of the legacy form, over characters of several bytes and
 * tokens that are parts of characters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <cjson/cJSON.h>

#include "router/completion_logprobs.h"
#include "router/utf8_stream.h"

static tokenizer *t;

static int open_tokenizer(void **state)
{
    (void)state;
    return tokenizer_open("models/tandem-tiny", &t, NULL) == TD_OK ? 0 : -1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tokenizer_close(t);
    return 0;
}

/* The text's tokens as a request hands them out: each before the text that it completes. */
static void say(completion_logprobs *l, const char *text, bool by_token, td_tokens *ids)
{
    utf8_stream u = {0};
    td_buf out = {0};
    size_t at = 0;

    assert_int_equal(tokenizer_encode(t, text, strlen(text), ids, NULL), TD_OK);
    for (size_t i = 0; i < ids->len; i++) {
        token_logprobs p = {.token = ids->ptr[i], .logprobs = {.chosen = -0.5f, .n = 1}, .at = at};
        td_slice bytes;

        p.logprobs.id[0] = i % 2 == 0 ? ids->ptr[i] : ids->ptr[i] + 1;
        p.logprobs.logprob[0] = i % 2 == 0 ? -0.5f : -0.25f;
        completion_logprobs_push(l, t, &p, 1);
        assert_true(tokenizer_bytes(t, ids->ptr[i], &bytes));
        utf8_stream_push(&u, bytes, &out);
        if (by_token && out.len > at)
            completion_logprobs_text(l, (td_slice){out.ptr + at, out.len - at});
        at = out.len;
    }
    if (!by_token)
        completion_logprobs_text(l, (td_slice){out.ptr, out.len});
    completion_logprobs_text(l, TD_SLICE(""));
    assert_string_equal(out.ptr, text);
    td_buf_free(&out);
}

static cJSON *written(completion_logprobs *l)
{
    td_buf b = {0};
    cJSON *root;

    completion_logprobs_write(l, &b);
    assert_false(b.oom);
    root = cJSON_Parse(b.ptr);
    assert_non_null(root);
    td_buf_free(&b);
    return root;
}

/* Where each token begins, counted another way: whole characters in all that comes before it. */
static void check_offsets(const cJSON *root, const td_tokens *ids)
{
    const cJSON *offsets = cJSON_GetObjectItem(root, "text_offset");
    td_buf before = {0};

    assert_int_equal(cJSON_GetArraySize(offsets), ids->len);
    for (size_t i = 0; i < ids->len; i++) {
        size_t chars = 0;
        td_slice bytes;
        int step;

        for (size_t k = 0; k < before.len; k += (size_t)step, chars++) {
            step = td_utf8_next((const unsigned char *)before.ptr + k, before.len - k);
            if (step < 1)
                break;
        }
        assert_int_equal(cJSON_GetArrayItem(offsets, (int)i)->valueint, chars);
        tokenizer_bytes(t, ids->ptr[i], &bytes);
        td_buf_add(&before, bytes.ptr, bytes.len);
    }
    td_buf_free(&before);
}

static void check(const char *text, bool by_token, bool has_parts)
{
    completion_logprobs l = {0};
    td_tokens ids = {0};
    cJSON *root;
    const cJSON *tokens, *top, *token;
    bool parts = false;
    int i = 0;

    say(&l, text, by_token, &ids);
    root = written(&l);
    check_offsets(root, &ids);
    tokens = cJSON_GetObjectItem(root, "tokens");
    top = cJSON_GetObjectItem(root, "top_logprobs");
    assert_int_equal(cJSON_GetArraySize(tokens), ids.len);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "token_logprobs")), ids.len);
    cJSON_ArrayForEach(token, tokens)
    {
        const cJSON *rivals = cJSON_GetArrayItem(top, i);

        parts = parts || strncmp(token->valuestring, "bytes:\\x", 8) == 0;
        /* The drawn one is always there: first, or behind one that was likelier. */
        assert_int_equal(cJSON_GetArraySize(rivals), i % 2 == 0 ? 1 : 2);
        assert_true(cJSON_GetObjectItemCaseSensitive(rivals, token->valuestring)->valuedouble ==
                    -0.5);
        i++;
    }
    assert_true(parts == has_parts);
    cJSON_Delete(root);
    root = written(&l); /* it has all been said */
    assert_true(cJSON_IsNull(root));
    cJSON_Delete(root);
    completion_logprobs_free(&l);
    td_tokens_free(&ids);
}

static void test_completion_logprobs_count_characters(void **state)
{
    (void)state;
    check("the sum is 12", true, false);
    check("the sum is 12", false, false);
    check("na\xc3\xafve \xe6\x96\x87 \xf0\x9f\xab\xa0 end", true, true);
    check("na\xc3\xafve \xe6\x96\x87 \xf0\x9f\xab\xa0 end", false, true);
}

static void test_completion_logprobs_go_on_over_pieces(void **state)
{
    completion_logprobs l = {0};
    td_tokens one = {0};
    cJSON *root;

    (void)state;
    say(&l, "\xc3\xa9\xc3\xa9", true, &one);
    cJSON_Delete(written(&l));
    completion_logprobs_push(&l, t, &(token_logprobs){.token = one.ptr[0], .at = 4}, 1);
    completion_logprobs_text(&l, TD_SLICE("x"));
    root = written(&l);
    assert_int_equal(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "text_offset"), 0)->valueint, 2);
    cJSON_Delete(root);
    completion_logprobs_free(&l);
    td_tokens_free(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion_logprobs_count_characters),
        cmocka_unit_test(test_completion_logprobs_go_on_over_pieces),
    };

    return cmocka_run_group_tests_name("completion_logprobs", tests, open_tokenizer,
                                       close_tokenizer);
}
