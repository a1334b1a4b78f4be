/* streams_workers: a prefill and a decode worker without a model, so that a router can be measured
 * alone. They speak proto/tandem.proto like real ones: register, take Reserve and Prefill, and then
 * send every running stream one token a step, all of a step in one message.
 *
 * The first content of a stream is its number among all streams and a blank; from then on each
 * token is one letter. Whoever reads "17 " thus knows that the n-th letter after it is token
 * stream_workers_first() + n of stream 17, and when that token was sent. */
#ifndef TANDEM_BENCH_STREAMS_WORKERS_H
#define TANDEM_BENCH_STREAMS_WORKERS_H

#include <stdint.h>

#include "common/clock.h"
#include "common/status.h"
#include "router/tokenizer.h"

typedef struct stream_workers stream_workers;

/* Dial the router and register. At most max_streams, each of at most max_tokens, in all the life of
 * the pair. step_us: between two tokens of a stream. */
TD_MUST_CHECK td_status stream_workers_start(const char *router_url, const tokenizer *t,
                                             uint32_t max_streams, uint32_t max_tokens,
                                             td_usec step_us, stream_workers **out, td_error *err);
void stream_workers_stop(stream_workers *w);

/* Tokens before the first letter of a stream. */
uint32_t stream_workers_first(const stream_workers *w, uint32_t stream);
/* When a token was given to the transport; 0: it was not yet. From any thread. */
td_usec stream_workers_sent(const stream_workers *w, uint32_t stream, uint32_t token);

#endif
