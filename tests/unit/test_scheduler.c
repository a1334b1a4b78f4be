/* scheduler: requests join between steps, run to their end, and leave others alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "decode/scheduler.h"

enum { BATCH = 3, STOP = 99 };

static uint32_t page0;

/* A landed reservation, as reservation.c would leave it. */
static reservation landed(uint64_t id, int32_t first, uint32_t max_tokens)
{
    reservation r = {.request = id,
                     .prompt_tokens = 10,
                     .max_tokens = max_tokens,
                     .base_index = 5,
                     .generation = {.stops = {STOP}, .n_stops = 1},
                     .pages = &page0,
                     .n_pages = 1,
                     .state = RESERVATION_RUNNING};

    r.arrival.first_token = first;
    return r;
}

/* Run a step in which row i samples tokens[request]. */
static void step(scheduler *s, const int32_t *token_of, sched_end *ends)
{
    const td_decode_step *p = scheduler_plan(s);

    assert_non_null(p);
    for (int32_t i = 0; i < p->n; i++)
        p->out[i] = token_of[scheduler_row(s, i)->request];
    scheduler_apply(s, ends);
}

static void test_scheduler_admits_in_order_as_places_come_free(void **state)
{
    scheduler *s;
    reservation r[5];
    sched_end ends[BATCH];
    const int32_t tokens[5] = {1, 2, 3, 4, 5};

    (void)state;
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    assert_null(scheduler_plan(s));
    for (uint64_t i = 0; i < 5; i++) {
        r[i] = landed(i, 1, i == 1 ? 3 : 100);
        assert_int_equal(scheduler_admit(s, &r[i]), SCHED_GOES_ON);
    }
    step(s, tokens, ends);
    assert_int_equal(scheduler_running(s), 3);
    assert_int_equal(scheduler_waiting(s), 2);
    step(s, tokens, ends); /* request 1 has its third token now */
    assert_int_equal(ends[1], SCHED_LENGTH);
    assert_false(r[1].in_batch);
    step(s, tokens, ends);
    assert_true(r[3].in_batch);
    assert_false(r[4].in_batch);
    scheduler_free(s);
}

static void test_scheduler_plan_names_position_token_and_draw(void **state)
{
    scheduler *s;
    reservation r = landed(0, 42, 100);
    const td_decode_step *p;
    sched_end ends[BATCH];

    (void)state;
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    assert_int_equal(scheduler_admit(s, &r), SCHED_GOES_ON);
    p = scheduler_plan(s);
    assert_int_equal(p->seqs[0].pos, 10);
    assert_int_equal(p->tokens[0], 42);
    assert_int_equal(p->sampling[0].index, 6); /* prefill drew number 5 */
    p->out[0] = 43;
    scheduler_apply(s, ends);
    p = scheduler_plan(s);
    assert_int_equal(p->seqs[0].pos, 11);
    assert_int_equal(p->tokens[0], 43);
    assert_int_equal(p->sampling[0].index, 7);
    scheduler_free(s);
}

static void test_scheduler_a_first_token_that_ends_it_is_not_kept(void **state)
{
    scheduler *s;
    reservation a = landed(0, STOP, 100), b = landed(1, 1, 1);

    (void)state;
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    assert_int_equal(scheduler_admit(s, &a), SCHED_STOP);
    assert_int_equal(scheduler_admit(s, &b), SCHED_LENGTH);
    assert_null(scheduler_plan(s));
    scheduler_free(s);
}

static void test_scheduler_stop_and_failure_end_only_their_own_row(void **state)
{
    scheduler *s;
    reservation r[3];
    sched_end ends[BATCH];
    const int32_t tokens[3] = {STOP, -1, 7};

    (void)state;
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    for (uint64_t i = 0; i < 3; i++) {
        r[i] = landed(i, 1, 100);
        assert_int_equal(scheduler_admit(s, &r[i]), SCHED_GOES_ON);
    }
    step(s, tokens, ends);
    assert_int_equal(ends[0], SCHED_STOP);
    assert_int_equal(ends[1], SCHED_FAILED);
    assert_int_equal(ends[2], SCHED_GOES_ON);
    assert_int_equal(scheduler_running(s), 1);
    assert_int_equal(r[1].produced, 1); /* the failed draw is not a token */
    scheduler_free(s);
}

static void test_scheduler_remove_finds_a_request_in_the_batch_or_waiting(void **state)
{
    scheduler *s;
    reservation r[6];
    sched_end ends[BATCH];
    const int32_t tokens[6] = {1, 1, 1, 1, 1, 1};

    (void)state;
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    for (uint64_t i = 0; i < 5; i++) {
        r[i] = landed(i, 1, 100);
        assert_int_equal(scheduler_admit(s, &r[i]), SCHED_GOES_ON);
    }
    step(s, tokens, ends);
    scheduler_remove(s, &r[0]); /* in the batch */
    scheduler_remove(s, &r[4]); /* last of the waiting: the list's end moves */
    r[5] = landed(5, 1, 100);
    assert_int_equal(scheduler_admit(s, &r[5]), SCHED_GOES_ON);
    step(s, tokens, ends);
    assert_true(r[3].in_batch);
    assert_int_equal(scheduler_waiting(s), 1);
    scheduler_remove(s, &r[1]);
    step(s, tokens, ends);
    assert_true(r[5].in_batch);
    scheduler_free(s);
}

/* With penalties a request's own tokens are counted: those of earlier attempts, prefill's first one
 * and each one since; its neighbours' are not. */
static void test_scheduler_counts_the_tokens_of_an_answer(void **state)
{
    scheduler *s;
    reservation r[2] = {landed(0, 7, 100), landed(1, 7, 100)};
    Tandem__Sampling with = TANDEM__SAMPLING__INIT, without = TANDEM__SAMPLING__INIT;
    const int32_t answer[] = {9, 7, 9, 3, 9}, tokens[2] = {3, 5};
    const td_decode_step *p;
    const td_sampling *c;
    sched_end ends[BATCH];

    (void)state;
    with.top_p = without.top_p = 1;
    with.frequency = 0.5f;
    with.presence = -1;
    with.logprobs = true;
    assert_int_equal(td_generation_read(&r[0].generation, &with, NULL, 0, answer, 5, 100, NULL),
                     TD_OK);
    assert_int_equal(td_generation_read(&r[1].generation, &without, NULL, 0, answer, 5, 100, NULL),
                     TD_OK);
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    assert_int_equal(scheduler_admit(s, &r[0]), SCHED_GOES_ON);
    assert_int_equal(scheduler_admit(s, &r[1]), SCHED_GOES_ON);
    p = scheduler_plan(s);
    assert_non_null(p->logprobs); /* one of them wants some */
    for (int32_t i = 0; i < p->n; i++)
        p->logprobs[i] = (td_logprobs){.n = i == 0 ? 0 : -1, .chosen = -0.5f};
    step(s, tokens, ends);
    p = scheduler_plan(s);
    c = &p->sampling[0];
    assert_true(c->frequency == 0.5f && c->presence == -1);
    assert_int_equal(c->n_counts, 3);
    assert_true(c->counts[0].token == 3 && c->counts[0].count == 2);
    assert_true(c->counts[1].token == 7 && c->counts[1].count == 2);
    assert_true(c->counts[2].token == 9 && c->counts[2].count == 3);
    assert_int_equal(p->sampling[1].n_counts, 0);
    assert_true(r[0].logprobs.chosen == -0.5f);
    scheduler_remove(s, &r[0]);
    p = scheduler_plan(s);
    assert_null(p->logprobs); /* nobody does any more */
    scheduler_free(s);
    td_generation_free(&r[0].generation);
    td_generation_free(&r[1].generation);
}

/* Guided and free rows side by side: each token moves its own guide on, whose mask is there when
 * the next step is planned; what no guide lets follow ends its own row alone. */
static void test_scheduler_masks_the_rows_that_are_guided(void **state)
{
    td_guides *guides;
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    reservation r[3] = {landed(0, 0, 100), landed(1, 7, 100), landed(2, 0, 100)};
    int32_t channel = -1, bad = -1, tokens[3] = {0, 5, 0};
    const td_decode_step *p;
    sched_end ends[BATCH];
    scheduler *s;
    td_error err = {0};

    (void)state;
    assert_int_equal(td_guides_open("tests/data/harmony", 1024, &guides, &err), TD_OK);
    m.final = true;
    for (int i = 0; i < 3; i += 2)
        assert_int_equal(
            td_generation_open_guide(guides, &m, NULL, 0, &r[i].generation.guide, &err), TD_OK);
    for (int32_t id = 0; id < 1024; id++) {
        if (td_guide_mask(r[0].generation.guide)[id / 32] >> id % 32 & 1)
            channel = id; /* the only one that may begin */
        else
            bad = id;
    }
    r[0].arrival.first_token = r[2].arrival.first_token = channel;
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(scheduler_admit(s, &r[i]), SCHED_GOES_ON);
    p = scheduler_plan(s);
    assert_ptr_equal(p->sampling[0].mask, td_guide_mask(r[0].generation.guide));
    assert_null(p->sampling[1].mask);
    for (int32_t id = 0; id < 1024; id++)
        if (p->sampling[0].mask[id / 32] >> id % 32 & 1)
            tokens[0] = id; /* of "final" or "analysis" */
    tokens[2] = bad;
    step(s, tokens, ends);
    assert_int_equal(ends[0], SCHED_GOES_ON);
    assert_int_equal(ends[1], SCHED_GOES_ON);
    assert_int_equal(ends[2], SCHED_FAILED);
    assert_non_null(strstr(r[2].failed.text, "in a header"));
    scheduler_free(s);
    for (int i = 0; i < 3; i++)
        td_generation_free(&r[i].generation);
    td_guides_close(guides);
}

/* Past the end of what it allows a guide has no mask, which is not a mask without bits: the row
 * fails with a reason before a token is drawn. */
static void test_scheduler_a_dead_end_fails_its_row(void **state)
{
    td_guides *guides;
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    reservation r = landed(0, 0, 100);
    scheduler *s;
    td_error err = {0};

    (void)state;
    assert_int_equal(td_guides_open("tests/data/harmony", 1024, &guides, &err), TD_OK);
    m.final = m.begun = true;
    assert_int_equal(td_generation_open_guide(guides, &m, NULL, 0, &r.generation.guide, &err),
                     TD_OK);
    for (int32_t id = 0; id < 1024; id++)
        if (td_guide_mask(r.generation.guide)[id / 32] >> id % 32 & 1)
            r.arrival.first_token = id; /* <|return|> is the last one of them */
    assert_int_equal(scheduler_create(BATCH, &s, NULL), TD_OK);
    assert_int_equal(scheduler_admit(s, &r), SCHED_FAILED);
    /* It would be one on every worker. */
    assert_int_equal(r.failed.code, TD_DEADEND);
    assert_false(td_status_retryable(TD_DEADEND));
    assert_non_null(strstr(r.failed.text, "no token can follow"));
    scheduler_free(s);
    td_generation_free(&r.generation);
    td_guides_close(guides);
}

static void test_generation_read_refuses_what_sampling_cannot_take(void **state)
{
    static const int32_t ids[] = {1, -2};
    static float values[] = {1, 1};
    td_generation g = {0};

    (void)state;
    for (int i = 0; i < 6; i++) {
        Tandem__Sampling s = TANDEM__SAMPLING__INIT;
        td_error err = {0};

        s.top_p = 1;
        s.bias_ids = (int32_t *)(uintptr_t)ids;
        s.bias_values = values;
        s.n_bias_ids = s.n_bias_values = 1;
        switch (i) {
        case 1: s.frequency = NAN; break;
        case 2: s.presence = 2.1f; break;
        case 3: s.n_bias_values = 2; break;
        case 4: s.n_bias_ids = s.n_bias_values = 2; break;
        case 5: s.top_logprobs = TD_TOP_LOGPROBS + 1; break;
        default: break;
        }
        assert_int_equal(td_generation_read(&g, &s, NULL, 0, NULL, 0, 5, &err),
                         i == 0 ? TD_OK : TD_INVALID);
        if (i == 0) {
            assert_int_equal(g.sampling.n_bias, 1);
            assert_true(g.sampling.bias[0].token == 1 && g.sampling.bias[0].bias == 1);
            td_generation_free(&g);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_admits_in_order_as_places_come_free),
        cmocka_unit_test(test_scheduler_plan_names_position_token_and_draw),
        cmocka_unit_test(test_scheduler_a_first_token_that_ends_it_is_not_kept),
        cmocka_unit_test(test_scheduler_stop_and_failure_end_only_their_own_row),
        cmocka_unit_test(test_scheduler_remove_finds_a_request_in_the_batch_or_waiting),
        cmocka_unit_test(test_scheduler_counts_the_tokens_of_an_answer),
        cmocka_unit_test(test_scheduler_masks_the_rows_that_are_guided),
        cmocka_unit_test(test_scheduler_a_dead_end_fails_its_row),
        cmocka_unit_test(test_generation_read_refuses_what_sampling_cannot_take),
    };

    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
