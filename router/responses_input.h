/* responses_input: the items of a Responses conversation as a chat.
 *
 * A reasoning item is the analysis of what follows it, and a message of the assistant right before
 * a call is its preamble: items that the model wrote in one go become the messages that the
 * renderer knows. Items with nothing in them that can be shown to the model (reasoning that only
 * another server can decrypt) are left out. */
#ifndef TANDEM_ROUTER_RESPONSES_INPUT_H
#define TANDEM_ROUTER_RESPONSES_INPUT_H

#include <cjson/cJSON.h>

#include "common/status.h"
#include "router/chat.h"

/* The id that an item_reference names, NULL for any other item. References are not read here: who
 * has the items puts them in their places before. */
const char *responses_reference(const cJSON *item);

/* Append the items of an array to the chat, which has those before them. `name` is what errors call
 * the array. TD_INVALID with err->param, TD_NOMEM. */
TD_MUST_CHECK td_status responses_take_items(const cJSON *array, const char *name, chat *c,
                                             td_error *err);

#endif
