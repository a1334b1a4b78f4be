/* Layers that are still being computed when they are handed over, as they are on a GPU: nothing is
 * put before its layer is there, nobody waits for another's layer, and a device that fails or hangs
 * ends the push. And the refusals that GPU memory brings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/kv_wire_impl.h"
#include "kernels/ops.h"
#include "tests/unit/kv_memory.h"
#include "tests/unit/kv_one.h"

#include <stdatomic.h>
#include <string.h>

/* An event of a device that is not there. */
typedef struct fake_event {
    td_event head;
    _Atomic int status; /* td_status that a query says */
    _Atomic int asked;
} fake_event;

static td_status fake_query(td_event *e)
{
    fake_event *f = (fake_event *)e;

    atomic_fetch_add(&f->asked, 1);
    return (td_status)atomic_load(&f->status);
}

static td_status query(td_event *e)
{
    return e ? e->query(e) : TD_OK;
}

static fake_event pending(void)
{
    return (fake_event){.head = {.query = fake_query}, .status = TD_PENDING};
}

static void push_from(one_process *o, td_kv_push *p, int i, int32_t layer, fake_event *e)
{
    for (int32_t l = layer; l < o->w.src.n_layers; l++)
        td_kv_push_layer(p, 0, l, 0, o->w.req[i].n_tokens, e ? &e->head : NULL);
}

static td_kv_push *open_push(one_process *o, int i, td_usec lease)
{
    td_kv_push_params a = one_params(o, i);
    td_kv_push *p = NULL;

    a.lease_deadline = lease;
    assert_int_equal(td_kv_push_open(&o->source, 1, &a, &p, NULL), TD_OK);
    return p;
}

static void wait_asked(fake_event *e, int n)
{
    td_usec deadline = td_now_us() + PATIENCE_US;

    while (atomic_load(&e->asked) < n)
        assert_true(td_now_us() < deadline);
}

static void check_memory_is(one_process *o, kv_expect first, kv_expect second)
{
    const kv_expect states[2] = {first, second};

    td_kv_sink_settle(o->sink);
    assert_int_equal(kv_world_check(&o->w, &o->dst, states), 0);
}

static void test_kv_events_layer_that_is_not_computed_holds_up_only_itself(void **state)
{
    (void)state;
    const td_kv_wire_options opt = {.query_event = query};
    one_process *o = one_start(&opt, 2);
    fake_event e = pending();
    td_kv_push *slow = open_push(o, 0, TD_USEC_NEVER), *fast = open_push(o, 1, TD_USEC_NEVER);

    push_from(o, slow, 0, 0, &e); /* the older one: its turn comes first */
    push_from(o, fast, 1, 0, NULL);
    td_kv_push_finish(fast, TD_OK, 7, 0, NULL);
    one_wait(o, &o->n_done, 1);
    one_wait(o, &o->n_notices, 1);
    assert_int_equal(o->status, TD_OK);
    assert_int_equal(o->notice.request, 2);
    wait_asked(&e, 10); /* by a thread that nobody wakes */
    check_memory_is(o, KV_ABSENT, KV_LANDED);

    atomic_store(&e.status, TD_OK); /* by hand, as a GPU does: without a word to the thread */
    td_kv_push_finish(slow, TD_OK, 8, 0, NULL);
    one_wait(o, &o->n_done, 2);
    one_wait(o, &o->n_notices, 2);
    assert_int_equal(o->status, TD_OK);
    assert_int_equal(o->notice.request, 1);
    check_memory_is(o, KV_LANDED, KV_LANDED);
    td_kv_push_free(slow);
    td_kv_push_free(fast);
    one_stop(o);
}

static void test_kv_events_device_that_fails_ends_the_push(void **state)
{
    (void)state;
    const td_kv_wire_options opt = {.query_event = query};
    one_process *o = one_start(&opt, 2);
    fake_event e = pending();
    td_kv_push *p = open_push(o, 0, TD_USEC_NEVER);

    push_from(o, p, 0, 0, &e);
    wait_asked(&e, 1);
    atomic_store(&e.status, TD_DEVICE);
    one_wait(o, &o->n_notices, 1); /* before the engine says anything */
    assert_int_equal(o->notice.status, TD_DEVICE);
    assert_int_equal(td_kv_push_status(p), TD_DEVICE);
    td_kv_push_finish(p, TD_DEVICE, 0, 0, NULL);
    one_wait(o, &o->n_done, 1);
    assert_int_equal(o->status, TD_DEVICE);
    check_memory_is(o, KV_ABSENT, KV_ABSENT);
    td_kv_push_free(p);
    one_stop(o);
}

/* The lease fences a push whose device never answers, and a cancel does not wait for it. */
static void test_kv_events_device_that_hangs_holds_nobody(void **state)
{
    (void)state;
    const td_kv_wire_options opt = {.query_event = query};
    one_process *o = one_start(&opt, 2);
    fake_event e = pending();
    td_kv_push *late = open_push(o, 0, td_now_us() + 100 * TD_USEC_PER_MSEC),
               *gone = open_push(o, 1, TD_USEC_NEVER);

    push_from(o, late, 0, 0, &e);
    one_wait(o, &o->n_notices, 1);
    assert_int_equal(o->notice.status, TD_DEADLINE);
    push_from(o, gone, 1, 0, &e);
    td_kv_push_cancel(gone);
    one_wait(o, &o->n_notices, 2);
    assert_int_equal(o->notice.status, TD_CANCELED);
    td_kv_push_cancel(late);
    one_wait(o, &o->n_done, 2);
    check_memory_is(o, KV_ABSENT, KV_ABSENT);
    td_kv_push_free(late);
    td_kv_push_free(gone);
    one_stop(o);
}

/* Prefill on a GPU, decode on a CPU, or the other way round. */
static void test_kv_events_other_kind_of_memory_is_refused_by_name(void **state)
{
    (void)state;
    one_process *o = one_start(NULL, 1);
    td_kv_push_params a = one_params(o, 0);
    td_kv_descriptor d;
    td_buf changed = {0};
    td_kv_push *p = NULL;
    td_error err = {0};

    assert_int_equal(td_kv_descriptor_parse(a.descriptor, &d, NULL), TD_OK);
    d.rank[0].memory = TD_KV_CUDA;
    kv_descriptor_write(&changed, &d);
    a.descriptor = (td_slice){changed.ptr, changed.len};
    assert_int_equal(td_kv_push_open(&o->source, 1, &a, &p, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "here keeps its KV in GPU memory"));
    assert_non_null(strstr(err.text, "--backend"));
    assert_null(p);
    td_buf_free(&changed);
    one_stop(o);
}

static void test_kv_events_ucx_without_cuda_is_named_with_a_remedy(void **state)
{
    (void)state;
    const td_kv_wire_options opt = {0};
    td_error err = {0};

    assert_int_equal(td_kv_wire_check(&opt, TD_KV_HOST, 0, &err), TD_OK);
    if (kv_memory_has_cuda())
        skip(); /* its UCX may well have CUDA */
    assert_int_equal(td_kv_wire_check(&opt, TD_KV_CUDA, 0, &err), TD_UNAVAILABLE);
    assert_non_null(strstr(err.text, "no CUDA transports"));
    assert_non_null(strstr(err.text, "ucx_ROOT"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_events_layer_that_is_not_computed_holds_up_only_itself),
        cmocka_unit_test(test_kv_events_device_that_fails_ends_the_push),
        cmocka_unit_test(test_kv_events_device_that_hangs_holds_nobody),
        cmocka_unit_test(test_kv_events_other_kind_of_memory_is_refused_by_name),
        cmocka_unit_test(test_kv_events_ucx_without_cuda_is_named_with_a_remedy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
