/* /v1/responses of whole systems: what its streams do when workers die or fall silent, when a
 * client does not read, and when a request is as large as a stream may not fall behind. What it
 * answers is tests/clients/test_openai_responses.py's. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#define COUNT "\"temperature\":0,\"input\":\"Count from 1 to 60.\""

static void post(ask *a, const cluster *c, const char *body)
{
    ask_start(a, cluster_port(c), "POST", "/v1/responses", "Content-Type: application/json\r\n",
              body, strlen(body));
}

static void post_whole(ask *a, const cluster *c, const char *body)
{
    post(a, c, body);
    asks_wait(a, 1);
}

static const char *text_of(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItem(o, name);

    return cJSON_IsString(v) ? v->valuestring : "";
}

/* The Response object: the body, or that of the last event. */
static const cJSON *object_of(const ask *a)
{
    const cJSON *response = cJSON_GetObjectItem(a->root, "response");

    return response != NULL ? response : a->root;
}

static void assert_good(const ask *a)
{
    if (a->status != 200 || a->cut || strcmp(text_of(object_of(a), "status"), "completed") != 0)
        fail_msg("status %d, cut %d: %.500s", a->status, a->cut, a->body.ptr);
    if (a->stream)
        assert_string_equal(text_of(a->root, "type"), "response.completed");
}

/* Content and reasoning of the object's items; its ids are its own. */
static char *words_of(const ask *a)
{
    const cJSON *item;
    td_buf b = {0};

    cJSON_ArrayForEach(item, cJSON_GetObjectItem(object_of(a), "output"))
    {
        const cJSON *part = cJSON_GetArrayItem(cJSON_GetObjectItem(item, "content"), 0);

        td_buf_fmt(&b, "%s: %s\n", text_of(item, "type"), text_of(part, "text"));
    }
    td_buf_str(&b, "");
    return b.ptr;
}

static void assert_same(const ask *a, const ask *b)
{
    char *x = words_of(a), *y = words_of(b);

    assert_true(strlen(x) > 60);
    assert_string_equal(x, y);
    assert_true(ask_usage(a, "output_tokens") == ask_usage(b, "output_tokens"));
    free(x);
    free(y);
}

static void make(cluster *c, const char *router)
{
    cluster_use_best_weights(c);
    cluster_router(c, router);
    cluster_prefill(c, "");
    cluster_decode(c, "--fence-grace 200ms --heartbeat 300ms");
    cluster_ready(c);
}

/* ---- workers ---- */

static void test_response_survives_a_worker(cluster *c)
{
    ask alone, hit[2];
    process *d;

    make(c, "--recovery-timeout 10s");
    d = &c->all[c->n - 1];
    post_whole(&alone, c, "{" COUNT "}");
    assert_good(&alone);
    post(&hit[0], c, "{" COUNT ",\"stream\":true}");
    post(&hit[1], c, "{" COUNT "}");
    ASKS_UNTIL(hit[0].n_pieces > 4, hit, 2);
    process_kill(d);
    cluster_decode(c, "");
    asks_wait(hit, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_good(&hit[i]);
        assert_same(&alone, &hit[i]);
    }
    assert_true(ask_tandem(&hit[0], "retries") >= 1);
    cluster_ready(c);
    ask_free(&alone);
    asks_free(hit, 2);
}

/* C062: with nobody left, the last event says so, after an item that was cut; and the stream has an
 * end like any other. */
static void test_response_fails(cluster *c)
{
    static const char *const types[] = {"response.output_item.done", "response.failed"};
    const cJSON *output, *item;
    const char *at;
    ask a[2];

    make(c, "--recovery-timeout 300ms --retries 1");
    post(&a[0], c, "{" COUNT ",\"stream\":true}");
    post(&a[1], c, "{" COUNT "}");
    ASKS_UNTIL(a[0].n_pieces > 4, a, 2);
    process_kill(&c->all[c->n - 1]);
    asks_wait(a, 2);
    assert_true(a[0].status == 200 && !a[0].cut && !a[0].done);
    assert_string_equal(text_of(a[0].root, "type"), "response.failed");
    assert_string_equal(text_of(object_of(&a[0]), "status"), "failed");
    assert_string_equal(text_of(a[0].error, "code"), "server_error");
    assert_true(strlen(text_of(a[0].error, "message")) > 0);
    at = strstr(a[0].body.ptr, types[0]);
    assert_true(at != NULL && strstr(at, types[1]) != NULL);
    output = cJSON_GetObjectItem(object_of(&a[0]), "output"); /* its reasoning may be complete */
    item = cJSON_GetArrayItem(output, cJSON_GetArraySize(output) - 1);
    assert_string_equal(text_of(item, "status"), "incomplete");
    assert_in_range(a[1].status, 500, 599);
    assert_true(strlen(ask_error(&a[1], "message")) > 0);
    asks_free(a, 2);
}

static void test_silence_is_filled(cluster *c)
{
    process *d;
    ask a;

    make(c, "--sse-ping 20ms");
    d = &c->all[c->n - 1];
    post(&a, c, "{" COUNT ",\"stream\":true}");
    ASKS_UNTIL(a.n_pieces > 4, &a, 1);
    process_signal(d, SIGSTOP);
    ASKS_UNTIL(a.n_comments > 1, &a, 1);
    process_signal(d, SIGCONT);
    asks_wait(&a, 1);
    assert_good(&a);
    ask_free(&a);
}

/* ---- clients ---- */

/* A body of n bytes, most of them in a tool that is repeated in events and not in the prompt. */
static char *large_body(size_t n, const char *input)
{
    char *body = malloc(n + 512);
    int at;

    assert_non_null(body);
    at = snprintf(body, 512,
                  "{%s,\"stream\":true,\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\","
                  "\"name\":\"f\",\"description\":\"",
                  input);
    memset(body + at, 'x', n);
    strcpy(body + at + n, "\"}]}");
    return body;
}

/* Events repeat the request: that alone makes no client slow. */
static void test_a_large_request_is_no_slow_client(cluster *c)
{
    char *body = large_body(4 << 20, "\"input\":\"What is 2 plus 3?\",\"temperature\":0");
    ask a;

    make(c, "--slow-client 16KiB");
    post_whole(&a, c, body);
    assert_good(&a);
    assert_string_equal(a.content.ptr, "2 + 3 = 5.");
    ask_free(&a);
    free(body);
}

static void test_a_client_that_does_not_read_is_cut(cluster *c)
{
    char *body = large_body(4 << 20, COUNT);
    ask a;

    make(c, "--slow-client 16KiB");
    post(&a, c, body);
    while (a.sent < a.out.len) /* what has been sent is not yet answered */
        asks_step(&a, 1, e2e_deadline());
    E2E_AWAIT(process_logged(c->router, "why=slow_client"));
    E2E_AWAIT(decode_is_empty(&c->all[c->n - 1]));
    asks_wait(&a, 1);
    assert_true(a.cut);
    ask_free(&a);
    free(body);
}

static void test_methods_and_bodies(cluster *c)
{
    ask a;

    cluster_router(c, "--responses-store 0");
    ask_start(&a, cluster_port(c), "GET", "/v1/responses/resp_1", "", "", 0);
    asks_wait(&a, 1);
    assert_int_equal(a.status, 404);
    assert_non_null(strstr(ask_error(&a, "message"), "does not store"));
    ask_free(&a);
    post_whole(&a, c, "{" COUNT ",\"previous_response_id\":\"resp_1\"}");
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(ask_error(&a, "message"), "does not store"));
    ask_free(&a);
    ask_start(&a, cluster_port(c), "GET", "/v1/responses/resp_1?include=x&stream=true", "", "", 0);
    asks_wait(&a, 1);
    assert_int_equal(a.status, 400);
    assert_string_equal(ask_error(&a, "param"), "stream");
    ask_free(&a);
    ask_start(&a, cluster_port(c), "PUT", "/v1/responses/resp_1", "", "", 0);
    asks_wait(&a, 1);
    assert_int_equal(a.status, 405);
    assert_string_equal(ask_header(&a, "Allow"), "GET, HEAD, DELETE");
    ask_free(&a);
    ask_start(&a, cluster_port(c), "GET", "/v1/responses", "", "", 0);
    asks_wait(&a, 1);
    assert_int_equal(a.status, 405);
    assert_string_equal(ask_header(&a, "Allow"), "POST");
    ask_free(&a);
    post_whole(&a, c, "{\"input\":\"\xff\"}");
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(ask_error(&a, "message"), "UTF-8"));
    ask_free(&a);
    post_whole(&a, c, "{" COUNT "}"); /* nobody is there to answer it */
    assert_int_equal(a.status, 503);
    assert_non_null(ask_header(&a, "Retry-After"));
    ask_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_response_survives_a_worker),
        E2E_TEST(test_response_fails),
        E2E_TEST(test_silence_is_filled),
        E2E_TEST(test_a_large_request_is_no_slow_client),
        E2E_TEST(test_a_client_that_does_not_read_is_cut),
        E2E_TEST(test_methods_and_bodies),
    };

    if (!model_is_trained()) {
        printf("[  SKIPPED ] test_e2e_responses: there is no trained model\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
