/* registry, placement, admission: the router's decisions, on made-up workers and made-up time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/pb_text.h"
#include "common/protocol.h"
#include "router/admission.h"
#include "router/placement.h"
#include "router/registry.h"

typedef struct fake {
    Tandem__WorkerMessage msg;
    Tandem__WorkerReport report;
    Tandem__ModelIdentity model;
} fake;

/* A well-formed first message of a ready worker; tests change what they are about. */
static fake *fake_init(fake *f, const char *id, Tandem__Role role)
{
    tandem__worker_message__init(&f->msg);
    tandem__worker_report__init(&f->report);
    tandem__model_identity__init(&f->model);
    f->msg.worker_id = td_pb_text(id);
    f->msg.incarnation = 7;
    f->msg.seq = 1;
    f->msg.report = &f->report;
    f->report.role = role;
    f->report.state = TANDEM__WORKER_STATE__STATE_READY;
    f->report.rpc_url = td_pb_text("tcp://127.0.0.1:5000");
    f->report.model = &f->model;
    f->report.heartbeat_ms = 500;
    f->report.major = TD_PROTOCOL_MAJOR;
    f->report.minor = TD_PROTOCOL_MINOR;
    f->report.pages_total = f->report.pages_free = 100;
    f->report.rings_total = f->report.rings_free = 8;
    f->report.max_batch = 8;
    f->report.max_prompt_tokens = 4096;
    f->model.name = td_pb_text("tiny");
    f->model.config_hash = 1;
    f->model.checkpoint_hash = 2;
    f->model.kv_wire_hash = 3;
    f->model.vocab = 2048;
    f->model.max_positions = 131072;
    return f;
}

static registry_change take(registry *r, fake *f, td_usec now)
{
    const worker_view *v;
    registry_change c;
    td_error err = {0};

    assert_int_equal(registry_message(r, &f->msg, now, &v, &c, &err), TD_OK);
    assert_non_null(v);
    f->msg.seq++;
    return c;
}

static registry *new_registry(void)
{
    registry *r;

    assert_int_equal(registry_create(2048, &r, NULL), TD_OK);
    return r;
}

static void test_registry_serves_once_both_roles_have_answered_hello(void **state)
{
    registry *r = new_registry();
    fake d, p;
    const char *why;

    (void)state;
    assert_int_equal(take(r, fake_init(&d, "d0", TANDEM__ROLE__ROLE_DECODE), 0), REGISTRY_JOINED);
    assert_int_equal(take(r, fake_init(&p, "p0", TANDEM__ROLE__ROLE_PREFILL), 0), REGISTRY_JOINED);
    assert_false(registry_can_serve(r, &why));
    assert_string_equal(why, "no prefill and no decode worker is ready");
    assert_true(registry_greeted(r, "d0", 7));
    assert_false(registry_can_serve(r, &why));
    assert_string_equal(why, "no prefill worker is ready");
    assert_false(registry_greeted(r, "p0", 8)); /* an answer of a former life */
    assert_true(registry_greeted(r, "p0", 7));
    assert_true(registry_can_serve(r, &why));
    p.report.state = TANDEM__WORKER_STATE__STATE_DRAINING;
    assert_int_equal(take(r, &p, 1), REGISTRY_STATE);
    assert_false(registry_can_serve(r, NULL));
    registry_free(r);
}

static void test_registry_sees_gaps_restarts_and_silence(void **state)
{
    registry *r = new_registry();
    fake d;

    (void)state;
    fake_init(&d, "d0", TANDEM__ROLE__ROLE_DECODE);
    assert_int_equal(take(r, &d, 0), REGISTRY_JOINED);
    registry_greeted(r, "d0", 7);
    assert_int_equal(take(r, &d, 0), REGISTRY_NONE);
    d.msg.seq += 2;
    assert_int_equal(take(r, &d, 0), REGISTRY_GAP);
    assert_int_equal(take(r, &d, 0), REGISTRY_NONE); /* said once */
    assert_null(registry_expired(r, 2 * TD_USEC_PER_SEC));
    assert_string_equal(registry_expired(r, 2 * TD_USEC_PER_SEC + 1)->id, "d0");
    d.msg.incarnation = 8;
    d.msg.seq = 1;
    assert_int_equal(take(r, &d, 2 * TD_USEC_PER_SEC + 1), REGISTRY_RESTARTED);
    assert_false(registry_find(r, "d0")->greeted);
    assert_true(registry_remove(r, "d0"));
    assert_false(registry_remove(r, "d0"));
    registry_free(r);
}

/* Two processes under one id: the first keeps it for as long as it is heard of. */
static void test_registry_leaves_an_id_to_the_worker_that_has_it(void **state)
{
    registry *r = new_registry();
    const worker_view *v;
    registry_change c;
    fake d, twin;

    (void)state;
    fake_init(&d, "d0", TANDEM__ROLE__ROLE_DECODE);
    fake_init(&twin, "d0", TANDEM__ROLE__ROLE_DECODE);
    twin.msg.incarnation = 8;
    twin.report.rpc_url = td_pb_text("tcp://127.0.0.1:6000");
    assert_int_equal(take(r, &d, 0), REGISTRY_JOINED);
    /* The end of the first may be about to be known: then this is its next life. */
    assert_int_equal(registry_message(r, &twin.msg, 1, &v, &c, NULL), TD_OK);
    assert_null(v);
    assert_int_equal(take(r, &d, TD_USEC_PER_SEC), REGISTRY_NONE);
    assert_int_equal(registry_message(r, &twin.msg, TD_USEC_PER_SEC + 1, &v, &c, NULL), TD_OK);
    assert_int_equal(c, REGISTRY_TWIN);
    assert_int_equal(v->incarnation, 8);
    assert_string_equal(v->rpc_url, "tcp://127.0.0.1:6000");
    assert_non_null(strstr(v->refused, "tcp://127.0.0.1:5000"));
    assert_int_equal(registry_find(r, "d0")->incarnation, 7);
    assert_int_equal(take(r, &d, 2 * TD_USEC_PER_SEC), REGISTRY_NONE);
    /* It goes, or is heard of no more: the other one may have the id. */
    assert_true(registry_remove(r, "d0"));
    assert_int_equal(take(r, &twin, 2 * TD_USEC_PER_SEC), REGISTRY_JOINED);
    d.msg.incarnation = 9;
    assert_int_equal(take(r, &d, 4 * TD_USEC_PER_SEC + 1), REGISTRY_RESTARTED);
    registry_free(r);
}

/* Too old to know what requests ask for, or of another major version; a newer minor one is taken.
 */
static void test_registry_refuses_versions_that_it_cannot_use(void **state)
{
    registry *r = new_registry();
    fake f;

    (void)state;
    fake_init(&f, "d0", TANDEM__ROLE__ROLE_DECODE);
    f.report.major = f.report.minor = 0; /* as one from before these fields */
    assert_int_equal(take(r, &f, 0), REGISTRY_REFUSED);
    assert_non_null(strstr(registry_find(r, "d0")->refused, "older than 1.2"));
    assert_false(registry_model_of(r)->known); /* nor does it say what the others must serve */
    fake_init(&f, "d1", TANDEM__ROLE__ROLE_DECODE);
    f.report.minor = TD_WORKER_MINOR_MIN - 1;
    assert_int_equal(take(r, &f, 0), REGISTRY_REFUSED);
    assert_non_null(strstr(registry_find(r, "d1")->refused, "speaks protocol 1.1"));
    fake_init(&f, "d2", TANDEM__ROLE__ROLE_DECODE);
    f.report.major = TD_PROTOCOL_MAJOR + 1;
    assert_int_equal(take(r, &f, 0), REGISTRY_REFUSED);
    assert_non_null(strstr(registry_find(r, "d2")->refused, "speaks protocol 2."));
    fake_init(&f, "d3", TANDEM__ROLE__ROLE_DECODE);
    f.report.minor = TD_PROTOCOL_MINOR + 7;
    assert_int_equal(take(r, &f, 0), REGISTRY_JOINED);
    registry_free(r);
}

static void test_registry_refuses_another_model_with_a_reason(void **state)
{
    registry *r = new_registry();
    fake a, b;

    (void)state;
    take(r, fake_init(&a, "d0", TANDEM__ROLE__ROLE_DECODE), 0);
    fake_init(&b, "p0", TANDEM__ROLE__ROLE_PREFILL);
    b.model.kv_wire_hash = 99;
    assert_int_equal(take(r, &b, 0), REGISTRY_REFUSED);
    assert_non_null(strstr(registry_find(r, "p0")->refused, "--kv-dtype"));
    fake_init(&b, "p1", TANDEM__ROLE__ROLE_PREFILL);
    b.model.checkpoint_hash = 99;
    assert_int_equal(take(r, &b, 0), REGISTRY_REFUSED);
    fake_init(&b, "p2", TANDEM__ROLE__ROLE_PREFILL);
    b.model.vocab = 11;
    assert_int_equal(take(r, &b, 0), REGISTRY_REFUSED);
    assert_non_null(strstr(registry_find(r, "p2")->refused, "tokenizer"));
    /* Once the last worker of the old model is gone, a new model may come. */
    registry_remove(r, "d0");
    fake_init(&b, "d9", TANDEM__ROLE__ROLE_DECODE);
    b.model.checkpoint_hash = 99;
    assert_int_equal(take(r, &b, 0), REGISTRY_JOINED);
    registry_free(r);
}

static void test_registry_a_malformed_message_changes_nothing(void **state)
{
    registry *r = new_registry();
    const worker_view *v;
    registry_change c;
    td_error err = {0};
    fake d;
    size_t n;

    (void)state;
    fake_init(&d, "", TANDEM__ROLE__ROLE_DECODE);
    assert_int_equal(registry_message(r, &d.msg, 0, &v, &c, &err), TD_INVALID);
    fake_init(&d, "bad\nid", TANDEM__ROLE__ROLE_DECODE);
    assert_int_equal(registry_message(r, &d.msg, 0, &v, &c, &err), TD_INVALID);
    fake_init(&d, "d0", TANDEM__ROLE__ROLE_UNKNOWN);
    assert_int_equal(registry_message(r, &d.msg, 0, &v, &c, &err), TD_INVALID);
    fake_init(&d, "d0", TANDEM__ROLE__ROLE_DECODE);
    d.report.rpc_url = td_pb_text("");
    assert_int_equal(registry_message(r, &d.msg, 0, &v, &c, &err), TD_INVALID);
    d.msg.report = NULL; /* not malformed: of one that has been given up and does not know it */
    assert_int_equal(registry_message(r, &d.msg, 0, &v, &c, &err), TD_OK);
    assert_null(v);
    registry_view(r, &n);
    assert_int_equal(n, 0);
    registry_free(r);
}

static worker_view decode(const char *id, uint32_t free_pages, uint32_t running)
{
    worker_view w = {.role = WORKER_DECODE,
                     .state = WORKER_READY,
                     .greeted = true,
                     .pages_total = 100,
                     .pages_free = free_pages,
                     .rings_total = 8,
                     .rings_free = 8 - running,
                     .max_batch = 8,
                     .running = running};

    snprintf(w.id, sizeof w.id, "%s", id);
    return w;
}

static worker_view prefill(const char *id, uint64_t queued)
{
    worker_view w = {.role = WORKER_PREFILL,
                     .state = WORKER_READY,
                     .greeted = true,
                     .queued_tokens = queued,
                     .max_prompt_tokens = 4096};

    snprintf(w.id, sizeof w.id, "%s", id);
    return w;
}

static void test_placement_takes_the_least_loaded_of_each_role(void **state)
{
    worker_view v[] = {decode("d0", 50, 4), decode("d1", 90, 2), decode("d2", 95, 2),
                       prefill("p0", 900), prefill("p1", 100)};
    placement_need need = {.prompt_tokens = 100, .max_tokens = 100};
    placement p;

    (void)state;
    assert_int_equal(placement_choose(v, 5, &need, &p, NULL), TD_OK);
    assert_string_equal(p.decode->id, "d2");
    assert_string_equal(p.prefill->id, "p1");
    /* What was sent since the report counts: a burst is spread. */
    v[2].sent_requests = 3;
    v[4].sent_tokens = 5000;
    assert_int_equal(placement_choose(v, 5, &need, &p, NULL), TD_OK);
    assert_string_equal(p.decode->id, "d1");
    assert_string_equal(p.prefill->id, "p0");
}

/* A worker of before 1.3 serves what needs no guide, and only that. */
static void test_placement_guided_answers_go_to_workers_that_can(void **state)
{
    worker_view v[] = {decode("d0", 90, 0), decode("d1", 50, 4), prefill("p0", 0),
                       prefill("p1", 900)};
    placement_need need = {.prompt_tokens = 100, .max_tokens = 100};
    placement p;
    td_error err = {0};

    (void)state;
    v[1].guides = v[3].guides = true;
    assert_int_equal(placement_choose(v, 4, &need, &p, NULL), TD_OK);
    assert_string_equal(p.decode->id, "d0");
    assert_string_equal(p.prefill->id, "p0");
    need.guides = true;
    assert_int_equal(placement_choose(v, 4, &need, &p, NULL), TD_OK);
    assert_string_equal(p.decode->id, "d1");
    assert_string_equal(p.prefill->id, "p1");
    v[1].pages_free = 1; /* the other one's pages are of no use */
    assert_int_equal(placement_choose(v, 4, &need, &p, &err), TD_BUSY);
    v[1].pages_free = 50;
    v[3].guides = false;
    assert_int_equal(placement_choose(v, 4, &need, &p, &err), TD_UNAVAILABLE);
    assert_non_null(strstr(err.text, "no prefill worker that is ready can hold"));
    v[2].greeted = v[3].greeted = false;
    assert_int_equal(placement_choose(v, 4, &need, &p, &err), TD_UNAVAILABLE);
    assert_non_null(strstr(err.text, "no prefill worker is ready"));
}

static void test_registry_reads_that_a_worker_can_guide(void **state)
{
    registry *r = new_registry();
    fake d;

    (void)state;
    take(r, fake_init(&d, "d0", TANDEM__ROLE__ROLE_DECODE), 0);
    assert_false(registry_find(r, "d0")->guides);
    d.report.guides = true;
    take(r, &d, 0);
    assert_true(registry_find(r, "d0")->guides);
    registry_free(r);
}

static void test_placement_avoids_what_failed_while_another_would_do(void **state)
{
    worker_view v[] = {decode("d0", 90, 0), decode("d1", 90, 5), prefill("p0", 0)};
    placement_need need = {
        .prompt_tokens = 10, .max_tokens = 10, .avoid_decode = "d0", .avoid_prefill = "p0"};
    placement p;

    (void)state;
    assert_int_equal(placement_choose(v, 3, &need, &p, NULL), TD_OK);
    assert_string_equal(p.decode->id, "d1");
    assert_string_equal(p.prefill->id, "p0"); /* the only one: better than none */
}

static void test_placement_tells_full_from_never(void **state)
{
    worker_view v[] = {decode("d0", 3, 1), prefill("p0", 0)};
    placement_need need = {.prompt_tokens = 192, .max_tokens = 1};
    placement p;
    td_error err = {0};

    (void)state;
    assert_int_equal(placement_pages(&need), 4);
    assert_int_equal(placement_choose(v, 2, &need, &p, &err), TD_BUSY);
    need.max_tokens = 0;
    assert_int_equal(placement_choose(v, 2, &need, &p, &err), TD_OK);
    need.max_tokens = 100 * 64;
    assert_int_equal(placement_choose(v, 2, &need, &p, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "103 KV pages"));
    need = (placement_need){.prompt_tokens = 5000, .max_tokens = 1};
    assert_int_equal(placement_choose(v, 2, &need, &p, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "4096"));
    need.prompt_tokens = 10;
    v[1].state = WORKER_DRAINING;
    assert_int_equal(placement_choose(v, 2, &need, &p, &err), TD_UNAVAILABLE);
    v[1].state = WORKER_READY;
    v[0].greeted = false;
    assert_int_equal(placement_choose(v, 2, &need, &p, &err), TD_UNAVAILABLE);
    assert_int_equal(placement_choose(NULL, 0, &need, &p, &err), TD_UNAVAILABLE);
}

static void test_placement_needs_a_free_ring_too(void **state)
{
    worker_view v[] = {decode("d0", 90, 7), prefill("p0", 0)};
    placement_need need = {.prompt_tokens = 10, .max_tokens = 10};
    placement p;

    (void)state;
    assert_int_equal(placement_choose(v, 2, &need, &p, NULL), TD_OK);
    v[0].sent_requests = 1;
    assert_int_equal(placement_choose(v, 2, &need, &p, NULL), TD_BUSY);
}

static void test_admission_bounds_requests_and_tokens_and_says_when_to_come_back(void **state)
{
    admission a;
    uint32_t retry = 0;

    (void)state;
    admission_init(&a, 2, 1000);
    assert_int_equal(admission_enter(&a, 1, 5000, &retry, NULL), TD_OK); /* alone: any size */
    assert_int_equal(admission_enter(&a, 1, 1, &retry, NULL), TD_BUSY);
    assert_true(retry >= 1 && retry <= 60);
    admission_leave(&a, 5000, 1 * TD_USEC_PER_SEC);
    assert_int_equal(admission_enter(&a, 1, 600, &retry, NULL), TD_OK);
    assert_int_equal(admission_enter(&a, 1, 401, &retry, NULL), TD_BUSY);
    assert_int_equal(admission_enter(&a, 1, 400, &retry, NULL), TD_OK);
    assert_int_equal(admission_enter(&a, 1, 0, &retry, NULL), TD_BUSY); /* requests */
    admission_leave(&a, 600, 21 * TD_USEC_PER_SEC);
    admission_leave(&a, 400, 41 * TD_USEC_PER_SEC);
    /* One leaves every 20 s: the advice follows. */
    assert_int_equal(admission_enter(&a, 1, 600, &retry, NULL), TD_OK);
    assert_int_equal(admission_enter(&a, 1, 600, &retry, NULL), TD_BUSY);
    assert_in_range(retry, 18, 30);
    assert_int_equal(a.refused, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registry_serves_once_both_roles_have_answered_hello),
        cmocka_unit_test(test_registry_sees_gaps_restarts_and_silence),
        cmocka_unit_test(test_registry_leaves_an_id_to_the_worker_that_has_it),
        cmocka_unit_test(test_registry_refuses_another_model_with_a_reason),
        cmocka_unit_test(test_registry_refuses_versions_that_it_cannot_use),
        cmocka_unit_test(test_registry_a_malformed_message_changes_nothing),
        cmocka_unit_test(test_placement_takes_the_least_loaded_of_each_role),
        cmocka_unit_test(test_placement_guided_answers_go_to_workers_that_can),
        cmocka_unit_test(test_registry_reads_that_a_worker_can_guide),
        cmocka_unit_test(test_placement_avoids_what_failed_while_another_would_do),
        cmocka_unit_test(test_placement_tells_full_from_never),
        cmocka_unit_test(test_placement_needs_a_free_ring_too),
        cmocka_unit_test(test_admission_bounds_requests_and_tokens_and_says_when_to_come_back),
    };

    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
