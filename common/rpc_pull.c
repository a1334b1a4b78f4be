/* Messages in, one at a time: a connection that has more while the user is told waits for the
 * link's events lock. While paused, connections park and their senders' queues fill. */
#include "common/rpc.h"

#include <stdlib.h>

#include "common/rpc_link.h"

struct rpc_pull {
    rpc_link link; /* first: a link of a pull is the pull */
    rpc_pull_options opt;
    bool paused; /* link.lock */
};

static void pull_on_peer(rpc_link *link, rpc_conn *conn, bool up)
{
    rpc_pull *p = (rpc_pull *)link;

    if (p->opt.on_peer != NULL)
        p->opt.on_peer(p->opt.user, conn->id, up);
}

static void pull_on_up(rpc_link *link, rpc_conn *conn)
{
    pull_on_peer(link, conn, true);
}

static void pull_on_down(rpc_link *link, rpc_conn *conn)
{
    pull_on_peer(link, conn, false);
}

static bool pull_may_take(rpc_link *link)
{
    return !((rpc_pull *)link)->paused;
}

static bool pull_on_message(rpc_link *link, rpc_conn *conn, const unsigned char *bytes, size_t n)
{
    rpc_pull *p = (rpc_pull *)link;

    pthread_mutex_lock(&link->events);
    if (!link->muted) {
        rpc_callback_enter();
        p->opt.on_message(p->opt.user, conn->id, bytes, n);
        rpc_callback_leave();
    }
    pthread_mutex_unlock(&link->events);
    return true;
}

static const rpc_end_ops pull_ops = {
    .self = RPC_SP_PULL,
    .peer = RPC_SP_PUSH,
    .on_up = pull_on_up,
    .on_down = pull_on_down,
    .may_take = pull_may_take,
    .on_message = pull_on_message,
};

td_status rpc_pull_open(const rpc_pull_options *opt, rpc_pull **out, td_error *err)
{
    rpc_pull *p = calloc(1, sizeof *p);
    td_status st;

    if (p == NULL)
        return td_fail(err, TD_NOMEM, "pull from '%s': no memory", opt->url);
    p->opt = *opt;
    if (p->opt.max_message_bytes == 0)
        p->opt.max_message_bytes = RPC_MAX_MESSAGE_BYTES;
    st = rpc_link_init(&p->link, &pull_ops, opt->url, p->opt.max_message_bytes, err);
    *out = p; /* before the first callback, which may want it */
    if (st == TD_OK)
        st = rpc_link_start(&p->link, !opt->dial, err);
    if (st != TD_OK) {
        *out = NULL;
        rpc_pull_close(p);
    }
    return st;
}

void rpc_pull_close(rpc_pull *p)
{
    if (p == NULL)
        return;
    rpc_not_in_callback(__func__);
    rpc_link_close(&p->link);
    rpc_link_fini(&p->link);
    free(p);
}

const char *rpc_pull_url(const rpc_pull *p)
{
    return rpc_link_url(&p->link);
}

void rpc_pull_pause(rpc_pull *p)
{
    pthread_mutex_lock(&p->link.lock);
    p->paused = true;
    pthread_mutex_unlock(&p->link.lock);
}

void rpc_pull_resume(rpc_pull *p)
{
    pthread_mutex_lock(&p->link.lock);
    if (p->paused) {
        p->paused = false;
        rpc_link_kick(&p->link);
    }
    pthread_mutex_unlock(&p->link.lock);
}
