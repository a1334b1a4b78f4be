/* The RPC door: a gateway asks, several answers come interleaved, one is canceled, a body is wrong,
 * the router goes away. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway.h"
#include "tests/e2e/cluster.h"

/* What one answer has come to. */
typedef struct told {
    uint64_t stream;
    td_buf content;
    bool finished, failed;
    td_status status;
    gateway_event last;
    char reason[16];
} told;

static void rpc_url(const process *router, char *out, size_t cap)
{
    static const char mark[] = "rpc_listening url=";
    td_buf log = {0};
    const char *at;

    process_log(router, &log);
    at = log.ptr != NULL ? strstr(log.ptr, mark) : NULL;
    assert_non_null(at);
    snprintf(out, cap, "%.*s", (int)strcspn(at + strlen(mark), " \n"), at + strlen(mark));
    td_buf_free(&log);
}

static gateway *open_gateway(const process *router)
{
    char url[160];
    gateway *g;
    td_error err = {0};

    rpc_url(router, url, sizeof url);
    if (gateway_open(&(gateway_options){.router = url}, &g, &err) != TD_OK)
        fail_msg("%s", err.text);
    return g;
}

static void body_of(char *out, size_t cap, int max_tokens, int seed)
{
    snprintf(out, cap,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of %d\"}],\"seed\":%d,"
             "\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":1}",
             seed, seed, max_tokens);
}

static void start(gateway *g, int max_tokens, int seed, told *t)
{
    char body[256];
    td_error err = {0};

    *t = (told){0};
    body_of(body, sizeof body, max_tokens, seed);
    if (gateway_generate(g, td_slice_of(body), NULL, &t->stream, &err) != TD_OK)
        fail_msg("%s", err.text);
}

/* Take in one event; false: none came in time, or the router is lost and all is told. */
static bool take(gateway *g, told *t, size_t n)
{
    gateway_event e;
    td_error err = {0};

    if (gateway_next(g, e2e_deadline(), &e, &err) != TD_OK)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (t[i].stream != e.stream)
            continue;
        assert_false(t[i].finished || t[i].failed); /* nothing comes after the end */
        if (e.kind == GATEWAY_CONTENT || e.kind == GATEWAY_REASONING)
            td_buf_add(&t[i].content, e.text.ptr, e.text.len);
        t[i].finished = e.kind == GATEWAY_FINISHED;
        t[i].failed = e.kind == GATEWAY_FAILED;
        t[i].status = e.status;
        t[i].last = e;
        if (t[i].finished)
            snprintf(t[i].reason, sizeof t[i].reason, "%.*s", (int)e.text.len, e.text.ptr);
    }
    return true;
}

static void take_until_over(gateway *g, told *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        while (!t[i].finished && !t[i].failed)
            assert_true(take(g, t, n));
}

static process *serve(cluster *c)
{
    process *router = cluster_router(c, "--rpc-listen tcp://127.0.0.1:0");

    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    return router;
}

static void test_answers_are_those_of_http(cluster *c)
{
    enum { N = 8 };
    process *router = serve(c);
    gateway *g = open_gateway(router);
    told t[N];

    assert_true(strlen(gateway_model(g)) > 0);
    for (int i = 0; i < N; i++)
        start(g, 20 + 5 * i, i, &t[i]);
    take_until_over(g, t, N);
    for (int i = 0; i < N; i++) {
        char body[256];
        ask a;

        assert_true(t[i].finished);
        assert_string_equal(t[i].reason, "length");
        assert_int_equal(t[i].last.completion_tokens, 20 + 5 * i);
        assert_true(t[i].last.kv_bytes > 0 && t[i].last.ttft_us > 0);
        body_of(body, sizeof body, 20 + 5 * i, i);
        ask_post(&a, router->port, body);
        asks_wait(&a, 1);
        ask_assert_good(&a);
        assert_int_equal(t[i].content.len, a.content.len + a.reasoning.len);
        ask_free(&a);
        td_buf_free(&t[i].content);
    }
    gateway_close(g);
}

static void test_cancel_and_a_gateway_that_goes(cluster *c)
{
    process *router = serve(c);
    gateway *g = open_gateway(router);
    told t[2];
    td_error err = {0};

    start(g, 3000, 1, &t[0]);
    start(g, 40, 2, &t[1]);
    while (t[0].content.len == 0)
        assert_true(take(g, t, 2));
    assert_int_equal(gateway_cancel(g, t[0].stream, &err), TD_OK);
    take_until_over(g, t, 2);
    assert_int_equal(t[0].status, TD_CANCELED);
    assert_true(t[1].finished);
    td_buf_free(&t[0].content);
    td_buf_free(&t[1].content);
    start(g, 3000, 3, &t[0]);
    gateway_close(g);
    E2E_AWAIT(process_metric(router, "vllm:num_requests_running") == 0);
    td_buf_free(&t[0].content);
}

static void test_mistakes_are_named(cluster *c)
{
    process *router = serve(c);
    gateway *g = open_gateway(router);
    uint64_t stream;
    td_error err = {0};

    assert_int_equal(gateway_generate(g, TD_SLICE("{\"messages\":[]}"), NULL, &stream, &err),
                     TD_INVALID);
    assert_string_equal(err.param, "messages");
    assert_int_equal(gateway_generate(g, TD_SLICE("not json"), NULL, &stream, &err), TD_INVALID);
    assert_int_equal(gateway_cancel(g, 12345, &err), TD_OK); /* nobody's: nothing to do */
    gateway_close(g);
}

static void test_one_request_id_runs_once(cluster *c)
{
    process *router = serve(c);
    gateway *g = open_gateway(router);
    char body[256];
    uint64_t stream;
    td_error err = {0};

    body_of(body, sizeof body, 500, 1);
    assert_int_equal(gateway_generate(g, td_slice_of(body), "mine", &stream, &err), TD_OK);
    assert_int_equal(gateway_generate(g, td_slice_of(body), "mine", &stream, &err), TD_INVALID);
    gateway_close(g);
}

static void test_a_router_that_dies_ends_its_answers(cluster *c)
{
    process *router = serve(c);
    gateway *g = open_gateway(router);
    told t[2];
    td_error err = {0};
    gateway_event e;

    start(g, 3000, 1, &t[0]);
    start(g, 3000, 2, &t[1]);
    while (t[0].content.len == 0 || t[1].content.len == 0)
        assert_true(take(g, t, 2));
    process_kill(router);
    take_until_over(g, t, 2);
    assert_true(t[0].failed && t[1].failed);
    assert_int_equal(t[0].status, TD_UNAVAILABLE);
    assert_int_equal(gateway_next(g, e2e_deadline(), &e, &err), TD_UNAVAILABLE);
    gateway_close(g);
    td_buf_free(&t[0].content);
    td_buf_free(&t[1].content);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_answers_are_those_of_http),
        E2E_TEST(test_cancel_and_a_gateway_that_goes),
        E2E_TEST(test_mistakes_are_named),
        E2E_TEST(test_one_request_id_runs_once),
        E2E_TEST(test_a_router_that_dies_ends_its_answers),
    };

    return cmocka_run_group_tests_name("e2e gateway", tests, NULL, NULL);
}
