/* What a decode worker counts and measures. */
#include "decode/engine_impl.h"

void engine_make_metrics(engine *e, td_metrics *m)
{
    static const char *const ends[] = {"", "stop", "length", "error"};

    e->g_running = td_metrics_gauge(m, "vllm:num_requests_running", "Requests in the batch.", NULL);
    e->g_waiting =
        td_metrics_gauge(m, "vllm:num_requests_waiting",
                         "Requests whose KV has landed and that wait for a place.", NULL);
    e->g_reserved =
        td_metrics_gauge(m, "tandem:reservations_open", "Requests whose KV is on its way.", NULL);
    e->g_kv_used = td_metrics_gauge(m, "vllm:kv_cache_usage_perc",
                                    "Share of the KV pages that are held, 0 to 1.", NULL);
    e->g_quarantined =
        td_metrics_gauge(m, "tandem:quarantined_pages",
                         "Pages of ended requests that a source may still write.", NULL);
    e->c_tokens = td_metrics_counter(m, "vllm:generation_tokens_total", "Tokens sampled.", NULL);
    e->c_steps = td_metrics_counter(m, "tandem:decode_steps_total", "Decode steps run.", NULL);
    e->c_reserved = td_metrics_counter(m, "tandem:reservations_total", "Reservations made.", NULL);
    e->c_busy = td_metrics_counter(m, "tandem:reservations_refused_total",
                                   "Reservations refused for want of room.", NULL);
    e->c_landed = td_metrics_counter(m, "tandem:kv_landed_total",
                                     "Requests whose KV has arrived whole.", NULL);
    e->c_lost =
        td_metrics_counter(m, "tandem:kv_lost_total", "Requests whose KV transfer failed.", NULL);
    e->c_expired = td_metrics_counter(m, "tandem:leases_expired_total",
                                      "Reservations whose KV did not come in time.", NULL);
    e->c_stray = td_metrics_counter(m, "tandem:kv_notices_stray_total",
                                    "Notices that no open reservation was waiting for.", NULL);
    for (int i = SCHED_STOP; i <= SCHED_FAILED; i++)
        e->c_end[i] = td_metrics_counter(m, "vllm:request_success_total", "Requests that ended.",
                                         TD_LABELS({"finished_reason", ends[i]}));
    e->c_canceled = td_metrics_counter(m, "vllm:request_success_total", "Requests that ended.",
                                       TD_LABELS({"finished_reason", "abort"}));
    e->c_guided = td_metrics_counter(m, "tandem:guided_requests_total",
                                     "Reservations for an answer that is held to a guide.", NULL);
    e->h_mask = td_metrics_histogram(m, "tandem:guide_mask_seconds",
                                     "Time to find the tokens that may come next, a token.", NULL,
                                     TD_BUCKETS(MASK));
    e->h_step = td_metrics_histogram(m, "tandem:decode_step_seconds", "Time of one decode step.",
                                     NULL, TD_BUCKETS(ITL));
    e->h_batch = td_metrics_histogram(m, "vllm:iteration_tokens_total", "Tokens of one step.", NULL,
                                      TD_BUCKETS(ITERATION_TOKENS));
    e->h_arrival = td_metrics_histogram(m, "tandem:kv_arrival_seconds",
                                        "From the reservation to the last notice of its KV.", NULL,
                                        TD_BUCKETS(TRANSFER));
}
