/* What a prefill worker counts and measures. */
#include "prefill/engine_impl.h"

void prefill_make_metrics(prefill_engine *e, td_metrics *m)
{
    e->g_running =
        td_metrics_gauge(m, "vllm:num_requests_running", "Prompts being computed.", NULL);
    e->g_waiting = td_metrics_gauge(m, "vllm:num_requests_waiting", "Prompts in the queue.", NULL);
    e->g_pushing = td_metrics_gauge(m, "tandem:kv_transfers_running",
                                    "Prompts that are computed and still being sent.", NULL);
    e->g_tokens = td_metrics_gauge(m, "tandem:prefill_queued_tokens",
                                   "Tokens of prompts waiting or being computed.", NULL);
    e->g_kv_used = td_metrics_gauge(m, "vllm:kv_cache_usage_perc",
                                    "Share of the KV pages that are held, 0 to 1.", NULL);
    e->c_prompt_tokens =
        td_metrics_counter(m, "vllm:prompt_tokens_total", "Tokens computed.", NULL);
    e->c_admitted = td_metrics_counter(m, "tandem:prefill_admitted_total",
                                       "Prompts taken into the queue.", NULL);
    e->c_refused = td_metrics_counter(m, "tandem:prefill_refused_total", "Prompts refused.", NULL);
    e->c_repeated = td_metrics_counter(m, "tandem:prefill_repeated_total",
                                       "Messages for a prompt that was here already.", NULL);
    e->c_canceled =
        td_metrics_counter(m, "tandem:prefill_canceled_total", "Prompts canceled.", NULL);
    e->c_failed =
        td_metrics_counter(m, "tandem:prefill_failed_total", "Prompts that failed.", NULL);
    e->c_kv_bytes = td_metrics_counter(m, "tandem:kv_transfer_bytes_total",
                                       "Bytes of KV put into decode workers.", NULL);
    e->c_kv_puts = td_metrics_counter(m, "tandem:kv_transfer_puts_total", "One-sided puts.", NULL);
    e->c_kv_failed = td_metrics_counter(m, "tandem:kv_transfer_failed_total",
                                        "Transfers that did not complete.", NULL);
    e->c_guided = td_metrics_counter(m, "tandem:guided_requests_total",
                                     "Prompts whose answer is held to a guide.", NULL);
    e->h_mask = td_metrics_histogram(m, "tandem:guide_mask_seconds",
                                     "Time to find the tokens that may come next, a token.", NULL,
                                     TD_BUCKETS(MASK));
    e->h_queue =
        td_metrics_histogram(m, "vllm:request_queue_time_seconds",
                             "From arrival to the first chunk.", NULL, TD_BUCKETS(LATENCY));
    e->h_compute =
        td_metrics_histogram(m, "vllm:request_prefill_time_seconds",
                             "From the first chunk to the first token.", NULL, TD_BUCKETS(LATENCY));
    e->h_tail =
        td_metrics_histogram(m, "tandem:kv_transfer_tail_seconds",
                             "From the first token to the last flush: transfer that compute "
                             "did not hide.",
                             NULL, TD_BUCKETS(TRANSFER));
    e->h_bytes = td_metrics_histogram(m, "tandem:kv_transfer_size_bytes", "KV bytes of a prompt.",
                                      NULL, TD_BUCKETS(BYTES));
}
