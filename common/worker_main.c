#include "common/worker_main.h"

#include <stdio.h>
#include <unistd.h>

#include "common/log.h"
#include "common/signals.h"
#include "common/worker_watch.h"

static void on_signal(void *user, int signo)
{
    const td_worker_program *p = user;

    (void)signo;
    if (!p->drain())
        _exit(0); /* still loading: nobody waits for anything */
}

int td_worker_exit_code(td_status st)
{
    return st == TD_OK ? 0 : st == TD_INVALID ? 2 : st == TD_DEVICE ? TD_EXIT_DEVICE : 1;
}

int td_worker_main(const td_worker_program *p, int argc, char **argv)
{
    td_config_action action;
    td_metrics *metrics;
    td_error err = {0};
    td_status st;

    if (td_config_parse(p->options, p->n_options, p->name, p->purpose, argc, argv, p->config,
                        &action, &err) != TD_OK) {
        fprintf(stderr, "%s: %s\n", p->name, err.text);
        return 2;
    }
    if (action == TD_CONFIG_EXIT_OK)
        return 0;
    td_log_init(p->component, (td_log_level)p->worker->log_level);
    metrics = td_metrics_create(NULL);
    st = metrics == NULL ? td_fail(&err, TD_NOMEM, "no memory for metrics")
                         : td_signals_start(on_signal, (void *)(uintptr_t)p, &err);
    if (st == TD_OK)
        st = p->serve(metrics, &err);
    if (st == TD_OK)
        td_info("stopped", "status=OK");
    else
        td_logerr("failed", "status=%s error=\"%s%s%s\"", td_status_name(st), err.param,
                  err.param[0] ? ": " : "", err.text);
    td_metrics_free(metrics);
    td_config_free(p->options, p->n_options, p->config);
    return td_worker_exit_code(st);
}
