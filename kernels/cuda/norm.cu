/* norm: the steps around the layers: embedding, sum over ranks, norm, head.
 *
 * All but the head's product move each element once: a block a row, threads along it. They are
 * bound by memory in a long prefill and by their launch in decode. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ptx.cuh"

#include <cuda_bf16.h>

static const int THREADS = 256;

template <class Elt>
static __global__ void embed_kernel(const int32_t *tokens, const Elt *table, int32_t first,
                                    int32_t n, int32_t D, __nv_bfloat16 *out)
{
    const int64_t row = (int64_t)tokens[blockIdx.x] - first;
    const bool mine = row >= 0 && row < n;

    out += (int64_t)blockIdx.x * D;
    for (int i = threadIdx.x; i < D; i += THREADS)
        out[i] = mine ? (__nv_bfloat16)table[row * D + i] : (__nv_bfloat16)0.0f;
}

struct parts {
    const __nv_bfloat16 *p[16];
};

static __global__ void add_kernel(size_t n, parts part, int n_parts, bool clear, float *x)
{
    const size_t step = (size_t)gridDim.x * THREADS;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float sum = 0.0f;

        for (int r = 0; r < n_parts; r++)
            sum += __bfloat162float(part.p[r][i]);
        x[i] = clear ? sum : x[i] + sum;
    }
}

/* The same for one part, four elements a thread: what one rank alone does in every half layer. */
static __global__ void add_one_kernel(size_t n4, const uint2 *part, bool clear, float4 *x)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float4 v = make_float4(0, 0, 0, 0);

    if (i >= n4)
        return;
    const uint2 p = part[i];
    if (!clear)
        v = x[i];
    v.x += __uint_as_float(p.x << 16);
    v.y += __uint_as_float(p.x & 0xffff0000u);
    v.z += __uint_as_float(p.y << 16);
    v.w += __uint_as_float(p.y & 0xffff0000u);
    x[i] = v;
}

/* Every thread gets the same sum over the block, added in the same order. */
static __device__ __forceinline__ float block_sum(float x, float *partial)
{
    float sum = 0.0f;

    for (int o = 16; o > 0; o /= 2)
        x += __shfl_xor_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++)
        sum += partial[w];
    return sum;
}

static __global__ void rmsnorm_kernel(const float *x, const int32_t *row, const float *g, float eps,
                                      int32_t D, __nv_bfloat16 *t, int64_t ldt)
{
    __shared__ float partial[THREADS / 32];
    const float *in = x + (row != NULL ? (int64_t)row[blockIdx.x] : (int64_t)blockIdx.x) * D;
    float sum = 0.0f;

    for (int i = threadIdx.x; i < D; i += THREADS)
        sum += in[i] * in[i];
    const float r = 1.0f / sqrtf(block_sum(sum, partial) / (float)D + eps);
    t += (int64_t)blockIdx.x * ldt;
    for (int i = threadIdx.x; i < D; i += THREADS)
        t[i] = __float2bfloat16_rn(in[i] * r * g[i]);
}

/* The same for rows of whole float4, N a thread, read once. */
template <int N>
static __global__ void __launch_bounds__(THREADS)
    rmsnorm_4_kernel(const float *x, const int32_t *row, const float *g, float eps, int32_t D,
                     __nv_bfloat16 *t, int64_t ldt)
{
    __shared__ float partial[THREADS / 32];
    const float4 *in =
        (const float4 *)(x + (row != NULL ? (int64_t)row[blockIdx.x] : (int64_t)blockIdx.x) * D);
    float4 v[N];
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = threadIdx.x + j * THREADS;

        v[j] = i < D / 4 ? in[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
    const float r = 1.0f / sqrtf(block_sum(sum, partial) / (float)D + eps);
    uint2 *out = (uint2 *)(t + (int64_t)blockIdx.x * ldt);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = threadIdx.x + j * THREADS;

        if (i < D / 4) {
            const float4 w = ((const float4 *)g)[i];

            out[i] = make_uint2(cvt_bf16x2(v[j].x * r * w.x, v[j].y * r * w.y),
                                cvt_bf16x2(v[j].z * r * w.z, v[j].w * r * w.w));
        }
    }
}

void td_cuda_rmsnorm(cudaStream_t s, const float *x, const int32_t *row, const float *g, float eps,
                     int32_t M, int32_t D, void *t, int64_t ldt)
{
    __nv_bfloat16 *out = (__nv_bfloat16 *)t;

    if (M == 0)
        return;
    if (D % 4 != 0 || ldt % 4 != 0 || D > 4 * 4 * THREADS || (uintptr_t)x % 16 != 0 ||
        (uintptr_t)g % 16 != 0 || (uintptr_t)t % 8 != 0)
        rmsnorm_kernel<<<M, THREADS, 0, s>>>(x, row, g, eps, D, out, ldt);
    else if (D <= 4 * 3 * THREADS)
        rmsnorm_4_kernel<3><<<M, THREADS, 0, s>>>(x, row, g, eps, D, out, ldt);
    else
        rmsnorm_4_kernel<4><<<M, THREADS, 0, s>>>(x, row, g, eps, D, out, ldt);
}

td_status td_cuda_embed(td_stream *s, const td_embed_args *a, td_error *err)
{
    const td_matrix *m = a->table;
    __nv_bfloat16 *out = (__nv_bfloat16 *)a->out;

    if (m->form != TD_FORM_ROWS || m->K != a->D)
        return td_fail(err, TD_INVALID, "embed: table is [%d, %d], wanted rows of %d", m->N, m->K,
                       a->D);
    if (a->T == 0)
        return TD_OK;
    if (td_cuda_format(m) == CUDA_F32)
        embed_kernel<<<a->T, THREADS, 0, s->handle>>>(a->tokens, (const float *)m->mem.ptr,
                                                      a->first, m->N, a->D, out);
    else
        embed_kernel<<<a->T, THREADS, 0, s->handle>>>(a->tokens, (const __nv_bfloat16 *)m->mem.ptr,
                                                      a->first, m->N, a->D, out);
    return td_cuda_launched(err, "embed");
}

td_status td_cuda_add(td_stream *s, const td_add_args *a, td_error *err)
{
    parts part = {};
    const size_t blocks = (a->n + THREADS - 1) / THREADS;

    if (a->n_parts < 1 || a->n_parts > 16)
        return td_fail(err, TD_INVALID, "add: %d parts; 1 to 16 are possible", a->n_parts);
    if (a->n == 0)
        return TD_OK;
    for (int32_t r = 0; r < a->n_parts; r++)
        part.p[r] = (const __nv_bfloat16 *)a->part[r];
    if (a->n_parts == 1 && a->n % 4 == 0 && (uintptr_t)part.p[0] % 8 == 0 &&
        (uintptr_t)a->x % 16 == 0)
        add_one_kernel<<<(unsigned)((a->n / 4 + THREADS - 1) / THREADS), THREADS, 0, s->handle>>>(
            a->n / 4, (const uint2 *)part.p[0], a->clear, (float4 *)a->x);
    else
        add_kernel<<<(unsigned)(blocks < 65536 ? blocks : 65536), THREADS, 0, s->handle>>>(
            a->n, part, a->n_parts, a->clear, (float *)a->x);
    return td_cuda_launched(err, "add");
}

td_status td_cuda_head(td_stream *s, const td_head_args *a, td_error *err)
{
    cuda_ws ws = {(char *)a->ws};
    const int64_t ldt = td_cuda_ws_pitch(a->D);
    td_status st;

    if ((st = td_cuda_check_vector("head", "norm", a->norm, a->D, err)) != TD_OK ||
        (st = td_cuda_check_matrix("head", "w", a->w, 1, a->V, a->D, err)) != TD_OK)
        return st;
    if (a->n == 0)
        return TD_OK;
    void *t = td_cuda_ws_take(&ws, (size_t)a->n * (size_t)ldt * 2);
    td_cuda_rmsnorm(s->handle, (const float *)a->x, a->rows, td_cuda_vector(a->norm), a->eps, a->n,
                    a->D, t, ldt);
    cuda_gemm_args g = {};
    g.a = (const uint16_t *)t;
    g.lda = ldt;
    g.M = a->n;
    g.w = a->w;
    g.out = a->out;
    g.ldo = a->V;
    return td_cuda_gemm(s->handle, CUDA_OUT_F32, &g, "head", err);
}
