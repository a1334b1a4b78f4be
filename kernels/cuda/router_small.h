/* router_small: the router of decode steps; see router_small.cu. */
#ifndef TANDEM_KERNELS_CUDA_ROUTER_SMALL_H
#define TANDEM_KERNELS_CUDA_ROUTER_SMALL_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether td_cuda_router_small() takes this shape; the same for every T up to TD_SMALL_STEP. */
bool td_cuda_router_small_fits(const td_router_args *a);

/* The whole step. */
td_status td_cuda_router_small(td_stream *s, const td_router_args *a, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
