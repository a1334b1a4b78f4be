/* Prompts and answers at the end of the context window, on every endpoint: a prompt that is too
 * long is a 400 with both numbers, and an answer that meets the end says "length". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

enum {
    WINDOW = 131072, /* of tandem-tiny */
    OVERHEAD = 200,  /* more than Harmony's frame around a message takes */
};

/* Prompts of some 2,000 tokens: less than the window, and less than the decode worker has room for.
 */
static void start_small(cluster *c)
{
    cluster_router(c, "");
    cluster_prefill(c, "--kv-memory 20MiB");
    cluster_decode(c, "");
    cluster_ready(c);
}

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(start_small);
}

static const struct {
    const char *path, *head, *tail, *param;
} doors[] = {
    {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]",
     "messages"},
    {"/v1/completions", "{\"prompt\":\"", "\"", "prompt"},
    {"/v1/responses", "{\"input\":\"", "\"", "input"},
};
enum { N_DOORS = sizeof doors / sizeof *doors };

/* A prompt of so many words, each a token. */
static void ask_words(cluster *c, ask *a, size_t door, size_t words, const char *extra)
{
    td_buf b = {0};

    td_buf_str(&b, doors[door].head);
    for (size_t i = 0; i < words; i++)
        td_buf_str(&b, "7");
    td_buf_str(&b, doors[door].tail);
    td_buf_str(&b, extra);
    td_buf_str(&b, "}");
    ask_start(a, cluster_port(c), "POST", doors[door].path, "", b.ptr, b.len);
    td_buf_free(&b);
    asks_wait(a, 1);
}

static void assert_refused(const ask *a, const char *param, const char *const *says)
{
    const char *message = ask_error(a, "message");

    if (a->status != 400 || strcmp(ask_error(a, "param"), param) != 0 ||
        strcmp(ask_error(a, "code"), "context_length_exceeded") != 0)
        fail_msg("not a context_length_exceeded of %s: %d %s", param, a->status, a->body.ptr);
    for (; *says != NULL; says++)
        if (strstr(message, *says) == NULL)
            fail_msg("no %s in: %s", *says, message);
}

/* Numbers in a message, in their order. */
static size_t numbers(const char *text, unsigned long *out, size_t cap)
{
    size_t n = 0;

    while (n < cap && *(text += strcspn(text, "0123456789")) != '\0')
        out[n++] = strtoul(text, (char **)(uintptr_t)&text, 10);
    return n;
}

static void test_context_a_prompt_over_the_window(cluster *c)
{
    static const char *const says[] = {"131072", "tokens long", NULL};

    for (size_t door = 0; door < N_DOORS; door++) {
        for (int stream = 0; stream < 2; stream++) {
            unsigned long n[4];
            ask a;

            ask_words(c, &a, door, WINDOW, stream ? ",\"stream\":true" : "");
            assert_refused(&a, doors[door].param, says);
            assert_true(numbers(ask_error(&a, "message"), n, 4) >= 2);
            assert_in_range(n[0], WINDOW, WINDOW + OVERHEAD);
            assert_int_equal(n[1], WINDOW);
            ask_free(&a);
        }
    }
}

static void test_context_a_prompt_over_the_workers_memory(cluster *c)
{
    static const char *const says[] = {"131072", "tokens long", "memory for", NULL};

    for (size_t door = 0; door < N_DOORS; door++) {
        unsigned long n[4];
        ask a;

        ask_words(c, &a, door, 20000, "");
        assert_refused(&a, doors[door].param, says);
        assert_int_equal(numbers(ask_error(&a, "message"), n, 4), 3);
        assert_in_range(n[0], 20000, 20000 + OVERHEAD);
        assert_int_equal(n[1], WINDOW);
        assert_in_range(n[2], 500, 19999);
        ask_free(&a);
    }
}

/* The answer has what the prompt leaves, whether it is asked for or not. */
static void test_context_an_answer_that_meets_the_end(cluster *c)
{
    static const char *const says[] = {"131072", "tokens wanted", NULL};
    unsigned long n[4], room;
    ask a;

    ask_words(c, &a, 1, 20000, "");
    numbers(ask_error(&a, "message"), n, 4);
    room = n[2];
    ask_free(&a);
    ask_words(c, &a, 1, room - 5, ",\"max_tokens\":50,\"ignore_eos\":true");
    assert_int_equal(a.status, 200);
    assert_string_equal(a.finish, "length");
    assert_true(ask_usage(&a, "prompt_tokens") == (double)(room - 5));
    assert_true(ask_usage(&a, "completion_tokens") == 5);
    ask_free(&a);
    ask_words(c, &a, 1, 10, ",\"max_tokens\":131070");
    assert_refused(&a, "max_tokens", says);
    ask_free(&a);
    ask_words(c, &a, 0, 10, ",\"max_completion_tokens\":131070");
    assert_refused(&a, "max_tokens", says);
    ask_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_SHARED(test_context_a_prompt_over_the_window),
        E2E_SHARED(test_context_a_prompt_over_the_workers_memory),
        E2E_SHARED(test_context_an_answer_that_meets_the_end),
    };

    return cmocka_run_group_tests_name("context", tests, start_shared, e2e_shared_teardown);
}
