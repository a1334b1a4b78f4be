/* worker_watch: ends the process when a step, or the way out after one that failed, takes too long.
 *
 * A GPU that hangs cannot be waited for, and what waits for it cannot be stopped: the only way to
 * take such a worker out of service is to end it. Routers then see its connections close and take
 * its requests elsewhere. One watch a process; its thread does nothing but sleep. */
#ifndef TANDEM_COMMON_WORKER_WATCH_H
#define TANDEM_COMMON_WORKER_WATCH_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Exit codes beside those of worker_main.h. */
enum {
    TD_EXIT_DEVICE = 3, /* the device or its driver reported an error */
    TD_EXIT_HANG = 4,   /* a step did not end in time */
    TD_WATCH_LATE_SIZE = 512,
    TD_LEAVE_MS =
        5000, /* for td_watch_leave(): what closing takes where nothing blocks, and more */
};

typedef struct td_watch td_watch;

/* timeout_ms 0: never. TD_NOMEM. */
TD_MUST_CHECK td_status td_watch_start(int64_t timeout_ms, td_watch **out, td_error *err);
void td_watch_stop(td_watch *w); /* NULL is fine */

/* Around a step, from the engine's thread; cheap. `what` and n name it in the log and are not
 * copied. */
void td_watch_begin(td_watch *w, const char *what, int32_t n);
void td_watch_end(td_watch *w);
/* The same around what a process does for the first time: a minute at least, as libraries load
 * their kernels. */
void td_watch_begin_first(td_watch *w, const char *what, int32_t n);

/* Who a step waits for, as text for the log when it does not end: fn writes it into out, from the
 * watch's thread, without waiting for anything. NULL: nobody can say. */
typedef void (*td_watch_late_fn)(const void *ctx, char *out, size_t size);
void td_watch_ask(td_watch *w, td_watch_late_fn fn, const void *ctx);

/* A step has failed: the process ends in ms at the latest, with exit_code if it did not end by
 * itself until then, whatever the device still blocks. */
void td_watch_leave(td_watch *w, int64_t ms, int exit_code);

#endif
