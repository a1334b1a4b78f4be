/* experts_small_list: from the tokens' choices to a list of chunks, an expert and up to CHUNK of
 * its tokens each, and to each block's share of the slabs of all of them. Every block sorts for
 * itself, all alike: what a block works on and with which tokens must not depend on who got there
 * first. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_SMALL_LIST_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_SMALL_LIST_CUH

#include "kernels/cuda/experts_small.cuh"

/* Exclusive sum over the block's threads of two numbers at once; their totals in `all`. */
static __device__ uint2 scan_block(uint2 mine, uint2 *all)
{
    __shared__ uint2 warp_sum[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint2 sum = mine;

    for (int o = 1; o < 32; o *= 2) {
        const uint32_t x = __shfl_up_sync(~0u, sum.x, o), y = __shfl_up_sync(~0u, sum.y, o);

        sum.x += lane >= o ? x : 0;
        sum.y += lane >= o ? y : 0;
    }
    if (lane == 31)
        warp_sum[warp] = sum;
    __syncthreads();
    *all = make_uint2(0, 0);
    for (int w = 0; w < THREADS / 32; w++) {
        sum.x += w < warp ? warp_sum[w].x : 0;
        sum.y += w < warp ? warp_sum[w].y : 0;
        all->x += warp_sum[w].x;
        all->y += warp_sum[w].y;
    }
    __syncthreads();
    return make_uint2(sum.x - mine.x, sum.y - mine.y);
}

/* Sorts the step's pairs by expert and token into the tables in shared memory, and cuts the lists
 * of slabs. All threads; ends with a barrier. */
static __device__ void sort_pairs(const small_params &p, uint8_t *smem, shares *out)
{
    uint32_t *mask = (uint32_t *)(smem + p.masks); /* [E][4]: a bit a token */
    uint32_t *start = mask + p.E * 4;              /* [E]: the first sorted pair */
    item *items = (item *)(smem + p.items);
    uint16_t *sorted = (uint16_t *)(smem + p.sorted);
    int16_t *source = (int16_t *)(smem + p.source);
    const int tid = threadIdx.x, pairs = p.T * p.k;
    uint2 before = {0, 0}; /* x: pairs, and items in the high half; y: cost of a slab */

    for (int i = tid; i < p.E * 4; i += THREADS)
        mask[i] = 0;
    __syncthreads();
    for (int i = tid; i < pairs; i += THREADS) {
        const int e = p.idx[i] - p.first, t = i / p.k;

        if (e >= 0 && e < p.E)
            atomicOr(&mask[e * 4 + t / 32], 1u << t % 32);
    }
    __syncthreads();
    for (int base = 0; base < p.E; base += THREADS) {
        const int e = base + tid;
        uint2 all;
        int n = 0;

        if (e < p.E)
            for (int i = 0; i < 4; i++)
                n += __popc(mask[e * 4 + i]);
        const int rest = n % CHUNK, chunks = n / CHUNK + (rest > 0);
        uint2 sum = scan_block(
            make_uint2(n | chunks << 16, n / CHUNK * cost(CHUNK) + (rest > 0 ? cost(rest) : 0)),
            &all);
        sum.x += before.x;
        sum.y += before.y;
        before.x += all.x;
        before.y += all.y;
        if (e < p.E)
            start[e] = sum.x & 0xffff;
        for (int i = 0; i < chunks; i++) {
            const item c = {(uint16_t)e, (uint16_t)((sum.x & 0xffff) + i * CHUNK),
                            (uint16_t)(n - i * CHUNK < CHUNK ? n - i * CHUNK : CHUNK),
                            (uint16_t)(sum.y + i * cost(CHUNK))};

            items[(sum.x >> 16) + i] = c;
        }
    }
    const int n_items = (int)(before.x >> 16);
    if (tid < 4) /* what nobody finds below: the ends of the lists, and lists without items */
        (&out->of[0].from)[tid] = n_items * p.p[tid / 2].slabs;
    __syncthreads();
    for (int i = tid; i < pairs; i += THREADS) {
        const int e = p.idx[i] - p.first, t = i / p.k;
        int from = -1;

        if (e >= 0 && e < p.E) {
            from = t * p.k; /* an expert named twice is computed once */
            while (p.idx[from] - p.first != e)
                from++;
            if (from == i) {
                int at = start[e] + __popc(mask[e * 4 + t / 32] & ((1u << t % 32) - 1));

                for (int w = 0; w < t / 32; w++)
                    at += __popc(mask[e * 4 + w]);
                sorted[at] = (uint16_t)i;
            }
        }
        source[i] = (int16_t)from;
    }
    /* The list's place where this block's share of the cost begins or ends: whoever has it in its
     * item writes it. 1200 items, 360 slabs, cost 14 and 132 blocks are far from 2^32. */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t slabs = p.p[i / 2].slabs;
        const uint32_t at = before.y * slabs * (blockIdx.x + i % 2) / gridDim.x;

        for (int j = tid; j < n_items; j += THREADS) {
            const uint32_t begin = items[j].before * slabs, each = cost(items[j].n);

            if (at >= begin && at < begin + each * slabs)
                (&out->of[0].from)[i] = j * slabs + (at - begin) / each;
        }
    }
    __syncthreads();
}

/* What sort_pairs() does, for at most a warp of pairs and 8 tokens, so an item an expert: by the
 * first warp, in registers. */
static __device__ void sort_few_pairs(const small_params &p, uint8_t *smem, shares *out)
{
    item *items = (item *)(smem + p.items);
    uint16_t *sorted = (uint16_t *)(smem + p.sorted);
    int16_t *source = (int16_t *)(smem + p.source);
    const int lane = threadIdx.x, pairs = p.T * p.k, token = lane / p.k * p.k;
    const uint32_t below = (1u << lane) - 1;

    if (lane < 32) {
        const int at = lane < pairs ? p.idx[lane] - p.first : -1;
        const bool here = at >= 0 && at < p.E;
        const int e = here ? at : -1 - lane; /* equal to nobody's */
        const uint32_t same = __match_any_sync(~0u, e);
        const uint32_t twice = same & below & ~((1u << token) - 1); /* of this token, before */
        const uint32_t mine = same & __ballot_sync(~0u, here && twice == 0);
        const bool leads = here && (same & below) == 0;
        const int n = __popc(mine);
        const uint32_t all_items = __ballot_sync(~0u, leads);
        int rank = 0, first = 0, before = 0;

        for (uint32_t left = all_items; left != 0; left &= left - 1) {
            const int other = __shfl_sync(~0u, e | n << 16, __ffs(left) - 1);

            if ((other & 0xffff) < e) {
                rank++;
                first += other >> 16;
                before += cost(other >> 16);
            }
        }
        const uint32_t all = __reduce_add_sync(~0u, leads ? (uint32_t)cost(n) : 0);
        const int n_items = __popc(all_items);
        if (lane == 0)
            out->items = n_items;
        if (lane < 4)
            (&out->of[0].from)[lane] = n_items * p.p[lane / 2].slabs;
        __syncwarp();
        if (leads) {
            const item c = {(uint16_t)e, (uint16_t)first, (uint16_t)n, (uint16_t)before};

            items[rank] = c;
#pragma unroll 1 /* instructions have to be fetched, see experts_small_kernel() */
            for (int i = 0; i < 4; i++) {
                const uint32_t slabs = p.p[i / 2].slabs, begin = before * slabs, each = cost(n);
                const uint32_t place = all * slabs * (blockIdx.x + i % 2) / gridDim.x;

                if (place >= begin && place < begin + each * slabs)
                    (&out->of[0].from)[i] = rank * slabs + (place - begin) / each;
            }
        }
        if (here && twice == 0)
            sorted[first + __popc(mine & below)] = (uint16_t)lane;
        if (lane < pairs)
            source[lane] = (int16_t)(here ? twice ? __ffs(twice) - 1 : lane : -1);
    }
    __syncthreads();
}

#endif
