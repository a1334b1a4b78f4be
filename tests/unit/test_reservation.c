/* reservation: every row of the table in reservation.h, and random lives that must never lose or
 * double a page. Time is made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "decode/reservation.h"

enum { PAGES = 32, RINGS = 8, LEASE_MS = 1000, GRACE_MS = 500, VOCAB = 100 };

typedef struct fixture {
    td_model_config cfg;
    td_kv_geometry g;
    td_kv_pool *pool;
    reservations *t;
    Tandem__Reserve m;
    Tandem__Sampling s;
} fixture;

static void set_up(fixture *f)
{
    reservations_options ro = {.geometry = &f->g,
                               .vocab = VOCAB,
                               .max_positions = 100000,
                               .lease_max_ms = LEASE_MS,
                               .grace_ms = GRACE_MS};
    td_error err = {0};

    memset(f, 0, sizeof *f);
    f->cfg = (td_model_config){.n_layers = 2,
                               .hidden = 64,
                               .n_q_heads = 4,
                               .n_kv_heads = 2,
                               .head_dim = 8,
                               .n_experts = 4,
                               .top_k = 2,
                               .inter = 32,
                               .vocab = VOCAB,
                               .window = 128,
                               .windowed = {true, false},
                               .max_positions = 100000};
    assert_int_equal(td_kv_geometry_init(&f->g, &f->cfg, 1, TD_KV_BF16, PAGES, RINGS, 2, &err),
                     TD_OK);
    assert_int_equal(td_kv_pool_create(PAGES, RINGS, &f->pool, NULL), TD_OK);
    ro.pool = f->pool;
    assert_int_equal(reservations_create(&ro, &f->t, NULL), TD_OK);
    tandem__reserve__init(&f->m);
    tandem__sampling__init(&f->s);
    f->s.temperature = 1;
    f->s.top_p = 1;
    f->m.request = 1;
    f->m.attempt = 1;
    f->m.prompt_tokens = 100;
    f->m.max_tokens = 100; /* 4 pages */
    f->m.lease_ms = LEASE_MS;
    f->m.sampling = &f->s;
}

static void tear_down(fixture *f)
{
    reservations_free(f->t);
    td_kv_pool_free(f->pool); /* aborts if a page were still held */
}

static reservation *open_one(fixture *f, uint64_t request, td_usec now)
{
    reservation *r = NULL;
    td_error err = {0};

    f->m.request = request;
    assert_int_equal(reservation_open(f->t, &f->m, 0, now, &r, &err), TD_OK);
    return r;
}

static td_kv_notice notice_for(const fixture *f, const reservation *r, uint32_t rank, uint32_t n,
                               td_status status)
{
    uint64_t all = td_kv_transfer_bytes(&f->g, (int32_t)r->prompt_tokens);

    return (td_kv_notice){.request = r->request,
                          .attempt = (uint32_t)r->attempt,
                          .epoch = r->epoch,
                          .source_rank = rank,
                          .n_sources = n,
                          .status = status,
                          .bytes = status == TD_OK ? all / n : 0,
                          .first_token = 7};
}

static void test_reservation_open_again_is_the_same_claim(void **state)
{
    fixture f;
    reservation *a, *b;

    (void)state;
    set_up(&f);
    a = open_one(&f, 1, 0);
    b = open_one(&f, 1, 0);
    assert_ptr_equal(a, b);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES - 4);
    assert_int_equal(a->n_pages, 4);
    reservations_check(f.t);
    reservation_close(f.t, a, false);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    /* Over is over: a message that comes late takes nothing. */
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &b, NULL), TD_CANCELED);
    f.m.attempt = 2;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &b, NULL), TD_OK);
    tear_down(&f);
}

static void test_reservation_a_cancel_that_overtakes_its_reserve_wins(void **state)
{
    fixture f;
    reservation *r;

    (void)state;
    set_up(&f);
    reservation_refuse(f.t, 9, 1);
    f.m.request = 9;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, NULL), TD_CANCELED);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    tear_down(&f);
}

static void test_reservation_lands_when_every_source_has_reported(void **state)
{
    fixture f;
    reservation *r, *got;
    td_kv_notice n;
    td_error err = {0};

    (void)state;
    set_up(&f);
    r = open_one(&f, 1, 0);
    n = notice_for(&f, r, 1, 2, TD_OK);
    assert_int_equal(reservation_notice(f.t, &n, 5, &got, &err), RESERVATION_NOTHING);
    assert_int_equal(reservation_notice(f.t, &n, 5, &got, &err), RESERVATION_NOTHING); /* again */
    n = notice_for(&f, r, 0, 2, TD_OK);
    assert_int_equal(reservation_notice(f.t, &n, 6, &got, &err), RESERVATION_LANDED);
    assert_ptr_equal(got, r);
    assert_int_equal(r->state, RESERVATION_RUNNING);
    assert_int_equal(r->arrival.first_token, 7);
    assert_int_equal(reservations_next_deadline(f.t), TD_USEC_NEVER);
    reservation_close(f.t, r, true); /* all sources have reported: pages are free at once */
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    tear_down(&f);
}

static void test_reservation_a_notice_of_another_epoch_is_not_counted(void **state)
{
    fixture f;
    reservation *r, *got;
    td_kv_notice n;
    td_error err = {0};

    (void)state;
    set_up(&f);
    r = open_one(&f, 1, 0);
    n = notice_for(&f, r, 0, 1, TD_OK);
    n.epoch++;
    assert_int_equal(reservation_notice(f.t, &n, 0, &got, &err), RESERVATION_NOTHING);
    assert_int_equal(r->state, RESERVATION_OPEN);
    n.epoch--;
    n.bytes--;
    assert_int_equal(reservation_notice(f.t, &n, 0, &got, &err), RESERVATION_LOST);
    reservation_close(f.t, r, true);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    tear_down(&f);
}

static void test_reservation_a_cancel_with_puts_in_flight_waits_for_the_last_source(void **state)
{
    fixture f;
    reservation *r, *got;
    td_kv_notice a, b;
    td_error err = {0};

    (void)state;
    set_up(&f);
    r = open_one(&f, 1, 0);
    a = notice_for(&f, r, 0, 2, TD_CANCELED);
    b = notice_for(&f, r, 1, 2, TD_CANCELED);
    reservation_close(f.t, r, true);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES - 4);
    assert_int_equal(reservations_count(f.t).quarantined_pages, 4);
    assert_null(reservations_of_link(f.t, 0));
    assert_int_equal(reservation_notice(f.t, &a, 0, &got, &err), RESERVATION_NOTHING);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES - 4);
    assert_int_equal(reservation_notice(f.t, &b, 0, &got, &err), RESERVATION_NOTHING);
    assert_null(got);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    reservations_check(f.t);
    tear_down(&f);
}

static int settled;

static void count_settle(void *arg)
{
    (void)arg;
    settled++;
}

static void test_reservation_of_a_dead_source_is_fenced_by_lease_and_grace(void **state)
{
    fixture f;
    reservation *r;
    td_usec lease = (td_usec)LEASE_MS * 1000, fence = lease + (td_usec)GRACE_MS * 1000;

    (void)state;
    set_up(&f);
    settled = 0;
    f.m.lease_ms = 10 * LEASE_MS; /* cut to the table's longest */
    r = open_one(&f, 1, 0);
    assert_int_equal(reservations_next_deadline(f.t), lease);
    assert_null(reservations_expired(f.t, lease - 1));
    assert_ptr_equal(reservations_expired(f.t, lease), r);
    reservation_close(f.t, r, true);
    assert_int_equal(reservations_next_deadline(f.t), fence);
    reservations_reap(f.t, fence - 1, count_settle, NULL);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES - 4);
    assert_int_equal(settled, 0);
    reservations_reap(f.t, fence, count_settle, NULL);
    assert_int_equal(settled, 1);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    tear_down(&f);
}

static void test_reservation_one_failed_source_loses_it_but_the_others_may_still_write(void **state)
{
    fixture f;
    reservation *r, *got;
    td_kv_notice n;
    td_error err = {0};

    (void)state;
    set_up(&f);
    r = open_one(&f, 1, 0);
    n = notice_for(&f, r, 0, 2, TD_DEVICE);
    assert_int_equal(reservation_notice(f.t, &n, 0, &got, &err), RESERVATION_LOST);
    assert_int_equal(err.code, TD_DEVICE);
    n = notice_for(&f, r, 1, 2, TD_OK);
    reservation_close(f.t, r, true);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES - 4);
    assert_int_equal(reservation_notice(f.t, &n, 0, &got, &err), RESERVATION_NOTHING);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    tear_down(&f);
}

static void test_reservation_refuses_what_it_could_never_hold(void **state)
{
    fixture f;
    reservation *r;
    Tandem__Guide guide = TANDEM__GUIDE__INIT;
    int32_t answer[] = {5, 6};
    td_error err = {0};

    (void)state;
    set_up(&f);
    f.m.max_tokens = 100 * 64;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.m.max_tokens = 200000;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.m.max_tokens = UINT32_MAX;
    f.m.prompt_tokens = UINT32_MAX;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.m.prompt_tokens = f.m.max_tokens = 100;
    f.s.top_p = 0;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.s.top_p = 1;
    f.m.sampling = NULL;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.m.sampling = &f.s;
    f.m.index = 2; /* without penalties nobody asks what they were */
    f.m.answer = answer;
    f.m.n_answer = 2;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.s.presence = 1;
    answer[1] = INT32_MAX;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    answer[1] = 6;
    f.m.n_answer = 1;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.s.presence = 0;
    f.m.guide = &guide; /* nor may one be missing here */
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_INVALID);
    f.m.guide = NULL;
    f.s.presence = 1;
    f.m.n_answer = 2;
    for (uint64_t i = 1; i <= 8; i++)
        assert_int_equal(open_one(&f, i, 0)->generation.sampling.n_counts, 2);
    f.m.request = 99;
    assert_int_equal(reservation_open(f.t, &f.m, 0, 0, &r, &err), TD_BUSY);
    reservations_check(f.t);
    tear_down(&f);
}

static uint64_t rng_state = 0x1234567;

static uint32_t rng(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state % below);
}

static void test_reservation_random_lives_keep_every_page_accounted_for(void **state)
{
    fixture f;
    td_usec now = 0;
    td_error err = {0};
    uint32_t landed = 0, lost = 0, opened = 0;

    (void)state;
    set_up(&f);
    for (int step = 0; step < 30000; step++) {
        reservation *r, *got;
        uint64_t id = 1 + rng(12);

        now += rng(60000);
        f.m.request = id;
        f.m.attempt = (uint32_t)(step / 40);
        f.m.prompt_tokens = 1 + rng(300);
        f.m.max_tokens = 1 + rng(100);
        r = reservation_find(f.t, id, f.m.attempt);
        switch (rng(5)) {
        case 0:
            opened += reservation_open(f.t, &f.m, (int32_t)rng(3), now, &r, &err) == TD_OK;
            break;
        case 1:
        case 2:
            if (r != NULL) {
                td_kv_notice n = notice_for(&f, r, rng(2), 2, rng(8) ? TD_OK : TD_CANCELED);
                reservation_news news;

                n.epoch += rng(10) == 0;
                /* Two sources share an even number of bytes here: heads are two. */
                news = reservation_notice(f.t, &n, now, &got, &err);
                landed += news == RESERVATION_LANDED;
                if (news == RESERVATION_LOST) {
                    lost++;
                    reservation_close(f.t, got, true);
                }
            }
            break;
        case 3:
            if (r != NULL && rng(2) == 0)
                reservation_close(f.t, r, rng(2));
            break;
        case 4:
            while ((r = reservations_expired(f.t, now)) != NULL)
                reservation_close(f.t, r, true);
            if (rng(20) == 0) /* a router goes, and what it ran with it */
                for (int32_t gone = (int32_t)rng(3); (r = reservations_of_link(f.t, gone)) != NULL;)
                    reservation_close(f.t, r, true);
            reservations_reap(f.t, now, NULL, NULL);
            break;
        }
        reservations_check(f.t);
    }
    assert_true(opened > 100 && landed > 50 && lost > 20);
    now += 10 * TD_USEC_PER_SEC;
    for (reservation *r; (r = reservations_of_link(f.t, -1)) != NULL;)
        reservation_close(f.t, r, true);
    reservations_reap(f.t, now, NULL, NULL);
    assert_int_equal(td_kv_pool_pages_free(f.pool), PAGES);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reservation_open_again_is_the_same_claim),
        cmocka_unit_test(test_reservation_a_cancel_that_overtakes_its_reserve_wins),
        cmocka_unit_test(test_reservation_lands_when_every_source_has_reported),
        cmocka_unit_test(test_reservation_a_notice_of_another_epoch_is_not_counted),
        cmocka_unit_test(test_reservation_a_cancel_with_puts_in_flight_waits_for_the_last_source),
        cmocka_unit_test(test_reservation_of_a_dead_source_is_fenced_by_lease_and_grace),
        cmocka_unit_test(
            test_reservation_one_failed_source_loses_it_but_the_others_may_still_write),
        cmocka_unit_test(test_reservation_refuses_what_it_could_never_hold),
        cmocka_unit_test(test_reservation_random_lives_keep_every_page_accounted_for),
    };

    return cmocka_run_group_tests_name("reservation", tests, NULL, NULL);
}
