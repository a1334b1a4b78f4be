/* attn_units: how decode attention cuts its sequences into units of work, on the device, from their
 * lengths. */
#ifndef TANDEM_KERNELS_CUDA_ATTN_UNITS_CUH
#define TANDEM_KERNELS_CUDA_ATTN_UNITS_CUH

#include "kernels/cuda/attn_step.cuh"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/tune.h"

static const int WARPS = 8; /* of a block, and groups of a chunk */

struct decode_params {
    const __nv_bfloat16 *q;
    const uint8_t *kv;
    __nv_bfloat16 *out;
    int64_t head_stride, side_stride; /* bytes */
    const int32_t *len, *table;
    const float *sinks;
    int32_t T, H, K, G, window, wrap, table_stride, chunks_log2;
    int32_t direct; /* a block a unit; so many, at most, a sequence and kv head. 0: use the list */
    float by_K, by_wrap, by_direct; /* 1 / K ... */
    float c;
    float2 *ml; /* [sequences of a launch, H, chunks] */
    float *o;   /* the same, 64 each */
    bool joins; /* the last chunk of a row joins them all; else join_kernel() does */
};

/* x / d, rounded down, from 1 / d; x below 2^22. Integer division is slow, and much waits for it.
 */
__device__ __forceinline__ int quotient(int x, float by)
{
    return (int)(((float)x + 0.5f) * by);
}

/* Positions lo .. pos of a sequence, pages first .. last, cut into chunks of `pages`. */
struct decode_cut {
    int pos, lo, first, last, pages, chunks;
};
__device__ __forceinline__ decode_cut cut_of(const decode_params &p, int len)
{
    decode_cut c;

    c.pos = len - 1;
    c.lo = p.window > 0 ? max(len - p.window, 0) : 0;
    c.first = c.lo / TD_KV_PAGE;
    c.last = c.pos >= 0 ? c.pos / TD_KV_PAGE : -1;
    c.pages = td_tune_chunk_pages(c.last - c.first + 1, p.chunks_log2);
    c.chunks = max(quotient(c.last - c.first + c.pages, __frcp_rn((float)c.pages)), 1);
    return c;
}

/* A chunk of a kv head of a sequence, or a warp's part of it: steps first .. last, joined after
 * each `group`. */
struct decode_unit {
    int t, head, chunk, chunks, lo, pos, first, last, group;
};

template <int STEP>
__device__ __forceinline__ decode_unit unit_of(const decode_params &p, int t, int head, int chunk,
                                               int len)
{
    const int per_page = TD_KV_PAGE / STEP;
    const decode_cut c = cut_of(p, len);
    decode_unit u;

    u.t = t;
    u.head = head;
    u.chunk = chunk;
    u.chunks = c.chunks;
    u.lo = c.lo;
    u.pos = c.pos;
    u.first = (c.first + chunk * c.pages) * per_page;
    u.last = u.first + c.pages * per_page - 1;
    u.first = max(u.first, c.lo / STEP);
    u.last = c.pos < 0 ? u.first - 1 : min(u.last, c.pos / STEP);
    u.group = (u.last - u.first + WARPS) / WARPS;
    return u;
}

/* The units of all sequences of a launch. */
struct decode_list {
    int len[TD_CUDA_DECODE_GROUP], warp_sum[WARPS];
    int start[TD_CUDA_DECODE_GROUP + 1]; /* of each its first chunk's number among all */

    /* By the whole block. */
    __device__ __forceinline__ void make(const decode_params &p)
    {
        const int t = threadIdx.x, lane = t % 32, n = t < p.T ? p.len[t] : 0;
        int sum = t < p.T ? cut_of(p, n).chunks : 0;

#pragma unroll
        for (int x = 1; x < 32; x *= 2) {
            const int before = __shfl_up_sync(~0u, sum, x);

            if (lane >= x)
                sum += before;
        }
        if (lane == 31)
            warp_sum[t / 32] = sum;
        __syncthreads();
        for (int w = 0; w < t / 32; w++)
            sum += warp_sum[w];
        if (t < p.T) {
            len[t] = n;
            start[t + 1] = sum;
        }
        if (t == 0)
            start[0] = 0;
        __syncthreads();
    }
    __device__ __forceinline__ int units(const decode_params &p) const
    {
        return start[p.T] * p.K;
    }
    template <int STEP>
    __device__ __forceinline__ decode_unit at(const decode_params &p, int i) const
    {
        const int n = quotient(i, p.by_K);
        int below = 0, above = p.T; /* start[below] <= n < start[above] */

        while (above - below > 1) {
            const int mid = (below + above) / 2;

            if (start[mid] <= n)
                below = mid;
            else
                above = mid;
        }
        return unit_of<STEP>(p, below, i - n * p.K, n - start[below], len[below]);
    }
};

#endif
