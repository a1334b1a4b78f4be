#include "common/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* Seen before any library is initialised: UCX takes SIGHUP, ignored or not, for a debug mode of its
 * own. Once blocked it never gets there. */
static bool ignored_at_start;

static bool ignored_now(void)
{
    struct sigaction now;

    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

/* By the kernel's own call, since a sanitizer's sigaction() is not there yet. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void look_at_start(void)
{
    unsigned long now[8] = {0}; /* the kernel's struct sigaction; the handler comes first */

    ignored_at_start = syscall(SYS_rt_sigaction, SIGHUP, NULL, now, 8) == 0 &&
                       now[0] == (unsigned long)(uintptr_t)SIG_IGN;
}

__attribute__((section(".preinit_array"),
               used)) static void (*const at_start)(void) = look_at_start;

bool td_signals_hangup_ignored(void)
{
    return ignored_at_start || ignored_now();
}

td_wish td_signal_wish(td_usec *asked_at, td_usec now)
{
    if (*asked_at != 0)
        return now - *asked_at < 200 * TD_USEC_PER_MSEC ? TD_WISH_SAME : TD_WISH_AGAIN;
    *asked_at = now;
    return TD_WISH_NEW;
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
    if (td_signals_hangup_ignored())
        signal(SIGHUP, SIG_IGN);
    else
        sigaddset(&state.set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &state.set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a peer that goes away is an error code, not a death */
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, signals_main, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0 ? TD_OK : td_fail(err, TD_NOMEM, "no thread for signals");
}
