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

/* [M, K] x [N, K]^T */
td_tile_size td_tune_gemm(int32_t M, int32_t N);

/* `pairs` rows spread over E experts. */
td_tile_size td_tune_grouped(int64_t pairs, int32_t E);

/* Most tiles that pairs can be cut into, each of one expert. */
int64_t td_tune_most_tiles(int64_t pairs, int32_t E, td_tile_size t);

/* Decode attention cuts the pages that a sequence sees into chunks, a function of their number and
 * of the rank's kv heads alone. With few heads into more of them, to fill the machine with one
 * sequence. A chunk has TD_TUNE_LEAST_PAGES pages at least, or joining costs more than it saves. */
enum { TD_TUNE_LEAST_PAGES = 4, TD_TUNE_CHUNKS = 32 };
/* The most chunks, as a power of two. */
TD_HD int32_t td_tune_chunks_log2(int32_t K)
{
    return K >= 8 ? 4 : 5;
}
TD_HD int32_t td_tune_chunk_pages(int32_t pages, int32_t chunks_log2)
{
    int32_t even = (pages + (1 << chunks_log2) - 1) >> chunks_log2;

    return even > TD_TUNE_LEAST_PAGES ? even : TD_TUNE_LEAST_PAGES;
}

#ifdef __cplusplus
}
#endif
#endif
