/* The opening of a prompt: whole prompts against the sizes and digests of openai-harmony's own test
 * data (whole.json: their names, with the input that makes each), and the parts of the system
 * message one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "router/harmony_builtin.h"
#include "router/sha256.h"
#include "tests/unit/harmony_fixture.h"

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static void expect_sha256(const char *text, size_t n, const char *want)
{
    char sum[SHA256_HEX];

    sha256_hex(text, n, sum);
    assert_string_equal(sum, want);
}

static size_t n_tokens(const harmony *h, const cJSON *body, td_buf *text)
{
    td_tokens ids = {0};
    td_error err;
    size_t n;
    chat c;

    fixture_chat(&c, body);
    if (harmony_render(h, &c, &ids, &err) != TD_OK)
        fail_msg("%s: %s", err.param, err.text);
    *text = fixture_text(h, &ids);
    n = ids.len;
    td_tokens_free(&ids);
    chat_free(&c);
    return n;
}

static void expect_whole(const harmony *h, bool count)
{
    size_t n;
    char *json = fixture_read(HARMONY_DATA "whole.json", &n);
    cJSON *root = fixture_json(json, n);

    assert_int_equal(cJSON_GetArraySize(root), 6);
    for (const cJSON *g = root->child; g != NULL; g = g->next) {
        td_buf text;

        n = n_tokens(h, get(g, "body"), &text);
        assert_int_equal(text.len, get(g, "bytes")->valueint);
        expect_sha256(text.ptr, text.len, cJSON_GetStringValue(get(g, "sha256")));
        if (count)
            assert_int_equal(n, get(g, "tokens")->valueint);
        td_buf_free(&text);
    }
    cJSON_Delete(root);
    free(json);
}

static void test_whole_prompts(void **state)
{
    (void)state;
    expect_whole(fixture_harmony(), false);
}

static void test_whole_prompts_in_tokens(void **state)
{
    (void)state;
    if (fixture_o200k() == NULL)
        skip();
    expect_whole(fixture_o200k(), true);
}

static void test_builtin_tools_to_the_byte(void **state)
{
    (void)state;
    assert_int_equal(sizeof harmony_browser_section - 1, 1550);
    expect_sha256(harmony_browser_section, sizeof harmony_browser_section - 1,
                  "c4ab16736a28c6e72dca0671a6b7ba8233a0b1deaff7a2c2afad91937694d443");
    assert_int_equal(sizeof harmony_python_section - 1, 615);
    expect_sha256(harmony_python_section, sizeof harmony_python_section - 1,
                  "2dd7bb9c4fb01b20e2f99454340c1ad6c02b319b72f76cd78eee9286e51cdf4f");
}

/* The system message of a chat, which is freed. */
static void expect_system(chat *c, const char *want)
{
    td_buf text = {0};

    assert_int_equal(harmony_system_text(fixture_harmony(), c, &text, NULL), TD_OK);
    assert_int_equal(text.len, strlen(want));
    assert_memory_equal(text.ptr, want, text.len);
    td_buf_free(&text);
    chat_free(c);
}

static void test_parts_that_are_absent(void **state)
{
    chat c;

    (void)state;
    chat_init(&c);
    c.identity = c.cutoff = c.channels = (td_slice){NULL, 0};
    c.effort = CHAT_EFFORT_LOW;
    chat_add_tool(&c)->name = chat_str(&c, "f"); /* its line stands below the channels' */
    expect_system(&c, "Reasoning: low");

    chat_init(&c);
    c.cutoff = c.channels = (td_slice){NULL, 0};
    c.identity = chat_str(&c, "You are a parrot.");
    c.date = chat_str(&c, "2025-06-28");
    c.effort = CHAT_EFFORT_HIGH;
    expect_system(&c, "You are a parrot.\nCurrent date: 2025-06-28\n\nReasoning: high");
}

static void test_channels_are_the_callers(void **state)
{
    chat c;

    (void)state;
    chat_init(&c);
    c.identity = c.cutoff = (td_slice){NULL, 0};
    c.channels = chat_str(&c, "analysis, final");
    chat_add_tool(&c)->name = chat_str(&c, "f");
    expect_system(&c, "Reasoning: medium\n\n# Valid channels: analysis, final. Channel must be "
                      "included for every message.\nCalls to these tools must go to the commentary "
                      "channel: 'functions'.");
}

static void test_builtin_tools_stand_before_the_channels(void **state)
{
    td_buf want = {0};
    chat c;

    (void)state;
    chat_init(&c);
    c.identity = c.cutoff = (td_slice){NULL, 0};
    c.channels = chat_str(&c, "final");
    c.builtin_tools = CHAT_BUILTIN_PYTHON;
    td_buf_str(&want, "Reasoning: medium\n\n# Tools\n\n");
    td_buf_str(&want, harmony_python_section);
    td_buf_str(&want, "\n\n# Valid channels: final. Channel must be included for every message.");
    expect_system(&c, want.ptr);
    td_buf_free(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_prompts),
        cmocka_unit_test(test_whole_prompts_in_tokens),
        cmocka_unit_test(test_builtin_tools_to_the_byte),
        cmocka_unit_test(test_parts_that_are_absent),
        cmocka_unit_test(test_channels_are_the_callers),
        cmocka_unit_test(test_builtin_tools_stand_before_the_channels),
    };

    return cmocka_run_group_tests_name("harmony_system", tests, NULL, fixture_tear_down);
}
