/* tandem-router: HTTP and RPC in front, prefill and decode workers behind. */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include "common/log.h"
#include "common/metrics.h"
#include "common/signals.h"
#include "router/config.h"
#include "router/http_api.h"
#include "router/router.h"
#include "router/rpc_api.h"

typedef struct program {
    router_config cfg;
    td_loop *loop;
    td_metrics *metrics;
    router *router;
    http_api *http;
    rpc_api *rpc;
    td_timer *drain_timer;
    td_usec asked_at; /* to end: td_signal_wish() */
    bool said_goodbye;
} program;

static void on_http_idle(void *arg)
{
    td_loop_stop(((program *)arg)->loop);
}

static void on_router_idle(void *arg)
{
    program *p = arg;

    http_api_stop(p->http, on_http_idle, p);
}

static void on_drain_deadline(void *arg)
{
    program *p = arg;
    td_error err = {0};

    if (p->said_goodbye) { /* the sockets have had their second */
        td_loop_stop(p->loop);
        return;
    }
    td_warn("drain_deadline", "requests=%zu", request_count(p->router));
    td_fail(&err, TD_UNAVAILABLE, "this router has shut down before the answer was done");
    /* Their clients are told; the loop goes on until that is on the wire, or for a second. */
    p->said_goodbye = true;
    td_timer_in(p->drain_timer, TD_USEC_PER_SEC);
    request_end_all(p->router, &err);
}

static void on_signal(void *arg)
{
    program *p = arg;

    switch (td_signal_wish(&p->asked_at, td_now_us())) {
    case TD_WISH_NEW:
        td_info("draining", "requests=%zu", request_count(p->router));
        td_timer_in(p->drain_timer, p->cfg.drain_ms * TD_USEC_PER_MSEC);
        router_drain(p->router, on_router_idle, p);
        break;
    case TD_WISH_SAME: td_warn("signal_again", "action=none"); break;
    case TD_WISH_AGAIN:
        td_warn("signal_again", "action=exit");
        td_loop_stop(p->loop);
        break;
    }
}

static void on_hangup(void *arg)
{
    http_api_reload_keys(((program *)arg)->http);
}

/* Before anything that takes time: a signal that comes while the router is being made waits for the
 * loop, which then drains. SIGHUP, where there are no keys to read again, is a terminal that goes:
 * the router ends as on SIGTERM, unless it was told to live on (nohup). */
static td_status watch_signals(program *p, td_error *err)
{
    td_status st = td_loop_on_signal(p->loop, SIGTERM, on_signal, p, err);

    if (st == TD_OK)
        st = td_loop_on_signal(p->loop, SIGINT, on_signal, p, err);
    if (st == TD_OK && p->cfg.api_keys[0] != '\0')
        st = td_loop_on_signal(p->loop, SIGHUP, on_hangup, p, err);
    else if (st == TD_OK && !td_signals_hangup_ignored())
        st = td_loop_on_signal(p->loop, SIGHUP, on_signal, p, err);
    return st;
}

/* Each client is a descriptor; so is each worker, twice. What the limit does not allow must not be
 * promised: a server that runs out cannot even say so. */
static void fit_descriptors(router_config *cfg)
{
    enum { OTHERS = 512 }; /* workers, gateways, pipes, the closed that linger */
    rlim_t want = (rlim_t)cfg->max_connections + OTHERS;
    struct rlimit have;

    if (getrlimit(RLIMIT_NOFILE, &have) != 0 || have.rlim_cur >= want)
        return;
    have.rlim_cur = have.rlim_max < want ? have.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &have) != 0 && getrlimit(RLIMIT_NOFILE, &have) != 0)
        return;
    if (have.rlim_cur >= want)
        return;
    cfg->max_connections = have.rlim_cur > 2 * OTHERS ? (uint32_t)(have.rlim_cur - OTHERS)
                                                      : (uint32_t)have.rlim_cur / 2;
    td_warn("few_descriptors",
            "limit=%llu wanted=%llu max_connections=%u remedy=\"raise the limit (ulimit -n, "
            "LimitNOFILE=) or lower --max-connections\"",
            (unsigned long long)have.rlim_cur, (unsigned long long)want, cfg->max_connections);
}

static td_status serve(program *p, td_error *err)
{
    td_status st = td_loop_create(&p->loop, err);

    if (st == TD_OK)
        st = watch_signals(p, err);
    if (st == TD_OK)
        st = router_create(p->loop, &p->cfg, p->metrics, &p->router, err);
    if (st == TD_OK)
        st = http_api_create(p->router, &p->http, err);
    if (st == TD_OK && p->cfg.rpc_listen[0] != '\0')
        st = rpc_api_create(p->router, &p->rpc, err);
    if (st == TD_OK)
        st = td_metrics_check(p->metrics, err);
    if (st == TD_OK) {
        p->drain_timer = td_timer_create(p->loop, on_drain_deadline, p);
        if (p->drain_timer == NULL)
            st = td_fail(err, TD_NOMEM, "no memory for a timer");
    }
    if (st == TD_OK) {
        td_info("listening", "http_port=%u", http_api_port(p->http));
        st = td_loop_run(p->loop, err);
    }
    /* Requests hold answers, answers hold HTTP requests: cut those first, which cancels them. With
     * the last one nothing is to be stopped any more: that is happening here. */
    if (p->router != NULL)
        router_drain(p->router, NULL, NULL);
    http_api_free(p->http);
    rpc_api_free(p->rpc);
    router_free(p->router);
    td_timer_free(p->drain_timer);
    td_loop_free(p->loop);
    return st;
}

int main(int argc, char **argv)
{
    static program p;
    td_config_action action;
    td_error err = {0};
    td_status st;

    if (td_config_parse(router_options, router_n_options, "tandem-router",
                        "Takes requests, places them on workers, streams their answers.", argc,
                        argv, &p.cfg, &action, &err) != TD_OK) {
        fprintf(stderr, "tandem-router: %s\n", err.text);
        return 2;
    }
    if (action == TD_CONFIG_EXIT_OK)
        return 0;
    td_log_init("router", (td_log_level)p.cfg.log_level);
    fit_descriptors(&p.cfg);
    p.metrics = td_metrics_create(NULL);
    st = p.metrics == NULL ? td_fail(&err, TD_NOMEM, "no memory for metrics") : serve(&p, &err);
    if (st == TD_OK)
        td_info("stopped", "status=OK");
    else
        td_logerr("failed", "status=%s error=\"%s\"", td_status_name(st), err.text);
    td_metrics_free(p.metrics);
    td_config_free(router_options, router_n_options, &p.cfg);
    return st == TD_OK ? 0 : st == TD_INVALID ? 2 : 1;
}
