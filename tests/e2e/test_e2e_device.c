/* A device that breaks or hangs under a worker (--fault-step plays it on the CPU): what was in
 * flight goes elsewhere or is told, the worker says that it is not well and ends with its own exit
 * code, soon, and holds nobody up. */
#include <stdio.h>
#include <string.h>

#include "tests/e2e/cluster.h"

#define QUICK_ROUTER "--recovery-timeout 600ms --lease 4s"
/* Far above any step, which is slow under a sanitizer, and for the tests' sake not more. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEP_TIMEOUT "--step-timeout 2s"
#else
#define STEP_TIMEOUT "--step-timeout 500ms"
#endif

/* Exit codes; common/worker_watch.h. */
enum { DEVICE_FAILED = 3, DEVICE_HANGS = 4 };

static const want story = {.prompt = "a long story", .max_tokens = 200, .stream = true};

static void check_told(const ask *a)
{
    assert_non_null(a->error);
    assert_true(strlen(ask_error(a, "message")) > 0);
    assert_false(a->done);
}

/* The story is what it is without the worker that breaks in the middle of it. */
static void check_decode_replaced(cluster *c, const char *fault, int code, const char *says)
{
    process *broken;
    ask alone, hit;
    size_t said;

    cluster_router(c, ""); /* it waits for the other one to come up */
    cluster_prefill(c, "");
    broken = cluster_decode(c, fault);
    cluster_ready(c);
    ask_chat(&hit, cluster_port(c), &story);
    ASKS_UNTIL(hit.n_pieces > 4, &hit, 1);
    said = ask_said(&hit);
    cluster_decode(c, "");
    assert_int_equal(process_wait(broken, EXIT_DEADLINE_MS), code);
    assert_true(process_logged(broken, says));
    asks_wait(&hit, 1);
    ask_whole(&alone, cluster_port(c), &story);
    ask_assert_carried(&alone, &hit, said, cluster_is_cuda());
    ask_free(&alone);
    ask_free(&hit);
}

static void test_decode_device_fails(cluster *c)
{
    check_decode_replaced(c, "--fault-step 60", DEVICE_FAILED, "status=DEVICE");
}

static void test_decode_device_hangs(cluster *c)
{
    check_decode_replaced(c, "--fault-step -60 " STEP_TIMEOUT, DEVICE_HANGS, "late=\"rank 0 ");
}

/* Nobody to go to: the client is told, whatever broke. says: in the log of what broke. */
static void check_last_one(cluster *c, const char *prefill, const char *decode, int code,
                           const char *says)
{
    process *p, *d, *broken;
    ask hit, next;

    cluster_router(c, QUICK_ROUTER);
    p = cluster_prefill(c, prefill);
    d = cluster_decode(c, decode);
    broken = prefill[0] != '\0' ? p : d;
    cluster_ready(c);
    ask_chat(&hit, cluster_port(c), &story);
    assert_int_equal(process_wait(broken, EXIT_DEADLINE_MS), code);
    assert_true(process_logged(broken, says));
    asks_wait(&hit, 1);
    check_told(&hit);
    ask_whole(&next, cluster_port(c), &(want){.max_tokens = 2});
    assert_int_equal(next.status, 503);
    if (broken == p)
        E2E_AWAIT(decode_is_empty(d));
    else
        E2E_AWAIT(prefill_is_empty(p));
    ask_free(&hit);
    ask_free(&next);
}

static void test_last_decode_device_fails(cluster *c)
{
    check_last_one(c, "", "--fault-step 20", DEVICE_FAILED, "status=DEVICE");
}

static void test_last_decode_device_hangs(cluster *c)
{
    check_last_one(c, "", "--fault-step -20 " STEP_TIMEOUT, DEVICE_HANGS, "late=\"rank 0 ");
}

/* Two ranks; on one GPU, as there may be no more. */
static const char *two_ranks(char *out, size_t n, const char *fault)
{
    bool cuda = cluster_is_cuda();

    snprintf(out, n, "--tp 2 %s %s", cuda ? "--devices 0,0" : "", fault);
    return out;
}

/* The other rank waits for the one that broke: it is let go, or ended with it. */
static void test_one_device_of_two_fails(cluster *c)
{
    char options[128];

    check_last_one(c, "", two_ranks(options, sizeof options, "--fault-step 21"), DEVICE_FAILED,
                   "status=DEVICE");
}

static void test_one_device_of_two_hangs(cluster *c)
{
    char options[128];

    two_ranks(options, sizeof options, "--fault-step -1 " STEP_TIMEOUT);
    check_last_one(c, options, "", DEVICE_HANGS, "late=\"rank ");
}

static void test_last_prefill_device_fails(cluster *c)
{
    check_last_one(c, "--fault-step 1", "", DEVICE_FAILED, "status=DEVICE");
}

static void test_last_prefill_device_hangs(cluster *c)
{
    check_last_one(c, "--fault-step -1 " STEP_TIMEOUT, "", DEVICE_HANGS, "late=\"rank 0 ");
}

/* In the second of many chunks, when the first one's KV is on its way: another worker reads the
 * prompt again, and what decode holds for the attempt comes back. */
static void test_prefill_device_fails_in_mid_prompt(cluster *c)
{
    const want prompt = {.prompt = " long", .repeat = 1500, .max_tokens = 20};
    process *broken, *d;
    ask alone, hit;

    /* A second attempt may reach the worker while it goes away and get no answer: then only the
     * lease says when nothing can land any more. */
    cluster_router(c, "--lease 10s");
    broken = cluster_prefill(c, "--chunk 128 --fault-step 2");
    d = cluster_decode(c, "--fence-grace 200ms");
    cluster_ready(c);
    cluster_prefill(c, "");
    ask_chat(&hit, cluster_port(c), &prompt); /* the other one may not be registered yet */
    assert_int_equal(process_wait(broken, EXIT_DEADLINE_MS), DEVICE_FAILED);
    asks_wait(&hit, 1);
    ask_whole(&alone, cluster_port(c), &prompt);
    ask_assert_same(&alone, &hit);
    E2E_AWAIT(decode_is_empty(d));
    ask_free(&alone);
    ask_free(&hit);
}

/* Steps launched kernel by kernel say what graphs say. */
static void test_steps_without_graphs(cluster *c)
{
    process *d;
    ask with, without;

    if (!cluster_is_cuda())
        skip(); /* the CPU has none */
    cluster_router(c, "");
    cluster_prefill(c, "");
    d = cluster_decode(c, "");
    cluster_ready(c);
    ask_whole(&with, cluster_port(c), &story);
    assert_false(process_logged(d, "graphs_mib=0"));
    process_stop(d, EXIT_DEADLINE_MS);
    d = cluster_decode(c, "--no-cuda-graphs");
    cluster_ready(c);
    ask_whole(&without, cluster_port(c), &story);
    assert_true(process_logged(d, "graphs_mib=0"));
    ask_assert_same(&with, &without);
    ask_free(&with);
    ask_free(&without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_decode_device_fails),
        E2E_TEST(test_decode_device_hangs),
        E2E_TEST(test_last_decode_device_fails),
        E2E_TEST(test_last_decode_device_hangs),
        E2E_TEST(test_one_device_of_two_fails),
        E2E_TEST(test_one_device_of_two_hangs),
        E2E_TEST(test_last_prefill_device_fails),
        E2E_TEST(test_last_prefill_device_hangs),
        E2E_TEST(test_prefill_device_fails_in_mid_prompt),
        E2E_TEST(test_steps_without_graphs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
