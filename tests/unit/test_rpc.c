/* rpc calls over real sockets: nothing lost, every callback once, every wait bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "proto/tandem.pb-c.h"
#include "tests/unit/rpc_fixture.h"

static void test_rpc_call_echoes_over_every_transport(void **state)
{
    char ipc[64], inproc[] = "inproc://echo", tcp[] = "tcp://127.0.0.1:0";
    const char *urls[] = {tcp, fresh_ipc(ipc, sizeof ipc), inproc};
    td_buf reply = {0};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        rpc_server *s = serve(&(rpc_server_options){.url = urls[i], .on_request = echo});
        rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s)});

        assert_null(strstr(rpc_server_url(s), ":0"));
        assert_int_equal(call_text(c, "ping", &reply), TD_OK);
        assert_string_equal(reply.ptr, "ping");
        assert_int_equal(call_text(c, "", &reply), TD_OK);
        assert_int_equal(reply.len, 0);
        rpc_client_close(c);
        rpc_server_close(s);
    }
    td_buf_free(&reply);
}

/* Answers calls from a thread that is not the transport's, the last of a batch first. */
static void *answer_backwards(void *box)
{
    held_call batch[50];

    while (td_mailbox_wait(box, TD_USEC_NEVER) == TD_OK) {
        for (size_t n = td_mailbox_take(box, batch, 50); n > 0; n--)
            rpc_reply(batch[n - 1].call, batch[n - 1].bytes, batch[n - 1].n);
    }
    return NULL;
}

static void test_rpc_call_loses_none_of_1000_at_once(void **state)
{
    td_mailbox *box = make_box();
    rpc_server *s =
        serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = hold, .user = box});
    rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s)});
    pthread_t answering[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&answering[i], NULL, answer_backwards, box), 0);
    for (uintptr_t round = 0; round < 3; round++) {
        for (uintptr_t i = 0; i < 1000; i++)
            call_number(c, round * 1000 + i, LONG_MS);
        assert_true(tally_reaches(&seen, counter_of(TD_OK), (long)(round + 1) * 1000));
    }
    assert_int_equal(ended(), 3000);
    assert_int_equal(tally_of(&seen, REQUESTS), 3000);
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_client_close(c);
    rpc_server_close(s);
    td_mailbox_close(box);
    for (int i = 0; i < 2; i++)
        pthread_join(answering[i], NULL);
    td_mailbox_free(box);
}

/* Calls again from its own callback, as long as there are rounds left. */
typedef struct again {
    rpc_client *c;
    int left;
} again;

static void call_again(void *user, td_status st, const void *bytes, size_t n)
{
    again *a = user;

    if (st == TD_OK && a->left-- > 0 &&
        rpc_client_call(a->c, "x", 1, LONG_MS, call_again, a, NULL) == TD_OK)
        return;
    count_end(NULL, st, bytes, n);
}

static void test_rpc_client_bounds_calls_outstanding(void **state)
{
    td_mailbox *box = make_box();
    rpc_server *s =
        serve(&(rpc_server_options){.url = "inproc://bound", .on_request = hold, .user = box});
    rpc_client *c = dial(&(rpc_client_options){.url = "inproc://bound", .max_calls = 2});
    td_error err = {0};
    again a = {c, 20};
    held_call h;

    (void)state;
    call_number(c, 1, LONG_MS);
    call_number(c, 2, LONG_MS);
    assert_int_equal(rpc_client_call(c, "x", 1, LONG_MS, count_end, NULL, &err), TD_BUSY);
    assert_non_null(strstr(err.text, "2 calls"));
    h = take_call(box);
    rpc_reply(h.call, h.bytes, h.n);
    assert_true(tally_reaches(&seen, counter_of(TD_OK), 1));
    /* One slot is free: a chain of calls, each from the end of the one before, fits into it. */
    assert_int_equal(rpc_client_call(c, "x", 1, LONG_MS, call_again, &a, &err), TD_OK);
    for (int i = 0; i < 22; i++) {
        h = take_call(box);
        rpc_reply(h.call, h.bytes, h.n);
    }
    assert_true(tally_reaches(&seen, counter_of(TD_OK), 3));
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_client_close(c);
    rpc_server_close(s);
    td_mailbox_free(box);
}

static void test_rpc_call_without_a_server_ends_by_its_deadline(void **state)
{
    char url[64];
    rpc_client *c = dial(&(rpc_client_options){.url = fresh_ipc(url, sizeof url)});
    td_usec before = td_now_us();

    (void)state;
    call_number(c, 1, 50);
    assert_true(tally_reaches(&seen, counter_of(TD_DEADLINE), 1));
    assert_true(td_now_us() >= before + 50 * TD_USEC_PER_MSEC);
    assert_int_equal(ended(), 1);
    rpc_client_close(c);
}

static void test_rpc_call_made_before_the_server_is_up_succeeds(void **state)
{
    char url[64];
    rpc_client *c = dial(&(rpc_client_options){.url = fresh_ipc(url, sizeof url)});
    rpc_server *s;

    (void)state;
    call_number(c, 1, 1);
    assert_true(tally_reaches(&seen, counter_of(TD_DEADLINE), 1)); /* it has tried in vain */
    call_number(c, 2, LONG_MS);
    s = serve(&(rpc_server_options){.url = url, .on_request = echo});
    assert_true(tally_reaches(&seen, counter_of(TD_OK), 1));
    assert_int_equal(tally_of(&seen, REQUESTS), 1); /* what timed out was not sent later */
    rpc_client_close(c);
    rpc_server_close(s);
}

static void test_rpc_late_reply_goes_to_nobody(void **state)
{
    td_mailbox *box = make_box();
    rpc_server *s =
        serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = hold, .user = box});
    rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s), .max_calls = 1});
    held_call late, h;

    (void)state;
    call_number(c, 1, 100);
    late = take_call(box);
    assert_true(tally_reaches(&seen, counter_of(TD_DEADLINE), 1));
    call_number(c, 2, LONG_MS); /* from the same context */
    h = take_call(box);
    rpc_reply(late.call, late.bytes, late.n);
    rpc_reply(h.call, h.bytes, h.n);
    assert_true(tally_reaches(&seen, counter_of(TD_OK), 1));
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_client_close(c);
    rpc_server_close(s);
    td_mailbox_free(box);
}

static void test_rpc_dropped_call_says_so_in_the_projects_reply(void **state)
{
    td_mailbox *box = make_box();
    rpc_server *s =
        serve(&(rpc_server_options){.url = "inproc://drop", .on_request = hold, .user = box});
    rpc_client *c = dial(&(rpc_client_options){.url = "inproc://drop"});
    Tandem__WorkerReply *reply;
    td_buf bytes = {0};

    (void)state;
    td_mailbox_close(box); /* so that hold() drops */
    assert_int_equal(call_text(c, "x", &bytes), TD_OK);
    reply = tandem__worker_reply__unpack(NULL, bytes.len, (uint8_t *)bytes.ptr);
    assert_non_null(reply);
    assert_int_equal(reply->status, TD_UNAVAILABLE);
    assert_true(reply->text.len > 0);
    tandem__worker_reply__free_unpacked(reply, NULL);
    td_buf_free(&bytes);
    rpc_client_close(c);
    rpc_server_close(s);
    td_mailbox_free(box);
}

/* Replies with user's number of bytes. */
static void reply_sized(void *user, rpc_call *call, const void *bytes, size_t n)
{
    static const char zeros[4096];

    (void)bytes;
    (void)n;
    if (rpc_reply(call, zeros, *(size_t *)user) != TD_OK)
        tally_add(&seen, WRONG, 1);
}

static void test_rpc_size_limits_hold_on_both_sides(void **state)
{
    static const char zeros[2001];
    size_t reply_bytes = 1000;
    rpc_server *s = serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0",
                                                .max_message_bytes = 1000,
                                                .on_request = reply_sized,
                                                .user = &reply_bytes});
    rpc_client *c =
        dial(&(rpc_client_options){.url = rpc_server_url(s), .max_message_bytes = 2000});
    td_buf reply = {0};
    td_error err = {0};

    (void)state;
    assert_int_equal(rpc_client_call(c, zeros, 2001, LONG_MS, count_end, NULL, &err), TD_TOOLARGE);
    assert_int_equal(rpc_client_call_wait(c, zeros, 1000, LONG_MS, &reply, &err), TD_OK);
    assert_int_equal(reply.len, 1000);
    /* More than the server takes: it ends the connection, and goes on serving. */
    assert_int_equal(rpc_client_call_wait(c, zeros, 2000, LONG_MS, &reply, &err), TD_UNAVAILABLE);
    assert_int_equal(tally_of(&seen, WRONG), 0);
    reply_bytes = 1001;
    td_buf_clear(&reply);
    assert_int_equal(rpc_client_call_wait(c, zeros, 1, LONG_MS, &reply, &err), TD_OK);
    assert_true(reply.len < 100);                /* the reply of a dropped call */
    assert_true(tally_reaches(&seen, WRONG, 1)); /* and the server was told */
    td_buf_free(&reply);
    rpc_client_close(c);
    rpc_server_close(s);
}

static void test_rpc_client_close_ends_every_call_once(void **state)
{
    td_mailbox *box = make_box();
    rpc_server *s =
        serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = hold, .user = box});
    rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s)});
    rpc_client *lonely = dial(&(rpc_client_options){.url = "inproc://nobody"});
    held_call h;

    (void)state;
    for (uintptr_t i = 0; i < 200; i++) {
        call_number(c, i, LONG_MS);
        call_number(lonely, i, LONG_MS);
    }
    for (int i = 0; i < 10; i++) {
        h = take_call(box);
        rpc_reply(h.call, h.bytes, h.n);
    }
    assert_true(tally_reaches(&seen, counter_of(TD_OK), 10));
    rpc_client_close(c);
    rpc_client_close(lonely);
    assert_int_equal(tally_of(&seen, counter_of(TD_OK)), 10);
    assert_int_equal(tally_of(&seen, counter_of(TD_CANCELED)), 390);
    assert_int_equal(ended(), 400);
    rpc_server_close(s);
    while (td_mailbox_take(box, &h, 1) == 1)
        rpc_call_drop(h.call);
    td_mailbox_free(box);
}

static void test_rpc_client_close_meets_calls_in_every_state(void **state)
{
    rpc_server *s = serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = echo});

    (void)state;
    for (long round = 1; round <= 40; round++) {
        rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s)});

        for (uintptr_t i = 0; i < 50; i++)
            call_number(c, i, LONG_MS);
        if (round % 2 == 0) /* else the first may not even be connected */
            assert_true(tally_reaches(&seen, counter_of(TD_OK), 1));
        rpc_client_close(c);
        assert_int_equal(ended(), round * 50);
        assert_int_equal(tally_of(&seen, counter_of(TD_OK)) +
                             tally_of(&seen, counter_of(TD_CANCELED)),
                         round * 50);
    }
    assert_int_equal(tally_of(&seen, WRONG), 0);
    rpc_server_close(s);
}

static void test_rpc_calls_held_over_a_server_close_stay_valid(void **state)
{
    td_mailbox *box = make_box();
    rpc_server *s =
        serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = hold, .user = box});
    rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s)});
    held_call h;
    int held = 0;

    (void)state;
    for (uintptr_t i = 0; i < 100; i++)
        call_number(c, i, LONG_MS);
    assert_true(tally_reaches(&seen, REQUESTS, 64)); /* the default bound; 36 wait outside */
    rpc_server_close(s);
    assert_true(tally_reaches(&seen, counter_of(TD_UNAVAILABLE), 64));
    for (; td_mailbox_take(box, &h, 1) == 1; held++)
        assert_int_equal(rpc_reply(h.call, h.bytes, h.n), TD_OK);
    assert_int_equal(held, 64);
    assert_int_equal(tally_of(&seen, REQUESTS), 64);
    rpc_client_close(c);
    assert_int_equal(ended(), 100);
    td_mailbox_free(box);
}

static void test_rpc_peers_are_told_in_order_over_a_restart(void **state)
{
    char url[64];
    td_buf reply = {0};
    rpc_client *c;
    rpc_server *s;

    (void)state;
    s = serve(&(rpc_server_options){.url = fresh_ipc(url, sizeof url), .on_request = echo});
    c = dial(&(rpc_client_options){.url = url, .on_peer = client_peer});
    assert_true(tally_reaches(&seen, UP, 1));
    rpc_server_close(s);
    assert_true(tally_reaches(&seen, DOWN, 1));
    s = serve(&(rpc_server_options){.url = url, .on_request = echo});
    assert_true(tally_reaches(&seen, UP, 2));
    assert_int_equal(call_text(c, "again", &reply), TD_OK);
    assert_int_equal(tally_of(&seen, DOWN), 1);
    rpc_client_close(c);
    rpc_server_close(s);
    td_buf_free(&reply);
}

static void test_rpc_server_sees_its_clients_come_and_go(void **state)
{
    rpc_server *s = serve(&(rpc_server_options){
        .url = "tcp://127.0.0.1:0", .on_request = echo, .on_peer = server_peer});
    td_buf reply = {0};

    (void)state;
    for (long i = 1; i <= 5; i++) {
        rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s)});

        assert_int_equal(call_text(c, "x", &reply), TD_OK);
        assert_int_equal(tally_of(&seen, UP), i); /* before the request */
        rpc_client_close(c);
        assert_true(tally_reaches(&seen, DOWN, i));
    }
    rpc_server_close(s);
    td_buf_free(&reply);
}

static void test_rpc_open_names_what_is_wrong(void **state)
{
    rpc_server *s = serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = echo});
    rpc_server *second = NULL;
    rpc_client *c = NULL;
    td_error err = {0};

    (void)state;
    assert_int_equal(
        rpc_server_open(&(rpc_server_options){.url = rpc_server_url(s), .on_request = echo},
                        &second, &err),
        TD_IO);
    assert_non_null(strstr(err.text, rpc_server_url(s)));
    assert_int_equal(rpc_client_open(&(rpc_client_options){.url = "no url"}, &c, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "no url"));
    assert_int_equal(rpc_client_open(&(rpc_client_options){.url = "smtp://x:1"}, &c, &err),
                     TD_INVALID);
    assert_true(second == NULL && c == NULL);
    rpc_server_close(s);
}

#define T(name) cmocka_unit_test_setup_teardown(test_rpc_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(call_echoes_over_every_transport),
        T(call_loses_none_of_1000_at_once),
        T(client_bounds_calls_outstanding),
        T(call_without_a_server_ends_by_its_deadline),
        T(call_made_before_the_server_is_up_succeeds),
        T(late_reply_goes_to_nobody),
        T(dropped_call_says_so_in_the_projects_reply),
        T(size_limits_hold_on_both_sides),
        T(client_close_ends_every_call_once),
        T(client_close_meets_calls_in_every_state),
        T(calls_held_over_a_server_close_stay_valid),
        T(peers_are_told_in_order_over_a_restart),
        T(server_sees_its_clients_come_and_go),
        T(open_names_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
