/* hbm: the rate at which a kernel that only reads gets through device memory. */
#ifndef TANDEM_BENCH_HBM_H
#define TANDEM_BENCH_HBM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes a second, the best of some runs over `bytes` of memory on the current device; 0: it failed.
 */
double bench_hbm_read(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
