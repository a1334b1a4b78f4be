/* Bodies whose text is at fault: no JSON, or JSON that others would read otherwise, too much of it,
 * damage; and no memory for it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <cjson/cJSON.h>

#include "tests/unit/openai_fixture.h"

static void test_bad_json(void **state)
{
    static const struct {
        const char *body;
        const char *says;
    } bad[] = {
        {"", "empty"},
        {" ", "JSON"},
        {"[]", "an array"},
        {"\"x\"", "a string"},
        {"{", "JSON"},
        {"{" MESSAGES "", "JSON"},
        {"{" MESSAGES "} trailing", "JSON"},
        {"{" MESSAGES "}{}", "JSON"},
        {"{" MESSAGES ",\"temperature\":NaN}", "JSON"},
        {"{" MESSAGES ",\"temperature\":Infinity}", "JSON"},
        {"{" MESSAGES ",}", "JSON"},
        {"{" MESSAGES ",\"temperature\":01}", "written"},
        {"{" MESSAGES ",\"temperature\":1.}", "written"},
        {"{" MESSAGES ",\"temperature\":1.e1}", "written"},
        {"{" MESSAGES ",\"temperature\":1e}", "written"},
        {"{" MESSAGES ",\"temperature\":-}", "written"},
        {"{" MESSAGES ",\"temperature\":1-1}", "JSON"},
        {"{" MESSAGES ",\"x\":[0,-007]}", "written"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\"}]}", "UTF-8"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]}", "UTF-8"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\q\"}]}", "JSON"},
        /* at each of these a string would end without a word */
        {"{" MESSAGES ",\"user\":\"a\\uZZZZ\"}", "four hex digits"},
        {"{" MESSAGES ",\"user\":\"a\\u00g0\"}", "four hex digits"},
        {"{" MESSAGES ",\"user\":\"a\\u 041\"}", "four hex digits"},
        {"{" MESSAGES ",\"user\":\"a\\u12\"}", "four hex digits"},
        {"{" MESSAGES ",\"us\\u+041er\":1}", "four hex digits"},
        {"{" MESSAGES ",\"user\":\"\\u12", "four hex digits"},
        {"{" MESSAGES ",\"user\":\"a\nb\"}", "\\u000a"},
        {"{" MESSAGES ",\"user\":\"a\x1f\"}", "\\u001f"},
        {"{\x0c" MESSAGES "}", "control character"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_bad(bad[i].body, strlen(bad[i].body), "", bad[i].says);
    check_bad("{\"a\":\0 1}", 9, "", "NUL");
    check_bad("{\"a\":\"x\0y\"}", 11, "", "NUL"); /* not cut there without a word */
}

/* A pair is one character; half of one, which is what a client's cut leaves, is U+FFFD. */
static void test_half_pairs_are_replaced(void **state)
{
    static const struct {
        const char *json, *text;
    } cases[] = {
        {"\\ud83d\\uDE00", "\xf0\x9f\x98\x80"},
        {"\\ud83d", "\xef\xbf\xbd"},
        {"a\\uDE00b", "a\xef\xbf\xbd"
                      "b"},
        {"\\ud83d\\ud83d\\ude00\\ud83d\\n", "\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\n"},
        {"\\ude00\\ud83d", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\\ud83d\\\\ude00", "\xef\xbf\xbd\\ude00"},
        {"\\\\ud83d", "\\ud83d"},
        {"\\ud7ff\\ue000", "\xed\x9f\xbf\xee\x80\x80"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[128];
        generation g;
        td_error err = {0};

        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
                 cases[i].json);
        if (parse(body, &g, &err) != TD_OK)
            fail_msg("%s: %s", cases[i].json, err.text);
        assert_text(g.chat.messages[0].content, cases[i].text);
        generation_free(&g);
    }
}

/* An escaped backslash before "u0000" is text, not a NUL. */
static void test_nul(void **state)
{
    static const struct {
        const char *body, *place;
    } bad[] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}", "messages[0].content"},
        {"{" MESSAGES ",\"x\":{\"y\":[]},\"tools\":[{\"a\":[1,\"],}\\\"\"]},{\"function\":{"
         "\"parameters\":{\"enum\":[\"a\",\"b\\u0000\"]}}}]}",
         "tools[1].function.parameters.enum[1]"},
        {"{" MESSAGES ",\"metadata\":{\"a\":1,\"b\\u0000\":2}}", "metadata"},
        {"{\"\\u0000\":1}", ""},
    };
    generation g;
    td_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_bad(bad[i].body, strlen(bad[i].body), bad[i].place, "has \\u0000");
    assert_int_equal(
        parse("{\"messages\":[{\"role\":\"user\",\"content\":\"\\\\u0000\"}]}", &g, &err), TD_OK);
    assert_text(g.chat.messages[0].content, "\\u0000");
    generation_free(&g);
}

/* Of two members the first would be read here, and the last by most others. */
static void test_members_come_once(void **state)
{
    static const char twice[] = "{\"n\":1," MESSAGES ",\"n\":1}";
    static const struct {
        const char *body, *param, *says;
    } inside[] = {
        {"{\"messages\":[{\"role\":\"system\",\"role\":\"user\",\"content\":\"\"}]}",
         "messages[0].role", "messages[0] has 'role' twice"},
        {"{\"messages\":[{},{\"content\":[{\"type\":\"text\",\"t\\u0079pe\":\"\"}]}]}",
         "messages[1].content[0].type", "twice"},
        {"{" MESSAGES ",\"stream_options\":{\"a\":1,\"b\":2,\"a\":3}}", "stream_options.a",
         "stream_options has 'a' twice"},
        {"{" MESSAGES ",\"x\":{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,"
         "\"9\":0,\"10\":0,\"11\":0,\"12\":0,\"13\":0,\"14\":0,\"15\":0,\"16\":0,\"17\":0,"
         "\"17\":0}}",
         "x.17", "x has '17' twice"},
    };
    td_buf b = {0};
    generation g;
    td_error err = {0};

    (void)state;
    check_bad(twice, sizeof twice - 1, "n", "has 'n' twice");
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        check_bad(inside[i].body, strlen(inside[i].body), inside[i].param, inside[i].says);
    for (size_t n = 1; n < OPENAI_MAX_MEMBERS; n++)
        td_buf_fmt(&b, "%s\"k%zu\":1E+2", n > 1 ? "," : "{" MESSAGES ",", n);
    td_buf_byte(&b, '}');
    assert_int_equal(parse(b.ptr, &g, &err), TD_OK);
    generation_free(&g);
    b.len--;
    td_buf_str(&b, ",\"k\":-0.5e-7}");
    check_bad(b.ptr, b.len, "", "more than 1024 members");
    td_buf_free(&b);
}

static void test_values(void **state)
{
    (void)state;
    for (int over = 0; over < 2; over++) {
        td_buf b = {0};
        generation g;
        td_error err = {0};

        /* Eight up to the list's first; commas in text do not count. */
        td_buf_str(&b, "{" MESSAGES ",\"y\":\",,,\",\"x\":[");
        fill(&b, "1,", OPENAI_MAX_VALUES - 8 + (size_t)over);
        td_buf_str(&b, "1]}");
        if (over) {
            check_bad(b.ptr, b.len, "", "more than 524288 values");
        } else {
            assert_int_equal(parse(b.ptr, &g, &err), TD_OK);
            generation_free(&g);
        }
        td_buf_free(&b);
    }
}

static void test_depth(void **state)
{
    static const struct {
        size_t depth;
        bool fine;
    } cases[] = {
        {1, true}, {OPENAI_MAX_DEPTH - 1, true}, {OPENAI_MAX_DEPTH, false}, {20000, false}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_buf b = {0};
        generation g;
        td_error err = {0};

        td_buf_str(&b, "{" MESSAGES ",\"x\":");
        fill(&b, "[", cases[i].depth);
        fill(&b, "]", cases[i].depth);
        td_buf_str(&b, ",\"y\":\"[[[[{{{{\\\"[[\"}"); /* brackets inside text do not count */
        if (cases[i].fine) {
            assert_int_equal(parse(b.ptr, &g, &err), TD_OK);
            generation_free(&g);
        } else {
            check_bad(b.ptr, b.len, "", "nests deeper than 64");
        }
        td_buf_free(&b);
    }
}

/* Every beginning of a good body, and every body with one byte changed, ends in a clean yes or no.
 */
static void test_damage(void **state)
{
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":\"h\\u00e9\"}]},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\","
        "\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{}\"}}]}],\"tools\":[{\"type\":\"function\",\"function\":{"
        "\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"stop\":[\"x\"],\"seed\":5,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"temperature\":0.5}";
    static const char with[] = "\"\\{}[],:0-\x01\xff";
    char copy[sizeof body];

    (void)state;
    for (size_t n = 0; n < sizeof body - 1; n++)
        check_bad(body, n, "", n ? "" : "empty");
    for (size_t i = 0; i < sizeof body - 1; i++) {
        for (const char *c = with; *c != '\0'; c++) {
            generation g;
            td_error err = {0};
            td_status st;

            memcpy(copy, body, sizeof body);
            copy[i] = *c;
            st = parse(copy, &g, &err);
            if (st != TD_OK && (st != TD_INVALID || err.text[0] == '\0'))
                fail_msg("byte %zu as %02x: status %d", i, (unsigned char)*c, (int)st);
            generation_free(&g);
        }
    }
}

static size_t allocations_left;

static void *short_malloc(size_t n)
{
    if (allocations_left-- > 0)
        return malloc(n);
    errno = ENOMEM;
    return NULL;
}

/* Want of memory is not the client's mistake, wherever it comes. */
static void test_no_memory(void **state)
{
    static const char body[] = "{" MESSAGES ",\"stop\":[\"a\"]}";
    cJSON_Hooks hooks = {.malloc_fn = short_malloc, .free_fn = free};
    td_status st = TD_NOMEM;
    size_t n = 0;

    (void)state;
    while (st == TD_NOMEM) {
        generation g;
        td_error err = {0};

        allocations_left = n++;
        cJSON_InitHooks(&hooks);
        st = parse(body, &g, &err);
        cJSON_InitHooks(NULL);
        generation_free(&g);
    }
    assert_int_equal(st, TD_OK);
    assert_true(n > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_json), cmocka_unit_test(test_half_pairs_are_replaced),
        cmocka_unit_test(test_nul),      cmocka_unit_test(test_members_come_once),
        cmocka_unit_test(test_values),   cmocka_unit_test(test_depth),
        cmocka_unit_test(test_damage),   cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
