/* completion_body: the JSON of OpenAI's legacy Completions API as a raw generation: text or tokens
 * in, text out, nothing of Harmony on either side.
 *
 * As openai.h: mistakes are named by their field, what is understood but not supported is refused
 * by name, unknown fields are ignored, null means absent. Text is text: what spells a special token
 * does not become one. Ids are the client's own, special ones too. Thread-safe. */
#ifndef TANDEM_ROUTER_COMPLETION_BODY_H
#define TANDEM_ROUTER_COMPLETION_BODY_H

#include <cjson/cJSON.h>

#include "common/status.h"
#include "router/openai.h"
#include "router/tokenizer.h"

enum { COMPLETION_MAX_TOKENS = 16 }; /* when max_tokens is absent, as OpenAI has it */

/* Parse a /v1/completions body. body[n] must be NUL (it is not read as part of the body). *g is
 * initialised here and to be freed by the caller whatever is returned. TD_INVALID with err->param,
 * TD_NOMEM. */
TD_MUST_CHECK td_status completion_parse(const char *body, size_t n, const openai_defaults *d,
                                         const tokenizer *t, generation *g, td_error *err);

/* Append an array of token ids, each one that t has a piece for, to *out. `name` is the array's
 * field: TD_INVALID names the first element that does not fit, as "name[index]". */
TD_MUST_CHECK td_status completion_take_ids(const cJSON *array, const char *name,
                                            const tokenizer *t, td_tokens *out, td_error *err);

#endif
