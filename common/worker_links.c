#include "common/worker_links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/pb_pack.h"
#include "common/pb_text.h"
#include "common/protocol.h"

/* ---- sending ---- */

static td_status link_send(link_state *l, Tandem__WorkerMessage *msg, td_error *err)
{
    td_worker *w = l->worker;
    td_status st = TD_OK;
    uint8_t *bytes;
    size_t n;

    msg->worker_id = td_pb_text(w->id);
    msg->incarnation = w->incarnation;
    pthread_mutex_lock(&l->lock);
    if (!l->up) {
        pthread_mutex_unlock(&l->lock);
        return td_fail(err, TD_UNAVAILABLE, "router %s is not connected", l->url);
    }
    msg->seq = l->seq + 1;
    bytes = td_pb_pack(&msg->base, &n);
    if (bytes == NULL) {
        st = td_fail(err, TD_NOMEM, "no memory for a message of %zu bytes", n);
    } else {
        st = rpc_push_send(l->push, bytes, n, err);
        free(bytes);
    }
    l->seq++; /* also when it failed: the router must see the gap */
    pthread_mutex_unlock(&l->lock);
    return st;
}

td_status td_worker_send(td_worker *w, int32_t link, Tandem__WorkerMessage *msg, td_error *err)
{
    td_assert(link >= 0 && link < w->n_links);
    return link_send(&w->links[link], msg, err);
}

static void link_report(link_state *l)
{
    td_worker *w = l->worker;
    Tandem__WorkerMessage msg = TANDEM__WORKER_MESSAGE__INIT;
    Tandem__WorkerReport report = TANDEM__WORKER_REPORT__INIT;
    Tandem__ModelIdentity model = TANDEM__MODEL_IDENTITY__INIT;
    td_error err = {0};

    model.name = td_pb_text(w->identity.name);
    model.config_hash = w->identity.config_hash;
    model.checkpoint_hash = w->identity.checkpoint_hash;
    model.kv_wire_hash = w->identity.kv_wire_hash;
    model.vocab = w->identity.vocab;
    model.max_positions = w->identity.max_positions;
    report.role = w->role;
    pthread_mutex_lock(&w->lock);
    report.state = w->state;
    pthread_mutex_unlock(&w->lock);
    report.rpc_url = td_pb_text(w->url);
    report.link = (uint32_t)l->number;
    report.model = &model;
    report.tp = w->tp;
    report.ep = w->ep;
    report.heartbeat_ms = (uint32_t)w->heartbeat_ms;
    report.major = TD_PROTOCOL_MAJOR;
    report.minor = TD_PROTOCOL_MINOR;
    w->cb.on_report(w->user, &report);
    msg.report = &report;
    if (link_send(l, &msg, &err) != TD_OK && err.code != TD_UNAVAILABLE)
        td_warn("report_failed", "router=%s error=\"%s\"", l->url, err.text);
}

void *worker_reporter_main(void *arg)
{
    td_worker *w = arg;
    td_usec next = td_now_us();

    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until = td_timespec(next);

        if (!w->report_wanted && pthread_cond_timedwait(&w->wake, &w->lock, &until) == 0)
            continue; /* look again at what is wanted */
        w->report_wanted = false;
        pthread_mutex_unlock(&w->lock);
        for (int32_t i = 0; i < w->n_links; i++)
            link_report(&w->links[i]);
        next = td_now_us() + w->heartbeat_ms * TD_USEC_PER_MSEC;
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void td_worker_report_now(td_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->report_wanted = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void td_worker_set_state(td_worker *w, Tandem__WorkerState state)
{
    pthread_mutex_lock(&w->lock);
    w->state = state;
    w->report_wanted = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void td_worker_set_failed(td_worker *w, const char *why)
{
    pthread_mutex_lock(&w->lock);
    snprintf(w->failed, sizeof w->failed, "%s", why);
    pthread_mutex_unlock(&w->lock);
    td_worker_set_state(w, TANDEM__WORKER_STATE__STATE_DRAINING); /* takes nothing new */
}

/* ---- links ---- */

static void on_link_peer(void *user, bool up)
{
    link_state *l = user;
    td_worker *w = l->worker;
    bool was_registered;

    pthread_mutex_lock(&w->lock);
    was_registered = l->registered;
    l->registered = false; /* until this router says Hello (again) */
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_lock(&l->lock);
    l->up = up;
    if (!up)
        l->seq++; /* the engine ends what this router had here: it must not miss that */
    pthread_mutex_unlock(&l->lock);
    td_info(up ? "router_connected" : "router_lost", "router=%s", l->url);
    if (up) {
        rpc_push_reset(l->push);
        td_worker_report_now(w);
    }
    if (was_registered || up)
        w->cb.on_link(w->user, l->number, up);
}

static void on_link_dead(void *user, td_status why)
{
    link_state *l = user;

    pthread_mutex_lock(&l->lock);
    l->up = false; /* its queue is lost; the next connection starts it again */
    pthread_mutex_unlock(&l->lock);
    td_warn("router_stuck", "router=%s why=%s", l->url, td_status_name(why));
    l->worker->cb.on_link(l->worker->user, l->number, false);
}

int32_t worker_link_of(td_worker *w, ProtobufCBinaryData router_id)
{
    int32_t found = -1;

    pthread_mutex_lock(&w->lock);
    for (int32_t i = 0; i < w->n_links && found < 0; i++)
        if (w->links[i].registered && router_id.len == strlen(w->links[i].router_id) &&
            memcmp(router_id.data, w->links[i].router_id, router_id.len) == 0)
            found = i;
    pthread_mutex_unlock(&w->lock);
    return found;
}

bool worker_is_registered(td_worker *w)
{
    bool any = false;

    pthread_mutex_lock(&w->lock);
    for (int32_t i = 0; i < w->n_links; i++)
        any = any || w->links[i].registered;
    pthread_mutex_unlock(&w->lock);
    return any;
}

/* ---- begin and end ---- */

/* All links are set up before the first is dialled, since its callbacks look at all of them. */
td_status worker_links_open(td_worker *w, const td_worker_options *opt, td_error *err)
{
    for (size_t i = 0; i < opt->routers.len; i++) {
        link_state *l = &w->links[i];

        l->worker = w;
        l->number = (int32_t)i;
        snprintf(l->url, sizeof l->url, "%s", opt->routers.ptr[i]);
        pthread_mutex_init(&l->lock, NULL);
        w->n_links = (int32_t)i + 1;
    }
    for (int32_t i = 0; i < w->n_links; i++) {
        link_state *l = &w->links[i];
        rpc_push_options po = {.url = l->url,
                               .max_messages = 1024,
                               .on_dead = on_link_dead,
                               .on_peer = on_link_peer,
                               .user = l};

        if (rpc_push_open(&po, &l->push, err) != TD_OK)
            return td_wrap(err, "--router");
    }
    return TD_OK;
}

void worker_links_close(td_worker *w)
{
    for (int32_t i = 0; i < w->n_links; i++) {
        if (w->links[i].push != NULL && rpc_push_flush(w->links[i].push, 200) != TD_OK)
            td_debug("push_not_flushed", "router=%s", w->links[i].url);
        rpc_push_close(w->links[i].push);
        pthread_mutex_destroy(&w->links[i].lock);
    }
}
