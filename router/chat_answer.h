/* chat_answer: one answer as Chat Completions JSON, whole or as server-sent events.
 *
 * Made for an HTTP request, it owns the reply from then on: it ends the HTTP request exactly once
 * and frees itself. If the client goes first, it cancels the generation. On the loop's thread. */
#ifndef TANDEM_ROUTER_CHAT_ANSWER_H
#define TANDEM_ROUTER_CHAT_ANSWER_H

#include "common/http_server.h"
#include "router/router.h"

/* Submit *g (moved) and answer req with what comes. */
void chat_answer_start(router *r, td_http_request *req, generation *g);

/* Answer req with an error's HTTP status and OpenAI's error object. retry_s > 0: Retry-After. */
void chat_answer_error(td_http_request *req, const td_error *err, uint32_t retry_s);

/* Pieces that all answers share. */

/* The end of an answer by an error: as the last event of a stream that has begun, which is then
 * cut, or as the reply. req is over afterwards, and its on_close is not called. out is for writing
 * in. */
void chat_answer_fail(td_http_request *req, td_buf *out, bool begun, const td_error *err,
                      uint32_t retry_s);
/* Append one object a token, with a comma before it unless b is empty. */
void chat_answer_logprobs(td_buf *b, const router *r, const token_logprobs *list, size_t n);
void chat_answer_usage(td_buf *b, const request_usage *u);
/* After each flush of a stream. True: the client reads too slowly, or (broken) the answer has lost
 * a part; that is logged and q cancelled with its siblings, which calls nothing any more. The
 * caller cuts the connection. */
bool chat_answer_give_up(const router *r, td_http_request *req, request *q, const char *label,
                         bool broken);
/* What this server did for the answer; an extension that other clients do not look at. */
void chat_answer_timings(td_buf *b, const request_times *t);
/* A log-probability as JSON can have it: what cannot be is very unlikely. */
void chat_answer_logprob(td_buf *b, float v);

/* Usage and times of all choices together, zero to start. The prompt counts once; times are from
 * the first token of any to the last, and what was done for each is added up. */
typedef struct answer_sum {
    uint32_t n;
    request_usage usage;
    request_times times;
} answer_sum;
void chat_answer_sum(answer_sum *s, const request_usage *u, const request_times *t);

#endif
