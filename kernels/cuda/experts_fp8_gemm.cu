/* experts_fp8_gemm: the two products of the experts' FP8 step, as experts_fp8.cuh makes them. */
#include "kernels/cuda/experts_fp8_gemm.h"

#include "kernels/cuda/experts_fp8.cuh"

namespace
{
/* Five stages of 41.5 KB are what fits; a block is a whole SM. */
constexpr int STAGES = 5, CLUSTER = TD_FP8_CLUSTER;

td_status make_maps(const td_fp8_gemm *g, CUtensorMap *a, CUtensorMap *b, CUtensorMap *s,
                    td_error *err)
{
    const td_matrix *w = g->w;
    const uint64_t K = (uint64_t)w->K, N = (uint64_t)td_fp8_rows(w->N),
                   R = (uint64_t)td_fp8_most_rows(g->pairs, w->E);
    const td_tensor ta = {g->a,
                          CU_TENSOR_MAP_DATA_TYPE_UINT8,
                          2,
                          true,
                          {K, R},
                          {0, (uint64_t)td_fp8_pitch(w->K)},
                          {128, TD_FP8_ROWS / CLUSTER}};
    const td_tensor tb = {
        w->mem.ptr,    CU_TENSOR_MAP_DATA_TYPE_UINT8,  3, true, {K, N, (uint64_t)w->E},
        {0, K, N * K}, {128, TD_FP8_COLS / CLUSTER, 1}};
    const td_tensor ts = {g->a_scale,      CU_TENSOR_MAP_DATA_TYPE_FLOAT32,    2,
                          false,           {R, (uint64_t)td_fp8_blocks(w->K)}, {0, R * 4},
                          {TD_FP8_ROWS, 1}};
    td_status st = td_tensor_map(&ta, a, err);

    if (st == TD_OK)
        st = td_tensor_map(&tb, b, err);
    if (st == TD_OK && g->a_scale != NULL)
        st = td_tensor_map(&ts, s, err);
    return st;
}

template <bool GATE_UP> td_status launch(cudaStream_t stream, const td_fp8_gemm *g, td_error *err)
{
    const td_matrix *w = g->w;
    const td_fp8_layout l = td_fp8_layout_of(w->E, w->N, w->K);
    const auto kernel = fp8::gemm_kernel<GATE_UP, CLUSTER, STAGES>;
    const size_t shared = sizeof(fp8::gemm_smem<STAGES>) + 1023; /* brought to a 1024 boundary */
    const fp8::gemm_params p = {g->row_start,
                                g->rows,

                                g->unit_start,
                                (const float *)((const char *)w->mem.ptr + l.scale),
                                g->bias,
                                g->out,
                                g->out_pitch,
                                w->E,
                                w->N,
                                w->K,
                                td_fp8_tiles(w->N),
                                1.0f / g->h_scale,
                                g->h_scale,
                                g->limit};
    const int64_t lots = g->pairs / TD_FP8_ROWS + (g->pairs < w->E ? g->pairs : w->E);
    const int64_t most = lots * p.tiles; /* units at most */
    CUtensorMap a, b, s = {};
    cudaLaunchAttribute attrs[2] = {};
    cudaLaunchConfig_t c = {};
    td_status st = make_maps(g, &a, &b, &s, err);
    int sms = 0;

    if (st != TD_OK ||
        (st = td_cuda_status(
             err, cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, w->mem.dev->index),
             "asking for multiprocessors")) != TD_OK ||
        (st = td_cuda_status(
             err,
             cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
             "experts: shared memory")) != TD_OK)
        return st;
    attrs[0].id = cudaLaunchAttributeClusterDimension;
    attrs[0].val.clusterDim = {CLUSTER, 1, 1};
    attrs[1].id =
        cudaLaunchAttributeProgrammaticStreamSerialization; /* see griddepcontrol_wait() */
    attrs[1].val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)(most < sms / CLUSTER ? most : sms / CLUSTER) * CLUSTER);
    c.blockDim = dim3(fp8::THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = attrs;
    c.numAttrs = 2;
    return td_cuda_status(err, cudaLaunchKernelEx(&c, kernel, a, b, s, p), "experts: FP8 product");
}
} // namespace

td_status td_cuda_fp8_gate_up(cudaStream_t s, const td_fp8_gemm *g, td_error *err)
{
    return launch<true>(s, g, err);
}

td_status td_cuda_fp8_down(cudaStream_t s, const td_fp8_gemm *g, td_error *err)
{
    return launch<false>(s, g, err);
}
