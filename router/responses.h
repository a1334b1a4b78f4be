/* responses: POST /v1/responses, from the body to the last event. */
#ifndef TANDEM_ROUTER_RESPONSES_H
#define TANDEM_ROUTER_RESPONSES_H

#include "common/http_server.h"
#include "router/router.h"

/* Answer req, which has a body, now or later; ends it exactly once. On the loop's thread. */
void responses_start(router *r, td_http_request *req);

#endif
