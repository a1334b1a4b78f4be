/* dense: the rows before a product that follows a norm, where the product's kernel does not do it
 * on its way. A block a row, a warp a part of K, a lane eight columns: as there. */
#include "kernels/cuda/dense.cuh"

static __global__ void __launch_bounds__(32 * TD_DENSE_PARTS)
    norm_split_kernel(const float *x, const float *norm, float eps, int32_t D, int32_t blocks,
                      __nv_bfloat16 *t, int64_t ldt, float *scale)
{
    __shared__ float sums[TD_DENSE_PARTS];
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
    const int k = part * blocks * 64 + lane * 8;
    const bool there = lane < blocks * 8 && k < D;
    dense_weights g;
    float s;

    griddepcontrol_launch_dependents();
    g.load(norm, k, there);
    if (threadIdx.x < TD_DENSE_PARTS)
        sums[threadIdx.x] = 0.0f;
    __syncthreads();
    griddepcontrol_wait();
    const uint4 v = g.apply(x + (int64_t)blockIdx.x * D, k, there, &s);
    if (there)
        *(uint4 *)(t + blockIdx.x * ldt + k) = v;
    s = dense_sum_part(s);
    if (lane == 0)
        sums[part] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;

#pragma unroll
        for (int i = 0; i < TD_DENSE_PARTS; i++) /* past the last part: zeros */
            total = __fadd_rn(total, sums[i]);
        scale[blockIdx.x] = dense_scale(total, D, eps);
    }
}

cudaError_t td_cuda_norm_split(cudaStream_t s, const float *x, const float *g, float eps, int32_t M,
                               int32_t D, void *t, int64_t ldt, float *scale)
{
    const cuda_dense_split split = td_cuda_dense_split(1, D); /* parts do not depend on N */
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attr = {};

    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)M);
    c.blockDim = dim3((unsigned)(32 * split.parts));
    c.stream = s;
    c.attrs = &attr;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, norm_split_kernel, x, g, eps, D, split.blocks, (__nv_bfloat16 *)t,
                              ldt, scale);
}
