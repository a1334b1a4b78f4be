#include "tests/unit/rpc_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

int counter_of(td_status st)
{
    static const td_status order[] = {TD_OK, TD_UNAVAILABLE, TD_DEADLINE, TD_CANCELED};

    for (int i = 0; i < 4; i++) {
        if (order[i] == st)
            return ENDED + i;
    }
    return OTHER;
}

long ended(void)
{
    return tally_of(&seen, counter_of(TD_OK)) + tally_of(&seen, counter_of(TD_UNAVAILABLE)) +
           tally_of(&seen, counter_of(TD_DEADLINE)) + tally_of(&seen, counter_of(TD_CANCELED)) +
           tally_of(&seen, OTHER);
}

void echo(void *user, rpc_call *call, const void *bytes, size_t n)
{
    (void)user;
    tally_add(&seen, REQUESTS, 1);
    rpc_reply(call, bytes, n);
}

void hold(void *user, rpc_call *call, const void *bytes, size_t n)
{
    tally_add(&seen, REQUESTS, 1);
    if (td_mailbox_post(user, &(held_call){call, bytes, n}) != TD_OK)
        rpc_call_drop(call);
}

td_mailbox *make_box(void)
{
    td_mailbox *box = NULL;

    assert_int_equal(td_mailbox_create(sizeof(held_call), 0, NULL, NULL, &box, NULL), TD_OK);
    return box;
}

held_call take_call(td_mailbox *box)
{
    held_call h = {0};

    assert_int_equal(td_mailbox_wait(box, td_now_us() + TALLY_SECONDS * TD_USEC_PER_SEC), TD_OK);
    assert_int_equal(td_mailbox_take(box, &h, 1), 1);
    return h;
}

void server_peer(void *user, uint32_t peer, bool up)
{
    (void)user;
    (void)peer;
    tally_add(&seen, up ? UP : DOWN, 1);
}

void client_peer(void *user, bool up)
{
    (void)user;
    tally_add(&seen, up ? UP : DOWN, 1);
}

rpc_server *serve(const rpc_server_options *opt)
{
    rpc_server *s = NULL;
    td_error err = {0};

    if (rpc_server_open(opt, &s, &err) != TD_OK)
        fail_msg("%s", err.text);
    return s;
}

rpc_client *dial(const rpc_client_options *opt)
{
    rpc_client *c = NULL;
    td_error err = {0};

    if (rpc_client_open(opt, &c, &err) != TD_OK)
        fail_msg("%s", err.text);
    return c;
}

void count_end(void *user, td_status st, const void *bytes, size_t n)
{
    (void)user;
    if ((bytes != NULL) != (st == TD_OK) || (st != TD_OK && n != 0))
        tally_add(&seen, WRONG, 1);
    tally_add(&seen, counter_of(st), 1);
}

/* user is the number that was sent. */
static void check_number(void *user, td_status st, const void *bytes, size_t n)
{
    uintptr_t sent = (uintptr_t)user;

    if (st == TD_OK && (n != sizeof sent || memcmp(bytes, &sent, n) != 0))
        tally_add(&seen, WRONG, 1);
    count_end(user, st, bytes, n);
}

void call_number(rpc_client *c, uintptr_t number, uint32_t ms)
{
    td_error err = {0};

    if (rpc_client_call(c, &number, sizeof number, ms, check_number, (void *)number, &err) != TD_OK)
        fail_msg("%s", err.text);
}

td_status call_text(rpc_client *c, const char *text, td_buf *reply)
{
    td_buf_clear(reply);
    return rpc_client_call_wait(c, text, strlen(text), LONG_MS, reply, NULL);
}
