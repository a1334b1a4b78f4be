/* openai_json: the parts of openai.c that read JSON: a body checked before it is parsed, fields,
 * and the two lists, messages and tools. */
#ifndef TANDEM_ROUTER_OPENAI_JSON_H
#define TANDEM_ROUTER_OPENAI_JSON_H

#include <cjson/cJSON.h>

#include "common/status.h"
#include "router/chat.h"
#include "router/openai.h"

/* Check body[0..n) (UTF-8, nesting, no NUL by escape) and parse it; the root is an object and the
 * caller's, to cJSON_Delete(). Numbers keep their spelling. body[n] is NUL. TD_INVALID, TD_NOMEM.
 */
TD_MUST_CHECK td_status openai_read_json(const char *body, size_t n, cJSON **root, td_error *err);

/* A member by exact name; NULL when absent or null. */
const cJSON *openai_field(const cJSON *object, const char *name);

/* "a string", "an array", for messages. */
const char *openai_type_name(const cJSON *v);

TD_MUST_CHECK td_status openai_take_messages(const cJSON *root, chat *c, td_error *err);
TD_MUST_CHECK td_status openai_take_tools(cJSON *root, chat *c, td_error *err);

/* What all forms of a request share, by openai.c: model, limits, sampling, stream. */
TD_MUST_CHECK td_status openai_take_common(const cJSON *root, const openai_defaults *d,
                                           generation *g, td_error *err);

#endif
