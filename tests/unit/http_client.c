#define _GNU_SOURCE /* memmem */
#include "tests/unit/http_client.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/clock.h"

client client_connect(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    client c = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(c.fd >= 0);
    if (connect(c.fd, (struct sockaddr *)&to, sizeof to) != 0)
        fail_msg("connect to port %u: %s", port, strerror(errno));
    return c;
}

void client_close(client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    td_buf_free(&c->in);
}

/* false: the deadline has passed. */
static bool wait_ready(int fd, short events, td_usec deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    td_usec left = deadline - td_now_us();
    int rc;

    do {
        rc = poll(&p, 1, left > 0 ? (int)(left / 1000) + 1 : 0);
    } while (rc < 0 && errno == EINTR);
    return rc > 0;
}

static td_usec deadline_from_now(void)
{
    return td_now_us() + CLIENT_DEADLINE_MS * TD_USEC_PER_MSEC;
}

size_t client_try_send(client *c, const char *bytes, size_t n)
{
    td_usec deadline = deadline_from_now();
    size_t sent = 0;

    while (sent < n) {
        ssize_t k;

        if (!wait_ready(c->fd, POLLOUT, deadline))
            break;
        k = send(c->fd, bytes + sent, n - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno != EAGAIN)
            break;
        sent += k > 0 ? (size_t)k : 0;
    }
    return sent;
}

size_t client_try_send_now(client *c, const char *bytes, size_t n)
{
    ssize_t k = send(c->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);

    return k > 0 ? (size_t)k : 0;
}

void client_send(client *c, const char *bytes, size_t n)
{
    assert_int_equal(client_try_send(c, bytes, n), n);
}

void client_say(client *c, const char *text)
{
    client_send(c, text, strlen(text));
}

/* One read into c->in; false at the end of the connection, however it ended. */
static bool client_more(client *c, td_usec deadline)
{
    char block[16384];
    ssize_t n;

    if (!wait_ready(c->fd, POLLIN, deadline))
        fail_msg("nothing came for %d ms; so far: %.300s", CLIENT_DEADLINE_MS,
                 c->in.ptr ? c->in.ptr : "");
    n = recv(c->fd, block, sizeof block, 0);
    if (n <= 0)
        return false;
    td_buf_add(&c->in, block, (size_t)n);
    return true;
}

static void client_consume(client *c, size_t n)
{
    memmove(c->in.ptr, c->in.ptr + n, c->in.len - n);
    c->in.len -= n;
    c->in.ptr[c->in.len] = '\0';
}

bool client_await(client *c, const char *text)
{
    td_usec deadline = deadline_from_now();

    while (c->in.len == 0 || memmem(c->in.ptr, c->in.len, text, strlen(text)) == NULL) {
        if (!client_more(c, deadline))
            return false;
    }
    return true;
}

void client_await_end(client *c)
{
    td_usec deadline = deadline_from_now();

    while (client_more(c, deadline))
        continue;
}

const char *response_header(const response *r, const char *name)
{
    static char value[8192];
    size_t n = strlen(name);

    for (const char *line = strstr(r->head.ptr, "\r\n"); line != NULL;
         line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) == 0 && strncmp(line + n, ": ", 2) == 0) {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line + n + 2, "\r"), line + n + 2);
            return value;
        }
    }
    return NULL;
}

/* n bytes of c->in to the body; cut when they do not come. */
static void take(client *c, response *r, size_t n, td_usec deadline)
{
    while (c->in.len < n) {
        if (!client_more(c, deadline)) {
            r->cut = true;
            n = c->in.len;
        }
    }
    if (n > 0) {
        td_buf_add(&r->body, c->in.ptr, n);
        client_consume(c, n);
    }
}

static void take_chunks(client *c, response *r, td_usec deadline)
{
    while (!r->cut) {
        size_t size;

        if (!client_await(c, "\r\n")) {
            r->cut = true;
            return;
        }
        size = strtoul(c->in.ptr, NULL, 16);
        client_consume(c, (size_t)(strstr(c->in.ptr, "\r\n") - c->in.ptr) + 2);
        take(c, r, size + 2, deadline);
        if (!r->cut)
            r->body.len -= 2; /* the chunk's own line end */
        if (size == 0)
            return;
    }
}

response client_read(client *c, bool has_body)
{
    td_usec deadline = deadline_from_now();
    response r = {0};
    const char *end, *length;

    if (!client_await(c, "\r\n\r\n"))
        fail_msg("the connection ended without a response: %.300s", c->in.ptr ? c->in.ptr : "");
    end = strstr(c->in.ptr, "\r\n\r\n") + 4;
    td_buf_add(&r.head, c->in.ptr, (size_t)(end - c->in.ptr));
    client_consume(c, (size_t)(end - c->in.ptr));
    assert_int_equal(sscanf(r.head.ptr, "HTTP/%*d.%*d %d", &r.status), 1);
    td_buf_str(&r.body, "");
    if (!has_body || r.status == 100)
        return r;
    length = response_header(&r, "Content-Length");
    if (length != NULL) {
        take(c, &r, strtoul(length, NULL, 10), deadline);
    } else if (response_header(&r, "Transfer-Encoding") != NULL) {
        take_chunks(c, &r, deadline);
    } else {
        client_await_end(c);
        take(c, &r, c->in.len, deadline);
    }
    if (r.body.ptr != NULL)
        r.body.ptr[r.body.len] = '\0';
    return r;
}

response client_ask(client *c, const char *request)
{
    client_say(c, request);
    return client_read(c, strncmp(request, "HEAD ", 5) != 0);
}

void response_free(response *r)
{
    td_buf_free(&r->head);
    td_buf_free(&r->body);
}
