/* harmony_calls: which call a tool result answers. Harmony has no call ids, so the renderer needs
 * the name of the function and the order of the calls from the client's tool_call_id. */
#ifndef TANDEM_ROUTER_HARMONY_CALLS_H
#define TANDEM_ROUTER_HARMONY_CALLS_H

#include "common/status.h"
#include "router/chat.h"

typedef struct harmony_call harmony_call;

typedef struct harmony_calls {
    harmony_call *ptr; /* sorted by id, then by place in the conversation */
    size_t n;
} harmony_calls;

/* What a tool result answers. */
typedef struct harmony_answer {
    size_t order;  /* place of the call among all calls of the conversation */
    td_slice name; /* of the function, without "functions." */
} harmony_answer;

/* The longest function name that a conversation may hold. Longer and freer than what may be
 * declared, because a model's own invention comes back as history and must not end a chat. */
#define HARMONY_MAX_CALL_NAME 256

/* 1 to HARMONY_MAX_CALL_NAME of [a-zA-Z0-9_.-]. */
bool harmony_call_name_ok(td_slice name);

/* Collect and check the calls of a conversation; the slices stay the chat's. TD_INVALID naming the
 * call whose name is none; TD_NOMEM. *out is set on success only, to harmony_calls_fini(). */
TD_MUST_CHECK td_status harmony_calls_init(const chat *c, harmony_calls *out, td_error *err);
void harmony_calls_fini(harmony_calls *calls);

/* The call that the tool message at `index` answers: the latest earlier one with its id; where
 * one assistant message uses an id for several calls, the results answer them in order. TD_INVALID
 * naming the message when there is no such call. To be asked in the order of messages. */
TD_MUST_CHECK td_status harmony_calls_answer(harmony_calls *calls, const chat *c, size_t index,
                                             harmony_answer *out, td_error *err);

#endif
