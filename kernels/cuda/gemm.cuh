/* gemm: the kernel behind gemm.h, on mma.sync with a ring of tiles in shared memory.
 *
 * A block computes BM rows of activations by BN rows of weights, 64 columns of both at a time. The
 * ring is filled by cp.async; bf16 rows of 128 bytes are swizzled (16-byte chunk c of row r lies at
 * c ^ (r & 7)), so that ldmatrix meets no bank twice. MXFP4 units are copied as they are, 4.25 bits
 * a weight, and become bf16 in registers on their way into the mma.
 *
 * grid.x walks rows (for experts: tiles of the list), grid.y columns: blocks that run together
 * share weights. Rows past the end are zeros on the way in and not stored. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_CUH
#define TANDEM_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ptx.cuh"

enum gemm_epilogue { EPI_BF16, EPI_F32, EPI_ROUTER, EPI_SWIGLU };

struct gemm_params {
    const __nv_bfloat16 *a;
    int64_t lda;
    const int32_t *row; /* which row of a; NULL: the same */
    const uint8_t *w;
    int64_t expert_bytes;  /* from one expert's weights to the next's */
    const float *bias;     /* NULL, or N an expert */
    const cuda_tile *tile; /* NULL: dense */
    const int32_t *n_tiles;
    void *out;
    int64_t ldo;
    int32_t M, N, K;
    float w_scale; /* the product's power of two; 1 for bf16 */
    float limit;
    bool a_fast;   /* rows of a begin at 16-byte boundaries */
    bool out_pair; /* two neighbours can be stored as one */
};

template <int BM_, int BN_, int WARPS_M_, int WARPS_N_, int STAGES_, int BLOCKS_> struct gemm_tile {
    static const int BM = BM_, BN = BN_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, STAGES = STAGES_;
    static const int BLOCKS = BLOCKS_; /* on one multiprocessor */
    static const int THREADS = 32 * WARPS_M * WARPS_N;
    static const int MI = BM / WARPS_M / 16, NI = BN / WARPS_N / 8;
    static const int A_BYTES = BM * 128;
    static const int A_ITERS = BM * 8 / THREADS; /* 16-byte chunks a thread copies */
};
/* Bytes in flight on a multiprocessor, all stages but one: 128 x 128: 2 x 64 KiB; 64 x 64: 3 x
 * 48 KiB; 16 x 32: up to 4 x 42 KiB of bf16. About 26 KiB hide the memory's latency. */
typedef gemm_tile<16, 32, 1, 4, 8, 4> tile_s;
typedef gemm_tile<64, 64, 2, 2, 4, 3> tile_m;
typedef gemm_tile<128, 128, 2, 4, 3, 2> tile_l;

/* Weights as bf16 rows. */
template <class Tile> struct weights_bf16 {
    static const int BYTES = Tile::BN * 128;
    static const int ITERS = Tile::BN * 8 / Tile::THREADS;

    const uint8_t *src[ITERS]; /* this thread's chunks of the first step; 128 bytes a step on */
    uint32_t size[ITERS];
    int row, chunk;

    __device__ void init(const gemm_params &p, const uint8_t *w, int n0)
    {
        const int64_t pitch = (p.K + 63) / 64 * (int64_t)128;

        row = threadIdx.x / 8;
        chunk = threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < ITERS; i++) {
            const int n = n0 + row + i * (Tile::THREADS / 8);

            size[i] = n < p.N ? 16 : 0;
            src[i] = w + (n < p.N ? n : 0) * pitch + chunk * 16;
        }
    }
    __device__ void load(uint32_t smem, int kb) const
    {
#pragma unroll
        for (int i = 0; i < ITERS; i++) {
            const int r = row + i * (Tile::THREADS / 8);

            cp_async_16(smem + r * 128 + (chunk ^ (r & 7)) * 16, src[i] + (int64_t)kb * 128,
                        size[i]);
        }
    }
    /* The warp's weights of one 32-column block: [ni][k16 step * 2 + half]. */
    __device__ static void fragment(uint32_t (&b)[Tile::NI][4], uint32_t smem, int n_warp,
                                    int block)
    {
        const int lane = threadIdx.x % 32, r = lane & 7, c = block * 4 + lane / 8;

#pragma unroll
        for (int ni = 0; ni < Tile::NI; ni++)
            ldmatrix_x4(b[ni], smem + (n_warp + ni * 8 + r) * 128 + (c ^ r) * 16);
    }
};

/* Weights as MXFP4 units. */
template <class Tile> struct weights_mxfp4 {
    static const int SLABS = Tile::BN / TD_MX_ROWS, CHUNKS = SLABS * (TD_MX_UNIT / 16);
    static const int BYTES = SLABS * TD_MX_UNIT;
    static const int ITERS = (CHUNKS + Tile::THREADS - 1) / Tile::THREADS;

    const uint8_t *src[ITERS]; /* one unit a step on */
    uint32_t size[ITERS];

    __device__ void init(const gemm_params &p, const uint8_t *w, int n0)
    {
        const int64_t slab_bytes = td_mx_units(p.K) * TD_MX_UNIT;
        const int slabs = (int)td_mx_slabs(p.N);

#pragma unroll
        for (int i = 0; i < ITERS; i++) {
            const int c = threadIdx.x + i * Tile::THREADS;
            const int slab = n0 / TD_MX_ROWS + c / (TD_MX_UNIT / 16);
            const bool there = c < CHUNKS && slab < slabs;

            size[i] = there ? 16 : 0;
            src[i] = w + (there ? slab : 0) * slab_bytes + c % (TD_MX_UNIT / 16) * 16;
        }
    }
    __device__ void load(uint32_t smem, int kb) const
    {
#pragma unroll
        for (int i = 0; i < ITERS; i++) {
            const int c = threadIdx.x + i * Tile::THREADS;

            if (CHUNKS % Tile::THREADS == 0 || c < CHUNKS)
                cp_async_16(smem + c * 16, src[i] + (int64_t)kb * TD_MX_UNIT, size[i]);
        }
    }
    __device__ static void fragment(uint32_t (&b)[Tile::NI][4], uint32_t smem, int n_warp,
                                    int block)
    {
        const int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;

#pragma unroll
        for (int ni = 0; ni < Tile::NI; ni++) {
            const int row = n_warp + ni * 8; /* of the tile; r rows on, this lane's */
            const uint32_t unit = smem + row / TD_MX_ROWS * TD_MX_UNIT;
            const uint32_t w = ld_shared_32(unit + td_mx_word_at(row % TD_MX_ROWS + r, q, block));
            const uint32_t f =
                td_mx_factor(ld_shared_8(unit + td_mx_scale_at(row % TD_MX_ROWS + r, block)));

#pragma unroll
            for (int i = 0; i < 4; i++)
                b[ni][i] = mul_bf16x2(td_mx_pair(w, i), f);
        }
    }
};

/* Activations: rows by 8 threads each, gathered if there is a list. */
template <class Tile> struct activations {
    const __nv_bfloat16 *src[Tile::A_ITERS];
    int row, chunk;
    uint32_t there; /* bit i: row i exists */

    __device__ void init(const gemm_params &p, int m0, int rows)
    {
        row = threadIdx.x / 8;
        chunk = threadIdx.x % 8;
        there = 0;
#pragma unroll
        for (int i = 0; i < Tile::A_ITERS; i++) {
            const int m = row + i * (Tile::THREADS / 8);
            int64_t from = 0;

            if (m < rows) {
                there |= 1u << i;
                from = p.row != NULL ? p.row[m0 + m] : m0 + m;
            }
            src[i] = p.a + from * p.lda;
        }
    }
    __device__ void load(const gemm_params &p, uint32_t smem, int kb) const
    {
        const int k = kb * 64 + chunk * 8, left = p.K - k; /* elements from here to the row's end */

#pragma unroll
        for (int i = 0; i < Tile::A_ITERS; i++) {
            const int r = row + i * (Tile::THREADS / 8);
            const uint32_t dst = smem + r * 128 + (chunk ^ (r & 7)) * 16;
            const int n = (there >> i & 1) == 0 || left <= 0 ? 0 : left < 8 ? left : 8;

            if (p.a_fast) {
                cp_async_16(dst, n > 0 ? src[i] + k : src[i], n * 2);
            } else { /* odd widths: element by element, seen by others after the next barrier */
                uint32_t v[4] = {0, 0, 0, 0};

#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (j < n)
                        v[j / 2] |= (uint32_t)((const uint16_t *)src[i])[k + j] << (j % 2 * 16);
                st_shared_128(dst, make_uint4(v[0], v[1], v[2], v[3]));
            }
        }
    }
    /* The warp's rows of one k16 step. */
    __device__ static void fragment(uint32_t (&a)[Tile::MI][4], uint32_t smem, int m_warp, int k16)
    {
        const int lane = threadIdx.x % 32, r = (lane & 7) + (lane >> 3 & 1) * 8;
        const int c = k16 * 2 + (lane >> 4);

#pragma unroll
        for (int mi = 0; mi < Tile::MI; mi++)
            ldmatrix_x4(a[mi], smem + (m_warp + mi * 16 + r) * 128 + (c ^ (r & 7)) * 16);
    }
};

/* One 64-column step: acc += a w^T. */
template <class Tile, class Weights>
__device__ __forceinline__ void gemm_step(float (&acc)[Tile::MI][Tile::NI][4], uint32_t a_smem,
                                          uint32_t w_smem, int m_warp, int n_warp)
{
#pragma unroll
    for (int block = 0; block < 2; block++) {
        uint32_t b[Tile::NI][4];

        Weights::fragment(b, w_smem, n_warp, block);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[Tile::MI][4];

            activations<Tile>::fragment(a, a_smem, m_warp, block * 2 + half);
#pragma unroll
            for (int mi = 0; mi < Tile::MI; mi++)
#pragma unroll
                for (int ni = 0; ni < Tile::NI; ni++)
                    mma_m16n8k16(acc[mi][ni], a[mi], b[ni][half * 2], b[ni][half * 2 + 1]);
        }
    }
}

/* gate and up, clamped and combined; a NaN stays one. */
__device__ __forceinline__ float gemm_swiglu(float gate, float up, float limit)
{
    const float g = gate > limit ? limit : gate;
    const float u = up > limit ? limit : up < -limit ? -limit : up;
    const float s = __fdiv_rn(g, __fadd_rn(1.0f, expf(__fmul_rn(-1.702f, g))));

    return __fmul_rn(s, __fadd_rn(u, 1.0f));
}

/* Two neighbouring sums of a row: columns n and n + 1, n even. */
template <int EPI>
__device__ __forceinline__ void gemm_store(const gemm_params &p, const float *bias, int64_t m,
                                           int n, float x, float y)
{
    const bool second = n + 1 < p.N;

    if (n >= p.N)
        return;
    x = __fmul_rn(x, p.w_scale);
    y = __fmul_rn(y, p.w_scale);
    if (bias != NULL) {
        x = __fadd_rn(x, bias[n]);
        y = second ? __fadd_rn(y, bias[n + 1]) : y;
    }
    if (EPI == EPI_SWIGLU) {
        ((__nv_bfloat16 *)p.out)[m * p.ldo + n / 2] =
            __float2bfloat16_rn(gemm_swiglu(x, y, p.limit));
    } else if (EPI == EPI_BF16) {
        __nv_bfloat16 *out = (__nv_bfloat16 *)p.out + m * p.ldo + n;

        if (p.out_pair && second) {
            *(uint32_t *)out = cvt_bf16x2(x, y);
        } else {
            out[0] = __float2bfloat16_rn(x);
            if (second)
                out[1] = __float2bfloat16_rn(y);
        }
    } else {
        float *out = (float *)p.out + m * p.ldo + n;

        if (p.out_pair && second) {
            *(float2 *)out = make_float2(x, y);
        } else {
            out[0] = x;
            if (second)
                out[1] = y;
        }
    }
}

template <class Tile, template <class> class Format, int EPI>
static __global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS)
    gemm_kernel(const __grid_constant__ gemm_params p)
{
    typedef Format<Tile> Weights;
    const int STAGE = Tile::A_BYTES + Weights::BYTES, STAGES = Tile::STAGES;
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t smem = smem_addr(ring);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int m_warp = warp / Tile::WARPS_N * (Tile::MI * 16);
    const int n_warp = warp % Tile::WARPS_N * (Tile::NI * 8);
    const int n0 = blockIdx.y * Tile::BN, steps = (p.K + 63) / 64;
    int m0 = blockIdx.x * Tile::BM, rows = p.M - m0, expert = 0;
    float acc[Tile::MI][Tile::NI][4] = {};
    activations<Tile> a;
    Weights w;

    if (p.tile != NULL) {
        if ((int)blockIdx.x >= *p.n_tiles)
            return;
        const cuda_tile t = p.tile[blockIdx.x];
        m0 = t.first;
        rows = t.rows;
        expert = t.expert;
    }
    a.init(p, m0, rows);
    w.init(p, p.w + expert * p.expert_bytes, n0);

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) {
            a.load(p, smem + s * STAGE, s);
            w.load(smem + s * STAGE + Tile::A_BYTES, s);
        }
        cp_async_commit();
    }
    for (int kb = 0; kb < steps; kb++) {
        const int next = kb + STAGES - 1;
        const uint32_t stage = smem + kb % STAGES * STAGE;

        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* step kb is here for all, and all are done with step kb - 1 */
        if (next < steps) {
            a.load(p, smem + next % STAGES * STAGE, next);
            w.load(smem + next % STAGES * STAGE + Tile::A_BYTES, next);
        }
        cp_async_commit();
        if (EPI == EPI_ROUTER) {
            float part[Tile::MI][Tile::NI][4] = {};

            gemm_step<Tile, Weights>(part, stage, stage + Tile::A_BYTES, m_warp, n_warp);
#pragma unroll
            for (int i = 0; i < Tile::MI; i++)
#pragma unroll
                for (int j = 0; j < Tile::NI; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        acc[i][j][e] = __fadd_rn(acc[i][j][e], part[i][j][e]);
        } else {
            gemm_step<Tile, Weights>(acc, stage, stage + Tile::A_BYTES, m_warp, n_warp);
        }
    }
    cp_async_wait<0>();

    const float *bias = p.bias != NULL ? p.bias + (int64_t)expert * p.N : NULL;
#pragma unroll
    for (int mi = 0; mi < Tile::MI; mi++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = m_warp + mi * 16 + half * 8 + lane / 4;

            if (m >= rows)
                continue;
#pragma unroll
            for (int ni = 0; ni < Tile::NI; ni++)
                gemm_store<EPI>(p, bias, m0 + m, n0 + n_warp + ni * 8 + lane % 4 * 2,
                                acc[mi][ni][half * 2], acc[mi][ni][half * 2 + 1]);
        }
}

template <class Tile, template <class> class Format, int EPI>
static cudaError_t gemm_launch(cudaStream_t s, const gemm_params &p, int64_t row_tiles)
{
    const int bytes = Tile::STAGES * (Tile::A_BYTES + Format<Tile>::BYTES);
    const dim3 grid((unsigned)row_tiles, (unsigned)((p.N + Tile::BN - 1) / Tile::BN));
    cudaError_t e = cudaFuncSetAttribute(gemm_kernel<Tile, Format, EPI>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);

    if (e != cudaSuccess)
        return e;
    gemm_kernel<Tile, Format, EPI><<<grid, Tile::THREADS, bytes, s>>>(p);
    return cudaGetLastError();
}

template <template <class> class Format, int EPI>
static cudaError_t gemm_launch_size(cudaStream_t s, td_tile_size size, const gemm_params &p,
                                    int64_t row_tiles)
{
    switch (size) {
    case TD_TILE_16X32: return gemm_launch<tile_s, Format, EPI>(s, p, row_tiles);
    case TD_TILE_64X64: return gemm_launch<tile_m, Format, EPI>(s, p, row_tiles);
    default: return gemm_launch<tile_l, Format, EPI>(s, p, row_tiles);
    }
}

#endif
