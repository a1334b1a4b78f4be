#include "router/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/log.h"
#include "router/tokenize_api.h"

enum { TICK_MS = 100 };

static void on_tokens(void *user, const Tandem__TokenEvent *e)
{
    request_on_tokens(user, e);
}

static void on_prefill(void *user, const Tandem__PrefillEvent *e)
{
    request_on_prefill(user, e);
}

static void on_transfer(void *user, const Tandem__TransferEvent *e)
{
    request_on_transfer(user, e);
}

static void on_lost(void *user, const char *worker_id, uint64_t incarnation, const char *why)
{
    request_on_lost(user, worker_id, incarnation, why);
}

static void on_change(void *user)
{
    request_on_change(user);
}

static void on_tick(void *arg)
{
    router *r = arg;
    size_t waiting = 0;

    request_on_tick(r, td_now_us());
    for (request *q = r->waiting; q != NULL; q = request_next_waiting(q))
        waiting++;
    td_gauge_set(r->m.waiting, (double)waiting);
    td_timer_in(r->timer, TICK_MS * TD_USEC_PER_MSEC);
}

static td_counter *finished(td_metrics *m, const char *reason)
{
    return td_metrics_counter(m, "vllm:request_success_total", "Requests that ended.",
                              TD_LABELS({"finished_reason", reason}));
}

static void make_metrics(router *r)
{
    td_metrics *m = r->metrics;
    router_metrics *t = &r->m;

    t->running =
        td_metrics_gauge(m, "vllm:num_requests_running", "Requests admitted and not ended.", NULL);
    t->waiting = td_metrics_gauge(m, "vllm:num_requests_waiting",
                                  "Requests that wait for room on the workers.", NULL);
    t->prompt_tokens =
        td_metrics_counter(m, "vllm:prompt_tokens_total", "Tokens of prompts.", NULL);
    t->generation_tokens =
        td_metrics_counter(m, "vllm:generation_tokens_total", "Tokens of answers.", NULL);
    t->finished_stop = finished(m, "stop");
    t->finished_length = finished(m, "length");
    t->finished_calls = finished(m, "tool_calls");
    t->finished_error = finished(m, "error");
    t->finished_abort = finished(m, "abort");
    t->refused = td_metrics_counter(m, "tandem:requests_refused_total",
                                    "Requests answered 429 for want of room.", NULL);
    t->retried = td_metrics_counter(m, "tandem:request_retries_total",
                                    "Attempts that failed and were made again elsewhere.", NULL);
    t->continued = td_metrics_counter(m, "tandem:request_continuations_total",
                                      "Answers that went on under a new reservation.", NULL);
    t->lost_workers =
        td_metrics_counter(m, "tandem:workers_lost_total", "Workers that were lost.", NULL);
    for (int i = 0; i < HARMONY_REPAIR_COUNT; i++)
        t->repairs[i] =
            td_metrics_counter(m, "tandem:harmony_repairs_total",
                               "Malformed model output that was read as best it could be.",
                               TD_LABELS({"kind", harmony_repair_label((harmony_repair)i)}));
    t->ttft = td_metrics_histogram(m, "vllm:time_to_first_token_seconds",
                                   "From the request to its first token.", NULL, TD_BUCKETS(TTFT));
    t->itl = td_metrics_histogram(m, "vllm:inter_token_latency_seconds",
                                  "Between two tokens of an answer.", NULL, TD_BUCKETS(ITL));
    t->e2e = td_metrics_histogram(m, "vllm:e2e_request_latency_seconds",
                                  "From the request to its end.", NULL, TD_BUCKETS(LATENCY));
    t->queue =
        td_metrics_histogram(m, "vllm:request_queue_time_seconds",
                             "From the request to its placement.", NULL, TD_BUCKETS(LATENCY));
    t->prompt = td_metrics_histogram(m, "vllm:request_prompt_tokens", "Tokens of a prompt.", NULL,
                                     TD_BUCKETS(TOKENS));
    t->generation = td_metrics_histogram(m, "vllm:request_generation_tokens",
                                         "Tokens of an answer.", NULL, TD_BUCKETS(TOKENS));
    t->kv_tail =
        td_metrics_histogram(m, "tandem:kv_transfer_tail_seconds",
                             "From the end of a prefill to its last byte in the decode worker.",
                             NULL, TD_BUCKETS(TRANSFER));
}

/* The ids that must never be sampled, as few ranges as they are. */
static td_status collect_banned(router *r, td_error *err)
{
    td_tokens ids = {0};
    td_status st = TD_OK;

    harmony_banned_ids(r->harmony, &ids);
    /* A model may have more rows than the tokenizer has ids: what has no name is never said. */
    td_tokens_push(&ids, tokenizer_vocab(r->tokenizer));
    if (ids.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the banned ids");
    for (size_t i = 0; i < ids.len && st == TD_OK; i++) {
        if (r->n_banned > 0 && r->banned[r->n_banned - 1].last + 1 == ids.ptr[i])
            r->banned[r->n_banned - 1].last++;
        else if (r->n_banned < ROUTER_MAX_BANNED)
            r->banned[r->n_banned++] = (td_id_range){ids.ptr[i], ids.ptr[i]};
        else
            st = td_fail(err, TD_INVALID, "the vocabulary's reserved ids are in more than %d runs",
                         ROUTER_MAX_BANNED);
    }
    if (st == TD_OK)
        r->banned[r->n_banned - 1].last = INT32_MAX - 1;
    td_tokens_free(&ids);
    return st;
}

static void make_id(const router_config *cfg, char *out, size_t cap)
{
    char host[64] = "localhost";

    gethostname(host, sizeof host - 1);
    if (cfg->router_id[0] != '\0')
        snprintf(out, cap, "%s", cfg->router_id);
    else
        snprintf(out, cap, "router-%s-%ld", host, (long)getpid());
}

td_status router_create(td_loop *loop, const router_config *cfg, td_metrics *metrics, router **out,
                        td_error *err)
{
    static const workers_callbacks cb = {.on_tokens = on_tokens,
                                         .on_prefill = on_prefill,
                                         .on_transfer = on_transfer,
                                         .on_lost = on_lost,
                                         .on_change = on_change};
    router *r = calloc(1, sizeof *r);
    char id[REGISTRY_ID_BYTES];
    uint32_t start;
    td_status st;

    if (r == NULL)
        return td_fail(err, TD_NOMEM, "router: no memory");
    r->loop = loop;
    r->cfg = cfg;
    r->metrics = metrics;
    /* Ids of requests must differ between routers that share workers, and between lives of one. */
    if (getrandom(&start, sizeof start, 0) != sizeof start)
        start = (uint32_t)td_wall_us();
    r->next_id = (uint64_t)start << 32;
    admission_init(&r->admission, cfg->max_requests, cfg->max_tokens_inside);
    make_metrics(r);
    make_id(cfg, id, sizeof id);
    st = router_config_check(cfg, err);
    if (st == TD_OK)
        st = tokenizer_open(cfg->model, &r->tokenizer, err);
    if (st == TD_OK)
        st = harmony_open(r->tokenizer, NULL, &r->harmony, err);
    if (st == TD_OK)
        st = collect_banned(r, err);
    if (st == TD_OK) {
        r->n_stop_ids = harmony_stop_ids(r->harmony, r->stop_ids);
        st = render_pool_create(loop, r->harmony, (int32_t)cfg->render_threads, &r->pool, err);
    }
    if (st == TD_OK) {
        r->timer = td_timer_create(loop, on_tick, r);
        if (r->timer == NULL)
            st = td_fail(err, TD_NOMEM, "router: no memory for a timer");
    }
    if (st == TD_OK)
        st = workers_create(loop, cfg->workers_listen, id, tokenizer_vocab(r->tokenizer), &cb, r,
                            &r->workers, err);
    if (st != TD_OK) {
        router_free(r);
        return st;
    }
    td_timer_in(r->timer, TICK_MS * TD_USEC_PER_MSEC);
    td_info("router_started", "id=%s workers=%s vocab=%d", id, workers_url(r->workers),
            tokenizer_vocab(r->tokenizer));
    *out = r;
    return TD_OK;
}

void router_free(router *r)
{
    if (r == NULL)
        return;
    render_pool_free(r->pool); /* no thread looks at a request any more */
    tokenize_free_all(r);
    request_free_all(r);
    workers_free(r->workers);
    td_timer_free(r->timer);
    harmony_close(r->harmony);
    tokenizer_close(r->tokenizer);
    free(r);
}

void router_drain(router *r, td_loop_fn fn, void *arg)
{
    r->draining = true;
    r->on_idle = fn;
    r->on_idle_arg = arg;
    router_request_gone(r);
}

void router_request_gone(router *r)
{
    td_loop_fn fn = r->on_idle;

    if (!r->draining || fn == NULL || request_count(r) > 0)
        return;
    r->on_idle = NULL;
    /* Posted, not called from inside a request's own end. A loop that has stopped needs no word:
     * what waited for it is being taken down. */
    if (!td_loop_post(r->loop, fn, r->on_idle_arg))
        td_debug("idle_unheard", "requests=0");
}

bool router_ready(const router *r, const char **why)
{
    if (r->draining) {
        *why = "this router is shutting down";
        return false;
    }
    return registry_can_serve(workers_registry(r->workers), why);
}

const char *router_model(const router *r)
{
    const registry_model *m = registry_model_of(workers_registry(r->workers));

    return m->known ? m->name : "";
}

/* The date for system messages: --date, or today in UTC. */
static void date_of(const router *r, char out[16])
{
    time_t now = time(NULL);
    struct tm utc;

    if (r->cfg->date[0] != '\0') {
        snprintf(out, 16, "%.15s", r->cfg->date);
        return;
    }
    gmtime_r(&now, &utc);
    strftime(out, 16, "%Y-%m-%d", &utc);
}

openai_defaults router_defaults(const router *r, char date[16])
{
    const router_config *cfg = r->cfg;

    date_of(r, date);
    return (openai_defaults){
        .date = date,
        .allow_ignore_eos = cfg->allow_ignore_eos,
        .vocab = tokenizer_vocab(r->tokenizer),
        .max_depth = cfg->max_json_depth,
        .max_messages = cfg->max_messages,
        .max_tools = cfg->max_tools,
        .max_choices = cfg->max_choices < cfg->max_requests ? cfg->max_choices : cfg->max_requests};
}
