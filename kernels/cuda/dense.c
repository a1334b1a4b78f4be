/* dense: which kernel takes how many rows. */
#include "kernels/cuda/dense.h"

/* Measured on one H200 (bench/ops_cuda): the small kernel is the faster up to 16 rows. */
td_status td_cuda_dense(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                        const char *step, td_error *err)
{
    return td_cuda_status(
        err, a->T <= 16 ? td_cuda_dense_small(s, kind, a) : td_cuda_dense_mid(s, kind, a), step);
}
