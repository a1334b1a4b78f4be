/* router_large: logits and choice of steps of many rows; see router_large.cu. */
#ifndef TANDEM_KERNELS_CUDA_ROUTER_LARGE_H
#define TANDEM_KERNELS_CUDA_ROUTER_LARGE_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether td_cuda_router_large() takes this shape; the same for every T. */
bool td_cuda_router_large_fits(const td_router_args *a);

/* All after the norm, which the launch just before this one leaves in a->t. Needs no workspace. */
td_status td_cuda_router_large(td_stream *s, const td_router_args *a, td_error *err);

#ifdef __cplusplus
}
#endif
#endif
