/* experts_small_math: what a math warp does: its part of each slab's products, and in its turn a
 * tile's sum, bias and activation. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_SMALL_MATH_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_SMALL_MATH_CUH

#include "kernels/cuda/experts_small.cuh"
#include "kernels/cuda/gemm.cuh"

/* td_mx_factor() of byte i of four scales. */
static __device__ __forceinline__ uint32_t factor(uint32_t scales, int i)
{
    return __byte_perm(scales, 0, 0x4440 + i) * 0x00800080u + 0x3f003f00u;
}

/* What a math warp carries from slab to slab. */
struct math_state {
    ring weights, sums;
    /* A warp's turn to store a tile comes every MATH_WARPS / TILES slabs: in how many, which. */
    int until, tile;
};

/* Sums of tile j in fragment order, the 15 parts one after the other. */
static __device__ __forceinline__ void add_parts(float (&c)[4], uint32_t sums, float scale)
{
#pragma unroll
    for (int i = 0; i < MATH_WARPS; i += 3) {
        uint4 v[3];

#pragma unroll
        for (int j = 0; j < 3; j++)
            v[j] = ld_shared_128(sums + (i + j) * 512);
#pragma unroll
        for (int j = 0; j < 3; j++) {
            c[0] = i + j ? __fadd_rn(c[0], __uint_as_float(v[j].x)) : __uint_as_float(v[j].x);
            c[1] = i + j ? __fadd_rn(c[1], __uint_as_float(v[j].y)) : __uint_as_float(v[j].y);
            c[2] = i + j ? __fadd_rn(c[2], __uint_as_float(v[j].z)) : __uint_as_float(v[j].z);
            c[3] = i + j ? __fadd_rn(c[3], __uint_as_float(v[j].w)) : __uint_as_float(v[j].w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = __fmul_rn(c[i], scale);
}

/* Activations between the products lie as the second one wants them: of a block of 32 columns, a
 * lane of a quad has its eight (see mxfp4.h) together. */
static __device__ __forceinline__ int act_place(int column)
{
    return column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
}

/* Rows g and g + 8 of a slab for tokens 2q and 2q + 1 of a tile: even rows are gates, odd ones ups.
 * The lane 4 on has the other half; each of the two makes one column of two tokens. */
static __device__ __forceinline__ void store_act(const small_params &p, const float (&c)[4],
                                                 int slab, int n_left, const uint16_t *pairs)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const bool up = g % 2 != 0;
    const float other0 = __shfl_xor_sync(~0u, up ? c[0] : c[2], 4);
    const float other1 = __shfl_xor_sync(~0u, up ? c[1] : c[3], 4);
    const int column = slab * 8 + g / 2 + (up ? 4 : 0);
    const int place = act_place(column);

    if (column >= p.I)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float mine = up ? c[2 + i] : c[i], other = i ? other1 : other0;

        if (2 * q + i < n_left)
            p.act[(int64_t)pairs[2 * q + i] * p.lda + place] =
                __float2bfloat16_rn(gemm_swiglu(up ? other : mine, up ? mine : other, p.limit));
    }
}

static __device__ __forceinline__ void store_y(const small_params &p, const float (&c)[4], int slab,
                                               int n_left, const uint16_t *pairs)
{
    const int lane = threadIdx.x % 32, q = lane % 4, row = slab * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < 2; i++)
        if (2 * q + i < n_left) {
            float *y = p.y + (int64_t)pairs[2 * q + i] * p.D + row;

            if (row < p.D)
                y[0] = c[i];
            if (row + 8 < p.D)
                y[8] = c[2 + i];
        }
}

/* The biases of a slab's rows that this lane will add; on the way while others compute. */
static __device__ __forceinline__ float2 load_bias(const product &w, int expert, int slab)
{
    const int row = slab * 16 + threadIdx.x % 32 / 4;
    const float *bias = w.bias + (int64_t)expert * w.N;
    float2 b = {0.0f, 0.0f};

    if (w.bias != NULL) {
        b.x = row < w.N ? __ldg(bias + row) : 0.0f;
        b.y = row + 8 < w.N ? __ldg(bias + row + 8) : 0.0f;
    }
    return b;
}

/* What a warp has to store of an earlier slab: this tile (TILES: nothing), of these sums. */
struct pending {
    int tile, slab;
    ring sums;
};

static __device__ __forceinline__ void store_tile(const small_params &p, const product &w,
                                                  int which, uint32_t smem, const pending &left,
                                                  const uint16_t *pairs, int n, float2 bias)
{
    const int lane = threadIdx.x % 32, j = left.tile, slab = left.slab;
    const ring sums = left.sums;

    if (j * 8 < n) {
        float v[4];

        mbarrier_wait(smem + SUMMED + 8 * sums.slot, sums.parity);
        add_parts(v, smem + p.sums + (sums.slot * p.tiles + j) * PART + lane * 16, w.scale);
        v[0] = __fadd_rn(v[0], bias.x);
        v[1] = __fadd_rn(v[1], bias.x);
        v[2] = __fadd_rn(v[2], bias.y);
        v[3] = __fadd_rn(v[3], bias.y);
        if (which == 0)
            store_act(p, v, slab, n - j * 8, pairs + j * 8);
        else
            store_y(p, v, slab, n - j * 8, pairs + j * 8);
    }
    mbarrier_arrive_warp(smem + STORED + 8 * sums.slot, lane);
}

/* A warp's part of S slabs at once, whose units begin at `units`. */
template <int TILES_, bool WHOLE, int S>
static __device__ __forceinline__ void multiply(float (&c)[S][TILES_][4],
                                                const uint32_t (&x)[MOST_UNITS][4][TILES_][2],
                                                const uint32_t (&units)[S], int n_units)
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int u = 0; u < MOST_UNITS; u++) {
        if (!WHOLE && u >= n_units)
            break;
#pragma unroll
        for (int i = 0; i < S; i++) {
            const uint4 word = ld_shared_128(units[i] + u * TD_MX_UNIT + lane * 16);
            const uint32_t scale =
                ld_shared_32(units[i] + u * TD_MX_UNIT + TD_MX_CODES + lane / 4 * 4);

#pragma unroll
            for (int block = 0; block < 2; block++) {
                const uint32_t lo = block ? word.z : word.x, hi = block ? word.w : word.y;
                const uint32_t f_lo = factor(scale, block * 2), f_hi = factor(scale, block * 2 + 1);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t a[4] = {mul_bf16x2(td_mx_pair(lo, half * 2), f_lo),
                                           mul_bf16x2(td_mx_pair(hi, half * 2), f_hi),
                                           mul_bf16x2(td_mx_pair(lo, half * 2 + 1), f_lo),
                                           mul_bf16x2(td_mx_pair(hi, half * 2 + 1), f_hi)};
#pragma unroll
                    for (int j = 0; j < TILES_; j++)
                        mma_m16n8k16(c[i][j], a, x[u][block * 2 + half][j][0],
                                     x[u][block * 2 + half][j][1]);
                }
            }
        }
    }
}

/* A stay with an item: what a math warp needs for its slabs. */
struct stay {
    const product *w;
    const uint16_t *pairs;
    int which, expert, n;
    int slab, n_slabs; /* from `slab` on */
    int first, units;  /* of a slab, this warp's */
    pending left;
};

/* S slabs: multiply and leave the sums. Returns what this warp has to store of them later. */
template <int TILES_, bool WHOLE, int S>
static __device__ __forceinline__ pending do_slabs(const small_params &p, uint32_t smem, stay &y,
                                                   math_state &st,
                                                   const uint32_t (&x)[MOST_UNITS][4][TILES_][2])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float c[S][TILES_][4] = {};
    uint32_t units[S], slot[S];
    pending left = {TILES, 0, {0, 0}};

#pragma unroll
    for (int i = 0; i < S; i++) {
        slot[i] = st.weights.slot;
        units[i] = smem + BARRIERS + slot[i] * p.slot_bytes + y.first * TD_MX_UNIT;
        mbarrier_wait(smem + FULL + 8 * slot[i], st.weights.parity);
        st.weights.next(p.slots);
    }
    multiply<TILES_, WHOLE, S>(c, x, units, y.units);
    __syncwarp();
    if (lane < WARP_ARRIVALS)
#pragma unroll
        for (int i = 0; i < S; i++)
            mbarrier_arrive(smem + EMPTY + 8 * slot[i]);
#pragma unroll
    for (int i = 0; i < S; i++) {
        const uint32_t sums =
            smem + p.sums + st.sums.slot * (p.tiles * PART) + warp * 512 + lane * 16;

        mbarrier_wait(smem + STORED + 8 * st.sums.slot, st.sums.parity ^ 1);
#pragma unroll
        for (int j = 0; j < TILES_; j++)
            if (WHOLE || j * 8 < y.n)
                st_shared_128(sums + j * PART,
                              make_uint4(__float_as_uint(c[i][j][0]), __float_as_uint(c[i][j][1]),
                                         __float_as_uint(c[i][j][2]), __float_as_uint(c[i][j][3])));
        mbarrier_arrive_warp(smem + SUMMED + 8 * st.sums.slot, lane);
        if (st.until-- == 0) { /* of AT_ONCE neighbours, at most one */
            if (st.tile < p.tiles)
                left = {st.tile, y.slab + i, st.sums};
            st.until = MATH_WARPS / TILES - 1;
            st.tile = st.tile > 0 ? st.tile - 1 : TILES - 1;
        }
        st.sums.next(p.parts);
    }
    y.slab += S;
    y.n_slabs -= S;
    return left;
}

/* S slabs, or none if there are none left, and storing what earlier ones left to do. */
template <int TILES_, bool WHOLE, int S>
static __device__ __forceinline__ void take_slabs(const small_params &p, uint32_t smem, stay &y,
                                                  math_state &st,
                                                  const uint32_t (&x)[MOST_UNITS][4][TILES_][2])
{
    pending left = {TILES, 0, {0, 0}};
    float2 bias = {0.0f, 0.0f};

    if (y.left.tile * 8 < y.n)
        bias = load_bias(*y.w, y.expert, y.left.slab);
    if (S > 1 || y.n_slabs > 0)
        left = do_slabs<TILES_, WHOLE, S>(p, smem, y, st, x);
    if (y.left.tile < TILES)
        store_tile(p, *y.w, y.which, smem, y.left, y.pairs, y.n, bias);
    y.left = left;
}

/* All slabs of a stay: TILES_ tiles of 8 tokens; WHOLE: this warp has MOST_UNITS units. */
template <int TILES_, bool WHOLE>
static __device__ void do_stay(const small_params &p, uint32_t smem, stay &y, math_state &st)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    uint32_t x[MOST_UNITS][4][TILES_][2];

#pragma unroll
    for (int j = 0; j < TILES_; j++) {
        const int row = j * 8 + g, pair = y.pairs[row < y.n ? row : 0]; /* others: not stored */
        const int64_t k = y.first * TD_MX_COLS;
        const int blocks = WHOLE ? 2 * MOST_UNITS : min(2 * y.units, (int)(y.w->K - k) / 32);

        if (y.which == 0) {
            const uint32_t *from = (const uint32_t *)(p.t + (int64_t)(pair / p.k) * p.D + k) + q;

#pragma unroll
            for (int i = 0; i < 2 * MOST_UNITS; i++)
#pragma unroll
                for (int h = 0; h < 4; h++)
                    x[i / 2][i % 2 * 2 + h / 2][j][h % 2] =
                        i < blocks ? __ldcg(from + i * 16 + h * 4) : 0;
        } else {
            const uint4 *from = (const uint4 *)(p.act + (int64_t)pair * p.lda + k) + q;

#pragma unroll
            for (int i = 0; i < 2 * MOST_UNITS; i++) {
                const uint4 v = i < blocks ? __ldcg(from + i * 4) : make_uint4(0, 0, 0, 0);

                x[i / 2][i % 2 * 2][j][0] = v.x;
                x[i / 2][i % 2 * 2][j][1] = v.y;
                x[i / 2][i % 2 * 2 + 1][j][0] = v.z;
                x[i / 2][i % 2 * 2 + 1][j][1] = v.w;
            }
        }
    }
    while (TILES_ < 3 && y.n_slabs >= AT_ONCE)
        take_slabs<TILES_, WHOLE, AT_ONCE>(p, smem, y, st, x);
    while (y.n_slabs > 0 || y.left.tile < TILES)
        take_slabs<TILES_, WHOLE, 1>(p, smem, y, st, x);
}

#endif
