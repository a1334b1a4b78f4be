/* dense, up to 8 rows: a block takes a tile of 16 rows of W and all of K, a warp a part of K, and
 * one more warp waits for their sums with all else that they need.
 *
 * Bound by the stream of weights, and by latency around it. A warp copies its own weights into a
 * ring of its own and stages its own columns of the rows at once, so it waits for nobody and for
 * few round trips; the copies of weights begin before the step before this one has ended. The ring
 * is as deep as lets all blocks of gpt-oss's projections be on the machine together.
 *
 * The norm of one or two rows is done here, by every block; of more rows, that costs more than the
 * launch of norm_split_kernel.
 *
 * One H200, 2026-11-30, shapes of gpt-oss-20b, replays of a graph of 48 steps over weights that L2
 * does not hold: attn_in 8.3 us at one row and 10.9 at 8, norm included; attn_out 6.5 and 8.4.
 * Reading W at 4.3 TB/s takes 6.9 and 5.5. */
#include "kernels/cuda/dense.cuh"

static const int W_BLOCK = 16 * 128; /* bytes of a tile's block of 64 columns */
static const int PITCH = 20; /* floats from a token's sums to the next's: few bank conflicts */

/* What a token's row is read as. */
enum dense_source { ROWS, ROWS_NORM }; /* bf16; f32, to be multiplied by the norm's weights */

/* Bytes of shared memory of a warp: its ring, its columns of the rows. */
static __host__ __device__ __forceinline__ int warp_bytes(int ring, const cuda_dense_args &p)
{
    return ring * W_BLOCK + p.T * p.split.blocks * 128;
}

/* A warp's copies: 16-byte chunk lane % 8 of rows lane / 8 + 4 i of its tile. */
template <int KIND> struct small_weights {
    const uint8_t *src;
    int four, eight;     /* bytes to the row four further, and to the pair's other row */
    uint32_t dst, there; /* there: bit i, row i exists */

    __device__ void init(const cuda_dense_args &p, uint32_t ring, int first)
    {
        const int lane = threadIdx.x % 32, r = lane / 8, chunk = lane % 8;
        const int pitch = (p.K + 63) / 64 * 128, row = dense_row<KIND>(p, blockIdx.x, r, 0);

        src = (const uint8_t *)p.w + (int64_t)row * pitch + first * 128 + chunk * 16;
        four = (dense_row<KIND>(p, blockIdx.x, r + 4, 0) - row) * pitch;
        eight = (dense_row<KIND>(p, blockIdx.x, r, 1) - row) * pitch;
        dst = ring + r * 128;
        there = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (dense_row<KIND>(p, blockIdx.x, r + i % 2 * 4, i / 2) < p.N)
                there |= 1u << i;
    }
    /* Row r's chunk c lies at c ^ (r & 7). Tiles of QKV are whole. */
    __device__ void copy(int slot, int block) const
    {
        const int lane = threadIdx.x % 32, r = lane / 8, chunk = lane % 8;
        const uint32_t to = dst + slot * W_BLOCK;

#pragma unroll
        for (int i = 0; i < 4; i++)
            cp_async_16(to + i * 512 + (chunk ^ (r + i % 2 * 4)) * 16,
                        src + i % 2 * four + i / 2 * eight + block * 128,
                        KIND == CUDA_DENSE_QKV || there >> i & 1 ? 16 : 0);
    }
};

/* The part's columns of all rows, lane c chunk c of eight; a block is T rows of 128 bytes, chunk c
 * of row t at c ^ t. Lane t gets row t's sum of squares. */
template <int SRC>
static __device__ __forceinline__ float stage_rows(const cuda_dense_args &p, int first,
                                                   uint32_t rows)
{
    const int lane = threadIdx.x % 32, k = first * 64 + lane * 8;
    const bool mine = lane < p.split.blocks * 8, there = mine && k < p.K;
    const uint32_t dst = rows + lane / 8 * (p.T * 128);
    float squares = 0.0f;

    if (SRC == ROWS) {
        const __nv_bfloat16 *from = (const __nv_bfloat16 *)p.a + (there ? k : 0);

        for (int t = 0; t < p.T && mine; t++)
            cp_async_16(dst + t * 128 + (lane % 8 ^ t) * 16, from + t * p.lda, there ? 16 : 0);
    } else {
        dense_weights g;

        g.load(p.norm, k, there);
#pragma unroll 2
        for (int t = 0; t < p.T; t++) {
            float s;
            const uint4 v = g.apply(p.x + (int64_t)t * p.K, k, there, &s);

            if (mine)
                st_shared_128(dst + t * 128 + (lane % 8 ^ t) * 16, v);
            s = dense_sum_part(s);
            squares = lane == t ? s : squares;
        }
    }
    return squares;
}

/* A warp's part of K. Leaves its sums, [token][PITCH], at `mine`, and after them its tokens' sums
 * of squares. */
template <int RING, int KIND, int SRC>
static __device__ __forceinline__ void multiply(const cuda_dense_args &p, uint8_t *mine)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int first = threadIdx.x / 32 * p.split.blocks, all = (p.K + 63) / 64;
    const int n = min(p.split.blocks, all - first);
    const uint32_t ring = smem_addr(mine), rows = ring + RING * W_BLOCK;
    float acc[4] = {};
    small_weights<KIND> w;

    w.init(p, ring, first);
#pragma unroll
    for (int s = 0; s < RING; s++)
        if (s < n)
            w.copy(s, s);
    griddepcontrol_wait();
    const float squares = stage_rows<SRC>(p, first, rows);
    cp_async_commit();
#pragma unroll
    for (int s = 1; s < RING; s++) /* empty: at block i the groups up to its own are the old ones */
        cp_async_commit();

    const int token = min(lane % 8, p.T - 1); /* columns past the last token are dropped */
    const uint32_t b_row = rows + token * 128;
    const uint32_t a_row = ring + lane % 16 * 128;
    for (int i = 0, slot = 0; i < n; i++) {
        cp_async_wait<RING - 1>();
        __syncwarp(); /* all lanes' copies and stores are there */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[2][4], b[4];

            ldmatrix_x4(b, b_row + i * (p.T * 128) + ((half * 4 + lane / 8) ^ token) * 16);
#pragma unroll
            for (int k = 0; k < 2; k++)
                ldmatrix_x4(a[k], a_row + slot * W_BLOCK +
                                      ((half * 4 + k * 2 + lane / 16) ^ lane % 8) * 16);
            mma_m16n8k16(acc, a[0], b[0], b[1]);
            mma_m16n8k16(acc, a[1], b[2], b[3]);
        }
        __syncwarp(); /* all have read: the place may be filled again */
        if (i + RING < n)
            w.copy(slot, i + RING);
        cp_async_commit();
        slot = slot + 1 == RING ? 0 : slot + 1;
    }
    float *sums = (float *)mine, *at = sums + 2 * q * PITCH + g;

    at[0] = acc[0];
    at[PITCH] = acc[1];
    at[8] = acc[2];
    at[PITCH + 8] = acc[3];
    if (SRC == ROWS_NORM && lane < 8)
        sums[8 * PITCH + lane] = squares;
}

/* A named barrier: the warps that multiply arrive and are done, the one that finishes waits. */
enum { SUMS_READY = 1 };

/* The sums of all parts in their order, for row pair lane % 8 of token lane / 8, and of the fourth
 * token after it. */
template <int RING, int KIND, int SRC>
static __device__ __forceinline__ void finish(const cuda_dense_args &p, const float *sums)
{
    static_assert(TD_DENSE_FUSED <= 4 && TD_DENSE_FEW <= 8, "tokens of a lane");
    const int TOKENS = SRC == ROWS_NORM ? 1 : 2, lane = threadIdx.x % 32, r = lane % 8;
    const int parts = p.split.parts, step = warp_bytes(RING, p) / 4;
    const dense_place at = dense_find<KIND>(p, blockIdx.x, r);
    float2 rotation[TOKENS] = {};
    int slot[TOKENS] = {};

    griddepcontrol_wait();
#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        const int t = lane / 8 + j * 4;

        if (KIND == CUDA_DENSE_QKV && t < p.T) {
            slot[j] = __ldcg(p.slot + t);
            rotation[j] = dense_rotation(p, at, __ldcg(p.pos + t));
        }
    }
    bar_sync(SUMS_READY, blockDim.x);
#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        const int t = lane / 8 + j * 4;
        const float *from = sums + t * PITCH + r;
        float lo = 0.0f, hi = 0.0f, squares = 0.0f;

        if (t >= p.T)
            return;
        for (int group = 0, part = 0; group < p.split.groups; group++) {
            float x = 0.0f, y = 0.0f;

            for (int k = 0; k < p.split.parts_a_group && part < parts; k++, part++) {
                x = __fadd_rn(x, from[part * step]);
                y = __fadd_rn(y, from[part * step + 8]);
                if (SRC == ROWS_NORM)
                    squares = __fadd_rn(squares, sums[part * step + 8 * PITCH + t]);
            }
            lo = __fadd_rn(lo, x);
            hi = __fadd_rn(hi, y);
        }
        if (KIND == CUDA_DENSE_OUT)
            dense_store_out(p, at, t, lo, hi);
        else
            dense_store_qkv(p, at, t, lo, hi,
                            SRC == ROWS_NORM ? dense_scale(squares, p.K, p.eps)
                                             : __ldcg(p.scale + t),
                            rotation[j], slot[j]);
    }
}

template <int RING, int KIND, int SRC, int BLOCKS>
static __global__ void __launch_bounds__(BLOCKS == 3 ? 512 : 32 * TD_DENSE_PARTS + 32, BLOCKS)
    dense_small_kernel(const __grid_constant__ cuda_dense_args p)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const int warp = threadIdx.x / 32;

    griddepcontrol_launch_dependents();
    if (warp < p.split.parts) {
        multiply<RING, KIND, SRC>(p, smem + warp * warp_bytes(RING, p));
        bar_arrive(SUMS_READY, blockDim.x);
    } else {
        finish<RING, KIND, SRC>(p, (const float *)smem);
    }
}

template <int RING, int KIND, int SRC, int BLOCKS>
static cudaError_t launch(cudaStream_t s, const cuda_dense_args &p)
{
    static_assert(8 * (PITCH + 1) * 4 <= RING * W_BLOCK, "sums fit the ring");
    return dense_launch(dense_small_kernel<RING, KIND, SRC, BLOCKS>, s,
                        dim3((unsigned)((p.N + 15) / 16)), 32 * p.split.parts + 32,
                        p.split.parts * warp_bytes(RING, p), 1, p);
}

template <int KIND, int SRC, int BLOCKS>
static cudaError_t launch_ring(cudaStream_t s, const cuda_dense_args &p)
{
    const int tiles = (p.N + 15) / 16, blocks = (tiles + 131) / 132;
    const int room = 228 * 1024 / (blocks < BLOCKS ? blocks : BLOCKS) - 1024;
    int ring = 3;

    while (ring > 1 && p.split.parts * warp_bytes(ring, p) > room)
        ring--;
    switch (ring) {
    case 1: return launch<1, KIND, SRC, BLOCKS>(s, p);
    case 2: return launch<2, KIND, SRC, BLOCKS>(s, p);
    default: return launch<3, KIND, SRC, BLOCKS>(s, p);
    }
}

static cudaError_t launch_kind(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args &p)
{
    if (kind == CUDA_DENSE_OUT)
        return launch_ring<CUDA_DENSE_OUT, ROWS, 2>(s, p);
    if (p.split.parts == TD_DENSE_PARTS) /* a warp too many for three blocks */
        return p.x != NULL ? launch_ring<CUDA_DENSE_QKV, ROWS_NORM, 2>(s, p)
                           : launch_ring<CUDA_DENSE_QKV, ROWS, 2>(s, p);
    return p.x != NULL ? launch_ring<CUDA_DENSE_QKV, ROWS_NORM, 3>(s, p)
                       : launch_ring<CUDA_DENSE_QKV, ROWS, 3>(s, p);
}

td_status td_cuda_dense_small(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a,
                              const char *step, td_error *err)
{
    return td_cuda_status(err, launch_kind(s, kind, *a), step);
}
