/* tokenize_api: POST /tokenize and POST /detokenize. Reading the body, tokenizing and writing the
 * answer all happen on the render pool: as many at a time as the router takes requests, and as much
 * as eight bodies of the largest size; more are a 429. They need no worker. On the loop's thread.
 */
#ifndef TANDEM_ROUTER_TOKENIZE_API_H
#define TANDEM_ROUTER_TOKENIZE_API_H

#include "common/http_server.h"
#include "router/router.h"

/* Answer req, now or later; it is not the caller's any more. */
void tokenize_start(router *r, td_http_request *req);
void detokenize_start(router *r, td_http_request *req);

/* For router.c: what the pool has not given back, once it is gone and its HTTP server too. */
void tokenize_free_all(router *r);

#endif
