/* The KV transfer between real processes, over shared memory and over TCP: data exact, every push
 * answered, and either side killed, frozen, late or canceled.
 *
 * Nothing here waits for time to pass: every wait is for a message, with a deadline that fails the
 * test. Over "shm" UCX takes 4.5 MB of /dev/shm and as much SysV shared memory for each worker;
 * "tcp" and "auto" need none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/hash.h"
#include "common/kv_push.h"
#include "common/kv_wire.h"
#include "tests/unit/kv_one.h"
#include "tests/unit/kv_pair.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------ whole transfers */

static const char *const transports[][2] = {{"shm", "posix"}, {"tcp", "tcp"}};

static void test_kv_wire_lands_every_byte_for_all_pairs_of_splits(void **state)
{
    (void)state;
    const int32_t splits[][2] = {{1, 1}, {2, 4}, {4, 1}};

    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 3; i++) {
            kv_scenario s = scenario(transports[t][0], splits[i][0], splits[i][1]);

            transfer_all(&s, transports[t][1]);
        }
}

/* What UCX makes of puts without hardware for them; on GPUs and RDMA they are the only way. */
static void test_kv_wire_lands_every_byte_by_puts(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 4);

        s.method = TD_KV_METHOD_PUT;
        transfer_all(&s, transports[t][1]);
    }
}

static void test_kv_wire_auto_shares_no_queue_with_others(void **state)
{
    (void)state;
    kv_scenario s = scenario("auto", 2, 2);

    transfer_all(&s, "tcp");
}

static void test_kv_wire_keeps_64_interleaved_requests_apart(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 4);
        kv_expect all[KV_MAX_REQUESTS];

        s.n_requests = 64;
        s.max_tokens = 300;
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
}

static void test_kv_wire_digests_of_sources_add_up_to_the_sinks(void **state)
{
    (void)state;
    kv_scenario s = scenario("shm", 4, 2);

    s.verify = 1;
    pair *p = pair_start(&s);
    for (int i = 0; i < s.n_requests; i++) {
        push_whole(p, i);
        wait_complete(p, i);
        kv_msg m = {.kind = KV_M_DIGEST, .request = i};
        assert_true(p->arrival[i].has_digest);
        assert_int_equal(ask_sink(p, m), (int64_t)p->arrival[i].digest);
    }
    pair_stop(p);
}

/* A model whose layers all see only the query itself: a prompt leaves nothing to move. */
static void test_kv_wire_completes_when_there_is_nothing_to_move(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 1);
        const kv_expect none[3] = {KV_ABSENT, KV_ABSENT, KV_ABSENT};

        s.window = 1;
        s.all_windowed = 1;
        pair *p = pair_start(&s);
        for (int i = 0; i < 3; i++) {
            push_whole(p, i);
            wait_complete(p, i);
            assert_int_equal(p->done[i].number, 0);
        }
        check_memory(p, none);
        pair_stop(p);
    }
}

/* ------------------------------------------------------------------ pushes that do not finish */

static void test_kv_wire_cancel_in_mid_push_is_reported_to_both_sides(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 4);
        const kv_expect states[3] = {KV_PARTIAL, KV_LANDED, KV_ABSENT};

        s.min_tokens = 300;
        pair *p = pair_start(&s);
        push_open(p, 0, -1);
        push_layers(p, 0, 0, 2);
        push_cancel(p, 0);
        push_open(p, 2, -1); /* canceled before anything was put */
        push_cancel(p, 2);
        push_whole(p, 1);
        wait_done(p, 0, TD_CANCELED);
        wait_done(p, 2, TD_CANCELED);
        wait_complete(p, 1);
        for (int i = 0; i < 3; i += 2) {
            wait_notices(p, i);
            assert_int_equal(td_kv_arrival_state_of(&p->arrival[i]), TD_KV_ARRIVAL_FAILED);
            assert_int_equal(p->arrival[i].status, TD_CANCELED);
        }
        check_memory(p, states);
        pair_stop(p);
    }
}

static void test_kv_wire_failed_prefill_is_reported_with_its_status(void **state)
{
    (void)state;
    kv_scenario s = scenario("tcp", 2, 2);
    pair *p = pair_start(&s);

    push_open(p, 0, -1);
    push_layers(p, 0, 0, 1);
    push_finish(p, 0, TD_DEVICE);
    wait_done(p, 0, TD_DEVICE);
    wait_notices(p, 0);
    assert_int_equal(td_kv_arrival_state_of(&p->arrival[0]), TD_KV_ARRIVAL_FAILED);
    assert_int_equal(p->arrival[0].status, TD_DEVICE);
    pair_stop(p);
}

static void test_kv_wire_finish_without_all_layers_is_an_error(void **state)
{
    (void)state;
    kv_scenario s = scenario("shm", 1, 1);
    pair *p = pair_start(&s);

    push_open(p, 0, -1);
    push_layers(p, 0, 0, s.n_layers - 1);
    push_finish(p, 0, TD_OK);
    wait_done(p, 0, TD_INTERNAL);
    wait_notices(p, 0);
    assert_int_equal(td_kv_arrival_state_of(&p->arrival[0]), TD_KV_ARRIVAL_FAILED);
    pair_stop(p);
}

/* Past the lease nothing is put, and the decode side is told while the engine still computes. */
static void test_kv_wire_starts_no_put_after_the_lease(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 1);
        const kv_expect states[3] = {KV_ABSENT, KV_PARTIAL, KV_LANDED};

        pair *p = pair_start(&s);
        push_open(p, 0, 0); /* over before it begins */
        push_layers(p, 0, 0, s.n_layers);
        push_finish(p, 0, TD_OK);
        wait_done(p, 0, TD_DEADLINE);
        assert_int_equal(p->done[0].number, 0);
        assert_int_equal(p->done[0].count, 0);

        push_open(p, 1, 100 * TD_USEC_PER_MSEC); /* runs out before the engine has finished */
        push_layers(p, 1, 0, 2);
        wait_notices(p, 1);
        assert_int_equal(p->arrival[1].status, TD_DEADLINE);
        assert_false(p->has_done[1]);
        push_layers(p, 1, 2, 4);
        push_finish(p, 1, TD_OK);
        wait_done(p, 1, TD_DEADLINE);

        push_whole(p, 2);
        wait_complete(p, 2);
        check_memory(p, states);
        pair_stop(p);
    }
}

static void test_kv_wire_put_that_does_not_start_fails_the_push_at_once(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 4);
        const kv_expect states[3] = {KV_PARTIAL, KV_ABSENT, KV_ABSENT};

        s.fail_put_number = 3;
        s.min_tokens = 300;
        pair *p = pair_start(&s);
        push_open(p, 0, -1);
        push_layers(p, 0, 0, 2);
        wait_notices(p, 0); /* before finish: decode need not wait for the rest of prefill */
        assert_int_equal(td_kv_arrival_state_of(&p->arrival[0]), TD_KV_ARRIVAL_FAILED);
        assert_int_equal(p->arrival[0].puts, 2 * 2);
        push_finish(p, 0, TD_OK);
        wait_done(p, 0, TD_UNAVAILABLE);
        assert_non_null(strstr(p->done[0].text, "put 3"));
        check_memory(p, states);
        pair_stop(p);
    }
}

/* ------------------------------------------------------------------ peers that die or freeze */

/* Kill the source when some of its pushes have arrived and others are on their way. Not over shared
 * memory: there a killed source can block the sink (see td_kv_wire_options). */
static void test_kv_wire_sink_survives_the_death_of_a_source(void **state)
{
    (void)state;
    kv_scenario s = scenario("tcp", 2, 4);
    kv_expect states[KV_MAX_REQUESTS];

    s.n_requests = 40;
    s.min_tokens = 600;
    pair *p = pair_start(&s);
    push_whole(p, 1);
    wait_complete(p, 1); /* UCX 1.13 aborts a process whose peer dies while they connect */
    push_open(p, 0, -1); /* never finished */
    push_layers(p, 0, 0, 2);
    for (int i = 2; i < 39; i++)
        push_whole(p, i);
    pair_wait_count(p, &p->n_notices, 10, NULL, "ten notices");
    kill_process(&p->source);
    for (int i = 0; i < 40; i++)
        states[i] = KV_PARTIAL;

    pair_start_source(p);
    kv_msg settle = {.kind = KV_M_SETTLE};
    ask_sink(p, settle);
    pair_tell_destination(p);
    push_whole(p, 39);
    wait_complete(p, 39);
    assert_int_equal(td_kv_arrival_state_of(&p->arrival[0]), TD_KV_ARRIVAL_PENDING);
    for (int i = 1; i < 40; i++)
        if (td_kv_arrival_state_of(&p->arrival[i]) == TD_KV_ARRIVAL_COMPLETE)
            states[i] = KV_LANDED;
    check_memory(p, states);
    pair_stop(p);
}

static void test_kv_wire_source_ends_its_push_when_the_sink_dies_and_finds_the_next(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 4);
        const kv_expect states[3] = {KV_ABSENT, KV_ABSENT, KV_LANDED};

        s.min_tokens = 300;
        pair *p = pair_start(&s);
        push_whole(p, 0);
        wait_complete(p, 0);
        push_open(p, 1, -1);
        push_layers(p, 1, 0, 2);
        kill_process(&p->sink);
        push_layers(p, 1, 2, s.n_layers);
        push_finish(p, 1, TD_OK);
        /* What fits into a shared memory queue is gone from the source's point of view. */
        pair_wait(p, &p->has_done[1], "on_done");
        if (t == 1)
            wait_done(p, 1, TD_UNAVAILABLE);
        assert_int_equal(p->notices[1], 0);

        pair_start_sink(p);
        pair_tell_destination(p);
        push_whole(p, 2);
        wait_complete(p, 2);
        check_memory(p, states);
        pair_stop(p);
    }
}

/* A frozen peer is no error to UCX: our own timeout must end the pushes, and the endpoint made anew
 * must work once the peer is back. 15 requests are more than any socket buffers. */
static void test_kv_wire_source_gives_up_a_frozen_sink(void **state)
{
    (void)state;
    kv_scenario s = scenario("tcp", 2, 4);
    kv_expect states[17];

    s.stall_us = 300 * TD_USEC_PER_MSEC;
    s.head_dim = 64;
    s.min_tokens = 600;
    s.n_requests = 17;
    pair *p = pair_start(&s);
    push_whole(p, 0);
    wait_complete(p, 0);
    kill(p->sink.pid, SIGSTOP);
    for (int i = 1; i < 16; i++)
        push_whole(p, i);
    wait_done(p, 15, TD_UNAVAILABLE);
    assert_non_null(strstr(p->done[15].text, "nothing moved"));
    kill(p->sink.pid, SIGCONT);
    kv_msg settle = {.kind = KV_M_SETTLE};
    ask_sink(p, settle);
    push_whole(p, 16);
    wait_complete(p, 16);
    for (int i = 0; i < 17; i++)
        states[i] = i == 0 || i == 16 ? KV_LANDED : KV_PARTIAL;
    check_memory(p, states);
    pair_stop(p);
}

static void test_kv_wire_source_close_ends_pushes_that_are_open(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        kv_scenario s = scenario(transports[t][0], 2, 2);
        pair *p = pair_start(&s);
        kv_msg bye = {.kind = KV_M_QUIT};

        push_open(p, 0, -1);
        push_layers(p, 0, 0, 2);
        kv_process_send(&p->source, &bye);
        wait_done(p, 0, TD_CANCELED);
        quit(&p->source);
        wait_notices(p, 0);
        pair_stop(p);
    }
}

/* ------------------------------------------------------------------ both ends in one process */

static void test_kv_wire_works_within_one_process(void **state)
{
    (void)state;
    one_process *o = one_start(NULL, 1);
    td_kv_push_params a = one_params(o, 0);
    const kv_expect landed = KV_LANDED;
    const td_logprobs logprobs = {.n = 1, .chosen = -2, .id = {6}, .logprob = {-0.5f}};
    td_kv_push *push;

    assert_int_equal(td_kv_push_open(&o->source, 1, &a, &push, NULL), TD_OK);
    for (int32_t layer = 0; layer < o->w.src.n_layers; layer++)
        td_kv_push_layer(push, 0, layer, 0, a.n_tokens, NULL);
    td_kv_push_finish(push, TD_OK, 5, 0, &logprobs);
    td_kv_push_free(push); /* on_done comes all the same */
    one_wait(o, &o->n_done, 1);
    one_wait(o, &o->n_notices, 1);
    assert_int_equal(o->status, TD_OK);
    assert_int_equal(o->notice.first_token, 5);
    assert_memory_equal(&o->notice.logprobs, &logprobs, sizeof logprobs);
    td_kv_sink_settle(o->sink);
    assert_int_equal(kv_world_check(&o->w, &o->dst, &landed), 0);
    one_stop(o);
}

static void test_kv_push_open_refuses_a_destination_that_does_not_fit(void **state)
{
    (void)state;
    one_process *o = one_start(NULL, 1);
    const td_kv_push_params good = one_params(o, 0);
    const td_kv_extent outside = {o->w.dst.n_pages - 1, 100};
    char damaged[4096];
    td_kv_push *push = NULL;
    td_error err = {0};

    memcpy(damaged, good.descriptor.ptr, good.descriptor.len);
    damaged[good.descriptor.len / 2] ^= 1;
    for (int i = 0; i < 9; i++) {
        td_kv_push_params a = good;

        switch (i) {
        case 0: a.dst_tp = 3; break;               /* does not divide the heads */
        case 1: a.dst_tp = 2; break;               /* not as many ranks as described */
        case 2: a.dst_n_pages++; break;            /* another region size */
        case 3: a.dst_ring = a.dst_n_rings; break; /* no such ring */
        case 4: a.dst_ring_pages = 1; break;       /* cannot hold the window */
        case 5:
            a.dst_n_extents = 1;
            a.dst_extents = &outside;
            break;
        case 6: a.dst_n_extents = 0; break; /* does not cover the prompt */
        case 7: a.descriptor.ptr = damaged; break;
        case 8: a.n_tokens = 0; break;
        }
        if (td_kv_push_open(&o->source, 1, &a, &push, &err) != TD_INVALID)
            fail_msg("case %d was accepted", i);
        assert_null(push);
        assert_true(err.text[0] != '\0');
    }
    assert_int_equal(o->n_done, 0);
    one_stop(o);
}

/* ------------------------------------------------------------------ bad input */

static void test_kv_wire_refuses_a_transport_that_is_none(void **state)
{
    (void)state;
    td_kv_wire_options opt = {.transport = "pigeon"};
    char memory[64];
    td_kv_region region = {.base = memory, .bytes = sizeof memory};
    td_kv_sink *sink = NULL;
    td_error err = {0};

    assert_int_equal(td_kv_sink_open(&opt, 1, &region, 1, NULL, NULL, &sink, &err), TD_INVALID);
    assert_string_equal(err.param, "kv-transport");
    assert_null(sink);
    opt.transport = "tcp";
    assert_int_equal(td_kv_sink_open(&opt, 1, &region, 0, NULL, NULL, &sink, &err), TD_INVALID);
    region.bytes = 0;
    assert_int_equal(td_kv_sink_open(&opt, 1, &region, 1, NULL, NULL, &sink, &err), TD_INVALID);
}

static void test_kv_wire_network_device_that_is_not_there_is_named(void **state)
{
    (void)state;
    td_kv_wire_options opt = {.transport = "tcp", .net_devices = "nodev7"};
    char memory[64];
    td_kv_region region = {.base = memory, .bytes = sizeof memory};
    td_kv_sink *sink = NULL;
    td_error err = {0};

    assert_int_not_equal(td_kv_sink_open(&opt, 1, &region, 1, NULL, NULL, &sink, &err), TD_OK);
    assert_non_null(strstr(err.text, "nodev7"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_wire_lands_every_byte_for_all_pairs_of_splits),
        cmocka_unit_test(test_kv_wire_lands_every_byte_by_puts),
        cmocka_unit_test(test_kv_wire_auto_shares_no_queue_with_others),
        cmocka_unit_test(test_kv_wire_keeps_64_interleaved_requests_apart),
        cmocka_unit_test(test_kv_wire_digests_of_sources_add_up_to_the_sinks),
        cmocka_unit_test(test_kv_wire_completes_when_there_is_nothing_to_move),
        cmocka_unit_test(test_kv_wire_cancel_in_mid_push_is_reported_to_both_sides),
        cmocka_unit_test(test_kv_wire_failed_prefill_is_reported_with_its_status),
        cmocka_unit_test(test_kv_wire_finish_without_all_layers_is_an_error),
        cmocka_unit_test(test_kv_wire_starts_no_put_after_the_lease),
        cmocka_unit_test(test_kv_wire_put_that_does_not_start_fails_the_push_at_once),
        cmocka_unit_test(test_kv_wire_sink_survives_the_death_of_a_source),
        cmocka_unit_test(test_kv_wire_source_ends_its_push_when_the_sink_dies_and_finds_the_next),
        cmocka_unit_test(test_kv_wire_source_gives_up_a_frozen_sink),
        cmocka_unit_test(test_kv_wire_source_close_ends_pushes_that_are_open),
        cmocka_unit_test(test_kv_wire_works_within_one_process),
        cmocka_unit_test(test_kv_push_open_refuses_a_destination_that_does_not_fit),
        cmocka_unit_test(test_kv_wire_refuses_a_transport_that_is_none),
        cmocka_unit_test(test_kv_wire_network_device_that_is_not_there_is_named),
    };

    kv_process_main_if_child(argc, argv);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("kv_wire", tests, NULL, NULL);
}
