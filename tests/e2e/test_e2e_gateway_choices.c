/* Several answers to one question through the RPC door: the ones that HTTP gives, mixed in one
 * stream, each with its own end; and not for gateways that know one answer a stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway.h"
#include "common/pb_text.h"
#include "common/protocol.h"
#include "common/rpc.h"
#include "proto/tandem.pb-c.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/gateway_client.h"

enum { N = 3, MAX_TOKENS = 40 };

#define SEEDED "\"max_tokens\":40,\"temperature\":1,\"seed\":11,\"ignore_eos\":true"
#define RAW(n) "{\"prompt\":\"Once upon\",\"n\":" #n "," SEEDED "}"
#define CHAT(n, tokens) \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":" #n \
    ",\"temperature\":1,\"seed\":3,\"ignore_eos\":true,\"max_tokens\":" #tokens "}"

static process *serve(cluster *c, process **decode)
{
    process *router = cluster_router(c, "--rpc-listen tcp://127.0.0.1:0"), *d;

    cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    if (decode != NULL)
        *decode = d;
    return router;
}

typedef struct told {
    td_buf text[N];
    uint32_t tokens[N], n_finished, prompt_tokens;
} told;

/* A stream to its end. */
static void take_all(gateway *g, uint64_t stream, told *t)
{
    gateway_event e;
    td_error err = {0};
    bool finished[N] = {false};

    *t = (told){0};
    do {
        if (gateway_next(g, e2e_deadline(), &e, &err) != TD_OK)
            fail_msg("%s", err.text);
        assert_true(e.stream == stream && e.choice < N);
        assert_int_not_equal(e.kind, GATEWAY_FAILED);
        assert_false(finished[e.choice]); /* nothing comes after its end */
        if (e.kind == GATEWAY_CONTENT || e.kind == GATEWAY_REASONING)
            td_buf_add(&t->text[e.choice], e.text.ptr, e.text.len);
        if (e.kind != GATEWAY_FINISHED)
            continue;
        finished[e.choice] = true;
        t->tokens[e.choice] = e.completion_tokens;
        t->prompt_tokens = e.prompt_tokens;
        assert_int_equal(e.open, N - ++t->n_finished);
    } while (e.kind != GATEWAY_FINISHED || e.open > 0);
}

static void free_told(told *t)
{
    for (size_t i = 0; i < N; i++)
        td_buf_free(&t->text[i]);
}

/* The same question over HTTP. */
static void check_http(cluster *c, const told *t)
{
    const cJSON *choice;
    cJSON *root;
    size_t n = 0;
    ask a;

    ask_start(&a, cluster_port(c), "POST", "/v1/completions", "Content-Type: application/json\r\n",
              RAW(3), strlen(RAW(3)));
    asks_wait(&a, 1);
    root = cJSON_Parse(a.body.ptr);
    assert_non_null(root);
    cJSON_ArrayForEach(choice, cJSON_GetObjectItem(root, "choices"))
    {
        size_t i = (size_t)cJSON_GetObjectItem(choice, "index")->valueint;

        assert_true(i < N);
        assert_string_equal(cJSON_GetObjectItem(choice, "text")->valuestring, t->text[i].ptr);
        n++;
    }
    assert_int_equal(n, N);
    cJSON_Delete(root);
    ask_free(&a);
}

static void test_a_stream_of_several_answers(cluster *c)
{
    gateway *g = open_gateway(serve(c, NULL));
    uint64_t stream;
    td_error err = {0};
    told t;

    if (gateway_complete(g, TD_SLICE(RAW(3)), NULL, &stream, &err) != TD_OK)
        fail_msg("%s", err.text);
    take_all(g, stream, &t);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(t.tokens[i], MAX_TOKENS);
    check_http(c, &t);
    free_told(&t);
    if (gateway_generate(g, TD_SLICE(CHAT(3, 30)), NULL, &stream, &err) != TD_OK)
        fail_msg("%s", err.text);
    take_all(g, stream, &t);
    assert_true(t.text[0].len > 0 && t.prompt_tokens > 0);
    free_told(&t);
    assert_int_equal(gateway_generate(g, TD_SLICE(CHAT(9, 30)), NULL, &stream, &err), TD_INVALID);
    assert_string_equal(err.param, "n");
    gateway_close(g);
}

static void test_a_cancel_is_of_all(cluster *c)
{
    process *decode;
    gateway *g = open_gateway(serve(c, &decode));
    gateway_event e;
    td_error err = {0};
    uint64_t stream;

    if (gateway_generate(g, TD_SLICE(CHAT(3, 6000)), NULL, &stream, &err) != TD_OK)
        fail_msg("%s", err.text);
    E2E_AWAIT(process_metric(decode, "vllm:num_requests_running") == N);
    assert_int_equal(gateway_cancel(g, stream, &err), TD_OK);
    do
        assert_int_equal(gateway_next(g, e2e_deadline(), &e, &err), TD_OK);
    while (e.kind != GATEWAY_FAILED);
    assert_int_equal(e.status, TD_CANCELED);
    cluster_await_nothing_held(c, decode);
    if (gateway_generate(g, TD_SLICE(CHAT(3, 6000)), NULL, &stream, &err) != TD_OK)
        fail_msg("%s", err.text);
    E2E_AWAIT(process_metric(decode, "vllm:num_requests_running") == N);
    gateway_close(g); /* it goes, and they with it */
    cluster_await_nothing_held(c, decode);
}

/* ---- a gateway of another version ---- */

static void no_message(void *user, uint32_t peer, const void *bytes, size_t n)
{
    (void)user;
    (void)peer;
    (void)bytes;
    (void)n;
}

static Tandem__GatewayReply *call(rpc_client *client, const Tandem__GatewayRequest *req)
{
    Tandem__GatewayReply *m;
    uint8_t bytes[512];
    td_buf reply = {0};
    td_error err = {0};
    size_t n = tandem__gateway_request__get_packed_size(req);

    assert_true(n <= sizeof bytes);
    tandem__gateway_request__pack(req, bytes);
    if (rpc_client_call_wait(client, bytes, n, 5000, &reply, &err) != TD_OK)
        fail_msg("%s", err.text);
    m = tandem__gateway_reply__unpack(NULL, reply.len, (const uint8_t *)reply.ptr);
    assert_non_null(m);
    td_buf_free(&reply);
    return m;
}

static void test_older_gateways_get_one_answer(cluster *c)
{
    process *router = serve(c, NULL);
    rpc_pull_options po = {.url = "tcp://127.0.0.1:0", .on_message = no_message};
    Tandem__GatewayRequest req = TANDEM__GATEWAY_REQUEST__INIT;
    Tandem__GatewayHello hello = TANDEM__GATEWAY_HELLO__INIT;
    Tandem__GatewayGenerate generate = TANDEM__GATEWAY_GENERATE__INIT;
    Tandem__GatewayReply *m;
    rpc_client *client;
    rpc_pull *events;
    td_error err = {0};
    char url[160];

    rpc_url(router, url, sizeof url);
    assert_int_equal(rpc_pull_open(&po, &events, &err), TD_OK);
    assert_int_equal(rpc_client_open(&(rpc_client_options){.url = url}, &client, &err), TD_OK);
    hello.major = TD_PROTOCOL_MAJOR;
    hello.minor = TD_CHOICES_MINOR - 1;
    hello.gateway_id = td_pb_text("old");
    hello.events_url = td_pb_text(rpc_pull_url(events));
    req.body_case = TANDEM__GATEWAY_REQUEST__BODY_HELLO;
    req.hello = &hello;
    m = call(client, &req);
    assert_int_equal(m->status, TD_OK);
    tandem__gateway_reply__free_unpacked(m, NULL);
    generate.gateway_id = td_pb_text("old");
    generate.chat_json = td_pb_text(CHAT(2, 10));
    req.body_case = TANDEM__GATEWAY_REQUEST__BODY_GENERATE;
    req.generate = &generate;
    m = call(client, &req);
    assert_int_equal(m->status, TD_INVALID);
    assert_true(m->param.len == 1 && m->param.data[0] == 'n');
    tandem__gateway_reply__free_unpacked(m, NULL);
    generate.chat_json = td_pb_text(CHAT(1, 10));
    m = call(client, &req);
    assert_int_equal(m->status, TD_OK);
    assert_non_null(m->accepted);
    assert_int_equal(m->accepted->choices, 1);
    tandem__gateway_reply__free_unpacked(m, NULL);
    rpc_client_close(client);
    rpc_pull_close(events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_a_stream_of_several_answers),
        E2E_TEST(test_a_cancel_is_of_all),
        E2E_TEST(test_older_gateways_get_one_answer),
    };

    return cmocka_run_group_tests_name("e2e gateway choices", tests, NULL, NULL);
}
