/* dense: which kernel takes how many rows. */
#include "kernels/cuda/dense.h"

/* Measured: the small kernel is the faster as long as it takes the rows at all. */
td_status td_cuda_dense(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                        const char *step, td_error *err)
{
    return a->T <= TD_DENSE_FEW ? td_cuda_dense_small(s, kind, a, step, err)
                                : td_cuda_dense_mid(s, kind, a, step, err);
}
