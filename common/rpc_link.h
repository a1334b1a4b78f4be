/* rpc_link: connections that carry messages. What the four ends of rpc.h share; private to
 * common/rpc_*.c, and the only place where NNG is seen.
 *
 * The connections are NNG's byte streams, and on them its wire protocol is spoken: the same eight
 * bytes of greeting, the same length before each message and the same request ids as NNG's REQ,
 * REP, PUSH and PULL sockets, with which every end here can talk. NNG's sockets themselves are not
 * used, because of how those of 1.5 end a connection: if one is closed between the arrival of a
 * message's length and of its body, the receive is started on an aio that was stopped already,
 * whose callback then never comes. The thread that ends connections waits for it for ever, and with
 * it every socket of the process: none is closed or dialled again. (Closing a client forty times
 * while replies arrived froze three runs in five.) Here a receive starts under the link's lock,
 * where a connection that is being closed is seen, and only the service thread and *_close() wait
 * for aios.
 *
 * Threads. A connection's receive chain runs on one NNG thread at a time: receive, cut messages
 * out, give them to the end, receive again. It alone tells of up and down, so these and the
 * messages come in order. It stops when the connection fails, or parks while the end takes nothing.
 * Locks, in this order: events (held while the user is told), lock (state), service. */
#ifndef TANDEM_COMMON_RPC_LINK_H
#define TANDEM_COMMON_RPC_LINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <nng/nng.h>

#include "common/clock.h"
#include "common/rpc_service.h"
#include "common/status.h"

/* SP protocol numbers, as NNG's. */
enum { RPC_SP_REQ = 0x30, RPC_SP_REP = 0x31, RPC_SP_PUSH = 0x50, RPC_SP_PULL = 0x51 };

/* A request's route: its id, after one more for each device that it came through. */
enum { RPC_MAX_ROUTE = 8 * 4 };

typedef struct rpc_link rpc_link;
typedef struct rpc_conn rpc_conn;

/* A message on its way out. */
typedef struct rpc_frame {
    struct rpc_frame *next;
    uint64_t tag; /* the end's own */
    size_t payload_bytes;
    size_t n; /* bytes on the wire */
    unsigned char bytes[];
} rpc_frame;

typedef enum conn_state {
    CONN_WAITING,  /* for the connection that it replaces to end */
    CONN_GREETING, /* until both sides have said what they are */
    CONN_UP,
    CONN_ENDED /* its receive chain is over; to be freed by the tick */
} conn_state;

struct rpc_conn {
    rpc_link *link;
    uint32_t id; /* never used again in this process */
    nng_stream *stream;
    nng_aio *rx, *tx;
    conn_state state;
    bool failed;      /* its stream is closed; nothing is started on it any more */
    bool chain;       /* the receive chain runs; else it is parked, or never began */
    td_usec deadline; /* of the greeting */
    /* Received and not yet consumed: in[pos..len). The receive chain's own. */
    unsigned char *in;
    size_t in_cap, in_pos, in_len;
    /* To write: the first one is being written, `written` bytes of it are. */
    rpc_frame *out, *out_last;
    size_t written;
    td_usec writing_since; /* TD_USEC_NEVER: nothing is being written */
    struct rpc_conn *next, *prev;
};

/* What an end does. Every function but on_message and on_up may be NULL. */
typedef struct rpc_end_ops {
    uint16_t self, peer; /* SP protocols */
    size_t route_room;   /* bytes that may come with a message of the greatest size */
    bool single;         /* one connection at a time; a newer one replaces it */
    /* events held. */
    void (*on_up)(rpc_link *link, rpc_conn *conn);
    void (*on_down)(rpc_link *link, rpc_conn *conn);
    /* lock held. False: take no message now. rpc_link_kick() when that changes. */
    bool (*may_take)(rpc_link *link);
    void (*on_take)(rpc_link *link); /* lock held: a message is taken, on_message follows */
    /* No lock held. False: not what this protocol sends; the connection fails. */
    bool (*on_message)(rpc_link *link, rpc_conn *conn, const unsigned char *bytes, size_t n);
    /* lock held: a frame was written, or will not be; it is freed afterwards. */
    void (*on_written)(rpc_link *link, const rpc_frame *frame);
    /* No lock held; on the service thread. Returns when it wants to be called next. */
    td_usec (*on_tick)(rpc_link *link, td_usec now);
} rpc_end_ops;

struct rpc_link {
    rpc_service_entry entry;
    const rpc_end_ops *ops;
    char *name; /* the URL as given */
    char *url;  /* as bound; NULL unless it listens */
    size_t max_message_bytes;
    td_usec max_write; /* a frame that is being written for longer fails the connection; 0: any */
    bool lead;         /* ipc: a 1 goes before the length */
    pthread_mutex_t events; /* held while the user is told */
    bool muted;             /* events: *_close() has begun */
    pthread_mutex_t lock;   /* of all below, and of the connections */
    bool closing;
    nng_stream_dialer *dialer;
    nng_stream_listener *listener;
    nng_aio *connector; /* dials or accepts */
    bool connecting;    /* the connector is at it */
    td_usec retry_at, retry_after;
    rpc_conn *conns, *ended;
};

/* Prepare and start. The link is embedded in its end, zeroed before. On failure, and then too, it
 * is for rpc_link_fini(). Callbacks may run before this returns. */
TD_MUST_CHECK td_status rpc_link_init(rpc_link *link, const rpc_end_ops *ops, const char *url,
                                      size_t max_message_bytes, td_error *err);
TD_MUST_CHECK td_status rpc_link_start(rpc_link *link, bool listen, td_error *err);

/* No function of the ops runs after this returned. Frees all connections. Again is fine. */
void rpc_link_close(rpc_link *link);
void rpc_link_fini(rpc_link *link); /* closed before */

/* As bound, or as given. */
const char *rpc_link_url(const rpc_link *link);

/* A frame of route and payload; NULL: no memory. rpc_frame_free(NULL) is fine. */
rpc_frame *rpc_frame_make(const rpc_link *link, uint64_t tag, const void *route, size_t n_route,
                          const void *payload, size_t n);
void rpc_frame_set_id(const rpc_link *link, rpc_frame *frame, uint32_t id); /* its route and tag */
void rpc_frame_free(rpc_frame *frame);

/* All with lock held. */
rpc_conn *rpc_link_up(const rpc_link *link);                /* the first that is up, or NULL */
rpc_conn *rpc_link_find(const rpc_link *link, uint32_t id); /* up and of this id, or NULL */
void rpc_conn_send(rpc_conn *conn, rpc_frame *frame);       /* takes the frame */
rpc_frame *rpc_conn_unsend(rpc_conn *conn, uint64_t tag);   /* if no byte of it was written */
void rpc_conn_fail(rpc_conn *conn);                         /* end it, soon */
void rpc_link_kick(rpc_link *link);                         /* tick as soon as possible */

/* Between rpc_link.c and rpc_conn.c. Create and start: lock held, the stream is taken; false: no
 * memory. Resume: lock held, and again when it returns: end what failed while parked, or go on. */
bool rpc_conn_create(rpc_link *link, nng_stream *stream);
void rpc_conn_start(rpc_conn *conn);
void rpc_conn_resume(rpc_conn *conn);
void rpc_link_retry_later(rpc_link *link);
void rpc_conn_free(rpc_conn *conn); /* waits for its aios; in no list any more */

/* Bytes of a route at the start of a message, its request id last; 0: there is none. */
size_t rpc_route_bytes(const unsigned char *bytes, size_t n);

#endif
