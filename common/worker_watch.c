#include "common/worker_watch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

enum { FIRST_US = 60 * 1000 * 1000 };

struct td_watch {
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    td_usec timeout; /* 0: never */
    td_usec began;   /* of the step that runs; 0: none does */
    td_usec allowed; /* what it may take; not less than timeout */
    td_usec look_at; /* when the thread looks next: no wake-up per step */
    td_usec leave_at;
    int leave_code;
    const char *what;
    int32_t n;
    td_watch_late_fn late;
    const void *ctx; /* of late */
    bool stop;
};

/* No destructors, no atexit: they would wait for the device. With the lock held, so that what
 * late() looks at stays while it does: a step that ends just now waits in td_watch_end(). */
static void end_process(const td_watch *w, td_usec now)
{
    char who[TD_WATCH_LATE_SIZE] = "unknown";

    if (now >= w->leave_at) {
        td_logerr("exit_hangs", "exit=%d what=\"the way out did not end in time\"", w->leave_code);
        _exit(w->leave_code);
    }
    if (w->late != NULL)
        w->late(w->ctx, who, sizeof who);
    td_logerr("step_hangs",
              "exit=%d step=%s n=%d after_ms=%lld timeout_ms=%lld late=\"%s\" "
              "what=\"the step did not end in time\"",
              TD_EXIT_HANG, w->what, w->n, (long long)((now - w->began) / TD_USEC_PER_MSEC),
              (long long)(w->allowed / TD_USEC_PER_MSEC), who);
    _exit(TD_EXIT_HANG);
}

/* A watch that comes late itself by a good part of what a step may take was not running: the
 * process was stopped, or the machine. The step was not either, so it gets its time again. */
static void forgive_a_pause(td_watch *w, td_usec now)
{
    td_usec late_us = now - w->look_at;

    if (w->began == 0 || w->timeout == 0 || w->look_at == TD_USEC_NEVER || late_us < w->timeout / 4)
        return;
    td_warn("paused", "step=%s n=%d ms=%lld what=\"this process did not run\"", w->what, w->n,
            (long long)(late_us / TD_USEC_PER_MSEC));
    w->began = now;
}

static void *watch_main(void *arg)
{
    td_watch *w = arg;

    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        td_usec now = td_now_us();
        bool hangs;

        forgive_a_pause(w, now);
        hangs = w->began != 0 && w->timeout > 0 && now - w->began >= w->allowed;

        if (hangs || now >= w->leave_at)
            end_process(w, now);
        /* A step that begins after this look ends its time after the next one at the earliest. */
        w->look_at = w->timeout > 0 ? now + w->timeout : TD_USEC_NEVER;
        if (w->timeout > 0 && w->began != 0 && w->began + w->allowed < w->look_at)
            w->look_at = w->began + w->allowed;
        if (w->leave_at < w->look_at)
            w->look_at = w->leave_at;
        if (w->look_at == TD_USEC_NEVER) {
            pthread_cond_wait(&w->changed, &w->lock);
        } else {
            struct timespec until = td_timespec(w->look_at);

            pthread_cond_timedwait(&w->changed, &w->lock, &until);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

td_status td_watch_start(int64_t timeout_ms, td_watch **out, td_error *err)
{
    td_watch *w = calloc(1, sizeof *w);
    pthread_condattr_t attr;

    if (w == NULL)
        return td_fail(err, TD_NOMEM, "watch: no memory");
    w->timeout = timeout_ms * TD_USEC_PER_MSEC;
    w->leave_at = TD_USEC_NEVER;
    w->look_at = td_now_us();
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return td_fail(err, TD_NOMEM, "watch: no thread");
    }
    *out = w;
    return TD_OK;
}

void td_watch_stop(td_watch *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void td_watch_ask(td_watch *w, td_watch_late_fn fn, const void *ctx)
{
    pthread_mutex_lock(&w->lock);
    w->late = fn;
    w->ctx = ctx;
    pthread_mutex_unlock(&w->lock);
}

static void begin(td_watch *w, const char *what, int32_t n, td_usec allowed)
{
    pthread_mutex_lock(&w->lock);
    w->began = td_now_us();
    w->allowed = allowed;
    w->what = what;
    w->n = n;
    pthread_mutex_unlock(&w->lock);
}

void td_watch_begin(td_watch *w, const char *what, int32_t n)
{
    begin(w, what, n, w->timeout);
}

void td_watch_begin_first(td_watch *w, const char *what, int32_t n)
{
    begin(w, what, n, w->timeout > FIRST_US ? w->timeout : FIRST_US);
}

void td_watch_end(td_watch *w)
{
    pthread_mutex_lock(&w->lock);
    w->began = 0;
    pthread_mutex_unlock(&w->lock);
}

void td_watch_leave(td_watch *w, int64_t ms, int exit_code)
{
    td_usec at = td_now_us() + ms * TD_USEC_PER_MSEC;

    pthread_mutex_lock(&w->lock);
    if (at < w->leave_at)
        w->leave_at = at;
    w->leave_code = exit_code;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}
