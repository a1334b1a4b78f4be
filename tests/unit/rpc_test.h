/* rpc_test: what all tests of rpc have around their cases. */
#ifndef TANDEM_TESTS_UNIT_RPC_TEST_H
#define TANDEM_TESTS_UNIT_RPC_TEST_H

#include <stddef.h>

#include "tests/unit/tally.h"

enum { LONG_MS = 30000 };

extern tally seen; /* its counters: those of the fixture */

int setup(void **state); /* of each test: counters at zero */
int teardown(void **state);

/* A path of this process that nothing listens on yet. */
const char *fresh_ipc(char *out, size_t cap);

#endif
