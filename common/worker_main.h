/* worker_main: the frame that both worker programs put around serve(): settings, log, metrics,
 * signals and the exit code: 0 drained, 1 failed, 2 wrong settings, 3 the device failed (4 it
 * hangs: worker_watch.h).
 *
 * What a signal (SIGTERM, SIGINT, SIGHUP) does depends on where serve() is. While it loads, the
 * process ends at once with 0: nobody waits for anything. While it runs, the first one drains and
 * a second one (td_signal_wish()) ends the process with 128 + its number. While it
 * leaves, which nothing may turn into a failure any more, the first one does nothing and the second
 * one ends the process with the exit code that it was about to have. */
#ifndef TANDEM_COMMON_WORKER_MAIN_H
#define TANDEM_COMMON_WORKER_MAIN_H

#include "common/config.h"
#include "common/metrics.h"
#include "common/worker.h"

typedef struct td_worker_program {
    const char *name;      /* "tandem-decode" */
    const char *component; /* "decode", in logs */
    const char *purpose;
    const td_option *options;
    size_t n_options;
    void *config;                    /* the settings struct, all zero */
    const td_worker_options *worker; /* the part of it that both have */
    /* Load, serve until drained, clean up; calls the two below, in this order. */
    td_status (*serve)(td_metrics *metrics, td_error *err);
} td_worker_program;

/* From serve(): from here on a signal asks for a drain by drain(engine), on the signals' thread. It
 * must only post. */
void td_worker_runs(void (*drain)(void *engine), void *engine);
/* From serve(), before it takes anything down: drain() is not running and will not be called again.
 * st is what serve() will return. Also where td_worker_runs() was never reached. */
void td_worker_leaves(td_status st);

/* For serve() having returned st. */
int td_worker_exit_code(td_status st);

int td_worker_main(const td_worker_program *program, int argc, char **argv);

#endif
