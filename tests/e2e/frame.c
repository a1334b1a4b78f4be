/* Around each test: a cluster before, a look at how everything ended after. */
#include "tests/e2e/cluster.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOG_SHOWN_BYTES = 12000, NOT_RUN = 77 };

static cluster *shared;

/* TANDEM_E2E_ONLY: the tests to run, as a pattern of cmocka's ("test_decode_*"). */
__attribute__((constructor)) static void choose_tests(void)
{
    const char *only = getenv("TANDEM_E2E_ONLY");

    if (only != NULL)
        cmocka_set_test_filter(only);
}

static cluster *cluster_create(void)
{
    cluster *c = calloc(1, sizeof *c);
    const char *base = getenv("TMPDIR");

    if (strstr(cluster_worker_options(), "cuda") != NULL && access("/dev/nvidiactl", F_OK) != 0) {
        printf("not run: this machine has no NVIDIA GPU\n");
        exit(NOT_RUN);
    }
    assert_non_null(c);
    snprintf(c->folder, sizeof c->folder, "%.40s/tandem-e2e-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(c->folder));
    cluster_use_random_weights(c);
    c->failed = true; /* until a test has come to its end */
    return c;
}

/* Nothing that a sanitizer or an assertion had to say may pass unseen. */
static void check_logs(const cluster *c)
{
    static const char *const bad[] = {"ERROR: AddressSanitizer", "ERROR: LeakSanitizer",
                                      "WARNING: ThreadSanitizer", "runtime error:", "assertion"};

    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
            if (process_logged(&c->all[i], bad[k]))
                fail_msg("%s said \"%s\"", c->all[i].name, bad[k]);
}

/* Stop all that still runs: the workers and the router at once, as a supervisor would. */
static void stop_all(cluster *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->all[i].pid > 0)
            process_signal(&c->all[i], SIGTERM);
    for (size_t i = 0; i < c->n; i++) {
        int code = c->all[i].pid > 0 ? process_wait(&c->all[i], EXIT_DEADLINE_MS) : 0;

        if (code != 0)
            fail_msg("%s ended with %d after SIGTERM", c->all[i].name, code);
    }
    check_logs(c);
}

static void show_logs(const cluster *c)
{
    for (size_t i = 0; i < c->n; i++) {
        td_buf log = {0};
        size_t skip;

        process_log(&c->all[i], &log);
        skip = log.len > LOG_SHOWN_BYTES ? log.len - LOG_SHOWN_BYTES : 0;
        fprintf(stderr, "---- %s: %s%s\n%s", c->all[i].name, c->all[i].options,
                skip ? " (end of its log)" : "", log.ptr + skip);
        td_buf_free(&log);
    }
}

static void remove_folder(const char *folder)
{
    DIR *d = opendir(folder);
    const struct dirent *entry;
    char path[512];

    while (d != NULL && (entry = readdir(d)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (d != NULL)
        closedir(d);
    rmdir(folder);
}

static void cluster_free(cluster *c)
{
    int status, code;

    for (size_t i = 0; i < c->n; i++) {
        if (c->all[i].pid <= 0)
            continue;
        if (process_ended(&c->all[i], &code)) {
            fprintf(stderr, "---- %s had ended with %d\n", c->all[i].name, code);
            continue;
        }
        kill(c->all[i].pid, SIGKILL);
        waitpid(c->all[i].pid, &status, 0);
    }
    if (c->failed)
        show_logs(c);
    remove_folder(c->folder);
    free(c);
}

typedef struct frame {
    const e2e_case *test;
    cluster *c;
} frame;

int e2e_setup(void **state)
{
    frame *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->test = *state;
    f->c = cluster_create();
    *state = f;
    return 0;
}

void e2e_run(void **state)
{
    frame *f = *state;

    f->test->fn(f->c);
    stop_all(f->c);
    f->c->failed = false;
}

int e2e_teardown(void **state)
{
    frame *f = *state;

    cluster_free(f->c);
    free(f);
    return 0;
}

int e2e_shared_setup(void (*make)(cluster *c))
{
    shared = cluster_create();
    make(shared);
    shared->failed = false;
    return 0;
}

void e2e_shared_run(void **state)
{
    const e2e_case *test = *state;
    bool failed_before = shared->failed;

    shared->failed = true;
    test->fn(shared);
    shared->failed = failed_before;
}

int e2e_shared_teardown(void **state)
{
    bool failed = shared->failed;

    (void)state;
    if (!failed) {
        shared->failed = true;
        stop_all(shared);
        shared->failed = false;
    }
    cluster_free(shared);
    shared = NULL;
    return 0;
}
