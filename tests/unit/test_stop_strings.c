/* Stop strings and whole characters, each against a slow, obvious model on random input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "router/stop_strings.h"
#include "router/utf8_stream.h"

static uint32_t seed;

static uint32_t next_random(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

static stop_strings *make(const char *const *stops, size_t n)
{
    td_slice slices[8] = {0};
    stop_strings *s = NULL;

    for (size_t i = 0; i < n; i++)
        slices[i] = td_slice_of(stops[i]);
    assert_int_equal(stop_strings_create(slices, n, &s, NULL), TD_OK);
    return s;
}

/* Push parts; what was sent after each, joined by '|', the flush after '/'. */
static void expect_sent(const char *const *stops, size_t n, const char *const *parts, size_t m,
                        const char *want, int matched)
{
    stop_strings *s = make(stops, n);
    td_buf sent = {0};
    td_slice ready;

    for (size_t i = 0; i < m; i++) {
        bool hit = stop_strings_push(s, td_slice_of(parts[i]), &ready);

        assert_int_equal(hit, stop_strings_matched(s) >= 0);
        td_buf_add(&sent, ready.ptr, ready.len);
        td_buf_byte(&sent, '|');
    }
    ready = stop_strings_flush(s);
    td_buf_byte(&sent, '/');
    td_buf_add(&sent, ready.ptr, ready.len);
    assert_string_equal(sent.ptr, want);
    assert_int_equal(stop_strings_matched(s), matched);
    assert_false(stop_strings_oom(s));
    td_buf_free(&sent);
    stop_strings_free(s);
}

#define LIST(...) \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)

static void test_no_part_of_a_stop_string_is_sent(void **state)
{
    (void)state;
    expect_sent(LIST("DEFGHIJ"), LIST("ABC", "DEF", "G", "HI", "JKL", "M"), "ABC||||||/", 0);
    expect_sent(LIST("DEFGHIJ"), LIST("ABC", "DEF", "GX"), "ABC||DEFGX|/", -1);
    expect_sent(LIST("DEFGHIJ"), LIST("ABCDEF"), "ABC|/DEF", -1);
    expect_sent(LIST("aab"), LIST("aaaa", "b"), "aa||/", 0);
    expect_sent(LIST("\n\n"), LIST("a\n", "b\n", "\nc"), "a|\nb||/", 0);
}

static void test_of_several_the_first_to_end_counts(void **state)
{
    (void)state;
    expect_sent(LIST("xyz", "y"), LIST("axyz"), "ax|/", 1);
    expect_sent(LIST("yz", "xyz"), LIST("axyz"), "a|/", 1); /* same end: the longer */
    expect_sent(LIST("\xC3\xA9t", "q"), LIST("\xC3\xA9", "e\xC3\xA9", "t"),
                "|\xC3\xA9"
                "e||/",
                0);
}

static void test_without_stop_strings_all_passes(void **state)
{
    stop_strings *s = make(NULL, 0);
    td_slice ready;

    (void)state;
    assert_false(stop_strings_push(s, TD_SLICE("abc"), &ready));
    assert_int_equal(ready.len, 3);
    assert_int_equal(stop_strings_flush(s).len, 0);
    stop_strings_free(s);
}

static void test_an_empty_stop_string_is_refused(void **state)
{
    const td_slice stops[] = {TD_SLICE("a"), TD_SLICE("")};
    stop_strings *s = NULL;
    td_error err;

    (void)state;
    assert_int_equal(stop_strings_create(stops, 2, &s, &err), TD_INVALID);
    assert_string_equal(err.param, "stop");
    assert_null(s);
}

/* Length of what may be sent of text by definition; *hit when a stop string is in it. */
static size_t sendable(const char *text, size_t n, char stops[][8], size_t n_stops, bool *hit)
{
    size_t longest = 0;

    *hit = false;
    for (size_t end = 1; end <= n; end++) {
        size_t best = 0;

        for (size_t s = 0; s < n_stops; s++) {
            size_t len = strlen(stops[s]);

            if (len <= end && memcmp(text + end - len, stops[s], len) == 0 && len > best)
                best = len;
        }
        if (best > 0) {
            *hit = true;
            return end - best;
        }
    }
    for (size_t s = 0; s < n_stops; s++)
        for (size_t len = strlen(stops[s]) - 1; len > longest; len--)
            if (len <= n && memcmp(text + n - len, stops[s], len) == 0)
                longest = len;
    return n - longest;
}

static void test_random_text_against_the_definition(void **state)
{
    (void)state;
    for (seed = 1; seed < 100; seed++) {
        uint32_t start = seed;
        char stops[3][8], text[64];
        size_t n_stops = 1 + next_random(3), n = next_random(60), pushed = 0;
        const char *list[3];
        td_buf sent = {0};
        stop_strings *s;
        bool hit = false;

        for (size_t i = 0; i < n_stops; i++) {
            size_t len = 1 + next_random(6);

            for (size_t j = 0; j < len; j++)
                stops[i][j] = (char)('a' + next_random(2));
            stops[i][len] = '\0';
            list[i] = stops[i];
        }
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + next_random(2));
        s = make(list, n_stops);
        td_buf_add(&sent, "", 0);
        while (pushed < n && !hit) {
            size_t k = 1 + next_random(4), want;
            td_slice ready;
            bool model_hit;

            k = k < n - pushed ? k : n - pushed;
            hit = stop_strings_push(s, (td_slice){text + pushed, k}, &ready);
            pushed += k;
            td_buf_add(&sent, ready.ptr, ready.len);
            want = sendable(text, pushed, stops, n_stops, &model_hit);
            assert_int_equal(hit, model_hit);
            assert_int_equal(sent.len, want);
            assert_memory_equal(sent.ptr, text, want);
        }
        stop_strings_free(s);
        td_buf_free(&sent);
        seed = start;
    }
}

/* U+FFFD for each maximal part that is no character, of the whole text at once. */
static void replace_all(const unsigned char *p, size_t n, td_buf *out)
{
    for (size_t i = 0; i < n;) {
        int len = td_utf8_next(p + i, n - i);
        size_t part = 1;

        if (len > 0) {
            td_buf_add(out, p + i, (size_t)len);
            i += (size_t)len;
            continue;
        }
        while (i + part < n && td_utf8_next(p + i, part + 1) == -2)
            part++;
        td_buf_str(out, "\xEF\xBF\xBD");
        i += part;
    }
}

static void test_characters_come_whole_however_cut(void **state)
{
    static const unsigned char alphabet[] = {'a',  0x80, 0xA9, 0xBF, 0xC3, 0xE2, 0xED,
                                             0xEF, 0xF0, 0x9F, 0x90, 0xF4, 0xC0, 0xFF};

    (void)state;
    for (seed = 1; seed < 3000; seed++) {
        uint32_t start = seed;
        unsigned char text[12];
        size_t n = next_random(sizeof text), pushed = 0;
        td_buf got = {0}, want = {0};
        utf8_stream u = {0};

        for (size_t i = 0; i < n; i++)
            text[i] = alphabet[next_random(sizeof alphabet)];
        while (pushed < n) {
            size_t k = 1 + next_random(4);

            k = k < n - pushed ? k : n - pushed;
            utf8_stream_push(&u, (td_slice){(const char *)text + pushed, k}, &got);
            pushed += k;
            assert_true(td_utf8_valid(got.ptr, got.len, NULL));
            assert_true(u.n <= 3);
        }
        utf8_stream_end(&u, &got);
        replace_all(text, n, &want);
        assert_int_equal(got.len, want.len);
        if (got.len > 0)
            assert_memory_equal(got.ptr, want.ptr, got.len);
        td_buf_free(&got);
        td_buf_free(&want);
        seed = start;
    }
}

static void test_a_flush_in_between_is_a_border(void **state)
{
    const td_slice stop = TD_SLICE("abc");
    stop_strings *s;
    td_slice ready;
    td_error err = {0};

    (void)state;
    assert_int_equal(stop_strings_create(&stop, 1, &s, &err), TD_OK);
    assert_false(stop_strings_push(s, TD_SLICE("xab"), &ready));
    assert_true(td_slice_eq(ready, TD_SLICE("x")));
    assert_true(td_slice_eq(stop_strings_flush(s), TD_SLICE("ab")));
    assert_false(stop_strings_push(s, TD_SLICE("cd"), &ready)); /* "abc" is over the border */
    assert_true(td_slice_eq(ready, TD_SLICE("cd")));
    assert_true(stop_strings_push(s, TD_SLICE("eabcf"), &ready));
    assert_true(td_slice_eq(ready, TD_SLICE("e")));
    stop_strings_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_part_of_a_stop_string_is_sent),
        cmocka_unit_test(test_of_several_the_first_to_end_counts),
        cmocka_unit_test(test_without_stop_strings_all_passes),
        cmocka_unit_test(test_an_empty_stop_string_is_refused),
        cmocka_unit_test(test_a_flush_in_between_is_a_border),
        cmocka_unit_test(test_random_text_against_the_definition),
        cmocka_unit_test(test_characters_come_whole_however_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
