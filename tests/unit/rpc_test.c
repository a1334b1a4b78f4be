#include "tests/unit/rpc_test.h"

#include <stdio.h>
#include <unistd.h>

tally seen;

int setup(void **state)
{
    (void)state;
    tally_init(&seen);
    return 0;
}

int teardown(void **state)
{
    (void)state;
    tally_fini(&seen);
    return 0;
}

const char *fresh_ipc(char *out, size_t cap)
{
    static int n;

    snprintf(out, cap, "ipc:///tmp/td_test_rpc.%d.%d", (int)getpid(), n++);
    return out;
}
