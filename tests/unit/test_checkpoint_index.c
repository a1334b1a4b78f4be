/* Indexes that must not load: those that are none, and those that the files disagree with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/checkpoint_index.h"
#include "tests/unit/checkpoint_refusal.h"

static void test_checkpoint_index_places_a_tensor_in_the_wrong_file(void **state)
{
    tiny_model *m = *state;
    char from[256], to[256];
    tiny_tensor *t = tiny_find(m, "model.norm.weight");
    char file[64], other[64];

    tiny_file_name(m, t->shard, file, sizeof file);
    tiny_file_name(m, (t->shard + 1) % 3, other, sizeof other);
    snprintf(from, sizeof from, "\"model.norm.weight\": \"%s\"", file);
    snprintf(to, sizeof to, "\"model.norm.weight\": \"%s\"", other);
    tiny_edit_text(m, INDEX, from, to);
    EXPECT(m, TD_INVALID, other, "model.norm.weight", INDEX, AGAIN);
}

static void test_checkpoint_index_names_an_unneeded_tensor_that_is_nowhere(void **state)
{
    tiny_model *m = *state;

    tiny_edit_text(m, INDEX, "\"weight_map\": {",
                   "\"weight_map\": {\"extra.bias\": \"" SHARD_1 "\",");
    EXPECT(m, TD_INVALID, SHARD_1, "extra.bias", AGAIN);
}

static void test_checkpoint_index_lacks_a_tensor_that_a_file_has(void **state)
{
    tiny_model *m = *state;

    tiny_edit_text(m, INDEX, "\"model.norm.weight\"", "\"model.norm.weigth\"");
    EXPECT(m, TD_INVALID, "model.norm.weigth"); /* the file does not have that */
    tiny_write(m);
    tiny_edit_text(m, INDEX, "\n\"lm_head.weight\": \"" SHARD_2 "\",", "");
    EXPECT(m, TD_INVALID, INDEX, "lm_head.weight", AGAIN);
}

static void test_checkpoint_index_paths_stay_in_the_folder(void **state)
{
    static const char *const names[] = {
        "../" SHARD_0, "/etc/passwd", "sub/" SHARD_0, "..", ".", "", "./" SHARD_0, "a/../b",
    };
    tiny_model *m = *state;
    size_t n;
    char *index = tiny_get(m, INDEX, &n);

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *text = strdup(index), to[256];

        snprintf(to, sizeof to, "\"model.embed_tokens.weight\": \"%s\"", names[i]);
        tiny_replace(&text, "\"model.embed_tokens.weight\": \"" SHARD_0 "\"", to);
        tiny_put(m, INDEX, text, strlen(text));
        EXPECT(m, TD_INVALID, INDEX, "model.embed_tokens.weight", "in this folder", names[i]);
        free(text);
    }
    free(index);
}

static void test_checkpoint_index_that_is_no_index(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "not JSON"},
        {"[]", "expected a JSON object"},
        {"{}", "weight_map"},
        {"{\"weight_map\": []}", "weight_map"},
        {"{\"weight_map\": {}}", "weight_map is empty"},
        {"{\"weight_map\": {\"a\": 5}}", "found 5"},
        {"{\"weight_map\": {\"a\": null}}", "found null"},
        {"{\"weight_map\": {\"a\": \"f\", \"a\": \"g\"}}", "a appears twice"},
        {"{\"weight_map\": {\"a\": \"f\"}, \"weight_map\": {}}", "weight_map appears twice"},
        {"{\"weight_map\": {\"a\": \"f\"}} }", "not JSON"},
        {"{\"weight_map\": {\"a\": \"f\\u0000\"}}", "\\u0000"},
        {"{\"weight_map\": {\"a\": [[[[[[[[[1]]]]]]]]]}}", "nested deeper"},
    };
    tiny_model *m = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tiny_put(m, INDEX, cases[i].text, strlen(cases[i].text));
        EXPECT(m, TD_INVALID, INDEX, cases[i].expected);
    }
}

static void test_checkpoint_index_cut_at_every_byte(void **state)
{
    static const char text[] = "{\"metadata\": {\"total_size\": 3}, \"weight_map\": {\"a\": \"f\", "
                               "\"b\": \"g\"}}";
    td_error err = {0};

    (void)state;
    for (size_t n = 0; n + 1 < sizeof text; n++) {
        td_index index = {0};
        char *cut = strndup(text, n);

        assert_int_equal(td_index_parse(cut, n, "index", &index, &err), TD_INVALID);
        td_index_free(&index);
        free(cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        REFUSAL_CASE(test_checkpoint_index_places_a_tensor_in_the_wrong_file),
        REFUSAL_CASE(test_checkpoint_index_names_an_unneeded_tensor_that_is_nowhere),
        REFUSAL_CASE(test_checkpoint_index_lacks_a_tensor_that_a_file_has),
        REFUSAL_CASE(test_checkpoint_index_paths_stay_in_the_folder),
        REFUSAL_CASE(test_checkpoint_index_that_is_no_index),
        REFUSAL_CASE(test_checkpoint_index_cut_at_every_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
