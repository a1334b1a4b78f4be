/* worker_links: a worker's links to its routers, what is sent on them, and the reports. Shared by
 * worker.c and worker_links.c; nobody else includes it.
 *
 * The life of a link: down -> (connection) up -> (Hello) registered. Only an up link is sent
 * anything, so nothing piles up for a router that is not there; what a connection loses on its way
 * down shows as a gap in seq at the router, which then gives those streams up.
 *
 * Locks: worker.lock guards the state in the reports and the links' registration; each link.lock
 * covers numbering and sending, so that seq is the order on the wire. Never both at once, and no
 * callback is made under either. */
#ifndef TANDEM_COMMON_WORKER_LINKS_H
#define TANDEM_COMMON_WORKER_LINKS_H

#include <pthread.h>

#include "common/http_admin.h"
#include "common/worker.h"

enum { ID_BYTES = 96, URL_BYTES = 160, ROUTER_ID_BYTES = 96 };

/* One router. */
typedef struct link_state {
    td_worker *worker;
    int32_t number;
    char url[URL_BYTES];
    rpc_push *push;
    pthread_mutex_t lock;
    uint64_t seq; /* lock: of the last message handed to push */
    bool up;      /* lock */
    /* worker.lock: */
    char router_id[ROUTER_ID_BYTES]; /* from its Hello; "" before */
    bool registered;
} link_state;

struct td_worker {
    char id[ID_BYTES];
    char url[URL_BYTES];
    uint64_t incarnation;
    Tandem__Role role;
    td_model_identity identity;
    int32_t tp, ep;
    int64_t heartbeat_ms;
    td_worker_callbacks cb;
    void *user;

    rpc_server *server;
    td_http_admin *admin;
    link_state links[TD_MAX_LINKS];
    int32_t n_links;

    pthread_t reporter;
    bool reporter_started;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* reporter: stop, or report_wanted */
    bool stop, report_wanted;
    Tandem__WorkerState state;
    char failed[200]; /* why; "": it has not */
};

/* Dial opt's routers; nothing is sent before their connections are up. TD_INVALID names --router,
 * TD_NOMEM; worker_links_close() either way. */
TD_MUST_CHECK td_status worker_links_open(td_worker *w, const td_worker_options *opt,
                                          td_error *err);

/* Send what waits, for a moment, then close. The reporter has ended. */
void worker_links_close(td_worker *w);

/* The reporter's thread: a report to every router each heartbeat, and when one is wanted. arg is
 * the worker. Until td_worker.stop. */
void *worker_reporter_main(void *arg);

/* The link of a router that has said Hello, by its id; -1: none. */
int32_t worker_link_of(td_worker *w, ProtobufCBinaryData router_id);

/* Whether a router said Hello and was not refused. */
bool worker_is_registered(td_worker *w);

#endif
