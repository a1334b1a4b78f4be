/* router_large: logits and choice in one launch, for steps of more rows than router_small.cu takes.
 *
 * A block has 64 rows and all experts. One thread has the copy engine fill a ring of stages, 64
 * columns of both operands in rows of 128 swizzled bytes; a warpgroup multiplies by 32 or 64
 * experts; then a few lanes a row choose from the logits in shared memory.
 *
 * Bound by bytes: the rows come from memory once, and the weights from L2 to every block, of which
 * a cluster of two halves the reading: each block fetches half of the experts' rows for both. So a
 * stage is free when both have used it. The copies of weights begin before the norm has ended.
 *
 * One H200, 2026-11-30, the step with its norm: 53.7 us at 8192 tokens and 128 experts, 50.3 with
 * 32 (the norm alone: 32); 22.5 and 18.7 at 1024 tokens (bench/ops_cuda --op router).
 *
 * A logit is the sum of its units of 64 columns, each summed apart, in order, and then the bias:
 * the bits that gemm.cuh gives in other shapes (wgmma adds up as mma.sync does). */
#include "kernels/cuda/router_large.h"
#include "kernels/cuda/attn_wgmma.cuh"
#include "kernels/cuda/dense.cuh"
#include "kernels/cuda/router_choose.cuh"
#include "kernels/cuda/tensor_map.h"

static const int ROWS = 64, CLUSTER = 2, MOST_M = 128;

struct large_params {
    const float *bias;   /* [M] */
    const int32_t *live; /* NULL, or one */
    int32_t *idx;        /* [T, k] */
    float *prob;         /* [T, k] */
    int32_t T, M, k;
    int32_t units; /* of 64 columns */
};

/* N experts over GROUPS warpgroups; LANES choose for a row. */
template <int N_, int GROUPS_, int STAGES_, int LANES_> struct large_tile {
    static const int N = N_, GROUPS = GROUPS_, STAGES = STAGES_, LANES = LANES_;
    static const int COLS = N / GROUPS, SUMS = ROWS * COLS / 128; /* of a group, of its threads */
    static const int WARPS = 4 * GROUPS, THREADS = 32 * (WARPS + 1); /* one warp copies */
    static const int A_BYTES = ROWS * 128, W_BYTES = N * 128, STAGE = A_BYTES + W_BYTES;
    static const int PITCH = N + LANES; /* floats of a row of logits: rows meet no bank twice */
    static const int SMEM = 1024 + STAGES * STAGE + ROWS * PITCH * 4; /* tiles begin at 1024s */
};
/* At least 48 KiB of rows in flight. */
typedef large_tile<32, 1, 8, 4> large_32;
typedef large_tile<64, 1, 8, 8> large_64;
typedef large_tile<128, 2, 7, 8> large_128;

template <class Tile> struct large_ring {
    uint32_t stages, full, empty; /* shared addresses, the same in both blocks */

    __device__ __forceinline__ uint32_t rows(int s) const
    {
        return stages + s * Tile::STAGE;
    }
    __device__ __forceinline__ uint32_t weights(int s) const
    {
        return stages + s * Tile::STAGE + Tile::A_BYTES;
    }
};

/* This block's half of the experts, to both blocks; the other's half comes to this barrier too. */
template <class Tile>
static __device__ __forceinline__ void load_weights(const CUtensorMap *w,
                                                    const large_ring<Tile> &ring, int s, int unit)
{
    const int rank = (int)cluster_ctarank();

    mbarrier_arrive_expect_tx(ring.full + s * 8, Tile::W_BYTES);
    cp_async_tensor_2d_multicast(ring.weights(s) + rank * (Tile::W_BYTES / CLUSTER), w, unit * 64,
                                 rank * (Tile::N / CLUSTER), ring.full + s * 8, 3, L2_EVICT_LAST);
}

template <class Tile>
static __device__ __forceinline__ void load_rows(const CUtensorMap *a, const large_ring<Tile> &ring,
                                                 int s, int unit)
{
    mbarrier_arrive_expect_tx(ring.full + s * 8, Tile::A_BYTES);
    cp_async_tensor_2d(ring.rows(s), a, unit * 64, blockIdx.x * ROWS, ring.full + s * 8,
                       L2_EVICT_NORMAL);
}

/* One thread. Comes back when both blocks have used every unit: the other one then has nothing more
 * to say to this one's barriers, which may go. */
template <class Tile>
static __device__ __forceinline__ void produce(const CUtensorMap *w, const CUtensorMap *a,
                                               int units, const large_ring<Tile> &ring)
{
    ring_place<Tile::STAGES> here = {0, 0};

    tensor_map_prefetch(w);
    tensor_map_prefetch(a);
    for (int i = 0; i < Tile::STAGES && i < units; i++)
        load_weights<Tile>(w, ring, i, i);
    griddepcontrol_wait();
    for (int i = 0; i < Tile::STAGES && i < units; i++)
        load_rows<Tile>(a, ring, i, i);
    for (int i = Tile::STAGES; i < units + Tile::STAGES; i++, here.next()) {
        mbarrier_wait(ring.empty + here.stage * 8, here.parity);
        if (i < units) {
            load_weights<Tile>(w, ring, here.stage, i);
            load_rows<Tile>(a, ring, here.stage, i);
        }
    }
}

/* A warpgroup's sums, as wgmma leaves them in registers. */
template <class Tile>
static __device__ __forceinline__ void consume(int units, const large_ring<Tile> &ring,
                                               float (&acc)[Tile::SUMS])
{
    const int lane = threadIdx.x % 32, first = threadIdx.x / 128 * Tile::COLS;
    ring_place<Tile::STAGES> here = {0, 0};
    float part[Tile::SUMS];

    for (int i = 0; i < units; i++, here.next()) {
        const uint64_t a = wgmma_desc(ring.rows(here.stage));
        const uint64_t w = wgmma_desc(ring.weights(here.stage) + first * 128);

        mbarrier_wait(ring.full + here.stage * 8, here.parity);
        wgmma_fence();
        wgmma_k64(part, a, w);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(part);
        if (lane < CLUSTER) /* a warp says it to both blocks */
            mbarrier_arrive_cluster(ring.empty + here.stage * 8, lane);
#pragma unroll
        for (int e = 0; e < Tile::SUMS; e++)
            acc[e] = __fadd_rn(acc[e], part[e]);
    }
}

/* The sums with their bias, where lanes can find them by row. */
template <class Tile>
static __device__ __forceinline__ void store_logits(const float (&acc)[Tile::SUMS],
                                                    const float *bias, float *logits)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int col = threadIdx.x / 128 * Tile::COLS + lane % 4 * 2;

#pragma unroll
    for (int j = 0; j < Tile::SUMS / 4; j++) {
        const float2 b = *(const float2 *)(bias + col + 8 * j);

#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(logits + (row + 8 * half) * Tile::PITCH + col + 8 * j) = make_float2(
                __fadd_rn(acc[4 * j + 2 * half], b.x), __fadd_rn(acc[4 * j + 2 * half + 1], b.y));
    }
}

template <class Tile>
static __device__ __forceinline__ void choose_rows(const large_params &p, float *logits)
{
    const int live = p.live != NULL ? *p.live : p.T;

    for (int r = threadIdx.x / Tile::LANES; r < ROWS; r += 32 * Tile::WARPS / Tile::LANES) {
        const int64_t t = (int64_t)blockIdx.x * ROWS + r;
        int32_t *idx = p.idx + t * p.k;
        float *prob = p.prob + t * p.k;

        router_choose<Tile::LANES, Tile::N / Tile::LANES>(logits + r * Tile::PITCH, p.M, p.k,
                                                          t < live && t < p.T, idx, prob);
        if (t >= live && t < p.T)
            router_choose_none<Tile::LANES>(p.k, idx, prob);
    }
}

template <class Tile>
static __global__ void __launch_bounds__(Tile::THREADS, 1)
    router_large_kernel(const __grid_constant__ CUtensorMap w,
                        const __grid_constant__ CUtensorMap a,
                        const __grid_constant__ large_params p)
{
    extern __shared__ uint8_t smem[];
    __shared__ uint64_t full[Tile::STAGES], empty[Tile::STAGES];
    __shared__ alignas(8) float bias[Tile::N];
    const uint32_t start = smem_addr(smem), stages = (start + 1023) / 1024 * 1024;
    const large_ring<Tile> ring = {stages, smem_addr(full), smem_addr(empty)};
    float *logits = (float *)(smem + (stages - start) + Tile::STAGES * Tile::STAGE);
    const bool consumes = threadIdx.x / 32 < Tile::WARPS;
    float acc[Tile::SUMS] = {};

    if (threadIdx.x < Tile::STAGES) {
        mbarrier_init(ring.full + threadIdx.x * 8, 2); /* weights and rows */
        mbarrier_init(ring.empty + threadIdx.x * 8, CLUSTER * Tile::WARPS);
    }
    if (threadIdx.x < Tile::N)
        bias[threadIdx.x] = (int)threadIdx.x < p.M ? p.bias[threadIdx.x] : 0.0f;
    fence_mbarrier_init();
    __syncthreads();
    barrier_cluster_arrive_relaxed(); /* the other block copies into this one */
    barrier_cluster_wait();
    griddepcontrol_launch_dependents();
    if (consumes) {
        consume<Tile>(p.units, ring, acc);
        store_logits<Tile>(acc, bias, logits);
    } else {
        if (elect_one())
            produce<Tile>(&w, &a, p.units, ring);
        __syncwarp();
    }
    __syncthreads();
    if (consumes)
        choose_rows<Tile>(p, logits);
}

template <class Tile>
static cudaError_t launch(cudaStream_t s, const CUtensorMap &w, const CUtensorMap &a,
                          const large_params &p)
{
    const int64_t blocks = ((int64_t)p.T + ROWS - 1) / ROWS;

    return dense_launch(router_large_kernel<Tile>, s,
                        dim3((unsigned)((blocks + CLUSTER - 1) / CLUSTER * CLUSTER)), Tile::THREADS,
                        Tile::SMEM, CLUSTER, w, a, p);
}

bool td_cuda_router_large_fits(const td_router_args *a)
{
    return td_cuda_format(a->w) == CUDA_BF16 && a->M <= MOST_M && a->D % 8 == 0 &&
           (uintptr_t)a->t % 16 == 0;
}

td_status td_cuda_router_large(td_stream *s, const td_router_args *a, td_error *err)
{
    const int experts = a->M <= 32 ? 32 : a->M <= 64 ? 64 : MOST_M;
    CUtensorMap w, t;
    large_params p = {};
    td_status st = td_tensor_map_rows(a->w->mem.ptr, a->M, a->D, td_cuda_pitch(a->D),
                                      experts / CLUSTER, &w, err);
    cudaError_t e;

    if (st == TD_OK)
        st = td_tensor_map_rows(a->t, a->T, a->D, a->D, ROWS, &t, err);
    if (st != TD_OK)
        return st;
    p.bias = td_cuda_vector(a->bias);
    p.live = a->live;
    p.idx = a->idx;
    p.prob = a->prob;
    p.T = a->T;
    p.M = a->M;
    p.k = a->k;
    p.units = (int32_t)(td_cuda_pitch(a->D) / 64);
    switch (experts) {
    case 32: e = launch<large_32>(s->handle, w, t, p); break;
    case 64: e = launch<large_64>(s->handle, w, t, p); break;
    default: e = launch<large_128>(s->handle, w, t, p);
    }
    return td_cuda_status(err, e, "router");
}
