/* log: one line an event, `level event key=value ...`, to stderr.
 *
 *   td_info("reservation_expired", "request=%s epoch=%u pages=%u", id, epoch, pages);
 *   -> 2026-11-30T08:00:00.123456Z info decode reservation_expired request=7f3a epoch=12 pages=96
 *
 * error: someone must act. warn: survived, odd. info: per process, and one per request at its end.
 * debug: per phase. Nothing at info grows with tokens. Values with spaces are to be written with
 * quotes by the caller (key=\"%s\"); control characters are escaped here, so that one event is
 * always one line, whatever a client sent. Thread-safe: a line is one write(2). */
#ifndef TANDEM_COMMON_LOG_H
#define TANDEM_COMMON_LOG_H

#include <stdbool.h>

#include "common/status.h"

typedef enum td_log_level { TD_LOG_ERROR, TD_LOG_WARN, TD_LOG_INFO, TD_LOG_DEBUG } td_log_level;

/* Call once at start, before threads. component names the process ("router"); it is kept. */
void td_log_init(const char *component, td_log_level level);

bool td_log_enabled(td_log_level level);
void td_log_line(td_log_level level, const char *event, const char *fmt, ...) TD_PRINTF(3, 4);

#define td_log_at(level, event, ...) \
    (td_log_enabled(level) ? td_log_line(level, event, __VA_ARGS__) : (void)0)
#define td_logerr(event, ...) td_log_at(TD_LOG_ERROR, event, __VA_ARGS__)
#define td_warn(event, ...) td_log_at(TD_LOG_WARN, event, __VA_ARGS__)
#define td_info(event, ...) td_log_at(TD_LOG_INFO, event, __VA_ARGS__)
#define td_debug(event, ...) td_log_at(TD_LOG_DEBUG, event, __VA_ARGS__)

#endif
