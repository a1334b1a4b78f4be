/* worker_watch: it ends a process whose step or way out takes too long, with the right code, and
 * leaves alone one that only does many steps. Each in a process of its own, since it ends it. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/worker_watch.h"

enum { TIMEOUT_MS = 50, LIVES = 0, BROKEN = 99, TEST_LIMIT_S = 30 };

static td_watch *start(int64_t timeout_ms)
{
    td_watch *w = NULL;

    alarm(TEST_LIMIT_S); /* a watch that sleeps fails the test and does not hang it */
    if (td_watch_start(timeout_ms, &w, NULL) != TD_OK)
        _exit(BROKEN);
    return w;
}

static void hang(void)
{
    for (;;)
        pause();
}

/* How a process ends that runs fn; *ms is how long it took. */
static int end_of(void (*fn)(void), int64_t *ms)
{
    td_usec from = td_now_us();
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        fn();
        _exit(LIVES);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    *ms = (td_now_us() - from) / TD_USEC_PER_MSEC;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void check_ends(void (*fn)(void), int code, int64_t least_ms)
{
    int64_t ms;

    assert_int_equal(end_of(fn, &ms), code);
    assert_true(ms >= least_ms);
}

/* What end_of()'s process says goes to a pipe: the end of it is what the test reads. */
static int said[2];

static void says(const void *ctx, char *out, size_t size)
{
    snprintf(out, size, "%s sleeps", (const char *)ctx);
}

static void a_step_hangs_and_who_is_known(void)
{
    td_watch *w = start(TIMEOUT_MS);

    if (dup2(said[1], STDERR_FILENO) < 0)
        _exit(BROKEN);
    td_watch_ask(w, says, "rank 1");
    td_watch_begin(w, "test", 7);
    hang();
}

static void one_step_hangs(void)
{
    td_watch_begin(start(TIMEOUT_MS), "test", 1);
    hang();
}

/* The watch has looked in between, and sleeps while the step that hangs begins. */
static void a_later_step_hangs(void)
{
    td_watch *w = start(TIMEOUT_MS);
    td_usec until = td_now_us() + 3 * TIMEOUT_MS * TD_USEC_PER_MSEC / 2;

    while (td_now_us() < until) {
        td_watch_begin(w, "test", 1);
        td_watch_end(w);
    }
    td_watch_begin(w, "test", 2);
    hang();
}

/* The first one may take longer, and its patience is not the next one's. */
static void a_step_after_the_first_hangs(void)
{
    td_watch *w = start(TIMEOUT_MS);
    td_usec until = td_now_us() + 3 * TIMEOUT_MS * TD_USEC_PER_MSEC;

    td_watch_begin_first(w, "test", 0);
    while (td_now_us() < until)
        ;
    td_watch_end(w);
    td_watch_begin(w, "test", 1);
    hang();
}

/* Many steps, then none for longer than one may take. The timeout is far above a step on any
 * machine. */
static void many_steps(void)
{
    td_watch *w = start(1000);
    td_usec from = td_now_us();

    while (td_now_us() - from < 1200 * TD_USEC_PER_MSEC) {
        td_watch_begin(w, "test", 1);
        td_watch_end(w);
    }
    while (td_now_us() - from < 3400 * TD_USEC_PER_MSEC)
        ;
    td_watch_stop(w);
}

/* Stopped for longer than a step may take, as by SIGSTOP or with its machine. */
static void a_step_is_paused(void)
{
    td_watch *w = start(4 * TIMEOUT_MS);
    pid_t pid = getpid();

    td_watch_begin(w, "test", 1);
    if (fork() == 0) {
        kill(pid, SIGSTOP);
        poll(NULL, 0, 8 * TIMEOUT_MS);
        kill(pid, SIGCONT);
        _exit(0);
    }
    while (waitpid(-1, NULL, 0) < 0 && errno == EINTR)
        continue;
    poll(NULL, 0, TIMEOUT_MS); /* it goes on for a while */
    td_watch_end(w);
}

static void way_out_hangs(void)
{
    td_watch *w = start(0);

    td_watch_begin(w, "test", 1); /* with timeout 0 a step may take for ever */
    td_watch_leave(w, 2 * TIMEOUT_MS, TD_EXIT_DEVICE);
    hang();
}

static void way_out_ends(void)
{
    td_watch *w = start(0);

    td_watch_leave(w, 3600 * 1000, TD_EXIT_DEVICE);
    td_watch_stop(w);
}

static void test_watch_ends_a_process_whose_step_hangs(void **state)
{
    (void)state;
    check_ends(one_step_hangs, TD_EXIT_HANG, TIMEOUT_MS);
    check_ends(a_later_step_hangs, TD_EXIT_HANG, 5 * TIMEOUT_MS / 2);
    check_ends(a_step_after_the_first_hangs, TD_EXIT_HANG, 4 * TIMEOUT_MS);
}

static void test_watch_says_who_is_late(void **state)
{
    char line[1024] = "";

    (void)state;
    assert_int_equal(pipe(said), 0);
    check_ends(a_step_hangs_and_who_is_known, TD_EXIT_HANG, TIMEOUT_MS);
    assert_true(read(said[0], line, sizeof line - 1) > 0);
    assert_non_null(strstr(line, "step_hangs exit=4 step=test n=7 "));
    assert_non_null(strstr(line, " late=\"rank 1 sleeps\""));
    close(said[0]);
    close(said[1]);
}

static void test_watch_leaves_steps_alone_that_end(void **state)
{
    (void)state;
    check_ends(many_steps, LIVES, 0);
    check_ends(a_step_is_paused, LIVES, 8 * TIMEOUT_MS);
}

static void test_watch_ends_a_way_out_that_hangs(void **state)
{
    (void)state;
    check_ends(way_out_hangs, TD_EXIT_DEVICE, 2 * TIMEOUT_MS);
    check_ends(way_out_ends, LIVES, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watch_ends_a_process_whose_step_hangs),
        cmocka_unit_test(test_watch_says_who_is_late),
        cmocka_unit_test(test_watch_leaves_steps_alone_that_end),
        cmocka_unit_test(test_watch_ends_a_way_out_that_hangs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
