/* status, buf, clock, signals, log: the base that everything stands on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/signals.h"
#include "common/status.h"

static void test_status_fail_and_wrap_keep_code_and_read_as_a_sentence(void **state)
{
    td_error err = {0};

    (void)state;
    assert_int_equal(td_fail(&err, TD_BUSY, "%d pages wanted, %d free", 96, 41), TD_BUSY);
    assert_int_equal(td_wrap(&err, "kv pool"), TD_BUSY);
    assert_string_equal(err.text, "kv pool: 96 pages wanted, 41 free");
    assert_int_equal(td_status_http(err.code), 429);
    assert_true(td_status_retryable(err.code));
    assert_string_equal(td_status_name(TD_DEADLINE), "DEADLINE");
    assert_int_equal(td_fail(NULL, TD_INVALID, "no place to write"), TD_INVALID);
}

static void test_status_wrap_cuts_a_long_text_and_never_overruns(void **state)
{
    td_error err = {0};
    char longer[900];

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    td_fail(&err, TD_IO, "%s", longer);
    for (int i = 0; i < 8; i++)
        assert_int_equal(td_wrap(&err, "reading %s", longer), TD_IO);
    assert_true(strlen(err.text) < sizeof err.text);
}

static void test_buf_json_escapes_what_json_forbids(void **state)
{
    td_buf b = {0};

    (void)state;
    td_buf_json(&b, "a\"b\\c\n\x01\xc3\xa9", 9);
    assert_string_equal(b.ptr, "a\\\"b\\\\c\\n\\u0001\xc3\xa9");
    assert_false(b.oom);
    td_buf_free(&b);
}

static void test_buf_fmt_grows_past_its_first_block(void **state)
{
    td_buf b = {0};

    (void)state;
    for (int i = 0; i < 1000; i++)
        td_buf_fmt(&b, "%03d,", i);
    assert_int_equal(b.len, 4000);
    assert_memory_equal(b.ptr + 3996, "999,", 5);
    td_buf_free(&b);
}

static void test_utf8_next_follows_table_3_7(void **state)
{
    static const struct {
        const char *bytes;
        int want;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa9", 2},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\xab\xa0", 4},
        {"\xc0\x80", -1},         /* overlong */
        {"\xe0\x9f\x80", -1},     /* overlong */
        {"\xed\xa0\x80", -1},     /* surrogate */
        {"\xf4\x90\x80\x80", -1}, /* over U+10FFFF */
        {"\x80", -1},
        {"\xf0\x9f\xab", -2},
        {"\xe2", -2},
        {"\xe2\x28", -1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(
            td_utf8_next((const unsigned char *)cases[i].bytes, strlen(cases[i].bytes)),
            cases[i].want);
    assert_int_equal(td_utf8_next((const unsigned char *)"", 0), 0);
}

static void test_clock_timespec_splits_seconds(void **state)
{
    struct timespec t = td_timespec(3 * TD_USEC_PER_SEC + 250);

    (void)state;
    assert_int_equal(t.tv_sec, 3);
    assert_int_equal(t.tv_nsec, 250000);
    assert_true(td_now_us() > 0);
}

static void test_signals_close_together_are_one_wish(void **state)
{
    const td_usec first = 7 * TD_USEC_PER_SEC;
    td_usec asked_at = 0;

    (void)state;
    assert_int_equal(td_signal_wish(&asked_at, first), TD_WISH_NEW);
    assert_int_equal(td_signal_wish(&asked_at, first), TD_WISH_SAME);
    assert_int_equal(td_signal_wish(&asked_at, first + 199999), TD_WISH_SAME);
    /* Of the first: a stream of them ends the process after all. */
    assert_int_equal(td_signal_wish(&asked_at, first + 200000), TD_WISH_AGAIN);
    assert_int_equal(td_signal_wish(&asked_at, first + 200001), TD_WISH_AGAIN);
}

/* This program again, with none of the three standard descriptors open. */
static void test_log_never_gets_the_descriptor_of_something_else(void **state)
{
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        close(STDIN_FILENO);
        close(STDOUT_FILENO);
        close(STDERR_FILENO);
        execl("/proc/self/exe", "test_base", "descriptor", NULL);
        _exit(100);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) > STDERR_FILENO && WEXITSTATUS(status) < 100);
}

static int next_descriptor(void)
{
    td_log_init("test", TD_LOG_INFO);
    td_info("nobody_reads_this", "fd=%d", STDERR_FILENO);
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return next_descriptor();

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_fail_and_wrap_keep_code_and_read_as_a_sentence),
        cmocka_unit_test(test_status_wrap_cuts_a_long_text_and_never_overruns),
        cmocka_unit_test(test_buf_json_escapes_what_json_forbids),
        cmocka_unit_test(test_buf_fmt_grows_past_its_first_block),
        cmocka_unit_test(test_utf8_next_follows_table_3_7),
        cmocka_unit_test(test_clock_timespec_splits_seconds),
        cmocka_unit_test(test_signals_close_together_are_one_wish),
        cmocka_unit_test(test_log_never_gets_the_descriptor_of_something_else),
    };

    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
