/* comm: sums over ranks and a gather, by pushing into peers' memory. See comm.h for why two halves
 * of the buffers are enough and how calls are numbered.
 *
 * Every rank launches the same grid for the same call, and block b of a rank talks to block b of
 * the others only: what it pushes is what they wait for, so no block waits for a whole grid. All
 * blocks of a kernel must be resident at once (comm_host.c bounds the grid). Bounds: the smallest
 * sizes by one trip over the link, large ones by its bandwidth. */
#include "kernels/cuda/comm.h"
#include "kernels/cuda/comm_ptx.cuh"

#include <cuda_bf16.h>

typedef unsigned long long u64;

static const int POLLS = 1024; /* between looks at the clock and at the host's abort word */

/* --- what every kernel does ------------------------------------------------------------------ */

/* The number of this call, or 0 when a wait has failed since the last reset: then every block of
 * this kernel and of those behind it returns, and the host hears of it from td_comm_check(). */
static __device__ __forceinline__ u64 enter(const cuda_comm_view &v, int series)
{
    const volatile cuda_comm_state *s = v.state;
    const u64 call = s->call[series];

    return __syncthreads_or((int)s->dead) ? 0 : call;
}

/* The last block to leave turns to the next call: by then every block has read this one's number.
 */
static __device__ __forceinline__ void leave(const cuda_comm_view &v, int series, u64 call)
{
    if (threadIdx.x == 0 && atomicAdd(&v.state->through[series], 1u) == gridDim.x - 1) {
        v.state->through[series] = 0;
        v.state->call[series] = call + 1;
    }
}

/* One wait: when its first look at the clock was, and whether the host has been told of it. */
struct patience {
    u64 began;
    bool told;
};

/* Looked at now and then while waiting. True: give up. Half way to that the host is told for whom
 * this rank waits, so that the blame can be passed on to whoever that rank waits for in turn. */
static __device__ __noinline__ bool hopeless(const cuda_comm_view &v, int series, u64 call,
                                             int source, u64 expected, u64 seen, patience *p)
{
    const u64 now = globaltimer_ns();
    volatile cuda_comm_report *r = v.report;

    if (*(volatile unsigned int *)&v.state->dead != 0 || ld_relaxed_sys(v.abort) != 0) {
        *(volatile unsigned int *)&v.state->dead = 1;
        return true;
    }
    if (p->began == 0)
        p->began = now;
    if (now - p->began >= v.limit_ns / 2 && atomicCAS(&v.state->told, 0u, 1u) == 0) {
        p->told = true;
        r->series = series;
        r->call = call;
        r->source = source;
        r->expected = expected;
        r->seen = seen;
        __threadfence_system(); /* the report is whole before it is valid */
        r->waits = 1;
    }
    if (now - p->began < v.limit_ns)
        return false;
    if (atomicCAS(&v.state->dead, 0u, 1u) == 0) {
        r->gave_up = 1;
        __threadfence_system(); /* before others, who stop because of us, end the step */
        *(volatile unsigned int *)v.abort = 1;
    }
    return true;
}

/* The wait is over, and who told the host of it takes that back. */
static __device__ __forceinline__ void relieved(const cuda_comm_view &v, const patience &p)
{
    if (p.told) {
        ((volatile cuda_comm_report *)v.report)->waits = 0;
        __threadfence_system(); /* before the next to tell */
        *(volatile unsigned int *)&v.state->told = 0;
    }
}

/* Tests: a rank that dawdles between what it sends and what it reads. */
static __device__ void dawdle(const cuda_comm_view &v, u64 call)
{
    unsigned int h =
        (unsigned int)call * 2654435761u + (unsigned int)v.rank * 40503u + blockIdx.x * 2246822519u;
    const u64 began = globaltimer_ns();

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    while (globaltimer_ns() - began < (h & v.delay_mask)) {
    }
}

/* Everything that this block has written is there for whoever sees the flag. */
static __device__ __forceinline__ void raise_flags(const cuda_comm_view &v, int kind, u64 value)
{
    __syncthreads();
    if (threadIdx.x < v.n && threadIdx.x != v.rank)
        st_release_sys(&v.flags[threadIdx.x]->at[kind][blockIdx.x][v.rank], value);
}

/* Until source's flag has come to `value`. One thread calls this; a barrier tells its block. */
static __device__ __forceinline__ bool await(const cuda_comm_view &v, int series, u64 call,
                                             int kind, int block, int source, u64 value)
{
    const u64 *flag = &v.flags[v.rank]->at[kind][block][source];
    patience p = {};

    for (;;) {
        u64 seen = 0;

        for (int i = 0; i < POLLS; i++) {
            seen = ld_acquire_sys(flag);
            if (seen >= value) {
                relieved(v, p);
                return true;
            }
        }
        if (hopeless(v, series, call, source, value, seen, &p))
            return false;
    }
}

/* All threads: this block's flags from all other ranks. */
static __device__ __forceinline__ bool await_all(const cuda_comm_view &v, int series, u64 call,
                                                 int kind, u64 value)
{
    bool ok = true;

    if (threadIdx.x < v.n && threadIdx.x != v.rank)
        ok = await(v, series, call, kind, blockIdx.x, threadIdx.x, value);
    return !__syncthreads_or(!ok);
}

/* --- units of 8 bf16 -------------------------------------------------------------------------- */

static __device__ __forceinline__ uint4 load_part(const cuda_comm_reduce &r, size_t unit)
{
    return ((const uint4 *)r.part)[unit];
}

/* What a peer wrote: past the first-level cache, which knows nothing of it. */
static __device__ __forceinline__ uint4 load_pushed(const char *p)
{
    return __ldcg((const uint4 *)p);
}

struct sum8 {
    float at[8];
};

static __device__ __forceinline__ void add_unit(sum8 &s, uint4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        s.at[2 * i] += __uint_as_float(w[i] << 16);
        s.at[2 * i + 1] += __uint_as_float(w[i] & 0xffff0000u);
    }
}

static __device__ __forceinline__ uint4 round_unit(const sum8 &s)
{
    uint32_t w[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __nv_bfloat162 b = __floats2bfloat162_rn(s.at[2 * i], s.at[2 * i + 1]);
        w[i] = *(const uint32_t *)&b;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

static __device__ __forceinline__ void add_to_x(const cuda_comm_reduce &r, size_t unit, uint4 v)
{
    sum8 s = {};

    add_unit(s, v);
    float4 *x = (float4 *)(r.x + unit * 8);
    float4 a = make_float4(s.at[0], s.at[1], s.at[2], s.at[3]);
    float4 b = make_float4(s.at[4], s.at[5], s.at[6], s.at[7]);
    if (!r.clear) {
        const float4 c = x[0], d = x[1];
        a.x += c.x, a.y += c.y, a.z += c.z, a.w += c.w;
        b.x += d.x, b.y += d.y, b.z += d.z, b.w += d.w;
    }
    x[0] = a;
    x[1] = b;
}

/* Rank k after this one: each begins with its neighbour, so that no receiver gets all at once. */
static __device__ __forceinline__ int after(const cuda_comm_view &v, int k)
{
    const int p = v.rank + k;

    return p >= v.n ? p - v.n : p;
}

/* --- packets ---------------------------------------------------------------------------------- */

/* A unit is two packets of 16 bytes: {data, tag, data, tag}. 8 bytes are written and read whole, so
 * whoever finds the tag has the data beside it. Tags are odd: fresh memory holds none. They come
 * back after 2^31 calls; a packet that has lain there since exactly then would be taken for new. */
template <int N>
static __global__ void __launch_bounds__(TD_COMM_SMALL_THREADS, 1)
    packets_kernel(const __grid_constant__ cuda_comm_view v,
                   const __grid_constant__ cuda_comm_reduce r)
{
    const u64 call = enter(v, COMM_REDUCE);
    const unsigned int tag = (unsigned int)call * 2 + 1;
    const size_t units = r.n / TD_COMM_UNIT, step = (size_t)gridDim.x * TD_COMM_SMALL_THREADS;
    const size_t first = (size_t)blockIdx.x * TD_COMM_SMALL_THREADS + threadIdx.x;
    const size_t at = v.packets + (call & 1) * v.packets_half;

    if (call == 0)
        return;
    for (size_t i = first; i < units; i += step) {
        const uint4 d = load_part(r, i);

#pragma unroll
        for (int k = 1; k < N; k++)
            if (k < v.n) {
                char *to = v.arena[after(v, k)] + at + v.rank * v.packets_source + i * 32;
                st_volatile_128(to, make_uint4(d.x, tag, d.y, tag));
                st_volatile_128(to + 16, make_uint4(d.z, tag, d.w, tag));
            }
    }
    if (v.delay_mask != 0)
        dawdle(v, call);
    for (size_t i = first; i < units; i += step) {
        const char *from = v.arena[v.rank] + at + i * 32;
        const uint4 own = load_part(r, i);
        uint4 lo[N], hi[N];
        patience p = {};

        for (int turn = 1;; turn++) {
            int missing = -1;
            unsigned int seen = 0;

#pragma unroll
            for (int k = 0; k < N; k++)
                if (k < v.n && k != v.rank) {
                    lo[k] = ld_volatile_128(from + k * v.packets_source);
                    hi[k] = ld_volatile_128(from + k * v.packets_source + 16);
                }
#pragma unroll
            for (int k = 0; k < N; k++)
                if (k < v.n && k != v.rank &&
                    (lo[k].y != tag || lo[k].w != tag || hi[k].y != tag || hi[k].w != tag)) {
                    missing = k;
                    seen = lo[k].y != tag   ? lo[k].y
                           : lo[k].w != tag ? lo[k].w
                           : hi[k].y != tag ? hi[k].y
                                            : hi[k].w;
                }
            if (missing < 0)
                break;
            if (turn % POLLS == 0 && hopeless(v, COMM_REDUCE, call, missing, tag, seen, &p))
                return;
        }
        relieved(v, p);
        sum8 s = {};
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < v.n)
                add_unit(s, k == v.rank ? own : make_uint4(lo[k].x, lo[k].z, hi[k].x, hi[k].z));
        add_to_x(r, i, round_unit(s));
    }
    leave(v, COMM_REDUCE, call);
}

/* --- one shot --------------------------------------------------------------------------------- */

template <int N>
static __global__ void __launch_bounds__(TD_COMM_THREADS)
    one_shot_kernel(const __grid_constant__ cuda_comm_view v,
                    const __grid_constant__ cuda_comm_reduce r)
{
    const u64 call = enter(v, COMM_REDUCE);
    const size_t units = r.n / TD_COMM_UNIT, per = (units + gridDim.x - 1) / gridDim.x;
    const size_t lo = blockIdx.x * per, hi = lo + per < units ? lo + per : units;
    const size_t at = v.parts + (call & 1) * v.parts_half;

    if (call == 0)
        return;
    for (size_t i = lo + threadIdx.x; i < hi; i += TD_COMM_THREADS) {
        const uint4 d = load_part(r, i);

#pragma unroll
        for (int k = 1; k < N; k++)
            if (k < v.n)
                *(uint4 *)(v.arena[after(v, k)] + at + v.rank * v.parts_source + i * 16) = d;
    }
    raise_flags(v, COMM_PARTS, call << 16 | 1);
    if (v.delay_mask != 0)
        dawdle(v, call);
    if (!await_all(v, COMM_REDUCE, call, COMM_PARTS, call << 16 | 1))
        return;
    for (size_t i = lo + threadIdx.x; i < hi; i += TD_COMM_THREADS) {
        const char *from = v.arena[v.rank] + at + i * 16;
        uint4 d[N];
        sum8 s = {};

#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < v.n)
                d[k] = k == v.rank ? load_part(r, i) : load_pushed(from + k * v.parts_source);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < v.n)
                add_unit(s, d[k]);
        add_to_x(r, i, round_unit(s));
    }
    leave(v, COMM_REDUCE, call);
}

/* --- two shot --------------------------------------------------------------------------------- */

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
            add_to_x(r, g, out);
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
                    add_to_x(r, g, d[u][k]);
            }
    }
};

template <int N>
static __global__ void __launch_bounds__(TD_COMM_LONG_THREADS, 2)
    two_shot_kernel(const __grid_constant__ cuda_comm_view v,
                    const __grid_constant__ cuda_comm_reduce r)
{
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

/* --- gather ----------------------------------------------------------------------------------- */

/* Rank 0 says that its matrix may be written, the others write their columns straight into it, and
 * rank 0 waits for all of them: one more hop than a copy through a buffer, and none of its bytes,
 * which for logits are many. A tile is TILE columns of a row. V: floats moved at once. */
static const int TILE = 4096;

template <class V> static __device__ __forceinline__ void copy_columns(const td_gather_args &a)
{
    const int wide = sizeof(V) / sizeof(float), across = (a.cols + TILE - 1) / TILE;
    const int64_t tiles = (int64_t)across * a.rows;

    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int64_t row = t / across;
        const int begin = (int)(t % across) * TILE;
        const int cols = a.cols - begin < TILE ? a.cols - begin : TILE;
        const V *from = (const V *)(a.part + row * a.cols + begin);
        V *to = (V *)(a.out + row * a.total_cols + a.first_col + begin);

        for (int i = threadIdx.x; i < cols / wide; i += TD_COMM_THREADS)
            to[i] = from[i];
    }
}

static __global__ void __launch_bounds__(TD_COMM_THREADS)
    gather_kernel(const __grid_constant__ cuda_comm_view v,
                  const __grid_constant__ td_gather_args a, const bool wide)
{
    const u64 call = enter(v, COMM_GATHER);
    bool ok = true;

    if (call == 0)
        return;
    if (v.rank == 0 && blockIdx.x == 0)
        raise_flags(v, COMM_ROOM, call << 16);
    if (v.rank != 0) {
        if (threadIdx.x == 0)
            ok = await(v, COMM_GATHER, call, COMM_ROOM, 0, 0, call << 16);
        if (__syncthreads_or(!ok))
            return;
    }
    if (v.delay_mask != 0)
        dawdle(v, call);
    if (wide)
        copy_columns<float4>(a);
    else
        copy_columns<float>(a);
    if (v.rank != 0) {
        __syncthreads();
        if (threadIdx.x == 0)
            st_release_sys(&v.flags[0]->at[COMM_COLUMNS][blockIdx.x][v.rank], call << 16);
    } else if (!await_all(v, COMM_GATHER, call, COMM_COLUMNS, call << 16)) {
        return;
    }
    leave(v, COMM_GATHER, call);
}

/* --- launchers -------------------------------------------------------------------------------- */

/* One kernel for up to 2, 4 and 8 ranks: loops over ranks are unrolled. */
#define FOR_RANKS(kernel, threads, s, v, r) \
    do { \
        if ((v)->n <= 2) \
            kernel<2><<<(r)->blocks, threads, 0, s>>>(*(v), *(r)); \
        else if ((v)->n <= 4) \
            kernel<4><<<(r)->blocks, threads, 0, s>>>(*(v), *(r)); \
        else \
            kernel<8><<<(r)->blocks, threads, 0, s>>>(*(v), *(r)); \
    } while (0)

void td_cuda_comm_packets(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r)
{
    FOR_RANKS(packets_kernel, TD_COMM_SMALL_THREADS, s, v, r);
}

void td_cuda_comm_one_shot(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r)
{
    FOR_RANKS(one_shot_kernel, TD_COMM_THREADS, s, v, r);
}

void td_cuda_comm_two_shot(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r)
{
    FOR_RANKS(two_shot_kernel, TD_COMM_LONG_THREADS, s, v, r);
}

void td_cuda_comm_gather(cudaStream_t s, const cuda_comm_view *v, const td_gather_args *a,
                         int32_t blocks)
{
    const bool wide = a->cols % 4 == 0 && a->first_col % 4 == 0 && a->total_cols % 4 == 0 &&
                      (uintptr_t)a->part % 16 == 0 && (uintptr_t)a->out % 16 == 0;

    gather_kernel<<<blocks, TD_COMM_THREADS, 0, s>>>(*v, *a, wide);
}
