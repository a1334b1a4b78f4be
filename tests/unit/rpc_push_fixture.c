#include "tests/unit/rpc_push_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void push_peer(void *user, bool up)
{
    (void)user;
    tally_add(&seen, up ? PUSH_UP : PUSH_DOWN, 1);
}

void push_dead(void *user, td_status why)
{
    (void)user;
    tally_add(&seen, why == TD_BUSY ? DEAD_BUSY : why == TD_DEADLINE ? DEAD_STUCK : WRONG, 1);
}

rpc_push *open_push(rpc_push_options opt)
{
    rpc_push *p = NULL;
    td_error err = {0};

    opt.on_peer = push_peer;
    opt.on_dead = opt.on_dead != NULL ? opt.on_dead : push_dead;
    if (rpc_push_open(&opt, &p, &err) != TD_OK)
        fail_msg("%s", err.text);
    return p;
}

static int numbers_of(numbers *g, uint32_t peer)
{
    for (int i = 0; i < g->n; i++) {
        if (g->peer[i] == peer)
            return i;
    }
    return -1;
}

void pull_peer(void *user, uint32_t peer, bool up)
{
    numbers *g = user;
    int i = numbers_of(g, peer);

    if (up != (i < 0) || (up && g->n == 8))
        tally_add(&seen, WRONG, 1);
    else if (up)
        g->peer[g->n++] = peer;
    else
        g->down[i] = true;
    tally_add(&seen, up ? PULL_UP : PULL_DOWN, 1);
}

void pull_number(void *user, uint32_t peer, const void *bytes, size_t n)
{
    numbers *g = user;
    int i = numbers_of(g, peer);
    uint64_t number;

    memcpy(&number, bytes, sizeof number);
    if (n < sizeof number || i < 0 || g->down[i] || number != g->next[i]++)
        tally_add(&seen, WRONG, 1);
    tally_add(&seen, GOT, 1);
}

rpc_pull *open_pull(const char *url, numbers *g)
{
    rpc_pull_options opt = {.url = url, .on_message = pull_number, .on_peer = pull_peer, .user = g};
    rpc_pull *p = NULL;
    td_error err = {0};

    if (rpc_pull_open(&opt, &p, &err) != TD_OK)
        fail_msg("%s", err.text);
    return p;
}

void push_number(rpc_push *p, uint64_t number, size_t bytes)
{
    static char msg[1 << 20];
    td_error err = {0};

    memcpy(msg, &number, sizeof number);
    if (rpc_push_send(p, msg, bytes, &err) != TD_OK)
        fail_msg("message %lu: %s", (unsigned long)number, err.text);
}
