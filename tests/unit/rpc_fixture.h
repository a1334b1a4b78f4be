/* rpc_fixture: servers, clients and counters of the tests of rpc calls. */
#ifndef TANDEM_TESTS_RPC_FIXTURE_H
#define TANDEM_TESTS_RPC_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "common/mailbox.h"
#include "common/rpc.h"
#include "tests/unit/rpc_test.h"

/* Counters of `seen`. From ENDED on, calls by how they ended: see counter_of(). */
enum { REQUESTS, WRONG, UP, DOWN, ENDED, OTHER = TALLY_COUNTERS - 1 };
int counter_of(td_status st);
long ended(void); /* calls, however they did */

rpc_server *serve(const rpc_server_options *opt);
rpc_client *dial(const rpc_client_options *opt);

/* For on_request: reply with the request. */
void echo(void *user, rpc_call *call, const void *bytes, size_t n);

/* For on_request, user a mailbox of held_call: keep the call; dropped when the box is closed. */
typedef struct held_call {
    rpc_call *call;
    const void *bytes; /* live as long as the call */
    size_t n;
} held_call;
void hold(void *user, rpc_call *call, const void *bytes, size_t n);
td_mailbox *make_box(void);
held_call take_call(td_mailbox *box);

void server_peer(void *user, uint32_t peer, bool up); /* count UP and DOWN */
void client_peer(void *user, bool up);

/* For rpc_client_call(): count how it ended. */
void count_end(void *user, td_status st, const void *bytes, size_t n);

/* Send a number, and count it WRONG if another one comes back. */
void call_number(rpc_client *c, uintptr_t number, uint32_t ms);

/* Send text, wait; the reply replaces what was in *reply. */
td_status call_text(rpc_client *c, const char *text, td_buf *reply);

#endif
