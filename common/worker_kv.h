/* worker_kv: where a worker's KV memory meets the transfer (kv_wire.h), for both roles. */
#ifndef TANDEM_COMMON_WORKER_KV_H
#define TANDEM_COMMON_WORKER_KV_H

#include "common/kv_wire.h"
#include "common/worker.h"

/* Fill what both ends of the transfer need to know of the backend: transport, devices, events.
 * Before the model is loaded: looks for the GPUs that --devices names, then whether UCX can move
 * their memory. TD_INVALID, TD_UNAVAILABLE with a remedy. */
TD_MUST_CHECK td_status td_worker_kv_wire(const td_worker_options *opt, td_kv_wire_options *wire,
                                          td_error *err);

/* A rank's KV memory. */
td_kv_region td_worker_kv_region(const td_worker_options *opt, const td_model *m, int32_t rank);

#endif
