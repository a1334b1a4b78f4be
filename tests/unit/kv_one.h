/* kv_one: a sink and a source in the test's own process, for what needs no second one. */
#ifndef TANDEM_TESTS_KV_ONE_H
#define TANDEM_TESTS_KV_ONE_H

#include "common/kv_push.h"
#include "tests/unit/kv_pair.h"

#include <pthread.h>

typedef struct one_process {
    kv_world w;
    unsigned char *src, *dst;
    td_kv_sink *sink;
    td_kv_source *source;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    td_kv_notice notice; /* the last one */
    td_status status;    /* of the last push that was done */
    int n_notices, n_done;
} one_process;

/* wire NULL: the defaults. */
one_process *one_start(const td_kv_wire_options *wire, int n_requests);
void one_stop(one_process *o);

/* A push of request i, which is called i + 1. */
td_kv_push_params one_params(one_process *o, int i);
void one_wait(one_process *o, const int *count,
              int n); /* until *count, one of o's, has come to n */

#endif
