/* pack: MXFP4 rows as shipped into the units of mxfp4.h. One thread a word of eight codes; bound by
 * the bus that brings the rows, so its byte-wise reads do not matter. */
#include "kernels/cuda/backend.h"

namespace
{
__global__ void pack_kernel(const uint8_t *blocks, const uint8_t *scales, int rows, int K,
                            int shift, int64_t words, uint8_t *units)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int q = (int)(i % 4), r = (int)(i / 4 % TD_MX_ROWS), block = (int)(i / 64 % 2);
    const int64_t per_slab = td_mx_units(K), unit = i / 128;
    const int64_t row = unit / per_slab * TD_MX_ROWS + r, at = unit % per_slab * 2 + block;
    uint8_t *out = units + unit * TD_MX_UNIT;
    uint32_t w = 0;
    int scale = 0;

    if (i >= words)
        return;
    if (row < rows && at < K / 32) {
        scale = (int)scales[row * (K / 32) + at] - shift;
        if (scale >= 0)
            w = td_mx_word(blocks + row * (K / 2) + at * 16, q);
        else
            scale = 0;
    }
    *(uint32_t *)(out + td_mx_word_at(r, q, block)) = w;
    if (q == 0)
        out[td_mx_scale_at(r, block)] = (uint8_t)scale;
}
} // namespace

td_status td_cuda_pack_mxfp4(cudaStream_t s, const uint8_t *blocks, const uint8_t *scales,
                             int32_t rows, int32_t K, int32_t shift, void *units, td_error *err)
{
    const int64_t words = td_mx_slabs(rows) * td_mx_units(K) * 128;

    pack_kernel<<<(unsigned)((words + 255) / 256), 256, 0, s>>>(blocks, scales, rows, K, shift,
                                                                words, (uint8_t *)units);
    return td_cuda_launched(err, "packing MXFP4 weights");
}
