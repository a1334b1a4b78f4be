/* token_sink: what a step gives to each router, in one message per router.
 *
 * Filled row by row, then flushed once a step, so that the number of messages grows with routers
 * and steps and not with requests. Owned by the engine's thread. */
#ifndef TANDEM_DECODE_TOKEN_SINK_H
#define TANDEM_DECODE_TOKEN_SINK_H

#include "common/status.h"
#include "common/worker.h"
#include "decode/reservation.h"

typedef struct token_sink token_sink;

/* max_events: most events between two flushes of one link. TD_NOMEM. */
TD_MUST_CHECK td_status token_sink_create(int32_t n_links, uint32_t max_events, token_sink **out,
                                          td_error *err);
void token_sink_free(token_sink *s); /* NULL is fine */

/* One sampled token, and whether it is the last. finish: NONE, STOP or LENGTH. */
void token_sink_token(token_sink *s, const reservation *r, Tandem__Finish finish);

/* Nothing new, but it is here: keeps the router from taking its silence for a stall. */
void token_sink_alive(token_sink *s, const reservation *r);

/* The request ends without another token; err says why. Its text is copied. */
void token_sink_error(token_sink *s, const reservation *r, const td_error *err);

/* Send what has been collected. A link that cannot be sent to loses it: its streams are over, and
 * the engine is told so by on_link. */
void token_sink_flush(token_sink *s, td_worker *worker);

#endif
