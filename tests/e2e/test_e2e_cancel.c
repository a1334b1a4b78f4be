/* Clients that go away, at every point of a request's life: what was held for them comes back, and
 * nobody else notices. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#define ABORTED "vllm:request_success_total{finished_reason=\"abort\"}"

typedef struct whole {
    process *router, *prefill, *decode;
} whole;

static whole start(cluster *c, const char *decode_options)
{
    whole s;

    s.router = cluster_router(c, "");
    s.prefill = cluster_prefill(c, "");
    s.decode = cluster_decode(c, decode_options);
    cluster_ready(c);
    return s;
}

static void check_empty(const whole *s)
{
    E2E_AWAIT(process_metric(s->router, "vllm:num_requests_running") == 0);
    E2E_AWAIT(process_metric(s->router, "vllm:num_requests_waiting") == 0);
    E2E_AWAIT(decode_is_empty(s->decode));
    E2E_AWAIT(prefill_is_empty(s->prefill));
}

/* ---- where a client may leave ---- */

static void leave_at_once(const whole *s)
{
    ask a;

    ask_chat(&a, s->router->port, &(want){.max_tokens = 50});
    ask_free(&a);
}

static void leave_in_decode(const whole *s)
{
    ask a;

    ask_chat(&a, s->router->port, &(want){.max_tokens = 900, .stream = true});
    ASKS_UNTIL(a.n_pieces > 3, &a, 1);
    ask_free(&a);
}

static void leave_whole_in_decode(const whole *s)
{
    double before = process_metric(s->decode, "tandem:kv_landed_total");
    ask a;

    ask_chat(&a, s->router->port, &(want){.max_tokens = 900});
    E2E_AWAIT(process_metric(s->decode, "tandem:kv_landed_total") > before);
    ask_free(&a);
}

/* A count and not a state: a state may be over before a test that is kept waiting has seen it. */
static double admitted(const whole *s)
{
    return process_metric(s->prefill, "tandem:prefill_admitted_total");
}

static void leave_in_prefill(const whole *s)
{
    double before = admitted(s);
    ask a;

    ask_chat(&a, s->router->port, &(want){.prompt = " long", .repeat = 1200, .max_tokens = 50});
    E2E_AWAIT(admitted(s) > before);
    ask_free(&a);
}

/* Behind another prompt, which leaves as well. */
static void leave_in_prefill_queue(const whole *s)
{
    double before = admitted(s);
    ask first, second;

    ask_chat(&first, s->router->port, &(want){.prompt = " long", .repeat = 2500, .max_tokens = 50});
    E2E_AWAIT(admitted(s) == before + 1);
    ask_chat(&second, s->router->port, &(want){.max_tokens = 50});
    E2E_AWAIT(admitted(s) == before + 2);
    ask_free(&second);
    ask_free(&first);
}

static void (*const ways[])(const whole *s) = {leave_at_once, leave_in_decode,
                                               leave_whole_in_decode, leave_in_prefill,
                                               leave_in_prefill_queue};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* ---- tests ---- */

static void test_each_way(cluster *c)
{
    const whole s = start(c, "");
    double aborted = 0;

    for (size_t i = 0; i < N_WAYS; i++) {
        ways[i](&s);
        check_empty(&s);
        aborted += ways[i] == leave_in_prefill_queue ? 2 : 1;
        /* One that left before it had been read whole may never have been a request. */
        assert_true(process_metric(s.router, ABORTED) >= aborted - 1);
        assert_true(process_metric(s.router, ABORTED) <= aborted);
    }
    assert_true(process_metric(s.router, "tandem:request_retries_total") == 0);
    assert_true(process_metric(s.decode, "tandem:leases_expired_total") == 0);
}

/* With few rings and pages a leak of one would stop it soon. */
static void test_fifty_in_a_row(cluster *c)
{
    const whole s = start(c, "--max-reservations 4 --kv-memory 16MiB");
    const want w = {.prompt = "and after all that", .max_tokens = 12};
    ask before, after;

    ask_whole(&before, s.router->port, &w);
    for (size_t i = 0; i < 50; i++)
        (i % 10 == 9 ? leave_in_prefill : ways[i % 3])(&s);
    ask_whole(&after, s.router->port, &w);
    ask_assert_same(&before, &after);
    ask_free(&before);
    ask_free(&after);
    check_empty(&s);
}

static void test_neighbours_do_not_notice(cluster *c)
{
    const whole s = start(c, "");
    const want w = {.prompt = "a long story", .max_tokens = 700, .stream = true, .usage = true};
    want seeded = w;
    ask alone[2], beside[2];

    seeded.temperature = 1;
    seeded.seed = 5;
    ask_chat(&alone[0], s.router->port, &w);
    ask_chat(&alone[1], s.router->port, &seeded);
    asks_wait(alone, 2);
    ask_chat(&beside[0], s.router->port, &w);
    ask_chat(&beside[1], s.router->port, &seeded);
    ASKS_UNTIL(beside[0].n_pieces > 0 && beside[1].n_pieces > 0, beside, 2);
    for (size_t i = 0; i < N_WAYS; i++)
        ways[i](&s);
    asks_wait(beside, 2);
    for (size_t i = 0; i < 2; i++)
        ask_assert_same(&alone[i], &beside[i]);
    asks_free(alone, 2);
    asks_free(beside, 2);
    check_empty(&s);
}

/* One that waits for pages leaves the queue; the next in it gets them. */
static void test_leave_the_routers_queue(cluster *c)
{
    const whole s = start(c, "--max-reservations 1 --kv-memory 8MiB");
    ask holder, leaves, stays;

    ask_chat(&holder, s.router->port, &(want){.max_tokens = 1000, .stream = true});
    ASKS_UNTIL(holder.n_pieces > 0, &holder, 1);
    process_signal(s.decode, SIGSTOP); /* so that it holds until it is to let go */
    ask_chat(&leaves, s.router->port, &(want){.max_tokens = 5});
    E2E_AWAIT(process_metric(s.router, "vllm:num_requests_waiting") == 1);
    ask_chat(&stays, s.router->port, &(want){.max_tokens = 5});
    E2E_AWAIT(process_metric(s.router, "vllm:num_requests_waiting") == 2);
    ask_free(&leaves);
    E2E_AWAIT(process_metric(s.router, "vllm:num_requests_waiting") == 1);
    ask_free(&holder);
    process_signal(s.decode, SIGCONT);
    asks_wait(&stays, 1);
    ask_assert_good(&stays);
    ask_free(&stays);
    check_empty(&s);
}

/* Nothing is read from the connection: the router must not pile up the answer. */
static void test_client_that_does_not_read(cluster *c)
{
    process *router = cluster_router(c, "--slow-client 1KiB --reserve-tokens 16384");
    process *prefill = cluster_prefill(c, "");
    process *decode = cluster_decode(c, "");
    ask lazy, other;

    cluster_ready(c);
    /* Chunks of some 250 bytes, until they fill the sockets' buffers. */
    ask_chat(&lazy, router->port, &(want){.max_tokens = 60000, .stream = true});
    ask_whole(&other, router->port, &(want){.max_tokens = 20});
    ask_assert_good(&other);
    ask_free(&other);
    E2E_AWAIT(process_logged(router, "slow_client"));
    ask_free(&lazy);
    E2E_AWAIT(decode_is_empty(decode) && prefill_is_empty(prefill));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_each_way),
        E2E_TEST(test_fifty_in_a_row),
        E2E_TEST(test_neighbours_do_not_notice),
        E2E_TEST(test_leave_the_routers_queue),
        E2E_TEST(test_client_that_does_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
