/* api_keys: which files are good, what is admitted, reading again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "router/api_keys.h"

#define ONE "sk-one-0123456789abcdef"
#define TWO "sk-two-0123456789abcdef"

static char path[] = "/tmp/tandem-keys-XXXXXX";

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void put(const char *text, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void test_api_keys_admit_what_the_file_has(void **state)
{
    static const char text[] = "# clients\n\n  " ONE "  \r\n#" TWO "\n" TWO;
    static const char *const good[] = {"Bearer " ONE, "Bearer " TWO, "bearer  " ONE " "};
    static const char *const bad[] = {"",
                                      "Bearer",
                                      "Bearer ",
                                      ONE,
                                      "Basic " ONE,
                                      "Bearer #" TWO,
                                      "Bearer " ONE "x",
                                      "Bearer sk-one-0123456789abcde",
                                      "Bearer " ONE " " TWO};
    api_keys *k;
    td_error err = {0};

    (void)state;
    put(text, sizeof text - 1);
    assert_int_equal(api_keys_open(path, &k, &err), TD_OK);
    assert_int_equal(api_keys_count(k), 2);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!api_keys_admit(k, good[i], NULL))
            fail_msg("not admitted: %s", good[i]);
    assert_false(api_keys_admit(k, NULL, NULL));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (api_keys_admit(k, bad[i], NULL))
            fail_msg("admitted: %s", bad[i]);
    api_keys_free(k);
    api_keys_free(NULL);
}

/* Errors name the line, and never what is in it. */
static void test_api_keys_refuse_what_is_none(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {{"", "no key in it"},
               {"# only words\n\n", "no key in it"},
               {ONE "\nshort\n", "line 2: a key has 16 to 512 characters, this has 5"},
               {ONE "\n\nsk-two and a comment behind it\n", "line 3: a key is one word"},
               {"sk-s\xc3\xa9"
                "cret-0123456789\n",
                "line 1: a key is one word"}};
    td_error err = {0};
    api_keys *k;
    char *huge;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(bad[i].text, strlen(bad[i].text));
        assert_int_equal(api_keys_open(path, &k, &err), TD_INVALID);
        if (strstr(err.text, bad[i].says) == NULL || strstr(err.text, "sk-") != NULL)
            fail_msg("%s", err.text);
    }
    huge = malloc(600);
    memset(huge, 'k', 600);
    put(huge, 600);
    free(huge);
    assert_int_equal(api_keys_open(path, &k, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "this has 600"));
    assert_int_equal(api_keys_open("/nowhere/keys", &k, &err), TD_IO);
    assert_int_equal(api_keys_open("/tmp", &k, &err), TD_IO);
    put(ONE "\0cut\n", sizeof ONE + 4);
    assert_int_equal(api_keys_open(path, &k, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "line 1: has a NUL"));
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* is not waited for */
    assert_int_equal(api_keys_open(path, &k, &err), TD_IO);
    unlink(path);
    put("", 0); /* for those who come next */
}

static void test_api_keys_are_read_again(void **state)
{
    api_keys *k;
    td_error err = {0};

    (void)state;
    put(ONE "\n", sizeof ONE);
    assert_int_equal(api_keys_open(path, &k, &err), TD_OK);
    assert_false(api_keys_changed(k));
    put(TWO "\n" TWO "x\n", 2 * sizeof TWO + 1);
    assert_true(api_keys_changed(k));
    assert_int_equal(api_keys_reload(k, &err), TD_OK);
    assert_false(api_keys_changed(k));
    assert_false(api_keys_admit(k, "Bearer " ONE, NULL));
    assert_true(api_keys_admit(k, "Bearer " TWO, NULL));
    put("bad", 3);
    assert_true(api_keys_changed(k));
    assert_int_equal(api_keys_reload(k, &err), TD_INVALID);
    assert_false(api_keys_changed(k)); /* told once */
    assert_true(api_keys_admit(k, "Bearer " TWO, NULL));
    assert_int_equal(api_keys_count(k), 2);
    assert_int_equal(rename(path, "/tmp/tandem-keys-away"), 0);
    assert_false(api_keys_changed(k));
    assert_int_equal(api_keys_reload(k, &err), TD_IO);
    assert_true(api_keys_admit(k, "Bearer " TWO, NULL));
    assert_int_equal(rename("/tmp/tandem-keys-away", path), 0);
    api_keys_free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_keys_admit_what_the_file_has),
        cmocka_unit_test(test_api_keys_refuse_what_is_none),
        cmocka_unit_test(test_api_keys_are_read_again),
    };

    return cmocka_run_group_tests_name("api_keys", tests, make_file, remove_file);
}
