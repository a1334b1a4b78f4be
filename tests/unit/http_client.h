/* A client over a raw blocking socket, for tests of servers: it sends exactly the bytes it is told,
 * and every wait has a deadline, after which the test fails. */
#ifndef TANDEM_TESTS_HTTP_CLIENT_H
#define TANDEM_TESTS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

enum { CLIENT_DEADLINE_MS = 20000 }; /* generous: sanitizers on a busy machine */

typedef struct client {
    int fd;
    td_buf in; /* received and not yet consumed */
} client;

typedef struct response {
    int status;
    bool cut;    /* the connection ended before the body did */
    td_buf head; /* with its blank line */
    td_buf body; /* chunks joined */
} response;

client client_connect(uint16_t port);
void client_close(client *c);
void client_send(client *c, const char *bytes, size_t n); /* all of them, or the test fails */
void client_say(client *c, const char *text);
/* Send what is possible; the number of bytes taken before an error or the deadline. */
size_t client_try_send(client *c, const char *bytes, size_t n);

/* What the kernel takes without waiting. */
size_t client_try_send_now(client *c, const char *bytes, size_t n);

/* Wait until text is in c->in; false when the connection ends first. */
bool client_await(client *c, const char *text);
/* Wait for the end of the connection; bytes before it are kept in c->in. */
void client_await_end(client *c);

/* Read one response. has_body false for the answer to a HEAD. Free with response_free(). */
response client_read(client *c, bool has_body);
response client_ask(client *c, const char *request); /* say and read */
void response_free(response *r);
/* The value of a header of r, in a buffer good until the next call; NULL if absent. */
const char *response_header(const response *r, const char *name);

#endif
