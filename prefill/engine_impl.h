/* The inside of the prefill engine: what comes in (engine_intake.c), what is done with it
 * (engine.c), where its KV goes (engine_push.c), what routers are told (engine_events.c), and its
 * metrics (engine_metrics.c). */
#ifndef TANDEM_PREFILL_ENGINE_IMPL_H
#define TANDEM_PREFILL_ENGINE_IMPL_H

#include <pthread.h>

#include "common/kv_pool.h"
#include "common/mailbox.h"
#include "common/pb_arena.h"
#include "prefill/engine.h"
#include "prefill/job.h"

typedef enum message_kind {
    MSG_PREFILL,
    MSG_CANCEL,
    MSG_DONE,
    MSG_LINK_DOWN,
    MSG_DRAIN
} message_kind;

typedef struct message {
    message_kind kind;
    int32_t link;
    rpc_call *call;  /* PREFILL, CANCEL, DRAIN: to be answered; may be NULL for DRAIN */
    uint8_t *packed; /* PREFILL: the message again, owned */
    size_t n_packed;
    td_guide *guide;  /* PREFILL: owned; NULL: none is asked for */
    td_usec received; /* PREFILL */
    uint64_t request; /* CANCEL */
    uint32_t attempt;
    int64_t deadline_ms; /* DRAIN */
    /* DONE */
    job *job;
    td_status status;
    uint64_t bytes;
    uint32_t puts;
    td_usec last_flush_us;
    char text[200];
} message;

struct prefill_engine {
    const prefill_config *cfg;
    td_model *model;
    td_guides *guides;
    const td_kv_geometry *geometry;
    uint32_t max_prompt;
    td_worker *worker;
    td_watch *watch;
    td_kv_source *const *sources;
    int32_t n_sources;
    td_mailbox *mailbox;

    jobs *jobs;
    td_kv_pool *pool;
    td_pb_arena arena;

    bool draining;
    td_usec drain_deadline;
    bool load_dirty;

    pthread_mutex_t load_lock;
    jobs_counts load;

    td_gauge *g_running, *g_waiting, *g_pushing, *g_tokens, *g_kv_used;
    td_counter *c_prompt_tokens, *c_admitted, *c_refused, *c_repeated, *c_canceled, *c_failed,
        *c_kv_bytes, *c_kv_puts, *c_kv_failed, *c_guided;
    td_histogram *h_queue, *h_compute, *h_tail, *h_bytes, *h_mask;
};

void prefill_make_metrics(prefill_engine *e, td_metrics *m);

/* Any thread; takes m over. */
void prefill_post(prefill_engine *e, message *m);
/* For the mailbox: user is not looked at. */
void prefill_drop_message(void *user, void *msg);

/* engine_push.c. Start j's push, whose end comes as MSG_DONE; take pages and a ring for its prompt
 * (TD_BUSY: none are free); give back what it holds, and forget it. TD_INVALID, TD_NOMEM. */
TD_MUST_CHECK td_status prefill_open_push(prefill_engine *e, job *j, td_error *err);
TD_MUST_CHECK td_status prefill_take_pages(prefill_engine *e, job *j, td_error *err);
void prefill_drop_job(prefill_engine *e, job *j);
/* End a job that has not been computed: its push says why, and moves nothing. */
void prefill_abandon_queued(prefill_engine *e, job *j, td_status why);
/* Have it end soon, wherever it is; again is fine. */
void prefill_cancel_job(prefill_engine *e, job *j);

/* Events to the job's router. One that cannot be sent is lost, as if the link had broken after it.
 * The first is for the engine's thread, the second for that of the push's end. */
void prefill_send_event(prefill_engine *e, const job *j, td_status status, const char *text,
                        int32_t token, Tandem__Finish finish);
void prefill_send_transfer_event(prefill_engine *e, const job *j, const td_kv_push_result *r);
void prefill_log_transfer(const job *j, const td_kv_push_result *r);
/* How long the transfer went on when there was nothing left to compute. */
td_usec prefill_tail_of(const job *j, td_usec last_flush_us);

#endif
