/* guide_ahead: masks are there before anybody asks for them, and are the same ones. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/guide_impl.h"
#include "router/tokenizer.h"
#include "tests/unit/harmony_fixture.h"

#define FOLDER "tests/data/harmony"

static int32_t n_ids;

static td_guides *open_guides(bool ahead)
{
    td_guides *g = NULL;
    td_error err = {0};

    if (td_guides_open(FOLDER, n_ids, &g, &err) != TD_OK ||
        (ahead && td_guides_work_ahead(g, &err) != TD_OK))
        fail_msg("%s", err.text);
    return g;
}

/* A final answer that is JSON of a schema, one of many. */
static td_guide *open_guide(td_guides *guides, int kind)
{
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    char schema[160];
    td_guide *g = NULL;
    td_error err = {0};

    snprintf(schema, sizeof schema,
             "{\"type\":\"object\",\"properties\":{\"n\":{\"enum\":[\"a\",\"bc\",\"k%d\"]},"
             "\"i\":{\"type\":\"integer\"}},\"required\":[\"n\",\"i\"]}",
             kind);
    m.final = m.json = true;
    m.schema = (ProtobufCBinaryData){strlen(schema), (uint8_t *)schema};
    if (td_guide_create(guides, &m, NULL, 0, &g, &err) != TD_OK)
        fail_msg("%s", err.text);
    return g;
}

static void await_masks(size_t more_than)
{
    td_usec until = td_now_us() + 20 * TD_USEC_PER_SEC;

    while (td_grammar_mask_bytes() <= more_than) {
        assert_true(td_now_us() < until);
        sched_yield();
    }
}

static void test_masks_are_there_before_they_are_asked_for(void **state)
{
    size_t none = td_grammar_mask_bytes();
    td_guides *guides = open_guides(true);
    size_t before = td_grammar_mask_bytes();
    td_guide *g = open_guide(guides, 1);

    (void)state;
    await_masks(before); /* nobody has asked */
    td_guide_free(g);
    td_guides_close(guides);
    assert_int_equal(td_grammar_mask_bytes(), none);
}

/* The first token of each mask, to the end. */
static void test_masks_are_the_same_ones(void **state)
{
    td_guides *ahead = open_guides(true), *plain = open_guides(false);
    td_guide *a = open_guide(ahead, 1), *b = open_guide(plain, 1);
    const uint32_t *ma, *mb;
    td_error err = {0};
    int n = 0;

    (void)state;
    while ((ma = td_guide_mask(a)) != NULL) {
        int32_t id = 0;

        mb = td_guide_mask(b);
        assert_non_null(mb);
        assert_memory_equal(ma, mb, ahead->n_words * sizeof *ma);
        while (!(ma[id / 32] >> id % 32 & 1))
            id++;
        assert_int_equal(td_guide_accept(a, id, &err), TD_OK);
        assert_int_equal(td_guide_accept(b, id, &err), TD_OK);
        if (++n == 200) /* the first token may be one that a text can have for ever */
            break;
    }
    assert_true(n > 10);
    td_guide_free(a);
    td_guide_free(b);
    td_guides_close(ahead);
    td_guides_close(plain);
}

/* More than fit into the line, and an end while some are in it. */
static void test_an_end_in_the_middle(void **state)
{
    size_t before = td_grammar_mask_bytes();

    (void)state;
    for (int round = 0; round < 3; round++) {
        td_guides *guides = open_guides(true);

        for (int i = 0; i < 80; i++)
            td_guide_free(open_guide(guides, i));
        td_guides_close(guides);
        assert_int_equal(td_grammar_mask_bytes(), before);
    }
}

static int set_up(void **state)
{
    (void)state;
    n_ids = tokenizer_vocab(harmony_tokenizer(fixture_harmony()));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_are_there_before_they_are_asked_for),
        cmocka_unit_test(test_masks_are_the_same_ones),
        cmocka_unit_test(test_an_end_in_the_middle),
    };

    return cmocka_run_group_tests(tests, set_up, fixture_tear_down);
}
