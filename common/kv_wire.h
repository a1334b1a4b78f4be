/* kv_wire: the two ends of the KV transfer over UCX.
 *
 * A decode worker opens one sink. It maps every rank's region once and hands out a descriptor, an
 * opaque text of bytes that travels in KvDestination. A prefill worker opens one source per rank
 * and pushes through them (kv_push.h): one-sided puts straight into the sink's regions, a flush,
 * and a notice as an active message.
 *
 * Threads: a sink has one progress thread, which owns its UCX worker and calls on_notice. A source
 * has one thread, which owns its endpoints, one per decode worker, kept between requests. All
 * functions here are thread-safe unless they say otherwise.
 *
 * Failure: both ends run in UCX's peer failure mode. A peer that dies is noticed within about the
 * keepalive time; one that freezes is given up by a timeout of ours. The endpoint is then closed by
 * force and its requests awaited before anyone is told, so after that no put of this side lands any
 * more, except what a TCP peer's kernel has already taken in: see td_kv_sink_settle(). */
#ifndef TANDEM_COMMON_KV_WIRE_H
#define TANDEM_COMMON_KV_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/kv_layout.h"
#include "common/kv_notice.h"
#include "common/status.h"

typedef struct td_kv_sink td_kv_sink;
typedef struct td_kv_source td_kv_source;
struct td_event;

enum { TD_KV_MAX_RANKS = 64 };

typedef enum td_kv_memory { TD_KV_HOST = 0, TD_KV_CUDA = 1 } td_kv_memory;

/* A rank's KV memory; it must outlive the sink or source that maps it. */
typedef struct td_kv_region {
    void *base;
    uint64_t bytes;
    td_kv_memory memory;
    int32_t device; /* CUDA device of the memory; not used for host memory */
} td_kv_region;     /* CUDA memory comes from cudaMalloc: what one process can open of another's */

/* How bytes reach the sink. A put is one-sided: the network or the GPU writes, the decode worker's
 * CPU does nothing. Where there is no hardware for that (host memory over TCP or shared memory),
 * UCX has the target's CPU write and answer each put, and aborts the target when it cannot answer
 * because the source has died. There, data goes as messages of ours that nobody answers, and the
 * sink counts them. */
typedef enum td_kv_method {
    TD_KV_METHOD_AUTO = 0, /* puts when the memory is CUDA, else messages */
    TD_KV_METHOD_PUT,
    TD_KV_METHOD_MESSAGE, /* host memory only */
} td_kv_method;

/* Zero-initialise for the defaults. Strings are copied. */
typedef struct td_kv_wire_options {
    /* "auto" (NULL), "shm" or "tcp", the same on both ends. auto is everything that UCX has but
     * shared memory queues: with those ("shm") a source that is killed can block the sink for all
     * others. */
    const char *transport;
    const char *net_devices; /* as UCX names them ("mlx5_0:1,eth0"); NULL: all */
    td_usec keepalive_us;    /* a dead peer is noticed in about this; 0: 1 s */
    /* Source only. */
    td_kv_method method;
    td_usec stall_us; /* give up on a peer when nothing moves for this long, and ten times */
    uint64_t min_bytes_per_s; /* what the bytes in flight take at this rate; 0: 500 ms, 100 MB/s */
    bool verify;              /* digest what is put (kv_plan.h), host memory only; slow */
    uint32_t fail_put_number; /* for fault tests: this put of each push (from 1) does not post */
    td_status (*query_event)(struct td_event *ready); /* td_event_query; NULL: events always are */
    /* Both ends: td_ops.dev_use, makes `device` current on the calling thread; NULL with host
     * memory. Called before anything of UCX is opened, memory mapped or a key unpacked. */
    td_status (*use_device)(int32_t device, td_error *err);
} td_kv_wire_options;

/* Whether the UCX that this process runs with can move memory of this kind: opens it and looks, so
 * that a worker can refuse before it loads a model. TD_UNAVAILABLE says what to install; other
 * errors as td_kv_sink_open(). */
TD_MUST_CHECK td_status td_kv_wire_check(const td_kv_wire_options *opt, td_kv_memory memory,
                                         int32_t device, td_error *err);

/* ------------------------------------------------------------------ decode side */

/* Called on the progress thread for each valid notice, whatever request it names; must not block
 * and must not call into the sink. */
typedef void (*td_kv_on_notice)(void *user, const td_kv_notice *n);

/* Map regions[0..n_ranks) and listen. wire_hash is td_kv_wire_hash() of the model: a source with
 * another one refuses the descriptor. TD_INVALID: an option or region is wrong. TD_UNAVAILABLE: UCX
 * has no such transport here. TD_NOMEM. */
TD_MUST_CHECK td_status td_kv_sink_open(const td_kv_wire_options *opt, uint64_t wire_hash,
                                        const td_kv_region *regions, int32_t n_ranks,
                                        td_kv_on_notice on_notice, void *user, td_kv_sink **out,
                                        td_error *err);

/* What sources need to reach this sink; valid until close, the same for all requests. */
td_slice td_kv_sink_descriptor(const td_kv_sink *s);

/* Block until everything that had reached this host for the sink before the call is in memory.
 * Before reusing pages whose source will never report (it died, or gave this worker up): its last
 * puts may still sit in a socket. Milliseconds; not from on_notice. */
void td_kv_sink_settle(td_kv_sink *s);

/* Stop the thread, unmap. No callback runs after it returns. NULL is fine. */
void td_kv_sink_close(td_kv_sink *s);

/* The same for a process that ends now and whose sources have not all reported: what UCX holds
 * stays until the process is gone. UCX 1.13 aborts when a worker is destroyed in the middle of a
 * peer's first contact, and cannot be asked whether it is in one. End with _exit(): UCX has exit
 * handlers. */
void td_kv_sink_leave(td_kv_sink *s);

/* A descriptor taken apart: slices point into the bytes given. */
typedef struct td_kv_descriptor {
    uint64_t wire_hash;
    uint32_t ucx_version; /* major << 16 | minor */
    td_slice address;
    int32_t n_ranks;
    struct td_kv_remote {
        uint64_t base, bytes;
        td_kv_memory memory;
        td_slice rkey;
    } rank[TD_KV_MAX_RANKS];
} td_kv_descriptor;

/* TD_INVALID: cut short, altered, of another version, or sizes that do not fit. */
TD_MUST_CHECK td_status td_kv_descriptor_parse(td_slice bytes, td_kv_descriptor *out,
                                               td_error *err);

/* ------------------------------------------------------------------ prefill side */

/* Map one rank's region for pushing. *g is copied. Errors as td_kv_sink_open(). */
TD_MUST_CHECK td_status td_kv_source_open(const td_kv_wire_options *opt, const td_kv_geometry *g,
                                          int32_t rank, const td_kv_region *region,
                                          td_kv_source **out, td_error *err);

/* Cancels pushes that are still open and waits for them (their on_done runs), then closes the
 * endpoints. NULL is fine. Not from on_done. */
void td_kv_source_close(td_kv_source *s);

#endif
