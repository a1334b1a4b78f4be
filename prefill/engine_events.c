/* What the routers of prompts are told. */
#include "prefill/engine_impl.h"

#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/pb_text.h"

void prefill_send_event(prefill_engine *e, const job *j, td_status status, const char *text,
                        int32_t token, Tandem__Finish finish)
{
    Tandem__WorkerMessage msg = TANDEM__WORKER_MESSAGE__INIT;
    Tandem__PrefillEvent ev = TANDEM__PREFILL_EVENT__INIT, *list = &ev;
    Tandem__TokenLogprobs logprobs;
    td_error err = {0};

    ev.request = j->request;
    ev.attempt = (uint32_t)j->attempt;
    ev.status = status;
    ev.text = td_pb_text(text);
    ev.first_token = token;
    ev.index = j->index;
    ev.finish = finish;
    if (status == TD_OK && j->generation.sampling.logprobs) {
        td_logprobs_wire(&j->logprobs, &logprobs);
        ev.logprobs = &logprobs;
    }
    if (j->started_at != 0)
        ev.queue_us = (uint64_t)(j->started_at - j->queued_at);
    if (j->computed_at != 0)
        ev.compute_us = (uint64_t)(j->computed_at - j->started_at);
    msg.prefills = &list;
    msg.n_prefills = 1;
    if (td_worker_send(e->worker, j->link, &msg, &err) != TD_OK)
        td_debug("event_lost", "link=%d error=\"%s\"", j->link, err.text);
}

td_usec prefill_tail_of(const job *j, td_usec last_flush_us)
{
    return j->computed_at != 0 && last_flush_us > j->computed_at ? last_flush_us - j->computed_at
                                                                 : 0;
}

void prefill_send_transfer_event(prefill_engine *e, const job *j, const td_kv_push_result *r)
{
    Tandem__WorkerMessage msg = TANDEM__WORKER_MESSAGE__INIT;
    Tandem__TransferEvent ev = TANDEM__TRANSFER_EVENT__INIT, *list = &ev;
    td_error err = {0};

    ev.request = j->request;
    ev.attempt = (uint32_t)j->attempt;
    ev.status = r->status;
    ev.text = td_pb_text(r->text ? r->text : "");
    ev.tail_us = (uint64_t)prefill_tail_of(j, r->last_flush_us);
    ev.kv_bytes = r->bytes;
    ev.kv_puts = r->puts;
    ev.transport = td_pb_text(r->transport ? r->transport : "");
    msg.transfers = &list;
    msg.n_transfers = 1;
    if (td_worker_send(e->worker, j->link, &msg, &err) != TD_OK)
        td_debug("event_lost", "link=%d error=\"%s\"", j->link, err.text);
}

/* Times from the start of compute: the first put leaves when the first layer is done, and what
 * lasts beyond compute is what the decode worker has waited for. */
void prefill_log_transfer(const job *j, const td_kv_push_result *r)
{
    td_usec from = j->started_at, tail = prefill_tail_of(j, r->last_flush_us);

    td_debug("transfer_done",
             "request=%016llx tokens=%d bytes=%llu puts=%u transport=%s compute_us=%lld "
             "first_put_us=%lld last_flush_us=%lld tail_us=%lld",
             (unsigned long long)j->request, j->n_tokens, (unsigned long long)r->bytes, r->puts,
             r->transport, (long long)(j->computed_at - from),
             r->first_put_us ? (long long)(r->first_put_us - from) : -1,
             (long long)(r->last_flush_us - from), (long long)tail);
}
