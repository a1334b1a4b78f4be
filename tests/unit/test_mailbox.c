/* mailbox: order, the fd's promise, bounds, close, and many posters against one consumer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <cmocka.h>

#include "common/mailbox.h"

enum { POSTERS = 4, PER_POSTER = 20000 };

typedef struct note {
    uint32_t poster, number;
} note;

static td_usec soon(void)
{
    return td_now_us() + 20 * TD_USEC_PER_SEC;
}

static bool readable(const td_mailbox *m)
{
    struct pollfd p = {.fd = td_mailbox_fd(m), .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

static td_mailbox *make(size_t msg_bytes, size_t max, td_mailbox_drop_fn drop, void *user)
{
    td_mailbox *m = NULL;
    td_error err = {0};

    assert_int_equal(td_mailbox_create(msg_bytes, max, drop, user, &m, &err), TD_OK);
    return m;
}

static void test_mailbox_keeps_order_through_growth_and_wrap(void **state)
{
    td_mailbox *m = make(sizeof(int), 0, NULL, NULL);
    int out[100], posted = 0, taken = 0;

    (void)state;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < round % 37; i++, posted++)
            assert_int_equal(td_mailbox_post(m, &posted), TD_OK);
        size_t n = td_mailbox_take(m, out, (size_t)(round % 29));
        for (size_t i = 0; i < n; i++, taken++)
            assert_int_equal(out[i], taken);
        assert_int_equal(readable(m), taken < posted);
    }
    for (size_t n; (n = td_mailbox_take(m, out, 100)) > 0;) {
        for (size_t i = 0; i < n; i++, taken++)
            assert_int_equal(out[i], taken);
    }
    assert_int_equal(taken, posted);
    assert_false(readable(m));
    td_mailbox_free(m);
}

static void test_mailbox_bound_refuses_and_leaves_the_rest(void **state)
{
    td_mailbox *m = make(sizeof(int), 3, NULL, NULL);
    int v, out[4];

    (void)state;
    for (v = 0; v < 3; v++)
        assert_int_equal(td_mailbox_post(m, &v), TD_OK);
    assert_int_equal(td_mailbox_post(m, &v), TD_BUSY);
    assert_int_equal(td_mailbox_take(m, out, 1), 1);
    assert_int_equal(td_mailbox_post(m, &v), TD_OK);
    assert_int_equal(td_mailbox_take(m, out, 4), 3);
    assert_int_equal(out[2], 3);
    td_mailbox_free(m);
}

static void test_mailbox_wait_ends_by_its_deadline(void **state)
{
    td_mailbox *m = make(1, 0, NULL, NULL);
    td_usec before = td_now_us();

    (void)state;
    assert_int_equal(td_mailbox_wait(m, before + 10 * TD_USEC_PER_MSEC), TD_DEADLINE);
    assert_true(td_now_us() >= before + 10 * TD_USEC_PER_MSEC);
    assert_int_equal(td_mailbox_wait(m, before), TD_DEADLINE);
    td_mailbox_free(m);
}

static void test_mailbox_close_refuses_posts_but_lets_the_rest_be_taken(void **state)
{
    td_mailbox *m = make(1, 0, NULL, NULL);
    char c = 'x';

    (void)state;
    assert_int_equal(td_mailbox_post(m, &c), TD_OK);
    td_mailbox_close(m);
    td_mailbox_close(m);
    assert_int_equal(td_mailbox_post(m, &c), TD_CANCELED);
    assert_int_equal(td_mailbox_wait(m, soon()), TD_OK);
    assert_int_equal(td_mailbox_take(m, &c, 1), 1);
    assert_int_equal(td_mailbox_wait(m, soon()), TD_CANCELED);
    assert_true(readable(m)); /* an event loop must see the close too */
    td_mailbox_free(m);
}

static void *waits_for_close(void *arg)
{
    return (void *)(uintptr_t)td_mailbox_wait(arg, soon());
}

static void test_mailbox_close_wakes_a_waiting_consumer(void **state)
{
    td_mailbox *m = make(1, 0, NULL, NULL);
    pthread_t consumer;
    void *st;

    (void)state;
    assert_int_equal(pthread_create(&consumer, NULL, waits_for_close, m), 0);
    td_mailbox_close(m);
    pthread_join(consumer, &st);
    assert_int_equal((uintptr_t)st, TD_CANCELED);
    td_mailbox_free(m);
}

static void count_drop(void *user, void *msg)
{
    int *next = user;

    assert_int_equal(*(int *)msg, *next);
    ++*next;
}

static void test_mailbox_free_drops_what_was_not_taken(void **state)
{
    int next = 10, v;
    td_mailbox *m = make(sizeof(int), 0, count_drop, &next);

    (void)state;
    for (v = 0; v < 100; v++)
        assert_int_equal(td_mailbox_post(m, &v), TD_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(td_mailbox_take(m, &v, 1), 1);
    td_mailbox_free(m);
    assert_int_equal(next, 100);
}

typedef struct poster {
    td_mailbox *m;
    uint32_t id;
} poster;

static void *posts(void *arg)
{
    poster *p = arg;

    for (uint32_t i = 0; i < PER_POSTER; i++) {
        if (td_mailbox_post(p->m, &(note){p->id, i}) != TD_OK)
            return "post failed";
    }
    return NULL;
}

static void test_mailbox_many_posters_lose_nothing_and_keep_their_order(void **state)
{
    td_mailbox *m = make(sizeof(note), 0, NULL, NULL);
    uint32_t next[POSTERS] = {0};
    poster who[POSTERS];
    pthread_t t[POSTERS];
    note batch[64];
    size_t total = 0;

    (void)state;
    for (uint32_t i = 0; i < POSTERS; i++) {
        who[i] = (poster){m, i};
        assert_int_equal(pthread_create(&t[i], NULL, posts, &who[i]), 0);
    }
    while (total < (size_t)POSTERS * PER_POSTER) {
        assert_int_equal(td_mailbox_wait(m, soon()), TD_OK);
        size_t n = td_mailbox_take(m, batch, 64);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(batch[i].number, next[batch[i].poster]++);
        total += n;
    }
    for (int i = 0; i < POSTERS; i++) {
        void *failed;

        pthread_join(t[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(td_mailbox_take(m, batch, 64), 0);
    td_mailbox_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mailbox_keeps_order_through_growth_and_wrap),
        cmocka_unit_test(test_mailbox_bound_refuses_and_leaves_the_rest),
        cmocka_unit_test(test_mailbox_wait_ends_by_its_deadline),
        cmocka_unit_test(test_mailbox_close_refuses_posts_but_lets_the_rest_be_taken),
        cmocka_unit_test(test_mailbox_close_wakes_a_waiting_consumer),
        cmocka_unit_test(test_mailbox_free_drops_what_was_not_taken),
        cmocka_unit_test(test_mailbox_many_posters_lose_nothing_and_keep_their_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
