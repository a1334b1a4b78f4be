/* comm: small sums over ranks and a gather, by pushing into peers' memory. See comm.h for why two
 * halves of the buffers are enough and how calls are numbered.
 *
 * Every rank launches the same grid for the same call, and block b of a rank talks to block b of
 * the others only: what it pushes is what they wait for, so no block waits for a whole grid. All
 * blocks of a kernel must be resident at once (comm_host.c bounds the grid). Bound by
 * the launch and by one trip over the link. */
#include "kernels/cuda/comm.cuh"

/* --- packets ---------------------------------------------------------------------------------- */

/* A unit is two packets of 16 bytes: {data, tag, data, tag}. 8 bytes are written and read whole, so
 * whoever finds the tag has the data beside it. Tags are odd: fresh memory holds none. They come
 * back after 2^31 calls; a packet that has lain there since exactly then would be taken for new. */
template <int N>
static __global__ void __launch_bounds__(TD_COMM_SMALL_THREADS, 1)
    packets_kernel(const __grid_constant__ cuda_comm_view v,
                   const __grid_constant__ cuda_comm_reduce r)
{
    begin(v);
    const size_t units = r.n / TD_COMM_UNIT, step = (size_t)gridDim.x * TD_COMM_SMALL_THREADS;
    const size_t first = (size_t)blockIdx.x * TD_COMM_SMALL_THREADS + threadIdx.x;
    const uint4 ahead = first < units ? load_part(r, first) : make_uint4(0, 0, 0, 0);
    const u64 call = enter(v, COMM_REDUCE);
    const unsigned int tag = (unsigned int)call * 2 + 1;
    const size_t at = v.packets + (call & 1) * v.packets_half;

    if (call == 0)
        return;
    for (size_t i = first; i < units; i += step) {
        const uint4 d = i == first ? ahead : load_part(r, i);

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
        const uint4 own = i == first ? ahead : load_part(r, i);
        const x8 x = load_x(r, i);
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
        add_to_x(r, i, x, round_unit(s));
    }
    leave(v, COMM_REDUCE, call);
}

/* --- one shot --------------------------------------------------------------------------------- */

template <int N>
static __global__ void __launch_bounds__(TD_COMM_THREADS)
    one_shot_kernel(const __grid_constant__ cuda_comm_view v,
                    const __grid_constant__ cuda_comm_reduce r)
{
    begin(v);
    const size_t units = r.n / TD_COMM_UNIT, per = (units + gridDim.x - 1) / gridDim.x;
    const size_t lo = blockIdx.x * per, hi = lo + per < units ? lo + per : units;
    const size_t first = lo + threadIdx.x; /* most threads have this unit only */
    const uint4 ahead = first < hi ? load_part(r, first) : make_uint4(0, 0, 0, 0);
    const x8 ahead_x = first < hi ? load_x(r, first) : x8{};
    const u64 call = enter(v, COMM_REDUCE);
    const size_t at = v.parts + (call & 1) * v.parts_half;

    if (call == 0)
        return;
    for (size_t i = first; i < hi; i += TD_COMM_THREADS) {
        const uint4 d = i == first ? ahead : load_part(r, i);

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
    for (size_t i = first; i < hi; i += TD_COMM_THREADS) {
        const char *from = v.arena[v.rank] + at + i * 16;
        const uint4 own = i == first ? ahead : load_part(r, i);
        const x8 x = i == first ? ahead_x : load_x(r, i);
        uint4 d[N];
        sum8 s = {};

#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < v.n)
                d[k] = k == v.rank ? own : load_pushed(from + k * v.parts_source);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < v.n)
                add_unit(s, d[k]);
        add_to_x(r, i, x, round_unit(s));
    }
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
    begin(v);
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

void td_cuda_comm_packets(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r)
{
    TD_COMM_FOR_RANKS(packets_kernel, TD_COMM_SMALL_THREADS, s, v, r);
}

void td_cuda_comm_one_shot(cudaStream_t s, const cuda_comm_view *v, const cuda_comm_reduce *r)
{
    TD_COMM_FOR_RANKS(one_shot_kernel, TD_COMM_THREADS, s, v, r);
}

void td_cuda_comm_gather(cudaStream_t s, const cuda_comm_view *v, const td_gather_args *a,
                         int32_t blocks)
{
    const bool wide = a->cols % 4 == 0 && a->first_col % 4 == 0 && a->total_cols % 4 == 0 &&
                      (uintptr_t)a->part % 16 == 0 && (uintptr_t)a->out % 16 == 0;

    launch(gather_kernel, v, blocks, TD_COMM_THREADS, s, *a, wide);
}
