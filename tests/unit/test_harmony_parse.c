/* The parser: every known way in which models write headers wrongly, from tables in
 * tests/data/harmony, and properties that hold for any stream. */
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

static harmony_end end_of(const cJSON *stream)
{
    const char *s = cJSON_GetStringValue(get(stream, "finish"));

    if (s != NULL && strcmp(s, "length") == 0)
        return HARMONY_END_LENGTH;
    return s != NULL && strcmp(s, "stop_string") == 0 ? HARMONY_END_STOP_STRING : HARMONY_END_STOP;
}

static void declare(chat *c, const cJSON *stream)
{
    chat_init(c);
    for (const cJSON *t = cJSON_GetArrayItem(get(stream, "declared_tools"), 0); t != NULL;
         t = t->next)
        chat_add_tool(c)->name = chat_str(c, t->valuestring);
}

/* All mismatches of a table are shown, not just the first. */
static int complaints;

#define complain(...) (complaints++, print_error(__VA_ARGS__), print_error("\n"))

/* An absent expectation is not checked, unless strict: then it is "". */
static void check_text(const char *label, const cJSON *expect, const char *key, const td_buf *got,
                       bool strict)
{
    const char *want = cJSON_GetStringValue(get(expect, key));

    if (want == NULL && !strict)
        return;
    if (strcmp(want ? want : "", got->ptr) != 0)
        complain("%s: %s is '%s', expected '%s'", label, key, got->ptr, want ? want : "");
}

static void check_calls(const char *label, const cJSON *expect, const record *r, bool strict)
{
    const cJSON *calls = get(expect, "tool_calls");
    size_t n = (size_t)cJSON_GetArraySize(calls);

    if (calls == NULL && !strict)
        return;
    if (n != r->n_calls) {
        complain("%s: %zu calls, expected %zu; events:\n%s", label, r->n_calls, n, r->events.ptr);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const cJSON *call = cJSON_GetArrayItem(calls, (int)i);

        check_text(label, call, "name", &r->calls[i].name, true);
        check_text(label, call, "arguments", &r->calls[i].arguments, true);
    }
}

/* The listed repairs, and no other, were made. */
static void check_repairs(const char *label, const cJSON *repairs, const harmony_stats *stats)
{
    for (int k = 0; repairs != NULL && k < HARMONY_REPAIR_COUNT; k++) {
        const char *name = harmony_repair_label((harmony_repair)k);
        bool wanted = false;

        for (const cJSON *w = repairs->child; w != NULL; w = w->next)
            wanted |= strcmp(w->valuestring, name) == 0;
        if (wanted != (stats->repairs[k] > 0))
            complain("%s: repair %s was %smade", label, name, wanted ? "not " : "");
    }
}

static void check_record(const char *label, const cJSON *stream, const record *r, bool strict)
{
    const cJSON *expect = get(stream, "expect");
    const char *reason = cJSON_GetStringValue(get(expect, "finish_reason"));

    check_text(label, expect, "reasoning", &r->reasoning, strict);
    check_text(label, expect, "content", &r->content, strict);
    check_calls(label, expect, r, strict);
    check_repairs(label, get(stream, "repairs"), &r->stats);
    if (reason != NULL && strstr(reason, r->finish_reason) == NULL)
        complain("%s: finish_reason %s, expected %s", label, r->finish_reason, reason);
    if (r->half_text || r->out_of_turn)
        complain("%s: bad events:\n%s", label, r->events.ptr);
    for (size_t i = 0; i < r->n_calls; i++)
        assert_true(r->calls[i].ended);
}

static void run_file(const char *name, const harmony *h)
{
    cJSON *root = load(name);
    bool strict = cJSON_IsTrue(get(root, "strict"));
    int n = 0;

    for (const cJSON *s = cJSON_GetArrayItem(get(root, "streams"), 0); s != NULL;
         s = s->next, n++) {
        const char *title = cJSON_GetStringValue(get(s, "name"));
        td_tokens ids = fixture_tokens(h, get(s, "completion")->valuestring);
        char label[128];
        record r;
        chat c;

        snprintf(label, sizeof label, "%s, stream %d, %s", name, n, title ? title : "");
        declare(&c, s);
        record_run(&r, h, &c, ids.ptr, ids.len, end_of(s));
        check_record(label, s, &r, strict);
        record_fini(&r);
        if (h == fixture_harmony()) {
            td_tokens bytes = fixture_bytes(h, &ids);

            strcat(label, ", in bytes");
            record_run(&r, h, &c, bytes.ptr, bytes.len, end_of(s));
            check_record(label, s, &r, strict);
            record_fini(&r);
            td_tokens_free(&bytes);
        }
        chat_free(&c);
        td_tokens_free(&ids);
    }
    assert_true(n > 0);
    assert_int_equal(complaints, 0);
    cJSON_Delete(root);
}

static const char *const files[] = {
    "C027.parse.json", "C029.parse.json", "C031.parse.json", "C033.parse.json",
    "C035.parse.json", "C037.parse.json", "C039.parse.json", "repairs.parse.json",
};

static void test_streams_give_what_is_expected(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        run_file(files[i], fixture_harmony());
}

static void test_streams_with_the_models_vocabulary(void **state)
{
    (void)state;
    if (fixture_o200k() == NULL)
        skip();
    for (size_t i = 0; i < sizeof files / sizeof *files - 1; i++) /* the last has fixture names */
        run_file(files[i], fixture_o200k());
}

static void test_golden_ids_parse_as_expected(void **state)
{
    const harmony *h = fixture_o200k();
    cJSON *root;

    (void)state;
    if (h == NULL)
        skip();
    root = load("golden.json");
    for (const cJSON *s = get(root, "parse")->child; s != NULL; s = s->next) {
        td_tokens ids = {0};
        record r;
        chat c;

        for (const cJSON *v = get(s, "tokens")->child; v != NULL; v = v->next)
            td_tokens_push(&ids, v->valueint);
        fixture_chat(&c, s);
        record_run(&r, h, &c, ids.ptr, ids.len, HARMONY_END_STOP);
        check_record(get(s, "name")->valuestring, s, &r, false);
        record_fini(&r);
        chat_free(&c);
        td_tokens_free(&ids);
    }
    cJSON_Delete(root);
}

/* C007: a character over three tokens comes whole, with the last of them. C009: real replacement
 * characters wait for nothing. */
static void test_characters_over_the_models_tokens(void **state)
{
    static const int32_t split[] = {200005, 17196, 200008, 12194, 4103, 104, 254, 200002};
    const harmony *h = fixture_o200k();
    td_tokens real = {0};
    record r;

    (void)state;
    if (h == NULL)
        skip();
    record_run(&r, h, NULL, split, sizeof split / sizeof *split, HARMONY_END_STOP);
    assert_string_equal(r.events.ptr, "C:Hi\nC:🫠\nE:C1\n");
    record_fini(&r);

    td_tokens_add(&real, split, 3);
    for (int i = 0; i < 2000; i++)
        td_tokens_push(&real, 3251);
    td_tokens_push(&real, 200002);
    record_run(&r, h, NULL, real.ptr, real.len, HARMONY_END_STOP);
    assert_int_equal(r.content.len, 2000 * 3);
    assert_int_equal(r.events.len, 2000 * strlen("C:\uFFFD\n") + strlen("E:C1\n"));
    record_fini(&r);
    td_tokens_free(&real);
}

/* Ids of `before`, then the raw bytes, then ids of `after`. */
static td_tokens around(const char *before, const char *bytes, size_t n, const char *after)
{
    td_tokens ids = fixture_tokens(fixture_harmony(), before);
    td_tokens tail = fixture_tokens(fixture_harmony(), after);

    for (size_t i = 0; i < n; i++)
        td_tokens_push(&ids, (unsigned char)bytes[i]);
    td_tokens_add(&ids, tail.ptr, tail.len);
    td_tokens_free(&tail);
    return ids;
}

static void expect_content(td_tokens ids, const char *want)
{
    record r;

    record_run(&r, fixture_harmony(), NULL, ids.ptr, ids.len, HARMONY_END_STOP);
    assert_string_equal(r.content.ptr, want);
    assert_false(r.half_text);
    record_fini(&r);
    td_tokens_free(&ids);
}

#define FINAL "<|channel|>final<|message|>"
#define RETURN "<|return|>"
#define FFFD "\xEF\xBF\xBD"

static void test_characters_are_whole_or_replaced(void **state)
{
    (void)state;
    expect_content(around(FINAL "Hi", "\xF0\x9F\xAB\xA0", 4, RETURN), "Hi\xF0\x9F\xAB\xA0");
    expect_content(around(FINAL, " \xF0\x9F \xF0\x9Fworked", 12, RETURN),
                   " " FFFD " " FFFD "worked");
    expect_content(around(FINAL, " \xF0\x9FXY", 5, RETURN), " " FFFD "XY");
    expect_content(around(FINAL, " \xF0\x9F", 3, RETURN), " " FFFD);
    expect_content(around(FINAL, "\xED\xA0\x80", 3, RETURN), FFFD FFFD FFFD); /* a surrogate */
    expect_content(around(FINAL, "a\xC3", 2, "<|end|><|start|>assistant" FINAL "b" RETURN),
                   "a" FFFD "\nb"); /* no half character crosses messages */
}

static void test_real_replacement_characters_pass_at_once(void **state)
{
    td_tokens ids = fixture_tokens(fixture_harmony(), FINAL);
    record r;

    (void)state;
    for (int i = 0; i < 2000; i++)
        for (const char *b = FFFD; *b != '\0'; b++)
            td_tokens_push(&ids, (unsigned char)*b);
    record_run(&r, fixture_harmony(), NULL, ids.ptr, ids.len, HARMONY_END_ABORT);
    assert_int_equal(r.content.len, 6000);
    assert_int_equal(r.stats.repairs[HARMONY_REPAIR_BAD_UTF8], 0);
    record_fini(&r);
    td_tokens_free(&ids);
}

static void test_ids_without_a_piece_are_one_replacement(void **state)
{
    const harmony *h = fixture_harmony();
    const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, 0, 0};
    td_tokens banned = {0};
    td_slice piece;
    int32_t hole = -1;

    (void)state;
    harmony_banned_ids(h, &banned);
    for (size_t i = 0; i < banned.len; i++)
        if (!tokenizer_bytes(harmony_tokenizer(h), banned.ptr[i], &piece))
            hole = banned.ptr[i];
    td_tokens_free(&banned);
    assert_true(hole > 0);
    for (size_t i = 0; i < 4; i++) {
        td_tokens ids = fixture_tokens(h, FINAL "a");
        record r;

        td_tokens_push(&ids, i == 3 ? hole : bad[i]);
        td_tokens_push(&ids, 'b');
        record_run(&r, h, NULL, ids.ptr, ids.len, HARMONY_END_STOP);
        assert_string_equal(r.content.ptr, "a" FFFD "b");
        assert_int_equal(r.stats.repairs[HARMONY_REPAIR_UNKNOWN_ID], 1);
        record_fini(&r);
        td_tokens_free(&ids);
    }
}

static void test_control_names_spelled_as_text_stay_text(void **state)
{
    static const char spelled[] = "<|end|><|start|>assistant<|channel|>final<|message|>";

    (void)state;
    expect_content(around(FINAL, spelled, sizeof spelled - 1, RETURN), spelled);
}

static void test_tokens_are_counted_by_kind(void **state)
{
    const harmony *h = fixture_harmony();
    td_tokens ids = fixture_tokens(h, "<|channel|>analysis<|message|>");
    td_tokens rest = fixture_tokens(h, "<|end|><|start|>assistant" FINAL "abc" RETURN);
    record r;

    (void)state;
    for (int i = 0; i < 5; i++)
        td_tokens_push(&ids, 't');
    td_tokens_add(&ids, rest.ptr, rest.len);
    record_run(&r, h, NULL, ids.ptr, ids.len, HARMONY_END_STOP);
    assert_int_equal(r.stats.tokens, ids.len);
    assert_int_equal(r.stats.reasoning_tokens, 5);
    assert_int_equal(r.stats.reasoning_bytes, 5);
    assert_int_equal(r.stats.content_bytes, 3);
    assert_true(r.stats.done);
    record_fini(&r);
    td_tokens_free(&rest);
    td_tokens_free(&ids);
}

/* Wherever a well-formed answer is cut, what came out is a beginning of the whole answer, and no
 * header shows. */
static void test_any_cut_gives_a_beginning(void **state)
{
    const harmony *h = fixture_harmony();
    td_tokens whole = fixture_tokens(
        h, "<|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>commentary"
           "<|message|>wait\xF0\x9F\xAB\xA0<|end|><|start|>assistant<|channel|>commentary "
           "to=functions.x <|constrain|>json<|message|>{\"a\":1}<|end|><|start|>assistant"
           "<|channel|>final<|message|>done<|return|>");
    td_tokens ids = fixture_bytes(h, &whole);
    record all, r;
    chat c;

    (void)state;
    chat_init(&c);
    chat_add_tool(&c)->name = chat_str(&c, "x");
    record_run(&all, h, &c, ids.ptr, ids.len, HARMONY_END_STOP);
    assert_string_equal(all.content.ptr, "wait\xF0\x9F\xAB\xA0\ndone");
    for (size_t cut = 0; cut < ids.len; cut++) {
        static const harmony_end ends[] = {HARMONY_END_LENGTH, HARMONY_END_ABORT};

        for (size_t e = 0; e < 2; e++) {
            record_run(&r, h, &c, ids.ptr, cut, ends[e]);
            assert_int_equal(strncmp(all.reasoning.ptr, r.reasoning.ptr, r.reasoning.len), 0);
            if (r.content.len >= 3 && memcmp(r.content.ptr + r.content.len - 3, FFFD, 3) == 0)
                r.content.len -= 3; /* of the character that was cut */
            assert_int_equal(strncmp(all.content.ptr, r.content.ptr, r.content.len), 0);
            assert_true(r.n_calls <= 1);
            if (r.n_calls == 1)
                assert_int_equal(
                    strncmp("{\"a\":1}", r.calls[0].arguments.ptr, r.calls[0].arguments.len), 0);
            record_fini(&r);
        }
    }
    record_fini(&all);
    chat_free(&c);
    td_tokens_free(&ids);
    td_tokens_free(&whole);
}

/* A body, the completion, and the events that must come. */
static void expect_events(const char *body, const char *completion, const char *events)
{
    const harmony *h = fixture_harmony();
    cJSON *root = fixture_json(body, strlen(body));
    td_tokens ids = fixture_tokens(h, completion);
    record r;
    chat c;

    assert_non_null(root);
    fixture_chat(&c, root);
    record_run(&r, h, &c, ids.ptr, ids.len, HARMONY_END_STOP);
    assert_string_equal(r.events.ptr, events);
    assert_int_equal(r.stats.tokens, ids.len);
    record_fini(&r);
    chat_free(&c);
    cJSON_Delete(root);
    td_tokens_free(&ids);
}

#define TOOLS(list) "{\"tools\":[" list "],"
#define FN(name) "{\"function\":{\"name\":\"" name "\"}}"

static void test_a_primed_parser_begins_where_the_prompt_ends(void **state)
{
    (void)state;
    expect_events("{\"continue_final\":true}", "x<|return|>", "C:x\nE:C1\n");
    expect_events("{\"continue_final\":true}", "", "E:C1\n");
}

static void test_two_calls_of_one_tool_are_two(void **state)
{
    (void)state;
    expect_events(TOOLS(FN("x")) "\"messages\":[]}",
                  "<|channel|>commentary to=functions.x<|message|>{}<|end|><|start|>assistant"
                  "<|channel|>commentary to=functions.x<|message|>{}<|call|>",
                  "B0:x\nA0:{}\nE:T1\nB1:x\nA1:{}\nE:T1\n");
}

static void test_a_parser_survives_long_junk_in_linear_time(void **state)
{
    const harmony *h = fixture_harmony();
    const harmony_ids *k = harmony_ids_of(h);
    const int32_t units[][2] = {
        {k->channel, k->channel}, {k->constrain, ' '}, {'a', ' '},        {k->start, 'x'},
        {k->message, k->start},   {k->end, 'x'},       {k->channel, 'f'}, {0xF0, 0x9F},
    };

    (void)state;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        td_tokens ids = {0};
        record r;

        for (int i = 0; i < 100000; i++)
            td_tokens_add(&ids, units[u], 2);
        record_run(&r, h, NULL, ids.ptr, ids.len, HARMONY_END_LENGTH);
        assert_false(r.half_text);
        record_fini(&r);
        td_tokens_free(&ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_give_what_is_expected),
        cmocka_unit_test(test_streams_with_the_models_vocabulary),
        cmocka_unit_test(test_golden_ids_parse_as_expected),
        cmocka_unit_test(test_characters_over_the_models_tokens),
        cmocka_unit_test(test_characters_are_whole_or_replaced),
        cmocka_unit_test(test_real_replacement_characters_pass_at_once),
        cmocka_unit_test(test_ids_without_a_piece_are_one_replacement),
        cmocka_unit_test(test_control_names_spelled_as_text_stay_text),
        cmocka_unit_test(test_tokens_are_counted_by_kind),
        cmocka_unit_test(test_any_cut_gives_a_beginning),
        cmocka_unit_test(test_a_primed_parser_begins_where_the_prompt_ends),
        cmocka_unit_test(test_two_calls_of_one_tool_are_two),
        cmocka_unit_test(test_a_parser_survives_long_junk_in_linear_time),
    };

    return cmocka_run_group_tests(tests, NULL, fixture_tear_down);
}
