/* Finished responses: found by id, for so long, within so many bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "router/responses_store.h"

static responses_store *make(size_t max_bytes)
{
    responses_store *s = NULL;
    td_error err = {0};

    assert_int_equal(responses_store_create(max_bytes, 100, NULL, &s, &err), TD_OK);
    return s;
}

/* The object says its id, the items are n bytes. */
static void add(responses_store *s, const char *id, size_t n, td_usec now)
{
    td_buf object = {0}, items = {0};

    td_buf_str(&object, id);
    for (size_t i = 0; i < n; i++)
        td_buf_byte(&items, 'x');
    responses_store_add(s, "", id, &object, &items, 0, now);
    assert_true(object.ptr == NULL && items.ptr == NULL); /* moved, or freed */
}

static bool has(responses_store *s, const char *id, td_usec now)
{
    td_slice object, items;

    if (!responses_store_find(s, "", td_slice_of(id), now, &object, &items))
        return false;
    assert_true(td_slice_eq(object, td_slice_of(id)));
    return true;
}

static void test_found_until_removed(void **state)
{
    responses_store *s = make(1 << 20);

    (void)state;
    assert_false(has(s, "a", 0));
    add(s, "a", 10, 0);
    add(s, "b", 0, 0);
    assert_true(has(s, "a", 1) && has(s, "b", 1));
    assert_false(has(s, "", 1) || has(s, "ab", 1));
    assert_true(responses_store_remove(s, "", TD_SLICE("a"), 1));
    assert_false(responses_store_remove(s, "", TD_SLICE("a"), 1));
    assert_true(!has(s, "a", 1) && has(s, "b", 1));
    assert_true(responses_store_remove(s, "", TD_SLICE("b"), 1));
    assert_int_equal(responses_store_bytes(s), 0);
    responses_store_free(s);
}

static void test_only_the_owner_finds_one(void **state)
{
    responses_store *s = make(1 << 20);
    td_buf object = {0}, items = {0};

    (void)state;
    td_buf_str(&object, "a");
    responses_store_add(s, "me", "a", &object, &items, 0, 0);
    assert_false(has(s, "a", 1));
    assert_false(responses_store_find(s, "m", TD_SLICE("a"), 1, NULL, NULL));
    assert_false(responses_store_remove(s, "you", TD_SLICE("a"), 1));
    assert_true(responses_store_find(s, "me", TD_SLICE("a"), 1, NULL, NULL));
    assert_true(responses_store_remove(s, "me", TD_SLICE("a"), 1));
    responses_store_free(s);
}

static void test_what_is_a_responses_own(void **state)
{
    responses_store *s = make(1 << 20);
    td_buf object = {0}, items = {0};
    td_slice found;

    (void)state;
    td_buf_str(&object, "a");
    td_buf_str(&items, "{},{\"own\":1}");
    responses_store_add(s, "me", "a", &object, &items, 3, 0);
    assert_true(responses_store_find_own(s, "me", TD_SLICE("a"), 1, &found));
    assert_true(td_slice_eq(found, TD_SLICE("{\"own\":1}")));
    assert_false(responses_store_find_own(s, "", TD_SLICE("a"), 1, &found));
    assert_true(responses_store_find(s, "me", TD_SLICE("a"), 1, NULL, &found));
    assert_int_equal(found.len, 12);
    responses_store_free(s);
}

static void test_time_ends_them(void **state)
{
    responses_store *s = make(1 << 20);

    (void)state;
    add(s, "a", 10, 0);
    add(s, "b", 10, 50);
    assert_true(has(s, "a", 99));
    assert_true(!has(s, "a", 100) && has(s, "b", 100));
    assert_false(has(s, "b", 150));
    assert_int_equal(responses_store_bytes(s), 0);
    responses_store_free(s);
}

static void test_the_oldest_make_room(void **state)
{
    responses_store *s = make(10000);

    (void)state;
    for (int i = 0; i < 50; i++) {
        char id[8];

        snprintf(id, sizeof id, "r%d", i);
        add(s, id, 1000, 0);
        assert_true(responses_store_bytes(s) <= 10000);
        assert_true(has(s, id, 0));
    }
    assert_true(has(s, "r47", 0) && !has(s, "r40", 0));
    add(s, "large", 20000, 0); /* it would never fit: the others stay */
    assert_true(!has(s, "large", 0) && has(s, "r49", 0));
    responses_store_free(s);
}

static void test_what_is_not_whole_is_not_kept(void **state)
{
    responses_store *s = make(10000);
    td_buf object = {0}, items = {.oom = true};

    (void)state;
    td_buf_str(&object, "a");
    responses_store_add(s, "", "a", &object, &items, 0, 0);
    assert_false(has(s, "a", 0));
    assert_int_equal(responses_store_bytes(s), 0);
    responses_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_until_removed),
        cmocka_unit_test(test_only_the_owner_finds_one),
        cmocka_unit_test(test_what_is_a_responses_own),
        cmocka_unit_test(test_time_ends_them),
        cmocka_unit_test(test_the_oldest_make_room),
        cmocka_unit_test(test_what_is_not_whole_is_not_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
