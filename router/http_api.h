/* http_api: the router's public port: which path is whose (OpenAI's API, tokens, and what
 * Kubernetes and Prometheus ask), and who may ask. On the loop's thread. */
#ifndef TANDEM_ROUTER_HTTP_API_H
#define TANDEM_ROUTER_HTTP_API_H

#include "common/http_server.h"
#include "router/router.h"

typedef struct http_api http_api;

/* Listen on the router's --http-listen. TD_INVALID, TD_IO, TD_NOMEM. */
TD_MUST_CHECK td_status http_api_create(router *r, http_api **out, td_error *err);
uint16_t http_api_port(const http_api *a);

/* Stop accepting; connections close as their replies end; fn once none is left. */
void http_api_stop(http_api *a, td_loop_fn fn, void *arg);
/* Read --api-keys again; where it is not good the keys stay as they are, with a line in the log. */
void http_api_reload_keys(http_api *a);
void http_api_free(http_api *a); /* cuts what is still open; NULL is fine */

#endif
