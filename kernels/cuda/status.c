/* status: CUDA's codes as ours, and what a step checks before it enqueues anything. */
#include "kernels/cuda/backend.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "common/log.h"

td_status td_cuda_status(td_error *err, cudaError_t e, const char *what)
{
    td_status st = TD_DEVICE;

    if (e == cudaSuccess)
        return TD_OK;
    if (e == cudaErrorMemoryAllocation)
        st = TD_NOMEM;
    else if (e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver)
        st = TD_UNAVAILABLE;
    (void)cudaGetLastError(); /* or the next launch would report it again */
    return td_fail(err, st, "cuda: %s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

td_status td_cuda_launched(td_error *err, const char *step)
{
    return td_cuda_status(err, cudaGetLastError(), step);
}

void td_cuda_ignore(cudaError_t e, const char *what)
{
    static _Atomic bool told; /* a device that is lost fails every call from then on */

    if (e == cudaSuccess)
        return;
    (void)cudaGetLastError();
    if (!atomic_exchange(&told, true))
        td_warn("cuda_teardown_failed", "call=%s error=%s", what, cudaGetErrorName(e));
}

td_status td_cuda_check_matrix(const char *step, const char *name, const td_matrix *m, int32_t E,
                               int32_t N, int32_t K, td_error *err)
{
    cuda_encoding f = td_cuda_format(m);

    if (m->E != E || m->N != N || m->K != K)
        return td_fail(err, TD_INVALID, "%s: %s is [%d][%d, %d], wanted [%d][%d, %d]", step, name,
                       m->E, m->N, m->K, E, N, K);
    if (f == CUDA_F32)
        return td_fail(err, TD_INVALID, "%s: %s is not a matrix", step, name);
    return TD_OK;
}

td_status td_cuda_check_vector(const char *step, const char *name, const td_matrix *m, int32_t N,
                               td_error *err)
{
    if (m->form != TD_FORM_VECTOR || m->N != N)
        return td_fail(err, TD_INVALID, "%s: %s is [%d], wanted a vector [%d]", step, name, m->N,
                       N);
    return TD_OK;
}

td_status td_cuda_check_experts(const td_experts_args *a, td_error *err)
{
    td_status st;

    if ((st = td_cuda_check_matrix("experts", "gate_up", a->gate_up, a->E, 2 * a->I, a->D, err)) ||
        (st = td_cuda_check_vector("experts", "gate_up_bias", a->gate_up_bias, a->E * 2 * a->I,
                                   err)) ||
        (st = td_cuda_check_matrix("experts", "down", a->down, a->E, a->D, a->I, err)) ||
        (a->down_bias != NULL &&
         (st = td_cuda_check_vector("experts", "down_bias", a->down_bias, a->E * a->D, err))))
        return st;
    return TD_OK;
}

td_status td_cuda_check_heads(const char *step, int32_t H, int32_t K, int32_t d, td_error *err)
{
    if (d < 2 || d > 1024 || d % 2 != 0 || K < 1 || H < K || H % K != 0)
        return td_fail(err, TD_INVALID,
                       "%s: %d query heads over %d kv heads of %d; wanted whole groups and an even "
                       "head size up to 1024",
                       step, H, K, d);
    return TD_OK;
}
