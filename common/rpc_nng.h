/* rpc_nng: what the four ends of rpc.h share of NNG 1.5. Private to common/rpc_*.c: no NNG type
 * leaves them.
 *
 * What these files rely on, and keep to (all of it read in 1.5.2's source, most of it tested):
 * - Callbacks run on a handful of task threads. nng_close, nng_aio_stop, nng_aio_wait, nng_aio_free
 *   and nng_ctx_close wait for callbacks, so that calling one in a callback can freeze the process.
 *   They are called by the owner in *_close() only. Starting, aborting and closing a pipe are fine.
 * - An operation started on a stopped aio ends without its callback. So every start is made under
 *   the object's lock with `closing` checked, and *_close() sets `closing` before it stops aios.
 * - A start never runs a callback before it returns, so that starting under our lock is safe.
 * - A message is the library's once an operation succeeded. After an error it is the aio's.
 * - The expiry thread may be about to cancel an aio whose operation has just ended. It then cancels
 *   the next one on that aio, if that is of the same kind: see client_early().
 * - nng_aio_free waits for that thread, nng_aio_stop does not: free aios before their contexts.
 * Lock order: rpc_peers.lock, then an end's own lock, then NNG's. */
#ifndef TANDEM_COMMON_RPC_NNG_H
#define TANDEM_COMMON_RPC_NNG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <nng/nng.h>

#include "common/status.h"

/* More than the headers that REQ and REP put before a message of the greatest size. */
enum { RPC_HEADER_ROOM = 64 };

td_status rpc_nng_status(int rv);

/* td_fail() with NNG's text after ours. */
td_status rpc_nng_fail(td_error *err, int rv, const char *fmt, ...) TD_PRINTF(3, 4);

/* Start listening; *bound (for free()) is the URL with the port that was bound. */
td_status rpc_nng_listen(nng_socket sock, const char *url, size_t max_message_bytes, char **bound,
                         td_error *err);

/* Start dialling, for good. */
td_status rpc_nng_dial(nng_socket sock, const char *url, size_t max_message_bytes, td_error *err);

/* A message with a copy of the bytes; NULL: no memory. */
nng_msg *rpc_nng_message(const void *bytes, size_t n);

/* Free what an operation that failed left in its aio. */
void rpc_nng_drop_msg(nng_aio *aio);

/* Bracket every call of a user's function, so that *_close() in one is caught and not a freeze. */
void rpc_callback_enter(void);
void rpc_callback_leave(void);
void rpc_not_in_callback(const char *function);

/* ---- who is connected ----
 *
 * NNG tells of a pipe before (ADD_PRE) and after (ADD_POST) it can carry messages and when it has
 * gone (REM_POST), from several threads: a message may come before ADD_POST, and REM_POST too. This
 * table puts it in order. Its lock is held while the user is told. */
typedef struct rpc_peer {
    uint32_t id;
    bool up; /* the user was told */
} rpc_peer;

typedef struct rpc_peers {
    pthread_mutex_t lock;
    rpc_peer *peers; /* n of cap */
    size_t n, cap;
    bool closing; /* tell nothing more */
    bool single;  /* a new pipe takes the place of the old one, which is closed */
    void (*on_peer)(void *owner, uint32_t peer, bool up); /* may be NULL */
    void *owner;
} rpc_peers;

void rpc_peers_init(rpc_peers *t, bool single, void (*on_peer)(void *, uint32_t, bool),
                    void *owner);
void rpc_peers_fini(rpc_peers *t);
int rpc_peers_watch(rpc_peers *t, nng_socket sock);

/* For a message of this peer: true, with the lock held, and up told before; or false, not held: the
 * peer is down already (or the table closing) and the message comes too late. */
bool rpc_peers_enter(rpc_peers *t, uint32_t peer);
void rpc_peers_leave(rpc_peers *t);

/* No on_peer runs after this returned. */
void rpc_peers_close(rpc_peers *t);

#endif
