#include "router/http_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "router/api_keys.h"
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
    api_keys *keys;             /* NULL: anybody may ask */
    char owner[API_KEY_OWNER];  /* of the request at hand: its key's hash; "" without keys */
    td_timer *keys_timer;
};

enum { KEYS_LOOK_MS = 2000 }; /* how often the file of keys is looked at for a change */

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
    responses_start(a->r, a->responses, a->owner, req);
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
    bool open; /* without a key: what orchestrators and Prometheus ask */
} route;

static const route routes[] = {
    {"/v1/chat/completions", TD_HTTP_POST, on_chat, false},
    {"/v1/completions", TD_HTTP_POST, on_completion, false},
    {"/v1/responses", TD_HTTP_POST, on_response, false},
    {"/tokenize", TD_HTTP_POST, on_tokenize, false},
    {"/detokenize", TD_HTTP_POST, on_detokenize, false},
    {"/v1/models", TD_HTTP_GET, on_models, false},
    {"/health", TD_HTTP_GET, on_health, true},
    {"/ready", TD_HTTP_GET, on_ready, true},
    {"/metrics", TD_HTTP_GET, on_metrics, true},
    {"/version", TD_HTTP_GET, on_version, false},
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

static bool may_ask(http_api *a, td_http_request *req)
{
    const char *said = td_http_request_header(req, "Authorization");

    if (a->keys == NULL || api_keys_admit(a->keys, said, a->owner))
        return true;
    td_http_error(req, 401, "invalid_request_error",
                  said == NULL ? "this server needs an API key: \"Authorization: Bearer KEY\""
                               : "the API key is not one of this server's",
                  NULL, "invalid_api_key", TD_HEADERS({"WWW-Authenticate", "Bearer"}));
    return false;
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
        if (!routes[i].open && !may_ask(a, req))
            return;
        if (method_fits(routes[i].method, method))
            routes[i].fn(a, req);
        else
            wrong_method(req, routes[i].method == TD_HTTP_GET ? "GET, HEAD" : "POST");
        return;
    }
    if (!may_ask(a, req))
        return;
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
            responses_lookup(a->responses, a->owner, req, path + sizeof responses - 1);
        else
            wrong_method(req, "GET, HEAD, DELETE");
        return;
    }
    snprintf(text, sizeof text, "there is nothing at %.120s", path);
    td_http_error(req, 404, "invalid_request_error", text, NULL, "not_found", NULL);
}

void http_api_reload_keys(http_api *a)
{
    td_error err = {0};

    if (a->keys == NULL)
        return;
    if (api_keys_reload(a->keys, &err) == TD_OK)
        td_info("api_keys_loaded", "file=%s keys=%zu", a->r->cfg->api_keys,
                api_keys_count(a->keys));
    else
        td_logerr("api_keys_not_loaded", "keys_in_force=%zu error=\"%s\"", api_keys_count(a->keys),
                  err.text);
}

static void look_at_keys(void *arg)
{
    http_api *a = arg;

    if (api_keys_changed(a->keys))
        http_api_reload_keys(a);
    td_timer_in(a->keys_timer, KEYS_LOOK_MS * TD_USEC_PER_MSEC);
}

static td_status open_keys(http_api *a, td_error *err)
{
    td_status st = api_keys_open(a->r->cfg->api_keys, &a->keys, err);

    if (st != TD_OK)
        return td_wrap(err, "--api-keys");
    a->keys_timer = td_timer_create(a->r->loop, look_at_keys, a);
    if (a->keys_timer == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a timer");
    td_timer_in(a->keys_timer, KEYS_LOOK_MS * TD_USEC_PER_MSEC);
    td_info("api_keys_loaded", "file=%s keys=%zu", a->r->cfg->api_keys, api_keys_count(a->keys));
    return TD_OK;
}

td_status http_api_create(router *r, http_api **out, td_error *err)
{
    const router_config *cfg = r->cfg;
    http_api *a = calloc(1, sizeof *a);
    td_http_options opt = {.listen = cfg->http_listen,
                           .max_body_bytes = cfg->max_body,
                           .max_header_bytes = cfg->max_header,
                           .read_timeout_us = cfg->read_timeout_ms * TD_USEC_PER_MSEC,
                           .idle_timeout_us = cfg->idle_timeout_ms * TD_USEC_PER_MSEC,
                           .max_connections = cfg->max_connections,
                           .on_request = on_request,
                           .arg = a};
    td_status st = TD_OK;

    if (a == NULL)
        return td_fail(err, TD_NOMEM, "http: no memory");
    a->r = r;
    if (cfg->responses_store > 0)
        st = responses_store_create(cfg->responses_store, cfg->responses_ttl_ms * TD_USEC_PER_MSEC,
                                    td_metrics_gauge(r->metrics, "tandem:responses_stored_bytes",
                                                     "Memory of finished responses that are kept.",
                                                     NULL),
                                    &a->responses, err);
    if (st == TD_OK && cfg->api_keys[0] != '\0')
        st = open_keys(a, err);
    if (st == TD_OK) {
        opt.connections = td_metrics_gauge(r->metrics, "tandem:http_connections",
                                           "Open client connections.", NULL);
        opt.refused = td_metrics_counter(r->metrics, "tandem:http_connections_refused_total",
                                         "Client connections closed for --max-connections.", NULL);
        st = td_http_server_create(r->loop, &opt, &a->server, err);
        if (st != TD_OK)
            st = td_wrap(err, "--http-listen");
    }
    if (st != TD_OK) {
        http_api_free(a);
        return st;
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
    td_timer_free(a->keys_timer);
    api_keys_free(a->keys);
    free(a);
}
