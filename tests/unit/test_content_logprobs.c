/* content_logprobs: the values go out with the text that they belong to, and only they. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "router/content_logprobs.h"

static void push(content_logprobs *l, int32_t token)
{
    Tandem__TokenLogprobs m = TANDEM__TOKEN_LOGPROBS__INIT;

    m.chosen = (float)-token;
    content_logprobs_push(l, token, &m);
}

static void assert_takes(content_logprobs *l, bool all, const int32_t *tokens, size_t want)
{
    size_t n;
    const token_logprobs *list = content_logprobs_take(l, all, &n);

    assert_int_equal(n, want);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(list[i].token, tokens[i]);
        assert_true(list[i].logprobs.chosen == (float)-tokens[i]);
    }
}
#define TAKES(l, all, ...) \
    assert_takes(l, all, (const int32_t[]){__VA_ARGS__}, \
                 sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_content_logprobs_leave_reasoning_out(void **state)
{
    content_logprobs l = {0};

    (void)state;
    push(&l, 1); /* a channel's name: neither */
    content_logprobs_count(&l, 0, 0);
    push(&l, 2);
    content_logprobs_count(&l, 0, 1);
    push(&l, 3); /* a channel's name again */
    content_logprobs_count(&l, 0, 1);
    push(&l, 4);
    content_logprobs_count(&l, 1, 1);
    content_logprobs_text(&l, 5, 5);
    TAKES(&l, false, 4);
    assert_takes(&l, true, NULL, 0);
    assert_false(l.oom);
    content_logprobs_free(&l);
}

/* A character of two tokens; then text that waits for a stop string to fail. */
static void test_content_logprobs_wait_for_their_text(void **state)
{
    content_logprobs l = {0};

    (void)state;
    push(&l, 1);
    content_logprobs_count(&l, 1, 0);
    assert_takes(&l, false, NULL, 0);
    push(&l, 2);
    content_logprobs_count(&l, 2, 0);
    content_logprobs_text(&l, 3, 3);
    TAKES(&l, false, 1, 2);
    push(&l, 3);
    content_logprobs_count(&l, 3, 0);
    content_logprobs_text(&l, 4, 0);
    assert_takes(&l, false, NULL, 0);
    push(&l, 4);
    content_logprobs_count(&l, 4, 0);
    content_logprobs_text(&l, 4, 2); /* half of token 3's text */
    TAKES(&l, false, 3);
    TAKES(&l, true, 4);
    content_logprobs_free(&l);
}

/* Text without a header is content only once it is known that nothing follows. */
static void test_content_logprobs_of_late_content(void **state)
{
    content_logprobs l = {0};

    (void)state;
    for (int32_t i = 1; i <= 40; i++) {
        push(&l, i);
        content_logprobs_count(&l, 0, 0);
    }
    content_logprobs_count(&l, 3, 0);
    content_logprobs_text(&l, 9, 9);
    TAKES(&l, false, 38, 39, 40);
    content_logprobs_count(&l, 5, 0); /* more than there are */
    assert_takes(&l, true, NULL, 0);
    content_logprobs_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content_logprobs_leave_reasoning_out),
        cmocka_unit_test(test_content_logprobs_wait_for_their_text),
        cmocka_unit_test(test_content_logprobs_of_late_content),
    };

    return cmocka_run_group_tests_name("content_logprobs", tests, NULL, NULL);
}
