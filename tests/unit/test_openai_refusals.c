/* Members of a Chat Completions body that are wrong, or too many: how each is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/unit/openai_fixture.h"

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
        {"\"logit_bias\":{\"5\":1,\"7\":1,\"5\":2}", "logit_bias.5", "has '5' twice"},
        {"\"functions\":[]", "functions", "tools"},
        {"\"user\":5", "user", "a string, not a number"},
        {"\"metadata\":\"x\"", "metadata", "an object, not a string"},
        {"\"store\":1", "store", "true or false"},
        {"\"service_tier\":\"flex\"", "service_tier", "one tier"},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities", "text"},
        {"\"web_search_options\":{}", "web_search_options", "searched"},
        {"\"verbosity\":5", "verbosity", "medium or high, not a number"},
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
        {"\"max_output_tokens\":5", "max_output_tokens", "max_tokens"},
        {"\"instructions\":\"x\"", "instructions", "/v1/responses"},
        {"\"previous_response_id\":\"x\"", "previous_response_id", "/v1/responses"},
        {"\"text\":{}", "text", "/v1/responses"},
        {"\"truncation\":\"auto\"", "truncation", "not cut"},
        {"\"moderation\":{}", "moderation", "moderated"},
        {"\"verbosity\":\"x\"", "verbosity", "low, medium or high, not \"x\""},
        {"\"prompt_cache_retention\":5", "prompt_cache_retention", "a number"},
        {"\"suffix\":\"x\"", "suffix", "not supported"},
        {"\"stream\":true,\"stream_options\":{\"include_obfuscation\":1}",
         "stream_options.include_obfuscation", "a number"},
        {"\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}",
         "stream_options.include_obfuscation", "not padded"},
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
        {"\"tool_choice\":{\"type\":5,\"function\":{\"name\":\"f\"}}", "tool_choice.type",
         "a number"},
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
        {"[{\"role\":\"assistant\",\"name\":5}]", "messages[0].name", "a number"},
        {"[{\"role\":\"assistant\",\"refusal\":5}]", "messages[0].refusal", "a number"},
        {"[{\"role\":\"assistant\",\"function_call\":{}}]", "messages[0].function_call",
         "tool_calls"},
        {"[{\"role\":\"assistant\",\"audio\":{\"id\":\"a\"}}]", "messages[0].audio", "text"},
        {"[{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true}]", "messages[0].prefix",
         "continue_final_message"},
        {"[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]}]", "messages[0].tool_calls",
         "only assistant"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"text\":\"x\"}]}]",
         "messages[0].content[0]", "refusal must be"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_members),
        cmocka_unit_test(test_bad_messages),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
