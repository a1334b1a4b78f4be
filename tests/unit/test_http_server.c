/* http_server over real sockets: requests of every shape, what a client sees and when the server
 * notices. Streams and the end of connections are in test_http_stream.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

#include "tests/unit/http_client.h"
#include "tests/unit/http_fixture.h"

#define HOST "Host: t\r\n"
enum { SMALL_BODY = 1000 };

static int setup(void **state)
{
    *state = fixture_start((td_http_options){.max_body_bytes = SMALL_BODY});
    return 0;
}

static int teardown(void **state)
{
    fixture_stop(*state);
    return 0;
}

/* Ask on a connection of its own: status, and a text that the body holds. */
static void assert_answer(fixture *f, const char *request, int status, const char *body)
{
    client c = client_connect(f->port);
    response r = client_ask(&c, request);

    if (r.status != status || strstr(r.body.ptr, body) == NULL)
        fail_msg("%.200s\nwanted %d %s\ngot %s%s", request, status, body, r.head.ptr, r.body.ptr);
    response_free(&r);
    client_close(&c);
}

/* Likewise for what the server refuses: the error shape, and an end without a reset. */
static void assert_refused(fixture *f, const char *request, size_t n, int status)
{
    client c = client_connect(f->port);
    int before = fixture_count(f, &f->requests);
    response r;

    client_try_send(&c, request, n);
    r = client_read(&c, true);
    if (r.status != status)
        fail_msg("%.200s\nwanted %d\ngot %s%s", request, status, r.head.ptr, r.body.ptr);
    assert_string_equal(response_header(&r, "Content-Type"), "application/json");
    assert_string_equal(response_header(&r, "Connection"), "close");
    assert_non_null(response_header(&r, "x-request-id"));
    assert_int_equal(strncmp(r.body.ptr, "{\"error\":{\"message\":\"", 20), 0);
    assert_non_null(strstr(r.body.ptr, "\"type\":\"invalid_request_error\",\"param\":null"));
    client_await_end(&c);
    assert_int_equal(c.in.len, 0); /* what followed was not taken for another request */
    assert_int_equal(fixture_count(f, &f->requests), before);
    response_free(&r);
    client_close(&c);
}

static void test_http_keeps_the_connection_and_serves_pipelined_requests_in_order(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n");

    assert_string_equal(r.body.ptr, "GET /echo?|");
    assert_null(response_header(&r, "Connection"));
    response_free(&r);
    client_say(&c, "GET /1 HTTP/1.1\r\n" HOST "\r\n"
                   "POST /2?x=1&y=%20 HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc"
                   "HEAD /3 HTTP/1.1\r\n" HOST "\r\n"
                   "GET /4 HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    r = client_read(&c, true);
    assert_string_equal(r.body.ptr, "GET /1?|");
    response_free(&r);
    r = client_read(&c, true);
    assert_string_equal(r.body.ptr, "POST /2?x=1&y=%20|abc"); /* the query is raw */
    response_free(&r);
    r = client_read(&c, false);
    response_free(&r);
    r = client_read(&c, true);
    assert_string_equal(r.body.ptr, "GET /4?|");
    assert_string_equal(response_header(&r, "Connection"), "close");
    response_free(&r);
    client_await_end(&c);
    assert_int_equal(c.in.len, 0);
    client_close(&c);
}

static void test_http_pipelined_request_waits_for_a_late_reply(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r;

    client_say(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\nGET /next HTTP/1.1\r\n" HOST "\r\n");
    fixture_await(f, &f->requests, 1);
    fixture_release(f);
    r = client_read(&c, true);
    assert_string_equal(r.body.ptr, "held");
    response_free(&r);
    r = client_read(&c, true);
    assert_string_equal(r.body.ptr, "GET /next?|");
    response_free(&r);
    client_close(&c);
}

static void test_http_request_may_come_byte_by_byte(void **state)
{
    static const char request[] =
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n6 \r\n world\r\n0\r\nTrailer: x\r\n\r\n";
    fixture *f = *state;
    client c = client_connect(f->port);
    response r;

    for (int round = 0; round < 2; round++) { /* nothing is left over for the next one */
        for (size_t i = 0; i < sizeof request - 1; i++)
            client_send(&c, request + i, 1);
        r = client_read(&c, true);
        assert_string_equal(r.body.ptr, "POST /echo?|hello world");
        response_free(&r);
    }
    client_close(&c);
}

static void test_http_body_of_exactly_the_limit_is_served(void **state)
{
    char request[SMALL_BODY + 200];
    int n = snprintf(request, sizeof request,
                     "POST / HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n", SMALL_BODY);

    memset(request + n, 'x', SMALL_BODY);
    request[n + SMALL_BODY] = '\0';
    assert_answer(*state, request, 200, "POST /?|xxx");
}

static void test_http_oversize_bodies_get_413_even_when_sent_whole(void **state)
{
    enum { BIG = 8 << 20 }; /* more than the sockets hold, so that it must be read to be sent */
    fixture *f = *state;
    char *big = malloc(BIG);
    client c;
    response r;
    int n;

    memset(big, 'x', BIG);
    n = sprintf(big, "POST / HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n", BIG);
    big[n] = 'x';
    c = client_connect(f->port);
    client_send(&c, big, BIG);
    r = client_read(&c, true);
    assert_int_equal(r.status, 413);
    assert_non_null(strstr(r.body.ptr, "larger than 1000 bytes"));
    response_free(&r);
    client_close(&c);

    n = sprintf(big, "POST / HTTP/1.1\r\n" HOST "Content-Length: 1001\r\n\r\n");
    assert_refused(f, big, (size_t)n, 413); /* before the body is sent at all */
    n = sprintf(big, "POST / HTTP/1.1\r\n" HOST "Content-Length: 1001\r\n"
                     "Expect: 100-continue\r\n\r\n");
    assert_refused(f, big, (size_t)n, 413);
    n = sprintf(big,
                "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                "3e8\r\n%01000d\r\n1\r\nx\r\n0\r\n\r\n",
                0);
    assert_refused(f, big, (size_t)n, 413);
    n = sprintf(big, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nzz\r\n");
    assert_refused(f, big, (size_t)n, 413);
    free(big);
}

static void test_http_expect_continue_is_answered_first(void **state)
{
    fixture *f = *state;
    char text[300];
    int n;
    client c = client_connect(f->port);
    response r = client_ask(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n"
                                "Expect: 100-continue\r\n\r\n");

    assert_int_equal(r.status, 100);
    response_free(&r);
    r = client_ask(&c, "hi");
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body.ptr, "POST /echo?|hi");
    response_free(&r);
    client_close(&c);
    n = sprintf(text, "POST / HTTP/1.1\r\n" HOST "Expect: a miracle\r\nContent-Length: 1\r\n\r\nx");
    assert_refused(f, text, (size_t)n, 417);
    /* Chunks that a client sends without waiting, of which one is bad: the 100 stays a 100. */
    n = sprintf(text, "POST / HTTP/1.1\r\n" HOST "Expect: 100-continue\r\n"
                      "Transfer-Encoding: chunked\r\n\r\n");
    c = client_connect(f->port);
    client_send(&c, text, (size_t)n);
    assert_true(client_await(&c, "HTTP/1.1 100 Continue\r\n\r\n"));
    client_say(&c, "5;extensions=refused\r\nhello\r\n0\r\n\r\n");
    assert_true(client_await(&c, "HTTP/1.1 413 "));
    client_close(&c);
}

static void test_http_oversize_heads_get_431(void **state)
{
    enum { N = 70 << 10 };
    fixture *f = *state;
    char *big = malloc(N + 100);
    response r;
    client c;
    int n;

    n = sprintf(big, "GET /%060000d HTTP/1.1\r\n" HOST "\r\n", 0); /* long, and within the limit */
    c = client_connect(f->port);
    r = client_ask(&c, big);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body.len, 4 + 60001 + 2);
    response_free(&r);
    client_close(&c);
    n = sprintf(big, "GET /%070000d HTTP/1.1\r\n" HOST "\r\n", 0);
    assert_refused(f, big, (size_t)n, 431);
    n = sprintf(big, "GET / HTTP/1.1\r\n" HOST "x-long: %070000d\r\n\r\n", 0);
    assert_refused(f, big, (size_t)n, 431);
    memset(big, 'a', N); /* no line end in sight */
    assert_refused(f, big, N, 431);
    n = sprintf(big, "GET / HTTP/1.1\r\n" HOST);
    for (int i = 0; i < 4; i++) /* the sum counts, though each line is short enough */
        n += sprintf(big + n, "x: %017000d\r\n", i);
    n += sprintf(big + n, "\r\n");
    assert_refused(f, big, (size_t)n, 431);
    free(big);
}

static void test_http_malformed_and_ambiguous_heads_are_refused(void **state)
{
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"GET /\r\n\r\n", 400},
        {"nonsense on the wire\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\n" HOST "\r\n", 400},
        {"GET / HTTP/0.9\r\n" HOST "\r\n", 505},
        {"GET / HTTP/1.-1\r\n" HOST "\r\n", 505},
        {"GET / HTTP/1.200\r\n" HOST "\r\n", 505},
        {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST HOST "\r\n", 400},
        {"BREW /pot HTTP/1.1\r\n" HOST "\r\n", 501},
        {"TRACE / HTTP/1.1\r\n" HOST "\r\n", 501},
        {"CONNECT t:80 HTTP/1.1\r\n" HOST "\r\n", 501},
        /* two ends of the body, of which a proxy may believe the other one */
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
         "0\r\n\r\n",
         400},
        {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length : 3\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n",
         400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: +3\r\n\r\nabc", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: -3\r\n\r\nabc", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 0x3\r\n\r\nabc", 400},
        {"POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
         415},
        {"GET / HTTP/1.1\r\n" HOST "Authorization: a\r\nAuthorization: b\r\n\r\n", 400},
        /* paths */
        {"GET no-slash HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /a b HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%zz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /% HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%2 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /a%00b HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%ff HTTP/1.1\r\n" HOST "\r\n", 400},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[2000];

        assert_refused(*state, cases[i].request, strlen(cases[i].request), cases[i].status);
        /* and what comes behind it in the same packet is not served */
        snprintf(more, sizeof more, "%sGET /smuggled HTTP/1.1\r\n" HOST "\r\n%01000d",
                 cases[i].request, 0);
        assert_refused(*state, more, strlen(more), cases[i].status);
    }
}

static void test_http_a_malformed_head_behind_a_good_request_is_refused_too(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "GET /good HTTP/1.1\r\n" HOST "\r\nbad\r\n\r\n");

    assert_int_equal(r.status, 200);
    response_free(&r);
    r = client_read(&c, true);
    assert_int_equal(r.status, 400);
    assert_string_equal(response_header(&r, "Content-Type"), "application/json");
    response_free(&r);
    client_await_end(&c);
    client_close(&c);
}

static void test_http_head_with_a_body_is_refused(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r;

    client_say(&c, "HEAD / HTTP/1.1\r\n" HOST "Content-Length: 30\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    r = client_read(&c, false);
    assert_int_equal(r.status, 400);
    response_free(&r);
    client_await_end(&c);
    assert_int_equal(c.in.len, 0);
    client_close(&c);
}

static void test_http_paths_are_decoded_and_queries_are_not(void **state)
{
    fixture *f = *state;

    assert_answer(f, "GET /a%20b/%C3%A9%2F%25?q=%41#frag HTTP/1.1\r\n" HOST "\r\n", 200,
                  "GET /a b/\xc3\xa9/%?q=%41|");
    assert_answer(f, "GET //two//slashes? HTTP/1.1\r\n" HOST "\r\n", 200, "GET //two//slashes?|");
    assert_answer(f, "GET http://t:1/abs?z HTTP/1.1\r\n" HOST "\r\n", 200, "GET /abs?z|");
    assert_answer(f, "OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 200, "OPTIONS *?|");
    assert_answer(f, "PATCH / HTTP/1.1\r\n" HOST "\r\n", 200, "PATCH /?|");
}

static void test_http_head_gets_the_head_alone(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "HEAD /echo HTTP/1.1\r\n" HOST "\r\n");

    assert_int_equal(r.status, 200);
    assert_string_equal(response_header(&r, "Content-Length"), "12");
    response_free(&r);
    r = client_ask(&c, "GET /after HTTP/1.1\r\n" HOST "\r\n"); /* no stray body before it */
    assert_string_equal(r.body.ptr, "GET /after?|");
    response_free(&r);
    client_close(&c);
}

static void test_http_headers_ids_and_errors(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r;
    char id[64];

    assert_answer(f, "GET /header HTTP/1.1\r\n" HOST "x-tEsT:  v 1 \r\n\r\n", 200, "v 1");
    assert_answer(f, "GET /header HTTP/1.1\r\n" HOST "\r\n", 200, "none");
    r = client_ask(&c, "GET / HTTP/1.1\r\n" HOST "X-Request-Id: from-client.7\r\n\r\n");
    assert_string_equal(response_header(&r, "x-request-id"), "from-client.7");
    response_free(&r);
    r = client_ask(&c, "GET / HTTP/1.1\r\n" HOST "X-Request-Id: two words\r\n\r\n");
    strcpy(id, response_header(&r, "x-request-id"));
    assert_int_equal(strlen(id), 24);
    response_free(&r);
    r = client_ask(&c, "GET /error HTTP/1.1\r\n" HOST "\r\n");
    assert_string_not_equal(response_header(&r, "x-request-id"), id);
    assert_int_equal(r.status, 429);
    assert_string_equal(response_header(&r, "Retry-After"), "3");
    assert_string_equal(
        r.body.ptr, "{\"error\":{\"message\":\"say \\\"no\\\" \xef\xbf\xbd\\n\","
                    "\"type\":\"rate_limit_exceeded\",\"param\":\"messages[0]\",\"code\":null}}");
    response_free(&r);
    client_close(&c);
}

static void test_http_10_closes_unless_asked_to_keep(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");

    assert_string_equal(response_header(&r, "Connection"), "keep-alive");
    response_free(&r);
    r = client_ask(&c, "GET /b HTTP/1.0\r\n\r\n");
    assert_string_equal(r.body.ptr, "GET /b?|");
    response_free(&r);
    client_await_end(&c);
    client_close(&c);
}

static void test_http_answers_in_the_version_that_it_speaks(void **state)
{
    fixture *f = *state;
    client c = client_connect(f->port);
    response r = client_ask(&c, "POST /a HTTP/1.7\r\n" HOST "Content-Encoding: identity\r\n"
                                "Content-Length: 1\r\n\r\nx");

    assert_memory_equal(r.head.ptr, "HTTP/1.1 200 ", 13);
    response_free(&r);
    client_close(&c);
}

static void test_http_a_half_closed_client_still_gets_an_answer_given_at_once(void **state)
{
    fixture *f = *state;

    for (int i = 0; i < 20; i++) {
        client c = client_connect(f->port);
        response r;

        client_say(&c, "GET /echo HTTP/1.0\r\n\r\n");
        shutdown(c.fd, SHUT_WR);
        r = client_read(&c, true);
        assert_string_equal(r.body.ptr, "GET /echo?|");
        response_free(&r);
        client_close(&c);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_http_keeps_the_connection_and_serves_pipelined_requests_in_order),
        T(test_http_pipelined_request_waits_for_a_late_reply),
        T(test_http_request_may_come_byte_by_byte),
        T(test_http_body_of_exactly_the_limit_is_served),
        T(test_http_oversize_bodies_get_413_even_when_sent_whole),
        T(test_http_expect_continue_is_answered_first),
        T(test_http_oversize_heads_get_431),
        T(test_http_malformed_and_ambiguous_heads_are_refused),
        T(test_http_a_malformed_head_behind_a_good_request_is_refused_too),
        T(test_http_head_with_a_body_is_refused),
        T(test_http_paths_are_decoded_and_queries_are_not),
        T(test_http_head_gets_the_head_alone),
        T(test_http_headers_ids_and_errors),
        T(test_http_10_closes_unless_asked_to_keep),
        T(test_http_answers_in_the_version_that_it_speaks),
        T(test_http_a_half_closed_client_still_gets_an_answer_given_at_once),
    };

    return cmocka_run_group_tests_name("http_server", tests, NULL, NULL);
}
