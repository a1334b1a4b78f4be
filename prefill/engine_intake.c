/* What other threads bring: requests of routers, lost links, ends of transfers. Each becomes a
 * message for the engine's thread. */
#include "prefill/engine_impl.h"

#include <stdlib.h>

#include "common/clock.h"
#include "common/pb_pack.h"

void prefill_drop_message(void *user, void *msg)
{
    message *m = msg;

    (void)user;
    if (m->call != NULL)
        rpc_call_drop(m->call);
    free(m->packed);
    td_guide_free(m->guide);
}

void prefill_post(prefill_engine *e, message *m)
{
    td_status st = td_mailbox_post(e->mailbox, m);

    /* A lost end of a transfer would hold its pages for ever. */
    td_assert(st == TD_OK || m->kind != MSG_DONE);
    if (st != TD_OK)
        prefill_drop_message(e, m);
}

/* Here, where nobody waits, and not on the engine's thread: a schema may take a while. */
static td_status open_guide(prefill_engine *e, const Tandem__Prefill *p, td_guide **out,
                            td_error *err)
{
    if (p->index > p->n_tokens) /* refused by job_create(), with its reason */
        return TD_OK;
    return td_generation_open_guide(e->guides, p->guide, p->tokens + (p->n_tokens - p->index),
                                    p->index, out, err);
}

static void on_request(void *user, const Tandem__WorkerRequest *req, int32_t link, rpc_call *call)
{
    message m = {.link = link, .call = call};
    td_error err = {0};

    switch (req->body_case) {
    case TANDEM__WORKER_REQUEST__BODY_PREFILL:
        m.kind = MSG_PREFILL;
        m.received = td_now_us();
        m.packed = td_pb_pack(&req->prefill->base, &m.n_packed);
        if (m.packed == NULL) {
            td_worker_reply(call, TD_NOMEM, "no memory for the message", NULL);
            return;
        }
        if (open_guide(user, req->prefill, &m.guide, &err) != TD_OK) {
            free(m.packed);
            td_worker_reply(call, err.code, err.text, NULL);
            return;
        }
        break;
    case TANDEM__WORKER_REQUEST__BODY_CANCEL:
        m.kind = MSG_CANCEL;
        m.request = req->cancel->request;
        m.attempt = req->cancel->attempt;
        break;
    case TANDEM__WORKER_REQUEST__BODY_DRAIN:
        m.kind = MSG_DRAIN;
        m.deadline_ms = req->drain->deadline_ms;
        break;
    default:
        td_worker_reply(call, TD_INVALID, "a prefill worker takes Prefill, Cancel and Drain", NULL);
        return;
    }
    prefill_post(user, &m);
}

static void on_report(void *user, Tandem__WorkerReport *report)
{
    prefill_engine *e = user;
    jobs_counts load;

    pthread_mutex_lock(&e->load_lock);
    load = e->load;
    pthread_mutex_unlock(&e->load_lock);
    report->queued_requests = load.queued + load.computing;
    report->queued_tokens = load.tokens;
    report->max_prompt_tokens = e->max_prompt;
    report->running = load.computing;
    report->guides = e->guides != NULL;
}

static void on_link(void *user, int32_t link, bool up)
{
    message m = {.kind = MSG_LINK_DOWN, .link = link};

    if (!up)
        prefill_post(user, &m);
}

const td_worker_callbacks prefill_worker_callbacks = {
    .on_request = on_request, .on_report = on_report, .on_link = on_link};

void prefill_engine_drain(prefill_engine *e)
{
    message m = {.kind = MSG_DRAIN, .deadline_ms = e->cfg->worker.drain_ms};

    prefill_post(e, &m);
}
