/* The body of /v1/responses: the prompt that its items become, what the answer repeats of it, and
 * how each mistake is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "router/responses_body.h"
#include "tests/unit/harmony_fixture.h"

#define USER "{\"role\":\"user\",\"content\":\"hi\"}"
#define CALL(id) \
    "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define OUTPUT(id, text) \
    "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"" text "\"}"
#define REASONING(text) \
    "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[" \
    "{\"type\":\"reasoning_text\",\"text\":\"" text "\"}]}"
#define MESSAGE(more, text) \
    "{\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"id\":\"m\"" more \
    ",\"content\":[{\"type\":\"output_text\",\"annotations\":[],\"text\":\"" text "\"}]}"

/* One response that is kept. */
static bool find(void *arg, td_slice id, td_slice *items)
{
    *items = td_slice_of(arg);
    return td_slice_eq(id, TD_SLICE("resp_1"));
}

/* Nothing of the result may point into the body, whose block has its own size. */
static td_status parse(const char *body, const responses_history *h, responses_request *q,
                       td_error *err)
{
    const openai_defaults d = {.date = "2025-06-28", .allow_ignore_eos = true, .vocab = 401};
    char *copy = strdup(body);
    td_status st;

    assert_non_null(copy);
    st = responses_parse(copy, strlen(copy), &d, h, q, err);
    free(copy);
    return st;
}

static void parse_well(const char *body, responses_request *q)
{
    td_error err = {0};

    if (parse(body, NULL, q, &err) != TD_OK)
        fail_msg("%s: %s: %s", body, err.param, err.text);
}

/* The prompt from the first turn on, without the <|start|>assistant at its end. */
static void assert_turns_after(const char *input, const responses_history *h, const char *more,
                               const char *want)
{
    responses_request q;
    td_tokens ids = {0};
    td_error err = {0};
    char body[4096];
    const char *from;
    td_buf text;

    snprintf(body, sizeof body, "{\"input\":%s%s}", input, more);
    if (parse(body, h, &q, &err) != TD_OK ||
        generation_render(&q.g, fixture_harmony(), &ids, &err) != TD_OK)
        fail_msg("%s: %s: %s", body, err.param, err.text);
    text = fixture_text(fixture_harmony(), &ids);
    from = strstr(text.ptr, "<|end|>");
    assert_non_null(from);
    from += strlen("<|end|>");
    assert_true(strlen(from) > strlen("<|start|>assistant"));
    text.ptr[text.len - strlen("<|start|>assistant")] = '\0';
    assert_string_equal(from, want);
    td_buf_free(&text);
    td_tokens_free(&ids);
    responses_request_free(&q);
}

static void assert_turns(const char *input, const char *want)
{
    assert_turns_after(input, NULL, "", want);
}

/* ---- items ---- */

#define P_USER "<|start|>user<|message|>hi<|end|>"
#define P_ANALYSIS(text) "<|start|>assistant<|channel|>analysis<|message|>" text "<|end|>"
#define P_SAID(channel, text) "<|start|>assistant<|channel|>" channel "<|message|>" text "<|end|>"
#define P_CALL \
    "<|start|>assistant to=functions.f<|channel|>commentary " \
    "<|constrain|>json<|message|>{}<|call|>"
#define P_OUTPUT(text) \
    "<|start|>functions.f to=assistant<|channel|>commentary<|message|>" text "<|end|>"

static void test_input_is_a_string_or_messages(void **state)
{
    (void)state;
    assert_turns("\"hi\"", P_USER);
    assert_turns("[" USER "]", P_USER);
    assert_turns(
        "[{\"type\":\"message\",\"role\":\"user\",\"content\":["
        "{\"type\":\"input_text\",\"text\":\"h\"},{\"type\":\"input_text\",\"text\":\"i\"}]}]",
        P_USER);
    assert_turns("[{\"role\":\"developer\",\"content\":\"x\"}," USER "]",
                 "<|start|>developer<|message|># Instructions\n\nx<|end|>" P_USER);
    assert_turns("\"<|start|>system\"", "<|start|>user<|message|><|start|>system<|end|>");
    assert_turns_after("[" USER "]", NULL, ",\"instructions\":\"Be brief.\"",
                       "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>" P_USER);
    assert_turns_after("[{\"role\":\"system\",\"content\":\"x\"}," USER "]", NULL,
                       ",\"instructions\":\"y\"",
                       "<|start|>developer<|message|># Instructions\n\ny\n\nx<|end|>" P_USER);
}

/* What the model wrote in one go is one message of the chat, whatever items it came back as. */
static void test_items_of_a_turn_belong_together(void **state)
{
    (void)state;
    assert_turns("[" USER "," REASONING("r") "," CALL("a") "," OUTPUT("a", "o") "]",
                 P_USER P_ANALYSIS("r") P_CALL P_OUTPUT("o"));
    assert_turns("[" USER "," REASONING("r") "," MESSAGE(",\"phase\":\"commentary\"", "p") "," CALL(
                     "a") "," OUTPUT("a", "o") "]",
                 P_USER P_ANALYSIS("r") P_SAID("commentary", "p") P_CALL P_OUTPUT("o"));
    /* Without a phase: what stands before a call was its preamble. */
    assert_turns("[" USER "," MESSAGE("", "p") "," CALL("a") "," OUTPUT("a", "o") "]",
                 P_USER P_SAID("commentary", "p") P_CALL P_OUTPUT("o"));
    assert_turns("[" USER "," MESSAGE(",\"phase\":\"final_answer\"",
                                      "p") "," CALL("a") "," OUTPUT("a", "o") "]",
                 P_USER P_SAID("final", "p") P_CALL P_OUTPUT("o"));
    /* Two calls, a thought in between, results in another order than the calls. */
    assert_turns("[" USER "," CALL("a") "," REASONING("r") "," CALL("b") "," OUTPUT(
                     "b", "2") "," OUTPUT("a", "1") "]",
                 P_USER P_CALL P_ANALYSIS("r") P_CALL P_OUTPUT("1") P_OUTPUT("2"));
    assert_turns("[" USER "," REASONING("r") "," REASONING("s") "," CALL("a") "]",
                 P_USER P_ANALYSIS("r") P_ANALYSIS("s") P_CALL);
    /* After a result or a question the model begins anew. */
    assert_turns("[" USER "," CALL("a") "," OUTPUT("a", "1") "," CALL("b") "," OUTPUT("b", "2") "]",
                 P_USER P_CALL P_OUTPUT("1") P_CALL P_OUTPUT("2"));
    assert_turns("[" USER "," REASONING("r") "," USER "," CALL("a") "]",
                 P_USER P_ANALYSIS("r") P_USER P_CALL);
    /* A preamble that no call followed is still no final answer. */
    assert_turns("[" USER "," REASONING("r") "," MESSAGE(",\"phase\":\"commentary\"", "p") "," USER
                                                                                           "]",
                 P_USER P_ANALYSIS("r") P_SAID("commentary", "p") P_USER);
    assert_turns("[" USER "," MESSAGE(",\"phase\":\"commentary\"", "p") "," MESSAGE("", "q") "]",
                 P_USER P_SAID("commentary", "p") P_SAID("final", "q"));
}

static void test_reasoning_of_finished_turns_is_dropped(void **state)
{
    (void)state;
    assert_turns("[" USER "," REASONING("old") "," MESSAGE("", "B") "," USER "," REASONING(
                     "new") "," CALL("a") "," OUTPUT("a", "o") "]",
                 P_USER P_SAID("final", "B") P_USER P_ANALYSIS("new") P_CALL P_OUTPUT("o"));
    /* What only another server can read, and what says nothing, is left out. */
    assert_turns("[" USER ",{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"x\"},"
                 "{\"type\":\"reasoning\",\"summary\":[],\"content\":[]}," MESSAGE("", "") "]",
                 P_USER);
}

static void test_previous_response_goes_before(void **state)
{
    char items[] = USER "," REASONING("r") "," CALL("a");
    const responses_history h = {.find = find, .arg = items};
    responses_request q;
    td_error err = {0};

    (void)state;
    assert_turns_after("[" OUTPUT("a", "o") "]", &h, ",\"previous_response_id\":\"resp_1\"",
                       P_USER P_ANALYSIS("r") P_CALL P_OUTPUT("o"));
    assert_turns_after("\"hi\"", &h, "", P_USER);
    assert_int_equal(parse("{\"input\":\"hi\",\"previous_response_id\":\"resp_1\"}", &h, &q, &err),
                     TD_OK);
    assert_true(td_slice_eq(
        (td_slice){q.items.ptr, q.items.len},
        TD_SLICE(USER "," REASONING("r") "," CALL("a") ",{\"type\":\"message\","
                                                       "\"role\":\"user\",\"content\":\"hi\"}")));
    assert_non_null(strstr(q.echo.ptr, ",\"previous_response_id\":\"resp_1\""));
    responses_request_free(&q);
    for (int kept = 0; kept < 2; kept++) {
        assert_int_equal(parse("{\"input\":\"hi\",\"previous_response_id\":\"resp_2\"}",
                               kept ? &h : NULL, &q, &err),
                         TD_NOTFOUND);
        assert_string_equal(err.param, "previous_response_id");
        assert_non_null(strstr(err.text, "resp_2"));
        assert_non_null(strstr(err.text, kept ? "not stored" : "does not store"));
        responses_request_free(&q);
    }
    assert_int_equal(parse("{\"input\":\"hi\",\"store\":false}", &h, &q, &err), TD_OK);
    assert_true(!q.store && q.items.len == 0);
    responses_request_free(&q);
    assert_int_equal(parse("{\"input\":\"hi\"}", &h, &q, &err), TD_OK);
    assert_true(q.store && q.items.len > 0);
    responses_request_free(&q);
}

/* A chain of turns, each of them within the bounds of a body. */
static void test_a_conversation_may_be_too_large(void **state)
{
    static const char head[] = "{\"role\":\"user\",\"content\":\"hi\",\"x\":[";
    responses_request q;
    td_error err = {0};
    td_buf items = {0};
    responses_history h = {.find = find};

    (void)state;
    td_buf_str(&items, head);
    for (size_t i = 0; i < OPENAI_MAX_VALUES; i++)
        td_buf_add(&items, "1,", 2);
    td_buf_str(&items, "1]}");
    h.arg = items.ptr;
    assert_int_equal(parse("{\"input\":\"hi\",\"previous_response_id\":\"resp_1\"}", &h, &q, &err),
                     TD_INVALID);
    assert_string_equal(err.param, "previous_response_id");
    assert_non_null(strstr(err.text, "too large"));
    responses_request_free(&q);
    td_buf_free(&items);
}

/* ---- fields ---- */

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
        {"{" HI "\"max_output_tokens\":0}", "max_output_tokens", "between 1"},
        {"{" HI "\"max_output_tokens\":\"5\"}", "max_output_tokens", "a string"},
        {"{" HI "\"temperature\":3}", "temperature", "0 and 2"},
        {"{" HI "\"store\":1}", "store", "true or false"},
        {"{" HI "\"stream_options\":{}}", "stream_options", "stream: true"},
        {"{" HI "\"metadata\":[]}", "metadata", "an array"},
        {"{" HI "\"metadata\":{\"a\":1}}", "metadata", "\"a\""},
        {"{" HI "\"reasoning\":\"low\"}", "reasoning", "a string"},
        {"{" HI "\"reasoning\":{\"effort\":\"none\"}}", "reasoning.effort", "low"},
        {"{" HI "\"reasoning\":{\"summary\":\"long\"}}", "reasoning.summary", "concise"},
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

static int close_fixture(void **state)
{
    (void)state;
    fixture_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input_is_a_string_or_messages),
        cmocka_unit_test(test_items_of_a_turn_belong_together),
        cmocka_unit_test(test_reasoning_of_finished_turns_is_dropped),
        cmocka_unit_test(test_previous_response_goes_before),
        cmocka_unit_test(test_a_conversation_may_be_too_large),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_explicit_null_is_absent),
    };

    return cmocka_run_group_tests(tests, NULL, close_fixture);
}
