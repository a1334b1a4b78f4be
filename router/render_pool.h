/* render_pool: threads that turn conversations into tokens, so that a megabyte of text does not
 * hold up the loop and with it every stream. */
#ifndef TANDEM_ROUTER_RENDER_POOL_H
#define TANDEM_ROUTER_RENDER_POOL_H

#include "common/loop.h"
#include "common/status.h"
#include "router/generation.h"
#include "router/harmony_render.h"

typedef struct render_pool render_pool;

/* Embedded in what waits for it. Fill generation and done; the rest is the pool's until done(job)
 * has been called on the loop's thread, exactly once. Other work on text: fill work instead of
 * generation; it runs on a thread of the pool. */
typedef struct render_job {
    const generation *generation;
    void (*work)(struct render_job *job, const harmony *h);
    void (*done)(struct render_job *job);

    td_tokens prompt; /* out: the owner's */
    td_status status;
    td_error err;

    struct render_job *next;
    render_pool *pool;
    td_loop_task task;
} render_job;

/* Start n_threads threads. loop and h outlive the pool. TD_NOMEM: memory, or a thread. */
TD_MUST_CHECK td_status render_pool_create(td_loop *loop, const harmony *h, int32_t n_threads,
                                           render_pool **out, td_error *err);

/* Jobs not begun are dropped without a call. After the loop has stopped. NULL is fine. */
void render_pool_free(render_pool *p);

/* Loop's thread. */
void render_pool_submit(render_pool *p, render_job *job);

#endif
