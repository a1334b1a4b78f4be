/* openai_json: the parts of openai.c that read JSON: a body checked before it is parsed and fields
 * (openai_json.c), messages (openai_messages.c), tools and the form of the answer
 * (openai_tools.c). */
#ifndef TANDEM_ROUTER_OPENAI_JSON_H
#define TANDEM_ROUTER_OPENAI_JSON_H

#include <cjson/cJSON.h>

#include "common/status.h"
#include "router/chat.h"
#include "router/openai.h"

/* Check body[0..n) (UTF-8, strictly JSON, no NUL by escape, no member of any object twice, and d's
 * bounds of nesting, messages or input items, and tools) and parse it; the root is an object and
 * the caller's, to cJSON_Delete(). Numbers keep their spelling. body[n] is NUL. TD_INVALID,
 * TD_NOMEM. */
TD_MUST_CHECK td_status openai_read_json(const char *body, size_t n, const openai_defaults *d,
                                         cJSON **root, td_error *err);

/* A member by exact name; NULL when absent or null. */
const cJSON *openai_field(const cJSON *object, const char *name);

/* "a string", "an array", for messages. */
const char *openai_type_name(const cJSON *v);

/* A string, or an array of text parts joined as they are; NULL leaves *out alone. `where` names it
 * in errors. `also` (may be NULL) is a type of part that is text here, beside text, input_text and
 * output_text. The text becomes the chat's. */
TD_MUST_CHECK td_status openai_take_text(const cJSON *v, const char *where, const char *also,
                                         chat *c, td_slice *out, td_error *err);

/* The member `name` of the object that errors call `where`: text of the chat. Absent leaves *out
 * alone, unless it is needed. */
TD_MUST_CHECK td_status openai_take_string(const cJSON *o, const char *name, const char *where,
                                           bool needed, chat *c, td_slice *out, td_error *err);

/* Name, description, parameters (moved out of the tree) and strict of a function, as a new tool. */
TD_MUST_CHECK td_status openai_take_function(cJSON *function, const char *where, chat *c,
                                             td_error *err);

/* No two tools have one name: a call says by that alone whom it means. inside: where a tool has it,
 * ".function" or "". */
TD_MUST_CHECK td_status openai_check_tool_names(const chat *c, const char *inside, td_error *err);

/* What the answer is to be: an object with a type, text, json_object or json_schema, that errors
 * call `where`. The schema's name, description, strict and the schema itself (moved out of the
 * tree) are in its member `inside`, or in the object itself where that is NULL. */
TD_MUST_CHECK td_status openai_take_format(cJSON *format, const char *where, const char *inside,
                                           chat *c, td_error *err);

TD_MUST_CHECK td_status openai_take_messages(const cJSON *root, chat *c, td_error *err);
TD_MUST_CHECK td_status openai_take_tools(cJSON *root, chat *c, td_error *err);

/* tool_choice, whose function may be nested or flat; after the tools. */
TD_MUST_CHECK td_status openai_take_tool_choice(const cJSON *root, chat *c, td_error *err);

/* By openai.c. A whole number of the root within [min, max], true or false at a path, the words of
 * reasoning effort: absent leaves *out alone. */
TD_MUST_CHECK td_status openai_take_integer(const cJSON *root, const char *name, double min,
                                            double max, int64_t *out, td_error *err);
TD_MUST_CHECK td_status openai_take_bool(const cJSON *v, const char *path, bool *out,
                                         td_error *err);
TD_MUST_CHECK td_status openai_take_effort(const cJSON *v, const char *path, chat_effort *out,
                                           td_error *err);

/* How many answers: n. */
TD_MUST_CHECK td_status openai_take_n(const cJSON *root, const openai_defaults *d, generation *g,
                                      td_error *err);

/* What all forms of a request share, by openai.c: model, limits, sampling, stream. */
TD_MUST_CHECK td_status openai_take_common(const cJSON *root, const openai_defaults *d,
                                           generation *g, td_error *err);

#endif
