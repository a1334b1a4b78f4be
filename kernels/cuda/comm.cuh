/* comm: what the kernels of collectives share: how a call begins and ends, how a block waits for
 * other ranks and gives up, and units of 8 bf16. */
#ifndef TANDEM_KERNELS_CUDA_COMM_CUH
#define TANDEM_KERNELS_CUDA_COMM_CUH

#include "kernels/cuda/comm.h"
#include "kernels/cuda/comm_ptx.cuh"
#include "kernels/cuda/hopper.cuh"

#include <cuda_bf16.h>

typedef unsigned long long u64;

static const int POLLS = 1024; /* between looks at the clock and at the host's abort word */

/* --- what every kernel does ------------------------------------------------------------------ */

/* First of all. Kernels behind this one may start, and wait in turn; nothing that this one reads is
 * there, and no call before it has ended, until those before it have. */
static __device__ __forceinline__ void begin(const cuda_comm_view &v)
{
    if (v.early)
        griddepcontrol_launch_dependents();
    griddepcontrol_wait();
}

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

/* x of a unit: read early, so that it is there when the sum is. */
struct x8 {
    float4 lo, hi;
};

static __device__ __forceinline__ x8 load_x(const cuda_comm_reduce &r, size_t unit)
{
    const float4 *x = (const float4 *)r.x + unit * 2;

    return r.clear ? x8{} : x8{x[0], x[1]};
}

static __device__ __forceinline__ void add_to_x(const cuda_comm_reduce &r, size_t unit, x8 x,
                                                uint4 v)
{
    sum8 s = {};

    add_unit(s, v);
    float4 lo = make_float4(s.at[0], s.at[1], s.at[2], s.at[3]);
    float4 hi = make_float4(s.at[4], s.at[5], s.at[6], s.at[7]);
    if (!r.clear) {
        lo.x += x.lo.x, lo.y += x.lo.y, lo.z += x.lo.z, lo.w += x.lo.w;
        hi.x += x.hi.x, hi.y += x.hi.y, hi.z += x.hi.z, hi.w += x.hi.w;
    }
    ((float4 *)r.x)[unit * 2] = lo;
    ((float4 *)r.x)[unit * 2 + 1] = hi;
}

/* Rank k after this one: each begins with its neighbour, so that no receiver gets all at once. */
static __device__ __forceinline__ int after(const cuda_comm_view &v, int k)
{
    const int p = v.rank + k;

    return p >= v.n ? p - v.n : p;
}

/* --- launching -------------------------------------------------------------------------------- */

/* With early, the kernel's blocks may be placed while those of the kernel before still run. */
template <class... Params, class... Args>
static void launch(void (*kernel)(Params...), const cuda_comm_view *v, int blocks, int threads,
                   cudaStream_t s, const Args &...args)
{
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t config = {};

    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.stream = s;
    config.attrs = &attr;
    config.numAttrs = v->early ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, *v, args...); /* the caller asks how it went */
}

/* One kernel for up to 2, 4 and 8 ranks: loops over ranks are unrolled. */
#define TD_COMM_FOR_RANKS(kernel, threads, s, v, r) \
    do { \
        if ((v)->n <= 2) \
            launch(kernel<2>, v, (r)->blocks, threads, s, *(r)); \
        else if ((v)->n <= 4) \
            launch(kernel<4>, v, (r)->blocks, threads, s, *(r)); \
        else \
            launch(kernel<8>, v, (r)->blocks, threads, s, *(r)); \
    } while (0)

#endif
