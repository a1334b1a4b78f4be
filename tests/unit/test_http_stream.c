/* http_server over time: streams, slow and vanishing clients, timeouts, the graceful stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <sys/socket.h>
#include <cmocka.h>

#include "tests/unit/http_client.h"
#include "tests/unit/http_fixture.h"

#define HOST "Host: t\r\n"

static int setup(void **state)
{
    *state = fixture_start((td_http_options){0});
    return 0;
}

static int setup_short_timeout(void **state)
{
    *state = fixture_start((td_http_options){.read_timeout_us = 100 * TD_USEC_PER_MSEC});
    return 0;
}

static int teardown(void **state)
{
    fixture_stop(*state);
    return 0;
}

static void whole_stream(td_buf *b)
{
    td_buf_clear(b);
    for (int i = 0; i < N_EVENTS; i++)
        td_buf_fmt(b, "data: %d\n\n", i);
}

static void test_http_stream_is_chunked_and_the_connection_goes_on(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    td_buf want = {0};

    whole_stream(&want);
    for (int i = 0; i < 2; i++) {
        response r = client_ask(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");

        assert_string_equal(response_header(&r, "Transfer-Encoding"), "chunked");
        assert_string_equal(response_header(&r, "Content-Type"), "text/event-stream");
        assert_string_equal(response_header(&r, "Cache-Control"), "no-cache");
        assert_string_equal(r.body.ptr, want.ptr);
        assert_false(r.cut);
        response_free(&r);
    }
    td_buf_free(&want);
    client_close(&c);
}

static void test_http_stream_to_http_10_ends_with_the_connection(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    td_buf want = {0};

    whole_stream(&want);
    assert_null(response_header(&r, "Content-Length"));
    assert_string_equal(response_header(&r, "Connection"), "close");
    assert_string_equal(r.body.ptr, want.ptr);
    response_free(&r);
    td_buf_free(&want);
    client_close(&c);
}

static void test_http_stream_to_head_has_no_body(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "HEAD /stream HTTP/1.1\r\n" HOST "\r\n");

    assert_int_equal(r.status, 200);
    response_free(&r);
    r = client_ask(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(r.body.ptr, "GET /echo?|");
    response_free(&r);
    client_close(&c);
}

static void test_http_200_streams_at_once_all_complete(void **state)
{
    enum { N = 200 };
    fixture *f = *state;
    client *clients = calloc(N, sizeof *clients);
    td_buf want = {0};

    whole_stream(&want);
    for (int i = 0; i < N; i++) {
        clients[i] = client_connect(f->port);
        client_say(&clients[i], "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    }
    fixture_await(f, &f->requests, N);
    assert_true(td_gauge_value(f->connections) == N);
    for (int i = 0; i < N; i++) {
        response r = client_read(&clients[i], true);

        assert_string_equal(r.body.ptr, want.ptr);
        response_free(&r);
        client_close(&clients[i]);
    }
    assert_int_equal(fixture_count(f, &f->closes), 0);
    td_buf_free(&want);
    free(clients);
}

static void test_http_a_client_that_goes_is_noticed_at_once(void **state)
{
    static const struct {
        const char *request, *until;
    } cases[] = {
        {"GET /hold HTTP/1.1\r\n" HOST "\r\n", NULL},       /* before the reply */
        {"GET /open HTTP/1.1\r\n" HOST "\r\n", "open\r\n"}, /* in a stream that says nothing */
        {"GET /hold HTTP/1.1\r\n" HOST "\r\nGET /x HTTP/1.1\r\n" HOST "\r\n", NULL},
    };
    fixture *f = *state;

    for (int i = 0; i < 3; i++) {
        client c = client_connect(f->port);

        client_say(&c, cases[i].request);
        fixture_await(f, &f->requests, i + 1);
        if (cases[i].until != NULL)
            assert_true(client_await(&c, cases[i].until));
        assert_int_equal(fixture_count(f, &f->closes), i);
        client_close(&c);
        fixture_await(f, &f->closes, i + 1); /* no write is needed to find out */
    }
    assert_int_equal(fixture_count(f, &f->requests),
                     3); /* what came behind a held request died with it */
}

static void test_http_a_client_that_sends_on_and_on_is_sent_away(void **state)
{
    enum { FEW = 30000, N = 1 << 20 };
    fixture *f = *state;
    client c = client_connect(f->port);
    char *more = malloc(N);

    memset(more, 'x', N);
    client_say(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 1);
    client_send(&c, more, FEW); /* pipelined requests may look like this */
    fixture_release(f);
    assert_true(client_await(&c, "held"));
    client_close(&c);

    c = client_connect(f->port);
    client_say(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 2);
    client_try_send_now(&c, more, N);
    fixture_await(f, &f->closes, 1); /* the server does not hold it, and does not stop looking */
    client_close(&c);
    free(more);
}

static void test_http_a_reset_in_mid_stream_is_noticed(void **state)
{
    static const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    fixture *f = *state;
    client c = client_connect(f->port);

    client_say(&c, "GET /open HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_await(&c, "open"));
    setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    client_close(&c);
    fixture_await(f, &f->closes, 1);
}

static void test_http_cut_delivers_what_was_written_and_no_end(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "GET /cut HTTP/1.1\r\n" HOST "\r\n");

    assert_string_equal(r.body.ptr, "part");
    assert_true(r.cut);
    response_free(&r);
    client_close(&c);
}

static void abort_held(void *arg)
{
    fixture *f = arg;

    td_http_abort(f->held);
    f->held = NULL;
}

static void test_http_abort_closes_without_an_end_and_without_on_close(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);

    client_say(&c, "GET /abort HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_await(&c, "part\r\n"));
    fixture_call(f, abort_held, f);
    client_await_end(&c);
    assert_null(strstr(c.in.ptr, "\r\n0\r\n"));
    client_close(&c);

    c = client_connect(f->port); /* also before a reply */
    client_say(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 2);
    fixture_call(f, abort_held, f);
    client_await_end(&c);
    assert_int_equal(c.in.len, 0);
    client_close(&c);
    assert_int_equal(fixture_count(f, &f->closes), 0);
}

static void test_http_pending_bytes_tell_of_a_slow_client(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);

    client_say(&c, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->aborts, 1);
    assert_true(f->most_pending > 256 << 10 && f->most_pending < 400 << 10);
    client_await_end(&c);
    client_close(&c);
}

static void test_http_half_sent_requests_and_idle_connections_time_out(void **state)
{
    static const char *const beginnings[] = {
        "", "GET / HT", "GET / HTTP/1.1\r\n" HOST,
        "POST / HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nabc",
        "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nab"};
    fixture *f = *state;

    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        client c = client_connect(f->port);

        client_say(&c, beginnings[i]);
        client_await_end(&c);
        assert_int_equal(c.in.len, 0);
        client_close(&c);
    }
    assert_int_equal(fixture_count(f, &f->requests), 0);
}

static void test_http_a_dripping_request_times_out_too(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    td_usec start = td_now_us();
    bool closed = false;

    client_say(&c, "GET / HTTP/1.1\r\n");
    while (!closed && td_now_us() < start + CLIENT_DEADLINE_MS * TD_USEC_PER_MSEC) {
        struct pollfd p = {.fd = c.fd, .events = POLLIN};

        if (poll(&p, 1, 10) > 0) /* the end is the only thing that can come */
            closed = true;
        else if (send(c.fd, "x", 1, MSG_NOSIGNAL) < 0)
            closed = true;
    }
    assert_true(closed);
    client_close(&c);
}

static void test_http_timeouts_spare_what_the_program_is_busy_with(void **state)
{
    fixture *f = *state;
    client held = client_connect(f->port), idle = client_connect(f->port);
    response r;

    client_say(&held, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 1);
    for (int i = 0; i < 3; i++) { /* three times the timeout, by the server's own clock */
        client_close(&idle);
        idle = client_connect(f->port);
        client_await_end(&idle);
    }
    fixture_release(f);
    r = client_read(&held, true);
    assert_string_equal(r.body.ptr, "held");
    response_free(&r);
    client_close(&held);
    client_close(&idle);
}

static void test_http_a_reply_that_nobody_reads_times_out(void **state)
{
    enum { BIG = 3 << 20, SMALL_WINDOW = 4096 };
    fixture *f = *state;
    char *request = malloc(BIG + 200);
    int n = sprintf(request, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n", BIG);
    client c = client_connect(f->port), other;
    int window = SMALL_WINDOW;

    setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
    memset(request + n, 'x', BIG);
    for (int i = 0; i < 4; i++) /* more than the server's send buffer holds */
        client_try_send(&c, request, (size_t)(n + BIG));
    other = client_connect(f->port);
    client_await_end(&other); /* its idle timeout; the reader's is as long */
    client_close(&other);
    client_await_end(&c);
    assert_true(c.in.len < 4 * BIG);
    client_close(&c);
    free(request);
}

static void on_idle(void *arg)
{
    fixture *f = arg;

    pthread_mutex_lock(&f->lock);
    f->idles++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void stop_server(void *arg)
{
    fixture *f = arg;

    td_http_server_stop(f->server, on_idle, f);
    td_assert(fixture_count(f, &f->idles) == 0); /* never from within the call */
}

static void test_http_stop_finishes_what_is_open_and_then_tells(void **state)
{
    fixture *f = *state;
    client idle = client_connect(f->port), held = client_connect(f->port);
    client stream = client_connect(f->port), half = client_connect(f->port);
    td_buf want = {0};
    response r = client_ask(&idle, "GET / HTTP/1.1\r\n" HOST "\r\n");

    response_free(&r);
    client_say(&half, "GET /half HTTP/1.1\r\n");
    client_say(&held, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 2);
    client_say(&stream, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 3);
    fixture_call(f, stop_server, f);

    client_await_end(&idle);
    r = client_read(&stream, true);
    whole_stream(&want);
    assert_string_equal(r.body.ptr, want.ptr);
    response_free(&r);
    client_await_end(&stream);
    client_say(&half, HOST "\r\n");
    r = client_read(&half, true);
    assert_string_equal(r.body.ptr, "GET /half?|");
    assert_string_equal(response_header(&r, "Connection"), "close");
    response_free(&r);
    assert_int_equal(fixture_count(f, &f->idles), 0);
    fixture_release(f);
    r = client_read(&held, true);
    assert_string_equal(r.body.ptr, "held");
    response_free(&r);
    client_await_end(&held);
    fixture_await(f, &f->idles, 1);
    assert_true(td_gauge_value(f->connections) == 0);
    client_close(&idle);
    client_close(&held);
    client_close(&stream);
    client_close(&half);
    td_buf_free(&want);
}

static void test_http_stop_of_an_unused_server_tells_too(void **state)
{
    fixture *f = *state;

    fixture_call(f, stop_server, f);
    fixture_await(f, &f->idles, 1);
}

static void free_server(void *arg)
{
    fixture *f = arg;

    td_http_server_free(f->server);
    f->server = NULL;
}

static void test_http_free_closes_everything_and_says_so(void **state)
{
    fixture *f = *state;
    client held = client_connect(f->port), stream = client_connect(f->port);
    client idle = client_connect(f->port);

    client_say(&held, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    client_say(&stream, "GET /open HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 2);
    fixture_call(f, free_server, f);
    assert_int_equal(fixture_count(f, &f->closes), 2);
    client_await_end(&held);
    client_await_end(&stream);
    client_await_end(&idle);
    assert_true(td_gauge_value(f->connections) == 0);
    client_close(&held);
    client_close(&stream);
    client_close(&idle);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define T_SHORT(name) cmocka_unit_test_setup_teardown(name, setup_short_timeout, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_http_stream_is_chunked_and_the_connection_goes_on),
        T(test_http_stream_to_http_10_ends_with_the_connection),
        T(test_http_stream_to_head_has_no_body),
        T(test_http_200_streams_at_once_all_complete),
        T(test_http_a_client_that_goes_is_noticed_at_once),
        T(test_http_a_client_that_sends_on_and_on_is_sent_away),
        T(test_http_a_reset_in_mid_stream_is_noticed),
        T(test_http_cut_delivers_what_was_written_and_no_end),
        T(test_http_abort_closes_without_an_end_and_without_on_close),
        T(test_http_pending_bytes_tell_of_a_slow_client),
        T_SHORT(test_http_half_sent_requests_and_idle_connections_time_out),
        T_SHORT(test_http_a_dripping_request_times_out_too),
        T_SHORT(test_http_timeouts_spare_what_the_program_is_busy_with),
        T_SHORT(test_http_a_reply_that_nobody_reads_times_out),
        T(test_http_stop_finishes_what_is_open_and_then_tells),
        T(test_http_stop_of_an_unused_server_tells_too),
        T(test_http_free_closes_everything_and_says_so),
    };

    return cmocka_run_group_tests_name("http_stream", tests, NULL, NULL);
}
