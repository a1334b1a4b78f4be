/* request: one answer from beginning to end, across retries.
 *
 *   RENDER -> ADMIT -> PLACE -> RESERVE -> PREFILL -> STREAM -> DONE
 *
 * request_advance() in request.c is the whole order of events: replies, deadlines, lost workers and
 * cancels all come back through it. The request keeps every token it has given out, so that when a
 * worker dies, prompt + tokens so far go to another one and the answer goes on where it stopped:
 * PLACE again, within a retry budget. Everything here runs on the loop's thread. */
#ifndef TANDEM_ROUTER_REQUEST_H
#define TANDEM_ROUTER_REQUEST_H

#include "common/clock.h"
#include "router/generation.h"
#include "router/harmony_parse.h"

typedef struct router router;
typedef struct request request;

typedef struct request_usage {
    uint32_t prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens;
} request_usage;

/* Times of one request for its log line and for the client ("tandem" in an answer, Timings of a
 * gateway); 0 until reached. */
typedef struct request_times {
    td_usec submitted, placed, first_token, last_token;
    uint64_t prefill_queue_us, prefill_compute_us, push_tail_us;
    uint64_t kv_bytes;
    uint32_t kv_puts;
    uint32_t retries;
    char kv_transport[32];
} request_times;

/* A token of the content and what the model thought of it. */
typedef struct token_logprobs {
    int32_t token;
    td_logprobs logprobs;
    size_t at; /* where its text begins, within the content */
} token_logprobs;

/* Where an answer goes: HTTP stream, HTTP body, or gateway. Called on the loop's thread, in this
 * order: on_start once, any number of pieces, then exactly one of on_finish and on_error, after
 * which the request is gone. Any may call request_cancel() on its own request; then nothing more is
 * called. Text is whole UTF-8 characters; slices hold for the call. */
typedef struct answer {
    void (*on_start)(void *user, request *q); /* the first token is there: headers may go out */
    void (*on_reasoning)(void *user, td_slice text);
    void (*on_content)(void *user, td_slice text);
    /* Tokens of content whose text comes in the next on_content, or that end it without any more;
     * only where the generation wants it. NULL is fine. */
    void (*on_logprobs)(void *user, const token_logprobs *list, size_t n);
    void (*on_call_begin)(void *user, size_t index, const char *id, td_slice name);
    void (*on_call_args)(void *user, size_t index, td_slice text);
    /* A message is over, cut short unless complete; the next piece begins another one, which after
     * one of the same kind begins with the "\n" that joins them. Nothing of it is held back any
     * more: a stop string does not reach over the end of a message. NULL: it may, and is fine. */
    void (*on_message_end)(void *user, harmony_kind kind, bool complete);
    void (*on_flush)(void *user); /* end of a batch of pieces: write out now */
    void (*on_finish)(void *user, const char *finish_reason, const request_usage *u);
    void (*on_error)(void *user, const td_error *err, uint32_t retry_s); /* retry_s 0: no advice */
} answer;

/* Start a request. Takes over *g (moved: *g is empty afterwards, on failure too). label is what the
 * client called it (x-request-id), for the log only; ids inside are our own. *out may be used until
 * on_finish, on_error or request_cancel(). Errors that are known at once (draining, no worker,
 * full) are returned here, with *retry_s; no callback is then called. */
TD_MUST_CHECK td_status request_submit(router *r, generation *g, const char *label, const answer *a,
                                       void *user, request **out, uint32_t *retry_s, td_error *err);

/* The same for g->n answers to one question, each a request: users[i] and out[i] are of number i.
 * Either all of them are begun or none. They are admitted together, drawn from different seeds (0
 * has the one that it would have alone) and finish each for itself, with its own on_finish. An
 * error of one is the end of all: on_error is called for that one, and nothing for the others any
 * more, which are canceled. */
TD_MUST_CHECK td_status request_submit_choices(router *r, generation *g, const char *label,
                                               const answer *a, void *const *users, request **out,
                                               uint32_t *retry_s, td_error *err);

/* The client is gone, or has enough: workers are told, pages come back; no callback is called any
 * more, for q and all other choices of its question. Their pointers are dead afterwards. why is for
 * the log ("client_closed", "slow_client") and is kept: a literal. */
void request_cancel(request *q, const char *why);
/* The same for all choices q[0 .. n) of a question; those that have ended are NULL. */
void request_cancel_choices(request *const *q, uint32_t n, const char *why);

uint64_t request_id(const request *q); /* unique in this router */
/* Whether the content that comes now belongs to the final answer, not to a preamble of calls. */
bool request_final_begun(const request *q);
int64_t request_created_s(const request *q); /* wall clock, seconds since 1970 */
const request_times *request_times_of(const request *q);

#endif
