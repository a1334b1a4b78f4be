#include "router/http_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/chat_answer.h"
#include "router/completions.h"
#include "router/openai.h"
#include "router/responses.h"
#include "router/tokenize_api.h"

#ifndef TANDEM_VERSION
#define TANDEM_VERSION "unknown"
#endif

struct http_api {
    router *r;
    td_http_server *server;
    responses_store *responses; /* NULL: none are kept */
};

static void on_chat(http_api *a, td_http_request *req)
{
    td_slice body = td_http_request_body(req);
    char date[16];
    openai_defaults d = router_defaults(a->r, date);
    generation g;
    td_error err = {0};
    td_status st;

    st = openai_parse_chat(body.ptr, body.len, &d, &g, &err);
    if (st == TD_OK)
        st = generation_check_model(g.model, router_model(a->r), &err);
    if (st == TD_OK) {
        chat_answer_start(a->r, req, &g);
        return;
    }
    chat_answer_error(req, &err, 0);
    generation_free(&g);
}

static void on_completion(http_api *a, td_http_request *req)
{
    completions_start(a->r, req);
}

static void on_response(http_api *a, td_http_request *req)
{
    responses_start(a->r, a->responses, req);
}

static void on_tokenize(http_api *a, td_http_request *req)
{
    tokenize_start(a->r, req);
}

static void on_detokenize(http_api *a, td_http_request *req)
{
    detokenize_start(a->r, req);
}

static void add_model(td_buf *b, const router *r)
{
    const registry_model *m = registry_model_of(workers_registry(r->workers));

    td_buf_str(b, "{\"id\":\"");
    td_buf_json(b, m->name, strlen(m->name));
    td_buf_fmt(
        b, "\",\"object\":\"model\",\"created\":0,\"owned_by\":\"tandem\",\"max_model_len\":%d}",
        m->max_positions);
}

static void reply_json(td_http_request *req, td_buf *b)
{
    if (b->oom)
        td_http_error(req, 503, "server_error", "no memory", NULL, NULL, NULL);
    else
        td_http_reply(req, 200, "application/json", b->ptr, b->len, NULL);
    td_buf_free(b);
}

static void on_models(http_api *a, td_http_request *req)
{
    td_buf b = {0};

    td_buf_str(&b, "{\"object\":\"list\",\"data\":[");
    if (router_model(a->r)[0] != '\0')
        add_model(&b, a->r);
    td_buf_str(&b, "]}");
    reply_json(req, &b);
}

static void on_model(http_api *a, td_http_request *req, const char *id)
{
    td_buf b = {0};

    if (router_model(a->r)[0] == '\0' || strcmp(id, router_model(a->r)) != 0) {
        td_http_error(req, 404, "invalid_request_error", "no such model", "model",
                      "model_not_found", NULL);
        return;
    }
    add_model(&b, a->r);
    reply_json(req, &b);
}

static void on_health(http_api *a, td_http_request *req)
{
    (void)a;
    td_http_reply(req, 200, "text/plain", "ok\n", 3, NULL);
}

static void on_ready(http_api *a, td_http_request *req)
{
    const char *why;
    char text[160];
    bool ready = router_ready(a->r, &why);

    snprintf(text, sizeof text, "%s\n", ready ? "ready" : why);
    td_http_reply(req, ready ? 200 : 503, "text/plain", text, strlen(text), NULL);
}

static void on_metrics(http_api *a, td_http_request *req)
{
    td_buf b = {0};

    td_metrics_write(a->r->metrics, &b);
    if (b.oom)
        td_http_error(req, 503, "server_error", "no memory", NULL, NULL, NULL);
    else
        td_http_reply(req, 200, TD_METRICS_CONTENT_TYPE, b.ptr, b.len, NULL);
    td_buf_free(&b);
}

static void on_version(http_api *a, td_http_request *req)
{
    static const char body[] = "{\"version\":\"" TANDEM_VERSION "\"}";

    (void)a;
    td_http_reply(req, 200, "application/json", body, sizeof body - 1, NULL);
}

typedef struct route {
    const char *path;
    td_http_method method; /* GET takes HEAD as well */
    void (*fn)(http_api *a, td_http_request *req);
} route;

static const route routes[] = {
    {"/v1/chat/completions", TD_HTTP_POST, on_chat},
    {"/v1/completions", TD_HTTP_POST, on_completion},
    {"/v1/responses", TD_HTTP_POST, on_response},
    {"/tokenize", TD_HTTP_POST, on_tokenize},
    {"/detokenize", TD_HTTP_POST, on_detokenize},
    {"/v1/models", TD_HTTP_GET, on_models},
    {"/health", TD_HTTP_GET, on_health},
    {"/ready", TD_HTTP_GET, on_ready},
    {"/metrics", TD_HTTP_GET, on_metrics},
    {"/version", TD_HTTP_GET, on_version},
};

static bool method_fits(td_http_method want, td_http_method got)
{
    return want == got || (want == TD_HTTP_GET && got == TD_HTTP_HEAD);
}

static void wrong_method(td_http_request *req, const char *allow)
{
    char text[160];

    snprintf(text, sizeof text, "%.120s takes %s", td_http_request_path(req), allow);
    td_http_error(req, 405, "invalid_request_error", text, NULL, NULL,
                  TD_HEADERS({"Allow", allow}));
}

static void on_request(td_http_request *req, void *arg)
{
    static const char models[] = "/v1/models/", responses[] = "/v1/responses/";
    http_api *a = arg;
    const char *path = td_http_request_path(req);
    td_http_method method = td_http_request_method(req);
    char text[200];

    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(path, routes[i].path) != 0)
            continue;
        if (method_fits(routes[i].method, method))
            routes[i].fn(a, req);
        else
            wrong_method(req, routes[i].method == TD_HTTP_GET ? "GET, HEAD" : "POST");
        return;
    }
    if (strncmp(path, models, sizeof models - 1) == 0) {
        if (method_fits(TD_HTTP_GET, method))
            on_model(a, req, path + sizeof models - 1);
        else
            wrong_method(req, "GET, HEAD");
        return;
    }
    if (strncmp(path, responses, sizeof responses - 1) == 0 &&
        strchr(path + sizeof responses - 1, '/') == NULL) {
        if (method_fits(TD_HTTP_GET, method) || method == TD_HTTP_DELETE)
            responses_lookup(a->responses, req, path + sizeof responses - 1);
        else
            wrong_method(req, "GET, HEAD, DELETE");
        return;
    }
    snprintf(text, sizeof text, "there is nothing at %.120s", path);
    td_http_error(req, 404, "invalid_request_error", text, NULL, "not_found", NULL);
}

td_status http_api_create(router *r, http_api **out, td_error *err)
{
    http_api *a = calloc(1, sizeof *a);
    td_http_options opt = {.listen = r->cfg->http_listen,
                           .max_body_bytes = r->cfg->max_body,
                           .on_request = on_request,
                           .arg = a};
    td_status st;

    if (a == NULL)
        return td_fail(err, TD_NOMEM, "http: no memory");
    a->r = r;
    if (r->cfg->responses_store > 0) {
        st =
            responses_store_create(r->cfg->responses_store,
                                   r->cfg->responses_ttl_ms * TD_USEC_PER_MSEC, &a->responses, err);
        if (st != TD_OK) {
            free(a);
            return st;
        }
    }
    opt.connections =
        td_metrics_gauge(r->metrics, "tandem:http_connections", "Open client connections.", NULL);
    st = td_http_server_create(r->loop, &opt, &a->server, err);
    if (st != TD_OK) {
        responses_store_free(a->responses);
        free(a);
        return td_wrap(err, "--http-listen");
    }
    *out = a;
    return TD_OK;
}

uint16_t http_api_port(const http_api *a)
{
    return td_http_server_port(a->server);
}

void http_api_stop(http_api *a, td_loop_fn fn, void *arg)
{
    td_http_server_stop(a->server, fn, arg);
}

void http_api_free(http_api *a)
{
    if (a == NULL)
        return;
    td_http_server_free(a->server);
    responses_store_free(a->responses);
    free(a);
}
