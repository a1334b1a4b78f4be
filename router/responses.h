/* responses: POST /v1/responses, from the body to the last event, and what was kept of it. */
#ifndef TANDEM_ROUTER_RESPONSES_H
#define TANDEM_ROUTER_RESPONSES_H

#include "common/http_server.h"
#include "router/responses_store.h"
#include "router/router.h"

/* Answer req, which has a body, now or later; ends it exactly once. store: where finished responses
 * are kept, NULL: nowhere; it outlives req. owner: who asks, and alone can find what is kept
 * (responses_store.h); copied. All on the loop's thread. */
void responses_start(router *r, responses_store *store, const char *owner, td_http_request *req);

/* GET (HEAD) and DELETE of /v1/responses/{id}. store and owner as above. */
void responses_lookup(responses_store *store, const char *owner, td_http_request *req,
                      const char *id);

#endif
