/* attn_decode: one query a sequence, its keys split into chunks over the machine.
 *
 * A unit of work is a chunk of one kv head of one sequence; blocks stay and take every n-th unit of
 * a list that each works out from the lengths. The warps of a block take steps of the chunk in
 * turn: 32 keys in bf16, 64 in e4m3, 8 KiB, straight from memory into the operands of two mma. In
 * both products keys and values are the a operand and the G heads the eight columns; dimensions
 * (of q and k) and rows (of o) are numbered as 16-byte loads deliver them. So nothing goes through
 * shared memory but the results. A warp asks for the keys and values of its next step, be it
 * another unit's, as soon as the registers are free.
 *
 * How keys are cut, and the order in which parts are joined, depends on the sequence's length
 * alone: it keeps its bits in any batch. A sequence of one chunk is finished in place; else every
 * chunk leaves (m, l, o), and whoever is last joins them in order. */
#include "kernels/cuda/attn_page.cuh"
#include "kernels/cuda/backend.h"

static const int WARPS = 8, BLOCKS = 2; /* of a block; of a multiprocessor: 128 KiB asked for */

struct decode_params {
    const __nv_bfloat16 *q;
    const uint8_t *kv;
    __nv_bfloat16 *out;
    int64_t head_stride, side_stride; /* bytes */
    const int32_t *len, *table;
    const float *sinks;
    int32_t T, H, K, G, window, wrap, table_stride, most_chunks;
    float c;
    float2 *ml;        /* [sequences of a launch, H, chunks] */
    float *o;          /* the same, 64 each */
    uint32_t *tickets; /* [sequences of a launch, K]: chunks that are done; 0 between launches */
};

/* Positions lo .. pos of a sequence, pages first .. last, cut into chunks of `pages`. */
struct decode_cut {
    int pos, lo, first, last, pages, chunks;
};
static __device__ __forceinline__ decode_cut cut_of(const decode_params &p, int len)
{
    decode_cut c;

    c.pos = len - 1;
    c.lo = p.window > 0 ? max(len - p.window, 0) : 0;
    c.first = c.lo / TD_KV_PAGE;
    c.last = c.pos >= 0 ? c.pos / TD_KV_PAGE : -1;
    c.pages = td_tune_chunk_pages(c.last - c.first + 1, p.most_chunks);
    c.chunks = max((c.last - c.first + c.pages) / c.pages, 1);
    return c;
}

/* A chunk of a kv head of a sequence: steps first .. last of STEP positions. */
struct decode_unit {
    int t, head, chunk, chunks, lo, pos, first, last;
};

/* start: of each sequence its first chunk's number among all, [T + 1]. */
template <int STEP>
static __device__ __forceinline__ bool unit_at(const decode_params &p, const int *start, int i,
                                               decode_unit &u)
{
    const int n = i / p.K;
    int below = 0, above = p.T; /* start[below] <= n < start[above] */

    if (n >= start[p.T])
        return false;
    while (above - below > 1) {
        const int mid = (below + above) / 2;

        if (start[mid] <= n)
            below = mid;
        else
            above = mid;
    }
    const decode_cut c = cut_of(p, p.len[below]);

    u.t = below;
    u.head = i % p.K;
    u.chunk = n - start[below];
    u.chunks = c.chunks;
    u.lo = c.lo;
    u.pos = c.pos;
    u.first = (c.first + u.chunk * c.pages) * (TD_KV_PAGE / STEP);
    u.last = u.first + c.pages * (TD_KV_PAGE / STEP) - 1;
    u.first = max(u.first, c.lo / STEP);
    u.last = c.pos < 0 ? u.first - 1 : min(u.last, c.pos / STEP);
    return true;
}

/* --- one step of a warp ------------------------------------------------------------------------
 *
 * With g = lane / 4 and q = lane % 4 a lane asks for
 *   keys    8i + g, 16 bytes at 16q (bf16: and at 64 + 16q): the a operand of k q^T
 *   values  8i + 2q and the next, dimensions 8g .. 8g + 7: of v^T p^T, once keys are paired
 * and holds of o: dimensions 8g .. 8g + 7 of heads 2q (o[j][0], o[j][2]) and 2q + 1. */

template <bool E4M3> struct decode_step;

static __device__ __forceinline__ uint4 ld_stream_128(const uint8_t *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
static __device__ __forceinline__ uint2 ld_stream_64(const uint8_t *p)
{
    uint2 v;

    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2];\n"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
/* Transposes the 8 x 8 of which each lane holds columns 2q, 2q + 1 of row g. */
static __device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x)
{
    uint32_t y;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
    return y;
}
static __device__ __forceinline__ uint32_t cvt_f16x2(float lo, float hi)
{
    uint32_t r;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
/* Two e4m3 in the low half of x. */
static __device__ __forceinline__ uint32_t cvt_f16x2_e4m3x2(uint32_t x)
{
    uint32_t r;

    asm("{\n"
        ".reg .b16 lo, hi;\n"
        "mov.b32 {lo, hi}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 %0, lo;\n"
        "}\n"
        : "=r"(r)
        : "r"(x));
    return r;
}
static __device__ __forceinline__ void mma_m16n8k16_f16(float (&c)[4], const uint32_t (&a)[4],
                                                        uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <> struct decode_step<false> {
    static constexpr int STEP = 32, ROW = 128;
    uint4 q[2], k[4][2], v[4][2];

    __device__ __forceinline__ void load_q(const __nv_bfloat16 *row)
    {
        const uint4 *at = (const uint4 *)row + threadIdx.x % 4;

        q[0] = row != NULL ? at[0] : make_uint4(0, 0, 0, 0);
        q[1] = row != NULL ? at[4] : make_uint4(0, 0, 0, 0);
    }
    /* from: the step's first key; rows lo .. hi are there. */
    __device__ __forceinline__ void load_k(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4;

        from += g * ROW + threadIdx.x % 4 * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool there = i * 8 + g >= lo && i * 8 + g <= hi;

            k[i][0] = k[i][1] = make_uint4(0, 0, 0, 0);
            if (there) {
                k[i][0] = ld_stream_128(from + i * 8 * ROW);
                k[i][1] = ld_stream_128(from + i * 8 * ROW + 64);
            }
        }
    }
    __device__ __forceinline__ void load_v(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4, r = threadIdx.x % 4 * 2;

        from += r * ROW + g * 16;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                v[i][e] = make_uint4(0, 0, 0, 0);
                if (i * 8 + r + e >= lo && i * 8 + r + e <= hi)
                    v[i][e] = ld_stream_128(from + (i * 8 + e) * ROW);
            }
    }
    /* s[i]: keys 16i + g (two heads), 16i + g + 8. */
    __device__ __forceinline__ void scores(float (&s)[2][4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const uint4 &a = k[i * 2][c], &b = k[i * 2 + 1][c];
                const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};

                mma_m16n8k16(s[i], first, q[c].x, q[c].y);
                mma_m16n8k16(s[i], second, q[c].z, q[c].w);
            }
    }
    __device__ __forceinline__ void values(float (&o)[4][4], const float (&s)[2][4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t b0 = movmatrix_trans(cvt_bf16x2(s[i][0], s[i][1]));
            const uint32_t b1 = movmatrix_trans(cvt_bf16x2(s[i][2], s[i][3]));

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t x = word(v[i * 2][0], j), y = word(v[i * 2][1], j);
                const uint32_t z = word(v[i * 2 + 1][0], j), w = word(v[i * 2 + 1][1], j);
                const uint32_t a[4] = {__byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632),
                                       __byte_perm(z, w, 0x5410), __byte_perm(z, w, 0x7632)};

                mma_m16n8k16(o[j], a, b0, b1);
            }
        }
    }
    static __device__ __forceinline__ uint32_t word(const uint4 &x, int j)
    {
        return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
    }
};

/* e4m3 becomes f16, exactly; so do queries, but for what is too small to matter, and the weights.
 */
template <> struct decode_step<true> {
    static constexpr int STEP = 64, ROW = 64;
    uint4 k[8];
    uint2 v[8][2];
    uint32_t q[8];

    __device__ __forceinline__ void load_q(const __nv_bfloat16 *row)
    {
        const uint32_t *at = (const uint32_t *)row + threadIdx.x % 4 * 8;

#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t x = row != NULL ? at[i] : 0;
            const float lo = __uint_as_float(x << 16), hi = __uint_as_float(x & 0xffff0000);

            q[i] = cvt_f16x2(fminf(fmaxf(lo, -65504.0f), 65504.0f),
                             fminf(fmaxf(hi, -65504.0f), 65504.0f));
        }
    }
    __device__ __forceinline__ void load_k(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4;

        from += g * ROW + threadIdx.x % 4 * 16;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            k[i] = make_uint4(0, 0, 0, 0);
            if (i * 8 + g >= lo && i * 8 + g <= hi)
                k[i] = ld_stream_128(from + i * 8 * ROW);
        }
    }
    __device__ __forceinline__ void load_v(const uint8_t *from, int lo, int hi)
    {
        const int g = threadIdx.x % 32 / 4, r = threadIdx.x % 4 * 2;

        from += r * ROW + g * 8;
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                v[i][e] = make_uint2(0, 0);
                if (i * 8 + r + e >= lo && i * 8 + r + e <= hi)
                    v[i][e] = ld_stream_64(from + (i * 8 + e) * ROW);
            }
    }
    __device__ __forceinline__ void scores(float (&s)[4][4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int d = 0; d < 4; d++) {
                const uint32_t x = word(k[i * 2], d), y = word(k[i * 2 + 1], d);
                const uint32_t a[4] = {cvt_f16x2_e4m3x2(x), cvt_f16x2_e4m3x2(y),
                                       cvt_f16x2_e4m3x2(x >> 16), cvt_f16x2_e4m3x2(y >> 16)};

                mma_m16n8k16_f16(s[i], a, q[d * 2], q[d * 2 + 1]);
            }
    }
    __device__ __forceinline__ void values(float (&o)[4][4], const float (&s)[4][4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t b0 = movmatrix_trans(cvt_f16x2(s[i][0], s[i][1]));
            const uint32_t b1 = movmatrix_trans(cvt_f16x2(s[i][2], s[i][3]));

#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint2 &x = v[i * 2][0], &y = v[i * 2][1];
                const uint2 &z = v[i * 2 + 1][0], &w = v[i * 2 + 1][1];
                const int pick = j % 2 == 0 ? 0x5140 : 0x7362; /* of both keys two dimensions */
                const uint32_t xy =
                    j < 2 ? __byte_perm(x.x, y.x, pick) : __byte_perm(x.y, y.y, pick);
                const uint32_t zw =
                    j < 2 ? __byte_perm(z.x, w.x, pick) : __byte_perm(z.y, w.y, pick);
                const uint32_t a[4] = {cvt_f16x2_e4m3x2(xy), cvt_f16x2_e4m3x2(xy >> 16),
                                       cvt_f16x2_e4m3x2(zw), cvt_f16x2_e4m3x2(zw >> 16)};

                mma_m16n8k16_f16(o[j], a, b0, b1);
            }
        }
    }
    static __device__ __forceinline__ uint32_t word(const uint4 &x, int j)
    {
        return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
    }
};

/* Over the eight lanes that hold the same heads. */
static __device__ __forceinline__ float max_over_keys(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}
static __device__ __forceinline__ float sum_over_keys(float x)
{
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

/* Scores of a step become weights; o is rescaled. Keys lo .. hi of the step are seen. */
template <int N>
static __device__ __forceinline__ void weigh(float (&s)[N][4], float (&m)[2], float (&l)[2],
                                             float (&o)[4][4], int lo, int hi, float c)
{
    const int g = threadIdx.x % 32 / 4;

    if (lo > 0 || hi < N * 16 - 1) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = i * 16 + e / 2 * 8 + g;

                if (key < lo || key > hi)
                    s[i][e] = -INFINITY;
            }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = s[0][h], sum = 0.0f;

#pragma unroll
        for (int i = 0; i < N; i++)
            top = fmaxf(top, fmaxf(s[i][h], s[i][h + 2]));

        const float now = fmaxf(m[h], max_over_keys(top) * c);
        const float base = now == -INFINITY ? 0.0f : now; /* nothing seen yet: all weights are 0 */
        const float alpha = ex2_approx(m[h] - base);

        m[h] = now;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int e = h; e < 4; e += 2) {
                s[i][e] = ex2_approx(__fmaf_rn(s[i][e], c, -base));
                sum += s[i][e];
            }
        l[h] = __fmaf_rn(l[h], alpha, sum);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            o[j][h] *= alpha;
            o[j][h + 2] *= alpha;
        }
    }
}

/* --- joining ---------------------------------------------------------------------------------- */

struct decode_part { /* of one warp */
    float o[8][68];  /* heads; padded against bank conflicts */
    float2 ml[8];
};

static __device__ __forceinline__ void leave_part(decode_part &part, const float (&m)[2],
                                                  const float (&l)[2], const float (&o)[4][4])
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = sum_over_keys(l[h]);
        float4 *to = (float4 *)&part.o[q * 2 + h][g * 8];

        to[0] = make_float4(o[0][h], o[0][h + 2], o[1][h], o[1][h + 2]);
        to[1] = make_float4(o[2][h], o[2][h + 2], o[3][h], o[3][h + 2]);
        if (g == 0)
            part.ml[q * 2 + h] = make_float2(m[h], sum);
    }
}

/* Two dimensions of a head. */
struct decode_sum {
    float M, L, x, y;

    __device__ __forceinline__ void add(float2 ml, float2 o)
    {
        if (ml.x == -INFINITY)
            return;
        const attn_joint j = attn_join(M, L, ml.x, ml.y);

        x = attn_join_value(j, x, o.x);
        y = attn_join_value(j, y, o.y);
    }
    __device__ __forceinline__ void finish(__nv_bfloat16 *out, float sink, bool padding)
    {
        const float f = attn_finish(M, L, sink);

        *(uint32_t *)out = padding ? 0 : cvt_bf16x2(__fmul_rn(x, f), __fmul_rn(y, f));
    }
};

template <bool E4M3>
static __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    decode_kernel(const __grid_constant__ decode_params p)
{
    using step = decode_step<E4M3>;
    __shared__ decode_part parts[2][WARPS];
    __shared__ int start[TD_CUDA_DECODE_GROUP + 1], warp_sum[TD_CUDA_DECODE_GROUP / 32], is_last;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int PER_PAGE = TD_KV_PAGE / step::STEP;
    decode_unit u, next;
    step d;

    /* The list of units. */
    {
        const int t = threadIdx.x;
        const int n = t < p.T ? cut_of(p, p.len[t]).chunks : 0;
        int sum = n;

#pragma unroll
        for (int x = 1; x < 32; x *= 2) {
            const int before = __shfl_up_sync(~0u, sum, x);

            if (lane >= x)
                sum += before;
        }
        if (lane == 31 && t < TD_CUDA_DECODE_GROUP)
            warp_sum[warp] = sum;
        __syncthreads();
        for (int w = 0; w < warp && w < TD_CUDA_DECODE_GROUP / 32; w++)
            sum += warp_sum[w];
        if (t < p.T)
            start[t + 1] = sum;
        if (t == 0)
            start[0] = 0;
        __syncthreads();
    }

    /* Lane i: the page of this warp's step number i. */
    const auto pages = [&](const decode_unit &x, int from) {
        const int at = x.first + warp + (from + lane) * WARPS;

        return at <= x.last ? p.table[(int64_t)x.t * p.table_stride + at / PER_PAGE % p.wrap] : 0;
    };
    const auto ask_q = [&](const decode_unit &x) {
        d.load_q(lane / 4 < p.G ? p.q + ((int64_t)x.t * p.H + x.head * p.G + lane / 4) * 64 : NULL);
    };
    const auto address = [&](const decode_unit &x, int at, int page) {
        return p.kv + x.head * p.head_stride +
               ((int64_t)page * TD_KV_PAGE + at % PER_PAGE * step::STEP) * step::ROW;
    };

    int i_unit = blockIdx.x;
    bool more = unit_at<step::STEP>(p, start, i_unit, u);
    int table = more ? pages(u, 0) : 0;

    if (more) {
        const int at = u.first + warp;
        const int page = __shfl_sync(~0u, table, 0);

        ask_q(u);
        if (at <= u.last) {
            const uint8_t *from = address(u, at, page);

            d.load_k(from, u.lo - at * step::STEP, u.pos - at * step::STEP);
            d.load_v(from + p.side_stride, u.lo - at * step::STEP, u.pos - at * step::STEP);
        }
    }
    for (int turn = 0; more; turn ^= 1) {
        float o[4][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
        int table_next;
        bool more_next;

        i_unit += gridDim.x;
        more_next = unit_at<step::STEP>(p, start, i_unit, next);
        table_next = more_next ? pages(next, 0) : 0;
        for (int n = 0, at = u.first + warp; at <= u.last; n++, at += WARPS) {
            const int lo = u.lo - at * step::STEP, hi = u.pos - at * step::STEP;
            const bool same = at + WARPS <= u.last;
            float s[step::STEP / 16][4] = {};
            const uint8_t *from;
            int at_next, lo_next, hi_next;
            bool go;

            if ((n + 1) % 32 == 0)
                table = pages(u, n + 1);
            at_next = same ? at + WARPS : next.first + warp;
            go = same || (more_next && at_next <= next.last);
            if (same)
                from = address(u, at_next, __shfl_sync(~0u, table, (n + 1) % 32));
            else
                from = address(next, at_next, __shfl_sync(~0u, table_next, 0));
            lo_next = (same ? u.lo : next.lo) - at_next * step::STEP;
            hi_next = (same ? u.pos : next.pos) - at_next * step::STEP;

            d.scores(s);
            if (go)
                d.load_k(from, lo_next, hi_next);
            weigh(s, m, l, o, lo, hi, p.c);
            d.values(o, s);
            if (go)
                d.load_v(from + p.side_stride, lo_next, hi_next);
        }
        if (more_next)
            ask_q(next);
        if (more_next && u.first + warp > u.last && next.first + warp <= next.last) {
            const int at = next.first + warp;
            const uint8_t *from = address(next, at, __shfl_sync(~0u, table_next, 0));

            d.load_k(from, next.lo - at * step::STEP, next.pos - at * step::STEP);
            d.load_v(from + p.side_stride, next.lo - at * step::STEP, next.pos - at * step::STEP);
        }

        /* The warps' parts, in order; two sets of them in turn, so one barrier is enough. */
        leave_part(parts[turn][warp], m, l, o);
        __syncthreads();
        const int h = warp, row = u.head * p.G + h; /* a warp a head, two dimensions a lane */
        const int64_t seq_row = (int64_t)u.t * p.H + row;
        decode_sum sum = {-INFINITY, 0.0f, 0.0f, 0.0f};

        if (h < p.G) {
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                sum.add(parts[turn][w].ml[h], *(const float2 *)&parts[turn][w].o[h][lane * 2]);
            if (u.chunks == 1) {
                sum.finish(p.out + seq_row * 64 + lane * 2, p.sinks[row], u.pos < 0);
            } else {
                const int64_t at = seq_row * TD_TUNE_CHUNKS + u.chunk;

                if (lane == 0)
                    p.ml[at] = make_float2(sum.M, sum.L);
                *(float2 *)(p.o + at * 64 + lane * 2) = make_float2(sum.x, sum.y);
            }
        }
        if (u.chunks > 1) {
            __threadfence(); /* the ticket says that this chunk's results are there */
            __syncthreads();
            if (threadIdx.x == 0) {
                uint32_t *ticket = p.tickets + u.t * p.K + u.head;

                is_last = atomicAdd(ticket, 1) == (uint32_t)u.chunks - 1;
                if (is_last)
                    *ticket = 0; /* for the next launch */
                __threadfence(); /* after all tickets come the results of others */
            }
            __syncthreads();
            if (is_last && h < p.G) {
                const float2 *ml = p.ml + seq_row * TD_TUNE_CHUNKS;
                const float *part = p.o + seq_row * TD_TUNE_CHUNKS * 64 + lane * 2;

                sum = {-INFINITY, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
                for (int i = 0; i < u.chunks; i++)
                    sum.add(__ldcg(ml + i), __ldcg((const float2 *)(part + i * 64)));
                sum.finish(p.out + seq_row * 64 + lane * 2, p.sinks[row], false);
            }
        }
        u = next;
        table = table_next;
        more = more_next;
    }
}

static size_t partials(int64_t T, int32_t H)
{
    const int64_t group = TD_CUDA_DECODE_GROUP;

    return (size_t)((T < group ? T : group) * H * TD_TUNE_CHUNKS);
}

size_t td_cuda_decode_ws(int32_t T, int32_t H, int32_t d)
{
    return d == 64 ? td_cuda_ws_round(partials(T, H) * sizeof(float2)) +
                         td_cuda_ws_round(partials(T, H) * 64 * sizeof(float))
                   : 0;
}

td_status td_cuda_attn_decode(td_stream *s, const td_attn_decode_args *a, td_error *err)
{
    td_status st = td_cuda_check_heads("attn_decode", a->H, a->K, a->d, err);
    cuda_ws ws = {(char *)a->ws};
    decode_params p = {};
    int sms = 0;

    if (st != TD_OK || (st = td_cuda_check_vector("attn_decode", "sinks", a->sinks, a->H, err)))
        return st;
    if (a->T == 0)
        return TD_OK;
    if (!td_cuda_attn_fast(&a->kv, a->H, a->K, a->d))
        return td_cuda_attn_plain(s->handle, a->T, a->H, a->K, a->d, a->window, a->wrap,
                                  a->table_stride, 0, a->scale, a->len, a->table, &a->kv,
                                  td_cuda_vector(a->sinks), a->q, a->out, err);
    if ((st = td_cuda_status(
             err, cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, s->dev->index),
             "asking for multiprocessors")) != TD_OK)
        return st;
    const size_t elt = td_elt_bytes(a->kv.elt);
    const int64_t most_pages =
        a->window > 0 ? ((int64_t)a->window + TD_KV_PAGE - 2) / TD_KV_PAGE + 1 : a->wrap;

    p.kv = (const uint8_t *)a->kv.base;
    p.head_stride = a->kv.head_stride * (int64_t)elt;
    p.side_stride = a->kv.side_stride * (int64_t)elt;
    p.sinks = td_cuda_vector(a->sinks);
    p.H = a->H;
    p.K = a->K;
    p.G = a->H / a->K;
    p.window = a->window;
    p.wrap = a->wrap;
    p.table_stride = a->table_stride;
    p.most_chunks = td_tune_most_chunks(a->K);
    p.c = a->scale * ATTN_LOG2E;
    p.ml = (float2 *)td_cuda_ws_take(&ws, partials(a->T, a->H) * sizeof(float2));
    p.o = (float *)td_cuda_ws_take(&ws, partials(a->T, a->H) * 64 * sizeof(float));
    p.tickets = (uint32_t *)s->dev->tickets.ptr;
    for (int32_t t = 0; t < a->T; t += TD_CUDA_DECODE_GROUP) { /* one group's partials at a time */
        int64_t units;

        p.T = a->T - t < TD_CUDA_DECODE_GROUP ? a->T - t : TD_CUDA_DECODE_GROUP;
        p.q = (const __nv_bfloat16 *)a->q + (int64_t)t * a->H * 64;
        p.out = (__nv_bfloat16 *)a->out + (int64_t)t * a->H * 64;
        p.len = a->len + t;
        p.table = a->table + (int64_t)t * a->table_stride;
        units = (most_pages + TD_TUNE_LEAST_PAGES - 1) / TD_TUNE_LEAST_PAGES;
        units = (units < p.most_chunks ? units : p.most_chunks) * p.T * p.K;
        const unsigned grid = (unsigned)(units < sms * BLOCKS ? units : sms * BLOCKS);

        if (a->kv.elt == TD_ELT_E4M3)
            decode_kernel<true><<<grid, WARPS * 32, 0, s->handle>>>(p);
        else
            decode_kernel<false><<<grid, WARPS * 32, 0, s->handle>>>(p);
    }
    return td_cuda_launched(err, "attn_decode");
}
