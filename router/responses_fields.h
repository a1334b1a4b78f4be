/* responses_fields: all of a Responses body but its conversation. */
#ifndef TANDEM_ROUTER_RESPONSES_FIELDS_H
#define TANDEM_ROUTER_RESPONSES_FIELDS_H

#include <cjson/cJSON.h>

#include "router/responses_body.h"

/* Fill q->g, q->store (what the client wants) and q->echo, whose oom is looked at later. Schemas
 * are moved out of the tree. TD_INVALID with err->param, TD_NOMEM. */
TD_MUST_CHECK td_status responses_take_fields(cJSON *root, const openai_defaults *d,
                                              responses_request *q, td_error *err);

#endif
