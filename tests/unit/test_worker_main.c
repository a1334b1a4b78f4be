/* worker_main: what a signal does at each stage of a worker's life, and the exit code. Each in a
 * process of its own, since it ends it. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/log.h"
#include "common/worker_main.h"
#include "common/worker_watch.h"

enum { TEST_LIMIT_S = 30 };

static sem_t drained;
static int engine; /* only its address matters */

static void drain(void *e)
{
    if (e == &engine)
        sem_post(&drained);
}

/* It must end the process, when it is not taken for one with the last any more; alarm() does, with
 * a signal, when it does not. */
static void ends_by(int signo)
{
    for (;;) {
        kill(getpid(), signo);
        poll(NULL, 0, 5);
    }
}

static void drains_by(int signo)
{
    kill(getpid(), signo);
    while (sem_wait(&drained) != 0)
        continue;
}

static td_status told_while_loading(td_metrics *m, td_error *err)
{
    (void)m;
    (void)err;
    ends_by(SIGTERM);
    return TD_INTERNAL;
}

static td_status told_once(td_metrics *m, td_error *err)
{
    (void)m;
    (void)err;
    td_worker_runs(drain, &engine);
    drains_by(SIGTERM);
    td_worker_leaves(TD_OK);
    return TD_OK;
}

static td_status told_by_several_at_once(td_metrics *m, td_error *err)
{
    (void)m;
    (void)err;
    td_worker_runs(drain, &engine);
    kill(getpid(), SIGINT);
    drains_by(SIGTERM);
    kill(getpid(), SIGTERM);
    td_worker_leaves(TD_OK);
    return sem_trywait(&drained) == 0 ? TD_INTERNAL : TD_OK;
}

static td_status told_twice(td_metrics *m, td_error *err)
{
    (void)m;
    (void)err;
    td_worker_runs(drain, &engine);
    drains_by(SIGTERM);
    ends_by(SIGINT);
    return TD_INTERNAL;
}

static td_status told_again_while_leaving(td_metrics *m, td_error *err)
{
    (void)m;
    (void)err;
    td_worker_runs(drain, &engine);
    drains_by(SIGTERM);
    td_worker_leaves(TD_OK);
    ends_by(SIGTERM);
    return TD_INTERNAL;
}

/* The first one finds it leaving already, and must not call drain() nor be counted as its failure
 * or its success. */
static td_status told_after_a_failure(td_metrics *m, td_error *err)
{
    (void)m;
    td_worker_runs(drain, &engine);
    td_worker_leaves(TD_DEVICE);
    ends_by(SIGHUP);
    return td_fail(err, TD_INTERNAL, "not ended");
}

static td_status terminal_goes(td_metrics *m, td_error *err)
{
    (void)m;
    (void)err;
    td_worker_runs(drain, &engine);
    drains_by(SIGHUP);
    td_worker_leaves(TD_OK);
    return TD_OK;
}

/* nohup: the SIGHUP is no signal at all, so the SIGTERM is the first one. */
static td_status terminal_goes_under_nohup(td_metrics *m, td_error *err)
{
    (void)m;
    (void)err;
    td_worker_runs(drain, &engine);
    kill(getpid(), SIGHUP);
    drains_by(SIGTERM);
    td_worker_leaves(TD_OK);
    return TD_OK;
}

static int end_of(td_status (*serve)(td_metrics *m, td_error *err), bool nohup)
{
    static td_worker_options options = {.log_level = TD_LOG_ERROR};
    static int no_config;
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        char name[] = "test", *argv[] = {name, NULL};
        const td_worker_program program = {.name = "test",
                                           .component = "test",
                                           .purpose = "Tests.",
                                           .config = &no_config,
                                           .worker = &options,
                                           .serve = serve};

        alarm(TEST_LIMIT_S);
        sem_init(&drained, 0, 0);
        signal(SIGHUP, nohup ? SIG_IGN : SIG_DFL);
        _exit(td_worker_main(&program, 1, argv));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_signals_by_stage(void **state)
{
    (void)state;
    assert_int_equal(end_of(told_while_loading, false), 0);
    assert_int_equal(end_of(told_once, false), 0);
    assert_int_equal(end_of(told_by_several_at_once, false), 0);
    assert_int_equal(end_of(told_twice, false), 128 + SIGINT);
    assert_int_equal(end_of(told_again_while_leaving, false), 0);
    assert_int_equal(end_of(told_after_a_failure, false), TD_EXIT_DEVICE);
}

static void test_signals_of_a_terminal_that_goes(void **state)
{
    (void)state;
    assert_int_equal(end_of(terminal_goes, false), 0);
    assert_int_equal(end_of(terminal_goes_under_nohup, true), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_by_stage),
        cmocka_unit_test(test_signals_of_a_terminal_that_goes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
