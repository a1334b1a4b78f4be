/* Processes that die, freeze or fail in the middle of an answer. The client's text is the one it
 * would have been, or the client is told; and nothing stays held for what has ended. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#define QUICK_DECODE "--fence-grace 200ms"
/* It will be frozen, and is to be missed soon; but not while it is only kept waiting. */
#define SOON_MISSED " --heartbeat 500ms"

/* Workers are given up quickly, and pages of dead sources soon come back. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUICK_LEASE "--lease 12s"
#else
#define QUICK_LEASE "--lease 4s"
#endif
#define QUICK_ROUTER "--recovery-timeout 600ms " QUICK_LEASE

/* The same, where another worker is on its way: a matter of seconds on a busy machine, and on a
 * GPU, where what it holds meanwhile has to last as well. */
static const char *patient_router(void)
{
    return cluster_is_cuda() ? "--recovery-timeout 20s --lease 25s"
                             : "--recovery-timeout 20s " QUICK_LEASE;
}

enum { N_KINDS = 4 };

/* Long answers: greedy and seeded, streamed and whole. */
static want long_answer(unsigned i, unsigned tokens)
{
    want w = {.prompt = "a long story", .max_tokens = tokens, .stream = i % 2 == 0, .usage = true};

    if (i >= 2) {
        w.temperature = 1;
        w.seed = 77 + i;
    }
    return w;
}

static void ask_long(const cluster *c, ask *a, unsigned tokens)
{
    for (unsigned i = 0; i < N_KINDS; i++) {
        want w = long_answer(i, tokens);

        ask_chat(&a[i], cluster_port(c), &w);
    }
}

/* Until both streams have said something; then the whole answers are under way as well. */
static void await_under_way(ask *a)
{
    ASKS_UNTIL(a[0].n_pieces > 4 && a[2].n_pieces > 4, a, N_KINDS);
}

static void note_said(const ask *a, size_t *said)
{
    for (size_t i = 0; i < N_KINDS; i++)
        said[i] = ask_said(&a[i]);
}

static void check_carried(const ask *alone, const ask *hit, const size_t *said)
{
    for (size_t i = 0; i < N_KINDS; i++)
        ask_assert_carried(&alone[i], &hit[i], said[i], cluster_is_cuda());
}

static void check_told(const ask *a)
{
    if (a->stream) {
        assert_true(a->status == 200 && a->error != NULL);
        assert_false(a->done);
        assert_int_equal(a->finish[0], '\0');
        assert_true(a->cut); /* nor does the body end as if it were whole */
    } else {
        assert_in_range(a->status, 500, 599);
        assert_non_null(a->error);
    }
    assert_true(strlen(ask_error(a, "message")) > 0);
}

/* A count and not a state: a state may be over before a test that is kept waiting has seen it. */
static double admitted(const process *p)
{
    return process_metric(p, "tandem:prefill_admitted_total");
}

static double retries(const cluster *c)
{
    return process_metric(c->router, "tandem:request_retries_total");
}

/* ---- decode dies ---- */

/* C062 with another worker to go to. */
static void test_decode_dies(cluster *c)
{
    ask alone[N_KINDS], hit[N_KINDS];
    size_t said[N_KINDS];
    process *d[2];

    cluster_router(c, "");
    cluster_prefill(c, "");
    d[0] = cluster_decode(c, QUICK_DECODE);
    cluster_ready(c);
    ask_long(c, alone, 500);
    asks_wait(alone, N_KINDS);
    ask_long(c, hit, 500);
    await_under_way(hit);
    note_said(hit, said);
    process_kill(d[0]);
    d[1] = cluster_decode(c, QUICK_DECODE); /* all four wait for it */
    asks_wait(hit, N_KINDS);
    check_carried(alone, hit, said);
    assert_true(retries(c) >= N_KINDS);
    assert_true(ask_tandem(&hit[0], "retries") >= 1);
    cluster_ready(c);
    E2E_AWAIT(decode_is_empty(d[1]));
    asks_free(alone, N_KINDS);
    asks_free(hit, N_KINDS);
}

/* C062 with nobody left: each client is told, soon. */
static void test_last_decode_dies(cluster *c)
{
    ask a[N_KINDS], next;
    process *d, *p;

    cluster_router(c, QUICK_ROUTER);
    p = cluster_prefill(c, "");
    d = cluster_decode(c, QUICK_DECODE);
    cluster_ready(c);
    ask_long(c, a, 30000);
    await_under_way(a);
    process_kill(d);
    asks_wait(a, N_KINDS);
    for (size_t i = 0; i < N_KINDS; i++)
        check_told(&a[i]);
    asks_free(a, N_KINDS);
    ask_whole(&next, cluster_port(c), &(want){.max_tokens = 2});
    assert_int_equal(next.status, 503);
    ask_free(&next);
    assert_int_equal(http_get(cluster_port(c), "/ready", NULL), 503);
    assert_int_equal(http_get(cluster_port(c), "/health", NULL), 200);
    E2E_AWAIT(prefill_is_empty(p));
    process_restart(c, d);
    cluster_ready(c);
    ask_whole(&next, cluster_port(c), &(want){.max_tokens = 2});
    ask_assert_good(&next);
    ask_free(&next);
}

/* Again and again under one and the same set of streams, within the budget of retries. */
static void test_decode_dies_twice(cluster *c)
{
    ask alone[N_KINDS], hit[N_KINDS];
    size_t said[N_KINDS];
    process *d[2];

    cluster_router(c, "");
    cluster_prefill(c, "");
    d[0] = cluster_decode(c, QUICK_DECODE);
    d[1] = cluster_decode(c, QUICK_DECODE);
    cluster_ready(c);
    ask_long(c, alone, 500);
    asks_wait(alone, N_KINDS);
    ask_long(c, hit, 500);
    for (size_t k = 0; k < 2; k++) {
        size_t seen = hit[0].n_pieces;

        ASKS_UNTIL(hit[0].n_pieces > seen + 20, hit, N_KINDS);
        if (k == 0)
            note_said(hit, said);
        process_kill(d[k]);
        process_restart(c, d[k]);
        cluster_ready(c);
    }
    asks_wait(hit, N_KINDS);
    check_carried(alone, hit, said);
    assert_true(retries(c) > 0);
    E2E_AWAIT(decode_is_empty(d[0]) && decode_is_empty(d[1]));
    asks_free(alone, N_KINDS);
    asks_free(hit, N_KINDS);
}

/* A frozen worker is as good as dead; when it thaws, it is taken back without its past. */
static void test_decode_freezes(cluster *c)
{
    ask alone[N_KINDS], hit[N_KINDS], after;
    size_t said[N_KINDS];
    process *d[2];

    cluster_router(c, patient_router());
    cluster_prefill(c, "");
    d[0] = cluster_decode(c, QUICK_DECODE SOON_MISSED);
    cluster_ready(c);
    ask_long(c, alone, 500);
    asks_wait(alone, N_KINDS);
    ask_long(c, hit, 500);
    await_under_way(hit);
    note_said(hit, said);
    process_signal(d[0], SIGSTOP);
    d[1] = cluster_decode(c, QUICK_DECODE);
    asks_wait(hit, N_KINDS);
    check_carried(alone, hit, said);
    assert_true(process_logged(c->router, "no heartbeat in time"));
    process_signal(d[0], SIGCONT);
    E2E_AWAIT(decode_is_empty(d[0]));
    process_kill(d[1]); /* so that only the thawed one is left */
    E2E_AWAIT(http_get(cluster_port(c), "/ready", NULL) == 200);
    ask_whole(&after, cluster_port(c), &(want){.max_tokens = 20});
    ask_assert_good(&after);
    ask_free(&after);
    asks_free(alone, N_KINDS);
    asks_free(hit, N_KINDS);
}

static void pause_for(int64_t ms)
{
    td_usec until = td_now_us() + ms * TD_USEC_PER_MSEC;

    E2E_AWAIT(td_now_us() > until); /* how long it takes, is what is tested */
}

static const want long_prompt = {.prompt = " long", .repeat = 2000, .max_tokens = 20};

/* A short pause, as a busy machine makes them, is no failure, also not while the two meet for the
 * first time. */
static void test_decode_pauses(cluster *c)
{
    process *p, *d;
    ask hit, again;

    cluster_router(c, "");
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    ask_chat(&hit, cluster_port(c), &long_prompt);
    E2E_AWAIT(process_metric(d, "tandem:reservations_total") == 1);
    process_signal(d, SIGSTOP);
    pause_for(1500);
    process_signal(d, SIGCONT);
    asks_wait(&hit, 1);
    ask_whole(&again, cluster_port(c), &long_prompt);
    ask_assert_same(&hit, &again);
    assert_true(retries(c) == 0);
    E2E_AWAIT(decode_is_empty(d) && prefill_is_empty(p));
    ask_free(&hit);
    ask_free(&again);
}

/* ---- prefill dies ---- */

/* A GPU reads the long prompt in a millisecond, unless it has to do so in small pieces. */
static const char *slow_prefill(void)
{
    return cluster_is_cuda() ? "--heartbeat 500ms --chunk 4" : "--heartbeat 500ms";
}

/* In the middle of a prompt; another one computes it again. C084: decode does not mind. */
static void check_prefill_goes(cluster *c, int signo)
{
    process *p[2], *d, *busy;
    ask alone, hit, short_one;
    double before[2];

    cluster_router(c, patient_router());
    p[0] = cluster_prefill(c, slow_prefill());
    p[1] = cluster_prefill(c, slow_prefill());
    d = cluster_decode(c, QUICK_DECODE);
    cluster_ready(c);
    ask_whole(&alone, cluster_port(c), &long_prompt);
    /* Equals take turns, so this one meets the other prefill worker: UCX 1.13 can end a process
     * whose peer dies in the middle of their first contact, which is not what is tested here. */
    ask_whole(&short_one, cluster_port(c), &(want){.max_tokens = 2});
    ask_free(&short_one);
    before[0] = admitted(p[0]);
    before[1] = admitted(p[1]);
    ask_chat(&hit, cluster_port(c), &long_prompt);
    E2E_AWAIT(admitted(p[0]) + admitted(p[1]) > before[0] + before[1]);
    busy = admitted(p[0]) > before[0] ? p[0] : p[1];
    process_signal(busy, signo);
    if (signo == SIGKILL)
        process_wait(busy, EXIT_DEADLINE_MS);
    ask_whole(&short_one, cluster_port(c), &(want){.max_tokens = 2});
    ask_assert_good(&short_one);
    assert_int_equal(http_get(d->port, "/health", NULL), 200);
    assert_int_equal(http_get(d->port, "/ready", NULL), 200);
    asks_wait(&hit, 1);
    ask_assert_same(&alone, &hit);
    if (signo == SIGSTOP)
        process_signal(busy, SIGCONT);
    E2E_AWAIT(decode_is_empty(d));
    for (size_t i = 0; i < 2; i++)
        if (p[i]->pid > 0)
            E2E_AWAIT(prefill_is_empty(p[i]));
    ask_free(&alone);
    ask_free(&hit);
    ask_free(&short_one);
}

static void test_prefill_dies(cluster *c)
{
    check_prefill_goes(c, SIGKILL);
}

static void test_prefill_freezes(cluster *c)
{
    check_prefill_goes(c, SIGSTOP);
}

/* Nobody left to read prompts: those that wait are told, those that run go on. */
static void test_last_prefill_dies(cluster *c)
{
    process *p, *d;
    ask running, hit, next;

    cluster_router(c, QUICK_ROUTER);
    p = cluster_prefill(c, slow_prefill());
    d = cluster_decode(c, QUICK_DECODE);
    cluster_ready(c);
    ask_chat(&running, cluster_port(c), &(want){.max_tokens = 900, .stream = true});
    ASKS_UNTIL(running.n_pieces > 2, &running, 1); /* decode has it */
    ask_chat(&hit, cluster_port(c), &(want){.prompt = " long", .repeat = 8000, .max_tokens = 20});
    E2E_AWAIT(admitted(p) == 2);
    process_kill(p);
    asks_wait(&hit, 1);
    check_told(&hit);
    ask_whole(&next, cluster_port(c), &(want){.max_tokens = 2});
    assert_int_equal(next.status, 503);
    asks_wait(&running, 1);
    ask_assert_good(&running);
    E2E_AWAIT(decode_is_empty(d));
    ask_free(&running);
    ask_free(&hit);
    ask_free(&next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_decode_dies),       E2E_TEST(test_last_decode_dies),
        E2E_TEST(test_decode_dies_twice), E2E_TEST(test_decode_freezes),
        E2E_TEST(test_decode_pauses),     E2E_TEST(test_prefill_dies),
        E2E_TEST(test_prefill_freezes),   E2E_TEST(test_last_prefill_dies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
