/* kv_store: an element on its way into the cache. */
#ifndef TANDEM_KERNELS_CUDA_KV_STORE_CUH
#define TANDEM_KERNELS_CUDA_KV_STORE_CUH

#include "kernels/cuda/backend.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

/* e4m3: to nearest, beyond 448 the largest; a NaN stays one. */
__device__ __forceinline__ void kv_store(const td_kv_view &kv, int64_t at, float x)
{
    switch (kv.elt) {
    case TD_ELT_BF16: ((__nv_bfloat16 *)kv.base)[at] = __float2bfloat16_rn(x); break;
    case TD_ELT_E4M3:
        ((__nv_fp8_storage_t *)kv.base)[at] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
        break;
    default: ((float *)kv.base)[at] = x;
    }
}

#endif
