/* dense, 9 to 128 rows: a block takes 64 rows of W and one group of K for all tokens; the blocks of
 * a cluster take the groups, and each adds up, through the others' shared memory, the sums of its
 * share of the tokens.
 *
 * Bound by the stream of weights up to 32 rows, then by what L2 must give of the tokens' rows to
 * every block. One thread has the copy engine fill a ring of stages, 64 columns of both operands in
 * rows of 128 swizzled bytes, and one warpgroup multiplies. The copies of weights begin before the
 * step before this one has ended. wgmma adds up as mma.sync does, bit for bit: dense_small.cu and
 * this agree, which tests/ops checks.
 *
 * One H200, 2026-11-30, measured as in dense_small.cu: attn_in 12.2 us at 16 rows, 13.8 at 64 and
 * 18.6 at 128, norm included; attn_out 9.2, 10.7 and 13.5. */
#include "kernels/cuda/attn_wgmma.cuh"
#include "kernels/cuda/dense.cuh"
#include "kernels/cuda/tensor_map.h"

static const int CONSUMERS = 128, THREADS = CONSUMERS + 32;

template <int BT_, int STAGES_> struct mid_tile {
    static const int BT = BT_, STAGES = STAGES_;
    static const int W_BYTES = TD_DENSE_ROWS * 128, A_BYTES = BT * 128, STAGE = W_BYTES + A_BYTES;
    static const int PITCH = TD_DENSE_ROWS + 4;    /* floats of a token's sums */
    static const int SMEM = 1024 + STAGES * STAGE; /* tiles begin at multiples of 1024 */
};
/* 96 KiB of stages: two blocks a multiprocessor, so that all of a projection run together. Three
 * smaller ones are slower from 64 rows on. */
typedef mid_tile<32, 8> mid_32;
typedef mid_tile<64, 6> mid_64;
typedef mid_tile<128, 4> mid_128;

static __device__ __forceinline__ float4 ld_cluster_128(uint32_t addr, uint32_t rank)
{
    float4 v;

    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
                 "}\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(addr), "r"(rank)
                 : "memory");
    return v;
}

/* Where the rows of a block come from and lie. Whole heads (or plain columns) are 64 rows as they
 * are in W; heads of other sizes come in runs of 8, so that both halves of a rotated pair meet in
 * one block: row r of tile t lies at 16 t + r, its other row 8 further. */
static __host__ __device__ __forceinline__ bool in_order(int kind, const cuda_dense_args &p)
{
    return kind == CUDA_DENSE_OUT || 64 % p.d == 0;
}

template <class Tile> struct mid_ring {
    uint32_t stages, full, empty; /* shared addresses */

    __device__ __forceinline__ uint32_t weights(int s) const
    {
        return stages + s * Tile::STAGE;
    }
    __device__ __forceinline__ uint32_t rows(int s) const
    {
        return stages + s * Tile::STAGE + Tile::W_BYTES;
    }
};

/* The blocks of 64 columns that a thread block adds up. */
struct mid_range {
    int first, n;
};
static __device__ __forceinline__ mid_range range_of(const cuda_dense_args &p)
{
    const int a_group = p.split.parts_a_group * p.split.blocks, first = blockIdx.x * a_group;
    const mid_range r = {first, min(a_group, (p.K + 63) / 64 - first)};

    return r;
}

template <class Tile, int KIND>
static __device__ __forceinline__ void load_weights(const CUtensorMap *w, const cuda_dense_args &p,
                                                    const mid_ring<Tile> &ring, int s, int block)
{
    mbarrier_arrive_expect_tx(ring.full + s * 8, Tile::W_BYTES);
    if (in_order(KIND, p)) {
        cp_async_tensor_2d(ring.weights(s), w, block * 64, blockIdx.y * TD_DENSE_ROWS,
                           ring.full + s * 8, L2_EVICT_FIRST);
        return;
    }
    for (int i = 0; i < TD_DENSE_ROWS / 8; i++)
        cp_async_tensor_2d(ring.weights(s) + i * 1024, w, block * 64,
                           dense_row<KIND>(p, blockIdx.y * 4 + i / 2, 0, i % 2), ring.full + s * 8,
                           L2_EVICT_FIRST);
}

template <class Tile>
static __device__ __forceinline__ void load_rows(const CUtensorMap *a, const mid_ring<Tile> &ring,
                                                 int s, int block)
{
    mbarrier_arrive_expect_tx(ring.full + s * 8, Tile::A_BYTES);
    cp_async_tensor_2d(ring.rows(s), a, block * 64, 0, ring.full + s * 8, L2_EVICT_LAST);
}

/* One thread. */
template <class Tile, int KIND>
static __device__ __forceinline__ void produce(const CUtensorMap *w, const CUtensorMap *a,
                                               const cuda_dense_args &p, const mid_ring<Tile> &ring)
{
    const mid_range r = range_of(p);
    ring_place<Tile::STAGES> here = {0, 0};

    tensor_map_prefetch(w);
    tensor_map_prefetch(a);
    for (int i = 0; i < Tile::STAGES && i < r.n; i++)
        load_weights<Tile, KIND>(w, p, ring, i, r.first + i);
    griddepcontrol_wait();
    for (int i = 0; i < Tile::STAGES && i < r.n; i++)
        load_rows<Tile>(a, ring, i, r.first + i);
    for (int i = Tile::STAGES; i < r.n; i++, here.next()) {
        mbarrier_wait(ring.empty + here.stage * 8, here.parity);
        load_weights<Tile, KIND>(w, p, ring, here.stage, r.first + i);
        load_rows<Tile>(a, ring, here.stage, r.first + i);
    }
}

/* The group's sums, as wgmma leaves them in registers. */
template <class Tile>
static __device__ __forceinline__ void consume(const cuda_dense_args &p, const mid_ring<Tile> &ring,
                                               float (&acc)[Tile::BT / 2])
{
    const int n = range_of(p).n;
    const bool one = threadIdx.x % 32 == 0; /* who says for a warp that a stage is free */
    ring_place<Tile::STAGES> here = {0, 0};
    float part[Tile::BT / 2];

    for (int i = 0; i < n;) {
        const int end = min(i + p.split.blocks, n);
        uint32_t last = 0;

        for (bool fresh = true; i < end; i++, fresh = false) {
            const uint64_t w = wgmma_desc(ring.weights(here.stage));
            const uint64_t a = wgmma_desc(ring.rows(here.stage));

            mbarrier_wait(ring.full + here.stage * 8, here.parity);
            wgmma_fence();
            wgmma_k16(part, w, a, fresh);
#pragma unroll
            for (int k = 1; k < 4; k++)
                wgmma_k16(part, w + 2 * k, a + 2 * k, false);
            wgmma_commit();
            if (!fresh) {
                wgmma_wait<1>();
                if (one)
                    mbarrier_arrive(ring.empty + last * 8);
            }
            last = here.stage;
            here.next();
        }
        wgmma_wait<0>();
        wgmma_pin(part);
        if (one)
            mbarrier_arrive(ring.empty + last * 8);
#pragma unroll
        for (int e = 0; e < Tile::BT / 2; e++)
            acc[e] = __fadd_rn(acc[e], part[e]);
    }
}

/* What a block needs of its tokens when the sums are there. */
struct mid_tokens {
    float scale[TD_SMALL_STEP];
    int32_t pos[TD_SMALL_STEP], slot[TD_SMALL_STEP];
};

/* Four pairs of sums of a token. */
template <int KIND> struct mid_pairs {
    float lo[4], hi[4];

    /* x, y: of a group. OUT: 8 neighbouring rows. QKV: rows of one half of a head, of the other. */
    __device__ __forceinline__ void add(const float4 &x, const float4 &y)
    {
        const bool out = KIND == CUDA_DENSE_OUT;

        lo[0] = __fadd_rn(lo[0], x.x);
        lo[1] = __fadd_rn(lo[1], out ? x.z : x.y);
        lo[2] = __fadd_rn(lo[2], out ? y.x : x.z);
        lo[3] = __fadd_rn(lo[3], out ? y.z : x.w);
        hi[0] = __fadd_rn(hi[0], out ? x.y : y.x);
        hi[1] = __fadd_rn(hi[1], out ? x.w : y.y);
        hi[2] = __fadd_rn(hi[2], out ? y.y : y.z);
        hi[3] = __fadd_rn(hi[3], y.w);
    }
};

/* Sixteen tokens of the block's share at a time, eight threads a token. */
template <class Tile, int KIND>
static __device__ __forceinline__ void finish(const cuda_dense_args &p, uint32_t sums,
                                              const mid_tokens &tokens)
{
    const int tile = threadIdx.x % 8 / 2, r = threadIdx.x % 2 * 4; /* pairs r .. r + 3 */
    const int first = blockIdx.y * 4, groups = p.split.groups;
    int lo = tile * 16 + r, hi = lo + 8; /* where they lie */
    dense_place at[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        at[i] = dense_find<KIND>(p, first + tile, r + i);
    if (KIND == CUDA_DENSE_OUT) {
        lo = tile * 16 + 2 * r;
        hi = lo + 4;
    } else if (in_order(KIND, p)) {
        lo = at[0].row - first * 16;
        hi = lo + p.d / 2;
    }
    for (int t = blockIdx.x + threadIdx.x / 8 * groups; t < p.T; t += 16 * groups) {
        const uint32_t from = sums + t * (Tile::PITCH * 4);
        float4 x[TD_DENSE_GROUPS], y[TD_DENSE_GROUPS];
        float2 rotation[4] = {};
        mid_pairs<KIND> sum = {};

#pragma unroll
        for (int i = 0; i < TD_DENSE_GROUPS; i++) /* all loads before the first sum */
            if (i < groups) {
                x[i] = ld_cluster_128(from + lo * 4, i);
                y[i] = ld_cluster_128(from + hi * 4, i);
            }
        if (KIND == CUDA_DENSE_QKV)
#pragma unroll
            for (int i = 0; i < 4; i++)
                rotation[i] = dense_rotation(p, at[i], tokens.pos[t]);
#pragma unroll
        for (int i = 0; i < TD_DENSE_GROUPS; i++)
            if (i < groups)
                sum.add(x[i], y[i]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (KIND == CUDA_DENSE_OUT)
                dense_store_out(p, at[i], t, sum.lo[i], sum.hi[i]);
            else
                dense_store_qkv(p, at[i], t, sum.lo[i], sum.hi[i], tokens.scale[t], rotation[i],
                                tokens.slot[t]);
    }
}

template <class Tile, int KIND>
static __global__ void __launch_bounds__(THREADS, 2)
    dense_mid_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap a,
                     const __grid_constant__ cuda_dense_args p)
{
    const int PITCH = Tile::PITCH;
    extern __shared__ uint8_t smem[];
    __shared__ uint64_t full[Tile::STAGES], empty[Tile::STAGES];
    __shared__ mid_tokens tokens;
    const mid_ring<Tile> ring = {(smem_addr(smem) + 1023) / 1024 * 1024, smem_addr(full),
                                 smem_addr(empty)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool consumes = warp < CONSUMERS / 32;
    float acc[Tile::BT / 2] = {};

    if (threadIdx.x < Tile::STAGES) {
        mbarrier_init(ring.full + threadIdx.x * 8, 2); /* weights and rows */
        mbarrier_init(ring.empty + threadIdx.x * 8, CONSUMERS / 32);
    }
    fence_mbarrier_init();
    __syncthreads();
    griddepcontrol_launch_dependents();
    /* The warps part for their work and come together for each barrier: in PTX arrivals count, in
     * CUDA a barrier is one place in the text, which compute-sanitizer's synccheck holds us to. */
    if (consumes) {
        griddepcontrol_wait();
        if (KIND == CUDA_DENSE_QKV && threadIdx.x < p.T) {
            tokens.scale[threadIdx.x] = __ldcg(p.scale + threadIdx.x);
            tokens.pos[threadIdx.x] = __ldcg(p.pos + threadIdx.x);
            tokens.slot[threadIdx.x] = __ldcg(p.slot + threadIdx.x);
        }
        consume<Tile>(p, ring, acc);
    } else {
        if (elect_one())
            produce<Tile, KIND>(&w, &a, p, ring);
        __syncwarp();
    }
    __syncthreads(); /* the ring becomes this group's sums, [token][PITCH] */
    if (consumes) {
#pragma unroll
        for (int j = 0; j < Tile::BT / 8; j++) {
            const uint32_t at =
                ring.stages + ((j * 8 + lane % 4 * 2) * PITCH + warp * 16 + lane / 4) * 4;

            st_shared_f32(at, acc[4 * j]);
            st_shared_f32(at + PITCH * 4, acc[4 * j + 1]);
            st_shared_f32(at + 32, acc[4 * j + 2]);
            st_shared_f32(at + PITCH * 4 + 32, acc[4 * j + 3]);
        }
    }
    barrier_cluster_sync(); /* the others' sums are there */
    if (consumes)
        finish<Tile, KIND>(p, ring.stages, tokens);
    barrier_cluster_sync(); /* the others have read this block's */
}

template <class Tile, int KIND>
static td_status launch(cudaStream_t s, const cuda_dense_args &p, const char *step, td_error *err)
{
    static_assert(Tile::BT * Tile::PITCH * 4 <= Tile::STAGES * Tile::STAGE, "sums fit the ring");
    const dim3 grid((unsigned)p.split.groups,
                    (unsigned)((p.N + TD_DENSE_ROWS - 1) / TD_DENSE_ROWS));
    CUtensorMap w, a;
    td_status st =
        td_tensor_map_rows(p.w, p.N, p.K, td_cuda_pitch(p.K), in_order(KIND, p) ? 64 : 8, &w, err);

    if (st == TD_OK)
        st = td_tensor_map_rows(p.a, p.T, p.K, p.lda, Tile::BT, &a, err);
    if (st != TD_OK)
        return st;
    return td_cuda_status(err,
                          dense_launch(dense_mid_kernel<Tile, KIND>, s, grid, THREADS, Tile::SMEM,
                                       p.split.groups, w, a, p),
                          step);
}

template <int KIND>
static td_status launch_size(cudaStream_t s, const cuda_dense_args &p, const char *step,
                             td_error *err)
{
    if (p.T <= 32)
        return launch<mid_32, KIND>(s, p, step, err);
    if (p.T <= 64)
        return launch<mid_64, KIND>(s, p, step, err);
    return launch<mid_128, KIND>(s, p, step, err);
}

td_status td_cuda_dense_mid(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                            const char *step, td_error *err)
{
    return kind == CUDA_DENSE_OUT ? launch_size<CUDA_DENSE_OUT>(s, *a, step, err)
                                  : launch_size<CUDA_DENSE_QKV>(s, *a, step, err);
}
