/* kv_one: see the header. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/kv_one.h"

#include <stdlib.h>
#include <time.h>

static void one_on_notice(void *user, const td_kv_notice *n)
{
    one_process *o = user;

    pthread_mutex_lock(&o->mutex);
    o->notice = *n;
    o->n_notices++;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->mutex);
}

static void one_on_done(void *user, const td_kv_push_result *r)
{
    one_process *o = user;

    pthread_mutex_lock(&o->mutex);
    o->status = r->status;
    o->n_done++;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->mutex);
}

void one_wait(one_process *o, const int *count, int n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_US / TD_USEC_PER_SEC;
    pthread_mutex_lock(&o->mutex);
    while (*count < n)
        assert_int_equal(pthread_cond_timedwait(&o->changed, &o->mutex, &until), 0);
    pthread_mutex_unlock(&o->mutex);
}

one_process *one_start(const td_kv_wire_options *wire, int n_requests)
{
    one_process *o = calloc(1, sizeof *o);
    kv_scenario s = scenario("auto", 1, 1);
    td_kv_wire_options opt = wire ? *wire : (td_kv_wire_options){0};

    opt.stall_us = PATIENCE_US;
    s.n_requests = n_requests;
    s.min_tokens = 300;
    kv_world_init(&o->w, &s);
    o->src = kv_world_src_region(&o->w, 0);
    o->dst = kv_world_dst_region(&o->w);
    pthread_mutex_init(&o->mutex, NULL);
    pthread_cond_init(&o->changed, NULL);
    td_kv_region src = {.base = o->src, .bytes = o->w.src.region_bytes},
                 dst = {.base = o->dst, .bytes = o->w.dst.region_bytes};
    assert_int_equal(td_kv_sink_open(&opt, td_kv_wire_hash(&o->w.dst), &dst, 1, one_on_notice, o,
                                     &o->sink, NULL),
                     TD_OK);
    assert_int_equal(td_kv_source_open(&opt, &o->w.src, 0, &src, &o->source, NULL), TD_OK);
    return o;
}

void one_stop(one_process *o)
{
    td_kv_source_close(o->source);
    td_kv_sink_close(o->sink);
    free(o->src);
    free(o->dst);
    kv_world_free(&o->w);
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->mutex);
    free(o);
}

td_kv_push_params one_params(one_process *o, int i)
{
    const kv_request *q = &o->w.req[i];

    return (td_kv_push_params){
        .request = (uint64_t)i + 1,
        .n_tokens = q->n_tokens,
        .pages = q->src_pages,
        .n_pages = q->n_pages,
        .ring = q->src_ring,
        .worker_id = TD_SLICE("here"),
        .incarnation = 1,
        .descriptor = td_kv_sink_descriptor(o->sink),
        .dst_tp = 1,
        .dst_n_pages = o->w.dst.n_pages,
        .dst_n_rings = o->w.dst.n_rings,
        .dst_ring_pages = o->w.dst.ring_pages,
        .dst_extents = q->dst_extents,
        .dst_n_extents = q->n_extents,
        .dst_ring = q->dst_ring,
        .lease_deadline = TD_USEC_NEVER,
        .on_done = one_on_done,
        .user = o,
    };
}
