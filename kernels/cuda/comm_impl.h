/* comm_impl: what comm_host.c and comm_open.c share; nobody else includes it. */
#ifndef TANDEM_KERNELS_CUDA_COMM_IMPL_H
#define TANDEM_KERNELS_CUDA_COMM_IMPL_H

#include "common/comm.h"
#include "kernels/cuda/comm.h"

typedef struct comm_cuda {
    td_comm base;
    int32_t n;
    size_t max_elements;
    uint32_t timeout_ms;
    cuda_comm_tuning t;
    int32_t index[TD_COMM_RANKS];
    void *arena[TD_COMM_RANKS];
    cuda_comm_view view[TD_COMM_RANKS];
    size_t flags_at, cleared; /* in an arena: what a reset zeroes begins there, and its bytes */
    /* Mapped host memory. abort: set by any thread or device, cleared by reset() alone. */
    unsigned int *abort;
    cuda_comm_report *report; /* [n] */
    td_error broken;          /* a reset that failed: said by every later call */
} comm_cuda;

typedef void (*cuda_comm_launcher)(cudaStream_t s, const cuda_comm_view *v,
                                   const cuda_comm_reduce *r);

/* Makes a device current. */
TD_MUST_CHECK td_status td_cuda_comm_use(int32_t index, td_error *err);

/* Everything that a call leaves behind, back to how it was at open, once all devices are idle. */
TD_MUST_CHECK td_status td_cuda_comm_clear(comm_cuda *c, td_error *err);

/* Size of an arena, and where things lie in it: into c and v. */
size_t td_cuda_comm_place(comm_cuda *c, cuda_comm_view *v);

/* Peer access, arenas and a trial of every way. What was made before a failure is in c. */
TD_MUST_CHECK td_status td_cuda_comm_set_up(comm_cuda *c, td_dev *const *dev, td_error *err);

#endif
