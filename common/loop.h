/* loop: one thread's events: timers, sockets, signals, and calls posted by other threads.
 *
 * A loop belongs to the thread that runs it. Only td_loop_post(), td_loop_post_task() and
 * td_loop_stop() may be called from elsewhere; everything else is called on the loop's thread, or
 * on any one thread while the loop does not run (at start, and after td_loop_run() returned).
 * Callbacks must not block: all sockets of the loop wait for them. libevent is behind this and is
 * seen by nobody else. */
#ifndef TANDEM_COMMON_LOOP_H
#define TANDEM_COMMON_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/clock.h"
#include "common/status.h"

typedef struct td_loop td_loop;
typedef void (*td_loop_fn)(void *arg);

/* *out is the caller's, to td_loop_free(). TD_NOMEM; TD_IO: no file descriptors. */
TD_MUST_CHECK td_status td_loop_create(td_loop **out, td_error *err);

/* Not while it runs. Calls still queued are dropped, their args are not touched. Timers, watches
 * and servers on the loop are freed before. NULL is fine. */
void td_loop_free(td_loop *loop);

/* Run until td_loop_stop(). Calls posted before the stop are made before this returns. TD_INTERNAL:
 * the kernel does not give events any more. */
TD_MUST_CHECK td_status td_loop_run(td_loop *loop, td_error *err);

/* From any thread, and from signal callbacks of this interface. A stop before the run counts: the
 * run then makes the calls that are queued and returns. */
void td_loop_stop(td_loop *loop);

/* Have the loop's thread call fn(arg). From any thread; calls of one thread keep their order. Never
 * blocks for longer than a push to a list. false: no memory, or the loop has been stopped, so fn
 * will not be called and arg is still the caller's. */
TD_MUST_CHECK bool td_loop_post(td_loop *loop, td_loop_fn fn, void *arg);

/* The same with the caller's memory, so that it fails only when the loop has been stopped. Zero it
 * once; it is the loop's from here until fn is entered, and posting it meanwhile does nothing (and
 * returns true): a producer may post its "there is work" task after each item, from any thread. */
typedef struct td_loop_task {
    td_loop_fn fn;
    void *arg;
    struct td_loop_task *next; /* the loop's */
    bool queued;               /* the loop's */
} td_loop_task;
TD_MUST_CHECK bool td_loop_post_task(td_loop *loop, td_loop_task *task);

/* Whether the caller is on the thread that runs the loop (true for all while it does not run). */
bool td_loop_here(const td_loop *loop);

/* Timers are one-shot, fire at or after their time, never early, and may be set again from their
 * own callback. NULL from create: no memory. */
typedef struct td_timer td_timer;
td_timer *td_timer_create(td_loop *loop, td_loop_fn fn, void *arg);
void td_timer_at(td_timer *t, td_usec deadline); /* td_now_us() clock; TD_USEC_NEVER: as stop */
void td_timer_in(td_timer *t, td_usec delay);    /* from now; replaces a time set before */
void td_timer_stop(td_timer *t);
void td_timer_free(td_timer *t); /* also from its own callback; NULL is fine */

/* Call fn while fd is ready, level-triggered, until freed. The fd stays the caller's, and is closed
 * after the free. An error or hang-up shows as readable. NULL: no memory, or fd is no socket. */
enum { TD_READABLE = 1, TD_WRITABLE = 2 };
typedef struct td_watch td_watch;
typedef void (*td_watch_fn)(void *arg, unsigned ready);
td_watch *td_watch_create(td_loop *loop, int fd, unsigned what, td_watch_fn fn, void *arg);
void td_watch_free(td_watch *w); /* also from its own callback; NULL is fine */

/* Call fn on the loop's thread after a signal (SIGTERM, SIGINT, SIGHUP). One loop of a process may
 * watch signals. Lasts until the loop is freed; from then on the signal does nothing: a process
 * that was told to end, and is at it, is not killed by being told once more. TD_NOMEM, TD_IO. */
TD_MUST_CHECK td_status td_loop_on_signal(td_loop *loop, int signo, td_loop_fn fn, void *arg,
                                          td_error *err);

#endif
