/* rpc_service: the transport's own thread, one for the process. Private to common/rpc_*.c.
 *
 * It does what NNG's threads must not: it waits, for times to come and for aios to end. Each end of
 * the transport is one entry, ticked when its time has come. */
#ifndef TANDEM_COMMON_RPC_SERVICE_H
#define TANDEM_COMMON_RPC_SERVICE_H

#include <stdbool.h>

#include "common/clock.h"
#include "common/status.h"

typedef struct rpc_service_entry {
    void (*tick)(struct rpc_service_entry *entry); /* set by the owner, before the add */
    struct rpc_service_entry *next, *prev;         /* the rest is the service's */
    td_usec due;
    bool added;
} rpc_service_entry;

/* Starts the thread if there is none yet. TD_NOMEM. */
TD_MUST_CHECK td_status rpc_service_add(rpc_service_entry *entry, td_error *err);

/* Have it ticked at that time or before. From any thread, with any lock held but the service's. The
 * tick is called with none, and asks for its next time itself. Ignored for what is not added. */
void rpc_service_due(rpc_service_entry *entry, td_usec at);

/* No tick runs after this returned; waits for one that does. Not from a tick. */
void rpc_service_remove(rpc_service_entry *entry);

/* Bracket every call of a user's function, so that a *_close() in one, which would wait for its own
 * caller, is caught. The check aborts. */
void rpc_callback_enter(void);
void rpc_callback_leave(void);
void rpc_not_in_callback(const char *function);

#endif
