/* rpc_api_impl: what the files of the RPC door share.
 *
 *   rpc_api.c       calls of gateways, and the door as a whole
 *   rpc_gateways.c  the gateways that have said Hello
 *   rpc_events.c    from the pieces of an answer to events
 */
#ifndef TANDEM_ROUTER_RPC_API_IMPL_H
#define TANDEM_ROUTER_RPC_API_IMPL_H

#include <string.h>

#include "common/loop.h"
#include "common/mailbox.h"
#include "common/pb_arena.h"
#include "common/rpc.h"
#include "proto/tandem.pb-c.h"
#include "router/rpc_api.h"

enum { RPC_GATEWAY_ID_BYTES = 96 };

typedef struct gateway gateway;

typedef struct stream stream;

typedef struct stream_choice {
    stream *stream;
    uint32_t number;
} stream_choice;

/* The answers to one question on their way to a gateway. */
struct stream {
    gateway *gateway;
    uint64_t id;          /* the first request's, known to the gateway as the stream's number */
    char request_id[132]; /* the gateway's own */
    uint32_t index;       /* of the next event */
    uint32_t n, n_open;
    request *q[GENERATION_MAX_CHOICES]; /* by choice; NULL: it has ended */
    stream *prev, *next;
    stream_choice choices[]; /* [n] */
};

struct gateway {
    rpc_api *api;
    char id[RPC_GATEWAY_ID_BYTES];
    uint64_t epoch;
    uint32_t minor; /* that it speaks */
    rpc_push *push;
    uint64_t seq;
    td_buf pending; /* events, each already encoded as field 4 of GatewayEvents */
    stream *streams;
    td_usec last_seen;
    bool dead; /* its push has failed: dropped at the next turn */
    gateway *prev, *next;
};

typedef enum incoming_kind { IN_REQUEST, IN_DEAD } incoming_kind;

typedef struct incoming {
    incoming_kind kind;
    rpc_call *call;
    const void *bytes; /* the call's */
    size_t n;
    char gateway_id[RPC_GATEWAY_ID_BYTES]; /* DEAD */
    uint64_t epoch;
} incoming;

struct rpc_api {
    router *r;
    rpc_server *server;
    td_mailbox *mailbox;
    td_watch *watch;
    td_timer *timer;
    td_loop_task flush;
    uint64_t epoch;
    char id[64];
    gateway *gateways;
    td_pb_arena arena;
};

/* ---- rpc_events.c ---- */

/* What a request of user `stream_choice` calls. */
extern const answer rpc_api_answer;

/* The next event of a stream; it goes out with the turn of the loop. Its stream and index are
 * filled in here. */
void rpc_api_add_event(stream *s, Tandem__GatewayEvent *e);
void rpc_api_drop_stream(stream *s); /* its requests are over, or have been canceled */
void rpc_api_send_pending(gateway *g);
void rpc_api_flush(void *arg); /* the loop's task: arg is the rpc_api */

/* ---- rpc_gateways.c ---- */

/* Take a gateway in, or know it again. TD_INVALID: its version, or a field; TD_NOMEM. */
TD_MUST_CHECK td_status rpc_api_open_gateway(rpc_api *a, const Tandem__GatewayHello *h,
                                             td_error *err);
/* It is gone: cancel what it had asked for. */
void rpc_api_drop_gateway(gateway *g, const char *why);
gateway *rpc_api_find_gateway(rpc_api *a, const char *id, size_t n);
/* The same, and it has shown that it lives. NULL: not known, or its push has failed. */
gateway *rpc_api_known(rpc_api *a, ProtobufCBinaryData id);
/* Have it dropped at the loop's next turn. From any thread. */
void rpc_api_report_dead(gateway *g);

#endif
