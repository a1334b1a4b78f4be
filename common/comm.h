/* comm: what ranks do together. Every rank calls the same functions in the same order, with the
 * same sizes.
 *
 * The sum over ranks is always taken in rank order, so that every rank gets the same bits and the
 * activations, which are replicated, stay equal on all of them: each rank chooses experts for
 * itself.
 *
 * Calls enqueue on the rank's stream, like the steps of kernels/ops.h: no memory is allocated, the
 * host waits for nothing, and a graph can capture them (each rank its own; ranks replay graphs of
 * the same collectives in the same order). On the CPU a call has run when it returns.
 *
 * A rank that fails calls td_comm_abort(): whoever waits for it then gives up, and every later call
 * returns TD_CANCELED until td_comm_reset(). Nobody hangs on a rank that will not come: on a device
 * a wait has a limit, after which the whole comm is aborted. What was enqueued cannot say so when
 * it was called, so a step ends with td_comm_check(). */
#ifndef TANDEM_COMMON_COMM_H
#define TANDEM_COMMON_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/ops.h"

typedef struct td_comm_impl {
    td_status (*reduce_add)(td_comm *c, int32_t rank, td_stream *s, const void *part, size_t n,
                            bool clear, void *x, td_error *err);
    td_status (*gather)(td_comm *c, int32_t rank, td_stream *s, const td_gather_args *a,
                        td_error *err);
    td_status (*check)(td_comm *c, int32_t rank, td_error *err);
    void (*abort)(td_comm *c);
    void (*reset)(td_comm *c);
    void (*close)(td_comm *c);
} td_comm_impl;

struct td_comm { /* the head of every implementation's struct */
    const td_comm_impl *impl;
};

/* Collectives for o->n ranks of a backend: its own (td_ops.comm_open), or those of threads below.
 * *out is the caller's, to td_comm_close(). TD_INVALID, TD_NOMEM, TD_DEVICE, as the backend says.
 */
TD_MUST_CHECK td_status td_comm_open(const td_ops *ops, const td_comm_options *o, td_comm **out,
                                     td_error *err);

/* x += sum over ranks of part (x = the sum, if clear), n elements, in stream order. The parts are
 * added up in f32; a backend whose activations are bf16 then rounds the sum to bf16, as one rank's
 * own part would have been.
 *
 * Other ranks may still be reading part after the call (CPU: when it has returned): they are done
 * when the *next* reduce_add is through. So callers alternate between two buffers for part. */
TD_MUST_CHECK static inline td_status td_comm_reduce_add(td_comm *c, int32_t rank, td_stream *s,
                                                         const void *part, size_t n, bool clear,
                                                         void *x, td_error *err)
{
    return c->impl->reduce_add(c, rank, s, part, n, clear, x, err);
}

/* Every rank's columns into rank 0's matrix: out[r, first_col + j] = part[r, j]. `out` is rank 0's
 * memory and the same pointer on every rank; it is written from when rank 0's stream has come to
 * the call, and whole when rank 0's stream is past it. */
TD_MUST_CHECK static inline td_status td_comm_gather(td_comm *c, int32_t rank, td_stream *s,
                                                     const float *part, int32_t rows,
                                                     int32_t cols_of_rank, int32_t first_col,
                                                     int32_t total_cols, float *out, td_error *err)
{
    return c->impl->gather(c, rank, s,
                           &(td_gather_args){.rows = rows,
                                             .cols = cols_of_rank,
                                             .first_col = first_col,
                                             .total_cols = total_cols,
                                             .part = part,
                                             .out = out},
                           err);
}

/* How the collectives of this rank ended, once its stream has been synced: before anything that
 * they wrote is used. TD_DEVICE: a rank did not come in time; the text names it. TD_CANCELED: the
 * comm was aborted. A read of host memory, so it may be called in every step. */
TD_MUST_CHECK static inline td_status td_comm_check(td_comm *c, int32_t rank, td_error *err)
{
    return c->impl->check(c, rank, err);
}

/* From any thread. */
static inline void td_comm_abort(td_comm *c)
{
    c->impl->abort(c);
}

/* After an abort, when no rank is in a call: ready again. Waits for what the ranks have enqueued,
 * which an abort lets run out. */
static inline void td_comm_reset(td_comm *c)
{
    c->impl->reset(c);
}

/* NULL is fine. Nothing may be enqueued any more; the devices themselves may be closed already. */
static inline void td_comm_close(td_comm *c)
{
    if (c != NULL)
        c->impl->close(c);
}

/* What every implementation refuses in a gather. */
TD_MUST_CHECK static inline td_status td_gather_check(int32_t rank, const td_gather_args *a,
                                                      td_error *err)
{
    if (a->rows < 0 || a->cols < 0 || a->first_col < 0 || a->cols > a->total_cols - a->first_col)
        return td_fail(err, TD_INVALID,
                       "gather: rank %d has %d rows of columns %d to %d; the matrix has %d", rank,
                       a->rows, a->first_col, a->first_col + a->cols - 1, a->total_cols);
    return TD_OK;
}

/* Ranks are threads of this process and can read each other's memory: for backends without
 * td_ops.comm_open. TD_NOMEM. */
TD_MUST_CHECK td_status td_comm_threads_open(const td_ops *ops, int32_t n, td_comm **out,
                                             td_error *err);

#endif
