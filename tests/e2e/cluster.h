/* cluster: real processes for a test: a router and workers, started with a line of options, watched
 * by their logs and metrics, killed, frozen and stopped. Ports are picked by the programs and read
 * from their logs. A child dies with the test, however that ends.
 *
 * A test is a function of a cluster, listed as E2E_TEST(fn): it starts what it needs, and when it
 * returns, everything that still runs gets a SIGTERM and must exit 0. When it fails, the logs are
 * shown. E2E_SHARED(fn) are tests that share one cluster, made by e2e_shared_setup(). */
#ifndef TANDEM_TESTS_E2E_CLUSTER_H
#define TANDEM_TESTS_E2E_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/types.h>
#include <cmocka.h>

#include "tests/e2e/client.h"

/* An exit is a matter of milliseconds; the deadline only has to be far below the drains, leases and
 * time-outs by which it might end otherwise. SOON_MS: the same for anything that must not wait for
 * one of them. */
enum { CLUSTER_MAX = 24, SOON_MS = 15000, EXIT_DEADLINE_MS = 2 * SOON_MS };

typedef struct process {
    char name[32];  /* "router", "decode0"; a worker's --worker-id */
    char path[256]; /* of its log */
    char program[16];
    char options[640];
    pid_t pid; /* 0: does not run */
    bool stopped;
    uint16_t port; /* of its /metrics; the router's is the clients' port as well */
} process;

typedef struct cluster {
    char folder[64];
    char model[160];       /* options of workers that name the model and its weights */
    char workers_url[160]; /* of the router; of all of them, once cluster_second_router() was called
                            */
    process all[CLUSTER_MAX];
    size_t n;
    process *router;
    bool failed;
} cluster;

/* Whether the repository has the trained checkpoint. */
bool model_is_trained(void);

/* Weights that are made from a seed, so that any prompt leads on and on: so it is until told
 * otherwise. */
void cluster_use_random_weights(cluster *c);
/* The trained ones, where they are there. */
void cluster_use_best_weights(cluster *c);

/* Start a program with options, words separated by single spaces; wait until it listens. Another
 * router of the same cluster takes over the address of the one before, which must have ended. */
process *cluster_router(cluster *c, const char *options);
/* One more beside it: workers that are started from here on know both. */
process *cluster_second_router(cluster *c, const char *options);
/* A worker; does not wait: start several, then cluster_ready(). */
process *cluster_prefill(cluster *c, const char *options);
process *cluster_decode(cluster *c, const char *options);
/* What every worker is given before a test's own options: TANDEM_E2E_WORKERS, so that a suite can
 * run on another backend ("--backend cuda --kv-memory 512MiB"). TANDEM_E2E_BIN: where the programs
 * are. */
const char *cluster_worker_options(void);
bool cluster_is_cuda(void); /* whether they say --backend cuda */
/* One router, one of each. */
void cluster_simple(cluster *c);

/* Until each running worker is registered and the router serves. */
void cluster_ready(cluster *c);
uint16_t cluster_port(const cluster *c); /* of the router, for clients */

void process_signal(process *p, int signo);
void process_kill(process *p); /* SIGKILL, and it is gone */
/* Start it once more, under the same name; a worker with its options, a router at its address. */
void process_restart(cluster *c, process *p);
/* Take note of its end; false while it runs. *code as for process_wait(). */
bool process_ended(process *p, int *code);
/* Wait for its end: the exit code, or minus the signal. Fails the test past ms. */
int process_wait(process *p, int64_t ms);
/* Signal it until it has ended; then as process_wait(). */
int process_insist(process *p, int signo, int64_t ms);
/* SIGTERM, and it must exit 0 within ms. */
void process_stop(process *p, int64_t ms);

/* All of a log so far; the caller's. */
void process_log(const process *p, td_buf *out);
bool process_logged(const process *p, const char *text);
size_t process_log_count(const process *p, const char *text);

/* A metric's value by its name as it is written ("name" or "name{label=\"x\"}"); the test fails if
 * the process does not show it. */
double process_metric(const process *p, const char *name);

/* Look again and again until it is so; past the deadline the test fails. */
#define E2E_AWAIT(condition) \
    do { \
        td_usec await_ = e2e_deadline(); \
        while (!(condition)) { \
            if (td_now_us() > await_) \
                fail_msg("never came true: %s", #condition); \
            e2e_pause(); \
        } \
    } while (0)
void e2e_pause(void); /* between two looks: a few milliseconds */

/* A worker holds nothing any more: no request, no page, no reservation, nothing in quarantine. */
bool decode_is_empty(const process *p);
bool prefill_is_empty(const process *p);
/* The router runs nothing and this decode worker holds nothing, soon. */
void cluster_await_nothing_held(cluster *c, const process *decode);

/* What follows `mark` in a process's log, up to a space; it must be there. */
void process_log_word(const process *p, const char *mark, char *out, size_t cap);

/* ---- the tests' frame: frame.c ---- */

typedef struct e2e_case {
    void (*fn)(cluster *c);
} e2e_case;

int e2e_setup(void **state);
int e2e_teardown(void **state);
void e2e_run(void **state);
/* clang-format off */
#define E2E_TEST(fn) {#fn, e2e_run, e2e_setup, e2e_teardown, &(e2e_case){fn}}
/* clang-format on */

/* A cluster for a group: call make() on it. */
int e2e_shared_setup(void (*make)(cluster *c));
int e2e_shared_teardown(void **state);
void e2e_shared_run(void **state);
/* clang-format off */
#define E2E_SHARED(fn) {#fn, e2e_shared_run, NULL, NULL, &(e2e_case){fn}}
/* clang-format on */

#endif
