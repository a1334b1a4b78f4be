/* Schemas as types, response formats, and JSON on one line. What the reference prints for many more
 * schemas is checked by tests/golden/harmony_oracle.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "router/harmony_tools.h"
#include "tests/unit/harmony_fixture.h"

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static void chat_of(chat *c, const char *body)
{
    cJSON *root = fixture_json(body, strlen(body));

    assert_non_null(root);
    fixture_chat(c, root);
    cJSON_Delete(root);
}

static void test_schemas_become_types(void **state)
{
    size_t n;
    char *file = fixture_read(HARMONY_DATA "schemas.json", &n);
    cJSON *root = fixture_json(file, n);

    (void)state;
    free(file);
    assert_non_null(root);
    for (const cJSON *s = root->child; s != NULL; s = s->next) {
        harmony_options options = {.union_any_of = cJSON_IsTrue(get(s, "union_any_of"))};
        td_buf text = {0};
        chat c;
        chat_tool *t;

        chat_init(&c);
        t = chat_add_tool(&c);
        t->name = chat_str(&c, "f");
        chat_set_parameters(&c, t, cJSON_Duplicate(get(s, "schema"), true));
        assert_int_equal(harmony_tools_section(&c, options.union_any_of, &text, NULL), TD_OK);
        assert_string_equal(strstr(text.ptr, "type f"), get(s, "type")->valuestring);
        td_buf_free(&text);
        chat_free(&c);
    }
    cJSON_Delete(root);
}

#define TOOL(name) "{\"function\":{\"name\":\"" name "\"}}"
#define MSG(role, content) "{\"role\":\"" role "\",\"content\":\"" content "\"}"
#define WITH_TOOLS(tools, more) \
    "{\"tools\":[" tools "]," more "\"messages\":[" MSG("user", "a") "]}"

static void test_response_formats(void **state)
{
    static const struct {
        const char *body, *want;
    } rows[] = {
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"list\","
         "\"description\":\"What to buy.\",\"schema\":{\"a\":[1.0, 2]}}},\"messages\":[" MSG(
             "system", "Be brief.") "]}",
         "# Instructions\n\nBe brief.\n\n# Response Formats\n\n## list\n\n// What to buy.\n"
         "{\"a\":[1.0,2]}"},
        {"{\"response_format\":{\"type\":\"json_object\"},\"messages\":[" MSG("user", "a") "]}",
         "# Response Formats\n\n## json_object\n\n{\"type\":\"object\"}"},
        {WITH_TOOLS(TOOL("f"), "\"response_format\":{\"type\":\"json_object\"},"),
         "# Tools\n\n## functions\n\nnamespace functions {\n\ntype f = () => any;\n\n"
         "} // namespace functions\n\n# Response Formats\n\n## json_object\n\n"
         "{\"type\":\"object\"}"},
        {WITH_TOOLS(TOOL("f"), "\"response_format\":{\"type\":\"text\"},\"tool_choice\":\"none\","),
         ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        td_buf text = {0};
        chat c;

        td_buf_add(&text, "", 0);
        chat_of(&c, rows[i].body);
        assert_int_equal(harmony_developer_text(fixture_harmony(), &c, &text, NULL), TD_OK);
        assert_string_equal(text.ptr, rows[i].want);
        td_buf_free(&text);
        chat_free(&c);
    }
}

static void test_compact_json_keeps_spelling(void **state)
{
    static const char *const rows[][2] = {
        {"[1.0, 1, -0, 1e2, 1E16, 1e15, 0.00001, 0.000001, 0.0001, -2.5e-8]",
         "[1.0,1,-0.0,100.0,1e16,1000000000000000.0,0.00001,1e-6,0.0001,-2.5e-8]"},
        {"[18446744073709551615, -9223372036854775808, 18446744073709551616]",
         "[18446744073709551615,-9223372036854775808,1.8446744073709552e19]"},
        {"{\"b\" : \"\\u0001\\b\\f\\n\\r\\t\\\"\\\\/\\u007f\xC3\xA9 7\" , \"a\": [ ] , \"c\":{}}",
         "{\"b\":\"\\u0001\\b\\f\\n\\r\\t\\\"\\\\/\x7f\xC3\xA9 7\",\"a\":[],\"c\":{}}"},
        {"[{\"1\":[2,{\"3\":4.50}]},true,false,null,5]",
         "[{\"1\":[2,{\"3\":4.5}]},true,false,null,5]"},
    };
    cJSON *plain = cJSON_CreateNumber(3);
    td_buf out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *root = fixture_json(rows[i][0], strlen(rows[i][0]));

        assert_non_null(root);
        td_buf_clear(&out);
        harmony_json_compact(&out, root);
        assert_string_equal(out.ptr, rows[i][1]);
        cJSON_Delete(root);
    }
    td_buf_clear(&out);
    harmony_json_compact(&out, plain); /* built, not parsed */
    assert_string_equal(out.ptr, "3");
    cJSON_Delete(plain);
    td_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas_become_types),
        cmocka_unit_test(test_response_formats),
        cmocka_unit_test(test_compact_json_keeps_spelling),
    };

    return cmocka_run_group_tests(tests, NULL, fixture_tear_down);
}
