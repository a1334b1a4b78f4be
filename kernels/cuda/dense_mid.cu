/* dense, 17 to 128 rows: a block takes 64 rows of W and one group of K for all tokens; the blocks
 * of a cluster take the groups, and each adds up, through the others' shared memory, the sums of
 * its share of the tokens.
 *
 * Bound by the stream of weights up to about 64 rows, then by mma.sync and shared memory's rate:
 * a warp reads (MT * 2 + NT) * 512 bytes for MT * NT * 2 mma. Stages hold 64 columns of both; rows
 * of 128 bytes are swizzled (chunk c of row r lies at c ^ 4 (r & 1)), so that the 8 lanes that read
 * 16 bytes of 2 rows together meet no bank twice. */
#include "kernels/cuda/dense.cuh"

template <int WARPS_M_, int WARPS_N_, int MT_, int NT_, int STAGES_> struct mid_tile {
    static const int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, MT = MT_, NT = NT_, STAGES = STAGES_;
    static const int BM = WARPS_M * MT * 16, BT = WARPS_N * NT * 8;
    static const int THREADS = 32 * WARPS_M * WARPS_N;
    static const int W_BYTES = BM * 128, A_BYTES = BT * 128, STAGE = W_BYTES + A_BYTES;
    static const int W_ITERS = BM * 8 / THREADS, A_ITERS = BT * 8 / THREADS;
    static const int PITCH = BM + 4; /* floats of a token's sums */
    static const int SMEM = STAGES * STAGE + STAGES * 8;
};
typedef mid_tile<4, 1, 1, 2, 8> mid_16;
typedef mid_tile<4, 1, 1, 4, 8> mid_32; /* 96 KiB of stages, two blocks a multiprocessor */
typedef mid_tile<2, 2, 2, 4, 6> mid_64;
typedef mid_tile<2, 2, 2, 8, 4> mid_128;

__device__ __forceinline__ void cp_async_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(bar) : "memory");
}
__device__ __forceinline__ float ld_cluster(uint32_t addr, uint32_t rank)
{
    float v;

    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [remote];\n"
                 "}\n"
                 : "=f"(v)
                 : "r"(addr), "r"(rank)
                 : "memory");
    return v;
}

/* Copies of this thread: 16-byte chunk tid % 8 of every THREADS / 8-th row. */
template <class Tile, int KIND> struct mid_loads {
    const uint8_t *w[Tile::W_ITERS];
    const uint8_t *a;
    int64_t a_step;
    uint32_t dst; /* of the first row; rows of equal parity follow */
    int row, chunk, T, K;

    __device__ void init(const cuda_dense_args &p, int first_block)
    {
        const int64_t pitch = (p.K + 63) / 64 * (int64_t)128;

        row = threadIdx.x / 8;
        chunk = threadIdx.x % 8;
        dst = row * 128 + (chunk ^ (row & 1) * 4) * 16;
#pragma unroll
        for (int i = 0; i < Tile::W_ITERS; i++) {
            const int r = row + i * (Tile::THREADS / 8);
            const int n =
                dense_row<KIND>(p, blockIdx.y * (Tile::BM / 16) + r / 16, r % 8, r % 16 / 8);

            w[i] =
                (const uint8_t *)p.w + (n < p.N ? n : 0) * pitch + first_block * 128 + chunk * 16;
        }
        T = p.T;
        K = p.K - first_block * 64;
        a = (const uint8_t *)p.a + row * p.lda * 2 + first_block * 128 + chunk * 16;
        a_step = p.lda * (Tile::THREADS / 8 * 2);
    }
    __device__ void weights(uint32_t stage, uint32_t bar, int block) const
    {
#pragma unroll
        for (int i = 0; i < Tile::W_ITERS; i++)
            cp_async_16(stage + dst + i * (Tile::THREADS * 16), w[i] + block * 128, 16);
        cp_async_arrive(bar);
    }
    __device__ void activations(uint32_t stage, uint32_t bar, int block) const
    {
        const bool there = block * 64 + chunk * 8 < K;

#pragma unroll
        for (int i = 0; i < Tile::A_ITERS; i++) {
            const bool mine = there && row + i * (Tile::THREADS / 8) < T;

            cp_async_16(stage + Tile::W_BYTES + dst + i * (Tile::THREADS * 16),
                        mine ? a + i * a_step + block * 128 : a, mine ? 16 : 0);
        }
        cp_async_arrive(bar);
    }
};

/* One block of 64 columns. */
template <class Tile>
__device__ __forceinline__ void mid_step(float (&part)[Tile::MT][Tile::NT][4], uint32_t w,
                                         uint32_t a)
{
    const int lane = threadIdx.x % 32, q = lane % 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int at = ((h * 4 + q) ^ (lane / 4 & 1) * 4) * 16; /* rows differ by multiples of 8 */
        uint4 lo[Tile::MT], hi[Tile::MT], b;

#pragma unroll
        for (int i = 0; i < Tile::MT; i++) {
            lo[i] = ld_shared_128(w + i * 2048 + at);
            hi[i] = ld_shared_128(w + i * 2048 + 1024 + at);
        }
#pragma unroll
        for (int j = 0; j < Tile::NT; j++) {
            b = ld_shared_128(a + j * 1024 + at);
#pragma unroll
            for (int i = 0; i < Tile::MT; i++)
                dense_mma(part[i][j], lo[i], hi[i], b);
        }
    }
}

template <class Tile, int KIND>
static __global__ void __launch_bounds__(Tile::THREADS, 2)
    dense_mid_kernel(const __grid_constant__ cuda_dense_args p)
{
    const int STAGES = Tile::STAGES, PITCH = Tile::PITCH;
    extern __shared__ __align__(128) uint8_t ring[];
    const uint32_t smem = smem_addr(ring), bar = smem + STAGES * Tile::STAGE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int m_warp = warp / Tile::WARPS_N * (Tile::MT * 16);
    const int t_warp = warp % Tile::WARPS_N * (Tile::NT * 8);
    const int a_group = p.split.parts_a_group * p.split.blocks, all = (p.K + 63) / 64;
    const int first = blockIdx.x * a_group;
    const int n = first + a_group < all ? a_group : all - first;
    float acc[Tile::MT][Tile::NT][4] = {}, part[Tile::MT][Tile::NT][4] = {};
    mid_loads<Tile, KIND> loads;

    if (threadIdx.x < STAGES)
        mbarrier_init(bar + threadIdx.x * 8, 2 * Tile::THREADS); /* weights and activations */
    fence_mbarrier_init();
    loads.init(p, first);
    __syncthreads();
    griddepcontrol_launch_dependents();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (s < n)
            loads.weights(smem + s * Tile::STAGE, bar + s * 8, s);
    griddepcontrol_wait();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (s < n)
            loads.activations(smem + s * Tile::STAGE, bar + s * 8, s);

    ring_place<STAGES> here = {0, 0};
    for (int i = 0, in_part = 0; i < n; i++) {
        const int next = i + STAGES - 1;
        const uint32_t stage = smem + here.stage * Tile::STAGE;

        mbarrier_wait(bar + here.stage * 8, here.parity);
        __syncthreads(); /* all are done with the stage before this one: it is filled again */
        if (next < n) {
            const int s = here.stage == 0 ? STAGES - 1 : here.stage - 1;

            loads.weights(smem + s * Tile::STAGE, bar + s * 8, next);
            loads.activations(smem + s * Tile::STAGE, bar + s * 8, next);
        }
        mid_step<Tile>(part, stage + (m_warp + g) * 128,
                       stage + Tile::W_BYTES + (t_warp + g) * 128);
        here.next();
        if (++in_part == p.split.blocks || i + 1 == n) {
            in_part = 0;
#pragma unroll
            for (int x = 0; x < Tile::MT; x++)
#pragma unroll
                for (int y = 0; y < Tile::NT; y++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        acc[x][y][e] = __fadd_rn(acc[x][y][e], part[x][y][e]);
                        part[x][y][e] = 0.0f;
                    }
        }
    }
    __syncthreads(); /* the ring becomes this group's sums, [token][PITCH] */
#pragma unroll
    for (int x = 0; x < Tile::MT; x++)
#pragma unroll
        for (int y = 0; y < Tile::NT; y++) {
            float *sum = (float *)ring + (t_warp + y * 8 + 2 * q) * PITCH + m_warp + x * 16 + g;

            sum[0] = acc[x][y][0];
            sum[PITCH] = acc[x][y][1];
            sum[8] = acc[x][y][2];
            sum[PITCH + 8] = acc[x][y][3];
        }
    barrier_cluster_sync(); /* the others' sums are there */
    const int tile = lane / 8, r = lane % 8;
    for (int t = blockIdx.x + warp * p.split.groups; t < p.T;
         t += Tile::THREADS / 32 * p.split.groups) {
        const uint32_t at = smem + (t * PITCH + tile * 16 + r) * 4;
        float lo = 0.0f, hi = 0.0f;

        for (int group = 0; group < p.split.groups; group++) {
            lo = __fadd_rn(lo, ld_cluster(at, group));
            hi = __fadd_rn(hi, ld_cluster(at + 32, group));
        }
        dense_finish<KIND>(p, blockIdx.y * (Tile::BM / 16) + tile, r, t, lo, hi);
    }
    barrier_cluster_sync(); /* the others have read this block's */
}

template <class Tile, int KIND> static cudaError_t launch(cudaStream_t s, const cuda_dense_args &p)
{
    static_assert(Tile::BM == TD_DENSE_ROWS, "the last loop takes four tiles of 16 rows a warp");
    static_assert(Tile::BT * Tile::PITCH * 4 <= Tile::STAGES * Tile::STAGE, "sums fit the ring");
    const dim3 grid((unsigned)p.split.groups, (unsigned)((p.N + Tile::BM - 1) / Tile::BM));

    return dense_launch(dense_mid_kernel<Tile, KIND>, s, grid, Tile::THREADS, Tile::SMEM,
                        p.split.groups, p);
}

template <int KIND> static cudaError_t launch_size(cudaStream_t s, const cuda_dense_args &p)
{
    if (p.T <= 16)
        return launch<mid_16, KIND>(s, p);
    if (p.T <= 32)
        return launch<mid_32, KIND>(s, p);
    if (p.T <= 64)
        return launch<mid_64, KIND>(s, p);
    return launch<mid_128, KIND>(s, p);
}

cudaError_t td_cuda_dense_mid(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a)
{
    return kind == CUDA_DENSE_OUT ? launch_size<CUDA_DENSE_OUT>(s, *a)
                                  : launch_size<CUDA_DENSE_QKV>(s, *a);
}
