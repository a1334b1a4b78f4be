/* tensor_map: the encoder lives in the driver's library, which is not linked with: a build machine
 * has none. The runtime hands out its address. */
#include "kernels/cuda/tensor_map.h"

#include <stdatomic.h>

#include "kernels/cuda/backend.h"

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Any thread may be first; all find the same address, so relaxed order is enough. */
static _Atomic(encode_fn *) encoder;

static td_status find_encoder(encode_fn **out, td_error *err)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *p = NULL;
    td_status st;

    *out = atomic_load_explicit(&encoder, memory_order_relaxed);
    if (*out != NULL)
        return TD_OK;
    st = td_cuda_status(err,
                        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000,
                                                         cudaEnableDefault, &found),
                        "looking for cuTensorMapEncodeTiled");
    if (st != TD_OK)
        return st;
    if (found != cudaDriverEntryPointSuccess || p == NULL)
        return td_fail(
            err, TD_DEVICE,
            "cuda: the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
    *out = (encode_fn *)p;
    atomic_store_explicit(&encoder, *out, memory_order_relaxed);
    return TD_OK;
}

td_status td_tensor_map(const td_tensor *t, CUtensorMap *out, td_error *err)
{
    static const cuuint32_t every[3] = {1, 1, 1};
    encode_fn *encode;
    td_status st = find_encoder(&encode, err);
    CUresult r;

    if (st != TD_OK)
        return st;
    r = encode(out, t->type, (cuuint32_t)t->rank, (void *)(uintptr_t)t->base, t->dim, t->pitch + 1,
               t->box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
               t->swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS)
        return td_fail(err, TD_INVALID,
                       "cuda: no tensor map (error %d) of rank %d at %p, [%llu, %llu, %llu], pitch "
                       "%llu and %llu, box [%u, %u, %u]",
                       (int)r, t->rank, t->base, (unsigned long long)t->dim[2],
                       (unsigned long long)t->dim[1], (unsigned long long)t->dim[0],
                       (unsigned long long)t->pitch[2], (unsigned long long)t->pitch[1], t->box[2],
                       t->box[1], t->box[0]);
    return TD_OK;
}

td_status td_tensor_map_rows(const void *base, int32_t rows, int32_t cols, int64_t pitch,
                             int32_t box_rows, CUtensorMap *out, td_error *err)
{
    const td_tensor t = {.base = base,
                         .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                         .rank = 2,
                         .swizzle = true,
                         .dim = {(uint64_t)cols, (uint64_t)rows},
                         .pitch = {0, (uint64_t)pitch * 2},
                         .box = {64, (uint32_t)box_rows}};

    return td_tensor_map(&t, out, err);
}
