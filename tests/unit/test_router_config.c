/* What the router's flags may say beyond their types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "router/config.h"

static void check(const char *date, const char *id, const char *says)
{
    router_config cfg = {.date = (char *)(uintptr_t)date, .router_id = (char *)(uintptr_t)id};
    td_error err = {0};
    td_status st = router_config_check(&cfg, &err);

    if (says == NULL ? st != TD_OK : st != TD_INVALID || strstr(err.text, says) == NULL)
        fail_msg("'%s' '%s': %d %s", date, id, st, err.text);
}

static void test_a_date_is_a_day(void **state)
{
    static const char *const bad[] = {"x",          "2025-13-01", "2025-02-29",  "2025-00-10",
                                      "2025-1-1",   "2025/06/28", "2025-06-28x", " 2025-06-2",
                                      "2025-06--1", "2025-06-31", "2025-06-00",  "today"};

    (void)state;
    check("", "", NULL);
    check("2024-02-29", "", NULL);
    check("2025-12-31", "", NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check(bad[i], "", "--date");
}

static void test_an_id_is_a_word(void **state)
{
    char longest[97] = "";

    (void)state;
    memset(longest, 'r', 95);
    check("", "router-1", NULL);
    check("", longest, NULL);
    longest[95] = 'r';
    check("", longest, "--router-id");
    check("", "a b", "--router-id");
    check("", "a\n", "--router-id");
    check("", "\xc3\xa9", "--router-id");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_date_is_a_day),
        cmocka_unit_test(test_an_id_is_a_word),
    };

    return cmocka_run_group_tests_name("router_config", tests, NULL, NULL);
}
