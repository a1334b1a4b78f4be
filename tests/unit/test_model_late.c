/* Who holds up a step, asked from within the step: a rank that does not come while the others wait
 * for its sum, and devices that do not end. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/checkpoint.h"
#include "common/clock.h"
#include "common/comm.h"
#include "common/model.h"
#include "tests/unit/model_fixture.h"

enum { RANKS = 4, SLOW_RANK = 2, DEADLINE_S = 20 };

static td_model *model;
static const char *awaited; /* what td_model_late() is to say; NULL: nobody asks */
static _Atomic bool said;

/* Until it says so, or says so to another rank. */
static void hold_up(void)
{
    td_usec until = td_now_us() + DEADLINE_S * TD_USEC_PER_SEC;
    char text[512] = "";

    while (!atomic_load(&said) && td_now_us() < until) {
        td_model_late(model, text, sizeof text);
        if (strcmp(text, awaited) == 0)
            atomic_store(&said, true);
        sched_yield();
    }
    if (!atomic_load(&said))
        print_error("at the end: %s\n", text);
}

static td_status slow_experts(td_stream *s, const td_experts_args *a, td_error *err)
{
    if (awaited != NULL && a->expert_first == SLOW_RANK * a->E)
        hold_up();
    return td_ops_cpu.experts(s, a, err);
}

static td_status slow_sync(td_stream *s, td_error *err)
{
    if (awaited != NULL)
        hold_up();
    return td_ops_cpu.sync(s, err);
}

static td_status own_comm(const td_comm_options *o, td_comm **out, td_error *err)
{
    return td_comm_threads_open(&td_ops_cpu, o->n, out, err);
}

static void check_said(const td_ops *ops, const int32_t *devices, const char *text)
{
    td_model_options opt = {.backend = "cpu",
                            .ops = ops,
                            .tp = RANKS,
                            .ep = RANKS,
                            .devices = devices,
                            .threads = RANKS,
                            .kv_dtype = TD_KV_BF16,
                            .kv_pages = 2,
                            .kv_rings = 1,
                            .ring_pages = td_kv_ring_pages(fixture_config.window, 4),
                            .max_tokens = 4};
    int32_t tokens[] = {1, 2, 3};
    uint32_t page = 0;
    td_prefill_step step = {.tokens = tokens, .n = 3, .seq = {.pages = &page, .n_pages = 1}};
    td_checkpoint *c = NULL;
    td_error err = {0};
    char nobody[64];

    check_ok(td_checkpoint_random(&fixture_config, 11, &c, &err), &err);
    check_ok(td_model_open(c, &fixture_config, &opt, &model, &err), &err);
    td_checkpoint_close(c);
    atomic_store(&said, false);
    awaited = text;
    check_ok(td_model_prefill(model, &step, &err), &err);
    awaited = NULL;
    assert_true(said);
    td_model_late(model, nobody, sizeof nobody);
    assert_string_equal(nobody, "none: all ranks have returned");
    td_model_late(model, nobody, 4); /* cut, and whole up to there */
    assert_string_equal(nobody, "non");
    td_model_close(model);
}

static void test_model_names_the_rank_that_others_wait_for(void **state)
{
    td_ops ops = td_ops_cpu;

    (void)state;
    ops.experts = slow_experts;
    check_said(&ops, NULL, "rank 2 does not come to its end");
}

static void test_model_names_devices_that_do_not_end(void **state)
{
    static const int32_t devices[RANKS] = {5, 5, 3, 1};
    td_ops ops = td_ops_cpu;

    (void)state;
    ops.comm_open = own_comm;
    ops.sync = slow_sync;
    check_said(&ops, devices,
               "rank 0 (device 5) waits for its device, rank 1 (device 5) waits for its device, "
               "rank 2 (device 3) waits for its device, rank 3 (device 1) waits for its device");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_names_the_rank_that_others_wait_for),
        cmocka_unit_test(test_model_names_devices_that_do_not_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
