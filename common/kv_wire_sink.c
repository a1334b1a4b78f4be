/* kv_wire_sink: the decode side. It never sends; its thread only drives UCX.
 *
 * Over TCP, and over shared memory where the kernel forbids one process to write into another, a
 * put is carried out by the target inside progress. So the thread must run whenever something
 * arrives: it sleeps on the worker's fd and drains it when woken.
 *
 * Everything of UCX, opening and closing included, happens on that thread: a worker in single mode
 * must not change threads. */
#include "common/kv_wire_impl.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

enum {
    SINK_TICK_MS = 500, /* keepalive is done inside progress */
    SINK_SETTLE_ROUNDS =
        4096 /* of progress that always found work: each serves every busy socket */
};

struct td_kv_sink {
    kv_options opt;
    uint64_t wire_hash;
    td_kv_region region[TD_KV_MAX_RANKS];
    int32_t n_ranks;
    td_kv_on_notice on_notice;
    void *user;
    kv_ucx ucx;
    pthread_t thread;
    td_buf descriptor; /* written before the thread reports that it runs, then const */

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    enum { SINK_STARTING, SINK_RUNNING, SINK_FAILED } state;
    td_error start_err;
    bool stop;
    uint64_t settle_asked, settle_done;

    ucp_mem_h memh[TD_KV_MAX_RANKS]; /* the thread's own */
    int32_t n_mapped;
};

static ucs_status_t sink_on_am(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    td_kv_sink *s = arg;
    td_kv_notice n;
    td_error err = {0};

    (void)data;
    (void)len;
    (void)param;
    if (td_kv_notice_decode(header, header_len, &n, &err) == TD_OK)
        s->on_notice(s->user, &n);
    else
        td_warn("kv_notice_refused", "reason=\"%s\"", err.text);
    return UCS_OK;
}

static td_status sink_listen(td_kv_sink *s, td_error *err)
{
    ucp_am_handler_param_t am = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = KV_AM_NOTICE,
        .cb = sink_on_am,
        .arg = s,
    };
    ucs_status_t st = ucp_worker_set_am_recv_handler(s->ucx.worker, &am);

    return st == UCS_OK ? TD_OK : kv_ucx_fail(err, st, "KV sink: message handler");
}

static void sink_unmap(td_kv_sink *s)
{
    while (s->n_mapped > 0)
        ucp_mem_unmap(s->ucx.context, s->memh[--s->n_mapped]);
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
        us = ucp_worker_get_address(s->ucx.worker, &address, &len);
        if (us != UCS_OK)
            st = kv_ucx_fail(err, us, "KV sink: worker address");
    }
    if (st == TD_OK) {
        d.address = (td_slice){(const char *)address, len};
        kv_descriptor_write(&s->descriptor, &d);
        if (s->descriptor.oom)
            st = td_fail(err, TD_NOMEM, "KV sink: no memory for the descriptor");
        ucp_worker_release_address(s->ucx.worker, address);
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
    bool cuda = false;

    for (int32_t i = 0; i < s->n_ranks; i++)
        cuda = cuda || s->region[i].memory == TD_KV_CUDA;
    td_status st = kv_ucx_open(&s->ucx, &s->opt, cuda, err);
    if (st != TD_OK)
        return st;
    st = sink_listen(s, err);
    if (st == TD_OK)
        st = sink_describe(s, err);
    if (st != TD_OK)
        kv_ucx_close(&s->ucx);
    return st;
}

/* Drain what has come in. */
static void sink_progress(td_kv_sink *s)
{
    for (int i = 0; i < SINK_SETTLE_ROUNDS; i++)
        if (ucp_worker_progress(s->ucx.worker) == 0)
            return;
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
        kv_ucx_sleep(&s->ucx, SINK_TICK_MS);
        pthread_mutex_lock(&s->mutex);
    }
    s->settle_done = UINT64_MAX; /* nobody waits for a thread that is gone */
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    if (st == TD_OK) {
        sink_unmap(s);
        kv_ucx_close(&s->ucx);
    }
    return NULL;
}

static void sink_free(td_kv_sink *s)
{
    kv_ucx_close_wake(&s->ucx);
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
        st = kv_ucx_open_wake(&s->ucx, err);
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

void td_kv_sink_close(td_kv_sink *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_mutex_unlock(&s->mutex);
    kv_ucx_wake(&s->ucx);
    pthread_join(s->thread, NULL);
    sink_free(s);
}
