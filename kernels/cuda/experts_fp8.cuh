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
 * stage instead of 40, and at full rate it could not deliver 40.
 *
 * Order of units: experts in turn; weights outermost, so that they come from memory once and the
 * expert's activations stay in L2. Every sum has one order, whatever else is in the tile. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_FP8_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_FP8_CUH

#include "kernels/cuda/experts_fp8.h"
#include "kernels/cuda/hopper.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace fp8
{
constexpr int ROWS = TD_FP8_ROWS, COLS = TD_FP8_COLS, BLOCK = TD_FP8_BLOCK;
constexpr int CONSUMERS = 256, THREADS = 384;
constexpr int A_BYTES = ROWS * BLOCK, B_BYTES = COLS * BLOCK;
constexpr int A_SCALES = ROWS * 4, B_SCALES = 16;

constexpr int MOST_EXPERTS = 1024;

struct gemm_params {
    const int32_t *row_start, *rows, *unit_start; /* [E + 1] of the plan */
    const float *scale;                           /* weights': [E][KB][NT][4] */
    const float *bias;                            /* [E * N] or NULL */
    void *out;
    int64_t ldo; /* bytes from row to row of out */
    int E, N, K, tiles;
    float a_scale, h_scale, limit;
};

template <int STAGES> struct gemm_smem {
    uint8_t a[STAGES][A_BYTES]; /* 1024-byte boundaries, as the swizzle wants */
    uint8_t b[STAGES][B_BYTES];
    float a_scale[STAGES][ROWS];
    float4 b_scale[STAGES];
    uint64_t full[STAGES], empty[STAGES];
    int32_t row_start[MOST_EXPERTS], rows[MOST_EXPERTS], unit_start[MOST_EXPERTS + 1];
};

/* c = a[64, 32] b[192, 32]^T (+ c if ADD). Lane l of warp w of the warpgroup holds, with g = l / 4
 * and q = l % 4: c[4 j + 0, 1] = row 16 w + g, columns 8 j + 2 q and the next; c[4 j + 2, 3] = row
 * 16 w + g + 8, the same columns. */
template <int ADD>
__device__ __forceinline__ void wgmma_m64n192k32(float (&c)[96], uint64_t a, uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, %98, 1, 1;\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
          "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
          "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
          "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
          "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
          "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
          "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
          "+f"(c[63]), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]),
          "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]),
          "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),
          "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]),
          "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95])
        : "l"(a), "l"(b), "n"(ADD));
}

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
            cp_async_bulk(smem_addr(&s.b_scale[at.stage]), scale, B_SCALES, bar, L2_EVICT_NORMAL);
        }
    }
}

/* acc += scales * raw, the scales of the thread's two rows and of the tile's three groups. */
__device__ __forceinline__ void promote(float (&acc)[96], const float (&raw)[96], float row0,
                                        float row1, float4 col)
{
    const float c[3] = {col.x, col.y, col.z};

#pragma unroll
    for (int g = 0; g < 3; g++) {
        const float s0 = row0 * c[g], s1 = row1 * c[g];

#pragma unroll
        for (int i = 32 * g; i < 32 * g + 32; i += 4) {
            acc[i + 0] = __fmaf_rn(raw[i + 0], s0, acc[i + 0]);
            acc[i + 1] = __fmaf_rn(raw[i + 1], s0, acc[i + 1]);
            acc[i + 2] = __fmaf_rn(raw[i + 2], s1, acc[i + 2]);
            acc[i + 3] = __fmaf_rn(raw[i + 3], s1, acc[i + 3]);
        }
    }
}

/* The bias of this thread's 16 consecutive columns of each group; zeros past the last column. */
__device__ __forceinline__ void start_at_bias(float (&acc)[96], const gemm_params &p, int expert,
                                              int n0, int q)
{
#pragma unroll
    for (int g = 0; g < 3; g++) {
        const int col = n0 + 64 * g + 16 * q;
        const bool here = p.bias != NULL && col < p.N;
        const float4 *b = (const float4 *)(p.bias + (int64_t)expert * p.N + col);

#pragma unroll
        for (int i = 0; i < 4; i++) { /* two of the eight pairs (j) */
            const float4 v = here ? __ldg(b + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float *c = &acc[32 * g + 8 * i];

            c[0] = c[2] = v.x;
            c[1] = c[3] = v.y;
            c[4] = c[6] = v.z;
            c[5] = c[7] = v.w;
        }
    }
}

/* NaN stays NaN: comparisons with it are false. */
__device__ __forceinline__ float swiglu(float g, float u, float limit)
{
    float e, r;

    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    e = ex2_approx(g * (-1.702f * 1.44269504f)); /* inf for a very negative gate: g / inf is 0 */
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(1.0f + e));
    return g * r * (u + 1.0f);
}

__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d)
{
    const uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const uint32_t hi = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);

    return lo | hi << 16;
}

/* One of the thread's two rows (half), in the columns of one group: 8 of h, or 16 of y. */
template <bool GATE_UP>
__device__ __forceinline__ void store_group(const float (&acc)[96], const gemm_params &p, int g,
                                            int half, int64_t row, int col)
{
    char *out = (char *)p.out + row * p.ldo;
    const float *c = &acc[32 * g + 2 * half];

    if (GATE_UP) {
        float h[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            h[j] = swiglu(c[4 * j], c[4 * j + 1], p.limit) * p.h_scale;
        *(uint2 *)(out + col / 2) =
            make_uint2(pack_e4m3(h[0], h[1], h[2], h[3]), pack_e4m3(h[4], h[5], h[6], h[7]));
    } else {
        uint32_t w[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            w[j] = cvt_bf16x2(c[4 * j], c[4 * j + 1]);
        ((uint4 *)(out + col * 2))[0] = make_uint4(w[0], w[1], w[2], w[3]);
        ((uint4 *)(out + col * 2))[1] = make_uint4(w[4], w[5], w[6], w[7]);
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
        if (lane == 0)
            mbarrier_arrive(smem_addr(&s.empty[stage]));
    } else if (lane < CLUSTER) {
        mbarrier_arrive_cluster(smem_addr(&s.empty[stage]), lane);
    }
}

/* One stage, of which the first STEPS times 32 columns count. */
template <bool GATE_UP, int STEPS, int CLUSTER, int STAGES>
__device__ __forceinline__ void multiply(gemm_smem<STAGES> &s, ring_place<STAGES> &at,
                                         float (&acc)[96], float (&raw)[96], int warpgroup, int r0,
                                         float scale)
{
    const uint64_t a = wgmma_desc(smem_addr(s.a[at.stage]) + warpgroup * 64 * BLOCK);
    const uint64_t b = wgmma_desc(smem_addr(s.b[at.stage]));

    mbarrier_wait(smem_addr(&s.full[at.stage]), at.parity);
    turn_begin(warpgroup);
    wgmma_fence();

    wgmma_m64n192k32<0>(raw, a, b);
#pragma unroll
    for (int i = 1; i < STEPS; i++)
        wgmma_m64n192k32<1>(raw, a + 2 * i, b + 2 * i);
    wgmma_commit();
    turn_end(warpgroup);
    const float4 col = s.b_scale[at.stage];
    const float row0 = GATE_UP ? s.a_scale[at.stage][r0] : scale;
    const float row1 = GATE_UP ? s.a_scale[at.stage][r0 + 8] : scale;
    wgmma_wait<0>();
    wgmma_pin(raw);
    release<CLUSTER>(s, at.stage, threadIdx.x % 32);
    promote(acc, raw, row0, row1, col);
    at.next();
}

template <bool GATE_UP, int CLUSTER, int STAGES>
__device__ __forceinline__ void consume(gemm_smem<STAGES> &s, const gemm_params &p, int rank)
{
    const int lane = threadIdx.x % 32, warpgroup = threadIdx.x / 128;
    const int q = lane % 4, r0 = threadIdx.x / 32 * 16 + lane / 4; /* row of the tile; and + 8 */
    const int blocks = (p.K + BLOCK - 1) / BLOCK, last = p.K % BLOCK / 32;
    ring_place<STAGES> at = {0, 0};
    float raw[96] = {}, acc[96];
    int e = 0;

    turns_open(warpgroup);
    for (int u = blockIdx.x / CLUSTER; u < s.unit_start[p.E]; u += gridDim.x / CLUSTER) {
        const work w = find_work<CLUSTER>(s, u, rank, p.tiles, e);

        if (w.rows <= 64 * warpgroup) {
            for (int k = 0; k < blocks; k++, at.next()) {
                mbarrier_wait(smem_addr(&s.full[at.stage]), at.parity);
                turn_begin(warpgroup);
                turn_end(warpgroup);
                release<CLUSTER>(s, at.stage, lane);
            }
            continue;
        }
        start_at_bias(acc, p, w.expert, w.n * COLS, q);
        for (int k = 0; k < p.K / BLOCK; k++)
            multiply<GATE_UP, 4, CLUSTER>(s, at, acc, raw, warpgroup, r0, p.a_scale);
        if (last == 1)
            multiply<GATE_UP, 1, CLUSTER>(s, at, acc, raw, warpgroup, r0, p.a_scale);
        else if (last == 2)
            multiply<GATE_UP, 2, CLUSTER>(s, at, acc, raw, warpgroup, r0, p.a_scale);
        else if (last == 3)
            multiply<GATE_UP, 3, CLUSTER>(s, at, acc, raw, warpgroup, r0, p.a_scale);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = r0 + 8 * half;

            if (r < w.rows)
#pragma unroll
                for (int g = 0; g < 3; g++) {
                    const int n = w.n * COLS + 64 * g + 16 * q;

                    if (n < p.N)
                        store_group<GATE_UP>(acc, p, g, half, w.m + r, n);
                }
        }
    }
    turns_close(warpgroup);
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
            mbarrier_init(smem_addr(&s.empty[i]), CLUSTER * CONSUMERS / 32);
        }
        fence_mbarrier_init();
    } else if (threadIdx.x == CONSUMERS) {
        tensor_map_prefetch(&a_map);
        tensor_map_prefetch(&b_map);
        if (GATE_UP)
            tensor_map_prefetch(&s_map);
    }
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
