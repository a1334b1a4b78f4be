/* blas: large dense products by cuBLASLt, at about 790 TFLOP/s where mma.sync gives 315.
 *
 * For steps of more than TD_SMALL_STEP rows. Without the library's header at build time nothing is
 * taken, and the GEMM of gemm.h does all. The library itself (0.5 GB of file, 150 MB resident) is
 * loaded when the first device is opened: a worker on the CPU needs none. */
#ifndef TANDEM_KERNELS_CUDA_BLAS_H
#define TANDEM_KERNELS_CUDA_BLAS_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_blas cuda_blas; /* a handle and its plans; one a device, made at first use */

/* out [M, N] = a [M, K] w [N, K]^T + bias, bf16 with f32 sums. */
typedef struct cuda_blas_args {
    const void *a; /* rows lda apart */
    int64_t lda;
    int32_t M, N, K;
    const void *w;    /* rows td_cuda_pitch(K) apart */
    const void *bias; /* [N] bf16, for a sum f32, or NULL */
    void *out;        /* rows ldo apart */
    int64_t ldo;
    bool sum; /* out is f32, and the product is added to it */
} cuda_blas_args;

#ifdef TANDEM_HAS_CUBLASLT

/* Load the library, once in a process; any thread. TD_IO: it is not on this machine; the text says
 * what to do. Before any of the functions below. */
TD_MUST_CHECK td_status td_cuda_blas_ready(td_error *err);
/* The first of these files that can be loaded (tests). */
TD_MUST_CHECK td_status td_cuda_blas_load(const char *const *names, int n, td_error *err);

/* Rows and pointers at 16-byte boundaries. */
bool td_cuda_blas_takes(const cuda_blas_args *a);

/* Enqueues. One algorithm for each 128 rows of M, found when first needed (some 100 us of host
 * time): the same shape gives the same bits in every run. None cuts K among blocks, so a row
 * depends on no other and no workspace is needed. */
TD_MUST_CHECK td_status td_cuda_blas(td_stream *s, const cuda_blas_args *a, const char *step,
                                     td_error *err);
void td_cuda_blas_close(cuda_blas *b); /* NULL is fine */

#else

static inline td_status td_cuda_blas_ready(td_error *err)
{
    (void)err;
    return TD_OK;
}
static inline bool td_cuda_blas_takes(const cuda_blas_args *a)
{
    (void)a;
    return false;
}
static inline td_status td_cuda_blas(td_stream *s, const cuda_blas_args *a, const char *step,
                                     td_error *err)
{
    (void)s;
    (void)a;
    return td_fail(err, TD_INVALID, "%s: built without cuBLASLt", step);
}
static inline void td_cuda_blas_close(cuda_blas *b)
{
    (void)b;
}

#endif
#ifdef __cplusplus
}
#endif
#endif
