/* From evhttp's request to ours: the checks that evhttp leaves out, and the view that a program
 * gets.
 *
 * evhttp takes what it understands of a head and skips the rest, so two readers of one byte stream
 * (a proxy and us) could disagree on where a request ends; what the proxy took for a body would be
 * our next request. Any head that leaves room for that is refused, and the connection closed before
 * another request is read from it. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>

#include "common/http_internal.h"

/* RFC 9110, 5.6.2: what names of headers are made of. */
static bool is_token(const char *s)
{
    if (*s == '\0')
        return false;
    for (; *s != '\0'; s++) {
        if (!isalnum((unsigned char)*s) && strchr("!#$%&'*+-.^_`|~", *s) == NULL)
            return false;
    }
    return true;
}

/* Why this head may mean another end of the request, or another sender, to somebody else; NULL when
 * it may not. */
static const char *framing_fault(struct evhttp_request *ev)
{
    const struct evkeyval *h;
    const char *length = NULL;
    int n_length = 0, n_coding = 0, n_host = 0, n_key = 0;

    TAILQ_FOREACH(h, evhttp_request_get_input_headers(ev), next)
    {
        if (!is_token(h->key))
            return "a header name holds characters that it must not";
        for (const char *c = h->value; *c != '\0'; c++) {
            if ((unsigned char)*c < 0x20 && *c != '\t')
                return "a header value holds control characters";
        }
        if (strcasecmp(h->key, "Content-Length") == 0) {
            length = h->value;
            n_length++;
        } else if (strcasecmp(h->key, "Transfer-Encoding") == 0) {
            if (strcasecmp(h->value, "chunked") != 0)
                return "the only Transfer-Encoding served is chunked";
            n_coding++;
        } else if (strcasecmp(h->key, "Host") == 0) {
            n_host++;
        } else if (strcasecmp(h->key, "Authorization") == 0) {
            n_key++;
        }
    }
    if (n_length + n_coding > 1)
        return "Content-Length and Transfer-Encoding: one of them, once";
    if (length != NULL && (*length == '\0' || strspn(length, "0123456789") != strlen(length)))
        return "Content-Length is not a number";
    if (n_coding > 0 && ev->minor == 0)
        return "Transfer-Encoding needs HTTP/1.1";
    /* evhttp does not read the body of a HEAD: it would come up as the next request. */
    if (ev->type == EVHTTP_REQ_HEAD && (n_coding > 0 || (length != NULL && atoll(length) != 0)))
        return "a HEAD request has no body";
    /* Whoever stands before us may have looked at the other one. */
    if (n_key > 1)
        return "Authorization: once";
    if (n_host > 1 || (n_host == 0 && ev->minor > 0))
        return "HTTP/1.1 needs one Host header";
    return NULL;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Split and decode in place. false: what is not a path, or does not decode to text. */
static bool split_path(char *target, char **query)
{
    size_t n = 0, len = strcspn(target, "?#");
    char *end = target + len;
    size_t bad;

    if (*end == '?') {
        *query = end + 1;
        end[1 + strcspn(end + 1, "#")] = '\0';
    } else {
        *query = target + strlen(target);
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)target[i];

        if (c <= 0x20 || c == 0x7f)
            return false;
        if (c == '%') {
            int high = i + 2 < len ? hex(target[i + 1]) : -1;
            int low = i + 2 < len ? hex(target[i + 2]) : -1;

            if (high < 0 || low < 0 || (high == 0 && low == 0))
                return false;
            c = (unsigned char)(high << 4 | low);
            i += 2;
        }
        target[n++] = (char)c;
    }
    if (!td_utf8_valid(target, n, &bad))
        return false;
    /* With no query the two share the final NUL of the target; the path's own comes before it. */
    target[n] = '\0';
    return true;
}

/* The target as sent, or the path and query of an absolute one ("GET http://host/path"). */
static char *target_of(struct evhttp_request *ev)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ev);
    const char *raw = evhttp_request_get_uri(ev), *path, *query;
    td_buf b = {0};

    if (*raw == '/' || uri == NULL || evhttp_uri_get_scheme(uri) == NULL) {
        td_buf_str(&b, raw);
    } else {
        path = evhttp_uri_get_path(uri);
        query = evhttp_uri_get_query(uri);
        td_buf_str(&b, path != NULL && *path != '\0' ? path : "/");
        if (query != NULL)
            td_buf_fmt(&b, "?%s", query);
    }
    td_buf_byte(&b, '\0'); /* room, so that an empty query has its own end behind the path's */
    if (b.oom)
        td_buf_free(&b);
    return b.ptr;
}

void http_request_make_id(td_http_server *s, char out[static 132])
{
    snprintf(out, 132, "%016llx%08llx", (unsigned long long)s->id_base,
             (unsigned long long)s->id_next++);
}

static void take_id(td_http_request *req)
{
    const char *sent = td_http_request_header(req, "x-request-id");
    size_t n = sent ? strlen(sent) : 0;

    if (n >= 1 && n <= 128 &&
        strspn(sent, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n)
        memcpy(req->id, sent, n + 1);
    else
        http_request_make_id(req->conn->server, req->id);
}

/* evhttp's body as one piece, with a NUL behind it for parsers that want one. */
static bool take_body(td_http_request *req)
{
    struct evbuffer *b = evhttp_request_get_input_buffer(req->ev);
    unsigned char *bytes;

    if (evbuffer_add(b, "", 1) != 0)
        return false;
    bytes = evbuffer_pullup(b, -1);
    req->body = (td_slice){(const char *)bytes, evbuffer_get_length(b) - 1};
    return bytes != NULL;
}

static bool take_method(td_http_request *req)
{
    static const struct {
        enum evhttp_cmd_type theirs;
        td_http_method ours;
    } map[] = {
        {EVHTTP_REQ_GET, TD_HTTP_GET},         {EVHTTP_REQ_HEAD, TD_HTTP_HEAD},
        {EVHTTP_REQ_POST, TD_HTTP_POST},       {EVHTTP_REQ_PUT, TD_HTTP_PUT},
        {EVHTTP_REQ_DELETE, TD_HTTP_DELETE},   {EVHTTP_REQ_PATCH, TD_HTTP_PATCH},
        {EVHTTP_REQ_OPTIONS, TD_HTTP_OPTIONS},
    };

    for (size_t i = 0; i < sizeof map / sizeof *map; i++) {
        if (map[i].theirs == evhttp_request_get_command(req->ev)) {
            req->method = map[i].ours;
            return true;
        }
    }
    return false;
}

/* A compressed body would be taken for garbage of another kind, or, were it none, for what it says
 * that it is not. */
static bool body_is_plain(const td_http_request *req)
{
    const char *coding = td_http_request_header(req, "Content-Encoding");

    return coding == NULL || *coding == '\0' || strcasecmp(coding, "identity") == 0;
}

/* evhttp stops reading while a request is with its user, and so would not see the client go. Read
 * on, but without its callback, which takes bytes in this state for a fatal error; they stay in the
 * buffer until the next request is due. */
static void watch_for_close(http_conn *c)
{
    bufferevent_data_cb read_cb, write_cb;
    bufferevent_event_cb event_cb;
    void *arg;

    bufferevent_getcb(c->bev, &read_cb, &write_cb, &event_cb, &arg);
    bufferevent_setcb(c->bev, NULL, write_cb, event_cb, arg);
    bufferevent_enable(c->bev, EV_READ);
}

void http_on_evhttp_request(struct evhttp_request *ev, void *arg)
{
    td_http_server *s = arg;
    struct evhttp_connection *evcon = evhttp_request_get_connection(ev);
    http_conn *c = http_conn_of(s, evcon);
    td_http_request *req = calloc(1, sizeof *req);
    const char *fault;

    /* No memory for our half, now or at the accept; or a connection that is to close, and whose
     * next bytes were in the same round of the loop. */
    if (c == NULL || req == NULL || c->phase == HTTP_CLOSING) {
        free(req);
        evhttp_connection_free(evcon);
        return;
    }
    req->conn = c;
    req->ev = ev;
    c->req = req;
    http_conn_set_phase(c, HTTP_BUSY);
    watch_for_close(c);
    take_id(req);
    req->path = target_of(ev);
    if (req->path == NULL || !take_body(req)) {
        http_refuse(req, 503, "no memory for the request");
        return;
    }
    if (ev->major != 1 || (signed char)ev->minor < 0) { /* a char, without a sign on ARM */
        ev->major = ev->minor = 1;                      /* of the answer */
        http_refuse(req, 505, "only HTTP/1.0 and HTTP/1.1 are served");
        return;
    }
    if (ev->minor > 1)
        ev->minor = 1; /* what is spoken here, and said in the answer */
    if (!take_method(req)) {
        http_refuse(req, 501, "no such method");
        return;
    }
    fault = framing_fault(ev);
    if (fault != NULL) {
        http_refuse(req, 400, fault);
        return;
    }
    if (!body_is_plain(req)) {
        http_refuse(req, 415, "Content-Encoding is not supported: send the body as it is");
        return;
    }
    if ((req->path[0] != '/' && strcmp(req->path, "*") != 0) ||
        !split_path(req->path, &req->query)) {
        http_refuse(req, 400, "the path is malformed");
        return;
    }
    s->options.on_request(req, s->options.arg);
}

void http_request_free(td_http_request *req)
{
    free(req->path);
    free(req);
}

td_http_method td_http_request_method(const td_http_request *req)
{
    return req->method;
}

const char *td_http_method_name(td_http_method m)
{
    static const char *const names[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};

    return (unsigned)m < sizeof names / sizeof *names ? names[m] : "?";
}

const char *td_http_request_path(const td_http_request *req)
{
    return req->path;
}

const char *td_http_request_query(const td_http_request *req)
{
    return req->query;
}

const char *td_http_request_header(const td_http_request *req, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(req->ev), name);
}

td_slice td_http_request_body(const td_http_request *req)
{
    return req->body;
}

const char *td_http_request_id(const td_http_request *req)
{
    return req->id;
}

void td_http_request_on_close(td_http_request *req, td_http_fn fn, void *arg)
{
    req->on_close = fn;
    req->on_close_arg = arg;
}
