/* The Chat Completions body, field by field: what it becomes, and how each mistake is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/buf.h"
#include "router/openai.h"

#define FORMAT(spec) "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":" spec "}"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* The body is copied to a block of its own size, so that a sanitizer sees a read past its NUL. */
static td_status parse_n(const char *body, size_t n, bool ignore_eos, generation *g, td_error *err)
{
    const openai_defaults d = {.date = "2025-06-28", .allow_ignore_eos = ignore_eos, .vocab = 1000};
    char *copy = malloc(n + 1);
    td_status st;

    assert_non_null(copy);
    memcpy(copy, body, n);
    copy[n] = '\0';
    st = openai_parse_chat(copy, n, &d, g, err);
    free(copy); /* nothing of the result may point into it */
    return st;
}

static td_status parse(const char *body, generation *g, td_error *err)
{
    return parse_n(body, strlen(body), true, g, err);
}

/* `members` beside one user message; must be fine. */
static void parse_with(const char *members, generation *g)
{
    char body[2048];
    td_error err = {0};

    snprintf(body, sizeof body, "{" MESSAGES "%s%s}", members[0] ? "," : "", members);
    if (parse(body, g, &err) != TD_OK)
        fail_msg("%s: %s", members, err.text);
}

static void assert_text(td_slice s, const char *text)
{
    assert_non_null(s.ptr);
    assert_int_equal(s.len, strlen(text));
    assert_memory_equal(s.ptr, text, s.len);
}

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
        "{\"role\":\"user\",\"content\":[]}]}";
    generation g;
    td_error err = {0};
    const chat_message *m;

    (void)state;
    if (parse(body, &g, &err) != TD_OK)
        fail_msg("%s", err.text);
    m = g.chat.messages;
    assert_int_equal(g.chat.n_messages, 7);
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

/* ---- mistakes ---- */

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

static void check_bad(const char *body, size_t n, const char *param, const char *says)
{
    generation g;
    td_error err = {0};

    if (parse_n(body, n, false, &g, &err) != TD_INVALID)
        fail_msg("taken: %.200s", body);
    if (strcmp(err.param, param) != 0 || strstr(err.text, says) == NULL)
        fail_msg("%.200s: param \"%s\", not \"%s\"; text: %s", body, err.param, param, err.text);
    generation_free(&g);
}

static void test_bad_members(void **state)
{
    static const struct {
        const char *members, *param, *says;
    } bad[] = {
        {"\"model\":5", "model", "a number"},
        {"\"temperature\":\"0.7\"", "temperature", "a string"},
        {"\"temperature\":-0.1", "temperature", "between 0 and 2"},
        {"\"temperature\":2.01", "temperature", "between 0 and 2"},
        {"\"temperature\":1e999", "temperature", "between 0 and 2"},
        {"\"temperature\":[]", "temperature", "an array"},
        {"\"top_p\":1.5", "top_p", "between 0 and 1"},
        {"\"top_p\":true", "top_p", "true or false"},
        {"\"top_k\":1.5", "top_k", "whole"},
        {"\"top_k\":-2", "top_k", "between -1"},
        {"\"top_k\":1e10", "top_k", "between -1"},
        {"\"seed\":\"1\"", "seed", "whole"},
        {"\"seed\":1.5", "seed", "whole"},
        {"\"seed\":1e30", "seed", "between -2^63"},
        {"\"seed\":18446744073709551616", "seed", "between -2^63"},
        {"\"seed\":-9223372036854775809", "seed", "between -2^63"},
        {"\"max_tokens\":\"500\"", "max_tokens", "a string"},
        {"\"max_tokens\":0", "max_tokens", "between 1"},
        {"\"max_tokens\":-1", "max_tokens", "between 1"},
        {"\"max_tokens\":1.5", "max_tokens", "whole"},
        {"\"max_tokens\":4294967296", "max_tokens", "between 1"},
        {"\"max_completion_tokens\":0", "max_completion_tokens", "between 1"},
        {"\"max_tokens\":5,\"max_completion_tokens\":6", "max_tokens", "one of them"},
        {"\"stop\":5", "stop", "a number"},
        {"\"stop\":\"\"", "stop", "1 to"},
        {"\"stop\":[\"a\",5]", "stop", "a number"},
        {"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop", "at most 4"},
        {"\"stop\":[\"a\",\"\"]", "stop", "1 to"},
        {"\"stream\":\"true\"", "stream", "a string"},
        {"\"stream\":1", "stream", "a number"},
        {"\"stream_options\":{}", "stream_options", "needs stream"},
        {"\"stream\":true,\"stream_options\":[]", "stream_options", "an array"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage",
         "a number"},
        {"\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}",
         "stream_options.continuous_usage_stats", "at the end"},
        {"\"reasoning_effort\":\"huge\"", "reasoning_effort", "low"},
        {"\"reasoning_effort\":1", "reasoning_effort", "low"},
        {"\"response_format\":\"text\"", "response_format", "object"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format.type", "xml"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema", "object"},
        {FORMAT("{}"), "response_format.json_schema.name", "missing"},
        {FORMAT("{\"name\":\"\"}"), "response_format.json_schema.name", "1 to 64"},
        {FORMAT("{\"name\":\"a b\"}"), "response_format.json_schema.name", "1 to 64"},
        {FORMAT("{\"name\":\"a\",\"strict\":1}"), "response_format.json_schema.strict", "a number"},
        {FORMAT("{\"name\":\"a\",\"schema\":[]}"), "response_format.json_schema.schema",
         "an array"},
        {FORMAT("{\"name\":\"a\",\"description\":1}"), "response_format.json_schema.description",
         "a number"},
        {"\"n\":2", "n", "at most 1 answer is"},
        {"\"n\":0", "n", "between 1"},
        {"\"frequency_penalty\":2.5", "frequency_penalty", "between -2"},
        {"\"frequency_penalty\":\"1\"", "frequency_penalty", "a string"},
        {"\"presence_penalty\":-3", "presence_penalty", "between -2"},
        {"\"logprobs\":1", "logprobs", "a number"},
        {"\"top_logprobs\":3", "top_logprobs", "needs logprobs"},
        {"\"logprobs\":false,\"top_logprobs\":1", "top_logprobs", "needs logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs", "between 0 and 20"},
        {"\"logprobs\":true,\"top_logprobs\":1.5", "top_logprobs", "whole"},
        {"\"logprobs\":true,\"top_logprobs\":true", "top_logprobs", "true or false"},
        {"\"logit_bias\":[]", "logit_bias", "an array"},
        {"\"logit_bias\":{\"5\":101}", "logit_bias", "-100 and 100"},
        {"\"logit_bias\":{\"5\":\"1\"}", "logit_bias", "-100 and 100"},
        {"\"logit_bias\":{\"5\":null}", "logit_bias", "-100 and 100"},
        {"\"logit_bias\":{\"1000\":1}", "logit_bias", "0 to 999"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias", "0 to 999"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias", "ids of tokens"},
        {"\"logit_bias\":{\"05\":1}", "logit_bias", "ids of tokens"},
        {"\"logit_bias\":{\"\":1}", "logit_bias", "ids of tokens"},
        {"\"logit_bias\":{\"5 \":1}", "logit_bias", "ids of tokens"},
        {"\"logit_bias\":{\"5\":1,\"7\":1,\"5\":2}", "logit_bias", "token 5 twice"},
        {"\"functions\":[]", "functions", "tools"},
        {"\"user\":5", "user", "a string, not a number"},
        {"\"metadata\":\"x\"", "metadata", "an object, not a string"},
        {"\"store\":1", "store", "true or false"},
        {"\"service_tier\":\"flex\"", "service_tier", "one tier"},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities", "text"},
        {"\"web_search_options\":{}", "web_search_options", "searched"},
        {"\"verbosity\":5", "verbosity", "a string"},
        {"\"best_of\":2", "best_of", "use n"},
        {"\"echo\":true", "echo", "not repeated"},
        {"\"min_p\":0.1", "min_p", "top_p"},
        {"\"min_tokens\":5", "min_tokens", "ends where"},
        {"\"repetition_penalty\":1.1", "repetition_penalty", "frequency_penalty"},
        {"\"use_beam_search\":true", "use_beam_search", "sampled"},
        {"\"stop_token_ids\":[5]", "stop_token_ids", "use stop"},
        {"\"skip_special_tokens\":false", "skip_special_tokens", "not shown"},
        {"\"guided_json\":{}", "guided_json", "response_format"},
        {"\"grammar\":\"root ::= x\"", "grammar", "response_format"},
        {"\"min_tokens\":5", "min_tokens", "unless ignore_eos"},
        {"\"return_token_ids\":true", "return_token_ids", "as bytes"},
        {"\"max_new_tokens\":5", "max_new_tokens", "max_tokens"},
        {"\"chat_template_kwargs\":{\"enable_thinking\":false}", "chat_template_kwargs",
         "reasoning_effort"},
        {"\"enable_thinking\":false", "enable_thinking", "reasoning_effort"},
        {"\"reasoning\":{\"effort\":\"low\"}", "reasoning", "reasoning_effort"},
        {"\"separate_reasoning\":false", "separate_reasoning", "never a part"},
        {"\"include_reasoning\":1", "include_reasoning", "a number"},
        {"\"add_generation_prompt\":false", "add_generation_prompt", "must be true without"},
        {"\"add_generation_prompt\":true,\"continue_final_message\":true", "add_generation_prompt",
         "must be false with"},
        {"\"prompt\":\"x\"", "prompt", "/v1/completions"},
        {"\"input\":\"x\"", "input", "/v1/responses"},
        {"\"chat_template\":\"x\"", "chat_template", "Harmony"},
        {"\"function_call\":\"auto\"", "function_call", "tool_choice"},
        {"\"audio\":{}", "audio", "text"},
        {"\"ignore_eos\":true", "ignore_eos", "switched off"},
        {"\"ignore_eos\":1", "ignore_eos", "a number"},
        {"\"continue_final_message\":\"x\"", "continue_final_message", "a string"},
        {"\"tools\":{}", "tools", "an object"},
        {"\"tools\":[5]", "tools[0]", "object"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\","
         "\"function\":{\"name\":\"functions.f\"}}]",
         "tools[1].function.name", "'f' is the name of tools[0]"},
        {"\"tools\":[{\"type\":\"web_search\"}]", "tools[0]", "web_search"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0].function", "object"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name",
         "missing"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":5}}]", "tools[0].function.name",
         "a number"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":5}}]",
         "tools[0].function.description", "a number"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
         "tools[0].function.parameters", "an array"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":1}}]",
         "tools[0].function.strict", "a number"},
        {"\"tool_choice\":\"maybe\"", "tool_choice", "auto"},
        {"\"tool_choice\":5", "tool_choice", "auto"},
        {"\"tool_choice\":\"required\"", "tool_choice", "no tools"},
        {"\"tool_choice\":{\"type\":\"function\"}", "tool_choice", "function"},
        {"\"tool_choice\":{\"type\":\"function\",\"function\":{}}", "tool_choice.function.name",
         "missing"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char body[512];
        int n = snprintf(body, sizeof body, "{" MESSAGES ",%s}", bad[i].members);

        check_bad(body, (size_t)n, bad[i].param, bad[i].says);
    }
}

static void test_bad_messages(void **state)
{
    static const struct {
        const char *messages, *param, *says;
    } bad[] = {
        {"5", "messages", "array"},
        {"null", "messages", "missing"},
        {"[]", "messages", "empty"},
        {"[5]", "messages[0]", "a number"},
        {"[{}]", "messages[0].role", "must be"},
        {"[{\"role\":\"function\",\"content\":\"x\"}]", "messages[0].role", "must be"},
        {"[{\"role\":5,\"content\":\"x\"}]", "messages[0].role", "must be"},
        {"[{\"role\":\"user\"}]", "messages[0].content", "missing"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content", "missing"},
        {"[{\"role\":\"user\",\"content\":{}}]", "messages[0].content", "an object"},
        {"[{\"role\":\"user\",\"content\":[\"x\"]}]", "messages[0].content[0]", "type"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},"
         "{\"type\":\"image_url\",\"image_url\":{}}]}]",
         "messages[0].content[1]", "image_url"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0]",
         "text must be"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"tool\",\"content\":\"x\"}]",
         "messages[1].tool_call_id", "missing"},
        {"[{\"role\":\"user\",\"content\":\"x\",\"name\":5}]", "messages[0].name", "a number"},
        {"[{\"role\":\"assistant\",\"reasoning\":5}]", "messages[0].reasoning", "a number"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls", "an object"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[5]}]", "messages[0].tool_calls[0]", "a number"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"web\"}]}]",
         "messages[0].tool_calls[0]", "function"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\"}]}]",
         "messages[0].tool_calls[0].function", "object"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
         "\"{}\"}}]}]",
         "messages[0].tool_calls[0].id", "missing"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\","
         "\"arguments\":{}}}]}]",
         "messages[0].tool_calls[0].function.arguments", "an object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char body[512];
        int n = snprintf(body, sizeof body, "{\"messages\":%s}", bad[i].messages);

        check_bad(body, (size_t)n, bad[i].param, bad[i].says);
    }
}

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
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}", "NUL"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\q\"}]}", "JSON"},
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
static void test_not_a_nul(void **state)
{
    generation g;
    td_error err = {0};

    (void)state;
    assert_int_equal(
        parse("{\"messages\":[{\"role\":\"user\",\"content\":\"\\\\u0000\"}]}", &g, &err), TD_OK);
    assert_text(g.chat.messages[0].content, "\\u0000");
    generation_free(&g);
}

/* Of two members the first would be read here, and the last by most others. */
static void test_members_come_once(void **state)
{
    static const char twice[] = "{\"n\":1," MESSAGES ",\"n\":1}";
    td_buf b = {0};
    generation g;
    td_error err = {0};

    (void)state;
    check_bad(twice, sizeof twice - 1, "n", "has 'n' twice");
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

static void fill(td_buf *b, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++)
        td_buf_str(b, text);
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

static void test_counts(void **state)
{
    td_buf b = {0};

    (void)state;
    td_buf_str(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}");
    fill(&b, ",{\"role\":\"user\",\"content\":\"x\"}", OPENAI_MAX_MESSAGES);
    td_buf_str(&b, "]}");
    check_bad(b.ptr, b.len, "messages", "more than 4096");
    td_buf_clear(&b);
    td_buf_str(&b,
               "{" MESSAGES ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}");
    fill(&b, ",{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", OPENAI_MAX_TOOLS);
    td_buf_str(&b, "]}");
    check_bad(b.ptr, b.len, "tools", "more than 512");
    td_buf_clear(&b);
    td_buf_str(&b, "{" MESSAGES ",\"stop\":\"");
    fill(&b, "x", OPENAI_MAX_STOP_BYTES + 1);
    td_buf_str(&b, "\"}");
    check_bad(b.ptr, b.len, "stop", "1 to 4096");
    td_buf_free(&b);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_what_changes_logits),
        cmocka_unit_test(test_null_is_absent),
        cmocka_unit_test(test_fields_without_effect_are_taken),
        cmocka_unit_test(test_sampling_limits),
        cmocka_unit_test(test_seeds_exactly),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_response_formats),
        cmocka_unit_test(test_bad_members),
        cmocka_unit_test(test_bad_messages),
        cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_half_pairs_are_replaced),
        cmocka_unit_test(test_not_a_nul),
        cmocka_unit_test(test_fields_of_other_servers),
        cmocka_unit_test(test_members_come_once),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
