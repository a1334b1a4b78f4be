#include "router/config.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "router/generation.h"
#include "router/openai.h"
#include "router/registry.h"

static const char *const log_level_words[] = {"error", "warn", "info", "debug", NULL};

const td_option router_options[] = {
    {"model", TD_OPT_STR, offsetof(router_config, model), NULL, 0, 0,
     "Folder with the model's tokenizer.json; its weights are not read.", NULL},
    {"http-listen", TD_OPT_STR, offsetof(router_config, http_listen), "127.0.0.1:8000", 0, 0,
     "host:port for clients.", NULL},
    {"workers-listen", TD_OPT_STR, offsetof(router_config, workers_listen), "tcp://127.0.0.1:7001",
     0, 0, "URL at which workers register and send tokens.", NULL},
    {"rpc-listen", TD_OPT_STR, offsetof(router_config, rpc_listen), "", 0, 0,
     "URL for gateways that speak RPC instead of HTTP. Empty: none.", NULL},
    {"router-id", TD_OPT_STR, offsetof(router_config, router_id), "", 0, 0,
     "Unique name of this router for workers. Empty: host name and process id.", NULL},
    {"max-requests", TD_OPT_U32, offsetof(router_config, max_requests), "1024", 1, 1000000,
     "Requests inside at once, waiting or running; one more is answered 429.", NULL},
    {"max-choices", TD_OPT_U32, offsetof(router_config, max_choices), "8", 1,
     GENERATION_MAX_CHOICES,
     "Most answers that one request may ask for (n); each is a request of its own to the workers "
     "and "
     "to --max-requests.",
     NULL},
    {"max-tokens-inside", TD_OPT_U64, offsetof(router_config, max_tokens_inside), "8000000", 1,
     1e12, "Prompt and reserved tokens of all requests inside; past it the answer is 429.", NULL},
    {"reserve-tokens", TD_OPT_U32, offsetof(router_config, reserve_tokens), "1024", 16, 131072,
     "Most answer tokens for which KV pages are held at a time. A longer answer goes on under a "
     "new "
     "reservation, at the price of one prefill.",
     NULL},
    {"prefill-backlog", TD_OPT_U64, offsetof(router_config, prefill_backlog), "65536", 0, 1e12,
     "Tokens that may wait at one prefill worker; past it requests wait in the router, where they "
     "hold no pages. 0: no bound.",
     NULL},
    {"queue-timeout", TD_OPT_DURATION_MS, offsetof(router_config, queue_ms), "30s", 0, 3600000,
     "Longest wait for room on the workers before a request is answered 429.", NULL},
    {"recovery-timeout", TD_OPT_DURATION_MS, offsetof(router_config, recovery_ms), "20s", 0,
     3600000, "Longest wait for another worker after one has failed.", NULL},
    {"lease", TD_OPT_DURATION_MS, offsetof(router_config, lease_ms), "60s", 100, 86400000,
     "From the reservation to the last byte of KV; past it the attempt has failed.", NULL},
    {"stall-timeout", TD_OPT_DURATION_MS, offsetof(router_config, stall_ms), "60s", 100, 3600000,
     "Longest time without a token from a decode worker before another one is tried.", NULL},
    {"retries", TD_OPT_U32, offsetof(router_config, retries), "3", 0, 100,
     "Failures of workers that one request survives.", NULL},
    {"render-threads", TD_OPT_U32, offsetof(router_config, render_threads), "2", 1, 64,
     "Threads that turn conversations into tokens.", NULL},
    {"max-body", TD_OPT_BYTES, offsetof(router_config, max_body), "8MiB", 1024, 1e10,
     "Longest request body; one longer is answered 413.", NULL},
    {"max-header", TD_OPT_BYTES, offsetof(router_config, max_header), "64KiB", 1024, 1 << 24,
     "Longest request line and headers; longer ones are answered 431.", NULL},
    {"max-json-depth", TD_OPT_U32, offsetof(router_config, max_json_depth), "64", 8, OPENAI_DEEPEST,
     "Levels of nesting in a body.", NULL},
    {"max-messages", TD_OPT_U32, offsetof(router_config, max_messages), "4096", 1, 1000000,
     "Messages, or items of input, in a body.", NULL},
    {"max-tools", TD_OPT_U32, offsetof(router_config, max_tools), "512", 0, 100000,
     "Tools in a body.", NULL},
    {"max-connections", TD_OPT_U32, offsetof(router_config, max_connections), "8192", 1, 1000000,
     "Client connections at once; one more takes the place of an idle one, or of a request that is "
     "slow to come, or is answered 503. Less where the limit of file descriptors is lower.",
     NULL},
    {"read-timeout", TD_OPT_DURATION_MS, offsetof(router_config, read_timeout_ms), "60s", 10,
     3600000,
     "Longest time from the first byte of a request to its last, and for a finished reply to make "
     "no progress.",
     NULL},
    {"idle-timeout", TD_OPT_DURATION_MS, offsetof(router_config, idle_timeout_ms), "75s", 10,
     86400000, "How long a connection without a request stays open.", NULL},
    {"api-keys", TD_OPT_STR, offsetof(router_config, api_keys), "", 0, 0,
     "File of keys, one a line; requests but /health, /ready and /metrics then need one, as "
     "\"Authorization: Bearer KEY\". Read again on SIGHUP and when it changes. Empty: none needed.",
     NULL},
    {"slow-client", TD_OPT_BYTES, offsetof(router_config, slow_client_bytes), "256KiB", 1024, 1e10,
     "A client with this much unread output is disconnected and its request canceled.", NULL},
    {"sse-ping", TD_OPT_DURATION_MS, offsetof(router_config, sse_ping_ms), "15s", 10, 3600000,
     "A comment line is sent on a stream that has been silent this long.", NULL},
    {"responses-store", TD_OPT_BYTES, offsetof(router_config, responses_store), "64MiB", 0, 1e12,
     "Memory for finished answers of /v1/responses, which previous_response_id refers to; the "
     "oldest "
     "make room. 0: none are kept.",
     NULL},
    {"responses-ttl", TD_OPT_DURATION_MS, offsetof(router_config, responses_ttl_ms), "1h", 1,
     2592000000.0, "How long a finished answer of /v1/responses is kept.", NULL},
    {"drain", TD_OPT_DURATION_MS, offsetof(router_config, drain_ms), "10m", 0, 86400000,
     "After SIGTERM, how long running answers may take to finish.", NULL},
    {"date", TD_OPT_STR, offsetof(router_config, date), "", 0, 0,
     "Date for the system message, YYYY-MM-DD. Empty: today, UTC.", NULL},
    {"allow-ignore-eos", TD_OPT_BOOL, offsetof(router_config, allow_ignore_eos), "true", 0, 0,
     "Accept the ignore_eos field, which load tests use to fix the length of answers.", NULL},
    {"log-level", TD_OPT_ENUM, offsetof(router_config, log_level), "info", 0, 0,
     "How much is logged.", log_level_words},
};
const size_t router_n_options = sizeof router_options / sizeof *router_options;

/* YYYY-MM-DD, and a day that the calendar has. */
static bool is_day(const char *text)
{
    struct tm day = {0};
    int year = 0, month = 0, of_month = 0;

    if (strlen(text) != 10 || strspn(text, "0123456789") != 4 || text[4] != '-' ||
        strspn(text + 5, "0123456789") != 2 || text[7] != '-' ||
        strspn(text + 8, "0123456789") != 2 ||
        sscanf(text, "%4d-%2d-%2d", &year, &month, &of_month) != 3)
        return false;
    day.tm_year = year - 1900;
    day.tm_mon = month - 1;
    day.tm_mday = of_month;
    timegm(&day); /* puts right what is over */
    return day.tm_mon == month - 1 && day.tm_mday == of_month;
}

td_status router_config_check(const router_config *cfg, td_error *err)
{
    if (cfg->date[0] != '\0' && !is_day(cfg->date)) /* it stands in every prompt */
        return td_fail(err, TD_INVALID, "--date: '%.40s' is not a day, such as 2025-06-28",
                       cfg->date);
    if (cfg->router_id[0] != '\0' && !td_is_word(cfg->router_id, REGISTRY_ID_BYTES - 1))
        return td_fail(err, TD_INVALID,
                       "--router-id: '%.100s' is not one word of at most %d printable ASCII "
                       "characters",
                       cfg->router_id, REGISTRY_ID_BYTES - 1);
    return TD_OK;
}
