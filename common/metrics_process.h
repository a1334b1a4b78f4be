/* metrics_process: what every Prometheus client says about its process. For metrics.c alone. */
#ifndef TANDEM_COMMON_METRICS_PROCESS_H
#define TANDEM_COMMON_METRICS_PROCESS_H

#include "common/buf.h"

/* Append process_cpu_seconds_total, process_open_fds, process_resident_memory_bytes and
 * process_start_time_seconds. One that /proc does not give is left out. Thread-safe. */
void td_metrics_write_process(td_buf *b);

#endif
