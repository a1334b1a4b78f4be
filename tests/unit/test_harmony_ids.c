/* Control tokens are found by name, in any vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/harmony_fixture.h"

static void test_ids_are_found_by_name(void **state)
{
    const harmony *h = fixture_harmony();
    const tokenizer *tok = harmony_tokenizer(h);
    int32_t stops[HARMONY_MAX_STOPS];
    td_tokens banned = {0};

    (void)state;
    assert_int_equal(harmony_ids_of(h)->channel, tokenizer_special(tok, "<|channel|>"));
    assert_int_equal(harmony_stop_ids(h, stops), 3);
    assert_int_equal(stops[0], tokenizer_special(tok, "<|return|>"));
    assert_int_equal(stops[1], tokenizer_special(tok, "<|call|>"));
    assert_int_equal(stops[2], tokenizer_special(tok, "<|endoftext|>"));

    harmony_banned_ids(h, &banned);
    assert_int_equal(banned.len, 4); /* start of text, two reserved ones, the hole between them */
    for (size_t i = 0; i < banned.len; i++) {
        assert_true(i == 0 || banned.ptr[i] > banned.ptr[i - 1]);
        for (size_t s = 0; s < 3; s++)
            assert_int_not_equal(banned.ptr[i], stops[s]);
    }
    td_tokens_free(&banned);
}

static void test_a_vocabulary_without_control_tokens_is_refused(void **state)
{
    size_t n;
    char *text = fixture_read(HARMONY_DATA "tokenizer.json", &n), *name;
    char path[] = "/tmp/test_harmony_XXXXXX.json";
    tokenizer *tok = NULL;
    harmony *h = NULL;
    td_error err;
    int fd = mkstemps(path, 5);
    FILE *f = fdopen(fd, "w");

    (void)state;
    name = strstr(text, "<|constrain|>");
    assert_non_null(name);
    memcpy(name, "<|unheardof|>", strlen("<|constrain|>"));
    fwrite(text, 1, n, f);
    fclose(f);
    assert_int_equal(tokenizer_open(path, &tok, &err), TD_OK);
    assert_int_equal(harmony_open(tok, NULL, &h, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "<|constrain|>"));
    assert_null(h);
    tokenizer_close(tok);
    remove(path);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_are_found_by_name),
        cmocka_unit_test(test_a_vocabulary_without_control_tokens_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, fixture_tear_down);
}
