#include "tests/unit/http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "tests/unit/http_client.h"

static void note(fixture *f, int *counter)
{
    pthread_mutex_lock(&f->lock);
    ++*counter;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void on_close(td_http_request *req, void *arg)
{
    fixture *f = arg;

    for (int i = 0; i < f->n_streams; i++) {
        if (f->streams[i].req == req)
            f->streams[i].req = NULL;
    }
    note(f, &f->closes);
}

static void tick(void *arg)
{
    fixture *f = arg;
    char event[64];
    int live = 0;

    for (int i = 0; i < f->n_streams; i++) {
        td_http_request *req = f->streams[i].req;

        if (req == NULL)
            continue;
        if (f->streams[i].sent == N_EVENTS) {
            f->streams[i].req = NULL;
            td_http_stream_end(req);
            continue;
        }
        live++;
        snprintf(event, sizeof event, "data: %d\n\n", f->streams[i].sent++);
        td_http_stream_write(req, event, strlen(event));
    }
    if (live > 0)
        td_timer_in(f->ticker, TD_USEC_PER_MSEC);
}

static void flood(fixture *f, td_http_request *req)
{
    static const char block[65536];

    td_http_stream_begin(req, 200, "text/plain", NULL);
    while (td_http_stream_pending(req) <= 256 << 10)
        td_http_stream_write(req, block, sizeof block);
    f->most_pending = td_http_stream_pending(req);
    td_http_abort(req);
    note(f, &f->aborts);
}

static void handle(td_http_request *req, fixture *f)
{
    const char *path = td_http_request_path(req);
    td_slice body = td_http_request_body(req);
    td_buf b = {0};

    if (strcmp(path, "/hold") == 0) {
        td_http_request_on_close(req, on_close, f);
        f->held = req;
    } else if (strcmp(path, "/stream") == 0) {
        td_http_request_on_close(req, on_close, f);
        td_http_stream_begin(req, 200, "text/event-stream",
                             TD_HEADERS({"Cache-Control", "no-cache"}));
        f->streams[f->n_streams].sent = 0;
        f->streams[f->n_streams++].req = req;
        td_timer_in(f->ticker, 0);
    } else if (strcmp(path, "/cut") == 0) {
        td_http_stream_begin(req, 200, "text/plain", NULL);
        td_http_stream_write(req, "part", 4);
        td_http_stream_cut(req);
    } else if (strcmp(path, "/abort") == 0) {
        td_http_request_on_close(req, on_close, f); /* must not be called for it */
        td_http_stream_begin(req, 200, "text/plain", NULL);
        td_http_stream_write(req, "part", 4);
        f->held = req;
    } else if (strcmp(path, "/open") == 0) {
        td_http_request_on_close(req, on_close, f);
        td_http_stream_begin(req, 200, "text/plain", NULL);
        td_http_stream_write(req, "open", 4);
    } else if (strcmp(path, "/flood") == 0) {
        flood(f, req);
    } else if (strcmp(path, "/error") == 0) {
        td_http_error(req, 429, "rate_limit_exceeded", "say \"no\" \xff\n", "messages[0]", NULL,
                      TD_HEADERS({"Retry-After", "3"}));
    } else if (strcmp(path, "/header") == 0) {
        const char *value = td_http_request_header(req, "X-TEST");

        td_http_reply(req, 200, "text/plain", value ? value : "none", value ? strlen(value) : 4,
                      NULL);
    } else {
        assert(body.ptr[body.len] == '\0');
        td_buf_fmt(&b, "%s %s?%s|", td_http_method_name(td_http_request_method(req)), path,
                   td_http_request_query(req));
        td_buf_add(&b, body.ptr, body.len);
        td_http_reply(req, 200, "text/plain", b.ptr, b.len, NULL);
        td_buf_free(&b);
    }
}

static void on_request(td_http_request *req, void *arg)
{
    fixture *f = arg;

    handle(req, f);
    note(f, &f->requests);
}

static void *run(void *arg)
{
    fixture *f = arg;

    if (td_loop_run(f->loop, NULL) != TD_OK)
        abort();
    return NULL;
}

fixture *fixture_start(td_http_options options)
{
    fixture *f = calloc(1, sizeof *f);
    pthread_condattr_t monotonic;
    td_error err = {0};

    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &monotonic);
    f->metrics = td_metrics_create(NULL);
    f->connections = td_metrics_gauge(f->metrics, "tandem:http_connections", "Open.", NULL);
    if (options.listen == NULL)
        options.listen = "127.0.0.1:0";
    options.on_request = on_request;
    options.arg = f;
    options.connections = f->connections;
    assert_int_equal(td_loop_create(&f->loop, &err), TD_OK);
    if (td_http_server_create(f->loop, &options, &f->server, &err) != TD_OK)
        fail_msg("%s", err.text);
    f->port = td_http_server_port(f->server);
    f->ticker = td_timer_create(f->loop, tick, f);
    assert_int_equal(pthread_create(&f->thread, NULL, run, f), 0);
    return f;
}

void fixture_stop(fixture *f)
{
    td_loop_stop(f->loop);
    pthread_join(f->thread, NULL);
    td_timer_free(f->ticker);
    td_http_server_free(f->server);
    td_loop_free(f->loop);
    td_metrics_free(f->metrics);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

int fixture_count(fixture *f, const int *counter)
{
    int n;

    pthread_mutex_lock(&f->lock);
    n = *counter;
    pthread_mutex_unlock(&f->lock);
    return n;
}

void fixture_await(fixture *f, const int *counter, int n)
{
    struct timespec until = td_timespec(td_now_us() + CLIENT_DEADLINE_MS * TD_USEC_PER_MSEC);
    int rc = 0, got;

    pthread_mutex_lock(&f->lock);
    while (*counter < n && rc == 0)
        rc = pthread_cond_timedwait(&f->changed, &f->lock, &until);
    got = *counter;
    pthread_mutex_unlock(&f->lock);
    if (got < n)
        fail_msg("waited for %d, got %d", n, got);
}

typedef struct call {
    fixture *f;
    td_loop_fn fn;
    void *arg;
    int done;
} call;

static void run_call(void *arg)
{
    call *c = arg;

    c->fn(c->arg);
    note(c->f, &c->done);
}

void fixture_call(fixture *f, td_loop_fn fn, void *arg)
{
    call c = {f, fn, arg, 0};

    assert_true(td_loop_post(f->loop, run_call, &c));
    fixture_await(f, &c.done, 1);
}

static void release(void *arg)
{
    fixture *f = arg;

    td_http_reply(f->held, 200, "text/plain", "held", 4, NULL);
    f->held = NULL;
}

void fixture_release(fixture *f)
{
    fixture_call(f, release, f);
}
