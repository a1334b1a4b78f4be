/* attn: the projections around attention.
 *
 * Up to TD_SMALL_STEP rows the product, its bias, the rotation and the stores are one kernel
 * (dense.h); the norm is in it too or, where the rows are many enough to be worth doing once, in
 * one before it. In a prefill cuBLASLt makes a bf16 product, and a kernel that is bound by memory
 * does the rest. Shapes whose rows do not begin at 16-byte boundaries, or are longer than those of
 * dense.h, go through gemm.h and an f32 product, at any number of rows. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kv_store.cuh"
#include "kernels/cuda/ptx.cuh"

static const int THREADS = 256;
static const int ROW_THREADS = 160; /* gpt-oss has 320 times 16 elements in a row, or half */

struct rotate_params {
    const void *qkv;   /* [T, (H + 2K) d] */
    const float *bias; /* [(H + 2K) d]; the f32 product has it already */
    const float *cos, *sin;
    const int32_t *pos, *slot;
    __nv_bfloat16 *q;
    td_kv_view kv;
    int32_t H, K, d;
};

/* f32 product; a block a token; a thread takes dimensions i and i + d/2 of a head. */
static __global__ void rotate_kernel(const __grid_constant__ rotate_params p)
{
    const int t = blockIdx.x, half = p.d / 2, heads = p.H + 2 * p.K;
    const float *row = (const float *)p.qkv + (int64_t)t * heads * p.d;
    const float *cos = p.cos + (int64_t)p.pos[t] * half, *sin = p.sin + (int64_t)p.pos[t] * half;
    const int64_t slot = p.slot[t];

    for (int n = threadIdx.x; n < heads * half; n += THREADS) {
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

            kv_store(p.kv, at + i, x);
            kv_store(p.kv, at + i + half, y);
        }
    }
}

/* Eight elements of a bf16 row, or of a vector of floats. */
static __device__ __forceinline__ void load_8(const __nv_bfloat16 *p, float (&x)[8])
{
    const uint4 v = *(const uint4 *)p;
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(w[i] << 16);
        x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}
static __device__ __forceinline__ void load_8(const float *p, float (&x)[8])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 v = ((const float4 *)p)[i];

        x[4 * i] = v.x;
        x[4 * i + 1] = v.y;
        x[4 * i + 2] = v.z;
        x[4 * i + 3] = v.w;
    }
}
static __device__ __forceinline__ uint4 pack_8(const float (&x)[8])
{
    return make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]),
                      cvt_bf16x2(x[6], x[7]));
}
static __device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d)
{
    const uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const uint32_t hi = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);

    return lo | hi << 16;
}

/* Eight elements of the cache; whole: they begin at a multiple of their size. */
static __device__ __forceinline__ void store_kv_8(const td_kv_view &kv, int64_t at,
                                                  const float (&x)[8], bool whole)
{
    if (whole && kv.elt == TD_ELT_BF16) {
        *(uint4 *)((__nv_bfloat16 *)kv.base + at) = pack_8(x);
    } else if (whole && kv.elt == TD_ELT_E4M3) {
        *(uint2 *)((uint8_t *)kv.base + at) =
            make_uint2(pack_e4m3(x[0], x[1], x[2], x[3]), pack_e4m3(x[4], x[5], x[6], x[7]));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            kv_store(kv, at + i, x[i]);
    }
}

/* bf16 product without bias, d a multiple of 16; a block a token; a thread takes eight dimensions
 * of a head and the eight half a head further on. */
static __global__ void __launch_bounds__(ROW_THREADS)
    rotate_rows_kernel(const __grid_constant__ rotate_params p, bool whole)
{
    const int t = blockIdx.x, half = p.d / 2, heads = p.H + 2 * p.K, a_head = half / 8;
    const __nv_bfloat16 *row = (const __nv_bfloat16 *)p.qkv + (int64_t)t * heads * p.d;
    const int64_t at = (int64_t)p.pos[t] * half, slot = p.slot[t];

    for (int n = threadIdx.x; n < heads * a_head; n += ROW_THREADS) {
        const int h = n / a_head, i = n % a_head * 8;
        float lo[8], hi[8], b[8];

        load_8(row + h * p.d + i, lo);
        load_8(row + h * p.d + half + i, hi);
        load_8(p.bias + h * p.d + i, b);
#pragma unroll
        for (int j = 0; j < 8; j++)
            lo[j] += b[j];
        load_8(p.bias + h * p.d + half + i, b);
#pragma unroll
        for (int j = 0; j < 8; j++)
            hi[j] += b[j];
        if (h < p.H + p.K) {
            float c[8], s[8];

            load_8(p.cos + at + i, c);
            load_8(p.sin + at + i, s);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float x = lo[j];

                lo[j] = x * c[j] - hi[j] * s[j];
                hi[j] = hi[j] * c[j] + x * s[j];
            }
        }
        if (h < p.H) {
            __nv_bfloat16 *q = p.q + ((int64_t)t * p.H + h) * p.d + i;

            *(uint4 *)q = pack_8(lo);
            *(uint4 *)(q + half) = pack_8(hi);
        } else if (slot >= 0) {
            const int kv = h - p.H, side = kv >= p.K;
            const int64_t to =
                (kv - side * p.K) * p.kv.head_stride + side * p.kv.side_stride + slot * p.d + i;

            store_kv_8(p.kv, to, lo, whole);
            store_kv_8(p.kv, to + half, hi, whole);
        }
    }
}

static __global__ void to_bf16_kernel(const float *x, int32_t n, __nv_bfloat16 *out)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        out[i] = __float2bfloat16_rn(x[i]);
}

static bool aligned_16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Rows, rotation tables and heads at 16-byte boundaries. The same for any T, or a row's bits would
 * not be. */
static bool in_whole_vectors(const td_attn_in_args *a)
{
    return td_cuda_dense_takes(a->D) && a->d % 16 == 0 && td_cuda_format(a->qkv) == CUDA_BF16 &&
           aligned_16(a->x) && aligned_16(a->q) && aligned_16(a->cos) && aligned_16(a->sin);
}

static rotate_params rotation(const td_attn_in_args *a, const void *qkv)
{
    rotate_params p = {};

    p.qkv = qkv;
    p.bias = td_cuda_vector(a->bias);
    p.cos = a->cos;
    p.sin = a->sin;
    p.pos = a->pos;
    p.slot = a->slot;
    p.q = (__nv_bfloat16 *)a->q;
    p.kv = a->kv;
    p.H = a->H;
    p.K = a->K;
    p.d = a->d;
    return p;
}

static td_status attn_in_small(td_stream *s, const td_attn_in_args *a, td_error *err)
{
    cuda_ws ws = {(char *)a->ws};
    cuda_dense_args p = {};
    void *t = td_cuda_ws_take(&ws, (size_t)a->T * (size_t)a->D * 2);
    float *scale = (float *)td_cuda_ws_take(&ws, (size_t)a->T * sizeof(float));
    td_status st = TD_OK;

    if (a->T <= TD_DENSE_FUSED) {
        p.x = (const float *)a->x;
        p.norm = td_cuda_vector(a->norm);
        p.eps = a->eps;
    }
    p.a = t;
    p.lda = a->D;
    p.T = a->T;
    p.N = (a->H + 2 * a->K) * a->d;
    p.K = a->D;
    p.w = a->qkv->mem.ptr;
    p.bias = td_cuda_vector(a->bias);
    p.split = td_cuda_dense_split(p.N, p.K);
    p.scale = scale;
    p.cos = a->cos;
    p.sin = a->sin;
    p.pos = a->pos;
    p.slot = a->slot;
    p.q = a->q;
    p.kv = a->kv;
    p.H = a->H;
    p.KV = a->K;
    p.d = a->d;
    if (p.x == NULL)
        st = td_cuda_status(err,
                            td_cuda_norm_split(s->handle, (const float *)a->x,
                                               td_cuda_vector(a->norm), a->eps, a->T, a->D, t, a->D,
                                               scale),
                            "attn_in: norm");
    return st != TD_OK ? st : td_cuda_dense(s->handle, CUDA_DENSE_QKV, &p, "attn_in", err);
}

static cuda_blas_args product_of(const td_attn_in_args *a)
{
    const int32_t N = (a->H + 2 * a->K) * a->d;
    cuda_ws ws = {(char *)a->ws};
    cuda_blas_args g = {};

    g.a = td_cuda_ws_take(&ws, (size_t)a->T * (size_t)a->D * 2);
    g.lda = a->D;
    g.M = a->T;
    g.N = N;
    g.K = a->D;
    g.w = a->qkv->mem.ptr;
    g.out = td_cuda_ws_take(&ws, (size_t)a->T * (size_t)N * 2);
    g.ldo = N;
    return g;
}

static td_status attn_in_large(td_stream *s, const td_attn_in_args *a, const cuda_blas_args *g,
                               td_error *err)
{
    const bool whole =
        aligned_16(a->kv.base) && a->kv.head_stride % 8 == 0 && a->kv.side_stride % 8 == 0;
    td_status st;

    td_cuda_rmsnorm(s->handle, (const float *)a->x, NULL, td_cuda_vector(a->norm), a->eps, a->T,
                    a->D, (void *)g->a, a->D);
    if ((st = td_cuda_launched(err, "attn_in: norm")) != TD_OK ||
        (st = td_cuda_blas(s, g, "attn_in", err)) != TD_OK)
        return st;
    rotate_rows_kernel<<<a->T, ROW_THREADS, 0, s->handle>>>(rotation(a, g->out), whole);
    return td_cuda_launched(err, "attn_in");
}

/* Any shape. */
static td_status attn_in_plain(td_stream *s, const td_attn_in_args *a, td_error *err)
{
    const int32_t N = (a->H + 2 * a->K) * a->d;
    const int64_t ldt = td_cuda_ws_pitch(a->D);
    cuda_ws ws = {(char *)a->ws};
    cuda_gemm_args g = {};
    void *t = td_cuda_ws_take(&ws, (size_t)a->T * (size_t)ldt * 2);
    float *qkv = (float *)td_cuda_ws_take(&ws, (size_t)a->T * (size_t)N * sizeof(float));
    td_status st;

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
    rotate_kernel<<<a->T, THREADS, 0, s->handle>>>(rotation(a, qkv));
    return td_cuda_launched(err, "attn_in");
}

td_status td_cuda_attn_in(td_stream *s, const td_attn_in_args *a, td_error *err)
{
    const int32_t N = (a->H + 2 * a->K) * a->d;
    td_status st;

    if ((st = td_cuda_check_heads("attn_in", a->H, a->K, a->d, err)) != TD_OK ||
        (st = td_cuda_check_vector("attn_in", "norm", a->norm, a->D, err)) != TD_OK ||
        (st = td_cuda_check_matrix("attn_in", "qkv", a->qkv, 1, N, a->D, err)) != TD_OK ||
        (st = td_cuda_check_vector("attn_in", "bias", a->bias, N, err)) != TD_OK)
        return st;
    if (a->T == 0)
        return TD_OK;
    if (!in_whole_vectors(a))
        return attn_in_plain(s, a, err);
    if (a->T <= TD_SMALL_STEP)
        return attn_in_small(s, a, err);
    const cuda_blas_args g = product_of(a);
    return td_cuda_blas_takes(&g) ? attn_in_large(s, a, &g, err) : attn_in_plain(s, a, err);
}

static td_status attn_out_small(td_stream *s, const td_attn_out_args *a, td_error *err)
{
    cuda_dense_args p = {};

    p.a = a->o;
    p.lda = a->Hd;
    p.T = a->T;
    p.N = a->D;
    p.K = a->Hd;
    p.w = a->w->mem.ptr;
    p.bias = td_cuda_vector(a->bias);
    p.split = td_cuda_dense_split(p.N, p.K);
    p.out = a->out;
    p.ldo = a->D;
    p.sum = (float *)a->x;
    return td_cuda_dense(s->handle, CUDA_DENSE_OUT, &p, "attn_out", err);
}

/* cuBLASLt wants the bias in the result's type. Sums are f32 and their bias too; a result by itself
 * is bf16, as checkpoints have the bias. */
static td_status attn_out_large(td_stream *s, const td_attn_out_args *a, cuda_blas_args *g,
                                td_error *err)
{
    cuda_ws ws = {(char *)a->ws};
    td_status st = TD_OK;

    if (a->x != NULL) {
        g->bias = a->bias != NULL ? td_cuda_vector(a->bias) : NULL;
        g->out = a->x;
        g->sum = true;
        return td_cuda_blas(s, g, "attn_out", err);
    }
    if (a->bias != NULL) {
        __nv_bfloat16 *bias = (__nv_bfloat16 *)td_cuda_ws_take(&ws, (size_t)a->D * 2);

        to_bf16_kernel<<<(a->D + THREADS - 1) / THREADS, THREADS, 0, s->handle>>>(
            td_cuda_vector(a->bias), a->D, bias);
        st = td_cuda_launched(err, "attn_out: bias");
        g->bias = bias;
    }
    return st != TD_OK ? st : td_cuda_blas(s, g, "attn_out", err);
}

td_status td_cuda_add_part(td_stream *s, size_t n, const void *part, void *x, td_error *err)
{
    if (x == NULL)
        return TD_OK;
    td_add_args a = {};

    a.n = n;
    a.n_parts = 1;
    a.part = &part;
    a.x = x;
    return td_cuda_add(s, &a, err);
}

td_status td_cuda_attn_out(td_stream *s, const td_attn_out_args *a, td_error *err)
{
    cuda_gemm_args g = {};
    cuda_blas_args b = {};
    td_status st = td_cuda_check_matrix("attn_out", "w", a->w, 1, a->D, a->Hd, err);

    if (st != TD_OK ||
        (a->bias != NULL && (st = td_cuda_check_vector("attn_out", "bias", a->bias, a->D, err))))
        return st;
    if (a->T == 0)
        return TD_OK;
    if (a->T <= TD_SMALL_STEP && td_cuda_dense_takes(a->Hd) && td_cuda_format(a->w) == CUDA_BF16 &&
        aligned_16(a->o))
        return attn_out_small(s, a, err);
    b.a = a->o;
    b.lda = a->Hd;
    b.M = a->T;
    b.N = a->D;
    b.K = a->Hd;
    b.w = a->w->mem.ptr;
    b.out = a->out;
    b.ldo = a->D;
    if (a->T > TD_SMALL_STEP && td_cuda_format(a->w) == CUDA_BF16 && td_cuda_blas_takes(&b) &&
        aligned_16(a->x))
        return attn_out_large(s, a, &b, err);
    g.a = (const uint16_t *)a->o;
    g.lda = a->Hd;
    g.M = a->T;
    g.w = a->w;
    g.bias = td_cuda_vector(a->bias);
    g.out = a->out;
    g.ldo = a->D;
    if ((st = td_cuda_gemm(s->handle, CUDA_OUT_BF16, &g, "attn_out", err)) != TD_OK)
        return st;
    return td_cuda_add_part(s, (size_t)a->T * (size_t)a->D, a->out, a->x, err);
}
