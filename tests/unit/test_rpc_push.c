/* rpc push and pull over real sockets: order and delivery, from one sender and many. Bounds, death
 * and the end: test_rpc_push_ends.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mailbox.h"
#include "tests/unit/rpc_push_fixture.h"

static void test_rpc_push_arrives_in_order_over_every_transport(void **state)
{
    char ipc[64];
    const char *urls[] = {"tcp://127.0.0.1:0", fresh_ipc(ipc, sizeof ipc), "inproc://push"};

    (void)state;
    for (long i = 0; i < 3; i++) {
        numbers g = {0};
        rpc_pull *pull = open_pull(urls[i], &g);
        rpc_push *push =
            open_push((rpc_push_options){.url = rpc_pull_url(pull), .max_messages = 1000});

        for (uint64_t k = 0; k < 1000; k++)
            push_number(push, k, sizeof k + k % 100);
        assert_true(tally_reaches(&seen, GOT, (i + 1) * 1000));
        rpc_push_close(push);
        assert_true(tally_reaches(&seen, PULL_DOWN, i + 1));
        rpc_pull_close(pull);
    }
    assert_int_equal(tally_of(&seen, WRONG), 0);
}

static void test_rpc_push_may_listen_and_pull_dial(void **state)
{
    numbers g = {0};
    rpc_push *push = open_push((rpc_push_options){.url = "tcp://127.0.0.1:0", .listen = true});
    rpc_pull_options opt = {.url = rpc_push_url(push),
                            .dial = true,
                            .on_message = pull_number,
                            .on_peer = pull_peer,
                            .user = &g};
    rpc_pull *pull = NULL, *newer = NULL;
    numbers h = {.next = {10}};

    (void)state;
    assert_int_equal(rpc_pull_open(&opt, &pull, NULL), TD_OK);
    for (uint64_t k = 0; k < 10; k++)
        push_number(push, k, sizeof k);
    assert_true(tally_reaches(&seen, GOT, 10));
    /* A second one, as after a restart that the first connection's end does not know of. The first
     * would dial again and take it back, so it goes as soon as it is told. */
    opt.user = &h;
    assert_int_equal(rpc_pull_open(&opt, &newer, NULL), TD_OK);
    assert_true(tally_reaches(&seen, PUSH_DOWN, 1));
    rpc_pull_close(pull);
    assert_true(tally_reaches(&seen, PUSH_UP, 2));
    rpc_pull_close(newer);
    rpc_push_close(push);
    assert_int_equal(tally_of(&seen, WRONG), 0);
}

/* A reader with room for 64 messages, slower than the sender: it pauses the pull when it is full.
 */
typedef struct slow_reader {
    td_mailbox *box;
    rpc_pull *pull;
    pthread_mutex_t lock;
    int waiting, most;
} slow_reader;

static void slow_on_message(void *user, uint32_t peer, const void *bytes, size_t n)
{
    slow_reader *r = user;
    uint64_t number;

    (void)peer;
    (void)n;
    memcpy(&number, bytes, sizeof number);
    pthread_mutex_lock(&r->lock);
    if (++r->waiting > r->most)
        r->most = r->waiting;
    if (r->waiting >= 64)
        rpc_pull_pause(r->pull);
    pthread_mutex_unlock(&r->lock);
    if (td_mailbox_post(r->box, &number) != TD_OK)
        tally_add(&seen, WRONG, 1);
}

static void test_rpc_push_20000_reach_a_slow_reader_in_order(void **state)
{
    enum { MESSAGES = 20000, BYTES = 1500 };
    slow_reader r = {.lock = PTHREAD_MUTEX_INITIALIZER};
    rpc_pull_options opt = {.url = "tcp://127.0.0.1:0", .on_message = slow_on_message, .user = &r};
    uint64_t next = 0, batch[16];
    size_t waiting;
    rpc_push *push;

    (void)state;
    assert_int_equal(td_mailbox_create(sizeof(uint64_t), 0, NULL, NULL, &r.box, NULL), TD_OK);
    assert_int_equal(rpc_pull_open(&opt, &r.pull, NULL), TD_OK);
    push = open_push((rpc_push_options){.url = rpc_pull_url(r.pull),
                                        .max_messages = MESSAGES,
                                        .max_bytes = (size_t)64 << 20,
                                        .stuck_ms = LONG_MS});
    for (uint64_t k = 0; k < MESSAGES; k++)
        push_number(push, k, BYTES);
    while (next < MESSAGES) {
        size_t n;

        assert_int_equal(td_mailbox_wait(r.box, td_now_us() + TALLY_SECONDS * TD_USEC_PER_SEC),
                         TD_OK);
        if (next == 0) { /* it has stopped the stream, and most of it waits at the sender */
            rpc_push_load(push, &waiting, NULL);
            assert_true(waiting > MESSAGES / 4);
        }
        n = td_mailbox_take(r.box, batch, 16);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(batch[i], next++);
        pthread_mutex_lock(&r.lock);
        r.waiting -= (int)n;
        if (r.waiting < 32)
            rpc_pull_resume(r.pull);
        pthread_mutex_unlock(&r.lock);
    }
    assert_int_equal(rpc_push_flush(push, LONG_MS), TD_OK);
    assert_true(r.most <= 65);
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_push_close(push);
    rpc_pull_close(r.pull);
    td_mailbox_free(r.box);
}

static void test_rpc_pull_tells_its_senders_apart(void **state)
{
    numbers g = {0};
    rpc_pull *pull = open_pull("tcp://127.0.0.1:0", &g);
    rpc_push *push[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        push[i] = open_push((rpc_push_options){.url = rpc_pull_url(pull), .max_messages = 100});
    for (uint64_t k = 0; k < 100; k++) {
        for (int i = 0; i < 3; i++)
            push_number(push[i], k, 8);
    }
    assert_true(tally_reaches(&seen, GOT, 300));
    rpc_push_close(push[1]);
    assert_true(tally_reaches(&seen, PULL_DOWN, 1));
    for (uint64_t k = 100; k < 110; k++) {
        push_number(push[0], k, 8);
        push_number(push[2], k, 8);
    }
    assert_true(tally_reaches(&seen, GOT, 320));
    assert_int_equal(tally_of(&seen, PULL_UP), 3);
    assert_int_equal(tally_of(&seen, PULL_DOWN), 1);
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_push_close(push[0]);
    rpc_push_close(push[2]);
    rpc_pull_close(pull);
}

static void test_rpc_pull_gets_the_last_message_before_the_down(void **state)
{
    numbers g = {0};
    rpc_pull *pull = open_pull("tcp://127.0.0.1:0", &g);

    (void)state;
    for (long round = 1; round <= 30; round++) {
        rpc_push *push = open_push((rpc_push_options){.url = rpc_pull_url(pull)});

        for (uint64_t k = 0; k < 3; k++)
            push_number(push, k, 8);
        assert_int_equal(rpc_push_flush(push, LONG_MS), TD_OK);
        rpc_push_close(push);
        assert_true(tally_reaches(&seen, PULL_DOWN, round));
        assert_int_equal(tally_of(&seen, GOT), 3 * round);
        assert_int_equal(tally_of(&seen, WRONG), 0);
        g.n = 0; /* ids are never used again: room for the next */
        g.next[0] = g.down[0] = 0;
    }
    rpc_pull_close(pull);
}

static void test_rpc_push_finds_a_restarted_puller(void **state)
{
    char url[64];
    numbers first = {0}, second = {.next = {5}};
    rpc_pull *pull = open_pull(fresh_ipc(url, sizeof url), &first);
    rpc_push *push = open_push((rpc_push_options){.url = url});

    (void)state;
    for (uint64_t k = 0; k < 5; k++)
        push_number(push, k, 8);
    assert_true(tally_reaches(&seen, GOT, 5));
    rpc_pull_close(pull);
    assert_true(tally_reaches(&seen, PUSH_DOWN, 1));
    for (uint64_t k = 5; k < 10; k++) /* wait here, and go out when it is back */
        push_number(push, k, 8);
    pull = open_pull(url, &second);
    assert_true(tally_reaches(&seen, GOT, 10));
    assert_true(tally_reaches(&seen, PUSH_UP, 2));
    assert_int_equal(tally_of(&seen, WRONG), 0);
    assert_int_equal(tally_of(&seen, DEAD_STUCK) + tally_of(&seen, DEAD_BUSY), 0);
    rpc_push_close(push);
    rpc_pull_close(pull);
}

static void test_rpc_pull_disconnects_who_sends_too_much(void **state)
{
    static char big[5000];
    numbers g = {0};
    rpc_pull_options opt = {.url = "tcp://127.0.0.1:0",
                            .max_message_bytes = 1000,
                            .on_message = pull_number,
                            .on_peer = pull_peer,
                            .user = &g};
    rpc_pull *pull = NULL;
    rpc_push *push;

    (void)state;
    assert_int_equal(rpc_pull_open(&opt, &pull, NULL), TD_OK);
    push = open_push((rpc_push_options){.url = rpc_pull_url(pull), .max_message_bytes = 4999});
    push_number(push, 0, 1000);
    assert_int_equal(rpc_push_send(push, big, 5000, NULL), TD_TOOLARGE); /* nothing happens */
    push_number(push, 1, 8);
    assert_true(tally_reaches(&seen, GOT, 2));
    assert_int_equal(rpc_push_send(push, big, 2000, NULL), TD_OK);
    assert_true(tally_reaches(&seen, PULL_DOWN, 1));
    assert_true(tally_reaches(&seen, PULL_UP, 2)); /* comes back as another peer */
    push_number(push, 0, 8);
    assert_true(tally_reaches(&seen, GOT, 3));
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_push_close(push);
    rpc_pull_close(pull);
}

typedef struct sender {
    rpc_push *push;
    uint32_t id;
} sender;

enum { SENDERS = 4, PER_SENDER = 1000 };

static void *sends(void *arg)
{
    sender *s = arg;

    for (uint32_t i = 0; i < PER_SENDER; i++) {
        uint32_t msg[2] = {s->id, i};

        if (rpc_push_send(s->push, msg, sizeof msg, NULL) != TD_OK)
            tally_add(&seen, WRONG, 1);
    }
    return NULL;
}

static void pull_of_senders(void *user, uint32_t peer, const void *bytes, size_t n)
{
    uint32_t *next = user, msg[2] = {0};

    (void)peer;
    memcpy(msg, bytes, n < sizeof msg ? n : sizeof msg);
    if (msg[0] >= SENDERS || msg[1] != next[msg[0]]++)
        tally_add(&seen, WRONG, 1);
    tally_add(&seen, GOT, 1);
}

static void test_rpc_push_takes_messages_from_many_threads(void **state)
{
    uint32_t next[SENDERS] = {0};
    rpc_pull_options opt = {.url = "inproc://threads", .on_message = pull_of_senders, .user = next};
    rpc_pull *pull = NULL;
    sender who[SENDERS];
    pthread_t t[SENDERS];
    rpc_push *push;

    (void)state;
    assert_int_equal(rpc_pull_open(&opt, &pull, NULL), TD_OK);
    push = open_push((rpc_push_options){.url = opt.url, .max_messages = SENDERS * PER_SENDER});
    for (uint32_t i = 0; i < SENDERS; i++) {
        who[i] = (sender){push, i};
        assert_int_equal(pthread_create(&t[i], NULL, sends, &who[i]), 0);
    }
    for (int i = 0; i < SENDERS; i++)
        pthread_join(t[i], NULL);
    assert_true(tally_reaches(&seen, GOT, SENDERS * PER_SENDER));
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_push_close(push);
    rpc_pull_close(pull);
}

#define T(name) cmocka_unit_test_setup_teardown(test_rpc_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(push_arrives_in_order_over_every_transport), T(push_may_listen_and_pull_dial),
        T(push_20000_reach_a_slow_reader_in_order),    T(pull_tells_its_senders_apart),
        T(pull_gets_the_last_message_before_the_down), T(push_finds_a_restarted_puller),
        T(pull_disconnects_who_sends_too_much),        T(push_takes_messages_from_many_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
