/* experts_fp8_load: MXFP4 as shipped into e4m3 and its scales.
 *
 * A block of threads makes 64 rows by 128 columns: the largest exponent of the 256 groups of 32
 * that share its scale becomes 2^6 in e4m3 (6 * 2^6 = 384 of 448), and a group's codes are exact
 * down to 14 exponents below that. What lies lower is rounded to e4m3 (at most 2^-10 beside a
 * largest possible 384) and counted. One thread a group; bound by the bus that brings the bytes. */
#include "kernels/cuda/experts_fp8.h"

#include <cuda_fp8.h>

namespace
{
constexpr int TOP = 6; /* exponent that the block's largest group gets */

struct pack_params {
    const uint8_t *blocks, *scales; /* [rows][K / 2], [rows][K / 32] */
    int rows, K, row, tiles;        /* row: the expert's row that the first one is */
    uint8_t *code;                  /* the expert's */
    float *scale;
    unsigned long long *inexact;
};

__device__ float magnitude(uint32_t code)
{
    const uint32_t e = code >> 1 & 3, m = code & 1;

    return e == 0 ? 0.5f * (float)m : (1.0f + 0.5f * (float)m) * (float)(1 << (e - 1));
}

__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ pack_params p)
{
    __shared__ int top;
    const int t = threadIdx.x, r = t / 4, row = blockIdx.x * TD_FP8_GROUP + r;
    const int group = blockIdx.y * 4 + t % 4, groups = p.K / 32;
    const bool here = group < groups, filled = here && row < p.rows;
    const int64_t at = (int64_t)row * groups + group;
    uint4 in = {0, 0, 0, 0}, out[2] = {};
    int s = 0, rounded = 0;

    if (t == 0)
        top = 0;
    __syncthreads();
    if (filled) {
        const uint8_t *b = p.blocks + at * 16;
        uint32_t *w = (uint32_t *)&in;

        s = p.scales[at];
        for (int i = 0; i < 16; i++)
            w[i / 4] |= (uint32_t)b[i] << (i % 4 * 8);
        if (((in.x | in.y | in.z | in.w) & 0x77777777u) != 0) /* zeros ask for no scale */
            atomicMax(&top, s);
    }
    __syncthreads();
    if (filled) {
        const uint32_t *w = (const uint32_t *)&in;
        uint32_t *o = (uint32_t *)out;
        /* At most TOP where a code is not zero; far below, anything that still rounds to 0. */
        const int d = max(s - top + TOP, -100);

        for (int i = 0; i < 32; i++) {
            const uint32_t code = w[i / 8] >> (i % 8 * 4) & 15;
            const float m = magnitude(code & 7), x = (code & 7) ? ldexpf(m, d) : 0.0f;
            const __nv_fp8_storage_t q = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);

            rounded += __half2float(__half(__nv_cvt_fp8_to_halfraw(q, __NV_E4M3))) != x;
            o[i / 4] |= (uint32_t)(q | (code & 8) << 4) << (i % 4 * 8);
        }
    }
    if (here) { /* rows after the last become zeros */
        uint8_t *dst = p.code + (int64_t)td_fp8_place(p.row + row) * p.K + group * 32;

        ((uint4 *)dst)[0] = out[0];
        ((uint4 *)dst)[1] = out[1];
    }
    if (rounded > 0)
        atomicAdd(p.inexact, (unsigned long long)rounded);
    if (t == 0) {
        const int in_expert = p.row / TD_FP8_GROUP + blockIdx.x;

        p.scale[((int64_t)blockIdx.y * p.tiles + in_expert / 3) * 4 + in_expert % 3] =
            ldexpf(1.0f, top - 127 - TOP);
    }
}
} // namespace

td_status td_cuda_pack_fp8(cudaStream_t s, const uint8_t *blocks, const uint8_t *scales,
                           const td_matrix *m, int32_t e, int32_t row, int32_t rows, td_error *err)
{
    const td_fp8_layout l = td_fp8_layout_of(m->E, m->N, m->K);
    const int32_t tiles = td_fp8_tiles(m->N), cols = td_fp8_blocks(m->K);
    char *mem = (char *)m->mem.ptr;
    const pack_params p = {
        blocks,
        scales,
        rows,
        m->K,
        row,
        tiles,
        (uint8_t *)mem + (int64_t)e * td_fp8_rows(m->N) * m->K,
        (float *)(mem + l.scale) + (int64_t)e * cols * tiles * 4,
        (unsigned long long *)(mem + l.inexact),
    };

    pack_kernel<<<dim3((unsigned)(td_fp8_rows(rows) / TD_FP8_GROUP), (unsigned)cols), 256, 0, s>>>(
        p);
    return td_cuda_launched(err, "converting weights to FP8");
}
