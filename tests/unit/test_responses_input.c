/* The conversation in the body of /v1/responses: the prompt that its items become, and what is
 * taken from responses that were kept. */
#include "tests/unit/harmony_fixture.h"
#include "tests/unit/responses_fixture.h"

/* One response that is kept. */
static bool find(void *arg, td_slice id, td_slice *items)
{
    *items = td_slice_of(arg);
    return td_slice_eq(id, TD_SLICE("resp_1"));
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

static bool find_item(void *arg, td_slice id, td_slice *json)
{
    *json = td_slice_of(arg);
    return td_slice_eq(id, TD_SLICE("msg_1"));
}

/* What a reference names stands in its place, also in what is kept. */
static void test_references_are_resolved(void **state)
{
    char items[] = MESSAGE("", "B") "," USER;
    const responses_history h = {.find = find, .find_item = find_item, .arg = items};
    responses_request q;
    td_error err = {0};

    (void)state;
    assert_turns_after("[" USER ",{\"type\":\"item_reference\",\"id\":\"msg_1\"}," USER "]", &h, "",
                       P_USER P_SAID("final", "B") P_USER);
    assert_turns_after("[" USER ",{\"id\":\"msg_1\"}]", &h, "", P_USER P_SAID("final", "B"));
    assert_int_equal(parse("{\"input\":[" USER ",{\"id\":\"msg_1\"}]}", &h, &q, &err), TD_OK);
    assert_true(
        td_slice_eq((td_slice){q.items.ptr, q.items.len}, TD_SLICE(USER "," MESSAGE("", "B"))));
    responses_request_free(&q);
    assert_int_equal(parse("{\"input\":[" USER ",{\"id\":\"msg_2\"}]}", &h, &q, &err), TD_INVALID);
    assert_string_equal(err.param, "input[1]");
    assert_non_null(strstr(err.text, "msg_2"));
    responses_request_free(&q);
}

/* A short body must not make a tree of many times its size. */
static void test_references_are_bounded(void **state)
{
    responses_history h = {.find = find, .find_item = find_item};
    td_buf items = {0}, body = {0};
    responses_request q;
    td_error err = {0};

    (void)state;
    td_buf_str(&items, "{\"role\":\"user\",\"content\":\"");
    for (size_t i = 0; i < 1 << 20; i++)
        td_buf_byte(&items, 'x');
    td_buf_str(&items, "\"}");
    h.arg = items.ptr;
    td_buf_str(&body, "{\"input\":[");
    for (size_t i = 0; i < 8; i++)
        td_buf_fmt(&body, "%s{\"id\":\"msg_1\"}", i > 0 ? "," : "");
    td_buf_str(&body, "]}");
    assert_int_equal(parse(body.ptr, &h, &q, &err), TD_INVALID);
    assert_string_equal(err.param, "input[3]");
    assert_non_null(strstr(err.text, "more than"));
    responses_request_free(&q);
    h.arg = (void *)(uintptr_t) "{\"role\":\"user\",\"content\":\"x\"}";
    td_buf_clear(&body);
    td_buf_str(&body, "{\"input\":[");
    for (size_t i = 0; i < 1025; i++)
        td_buf_fmt(&body, "%s{\"id\":\"msg_1\"}", i > 0 ? "," : "");
    td_buf_str(&body, "]}");
    assert_int_equal(parse(body.ptr, &h, &q, &err), TD_INVALID);
    assert_string_equal(err.param, "input[1024]");
    assert_non_null(strstr(err.text, "at most 1024 items"));
    responses_request_free(&q);
    td_buf_free(&items);
    td_buf_free(&body);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input_is_a_string_or_messages),
        cmocka_unit_test(test_items_of_a_turn_belong_together),
        cmocka_unit_test(test_reasoning_of_finished_turns_is_dropped),
        cmocka_unit_test(test_previous_response_goes_before),
        cmocka_unit_test(test_references_are_resolved),
        cmocka_unit_test(test_references_are_bounded),
        cmocka_unit_test(test_a_conversation_may_be_too_large),
    };

    return cmocka_run_group_tests(tests, NULL, fixture_tear_down);
}
