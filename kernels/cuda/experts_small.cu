/* experts_small: both products of the experts, and their sum, in one launch; decode steps.
 *
 * Bound by the stream of packed weights: 13.24 MB an expert of gpt-oss. So the weights of the
 * touched experts are one list of slabs (16 rows by all of K, contiguous: 24,480 bytes at K =
 * 2880), first all of gate_up, then all of down, and each block streams its share of both through
 * one ring in shared memory. The copies do not wait for activations, so while the blocks wait for
 * each other between the products, the ring fills with the second product's weights.
 *
 * The 15 math warps cut K among them. A warp keeps its part of the activations in registers, as the
 * b operands of mma.m16n8k16 (n is the token), for as long as the block stays with an expert; per
 * slab it reads its 3 units of weights, unpacks them into a operands and leaves its 16 x n sums in
 * shared memory. There a warp adds the 15 parts in order, applies bias and activation and stores;
 * the warps take turns, one slab behind, so that nobody waits. A thread apart refills the ring.
 * Where K is cut depends on K alone, and an mma's columns do not touch each other, so a token's
 * bits depend neither on T nor on its place.
 *
 * An expert with more than CHUNK tokens is a list entry for each CHUNK of them, and its weights are
 * streamed (from L2, at best) and unpacked again for each.
 *
 * One H200, 2026-11-30, replays of a graph of 16 steps over rotated weights (bench/ops_cuda
 * measures the step too), top 4 of 32 experts: 26, 92, 155 and 202 us at 1, 8, 64 and 128 tokens,
 * which is 48, 70, 64 and 49% of 4.3 TB/s. A slab takes a block 0.9 us at one tile, 0.75 would be
 * memory's: the integer pipe is busy 55% of the time, the rest are waits. At one token starting,
 * meeting and the first loads are half of the time.
 *
 * Who works on what follows from idx, which every block reads and sorts for itself. Blocks meet
 * after each product, at a barrier in global memory. With few tokens the second time is left out:
 * whoever stores the last expert's part of 16 columns adds them up.
 *
 * Few tokens have a kernel of their own, for its size: with one for all small steps (182 KB, now
 * 80) a layer of one token took 7 us more in a model, but not when the step was repeated. Probably
 * its instructions come from memory each time, because a layer's weights drive them out of L2. */
#include "kernels/cuda/experts_small_list.cuh"
#include "kernels/cuda/experts_small_math.cuh"

#include <math.h>

/* One step at a time runs on a device's stream, and two streams' cooperative launches of this size
 * do not overlap before their last barrier. The upper bit turns with each use, the rest is zero
 * then. */
static __device__ unsigned blocks_met;

static __device__ __forceinline__ unsigned load_acquire(const unsigned *p)
{
    unsigned v;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* One thread of each block; what it has seen happen before is visible to all after. */
static __device__ void meet_blocks()
{
    const unsigned all = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
    const unsigned before = add_acq_rel(&blocks_met, all);

    while (((load_acquire(&blocks_met) ^ before) & 0x80000000u) == 0) {
    }
}

/* FEW: see small_params; then there are no chunks of several tiles. */
template <bool FEW>
static __device__ __forceinline__ void take_stay(const small_params &p, uint32_t smem, bool whole,
                                                 stay &y, math_state &st)
{
    if (FEW && whole)
        do_stay<1, true>(p, smem, y, st);
    else if (FEW)
        do_stay<1, false>(p, smem, y, st);
    else if (!whole)
        do_stay<TILES, false>(p, smem, y, st);
    else if (y.n <= 8)
        do_stay<1, true>(p, smem, y, st);
    else if (y.n <= 16)
        do_stay<2, true>(p, smem, y, st);
    else
        do_stay<3, true>(p, smem, y, st);
}

template <bool FEW>
static __device__ void math_warp(const small_params &p, uint8_t *mem, const shares &mine)
{
    const item *items = (const item *)(mem + p.items);
    const uint16_t *sorted = (const uint16_t *)(mem + p.sorted);
    const uint32_t smem = smem_addr(mem);
    const int warp = threadIdx.x / 32;
    math_state st = {{0, 0}, {0, 0}, warp % (MATH_WARPS / TILES), warp / (MATH_WARPS / TILES)};

#pragma unroll 1 /* twice the instructions would be fetched, which takes as long as a slab */
    for (int which = 0; which < 2; which++) {
        const product &w = p.p[which];
        const share s = mine.of[which];
        const bool whole =
            (warp + 1) * w.units / MATH_WARPS - warp * w.units / MATH_WARPS == MOST_UNITS &&
            w.K % TD_MX_COLS == 0;

        if (which == 1) /* all of act is there */
            mbarrier_wait(smem + SECOND, 0);
        for (int at = s.from; at < s.to;) {
            const int i = at / w.slabs, end = (i + 1) * w.slabs < s.to ? (i + 1) * w.slabs : s.to;
            const item c = items[i];
            stay y = {&w, sorted + c.first, which, c.expert, c.n, at - i * w.slabs, end - at};

            y.first = warp * w.units / MATH_WARPS;
            y.units = (warp + 1) * w.units / MATH_WARPS - y.first;
            y.left.tile = TILES;
            take_stay<FEW>(p, smem, whole, y, st);
            at = end;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(smem + FINISHED);
        if (threadIdx.x == 0) {
            mbarrier_wait(smem + FINISHED, which);
            if (which == 0 || !FEW)
                meet_blocks();
            if (which == 0)
                mbarrier_arrive(smem + SECOND);
        }
        __syncwarp();
    }
}

/* Where the block is in its list of slabs: an item and a slab of its expert. */
struct cursor {
    int item, slab;

    __device__ __forceinline__ cursor(const product &p, int at)
        : item(at / p.slabs), slab(at % p.slabs)
    {
    }
    __device__ __forceinline__ void next(const product &p)
    {
        if (++slab == p.slabs) {
            slab = 0;
            item++;
        }
    }
};

/* One thread: keeps the ring full, of both products' weights one after the other. */
static __device__ void feed(const small_params &p, uint8_t *mem, const shares &mine)
{
    const item *items = (const item *)(mem + p.items);
    const uint32_t smem = smem_addr(mem);
    ring to = {0, 1}, arriving = {0, 0}; /* a fresh ring's slots are empty */
    int sent = 0;

#pragma unroll 1
    for (int which = 0; which < 2; which++) {
        const product &w = p.p[which];
        const uint32_t bytes = w.units * TD_MX_UNIT;
        cursor at(w, mine.of[which].from);

        for (int i = mine.of[which].from; i < mine.of[which].to; i++) {
            const uint32_t bar = smem + FULL + 8 * to.slot;

            if (sent++ >= ON_THE_WAY) {
                mbarrier_wait(smem + FULL + 8 * arriving.slot, arriving.parity);
                arriving.next(p.slots);
            }
            mbarrier_wait(smem + EMPTY + 8 * to.slot, to.parity);
            mbarrier_arrive_expect_tx(bar, bytes);
            cp_async_bulk(smem + BARRIERS + to.slot * p.slot_bytes,
                          w.w + items[at.item].expert * w.expert_bytes + (int64_t)at.slab * bytes,
                          bytes, bar, L2_EVICT_FIRST);
            at.next(w);
            to.next(p.slots);
        }
    }
}

/* out = sum over a token's choices of prob * y, in the router's order, for one column. */
static __device__ __forceinline__ float add_choices(const small_params &p, const int16_t *source,
                                                    int t, int column)
{
    float sum = 0.0f;

#pragma unroll 4
    for (int j = 0; j < p.k; j++) {
        const int from = source[t * p.k + j];

        if (from >= 0)
            sum = __fmaf_rn(p.prob[t * p.k + j], __ldcg(p.y + (int64_t)from * p.D + column), sum);
    }
    return sum;
}

static __device__ __forceinline__ void put_out(const small_params &p, int t, int column, float sum)
{
    const int64_t at = (int64_t)t * p.D + column;
    const __nv_bfloat16 v = __float2bfloat16_rn(sum);

    if (p.x != NULL)
        p.x[at] = __fadd_rn(p.x[at], __bfloat162float(v));
    else
        p.out[at] = v;
}

/* Of a slab of the second product: how many of its items are done. Zero between steps. */
static const int MOST_SLABS = MOST_UNITS * MATH_WARPS * TD_MX_COLS / TD_MX_ROWS;
static __device__ unsigned slabs_done[MOST_SLABS];

/* An item's slab of y is stored. The warp that says so as the last one makes these columns of out.
 */
static __device__ __forceinline__ void end_slab(const small_params &p, const int16_t *source,
                                                int items, int slab)
{
    const int lane = threadIdx.x % 32;
    unsigned before = 0;

    if (lane == 0)
        before = add_acq_rel(&slabs_done[slab], 1);
    if ((int)__shfl_sync(~0u, before, 0) + 1 != items)
        return;
    if (lane == 0)
        slabs_done[slab] = 0;
    __syncwarp(); /* what the others stored is seen by all lanes */
    for (int i = lane; i < p.T * TD_MX_ROWS; i += 32) {
        const int t = i / TD_MX_ROWS, column = slab * TD_MX_ROWS + i % TD_MX_ROWS;

        if (column < p.D)
            put_out(p, t, column, add_choices(p, source, t, column));
    }
}

/* The whole of out, among all blocks. */
static __device__ void write_out(const small_params &p, const int16_t *source)
{
    const int half = (p.D + 1) / 2;

    for (int i = blockIdx.x * THREADS + threadIdx.x; i < p.T * half; i += THREADS * gridDim.x) {
        const int t = i / half, column = i % half * 2;

        put_out(p, t, column, add_choices(p, source, t, column));
        if (column + 1 < p.D)
            put_out(p, t, column + 1, add_choices(p, source, t, column + 1));
    }
}

template <bool FEW>
static __global__ void __launch_bounds__(THREADS, 1)
    experts_small_kernel(const __grid_constant__ small_params p)
{
    extern __shared__ __align__(128) uint8_t mem[];
    __shared__ shares mine;

    const uint32_t smem = smem_addr(mem);

    if (threadIdx.x == 0) {
        for (int i = 0; i < p.slots; i++) {
            mbarrier_init(smem + FULL + 8 * i, 1);
            mbarrier_init(smem + EMPTY + 8 * i, WARP_ARRIVALS * MATH_WARPS);
        }
        for (int i = 0; i < p.parts; i++) {
            mbarrier_init(smem + SUMMED + 8 * i, WARP_ARRIVALS * MATH_WARPS);
            mbarrier_init(smem + STORED + 8 * i, WARP_ARRIVALS * p.tiles);
        }
        mbarrier_init(smem + FINISHED, MATH_WARPS);
        mbarrier_init(smem + SECOND, 1);
        fence_mbarrier_init();
    }
    griddepcontrol_launch_dependents();
    griddepcontrol_wait(); /* for the choices, and all else that earlier steps made */
    if (FEW)
        sort_few_pairs(p, mem, &mine);
    else
        sort_pairs(p, mem, &mine);
    if (threadIdx.x == 32 * FEEDER)
        feed(p, mem, mine);
    else if (threadIdx.x < 32 * FEEDER)
        math_warp<FEW>(p, mem, mine);
    __syncthreads(); /* all of this block's y is there, and if not FEW, of all blocks' */
    const int16_t *source = (const int16_t *)(mem + p.source);
    if (FEW && mine.items > 0) {
#pragma unroll 1
        for (int i = mine.of[1].from + threadIdx.x / 32; i < mine.of[1].to; i += THREADS / 32)
            end_slab(p, source, mine.items, i % p.p[1].slabs);
    } else {
        write_out(p, source);
    }
}

static int round16(int n)
{
    return (n + 15) / 16 * 16;
}

/* Cuts shared memory for a step of T tokens, the ring first; false if not even two slots fit. */
static bool cut_shared(small_params *p, int most, int *bytes)
{
    const int pairs = p->T * p->k, chunks = pairs < p->E ? pairs : p->E;
    const int units = p->p[0].units > p->p[1].units ? p->p[0].units : p->p[1].units;
    int used;

    p->tiles = p->T < CHUNK ? (p->T + 7) / 8 : TILES;
    p->slot_bytes = units * TD_MX_UNIT;
    p->parts = MOST_PARTS;
    p->sums = BARRIERS; /* and the ring, below */
    p->masks = p->sums + p->parts * p->tiles * PART;
    p->items = p->masks + round16(p->E * 20);
    p->sorted = p->items + round16((chunks + pairs / CHUNK) * (int)sizeof(item));
    p->source = p->sorted + round16(pairs * 2);
    used = p->source + round16(pairs * 2);
    p->slots = (most - used) / p->slot_bytes;
    if (p->slots > MOST_SLOTS)
        p->slots = MOST_SLOTS;
    const int ring_bytes = p->slots * p->slot_bytes;
    p->sums += ring_bytes;
    p->masks += ring_bytes;
    p->items += ring_bytes;
    p->sorted += ring_bytes;
    p->source += ring_bytes;
    *bytes = used + ring_bytes;
    return p->slots >= 2;
}

static product make_product(const td_matrix *m, const td_matrix *bias)
{
    product w = {};

    w.w = (const uint8_t *)m->mem.ptr;
    w.expert_bytes = (int64_t)td_mx_bytes(m->N, m->K);
    w.bias = td_cuda_vector(bias);
    w.units = (int32_t)td_mx_units(m->K);
    w.slabs = (int32_t)td_mx_slabs(m->N);
    w.N = m->N;
    w.K = m->K;
    w.scale = ldexpf(1.0f, td_cuda_mxfp4_shift(m));
    return w;
}

/* false: not for these weights. */
static bool make_params(const td_dev *dev, const td_experts_args *a, small_params *p, int *bytes)
{
    int most = 0;

    if (td_cuda_format(a->gate_up) != CUDA_MXFP4 || td_cuda_format(a->down) != CUDA_MXFP4 ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, dev->index) !=
            cudaSuccess)
        return false;
    *p = {};
    p->p[0] = make_product(a->gate_up, a->gate_up_bias);
    p->p[1] = make_product(a->down, a->down_bias);
    p->T = a->T;
    p->k = a->k;
    p->D = a->D;
    p->I = a->I;
    p->E = a->E;
    p->first = a->expert_first;
    return p->p[0].units <= MOST_UNITS * MATH_WARPS && p->p[1].units <= MOST_UNITS * MATH_WARPS &&
           a->E <= 1024 && cut_shared(p, most - 512, bytes);
}

bool td_cuda_experts_small_fits(const td_dev *dev, const td_experts_args *a)
{
    td_experts_args most = *a;
    small_params p;
    int bytes;

    most.T = TD_SMALL_STEP;
    return make_params(dev, &most, &p, &bytes);
}

td_status td_cuda_experts_small(td_stream *s, const td_experts_args *a, void *act, float *y,
                                td_error *err)
{
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute attr = {};
    const bool alone = td_cuda_alone(s->dev);
    small_params p;
    int bytes = 0, blocks = 0;
    cudaError_t e;

    if (!make_params(s->dev, a, &p, &bytes))
        return td_fail(err, TD_INVALID, "experts: %d columns are too many for a small step", a->D);
    p.t = (const __nv_bfloat16 *)a->t;
    p.idx = a->idx;
    p.prob = a->prob;
    p.act = (__nv_bfloat16 *)act;
    p.lda = td_cuda_ws_pitch(a->I);
    p.y = y;
    p.out = (__nv_bfloat16 *)a->out;
    p.x = (float *)a->x;
    p.few = alone && a->T <= 8 && a->T * a->k <= 32;
    p.limit = a->limit;
    const auto kernel = p.few ? experts_small_kernel<true> : experts_small_kernel<false>;
    if ((e = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, s->dev->index)) !=
            cudaSuccess ||
        (e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) !=
            cudaSuccess)
        return td_cuda_status(err, e, "experts");
    /* The blocks wait for each other. Alone on the GPU they all get there, early ones first. Else
     * they must start at once or not at all, and not on processors whose blocks wait for this rank.
     */
    if (alone) {
        attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr.val.programmaticStreamSerializationAllowed = 1;
    } else {
        attr.id = cudaLaunchAttributeCooperative;
        attr.val.cooperative = 1;
    }
    blocks = blocks > s->dev->held ? blocks - s->dev->held : 1;
    launch.gridDim = dim3((unsigned)blocks);
    launch.blockDim = dim3(THREADS);
    launch.dynamicSmemBytes = (size_t)bytes;
    launch.stream = s->handle;
    launch.attrs = &attr;
    launch.numAttrs = 1;
    return td_cuda_status(err, cudaLaunchKernelEx(&launch, kernel, p), "experts");
}
