/* comm: what ranks do together. Every rank calls the same functions in the same order.
 *
 * The sum over ranks is always taken in rank order, so that every rank gets the same bits and the
 * activations, which are replicated, stay equal on all of them: each rank chooses experts for
 * itself.
 *
 * A rank that fails calls td_comm_abort(): whoever waits for it then returns TD_CANCELED, and so
 * does every later call until td_comm_reset(). Nobody hangs on a rank that will not come. */
#ifndef TANDEM_COMMON_COMM_H
#define TANDEM_COMMON_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/ops.h"

typedef struct td_comm td_comm;

typedef struct td_comm_impl {
    td_status (*reduce_add)(td_comm *c, int32_t rank, td_stream *s, const void *part, size_t n,
                            bool clear, void *x, td_error *err);
    void (*abort)(td_comm *c);
    void (*reset)(td_comm *c);
    void (*close)(td_comm *c);
} td_comm_impl;

struct td_comm { /* the head of every implementation's struct */
    const td_comm_impl *impl;
};

/* x += sum over ranks of part (x = the sum, if clear), n elements, in stream order.
 * When it returns, other ranks may still be reading part: they are done when the *next* reduce_add
 * returns. So callers alternate between two buffers for part. */
TD_MUST_CHECK static inline td_status td_comm_reduce_add(td_comm *c, int32_t rank, td_stream *s,
                                                         const void *part, size_t n, bool clear,
                                                         void *x, td_error *err)
{
    return c->impl->reduce_add(c, rank, s, part, n, clear, x, err);
}

/* From any thread. */
static inline void td_comm_abort(td_comm *c)
{
    c->impl->abort(c);
}

/* After an abort, when no rank is in a call: ready again. */
static inline void td_comm_reset(td_comm *c)
{
    c->impl->reset(c);
}

static inline void td_comm_close(td_comm *c)
{
    if (c != NULL)
        c->impl->close(c);
}

/* Ranks are threads of this process and can read each other's memory (CPU). */
TD_MUST_CHECK td_status td_comm_threads_open(const td_ops *ops, int32_t n, td_comm **out,
                                             td_error *err);

#endif
