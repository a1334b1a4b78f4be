/* comm_two_shot: large sums over ranks: rank r sums the r-th segment, and pushes the result. See
 * comm.h and comm.cu. Bound by the link: 2 (n - 1) / n of the message leaves and enters each rank.
 */
#include "kernels/cuda/comm.cuh"

/* Segment p, the units that rank p sums, is cut over the blocks, and a block goes through its share
 * in steps of THREADS * U units: step s + 1 is on its way while step s is waited for. */
template <int N> struct two_shot {
    static const int U = N <= 2 ? 4 : N <= 4 ? 2 : 1; /* keeps as many loads in flight for any N */

    const cuda_comm_view &v;
    const cuda_comm_reduce &r;
    const size_t units, segment, lo, hi, pieces, results;

    __device__ __forceinline__ size_t local(int s, int u) const
    {
        return lo + ((size_t)s * U + u) * TD_COMM_LONG_THREADS + threadIdx.x;
    }
    /* This rank's parts of the other segments, to the ranks that sum them. */
    __device__ __forceinline__ void push_parts(int s) const
    {
        uint4 d[U][N];

#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int k = 1; k < N; k++) {
                const size_t j = local(s, u), g = after(v, k) * segment + j;
                if (k < v.n && j < hi && g < units)
                    d[u][k] = load_part(r, g);
            }
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int k = 1; k < N; k++) {
                const int p = after(v, k);
                const size_t j = local(s, u), g = p * segment + j;
                if (k < v.n && j < hi && g < units)
                    *(uint4 *)(v.arena[p] + pieces + v.rank * v.pieces_source + j * 16) = d[u][k];
            }
    }
    /* The sum of this rank's segment, to everybody. */
    __device__ __forceinline__ void push_sums(int s) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const size_t j = local(s, u), g = v.rank * segment + j;
            const char *from = v.arena[v.rank] + pieces + j * 16;
            uint4 d[N];
            sum8 sum = {};

            if (j >= hi || g >= units)
                continue;
            const x8 x = load_x(r, g);
#pragma unroll
            for (int k = 0; k < N; k++)
                if (k < v.n)
                    d[k] = k == v.rank ? load_part(r, g) : load_pushed(from + k * v.pieces_source);
#pragma unroll
            for (int k = 0; k < N; k++)
                if (k < v.n)
                    add_unit(sum, d[k]);
            const uint4 out = round_unit(sum);
#pragma unroll
            for (int k = 1; k < N; k++)
                if (k < v.n)
                    *(uint4 *)(v.arena[after(v, k)] + results + g * 16) = out;
            add_to_x(r, g, x, out);
        }
    }
    /* The other segments' sums, as they came. */
    __device__ __forceinline__ void take_sums(int s) const
    {
        uint4 d[U][N];

#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int k = 1; k < N; k++) {
                const size_t j = local(s, u), g = after(v, k) * segment + j;
                if (k < v.n && j < hi && g < units)
                    d[u][k] = load_pushed(v.arena[v.rank] + results + g * 16);
            }
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int k = 1; k < N; k++) {
                const size_t j = local(s, u), g = after(v, k) * segment + j;
                if (k < v.n && j < hi && g < units)
                    add_to_x(r, g, load_x(r, g), d[u][k]);
            }
    }
};

template <int N>
static __global__ void __launch_bounds__(TD_COMM_LONG_THREADS, 2)
    two_shot_kernel(const __grid_constant__ cuda_comm_view v,
                    const __grid_constant__ cuda_comm_reduce r)
{
    begin(v);
    const u64 call = enter(v, COMM_REDUCE), stamp = call << 16;
    const size_t units = r.n / TD_COMM_UNIT, segment = (units + v.n - 1) / v.n;
    const size_t per = (segment + gridDim.x - 1) / gridDim.x, lo = blockIdx.x * per;
    const two_shot<N> t = {v,
                           r,
                           units,
                           segment,
                           lo,
                           lo + per < segment ? lo + per : segment,
                           v.pieces + (call & 1) * v.pieces_half,
                           v.results + (call & 1) * v.results_half};
    const int once = TD_COMM_LONG_THREADS * two_shot<N>::U, steps = (int)((per + once - 1) / once);

    if (call == 0)
        return;
    t.push_parts(0);
    raise_flags(v, COMM_PARTS, stamp | 1);
    if (v.delay_mask != 0)
        dawdle(v, call);
    for (int s = 0; s < steps; s++) {
        if (s + 1 < steps) {
            t.push_parts(s + 1);
            raise_flags(v, COMM_PARTS, stamp | (u64)(s + 2));
        }
        if (!await_all(v, COMM_REDUCE, call, COMM_PARTS, stamp | (u64)(s + 1)))
            return;
        t.push_sums(s);
        raise_flags(v, COMM_RESULTS, stamp | (u64)(s + 1));
        if (s == 0)
            continue;
        if (!await_all(v, COMM_REDUCE, call, COMM_RESULTS, stamp | (u64)s))
            return;
        t.take_sums(s - 1);
    }
    if (!await_all(v, COMM_REDUCE, call, COMM_RESULTS, stamp | (u64)steps))
        return;
    t.take_sums(steps - 1);
    leave(v, COMM_REDUCE, call);
}

void td_cuda_comm_two_shot(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r)
{
    TD_COMM_FOR_RANKS(two_shot_kernel, TD_COMM_LONG_THREADS, s, v, r);
}
