/* decode's settings: filled once by common/config.h from config.c's table. */
#ifndef TANDEM_DECODE_CONFIG_H
#define TANDEM_DECODE_CONFIG_H

#include "common/worker.h"

typedef struct decode_config {
    td_worker_options worker;
    uint32_t max_batch;
    uint32_t max_reservations; /* window rings: requests that hold pages at once */
    char *kv_memory;           /* bytes or "auto" */
    int64_t lease_max_ms, grace_ms;
} decode_config;

extern const td_option decode_options[];
extern const size_t decode_n_options;

#endif
