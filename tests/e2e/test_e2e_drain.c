/* SIGTERM: what runs comes to its end, nothing new begins, and the process exits 0. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/cluster.h"

enum { N = 8 };

static const want stream = {.prompt = "tell", .max_tokens = 600, .stream = true, .usage = true};

static void start_streams(const cluster *c, ask *a, const want *w)
{
    for (size_t i = 0; i < N; i++)
        ask_chat(&a[i], cluster_port(c), w);
    for (size_t i = 0; i < N; i++)
        ASKS_UNTIL(a[i].n_pieces > 0, a, N);
}

static void check_streams(ask *a, const ask *alone)
{
    asks_wait(a, N);
    for (size_t i = 0; i < N; i++)
        ask_assert_same(alone, &a[i]);
}

static double landed(const process *d)
{
    return process_metric(d, "tandem:kv_landed_total");
}

/* C086 */
static void test_decode_drains(cluster *c)
{
    process *d[2];
    ask alone, a[N], new[N];

    cluster_router(c, "");
    cluster_prefill(c, "");
    d[0] = cluster_decode(c, "");
    cluster_ready(c);
    ask_whole(&alone, cluster_port(c), &stream);
    start_streams(c, a, &stream);
    d[1] = cluster_decode(c, "");
    cluster_ready(c);
    process_signal(d[0], SIGTERM);
    E2E_AWAIT(process_logged(d[0], " draining "));
    for (size_t i = 0; i < N; i++)
        ask_chat(&new[i], cluster_port(c), &(want){.max_tokens = 5});
    asks_wait(new, N);
    for (size_t i = 0; i < N; i++)
        ask_assert_good(&new[i]);
    assert_true(landed(d[1]) == N); /* the other one takes no more, but runs on */
    check_streams(a, &alone);
    assert_int_equal(process_wait(d[0], EXIT_DEADLINE_MS), 0);
    assert_true(process_metric(c->router, "tandem:request_retries_total") == 0);
    asks_free(a, N);
    asks_free(new, N);
    ask_free(&alone);
}

/* At its drain limit a worker hands back what it has: another one goes on, or the client is told.
 */
static void test_drain_limit(cluster *c)
{
    process *d;
    ask a;

    cluster_router(c, "--recovery-timeout 500ms");
    cluster_prefill(c, "");
    d = cluster_decode(c, "--drain 200ms");
    cluster_ready(c);
    ask_chat(&a, cluster_port(c), &(want){.max_tokens = 30000, .stream = true});
    ASKS_UNTIL(a.n_pieces > 0, &a, 1);
    process_stop(d, EXIT_DEADLINE_MS);
    asks_wait(&a, 1);
    assert_non_null(a.error);
    assert_false(a.done);
    assert_true(strlen(ask_error(&a, "message")) > 0);
    ask_free(&a);
}

static void test_drain_limit_with_another(cluster *c)
{
    const want w = {.prompt = "tell", .max_tokens = 900, .stream = true, .usage = true};
    process *d, *other;
    ask alone, a;

    cluster_router(c, "");
    cluster_prefill(c, "");
    d = cluster_decode(c, "--drain 50ms");
    cluster_ready(c);
    ask_whole(&alone, cluster_port(c), &w);
    ask_chat(&a, cluster_port(c), &w);
    ASKS_UNTIL(a.n_pieces > 0, &a, 1);
    process_stop(d, EXIT_DEADLINE_MS);
    other = cluster_decode(c, "");
    asks_wait(&a, 1);
    ask_assert_same(&alone, &a);
    cluster_ready(c);
    assert_true(landed(other) == 1);
    ask_free(&a);
    ask_free(&alone);
}

/* A prompt that is being read is read to its end, and so are those that wait. */
static void test_prefill_drains(cluster *c)
{
    const want w = {.prompt = " long", .repeat = 1500, .max_tokens = 10};
    process *p[2];
    ask alone, a[3], new;

    cluster_router(c, "");
    p[0] = cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    ask_whole(&alone, cluster_port(c), &w);
    for (size_t i = 0; i < 3; i++)
        ask_chat(&a[i], cluster_port(c), &w);
    E2E_AWAIT(process_metric(p[0], "tandem:prefill_admitted_total") == 4);
    p[1] = cluster_prefill(c, "");
    process_signal(p[0], SIGTERM);
    E2E_AWAIT(process_logged(p[0], " draining "));
    cluster_ready(c);
    ask_whole(&new, cluster_port(c), &(want){.max_tokens = 3});
    ask_assert_good(&new);
    asks_wait(a, 3);
    for (size_t i = 0; i < 3; i++)
        ask_assert_same(&alone, &a[i]);
    assert_int_equal(process_wait(p[0], EXIT_DEADLINE_MS), 0);
    assert_true(process_metric(p[1], "tandem:prefill_admitted_total") == 1);
    assert_true(process_metric(c->router, "tandem:request_retries_total") == 0);
    asks_free(a, 3);
    ask_free(&alone);
    ask_free(&new);
}

static void test_router_drains(cluster *c)
{
    ask alone, a[N], late;
    uint16_t port;

    cluster_simple(c);
    port = cluster_port(c);
    ask_whole(&alone, port, &stream);
    start_streams(c, a, &stream);
    process_signal(c->router, SIGTERM);
    E2E_AWAIT(process_logged(c->router, " draining "));
    assert_int_equal(http_get(port, "/ready", NULL), 503);
    assert_int_equal(http_get(port, "/health", NULL), 200); /* it is not ill */
    ask_whole(&late, port, &(want){.max_tokens = 2});
    assert_int_equal(late.status, 503);
    assert_non_null(ask_header(&late, "Retry-After"));
    ask_free(&late);
    check_streams(a, &alone);
    assert_int_equal(process_wait(c->router, EXIT_DEADLINE_MS), 0);
    asks_free(a, N);
    ask_free(&alone);
}

/* Past its limit it tells the clients. */
static void test_router_drain_limit(cluster *c)
{
    ask a, whole;
    process *p, *d;

    cluster_router(c, "--drain 300ms");
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    ask_chat(&a, cluster_port(c), &(want){.max_tokens = 30000, .stream = true});
    ask_chat(&whole, cluster_port(c), &(want){.max_tokens = 30000});
    ASKS_UNTIL(a.n_pieces > 0, &a, 1);
    process_stop(c->router, EXIT_DEADLINE_MS);
    asks_wait(&a, 1);
    asks_wait(&whole, 1);
    assert_non_null(a.error);
    assert_false(a.done);
    assert_int_equal(whole.status, 503);
    ask_free(&a);
    ask_free(&whole);
    E2E_AWAIT(decode_is_empty(d) && prefill_is_empty(p));
}

/* Everything at once, as when a machine is shut down: the streams still come to their end. */
static void test_all_drain(cluster *c)
{
    ask alone, a[N];

    cluster_simple(c);
    ask_whole(&alone, cluster_port(c), &stream);
    start_streams(c, a, &stream);
    for (size_t i = 0; i < c->n; i++)
        process_signal(&c->all[i], SIGTERM);
    check_streams(a, &alone);
    for (size_t i = 0; i < c->n; i++)
        assert_int_equal(process_wait(&c->all[i], EXIT_DEADLINE_MS), 0);
    asks_free(a, N);
    ask_free(&alone);
}

/* Twice is meant: do not wait. */
static void test_second_signal(cluster *c)
{
    ask a;

    cluster_simple(c);
    ask_chat(&a, cluster_port(c), &(want){.max_tokens = 30000, .stream = true});
    ASKS_UNTIL(a.n_pieces > 0, &a, 1);
    process_signal(c->router, SIGTERM);
    E2E_AWAIT(process_logged(c->router, " draining "));
    assert_int_equal(process_insist(c->router, SIGTERM, EXIT_DEADLINE_MS), 0);
    asks_wait(&a, 1);
    assert_true(a.cut && !a.done);
    ask_free(&a);
}

/* While they load, and before they know a router; by each of the signals that mean it. */
static void test_idle_and_loading(cluster *c)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGTERM};
    process *p;

    for (size_t i = 0; i < 4; i++) {
        process *router = cluster_router(c, "");

        p = i % 2 ? cluster_prefill(c, "") : cluster_decode(c, "");
        if (i >= 2)
            cluster_prefill(c, ""); /* stopped by the frame, wherever it is */
        process_signal(router, signals[i]);
        process_signal(p, signals[i]);
        assert_int_equal(process_wait(router, EXIT_DEADLINE_MS), 0);
        assert_int_equal(process_wait(p, EXIT_DEADLINE_MS), 0);
    }
}

/* In the moment in which a source meets it for the first time, and the client has just left. */
static void test_stop_at_first_contact(cluster *c)
{
    enum { ROUNDS = 6 };
    ask a;

    cluster_router(c, "");
    for (size_t i = 0; i < ROUNDS; i++) {
        process *p = cluster_prefill(c, ""), *d = cluster_decode(c, "");

        cluster_ready(c);
        ask_chat(&a, cluster_port(c), &(want){.prompt = " long", .repeat = 500, .max_tokens = 50});
        E2E_AWAIT(process_metric(d, "tandem:reservations_total") == 1);
        ask_free(&a);
        process_stop(d, EXIT_DEADLINE_MS);
        process_stop(p, EXIT_DEADLINE_MS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_decode_drains),
        E2E_TEST(test_drain_limit),
        E2E_TEST(test_drain_limit_with_another),
        E2E_TEST(test_prefill_drains),
        E2E_TEST(test_router_drains),
        E2E_TEST(test_router_drain_limit),
        E2E_TEST(test_all_drain),
        E2E_TEST(test_second_signal),
        E2E_TEST(test_idle_and_loading),
        E2E_TEST(test_stop_at_first_contact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
