/* What other threads bring: requests of routers, notices of the KV sink, lost links. Each becomes a
 * message for the engine's thread. */
#include "decode/engine_impl.h"

#include <stdlib.h>

#include "common/pb_pack.h"

void engine_drop_message(void *user, void *msg)
{
    message *m = msg;

    (void)user;
    if (m->call != NULL)
        rpc_call_drop(m->call);
    free(m->packed);
    td_guide_free(m->guide);
}

static void post(engine *e, message *m)
{
    if (td_mailbox_post(e->mailbox, m) != TD_OK)
        engine_drop_message(e, m);
}

static void on_request(void *user, const Tandem__WorkerRequest *req, int32_t link, rpc_call *call)
{
    engine *e = user;
    message m = {.link = link, .call = call};
    td_error err = {0};

    switch (req->body_case) {
    case TANDEM__WORKER_REQUEST__BODY_RESERVE:
        m.kind = MSG_RESERVE;
        m.packed = td_pb_pack(&req->reserve->base, &m.n_packed);
        if (m.packed == NULL) {
            td_worker_reply(call, TD_NOMEM, "no memory for the message", NULL);
            return;
        }
        /* Here, where nobody waits, and not on the engine's thread: a schema may take a while. */
        if (td_generation_open_guide(e->guides, req->reserve->guide, req->reserve->answer,
                                     req->reserve->n_answer, &m.guide, &err) != TD_OK) {
            free(m.packed);
            td_worker_reply(call, err.code, err.text, NULL);
            return;
        }
        break;
    case TANDEM__WORKER_REQUEST__BODY_CANCEL:
        m.kind = MSG_CANCEL;
        m.request = req->cancel->request;
        m.attempt = req->cancel->attempt;
        m.source_may_write = req->cancel->source_may_write;
        break;
    case TANDEM__WORKER_REQUEST__BODY_DRAIN:
        m.kind = MSG_DRAIN;
        m.deadline_ms = req->drain->deadline_ms;
        break;
    default:
        td_worker_reply(call, TD_INVALID, "a decode worker takes Reserve, Cancel and Drain", NULL);
        return;
    }
    post(e, &m);
}

static void on_report(void *user, Tandem__WorkerReport *report)
{
    engine *e = user;
    struct engine_load load;

    pthread_mutex_lock(&e->load_lock);
    load = e->load;
    pthread_mutex_unlock(&e->load_lock);
    report->pages_total = e->geometry->n_pages;
    report->pages_free = load.pages_free;
    report->rings_total = e->geometry->n_rings;
    report->rings_free = load.rings_free;
    report->running = load.running;
    report->reserved = load.reserved;
    report->quarantined_pages = load.quarantined_pages;
    report->max_batch = e->cfg->max_batch;
    report->guides = e->guides != NULL;
}

static void on_link(void *user, int32_t link, bool up)
{
    message m = {.kind = MSG_LINK_DOWN, .link = link};

    if (!up)
        post(user, &m);
}

const td_worker_callbacks engine_worker_callbacks = {
    .on_request = on_request, .on_report = on_report, .on_link = on_link};

void engine_on_notice(void *user, const td_kv_notice *n)
{
    message m = {.kind = MSG_NOTICE, .notice = *n};

    post(user, &m);
}

void engine_drain(engine *e)
{
    message m = {.kind = MSG_DRAIN, .deadline_ms = e->cfg->worker.drain_ms};

    post(e, &m);
}
