/* experts_fp8.cuh: the grouped product of the experts' FP8 kernels, [rows, K] x [N, K]^T an expert.
 *
 * A block (three warpgroups, one block an SM) walks over tiles of 128 rows of activations by 192
 * rows of weights. One thread of the last warpgroup keeps a ring of stages filled by the copy
 * engine: 128 columns of either operand and their scales. The first two warpgroups multiply, 64
 * rows each: four wgmma into fresh registers ("raw"), then acc += row scale * weight scale * raw in
 * f32, because the tensor cores keep about 14 bits of a long sum and because scales change with the
 * block. The two take turns in issuing, so that one promotes while the other's multiplies run; left
 * to themselves, both wait for the tensor cores and then both promote, and a sixth of the time is
 * lost. acc starts at the bias, which therefore never meets the short sums.
 *
 * Two blocks form a cluster and take two tiles at a time: the same weights and two lots of rows
 * where the expert has them, so that each block fetches half of the weights for both; else, for the
 * odd lot at the end, the same rows and two lots of weights. L2 delivers 28 or 32 KB a block and
 * stage instead of 40: 3% faster than single blocks with 32 experts, 5 to 10% with 128.
 *
 * One H200, 2026-11-30, 8192 tokens of 32 experts, random data, launches between events: 1,124
 * TFLOP/s for both products (1,027 and less in a
 * longer run, probably for want of power). ncu sees the tensor cores busy for 61 to 64% of the time
 * at 1.66 GHz. With the copies left out it is 8% faster, with the epilogue left out 3%. Tried and
 * not faster: three warpgroups of 64 x 128, letting one warpgroup lead by some stages, halves of
 * the columns in two sets of raw registers.
 *
 * With 128 experts (256 rows each) the step takes 1,880 us, 870 TFLOP/s. ncu, gate_up and down: the
 * tensor cores 62 and 59% busy at 1.54 and 1.57 GHz (the board is at its 700 W), L2 at 79 and 85%
 * of its rate, memory at 50 and 56%. Tried in the same runs and slower: weights as the multiplies'
 * rows, 256 of them by equal lots of up to 144 tokens (2,026; L2 at 58%, tensor cores at 47%; 1,627
 * with its copies left out), the same with promotions every 256 columns (2,031; with 32 experts
 * 1,660 where this takes 1,618), weights brought into L2 six stages ahead (2,207 beside 1,838);
 * clusters of four for gate_up, two lots by two tiles, which fetch 20 KB a block and stage (1,959
 * beside 1,902, and 1,674 beside 1,622 with 32 experts), and for down as well (2,072 and 1,748):
 * only 32 such clusters fit where 66 pairs do, and four blocks wait for the slowest of them.
 *
 * Order of units: experts in turn; weights outermost, so that they come from memory once and the
 * expert's activations stay in L2. Every sum has one order, whatever else is in the tile. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_FP8_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_FP8_CUH

#include "kernels/cuda/experts_fp8_tile.cuh"

namespace fp8
{
constexpr int ROWS = TD_FP8_ROWS, COLS = TD_FP8_COLS, BLOCK = TD_FP8_BLOCK;
constexpr int CONSUMERS = 256, THREADS = 384;
constexpr int A_BYTES = ROWS * BLOCK, B_BYTES = COLS * BLOCK;
constexpr int A_SCALES = ROWS * 4, B_SCALES = 16;

constexpr int MOST_EXPERTS = 1024;

template <int STAGES> struct gemm_smem {
    uint8_t a[STAGES][A_BYTES]; /* 1024-byte boundaries, as the swizzle wants */
    uint8_t b[STAGES][B_BYTES];
    float a_scale[STAGES][ROWS];
    float b_scale[STAGES][4];
    uint64_t full[STAGES], empty[STAGES];
    int32_t row_start[MOST_EXPERTS], rows[MOST_EXPERTS], unit_start[MOST_EXPERTS + 1];
};

/* Units of an expert of `lots` lots of 128 rows: what a cluster takes at a time. */
template <int CLUSTER> TD_HD int fp8_units(int lots, int tiles)
{
    return CLUSTER == 1 ? lots * tiles : lots / 2 * tiles + lots % 2 * ((tiles + 1) / 2);
}

/* This block's tile of a unit. */
struct work {
    int expert, m, n; /* m: first row of activations; n: tile of weights, maybe past the last */
    int rows;         /* 0: nothing for this block, whose copies the other half may need */
    bool same_weights;
};

/* Units come in rising order, so experts are passed over once. */
template <int CLUSTER, class SMEM>
__device__ __forceinline__ work find_work(const SMEM &s, int unit, int rank, int tiles, int &e)
{
    while (unit >= s.unit_start[e + 1])
        e++;
    const int start = s.row_start[e], rows = s.rows[e];
    const int lots = (rows + ROWS - 1) / ROWS, local = unit - s.unit_start[e];
    work w;
    int lot;

    w.expert = e;
    if (CLUSTER == 1) {
        w.n = local / lots;
        lot = local % lots;
        w.same_weights = false;
    } else if (local < lots / 2 * tiles) {
        w.n = local / (lots / 2);
        lot = local % (lots / 2) * 2 + rank;
        w.same_weights = true;
    } else {
        w.n = (local - lots / 2 * tiles) * 2 + rank;
        lot = lots - 1;
        w.same_weights = false;
    }
    w.m = start + lot * ROWS;
    w.rows = w.n < tiles ? min(rows - lot * ROWS, ROWS) : 0;
    return w;
}

/* The thread that copies. */
template <bool GATE_UP, int CLUSTER, int STAGES>
__device__ void produce(gemm_smem<STAGES> &s, const CUtensorMap *a_map, const CUtensorMap *b_map,
                        const CUtensorMap *s_map, const gemm_params &p, int rank)
{
    constexpr int A_BOX = ROWS / CLUSTER, B_BOX = COLS / CLUSTER;
    constexpr uint32_t BYTES = A_BYTES + B_BYTES + B_SCALES + (GATE_UP ? A_SCALES : 0);
    const int blocks = (p.K + BLOCK - 1) / BLOCK;
    ring_place<STAGES> at = {0, 1};
    int e = 0;

    fence_proxy_async(); /* rows of a were written by ordinary stores */
    for (int u = blockIdx.x / CLUSTER; u < s.unit_start[p.E]; u += gridDim.x / CLUSTER) {
        const work w = find_work<CLUSTER>(s, u, rank, p.tiles, e);
        const int n0 = w.n * COLS;
        /* Past the last tile: any scales will do. */
        const float *scale =
            p.scale + ((int64_t)w.expert * blocks * p.tiles + min(w.n, p.tiles - 1)) * 4;

        for (int k = 0; k < blocks; k++, at.next(), scale += p.tiles * 4) {
            const uint32_t bar = smem_addr(&s.full[at.stage]), a = smem_addr(s.a[at.stage]),
                           b = smem_addr(s.b[at.stage]);

            mbarrier_wait(smem_addr(&s.empty[at.stage]), at.parity);
            mbarrier_arrive_expect_tx(bar, BYTES);
            if (CLUSTER == 1) {
                cp_async_tensor_2d(a, a_map, k * BLOCK, w.m, bar, L2_EVICT_NORMAL);
                cp_async_tensor_3d(b, b_map, k * BLOCK, n0, w.expert, bar, L2_EVICT_NORMAL);
            } else if (w.same_weights) {
                for (int i = 0; i < CLUSTER; i++)
                    cp_async_tensor_2d(a + i * A_BOX * BLOCK, a_map, k * BLOCK, w.m + i * A_BOX,
                                       bar, L2_EVICT_NORMAL);
                cp_async_tensor_3d_multicast(b + rank * B_BOX * BLOCK, b_map, k * BLOCK,
                                             n0 + rank * B_BOX, w.expert, bar, 3, L2_EVICT_NORMAL);
            } else {
                cp_async_tensor_2d_multicast(a + rank * A_BOX * BLOCK, a_map, k * BLOCK,
                                             w.m + rank * A_BOX, bar, 3, L2_EVICT_NORMAL);
                for (int i = 0; i < CLUSTER; i++)
                    cp_async_tensor_3d(b + i * B_BOX * BLOCK, b_map, k * BLOCK, n0 + i * B_BOX,
                                       w.expert, bar, L2_EVICT_NORMAL);
            }
            if (GATE_UP)
                cp_async_tensor_2d(smem_addr(s.a_scale[at.stage]), s_map, w.m, k, bar,
                                   L2_EVICT_NORMAL);
            cp_async_bulk(smem_addr(s.b_scale[at.stage]), scale, B_SCALES, bar, L2_EVICT_NORMAL);
        }
    }
}

/* Turns: a warpgroup issues after the other has. Each calls both as often as the other, idle or
 * not, from turns_open() to turns_close(). */
__device__ __forceinline__ void turns_open(int warpgroup)
{
    if (warpgroup == 1)
        bar_arrive(1, CONSUMERS); /* the first turn is the other's */
}
__device__ __forceinline__ void turn_begin(int warpgroup)
{
    bar_sync(1 + warpgroup, CONSUMERS);
}
__device__ __forceinline__ void turn_end(int warpgroup)
{
    bar_arrive(2 - warpgroup, CONSUMERS);
}
__device__ __forceinline__ void turns_close(int warpgroup)
{
    if (warpgroup == 0)
        bar_sync(1, CONSUMERS); /* the turn that would be next */
}

/* A stage has been read by this warp: one arrival at every block that writes into it. */
template <int CLUSTER, int STAGES>
__device__ __forceinline__ void release(gemm_smem<STAGES> &s, int stage, int lane)
{
    __syncwarp();
    if (CLUSTER == 1) {
        if (lane < WARP_ARRIVALS)
            mbarrier_arrive(smem_addr(&s.empty[stage]));
    } else if (WARP_ARRIVALS > 1) {
        for (int i = 0; i < CLUSTER; i++)
            mbarrier_arrive_cluster(smem_addr(&s.empty[stage]), i);
    } else if (lane < CLUSTER) {
        mbarrier_arrive_cluster(smem_addr(&s.empty[stage]), lane);
    }
}

/* What a warpgroup does of a tile: 64 rows each of up to 128; of at most 64, all of them in half of
 * the columns each, because one warpgroup alone leaves the tensor cores waiting while it promotes.
 */
struct part {
    int row, slice; /* the first, in the tile */
    int r0;         /* this thread's rows are r0 and r0 + 8 */
};

template <int SLICES> __device__ __forceinline__ part find_part()
{
    const int t = threadIdx.x % 128, warpgroup = threadIdx.x / 128;
    const int row = SLICES == 6 ? 64 * warpgroup : 0;

    return {row, SLICES == 6 ? 0 : 3 * warpgroup, row + t / 32 * 16 + t % 32 / 4};
}

/* One stage, of which the first STEPS times 32 columns count. */
template <bool GATE_UP, int SLICES, int STEPS, int CLUSTER, int STAGES>
__device__ __forceinline__ void multiply(gemm_smem<STAGES> &s, ring_place<STAGES> &at,
                                         float (&acc)[16 * SLICES], float (&raw)[16 * SLICES],
                                         const part &my, float scale)
{
    const int warpgroup = threadIdx.x / 128;
    const uint64_t a = wgmma_desc(smem_addr(s.a[at.stage]) + my.row * BLOCK);
    const uint64_t b = wgmma_desc(smem_addr(s.b[at.stage]) + my.slice * 32 * BLOCK);
    float col[SLICES];

    mbarrier_wait(smem_addr(&s.full[at.stage]), at.parity);
    turn_begin(warpgroup);
    wgmma_fence();
    wgmma_e4m3<0>(raw, a, b);
#pragma unroll
    for (int i = 1; i < STEPS; i++)
        wgmma_e4m3<1>(raw, a + 2 * i, b + 2 * i);
    wgmma_commit();
    turn_end(warpgroup);
    const float row0 = GATE_UP ? s.a_scale[at.stage][my.r0] : scale;
    const float row1 = GATE_UP ? s.a_scale[at.stage][my.r0 + 8] : scale;
#pragma unroll
    for (int i = 0; i < SLICES; i++)
        col[i] = s.b_scale[at.stage][(my.slice + i) / 2];
    wgmma_wait<0>();
    wgmma_pin(raw);
    release<CLUSTER>(s, at.stage, threadIdx.x % 32);
    promote<SLICES>(acc, raw, row0, row1, col);
    at.next();
}

template <bool GATE_UP, int SLICES, int CLUSTER, int STAGES>
__device__ __forceinline__ void make_tile(gemm_smem<STAGES> &s, ring_place<STAGES> &at,
                                          const gemm_params &p, const work &w)
{
    const part my = find_part<SLICES>();
    const int q = threadIdx.x % 4, last = p.K % BLOCK / 32;
    float raw[16 * SLICES] = {}, acc[16 * SLICES];

    start_at_bias<SLICES>(acc, p, w.expert, w.n * COLS, my.slice, q);
    for (int k = 0; k < p.K / BLOCK; k++)
        multiply<GATE_UP, SLICES, 4, CLUSTER>(s, at, acc, raw, my, p.a_scale);
    if (last == 1)
        multiply<GATE_UP, SLICES, 1, CLUSTER>(s, at, acc, raw, my, p.a_scale);
    else if (last == 2)
        multiply<GATE_UP, SLICES, 2, CLUSTER>(s, at, acc, raw, my, p.a_scale);
    else if (last == 3)
        multiply<GATE_UP, SLICES, 3, CLUSTER>(s, at, acc, raw, my, p.a_scale);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            const int r = my.r0 + 8 * half, col = slice_column(w.n * COLS, my.slice + i, q);

            if (r < w.rows && col < p.N)
                store_slice<GATE_UP>(&acc[16 * i + 2 * half], p, w.m + r, col);
        }
}

/* No tile: the other block of the cluster has one. */
template <int CLUSTER, int STAGES>
__device__ __forceinline__ void pass_tile(gemm_smem<STAGES> &s, ring_place<STAGES> &at, int blocks)
{
    const int warpgroup = threadIdx.x / 128;

    for (int k = 0; k < blocks; k++, at.next()) {
        mbarrier_wait(smem_addr(&s.full[at.stage]), at.parity);
        turn_begin(warpgroup);
        turn_end(warpgroup);
        release<CLUSTER>(s, at.stage, threadIdx.x % 32);
    }
}

template <bool GATE_UP, int CLUSTER, int STAGES>
__device__ __forceinline__ void consume(gemm_smem<STAGES> &s, const gemm_params &p, int rank)
{
    ring_place<STAGES> at = {0, 0};
    int e = 0;

    turns_open(threadIdx.x / 128);
    for (int u = blockIdx.x / CLUSTER; u < s.unit_start[p.E]; u += gridDim.x / CLUSTER) {
        const work w = find_work<CLUSTER>(s, u, rank, p.tiles, e);

        if (w.rows == 0)
            pass_tile<CLUSTER>(s, at, (p.K + BLOCK - 1) / BLOCK);
        else if (w.rows <= 64)
            make_tile<GATE_UP, 3, CLUSTER>(s, at, p, w);
        else
            make_tile<GATE_UP, 6, CLUSTER>(s, at, p, w);
    }
    turns_close(threadIdx.x / 128);
}

template <bool GATE_UP, int CLUSTER, int STAGES>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap a_map,
                const __grid_constant__ CUtensorMap b_map,
                const __grid_constant__ CUtensorMap s_map, const __grid_constant__ gemm_params p)
{
    extern __shared__ uint8_t shared[];
    gemm_smem<STAGES> &s = *(gemm_smem<STAGES> *)(shared + (-smem_addr(shared) & 1023));
    const int rank = CLUSTER > 1 ? (int)cluster_ctarank() : 0;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_addr(&s.full[i]), 1);
            mbarrier_init(smem_addr(&s.empty[i]), CLUSTER * WARP_ARRIVALS * CONSUMERS / 32);
        }
        fence_mbarrier_init();
    } else if (threadIdx.x == CONSUMERS) {
        tensor_map_prefetch(&a_map);
        tensor_map_prefetch(&b_map);
        if (GATE_UP)
            tensor_map_prefetch(&s_map);
    }
    griddepcontrol_launch_dependents();
    griddepcontrol_wait(); /* from here on, what earlier kernels wrote */
    for (int i = threadIdx.x; i <= p.E; i += THREADS) {
        if (i < p.E) {
            s.row_start[i] = p.row_start[i];
            s.rows[i] = p.rows[i];
        }
        s.unit_start[i] = p.unit_start[i];
    }

    if (CLUSTER > 1)
        barrier_cluster_sync(); /* the barriers exist before the other block's copies end on them */
    else
        __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == CONSUMERS)
            produce<GATE_UP, CLUSTER>(s, &a_map, &b_map, &s_map, p, rank);
        __syncwarp();
    } else {
        setmaxnreg_inc<232>();
        consume<GATE_UP, CLUSTER>(s, p, rank);
        __syncwarp();
    }
    if (CLUSTER > 1)
        barrier_cluster_sync(); /* the other block still arrives here and writes here */
}
} // namespace fp8

#endif
