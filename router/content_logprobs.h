/* content_logprobs: which log-probabilities go out with which piece of content.
 *
 * Whether a token is content, and of how many bytes, is known only after the parser has seen it,
 * and stop strings may hold its text back. So each token's values wait: in `fresh` until the parser
 * has counted it as content, then in `ready` until the text has gone out as far as where the token
 * begins. Tokens of reasoning, of calls and of the format go nowhere, nor do those of a stop
 * string. Zero-initialise to start; one thread at a time. */
#ifndef TANDEM_ROUTER_CONTENT_LOGPROBS_H
#define TANDEM_ROUTER_CONTENT_LOGPROBS_H

#include "proto/tandem.pb-c.h"
#include "router/request.h"

typedef struct content_logprobs {
    token_logprobs *fresh, *ready;
    size_t n_fresh, n_ready, max_fresh, max_ready;
    uint64_t content, reasoning; /* tokens that the parser has counted so far */
    size_t came, went;           /* bytes of content: out of the parser, out to the client */
    size_t n_taken;              /* of `ready`, by content_logprobs_take() */
    bool oom;                    /* something was lost */
} content_logprobs;

void content_logprobs_free(content_logprobs *l);

/* A token that is about to be parsed, unless it is one of the format. m: NULL is not possible. */
void content_logprobs_push(content_logprobs *l, int32_t token, const Tandem__TokenLogprobs *m);

/* The parser has counted this many tokens of either kind by now. Call it before text is noted and
 * after each token. */
void content_logprobs_count(content_logprobs *l, uint64_t content, uint64_t reasoning);

/* Text of content came out of the parser, and that much of it may go out. */
void content_logprobs_text(content_logprobs *l, size_t came, size_t goes);

/* What goes out with the text so far, all of it when the text is over. It holds until the next
 * push or count. */
const token_logprobs *content_logprobs_take(content_logprobs *l, bool all, size_t *n);

#endif
