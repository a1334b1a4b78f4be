/* Transfers that fail, are cut off or come late: the decode worker learns of it, by a message or by
 * the end of a lease, and gives back what it held. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHORT_LEASE "--lease 5s"
#else
#define SHORT_LEASE "--lease 1500ms"
#endif

static const want long_prompt = {.prompt = " long", .repeat = 2000, .max_tokens = 20};

static double retries(const cluster *c)
{
    return process_metric(c->router, "tandem:request_retries_total");
}

static void pause_for(int64_t ms)
{
    td_usec until = td_now_us() + ms * TD_USEC_PER_MSEC;

    E2E_AWAIT(td_now_us() > until); /* how long it takes, is what is tested */
}

/* C075: the client leaves in the middle of a transfer, then the source dies without a word. */
static void test_source_never_reports(cluster *c)
{
    enum { ROUNDS = 5 };
    process *p, *d;
    ask a;

    cluster_router(c, SHORT_LEASE);
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "--fence-grace 200ms --max-reservations 4 --kv-memory 24MiB");
    cluster_ready(c);
    for (size_t i = 0; i < ROUNDS; i++) {
        double bytes = process_metric(p, "vllm:prompt_tokens_total");

        ask_chat(&a, cluster_port(c), &long_prompt);
        E2E_AWAIT(process_metric(p, "vllm:prompt_tokens_total") > bytes); /* a chunk is out */
        process_signal(p, SIGSTOP); /* it must not see the cancel */
        ask_free(&a);
        E2E_AWAIT(process_metric(c->router, "vllm:num_requests_running") == 0);
        process_kill(p);
        E2E_AWAIT(decode_is_empty(d));
        process_restart(c, p);
        cluster_ready(c);
    }
    /* By a router whose leases leave time for an answer. */
    process_stop(c->router, EXIT_DEADLINE_MS);
    process_restart(c, c->router);
    cluster_ready(c);
    ask_whole(&a, cluster_port(c), &long_prompt);
    ask_assert_good(&a);
    ask_free(&a);
}

/* The destination dies in the moment in which the two meet for the first time. */
static void test_sink_dies_at_first_contact(cluster *c)
{
    enum { ROUNDS = 4 };
    process *p, *d;
    ask a;

    cluster_router(c, "--recovery-timeout 100ms");
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    for (size_t i = 0; i < ROUNDS; i++) {
        ask_chat(&a, cluster_port(c),
                 &(want){.prompt = " long", .repeat = 2000, .max_tokens = 9000});
        E2E_AWAIT(process_metric(d, "tandem:reservations_total") == 1);
        process_kill(d);
        asks_wait(&a, 1);
        assert_in_range(a.status, 500, 599);
        ask_free(&a);
        E2E_AWAIT(prefill_is_empty(p));
        process_restart(c, d); /* another incarnation: a stranger to the source */
        cluster_ready(c);
    }
    ask_whole(&a, cluster_port(c), &long_prompt);
    ask_assert_good(&a);
    ask_free(&a);
}

/* C082: a put that fails to post; the other worker's do not. */
static void test_put_fails(cluster *c)
{
    enum { N = 8 };
    process *good, *bad, *d;
    ask alone, a[N];

    cluster_router(c, "");
    good = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    ask_whole(&alone, cluster_port(c), &(want){.prompt = "x", .repeat = 400, .max_tokens = 12});
    bad = cluster_prefill(c, "--fault-put 5");
    cluster_ready(c);
    for (size_t i = 0; i < N; i++)
        ask_chat(&a[i], cluster_port(c), &(want){.prompt = "x", .repeat = 400, .max_tokens = 12});
    asks_wait(a, N);
    for (size_t i = 0; i < N; i++)
        ask_assert_same(&alone, &a[i]);
    assert_true(process_metric(bad, "tandem:kv_transfer_failed_total") > 0);
    assert_true(retries(c) > 0);
    E2E_AWAIT(decode_is_empty(d));
    E2E_AWAIT(prefill_is_empty(good) && prefill_is_empty(bad));
    ask_free(&alone);
    asks_free(a, N);
}

/* Every transfer fails, whichever put it is that does: told at once, not after a lease. */
static void test_every_put_fails(cluster *c)
{
    static const char *const which[] = {"--fault-put 1", "--fault-put 9", "--fault-put 16"};
    process *p, *d;

    cluster_router(c, "--retries 1");
    d = cluster_decode(c, "");
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        td_usec began;
        ask a;

        p = cluster_prefill(c, which[i]);
        cluster_ready(c);
        began = td_now_us();
        ask_whole(&a, cluster_port(c), &(want){.max_tokens = 12});
        assert_in_range(a.status, 500, 599);
        E2E_AWAIT(process_logged(p, "transfer_failed"));
        assert_true(td_now_us() - began < SOON_MS * TD_USEC_PER_MSEC);
        ask_free(&a);
        E2E_AWAIT(decode_is_empty(d) && prefill_is_empty(p));
        process_stop(p, EXIT_DEADLINE_MS);
    }
    assert_true(process_metric(d, "tandem:leases_expired_total") == 0);
}

/* C078: refused before, and aborted inside prefill: decode knows at once. */
static void test_prefill_refuses(cluster *c)
{
    td_usec began;
    process *d;
    ask a;

    cluster_router(c, "");
    cluster_prefill(c, "--kv-memory 40MiB"); /* less than decode could hold */
    d = cluster_decode(c, "");
    cluster_ready(c);
    began = td_now_us();
    ask_whole(&a, cluster_port(c), &(want){.prompt = " long", .repeat = 9000, .max_tokens = 5});
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(ask_error(&a, "message"), "tokens"));
    assert_true(td_now_us() - began < SOON_MS * TD_USEC_PER_MSEC);
    assert_true(decode_is_empty(d));
    ask_free(&a);

    ask_chat(&a, cluster_port(c), &(want){.prompt = " long", .repeat = 5000, .max_tokens = 20});
    E2E_AWAIT(process_metric(d, "tandem:reservations_total") == 1);
    ask_free(&a);
    began = td_now_us();
    E2E_AWAIT(decode_is_empty(d));
    assert_true(td_now_us() - began < SOON_MS * TD_USEC_PER_MSEC);
    assert_true(process_metric(d, "vllm:generation_tokens_total") == 0); /* of a part of a cache */
}

/* C090: a worker that answers late. The message is not carried out twice. */
static void test_late_reply(cluster *c)
{
    process *p, *d;
    ask a;

    cluster_router(c, "");
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    process_signal(p, SIGSTOP);
    ask_chat(&a, cluster_port(c), &(want){.max_tokens = 5});
    E2E_AWAIT(process_metric(d, "tandem:reservations_open") == 1);
    pause_for(3000);
    process_signal(p, SIGCONT);
    asks_wait(&a, 1);
    ask_assert_good(&a);
    assert_true(process_metric(p, "tandem:prefill_admitted_total") == 1);
    assert_true(process_metric(d, "tandem:reservations_total") == 1);
    assert_true(retries(c) == 0);
    ask_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_source_never_reports),
        E2E_TEST(test_sink_dies_at_first_contact),
        E2E_TEST(test_put_fails),
        E2E_TEST(test_every_put_fails),
        E2E_TEST(test_prefill_refuses),
        E2E_TEST(test_late_reply),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
