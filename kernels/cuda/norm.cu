/* norm: the steps around the layers: embedding, sum over ranks, norm, head.
 *
 * All but the head's product move each element once: a block a row, threads along it. They are
 * bound by memory in a long prefill and by their launch in decode. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/hopper.cuh"

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

/* The same for bf16 rows of whole 16-byte chunks. */
static __global__ void embed_16_kernel(const int32_t *tokens, const uint4 *table, int32_t first,
                                       int32_t n, int32_t chunks, uint4 *out)
{
    const int64_t row = (int64_t)tokens[blockIdx.x] - first;
    const bool mine = row >= 0 && row < n;

    out += (int64_t)blockIdx.x * chunks;
    for (int i = threadIdx.x; i < chunks; i += THREADS)
        out[i] = mine ? __ldg(table + row * chunks + i) : make_uint4(0, 0, 0, 0);
}

struct parts {
    const __nv_bfloat16 *p[16];
};

/* The steps after a sum have weights to fetch meanwhile: they may start at once, and wait where
 * they read x. */
static __global__ void add_kernel(size_t n, parts part, int n_parts, bool clear, float *x)
{
    const size_t step = (size_t)gridDim.x * THREADS;

    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float sum = 0.0f;

        for (int r = 0; r < n_parts; r++)
            sum += __bfloat162float(part.p[r][i]);
        x[i] = clear ? sum : x[i] + sum;
    }
}

/* The same, four elements a thread. PARTS 0: any number of them. */
template <int PARTS>
static __global__ void add_4_kernel(size_t n4, parts part, int n_parts, bool clear, float4 *x)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float4 v = make_float4(0, 0, 0, 0), sum = v;

    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    if (i >= n4)
        return;
    if (!clear)
        v = x[i];
#pragma unroll
    for (int r = 0; r < (PARTS > 0 ? PARTS : n_parts); r++) {
        const uint2 p = ((const uint2 *)part.p[r])[i];

        sum.x += __uint_as_float(p.x << 16);
        sum.y += __uint_as_float(p.x & 0xffff0000u);
        sum.z += __uint_as_float(p.y << 16);
        sum.w += __uint_as_float(p.y & 0xffff0000u);
    }
    x[i] = make_float4(v.x + sum.x, v.y + sum.y, v.z + sum.z, v.w + sum.w);
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

/* Kernels that know to wait may start before a norm has ended: router_large.cu, by its weights. */
static __global__ void rmsnorm_kernel(const float *x, const int32_t *row, const float *g, float eps,
                                      int32_t D, __nv_bfloat16 *t, int64_t ldt)
{
    __shared__ float partial[THREADS / 32];
    const float *in = x + (row != NULL ? (int64_t)row[blockIdx.x] : (int64_t)blockIdx.x) * D;
    float sum = 0.0f;

    griddepcontrol_launch_dependents();
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

    griddepcontrol_launch_dependents();
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
    else if (a->D % 8 == 0 && (uintptr_t)out % 16 == 0)
        embed_16_kernel<<<a->T, THREADS, 0, s->handle>>>(a->tokens, (const uint4 *)m->mem.ptr,
                                                         a->first, m->N, a->D / 8, (uint4 *)out);
    else
        embed_kernel<<<a->T, THREADS, 0, s->handle>>>(a->tokens, (const __nv_bfloat16 *)m->mem.ptr,
                                                      a->first, m->N, a->D, out);
    return td_cuda_launched(err, "embed");
}

/* A kernel that may start while the one before it ends. */
template <class X>
static cudaError_t launch_add(cudaStream_t s, size_t blocks,
                              void (*kernel)(size_t, parts, int, bool, X *), size_t n,
                              const parts &part, const td_add_args *a)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attr = {};

    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)blocks);
    c.blockDim = dim3(THREADS);
    c.stream = s;
    c.attrs = &attr;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, n, part, (int)a->n_parts, (bool)a->clear, (X *)a->x);
}

static bool in_fours(const td_add_args *a)
{
    bool whole = a->n % 4 == 0 && (uintptr_t)a->x % 16 == 0 && a->n / 4 / THREADS < INT32_MAX;

    for (int32_t r = 0; r < a->n_parts; r++)
        whole = whole && (uintptr_t)a->part[r] % 8 == 0;
    return whole;
}

td_status td_cuda_add(td_stream *s, const td_add_args *a, td_error *err)
{
    parts part = {};
    cudaError_t e;

    if (a->n_parts < 1 || a->n_parts > 16)
        return td_fail(err, TD_INVALID, "add: %d parts; 1 to 16 are possible", a->n_parts);
    if (a->n == 0)
        return TD_OK;
    for (int32_t r = 0; r < a->n_parts; r++)
        part.p[r] = (const __nv_bfloat16 *)a->part[r];
    if (in_fours(a)) {
        const size_t n4 = a->n / 4, blocks = (n4 + THREADS - 1) / THREADS;

        switch (a->n_parts) {
        case 1: e = launch_add(s->handle, blocks, add_4_kernel<1>, n4, part, a); break;
        case 4: e = launch_add(s->handle, blocks, add_4_kernel<4>, n4, part, a); break;
        case 8: e = launch_add(s->handle, blocks, add_4_kernel<8>, n4, part, a); break;
        default: e = launch_add(s->handle, blocks, add_4_kernel<0>, n4, part, a);
        }
    } else {
        const size_t blocks = (a->n + THREADS - 1) / THREADS;

        e = launch_add(s->handle, blocks < 65536 ? blocks : 65536, add_kernel, a->n, part, a);
    }
    return td_cuda_status(err, e, "add");
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
