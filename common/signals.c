#include "common/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "common/log.h"

static struct {
    void (*fn)(void *user, int signo);
    void *user;
    sigset_t set;
} state; /* written before the thread starts */

static void *signals_main(void *arg)
{
    bool asked = false;
    int signo;

    (void)arg;
    while (sigwait(&state.set, &signo) == 0) {
        if (asked) {
            td_warn("signal_again", "signo=%d action=exit", signo);
            _exit(128 + signo);
        }
        asked = true;
        td_info("signal", "signo=%d action=drain", signo);
        state.fn(state.user, signo);
    }
    return NULL;
}

td_status td_signals_start(void (*fn)(void *user, int signo), void *user, td_error *err)
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    state.fn = fn;
    state.user = user;
    sigemptyset(&state.set);
    sigaddset(&state.set, SIGTERM);
    sigaddset(&state.set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &state.set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a peer that goes away is an error code, not a death */
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, signals_main, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0 ? TD_OK : td_fail(err, TD_NOMEM, "no thread for signals");
}
