/* router_choose: from a row's logits to its experts and their weights, for every kernel of the
 * router. */
#ifndef TANDEM_KERNELS_CUDA_ROUTER_CHOOSE_CUH
#define TANDEM_KERNELS_CUDA_ROUTER_CHOOSE_CUH

#include <math.h>
#include <stdint.h>

/* What a row of padding chooses: an expert that lives nowhere. LANES lanes, as below. */
template <int LANES>
__device__ __forceinline__ void router_choose_none(int k, int32_t *idx, float *prob)
{
    for (int j = threadIdx.x % LANES; j < k; j += LANES) {
        idx[j] = -1;
        prob[j] = 0.0f;
    }
}

/* The k largest of a row's M logits in falling order, ties to the lower index, NaN below all, and
 * the softmax over those k. LANES lanes of a warp, a power of two, take a row, and a whole warp
 * comes here with 32 / LANES rows; M <= LANES * PER, and k <= M. Of rows not `kept` nothing is
 * stored. row[0 .. k - 1] is overwritten: each lane uses what it alone reads, and the logits need
 * no barrier after this. */
template <int LANES, int PER>
__device__ __forceinline__ void router_choose(float *row, int M, int k, bool kept, int32_t *idx,
                                              float *prob)
{
    const int lane = threadIdx.x % LANES;
    float first = 0.0f, sum = 0.0f;
    uint32_t key[PER]; /* in the order of the values; 1: NaN; 0: taken or not there */

#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + LANES * i;

        key[i] = 0;
        if (e < M) {
            const float x = __fadd_rn(row[e], 0.0f); /* -0 equals 0 */
            const uint32_t bits = __float_as_uint(x);

            key[i] = x != x ? 1 : bits >> 31 ? ~bits : bits | 0x80000000u;
        }
    }
    for (int j = 0; j < k; j++) {
        uint32_t best = 0;
        int at = LANES * PER;

#pragma unroll
        for (int i = 0; i < PER; i++)
            if (key[i] > best) {
                best = key[i];
                at = lane + LANES * i;
            }
        if (LANES == 32) {
            const uint32_t top = __reduce_max_sync(~0u, best);

            at = (int)__reduce_min_sync(~0u, (uint32_t)(best == top ? at : LANES * PER));
            best = top;
        } else {
#pragma unroll
            for (int o = LANES / 2; o > 0; o /= 2) {
                const uint32_t other = __shfl_xor_sync(~0u, best, o);
                const int there = __shfl_xor_sync(~0u, at, o);

                if (other > best || (other == best && there < at)) {
                    best = other;
                    at = there;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (lane + LANES * i == at)
                key[i] = 0;
        const float x = __uint_as_float(best == 1    ? 0x7fffffffu
                                        : best >> 31 ? best & 0x7fffffffu
                                                     : ~best);
        if (j == 0)
            first = x;
        const float w = expf(x - first);
        sum += w;
        if (j % LANES == lane) {
            row[j] = w;
            if (kept)
                idx[j] = at;
        }
    }
    for (int j = lane; kept && j < k; j += LANES)
        prob[j] = row[j] / sum;
}

#endif
