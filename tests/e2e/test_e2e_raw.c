/* The endpoints without Harmony: /v1/completions, whole and streamed, /tokenize and /detokenize,
 * which need no worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(cluster_simple);
}

static void post(ask *a, const cluster *c, const char *path, const char *body)
{
    ask_start(a, cluster_port(c), "POST", path, "Content-Type: application/json\r\n", body,
              strlen(body));
}

/* Ask and wait for the whole answer. */
static void post_whole(ask *a, const cluster *c, const char *path, const char *body)
{
    post(a, c, path, body);
    asks_wait(a, 1);
}

static const cJSON *member(const ask *a, const char *name)
{
    return cJSON_GetObjectItem(a->root, name);
}

static void assert_refused(ask *a, int status, const char *param, const char *says)
{
    if (a->status != status || strcmp(ask_error(a, "param"), param) != 0 ||
        strstr(ask_error(a, "message"), says) == NULL)
        fail_msg("not a %d of %s: status %d, %s", status, param, a->status, a->body.ptr);
    assert_string_equal(ask_error(a, "type"), "invalid_request_error");
}

/* ---- /v1/completions ---- */

/* prompt as JSON; extra as members with a comma before them. */
static void complete(ask *a, const cluster *c, const char *prompt, const char *extra)
{
    char body[4096];

    snprintf(body, sizeof body, "{\"prompt\":%s%s}", prompt, extra);
    post_whole(a, c, "/v1/completions", body);
    if (a->status != 200 || a->cut || a->error != NULL || a->finish[0] == '\0')
        fail_msg("%s: status %d, %s", body, a->status, a->body.ptr);
    assert_string_equal(member(a, "object")->valuestring, "text_completion");
    assert_int_equal(strncmp(a->id, "cmpl-", 5), 0);
    assert_int_equal(a->n_roles, 0);
}

#define STREAM ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"
#define SEEDED ",\"max_tokens\":24,\"temperature\":1,\"seed\":5,\"ignore_eos\":true"

static void test_completion_is_the_same_both_ways(cluster *c)
{
    ask whole, stream;

    complete(&whole, c, "\"Once upon\"", SEEDED);
    complete(&stream, c, "\"Once upon\"", SEEDED STREAM);
    assert_true(stream.stream && !whole.stream);
    assert_true(whole.content.len > 0);
    assert_string_equal(whole.content.ptr, stream.content.ptr);
    assert_string_equal(whole.finish, "length");
    assert_string_equal(stream.finish, "length");
    assert_true(ask_usage(&whole, "completion_tokens") == 24);
    assert_true(ask_usage(&stream, "completion_tokens") == 24);
    assert_true(ask_usage(&whole, "total_tokens") == ask_usage(&whole, "prompt_tokens") + 24);
    /* The pieces, the end, the usage; nothing after it. */
    assert_true(stream.n_pieces >= 8);
    assert_int_equal(stream.n_events, stream.n_pieces + 2);
    assert_int_equal(stream.n_usages, 1);
    assert_int_equal(cJSON_GetArraySize(member(&stream, "choices")), 0);
    assert_true(stream.done && !stream.after_done);
    ask_free(&whole);
    ask_free(&stream);
}

static void test_completion_defaults(cluster *c)
{
    ask a;

    complete(&a, c, "\"Once upon\"", ",\"ignore_eos\":true,\"temperature\":0");
    assert_true(ask_usage(&a, "completion_tokens") == 16);
    ask_free(&a);
}

/* What /tokenize makes of a text is the prompt that the text makes. */
static void test_completion_of_tokens(cluster *c)
{
    static const char text[] = "\"na\\u00efve caf\\u00e9 <|start|> \\ud83e\\udee0\"";
    char body[256];
    ask tokens, of_text, of_tokens;
    char *ids;

    snprintf(body, sizeof body, "{\"prompt\":%s}", text);
    post_whole(&tokens, c, "/tokenize", body);
    assert_int_equal(tokens.status, 200);
    ids = cJSON_PrintUnformatted(member(&tokens, "tokens"));
    complete(&of_text, c, text, SEEDED);
    complete(&of_tokens, c, ids, SEEDED);
    assert_string_equal(of_text.content.ptr, of_tokens.content.ptr);
    assert_true(ask_usage(&of_text, "prompt_tokens") == member(&tokens, "count")->valuedouble);
    assert_true(ask_usage(&of_tokens, "prompt_tokens") == member(&tokens, "count")->valuedouble);
    free(ids);
    ask_free(&tokens);
    ask_free(&of_text);
    ask_free(&of_tokens);
}

/* Sampling fields reach the workers: a bias that leaves one token. */
static void test_completion_takes_a_bias(cluster *c)
{
    ask token, a;
    char extra[128];
    int id;

    post_whole(&token, c, "/tokenize", "{\"prompt\":\"x\"}");
    assert_true(member(&token, "count")->valuedouble == 1);
    id = cJSON_GetArrayItem(member(&token, "tokens"), 0)->valueint;
    snprintf(extra, sizeof extra, ",\"max_tokens\":5,\"temperature\":0,\"logit_bias\":{\"%d\":100}",
             id);
    complete(&a, c, "\"Once upon\"", extra);
    assert_string_equal(a.content.ptr, "xxxxx");
    ask_free(&a);
    ask_free(&token);
    post_whole(&token, c, "/tokenize",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logit_bias\":{\"5\":1}}");
    assert_int_equal(token.status, 200);
    ask_free(&token);
}

static void test_completion_stops_at_a_string(cluster *c)
{
    ask all, stopped;
    char stop[8], extra[256];
    td_buf text = {0};
    size_t at;

    complete(&all, c, "\"Once upon\"", SEEDED);
    /* Eight bytes at most from the middle, of whole characters. */
    at = all.content.len / 2;
    while (((unsigned char)all.content.ptr[at] & 0xc0) == 0x80)
        at++;
    snprintf(stop, sizeof stop, "%s", all.content.ptr + at);
    for (size_t bad; !td_utf8_valid(stop, strlen(stop), &bad);)
        stop[bad] = '\0';
    assert_true(stop[0] != '\0');
    at = (size_t)(strstr(all.content.ptr, stop) - all.content.ptr);
    td_buf_json(&text, stop, strlen(stop));
    for (int streamed = 0; streamed < 2; streamed++) {
        snprintf(extra, sizeof extra, SEEDED "%s,\"stop\":[\"not in it\",\"%s\"]",
                 streamed ? STREAM : "", text.ptr);
        complete(&stopped, c, "\"Once upon\"", extra);
        assert_string_equal(stopped.finish, "stop");
        assert_int_equal(stopped.content.len, at);
        if (at > 0)
            assert_memory_equal(stopped.content.ptr, all.content.ptr, at);
        ask_free(&stopped);
    }
    td_buf_free(&text);
    ask_free(&all);
}

static void test_completion_refusals(cluster *c)
{
    static const struct {
        const char *body;
        int status;
        const char *param, *says;
    } bad[] = {
        {"{}", 400, "prompt", "missing"},
        {"{\"prompt\":[\"a\",\"b\"]}", 400, "prompt", "several"},
        {"{\"prompt\":[0,999999999]}", 400, "prompt[1]", "between 0"},
        {"{\"prompt\":\"x\",\"echo\":true}", 400, "echo", "not supported"},
        {"{\"prompt\":\"x\",\"n\":9}", 400, "n", "at most 8 answers"},
        {"{\"prompt\":\"x\",\"max_tokens\":1000000}", 400, "max_tokens", "context window"},
        {"{\"prompt\":\"x\",\"model\":\"gpt-5\"}", 404, "model", "not served"},
    };
    ask a;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        post_whole(&a, c, "/v1/completions", bad[i].body);
        assert_refused(&a, bad[i].status, bad[i].param, bad[i].says);
        ask_free(&a);
    }
    ask_start(&a, cluster_port(c), "GET", "/v1/completions", "", "", 0);
    asks_wait(&a, 1);
    assert_int_equal(a.status, 405);
    ask_free(&a);
}

static void test_completion_ends_with_its_client(cluster *c)
{
    ask a;

    post(&a, c, "/v1/completions",
         "{\"prompt\":\"x\",\"max_tokens\":20000,\"ignore_eos\":true,\"stream\":true}");
    ASKS_UNTIL(a.n_pieces >= 2, &a, 1);
    ask_free(&a);
    E2E_AWAIT(process_metric(c->router, "vllm:num_requests_running") == 0);
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->all[i].program, "decode") == 0)
            E2E_AWAIT(decode_is_empty(&c->all[i]));
}

/* ---- /tokenize, /detokenize ---- */

static void test_tokens_there_and_back(cluster *c)
{
    static const char text[] = "Hi <|end|> caf\xC3\xA9 \xF0\x9F\xAB\xA0\n\"";
    td_buf body = {0};
    ask there, back;
    char *ids;

    td_buf_str(&body, "{\"prompt\":\"");
    td_buf_json(&body, text, sizeof text - 1);
    td_buf_str(&body, "\",\"return_token_strs\":true}");
    post_whole(&there, c, "/tokenize", body.ptr);
    assert_int_equal(there.status, 200);
    assert_int_equal(cJSON_GetArraySize(member(&there, "tokens")),
                     (int)member(&there, "count")->valuedouble);
    assert_int_equal(cJSON_GetArraySize(member(&there, "token_strs")),
                     (int)member(&there, "count")->valuedouble);
    assert_true(member(&there, "max_model_len")->valuedouble == 131072);
    ids = cJSON_PrintUnformatted(member(&there, "tokens"));
    td_buf_clear(&body);
    td_buf_fmt(&body, "{\"tokens\":%s}", ids);
    post_whole(&back, c, "/detokenize", body.ptr);
    assert_int_equal(back.status, 200);
    assert_string_equal(member(&back, "prompt")->valuestring, text);
    free(ids);
    td_buf_free(&body);
    ask_free(&there);
    ask_free(&back);
}

static void test_messages_as_chat_counts_them(cluster *c)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}],\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\"}}],\"max_tokens\":1}";
    ask tokens, chat;

    post_whole(&tokens, c, "/tokenize", body);
    ask_post(&chat, cluster_port(c), body);
    asks_wait(&chat, 1);
    ask_assert_good(&chat);
    assert_int_equal(tokens.status, 200);
    assert_true(member(&tokens, "count")->valuedouble == ask_usage(&chat, "prompt_tokens"));
    ask_free(&tokens);
    ask_free(&chat);
}

static void test_tokenize_refusals(cluster *c)
{
    static const struct {
        const char *path, *body;
        int status;
        const char *param, *says;
    } bad[] = {
        {"/tokenize", "", 400, "", "empty"},
        {"/tokenize", "{\"prompt\":1}", 400, "prompt", "a number"},
        {"/tokenize", "{\"prompt\":\"x\",\"model\":\"gpt-5\"}", 404, "model", "not served"},
        {"/detokenize", "{\"tokens\":[1,2,-7]}", 400, "tokens[2]", "between 0"},
        {"/detokenize", "{\"tokens\":{}}", 400, "tokens", "an object"},
    };
    ask a;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        post_whole(&a, c, bad[i].path, bad[i].body);
        assert_refused(&a, bad[i].status, bad[i].param, bad[i].says);
        ask_free(&a);
    }
}

/* A megabyte for /tokenize; to be freed. */
static char *long_body(void)
{
    enum { LONG = 1 << 20 };
    static const char words[] = "The naive cafe of 2+3=5; ";
    char *body = malloc(LONG + 3), *at;

    assert_non_null(body);
    at = stpcpy(body, "{\"prompt\":\"");
    for (size_t i = 0; at < body + LONG; i++)
        *at++ = words[i % (sizeof words - 1)];
    strcpy(at, "\"}");
    return body;
}

/* Long texts are worked on beside the loop: what comes after them is answered before them, and a
 * client that goes meanwhile leaves nothing behind. */
static void test_long_texts_hold_up_nobody(cluster *c)
{
    enum { N = 6 };
    char *body = long_body();
    ask a[N];

    for (int i = 0; i < N; i++)
        post(&a[i], c, "/tokenize", body);
    ASKS_UNTIL(a[0].ended, a, N);
    ask_free(&a[N - 1]); /* it waits for a thread, or has one */
    ask_free(&a[N - 2]);
    assert_int_equal(http_get(cluster_port(c), "/health", NULL), 200);
    asks_wait(a, N - 2);
    for (int i = 0; i < N - 2; i++) {
        assert_int_equal(a[i].status, 200);
        assert_true(member(&a[i], "count")->valuedouble > 100000);
    }
    free(body);
    asks_free(a, N - 2);
}

/* A router alone can tokenize. It is stopped while its threads have work, and lines of it wait. */
static void test_tokenize_needs_no_worker(cluster *c)
{
    char *body = long_body();
    ask a, left[6];

    cluster_router(c, "");
    post_whole(&a, c, "/tokenize", "{\"prompt\":\"hi\",\"model\":\"any\"}");
    assert_int_equal(a.status, 200);
    assert_true(cJSON_IsNull(member(&a, "max_model_len")));
    ask_free(&a);
    post_whole(&a, c, "/v1/completions", "{\"prompt\":\"hi\"}");
    assert_int_equal(a.status, 503);
    ask_free(&a);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        post(&left[i], c, "/tokenize", body);
    ASKS_UNTIL(left[0].ended, left, sizeof left / sizeof *left);
    asks_free(left, sizeof left / sizeof *left);
    free(body);
}

/* More long texts than the router holds at a time: those that it does not take are told so, and
 * afterwards it takes one again. */
static void test_tokenize_has_bounds(cluster *c)
{
    enum { N = 12 };
    char *body = long_body();
    size_t n_good = 0;
    ask a[N];

    cluster_router(c, "--max-body 1100000 --render-threads 1");
    for (size_t i = 0; i < N; i++)
        post(&a[i], c, "/tokenize", body);
    asks_wait(a, N);
    for (size_t i = 0; i < N; i++) {
        if (a[i].status != 200) {
            assert_int_equal(a[i].status, 429);
            assert_string_equal(ask_header(&a[i], "Retry-After"), "1");
        }
        n_good += a[i].status == 200;
    }
    assert_true(n_good >= 8);
    asks_free(a, N);
    post_whole(&a[0], c, "/tokenize", body);
    assert_int_equal(a[0].status, 200);
    ask_free(&a[0]);
    free(body);
}

/* The trained model, given the tokens of a conversation, says what it says to that conversation;
 * control tokens are not shown, and its stop token ends it. */
static void test_completion_of_a_conversation(cluster *c)
{
    static const char question[] =
        "\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}]";
    td_buf body = {0}, text = {0};
    ask tokens, chat, raw;
    char *ids;

    if (!model_is_trained())
        skip();
    cluster_use_best_weights(c);
    cluster_simple(c);
    td_buf_fmt(&body, "{%s,\"temperature\":0,\"max_tokens\":200}", question);
    post_whole(&tokens, c, "/tokenize", body.ptr);
    assert_int_equal(tokens.status, 200);
    ask_post(&chat, cluster_port(c), body.ptr);
    asks_wait(&chat, 1);
    ask_assert_good(&chat);
    ids = cJSON_PrintUnformatted(member(&tokens, "tokens"));
    td_buf_fmt(&text, "%s%s%s%s", chat.reasoning.len > 0 ? "analysis" : "",
               chat.reasoning.len > 0 ? chat.reasoning.ptr : "",
               chat.reasoning.len > 0 ? "assistantfinal" : "final", chat.content.ptr);
    for (int streamed = 0; streamed < 2; streamed++) {
        complete(&raw, c, ids,
                 streamed ? ",\"temperature\":0,\"max_tokens\":200" STREAM
                          : ",\"temperature\":0,\"max_tokens\":200");
        assert_string_equal(raw.content.ptr, text.ptr);
        assert_string_equal(raw.finish, "stop");
        assert_true(ask_usage(&raw, "completion_tokens") == ask_usage(&chat, "completion_tokens"));
        ask_free(&raw);
    }
    free(ids);
    td_buf_free(&body);
    td_buf_free(&text);
    ask_free(&tokens);
    ask_free(&chat);
}

int main(void)
{
    const struct CMUnitTest shared[] = {
        E2E_SHARED(test_completion_is_the_same_both_ways),
        E2E_SHARED(test_completion_defaults),
        E2E_SHARED(test_completion_of_tokens),
        E2E_SHARED(test_completion_takes_a_bias),
        E2E_SHARED(test_completion_stops_at_a_string),
        E2E_SHARED(test_completion_refusals),
        E2E_SHARED(test_completion_ends_with_its_client),
        E2E_SHARED(test_tokens_there_and_back),
        E2E_SHARED(test_messages_as_chat_counts_them),
        E2E_SHARED(test_tokenize_refusals),
        E2E_SHARED(test_long_texts_hold_up_nobody),
    };
    const struct CMUnitTest alone[] = {
        E2E_TEST(test_tokenize_needs_no_worker),
        E2E_TEST(test_tokenize_has_bounds),
        E2E_TEST(test_completion_of_a_conversation),
    };
    int failed = cmocka_run_group_tests(shared, start_shared, e2e_shared_teardown);

    return failed + cmocka_run_group_tests(alone, NULL, NULL);
}
