/* attn_softmax: scores are kept times scale * log2(e), so that a weight is one ex2. A row's state
 * is m, its largest score so far, and l, the sum of its weights relative to m. */
#ifndef TANDEM_KERNELS_CUDA_ATTN_SOFTMAX_CUH
#define TANDEM_KERNELS_CUDA_ATTN_SOFTMAX_CUH

#include <math.h>

#include "kernels/cuda/ptx.cuh"

static const float ATTN_LOG2E = 1.44269504088896340736f;

/* The factor that turns a row's sum of values into its output: the sink, as a logit, joins the
 * denominator here and nowhere else. */
__device__ __forceinline__ float attn_finish(float m, float l, float sink)
{
    const float s = fminf(__fmul_rn(sink, ATTN_LOG2E), 3.0e38f);
    const float top = fmaxf(m, s);
    const float e = ex2_approx(__fsub_rn(m, top));

    return __fdiv_rn(e, __fmaf_rn(l, e, ex2_approx(__fsub_rn(s, top))));
}

#endif
