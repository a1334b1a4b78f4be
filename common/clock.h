/* clock: time as a type. td_usec is microseconds since an arbitrary start (CLOCK_MONOTONIC), so it
 * compares only within one machine. Functions that decide by time take `now` as an argument: a
 * test passes any time it likes and never sleeps. */
#ifndef TANDEM_COMMON_CLOCK_H
#define TANDEM_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

typedef int64_t td_usec;

#define TD_USEC_PER_MSEC ((td_usec)1000)
#define TD_USEC_PER_SEC ((td_usec)1000000)
#define TD_USEC_NEVER INT64_MAX

/* Monotonic now. Thread-safe. */
td_usec td_now_us(void);

/* Wall clock, microseconds since 1970 (UTC); for timestamps only, never for durations. */
int64_t td_wall_us(void);

/* A deadline as pthread_cond_timedwait() wants it on a condition made with CLOCK_MONOTONIC. */
struct timespec td_timespec(td_usec at);

#endif
