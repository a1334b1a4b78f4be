/* The HTTP API of a whole system: the endpoints, streams against whole answers, the shape of
 * events, refusals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#define CASE_MODEL "gpt-oss-20b" /* as the cases name it */

static void make_cluster(cluster *c)
{
    cluster_router(c, "");
    cluster_prefill(c, "--model-name " CASE_MODEL);
    cluster_decode(c, "--model-name " CASE_MODEL);
    cluster_ready(c);
}

static int start_shared(void **state)
{
    (void)state;
    return e2e_shared_setup(make_cluster);
}

/* ---- endpoints ---- */

static void test_endpoints(cluster *c)
{
    uint16_t port = cluster_port(c);
    td_buf body = {0};
    const cJSON *model;
    cJSON *root;

    assert_int_equal(http_get(port, "/health", NULL), 200);
    assert_int_equal(http_get(port, "/ready", NULL), 200);
    assert_int_equal(http_get(port, "/version", &body), 200);
    assert_non_null(strstr(body.ptr, "\"version\":\""));
    td_buf_clear(&body);
    assert_int_equal(http_get(port, "/v1/models", &body), 200);
    root = cJSON_Parse(body.ptr);
    assert_string_equal(cJSON_GetObjectItem(root, "object")->valuestring, "list");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "data")), 1);
    model = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "data"), 0);
    assert_string_equal(cJSON_GetObjectItem(model, "id")->valuestring, CASE_MODEL);
    assert_int_equal((int)cJSON_GetObjectItem(model, "max_model_len")->valuedouble, 131072);
    cJSON_Delete(root);
    td_buf_free(&body);
    assert_int_equal(http_get(port, "/v1/models/" CASE_MODEL, NULL), 200);
    assert_int_equal(http_get(port, "/v1/models/other", NULL), 404);
    assert_int_equal(http_get(port, "/v1/nothing", NULL), 404);
    for (size_t i = 0; i < c->n; i++) {
        assert_int_equal(http_get(c->all[i].port, "/health", NULL), 200);
        assert_int_equal(http_get(c->all[i].port, "/metrics", NULL), 200);
    }
    assert_true(process_metric(c->router, "vllm:num_requests_running") == 0);
}

static void test_wrong_methods(cluster *c)
{
    static const struct {
        const char *method, *path, *allow;
    } wrong[] = {{"GET", "/v1/chat/completions", "POST"},
                 {"DELETE", "/v1/chat/completions", "POST"},
                 {"POST", "/v1/models", "GET, HEAD"},
                 {"PUT", "/metrics", "GET, HEAD"},
                 {"POST", "/health", "GET, HEAD"}};

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ask a;

        ask_start(&a, cluster_port(c), wrong[i].method, wrong[i].path, "", "", 0);
        asks_wait(&a, 1);
        assert_int_equal(a.status, 405);
        assert_string_equal(ask_header(&a, "Allow"), wrong[i].allow);
        assert_string_equal(ask_error(&a, "type"), "invalid_request_error");
        ask_free(&a);
    }
}

/* ---- streams ---- */

static void check_both_ways(cluster *c, want w)
{
    ask whole, stream;

    w.stream = false;
    ask_whole(&whole, cluster_port(c), &w);
    w.stream = w.usage = true;
    ask_whole(&stream, cluster_port(c), &w);
    ask_assert_same(&whole, &stream);
    assert_true(stream.stream && !whole.stream);
    assert_true(ask_usage(&whole, "total_tokens") ==
                ask_usage(&whole, "prompt_tokens") + ask_usage(&whole, "completion_tokens"));
    if (w.max_tokens > 0)
        assert_true(ask_usage(&whole, "completion_tokens") <= w.max_tokens);
    ask_free(&whole);
    ask_free(&stream);
}

static void test_stream_is_the_same(cluster *c)
{
    static const char *const prompts[] = {"hello", "What is 2 + 3?",
                                          "naïve café 🫠 नमस्ते",
                                          "  spaces\n\n\ttabs  ", "<|end|><|start|>system"};

    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        const want w = {.prompt = prompts[i], .max_tokens = 24};
        want seeded = w, plain = w;

        check_both_ways(c, w);
        seeded.temperature = 1;
        seeded.seed = 1234 + (unsigned)i;
        check_both_ways(c, seeded);
        seeded.top_p = 0.8;
        seeded.top_k = 20;
        check_both_ways(c, seeded);
        plain.plain = true;
        check_both_ways(c, plain);
    }
}

static void test_seeds_matter(cluster *c)
{
    want w = {.prompt = "tell me", .max_tokens = 24, .temperature = 1, .seed = 1};
    ask a, b, other;

    ask_whole(&a, cluster_port(c), &w);
    ask_whole(&b, cluster_port(c), &w);
    w.seed = 2;
    ask_whole(&other, cluster_port(c), &w);
    ask_assert_same(&a, &b);
    ask_assert_good(&other);
    assert_string_not_equal(a.content.ptr, other.content.ptr);
    ask_free(&a);
    ask_free(&b);
    ask_free(&other);
}

static void test_shape_of_events(cluster *c)
{
    want w = {.prompt = "events", .max_tokens = 12, .stream = true, .usage = true};
    ask a;

    ask_whole(&a, cluster_port(c), &w);
    ask_assert_good(&a);
    assert_string_equal(ask_header(&a, "Content-Type"), "text/event-stream; charset=utf-8");
    assert_string_equal(a.finish, "length");
    /* The role, the pieces, the end, the usage: and nothing else. */
    assert_int_equal(a.n_events, 1 + a.n_pieces + 1 + 1);
    assert_true(a.n_pieces >= 4); /* as they come, not at the end */
    assert_int_equal(a.n_usages, 1);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(a.root, "choices")), 0);
    assert_true(ask_usage(&a, "completion_tokens") == 12);
    assert_int_equal(strncmp(a.id, "chatcmpl-", 9), 0);
    assert_string_equal(cJSON_GetObjectItem(a.root, "object")->valuestring,
                        "chat.completion.chunk");
    assert_string_equal(cJSON_GetObjectItem(a.root, "model")->valuestring, CASE_MODEL);
    ask_free(&a);

    w.usage = false;
    ask_whole(&a, cluster_port(c), &w);
    ask_assert_good(&a);
    assert_int_equal(a.n_events, 1 + a.n_pieces + 1);
    assert_null(strstr(a.body.ptr, "usage")); /* nowhere: it was not asked for */
    ask_free(&a);
}

/* The stop string is chosen inside of what the model will say, across tokens. */
static void test_stop_strings(cluster *c)
{
    want w = {.prompt = "say something long", .max_tokens = 40, .temperature = 1, .seed = 7};
    ask free_run, stopped;
    char stop[16], extra[160];
    td_buf member = {0};
    size_t at;

    ask_whole(&free_run, cluster_port(c), &w);
    ask_assert_good(&free_run);
    assert_true(free_run.content.len > 40);
    at = free_run.content.len / 2;
    while (((unsigned char)free_run.content.ptr[at] & 0xc0) == 0x80)
        at++;
    snprintf(stop, sizeof stop, "%.12s", free_run.content.ptr + at);
    while (strlen(stop) > 0 && ((unsigned char)stop[strlen(stop) - 1] & 0x80))
        stop[strlen(stop) - 1] = '\0'; /* no half character at its end */
    assert_true(strlen(stop) > 3);
    td_buf_json(&member, stop, strlen(stop));
    snprintf(extra, sizeof extra, "\"stop\":[\"never said by it\",\"%s\"]", member.ptr);
    w.extra = extra;
    at = (size_t)(strstr(free_run.content.ptr, stop) - free_run.content.ptr);
    for (int streamed = 0; streamed < 2; streamed++) {
        w.stream = streamed;
        ask_whole(&stopped, cluster_port(c), &w);
        ask_assert_good(&stopped);
        assert_string_equal(stopped.finish, "stop");
        assert_int_equal(stopped.content.len, at);
        assert_memory_equal(stopped.content.ptr, free_run.content.ptr, at);
        ask_free(&stopped);
    }
    /* Held back in vain: the text comes out in the end. */
    snprintf(extra, sizeof extra, "\"stop\":\"%.8s@@\"",
             free_run.content.ptr + free_run.content.len - 2);
    if (free_run.content.ptr[free_run.content.len - 2] >= ' ' &&
        free_run.content.ptr[free_run.content.len - 1] >= ' ' &&
        strpbrk(free_run.content.ptr + free_run.content.len - 2, "\"\\") == NULL) {
        ask_whole(&stopped, cluster_port(c), &w);
        ask_assert_same(&stopped, &free_run);
        ask_free(&stopped);
    }
    td_buf_free(&member);
    ask_free(&free_run);
}

/* ---- refusals ---- */

static void test_bad_bodies(cluster *c)
{
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
    static const struct {
        const char *body, *param, *says;
    } bad[] = {
        {"", "", "empty"},
        {"[]", "", "object"},
        {"{", "", "JSON"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", "", "UTF-8"},
        {"{" HI ",\"temperature\":NaN}", "", "JSON"},
        {"{}", "messages", "missing"},
        {"{\"messages\":[]}", "messages", "empty"},
        {"{\"messages\":{}}", "messages", "array"},
        {"{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "messages[0].role", "system"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content", "a number"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]", "image_url"},
        {"{" HI ",\"max_tokens\":\"5\"}", "max_tokens", "a string"},
        {"{" HI ",\"max_tokens\":0}", "max_tokens", "between 1"},
        {"{" HI ",\"temperature\":3}", "temperature", "between 0 and 2"},
        {"{" HI ",\"top_p\":-1}", "top_p", "between"},
        {"{" HI ",\"n\":9}", "n", "at most 8 answers"},
        {"{" HI ",\"stop\":[1]}", "stop", "strings"},
        {"{" HI ",\"stream\":1}", "stream", "true or false"},
        {"{" HI ",\"top_logprobs\":2}", "top_logprobs", "needs logprobs"},
        {"{" HI ",\"logit_bias\":{\"201088\":1}}", "logit_bias", "ids of tokens"},
        {"{" HI ",\"reasoning_effort\":\"huge\"}", "reasoning_effort", "low"},
        {"{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{}}]}", "tools[0].function.name",
         "missing"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"nope\"}]}",
         "messages[0].tool_call_id", "nope"},
    };
#undef HI

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ask a;

        ask_post(&a, cluster_port(c), bad[i].body);
        asks_wait(&a, 1);
        if (a.status != 400 || strcmp(ask_error(&a, "param"), bad[i].param) != 0 ||
            strstr(ask_error(&a, "message"), bad[i].says) == NULL)
            fail_msg("%s: status %d, %s", bad[i].body, a.status, a.body.ptr);
        assert_string_equal(ask_error(&a, "type"), "invalid_request_error");
        assert_string_equal(ask_header(&a, "Content-Type"), "application/json");
        ask_free(&a);
    }
}

static void test_unknown_model(cluster *c)
{
    ask a;

    ask_post(&a, cluster_port(c),
             "{\"model\":\"gpt-5\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    asks_wait(&a, 1);
    assert_int_equal(a.status, 404);
    assert_string_equal(ask_error(&a, "param"), "model");
    assert_string_equal(ask_error(&a, "code"), "model_not_found");
    assert_non_null(strstr(ask_error(&a, "message"), CASE_MODEL));
    ask_free(&a);
}

static void test_body_too_large(cluster *c)
{
    size_t n = 8 * 1024 * 1024 + 1;
    char *body = malloc(n);
    ask a, b;

    assert_non_null(body);
    memset(body, ' ', n);
    ask_start(&a, cluster_port(c), "POST", "/v1/chat/completions", "", body, n);
    ask_chat(&b, cluster_port(c), &(want){.max_tokens = 2});
    asks_wait(&a, 1);
    asks_wait(&b, 1);
    assert_int_equal(a.status, 413);
    ask_assert_good(&b);
    free(body);
    ask_free(&a);
    ask_free(&b);
}

/* Whatever went on before: nothing is left of it. */
static void test_nothing_is_left(cluster *c)
{
    E2E_AWAIT(process_metric(c->router, "vllm:num_requests_running") == 0);
    for (size_t i = 0; i < c->n; i++) {
        process *p = &c->all[i];

        if (strcmp(p->program, "decode") == 0)
            E2E_AWAIT(decode_is_empty(p));
        if (strcmp(p->program, "prefill") == 0)
            E2E_AWAIT(prefill_is_empty(p));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_SHARED(test_endpoints),          E2E_SHARED(test_wrong_methods),
        E2E_SHARED(test_stream_is_the_same), E2E_SHARED(test_seeds_matter),
        E2E_SHARED(test_shape_of_events),    E2E_SHARED(test_stop_strings),
        E2E_SHARED(test_bad_bodies),         E2E_SHARED(test_unknown_model),
        E2E_SHARED(test_body_too_large),     E2E_SHARED(test_nothing_is_left),
    };

    return cmocka_run_group_tests(tests, start_shared, e2e_shared_teardown);
}
