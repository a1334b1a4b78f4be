/* The inside of the decode engine: what comes in (engine_intake.c), what is done with it
 * (engine.c), and its metrics (engine_metrics.c). */
#ifndef TANDEM_DECODE_ENGINE_IMPL_H
#define TANDEM_DECODE_ENGINE_IMPL_H

#include <pthread.h>

#include "common/kv_pool.h"
#include "common/mailbox.h"
#include "common/pb_arena.h"
#include "decode/engine.h"
#include "decode/reservation.h"
#include "decode/scheduler.h"
#include "decode/token_sink.h"

typedef enum message_kind {
    MSG_RESERVE,
    MSG_CANCEL,
    MSG_NOTICE,
    MSG_LINK_DOWN,
    MSG_DRAIN
} message_kind;

typedef struct message {
    message_kind kind;
    int32_t link;
    rpc_call *call;  /* RESERVE, CANCEL: to be answered */
    uint8_t *packed; /* RESERVE: the message again, owned */
    size_t n_packed;
    td_guide *guide;  /* RESERVE: owned; NULL: none is asked for */
    uint64_t request; /* CANCEL */
    uint32_t attempt;
    bool source_may_write;
    td_kv_notice notice; /* NOTICE */
    int64_t deadline_ms; /* DRAIN */
} message;

struct engine {
    const decode_config *cfg;
    td_model *model;
    td_guides *guides;
    const td_kv_geometry *geometry;
    td_worker *worker;
    td_kv_sink *sink;
    td_watch *watch;
    td_mailbox *mailbox;

    td_kv_pool *pool;
    reservations *reservations;
    scheduler *sched;
    token_sink *tokens;
    sched_end *ends; /* [max_batch] */
    td_pb_arena arena;

    td_usec next_alive; /* when those that wait for a place are next said to be alive */
    bool draining;
    td_usec drain_deadline;
    bool load_dirty; /* something worth a report has happened since the last one */

    pthread_mutex_t load_lock;
    struct engine_load {
        uint32_t pages_free, rings_free, running, reserved, quarantined_pages;
    } load;

    td_gauge *g_running, *g_waiting, *g_reserved, *g_kv_used, *g_quarantined;
    td_counter *c_tokens, *c_steps, *c_reserved, *c_busy, *c_landed, *c_lost, *c_expired, *c_stray;
    td_counter *c_end[4]; /* by sched_end */
    td_counter *c_canceled, *c_guided;
    td_histogram *h_step, *h_batch, *h_arrival, *h_mask;
};

void engine_make_metrics(engine *e, td_metrics *m);

/* Any thread. For the mailbox: user is not looked at. */
void engine_drop_message(void *user, void *msg);

#endif
