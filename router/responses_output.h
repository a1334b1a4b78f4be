/* responses_output: one answer as the items and events of the Responses API.
 *
 * A state machine over the pieces of an answer: it keeps the items that they make up, and, for a
 * stream, appends server-sent events to `out` as they come; the owner writes those out and clears
 * it. Knows nothing of HTTP. Out of memory is sticky (`oom`): then what it says has holes.
 *
 *   created, in_progress
 *   output_item.added { content_part.added  text.delta*  text.done  content_part.done   (message,
 *                       function_call_arguments.delta*  .done }  output_item.done        reasoning)
 *   completed | incomplete | failed
 *
 * One thread at a time. */
#ifndef TANDEM_ROUTER_RESPONSES_OUTPUT_H
#define TANDEM_ROUTER_RESPONSES_OUTPUT_H

#include "common/buf.h"
#include "router/request.h"

typedef enum responses_kind {
    RESPONSES_REASONING,
    RESPONSES_MESSAGE,
    RESPONSES_CALL,
} responses_kind;

typedef struct responses_item {
    responses_kind kind;
    bool preamble; /* MESSAGE: of calls, not the final answer */
    bool open, complete;
    char call_id[48]; /* CALL */
    td_buf name;      /* CALL */
    td_buf text;      /* or a call's arguments */
    td_buf logprobs;  /* MESSAGE: elements as JSON */
} responses_item;

typedef struct responses_output {
    /* Set by the owner before responses_output_start(). */
    bool stream;
    bool store;        /* what the answer says of itself */
    const char *model; /* outlives this */
    char key[33];      /* of the ids: resp_KEY, msg_KEY00; unique */
    int64_t created_s;
    td_buf echo; /* responses_request.echo, moved */

    td_buf out; /* events that wait to be written */
    uint64_t sequence;
    responses_item *items;
    size_t n_items, cap_items;
    td_buf tokens;      /* log-probabilities whose text comes next */
    bool sent[2];       /* by kind: reasoning and message items there have been */
    bool joiner_due[2]; /* the first piece of the next one begins with the line feed that joins */
    bool oom;
} responses_output;

void responses_output_free(responses_output *o); /* gives back everything, echo too */

/* The first token is there. */
void responses_output_start(responses_output *o);
void responses_output_reasoning(responses_output *o, td_slice text);
void responses_output_content(responses_output *o, td_slice text, bool final);
/* Elements of logprobs as JSON with commas between; their text comes next, or has ended. */
void responses_output_logprobs(responses_output *o, td_slice elements);
void responses_output_call(responses_output *o, const char *call_id, td_slice name);
void responses_output_arguments(responses_output *o, td_slice text);
void responses_output_message_end(responses_output *o, responses_kind kind, bool complete);

/* The end. reason as of answer.on_finish; more: further members of the object, beginning with a
 * comma. A stream gets its last event; *object, for those who want the response as JSON (NULL:
 * not), is appended to. */
void responses_output_finish(responses_output *o, const char *reason, const request_usage *u,
                             int64_t now_s, td_slice more, td_buf *object);
void responses_output_fail(responses_output *o, const td_error *err);

/* The items as JSON with commas between. */
void responses_output_items(const responses_output *o, td_buf *out);

#endif
