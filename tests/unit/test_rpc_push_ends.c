/* rpc push over real sockets: how it is bounded, dies and comes back, is flushed and closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/clock.h"
#include "tests/unit/rpc_push_fixture.h"

static void test_rpc_push_to_nobody_is_bounded_then_dead(void **state)
{
    char url[64], msg[100] = {0};
    rpc_push *push = open_push((rpc_push_options){.url = fresh_ipc(url, sizeof url),
                                                  .max_messages = 10,
                                                  .max_bytes = 599,
                                                  .stuck_ms = LONG_MS});
    size_t n, bytes;
    td_error err = {0};

    (void)state;
    for (int i = 0; i < 5; i++)
        assert_int_equal(rpc_push_send(push, msg, sizeof msg, &err), TD_OK);
    rpc_push_load(push, &n, &bytes);
    assert_int_equal(n, 5);
    assert_int_equal(bytes, 500);
    assert_int_equal(rpc_push_send(push, msg, sizeof msg, &err), TD_UNAVAILABLE);
    assert_true(tally_reaches(&seen, DEAD_BUSY, 1));
    assert_int_equal(rpc_push_send(push, msg, 1, &err), TD_UNAVAILABLE);
    assert_int_equal(rpc_push_flush(push, LONG_MS), TD_UNAVAILABLE);
    rpc_push_load(push, &n, &bytes);
    assert_true(n == 0 && bytes == 0);
    rpc_push_reset(push);
    for (int i = 0; i < 10; i++) /* now by number */
        assert_int_equal(rpc_push_send(push, msg, 1, &err), TD_OK);
    assert_int_equal(rpc_push_send(push, msg, 1, &err), TD_UNAVAILABLE);
    assert_true(tally_reaches(&seen, DEAD_BUSY, 2));
    assert_int_equal(rpc_push_flush(push, LONG_MS), TD_UNAVAILABLE);
    rpc_push_close(push);
    assert_int_equal(tally_of(&seen, DEAD_BUSY), 2);
}

static void test_rpc_push_stuck_is_dead_and_returns_after_a_reset(void **state)
{
    char url[64];
    numbers g = {.next = {7}};
    rpc_push *push =
        open_push((rpc_push_options){.url = fresh_ipc(url, sizeof url), .stuck_ms = 50});
    td_usec before = td_now_us();
    rpc_pull *pull;

    (void)state;
    push_number(push, 1, 8);
    push_number(push, 2, 8);
    assert_true(tally_reaches(&seen, DEAD_STUCK, 1));
    assert_true(td_now_us() >= before + 50 * TD_USEC_PER_MSEC);
    pull = open_pull(url, &g);
    assert_true(tally_reaches(&seen, PUSH_UP, 1));
    assert_int_equal(rpc_push_send(push, "x", 1, NULL), TD_UNAVAILABLE); /* up is not enough */
    rpc_push_reset(push);
    push_number(push, 7, 8); /* 1 and 2 must not come */
    assert_true(tally_reaches(&seen, GOT, 1));
    assert_int_equal(tally_of(&seen, WRONG), 0);
    assert_int_equal(tally_of(&seen, DEAD_STUCK), 1);
    rpc_push_close(push);
    rpc_pull_close(pull);
}

/* A puller that stops reading: sends never block, and the push dies of it. After a reset it begins
 * anew on a connection of its own, as the old one has half a message on it. */
static void test_rpc_push_to_a_reader_that_stops_dies_of_its_bound(void **state)
{
    static char big[1 << 20];
    numbers g = {0};
    rpc_pull *pull = open_pull("tcp://127.0.0.1:0", &g);
    rpc_push *push = open_push((rpc_push_options){.url = rpc_pull_url(pull), .stuck_ms = LONG_MS});
    td_status st = TD_OK;
    size_t bytes = 0;

    (void)state;
    assert_true(tally_reaches(&seen, PUSH_UP, 1));
    rpc_pull_pause(pull);
    for (uint64_t k = 0; k < 100 && st == TD_OK; k++) { /* 16 MiB wait here, a few in the kernel */
        memcpy(big, &k, sizeof k);
        st = rpc_push_send(push, big, sizeof big, NULL);
        rpc_push_load(push, NULL, &bytes);
        assert_true(bytes <= (size_t)16 << 20);
    }
    assert_int_equal(st, TD_UNAVAILABLE);
    assert_true(tally_reaches(&seen, DEAD_BUSY, 1));
    rpc_push_reset(push);
    push_number(push, 0, 8);
    rpc_pull_resume(pull);
    assert_true(tally_reaches(&seen, PULL_UP, 2));
    assert_int_equal(rpc_push_flush(push, LONG_MS), TD_OK);
    rpc_push_close(push);
    assert_true(tally_reaches(&seen, PULL_DOWN, 2));
    assert_int_equal(g.next[1], 1);
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_pull_close(pull);
}

static void reset_in_callback(void *user, td_status why)
{
    rpc_push **p = user;

    push_dead(NULL, why);
    rpc_push_reset(*p);
    tally_add(&seen, RESET, 1);
}

static void test_rpc_push_may_be_reset_in_on_dead(void **state)
{
    char url[64];
    rpc_push *push = NULL;
    rpc_push_options opt = {.url = fresh_ipc(url, sizeof url),
                            .stuck_ms = 1,
                            .on_dead = reset_in_callback,
                            .user = &push};

    (void)state;
    assert_int_equal(rpc_push_open(&opt, &push, NULL), TD_OK);
    for (long i = 1; i <= 5; i++) {
        push_number(push, 0, 8);
        assert_true(tally_reaches(&seen, RESET, i));
    }
    assert_int_equal(tally_of(&seen, DEAD_STUCK), 5);
    rpc_push_close(push);
}

static void test_rpc_push_flush_then_close_loses_nothing(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        numbers g = {0};
        rpc_pull *pull = open_pull("tcp://127.0.0.1:0", &g);
        rpc_push *push = open_push((rpc_push_options){.url = rpc_pull_url(pull)});

        for (uint64_t k = 0; k < 8; k++) /* more than the kernel takes at once */
            push_number(push, k, 1 << 20);
        assert_int_equal(rpc_push_flush(push, LONG_MS), TD_OK);
        rpc_push_close(push);
        assert_true(tally_reaches(&seen, GOT, (round + 1) * 8));
        rpc_pull_close(pull);
    }
    assert_int_equal(tally_of(&seen, WRONG), 0);
}

static void test_rpc_push_flush_waits_for_the_last_message_to_be_written(void **state)
{
    enum { HUGE = 24 << 20 }; /* more than the kernel takes */
    numbers g = {0};
    rpc_pull_options opt = {.url = "tcp://127.0.0.1:0",
                            .max_message_bytes = HUGE,
                            .on_message = pull_number,
                            .on_peer = pull_peer,
                            .user = &g};
    char *huge = calloc(1, HUGE);
    rpc_pull *pull = NULL;
    rpc_push *push;

    (void)state;
    assert_non_null(huge);
    assert_int_equal(rpc_pull_open(&opt, &pull, NULL), TD_OK);
    push = open_push((rpc_push_options){.url = rpc_pull_url(pull),
                                        .max_bytes = 2 * HUGE,
                                        .max_message_bytes = HUGE,
                                        .stuck_ms = LONG_MS});
    rpc_pull_pause(pull);
    push_number(push, 0, 8); /* the reader stops at this one */
    assert_int_equal(rpc_push_flush(push, LONG_MS), TD_OK);
    huge[0] = 1;
    assert_int_equal(rpc_push_send(push, huge, HUGE, NULL), TD_OK);
    assert_int_equal(rpc_push_flush(push, 100), TD_DEADLINE);
    rpc_pull_resume(pull);
    assert_int_equal(rpc_push_flush(push, LONG_MS), TD_OK);
    rpc_push_close(push);
    assert_true(tally_reaches(&seen, GOT, 2));
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_pull_close(pull);
    free(huge);
}

static void test_rpc_push_close_drops_what_waits_without_a_word(void **state)
{
    char url[64];
    rpc_push *push = open_push((rpc_push_options){.url = fresh_ipc(url, sizeof url)});

    (void)state;
    for (uint64_t k = 0; k < 30; k++)
        push_number(push, k, 1000);
    assert_int_equal(rpc_push_flush(push, 1), TD_DEADLINE);
    rpc_push_close(push);
    for (int i = 0; i < TALLY_COUNTERS; i++)
        assert_int_equal(tally_of(&seen, i), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(test_rpc_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(push_to_nobody_is_bounded_then_dead),
        T(push_stuck_is_dead_and_returns_after_a_reset),
        T(push_to_a_reader_that_stops_dies_of_its_bound),
        T(push_may_be_reset_in_on_dead),
        T(push_flush_then_close_loses_nothing),
        T(push_flush_waits_for_the_last_message_to_be_written),
        T(push_close_drops_what_waits_without_a_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
