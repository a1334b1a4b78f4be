#include "common/signals.h"

#include <pthread.h>
#include <signal.h>

static struct {
    void (*fn)(void *user, int signo);
    void *user;
    sigset_t set;
} state; /* written before the thread starts */

static void *signals_main(void *arg)
{
    int signo;

    (void)arg;
    while (sigwait(&state.set, &signo) == 0)
        state.fn(state.user, signo);
    return NULL;
}

bool td_signals_hangup_ignored(void)
{
    struct sigaction now;

    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
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
    if (!td_signals_hangup_ignored())
        sigaddset(&state.set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &state.set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a peer that goes away is an error code, not a death */
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, signals_main, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0 ? TD_OK : td_fail(err, TD_NOMEM, "no thread for signals");
}
