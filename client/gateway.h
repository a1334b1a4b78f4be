/* gateway: a client of the router's RPC port, for an API gateway or a tool.
 *
 * A gateway dials a router, listens for its events, and says Hello. Then it starts any number of
 * answers; their pieces come back as events, in order for each answer. Numbering is checked: when
 * pieces are missing, or the router has gone or started again, the answers that it was giving end
 * with a GATEWAY_FAILED event, so no answer is left without an end.
 *
 * One thread uses a gateway. It must call gateway_next() at least every few seconds while answers
 * are running: that is also what keeps the router from taking it for dead. */
#ifndef TANDEM_CLIENT_GATEWAY_H
#define TANDEM_CLIENT_GATEWAY_H

#include <stdint.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/status.h"

typedef struct gateway gateway;

typedef struct gateway_options {
    const char *router;    /* tcp://host:port of the router's --rpc-listen */
    const char *listen;    /* where events come in; NULL: tcp://127.0.0.1:0 */
    const char *advertise; /* how the router reaches that; NULL: what listen bound */
    const char *id;        /* unique among the router's gateways; NULL: host name and process id */
    uint32_t timeout_ms;   /* for each call; 0: 5000 */
} gateway_options;

/* Connect and say Hello. Waits for the router, at most timeout_ms. TD_DEADLINE: it did not answer.
 * TD_INVALID: an option, or it refused us; the text says why. */
TD_MUST_CHECK td_status gateway_open(const gateway_options *opt, gateway **out, td_error *err);
void gateway_close(gateway *g); /* running answers are canceled by the router; NULL is fine */

/* The router's model, "" if no worker has registered yet. */
const char *gateway_model(const gateway *g);

/* Start an answer to a /v1/chat/completions body. request_id: yours, for the router's log and
 * against starting one twice, up to 131 printable ASCII characters; NULL: none. TD_OK: events for
 * *stream follow. TD_INVALID: err->param is the field; TD_BUSY, TD_UNAVAILABLE: try again later.
 * With n of several their events come mixed, by choice; routers before 1.3 refuse that. */
TD_MUST_CHECK td_status gateway_generate(gateway *g, td_slice chat_json, const char *request_id,
                                         uint64_t *stream, td_error *err);

/* The same for a /v1/completions body, whose prompt is a text or token ids: the answer comes as
 * GATEWAY_CONTENT. TD_UNAVAILABLE as well: the router is too old for it. */
TD_MUST_CHECK td_status gateway_complete(gateway *g, td_slice completion_json,
                                         const char *request_id, uint64_t *stream, td_error *err);

/* Stop an answer; its last event is GATEWAY_FAILED with TD_CANCELED. TD_DEADLINE, TD_UNAVAILABLE:
 * the router does not answer. */
TD_MUST_CHECK td_status gateway_cancel(gateway *g, uint64_t stream, td_error *err);

typedef enum gateway_kind {
    GATEWAY_REASONING, /* text */
    GATEWAY_CONTENT,   /* text */
    GATEWAY_TOKEN,     /* log-probabilities of a token whose content is still to come: token, top */
    GATEWAY_CALL,      /* a call of a function begins: index, id, text is its name */
    GATEWAY_ARGUMENTS, /* text, of call `index` */
    GATEWAY_FINISHED,  /* of one choice: text is the finish reason; usage, timings, open */
    GATEWAY_FAILED, /* the whole stream; status, text, param: the body's field, if it is at fault */
} gateway_kind;

typedef struct gateway_token {
    int32_t id;
    td_slice text; /* may be a part of a character */
    float logprob; /* -INFINITY: it could not come */
} gateway_token;

typedef struct gateway_event {
    gateway_kind kind;
    uint64_t stream;
    td_slice text, id, param; /* these, and top, hold until the next call on this gateway */
    int32_t index;
    uint32_t choice; /* which of the n answers that the body asked for, from 0 */
    td_status status;
    /* TOKEN */
    gateway_token token;
    const gateway_token *top; /* [n_top] the likeliest in its place, in falling order */
    size_t n_top;
    /* FINISHED. Each choice counts its prompt, which is the same one. */
    uint32_t open; /* choices of the stream that have not finished; 0: it is over */
    uint32_t prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens;
    uint64_t ttft_us, e2e_us, prefill_queue_us, prefill_us, kv_tail_us, kv_bytes;
    uint32_t kv_puts, retries;
    td_slice kv_transport; /* empty, kv_* 0: the answer was over before they were reported */
} gateway_event;

/* The next event of any answer. TD_DEADLINE: none by then. Any other failure: the router is lost
 * and every answer has been reported FAILED; close the gateway. */
TD_MUST_CHECK td_status gateway_next(gateway *g, td_usec deadline, gateway_event *out,
                                     td_error *err);

#endif
