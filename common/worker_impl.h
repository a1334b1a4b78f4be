/* worker_impl: what the files around a worker's model share; nobody else includes it. */
#ifndef TANDEM_COMMON_WORKER_IMPL_H
#define TANDEM_COMMON_WORKER_IMPL_H

#include "common/worker.h"

/* The device of each rank, [tp]; all of them exist. TD_INVALID names --devices. */
td_status worker_devices(const td_worker_options *opt, const td_ops *ops, int32_t *devices,
                         td_error *err);

/* --fault-step: a backend like `real`, of which step number n (from 1) fails, or never ends when n
 * is negative. Steps count from worker_faults_begin(), when the worker begins to serve. */
const td_ops *worker_faulty_ops(const td_ops *real, int64_t n);
void worker_faults_begin(void);

#endif
