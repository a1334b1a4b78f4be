/* Many requests at once: what else is in the batch changes nothing, and more of them than there is
 * room for wait, or are told to come back. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/cluster.h"

/* Request i of a mix: prompts of 1 to some 300 words, answers of 8 to 77 tokens, each second one
 * sampled in one of several ways. */
static want mixed(unsigned i)
{
    static const char *const words[] = {" tree", " house and", "x", " 7"};
    want w = {.prompt = words[i % 4],
              .repeat = 1 + (i * 37) % (i % 8 == 0 ? 300 : 40),
              .max_tokens = 8 + (i * 11) % 70,
              .stream = i % 3 == 0,
              .usage = true};

    if (i % 2 == 1) {
        w.temperature = 0.5 + (i % 5) * 0.3;
        w.seed = 1000 + i;
        w.top_p = i % 3 == 1 ? 0.9 : 0;
        w.top_k = i % 7 == 1 ? 40 : 0;
    }
    return w;
}

static void ask_alone(const cluster *c, ask *a, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        want w = mixed(i);

        ask_whole(&a[i], cluster_port(c), &w);
        ask_assert_good(&a[i]);
        assert_true(ask_usage(&a[i], "completion_tokens") == w.max_tokens);
    }
}

static void ask_together(const cluster *c, ask *a, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        want w = mixed(i);

        ask_chat(&a[i], cluster_port(c), &w);
    }
    asks_wait(a, n);
}

static void check_all_same(const ask *a, const ask *b, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        ask_assert_same(&a[i], &b[i]);
}

static void check_empty(cluster *c)
{
    for (size_t i = 0; i < c->n; i++) {
        process *p = &c->all[i];

        if (p->pid > 0 && strcmp(p->program, "decode") == 0)
            E2E_AWAIT(decode_is_empty(p));
        if (p->pid > 0 && strcmp(p->program, "prefill") == 0)
            E2E_AWAIT(prefill_is_empty(p));
    }
    E2E_AWAIT(process_metric(c->router, "vllm:num_requests_running") == 0);
}

static double tokens_a_step(const process *d, double steps_before, double tokens_before)
{
    double steps = process_metric(d, "tandem:decode_steps_total") - steps_before;

    return (process_metric(d, "vllm:generation_tokens_total") - tokens_before) / steps;
}

static void test_batch_changes_nothing(cluster *c)
{
    enum { N = 64 };
    ask alone[N], together[N];
    double steps, tokens;
    process *d;

    cluster_router(c, "");
    cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    ask_alone(c, alone, N);
    steps = process_metric(d, "tandem:decode_steps_total");
    tokens = process_metric(d, "vllm:generation_tokens_total");
    assert_true(steps == tokens);
    ask_together(c, together, N);
    check_all_same(alone, together, N);
    assert_true(tokens_a_step(d, steps, tokens) > 1.2); /* they did share steps */
    check_empty(c);
    asks_free(alone, N);
    asks_free(together, N);
}

/* 8 MiB hold six window rings and a dozen pages: four requests, two steps' worth of batch. */
static void test_more_than_there_is_room_for(cluster *c)
{
    enum { N = 32 };
    ask alone[N], together[N];

    cluster_router(c, "");
    cluster_prefill(c, "--max-transfers 2 --queue-limit 4");
    cluster_decode(c, "--max-batch 2 --max-reservations 6 --kv-memory 8MiB");
    cluster_ready(c);
    ask_alone(c, alone, N);
    ask_together(c, together, N);
    check_all_same(alone, together, N);
    assert_true(process_metric(c->router, "tandem:request_retries_total") == 0);
    check_empty(c);
    asks_free(alone, N);
    asks_free(together, N);
}

/* What can never fit is told so at once, and does not hold up what can. */
static void test_never_fits(cluster *c)
{
    ask big, small;

    cluster_router(c, "");
    cluster_prefill(c, "");
    cluster_decode(c, "--max-reservations 6 --kv-memory 8MiB");
    cluster_ready(c);
    ask_chat(&big, cluster_port(c), &(want){.repeat = 2000, .max_tokens = 5});
    ask_chat(&small, cluster_port(c), &(want){.max_tokens = 5});
    asks_wait(&big, 1);
    asks_wait(&small, 1);
    ask_assert_good(&small);
    assert_int_equal(big.status, 400);
    assert_non_null(strstr(ask_error(&big, "message"), "memory for"));
    ask_free(&big);
    ask_free(&small);
    check_empty(c);
}

static void check_told_to_wait(const ask *a)
{
    assert_int_equal(a->status, 429);
    assert_non_null(ask_header(a, "Retry-After"));
    assert_in_range(atoi(ask_header(a, "Retry-After")), 1, 60);
    assert_string_equal(ask_error(a, "type"), "rate_limit_error");
    assert_string_equal(ask_error(a, "code"), "rate_limit_exceeded");
}

static void test_full_server(cluster *c)
{
    enum { INSIDE = 3 };
    ask inside[INSIDE], more;

    cluster_router(c, "--max-requests 3");
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    for (size_t i = 0; i < INSIDE; i++)
        ask_chat(&inside[i], cluster_port(c), &(want){.max_tokens = 30000, .stream = true});
    ASKS_UNTIL(inside[0].n_pieces > 0 && inside[1].n_pieces > 0 && inside[2].n_pieces > 0, inside,
               INSIDE);
    ask_whole(&more, cluster_port(c), &(want){.max_tokens = 2});
    check_told_to_wait(&more);
    ask_free(&more);
    assert_true(process_metric(c->router, "tandem:requests_refused_total") == 1);
    ask_free(&inside[0]); /* one leaves */
    E2E_AWAIT(process_metric(c->router, "vllm:num_requests_running") == 2);
    ask_whole(&more, cluster_port(c), &(want){.max_tokens = 2});
    ask_assert_good(&more);
    ask_free(&more);
    asks_free(inside, INSIDE);
    check_empty(c);
}

/* All pages are held by one long answer: the next one waits, but not for ever. */
static void test_queue_timeout(cluster *c)
{
    ask holder, waits;
    process *d;

    cluster_router(c, "--queue-timeout 300ms");
    cluster_prefill(c, "");
    d = cluster_decode(c, "--max-reservations 1 --kv-memory 8MiB");
    cluster_ready(c);
    ask_chat(&holder, cluster_port(c), &(want){.max_tokens = 1500, .stream = true});
    ASKS_UNTIL(holder.n_pieces > 0, &holder, 1);
    process_signal(d, SIGSTOP); /* it must not come to its end meanwhile */
    ask_whole(&waits, cluster_port(c), &(want){.max_tokens = 2});
    check_told_to_wait(&waits);
    assert_true(waits.ended_at - waits.began >= 300 * TD_USEC_PER_MSEC);
    ask_free(&waits);
    process_signal(d, SIGCONT);
    ask_free(&holder);
    check_empty(c);
    ask_whole(&waits, cluster_port(c), &(want){.max_tokens = 2});
    ask_assert_good(&waits);
    ask_free(&waits);
}

/* C088: the same prompt over and over. Nothing may wait for a completion that nobody sends, and no
 * page may stay behind. */
static void test_same_prompt_many_times(cluster *c)
{
    enum { ROUNDS = 40, AT_ONCE = 5 };
    const want w = {.prompt = " the same", .repeat = 30, .max_tokens = 3};
    ask first, again[AT_ONCE];

    cluster_simple(c);
    ask_whole(&first, cluster_port(c), &w);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < AT_ONCE; i++)
            ask_chat(&again[i], cluster_port(c), &w);
        asks_wait(again, AT_ONCE);
        for (size_t i = 0; i < AT_ONCE; i++)
            ask_assert_same(&first, &again[i]);
        asks_free(again, AT_ONCE);
    }
    ask_free(&first);
    check_empty(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_batch_changes_nothing),
        E2E_TEST(test_more_than_there_is_room_for),
        E2E_TEST(test_never_fits),
        E2E_TEST(test_full_server),
        E2E_TEST(test_queue_timeout),
        E2E_TEST(test_same_prompt_many_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
