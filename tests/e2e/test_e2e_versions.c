/* Who may speak with whom: versions of the protocol that differ between router, worker and gateway,
 * and the workers' door when somebody else comes to it. */
#include <stdio.h>
#include <string.h>

#include "client/gateway.h"
#include "common/protocol.h"
#include "common/rpc.h"
#include "proto/tandem.pb-c.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/gateway_client.h"

/* Say Hello by hand; what follows the request are fields that nobody knows. */
static td_status say_hello(rpc_client *client, uint32_t major, uint32_t minor, char *text,
                           size_t cap)
{
    static const uint8_t unknown[] = {0xfa, 0x3f, 2, 'h', 'i', 0xf8, 0x40, 7};
    Tandem__GatewayRequest req = TANDEM__GATEWAY_REQUEST__INIT;
    Tandem__GatewayHello h = TANDEM__GATEWAY_HELLO__INIT;
    Tandem__GatewayReply *m;
    uint8_t bytes[256];
    td_buf reply = {0};
    td_error err = {0};
    td_status st;
    size_t n;

    h.major = major;
    h.minor = minor;
    h.gateway_id = (ProtobufCBinaryData){4, (uint8_t *)(uintptr_t) "hand"};
    h.events_url = (ProtobufCBinaryData){17, (uint8_t *)(uintptr_t) "tcp://127.0.0.1:1"};
    req.body_case = TANDEM__GATEWAY_REQUEST__BODY_HELLO;
    req.hello = &h;
    n = tandem__gateway_request__pack(&req, bytes);
    memcpy(bytes + n, unknown, sizeof unknown);
    if (rpc_client_call_wait(client, bytes, n + sizeof unknown, 5000, &reply, &err) != TD_OK)
        fail_msg("%s", err.text);
    m = tandem__gateway_reply__unpack(NULL, reply.len, (const uint8_t *)reply.ptr);
    assert_non_null(m);
    st = (td_status)m->status;
    snprintf(text, cap, "%.*s", (int)m->text.len, (const char *)m->text.data);
    if (st == TD_OK) {
        assert_non_null(m->welcome);
        assert_int_equal(m->welcome->major, TD_PROTOCOL_MAJOR);
        assert_int_equal(m->welcome->minor, TD_PROTOCOL_MINOR);
    }
    tandem__gateway_reply__free_unpacked(m, NULL);
    td_buf_free(&reply);
    return st;
}

/* What no worker says: nothing, bytes of another kind, a message that names nobody. */
static void say_nothing_to_the_workers_door(cluster *c)
{
    static const char nobody[] = {0x18, 1}; /* seq 1 */
    rpc_push *push;
    td_error err = {0};

    assert_int_equal(rpc_push_open(&(rpc_push_options){.url = c->workers_url}, &push, &err), TD_OK);
    assert_int_equal(rpc_push_send(push, "", 0, &err), TD_OK);
    assert_int_equal(rpc_push_send(push, "\xff\xff", 2, &err), TD_OK);
    assert_int_equal(rpc_push_send(push, nobody, sizeof nobody, &err), TD_OK);
    E2E_AWAIT(process_log_count(c->router, "bad_worker_message") == 3);
    rpc_push_close(push);
}

/* The router's log names both ends: --router means one port to a worker and another to a gateway. */
static void knock_at_the_workers_door(cluster *c)
{
    rpc_client *client;
    td_error err = {0};

    assert_int_equal(rpc_client_open(&(rpc_client_options){.url = c->workers_url}, &client, &err),
                     TD_OK);
    E2E_AWAIT(process_log_count(c->router, "found=REQ expected=PUSH") > 0);
    rpc_client_close(client);
}

static void test_versions(cluster *c)
{
    process *router = cluster_router(c, "--rpc-listen tcp://127.0.0.1:0");
    rpc_client *client;
    char url[160], text[256];
    td_error err = {0};

    say_nothing_to_the_workers_door(c);
    knock_at_the_workers_door(c);

    rpc_url(router, url, sizeof url);
    assert_int_equal(rpc_client_open(&(rpc_client_options){.url = url}, &client, &err), TD_OK);
    assert_int_equal(say_hello(client, TD_PROTOCOL_MAJOR, 99, text, sizeof text), TD_OK);
    assert_int_equal(say_hello(client, TD_PROTOCOL_MAJOR, 0, text, sizeof text), TD_OK);
    assert_int_equal(say_hello(client, TD_PROTOCOL_MAJOR + 1, 0, text, sizeof text), TD_INVALID);
    assert_non_null(strstr(text, "the gateway 2.0"));
    rpc_client_close(client);
}

/* A worker that a router of the next major version greets. */
static void test_a_worker_refuses_another_major(cluster *c)
{
    Tandem__WorkerRequest req = TANDEM__WORKER_REQUEST__INIT;
    Tandem__Hello h = TANDEM__HELLO__INIT;
    Tandem__WorkerReply *m;
    process *router = cluster_router(c, "");
    rpc_client *client;
    uint8_t bytes[64];
    char url[160], text[256];
    td_buf reply = {0};
    td_error err = {0};

    cluster_decode(c, "");
    E2E_AWAIT(process_logged(router, "worker_joined"));
    process_log_word(router, " rpc=", url, sizeof url);
    h.major = TD_PROTOCOL_MAJOR + 1;
    h.router_id = (ProtobufCBinaryData){4, (uint8_t *)(uintptr_t) "hand"};
    req.body_case = TANDEM__WORKER_REQUEST__BODY_HELLO;
    req.hello = &h;
    assert_int_equal(rpc_client_open(&(rpc_client_options){.url = url}, &client, &err), TD_OK);
    if (rpc_client_call_wait(client, bytes, tandem__worker_request__pack(&req, bytes), 5000, &reply,
                             &err) != TD_OK)
        fail_msg("%s", err.text);
    m = tandem__worker_reply__unpack(NULL, reply.len, (const uint8_t *)reply.ptr);
    assert_non_null(m);
    assert_int_equal(m->status, TD_INVALID);
    snprintf(text, sizeof text, "%.*s", (int)m->text.len, (const char *)m->text.data);
    assert_non_null(strstr(text, "the router 2.0"));
    tandem__worker_reply__free_unpacked(m, NULL);
    td_buf_free(&reply);
    rpc_client_close(client);
}

/* A router of some version; its reply ends with fields that nobody knows. */
static void welcome(void *user, rpc_call *call, const void *bytes, size_t n)
{
    static const uint8_t unknown[] = {0xfa, 0x3f, 2, 'h', 'i', 0xf8, 0x40, 7};
    Tandem__GatewayReply m = TANDEM__GATEWAY_REPLY__INIT;
    uint8_t out[128];

    (void)bytes;
    (void)n;
    m.welcome = user;
    n = tandem__gateway_reply__pack(&m, out);
    memcpy(out + n, unknown, sizeof unknown);
    rpc_reply(call, out, n + sizeof unknown);
}

static void test_a_gateway_meets_other_routers(cluster *c)
{
    static const struct {
        uint32_t major, minor;
        td_status opens, completes;
    } cases[] = {
        /* Nothing is accepted by this router, which is INTERNAL. */
        {TD_PROTOCOL_MAJOR, TD_PROTOCOL_MINOR + 7, TD_OK, TD_INTERNAL},
        {TD_PROTOCOL_MAJOR, TD_COMPLETIONS_MINOR - 1, TD_OK, TD_UNAVAILABLE},
        {TD_PROTOCOL_MAJOR + 1, 0, TD_INVALID, TD_OK},
    };
    Tandem__GatewayWelcome w = TANDEM__GATEWAY_WELCOME__INIT;
    rpc_server_options so = {.url = "tcp://127.0.0.1:0", .on_request = welcome, .user = &w};
    rpc_server *server;
    td_error err = {0};

    (void)c;
    assert_int_equal(rpc_server_open(&so, &server, &err), TD_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gateway_options go = {.router = rpc_server_url(server)};
        gateway *g = NULL;
        uint64_t stream;

        w.major = cases[i].major;
        w.minor = cases[i].minor;
        assert_int_equal(gateway_open(&go, &g, &err), cases[i].opens);
        if (g == NULL) {
            assert_non_null(strstr(err.text, "the router 2.0"));
            continue;
        }
        assert_int_equal(gateway_complete(g, TD_SLICE("{\"prompt\":\"a\"}"), NULL, &stream, &err),
                         cases[i].completes);
        gateway_close(g);
    }
    rpc_server_close(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_versions),
        E2E_TEST(test_a_worker_refuses_another_major),
        E2E_TEST(test_a_gateway_meets_other_routers),
    };

    return cmocka_run_group_tests_name("e2e versions", tests, NULL, NULL);
}
