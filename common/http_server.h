/* http_server: HTTP/1.1 requests in, replies and streams out, on a td_loop.
 *
 * A request is given to on_request() when it has been read whole (head and body, within the
 * limits), and lives until exactly one of these: td_http_reply() or td_http_error(),
 * td_http_stream_end(), td_http_abort(), or its on_close callback. After that the pointer is dead.
 * A program may answer inside on_request() or any time later; a request is never answered for it.
 *
 * on_close is called at once when the client goes away, whether the reply has begun or not: forget
 * the request, cancel its work. It is not called after the request's end.
 *
 * All calls are made on the loop's thread (checked). To serve on several threads, give each its own
 * loop and server on one port with reuse_port; work from other threads comes in by td_loop_post().
 *
 * The server itself answers what never becomes a request, in the same JSON error shape, and closes
 * the connection: malformed or ambiguous heads (400), bodies over max_body_bytes or badly chunked
 * (413), encoded ones (415), heads over max_header_bytes (431), methods it does not know (501),
 * connections over max_connections where none is idle (503). */
#ifndef TANDEM_COMMON_HTTP_SERVER_H
#define TANDEM_COMMON_HTTP_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/loop.h"
#include "common/metrics.h"
#include "common/status.h"

typedef struct td_http_server td_http_server;
typedef struct td_http_request td_http_request;

typedef enum td_http_method {
    TD_HTTP_GET,
    TD_HTTP_HEAD,
    TD_HTTP_POST,
    TD_HTTP_PUT,
    TD_HTTP_DELETE,
    TD_HTTP_OPTIONS,
    TD_HTTP_PATCH
} td_http_method;

typedef void (*td_http_fn)(td_http_request *req, void *arg);

/* Zero means the default, in brackets. Strings are copied. */
typedef struct td_http_options {
    const char *listen;      /* "127.0.0.1:8000", "0.0.0.0:8000", "[::]:8000"; port 0: pick one */
    size_t max_body_bytes;   /* [4 MiB] */
    size_t max_header_bytes; /* request line and headers together [64 KiB] */
    td_usec read_timeout_us; /* to send a whole request, from its first byte on; also how long a
                              * reply may make no progress [60 s] */
    td_usec idle_timeout_us; /* how long a connection waits for a request [as read_timeout_us] */
    size_t max_connections;  /* one more takes the place of the one that has been idle longest, or
                              * whose request has been coming for longest; where all are busy it is
                              * answered 503 and closed [no bound] */
    bool reuse_port;         /* several listeners on one port, the kernel spreads connections */
    td_http_fn on_request;
    void *arg;             /* for on_request */
    td_gauge *connections; /* open connections; NULL: not counted */
    td_counter *refused;   /* closed for max_connections; NULL: not counted */
} td_http_options;

/* Start to listen. *out is the caller's, to td_http_server_free(). TD_INVALID: the address does not
 * parse; TD_IO: it cannot be listened on; TD_NOMEM. */
TD_MUST_CHECK td_status td_http_server_create(td_loop *loop, const td_http_options *options,
                                              td_http_server **out, td_error *err);

uint16_t td_http_server_port(const td_http_server *s); /* the port in use */

/* Stop accepting, close idle connections, let requests finish (each reply then says Connection:
 * close), and call on_idle(arg) on the loop, once, when no connection is left: never from within
 * this call. How long to wait is the caller's matter: td_http_server_free() ends it. */
void td_http_server_stop(td_http_server *s, td_loop_fn on_idle, void *arg);

/* Close everything now: open requests get their on_close. Before the loop is freed; not from a
 * callback of this server other than on_idle. NULL is fine. */
void td_http_server_free(td_http_server *s);

/* --- What a request says. Slices and strings live as long as it does. --- */

td_http_method td_http_request_method(const td_http_request *req);
const char *td_http_method_name(td_http_method m);
/* Path with %XX decoded ("/v1/models/gpt oss"), without the query. A path that decodes to NUL or
 * to invalid UTF-8 never gets here (400). */
const char *td_http_request_path(const td_http_request *req);
const char *td_http_request_query(const td_http_request *req); /* raw, after '?'; "" if none */
/* A header by name, any case; NULL if absent. Several lines of one name: the first. */
const char *td_http_request_header(const td_http_request *req, const char *name);
td_slice td_http_request_body(const td_http_request *req); /* chunked ones decoded; NUL follows */
/* The client's x-request-id where it sent a usable one (1..128 of [A-Za-z0-9._-]), else one made
 * here. Every reply carries it in x-request-id. */
const char *td_http_request_id(const td_http_request *req);

void td_http_request_on_close(td_http_request *req, td_http_fn fn, void *arg); /* NULL: none */

/* --- Replies --- */

/* A list ends with a NULL name; TD_HEADERS adds that; NULL: none. Copied. Values with a line break
 * are a bug and abort. */
typedef struct td_http_header {
    const char *name;
    const char *value;
} td_http_header;
#define TD_HEADERS(...) ((const td_http_header[]){__VA_ARGS__, {NULL, NULL}})

/* Whole reply; ends the request. bytes are copied. HEAD gets the same head and no body. */
void td_http_reply(td_http_request *req, int status, const char *content_type, const void *bytes,
                   size_t n, const td_http_header *extra);

/* {"error":{"message":...,"type":...,"param":...,"code":...}}, the shape that OpenAI's clients
 * read; ends the request. param and code may be NULL (null). The texts are made valid UTF-8 if they
 * are not. A 405 sets Allow through extra. */
void td_http_error(td_http_request *req, int status, const char *type, const char *message,
                   const char *param, const char *code, const td_http_header *extra);

/* The same body alone, for an error event inside a stream. */
void td_http_error_json(td_buf *b, const char *type, const char *message, const char *param,
                        const char *code);

/* A reply of unknown length: chunked, or until close for HTTP/1.0. Begin once, write any number of
 * times, end (or abort). A write of 0 bytes does nothing. Writes to a HEAD request are dropped. */
void td_http_stream_begin(td_http_request *req, int status, const char *content_type,
                          const td_http_header *extra);
void td_http_stream_write(td_http_request *req, const void *bytes, size_t n);
void td_http_stream_end(td_http_request *req);

/* Bytes accepted from us that the kernel has not taken yet. Writes never block and never fail, so
 * a caller that sees this past its bound (256 KiB) aborts the slow client. */
size_t td_http_stream_pending(const td_http_request *req);

/* End a stream that failed: what was written still goes out, then the connection is closed without
 * the last chunk, so that a client cannot take the body for a whole one. */
void td_http_stream_cut(td_http_request *req);

/* Close the connection now, whatever was said on it; what the kernel has not sent is dropped. For
 * clients that are too slow, and for requests that are not worth an answer. on_close is not called.
 */
void td_http_abort(td_http_request *req);

#endif
