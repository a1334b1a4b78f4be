/* tune: from a shape to the size of a tile. Pure; speed depends on it, results do not. */
#ifndef TANDEM_KERNELS_CUDA_TUNE_H
#define TANDEM_KERNELS_CUDA_TUNE_H

#include <stdint.h>

#include "kernels/cuda/mxfp4.h" /* TD_HD */

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of activations by rows of weights that one block multiplies. */
typedef enum td_tile_size { TD_TILE_16X32, TD_TILE_64X64, TD_TILE_128X128 } td_tile_size;

int32_t td_tile_rows(td_tile_size t);
int32_t td_tile_cols(td_tile_size t);

/* [M, K] x [N, K]^T */
td_tile_size td_tune_gemm(int32_t M, int32_t N);

/* `pairs` rows spread over E experts. */
td_tile_size td_tune_grouped(int64_t pairs, int32_t E);

/* Most tiles that pairs can be cut into, each of one expert. */
int64_t td_tune_most_tiles(int64_t pairs, int32_t E, td_tile_size t);

/* Pages of 64 keys in a chunk of attention, for a query at position pos: a function of the position
 * alone, so that prefill and decode cut alike; at most TD_CUDA_CHUNKS chunks. */
TD_HD int32_t td_tune_chunk_pages(int32_t pos)
{
    int32_t pages = pos / 64 + 1, chunk = 4;

    while ((int64_t)chunk * 32 < pages)
        chunk *= 2;
    return chunk;
}

#ifdef __cplusplus
}
#endif
#endif
