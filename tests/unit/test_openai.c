/* The Chat Completions body, field by field: what it becomes. Mistakes: test_openai_refusals.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/openai_fixture.h"

static void test_defaults(void **state)
{
    generation g;

    (void)state;
    parse_with("", &g);
    assert_int_equal(g.chat.n_messages, 1);
    assert_int_equal(g.chat.messages[0].role, CHAT_USER);
    assert_text(g.chat.messages[0].content, "hi");
    assert_text(g.chat.date, "2025-06-28");
    assert_int_equal(g.model.len, 0);
    assert_true(g.temperature == 1 && g.top_p == 1 && g.top_k == 0);
    assert_false(g.has_seed || g.stream || g.include_usage || g.ignore_eos);
    assert_int_equal(g.max_tokens, 0);
    assert_int_equal(g.n_stop, 0);
    assert_int_equal(g.chat.n_tools, 0);
    assert_int_equal(g.chat.effort, CHAT_EFFORT_MEDIUM);
    assert_int_equal(g.chat.tool_choice, CHAT_TOOL_AUTO);
    generation_free(&g);
}

static void test_every_field(void **state)
{
    generation g;

    (void)state;
    parse_with("\"model\":\"m\",\"temperature\":0.25,\"top_p\":0.5,\"top_k\":7,\"seed\":-3,"
               "\"max_tokens\":11,\"max_completion_tokens\":11,\"stop\":[\"a\",\"bc\"],"
               "\"stream\":true,\"stream_options\":{\"include_usage\":true},"
               "\"reasoning_effort\":\"high\",\"ignore_eos\":true,\"n\":1,"
               "\"frequency_penalty\":0,\"presence_penalty\":0.0,\"logprobs\":false,"
               "\"top_logprobs\":0,\"logit_bias\":{},\"response_format\":{\"type\":\"text\"},"
               "\"user\":\"someone\",\"metadata\":{\"a\":[1,{\"b\":null}]},\"store\":false",
               &g);
    assert_text(g.model, "m");
    assert_true(g.temperature == 0.25f && g.top_p == 0.5f && g.top_k == 7);
    assert_true(g.has_seed && g.seed == (uint64_t)-3);
    assert_int_equal(g.max_tokens, 11);
    assert_int_equal(g.n_stop, 2);
    assert_text(g.stop[0], "a");
    assert_text(g.stop[1], "bc");
    assert_true(g.stream && g.include_usage && g.ignore_eos);
    assert_int_equal(g.chat.effort, CHAT_EFFORT_HIGH);
    generation_free(&g);
}

static void test_what_changes_logits(void **state)
{
    generation g;
    td_error err = {0};
    td_buf body = {0};

    (void)state;
    parse_with("\"frequency_penalty\":-2,\"presence_penalty\":1.5,\"logprobs\":true,"
               "\"top_logprobs\":20,\"logit_bias\":{\"999\":-100,\"0\":100,\"12\":0.5}",
               &g);
    assert_true(g.frequency == -2 && g.presence == 1.5f);
    assert_true(g.logprobs);
    assert_int_equal(g.top_logprobs, 20);
    assert_int_equal(g.n_bias, 3);
    assert_true(g.bias[0].token == 0 && g.bias[0].bias == 100);
    assert_true(g.bias[1].token == 12 && g.bias[1].bias == 0.5f);
    assert_true(g.bias[2].token == 999 && g.bias[2].bias == -100);
    generation_free(&g);
    parse_with("\"logprobs\":true", &g);
    assert_true(g.logprobs && g.top_logprobs == 0);
    generation_free(&g);

    td_buf_str(&body, "{" MESSAGES ",\"logit_bias\":{");
    for (int i = 0; i < 1025; i++) /* counted before they are looked at */
        td_buf_fmt(&body, "%s\"%d\":1", i > 0 ? "," : "", i);
    td_buf_str(&body, "}}");
    assert_int_equal(parse(body.ptr, &g, &err), TD_INVALID);
    assert_string_equal(err.param, "logit_bias");
    assert_non_null(strstr(err.text, "at most 1024"));
    generation_free(&g);
    td_buf_free(&body);
}

/* What clients and gateways send along without asking for anything, and what nobody knows. */
static void test_fields_without_effect_are_taken(void **state)
{
    static const char members[] =
        "\"user\":\"u-1\",\"safety_identifier\":\"s\",\"prompt_cache_key\":\"k\",\"metadata\":{"
        "\"a\":"
        "\"b\"},\"store\":true,\"service_tier\":\"auto\",\"n\":1,\"best_of\":1,\"echo\":false,"
        "\"modalities\":[\"text\"],\"verbosity\":\"low\",\"prediction\":{\"type\":\"content\"},"
        "\"parallel_tool_calls\":false,\"min_p\":0,\"min_tokens\":0,\"repetition_penalty\":1.0,"
        "\"length_penalty\":1,\"use_beam_search\":false,\"stop_token_ids\":[],\"bad_words\":[],"
        "\"skip_special_tokens\":true,\"include_stop_str_in_output\":false,\"of_tomorrow\":[1]";
    generation g;

    (void)state;
    parse_with(members, &g);
    assert_int_equal(g.n, 1);
    generation_free(&g);
}

/* null is how some clients say "not given": each field must take it. */
static void test_null_is_absent(void **state)
{
    static const char *const fields[] = {
        "model",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "max_tokens",
        "stop",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "reasoning_effort",
        "n",
        "response_format",
        "frequency_penalty",
        "presence_penalty",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "max_completion_tokens",
        "functions",
        "function_call",
        "audio",
        "ignore_eos",
        "continue_final_message",
    };

    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char member[64];
        generation g;

        snprintf(member, sizeof member, "\"%s\":null", fields[i]);
        parse_with(member, &g);
        generation_free(&g);
    }
}

static void test_sampling_limits(void **state)
{
    static const struct {
        const char *members;
        float temperature, top_p;
    } cases[] = {
        {"\"temperature\":0", 0, 1},
        {"\"temperature\":2", 2, 1},
        {"\"temperature\":1e-5", 1e-5f, 1},
        {"\"top_p\":1", 1, 1},
        {"\"top_p\":0", 0, 1}, /* the likeliest token only */
        {"\"temperature\":0.7,\"top_p\":0", 0, 1},
        {"\"top_p\":1e-60", 0, 1}, /* 0 as a float */
        {"\"top_k\":-1", 1, 1},    /* off */
        {"\"top_k\":0", 1, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        generation g;

        parse_with(cases[i].members, &g);
        assert_true(g.temperature == cases[i].temperature && g.top_p == cases[i].top_p);
        assert_int_equal(g.top_k, 0);
        generation_free(&g);
    }
}

/* A double cannot hold them all: each must come through as it was written. */
static void test_seeds_exactly(void **state)
{
    static const struct {
        const char *text;
        uint64_t seed;
    } cases[] = {{"0", 0},
                 {"9007199254740993", 9007199254740993u},
                 {"18446744073709551615", UINT64_MAX},
                 {"9223372036854775807", INT64_MAX},
                 {"-9223372036854775808", (uint64_t)INT64_MIN},
                 {"-1", UINT64_MAX},
                 {"42.0", 42},
                 {"1e3", 1000}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char member[64];
        generation g;

        snprintf(member, sizeof member, "\"seed\":%s", cases[i].text);
        parse_with(member, &g);
        assert_true(g.has_seed);
        if (g.seed != cases[i].seed)
            fail_msg("seed %s became %llu", cases[i].text, (unsigned long long)g.seed);
        generation_free(&g);
    }
}

static void test_messages(void **state)
{
    static const char body[] =
        "{\"messages\":["
        "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a \"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},"
        "{\"role\":\"developer\",\"content\":\"d\"},"
        "{\"role\":\"user\",\"content\":\"u\",\"name\":\"bob\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"why\",\"tool_calls\":["
        "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{\\\"q\\\": \\\"say \\\\\\\"hi\\\\\\\"\\\"}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"{\\\"ok\\\": true}\"},"
        "{\"role\":\"assistant\"},"
        "{\"role\":\"user\",\"content\":[],\"tool_calls\":[],\"function_call\":null},"
        "{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"never\"}]}]}";
    generation g;
    td_error err = {0};
    const chat_message *m;

    (void)state;
    if (parse(body, &g, &err) != TD_OK)
        fail_msg("%s", err.text);
    m = g.chat.messages;
    assert_int_equal(g.chat.n_messages, 9);
    assert_text(m[0].content, "a b");
    assert_int_equal(m[1].role, CHAT_DEVELOPER);
    assert_text(m[2].name, "bob");
    assert_text(m[3].content, "");
    assert_text(m[3].reasoning, "why");
    assert_int_equal(m[3].n_calls, 1);
    assert_text(m[3].calls[0].id, "c1");
    assert_text(m[3].calls[0].name, "f");
    assert_text(m[3].calls[0].arguments, "{\"q\": \"say \\\"hi\\\"\"}");
    assert_text(m[4].content, "{\"ok\": true}");
    assert_text(m[4].tool_call_id, "c1");
    assert_null(m[5].content.ptr); /* absent is not empty */
    assert_text(m[6].content, "");
    assert_text(m[7].content, "no");
    assert_text(m[8].content, "never");
    generation_free(&g);
}

static void test_tools(void **state)
{
    generation g;

    (void)state;
    parse_with("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":"
               "\"does\",\"strict\":false,\"parameters\":{\"type\":\"object\",\"properties\":{"
               "\"z\":{\"default\":1.0},\"b\":{}}}}},"
               "{\"type\":\"function\",\"function\":{\"name\":\"b\",\"parameters\":null}}],"
               "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"b\"}}",
               &g);
    assert_int_equal(g.chat.n_tools, 2);
    assert_text(g.chat.tools[0].description, "does");
    assert_non_null(g.chat.tools[0].parameters);
    assert_null(g.chat.tools[1].parameters);
    assert_int_equal(g.chat.tool_choice, CHAT_TOOL_NAMED);
    assert_text(g.chat.tool_choice_name, "b");
    generation_free(&g);
}

static void test_response_formats(void **state)
{
    generation g;

    (void)state;
    parse_with("\"response_format\":{\"type\":\"json_object\"}", &g);
    assert_int_equal(g.chat.format, CHAT_FORMAT_JSON_OBJECT);
    generation_free(&g);
    parse_with("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a-b\","
               "\"description\":\"does\",\"schema\":{\"type\":\"object\"},\"strict\":true}}",
               &g);
    assert_int_equal(g.chat.format, CHAT_FORMAT_JSON_SCHEMA);
    assert_text(g.chat.format_name, "a-b");
    assert_text(g.chat.format_description, "does");
    assert_text(g.chat.format_param, "response_format.json_schema.schema");
    assert_true(cJSON_IsObject(g.chat.format_schema));
    assert_false(g.chat.format_loose);
    generation_free(&g);
    parse_with("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
               "\"schema\":null,\"strict\":false}}",
               &g);
    assert_null(g.chat.format_schema);
    assert_true(g.chat.format_loose);
    generation_free(&g);
    parse_with("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,"
               "\"parameters\":{\"type\":\"object\"}}}]",
               &g);
    assert_true(g.chat.tools[0].strict);
    assert_text(g.chat.tools[0].param, "tools[0].function.parameters");
    generation_free(&g);
}

/* What asks for what happens anyway is taken; of two of vLLM's, what they say is done. */
static void test_fields_of_other_servers(void **state)
{
    static const char more[] =
        "{" MESSAGES ",\"ignore_eos\":true,\"max_tokens\":4,\"min_tokens\":5}";
    generation g;
    td_error err = {0};

    (void)state;
    assert_int_equal(parse(more, &g, &err), TD_INVALID);
    assert_string_equal(err.param, "min_tokens");
    generation_free(&g);
    parse_with("\"chat_template_kwargs\":{},\"enable_thinking\":true,\"min_p\":0,\"top_a\":0.0,"
               "\"typical_p\":1.0,\"separate_reasoning\":true,\"add_special_tokens\":true,"
               "\"stop_token_ids\":[],\"grammar\":null,\"add_generation_prompt\":true,"
               "\"include_reasoning\":true,\"ignore_eos\":true,\"min_tokens\":5,\"max_tokens\":5",
               &g);
    assert_false(g.hide_reasoning);
    generation_free(&g);
    parse_with("\"include_reasoning\":false,\"add_generation_prompt\":false,"
               "\"continue_final_message\":true",
               &g);
    assert_true(g.hide_reasoning && g.chat.continue_final);
    generation_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_what_changes_logits),
        cmocka_unit_test(test_fields_without_effect_are_taken),
        cmocka_unit_test(test_null_is_absent),
        cmocka_unit_test(test_sampling_limits),
        cmocka_unit_test(test_seeds_exactly),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_response_formats),
        cmocka_unit_test(test_fields_of_other_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
