/* A ring that grows, under one mutex, and an eventfd that says whether it is empty.
 *
 * Invariant, whenever the lock is free: the eventfd is readable if and only if the ring holds
 * something or the mailbox is closed. So it is written when the first message comes and read when
 * the last one goes: two system calls a batch, not a message. */
#define _GNU_SOURCE /* ppoll */
#include "common/mailbox.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FIRST_CAP = 64 };

struct td_mailbox {
    size_t msg_bytes, max_messages;
    td_mailbox_drop_fn drop;
    void *user;
    int fd;
    pthread_mutex_t lock; /* of all below */
    char *ring;           /* cap messages; the oldest is at `first` */
    size_t cap, first, len;
    bool closed;
};

td_status td_mailbox_create(size_t msg_bytes, size_t max_messages, td_mailbox_drop_fn drop,
                            void *user, td_mailbox **out, td_error *err)
{
    td_mailbox *m = calloc(1, sizeof *m);

    td_assert(msg_bytes > 0);
    if (m == NULL)
        return td_fail(err, TD_NOMEM, "mailbox: no memory for its header");
    m->msg_bytes = msg_bytes;
    m->max_messages = max_messages;
    m->drop = drop;
    m->user = user;
    m->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (m->fd < 0) {
        td_fail(err, TD_IO, "mailbox: eventfd: %s", strerror(errno));
        free(m);
        return TD_IO;
    }
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return TD_OK;
}

void td_mailbox_free(td_mailbox *m)
{
    if (m == NULL)
        return;
    while (m->drop != NULL && m->len > 0) {
        m->drop(m->user, m->ring + m->first * m->msg_bytes);
        m->first = (m->first + 1) % m->cap;
        m->len--;
    }
    close(m->fd);
    pthread_mutex_destroy(&m->lock);
    free(m->ring);
    free(m);
}

/* Cannot fail or block: the counter only ever goes between 0 and 1. */
static void mailbox_set_readable(td_mailbox *m, bool readable)
{
    uint64_t v = 1;
    ssize_t n = readable ? write(m->fd, &v, sizeof v) : read(m->fd, &v, sizeof v);

    td_assert(n == sizeof v);
}

static bool mailbox_grow(td_mailbox *m)
{
    size_t cap = m->cap == 0 ? FIRST_CAP : m->cap * 2, tail;
    char *ring;

    if (cap > SIZE_MAX / 2 / m->msg_bytes)
        return false;
    ring = malloc(cap * m->msg_bytes);
    if (ring == NULL)
        return false;
    if (m->len > 0) {
        tail = m->cap - m->first;
        memcpy(ring, m->ring + m->first * m->msg_bytes, tail * m->msg_bytes);
        memcpy(ring + tail * m->msg_bytes, m->ring, m->first * m->msg_bytes);
    }
    free(m->ring);
    m->ring = ring;
    m->cap = cap;
    m->first = 0;
    return true;
}

td_status td_mailbox_post(td_mailbox *m, const void *msg)
{
    td_status st = TD_OK;

    pthread_mutex_lock(&m->lock);
    if (m->closed) {
        st = TD_CANCELED;
    } else if (m->max_messages > 0 && m->len >= m->max_messages) {
        st = TD_BUSY;
    } else if (m->len == m->cap && !mailbox_grow(m)) {
        st = TD_NOMEM;
    } else {
        memcpy(m->ring + (m->first + m->len) % m->cap * m->msg_bytes, msg, m->msg_bytes);
        if (m->len++ == 0)
            mailbox_set_readable(m, true);
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

size_t td_mailbox_take(td_mailbox *m, void *out, size_t cap)
{
    size_t n, run;

    pthread_mutex_lock(&m->lock);
    n = m->len < cap ? m->len : cap;
    if (n > 0) {
        run = m->cap - m->first < n ? m->cap - m->first : n;
        memcpy(out, m->ring + m->first * m->msg_bytes, run * m->msg_bytes);
        memcpy((char *)out + run * m->msg_bytes, m->ring, (n - run) * m->msg_bytes);
        m->first = (m->first + n) % m->cap;
        m->len -= n;
        if (m->len == 0 && !m->closed)
            mailbox_set_readable(m, false);
    }
    pthread_mutex_unlock(&m->lock);
    return n;
}

td_status td_mailbox_wait(td_mailbox *m, td_usec deadline)
{
    for (;;) {
        struct pollfd p = {.fd = m->fd, .events = POLLIN};
        struct timespec rest, *timeout = NULL;
        bool closed, empty;
        int n;

        pthread_mutex_lock(&m->lock);
        closed = m->closed;
        empty = m->len == 0;
        pthread_mutex_unlock(&m->lock);
        if (!empty)
            return TD_OK;
        if (closed)
            return TD_CANCELED;
        if (deadline != TD_USEC_NEVER) {
            td_usec left = deadline - td_now_us();

            if (left <= 0)
                return TD_DEADLINE;
            rest = (struct timespec){left / TD_USEC_PER_SEC, left % TD_USEC_PER_SEC * 1000};
            timeout = &rest;
        }
        n = ppoll(&p, 1, timeout, NULL);
        td_assert(n >= 0 || errno == EINTR);
    }
}

int td_mailbox_fd(const td_mailbox *m)
{
    return m->fd;
}

void td_mailbox_close(td_mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    if (!m->closed) {
        m->closed = true;
        if (m->len == 0)
            mailbox_set_readable(m, true);
    }
    pthread_mutex_unlock(&m->lock);
}
