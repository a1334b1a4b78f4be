/* dense, up to 16 rows: a block takes a tile of 16 rows of W and all of K, a warp a part of K.
 *
 * Bound by the stream of weights: every lane copies its own 16-byte pieces of them into its own
 * places of a ring in shared memory, so nothing but its own copies has to be waited for, and at
 * once most of W is on its way: the blocks of both projections all fit on the machine together.
 * The copies begin before the step before this one has ended. */
#include "kernels/cuda/dense.cuh"

static const int SLOT = 4 * 32 * 16; /* a warp's share of one block of 64 columns */

/* This lane's pieces of a block: of the two rows, 16 bytes of each half. */
static __device__ __forceinline__ void copy_block(uint32_t dst, const uint8_t *w, int hi)
{
    cp_async_16(dst, w, 16);
    cp_async_16(dst + 512, w + hi, 16);
    cp_async_16(dst + 1024, w + 64, 16);
    cp_async_16(dst + 1536, w + hi + 64, 16);
}

template <int KIND, int NT, int RING, int BLOCKS>
static __global__ void __launch_bounds__(32 * TD_DENSE_PARTS, BLOCKS)
    dense_small_kernel(const __grid_constant__ cuda_dense_args p)
{
    const int PITCH = 20; /* of a token's 16 sums: rows of 4 lanes meet no bank twice */
    extern __shared__ __align__(128) uint8_t ring[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int64_t pitch = (p.K + 63) / 64 * (int64_t)128;
    const int first = warp * p.split.blocks, all = (p.K + 63) / 64;
    const int n = first + p.split.blocks < all ? p.split.blocks : all - first;
    const int row = dense_row<KIND>(p, blockIdx.x, g, 0),
              row_hi = dense_row<KIND>(p, blockIdx.x, g, 1);
    const uint8_t *w = (const uint8_t *)p.w + (row < p.N ? row : 0) * pitch + first * 128 + q * 16;
    const int hi = row_hi < p.N ? (row_hi - row) * (int)pitch : 0; /* bytes to the other row */
    uint8_t *mine = ring + warp * (RING * SLOT);
    const uint32_t slot0 = smem_addr(mine) + lane * 16;
    float acc[NT][4] = {};

    griddepcontrol_launch_dependents();
#pragma unroll
    for (int s = 0; s < RING; s++) {
        if (s < n)
            copy_block(slot0 + s * SLOT, w + s * 128, hi);
        cp_async_commit();
    }
    griddepcontrol_wait();

    const __nv_bfloat16 *a = (const __nv_bfloat16 *)p.a + g * p.lda + first * 64 + q * 8;
    int slot = 0;
    for (int i = 0; i < n; i++) {
        uint4 b[NT][2];

#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int k = (i * 2 + h) * 32;

                b[j][h] = make_uint4(0, 0, 0, 0);
                if (j * 8 + g < p.T && first * 64 + q * 8 + k < p.K)
                    b[j][h] = __ldcg((const uint4 *)(a + j * 8 * p.lda + k));
            }
        cp_async_wait<RING - 1>();
        const uint32_t at = slot0 + slot * SLOT;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 x = ld_shared_128(at + h * 1024), y = ld_shared_128(at + h * 1024 + 512);

#pragma unroll
            for (int j = 0; j < NT; j++)
                dense_mma(acc[j], x, y, b[j][h]);
        }
        if (i + RING < n) /* into the places just read: a lane's own, so in order */
            copy_block(at, w + (i + RING) * 128, hi);
        cp_async_commit();
        slot = slot + 1 == RING ? 0 : slot + 1;
    }
    cp_async_wait<0>();
    __syncwarp(); /* the ring becomes this warp's sums, [token][PITCH] */
#pragma unroll
    for (int j = 0; j < NT; j++) {
        float *sum = (float *)mine + (j * 8 + 2 * q) * PITCH + g;

        sum[0] = acc[j][0];
        sum[PITCH] = acc[j][1];
        sum[8] = acc[j][2];
        sum[PITCH + 8] = acc[j][3];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * NT; i += blockDim.x) {
        const int t = i / 8, r = i % 8;
        const float *sum = (const float *)ring + t * PITCH + r;
        float total_lo = 0.0f, total_hi = 0.0f;
        int part = 0;

        if (t >= p.T)
            break;
        for (int group = 0; group < p.split.groups; group++) {
            float x = 0.0f, y = 0.0f;

            for (int k = 0; k < p.split.parts_a_group && part < p.split.parts; k++, part++) {
                x = __fadd_rn(x, sum[part * (RING * SLOT / 4)]);
                y = __fadd_rn(y, sum[part * (RING * SLOT / 4) + 8]);
            }
            total_lo = __fadd_rn(total_lo, x);
            total_hi = __fadd_rn(total_hi, y);
        }
        dense_finish<KIND>(p, blockIdx.x, r, t, total_lo, total_hi);
    }
}

template <int KIND, int NT, int RING, int BLOCKS>
static cudaError_t launch(cudaStream_t s, const cuda_dense_args &p)
{
    return dense_launch(dense_small_kernel<KIND, NT, RING, BLOCKS>, s,
                        dim3((unsigned)((p.N + 15) / 16)), 32 * p.split.parts,
                        p.split.parts * RING * SLOT, 1, p);
}

cudaError_t td_cuda_dense_small(cudaStream_t s, cuda_dense_kind kind, const cuda_dense_args *a)
{
    if (kind == CUDA_DENSE_OUT)
        return a->T <= 8 ? launch<CUDA_DENSE_OUT, 1, 3, 2>(s, *a)
                         : launch<CUDA_DENSE_OUT, 2, 3, 2>(s, *a);
    return a->T <= 8 ? launch<CUDA_DENSE_QKV, 1, 2, 3>(s, *a)
                     : launch<CUDA_DENSE_QKV, 2, 2, 2>(s, *a);
}
