/* The renderer: prompts as text over the small vocabulary, as ids over the model's own when
 * TANDEM_O200K names it (golden.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/harmony_fixture.h"

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static cJSON *load(const char *name)
{
    char path[128];
    size_t n;
    char *text;
    cJSON *root;

    snprintf(path, sizeof path, HARMONY_DATA "%s", name);
    text = fixture_read(path, &n);
    root = fixture_json(text, n);
    free(text);
    assert_non_null(root);
    return root;
}

static void chat_of(chat *c, const char *body)
{
    cJSON *root = fixture_json(body, strlen(body));

    assert_non_null(root);
    fixture_chat(c, root);
    cJSON_Delete(root);
}

/* The prompt as text, to be freed. */
static char *prompt_of(const harmony *h, const chat *c)
{
    td_tokens ids = {0};
    td_error err;
    td_buf text;

    if (harmony_render(h, c, &ids, &err) != TD_OK)
        fail_msg("%s: %s", err.param, err.text);
    text = fixture_text(h, &ids);
    td_tokens_free(&ids);
    return text.ptr;
}

/* What follows the opening of a conversation: from the first developer or user message on. */
static void expect_turns(const harmony_options *options, const char *body, const char *want)
{
    harmony *h = fixture_with(fixture_harmony(), options);
    chat c;
    char *prompt, *from;

    chat_of(&c, body);
    prompt = prompt_of(h, &c);
    from = strstr(prompt, "<|end|>");
    assert_non_null(from);
    assert_string_equal(from + strlen("<|end|>"), want);
    free(prompt);
    chat_free(&c);
    harmony_close(h);
}

static void expect_error(const char *body, const char *param, const char *part)
{
    td_tokens ids = {0};
    td_error err = {0};
    chat c;

    td_tokens_push(&ids, 7);
    chat_of(&c, body);
    assert_int_equal(harmony_render(fixture_harmony(), &c, &ids, &err), TD_INVALID);
    assert_string_equal(err.param, param);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' has no '%s'", err.text, part);
    assert_int_equal(ids.len, 1); /* as it was */
    td_tokens_free(&ids);
    chat_free(&c);
}

#define BODY(messages) "{\"messages\":[" messages "]}"
#define MSG(role, content) "{\"role\":\"" role "\",\"content\":\"" content "\"}"
#define CALL(id, name, args) \
    "{\"id\":\"" id "\",\"function\":{\"name\":\"" name "\",\"arguments\":\"" args "\"}}"
#define CALLS(list) "{\"role\":\"assistant\",\"tool_calls\":[" list "]}"
#define RESULT(id, content) \
    "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" content "\"}"
#define U(text) "<|start|>user<|message|>" text "<|end|>"
#define A(channel, text) "<|start|>assistant<|channel|>" channel "<|message|>" text "<|end|>"
#define C(name, args) \
    "<|start|>assistant to=functions." name \
    "<|channel|>commentary <|constrain|>json<|message|>" args "<|call|>"
#define R(name, text) \
    "<|start|>functions." name " to=assistant<|channel|>commentary<|message|>" text "<|end|>"
#define DEV(text) "<|start|>developer<|message|>" text "<|end|>"
#define PRIME "<|start|>assistant"

static void test_golden_prompts(void **state)
{
    const harmony *h = fixture_o200k();
    cJSON *root;

    (void)state;
    if (h == NULL)
        skip();
    root = load("golden.json");
    for (const cJSON *g = get(root, "render")->child; g != NULL; g = g->next) {
        const cJSON *want = get(g, "prompt") ? get(g, "prompt") : get(g, "tail");
        size_t n = (size_t)cJSON_GetArraySize(want);
        const char *option = cJSON_GetStringValue(cJSON_GetArrayItem(get(g, "options"), 0));
        harmony_options options = {
            .keep_analysis = option != NULL && strcmp(option, "keep_analysis") == 0,
            .plain_json_type = option != NULL && strcmp(option, "plain_json_type") == 0,
        };
        harmony *with = fixture_with(h, &options);
        td_tokens ids = {0};
        td_error err;
        td_status st;
        chat c;

        fixture_chat(&c, get(g, "body"));
        st = cJSON_IsTrue(get(g, "training")) ? harmony_render_training(with, &c, &ids, &err)
                                              : harmony_render(with, &c, &ids, &err);
        assert_int_equal(st, TD_OK);
        if (get(g, "prompt") != NULL && ids.len != n)
            fail_msg("%s: %zu ids, expected %zu", get(g, "name")->valuestring, ids.len, n);
        for (size_t i = 0; i < n; i++)
            if (ids.ptr[ids.len - n + i] != cJSON_GetArrayItem(want, (int)i)->valueint)
                fail_msg("%s: id %zu differs", get(g, "name")->valuestring, i);
        td_tokens_free(&ids);
        chat_free(&c);
        harmony_close(with);
    }
    cJSON_Delete(root);
}

static void test_named_author_and_content_types(void **state)
{
    const harmony *h = fixture_harmony();
    const struct {
        harmony_message m;
        const char *want;
    } rows[] = {
        {{.author = TD_SLICE("user:bob"), .content = TD_SLICE("x")},
         "<|start|>user:bob<|message|>x<|end|>"},
        {{.author = TD_SLICE("assistant"),
          .channel = TD_SLICE("final"),
          .content_type = TD_SLICE("json")},
         "<|start|>assistant<|channel|>final json<|message|><|end|>"},
        {{.author = TD_SLICE("assistant"), .content_type = TD_SLICE("<|constrain|>")},
         "<|start|>assistant <|constrain|><|message|><|end|>"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        harmony_message m = rows[i].m;
        td_tokens ids = {0};
        td_buf text;

        m.terminator = harmony_ids_of(h)->end;
        assert_int_equal(harmony_render_message(h, &m, &ids, NULL), TD_OK);
        text = fixture_text(h, &ids);
        assert_string_equal(text.ptr, rows[i].want);
        td_buf_free(&text);
        td_tokens_free(&ids);
    }
}

static void test_system_message(void **state)
{
    chat c;
    char *prompt;

    (void)state;
    chat_of(&c, "{\"date\":\"2025-06-28\",\"reasoning_effort\":\"low\","
                "\"messages\":[" MSG("user", "Hi") "]}");
    prompt = prompt_of(fixture_harmony(), &c);
    assert_string_equal(
        prompt,
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: low\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every "
        "message.<|end|>" U("Hi") PRIME);
    free(prompt);
    chat_free(&c);
}

static void test_instructions_lead_or_follow(void **state)
{
    (void)state;
    expect_turns(
        NULL,
        BODY(MSG("system", "One.") "," MSG("developer", "") "," MSG("developer", "Two.") "," MSG(
            "user", "a") "," MSG("system", "Three.") "," MSG("system", "")),
        DEV("# Instructions\n\nOne.\n\nTwo.") U("a") DEV("# Instructions\n\nThree.") PRIME);
    expect_turns(NULL, BODY(MSG("system", "") "," MSG("user", "a")), U("a") PRIME);
}

static void test_an_assistant_turn_is_reasoning_preamble_calls(void **state)
{
    (void)state;
    expect_turns(
        NULL,
        BODY(MSG("user",
                 "a") ",{\"role\":\"assistant\",\"content\":\"look\","
                      "\"reasoning\":\"think\",\"tool_calls\":[" CALL("1", "f", "{}") "," CALL(
                          "2", "functions.g", "") "]}," RESULT("2", "two") "," RESULT("1", "one")),
        U("a") A("analysis", "think") A("commentary", "look") C("f", "{}") C("g", "") R("f", "one")
            R("g", "two") PRIME);
}

static void test_an_empty_assistant_message_is_skipped(void **state)
{
    (void)state;
    expect_turns(NULL, BODY(MSG("user", "a") "," MSG("assistant", "") "," MSG("user", "b")),
                 U("a") U("b") PRIME);
}

#define FINAL(content, reasoning) \
    "{\"role\":\"assistant\",\"content\":\"" content "\",\"reasoning\":\"" reasoning "\"}"

static void test_reasoning_of_finished_turns_is_dropped(void **state)
{
    const harmony_options keep = {.keep_analysis = true};

    (void)state;
    expect_turns(NULL, BODY(MSG("user", "a") "," FINAL("B", "t1") "," MSG("user", "c")),
                 U("a") A("final", "B") U("c") PRIME);
    expect_turns(&keep, BODY(MSG("user", "a") "," FINAL("B", "t1") "," MSG("user", "c")),
                 U("a") A("analysis", "t1") A("final", "B") U("c") PRIME);
    /* A turn in tool calling keeps its own. */
    expect_turns(NULL,
                 BODY(MSG("user", "a") "," FINAL("B", "t1") "," MSG(
                     "user", "c") ",{\"role\":\"assistant\",\"reasoning\":\"t2\",\"tool_calls\":"
                                  "[" CALL("1", "f", "{}") "]}," RESULT("1", "ok")),
                 U("a") A("final", "B") U("c") A("analysis", "t2") C("f", "{}") R("f", "ok") PRIME);
    /* The answer itself is last: its turn is still the current one. */
    expect_turns(
        NULL, BODY(MSG("user", "a") "," FINAL("B", "t1") "," MSG("user", "c") "," FINAL("D", "t2")),
        U("a") A("final", "B") U("c") A("analysis", "t2") A("final", "D") PRIME);
}

static void test_results_find_their_calls(void **state)
{
    (void)state;
    /* An id that every turn uses again, and one that two calls of a message share. */
    expect_turns(NULL,
                 BODY(MSG("user", "a") "," CALLS(CALL("0", "f", "{}")) "," RESULT(
                     "0", "1") "," CALLS(CALL("0", "g", "{}")) "," RESULT("0", "2")),
                 U("a") C("f", "{}") R("f", "1") C("g", "{}") R("g", "2") PRIME);
    expect_turns(NULL,
                 BODY(MSG("user", "a") "," CALLS(CALL("0", "f", "{}") "," CALL(
                     "0", "g", "{}")) "," RESULT("0", "1") "," RESULT("0", "2")),
                 U("a") C("f", "{}") C("g", "{}") R("f", "1") R("g", "2") PRIME);
    /* A late result of an earlier call; one call answered twice; one never. */
    expect_turns(
        NULL,
        BODY(MSG("user", "a") "," CALLS(CALL("x", "f", "{}") "," CALL("y", "g", "{}")) "," MSG(
            "user", "b") "," RESULT("x", "1") "," RESULT("x", "2")),
        U("a") C("f", "{}") C("g", "{}") U("b") R("f", "1") R("f", "2") PRIME);
}

static void test_cross_message_errors_name_the_field(void **state)
{
    (void)state;
    expect_error(BODY(""), "messages", "at least one");
    expect_error(BODY(MSG("user", "a") "," RESULT("x", "1")), "messages[1].tool_call_id", "'x'");
    expect_error(BODY(MSG("user", "a") ",{\"role\":\"tool\",\"content\":\"1\"}"),
                 "messages[1].tool_call_id", "needs the id");
    expect_error(BODY(RESULT("x", "1") "," CALLS(CALL("x", "f", "{}"))), "messages[0].tool_call_id",
                 "no earlier");
    expect_error(BODY(CALLS(CALL("x", "f g", "{}"))), "messages[0].tool_calls[0].function.name",
                 "'f g'");
    expect_error(BODY(CALLS(CALL("x", "<|end|>", "{}"))), "messages[0].tool_calls[0].function.name",
                 "'<|end|>'");
    expect_error("{\"continue_final\":true,\"messages\":[" MSG("user", "a") "]}", "messages[0]",
                 "continued");
}

#define TOOL(name) "{\"function\":{\"name\":\"" name "\"}}"
#define WITH_TOOLS(tools, more) \
    "{\"tools\":[" tools "]," more "\"messages\":[" MSG("user", "a") "]}"

static void test_tool_errors_name_the_field(void **state)
{
    td_buf deep = {0};

    (void)state;
    expect_error(WITH_TOOLS(TOOL("ok") "," TOOL("not ok"), ""), "tools[1].function.name", "not ok");
    expect_error(WITH_TOOLS(TOOL("a.b"), ""), "tools[0].function.name", "a.b");
    expect_error(WITH_TOOLS(TOOL(""), ""), "tools[0].function.name", "1 to 64");
    expect_error(WITH_TOOLS(TOOL("f"), "\"tool_choice\":{\"function\":{\"name\":\"g\"}},"),
                 "tool_choice", "'g'");
    expect_error("{\"tool_choice\":\"required\",\"messages\":[" MSG("user", "a") "]}",
                 "tool_choice", "no tools");

    td_buf_str(&deep, "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":");
    for (int i = 0; i < 100; i++)
        td_buf_str(&deep, "{\"type\":\"array\",\"items\":");
    td_buf_str(&deep, "{}");
    for (int i = 0; i < 100; i++)
        td_buf_str(&deep, "}");
    td_buf_str(&deep, "}}],\"messages\":[" MSG("user", "a") "]}");
    expect_error(deep.ptr, "tools[0].function.parameters", "nests more than 64");
    td_buf_free(&deep);
}

static void test_tool_choice_shapes_the_prompt(void **state)
{
    char *prompt;
    chat c;

    (void)state;
    expect_turns(NULL, WITH_TOOLS(TOOL("f"), "\"tool_choice\":\"none\","), U("a") PRIME);
    /* What must be called is not the prompt's to fix: the model thinks first. */
    chat_of(&c, WITH_TOOLS(TOOL("f") "," TOOL("functions.g"),
                           "\"tool_choice\":{\"function\":{\"name\":\"g\"}},"));
    prompt = prompt_of(fixture_harmony(), &c);
    assert_non_null(strstr(prompt, "type g = () => any;\n"));
    assert_string_equal(strstr(prompt, U("a")), U("a") PRIME);
    free(prompt);
    chat_free(&c);
}

static void test_continue_and_training_ends(void **state)
{
    const harmony *h = fixture_harmony();
    td_tokens ids = {0};
    td_buf text;
    chat c;

    (void)state;
    expect_turns(
        NULL, "{\"continue_final\":true,\"messages\":[" MSG("user", "a") "," FINAL("B", "t") "]}",
        U("a") A("analysis", "t") "<|start|>assistant<|channel|>final<|message|>B");
    chat_of(&c, BODY(MSG("user", "a") "," MSG("assistant", "B") "," MSG("assistant", "")));
    assert_int_equal(harmony_render_training(h, &c, &ids, NULL), TD_OK);
    text = fixture_text(h, &ids);
    assert_string_equal(strstr(text.ptr, U("a")),
                        U("a") "<|start|>assistant<|channel|>final<|message|>B<|return|>");
    td_buf_free(&text);
    td_tokens_free(&ids);
    chat_free(&c);
}

static void test_options_change_calls(void **state)
{
    const harmony_options plain = {.plain_json_type = true};
    const harmony_options after = {.recipient_after_channel = true};

    (void)state;
    expect_turns(
        &plain, BODY(CALLS(CALL("1", "f", "{}"))),
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>" PRIME);
    expect_turns(&after, BODY(CALLS(CALL("1", "f", "{}"))),
                 "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
                 "<|message|>{}<|call|>" PRIME);
}

/* Control ids come from the template only, however a client spells them. */
static void test_spelled_control_tokens_stay_text(void **state)
{
    const harmony *h = fixture_harmony();
    const char *const files[] = {"C005.json", "C042.json"};
    const size_t want[] = {3 * 3 + 1, 4 * 3 + 1 + 1}; /* each message has three; channel; start */

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        cJSON *root = load(files[f]);
        td_tokens ids = {0};
        size_t n = 0;
        chat c;

        fixture_chat(&c, root);
        assert_int_equal(harmony_render(h, &c, &ids, NULL), TD_OK);
        for (size_t i = 0; i < ids.len; i++)
            n += tokenizer_is_special(harmony_tokenizer(h), ids.ptr[i]);
        assert_int_equal(n, want[f]);
        td_tokens_free(&ids);
        chat_free(&c);
        cJSON_Delete(root);
    }
}

static void test_cases_render(void **state)
{
    static const struct {
        const char *file, *part;
    } rows[] = {
        {"C013.json", "note?: any, // default: null\n"},
        {"C015.json", "// labels\ntags: Array<any>,\nany?: any,\npairs?: number[][],\n"},
        {"C017.json", "type ping_none = () => any;\n\ntype ping_null = () => any;\n\n"
                      "type ping_nullp = () => any;\n\ntype ping_empty = (_: any) => any;\n\n"
                      "type ping_obj = (_: {\n}) => any;\n"},
        {"C018.json", C("status", "{\"id\": 41, \"q\": \"say \\\"hi\\\"\"}")
                          R("status", "{\"state\": \"ok\"}") PRIME},
        {"C020.json", A("analysis", "I should call the tool.") A("commentary", "Let me look.")
                          C("weather", "{\"city\":\"Oslo\"}") R("weather", "3 degrees") PRIME},
        {"C023.json",
         DEV("# Instructions\n\nPart one. Part two.") U("alphabeta") U("Go on.") PRIME},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *root = load(rows[i].file);
        char *prompt;
        chat c;

        fixture_chat(&c, root);
        prompt = prompt_of(fixture_harmony(), &c);
        if (strstr(prompt, rows[i].part) == NULL)
            fail_msg("%s: no\n%s\nin\n%s", rows[i].file, rows[i].part, prompt);
        free(prompt);
        chat_free(&c);
        cJSON_Delete(root);
    }
}

/* Many properties, all required; many calls of one id: what a client may send stays cheap. */
static void test_large_conversations_take_linear_time(void **state)
{
    td_buf body = {0};
    char *prompt;
    chat c;

    (void)state;
    td_buf_str(&body, "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":"
                      "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 20000; i++)
        td_buf_fmt(&body, "%s\"p%d\":{}", i ? "," : "", i);
    td_buf_str(&body, "},\"required\":[");
    for (int i = 0; i < 20000; i++)
        td_buf_fmt(&body, "%s\"p%d\"", i ? "," : "", i);
    td_buf_str(&body, "]}}}],\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    for (int i = 0; i < 20000; i++)
        td_buf_fmt(&body, "%s" CALL("same", "f", ""), i ? "," : "");
    td_buf_str(&body, "]}");
    for (int i = 0; i < 20000; i++)
        td_buf_str(&body, "," RESULT("same", ""));
    td_buf_str(&body, "]}");
    chat_of(&c, body.ptr);
    prompt = prompt_of(fixture_harmony(), &c);
    assert_non_null(strstr(prompt, "\np19999: any,\n"));
    free(prompt);
    chat_free(&c);
    td_buf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_prompts),
        cmocka_unit_test(test_named_author_and_content_types),
        cmocka_unit_test(test_system_message),
        cmocka_unit_test(test_instructions_lead_or_follow),
        cmocka_unit_test(test_an_assistant_turn_is_reasoning_preamble_calls),
        cmocka_unit_test(test_an_empty_assistant_message_is_skipped),
        cmocka_unit_test(test_reasoning_of_finished_turns_is_dropped),
        cmocka_unit_test(test_results_find_their_calls),
        cmocka_unit_test(test_cross_message_errors_name_the_field),
        cmocka_unit_test(test_tool_errors_name_the_field),
        cmocka_unit_test(test_tool_choice_shapes_the_prompt),
        cmocka_unit_test(test_continue_and_training_ends),
        cmocka_unit_test(test_options_change_calls),
        cmocka_unit_test(test_spelled_control_tokens_stay_text),
        cmocka_unit_test(test_cases_render),
        cmocka_unit_test(test_large_conversations_take_linear_time),
    };

    return cmocka_run_group_tests(tests, NULL, fixture_tear_down);
}
