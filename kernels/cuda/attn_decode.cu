/* attn_decode: one query a sequence, its keys split into chunks over the machine.
 *
 * A unit of work is a chunk of one kv head of one sequence. A chunk's steps (attn_step.cuh) fall
 * into eight groups; a group's results are joined with those of the groups before it, in order.
 * When there are few units a block takes one and each warp a group of it; when there are many a
 * warp takes one alone, and no warp waits for another. Either way the same numbers are added in the
 * same order, and how keys are cut depends on the sequence's length alone: a sequence keeps its
 * bits in any batch. One of one chunk is finished in place; else every chunk leaves (m, l, o), and
 * a second kernel joins them. That one is launched early and waits on the device.
 *
 * Blocks stay and take every n-th unit of a list that each works out from the lengths. A warp asks
 * for the keys and values of its next step, be it another unit's, as soon as registers are free.
 *
 * Bound by the keys and values that must be read; one sequence, by how long the first byte takes.
 * One H200, 2026-11-30, graph replays over caches that rotate past L2, 64 heads over 8: bf16 at
 * 8192 positions 1.7 TB/s for one sequence, 3.3 for 8, 4.0 for 64 and 128; at 32768 positions 3.0,
 * 4.0, 4.3; e4m3 1.0, 2.3, 3.4 and 2.2, 3.5, 3.9; a window of 128 takes 4 us for one sequence, 11
 * for 64. */
#include "kernels/cuda/attn_step.cuh"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tune.h"

static const int WARPS = 8, BLOCKS = 2; /* of a block; of a multiprocessor: 128 KiB asked for */
static const int JOIN_WARPS = 4, TABLE = 2048;
/* Shared memory that nobody uses: with it, no two blocks share a multiprocessor. Else a few units
 * would not be spread evenly while blocks of the kernel before are still there. */
static const int ALONE = 80 * 1024;

/* Units: a block takes one, and not a warp. */
static const int SPREAD_BELOW = 1024;

struct decode_params {
    const __nv_bfloat16 *q;
    const uint8_t *kv;
    __nv_bfloat16 *out;
    int64_t head_stride, side_stride; /* bytes */
    const int32_t *len, *table;
    const float *sinks;
    int32_t T, H, K, G, window, wrap, table_stride, chunks_log2;
    int32_t direct; /* a block a unit; so many, at most, a sequence and kv head. 0: use the list */
    float by_K, by_wrap, by_direct; /* 1 / K ... */
    float c;
    float2 *ml; /* [sequences of a launch, H, chunks] */
    float *o;   /* the same, 64 each */
};

/* x / d, rounded down, from 1 / d; x below 2^22. Integer division is slow, and much waits for it.
 */
static __device__ __forceinline__ int quotient(int x, float by)
{
    return (int)(((float)x + 0.5f) * by);
}

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
    c.pages = td_tune_chunk_pages(c.last - c.first + 1, p.chunks_log2);
    c.chunks = max(quotient(c.last - c.first + c.pages, __frcp_rn((float)c.pages)), 1);
    return c;
}

/* A chunk of a kv head of a sequence, or a warp's part of it: steps first .. last, joined after
 * each `group`. */
struct decode_unit {
    int t, head, chunk, chunks, lo, pos, first, last, group;
};

template <int STEP>
static __device__ __forceinline__ decode_unit unit_of(const decode_params &p, int t, int head,
                                                      int chunk, int len)
{
    const int per_page = TD_KV_PAGE / STEP;
    const decode_cut c = cut_of(p, len);
    decode_unit u;

    u.t = t;
    u.head = head;
    u.chunk = chunk;
    u.chunks = c.chunks;
    u.lo = c.lo;
    u.pos = c.pos;
    u.first = (c.first + chunk * c.pages) * per_page;
    u.last = u.first + c.pages * per_page - 1;
    u.first = max(u.first, c.lo / STEP);
    u.last = c.pos < 0 ? u.first - 1 : min(u.last, c.pos / STEP);
    u.group = (u.last - u.first + WARPS) / WARPS;
    return u;
}

/* The units of all sequences of a launch. */
struct decode_list {
    int len[TD_CUDA_DECODE_GROUP], warp_sum[WARPS];
    int start[TD_CUDA_DECODE_GROUP + 1]; /* of each its first chunk's number among all */

    /* By the whole block. */
    __device__ __forceinline__ void make(const decode_params &p)
    {
        const int t = threadIdx.x, lane = t % 32, n = t < p.T ? p.len[t] : 0;
        int sum = t < p.T ? cut_of(p, n).chunks : 0;

#pragma unroll
        for (int x = 1; x < 32; x *= 2) {
            const int before = __shfl_up_sync(~0u, sum, x);

            if (lane >= x)
                sum += before;
        }
        if (lane == 31)
            warp_sum[t / 32] = sum;
        __syncthreads();
        for (int w = 0; w < t / 32; w++)
            sum += warp_sum[w];
        if (t < p.T) {
            len[t] = n;
            start[t + 1] = sum;
        }
        if (t == 0)
            start[0] = 0;
        __syncthreads();
    }
    __device__ __forceinline__ int units(const decode_params &p) const
    {
        return start[p.T] * p.K;
    }
    template <int STEP>
    __device__ __forceinline__ decode_unit at(const decode_params &p, int i) const
    {
        const int n = quotient(i, p.by_K);
        int below = 0, above = p.T; /* start[below] <= n < start[above] */

        while (above - below > 1) {
            const int mid = (below + above) / 2;

            if (start[mid] <= n)
                below = mid;
            else
                above = mid;
        }
        return unit_of<STEP>(p, below, i - n * p.K, n - start[below], len[below]);
    }
};

/* --- joining ------------------------------------------------------------------------------------
 */

/* How (m, l) joins what came before it (M, L): both sums of values are rescaled, by these. What saw
 * nothing (m = -inf) changes nothing. */
struct decode_joint {
    float before, now;
};
static __device__ __forceinline__ decode_joint join(float &M, float &L, float m, float l)
{
    const float top = fmaxf(M, m), base = top == -INFINITY ? 0.0f : top;
    const decode_joint j = {ex2_approx(M - base), ex2_approx(m - base)};

    M = top;
    L = __fmaf_rn(l, j.now, __fmul_rn(L, j.before));
    return j;
}
static __device__ __forceinline__ float join_value(decode_joint j, float before, float now)
{
    return __fmaf_rn(now, j.now, __fmul_rn(before, j.before));
}

/* What a warp has of its unit so far; in shared memory. */
struct decode_part {
    float o[8][68]; /* heads; padded against bank conflicts */
    float2 ml[8];

    __device__ __forceinline__ void clear()
    {
        const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;

        __syncwarp(); /* the last one's readers are done */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float4 *to = (float4 *)&o[q * 2 + h][g * 8];

            to[0] = to[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        if (g < 2)
            ml[q * 2 + g] = make_float2(-INFINITY, 0.0f);
        __syncwarp();
    }
    __device__ __forceinline__ void add(const decode_state &st)
    {
        const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
        float2 now[2];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = sum_over_keys(st.l[h]);
            float4 *to = (float4 *)&o[q * 2 + h][g * 8], a = to[0], b = to[1];

            now[h] = ml[q * 2 + h];
            const decode_joint j = join(now[h].x, now[h].y, st.m[h], sum);
            to[0] = make_float4(join_value(j, a.x, st.o[0][h]), join_value(j, a.y, st.o[0][h + 2]),
                                join_value(j, a.z, st.o[1][h]), join_value(j, a.w, st.o[1][h + 2]));
            to[1] = make_float4(join_value(j, b.x, st.o[2][h]), join_value(j, b.y, st.o[2][h + 2]),
                                join_value(j, b.z, st.o[3][h]), join_value(j, b.w, st.o[3][h + 2]));
        }
        __syncwarp(); /* all have read ml */
        if (g == 0) {
            ml[q * 2] = now[0];
            ml[q * 2 + 1] = now[1];
        }
        __syncwarp();
    }
};

/* Two dimensions of a head, from parts in order. */
struct decode_sum {
    float M, L, x, y;

    __device__ __forceinline__ void clear()
    {
        M = -INFINITY;
        L = x = y = 0.0f;
    }
    __device__ __forceinline__ void add(float2 ml, float2 o)
    {
        const decode_joint j = join(M, L, ml.x, ml.y);

        x = join_value(j, x, o.x);
        y = join_value(j, y, o.y);
    }
    __device__ __forceinline__ void finish(__nv_bfloat16 *out, float sink, bool padding)
    {
        const float f = attn_finish(M, L, sink);

        *(uint32_t *)out = padding ? 0 : cvt_bf16x2(__fmul_rn(x, f), __fmul_rn(y, f));
    }
};

static __device__ __forceinline__ void cp_async_4(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(dst), "l"(src) : "memory");
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <bool E4M3>
static __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    decode_kernel(const __grid_constant__ decode_params p)
{
    using step = decode_step<E4M3>;
    const int STEP = step::STEP, PER_PAGE = TD_KV_PAGE / STEP;
    __shared__ decode_part parts[2][WARPS];
    __shared__ decode_unit units[2][WARPS]; /* this one and the next: each warp's own copy */
    __shared__ union {
        decode_list list;
        int table[TABLE]; /* of the one sequence, when its block has but one unit */
    } about;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool near = p.direct > 0 && p.wrap <= TABLE; /* the table is in shared memory */
    decode_unit *u = &units[0][warp], *next = &units[1][warp];
    decode_state st;
    step d;

    const auto ask_q = [&](int t, int head) {
        d.load_q(lane / 4 < p.G ? p.q + ((int64_t)t * p.H + head * p.G + lane / 4) * 64 : NULL);
    };
    /* Lane i: the page of this warp's step number from + i. */
    const auto pages = [&](const decode_unit *x, int from) {
        const int at = x->first + from + lane, page = at / PER_PAGE;
        const int i = page - quotient(page, p.by_wrap) * p.wrap;

        if (at > x->last)
            return 0;
        return near ? about.table[i] : p.table[(int64_t)x->t * p.table_stride + i];
    };
    /* Ask for the keys, or values, of a step. */
    const auto address = [&](const decode_unit *x, int at, int page) {
        return p.kv + x->head * p.head_stride +
               ((int64_t)page * TD_KV_PAGE + at % PER_PAGE * STEP) * step::ROW;
    };
    const auto ask_k = [&](const decode_unit *x, int at, const uint8_t *from) {
        d.load_k(from, x->lo - at * STEP, x->pos - at * STEP);
    };
    const auto ask_v = [&](const decode_unit *x, int at, const uint8_t *from) {
        d.load_v(from + p.side_stride, x->lo - at * STEP, x->pos - at * STEP);
    };

    /* Which units are this block's, or this warp's. */
    bool spread = true;
    int i_unit = blockIdx.x, i_stride = gridDim.x, n_units = 0;
    const auto set = [&](decode_unit found, decode_unit *x) {
        if (spread) { /* one group of it */
            found.first += warp * found.group;
            found.last = min(found.first + found.group - 1, found.last);
        }
        __syncwarp(); /* the place's last reader is done */
        if (lane == 0)
            *x = found;
        __syncwarp();
    };

    griddepcontrol_launch_dependents(); /* the join may be set up meanwhile */
    griddepcontrol_wait();
    if (p.direct > 0) {
        const int row = quotient(i_unit, p.by_direct), chunk = i_unit - row * p.direct;
        const int t = quotient(row, p.by_K), head = row - t * p.K;

        /* All of the table at once: which of it is wanted would be known only after the length. */
        for (int i = threadIdx.x; near && i < p.wrap; i += WARPS * 32)
            cp_async_4(smem_addr(&about.table[i]), p.table + (int64_t)t * p.table_stride + i);
        cp_async_commit();
        const int len = p.len[t];
        ask_q(t, head);
        const decode_unit found = unit_of<step::STEP>(p, t, head, chunk, len);
        cp_async_wait<0>();
        if (chunk >= found.chunks)
            return;
        set(found, u);
        __syncthreads();
    } else {
        about.list.make(p);
        n_units = about.list.units(p);
        spread = n_units < SPREAD_BELOW;
        if (!spread) {
            i_unit += warp * gridDim.x;
            i_stride *= WARPS;
        }
        if (i_unit >= n_units)
            return;
        set(about.list.at<step::STEP>(p, i_unit), u);
        ask_q(u->t, u->head);
    }

    int table = pages(u, 0);

    if (u->first <= u->last) {
        const uint8_t *from = address(u, u->first, __shfl_sync(~0u, table, 0));

        ask_k(u, u->first, from);
        ask_v(u, u->first, from);
    }
    for (int turn = 0;; turn ^= 1) {
        decode_part &part = parts[turn][warp];
        int table_next = 0, left;
        bool more;

        i_unit += i_stride;
        more = i_unit < n_units;
        if (more) {
            set(about.list.at<step::STEP>(p, i_unit), next);
            table_next = pages(next, 0);
        }
        d.prepare_q();
        st.clear();
        part.clear();
        left = u->group;
        for (int at = u->first; at <= u->last; at++) {
            const int lo = u->lo - at * STEP, hi = u->pos - at * STEP;
            const bool same = at < u->last;
            const decode_unit *to = same ? u : next;
            const int at_next = same ? at + 1 : next->first, n = at_next - to->first;
            const bool go = same || (more && next->first <= next->last);
            float s[step::STEP / 16][4] = {};
            const uint8_t *from;

            if (same && n % 32 == 0)
                table = pages(u, n);
            from = address(to, at_next, __shfl_sync(~0u, same ? table : table_next, n % 32));
            d.scores(s);
            if (go)
                ask_k(to, at_next, from);
            weigh(s, st, lo, hi, p.c);
            d.values(st.o, s);
            if (go)
                ask_v(to, at_next, from);
            if (--left == 0 || !same) {
                part.add(st);
                st.clear();
                left = u->group;
            }
        }
        if (more) {
            ask_q(next->t, next->head);
            if (u->first > u->last && next->first <= next->last) {
                const uint8_t *from = address(next, next->first, __shfl_sync(~0u, table_next, 0));

                ask_k(next, next->first, from);
                ask_v(next, next->first, from);
            }
        }

        /* The block's parts in order, a warp a head; two sets of them in turn, so one barrier is
         * enough. Or the warp's own. */
        const bool split = u->chunks > 1;
        const int h0 = spread ? warp : 0, h1 = spread ? min(warp + 1, p.G) : p.G;
        decode_sum sum;

        if (spread)
            __syncthreads();
        for (int h = h0; h < h1; h++) {
            const int64_t row = (int64_t)u->t * p.H + u->head * p.G + h;

            sum.clear();
            if (spread) {
#pragma unroll
                for (int w = 0; w < WARPS; w++)
                    sum.add(parts[turn][w].ml[h], *(const float2 *)&parts[turn][w].o[h][lane * 2]);
            } else {
                sum.add(part.ml[h], *(const float2 *)&part.o[h][lane * 2]);
            }
            if (split) {
                const int64_t at = row * TD_TUNE_CHUNKS + u->chunk;

                if (lane == 0)
                    p.ml[at] = make_float2(sum.M, sum.L);
                *(float2 *)(p.o + at * 64 + lane * 2) = make_float2(sum.x, sum.y);
            } else {
                sum.finish(p.out + row * 64 + lane * 2, p.sinks[u->head * p.G + h], u->pos < 0);
            }
        }
        if (!more)
            return;
        decode_unit *const done = u;
        u = next;
        next = done;
        table = table_next;
    }
}

/* A warp a query head: lane i weighs chunk i, then all add two dimensions each. */
static __global__ void __launch_bounds__(JOIN_WARPS * 32)
    join_kernel(const __grid_constant__ decode_params p)
{
    const int lane = threadIdx.x % 32, h = blockIdx.x * JOIN_WARPS + threadIdx.x / 32;
    const int t = blockIdx.y, chunks = cut_of(p, p.len[t]).chunks;
    const int64_t row = (int64_t)t * p.H + h, at = row * TD_TUNE_CHUNKS;

    if (h >= p.H || chunks == 1)
        return;
    const float sink = p.sinks[h];
    const float *o = p.o + at * 64 + lane * 2;
    float2 sum = make_float2(0.0f, 0.0f);

    float2 part[TD_TUNE_CHUNKS / 2];

    griddepcontrol_launch_dependents();
    griddepcontrol_wait(); /* the chunks' results are there */
    const float2 ml = lane < chunks ? __ldcg(p.ml + at + lane) : make_float2(-INFINITY, 0.0f);
    float M = ml.x, L, w;

    /* Half of the chunks at a time, asked for before their weights are known. */
#pragma unroll
    for (int i = 0; i < TD_TUNE_CHUNKS / 2; i++)
        if (i < chunks)
            part[i] = __ldcg((const float2 *)(o + i * 64));
    for (int x = 16; x > 0; x /= 2)
        M = fmaxf(M, __shfl_xor_sync(~0u, M, x));
    w = ex2_approx(ml.x - M);
    L = ml.y * w;
    for (int x = 16; x > 0; x /= 2)
        L += __shfl_xor_sync(~0u, L, x);
    w *= attn_finish(M, L, sink);
#pragma unroll
    for (int first = 0; first < TD_TUNE_CHUNKS; first += TD_TUNE_CHUNKS / 2) {
#pragma unroll
        for (int i = 0; i < TD_TUNE_CHUNKS / 2; i++)
            if (first > 0 && first + i < chunks)
                part[i] = __ldcg((const float2 *)(o + (first + i) * 64));
#pragma unroll
        for (int i = 0; i < TD_TUNE_CHUNKS / 2; i++) {
            const float wi = __shfl_sync(~0u, w, first + i);

            if (first + i < chunks) {
                sum.x = __fmaf_rn(part[i].x, wi, sum.x);
                sum.y = __fmaf_rn(part[i].y, wi, sum.y);
            }
        }
    }
    *(uint32_t *)(p.out + row * 64 + lane * 2) = cvt_bf16x2(sum.x, sum.y);
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

/* The kernel may start before those that it waits for have ended. */
template <typename Kernel>
static td_status launch(Kernel kernel, dim3 grid, int threads, int smem, const decode_params &p,
                        cudaStream_t s, td_error *err)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = (size_t)smem;
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = 1;
    return td_cuda_status(err, cudaLaunchKernelEx(&c, kernel, p), "attn_decode");
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
    const auto kernel = a->kv.elt == TD_ELT_E4M3 ? decode_kernel<true> : decode_kernel<false>;
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
    p.chunks_log2 = td_tune_chunks_log2(a->K);
    p.by_K = 1.0f / (float)a->K;
    p.by_wrap = 1.0f / (float)a->wrap;
    p.c = a->scale * ATTN_LOG2E;
    p.ml = (float2 *)td_cuda_ws_take(&ws, partials(a->T, a->H) * sizeof(float2));
    p.o = (float *)td_cuda_ws_take(&ws, partials(a->T, a->H) * 64 * sizeof(float));
    int64_t chunks = (most_pages + TD_TUNE_LEAST_PAGES - 1) / TD_TUNE_LEAST_PAGES; /* of one */

    if (chunks > 1 << p.chunks_log2)
        chunks = 1 << p.chunks_log2;
    if ((st = td_cuda_status(
             err, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ALONE),
             "attn_decode's shared memory")) != TD_OK)
        return st;
    for (int32_t t = 0; t < a->T; t += TD_CUDA_DECODE_GROUP) { /* one group's partials at a time */
        int64_t units;

        p.T = a->T - t < TD_CUDA_DECODE_GROUP ? a->T - t : TD_CUDA_DECODE_GROUP;
        p.q = (const __nv_bfloat16 *)a->q + (int64_t)t * a->H * 64;
        p.out = (__nv_bfloat16 *)a->out + (int64_t)t * a->H * 64;
        p.len = a->len + t;
        p.table = a->table + (int64_t)t * a->table_stride;
        units = chunks * p.T * p.K;
        p.direct = units <= sms * BLOCKS ? (int32_t)chunks : 0;
        p.by_direct = 1.0f / (float)chunks;
        const unsigned grid = (unsigned)(units < sms * BLOCKS ? units : sms * BLOCKS);

        const dim3 joins((unsigned)((p.H + JOIN_WARPS - 1) / JOIN_WARPS), (unsigned)p.T);

        if ((st = launch(kernel, grid, WARPS * 32, units <= sms ? ALONE : 0, p, s->handle, err)) !=
                TD_OK ||
            (chunks > 1 &&
             (st = launch(join_kernel, joins, JOIN_WARPS * 32, 0, p, s->handle, err)) != TD_OK))
            return st;
    }
    return td_cuda_launched(err, "attn_decode");
}
