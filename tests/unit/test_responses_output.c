/* An answer as items and events of the Responses API: their order, their shape, and that the events
 * add up to the object. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <cjson/cJSON.h>

#include "router/responses_output.h"

static const request_usage usage = {
    .prompt_tokens = 11, .completion_tokens = 7, .reasoning_tokens = 3, .cached_tokens = 2};

static responses_output make(bool stream)
{
    responses_output o = {.stream = stream, .model = "tiny", .created_s = 1000};

    strcpy(o.key, "abc");
    td_buf_str(&o.echo, "\"tools\":[]");
    return o;
}

static const cJSON *member(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

    if (v == NULL)
        fail_msg("no member %s", name);
    return v;
}

static const char *text_of(const cJSON *o, const char *name)
{
    const cJSON *v = member(o, name);

    assert_true(cJSON_IsString(v));
    return v->valuestring;
}

/* All events of a stream, as an array; and, by name, a line each. */
static cJSON *events_of(const responses_output *o, td_buf *names)
{
    cJSON *all = cJSON_CreateArray();
    char *copy = strdup(o->out.ptr);

    for (char *line = copy, *end; *line != '\0'; line = end + 2) {
        char *data = strstr(line, "\ndata: ");
        cJSON *event;

        end = strstr(line, "\n\n");
        assert_true(data != NULL && end != NULL && data < end);
        *end = *data = '\0';
        event = cJSON_Parse(data + 7);
        if (event == NULL)
            fail_msg("not JSON: %s", data + 7);
        assert_int_equal(strncmp(line, "event: ", 7), 0);
        assert_string_equal(line + 7, text_of(event, "type"));
        assert_int_equal(member(event, "sequence_number")->valueint, cJSON_GetArraySize(all));
        td_buf_str(names, line + 7 + strlen("response."));
        td_buf_byte(names, '\n');
        cJSON_AddItemToArray(all, event);
    }
    free(copy);
    return all;
}

/* Of all events of a type about an item, a text member joined. */
static void assert_joined(const cJSON *events, const char *type, int item, const char *name,
                          const char *want)
{
    td_buf all = {0};
    const cJSON *e;

    td_buf_str(&all, "");
    cJSON_ArrayForEach(e, events)
    {
        if (strcmp(text_of(e, "type"), type) == 0 && member(e, "output_index")->valueint == item)
            td_buf_str(&all, text_of(e, name));
    }
    assert_string_equal(all.ptr, want);
    td_buf_free(&all);
}

/* Reasoning, a preamble, a call; arguments in two pieces. */
static void say_a_call(responses_output *o)
{
    responses_output_start(o);
    responses_output_reasoning(o, TD_SLICE("think"));
    responses_output_reasoning(o, TD_SLICE("ing"));
    responses_output_message_end(o, RESPONSES_REASONING, true);
    responses_output_content(o, TD_SLICE("I \"look\"."), false);
    responses_output_message_end(o, RESPONSES_MESSAGE, true);
    responses_output_call(o, "call_1", TD_SLICE("f"));
    responses_output_arguments(o, TD_SLICE("{\"a\":"));
    responses_output_arguments(o, TD_SLICE("1}"));
    responses_output_message_end(o, RESPONSES_CALL, true);
}

static void test_events_come_in_order(void **state)
{
    responses_output o = make(true);
    td_buf names = {0};
    cJSON *events;

    (void)state;
    say_a_call(&o);
    responses_output_finish(&o, "tool_calls", &usage, 1002, TD_SLICE(""), NULL);
    assert_false(o.oom);
    events = events_of(&o, &names);
    assert_string_equal(names.ptr, "created\nin_progress\n"
                                   "output_item.added\ncontent_part.added\n"
                                   "reasoning_text.delta\nreasoning_text.delta\n"
                                   "reasoning_text.done\ncontent_part.done\noutput_item.done\n"
                                   "output_item.added\ncontent_part.added\n"
                                   "output_text.delta\noutput_text.done\n"
                                   "content_part.done\noutput_item.done\n"
                                   "output_item.added\nfunction_call_arguments.delta\n"
                                   "function_call_arguments.delta\nfunction_call_arguments.done\n"
                                   "output_item.done\ncompleted\n");
    assert_joined(events, "response.reasoning_text.delta", 0, "delta", "thinking");
    assert_joined(events, "response.reasoning_text.done", 0, "text", "thinking");
    assert_joined(events, "response.reasoning_text.done", 0, "item_id", "rs_abc00");
    assert_joined(events, "response.output_text.delta", 1, "delta", "I \"look\".");
    assert_joined(events, "response.output_text.done", 1, "item_id", "msg_abc01");
    assert_joined(events, "response.function_call_arguments.delta", 2, "delta", "{\"a\":1}");
    assert_joined(events, "response.function_call_arguments.done", 2, "arguments", "{\"a\":1}");
    cJSON_Delete(events);
    td_buf_free(&names);
    responses_output_free(&o);
}

/* What added says is empty, what done says is the item of the object, and the object is the same
 * whether it is streamed or not. */
static void test_events_add_up_to_the_object(void **state)
{
    responses_output stream = make(true), whole = make(false);
    td_buf names = {0}, object = {0};
    cJSON *events, *last, *root;
    const cJSON *e, *items;
    int done = 0;

    (void)state;
    say_a_call(&stream);
    say_a_call(&whole);
    responses_output_finish(&stream, "tool_calls", &usage, 1002, TD_SLICE(",\"x\":1"), NULL);
    responses_output_finish(&whole, "tool_calls", &usage, 1002, TD_SLICE(",\"x\":1"), &object);
    assert_int_equal(whole.out.len, 0);
    root = cJSON_Parse(object.ptr);
    assert_non_null(root);
    events = events_of(&stream, &names);
    last = cJSON_GetArrayItem(events, cJSON_GetArraySize(events) - 1);
    assert_true(cJSON_Compare(member(last, "response"), root, true));
    items = member(root, "output");
    assert_int_equal(cJSON_GetArraySize(items), 3);
    cJSON_ArrayForEach(e, events)
    {
        const cJSON *item = cJSON_GetObjectItem(e, "item");
        bool added = strcmp(text_of(e, "type"), "response.output_item.added") == 0;

        if (item == NULL)
            continue;
        assert_string_equal(text_of(item, "status"), added ? "in_progress" : "completed");
        if (added && cJSON_GetObjectItem(item, "content") != NULL)
            assert_int_equal(cJSON_GetArraySize(member(item, "content")), 0);
        if (!added)
            assert_true(cJSON_Compare(item, cJSON_GetArrayItem(items, done++), true));
    }
    assert_int_equal(done, 3);
    assert_string_equal(text_of(root, "id"), "resp_abc");
    assert_string_equal(text_of(root, "object"), "response");
    assert_string_equal(text_of(root, "status"), "completed");
    assert_true(cJSON_IsNull(member(root, "error")));
    assert_true(cJSON_IsNull(member(root, "incomplete_details")));
    assert_int_equal(member(root, "completed_at")->valueint, 1002);
    assert_int_equal(member(member(root, "usage"), "total_tokens")->valueint, 18);
    assert_int_equal(
        member(member(member(root, "usage"), "input_tokens_details"), "cached_tokens")->valueint,
        2);
    assert_int_equal(
        member(member(member(root, "usage"), "output_tokens_details"), "reasoning_tokens")
            ->valueint,
        3);
    assert_int_equal(member(root, "x")->valueint, 1);
    assert_true(cJSON_IsArray(member(root, "tools")));
    assert_string_equal(text_of(cJSON_GetArrayItem(items, 1), "phase"), "commentary");
    assert_string_equal(text_of(cJSON_GetArrayItem(items, 2), "call_id"), "call_1");
    cJSON_Delete(events);
    cJSON_Delete(root);
    td_buf_free(&names);
    td_buf_free(&object);
    responses_output_free(&stream);
    responses_output_free(&whole);
}

static void assert_items(const responses_output *o, const char *want)
{
    td_buf all = {0};

    for (size_t i = 0; i < o->n_items; i++)
        td_buf_fmt(&all, "%d%s%s\"%.*s\" ", (int)o->items[i].kind, o->items[i].preamble ? "p" : "",
                   o->items[i].open ? "o" : (o->items[i].complete ? "" : "i"),
                   (int)o->items[i].text.len, o->items[i].text.ptr ? o->items[i].text.ptr : "");
    assert_string_equal(all.ptr ? all.ptr : "", want);
    td_buf_free(&all);
}

/* Where one text joins messages with a line feed, items stand by themselves; a line feed of the
 * model's own stays. */
static void test_messages_of_a_kind_are_items(void **state)
{
    responses_output o = make(true);

    (void)state;
    responses_output_start(&o);
    responses_output_content(&o, TD_SLICE("a"), false);
    responses_output_content(&o, TD_SLICE("\nb"), false);
    responses_output_message_end(&o, RESPONSES_MESSAGE, true);
    responses_output_reasoning(&o, TD_SLICE("r"));
    responses_output_message_end(&o, RESPONSES_REASONING, true);
    responses_output_content(&o, TD_SLICE("\n"), true);
    assert_int_equal(o.n_items, 2); /* the line feed opens nothing yet */
    responses_output_content(&o, TD_SLICE("\nc"), true);
    responses_output_message_end(&o, RESPONSES_MESSAGE, true);
    responses_output_content(&o, TD_SLICE("\nd"), true); /* joiner and text in one */
    responses_output_finish(&o, "stop", &usage, 1, TD_SLICE(""), NULL);
    assert_items(&o, "1p\"a\nb\" 0\"r\" 1\"\nc\" 1\"d\" ");
    responses_output_free(&o);
}

static void test_logprobs_go_with_their_text(void **state)
{
    responses_output o = make(true);
    td_buf names = {0};
    cJSON *events, *e;
    int seen = 0;

    (void)state;
    responses_output_start(&o);
    responses_output_logprobs(&o, TD_SLICE("{\"t\":0}"));
    responses_output_logprobs(&o, TD_SLICE("{\"t\":1}"));
    responses_output_content(&o, TD_SLICE("x"), true);
    responses_output_content(&o, TD_SLICE("y"), true);
    responses_output_logprobs(&o, TD_SLICE("{\"t\":2}")); /* its text never comes */
    responses_output_finish(&o, "stop", &usage, 1, TD_SLICE(""), NULL);
    events = events_of(&o, &names);
    cJSON_ArrayForEach(e, events)
    {
        const cJSON *list = cJSON_GetObjectItem(e, "logprobs"), *v;
        int at = strcmp(text_of(e, "type"), "response.output_text.done") == 0 ? 0 : seen;

        cJSON_ArrayForEach(v, list) assert_int_equal(member(v, "t")->valueint, at++);
        seen = at;
    }
    assert_int_equal(seen, 3);
    assert_int_equal(cJSON_GetArraySize(events), 2 + 2 + 3 + 3 + 1);
    cJSON_Delete(events);
    td_buf_free(&names);
    responses_output_free(&o);
}

static void test_a_cut_answer_is_incomplete(void **state)
{
    responses_output o = make(true);
    td_buf names = {0}, object = {0};
    cJSON *events, *root;

    (void)state;
    responses_output_start(&o);
    responses_output_reasoning(&o, TD_SLICE("thi"));
    responses_output_message_end(&o, RESPONSES_REASONING, false);
    responses_output_finish(&o, "length", &usage, 1, TD_SLICE(""), &object);
    assert_items(&o, "0i\"thi\" "); /* and no message is made up */
    root = cJSON_Parse(object.ptr);
    assert_string_equal(text_of(root, "status"), "incomplete");
    assert_string_equal(text_of(member(root, "incomplete_details"), "reason"), "max_output_tokens");
    assert_true(cJSON_IsNull(member(root, "completed_at")));
    assert_string_equal(text_of(cJSON_GetArrayItem(member(root, "output"), 0), "status"),
                        "incomplete");
    events = events_of(&o, &names);
    assert_non_null(strstr(names.ptr, "output_item.done\nincomplete\n"));
    cJSON_Delete(events);
    cJSON_Delete(root);
    td_buf_free(&names);
    td_buf_free(&object);
    responses_output_free(&o);
    o = make(false); /* the same, where nobody says that the message ends */
    responses_output_content(&o, TD_SLICE("a"), true);
    responses_output_finish(&o, "length", &usage, 1, TD_SLICE(""), NULL);
    assert_items(&o, "1i\"a\" ");
    responses_output_free(&o);
}

static void test_a_failure_is_the_last_event(void **state)
{
    td_error err = {.code = TD_UNAVAILABLE, .text = "the decode worker is gone: \xe2\x82"};
    responses_output o = make(true);
    td_buf names = {0};
    cJSON *events;
    const cJSON *response;

    (void)state;
    responses_output_start(&o);
    responses_output_content(&o, TD_SLICE("half"), true);
    responses_output_fail(&o, &err);
    assert_items(&o, "1i\"half\" ");
    events = events_of(&o, &names);
    assert_non_null(strstr(names.ptr, "output_item.done\nfailed\n"));
    response = member(cJSON_GetArrayItem(events, cJSON_GetArraySize(events) - 1), "response");
    assert_string_equal(text_of(response, "status"), "failed");
    assert_string_equal(text_of(member(response, "error"), "code"), "server_error");
    assert_string_equal(text_of(member(response, "error"), "message"),
                        "the decode worker is gone: \xef\xbf\xbd");
    assert_true(cJSON_IsNull(member(response, "usage")));
    cJSON_Delete(events);
    td_buf_free(&names);
    responses_output_free(&o);
}

static void test_an_answer_without_words_is_an_empty_message(void **state)
{
    responses_output o = make(true);

    (void)state;
    responses_output_start(&o);
    responses_output_reasoning(&o, TD_SLICE("r"));
    responses_output_message_end(&o, RESPONSES_REASONING, true);
    responses_output_message_end(&o, RESPONSES_MESSAGE, true); /* nothing was in it */
    responses_output_finish(&o, "stop", &usage, 1, TD_SLICE(""), NULL);
    assert_items(&o, "0\"r\" 1\"\" ");
    responses_output_free(&o);
}

/* ---- any order of pieces ---- */

static uint32_t seed;

static uint32_t next_random(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

static void say_anything(responses_output *o, unsigned n)
{
    static const char *const texts[] = {"a", "\n", "", "\"\\", "\n\n", "\xc3\xa9\x01"};

    for (unsigned i = 0; i < n; i++) {
        const td_slice text = td_slice_of(texts[next_random(sizeof texts / sizeof *texts)]);

        switch (next_random(7)) {
        case 0: responses_output_reasoning(o, text); break;
        case 1: responses_output_content(o, text, next_random(2) == 0); break;
        case 2: responses_output_call(o, "call_1", TD_SLICE("f")); break;
        case 3: responses_output_arguments(o, text); break;
        case 4: responses_output_logprobs(o, TD_SLICE("{}")); break;
        default:
            responses_output_message_end(o, (responses_kind)next_random(3), next_random(4) > 0);
        }
    }
}

/* Whatever comes: items open and close one after another, each once; what deltas add up to is what
 * done says and what the object has. */
static void check_events(const cJSON *events, const cJSON *items)
{
    int open = -1, begun = 0;
    const cJSON *e;

    cJSON_ArrayForEach(e, events)
    {
        const char *type = text_of(e, "type");
        const cJSON *index = cJSON_GetObjectItem(e, "output_index");

        if (index == NULL)
            continue;
        if (strcmp(type, "response.output_item.added") == 0) {
            assert_int_equal(open, -1);
            open = begun++;
        }
        assert_int_equal(index->valueint, open);
        if (strcmp(type, "response.output_item.done") == 0) {
            assert_true(cJSON_Compare(member(e, "item"), cJSON_GetArrayItem(items, open), true));
            open = -1;
        }
    }
    assert_int_equal(open, -1);
    assert_int_equal(begun, cJSON_GetArraySize(items));
    for (int i = 0; i < begun; i++) {
        const cJSON *item = cJSON_GetArrayItem(items, i);
        const char *kind = text_of(item, "type");
        const cJSON *part = cJSON_GetArrayItem(cJSON_GetObjectItem(item, "content"), 0);

        if (strcmp(kind, "function_call") == 0)
            assert_joined(events, "response.function_call_arguments.delta", i, "delta",
                          text_of(item, "arguments"));
        else
            assert_joined(events,
                          strcmp(kind, "message") == 0 ? "response.output_text.delta"
                                                       : "response.reasoning_text.delta",
                          i, "delta", text_of(part, "text"));
    }
}

static void test_any_order_of_pieces(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 400; round++) {
        responses_output o = make(true);
        td_buf names = {0}, object = {0};
        cJSON *events, *root;

        seed = round;
        responses_output_start(&o);
        say_anything(&o, next_random(30));
        responses_output_finish(&o, round % 3 == 0 ? "length" : "stop", &usage, 1, TD_SLICE(""),
                                &object);
        assert_false(o.oom);
        root = cJSON_Parse(object.ptr);
        assert_non_null(root);
        events = events_of(&o, &names);
        check_events(events, member(root, "output"));
        cJSON_Delete(events);
        cJSON_Delete(root);
        td_buf_free(&names);
        td_buf_free(&object);
        responses_output_free(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_come_in_order),
        cmocka_unit_test(test_events_add_up_to_the_object),
        cmocka_unit_test(test_messages_of_a_kind_are_items),
        cmocka_unit_test(test_logprobs_go_with_their_text),
        cmocka_unit_test(test_a_cut_answer_is_incomplete),
        cmocka_unit_test(test_a_failure_is_the_last_event),
        cmocka_unit_test(test_any_order_of_pieces),
        cmocka_unit_test(test_an_answer_without_words_is_an_empty_message),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
