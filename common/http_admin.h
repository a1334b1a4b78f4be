/* http_admin: the little HTTP server of a worker process, in a thread of its own, so that it
 * answers whatever the worker's threads are doing.
 *
 *   GET /health   200 while the process lives
 *   GET /ready    200 "ready", or 503 with the reason, as the callback says
 *   GET /metrics  the registry as Prometheus text
 *
 * The router does not need it: it serves the same paths on its own port. */
#ifndef TANDEM_COMMON_HTTP_ADMIN_H
#define TANDEM_COMMON_HTTP_ADMIN_H

#include <stdint.h>

#include "common/buf.h"
#include "common/metrics.h"
#include "common/status.h"

typedef struct td_http_admin td_http_admin;

/* Whether the process is ready. Called on the admin thread: read atomics or take a short lock. When
 * not ready, put the reason into *why ("loading weights: 12 of 36 layers"). */
typedef bool (*td_ready_fn)(void *arg, td_buf *why);

/* Listen on "host:port" and serve until stopped. metrics must outlive it; ready NULL: always ready.
 * *out is the caller's, to td_http_admin_stop(). TD_INVALID, TD_IO, TD_NOMEM. */
TD_MUST_CHECK td_status td_http_admin_start(const char *listen, td_metrics *metrics,
                                            td_ready_fn ready, void *arg, td_http_admin **out,
                                            td_error *err);
uint16_t td_http_admin_port(const td_http_admin *a);

/* Close its connections, join its thread. No callback runs after this. NULL is fine. */
void td_http_admin_stop(td_http_admin *a);

#endif
