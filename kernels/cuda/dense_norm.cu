/* dense: the rows before a product that follows a norm. A block a row, four threads a part of
 * dense.h's cut of K, each eight columns of every 32: as the lanes of the product hold them. */
#include "kernels/cuda/dense.cuh"

static __global__ void __launch_bounds__(4 * TD_DENSE_PARTS)
    norm_split_kernel(const float *__restrict__ x, const float *__restrict__ g, float eps,
                      int32_t D, int32_t blocks, int32_t parts, __nv_bfloat16 *__restrict__ t,
                      int64_t ldt, float *__restrict__ scale)
{
    __shared__ float sums[TD_DENSE_PARTS];
    const int part = threadIdx.x / 4, q = threadIdx.x % 4;
    const int first = part * blocks * 64 + q * 8, end = min(D, (part + 1) * blocks * 64);
    float sum = 0.0f, total = 0.0f;

    x += (int64_t)blockIdx.x * D;
    t += (int64_t)blockIdx.x * ldt;
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
#pragma unroll 4
    for (int i = first; i < end; i += 32) {
        const float4 a = __ldcg((const float4 *)(x + i)), b = __ldcg((const float4 *)(x + i) + 1);
        const float4 c = *(const float4 *)(g + i), d = *((const float4 *)(g + i) + 1);

        sum = __fmaf_rn(a.x, a.x, sum);
        sum = __fmaf_rn(a.y, a.y, sum);
        sum = __fmaf_rn(a.z, a.z, sum);
        sum = __fmaf_rn(a.w, a.w, sum);
        sum = __fmaf_rn(b.x, b.x, sum);
        sum = __fmaf_rn(b.y, b.y, sum);
        sum = __fmaf_rn(b.z, b.z, sum);
        sum = __fmaf_rn(b.w, b.w, sum);
        *(uint4 *)(t + i) =
            make_uint4(cvt_bf16x2(a.x * c.x, a.y * c.y), cvt_bf16x2(a.z * c.z, a.w * c.w),
                       cvt_bf16x2(b.x * d.x, b.y * d.y), cvt_bf16x2(b.z * d.z, b.w * d.w));
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    if (q == 0)
        sums[part] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < parts; i++)
            total = __fadd_rn(total, sums[i]);
        scale[blockIdx.x] = 1.0f / sqrtf(total / (float)D + eps);
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
    c.blockDim = dim3(4 * TD_DENSE_PARTS); /* whole warps: idle threads add zeros */
    c.stream = s;
    c.attrs = &attr;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, norm_split_kernel, x, g, eps, D, split.blocks, split.parts,
                              (__nv_bfloat16 *)t, ldt, scale);
}
