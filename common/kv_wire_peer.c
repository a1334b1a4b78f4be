/* kv_wire_peer: a source's endpoint to one sink, on the source's thread.
 *
 * An endpoint is made for the first push to a decode worker and kept. Once anything goes wrong on
 * it, it is closed by force and never used again: after a failed put nobody knows what arrived, and
 * the next push gets a new one. Each endpoint has a UCX worker to itself, so that the new one has a
 * new address: over TCP, UCX crashes when a worker connects again to a peer that still holds half a
 * connection to it.
 *
 * A close comes in three steps, because UCX calls our error handler from inside progress, where
 * closing is not allowed: kv_peer_fail() marks, kv_peer_step() closes, and `closed` is set when UCX
 * has given every request back. Legs wait for `closed` before they report: until then a put of
 * theirs could still be read from, or land in, pages that someone would free. */
#include "common/kv_wire_impl.h"

#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    PEER_IDLE_SECONDS = 60,
    PEER_CLOSE_POLL_US = 1000,
    PEER_FORGOTTEN_US = 2000000,
};

static void peer_on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    kv_peer_fail(arg, TD_UNAVAILABLE, "the decode worker's endpoint broke: UCX says: %s",
                 ucs_status_string(status));
}

void kv_peer_fail(kv_peer *p, td_status code, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    if (p->failed)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->failed = true;
    td_fail(&p->why, code, "%s", text);
    p->source->dirty = true;
    td_warn("kv_peer_failed", "worker=%.*s rank=%d requests=%d reason=\"%s\"", (int)p->id_len,
            p->key.ptr, p->source->rank, p->requests, text);
}

static td_status peer_connect(kv_peer *p, const td_kv_descriptor *d, td_error *err)
{
    td_kv_source *s = p->source;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)d->address.ptr,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = peer_on_error, .arg = p},
    };
    td_status st = kv_ucx_worker_open(&s->ucx, &p->worker, err);
    if (st != TD_OK)
        return st;
    ucs_status_t us = ucp_ep_create(p->worker, &params, &p->ep);
    if (us != UCS_OK) {
        p->ep = NULL;
        return kv_ucx_fail(err, us, "KV transfer: no way to the decode worker by kv-transport %s",
                           s->opt.transport);
    }
    st = kv_ucx_use_device(&s->opt, &s->region, err);
    if (st != TD_OK)
        return st;
    for (int32_t i = 0; i < d->n_ranks; i++) {
        us = ucp_ep_rkey_unpack(p->ep, d->rank[i].rkey.ptr, &p->rkey[i]);
        if (us != UCS_OK)
            return kv_ucx_fail(err, us, "KV transfer: the key of decode rank %d", i);
        p->base[i] = d->rank[i].base;
        p->n_ranks++;
    }
    return TD_OK;
}

/* Hardware writes into CUDA memory; into host memory, over the transports we have there, the sink's
 * CPU must (see td_kv_method). */
static td_status peer_choose_method(kv_peer *p, td_error *err)
{
    bool cuda = p->source->region.memory == TD_KV_CUDA; /* then the sink's is too: kv_push.c */
    td_kv_method method = p->source->opt.o.method;

    p->by_message = method == TD_KV_METHOD_MESSAGE || (method == TD_KV_METHOD_AUTO && !cuda);
    if (p->by_message && cuda)
        return td_fail(err, TD_INVALID, "KV messages need host memory");
    p->max_put = p->by_message ? KV_DATA_MAX_BYTES : UINT64_MAX;
    if (p->by_message && getrandom(&p->stream, sizeof p->stream, 0) != sizeof p->stream)
        return td_fail(err, TD_IO, "KV transfer: getrandom: %s", strerror(errno));
    return TD_OK;
}

static bool peer_key_make(td_buf *key, td_slice worker_id, uint64_t incarnation,
                          td_slice descriptor)
{
    td_buf_add(key, worker_id.ptr, worker_id.len);
    td_buf_add(key, &incarnation, sizeof incarnation);
    td_buf_add(key, descriptor.ptr, descriptor.len);
    return !key->oom;
}

td_status kv_peer_take(td_kv_source *s, td_slice worker_id, uint64_t incarnation,
                       td_slice descriptor, kv_peer **out, td_error *err)
{
    td_kv_descriptor d;
    td_buf key = {0};
    td_status st = td_kv_descriptor_parse(descriptor, &d, err);

    if (st != TD_OK)
        return st;
    if (!peer_key_make(&key, worker_id, incarnation, descriptor)) {
        td_buf_free(&key);
        return td_fail(err, TD_NOMEM, "KV transfer: no memory for an endpoint");
    }
    for (kv_peer *p = s->peers; p; p = p->next) {
        if (p->failed || p->id_len != worker_id.len ||
            memcmp(p->key.ptr, worker_id.ptr, worker_id.len) != 0)
            continue;
        if (p->key.len == key.len && memcmp(p->key.ptr, key.ptr, key.len) == 0) {
            td_buf_free(&key);
            p->legs++;
            *out = p;
            return TD_OK;
        }
        if (p->legs == 0)
            p->failed = true; /* quietly: an earlier life of this worker */
    }

    kv_peer *p = calloc(1, sizeof *p);
    if (!p) {
        td_buf_free(&key);
        return td_fail(err, TD_NOMEM, "KV transfer: no memory for an endpoint");
    }
    p->source = s;
    p->key = key;
    p->id_len = worker_id.len;
    p->next = s->peers;
    s->peers = p;
    st = peer_choose_method(p, err);
    if (st == TD_OK)
        st = peer_connect(p, &d, err);
    if (st != TD_OK) {
        p->failed = true; /* in the list, so that what was opened gets closed */
        s->dirty = true;
        return st;
    }
    p->legs = 1;
    *out = p;
    return TD_OK;
}

void kv_peer_give(kv_peer *p)
{
    p->legs--;
    p->idle_since = td_now_us();
}

const char *kv_peer_transport(kv_peer *p)
{
    if (!p->transport[0] && p->ep)
        kv_ucx_transport(p->ep, p->transport);
    return p->transport[0] ? p->transport : p->source->opt.transport;
}

/* ------------------------------------------------------------------ requests */

static void op_count(kv_op *op, int sign)
{
    kv_peer *p = op->peer;

    p->requests += sign;
    op->busy = sign > 0;
    if (op->is_put) {
        p->bytes_in_flight += sign > 0 ? op->bytes : 0 - op->bytes;
        p->source->bytes_in_flight += sign > 0 ? op->bytes : 0 - op->bytes;
    }
}

static void op_done(kv_op *op, ucs_status_t status)
{
    kv_peer *p = op->peer;

    op_count(op, -1);
    p->moved_us = td_now_us();
    p->source->dirty = true;
    if (status == UCS_OK && !op->is_put && op->bytes > p->bytes_flushed)
        p->bytes_flushed = op->bytes;
    if (status != UCS_OK)
        kv_peer_fail(p, TD_UNAVAILABLE, "a KV transfer failed: UCX says: %s",
                     ucs_status_string(status));
    op->on_done(op, status);
}

static void op_on_ucx(void *request, ucs_status_t status, void *user)
{
    ucp_request_free(request);
    op_done(user, status);
}

static void op_begin(kv_peer *p, kv_op *op)
{
    op->peer = p;
    if (p->requests == 0)
        p->moved_us = td_now_us();
    op_count(op, 1);
}

static td_status op_posted(kv_op *op, ucs_status_ptr_t r, const char *what, td_error *err)
{
    if (UCS_PTR_IS_ERR(r)) {
        op_count(op, -1);
        return kv_ucx_fail(err, UCS_PTR_STATUS(r), "KV transfer: %s", what);
    }
    if (r == NULL)
        op_done(op, UCS_OK);
    return TD_OK;
}

static ucp_request_param_t op_param(kv_op *op)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.send = op_on_ucx},
        .user_data = op,
    };
}

static ucs_status_ptr_t peer_write(kv_peer *p, kv_op *op, const td_kv_put *put)
{
    td_kv_source *s = p->source;
    ucp_request_param_t param = op_param(op);
    const char *from = (const char *)s->region.base + put->src_offset;

    param.op_attr_mask |=
        UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_MULTI_SEND;
    param.memh = s->memh;
    param.memory_type = kv_ucx_memory(s->region.memory);
    return ucp_put_nbx(p->ep, from, put->bytes, p->base[put->dst_rank] + put->dst_offset,
                       p->rkey[put->dst_rank], &param);
}

static ucs_status_ptr_t peer_send_data(kv_peer *p, kv_op *op, const td_kv_put *put)
{
    ucp_request_param_t param = op_param(op);
    const kv_data d = {
        .stream = p->stream,
        .offset = put->dst_offset,
        .rank = (uint32_t)put->dst_rank,
        .len = (uint32_t)put->bytes,
    };

    kv_data_encode(&d, op->header);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    return ucp_am_send_nbx(p->ep, KV_AM_DATA, op->header, KV_DATA_HEADER_BYTES,
                           (const char *)p->source->region.base + put->src_offset, put->bytes,
                           &param);
}

td_status kv_peer_put(kv_peer *p, kv_op *op, const td_kv_put *put, td_error *err)
{
    td_assert(put->dst_rank < p->n_ranks && put->bytes <= p->max_put);
    td_assert(put->src_offset + put->bytes <= p->source->region.bytes);
    op->is_put = true;
    op->bytes = put->bytes;
    op_begin(p, op);
    ucs_status_ptr_t r = p->by_message ? peer_send_data(p, op, put) : peer_write(p, op, put);
    td_status st = op_posted(op, r, "starting a put", err);

    if (st == TD_OK) {
        p->bytes_posted += put->bytes;
        p->messages += p->by_message;
    }
    return st;
}

td_status kv_peer_flush(kv_peer *p, kv_op *op, td_error *err)
{
    ucp_request_param_t param = op_param(op);

    op->is_put = false;
    op->bytes = p->bytes_posted;
    op_begin(p, op);
    return op_posted(op, ucp_ep_flush_nbx(p->ep, &param), "starting a flush", err);
}

td_status kv_peer_notify(kv_peer *p, kv_op *op, const unsigned char notice[TD_KV_NOTICE_BYTES],
                         td_error *err)
{
    ucp_request_param_t param = op_param(op);

    op->is_put = false;
    op->bytes = 0;
    op_begin(p, op);
    return op_posted(
        op, ucp_am_send_nbx(p->ep, KV_AM_NOTICE, notice, TD_KV_NOTICE_BYTES, NULL, 0, &param),
        "sending a notice", err);
}

/* ------------------------------------------------------------------ closing peers */

/* How long this peer may go without any completion. */
static td_usec peer_patience(const kv_peer *p)
{
    const kv_options *opt = &p->source->opt;
    uint64_t bytes = p->bytes_posted - p->bytes_flushed;

    if (bytes > KV_MAX_BYTES_IN_FLIGHT)
        bytes = KV_MAX_BYTES_IN_FLIGHT;
    if (bytes < p->bytes_in_flight)
        bytes = p->bytes_in_flight;
    return opt->o.stall_us +
           (td_usec)((double)bytes * 10 * TD_USEC_PER_SEC / (double)opt->o.min_bytes_per_s);
}

static void peer_close(kv_peer *p)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    ucp_ep_h ep = p->ep;

    p->ep = NULL;
    p->closing = ucp_ep_close_nbx(ep, &param);
    if (UCS_PTR_IS_ERR(p->closing)) {
        td_logerr("kv_close_failed", "reason=\"%s\"",
                  ucs_status_string(UCS_PTR_STATUS(p->closing)));
        p->closing = NULL;
    }
    p->source->dirty = true;
}

/* The endpoint is gone. Its requests have come back with it, except where UCX forgets some (1.13,
 * when it emulates puts): they are waited for a while, and are over at the latest with the worker.
 */
static void peer_try_finish(kv_peer *p, td_usec now)
{
    td_kv_source *s = p->source;

    if (p->closed_ep_us == 0)
        p->closed_ep_us = now;
    if (p->requests > 0 && now - p->closed_ep_us < PEER_FORGOTTEN_US)
        return;
    for (int32_t i = 0; i < p->n_ranks; i++)
        ucp_rkey_destroy(p->rkey[i]);
    if (p->worker)
        kv_ucx_worker_close(p->worker);
    p->worker = NULL;
    if (p->requests > 0)
        td_warn("kv_requests_forgotten", "worker=%.*s rank=%d requests=%d", (int)p->id_len,
                p->key.ptr, s->rank, p->requests);
    for (int i = 0; i < KV_MAX_IN_FLIGHT; i++)
        if (s->ops[i].busy && s->ops[i].peer == p)
            op_done(&s->ops[i], UCS_ERR_CANCELED);
    p->closed = true;
    s->dirty = true;
}

bool kv_peer_step(kv_peer *p, td_usec now, td_usec *deadline)
{
    if (!p->failed) {
        td_usec idle_at = p->idle_since + PEER_IDLE_SECONDS * TD_USEC_PER_SEC;
        td_usec stall_at = p->moved_us + peer_patience(p);

        if (p->requests > 0 && now >= stall_at)
            kv_peer_fail(p, TD_UNAVAILABLE,
                         "nothing moved for %lld ms: the decode worker is frozen, or the network "
                         "too slow",
                         (long long)((now - p->moved_us) / TD_USEC_PER_MSEC));
        else if (p->requests > 0 && stall_at < *deadline)
            *deadline = stall_at;
        else if (p->legs == 0 && now >= idle_at)
            p->failed = true; /* quietly */
    }
    if (!p->failed)
        return false;
    if (p->ep)
        peer_close(p);
    if (p->closing && ucp_request_check_status(p->closing) != UCS_INPROGRESS) {
        ucp_request_free(p->closing);
        p->closing = NULL;
    }
    if (!p->closed && !p->closing)
        peer_try_finish(p, now);
    if (!p->closed && now + PEER_CLOSE_POLL_US < *deadline)
        *deadline = now + PEER_CLOSE_POLL_US; /* the end of a close wakes nobody */
    return p->closed && p->legs == 0;
}
