/* attn_decode: one query a sequence, its keys split into chunks over the machine.
 *
 * A unit of work is a chunk of one kv head of one sequence. A chunk's steps (attn_step.cuh) fall
 * into eight groups; a group's results are joined with those of the groups before it, in order.
 * When there are few units a block takes one and each warp a group of it; when there are many a
 * warp takes one alone, and no warp waits for another. Either way the same numbers are added in the
 * same order, and how keys are cut depends on the sequence's length alone: a sequence keeps its
 * bits in any batch. One of one chunk is finished in place; else every chunk leaves (m, l, o), and
 * the block of the last one joins them, or, when warps have units alone, a second kernel, which is
 * launched early and waits on the device.
 *
 * Blocks stay and take every n-th unit of a list that each works out from the lengths. A warp asks
 * for the keys and values of its next step, be it another unit's, as soon as registers are free.
 *
 * Bound by the keys and values that must be read; one sequence by latencies, of two launches and of
 * the first bytes. One H200, 2026-11-30, graph replays over caches that rotate past L2, 64 heads
 * over 8; TB/s for 1, 8 and 64 sequences: bf16 of 8192 positions 1.7, 3.3, 4.0, of 32768 3.0, 4.0,
 * 4.3; e4m3 1.0, 2.3, 3.4 and 2.2, 3.5, 3.9. A window of 128 takes 4 us for one, 12 for 64. */
#include "kernels/cuda/attn_join.cuh"
#include "kernels/cuda/hopper.cuh"

static const int BLOCKS = 2; /* of a multiprocessor: 16 warps ask for 128 KiB */
static const int JOIN_WARPS = 4;
static const int TABLE = 2048; /* pages of a table that fits into shared memory */
/* Shared memory that nobody uses: with it, no two blocks share a multiprocessor. Else a few units
 * would not be spread evenly while blocks of the kernel before are still there. */
static const int ALONE = 80 * 1024;

/* Units: a block takes one, and not a warp. */
static const int SPREAD_BELOW = 1024;

static __device__ __forceinline__ void cp_async_4(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(dst), "l"(src) : "memory");
}

/* Of a sequence and kv head: how many of its chunks are there. Zero between steps. */
static const int MOST_ROWS = 1024;
static __device__ unsigned chunks_done[MOST_ROWS];

/* A row of query head h from its chunks, by a warp. */
static __device__ __forceinline__ void join_row(const decode_params &p, int t, int h, int chunks)
{
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)t * p.H + h, at = row * TD_TUNE_CHUNKS;
    const float *o = p.o + at * 64 + lane * 2;
    const float sink = p.sinks[h];
    float2 part[TD_TUNE_CHUNKS];
    const float2 ml = lane < chunks ? __ldcg(p.ml + at + lane) : make_float2(-INFINITY, 0.0f);

#pragma unroll
    for (int i = 0; i < TD_TUNE_CHUNKS; i++) /* asked for before their weights are known */
        if (i < chunks)
            part[i] = __ldcg((const float2 *)(o + i * 64));
    join_chunks(ml, chunks, sink, p.out + row * 64, [&](int i) { return part[i]; });
}

/* All threads of a block that has left a chunk's results: the last one of the row's joins them. */
static __device__ __noinline__ void join_if_last(const decode_params &p, const decode_unit &u)
{
    __shared__ unsigned before;
    const int warp = threadIdx.x / 32;
    unsigned *const done = &chunks_done[u.t * p.K + u.head];

    if (u.chunks == 1)
        return;
    __syncthreads();
    if (threadIdx.x == 0)
        before = add_acq_rel(done, 1);
    __syncthreads();
    if ((int)before + 1 != u.chunks)
        return;
    if (threadIdx.x == 0)
        *done = 0;
    if (warp < p.G)
        join_row(p, u.t, u.head * p.G + warp, u.chunks);
}

/* DIRECT: see decode_params; of its own, because instructions too have to be fetched. */
template <bool E4M3, bool DIRECT>
static __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    decode_kernel(const __grid_constant__ decode_params p)
{
    using step = decode_step<E4M3>;
    const int STEP = step::STEP, PER_PAGE = TD_KV_PAGE / STEP;
    __shared__ __align__(16) decode_part parts[2][WARPS];
    __shared__ decode_unit units[2][WARPS]; /* this one and the next: each warp's own copy */
    __shared__ union {
        decode_list list;
        int table[TABLE]; /* of the one sequence, when its block has but one unit */
    } about;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool near = DIRECT && p.wrap <= TABLE; /* the table is in shared memory */
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

    griddepcontrol_wait();
    griddepcontrol_launch_dependents(); /* the join may be set up, and read the lengths */
    if (DIRECT) {
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
        more = !DIRECT && i_unit < n_units;
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

        if (!DIRECT && !spread) {
            leave_alone(p, *u, part);
        } else {
            /* A warp a head; two sets of parts in turn, so one barrier is enough. */
            const int row = u->head * p.G + warp;
            const int64_t out = (int64_t)u->t * p.H + row;
            decode_sum sum;

            __syncthreads();
            sum.clear();
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                sum.add(parts[turn][w].ml[warp],
                        *(const float2 *)&parts[turn][w].o[warp][lane * 2]);
            if (warp < p.G && u->chunks == 1) {
                sum.finish(p.out + out * 64 + lane * 2, p.sinks[row], u->pos < 0);
            } else if (warp < p.G) {
                const int64_t at = out * TD_TUNE_CHUNKS + u->chunk;

                if (lane == 0)
                    p.ml[at] = make_float2(sum.M, sum.L);
                *(float2 *)(p.o + at * 64 + lane * 2) = make_float2(sum.x, sum.y);
            }
        }
        if (!more) {
            if (DIRECT && p.joins)
                join_if_last(p, units[0][0]); /* all warps have the same unit */
            return;
        }
        decode_unit *const done = u;
        u = next;
        next = done;
        table = table_next;
    }
}

/* A warp a query head. */
static __global__ void __launch_bounds__(JOIN_WARPS * 32)
    join_kernel(const __grid_constant__ decode_params p)
{
    const int h = blockIdx.x * JOIN_WARPS + threadIdx.x / 32, t = blockIdx.y;
    const int chunks = cut_of(p, p.len[t]).chunks;

    griddepcontrol_launch_dependents();
    griddepcontrol_wait(); /* the chunks' results are there; who comes next relies on it too */
    if (h < p.H && chunks > 1)
        join_row(p, t, h, chunks);
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
    cudaError_t e = cudaSuccess;

    /* Never back to less: ranks on one GPU share the kernel, and another may be about to launch it
     * with more. */
    if (smem > 0)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (e == cudaSuccess)
        e = cudaLaunchKernelEx(&c, kernel, p);
    return td_cuda_status(err, e, "attn_decode");
}

td_status td_cuda_attn_decode(td_stream *s, const td_attn_decode_args *a, td_error *err)
{
    const bool e4m3 = a->kv.elt == TD_ELT_E4M3;
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
    const int64_t pages =
        a->window > 0 ? ((int64_t)a->window + TD_KV_PAGE - 2) / TD_KV_PAGE + 1 : a->wrap;
    const int64_t least = (pages + TD_TUNE_LEAST_PAGES - 1) / TD_TUNE_LEAST_PAGES;
    const int log2 = td_tune_chunks_log2(a->K);
    const int chunks = least < 1 << log2 ? (int)least : 1 << log2; /* of a sequence, at most */

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
    p.chunks_log2 = log2;
    p.by_K = 1.0f / (float)a->K;
    p.by_wrap = 1.0f / (float)a->wrap;
    p.by_direct = 1.0f / (float)chunks;
    p.c = a->scale * ATTN_LOG2E;
    p.ml = (float2 *)td_cuda_ws_take(&ws, partials(a->T, a->H) * sizeof(float2));
    p.o = (float *)td_cuda_ws_take(&ws, partials(a->T, a->H) * 64 * sizeof(float));
    for (int32_t t = 0; t < a->T; t += TD_CUDA_DECODE_GROUP) { /* one group's partials at a time */
        p.T = a->T - t < TD_CUDA_DECODE_GROUP ? a->T - t : TD_CUDA_DECODE_GROUP;
        p.q = (const __nv_bfloat16 *)a->q + (int64_t)t * a->H * 64;
        p.out = (__nv_bfloat16 *)a->out + (int64_t)t * a->H * 64;
        p.len = a->len + t;
        p.table = a->table + (int64_t)t * a->table_stride;

        const int64_t units = (int64_t)chunks * p.T * p.K;
        const int blocks = units < sms * BLOCKS ? (int)units : sms * BLOCKS;
        const dim3 joins((unsigned)((p.H + JOIN_WARPS - 1) / JOIN_WARPS), (unsigned)p.T);

        p.direct = units <= blocks ? chunks : 0;
        p.joins = p.direct > 0 && p.T * p.K <= MOST_ROWS && td_cuda_alone(s->dev);
        const auto kernel = p.direct > 0
                                ? (e4m3 ? decode_kernel<true, true> : decode_kernel<false, true>)
                                : (e4m3 ? decode_kernel<true, false> : decode_kernel<false, false>);
        if ((st = launch(kernel, dim3((unsigned)blocks), WARPS * 32, units <= sms ? ALONE : 0, p,
                         s->handle, err)) != TD_OK ||
            (chunks > 1 && !p.joins &&
             (st = launch(join_kernel, joins, JOIN_WARPS * 32, 0, p, s->handle, err)) != TD_OK))
            return st;
    }
    return td_cuda_launched(err, "attn_decode");
}
