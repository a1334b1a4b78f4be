/* harmony_render: a conversation as the prompt tokens that gpt-oss was trained on.
 *
 * A harmony is a tokenizer plus the ids of the control tokens, looked up by name once. It is
 * immutable and thread-safe; one serves the whole process. Text of a client is always encoded as
 * ordinary text, so no control token in a prompt can come from a client. */
#ifndef TANDEM_ROUTER_HARMONY_RENDER_H
#define TANDEM_ROUTER_HARMONY_RENDER_H

#include "common/buf.h"
#include "common/status.h"
#include "router/chat.h"

typedef struct tokenizer tokenizer;
typedef struct harmony harmony;

/* Ids of the control tokens in this vocabulary. All are present but endoftext, which is -1 in a
 * vocabulary without it. */
typedef struct harmony_ids {
    int32_t start, message, end;
    int32_t channel, constrain;
    int32_t call, ret; /* <|call|>, <|return|>: the model has finished */
    int32_t endoftext;
} harmony_ids;

/* Zero is the default of each. They exist because the sources disagree or were measured against
 * another server, not for everyday use. */
typedef struct harmony_options {
    bool keep_analysis;           /* never drop the reasoning of finished turns */
    bool plain_json_type;         /* history calls say "json" instead of "<|constrain|>json" */
    bool recipient_after_channel; /* "<|channel|>commentary to=x" instead of " to=x<|channel|>.." */
    bool union_any_of;            /* show anyOf as a union; the reference shows "any" */
} harmony_options;

/* Look up the control tokens. `tok` must outlive the harmony; `options` (NULL: defaults) is copied.
 * TD_INVALID when the vocabulary lacks one of them, naming it. *out is set on success only. */
TD_MUST_CHECK td_status harmony_open(const tokenizer *tok, const harmony_options *options,
                                     harmony **out, td_error *err);
void harmony_close(harmony *h); /* NULL is fine */

const harmony_ids *harmony_ids_of(const harmony *h);
const tokenizer *harmony_tokenizer(const harmony *h);
const harmony_options *harmony_options_of(const harmony *h);

/* The ids at which generation ends: <|return|>, <|call|>, and <|endoftext|> where there is one.
 * Returns how many were written, at most 3. */
#define HARMONY_MAX_STOPS 3
size_t harmony_stop_ids(const harmony *h, int32_t out[HARMONY_MAX_STOPS]);

/* Append the ids that must never be sampled: every special token but the eight above, and every id
 * below the vocabulary's size that stands for no bytes. Ascending. out->oom tells of lost memory.
 */
void harmony_banned_ids(const harmony *h, td_tokens *out);

/* Append the prompt of a conversation to *out; it ends with <|start|>assistant, plus what
 * harmony_prime() gives. On failure *out is as it was.
 *
 * System and developer messages that lead become one developer message; an assistant message that
 * has neither content, reasoning nor calls is skipped; reasoning before the last final answer is
 * left out; tool results stand in the order of the calls that they answer.
 *
 * TD_INVALID with err->param naming the field: no messages, a tool_call_id without a call, a tool
 * or function name that does not fit, a named tool_choice that is not declared, a schema nested
 * too deep, continue_final without a final answer at the end. TD_NOMEM. */
TD_MUST_CHECK td_status harmony_render(const harmony *h, const chat *c, td_tokens *out,
                                       td_error *err);

/* As harmony_render(), for training data: nothing is primed, and a conversation that ends in a
 * final answer ends in <|return|>. */
TD_MUST_CHECK td_status harmony_render_training(const harmony *h, const chat *c, td_tokens *out,
                                                td_error *err);

/* The tokens after <|start|>assistant with which the prompt fixes how the answer begins, so that
 * a parser can be put into the same state (harmony_parser_create() does): none, or the header of a
 * final answer under continue_final. Appends to *out. */
TD_MUST_CHECK td_status harmony_prime(const harmony *h, const chat *c, td_tokens *out,
                                      td_error *err);

/* One message of the format, for those who build prompts by hand. An absent field is not rendered.
 * `content_type` may begin with "<|constrain|>", which becomes the control token. */
typedef struct harmony_message {
    td_slice author;       /* "user", "assistant", "functions.add", ... */
    td_slice recipient;    /* rendered as " to=..." */
    td_slice channel;      /* "analysis", "commentary", "final" */
    td_slice content_type; /* "json", "<|constrain|>json" */
    td_slice content;
    int32_t terminator; /* <|end|>, <|call|>, <|return|>; negative: none */
} harmony_message;

TD_MUST_CHECK td_status harmony_render_message(const harmony *h, const harmony_message *m,
                                               td_tokens *out, td_error *err);

/* The text of the system and of the first developer message (empty when there is nothing to say),
 * for tests and for people who want to see a prompt. Appends to *out. */
TD_MUST_CHECK td_status harmony_system_text(const harmony *h, const chat *c, td_buf *out,
                                            td_error *err);
TD_MUST_CHECK td_status harmony_developer_text(const harmony *h, const chat *c, td_buf *out,
                                               td_error *err);

#endif
