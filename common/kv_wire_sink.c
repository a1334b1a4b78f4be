/* kv_wire_sink: the decode side. It never sends; its thread only drives UCX.
 *
 * Data that comes as messages is copied to its place here and counted; puts need us only where UCX
 * emulates them. Either way the thread must run whenever something arrives: it sleeps on the
 * worker's fd and drains it when woken. It answers nothing: UCX aborts a process that cannot send
 * what it must, so what a dying source leaves behind must not make us send.
 *
 * Everything of UCX, opening and closing included, happens on that thread: a worker in single mode
 * must not change threads. */
#include "common/kv_wire_impl.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

enum {
    SINK_TICK_MS = 500,      /* keepalive is done inside progress */
    SINK_LINGER_MS = 50,     /* before the worker is destroyed */
    SINK_MAX_STREAMS = 1024, /* endpoints that sources may hold at a time */
    SINK_SETTLE_ROUNDS =
        4096 /* of progress that always found work: each serves every busy socket */
};

/* A notice that came before the data it speaks of. */
typedef struct sink_held {
    struct sink_held *next;
    td_kv_notice notice;
} sink_held;

/* One source's endpoint: how many data messages of it are in. Messages may arrive in any order, so
 * they are counted and not awaited one by one. */
typedef struct sink_stream {
    uint64_t id, received;
    uint64_t used; /* sink's clock when last looked up */
    sink_held *held;
    UT_hash_handle hh;
} sink_stream;

struct td_kv_sink {
    kv_options opt;
    uint64_t wire_hash;
    td_kv_region region[TD_KV_MAX_RANKS];
    int32_t n_ranks;
    td_kv_on_notice on_notice;
    void *user;
    kv_ucx ucx;
    ucp_worker_h worker;
    pthread_t thread;
    td_buf descriptor; /* written before the thread reports that it runs, then const */

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    enum { SINK_STARTING, SINK_RUNNING, SINK_FAILED } state;
    td_error start_err;
    bool stop, leave;
    uint64_t settle_asked, settle_done;

    ucp_mem_h memh[TD_KV_MAX_RANKS]; /* the thread's own */
    int32_t n_mapped;
    sink_stream *streams, *last_stream;
    uint64_t clock;
};

static void sink_stream_free(td_kv_sink *s, sink_stream *st)
{
    for (sink_held *h = st->held, *next; h; h = next) {
        next = h->next;
        free(h);
    }
    if (s->last_stream == st)
        s->last_stream = NULL;
    HASH_DEL(s->streams, st);
    free(st);
}

/* ------------------------------------------------------------------ what comes in */

static void sink_refuse(const char *what, const td_error *err)
{
    td_warn("kv_message_refused", "kind=%s reason=\"%s\"", what, err->text);
}

/* The account of a stream, a new one if need be; NULL without memory. When there are too many, the
 * one that was quiet for longest goes: its endpoint is gone or will be. */
static sink_stream *sink_stream_of(td_kv_sink *s, uint64_t id)
{
    sink_stream *st;

    if (s->last_stream && s->last_stream->id == id)
        return s->last_stream;
    HASH_FIND(hh, s->streams, &id, sizeof id, st);
    if (!st) {
        if (HASH_COUNT(s->streams) >= SINK_MAX_STREAMS) {
            sink_stream *oldest = s->streams;

            for (sink_stream *o = s->streams; o; o = o->hh.next)
                if (o->used < oldest->used)
                    oldest = o;
            sink_stream_free(s, oldest);
        }
        st = calloc(1, sizeof *st);
        if (!st)
            return NULL;
        st->id = id;
        HASH_ADD(hh, s->streams, id, sizeof st->id, st);
    }
    st->used = ++s->clock;
    s->last_stream = st;
    return st;
}

/* Hand out the held notices whose data is in. */
static void sink_deliver(td_kv_sink *s, sink_stream *st)
{
    for (sink_held **at = &st->held, *h; (h = *at) != NULL;) {
        if (h->notice.after > st->received) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        s->on_notice(s->user, &h->notice);
        free(h);
    }
}

static ucs_status_t sink_on_data(void *arg, const void *header, size_t header_len, void *data,
                                 size_t len, const ucp_am_recv_param_t *param)
{
    td_kv_sink *s = arg;
    td_error err = {0};
    kv_data d;

    if (kv_data_decode(header, header_len, &d, &err) != TD_OK) {
        sink_refuse("data", &err);
        return UCS_OK;
    }
    if (d.len != len || d.rank >= (uint32_t)s->n_ranks || d.offset > s->region[d.rank].bytes ||
        len > s->region[d.rank].bytes - d.offset || s->region[d.rank].memory != TD_KV_HOST ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        td_fail(&err, TD_INVALID, "%zu bytes (%u said) for rank %u offset %llu", len, d.len, d.rank,
                (unsigned long long)d.offset);
        sink_refuse("data", &err);
        return UCS_OK; /* not counted: the notice behind it will never be delivered */
    }
    memcpy((char *)s->region[d.rank].base + d.offset, data, len);
    sink_stream *st = sink_stream_of(s, d.stream);
    if (!st)
        return UCS_OK; /* as above */
    st->received++;
    if (st->held)
        sink_deliver(s, st);
    return UCS_OK;
}

static ucs_status_t sink_on_notice(void *arg, const void *header, size_t header_len, void *data,
                                   size_t len, const ucp_am_recv_param_t *param)
{
    td_kv_sink *s = arg;
    td_error err = {0};
    td_kv_notice n;

    (void)data;
    (void)len;
    (void)param;
    if (td_kv_notice_decode(header, header_len, &n, &err) != TD_OK) {
        sink_refuse("notice", &err);
        return UCS_OK;
    }
    if (n.after == 0) {
        s->on_notice(s->user, &n);
        return UCS_OK;
    }
    sink_stream *st = sink_stream_of(s, n.stream);
    sink_held *h = st ? malloc(sizeof *h) : NULL, **tail;

    if (!h) {
        td_logerr("kv_notice_lost", "request=%llx reason=\"no memory\"",
                  (unsigned long long)n.request);
        return UCS_OK;
    }
    h->notice = n;
    h->next = NULL;
    for (tail = &st->held; *tail;)
        tail = &(*tail)->next;
    *tail = h;
    sink_deliver(s, st);
    return UCS_OK;
}

/* ------------------------------------------------------------------ opening */

static td_status sink_handle(td_kv_sink *s, unsigned id, ucp_am_recv_callback_t cb, td_error *err)
{
    ucp_am_handler_param_t am = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .cb = cb,
        .arg = s,
    };
    ucs_status_t st = ucp_worker_set_am_recv_handler(s->worker, &am);

    return st == UCS_OK ? TD_OK : kv_ucx_fail(err, st, "KV sink: message handler %u", id);
}

static void sink_unmap(td_kv_sink *s)
{
    while (s->n_mapped > 0)
        kv_ucx_unmap(&s->ucx, s->memh[--s->n_mapped]);
}

/* Map every region and write the descriptor. */
static td_status sink_describe(td_kv_sink *s, td_error *err)
{
    td_kv_descriptor d = {
        .wire_hash = s->wire_hash,
        .ucx_version = kv_ucx_version(),
        .n_ranks = s->n_ranks,
    };
    void *rkey[TD_KV_MAX_RANKS] = {0};
    ucp_address_t *address = NULL;
    td_status st = TD_OK;
    ucs_status_t us;
    size_t len;

    for (int32_t i = 0; i < s->n_ranks && st == TD_OK; i++) {
        const td_kv_region *r = &s->region[i];

        st = kv_ucx_map(&s->ucx, &s->opt, r, &s->memh[i], err);
        if (st != TD_OK)
            break;
        s->n_mapped++;
        us = ucp_rkey_pack(s->ucx.context, s->memh[i], &rkey[i], &len);
        if (us != UCS_OK) {
            st = kv_ucx_fail(err, us, "KV sink: packing the key of rank %d", i);
            break;
        }
        d.rank[i] = (struct td_kv_remote){
            .base = (uint64_t)(uintptr_t)r->base,
            .bytes = r->bytes,
            .memory = r->memory,
            .rkey = {rkey[i], len},
        };
    }
    if (st == TD_OK) {
        us = ucp_worker_get_address(s->worker, &address, &len);
        if (us != UCS_OK)
            st = kv_ucx_fail(err, us, "KV sink: worker address");
    }
    if (st == TD_OK) {
        d.address = (td_slice){(const char *)address, len};
        kv_descriptor_write(&s->descriptor, &d);
        if (s->descriptor.oom)
            st = td_fail(err, TD_NOMEM, "KV sink: no memory for the descriptor");
        ucp_worker_release_address(s->worker, address);
    }
    for (int32_t i = 0; i < s->n_ranks; i++)
        if (rkey[i])
            ucp_rkey_buffer_release(rkey[i]);
    if (st != TD_OK)
        sink_unmap(s);
    return st;
}

static td_status sink_start(td_kv_sink *s, td_error *err)
{
    td_status st = kv_ucx_open(&s->ucx, &s->opt, &s->region[0], err);
    if (st != TD_OK)
        return st;
    st = kv_ucx_worker_open(&s->ucx, &s->worker, err);
    if (st != TD_OK)
        goto close_context;
    st = sink_handle(s, KV_AM_NOTICE, sink_on_notice, err);
    if (st == TD_OK)
        st = sink_handle(s, KV_AM_DATA, sink_on_data, err);
    if (st == TD_OK)
        st = sink_describe(s, err);
    if (st == TD_OK)
        return TD_OK;
    kv_ucx_worker_close(s->worker);
close_context:
    kv_ucx_close(&s->ucx);
    return st;
}

/* Drain what has come in. */
static void sink_progress(td_kv_sink *s)
{
    for (int i = 0; i < SINK_SETTLE_ROUNDS; i++)
        if (ucp_worker_progress(s->worker) == 0)
            return;
}

/* UCX 1.13 aborts when a worker is destroyed that has yet to answer a source's first message: let
 * it answer those that have just come. */
static void sink_linger(td_kv_sink *s)
{
    td_usec until = td_now_us() + SINK_LINGER_MS * TD_USEC_PER_MSEC;

    while (td_now_us() < until)
        if (ucp_worker_progress(s->worker) == 0)
            kv_ucx_sleep(&s->ucx, kv_ucx_arm(s->worker) ? 0 : 5 * TD_USEC_PER_MSEC);
}

static void *sink_main(void *arg)
{
    td_kv_sink *s = arg;
    td_error err = {0};
    td_status st = sink_start(s, &err);

    pthread_mutex_lock(&s->mutex);
    s->state = st == TD_OK ? SINK_RUNNING : SINK_FAILED;
    s->start_err = err;
    pthread_cond_broadcast(&s->changed);
    while (st == TD_OK && !s->stop) {
        uint64_t asked = s->settle_asked;

        pthread_mutex_unlock(&s->mutex);
        sink_progress(s);
        pthread_mutex_lock(&s->mutex);
        if (s->settle_done != asked) {
            s->settle_done = asked;
            pthread_cond_broadcast(&s->changed);
        }
        if (s->stop || s->settle_asked != asked)
            continue;
        pthread_mutex_unlock(&s->mutex);
        kv_ucx_sleep(&s->ucx, kv_ucx_arm(s->worker) ? 0 : SINK_TICK_MS * TD_USEC_PER_MSEC);
        pthread_mutex_lock(&s->mutex);
    }
    s->settle_done = UINT64_MAX; /* nobody waits for a thread that is gone */
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    if (st == TD_OK) {
        sink_linger(s);
        if (s->leave) {
            td_info("kv_sink_left", "reason=\"sources have not reported\"");
        } else {
            kv_ucx_worker_close(s->worker);
            sink_unmap(s);
            kv_ucx_close(&s->ucx);
        }
        while (s->streams)
            sink_stream_free(s, s->streams);
    }
    return NULL;
}

static void sink_free(td_kv_sink *s)
{
    kv_ucx_close_fds(&s->ucx);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    td_buf_free(&s->descriptor);
    free(s);
}

static td_status sink_check(const td_kv_region *regions, int32_t n_ranks, td_error *err)
{
    if (n_ranks < 1 || n_ranks > TD_KV_MAX_RANKS)
        return td_fail(err, TD_INVALID, "KV sink: %d ranks, expected 1 to %d", n_ranks,
                       TD_KV_MAX_RANKS);
    for (int32_t i = 0; i < n_ranks; i++)
        if (!regions[i].base || regions[i].bytes == 0)
            return td_fail(err, TD_INVALID, "KV sink: rank %d has no memory", i);
        else if (regions[i].memory != regions[0].memory)
            return td_fail(err, TD_INVALID,
                           "KV sink: ranks 0 and %d have memory of different kinds", i);
    return TD_OK;
}

td_status td_kv_sink_open(const td_kv_wire_options *opt, uint64_t wire_hash,
                          const td_kv_region *regions, int32_t n_ranks, td_kv_on_notice on_notice,
                          void *user, td_kv_sink **out, td_error *err)
{
    td_status st = sink_check(regions, n_ranks, err);
    if (st != TD_OK)
        return st;

    td_kv_sink *s = calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_NOMEM, "KV sink: no memory");
    s->wire_hash = wire_hash;
    s->n_ranks = n_ranks;
    memcpy(s->region, regions, (size_t)n_ranks * sizeof *regions);
    s->on_notice = on_notice;
    s->user = user;
    st = kv_options_init(&s->opt, opt, err);
    if (st == TD_OK)
        st = kv_ucx_open_fds(&s->ucx, err);
    if (st != TD_OK) {
        free(s);
        return st;
    }
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);

    if (pthread_create(&s->thread, NULL, sink_main, s) != 0) {
        sink_free(s);
        return td_fail(err, TD_NOMEM, "KV sink: no thread");
    }
    pthread_mutex_lock(&s->mutex);
    while (s->state == SINK_STARTING)
        pthread_cond_wait(&s->changed, &s->mutex);
    bool failed = s->state == SINK_FAILED;
    pthread_mutex_unlock(&s->mutex);
    if (failed) {
        pthread_join(s->thread, NULL);
        st = s->start_err.code;
        if (err)
            *err = s->start_err;
        sink_free(s);
        return st;
    }
    *out = s;
    return TD_OK;
}

td_slice td_kv_sink_descriptor(const td_kv_sink *s)
{
    return (td_slice){s->descriptor.ptr, s->descriptor.len};
}

void td_kv_sink_settle(td_kv_sink *s)
{
    td_assert(!pthread_equal(pthread_self(), s->thread));
    pthread_mutex_lock(&s->mutex);
    uint64_t mine = ++s->settle_asked;

    kv_ucx_wake(&s->ucx);
    while (s->settle_done < mine)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

static void sink_end(td_kv_sink *s, bool leave)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    s->leave = leave;
    pthread_mutex_unlock(&s->mutex);
    kv_ucx_wake(&s->ucx);
    pthread_join(s->thread, NULL);
    sink_free(s);
}

void td_kv_sink_close(td_kv_sink *s)
{
    sink_end(s, false);
}

void td_kv_sink_leave(td_kv_sink *s)
{
    sink_end(s, true);
}
