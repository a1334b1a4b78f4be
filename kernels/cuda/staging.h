/* staging: how weights travel from host memory to a device.
 *
 * Rows are gathered into pinned buffers by several threads (one thread reads a mapped file at a
 * fraction of what the bus takes) and copied from there in stream order; what must be rearranged is
 * copied into a buffer on the device first, from which a kernel writes it in its place. Buffers are
 * used in turn, so that gathering, copying and rearranging overlap. Everything is made at the first
 * load and given back by td_cuda_staging_close(). Only the device's own thread calls these. */
#ifndef TANDEM_KERNELS_CUDA_STAGING_H
#define TANDEM_KERNELS_CUDA_STAGING_H

#include "kernels/cuda/backend.h"

typedef struct cuda_stage {
    char *pinned;                      /* [TD_CUDA_STAGING] */
    td_buffer raw;                     /* [TD_CUDA_STAGING] on the device, if asked for */
    cudaEvent_t begun, copied, placed; /* in the stream; placed: both buffers are free again */
    bool pending;                      /* the events' times have not been counted */
} cuda_stage;

/* Buffers and threads, if there are none yet; td_cuda_stage_take() does it too. */
TD_MUST_CHECK td_status td_cuda_staging_open(td_dev *dev, td_error *err);

/* The next buffer, once what went through it last has arrived. raw: with memory on the device. */
TD_MUST_CHECK td_status td_cuda_stage_take(td_dev *dev, bool raw, cuda_stage **out, td_error *err);

/* `rows` runs of `width` bytes, `stride` bytes apart, as one run at dst. */
void td_cuda_gather(td_dev *dev, char *dst, size_t width, const char *src, int64_t stride,
                    int32_t rows);

/* Enqueue the copy of what was gathered: `rows` rows of `width` bytes to dst, `pitch` bytes apart.
 */
TD_MUST_CHECK td_status td_cuda_stage_copy(td_dev *dev, cuda_stage *b, void *dst, size_t pitch,
                                           size_t width, int32_t rows, td_error *err);

/* The last use of the buffer has been enqueued. */
TD_MUST_CHECK td_status td_cuda_stage_give(td_dev *dev, cuda_stage *b, td_error *err);

/* n items on the staging threads, for what else must look at all weights; ctx is the job's. */
void td_cuda_staging_run(td_dev *dev, int32_t n, int64_t bytes,
                         void (*job)(void *ctx, int32_t item, int32_t thread), void *ctx);

#endif
