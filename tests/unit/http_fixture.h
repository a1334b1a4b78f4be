/* A server in a thread of its own, with a handler for each thing that a test wants to see:
 *
 *   /echo     "METHOD path?query|body"       /hold     kept until the test answers it
 *   /stream   N_EVENTS events, then the end  /cut      "part", then td_http_stream_cut()
 *   /abort    "part" flushed, then an abort  /open     "open", then nothing more
 *   /flood    writes until 256 KiB are pending, then aborts
 *   /error    an error with odd bytes        /header   the value of x-test
 */
#ifndef TANDEM_TESTS_HTTP_FIXTURE_H
#define TANDEM_TESTS_HTTP_FIXTURE_H

#include <pthread.h>

#include "common/http_server.h"
#include "common/loop.h"
#include "common/metrics.h"

enum { N_EVENTS = 20, MAX_STREAMS = 512 };

typedef struct fixture {
    td_loop *loop;
    td_http_server *server;
    td_metrics *metrics;
    td_gauge *connections;
    pthread_t thread;
    uint16_t port;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    int requests, closes, aborts, idles;
    size_t most_pending;
    td_http_request *held; /* the last /hold */
    struct {
        td_http_request *req;
        int sent;
    } streams[MAX_STREAMS];
    int n_streams;
    td_timer *ticker; /* the loop's: one event to every stream */
} fixture;

/* zero in options: the default. on_request, arg and connections are filled in, and listen where it
 * is NULL. */
fixture *fixture_start(td_http_options options);
void fixture_stop(fixture *f);

int fixture_count(fixture *f, const int *counter);
/* Wait until *counter is at least n; the test fails at the deadline. */
void fixture_await(fixture *f, const int *counter, int n);
/* Run fn(arg) on the loop's thread and wait for it. */
void fixture_call(fixture *f, td_loop_fn fn, void *arg);
/* Answer the held request with "held" from the loop's thread. */
void fixture_release(fixture *f);

#endif
