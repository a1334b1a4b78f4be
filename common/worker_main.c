#include "common/worker_main.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "common/log.h"
#include "common/signals.h"
#include "common/worker_watch.h"

/* Held while drain() posts, so that it never meets an engine that is being freed. */
static struct {
    pthread_mutex_t lock;
    enum { LOADING, RUNNING, LEAVING } stage;
    void (*drain)(void *engine);
    void *engine;
    int code;         /* of the exit, when leaving */
    td_usec asked_at; /* td_signal_wish() */
} life = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_signal(void *user, int signo)
{
    (void)user;
    pthread_mutex_lock(&life.lock);
    if (life.stage == LOADING) {
        td_info("stopped", "signo=%d status=OK what=\"it was still loading\"", signo);
        _exit(0);
    }
    switch (td_signal_wish(&life.asked_at, td_now_us())) {
    case TD_WISH_NEW:
        td_info("signal", "signo=%d action=%s", signo, life.stage == RUNNING ? "drain" : "none");
        if (life.stage == RUNNING)
            life.drain(life.engine);
        break;
    case TD_WISH_SAME:
        td_info("signal", "signo=%d action=none what=\"as the one just before it\"", signo);
        break;
    case TD_WISH_AGAIN: {
        int code = life.stage == LEAVING ? life.code : 128 + signo;

        td_warn("signal_again", "signo=%d action=exit exit=%d", signo, code);
        _exit(code);
    }
    }
    pthread_mutex_unlock(&life.lock);
}

void td_worker_runs(void (*drain)(void *engine), void *engine)
{
    pthread_mutex_lock(&life.lock);
    life.stage = RUNNING;
    life.drain = drain;
    life.engine = engine;
    pthread_mutex_unlock(&life.lock);
}

void td_worker_leaves(td_status st)
{
    pthread_mutex_lock(&life.lock);
    life.stage = LEAVING;
    life.code = td_worker_exit_code(st);
    pthread_mutex_unlock(&life.lock);
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
                         : td_signals_start(on_signal, NULL, &err);
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
