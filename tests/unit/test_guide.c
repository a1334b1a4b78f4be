/* guide: whatever is chosen from its masks is an answer that the request allows, wherever it is
 * taken up again. What is refused, and bounds: test_guide_limits.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "router/guided.h"
#include "router/tokenizer.h"
#include "tests/unit/guide_fixture.h"
#include "tests/unit/harmony_fixture.h"

static void read_answer(const generation *g, const td_tokens *ids, record *r)
{
    record_run(r, fixture_harmony(), &g->chat, ids->ptr, ids->len, HARMONY_END_STOP);
    assert_true(r->stats.done);
    for (int i = 0; i < HARMONY_REPAIR_COUNT; i++)
        if (i != HARMONY_REPAIR_BAD_UTF8 && r->stats.repairs[i] > 0)
            fail_msg("%s: %s", harmony_repair_label((harmony_repair)i), r->events.ptr);
}

static cJSON *read_object(const td_buf *text)
{
    cJSON *v = cJSON_ParseWithLengthOpts(text->ptr, text->len + 1, NULL, 1);

    if (!cJSON_IsObject(v))
        fail_msg("no JSON object: %.*s", (int)text->len, text->ptr);
    return v;
}

/* What SCHEMA says. */
static void check_pair(const td_buf *text)
{
    cJSON *v = read_object(text);
    const cJSON *n = cJSON_GetObjectItem(v, "n"), *w = cJSON_GetObjectItem(v, "w");

    assert_int_equal(cJSON_GetArraySize(v), 2);
    assert_true(cJSON_IsNumber(n) && n->valuedouble == (double)(int64_t)n->valuedouble);
    assert_true(cJSON_IsString(w));
    assert_true(strcmp(w->valuestring, "a") == 0 || strcmp(w->valuestring, "bc") == 0);
    cJSON_Delete(v);
}

static void check_calls(const record *r)
{
    for (size_t i = 0; i < r->n_calls; i++) {
        if (strcmp(r->calls[i].name.ptr, "get") == 0)
            check_pair(&r->calls[i].arguments);
        else if (strcmp(r->calls[i].name.ptr, "get_time") == 0)
            cJSON_Delete(read_object(&r->calls[i].arguments));
        else
            fail_msg("a call of %s", r->calls[i].name.ptr);
    }
}

/* How many of a number of answers had what. */
typedef struct tally {
    size_t reasoning, content, get, get_time;
    size_t others; /* of get_time, with arguments that its schema does not have */
} tally;

static tally walk_many(const char *members, bool json, size_t n)
{
    static record r;
    tally t = {0};
    generation g;

    guide_parse(members, &g);
    for (uint64_t seed = 0; seed < n; seed++) {
        td_tokens ids = guide_walk(&g, seed);

        read_answer(&g, &ids, &r);
        check_calls(&r);
        assert_true(r.n_calls <= 1);
        if (json && r.n_calls == 0)
            check_pair(&r.content);
        t.reasoning += r.reasoning.len > 0;
        t.content += r.content.len > 0;
        t.get += r.n_calls == 1 && strcmp(r.calls[0].name.ptr, "get") == 0;
        t.get_time += r.n_calls == 1 && strcmp(r.calls[0].name.ptr, "get_time") == 0;
        t.others += r.n_calls == 1 && strstr(r.calls[0].arguments.ptr, "\"n\"") == NULL;
        record_fini(&r);
        td_tokens_free(&ids);
    }
    generation_free(&g);
    return t;
}

static void test_a_response_format_holds_the_final_channel_alone(void **state)
{
    tally t = walk_many(FORMAT, true, 60);

    (void)state;
    assert_int_equal(t.content, 60);
    assert_true(t.reasoning > 10);
    t = walk_many(FORMAT "," TOOLS, true, 60);
    assert_int_equal(t.content + t.get + t.get_time, 60);
    assert_true(t.content > 0 && t.get > 0 && t.get_time > 0);
}

static void test_json_object_is_any_object(void **state)
{
    static record r;
    generation g;

    (void)state;
    guide_parse("\"response_format\":{\"type\":\"json_object\"}", &g);
    for (uint64_t seed = 0; seed < 40; seed++) {
        td_tokens ids = guide_walk(&g, seed);

        read_answer(&g, &ids, &r);
        cJSON_Delete(read_object(&r.content));
        record_fini(&r);
        td_tokens_free(&ids);
    }
    generation_free(&g);
}

static void test_tool_choice_decides_which_calls_may_come(void **state)
{
    tally t = walk_many(TOOLS ",\"tool_choice\":\"required\"", false, 60);

    (void)state;
    assert_int_equal(t.get + t.get_time, 60);
    assert_true(t.get > 0 && t.get_time > 0 && t.reasoning > 0);
    assert_true(t.others > 0 && t.others <= t.get_time);
    assert_int_equal(t.content, 0);
    /* "get" begins "get_time": the name ends where the header goes on. */
    t = walk_many(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get\"}}",
                  false, 40);
    assert_int_equal(t.get, 40);
    t = walk_many(TOOLS ",\"tool_choice\":\"none\"", false, 40);
    assert_int_equal(t.get + t.get_time, 0);
    assert_true(t.content > 30);     /* an empty answer is one, too */
    t = walk_many(TOOLS, false, 60); /* one of them is strict */
    assert_true(t.get > 0 && t.get_time > 0 && t.content > 0 && t.reasoning > 0);
}

/* Of two functions with one name the first is meant, wherever the answer is taken up. */
static void add_text(td_tokens *ids, const char *text)
{
    td_error err = {0};

    assert_int_equal(
        tokenizer_encode(harmony_tokenizer(fixture_harmony()), text, strlen(text), ids, &err),
        TD_OK);
}

/* Routers refuse it; to a worker the first is the one that is meant. */
static void test_two_functions_of_one_name(void **state)
{
    static const char name[] = "get", none[] = "{\"type\":\"object\",\"maxProperties\":0}";
    const harmony_ids *special = harmony_ids_of(fixture_harmony());
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    Tandem__GuideFunction f[2] = {TANDEM__GUIDE_FUNCTION__INIT, TANDEM__GUIDE_FUNCTION__INIT};
    Tandem__GuideFunction *list[] = {&f[0], &f[1]};
    td_tokens ids = {0};
    td_guide *at = NULL;
    td_error err = {0};

    (void)state;
    f[0].name = f[1].name = (ProtobufCBinaryData){3, (uint8_t *)(uintptr_t)name};
    m.functions = list;
    m.n_functions = 2;
    add_text(&ids, " to=functions.get");
    td_tokens_push(&ids, special->channel);
    add_text(&ids, "commentary");
    td_tokens_push(&ids, special->message);
    add_text(&ids, "{\"a\":1}");
    for (int first = 0; first < 2; first++) {
        f[first].schema = (ProtobufCBinaryData){sizeof none - 1, (uint8_t *)(uintptr_t)none};
        f[!first].schema = (ProtobufCBinaryData){0};
        assert_int_equal(td_guide_create(guides, &m, ids.ptr, ids.len, &at, &err),
                         first == 0 ? TD_INVALID : TD_OK);
    }
    td_guide_free(at);
    td_tokens_free(&ids);
}

static void test_only_what_must_be_held_is(void **state)
{
    static const char *const loose[] = {
        "\"n\":1",
        "\"response_format\":{\"type\":\"text\"}",
        "\"tool_choice\":\"none\"",
        "\"tools\":[" TOOL("get", "false") "]",
        "\"tools\":[" TOOL("get", "null") "],\"tool_choice\":\"auto\"",
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"strict\":"
        "false,"
        "\"schema\":{\"not\":{}}}}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof loose / sizeof *loose; i++) {
        generation g;

        guide_parse(loose[i], &g);
        assert_null(g.guide);
        generation_free(&g);
    }
}

static void test_a_continued_answer_begins_in_its_text(void **state)
{
    td_tokens ids = {0};
    generation g;
    td_guide *at;
    int32_t n = 0;

    (void)state;
    guide_parse(TOOLS ",\"continue_final_message\":true", &g);
    at = guide_open_at(&g, &ids);
    for (int32_t id = 0; id < n_ids; id++)
        n += in_mask(td_guide_mask(at), id) &&
             tokenizer_is_special(harmony_tokenizer(fixture_harmony()), id);
    assert_int_equal(n, 1);
    assert_true(in_mask(td_guide_mask(at), harmony_ids_of(fixture_harmony())->ret));
    td_guide_free(at);
    generation_free(&g);
}

static void test_reasoning_is_free_and_does_not_come_twice(void **state)
{
    const harmony *h = fixture_harmony();
    const tokenizer *t = harmony_tokenizer(h);
    td_tokens ids = fixture_tokens(h, "<|channel|>analysis<|message|>");
    td_tokens more = fixture_tokens(h, "x<|end|><|start|>assistant<|channel|>");
    generation g;
    td_guide *at;
    const uint32_t *mask;

    (void)state;
    guide_parse(FORMAT, &g);
    at = guide_open_at(&g, &ids);
    mask = td_guide_mask(at);
    for (int32_t id = 0; id < n_ids; id++) {
        td_slice piece;
        bool text = tokenizer_bytes(t, id, &piece) && !tokenizer_is_special(t, id);

        if (in_mask(mask, id) != (text || id == harmony_ids_of(h)->end))
            fail_msg("token %d", id);
    }
    td_guide_free(at);
    td_tokens_add(&ids, more.ptr, more.len);
    at = guide_open_at(&g, &ids);
    mask = td_guide_mask(at);
    for (int32_t id = 0; id < n_ids; id++) {
        td_slice piece;

        if (in_mask(mask, id) && tokenizer_bytes(t, id, &piece))
            assert_memory_equal(piece.ptr, "final", piece.len < 5 ? piece.len : 5);
    }
    td_guide_free(at);
    generation_free(&g);
    td_tokens_free(&ids);
    td_tokens_free(&more);
}

/* In the mask or refused, for every token, at each place of a few headers. */
static void test_masks_of_headers_are_exact(void **state)
{
    static const char *const answers[] = {
        " to=functions.get_time<|channel|>commentary <|constrain|>json<|message|>{",
        "<|channel|>commentary to=functions.get json<|message|>{",
        "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>x",
    };
    const harmony *h = fixture_harmony();
    generation g;

    (void)state;
    guide_parse(TOOLS, &g);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        td_tokens ids = fixture_tokens(h, answers[i]), bytes = fixture_bytes(h, &ids), at = ids;

        for (int cut = 0; cut < 2; cut++, at = bytes) { /* in words, and byte by byte */
            for (size_t n = cut ? at.len / 2 : 0; n < at.len; n++) {
                td_tokens so_far = {.ptr = at.ptr, .len = n};
                td_guide *here = guide_open_at(&g, &so_far);

                for (int32_t id = -1; id < n_ids + 1; id++) {
                    td_guide *there = guide_open_at(&g, &so_far);
                    bool in = id >= 0 && id < n_ids && in_mask(td_guide_mask(here), id);
                    td_error err = {0};

                    if ((td_guide_accept(there, id, &err) == TD_OK) != in)
                        fail_msg("%s, after %zu: token %d, in the mask: %d", answers[i], n, id, in);
                    td_guide_free(there);
                }
                assert_true(in_mask(td_guide_mask(here), at.ptr[n]));
                td_guide_free(here);
            }
        }
        td_tokens_free(&ids);
        td_tokens_free(&bytes);
    }
    generation_free(&g);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_response_format_holds_the_final_channel_alone),
        cmocka_unit_test(test_json_object_is_any_object),
        cmocka_unit_test(test_tool_choice_decides_which_calls_may_come),
        cmocka_unit_test(test_two_functions_of_one_name),
        cmocka_unit_test(test_only_what_must_be_held_is),
        cmocka_unit_test(test_a_continued_answer_begins_in_its_text),
        cmocka_unit_test(test_reasoning_is_free_and_does_not_come_twice),
        cmocka_unit_test(test_masks_of_headers_are_exact),
    };

    return cmocka_run_group_tests(tests, guide_set_up, guide_tear_down);
}
