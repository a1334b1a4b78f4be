/* A PULL socket and one aio: the next receive starts when the user's function has returned, so that
 * messages come in order and one at a time, and a pause stops the senders and not our memory. */
#include "common/rpc.h"

#include <stdlib.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/protocol/pipeline0/pull.h>

#include "common/rpc_nng.h"

struct rpc_pull {
    rpc_pull_options opt; /* its url is ours below */
    char *name, *url;     /* as given; as bound */
    nng_socket sock;      /* id 0: none yet */
    nng_aio *aio;
    rpc_peers peers;
    pthread_mutex_t lock; /* of all below */
    bool closing;
    bool paused;
    bool receiving; /* from the start of a receive to the end of the user's function */
};

/* Lock held. */
static void pull_receive(rpc_pull *p)
{
    if (p->closing || p->paused || p->receiving)
        return;
    p->receiving = true;
    nng_recv_aio(p->sock, p->aio);
}

static void pull_on_aio(void *arg)
{
    rpc_pull *p = arg;
    nng_msg *msg = NULL;
    uint32_t peer;

    if (nng_aio_result(p->aio) == 0) {
        msg = nng_aio_get_msg(p->aio);
        nng_aio_set_msg(p->aio, NULL);
        peer = (uint32_t)nng_pipe_id(nng_msg_get_pipe(msg));
        if (rpc_peers_enter(&p->peers, peer)) {
            rpc_callback_enter();
            p->opt.on_message(p->opt.user, peer, nng_msg_body(msg), nng_msg_len(msg));
            rpc_callback_leave();
            rpc_peers_leave(&p->peers);
        }
        nng_msg_free(msg);
    }
    pthread_mutex_lock(&p->lock);
    p->receiving = false;
    pull_receive(p);
    pthread_mutex_unlock(&p->lock);
}

static void pull_on_peer(void *owner, uint32_t peer, bool up)
{
    rpc_pull *p = owner;

    if (p->opt.on_peer != NULL)
        p->opt.on_peer(p->opt.user, peer, up);
}

static td_status pull_start_socket(rpc_pull *p, td_error *err)
{
    int rv = nng_pull0_open(&p->sock);

    if (rv == 0)
        rv = rpc_peers_watch(&p->peers, p->sock);
    if (rv == 0)
        rv = nng_aio_alloc(&p->aio, pull_on_aio, p);
    if (rv != 0)
        return rpc_nng_fail(err, rv, "pull from '%s'", p->name);
    if (p->opt.dial)
        return rpc_nng_dial(p->sock, p->name, p->opt.max_message_bytes, err);
    return rpc_nng_listen(p->sock, p->name, p->opt.max_message_bytes, &p->url, err);
}

td_status rpc_pull_open(const rpc_pull_options *opt, rpc_pull **out, td_error *err)
{
    rpc_pull *p = calloc(1, sizeof *p);
    td_status st;

    if (p == NULL)
        return td_fail(err, TD_NOMEM, "pull from '%s': no memory", opt->url);
    p->opt = *opt;
    if (p->opt.max_message_bytes == 0)
        p->opt.max_message_bytes = RPC_MAX_MESSAGE_BYTES;
    pthread_mutex_init(&p->lock, NULL);
    rpc_peers_init(&p->peers, opt->dial, pull_on_peer, p);
    p->name = strdup(opt->url);
    if (p->name == NULL) {
        rpc_pull_close(p);
        return td_fail(err, TD_NOMEM, "pull from '%s': no memory", opt->url);
    }
    *out = p; /* before the first callback, which may want it */
    st = pull_start_socket(p, err);
    if (st != TD_OK) {
        *out = NULL;
        rpc_pull_close(p);
        return st;
    }
    pthread_mutex_lock(&p->lock);
    pull_receive(p);
    pthread_mutex_unlock(&p->lock);
    return TD_OK;
}

void rpc_pull_close(rpc_pull *p)
{
    if (p == NULL)
        return;
    rpc_not_in_callback(__func__);
    rpc_peers_close(&p->peers);
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    nng_aio_stop(p->aio);
    nng_aio_free(p->aio);
    if (p->sock.id != 0)
        nng_close(p->sock);
    rpc_peers_fini(&p->peers);
    pthread_mutex_destroy(&p->lock);
    free(p->name);
    free(p->url);
    free(p);
}

const char *rpc_pull_url(const rpc_pull *p)
{
    return p->url != NULL ? p->url : p->name;
}

void rpc_pull_pause(rpc_pull *p)
{
    pthread_mutex_lock(&p->lock);
    p->paused = true;
    pthread_mutex_unlock(&p->lock);
}

void rpc_pull_resume(rpc_pull *p)
{
    pthread_mutex_lock(&p->lock);
    p->paused = false;
    pull_receive(p);
    pthread_mutex_unlock(&p->lock);
}
