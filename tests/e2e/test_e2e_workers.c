/* Workers and routers that come, go and come back. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/cluster.h"

static double landed(const process *decode)
{
    return process_metric(decode, "tandem:kv_landed_total");
}

static double admitted(const process *prefill)
{
    return process_metric(prefill, "tandem:prefill_admitted_total");
}

static void check_answers(const cluster *c)
{
    ask a;

    ask_whole(&a, cluster_port(c), &(want){.max_tokens = 5});
    ask_assert_good(&a);
    ask_free(&a);
}

static void test_all_get_work(cluster *c)
{
    enum { N = 16 };
    process *p[2], *d[2];
    ask a[N];

    cluster_router(c, "");
    for (size_t i = 0; i < 2; i++) {
        p[i] = cluster_prefill(c, "");
        d[i] = cluster_decode(c, "");
    }
    cluster_ready(c);
    for (size_t i = 0; i < N; i++)
        ask_chat(&a[i], cluster_port(c), &(want){.max_tokens = 20});
    asks_wait(a, N);
    for (size_t i = 0; i < N; i++)
        ask_assert_same(&a[0], &a[i]);
    assert_true(landed(d[0]) >= N / 4 && landed(d[1]) >= N / 4);
    assert_true(admitted(p[0]) >= N / 4 && admitted(p[1]) >= N / 4);
    assert_true(landed(d[0]) + landed(d[1]) == N);
    assert_true(admitted(p[0]) + admitted(p[1]) == N);
    asks_free(a, N);
}

static void test_late_worker(cluster *c)
{
    process *late;
    ask busy[2];

    cluster_simple(c);
    for (size_t i = 0; i < 2; i++)
        ask_chat(&busy[i], cluster_port(c), &(want){.max_tokens = 30000, .stream = true});
    ASKS_UNTIL(busy[0].n_pieces > 0 && busy[1].n_pieces > 0, busy, 2);
    late = cluster_decode(c, "");
    cluster_ready(c);
    E2E_AWAIT(process_logged(c->router, "worker_joined worker=decode1"));
    /* The idle one is the better choice from the moment that it has been greeted. */
    E2E_AWAIT((check_answers(c), landed(late) > 0));
    asks_free(busy, 2);
}

static void test_workers_before_the_router(cluster *c)
{
    process *router = cluster_router(c, ""), *p, *d;

    process_stop(router, EXIT_DEADLINE_MS);
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    E2E_AWAIT(process_logged(p, "worker_started") && process_logged(d, "worker_started"));
    process_restart(c, router);
    cluster_ready(c);
    check_answers(c);
}

/* Without workers a router says so; health is not readiness. */
static void test_no_workers(cluster *c)
{
    td_buf why = {0};
    process *p;
    ask a;

    cluster_router(c, "");
    assert_int_equal(http_get(cluster_port(c), "/health", NULL), 200);
    assert_int_equal(http_get(cluster_port(c), "/ready", &why), 503);
    assert_non_null(strstr(why.ptr, "no prefill and no decode worker"));
    ask_whole(&a, cluster_port(c), &(want){.max_tokens = 5});
    assert_int_equal(a.status, 503);
    assert_non_null(ask_header(&a, "Retry-After"));
    ask_free(&a);
    p = cluster_prefill(c, "");
    E2E_AWAIT(process_logged(p, " registered "));
    td_buf_clear(&why);
    assert_int_equal(http_get(cluster_port(c), "/ready", &why), 503);
    assert_non_null(strstr(why.ptr, "no decode worker"));
    td_buf_free(&why);
    cluster_decode(c, "");
    cluster_ready(c);
    check_answers(c);
}

/* ---- the router goes ---- */

static void check_router_back(cluster *c, process *router, int signo)
{
    process *p = &c->all[1], *d = &c->all[2];
    ask cut;

    ask_chat(&cut, cluster_port(c), &(want){.max_tokens = 30000, .stream = true});
    ASKS_UNTIL(cut.n_pieces > 0, &cut, 1);
    if (signo == SIGTERM) /* idle then: with a stream it would wait for it */
        ask_free(&cut);
    process_signal(router, signo);
    process_wait(router, EXIT_DEADLINE_MS);
    if (signo != SIGTERM) {
        asks_wait(&cut, 1);
        assert_true(cut.cut);
        ask_free(&cut);
    }
    E2E_AWAIT(http_get(d->port, "/ready", NULL) == 503);
    E2E_AWAIT(http_get(p->port, "/ready", NULL) == 503);
    E2E_AWAIT(decode_is_empty(d) && prefill_is_empty(p)); /* nobody is left to answer */
    process_restart(c, router);
    cluster_ready(c);
    check_answers(c);
}

static void test_router_restarted(cluster *c)
{
    cluster_simple(c);
    for (size_t i = 0; i < 3; i++)
        check_router_back(c, c->router, i % 2 ? SIGTERM : SIGKILL);
}

static void test_two_routers(cluster *c)
{
    process *one = cluster_router(c, "--router-id one"), *two;
    process *p, *d;
    ask a[2];

    two = cluster_second_router(c, "--router-id two");
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    E2E_AWAIT(http_get(two->port, "/ready", NULL) == 200);
    ask_chat(&a[0], one->port, &(want){.max_tokens = 400});
    ask_chat(&a[1], two->port, &(want){.max_tokens = 400});
    asks_wait(a, 2);
    ask_assert_same(&a[0], &a[1]);
    asks_free(a, 2);
    /* One goes with its streams; the other's go on. */
    ask_chat(&a[0], one->port, &(want){.max_tokens = 30000, .stream = true});
    ask_chat(&a[1], two->port, &(want){.max_tokens = 400, .stream = true});
    ASKS_UNTIL(a[0].n_pieces > 0 && a[1].n_pieces > 0, a, 2);
    process_kill(one);
    asks_wait(a, 2);
    assert_true(a[0].cut);
    ask_assert_good(&a[1]);
    asks_free(a, 2);
    E2E_AWAIT(decode_is_empty(d) && prefill_is_empty(p));
    assert_int_equal(http_get(d->port, "/ready", NULL), 200);
}

/* ---- workers that do not fit ---- */

static void check_refused(cluster *c, const char *options, const char *why)
{
    process *p = cluster_decode(c, options);
    char line[128];

    E2E_AWAIT(process_logged(p, "registration_refused"));
    assert_true(process_logged(p, why)); /* the reason, on both sides */
    snprintf(line, sizeof line, "worker_refused worker=%s", p->name);
    assert_true(process_logged(c->router, line));
    assert_true(process_logged(c->router, why));
    check_answers(c); /* with those that fit */
    process_stop(p, EXIT_DEADLINE_MS);
}

static void test_misfits_are_refused(cluster *c)
{
    char model[sizeof c->model];

    cluster_simple(c);
    check_refused(c, "--kv-dtype f32", "start all workers with the same --kv-dtype");
    check_refused(c, "--model-name other", "the worker serves \"other\"");
    memcpy(model, c->model, sizeof model);
    snprintf(c->model, sizeof c->model, "--model models/tandem-tiny --random-weights 2");
    check_refused(c, "", "other weights than the workers before it");
    memcpy(c->model, model, sizeof model);
    /* Nor does a misfit that leaves take anyone with it. */
    check_answers(c);
    assert_true(process_metric(c->router, "tandem:request_retries_total") == 0);
}

/* A second process with the id of one that is alive: told so, and nobody else notices. When the
 * first one has gone, it takes its place. */
static void test_twin_is_refused(cluster *c)
{
    process *d, *twin;

    cluster_simple(c);
    d = &c->all[2];
    twin = cluster_decode(c, "--worker-id decode0 --heartbeat 300ms");
    E2E_AWAIT(process_logged(twin, "registration_refused"));
    assert_true(process_logged(twin, "has the same id and is alive"));
    assert_true(process_logged(c->router, "worker_refused worker=decode0"));
    check_answers(c);
    assert_true(landed(d) == 1);
    assert_true(process_metric(c->router, "tandem:workers_lost_total") == 0);
    process_kill(d);
    cluster_ready(c);
    check_answers(c);
    assert_true(landed(twin) == 1);
}

/* When the last worker of a model has gone, another one may come. */
static void test_another_model_after_the_last(cluster *c)
{
    process *p, *d;

    cluster_router(c, "");
    p = cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    process_stop(p, EXIT_DEADLINE_MS);
    process_stop(d, EXIT_DEADLINE_MS);
    E2E_AWAIT(process_log_count(c->router, "worker_lost") == 2);
    cluster_prefill(c, "--model-name second --kv-dtype f32");
    cluster_decode(c, "--model-name second --kv-dtype f32");
    cluster_ready(c);
    check_answers(c);
    assert_int_equal(http_get(cluster_port(c), "/v1/models/second", NULL), 200);
}

/* ---- settings ---- */

static void check_exit(cluster *c, const char *options, int code, const char *says)
{
    process *p = cluster_decode(c, options);

    assert_int_equal(process_wait(p, E2E_DEADLINE_MS), code);
    if (!process_logged(p, says))
        fail_msg("%s: nothing about %s", options, says);
}

static void test_bad_settings(cluster *c)
{
    cluster_router(c, "");
    check_exit(c, "--max-batch 0", 2, "max-batch");
    check_exit(c, "--no-such-flag", 2, "no-such-flag");
    check_exit(c, "--kv-dtype f8", 2, "bf16");
    check_exit(c, "--tp 3", 2, "tp");
    check_exit(c, "--tp 2 --ep 4", 2, "ep");
    check_exit(c, "--kv-memory 1MiB", 2, "at least");
    check_exit(c, "--kv-memory lots", 2, "auto");
    check_exit(c, "--kv-dtype e4m3", 2, "cuda");
    check_exit(c, "--expert-format fp8", 2, "cuda");
    check_exit(c, "--devices 0", 2, "--devices");
    check_exit(c, "--random-weights seven", 2, "seven");
    check_exit(c, "--random-weights 18446744073709551616", 2, "2^64");
    check_exit(c, "--model models/none", 1, "models/none");
    check_exit(c, "--model-name a\"b", 2, "--model-name");
    check_exit(c, "--worker-id \xc3\xa9", 2, "--worker-id");
    check_exit(c, "--advertise here", 2, "--advertise");
    check_exit(c, "--advertise tcp://10.0.0.7:0", 2, "--advertise");
    check_exit(c, "--listen tcp://127.0.0.1:1x", 2, "--listen");
    check_exit(c, "--router nowhere", 2, "--router");
    check_exit(c, "--admin-listen 127.0.0.1:99999", 2, "--admin-listen");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_all_get_work),
        E2E_TEST(test_late_worker),
        E2E_TEST(test_workers_before_the_router),
        E2E_TEST(test_no_workers),
        E2E_TEST(test_router_restarted),
        E2E_TEST(test_two_routers),
        E2E_TEST(test_misfits_are_refused),
        E2E_TEST(test_twin_is_refused),
        E2E_TEST(test_another_model_after_the_last),
        E2E_TEST(test_bad_settings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
