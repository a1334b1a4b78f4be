/* rpc_push_fixture: pushes and pulls of the tests, and counters of what they say. */
#ifndef TANDEM_TESTS_UNIT_RPC_PUSH_FIXTURE_H
#define TANDEM_TESTS_UNIT_RPC_PUSH_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "common/rpc.h"
#include "tests/unit/rpc_test.h"

/* Counters of `seen`. */
enum { GOT, WRONG, PUSH_UP, PUSH_DOWN, PULL_UP, PULL_DOWN, DEAD_BUSY, DEAD_STUCK, RESET };
/* Counts ups, downs and deaths; a test's own on_dead is left. */
rpc_push *open_push(rpc_push_options opt);
void push_dead(void *user, td_status why); /* the on_dead where a test has none */

/* What came from each peer: numbers from 0 without a gap, anything else counts as WRONG. */
typedef struct numbers {
    uint32_t peer[8];
    uint64_t next[8];
    bool down[8];
    int n;
} numbers;
rpc_pull *open_pull(const char *url, numbers *g);
void pull_peer(void *user, uint32_t peer, bool up); /* its callbacks; user is a numbers */
void pull_number(void *user, uint32_t peer, const void *bytes, size_t n);

/* Send a number in so many bytes; must be taken. */
void push_number(rpc_push *p, uint64_t number, size_t bytes);

#endif
