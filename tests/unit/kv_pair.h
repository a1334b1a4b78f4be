/* kv_pair: a source's and a sink's process, and what they have said so far, for the tests of the KV
 * transfer. Every wait is for a message, with a deadline that fails the test. */
#ifndef TANDEM_TESTS_KV_PAIR_H
#define TANDEM_TESTS_KV_PAIR_H

#include "tests/unit/kv_process.h"

/* Far longer than anything takes, also under a sanitizer on a busy machine. */
#define PATIENCE_US (60 * TD_USEC_PER_SEC)

typedef struct pair {
    kv_scenario s;
    kv_world w;
    kv_process sink, source;
    td_kv_arrival arrival[KV_MAX_REQUESTS];
    int notices[KV_MAX_REQUESTS], n_notices;
    kv_msg done[KV_MAX_REQUESTS];
    bool has_done[KV_MAX_REQUESTS];
    kv_msg descriptor;
    kv_msg answer; /* of the sink, to the last question */
    bool has_answer, source_ready, sink_ready;
} pair;

/* Three prompts of up to 700 tokens of a model of four layers. */
kv_scenario scenario(const char *transport, int32_t src_tp, int32_t dst_tp);

/* Both processes, and the source knows the sink. */
pair *pair_start(const kv_scenario *s);
void pair_stop(pair *p); /* both must exit 0 */
void pair_start_sink(pair *p);
void pair_start_source(pair *p);
void pair_tell_destination(pair *p); /* after either was started again */

/* Take messages until *flag is true, or *count has come to n. */
void pair_wait(pair *p, const bool *flag, const char *what);
void pair_wait_count(pair *p, const int *count, int n, const bool *flag, const char *what);

void quit(kv_process *proc); /* and it must exit 0 */
void kill_process(kv_process *proc);

void push_open(pair *p, int i, int64_t lease_us); /* < 0: no lease */
void push_layers(pair *p, int i, int from, int to);
void push_finish(pair *p, int i, td_status status);
void push_cancel(pair *p, int i);
void push_whole(pair *p, int i);
void wait_done(pair *p, int i, td_status status);
void wait_notices(pair *p, int i);
void wait_complete(pair *p, int i);

int64_t ask_sink(pair *p, kv_msg m);
/* Compare the sink's memory: states[i] for request i. */
void check_memory(pair *p, const kv_expect *states);

/* All requests of a scenario: every byte, and by a transport whose name contains this. */
void transfer_all(const kv_scenario *s, const char *expect_transport);

#endif
