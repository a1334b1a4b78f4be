/* pool: the compute threads of one rank.
 *
 * The rank's own thread is thread 0 and always works along; n - 1 helpers spin for some
 * microseconds after a job, because the next step of a layer follows at once, and then sleep,
 * because other processes share the machine. Items are handed out one at a time in rising order.
 * Which thread runs an item must not matter to its result.
 *
 * One thread (the rank's) calls cpu_pool_run(); jobs do not nest. */
#ifndef TANDEM_KERNELS_CPU_POOL_H
#define TANDEM_KERNELS_CPU_POOL_H

#include <stdint.h>

#include "common/status.h"

typedef struct cpu_pool cpu_pool;

/* Run item of a job on thread `thread` (0 .. n_threads - 1): at most one item at a time a thread.
 */
typedef void (*cpu_job)(void *ctx, int32_t item, int32_t thread);

TD_MUST_CHECK td_status cpu_pool_create(int32_t n_threads, cpu_pool **out, td_error *err);
void cpu_pool_free(cpu_pool *pool); /* NULL is fine; no job may be running */
int32_t cpu_pool_threads(const cpu_pool *pool);

/* Run all items and return when they are done. cost: multiply-adds, or as much work, in the whole
 * job; a job too small to be worth waking anyone runs on the calling thread. */
void cpu_pool_run(cpu_pool *pool, int32_t n_items, int64_t cost, cpu_job job, void *ctx);

#endif
