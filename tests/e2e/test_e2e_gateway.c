/* The RPC door: a gateway asks, several answers come interleaved, one is canceled, a body is wrong,
 * the router goes away; log-probabilities and raw completions. */
#include <stdio.h>
#include <string.h>

#include "client/gateway.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/gateway_client.h"

/* What one answer has come to. */
typedef struct told {
    uint64_t stream;
    td_buf content;
    td_buf tokens;   /* text of those whose log-probabilities came */
    td_buf logprobs; /* `logprob(text logprob ..)` of each: its own, the likeliest */
    bool finished, failed;
    td_status status;
    gateway_event last;
    char reason[16];
} told;

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

static void add_token(told *t, const gateway_event *e)
{
    td_buf_add(&t->tokens, e->token.text.ptr, e->token.text.len);
    td_buf_fmt(&t->logprobs, "%.6g(", (double)e->token.logprob);
    for (size_t i = 0; i < e->n_top; i++) {
        td_buf_add(&t->logprobs, e->top[i].text.ptr, e->top[i].text.len);
        td_buf_fmt(&t->logprobs, " %.6g ", (double)e->top[i].logprob);
    }
    td_buf_byte(&t->logprobs, ')');
}

static void free_told(told *t)
{
    td_buf_free(&t->content);
    td_buf_free(&t->tokens);
    td_buf_free(&t->logprobs);
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
        if (e.kind == GATEWAY_TOKEN)
            add_token(&t[i], &e);
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
    /* Four layers, keys and values, 8 heads of 64 in bf16; the prompts are within the window. */
    enum { N = 8, KV_OF_A_TOKEN = 4 * 2 * 8 * 64 * 2 };
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
        assert_true(t[i].last.ttft_us > 0);
        /* 0: the answer was over before the source said how much it had written. */
        assert_true(t[i].last.kv_bytes == 0 ||
                    t[i].last.kv_bytes == (uint64_t)KV_OF_A_TOKEN * t[i].last.prompt_tokens);
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

/* What HTTP says of the same tokens, as add_token() writes it. */
static void http_logprobs(const ask *a, td_buf *out)
{
    const cJSON *choice = cJSON_GetArrayItem(cJSON_GetObjectItem(a->root, "choices"), 0);
    const cJSON *t, *k, *byte;

    cJSON_ArrayForEach(t, cJSON_GetObjectItem(cJSON_GetObjectItem(choice, "logprobs"), "content"))
    {
        td_buf_fmt(out, "%.6g(", cJSON_GetObjectItem(t, "logprob")->valuedouble);
        cJSON_ArrayForEach(k, cJSON_GetObjectItem(t, "top_logprobs"))
        {
            cJSON_ArrayForEach(byte, cJSON_GetObjectItem(k, "bytes"))
                td_buf_byte(out, (char)byte->valueint);
            td_buf_fmt(out, " %.6g ", cJSON_GetObjectItem(k, "logprob")->valuedouble);
        }
        td_buf_byte(out, ')');
    }
}

static void assert_same_bytes(const td_buf *a, const td_buf *b)
{
    assert_true(a->len > 0);
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->ptr, b->ptr, a->len);
}

static void check_logprobs(process *router, gateway *g)
{
    want w = {.max_tokens = 16, .extra = "\"logprobs\":true,\"top_logprobs\":3"};
    td_buf body = {0}, http = {0};
    td_error err = {0};
    told t = {0};
    ask a;

    want_body(&w, &body);
    if (gateway_generate(g, (td_slice){body.ptr, body.len}, NULL, &t.stream, &err) != TD_OK)
        fail_msg("%s", err.text);
    take_until_over(g, &t, 1);
    assert_true(t.finished);
    ask_whole(&a, router->port, &w);
    ask_assert_good(&a);
    http_logprobs(&a, &http);
    assert_same_bytes(&t.logprobs, &http);
    assert_same_bytes(&t.content, &a.content);
    if (td_utf8_valid(t.tokens.ptr, t.tokens.len, &(size_t){0}))
        assert_same_bytes(&t.tokens, &t.content);
    ask_free(&a);
    td_buf_free(&body);
    td_buf_free(&http);
    free_told(&t);
}

static void check_completion(process *router, gateway *g)
{
    static const char body[] = "{\"prompt\":[104,105,32,104],\"max_tokens\":12,\"temperature\":0}";
    const cJSON *choice;
    const char *text;
    td_error err = {0};
    told t = {0};
    ask a;

    if (gateway_complete(g, td_slice_of(body), NULL, &t.stream, &err) != TD_OK)
        fail_msg("%s", err.text);
    take_until_over(g, &t, 1);
    assert_true(t.finished);
    assert_int_equal(t.last.prompt_tokens, 4);
    ask_start(&a, router->port, "POST", "/v1/completions", "Content-Type: application/json\r\n",
              body, strlen(body));
    asks_wait(&a, 1);
    assert_int_equal(a.status, 200);
    choice = cJSON_GetArrayItem(cJSON_GetObjectItem(a.root, "choices"), 0);
    text = cJSON_GetStringValue(cJSON_GetObjectItem(choice, "text"));
    assert_non_null(text);
    assert_true(t.content.len > 0);
    assert_int_equal(t.content.len, strlen(text));
    assert_memory_equal(t.content.ptr, text, t.content.len);
    ask_free(&a);
    free_told(&t);
}

static void test_logprobs_and_completions(cluster *c)
{
    process *router;
    gateway *g;

    cluster_use_random_weights(c);
    router = serve(c);
    g = open_gateway(router);
    check_logprobs(router, g);
    check_completion(router, g);
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
    char long_id[133] = "";
    const char *const odd[] = {"a b", "a\"b", "a\nb", "\xc3\xa9", long_id};
    uint64_t stream;
    td_error err = {0};

    assert_int_equal(gateway_generate(g, TD_SLICE("{\"messages\":[]}"), NULL, &stream, &err),
                     TD_INVALID);
    assert_string_equal(err.param, "messages");
    assert_int_equal(gateway_generate(g, TD_SLICE("not json"), NULL, &stream, &err), TD_INVALID);
    assert_int_equal(gateway_generate(g, TD_SLICE(""), NULL, &stream, &err), TD_INVALID);
    assert_int_equal(gateway_complete(g, TD_SLICE(""), NULL, &stream, &err), TD_INVALID);
    assert_int_equal(gateway_complete(g, TD_SLICE("{\"prompt\":[-1]}"), NULL, &stream, &err),
                     TD_INVALID);
    assert_string_equal(err.param, "prompt[0]");
    assert_int_equal(
        gateway_generate(g,
                         TD_SLICE("{\"model\":\"other\",\"messages\":[{\"role\":\"user\","
                                  "\"content\":\"\"}]}"),
                         NULL, &stream, &err),
        TD_NOTFOUND);
    assert_string_equal(err.param, "model");
    assert_int_equal(gateway_complete(g, TD_SLICE("{\"model\":\"other\",\"prompt\":\"a\"}"), NULL,
                                      &stream, &err),
                     TD_NOTFOUND);
    memset(long_id, 'a', sizeof long_id - 1);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        assert_int_equal(gateway_complete(g, TD_SLICE("{\"prompt\":\"a\"}"), odd[i], &stream, &err),
                         TD_INVALID);
        assert_string_equal(err.param, "request_id");
    }
    assert_int_equal(gateway_cancel(g, 12345, &err), TD_OK); /* nobody's: nothing to do */
    gateway_close(g);
}

#define SUCCESS(reason) "vllm:request_success_total{finished_reason=\"" reason "\"}"

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
    /* Its end, whether the router hears of the close or not: workers that stop would hold it up. */
    E2E_AWAIT(
        process_metric(router, SUCCESS("length")) + process_metric(router, SUCCESS("abort")) == 1);
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
        E2E_TEST(test_logprobs_and_completions),
        E2E_TEST(test_cancel_and_a_gateway_that_goes),
        E2E_TEST(test_mistakes_are_named),
        E2E_TEST(test_one_request_id_runs_once),
        E2E_TEST(test_a_router_that_dies_ends_its_answers),
    };

    return cmocka_run_group_tests_name("e2e gateway", tests, NULL, NULL);
}
