/* attn_plain: attention of any head size and cache type, for models that no tensor-core kernel is
 * made for. One warp a query head, key by key: right, and slow. */
#include "kernels/cuda/backend.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <math.h>

struct plain_params {
    const __nv_bfloat16 *q;
    __nv_bfloat16 *out;
    const void *kv;
    int64_t head_stride, side_stride;
    td_elt elt;
    const int32_t *len, *table; /* len: decode; NULL: prefill */
    const float *sinks;
    int32_t H, G, d, window, wrap, table_stride, pos0;
    float scale;
};

static __device__ __forceinline__ float element(const plain_params &p, int64_t at)
{
    if (p.elt == TD_ELT_F32)
        return ((const float *)p.kv)[at];
    if (p.elt == TD_ELT_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)p.kv)[at]);
    return float(((const __nv_fp8_e4m3 *)p.kv)[at]);
}

/* N: dimensions a lane, lane, lane + 32, ... */
template <int N> static __global__ void __launch_bounds__(32) plain_kernel(const plain_params p)
{
    const int lane = threadIdx.x, t = blockIdx.x, h = blockIdx.y;
    const int pos = p.len != NULL ? p.len[t] - 1 : p.pos0 + t;
    const int lo = p.window > 0 ? max(pos - p.window + 1, 0) : 0;
    const int32_t *table = p.table + (int64_t)t * p.table_stride;
    const int64_t head = h / p.G * p.head_stride, row = ((int64_t)t * p.H + h) * p.d;
    float q[N], o[N] = {}, m = p.sinks[h], l = 1.0f; /* the sink: a first key without a value */

#pragma unroll
    for (int i = 0; i < N; i++)
        q[i] = lane + i * 32 < p.d ? __bfloat162float(p.q[row + lane + i * 32]) : 0.0f;
    if (m == -INFINITY)
        l = 0.0f;
    for (int j = lo; j <= pos; j++) {
        const int64_t slot = (int64_t)table[j / TD_KV_PAGE % p.wrap] * TD_KV_PAGE + j % TD_KV_PAGE;
        const int64_t at = head + slot * p.d + lane;
        float s = 0.0f;

#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + i * 32 < p.d)
                s += q[i] * element(p, at + i * 32);
        for (int x = 16; x > 0; x /= 2)
            s += __shfl_xor_sync(~0u, s, x);
        s *= p.scale;

        const float top = fmaxf(m, s);
        const float before = m == top ? 1.0f : expf(m - top), w = expf(s - top);
        m = top;
        l = l * before + w;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + i * 32 < p.d)
                o[i] = o[i] * before + w * element(p, at + p.side_stride + i * 32);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * 32 < p.d)
            p.out[row + lane + i * 32] =
                __float2bfloat16_rn(pos < 0 ? 0.0f : o[i] / l); /* padding */
}

td_status td_cuda_attn_plain(cudaStream_t s, int32_t T, int32_t H, int32_t K, int32_t d,
                             int32_t window, int32_t wrap, int32_t table_stride, int32_t pos0,
                             float scale, const int32_t *len, const int32_t *table,
                             const td_kv_view *kv, const float *sinks, const void *q, void *out,
                             td_error *err)
{
    const plain_params p = {(const __nv_bfloat16 *)q,
                            (__nv_bfloat16 *)out,
                            kv->base,
                            kv->head_stride,
                            kv->side_stride,
                            kv->elt,
                            len,
                            table,
                            sinks,
                            H,
                            H / K,
                            d,
                            window,
                            wrap,
                            table_stride,
                            pos0,
                            scale};
    const dim3 grid((unsigned)T, (unsigned)H); /* y ends at 65535, which a chunk may pass */

    if (d <= 64)
        plain_kernel<2><<<grid, 32, 0, s>>>(p);
    else if (d <= 128)
        plain_kernel<4><<<grid, 32, 0, s>>>(p);
    else
        plain_kernel<32><<<grid, 32, 0, s>>>(p);
    return td_cuda_launched(err, "attention of any shape");
}
