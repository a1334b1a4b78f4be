/* The inside of workers: peers and messages (workers.c), and the calls to them (workers_calls.c).
 */
#ifndef TANDEM_ROUTER_WORKERS_IMPL_H
#define TANDEM_ROUTER_WORKERS_IMPL_H

#include "common/loop.h"
#include "common/mailbox.h"
#include "common/pb_arena.h"
#include "common/rpc.h"
#include "router/workers.h"

typedef struct peer {
    char id[REGISTRY_ID_BYTES];
    uint64_t incarnation;
    uint32_t pull_peer; /* the connection that its messages come by */
    rpc_client *client;
    struct peer *prev, *next;
} peer;

typedef enum call_kind { CALL_USER, CALL_HELLO, CALL_CANCEL } call_kind;

struct workers_call {
    workers *w;
    call_kind kind;
    char id[REGISTRY_ID_BYTES]; /* of the worker, to find it again: it may be gone by then */
    uint64_t incarnation;
    workers_reply_fn fn; /* NULL: the caller has gone */
    void *arg;
    int tries;
    uint8_t *packed; /* CANCEL: to be sent again */
    size_t n_packed;
    workers_call *prev, *next;
};

typedef enum incoming_kind { IN_MESSAGE, IN_PEER_DOWN, IN_REPLY } incoming_kind;

typedef struct incoming {
    incoming_kind kind;
    uint32_t pull_peer;
    uint8_t *bytes; /* owned; NULL if none */
    size_t n;
    workers_call *call;
    td_status status;
} incoming;

struct workers {
    td_loop *loop;
    char router_id[REGISTRY_ID_BYTES];
    workers_callbacks cb;
    void *user;
    registry *registry;
    rpc_pull *pull;
    td_mailbox *mailbox;
    td_watch *watch;
    td_timer *timer;
    td_usec watched_at; /* when silence was last looked for */
    peer *peers;
    workers_call *calls;
    td_pb_arena arena, reply_arena;
};

/* Any thread: hand it to the loop. Takes in->bytes over, also when there is no memory for it. */
void workers_post(workers *w, incoming *in);
/* A copy of the n bytes becomes in's; false: no memory. */
bool workers_copy_bytes(incoming *in, const void *bytes, size_t n);

/* The rest is for the loop's thread. */
peer *workers_find_peer(workers *w, const char *id, uint64_t incarnation); /* NULL: gone */
void workers_greet(workers *w, peer *p, const worker_view *v); /* say Hello, or why not */
void workers_take_reply(workers *w, const incoming *in);
void workers_free_call(workers *w, workers_call *call);

#endif
