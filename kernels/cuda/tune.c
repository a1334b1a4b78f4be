/* tune: see tune.h. */
#include "kernels/cuda/tune.h"

int32_t td_tile_rows(td_tile_size t)
{
    return t == TD_TILE_16X32 ? 16 : t == TD_TILE_64X64 ? 64 : 128;
}

static int64_t tiles(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

td_tile_size td_tune_gemm(int32_t M, int32_t N)
{
    if (M <= 16) /* decode: many narrow blocks, each a stream of weights */
        return TD_TILE_16X32;
    /* The large tile only where it gives each of 132 multiprocessors one. */
    return tiles(M, 128) * tiles(N, 128) >= 132 && M > 64 ? TD_TILE_128X128 : TD_TILE_64X64;
}

td_tile_size td_tune_grouped(int64_t pairs, int32_t E)
{
    int64_t mean = pairs / (E > 0 ? E : 1);

    return mean <= 12 ? TD_TILE_16X32 : mean <= 96 ? TD_TILE_64X64 : TD_TILE_128X128;
}

int64_t td_tune_most_tiles(int64_t pairs, int32_t E, td_tile_size t)
{
    return (pairs < E ? pairs : E) + pairs / td_tile_rows(t);
}
