/* kv_memory: the regions of a side of the KV tests, on the host or on a GPU. What a test reads and
 * writes is always on the host; a region on a GPU is a copy that is moved there and back. */
#ifndef TANDEM_TESTS_KV_MEMORY_H
#define TANDEM_TESTS_KV_MEMORY_H

#include <stdbool.h>

#include "common/kv_wire.h"
#include "kernels/ops.h"

typedef struct kv_memory {
    const td_ops *ops; /* NULL: the host's memory is the region */
    td_dev *dev;
    int32_t device;
    int32_t n;
    unsigned char *host[TD_KV_MAX_RANKS]; /* malloc'ed; ours */
    td_buffer buf[TD_KV_MAX_RANKS];
    uint64_t bytes;
} kv_memory;

/* Whether this build and this machine have a GPU. */
bool kv_memory_has_cuda(void);

void kv_memory_open(kv_memory *m, bool cuda, int32_t device, uint64_t bytes);
/* Rank m->n's region, with what host holds; takes host over. */
td_kv_region kv_memory_add(kv_memory *m, unsigned char *host);
void kv_memory_read(kv_memory *m); /* all regions into host[] */
void kv_memory_close(kv_memory *m);

/* For td_kv_wire_options. */
td_status kv_memory_use_device(int32_t device, td_error *err);

#endif
