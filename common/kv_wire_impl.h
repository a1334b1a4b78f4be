/* kv_wire_impl: what kv_wire_*.c and kv_push.c share; nobody else includes it.
 *
 * kv_ucx is a UCX context with the settings both ends need, and a place to sleep. All but
 * kv_ucx_wake() belongs to the thread that opened it. kv_peer is a source's endpoint to one sink,
 * owned by the source's thread. */
#ifndef TANDEM_COMMON_KV_WIRE_IMPL_H
#define TANDEM_COMMON_KV_WIRE_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <pthread.h>
#include <ucp/api/ucp.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/kv_push.h"
#include "common/kv_wire.h"
#include "common/status.h"

enum {
    KV_AM_NOTICE = 1, /* active message ids: header td_kv_notice, no data; */
    KV_AM_DATA = 2,   /* header kv_data, and its bytes */
    KV_DATA_HEADER_BYTES = 40,
    KV_DATA_MAX_BYTES = 8000, /* so that a message is one fragment on every transport (8 KiB) */
    KV_MAX_IN_FLIGHT = 256,   /* puts or messages of one source between post and completion */
    KV_TRANSPORT_NAME = 64,
};
/* Bytes of one source in flight: what a cancel has to wait for, enough to fill any link. */
#define KV_MAX_BYTES_IN_FLIGHT ((uint64_t)64 << 20)

/* ------------------------------------------------------------------ kv_wire_ucx.c */

typedef struct kv_ucx {
    ucp_context_h context;
    int epoll_fd;
    int wake_fd; /* eventfd: another thread has something for us */
} kv_ucx;

/* Options with the strings copied and defaults filled in. */
typedef struct kv_options {
    td_kv_wire_options o;
    char transport[8];
    char net_devices[256];
} kv_options;

/* TD_INVALID: a transport that is none, or a value out of range. */
td_status kv_options_init(kv_options *to, const td_kv_wire_options *from, td_error *err);

/* What a UCX status means for us; the text is `what` and UCX's own words. */
td_status kv_ucx_fail(td_error *err, ucs_status_t s, const char *fmt, ...) TD_PRINTF(3, 4);

/* The fds exist before the thread does, so that others can wake it at once. On failure nothing is
 * left open; the same holds for the next two. */
td_status kv_ucx_open_fds(kv_ucx *u, td_error *err);
void kv_ucx_close_fds(kv_ucx *u);

/* r: one of the regions that will be mapped; it decides about transports and what UCX must know. */
td_status kv_ucx_open(kv_ucx *u, const kv_options *opt, const td_kv_region *r, td_error *err);
void kv_ucx_close(kv_ucx *u);

/* A worker whose events end kv_ucx_sleep(). */
td_status kv_ucx_worker_open(kv_ucx *u, ucp_worker_h *out, td_error *err);
void kv_ucx_worker_close(ucp_worker_h worker);

void kv_ucx_wake(const kv_ucx *u); /* any thread */

/* Before sleeping, for each worker: true when it has something to progress already, so do not
 * sleep. */
bool kv_ucx_arm(ucp_worker_h worker);

/* Sleep until an armed worker or a wake needs us, at most timeout_us (-1: for ever). */
void kv_ucx_sleep(kv_ucx *u, td_usec timeout_us);

td_status kv_ucx_use_device(const kv_options *opt, const td_kv_region *r, td_error *err);
td_status kv_ucx_map(kv_ucx *u, const kv_options *opt, const td_kv_region *r, ucp_mem_h *out,
                     td_error *err);
void kv_ucx_unmap(kv_ucx *u, ucp_mem_h memh);
ucs_memory_type_t kv_ucx_memory(td_kv_memory m);

/* major << 16 | minor of the UCX library that is loaded. */
uint32_t kv_ucx_version(void);

/* Names of the transports that ep uses for puts, or for messages if none is special to puts. */
void kv_ucx_transport(ucp_ep_h ep, char name[KV_TRANSPORT_NAME]);

/* ------------------------------------------------------------------ kv_wire.c */

/* Append the wire form of a descriptor. */
void kv_descriptor_write(td_buf *out, const td_kv_descriptor *d);

/* One data message: len bytes for offset of a rank's region. */
typedef struct kv_data {
    uint64_t stream; /* the endpoint that sends it: a random number */
    uint64_t offset;
    uint32_t rank, len;
} kv_data;

void kv_data_encode(const kv_data *d, unsigned char out[KV_DATA_HEADER_BYTES]);
td_status kv_data_decode(const void *bytes, size_t n, kv_data *out, td_error *err);

/* TD_INVALID when a worker with `theirs` cannot talk to us. */
td_status kv_ucx_version_check(uint32_t ours, uint32_t theirs, td_error *err);

/* ------------------------------------------------------------------ kv_wire_source.c */

typedef struct kv_leg kv_leg; /* one source's part of one push; kv_push_impl.h */

typedef struct kv_peer {
    struct kv_peer *next;
    td_kv_source *source;
    td_buf key;          /* worker id, incarnation and descriptor: all must match to be reused */
    size_t id_len;       /* bytes of key that are the worker id */
    ucp_worker_h worker; /* of this endpoint alone; NULL: never made, or gone */
    ucp_ep_h ep;         /* NULL: never made, or being closed */
    int32_t n_ranks;
    ucp_rkey_h rkey[TD_KV_MAX_RANKS];
    uint64_t base[TD_KV_MAX_RANKS];
    bool by_message;
    uint64_t stream, messages; /* of data: who we are to the sink, how many we have sent */
    uint64_t max_put;          /* bytes of one kv_peer_put() */
    int legs;                  /* that use it */
    td_usec idle_since;        /* when legs fell to 0 */
    bool failed;               /* takes no new requests; its endpoint is being closed */
    bool closed;               /* and is gone, and every request has come back */
    td_error why;              /* of failed */
    void *closing;             /* UCX request of the close, while it runs */
    td_usec closed_ep_us;      /* when it ended */
    int requests;              /* posted and not come back, of any kind */
    td_usec moved_us;          /* last completion, or first post after there was nothing */
    uint64_t bytes_in_flight;  /* of puts */
    uint64_t bytes_posted, bytes_flushed; /* ever; the difference may still be on its way */
    char transport[KV_TRANSPORT_NAME];    /* "" until asked for */
} kv_peer;

/* A request whose completion somebody waits for. It lives in its owner, so that nothing is
 * allocated per operation. */
typedef struct kv_op {
    kv_leg *leg;
    kv_peer *peer;
    struct kv_op *next_free;
    uint64_t bytes; /* of a put; of a flush: bytes_posted before it */
    bool is_put;
    bool busy;                                  /* a put between post and completion */
    unsigned char header[KV_DATA_HEADER_BYTES]; /* UCX reads it until completion */
    void (*on_done)(struct kv_op *op, ucs_status_t status);
} kv_op;

struct td_kv_source {
    kv_options opt;
    td_kv_geometry g;
    int32_t rank;
    td_kv_region region;
    kv_ucx ucx;
    pthread_t thread;

    /* Guarded by mutex: what other threads hand over, and each leg's inbox. Never held together
     * with a push's mutex, or while a callback runs. */
    pthread_mutex_t mutex;
    pthread_cond_t started;
    enum { KV_STARTING, KV_RUNNING, KV_FAILED } state;
    td_error start_err;
    bool stop;
    kv_leg *incoming; /* new legs, newest first */

    /* The thread's own. */
    ucp_mem_h memh;
    kv_leg *legs; /* oldest first: an earlier request finishes first */
    kv_peer *peers;
    kv_op ops[KV_MAX_IN_FLIGHT], *free_ops;
    uint64_t bytes_in_flight;
    bool dirty;      /* something came back: look at the legs again before sleeping */
    uint64_t rounds; /* of the loop */
};

/* Hand a new leg to the source's thread; any thread. */
void kv_source_add(td_kv_source *s, kv_leg *leg);

/* ------------------------------------------------------------------ kv_wire_peer.c */

/* The endpoint for a destination: a live one with the same key, or a new one. An old one of the
 * same worker that is not in use is closed. Counts the caller as a leg. */
td_status kv_peer_take(td_kv_source *s, td_slice worker_id, uint64_t incarnation,
                       td_slice descriptor, kv_peer **out, td_error *err);
void kv_peer_give(kv_peer *p);

/* Post at most p->max_put bytes, or a flush, or a notice. Completion comes by op->on_done, perhaps
 * before this returns. Failure to post: a status, and on_done will not be called. */
td_status kv_peer_put(kv_peer *p, kv_op *op, const td_kv_put *put, td_error *err);
td_status kv_peer_flush(kv_peer *p, kv_op *op, td_error *err);
td_status kv_peer_notify(kv_peer *p, kv_op *op, const unsigned char notice[TD_KV_NOTICE_BYTES],
                         td_error *err);

/* Have the endpoint closed by force; the text is what its legs report. Idempotent. */
void kv_peer_fail(kv_peer *p, td_status code, const char *fmt, ...) TD_PRINTF(3, 4);
const char *kv_peer_transport(kv_peer *p);

/* Give up what has stalled, close what has failed or was idle for long; true when p can be freed.
 * Lowers *deadline to when to call again. */
bool kv_peer_step(kv_peer *p, td_usec now, td_usec *deadline);

/* ------------------------------------------------------------------ kv_push_leg.c */

/* Advance a leg as far as it goes without waiting; on its source's thread. True once it is over: it
 * may be freed by then. Lowers *deadline to when it must be called again even if nothing happens.
 */
bool kv_leg_step(kv_leg *leg, td_usec *deadline);
void kv_leg_abandon(kv_leg *leg);  /* the source is closing: as cancel and finish */
kv_leg **kv_leg_link(kv_leg *leg); /* where the source's lists keep the next one */

#endif
