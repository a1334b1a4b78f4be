/* the router's settings: filled once by common/config.h from config.c's table. */
#ifndef TANDEM_ROUTER_CONFIG_H
#define TANDEM_ROUTER_CONFIG_H

#include "common/config.h"
#include "common/status.h"

typedef struct router_config {
    char *model;          /* folder with tokenizer.json (and config.json) */
    char *http_listen;    /* host:port */
    char *workers_listen; /* tcp://host:port: workers' PUSH */
    char *rpc_listen;     /* tcp://host:port: gateways' REQ; "": none */
    char *router_id;      /* "": host name and process id */
    uint32_t max_requests;
    uint32_t max_choices;
    uint64_t max_tokens_inside;
    uint32_t reserve_tokens;
    uint64_t prefill_backlog;
    int64_t queue_ms, recovery_ms, lease_ms, stall_ms;
    uint32_t retries;
    uint32_t render_threads;
    char *api_keys; /* file; "": anybody may ask */
    uint64_t max_body, max_header;
    uint32_t max_connections;
    int64_t read_timeout_ms, idle_timeout_ms;
    uint32_t max_json_depth, max_messages, max_tools;
    uint64_t slow_client_bytes;
    int64_t sse_ping_ms;
    uint64_t responses_store; /* bytes */
    int64_t responses_ttl_ms;
    int64_t drain_ms;
    char *date; /* "": today */
    bool allow_ignore_eos;
    int32_t log_level;
} router_config;

extern const td_option router_options[];
extern const size_t router_n_options;

/* What types do not say: --date is a day, --router-id a word. TD_INVALID names the flag. */
TD_MUST_CHECK td_status router_config_check(const router_config *cfg, td_error *err);

#endif
