#include "prefill/config.h"

#include <stddef.h>

const td_option prefill_options[] = {
    TD_WORKER_OPTIONS(prefill_config),
    {"chunk", TD_OPT_U32, offsetof(prefill_config, chunk), "0", 0, 65536,
     "Tokens computed at once. Cancels are looked at between chunks; larger chunks are faster. 0: "
     "256 on the CPU, 8192 on a GPU.",
     NULL},
    {"queue-limit", TD_OPT_U32, offsetof(prefill_config, queue_limit), "256", 1, 65536,
     "Prompts that may wait; one more is refused and the router tries elsewhere.", NULL},
    {"max-transfers", TD_OPT_U32, offsetof(prefill_config, max_transfers), "8", 2, 1024,
     "Prompts that hold KV pages at once: one being computed, the others still being sent.", NULL},
    {"kv-memory", TD_OPT_STR, offsetof(prefill_config, kv_memory), "auto", 0, 0,
     "Memory for the KV-cache, all ranks together; bounds the longest prompt. auto: what "
     "--gpu-memory leaves, 256MiB on the CPU.",
     NULL},
    {"kv-stall", TD_OPT_DURATION_MS, offsetof(prefill_config, kv_stall_ms), "3s", 10, 600000,
     "A transfer of which nothing moves for this long is given up. Shorter finds frozen decode "
     "workers sooner; on a busy machine too short gives up healthy ones.",
     NULL},
    {"fault-put", TD_OPT_I64, offsetof(prefill_config, fault_put), "0", 0, 1e9,
     "For fault tests: the put of each transfer with this number fails to post. 0: none.", NULL},
};
const size_t prefill_n_options = sizeof prefill_options / sizeof *prefill_options;
