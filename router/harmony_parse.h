/* harmony_parse: the tokens of one answer, one at a time, as reasoning, content and tool calls.
 *
 * Works on ids: a control token is known by its id and never reaches the client as text, and text
 * that merely spells one is text. A model may write anything, so nothing here fails on what it
 * wrote: a malformed header is read as best it can, the repair is counted by kind, and an answer
 * that was already complete is never lost. Events depend on the ids alone, not on how they were
 * grouped into calls.
 *
 * One parser an answer, one thread at a time. Memory grows with the longest header only. */
#ifndef TANDEM_ROUTER_HARMONY_PARSE_H
#define TANDEM_ROUTER_HARMONY_PARSE_H

#include "common/buf.h"
#include "common/status.h"
#include "router/chat.h"
#include "router/harmony_render.h"

typedef struct harmony_parser harmony_parser;

typedef enum harmony_kind {
    HARMONY_REASONING, /* analysis, and calls of tools that nobody declared (browser, python) */
    HARMONY_CONTENT,   /* final, and commentary to nobody */
    HARMONY_CALL,      /* a call of a function, whatever its channel */
} harmony_kind;

/* Where events go; any pointer may be NULL. Slices hold for the call only. Text is whole UTF-8
 * characters: a character cut by tokens waits, bytes that cannot be one become U+FFFD. Messages of
 * one kind are joined by a "\n" that is sent as text. A sink must not push or free the parser. */
typedef struct harmony_sink {
    void (*on_text)(void *user, harmony_kind kind, td_slice text); /* REASONING or CONTENT */

    /* A call opens. `index` counts the calls of this answer from 0; two calls of the same tool
     * are two. `name` is without "functions.", of the characters [A-Za-z0-9_.-]. */
    void (*on_tool_call_begin)(void *user, size_t index, td_slice name);

    /* More of its arguments, as the model wrote them; "{}" once when it wrote none. */
    void (*on_tool_call_args)(void *user, size_t index, td_slice text);

    /* A message closes. `index` is that of a call, 0 otherwise. `complete` is false for one that
     * was cut by the token limit or by an abort. */
    void (*on_message_end)(void *user, harmony_kind kind, size_t index, bool complete);
} harmony_sink;

/* Why the engine stopped. */
typedef enum harmony_end {
    HARMONY_END_STOP,        /* a stop token, seen by the parser or already taken off */
    HARMONY_END_LENGTH,      /* the token limit */
    HARMONY_END_STOP_STRING, /* the caller found a stop string in the content */
    HARMONY_END_ABORT,       /* canceled, or the worker was lost */
} harmony_end;

/* Kinds of repair: name of the metric's label, what happened. */
#define HARMONY_REPAIR_MAP(X) \
    X(JUNK_IN_HEADER, "junk_in_header", "words in a header that mean nothing") \
    X(CHANNEL_SPELLING, "channel_spelling", "a channel known only by how it begins") \
    X(CHANNEL_MISSING, "channel_missing", "a header without a channel, or with an unknown one") \
    X(CHANNEL_REPEATED, "channel_repeated", "more than one channel in a header") \
    X(RECIPIENT_REPEATED, "recipient_repeated", "more than one recipient in a header") \
    X(RECIPIENT_SPELLING, "recipient_spelling", "a recipient glued to other text, or without to=") \
    X(RECIPIENT_UNKNOWN, "recipient_unknown", "a call of a tool that was not declared") \
    X(TYPE_ODD, "type_odd", "a content type that is not one, or a marker without one") \
    X(ROLE_ODD, "role_odd", "a message that is not the assistant's") \
    X(START_REPEATED, "start_repeated", "a header that begins again") \
    X(START_MISSING, "start_missing", "a message without <|start|>") \
    X(MESSAGE_MISSING, "message_missing", "a message that ended in its header") \
    X(END_MISSING, "end_missing", "a message without <|end|>") \
    X(END_REPEATED, "end_repeated", "an end where no message was open") \
    X(CONTROL_IN_CONTENT, "control_in_content", "a control token inside content") \
    X(TEXT_BETWEEN, "text_between", "text outside any message") \
    X(BAD_UTF8, "bad_utf8", "bytes that are no character") \
    X(UNKNOWN_ID, "unknown_id", "an id that the vocabulary does not have") \
    X(EMPTY_ARGUMENTS, "empty_arguments", "a call without arguments") \
    X(AFTER_END, "after_end", "a token after the end of the answer")

typedef enum harmony_repair {
#define TD_X(name, label, text) HARMONY_REPAIR_##name,
    HARMONY_REPAIR_MAP(TD_X)
#undef TD_X
        HARMONY_REPAIR_COUNT
} harmony_repair;

const char *harmony_repair_label(harmony_repair r);

typedef struct harmony_stats {
    uint64_t tokens;           /* ids pushed, control tokens included: completion_tokens */
    uint64_t reasoning_tokens; /* ids inside messages of kind REASONING */
    uint64_t content_tokens;   /* the same of CONTENT; raised before their text goes out */
    uint64_t reasoning_bytes, content_bytes;
    size_t calls;     /* calls begun */
    bool final_begun; /* a final answer was opened */
    bool done;        /* a stop token was swallowed: the answer is over */
    uint32_t repairs[HARMONY_REPAIR_COUNT];
} harmony_stats;

/* A parser for the answer to harmony_render(h, c). Of `c` (NULL: no tools) only the tools and what
 * harmony_prime() makes of it are read, now. `sink` is copied; `h` must outlive the parser.
 * TD_NOMEM, or what harmony_prime() says. *out is set on success only. */
TD_MUST_CHECK td_status harmony_parser_create(const harmony *h, const chat *c,
                                              const harmony_sink *sink, void *user,
                                              harmony_parser **out, td_error *err);
void harmony_parser_free(harmony_parser *p); /* NULL is fine; sends no event */

/* One sampled id. Returns true when the answer is over: a stop token was swallowed, so the caller
 * should end the generation. Ids pushed afterwards are counted and dropped. */
bool harmony_parse_push(harmony_parser *p, int32_t id);

/* No more ids come. Sends what was held back. Later calls do nothing. Out of memory in between
 * loses text, never the process: harmony_parser_oom() then says so. */
void harmony_parse_finish(harmony_parser *p, harmony_end end);

/* "stop", "length" or "tool_calls", as the Chat Completions API names it: tool_calls when a call
 * was made and the model ended by itself; a stop token that the parser saw outweighs `end`. */
const char *harmony_finish_reason(const harmony_parser *p, harmony_end end);

const harmony_stats *harmony_parser_stats(const harmony_parser *p);
bool harmony_parser_oom(const harmony_parser *p);

#endif
