/* completions: POST /v1/completions, whole or as server-sent events.
 *
 * The prompt goes to the model as it is and what the model says comes back as text. A stop token
 * (<|return|>, <|call|>, <|endoftext|>) ends the answer; other special tokens are not shown; bytes
 * that are no character become U+FFFD. On the loop's thread. */
#ifndef TANDEM_ROUTER_COMPLETIONS_H
#define TANDEM_ROUTER_COMPLETIONS_H

#include "common/http_server.h"
#include "router/router.h"

/* Answer req, now or later; it is not the caller's any more. */
void completions_start(router *r, td_http_request *req);

#endif
