/* http_server and http_admin: addresses, sharing a port, running out of descriptors, the paths that
 * a worker serves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/http_admin.h"
#include "tests/unit/http_client.h"
#include "tests/unit/http_fixture.h"

#define HOST "Host: t\r\n"

static int setup(void **state)
{
    *state = fixture_start((td_http_options){0});
    return 0;
}

static int teardown(void **state)
{
    fixture_stop(*state);
    return 0;
}

static void test_http_listen_addresses_are_checked(void **state)
{
    fixture *f = *state;
    td_http_options o = {.on_request = (td_http_fn)abort};
    static const char *const bad[] = {"",       "127.0.0.1",      "127.0.0.1:", "127.0.0.1:x",
                                      ":65536", "300.1.1.1.1:80", "a b:80",     NULL};
    char taken[32];
    td_http_server *s;
    td_loop *loop;
    td_error err;

    assert_int_equal(td_loop_create(&loop, &err), TD_OK);
    for (size_t i = 0; bad[i] != NULL; i++) {
        o.listen = bad[i];
        assert_int_equal(td_http_server_create(loop, &o, &s, &err), TD_INVALID);
    }
    snprintf(taken, sizeof taken, "127.0.0.1:%u", f->port);
    o.listen = taken;
    assert_int_equal(td_http_server_create(loop, &o, &s, &err), TD_IO);
    assert_non_null(strstr(err.text, "Address already in use"));
    o.listen = "[::1]:0";
    if (td_http_server_create(loop, &o, &s, &err) == TD_OK) { /* where the machine has IPv6 */
        assert_int_not_equal(td_http_server_port(s), 0);
        td_http_server_free(s);
    }
    td_loop_free(loop);
}

static void test_http_servers_with_reuse_port_share_one(void **state)
{
    enum { N = 64 };
    fixture *a = fixture_start((td_http_options){.reuse_port = true}), *b;
    char listen[32];

    (void)state;
    snprintf(listen, sizeof listen, "127.0.0.1:%u", a->port);
    b = fixture_start((td_http_options){.reuse_port = true, .listen = listen});
    for (int i = 0; i < N; i++) {
        client c = client_connect(a->port);
        response r = client_ask(&c, "GET / HTTP/1.1\r\n" HOST "\r\n");

        assert_int_equal(r.status, 200);
        response_free(&r);
        client_close(&c);
    }
    /* The kernel spreads by a hash: that one side gets none of 64 has a chance of 2^-63. */
    assert_in_range(fixture_count(a, &a->requests), 1, N - 1);
    assert_int_equal(fixture_count(a, &a->requests) + fixture_count(b, &b->requests), N);
    fixture_stop(a);
    fixture_stop(b);
}

static void do_nothing(void *arg)
{
    (void)arg;
}

static void test_http_accepts_again_after_running_out_of_descriptors(void **state)
{
    enum { MAX = 4096 };
    fixture *f = *state;
    int *fillers = malloc(MAX * sizeof *fillers), n = 0;
    struct rlimit old, low;
    response r;
    client c;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (n < MAX && (fillers[n] = open("/dev/null", O_RDONLY)) >= 0)
        n++;
    assert_in_range(n, 1, MAX - 1);
    close(fillers[--n]); /* room for the client's end, and none for the server's */
    c = client_connect(f->port);
    client_say(&c, "GET / HTTP/1.1\r\n" HOST "\r\n");
    fixture_call(f, do_nothing, NULL); /* the loop is alive, it does not spin in accept */
    while (n > 0)
        close(fillers[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    r = client_read(&c, true);
    assert_int_equal(r.status, 200);
    response_free(&r);
    client_close(&c);
    free(fillers);
}

/* Ask on a connection of its own: status, and a text that the body holds. */
static void assert_answer(uint16_t port, const char *request, int status, const char *body)
{
    client c = client_connect(port);
    response r = client_ask(&c, request);

    if (r.status != status || strstr(r.body.ptr, body) == NULL)
        fail_msg("%.200s\nwanted %d %s\ngot %s%s", request, status, body, r.head.ptr, r.body.ptr);
    response_free(&r);
    client_close(&c);
}

static bool not_ready(void *arg, td_buf *why)
{
    const int *layers = arg;

    td_buf_fmt(why, "loading weights: %d of 36 layers", *layers);
    return *layers == 36;
}

static void test_http_admin_serves_health_readiness_and_metrics(void **state)
{
    fixture *f = *state;
    uint16_t port;
    int layers = 12;
    td_http_admin *a;

    assert_int_equal(td_http_admin_start("127.0.0.1:0", f->metrics, not_ready, &layers, &a, NULL),
                     TD_OK);
    port = td_http_admin_port(a);
    assert_answer(port, "GET /health HTTP/1.1\r\n" HOST "\r\n", 200, "ok");
    assert_answer(port, "GET /ready HTTP/1.1\r\n" HOST "\r\n", 503,
                  "loading weights: 12 of 36 layers");
    assert_answer(port, "GET /metrics HTTP/1.1\r\n" HOST "\r\n", 200,
                  "# TYPE tandem:http_connections gauge\n");
    assert_answer(port, "POST /metrics HTTP/1.1\r\n" HOST "\r\n", 405, "use GET");
    assert_answer(port, "GET /else HTTP/1.1\r\n" HOST "\r\n", 404, "/metrics");
    td_http_admin_stop(a);
    layers = 36;
    assert_int_equal(td_http_admin_start("127.0.0.1:0", f->metrics, not_ready, &layers, &a, NULL),
                     TD_OK);
    port = td_http_admin_port(a);
    assert_answer(port, "GET /ready HTTP/1.1\r\n" HOST "\r\n", 200, "ready");
    td_http_admin_stop(a);
    td_http_admin_stop(NULL);
    assert_int_equal(td_http_admin_start("nowhere", f->metrics, NULL, NULL, &a, NULL), TD_INVALID);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_http_listen_addresses_are_checked),
        cmocka_unit_test(test_http_servers_with_reuse_port_share_one),
        T(test_http_accepts_again_after_running_out_of_descriptors),
        T(test_http_admin_serves_health_readiness_and_metrics),
    };

    return cmocka_run_group_tests_name("http_listen", tests, NULL, NULL);
}
