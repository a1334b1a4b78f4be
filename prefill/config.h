/* prefill's settings: filled once by common/config.h from config.c's table. */
#ifndef TANDEM_PREFILL_CONFIG_H
#define TANDEM_PREFILL_CONFIG_H

#include "common/worker.h"

typedef struct prefill_config {
    td_worker_options worker;
    uint32_t chunk;
    uint32_t queue_limit;
    uint32_t max_transfers; /* window rings: prompts that hold pages at once */
    char *kv_memory;        /* bytes or "auto" */
    int64_t kv_stall_ms;    /* no byte moved for this long: the transfer has failed */
    int64_t fault_put;
} prefill_config;

extern const td_option prefill_options[];
extern const size_t prefill_n_options;

#endif
