/* tensor_map: descriptors by which the copy engine fetches boxes of a tensor in device memory.
 *
 * Made on the host, passed to kernels by value (const __grid_constant__). What of a box lies
 * outside the tensor arrives as zeros and counts as bytes copied all the same. */
#ifndef TANDEM_KERNELS_CUDA_TENSOR_MAP_H
#define TANDEM_KERNELS_CUDA_TENSOR_MAP_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "common/status.h"

/* Dimension 0 is the contiguous one. */
typedef struct td_tensor {
    const void *base; /* at a 16-byte boundary */
    CUtensorMapDataType type;
    int32_t rank;    /* 1 .. 3 */
    bool swizzle;    /* 128 bytes: 16-byte chunk c of row r lands at c ^ (r & 7) */
    uint64_t dim[3]; /* elements */
    uint64_t
        pitch[3];    /* bytes from one index of dimension i to the next, i >= 1; multiples of 16 */
    uint32_t box[3]; /* elements, at most 256; with swizzle the first is 128 bytes */
} td_tensor;

/* TD_INVALID: a shape that descriptors cannot express. TD_DEVICE: a driver without them. Enqueues
 * nothing; about a microsecond. Any thread with a current device. */
TD_MUST_CHECK td_status td_tensor_map(const td_tensor *t, CUtensorMap *out, td_error *err);

/* The same for bf16 rows, `pitch` elements apart, in swizzled boxes of 64 columns and box_rows. */
TD_MUST_CHECK td_status td_tensor_map_rows(const void *base, int32_t rows, int32_t cols,
                                           int64_t pitch, int32_t box_rows, CUtensorMap *out,
                                           td_error *err);

#ifdef __cplusplus
}
#endif
#endif
