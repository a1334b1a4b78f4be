/* experts_small: what its parts share: sizes, parameters, the list of work, barriers. The idea is
 * told in experts_small.cu. */
#ifndef TANDEM_KERNELS_CUDA_EXPERTS_SMALL_CUH
#define TANDEM_KERNELS_CUDA_EXPERTS_SMALL_CUH

#include "kernels/cuda/experts_small.h"
#include "kernels/cuda/hopper.cuh"

static const int MATH_WARPS = 15, THREADS = 32 * (MATH_WARPS + 1), FEEDER = MATH_WARPS;
static const int MOST_UNITS = 3; /* of a slab, in one warp */
static const int TILES = 3, CHUNK = 8 * TILES;
static const int MOST_SLOTS = 32;
static const int PART = MATH_WARPS * 32 * 16; /* bytes: one 8-token tile's sums of all warps */
static const int MOST_PARTS = 4; /* buffers of sums: two for each of AT_ONCE, or all would wait */
static const int AT_ONCE = 2;    /* slabs that a warp multiplies together, to have enough to do */
/* Slots being filled at once; more would only queue, before other loads too. */
static const int ON_THE_WAY = 2;

/* The two products differ in this. */
struct product {
    const uint8_t *w;
    int64_t expert_bytes;
    const float *bias;
    int32_t units, slabs, N, K;
    float scale;
};

struct small_params {
    product p[2]; /* gate_up, down */
    const __nv_bfloat16 *t;
    const int32_t *idx;
    const float *prob;
    __nv_bfloat16 *act;
    float *y;
    __nv_bfloat16 *out;
    float *x;    /* NULL, or the sum is added to it and out left alone */
    int64_t lda; /* of act */
    int32_t T, k, D, I, E, first;
    float limit;
    int32_t slots, slot_bytes;
    bool few; /* an expert is one item of one tile: whoever ends a slab of `out` writes it */
    int32_t tiles, parts; /* of 8 tokens, the most in a chunk; buffers of sums */
    /* Offsets in shared memory. */
    int32_t sums, masks, items, sorted, source;
};

/* A chunk of an expert's tokens: pairs sorted[first .. first + n). */
struct item {
    uint16_t expert, first, n;
    uint16_t before; /* cost of a slab of all items before this one */
};

/* What a slab of a chunk of n tokens costs, relative to others: cuts the list into equal times. */
static __device__ __forceinline__ int cost(int n)
{
    return 8 + (n + 7) / 8 * 2;
}

/* A block's part of a product's list of slabs: item after item, slab after slab. */
struct share {
    int from, to;
};

struct shares {
    share of[2]; /* gate_up, down */
    int items;   /* of the list, if few */
};

struct ring {
    uint32_t slot, parity;

    __device__ __forceinline__ void next(uint32_t slots)
    {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* mbarriers, 8 bytes each, where shared memory begins; by address, which a register holds. */
enum {
    FULL = 0, /* slots of the ring */
    EMPTY = FULL + 8 * MOST_SLOTS,
    SUMMED = EMPTY + 8 * MOST_SLOTS, /* buffers of sums: filled, added up */
    STORED = SUMMED + 8 * MOST_PARTS,
    FINISHED = STORED + 8 * MOST_PARTS, /* the block's part of a product */
    SECOND = FINISHED + 8,              /* all blocks' part of the first one */
    BARRIERS = (SECOND + 8 + 127) / 128 * 128
};

#endif
