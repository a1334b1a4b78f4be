#define _GNU_SOURCE /* pthread_setname_np */
#include "common/rpc_service.h"

#include <pthread.h>
#include <string.h>

#include <utlist.h>

#include "common/log.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;  /* something is due earlier than was known */
    pthread_cond_t ended; /* a tick has */
    rpc_service_entry *entries;
    rpc_service_entry *ticking;
    bool running;
} service = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

/* The entry that is due, or NULL and when the next one is. Lock held. */
static rpc_service_entry *service_next(td_usec now, td_usec *next_due)
{
    rpc_service_entry *e;

    *next_due = TD_USEC_NEVER;
    DL_FOREACH(service.entries, e)
    {
        if (e->due <= now)
            return e;
        if (e->due < *next_due)
            *next_due = e->due;
    }
    return NULL;
}

static void *service_main(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "td:rpc");
    pthread_mutex_lock(&service.lock);
    for (;;) {
        td_usec next_due;
        rpc_service_entry *e = service_next(td_now_us(), &next_due);

        if (e != NULL) {
            e->due = TD_USEC_NEVER;
            DL_DELETE(service.entries, e); /* to the end: no entry starves the others */
            DL_APPEND(service.entries, e);
            service.ticking = e;
            pthread_mutex_unlock(&service.lock);
            e->tick(e);
            pthread_mutex_lock(&service.lock);
            service.ticking = NULL;
            pthread_cond_broadcast(&service.ended);
        } else if (next_due == TD_USEC_NEVER) {
            pthread_cond_wait(&service.wake, &service.lock);
        } else {
            struct timespec until = td_timespec(next_due);

            pthread_cond_timedwait(&service.wake, &service.lock, &until);
        }
    }
    return NULL;
}

/* Lock held. The thread is never ended: it sleeps while there is nothing to do. */
static int service_start(void)
{
    pthread_condattr_t monotonic;
    pthread_attr_t detached;
    pthread_t thread;
    int rv;

    if (service.running)
        return 0;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&service.wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    rv = pthread_create(&thread, &detached, service_main, NULL);
    pthread_attr_destroy(&detached);
    service.running = rv == 0;
    return rv;
}

td_status rpc_service_add(rpc_service_entry *entry, td_error *err)
{
    int rv;

    pthread_mutex_lock(&service.lock);
    rv = service_start();
    if (rv == 0) {
        entry->due = TD_USEC_NEVER;
        entry->added = true;
        DL_APPEND(service.entries, entry);
    }
    pthread_mutex_unlock(&service.lock);
    return rv == 0 ? TD_OK : td_fail(err, TD_NOMEM, "rpc service thread: %s", strerror(rv));
}

void rpc_service_due(rpc_service_entry *entry, td_usec at)
{
    pthread_mutex_lock(&service.lock);
    if (entry->added && at < entry->due) {
        entry->due = at;
        pthread_cond_signal(&service.wake);
    }
    pthread_mutex_unlock(&service.lock);
}

void rpc_service_remove(rpc_service_entry *entry)
{
    pthread_mutex_lock(&service.lock);
    if (entry->added) {
        while (service.ticking == entry)
            pthread_cond_wait(&service.ended, &service.lock);
        DL_DELETE(service.entries, entry);
        entry->added = false;
    }
    pthread_mutex_unlock(&service.lock);
}

static _Thread_local int callback_depth;

void rpc_callback_enter(void)
{
    callback_depth++;
}

void rpc_callback_leave(void)
{
    callback_depth--;
}

void rpc_not_in_callback(const char *function)
{
    if (callback_depth == 0)
        return;
    td_logerr("rpc_blocking_call_in_callback", "function=%s", function);
    td_assert(callback_depth == 0);
}
