/* guided: what an answer is held to, as the message that workers take, made of what its request
 * says about tools, tool_choice and the form of the answer.
 *
 *   tool_choice   calls of        preamble   final answer
 *   auto          all functions   free       free           guided where a function is strict
 *   none          no function     free       free           guided where there are tools
 *   required      all functions   -          -
 *   a function    that one        -          -
 *   with a response format, auto and none: no preamble, the final answer is JSON
 *
 * In a guided answer the arguments of a strict function are held to its schema, those of others to
 * being a JSON object. */
#ifndef TANDEM_ROUTER_GUIDED_H
#define TANDEM_ROUTER_GUIDED_H

#include "common/status.h"
#include "proto/tandem.pb-c.h"
#include "router/chat.h"

typedef struct guided guided;

/* Whether the answer to c is not free. */
bool guided_wanted(const chat *c);

/* *out is the caller's; c must outlive it. TD_INVALID: continue_final where the answer is not free
 * to go on. TD_NOMEM. */
TD_MUST_CHECK td_status guided_create(const chat *c, guided **out, td_error *err);
void guided_free(guided *g); /* NULL is fine */

/* Whether every schema can be enforced. TD_INVALID names the schema as the client would, the
 * keyword and where it stands. Thread-safe; takes as long as compiling them does. */
TD_MUST_CHECK td_status guided_check(const guided *g, td_error *err);

/* The message; it and what it points to live as long as g. */
const Tandem__Guide *guided_message(const guided *g);

#endif
