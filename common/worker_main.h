/* worker_main: the frame that both worker programs put around serve(): settings, log, metrics,
 * signals and the exit code: 0 drained, 1 failed, 2 wrong settings, 3 the device failed (4 it
 * hangs: worker_watch.h). */
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
    /* Load, serve until drained, clean up. */
    td_status (*serve)(td_metrics *metrics, td_error *err);
    /* A signal came: ask for a drain. Signal thread. false: there is nothing to drain yet, so the
     * process may end at once. */
    bool (*drain)(void);
} td_worker_program;

/* For serve() having returned st. */
int td_worker_exit_code(td_status st);

int td_worker_main(const td_worker_program *program, int argc, char **argv);

#endif
