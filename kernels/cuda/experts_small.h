/* experts_small: experts as MXFP4 in steps of few tokens; see experts_small.cu. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_SMALL_H
#define TANDEM_KERNELS_CUDA_EXPERTS_SMALL_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether td_cuda_experts_small() takes these weights; the same for every T up to TD_SMALL_STEP. */
bool td_cuda_experts_small_fits(const td_dev *dev, const td_experts_args *a);

/* The whole step. act [T * k, pitch(I)] bf16 and y [T * k, D] f32 are workspace. */
td_status td_cuda_experts_small(td_stream *s, const td_experts_args *a, void *act, float *y,
                                td_error *err);

#ifdef __cplusplus
}
#endif
#endif
