/* metrics: counters, gauges and histograms, written as Prometheus text (format 0.0.4).
 *
 * A process has one registry. Metrics are created at start, by one thread, and live as long as the
 * registry; updates and td_metrics_write() are lock-free and may come from any thread. Labels are
 * fixed at creation: one metric object a combination, so an update is an atomic add, not a look-up.
 *
 *   td_metrics *m = td_metrics_create(TD_LABELS({"model_name", cfg.model_name}));
 *   td_counter *stop = td_metrics_counter(m, "vllm:request_success_total", "Requests finished.",
 *                                         TD_LABELS({"finished_reason", "stop"}));
 *   td_counter_add(stop, 1);
 *
 * Creation never returns NULL: where memory ran out it gives a metric that takes updates and is
 * never shown, and td_metrics_check() says so once. A name, label or bucket list that the format
 * does not allow is a bug of ours and aborts. */
#ifndef TANDEM_COMMON_METRICS_H
#define TANDEM_COMMON_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/status.h"

typedef struct td_metrics td_metrics;
typedef struct td_counter td_counter;
typedef struct td_gauge td_gauge;
typedef struct td_histogram td_histogram;

/* Names and values are copied. A list ends with a NULL name; TD_LABELS adds that; NULL: none. */
typedef struct td_label {
    const char *name;
    const char *value;
} td_label;
#define TD_LABELS(...) ((const td_label[]){__VA_ARGS__, {NULL, NULL}})

/* An empty registry whose metrics all carry these labels too. NULL: out of memory. */
td_metrics *td_metrics_create(const td_label *const_labels);
void td_metrics_free(td_metrics *m); /* with all its metrics; NULL is fine */

/* TD_NOMEM when a creation before this ran out of memory; call once, after the last of them. */
TD_MUST_CHECK td_status td_metrics_check(const td_metrics *m, td_error *err);

/* Metrics of one name form a family: same kind, same help, different label values. The same name
 * with the same labels gives the same object back. */
td_counter *td_metrics_counter(td_metrics *m, const char *name, const char *help,
                               const td_label *labels);
/* A counter that takes microseconds and shows seconds. */
td_counter *td_metrics_counter_seconds(td_metrics *m, const char *name, const char *help,
                                       const td_label *labels);
td_gauge *td_metrics_gauge(td_metrics *m, const char *name, const char *help,
                           const td_label *labels);
/* bounds: n upper bounds, finite and rising; +Inf is added. Copied. */
td_histogram *td_metrics_histogram(td_metrics *m, const char *name, const char *help,
                                   const td_label *labels, const double *bounds, size_t n);

void td_counter_add(td_counter *c, uint64_t n);
uint64_t td_counter_value(const td_counter *c);

void td_gauge_set(td_gauge *g, double value);
void td_gauge_add(td_gauge *g, double delta); /* negative: down */
double td_gauge_value(const td_gauge *g);

void td_histogram_observe(td_histogram *h, double value);
/* n equal observations, as for the tokens of one step. */
void td_histogram_observe_n(td_histogram *h, double value, uint64_t n);
void td_histogram_observe_us(td_histogram *h, td_usec us); /* as seconds; below zero counts as 0 */
uint64_t td_histogram_count(const td_histogram *h);
double td_histogram_sum(const td_histogram *h);

/* Append all families, sorted by name, then the process's own (process_resident_memory_bytes,
 * process_open_fds, process_start_time_seconds, process_cpu_seconds_total). Counts are read while
 * others add, so two metrics may be an update apart; within one histogram, _count is the +Inf
 * bucket. Memory failure: b->oom. */
void td_metrics_write(td_metrics *m, td_buf *b);
#define TD_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Bucket lists that vLLM's dashboards expect: TD_BUCKETS_X and TD_BUCKETS_X_N, passed as
 * td_metrics_histogram(..., TD_BUCKETS(TTFT)). */
#define TD_BUCKETS(name) td_buckets_##name, td_buckets_##name##_n
#define TD_BUCKETS_DECLARE(name) \
    extern const double td_buckets_##name[]; \
    extern const size_t td_buckets_##name##_n
TD_BUCKETS_DECLARE(TTFT);             /* vllm:time_to_first_token_seconds */
TD_BUCKETS_DECLARE(ITL);              /* vllm:inter_token_latency_seconds */
TD_BUCKETS_DECLARE(LATENCY);          /* e2e, queue, prefill and decode time of a request */
TD_BUCKETS_DECLARE(TOKENS);           /* vllm:request_prompt_tokens, ..._generation_tokens */
TD_BUCKETS_DECLARE(ITERATION_TOKENS); /* vllm:iteration_tokens_total */
TD_BUCKETS_DECLARE(TRANSFER);         /* tandem: KV transfer and hand-off, 100 us .. 10 s */
TD_BUCKETS_DECLARE(MASK);             /* tandem: work of the host within a step, 1 us .. 0.1 s */
TD_BUCKETS_DECLARE(BYTES);            /* tandem: 4 KiB .. 16 GiB in powers of four */

#endif
