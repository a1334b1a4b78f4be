/* harmony_tools: the declared functions as the TypeScript that the model was trained to read.
 *
 * Follows openai-harmony 0.0.8 to the byte, oddities included (anyOf is "any", a nested object's
 * description is indented, LF inside a description is not): a prompt the model knows is worth more
 * than a tidy one. */
#ifndef TANDEM_ROUTER_HARMONY_TOOLS_H
#define TANDEM_ROUTER_HARMONY_TOOLS_H

#include "common/buf.h"
#include "common/status.h"
#include "router/chat.h"

/* A schema may nest this many types. Each level indents its lines further, so depth multiplies the
 * size of a prompt; no tool in use comes near. */
#define HARMONY_MAX_SCHEMA_DEPTH 64

/* Append the section "# Tools" with the namespace "functions" for the tools that the chat shows;
 * nothing when there are none. TD_INVALID: a name that is no identifier, or a schema nested too
 * deep; err->param names it. Lost memory shows in out->oom. */
TD_MUST_CHECK td_status harmony_tools_section(const chat *c, bool union_any_of, td_buf *out,
                                              td_error *err);

/* Append a JSON value on one line without spaces, keys in their order, numbers as serde_json
 * prints them. Strings must be valid UTF-8. */
void harmony_json_compact(td_buf *out, const cJSON *value);

#endif
