/* A libevent base that only its own thread touches, so libevent runs without locks. The one door
 * for other threads is a list of tasks under a mutex, with an eventfd that makes the loop look at
 * it; the list was empty before means the eventfd must be written, else it has been already. */
#include "common/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/event_struct.h>

#include "common/log.h"
#include "common/loop_internal.h"

enum { MAX_SIGNALS = 4 };

typedef struct signal_watch {
    struct event ev;
    td_loop_fn fn;
    void *arg;
} signal_watch;

struct td_loop {
    struct event_base *base;
    struct event wake_ev;
    int wake_fd;
    pthread_mutex_t lock; /* guards the next four, and task.next and task.queued of queued tasks */
    td_loop_task *head, **tail;
    bool stopped; /* no more tasks are taken */
    bool running;
    pthread_t thread; /* while running */
    signal_watch signals[MAX_SIGNALS];
    size_t n_signals;
};

/* A td_loop_post(): a task that frees itself. */
typedef struct posted {
    td_loop_task task;
    td_loop_fn fn;
    void *arg;
} posted;

static void run_posted(void *arg)
{
    posted *p = arg;
    td_loop_fn fn = p->fn;
    void *fn_arg = p->arg;

    free(p);
    fn(fn_arg);
}

static void on_libevent_log(int severity, const char *text)
{
    if (severity == EVENT_LOG_DEBUG)
        td_debug("libevent", "text=\"%s\"", text);
    else
        td_warn("libevent", "text=\"%s\"", text);
}

static void set_up_process(void)
{
    event_set_log_callback(on_libevent_log);
    /* A client that hangs up while we write is an error code, not the death of the process. */
    signal(SIGPIPE, SIG_IGN);
}

static void wake(td_loop *loop)
{
    uint64_t one = 1;

    /* Fails only when the counter is at its top, and then the loop is to be woken already. */
    if (write(loop->wake_fd, &one, sizeof one) < 0)
        return;
}

/* Take the tasks that are queued now; those that come meanwhile have written the eventfd anew, so
 * sockets get their turn between two rounds. */
static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    td_loop *loop = arg;
    td_loop_task *task, *next;
    bool stop;
    uint64_t n;

    (void)what;
    if (read(fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&loop->lock);
    task = loop->head;
    loop->head = NULL;
    loop->tail = &loop->head;
    stop = loop->stopped; /* no task can follow this list then */
    pthread_mutex_unlock(&loop->lock);
    for (; task != NULL; task = next) {
        td_loop_fn fn;
        void *fn_arg;

        /* Read out first: from `queued = false` on, the owner may post it again or free it. */
        pthread_mutex_lock(&loop->lock);
        next = task->next;
        fn = task->fn;
        fn_arg = task->arg;
        task->queued = false;
        pthread_mutex_unlock(&loop->lock);
        fn(fn_arg);
    }
    if (stop)
        event_base_loopbreak(loop->base);
}

td_status td_loop_create(td_loop **out, td_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct event_config *config;
    td_loop *loop;

    pthread_once(&once, set_up_process);
    loop = calloc(1, sizeof *loop);
    if (loop == NULL)
        return td_fail(err, TD_NOMEM, "no memory for an event loop");
    loop->tail = &loop->head;
    pthread_mutex_init(&loop->lock, NULL);
    loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->wake_fd < 0) {
        td_status st = td_fail(err, TD_IO, "event loop: eventfd: %s", strerror(errno));

        td_loop_free(loop);
        return st;
    }
    config = event_config_new();
    if (config != NULL) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_PRECISE_TIMER);
        loop->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    if (loop->base == NULL ||
        event_assign(&loop->wake_ev, loop->base, loop->wake_fd, EV_READ | EV_PERSIST, on_wake,
                     loop) != 0 ||
        event_add(&loop->wake_ev, NULL) != 0) {
        td_loop_free(loop);
        return td_fail(err, TD_NOMEM, "no memory or no epoll for an event loop");
    }
    *out = loop;
    return TD_OK;
}

void td_loop_free(td_loop *loop)
{
    td_loop_task *next;

    if (loop == NULL)
        return;
    td_assert(!loop->running);
    for (size_t i = 0; i < loop->n_signals; i++)
        event_del(&loop->signals[i].ev);
    for (td_loop_task *t = loop->head; t != NULL; t = next) {
        next = t->next;
        t->queued = false;
        if (t->fn == run_posted)
            free(t->arg);
    }
    if (loop->base != NULL) {
        if (event_initialized(&loop->wake_ev))
            event_del(&loop->wake_ev);
        event_base_free(loop->base);
    }
    if (loop->wake_fd >= 0)
        close(loop->wake_fd);
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

td_status td_loop_run(td_loop *loop, td_error *err)
{
    int rc;

    pthread_mutex_lock(&loop->lock);
    loop->thread = pthread_self();
    loop->running = true;
    pthread_mutex_unlock(&loop->lock);
    rc = event_base_loop(loop->base, EVLOOP_NO_EXIT_ON_EMPTY);
    pthread_mutex_lock(&loop->lock);
    loop->running = false;
    pthread_mutex_unlock(&loop->lock);
    return rc < 0 ? td_fail(err, TD_INTERNAL, "event loop: epoll failed: %s", strerror(errno))
                  : TD_OK;
}

void td_loop_stop(td_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->stopped = true;
    pthread_mutex_unlock(&loop->lock);
    wake(loop);
}

bool td_loop_post_task(td_loop *loop, td_loop_task *task)
{
    bool taken, first = false;

    pthread_mutex_lock(&loop->lock);
    taken = !loop->stopped;
    if (taken && !task->queued) {
        first = loop->head == NULL;
        task->queued = true;
        task->next = NULL;
        *loop->tail = task;
        loop->tail = &task->next;
    }
    pthread_mutex_unlock(&loop->lock);
    if (first)
        wake(loop);
    return taken;
}

bool td_loop_post(td_loop *loop, td_loop_fn fn, void *arg)
{
    posted *p = malloc(sizeof *p);

    if (p == NULL)
        return false;
    *p = (posted){.task = {.fn = run_posted, .arg = p}, .fn = fn, .arg = arg};
    if (!td_loop_post_task(loop, &p->task)) {
        free(p);
        return false;
    }
    return true;
}

bool td_loop_here(const td_loop *loop)
{
    td_loop *l = (td_loop *)loop; /* the lock is no part of what const promises */
    bool here;

    pthread_mutex_lock(&l->lock);
    here = !l->running || pthread_equal(l->thread, pthread_self());
    pthread_mutex_unlock(&l->lock);
    return here;
}

struct event_base *td_loop_base(td_loop *loop)
{
    return loop->base;
}

struct td_timer {
    struct event ev;
    td_loop_fn fn;
    void *arg;
    td_usec deadline;
};

/* libevent counts from its cached "now", which may be older than ours: look before firing. */
static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    td_timer *t = arg;

    (void)fd;
    (void)what;
    if (td_now_us() < t->deadline)
        td_timer_at(t, t->deadline);
    else
        t->fn(t->arg);
}

td_timer *td_timer_create(td_loop *loop, td_loop_fn fn, void *arg)
{
    td_timer *t = calloc(1, sizeof *t);

    if (t == NULL)
        return NULL;
    t->fn = fn;
    t->arg = arg;
    evtimer_assign(&t->ev, loop->base, on_timer, t);
    return t;
}

void td_timer_at(td_timer *t, td_usec deadline)
{
    td_usec wait;
    struct timeval tv;

    t->deadline = deadline;
    if (deadline == TD_USEC_NEVER) {
        evtimer_del(&t->ev);
        return;
    }
    wait = deadline - td_now_us();
    if (wait < 0)
        wait = 0;
    tv = (struct timeval){.tv_sec = (time_t)(wait / 1000000), .tv_usec = wait % 1000000};
    evtimer_add(&t->ev, &tv);
}

void td_timer_in(td_timer *t, td_usec delay)
{
    td_usec now = td_now_us();

    td_timer_at(t, delay >= TD_USEC_NEVER - now ? TD_USEC_NEVER : now + delay);
}

void td_timer_stop(td_timer *t)
{
    evtimer_del(&t->ev);
}

void td_timer_free(td_timer *t)
{
    if (t == NULL)
        return;
    evtimer_del(&t->ev);
    free(t);
}

struct td_watch {
    struct event ev;
    td_watch_fn fn;
    void *arg;
};

static void on_watch(evutil_socket_t fd, short what, void *arg)
{
    td_watch *w = arg;

    (void)fd;
    w->fn(w->arg, (what & EV_READ ? TD_READABLE : 0u) | (what & EV_WRITE ? TD_WRITABLE : 0u));
}

td_watch *td_watch_create(td_loop *loop, int fd, unsigned what, td_watch_fn fn, void *arg)
{
    td_watch *w = calloc(1, sizeof *w);
    short ev = (short)(EV_PERSIST | (what & TD_READABLE ? EV_READ : 0) |
                       (what & TD_WRITABLE ? EV_WRITE : 0));

    if (w == NULL)
        return NULL;
    w->fn = fn;
    w->arg = arg;
    if (event_assign(&w->ev, loop->base, fd, ev, on_watch, w) != 0 ||
        event_add(&w->ev, NULL) != 0) {
        free(w);
        return NULL;
    }
    return w;
}

void td_watch_free(td_watch *w)
{
    if (w == NULL)
        return;
    event_del(&w->ev);
    free(w);
}

static void on_signal(evutil_socket_t signo, short what, void *arg)
{
    signal_watch *s = arg;

    (void)signo;
    (void)what;
    s->fn(s->arg);
}

/* What stands under libevent's handler, and is there again when its event is deleted. The default
 * would be the end of a process that is doing nothing but ending as it was asked to. */
static volatile sig_atomic_t early[NSIG];

static void on_early(int signo)
{
    early[signo] = 1;
}

td_status td_loop_on_signal(td_loop *loop, int signo, td_loop_fn fn, void *arg, td_error *err)
{
    signal_watch *s = &loop->signals[loop->n_signals];
    struct sigaction sa = {.sa_handler = on_early, .sa_flags = SA_RESTART};

    td_assert(loop->n_signals < MAX_SIGNALS);
    td_assert(signo > 0 && signo < NSIG);
    s->fn = fn;
    s->arg = arg;
    early[signo] = 0;
    sigfillset(&sa.sa_mask);
    if (sigaction(signo, &sa, NULL) != 0 ||
        evsignal_assign(&s->ev, loop->base, signo, on_signal, s) != 0 ||
        evsignal_add(&s->ev, NULL) != 0)
        return td_fail(err, TD_IO, "signal %d (%s) cannot be watched", signo, strsignal(signo));
    loop->n_signals++;
    if (early[signo] != 0) /* it came between the two handlers */
        event_active(&s->ev, EV_SIGNAL, 1);
    return TD_OK;
}
