/* kv_push_impl: a push and its legs, for kv_push.c (what the engine calls) and kv_push_leg.c (what
 * a source's thread runs); nobody else includes it. */
#ifndef TANDEM_COMMON_KV_PUSH_IMPL_H
#define TANDEM_COMMON_KV_PUSH_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/kv_wire_impl.h"

typedef enum leg_stage {
    LEG_PUTTING,
    LEG_FLUSHING,
    LEG_NOTIFYING,
    LEG_DRAINING,
    LEG_CHECKING,
    LEG_OVER,
} leg_stage;

/* A range of a layer that may be put once `ready` is reached. */
typedef struct leg_job {
    int32_t layer, from, to;
    struct td_event *ready; /* NULL: it is */
} leg_job;

struct kv_leg {
    kv_leg *next;
    td_kv_push *push;
    td_kv_source *source;

    /* The inbox, guarded by source->mutex. */
    leg_job *jobs;
    size_t n_jobs, cap_jobs, next_job;
    bool jobs_oom;
    bool ended, canceled; /* finish was called; cancel was called */
    td_status end_status;
    int32_t first_token;
    uint32_t index;
    td_logprobs logprobs; /* n is -1 from open on */

    /* The source thread's. */
    leg_stage stage;
    kv_peer *peer;
    bool mute;       /* no endpoint to report on: on_done is the only report */
    bool op_running; /* of `op`: flush or notice */
    int puts_in_flight;
    kv_op op;
    td_kv_puts plan;
    size_t next_put;                /* of plan */
    uint64_t put_at;                /* bytes of it that are posted */
    int32_t covered[TD_MAX_LAYERS]; /* positions of each layer that were taken into a plan */
    td_error err;                   /* code TD_OK: nothing is wrong */
    uint64_t bytes, digest;
    uint32_t puts;
    td_usec first_put_us, flushed_us;
    uint64_t checked_from; /* the source's round when CHECKING began */
    bool awaits_event;     /* the next job's layer is still being computed */
    unsigned char notice[TD_KV_NOTICE_BYTES];
};

struct td_kv_push {
    uint64_t request, incarnation;
    uint32_t attempt, epoch;
    int32_t n_tokens;
    td_buf worker_id, descriptor;
    td_kv_geometry src_g, dst_g; /* copies: sources close one by one */
    td_kv_place src, dst;
    td_kv_memory memory; /* of both sides */
    uint32_t *pages;     /* src's, then dst's */
    td_usec lease_deadline;
    td_kv_on_done on_done;
    void *user;
    atomic_int refs;   /* of the owner and of each leg */
    atomic_int status; /* first failure; relaxed: nothing is read on the strength of it */

    pthread_mutex_t mutex; /* guards what follows */
    int n_over;
    td_kv_push_result result;
    td_error err;
    char transport[KV_TRANSPORT_NAME];

    int32_t n_legs;
    kv_leg legs[];
};

/* The first failure of any leg is the push's. */
void kv_push_fail(td_kv_push *p, const td_error *err);

/* A leg is over; the last one calls on_done. The push may be gone on return. */
void kv_push_leg_over(td_kv_push *p, const kv_leg *leg, const char *transport);

#endif
