/* guide: what cannot be held is refused by name, what comes from the wire is checked, and what many
 * kinds of requests take is bounded. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/guide_impl.h"
#include "router/openai.h"
#include "tests/unit/guide_fixture.h"
#include "tests/unit/harmony_fixture.h"

static void expect_refusal(const char *members, const char *param, const char *says)
{
    const openai_defaults d = {.date = "", .allow_ignore_eos = true, .vocab = n_ids};
    td_error err = {0};
    td_tokens prompt = {0};
    char body[4096];
    generation g;
    int n = snprintf(body, sizeof body,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                     "{\"role\":\"assistant\",\"content\":\"So\"}],%s}",
                     members);
    td_status st = openai_parse_chat(body, (size_t)n, &d, &g, &err);

    if (st == TD_OK)
        st = generation_guide(&g, &err);
    if (st == TD_OK)
        st = generation_render(&g, fixture_harmony(), &prompt, &err);
    if (st != TD_INVALID || strcmp(err.param, param) != 0 || strstr(err.text, says) == NULL)
        fail_msg("%s: %d \"%s\" \"%s\"", members, (int)st, err.param, err.text);
    assert_int_equal(prompt.len, 0);
    generation_free(&g);
}

static void test_what_cannot_be_held_is_refused_by_name(void **state)
{
    (void)state;
    expect_refusal(FORMAT ",\"ignore_eos\":true", "ignore_eos", "response format");
    expect_refusal(FORMAT ",\"continue_final_message\":true", "continue_final_message",
                   "response format");
    expect_refusal(TOOLS ",\"tool_choice\":\"required\",\"continue_final_message\":true",
                   "continue_final_message", "call");
    expect_refusal("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
                   "\"schema\":{\"type\":\"object\",\"properties\":{\"p\":{\"not\":{}}}}}}",
                   "response_format.json_schema.schema", "#/properties/p");
    /* A number that fits no double is none that an answer could be held to, and not null. */
    expect_refusal("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
                   "\"schema\":{\"enum\":[1,-1e400]}}}",
                   "response_format.json_schema.schema", "2^53 or more");
    expect_refusal("\"tools\":[" TOOL(
                       "a", "true") ",{\"type\":\"function\",\"function\":{"
                                    "\"name\":\"b\",\"strict\":true,\"parameters\":{\"not\":{}}}}]",
                   "tools[1].function.parameters", "not");
}

static void expect_bad(const Tandem__Guide *m, const int32_t *answer, size_t n, const char *says)
{
    td_guide *out = NULL;
    td_error err = {0};

    assert_int_equal(td_guide_create(guides, m, answer, n, &out, &err), TD_INVALID);
    assert_null(out);
    if (strstr(err.text, says) == NULL)
        fail_msg("%s", err.text);
}

static void test_descriptions_from_the_wire_are_checked(void **state)
{
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    Tandem__GuideFunction f = TANDEM__GUIDE_FUNCTION__INIT, *list[600];
    const int32_t end = harmony_ids_of(fixture_harmony())->end, far = n_ids + 5;

    (void)state;
    for (size_t i = 0; i < 600; i++)
        list[i] = &f;
    m.functions = list;
    expect_bad(&m, NULL, 0, "no answer end");
    m.n_functions = 1;
    expect_bad(&m, NULL, 0, "name");
    f.name = (ProtobufCBinaryData){4, (uint8_t *)(uintptr_t) "a b<"};
    expect_bad(&m, NULL, 0, "name");
    f.name = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) "a"};
    m.n_functions = 600;
    expect_bad(&m, NULL, 0, "600 functions");
    m.n_functions = 1;
    f.schema = (ProtobufCBinaryData){3, (uint8_t *)(uintptr_t) "{]}"};
    expect_bad(&m, NULL, 0, "");
    f.schema.len = 0;
    m.begun = true;
    expect_bad(&m, NULL, 0, "begun");
    m.begun = false;
    expect_bad(&m, &end, 1, "in a header");
    expect_bad(&m, &far, 1, "in a header");
    expect_bad(&m, &(int32_t){-1}, 1, "in a header");
}

#ifndef __SANITIZE_THREAD__
/* {"enum":[...]} of many long words, none of which begins as another: a state a letter. */
static void add_many_words(td_buf *out, unsigned seed)
{
    td_buf_str(out, "{\"enum\":[");
    for (int i = 0; i < 300; i++) {
        td_buf_fmt(out, "%s\"%d_%u_", i > 0 ? "," : "", i, seed);
        for (int k = 0; k < 60; k++)
            td_buf_byte(out, (char)('a' + (i * 7 + k * (k + (int)seed)) % 26));
        td_buf_byte(out, '"');
    }
    td_buf_str(out, "]}");
}

static void test_large_requests_are_bounded(void **state)
{
    enum { N = 40 };
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    Tandem__GuideFunction f[N], *list[N];
    td_buf words[N] = {0};
    td_guide *g = NULL;
    td_error err = {0};
    char *blank = malloc(TD_GUIDE_MAX_BYTES);

    (void)state;
    assert_non_null(blank);
    memset(blank, ' ', TD_GUIDE_MAX_BYTES);
    for (unsigned i = 0; i < N; i++) {
        tandem__guide_function__init(&f[i]);
        f[i].name = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) "f"};
        add_many_words(&words[i], i);
        f[i].schema = (ProtobufCBinaryData){words[i].len, (uint8_t *)words[i].ptr};
        list[i] = &f[i];
    }
    m.functions = list;
    m.n_functions = N;
    expect_bad(&m, NULL, 0, "more than 400000 states");
    f[0].schema = (ProtobufCBinaryData){TD_GUIDE_MAX_BYTES, (uint8_t *)blank};
    expect_bad(&m, NULL, 0, "at most 4194304 are possible");
    /* What is large leaves the cache to others as it came: each time by itself. */
    m.n_functions = N / 3;
    for (unsigned i = 0; i < 6; i++) {
        f[0].schema = f[N - 1 - i].schema;
        if (td_guide_create(guides, &m, NULL, 0, &g, &err) != TD_OK)
            fail_msg("%s", err.text);
        td_guide_free(g);
    }
    for (unsigned i = 0; i < N; i++)
        td_buf_free(&words[i]);
    free(blank);
}
#endif

/* Answers whose schemas have nothing in common; the most that their masks took. */
static size_t masks_of_many(int from, int n)
{
    size_t most = 0;

    for (int i = from; i < from + n; i++) {
        char members[400];
        generation g;

        snprintf(members, sizeof members,
                 "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\","
                 "\"schema\":{\"type\":\"object\",\"properties\":{\"p%d\":{\"type\":\"string\","
                 "\"pattern\":\"^[a-z]{2,9}%d$\"}},\"required\":[\"p%d\"]}}}",
                 i, i, i);
        guide_parse(members, &g);
        for (uint64_t seed = 0; seed < 3; seed++) {
            td_tokens ids = guide_walk(&g, seed);

            assert_true(ids.len > 0);
            td_tokens_free(&ids);
        }
        generation_free(&g);
        if (td_grammar_mask_bytes() > most)
            most = td_grammar_mask_bytes();
    }
    return most;
}

static void test_masks_of_idle_requests_make_room(void **state)
{
    size_t before = td_grammar_mask_bytes(), one = masks_of_many(0, 1) - before;

    (void)state;
    assert_true(one > 0);
    guides->most_mask_bytes = td_grammar_mask_bytes() + 3 * one;
    assert_true(masks_of_many(1, 30) < guides->most_mask_bytes + 3 * one);
    /* Where there is no room at all, masks are made for one use. */
    before = td_grammar_mask_bytes();
    td_grammar_limit_masks(before);
    assert_true(masks_of_many(31, 2) <= before);
    td_grammar_limit_masks(TD_GRAMMAR_MASK_BYTES);
    guides->most_mask_bytes = GUIDE_CACHE_MASK_BYTES;
}

/* More kinds of requests than the cache holds, from several threads. */
static void *many_kinds(void *arg)
{
    const char *failed = NULL;

    for (int i = 0; i < 300 && failed == NULL; i++) {
        Tandem__Guide m = TANDEM__GUIDE__INIT;
        Tandem__GuideFunction f = TANDEM__GUIDE_FUNCTION__INIT, *list = &f;
        char name[16];
        td_guide *g = NULL;
        td_error err = {0};

        snprintf(name, sizeof name, "f%d", i * 7 % 100);
        f.name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
        m.functions = &list;
        m.n_functions = 1;
        if (td_guide_create(guides, &m, NULL, 0, &g, &err) != TD_OK || td_guide_mask(g) == NULL)
            failed = "a guide";
        td_guide_free(g);
    }
    *(const char **)arg = failed;
    return NULL;
}

static void test_plans_are_shared_between_threads(void **state)
{
    pthread_t threads[3];
    const char *failed[3] = {"no thread", "no thread", "no thread"};

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_kinds, &failed[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_null(failed[i]);
    }
}

static void test_a_folder_without_a_vocabulary_says_so(void **state)
{
    char folder[] = "/tmp/tandem-guide-XXXXXX", path[64], *text, *at;
    td_guides *g = NULL;
    td_error err = {0};
    size_t n;
    FILE *f;

    (void)state;
    assert_int_equal(td_guides_open("tests/unit", 100, &g, &err), TD_NOTFOUND);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    assert_int_equal(td_guides_open(FOLDER, n_ids - 1, &g, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "rows"));
    text = fixture_read(FOLDER "/tokenizer.json", &n);
    at = strstr(text, "<|call|>");
    assert_non_null(at);
    at[2] = 'C';
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    assert_int_equal(td_guides_open(folder, n_ids, &g, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "<|call|>"));
    unlink(path);
    rmdir(folder);
    free(text);
    assert_null(g);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cannot_be_held_is_refused_by_name),
        cmocka_unit_test(test_descriptions_from_the_wire_are_checked),
#ifndef __SANITIZE_THREAD__ /* much work, of one thread */
        cmocka_unit_test(test_large_requests_are_bounded),
#endif
        cmocka_unit_test(test_masks_of_idle_requests_make_room),
        cmocka_unit_test(test_plans_are_shared_between_threads),
        cmocka_unit_test(test_a_folder_without_a_vocabulary_says_so),
    };

    return cmocka_run_group_tests(tests, guide_set_up, guide_tear_down);
}
