/* rpc: opaque bytes between processes. Calls with one reply, and one-way streams of messages.
 *
 *   rpc_client  --- request ---> rpc_server      many calls at once over one connection
 *               <--- reply -----
 *   rpc_push    --- messages --> rpc_pull        in order, one destination a push, many a pull
 *
 * URLs are tcp://host:port, ipc:///path or inproc://name. Dialling never waits for the peer: start
 * order does not matter, and a lost connection is dialled again after 0.1 to 5 s. Nothing is ever
 * sent twice: what was in flight on a lost connection is lost, and its sender is told where that
 * can be known. A half-open link (a host that vanished) is not noticed here in useful time: callers
 * need deadlines and heartbeats. All messages of proto/tandem.proto go through here, packed by
 * callers.
 *
 * Callbacks run on the transport's few threads. They must not block, and must not call a *_close(),
 * rpc_client_call_wait() or rpc_push_flush() (asserted); everything else is allowed. Post to a
 * mailbox and return. Bytes given to a callback live until it returns, unless said otherwise. A
 * callback may run before the *_open() that named it returned, but *out is set by then; none runs
 * after *_close() returned. Messages and events of one push or pull never run at the same time, nor
 * do on_peer of one client or server; requests and replies may.
 *
 * *_close() is called by the owner, once, when no other thread uses the object and the caller holds
 * no lock that a callback takes. NULL is fine. A size, count or time of 0 in options means the
 * default that stands beside it. */
#ifndef TANDEM_COMMON_RPC_H
#define TANDEM_COMMON_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

#define RPC_MAX_MESSAGE_BYTES ((size_t)8 << 20)

/* ---- server ---- */

typedef struct rpc_server rpc_server;
typedef struct rpc_call rpc_call; /* one request that has not been answered */

typedef struct rpc_server_options {
    const char *url;
    uint32_t max_calls;       /* 64; requests taken at once: more wait in their connections */
    size_t max_message_bytes; /* RPC_MAX_MESSAGE_BYTES; a peer that sends more is disconnected */
    /* Reply to a dropped call. Default: field 1 = TD_UNAVAILABLE and field 2 = a text, as a
     * protobuf message, which all replies of proto/tandem.proto understand. Copied. */
    td_slice dropped;
    /* bytes live until the call is replied to or dropped. */
    void (*on_request)(void *user, rpc_call *call, const void *bytes, size_t n);
    /* May be NULL. A connection came or went; up comes before its first request. */
    void (*on_peer)(void *user, uint32_t peer, bool up);
    void *user;
} rpc_server_options;

/* TD_INVALID: a URL that is none; TD_IO: it cannot be listened on (in use); TD_NOMEM. */
TD_MUST_CHECK td_status rpc_server_open(const rpc_server_options *opt, rpc_server **out,
                                        td_error *err);

/* Calls that were not answered stay valid and still must be, for their memory. Replies that are not
 * yet with the operating system are lost. */
void rpc_server_close(rpc_server *s);

/* What is listened on, with the port that port 0 became. Lives as long as the server. */
const char *rpc_server_url(const rpc_server *s);

/* Answer a call, once, from any thread, then or later; the call is gone afterwards. Never blocks;
 * the bytes are copied. If the peer or the server has gone meanwhile nothing happens. TD_TOOLARGE:
 * the peer got the reply of a dropped call instead; TD_NOMEM: its connection was ended. */
td_status rpc_reply(rpc_call *call, const void *bytes, size_t n);

/* Give a call up: the peer gets the options' `dropped` bytes. As rpc_reply() in all else. */
void rpc_call_drop(rpc_call *call);

/* ---- client ---- */

typedef struct rpc_client rpc_client;

typedef struct rpc_client_options {
    const char *url;
    uint32_t max_calls;       /* 4096; outstanding at once: one more is TD_BUSY */
    size_t max_message_bytes; /* RPC_MAX_MESSAGE_BYTES; a peer that replies more is disconnected */
    void (*on_peer)(void *user, bool up); /* may be NULL */
    void *user;
} rpc_client_options;

/* TD_INVALID: a URL that is none; TD_NOMEM. That nobody listens there is no error. */
TD_MUST_CHECK td_status rpc_client_open(const rpc_client_options *opt, rpc_client **out,
                                        td_error *err);

/* Calls outstanding end with TD_CANCELED before this returns, on the caller's thread. */
void rpc_client_close(rpc_client *c);

/* How a call ended; bytes is NULL unless status is TD_OK.
 * TD_OK          the server replied
 * TD_UNAVAILABLE the connection was lost after the request had been handed to it: it may have been
 *                executed or not, and will not be sent again
 * TD_DEADLINE    no reply in time, or no connection to send on; nothing follows
 * TD_CANCELED    the client was closed */
typedef void (*rpc_reply_fn)(void *user, td_status status, const void *bytes, size_t n);

/* Send a request and return. TD_OK: cb will be called exactly once, within timeout_ms. Anything
 * else: it never will. While there is no connection the request waits for one, so that a call made
 * before the peer is up succeeds once it is; whoever wants to fail faster passes a shorter time, or
 * watches on_peer. From any thread and any callback. TD_BUSY, TD_TOOLARGE, TD_NOMEM,
 * TD_CANCELED. */
TD_MUST_CHECK td_status rpc_client_call(rpc_client *c, const void *bytes, size_t n,
                                        uint32_t timeout_ms, rpc_reply_fn cb, void *user,
                                        td_error *err);

/* The same, waiting for the end; the reply is appended to *reply. For tools and tests. */
TD_MUST_CHECK td_status rpc_client_call_wait(rpc_client *c, const void *bytes, size_t n,
                                             uint32_t timeout_ms, td_buf *reply, td_error *err);

/* ---- push ---- */

typedef struct rpc_push rpc_push;

typedef struct rpc_push_options {
    const char *url;
    bool listen;              /* listen instead of dialling; a newer connection replaces an older */
    uint32_t max_messages;    /* 64; not yet with the operating system */
    size_t max_bytes;         /* 16 MiB; the same */
    size_t max_message_bytes; /* RPC_MAX_MESSAGE_BYTES */
    uint32_t stuck_ms;        /* 5000; longest that the foremost message may wait */
    /* The push was declared dead: what waited is gone and sends fail. why is TD_BUSY (a bound was
     * passed) or TD_DEADLINE (stuck). May be NULL. */
    void (*on_dead)(void *user, td_status why);
    /* May be NULL. After a down, messages sent shortly before it may be lost: number them. */
    void (*on_peer)(void *user, bool up);
    void *user;
} rpc_push_options;

/* TD_INVALID: a URL that is none; TD_IO: it cannot be listened on; TD_NOMEM. */
TD_MUST_CHECK td_status rpc_push_open(const rpc_push_options *opt, rpc_push **out, td_error *err);
void rpc_push_close(rpc_push *p);            /* what waits is dropped */
const char *rpc_push_url(const rpc_push *p); /* as rpc_server_url() when it listens */

/* Queue one message; order is the order of calls. From any thread; never blocks; bytes are copied.
 * TD_UNAVAILABLE: the push is dead, or died of this message being one too many; TD_TOOLARGE (it
 * lives on), TD_NOMEM, TD_CANCELED. */
TD_MUST_CHECK td_status rpc_push_send(rpc_push *p, const void *bytes, size_t n, td_error *err);

/* Make a dead push usable again, empty. From any thread; best in on_dead or after it, which may
 * otherwise still come for the death that was reset. */
void rpc_push_reset(rpc_push *p);

/* Messages and bytes waiting, the one being sent included. From any thread; either may be NULL. */
void rpc_push_load(const rpc_push *p, size_t *n_messages, size_t *n_bytes);

/* Wait until all that was sent before is with the operating system, as before a close at the end of
 * a process. TD_DEADLINE; TD_UNAVAILABLE: dead. */
TD_MUST_CHECK td_status rpc_push_flush(rpc_push *p, uint32_t timeout_ms);

/* ---- pull ---- */

typedef struct rpc_pull rpc_pull;

typedef struct rpc_pull_options {
    const char *url;          /* listened on: several pushers may connect */
    bool dial;                /* dialled instead, for a push that listens */
    size_t max_message_bytes; /* RPC_MAX_MESSAGE_BYTES; a peer that sends more is disconnected */
    /* Messages of one peer come in its order. peer tells the connections apart, and is never used
     * again within a process's useful life. */
    void (*on_message)(void *user, uint32_t peer, const void *bytes, size_t n);
    /* May be NULL. Up comes before a peer's first message; after down none comes. */
    void (*on_peer)(void *user, uint32_t peer, bool up);
    void *user;
} rpc_pull_options;

/* As rpc_push_open(). */
TD_MUST_CHECK td_status rpc_pull_open(const rpc_pull_options *opt, rpc_pull **out, td_error *err);
void rpc_pull_close(rpc_pull *p);
const char *rpc_pull_url(const rpc_pull *p); /* as rpc_server_url() when it listens */

/* Take no more messages until resumed: senders' queues fill instead of ours. From any thread, also
 * in on_message; from elsewhere one more message of each peer may come. */
void rpc_pull_pause(rpc_pull *p);
void rpc_pull_resume(rpc_pull *p);

#endif
