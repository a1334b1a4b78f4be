/* attn: the projections around attention. The rotation reads the product in f32 from the workspace,
 * so that q, k and v are rounded once; in a long prefill that costs a quarter of the product's
 * time, and belongs into its epilogue. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/gemm.h"

#include <cuda_bf16.h>

struct rotate_params {
    const float *qkv; /* [T, (H + 2K) d] */
    const float *cos, *sin;
    const int32_t *pos, *slot;
    __nv_bfloat16 *q;
    td_kv_view kv;
    int32_t H, K, d;
};

static __device__ __forceinline__ void store_kv(const td_kv_view &kv, int64_t at, float x)
{
    if (kv.elt == TD_ELT_BF16)
        ((__nv_bfloat16 *)kv.base)[at] = __float2bfloat16_rn(x);
    else
        ((float *)kv.base)[at] = x;
}

/* A block a token; a thread takes dimensions i and i + d/2 of a head. */
static __global__ void rotate_kernel(const __grid_constant__ rotate_params p)
{
    const int t = blockIdx.x, half = p.d / 2, heads = p.H + 2 * p.K;
    const float *row = p.qkv + (int64_t)t * heads * p.d;
    const float *cos = p.cos + (int64_t)p.pos[t] * half, *sin = p.sin + (int64_t)p.pos[t] * half;
    const int64_t slot = p.slot[t];

    for (int n = threadIdx.x; n < heads * half; n += blockDim.x) {
        const int h = n / half, i = n % half;
        const float lo = row[h * p.d + i], hi = row[h * p.d + i + half];
        float x = lo, y = hi;

        if (h < p.H + p.K) {
            x = lo * cos[i] - hi * sin[i];
            y = hi * cos[i] + lo * sin[i];
        }
        if (h < p.H) {
            __nv_bfloat16 *q = p.q + ((int64_t)t * p.H + h) * p.d;

            q[i] = __float2bfloat16_rn(x);
            q[i + half] = __float2bfloat16_rn(y);
        } else if (slot >= 0) {
            const int kv = h - p.H, side = kv >= p.K;
            const int64_t at =
                (kv - side * p.K) * p.kv.head_stride + side * p.kv.side_stride + slot * p.d;

            store_kv(p.kv, at + i, x);
            store_kv(p.kv, at + i + half, y);
        }
    }
}

td_status td_cuda_attn_in(td_stream *s, const td_attn_in_args *a, td_error *err)
{
    const int32_t N = (a->H + 2 * a->K) * a->d;
    const int64_t ldt = td_cuda_ws_pitch(a->D);
    cuda_ws ws = {(char *)a->ws};
    cuda_gemm_args g = {};
    td_status st;

    if ((st = td_cuda_check_heads("attn_in", a->H, a->K, a->d, err)) != TD_OK ||
        (st = td_cuda_check_vector("attn_in", "norm", a->norm, a->D, err)) != TD_OK ||
        (st = td_cuda_check_matrix("attn_in", "qkv", a->qkv, 1, N, a->D, err)) != TD_OK ||
        (st = td_cuda_check_vector("attn_in", "bias", a->bias, N, err)) != TD_OK)
        return st;
    if (a->T == 0)
        return TD_OK;
    void *t = td_cuda_ws_take(&ws, (size_t)a->T * (size_t)ldt * 2);
    float *qkv = (float *)td_cuda_ws_take(&ws, (size_t)a->T * (size_t)N * sizeof(float));

    td_cuda_rmsnorm(s->handle, (const float *)a->x, NULL, td_cuda_vector(a->norm), a->eps, a->T,
                    a->D, t, ldt);
    g.a = (const uint16_t *)t;
    g.lda = ldt;
    g.M = a->T;
    g.w = a->qkv;
    g.bias = td_cuda_vector(a->bias);
    g.out = qkv;
    g.ldo = N;
    if ((st = td_cuda_gemm(s->handle, CUDA_OUT_F32, &g, "attn_in", err)) != TD_OK)
        return st;
    const rotate_params p = {qkv,   a->cos, a->sin, a->pos, a->slot, (__nv_bfloat16 *)a->q,
                             a->kv, a->H,   a->K,   a->d};
    rotate_kernel<<<a->T, 256, 0, s->handle>>>(p);
    return td_cuda_launched(err, "attn_in");
}

td_status td_cuda_attn_out(td_stream *s, const td_attn_out_args *a, td_error *err)
{
    cuda_gemm_args g = {};
    td_status st = td_cuda_check_matrix("attn_out", "w", a->w, 1, a->D, a->Hd, err);

    if (st != TD_OK ||
        (a->bias != NULL && (st = td_cuda_check_vector("attn_out", "bias", a->bias, a->D, err))))
        return st;
    g.a = (const uint16_t *)a->o;
    g.lda = a->Hd;
    g.M = a->T;
    g.w = a->w;
    g.bias = td_cuda_vector(a->bias);
    g.out = a->out;
    g.ldo = a->D;
    return td_cuda_gemm(s->handle, CUDA_OUT_BF16, &g, "attn_out", err);
}
