/* The KV transfer from GPU memory to GPU memory, between real processes: data exact, by UCX's CUDA
 * transports, and either side killed or frozen. Needs a GPU and a UCX with CUDA; "not run", exit
 * 77, without a GPU. With two GPUs the source's memory is on the first and the sink's on the second
 * as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/kv_memory.h"
#include "tests/unit/kv_pair.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { NOT_RUN = 77 };

static kv_scenario cuda_scenario(int32_t src_tp, int32_t dst_tp)
{
    kv_scenario s = scenario("auto", src_tp, dst_tp);

    s.cuda = 1;
    s.min_tokens = 300;
    s.head_dim = 64;
    return s;
}

static void test_kv_cuda_lands_every_byte_for_all_pairs_of_splits(void **state)
{
    (void)state;
    const int32_t splits[][2] = {{1, 1}, {2, 4}, {4, 1}};

    for (int i = 0; i < 3; i++) {
        kv_scenario s = cuda_scenario(splits[i][0], splits[i][1]);

        s.n_requests = 8;
        transfer_all(&s, "cuda_ipc");
    }
}

static void test_kv_cuda_lands_every_byte_on_another_gpu(void **state)
{
    (void)state;
    kv_scenario s = cuda_scenario(2, 1);
    uint64_t left, all;
    const td_ops *ops;

    if (td_ops_find("cuda", &ops, NULL) != TD_OK || ops->dev_memory(1, &left, &all, NULL) != TD_OK)
        skip();
    s.dst_device = 1;
    transfer_all(&s, "cuda_ipc");
}

/* Hosts that share no GPU: staged through host memory by either side. */
static void test_kv_cuda_lands_every_byte_over_tcp(void **state)
{
    (void)state;
    kv_scenario s = cuda_scenario(2, 1);

    snprintf(s.transport, sizeof s.transport, "tcp");
    transfer_all(&s, "tcp");
}

static void test_kv_cuda_keeps_64_interleaved_requests_apart(void **state)
{
    (void)state;
    kv_scenario s = cuda_scenario(1, 2);
    kv_expect all[KV_MAX_REQUESTS];

    s.n_requests = 64;
    pair *p = pair_start(&s);
    for (int i = 0; i < 64; i++)
        push_open(p, i, -1);
    for (int layer = 0; layer < s.n_layers; layer++)
        for (int i = 63; i >= 0; i--)
            push_layers(p, i, layer, layer + 1);
    for (int i = 0; i < 64; i++)
        push_finish(p, i * 5 % 64, TD_OK);
    for (int i = 0; i < 64; i++) {
        wait_complete(p, i);
        all[i] = KV_LANDED;
    }
    check_memory(p, all);
    pair_stop(p);
}

static void test_kv_cuda_sink_survives_the_death_of_a_source(void **state)
{
    (void)state;
    kv_scenario s = cuda_scenario(1, 2);
    kv_expect states[KV_MAX_REQUESTS];

    s.n_requests = 40;
    pair *p = pair_start(&s);
    push_open(p, 0, -1); /* never finished */
    push_layers(p, 0, 0, 2);
    for (int i = 1; i < 39; i++)
        push_whole(p, i);
    pair_wait_count(p, &p->n_notices, 5, NULL, "five notices");
    kill_process(&p->source);
    for (int i = 0; i < 40; i++)
        states[i] = KV_PARTIAL;

    pair_start_source(p);
    kv_msg settle = {.kind = KV_M_SETTLE};
    ask_sink(p, settle);
    pair_tell_destination(p);
    push_whole(p, 39);
    wait_complete(p, 39);
    for (int i = 1; i < 40; i++)
        if (td_kv_arrival_state_of(&p->arrival[i]) == TD_KV_ARRIVAL_COMPLETE)
            states[i] = KV_LANDED;
    check_memory(p, states);
    pair_stop(p);
}

static void test_kv_cuda_source_ends_its_push_when_the_sink_dies_and_finds_the_next(void **state)
{
    (void)state;
    kv_scenario s = cuda_scenario(2, 1);
    const kv_expect states[3] = {KV_ABSENT, KV_ABSENT, KV_LANDED};

    pair *p = pair_start(&s);
    push_whole(p, 0);
    wait_complete(p, 0);
    push_open(p, 1, -1);
    push_layers(p, 1, 0, 2);
    kill_process(&p->sink);
    push_layers(p, 1, 2, s.n_layers);
    push_finish(p, 1, TD_OK);
    td_usec t0 = td_now_us();
    wait_done(p, 1, TD_UNAVAILABLE);
    print_message("report: a dead sink noticed after %.0f ms: %s\n",
                  (double)(td_now_us() - t0) * 1e-3, p->done[1].text);
    assert_int_equal(p->notices[1], 0);

    pair_start_sink(p);
    pair_tell_destination(p);
    push_whole(p, 2);
    wait_complete(p, 2);
    check_memory(p, states);
    pair_stop(p);
}

/* One-sided puts need nothing of a frozen sink, but its notice does. */
static void test_kv_cuda_source_gives_up_a_frozen_sink_or_gets_through(void **state)
{
    (void)state;
    kv_scenario s = cuda_scenario(1, 1);
    kv_expect states[3] = {KV_LANDED, KV_PARTIAL, KV_LANDED};

    s.stall_us = 300 * TD_USEC_PER_MSEC;
    pair *p = pair_start(&s);
    push_whole(p, 0);
    wait_complete(p, 0);
    kill(p->sink.pid, SIGSTOP);
    push_whole(p, 1);
    pair_wait(p, &p->has_done[1], "on_done");
    print_message("report: with a frozen sink: %s %s\n",
                  td_status_name((td_status)p->done[1].status), p->done[1].text);
    kill(p->sink.pid, SIGCONT);
    kv_msg settle = {.kind = KV_M_SETTLE};
    ask_sink(p, settle);
    push_whole(p, 2);
    wait_complete(p, 2);
    if (td_kv_arrival_state_of(&p->arrival[1]) == TD_KV_ARRIVAL_COMPLETE)
        states[1] = KV_LANDED;
    check_memory(p, states);
    pair_stop(p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_cuda_lands_every_byte_for_all_pairs_of_splits),
        cmocka_unit_test(test_kv_cuda_lands_every_byte_on_another_gpu),
        cmocka_unit_test(test_kv_cuda_lands_every_byte_over_tcp),
        cmocka_unit_test(test_kv_cuda_keeps_64_interleaved_requests_apart),
        cmocka_unit_test(test_kv_cuda_sink_survives_the_death_of_a_source),
        cmocka_unit_test(test_kv_cuda_source_ends_its_push_when_the_sink_dies_and_finds_the_next),
        cmocka_unit_test(test_kv_cuda_source_gives_up_a_frozen_sink_or_gets_through),
    };

    const td_kv_wire_options opt = {.use_device = kv_memory_use_device};
    td_error err = {0};

    kv_process_main_if_child(argc, argv);
    if (!kv_memory_has_cuda()) {
        printf("not run: no GPU that this build can use\n");
        return NOT_RUN;
    }
    if (td_kv_wire_check(&opt, TD_KV_CUDA, 0, &err) == TD_UNAVAILABLE) {
        printf("not run: %s\n", err.text);
        return NOT_RUN;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
