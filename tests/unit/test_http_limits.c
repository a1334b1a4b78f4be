/* http_server: how many connections there may be, and how long they may do nothing. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

#include "tests/unit/http_client.h"
#include "tests/unit/http_fixture.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: t\r\n\r\n"

enum { FEW = 4, MANY = 1000 };

static void assert_echo(client *c)
{
    response r = client_ask(c, GET("/echo"));

    assert_int_equal(r.status, 200);
    response_free(&r);
}

static void test_http_one_connection_too_many_takes_the_idlest_place(void **state)
{
    fixture *f = fixture_start((td_http_options){.max_connections = FEW});
    client c[FEW], more;

    (void)state;
    for (int i = 0; i < FEW; i++) {
        c[i] = client_connect(f->port);
        assert_echo(&c[i]);
    }
    assert_echo(&c[0]); /* the second is the idlest now */
    more = client_connect(f->port);
    assert_echo(&more);
    client_await_end(&c[1]);
    assert_int_equal(c[1].in.len, 0);
    assert_echo(&c[0]);
    for (int i = 2; i < FEW; i++)
        assert_echo(&c[i]);
    for (int i = 0; i < FEW; i++)
        client_close(&c[i]);
    client_close(&more);
    fixture_stop(f);
}

/* Where nobody is idle, nobody is cut: the newest is told. */
static void test_http_one_connection_too_many_among_busy_ones_is_told(void **state)
{
    fixture *f = fixture_start((td_http_options){.max_connections = FEW});
    client c[FEW], more;
    response r;

    (void)state;
    for (int i = 0; i < FEW; i++) {
        c[i] = client_connect(f->port);
        client_say(&c[i], GET("/open"));
        assert_true(client_await(&c[i], "open"));
    }
    for (int i = 0; i < 3; i++) {
        more = client_connect(f->port);
        client_say(&more, GET("/echo"));
        r = client_read(&more, true);
        assert_int_equal(r.status, 503);
        assert_string_equal(response_header(&r, "Retry-After"), "1");
        assert_non_null(strstr(r.body.ptr, "as many connections"));
        assert_false(r.cut);
        client_await_end(&more);
        response_free(&r);
        client_close(&more);
    }
    assert_int_equal(fixture_count(f, &f->closes), 0);
    client_close(&c[0]);
    fixture_await(f, &f->closes, 1);
    more = client_connect(f->port);
    assert_echo(&more);
    for (int i = 1; i < FEW; i++)
        client_close(&c[i]);
    client_close(&more);
    fixture_stop(f);
}

/* Requests that never end do not keep others out for longer than it takes to tell them. */
static void test_http_half_sent_requests_give_way(void **state)
{
    fixture *f = fixture_start((td_http_options){.max_connections = FEW});
    struct pollfd ends[FEW];
    client c[FEW];
    int status = 0;

    (void)state;
    for (int i = 0; i < FEW; i++) {
        c[i] = client_connect(f->port);
        client_say(&c[i], "GET /echo HTTP/1.1\r\nHo");
        ends[i] = (struct pollfd){.fd = c[i].fd, .events = POLLIN};
    }
    while (status != 200) { /* each answer is a step; the server ends it */
        client more = client_connect(f->port);
        response r = client_ask(&more, GET("/echo"));

        status = r.status;
        assert_true(status == 200 || status == 503);
        response_free(&r);
        client_close(&more);
    }
    /* The one that it has known for longest, which need not be the first that was begun. */
    assert_true(poll(ends, FEW, CLIENT_DEADLINE_MS) > 0);
    for (int i = 0; i < FEW; i++) {
        if (ends[i].revents != 0)
            client_await_end(&c[i]);
    }
    for (int i = 0; i < FEW; i++)
        client_close(&c[i]);
    fixture_stop(f);
}

static void test_http_idle_connections_have_a_time_of_their_own(void **state)
{
    fixture *f = fixture_start((td_http_options){.idle_timeout_us = 100 * TD_USEC_PER_MSEC});
    client fresh = client_connect(f->port), used = client_connect(f->port);

    (void)state;
    assert_echo(&used);
    client_await_end(&used);
    client_await_end(&fresh);
    client_close(&fresh);
    client_close(&used);
    fixture_stop(f);
    /* and the other way round: a request that stays half sent does not have it */
    f = fixture_start((td_http_options){.read_timeout_us = 100 * TD_USEC_PER_MSEC,
                                        .idle_timeout_us = 600 * TD_USEC_PER_SEC});
    fresh = client_connect(f->port);
    used = client_connect(f->port);
    client_say(&used, "GET /echo HTTP/1.1\r\nHo");
    client_await_end(&used);
    assert_echo(&fresh);
    client_close(&fresh);
    client_close(&used);
    fixture_stop(f);
}

/* A thousand that say nothing are no burden to the one that asks. */
static void test_http_a_thousand_idle_connections_hold_up_nobody(void **state)
{
    client *c = calloc(MANY, sizeof *c), asks;
    struct rlimit files;
    fixture *f;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < 2 * MANY + 100) {
        free(c);
        skip(); /* both ends of each are ours */
    }
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    f = fixture_start((td_http_options){0});
    for (int i = 0; i < MANY; i++)
        c[i] = client_connect(f->port);
    asks = client_connect(f->port);
    for (int i = 0; i < 20; i++)
        assert_echo(&asks);
    assert_echo(&c[0]);
    assert_echo(&c[MANY - 1]);
    for (int i = 0; i < MANY; i++)
        client_close(&c[i]);
    client_close(&asks);
    free(c);
    fixture_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_one_connection_too_many_takes_the_idlest_place),
        cmocka_unit_test(test_http_one_connection_too_many_among_busy_ones_is_told),
        cmocka_unit_test(test_http_half_sent_requests_give_way),
        cmocka_unit_test(test_http_idle_connections_have_a_time_of_their_own),
        cmocka_unit_test(test_http_a_thousand_idle_connections_hold_up_nobody),
    };

    return cmocka_run_group_tests_name("http_limits", tests, NULL, NULL);
}
