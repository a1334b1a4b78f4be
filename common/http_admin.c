#include "common/http_admin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/http_server.h"
#include "common/log.h"
#include "common/loop.h"

struct td_http_admin {
    td_loop *loop;
    td_http_server *server;
    td_metrics *metrics;
    td_ready_fn ready;
    void *arg;
    uint16_t port;
    pthread_t thread;
};

static void answer_ready(td_http_admin *a, td_http_request *req)
{
    td_buf why = {0};

    if (a->ready == NULL || a->ready(a->arg, &why))
        td_http_reply(req, 200, "text/plain; charset=utf-8", "ready\n", 6, NULL);
    else
        td_http_error(req, 503, "server_error", why.len > 0 ? why.ptr : "not ready", NULL,
                      "not_ready", NULL);
    td_buf_free(&why);
}

static void answer_metrics(td_http_admin *a, td_http_request *req)
{
    td_buf text = {0};

    td_metrics_write(a->metrics, &text);
    if (text.oom)
        td_http_error(req, 503, "server_error", "no memory for the metrics", NULL, NULL, NULL);
    else
        td_http_reply(req, 200, TD_METRICS_CONTENT_TYPE, text.ptr, text.len, NULL);
    td_buf_free(&text);
}

static void on_request(td_http_request *req, void *arg)
{
    td_http_admin *a = arg;
    const char *path = td_http_request_path(req);
    td_http_method m = td_http_request_method(req);
    bool health = strcmp(path, "/health") == 0, ready = strcmp(path, "/ready") == 0;
    bool metrics = strcmp(path, "/metrics") == 0;

    if (!health && !ready && !metrics)
        td_http_error(req, 404, "invalid_request_error",
                      "not found: there are /health, /ready and /metrics", NULL, NULL, NULL);
    else if (m != TD_HTTP_GET && m != TD_HTTP_HEAD)
        td_http_error(req, 405, "invalid_request_error", "use GET", NULL, NULL,
                      TD_HEADERS({"Allow", "GET, HEAD"}));
    else if (health)
        td_http_reply(req, 200, "text/plain; charset=utf-8", "ok\n", 3, NULL);
    else if (ready)
        answer_ready(a, req);
    else
        answer_metrics(a, req);
}

static void *run(void *arg)
{
    td_http_admin *a = arg;
    td_error err = {0};

    if (td_loop_run(a->loop, &err) != TD_OK)
        td_logerr("http_admin_failed", "error=\"%s\"", err.text);
    return NULL;
}

static void admin_free(td_http_admin *a)
{
    td_http_server_free(a->server);
    td_loop_free(a->loop);
    free(a);
}

td_status td_http_admin_start(const char *listen, td_metrics *metrics, td_ready_fn ready, void *arg,
                              td_http_admin **out, td_error *err)
{
    td_http_admin *a = calloc(1, sizeof *a);
    td_http_options options = {.listen = listen,
                               .max_body_bytes = 4096, /* none of the three wants a body */
                               .max_header_bytes = 16 << 10,
                               .read_timeout_us = 10 * TD_USEC_PER_SEC,
                               .on_request = on_request,
                               .arg = a};
    td_status st;

    if (a == NULL)
        return td_fail(err, TD_NOMEM, "no memory for the admin server");
    a->metrics = metrics;
    a->ready = ready;
    a->arg = arg;
    st = td_loop_create(&a->loop, err);
    if (st == TD_OK)
        st = td_http_server_create(a->loop, &options, &a->server, err);
    if (st != TD_OK) {
        admin_free(a);
        return st;
    }
    a->port = td_http_server_port(a->server);
    if (pthread_create(&a->thread, NULL, run, a) != 0) {
        admin_free(a);
        return td_fail(err, TD_NOMEM, "no thread for the admin server");
    }
    *out = a;
    return TD_OK;
}

uint16_t td_http_admin_port(const td_http_admin *a)
{
    return a->port;
}

void td_http_admin_stop(td_http_admin *a)
{
    if (a == NULL)
        return;
    td_loop_stop(a->loop);
    pthread_join(a->thread, NULL);
    admin_free(a);
}
