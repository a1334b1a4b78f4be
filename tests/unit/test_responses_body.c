/* The body of /v1/responses: its fields, what the answer repeats of them, and how each mistake is
 * named. */
#include "tests/unit/responses_fixture.h"

static void test_fields(void **state)
{
    responses_request q;
    const generation *g = &q.g;

    (void)state;
    parse_well("{\"input\":\"hi\"}", &q);
    assert_true(!q.store && !g->stream && !g->logprobs); /* there is nowhere to keep it */
    assert_int_equal(g->max_tokens, 0);
    assert_int_equal(g->chat.effort, CHAT_EFFORT_MEDIUM);
    responses_request_free(&q);
    parse_well("{\"input\":\"hi\",\"max_output_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,"
               "\"seed\":9,\"stream\":true,\"stream_options\":{\"include_obfuscation\":false},"
               "\"include\":[\"message.output_text.logprobs\",\"reasoning.encrypted_content\"],"
               "\"top_logprobs\":3,\"reasoning\":{\"effort\":\"high\",\"summary\":\"auto\"},"
               "\"model\":\"m\",\"unknown\":[1]}",
               &q);
    assert_int_equal(g->max_tokens, 7);
    assert_true(g->temperature == 0.5f && g->top_p == 0.25f && g->has_seed && g->seed == 9);
    assert_true(g->stream && g->logprobs && g->top_logprobs == 3);
    assert_int_equal(g->chat.effort, CHAT_EFFORT_HIGH);
    assert_true(td_slice_eq(g->model, TD_SLICE("m")));
    responses_request_free(&q);
}

static void test_tools(void **state)
{
    static const char tools[] =
        "{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\","
        "\"default\":1.0}}},\"strict\":false},{\"type\":\"function\",\"name\":\"g\"}]%s}";
    static const struct {
        const char *more, *echo;
        chat_tool_choice choice;
    } choices[] = {
        {"", "\"auto\"", CHAT_TOOL_AUTO},
        {",\"tool_choice\":\"none\"", "\"none\"", CHAT_TOOL_NONE},
        {",\"tool_choice\":\"required\"", "\"required\"", CHAT_TOOL_REQUIRED},
        {",\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}",
         "{\"type\":\"function\",\"name\":\"g\"}", CHAT_TOOL_NAMED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        responses_request q;
        char body[512], echo[96];

        snprintf(body, sizeof body, tools, choices[i].more);
        parse_well(body, &q);
        assert_int_equal(q.g.chat.n_tools, 2);
        assert_int_equal(q.g.chat.tool_choice, choices[i].choice);
        assert_non_null(q.g.chat.tools[0].parameters);
        snprintf(echo, sizeof echo, ",\"tool_choice\":%s", choices[i].echo);
        assert_non_null(strstr(q.echo.ptr, echo));
        /* Parameters come back as they were written. */
        assert_non_null(strstr(q.echo.ptr, ",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
                                           "\"description\":\"d\",\"parameters\":{\"type\":"));
        assert_non_null(strstr(q.echo.ptr, "\"default\":1.0}"));
        assert_non_null(strstr(q.echo.ptr, "{\"type\":\"function\",\"name\":\"g\",\"description\":"
                                           "null,\"parameters\":null,\"strict\":false}]"));
        responses_request_free(&q);
    }
}

static void test_format(void **state)
{
    static const struct {
        const char *json, *echo;
        chat_format format;
    } formats[] = {
        {"{\"type\":\"text\"}", "{\"type\":\"text\"}", CHAT_FORMAT_TEXT},
        {"null", "{\"type\":\"text\"}", CHAT_FORMAT_TEXT},
        {"{\"type\":\"json_object\"}", "{\"type\":\"json_object\"}", CHAT_FORMAT_JSON_OBJECT},
        {"{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":\"object\"}}",
         "{\"type\":\"json_schema\",\"name\":\"n\",\"description\":null,"
         "\"schema\":{\"type\":\"object\"},\"strict\":true}",
         CHAT_FORMAT_JSON_SCHEMA},
        {"{\"type\":\"json_schema\",\"name\":\"n\",\"description\":\"d\",\"strict\":false}",
         "{\"type\":\"json_schema\",\"name\":\"n\",\"description\":\"d\",\"schema\":{},"
         "\"strict\":false}",
         CHAT_FORMAT_JSON_SCHEMA},
    };

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        responses_request q;
        char body[256], echo[256];

        snprintf(body, sizeof body, "{\"input\":\"hi\",\"text\":{\"format\":%s}}", formats[i].json);
        parse_well(body, &q);
        assert_int_equal(q.g.chat.format, formats[i].format);
        snprintf(echo, sizeof echo, ",\"text\":{\"format\":%s,\"verbosity\":\"medium\"}",
                 formats[i].echo);
        if (strstr(q.echo.ptr, echo) == NULL)
            fail_msg("no %s in %s", echo, q.echo.ptr);
        responses_request_free(&q);
    }
}

/* Every member that the API promises, as JSON, with what was asked in it. */
static void test_echo(void **state)
{
    static const char *const names[] = {"background",
                                        "instructions",
                                        "max_output_tokens",
                                        "max_tool_calls",
                                        "metadata",
                                        "parallel_tool_calls",
                                        "previous_response_id",
                                        "prompt_cache_key",
                                        "reasoning",
                                        "safety_identifier",
                                        "service_tier",
                                        "temperature",
                                        "text",
                                        "tool_choice",
                                        "tools",
                                        "top_logprobs",
                                        "top_p",
                                        "truncation",
                                        "user"};
    static const struct {
        const char *name, *json;
    } said[] = {{"instructions", "\"a \\\"b\\\"\\n\""},
                {"metadata", "{\"k\":\"v\"}"},
                {"parallel_tool_calls", "false"},
                {"max_tool_calls", "3"},
                {"max_output_tokens", "20"},
                {"temperature", "0.7"},
                {"user", "\"u\""}};
    responses_request q;
    td_buf object = {0};
    cJSON *root;

    (void)state;
    parse_well(
        "{\"input\":\"hi\",\"instructions\":\"a \\\"b\\\"\\n\",\"metadata\":{\"k\":\"v\"},"
        "\"parallel_tool_calls\":false,\"max_tool_calls\":3,\"max_output_tokens\":20,"
        "\"temperature\":0.7,\"user\":\"u\",\"truncation\":\"disabled\",\"background\":false,"
        "\"service_tier\":\"auto\",\"text\":{\"format\":{\"type\":\"text\"}}}",
        &q);
    td_buf_byte(&object, '{');
    td_buf_add(&object, q.echo.ptr, q.echo.len);
    td_buf_byte(&object, '}');
    root = cJSON_Parse(object.ptr);
    if (root == NULL)
        fail_msg("not JSON: %s", object.ptr);
    assert_int_equal(cJSON_GetArraySize(root), sizeof names / sizeof *names);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (cJSON_GetObjectItem(root, names[i]) == NULL)
            fail_msg("no %s in %s", names[i], object.ptr);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        char *json = cJSON_PrintUnformatted(cJSON_GetObjectItem(root, said[i].name));

        assert_string_equal(json, said[i].json);
        free(json);
    }
    cJSON_Delete(root);
    td_buf_free(&object);
    responses_request_free(&q);
}

static void test_mistakes_are_named(void **state)
{
#define HI "\"input\":\"hi\","
#define ITEM(json) "{\"input\":[" USER "," json "]}"
    static const struct {
        const char *body, *param, *says;
    } bad[] = {
        {"[]", "", "object"},
        {"{}", "input", "missing"},
        {"{\"input\":5}", "input", "a number"},
        {"{\"input\":[]}", "input", "nothing"},
        {"{\"input\":[5]}", "input[0]", "a number"},
        {"{\"input\":[{}]}", "input[0].type", "string"},
        {"{\"input\":[{\"type\":\"reasoning\",\"summary\":[]}]}", "input", "nothing"},
        {ITEM("{\"role\":\"tool\",\"content\":\"x\"}"), "input[1].role", "developer"},
        {ITEM("{\"role\":\"user\"}"), "input[1].content", "missing"},
        {ITEM("{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}"),
         "input[1].content[0]", "input_image"},
        {ITEM("{\"role\":\"user\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"\"}]}"),
         "input[1].content[0]", "reasoning_text"},
        {ITEM("{\"role\":\"assistant\",\"phase\":\"x\",\"content\":\"y\"}"), "input[1].phase",
         "commentary"},
        {ITEM("{\"type\":\"item_reference\",\"id\":\"m_1\"}"), "input[1]", "item_reference"},
        {ITEM("{\"id\":\"m_1\"}"), "input[1]", "item_reference"},
        {ITEM("{\"type\":\"item_reference\"}"), "input[1].id", "must be the id"},
        {ITEM("{\"type\":\"item_reference\",\"id\":5}"), "input[1].id", "must be the id"},
        {ITEM("{\"type\":\"web_search_call\",\"id\":\"w\"}"), "input[1].type", "web_search_call"},
        {ITEM("{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"\"}"), "input[1].call_id",
         "missing"},
        {ITEM("{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"a b\",\"arguments\":\"\"}"),
         "input[1].name", "a b"},
        {ITEM("{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":{}}"),
         "input[1].arguments", "an object"},
        {ITEM(CALL("") "," OUTPUT("", "x")), "input[2].call_id", "empty"},
        {ITEM(OUTPUT("nope", "x")), "input[1].call_id", "nope"},
        {ITEM(CALL("a") ",{\"type\":\"function_call_output\",\"call_id\":\"a\"}"),
         "input[2].output", "missing"},
        {ITEM(CALL("a") ",{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":["
                        "{\"type\":\"input_file\"}]}"),
         "input[2].output[0]", "input_file"},
        {"{" HI "\"instructions\":[]}", "instructions", "an array"},
        {"{" HI "\"background\":true}", "background", "not supported"},
        {"{" HI "\"truncation\":\"auto\"}", "truncation", "not supported"},
        {"{" HI "\"conversation\":\"c\"}", "conversation", "previous_response_id"},
        {"{" HI "\"prompt\":{\"id\":\"p\"}}", "prompt", "stored prompts"},
        {"{" HI "\"messages\":[]}", "messages", "input"},
        {"{" HI "\"max_tokens\":5}", "max_tokens", "max_output_tokens"},
        {"{" HI "\"reasoning_effort\":\"low\"}", "reasoning_effort", "reasoning.effort"},
        {"{" HI "\"function_call\":\"auto\"}", "function_call", "old form"},
        {"{" HI "\"modalities\":[\"audio\"]}", "modalities", "text"},
        {"{" HI "\"verbosity\":\"low\"}", "verbosity", "text.verbosity"},
        {"{" HI "\"suffix\":\"x\"}", "suffix", "not supported"},
        {"{" HI "\"include_reasoning\":false}", "include_reasoning", "passed over"},
        {"{" HI "\"continue_final_message\":true}", "continue_final_message", "new message"},
        {"{" HI "\"max_output_tokens\":0}", "max_output_tokens", "between 1"},
        {"{" HI "\"max_output_tokens\":\"5\"}", "max_output_tokens", "a string"},
        {"{" HI "\"temperature\":3}", "temperature", "0 and 2"},
        {"{" HI "\"store\":1}", "store", "true or false"},
        {"{" HI "\"stream_options\":{}}", "stream_options", "stream: true"},
        {"{" HI "\"metadata\":[]}", "metadata", "an array"},
        {"{" HI "\"metadata\":{\"a\":1}}", "metadata", "\"a\""},
        {"{" HI "\"min_p\":0.5}", "min_p", "top_p"},
        {"{" HI "\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\","
         "\"name\":\"f\"}]}",
         "tools[1].name", "'f' is the name of tools[0]"},
        {"{" HI "\"guided_json\":{}}", "guided_json", "text.format"},
        {"{" HI "\"reasoning\":\"low\"}", "reasoning", "a string"},
        {"{" HI "\"reasoning\":{\"effort\":\"none\"}}", "reasoning.effort", "low"},
        {"{" HI "\"reasoning\":{\"summary\":\"long\"}}", "reasoning.summary", "concise"},
        {"{" HI "\"reasoning\":{\"generate_summary\":5}}", "reasoning.generate_summary", "concise"},
        {"{" HI "\"text\":[]}", "text", "an array"},
        {"{" HI "\"text\":{\"verbosity\":\"x\"}}", "text.verbosity", "medium"},
        {"{" HI "\"text\":{\"format\":{}}}", "text.format", "type"},
        {"{" HI "\"text\":{\"format\":{\"type\":\"xml\"}}}", "text.format.type", "xml"},
        {"{" HI "\"text\":{\"format\":{\"type\":\"json_schema\"}}}", "text.format.name", "missing"},
        {"{" HI "\"include\":\"x\"}", "include", "a string"},
        {"{" HI "\"include\":[\"all\"]}", "include", "all"},
        {"{" HI "\"include\":[5]}", "include", "a number"},
        {"{" HI "\"top_logprobs\":3}", "top_logprobs", "needs include"},
        {"{" HI "\"tools\":{}}", "tools", "an object"},
        {"{" HI "\"tools\":[{\"type\":\"web_search\"}]}", "tools[0]", "web_search"},
        {"{" HI "\"tools\":[{\"type\":\"function\"}]}", "tools[0].name", "missing"},
        {"{" HI "\"tool_choice\":\"required\"}", "tool_choice", "no tools"},
        {"{" HI "\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\"}}",
         "tool_choice.type", "allowed_tools"},
        {"{" HI "\"parallel_tool_calls\":1}", "parallel_tool_calls", "true or false"},
        {"{" HI "\"previous_response_id\":5}", "previous_response_id", "a number"},
        {"{" HI "\"service_tier\":\"x\"}", "service_tier", "auto"},
        {"{" HI "\"user\":5}", "user", "a number"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        responses_request q;
        td_error err = {0};

        if (parse(bad[i].body, NULL, &q, &err) != TD_INVALID ||
            strcmp(err.param, bad[i].param) != 0 || strstr(err.text, bad[i].says) == NULL)
            fail_msg("%s: %d, \"%s\": %s", bad[i].body, err.code, err.param, err.text);
        responses_request_free(&q);
    }
}

static void test_explicit_null_is_absent(void **state)
{
    responses_request q;

    (void)state;
    parse_well("{\"input\":\"hi\",\"instructions\":null,\"background\":null,\"tools\":null,"
               "\"tool_choice\":null,\"text\":null,\"reasoning\":{\"effort\":null},\"store\":null,"
               "\"max_output_tokens\":null,\"previous_response_id\":null,\"include\":null,"
               "\"metadata\":null,\"stream\":null,\"temperature\":null,\"conversation\":null}",
               &q);
    assert_int_equal(q.g.chat.n_messages, 1);
    responses_request_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_explicit_null_is_absent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
