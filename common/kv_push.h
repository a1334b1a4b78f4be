/* kv_push: one request's KV on its way from the prefill ranks to a decode worker.
 *
 *   open, then layer for each rank, layer and chunk as soon as computed, then finish or cancel,
 *   then on_done
 *
 * Every source rank does its part alone: puts, flush, then its own notice to the decode worker. A
 * push that was opened always ends in on_done, once, and every source that still has a working
 * endpoint sends its notice, also on failure, cancel and when there was nothing to move: the decode
 * side frees a failed request's pages by these notices.
 *
 * The source side's pages and ring belong to the push until on_done: they are read until then. */
#ifndef TANDEM_COMMON_KV_PUSH_H
#define TANDEM_COMMON_KV_PUSH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/kv_layout.h"
#include "common/kv_plan.h"
#include "common/kv_wire.h"
#include "common/status.h"

typedef struct td_kv_push td_kv_push;

/* How a push ended. */
typedef struct td_kv_push_result {
    /* TD_OK: the decode worker's memory has all bytes (puts), or its host's network has them and
     * nothing was amiss (messages); either way the notices are sent, and what counts in the end is
     * what the decode side adds up (td_kv_arrival). */
    td_status status;
    const char *text; /* why not, for a person; valid during the callback */
    uint64_t bytes;   /* put by all sources together */
    uint32_t puts;
    td_usec first_put_us;  /* td_now_us() of the first put; 0 if there was none */
    td_usec last_flush_us; /* when the last source's puts had completed remotely; 0: never */
    const char *transport; /* "posix+cma", "tcp", ... as UCX chose; valid during the callback */
} td_kv_push_result;

/* Called once per push on a source's thread; must not block, must not open a push, and may free it.
 */
typedef void (*td_kv_on_done)(void *user, const td_kv_push_result *r);

/* All of it is copied. */
typedef struct td_kv_push_params {
    uint64_t request;
    uint32_t attempt;
    int32_t n_tokens; /* prompt length: positions 0 .. n_tokens - 1 will be pushed */
    /* This side's place of the sequence, the same on every rank. */
    const uint32_t *pages; /* covers n_tokens */
    uint32_t n_pages;
    uint32_t ring;
    /* The other side's, from KvDestination. */
    td_slice worker_id;
    uint64_t incarnation;
    uint32_t epoch;
    td_slice descriptor;
    int32_t dst_tp;
    uint32_t dst_n_pages, dst_n_rings, dst_ring_pages;
    const td_kv_extent *dst_extents;
    size_t dst_n_extents;
    uint32_t dst_ring;
    td_usec lease_deadline; /* td_now_us() time past which no put may start; TD_USEC_NEVER: none */
    td_kv_on_done on_done;
    void *user;
} td_kv_push_params;

/* Start a push over sources[0..n) (source i is rank i of tp = n). Does not wait for the endpoint.
 * TD_INVALID: the destination does not fit this model or this prompt; on_done will not be called.
 * TD_NOMEM. *out is the caller's, to td_kv_push_free(). */
TD_MUST_CHECK td_status td_kv_push_open(td_kv_source *const *sources, int32_t n,
                                        const td_kv_push_params *p, td_kv_push **out,
                                        td_error *err);

/* Keys and values of positions [from, to) of `layer` are written on `rank` once `ready` is reached
 * (NULL: they are). For each rank and layer the ranges follow one another from 0. Never blocks: it
 * only queues, so it may be called inside the model's layer hook, each rank from its own thread. */
void td_kv_push_layer(td_kv_push *p, int32_t rank, int32_t layer, int32_t from, int32_t to,
                      struct td_event *ready);

/* What has gone wrong so far, TD_OK if nothing: lets the engine stop computing for a decode worker
 * that is gone. Any thread, cheap. */
td_status td_kv_push_status(const td_kv_push *p);

/* No more layers: flush and send notices that carry first_token and its index in the answer;
 * logprobs: NULL where they are not asked for. status other than TD_OK (prefill failed): as cancel,
 * with that status. Call once, after the last td_kv_push_layer() has returned. */
void td_kv_push_finish(td_kv_push *p, td_status status, int32_t first_token, uint32_t index,
                       const td_logprobs *logprobs);

/* Stop starting puts, wait for those in flight, send notices with TD_CANCELED. Instead of finish,
 * or after it to cut its tail short; then it may come too late and on_done say TD_OK. */
void td_kv_push_cancel(td_kv_push *p);

/* Give up the handle, after finish or cancel; on_done comes all the same. NULL is fine. */
void td_kv_push_free(td_kv_push *p);

#endif
