#include "decode/config.h"

#include <stddef.h>

const td_option decode_options[] = {
    TD_WORKER_OPTIONS(decode_config),
    {"max-batch", TD_OPT_U32, offsetof(decode_config, max_batch), "64", 1, 1024,
     "Requests in one decode step. More raises throughput and time per token.", NULL},
    {"max-reservations", TD_OPT_U32, offsetof(decode_config, max_reservations), "128", 1, 65536,
     "Requests that hold KV pages at once, in the batch or on their way to it.", NULL},
    {"kv-memory", TD_OPT_STR, offsetof(decode_config, kv_memory), "auto", 0, 0,
     "Memory for the KV-cache, all ranks together. auto: what --gpu-memory leaves, 256MiB on the "
     "CPU.",
     NULL},
    {"lease-max", TD_OPT_DURATION_MS, offsetof(decode_config, lease_max_ms), "5m", 100, 86400000,
     "Longest time that pages are held for a prefill that does not report.", NULL},
    {"fence-grace", TD_OPT_DURATION_MS, offsetof(decode_config, grace_ms), "5s", 10, 3600000,
     "After a lease has ended, how long its pages stay in quarantine if the prefill worker never "
     "confirmed that it has stopped writing.",
     NULL},
};
const size_t decode_n_options = sizeof decode_options / sizeof *decode_options;
