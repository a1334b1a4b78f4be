/* The rpc ends talk with NNG's own REQ, REP, PUSH and PULL sockets: a gateway written in any
 * language with a binding of NNG can reach a router. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <nng/nng.h>
#include <nng/protocol/pipeline0/pull.h>
#include <nng/protocol/pipeline0/push.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

#include "tests/unit/rpc_fixture.h"

/* tcp, ipc and a URL of each for one test. */
static const char *url_of(int i, char *out, size_t cap)
{
    return i == 0 ? "tcp://127.0.0.1:0" : fresh_ipc(out, cap);
}

static nng_socket open_nng(int (*open)(nng_socket *))
{
    nng_socket s;

    assert_int_equal(open(&s), 0);
    assert_int_equal(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, LONG_MS), 0);
    assert_int_equal(nng_socket_set_ms(s, NNG_OPT_SENDTIMEO, LONG_MS), 0);
    return s;
}

static void nng_send_text(nng_socket s, const char *text)
{
    assert_int_equal(nng_send(s, (void *)text, strlen(text), 0), 0);
}

static void nng_expect_text(nng_socket s, const char *text)
{
    char got[64];
    size_t n = sizeof got;

    assert_int_equal(nng_recv(s, got, &n, 0), 0);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(got, text, n);
}

static void test_rpc_server_answers_an_nng_req_socket(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char ipc[64];
        rpc_server *s =
            serve(&(rpc_server_options){.url = url_of(i, ipc, sizeof ipc), .on_request = echo});
        nng_socket req = open_nng(nng_req0_open);

        assert_int_equal(nng_dial(req, rpc_server_url(s), NULL, 0), 0);
        for (int k = 0; k < 10; k++) {
            nng_send_text(req, "from nng");
            nng_expect_text(req, "from nng");
        }
        nng_close(req);
        rpc_server_close(s);
    }
}

static void test_rpc_client_asks_an_nng_rep_socket(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char ipc[64];
        nng_socket rep = open_nng(nng_rep0_open);
        nng_listener l;
        char *url;
        rpc_client *c;

        assert_int_equal(nng_listen(rep, url_of(i, ipc, sizeof ipc), &l, 0), 0);
        assert_int_equal(nng_listener_get_string(l, NNG_OPT_URL, &url), 0);
        c = dial(&(rpc_client_options){.url = url});
        for (uintptr_t k = 1; k <= 10; k++) {
            uintptr_t got = 0;
            size_t n = sizeof got;

            call_number(c, k, LONG_MS);
            assert_int_equal(nng_recv(rep, &got, &n, 0), 0);
            assert_int_equal(got, k);
            assert_int_equal(nng_send(rep, &got, n, 0), 0);
            assert_true(tally_reaches(&seen, counter_of(TD_OK), i * 10 + (long)k));
        }
        assert_int_equal(tally_of(&seen, WRONG), 0);
        rpc_client_close(c);
        nng_close(rep);
        nng_strfree(url);
    }
}

static void test_rpc_push_fills_an_nng_pull_socket(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char ipc[64];
        nng_socket pull = open_nng(nng_pull0_open);
        rpc_push_options opt = {.url = url_of(i, ipc, sizeof ipc), .listen = true};
        rpc_push *push = NULL;

        assert_int_equal(rpc_push_open(&opt, &push, NULL), TD_OK);
        assert_int_equal(nng_dial(pull, rpc_push_url(push), NULL, 0), 0);
        assert_int_equal(rpc_push_send(push, "one", 3, NULL), TD_OK);
        assert_int_equal(rpc_push_send(push, "", 0, NULL), TD_OK);
        assert_int_equal(rpc_push_send(push, "three", 5, NULL), TD_OK);
        nng_expect_text(pull, "one");
        nng_expect_text(pull, "");
        nng_expect_text(pull, "three");
        rpc_push_close(push);
        nng_close(pull);
    }
}

static void count_text(void *user, uint32_t peer, const void *bytes, size_t n)
{
    (void)user;
    (void)peer;
    if (n != 8 || memcmp(bytes, "from nng", 8) != 0)
        tally_add(&seen, WRONG, 1);
    tally_add(&seen, REQUESTS, 1);
}

static void test_rpc_pull_takes_from_an_nng_push_socket(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char ipc[64];
        nng_socket push = open_nng(nng_push0_open);
        rpc_pull_options opt = {.url = url_of(i, ipc, sizeof ipc), .on_message = count_text};
        rpc_pull *pull = NULL;

        assert_int_equal(rpc_pull_open(&opt, &pull, NULL), TD_OK);
        assert_int_equal(nng_dial(push, rpc_pull_url(pull), NULL, 0), 0);
        for (int k = 0; k < 10; k++)
            nng_send_text(push, "from nng");
        assert_true(tally_reaches(&seen, REQUESTS, 10 * (i + 1)));
        assert_int_equal(tally_of(&seen, WRONG), 0);
        nng_close(push);
        rpc_pull_close(pull);
    }
}

/* The wrong protocol is refused, and not for ever retried in a tight loop. */
static void test_rpc_server_refuses_a_push_socket(void **state)
{
    rpc_server *s = serve(&(rpc_server_options){
        .url = "tcp://127.0.0.1:0", .on_request = echo, .on_peer = server_peer});
    nng_socket push = open_nng(nng_push0_open);
    td_buf reply = {0};
    rpc_client *c;

    (void)state;
    assert_int_equal(nng_dial(push, rpc_server_url(s), NULL, NNG_FLAG_NONBLOCK), 0);
    c = dial(&(rpc_client_options){.url = rpc_server_url(s)});
    assert_int_equal(call_text(c, "x", &reply), TD_OK);
    assert_int_equal(tally_of(&seen, UP), 1);
    td_buf_free(&reply);
    rpc_client_close(c);
    nng_close(push);
    rpc_server_close(s);
}

#define T(name) cmocka_unit_test_setup_teardown(test_rpc_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(server_answers_an_nng_req_socket), T(client_asks_an_nng_rep_socket),
        T(push_fills_an_nng_pull_socket),    T(pull_takes_from_an_nng_push_socket),
        T(server_refuses_a_push_socket),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
