/* choose: a share of a program's tests, for who runs them side by side or has little time.
 *
 * TANDEM_TEST_ONLY is a pattern of names, as cmocka has them ("test_attention_*"); TANDEM_TEST_PART
 * is "2/5": every fifth test from the second on. All parts together are all tests. */
#ifndef TANDEM_TESTS_OPS_CHOOSE_H
#define TANDEM_TESTS_OPS_CHOOSE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* Tests that were not chosen lose their name, which cmocka passes over. */
static inline void choose_tests(struct CMUnitTest *tests, size_t n)
{
    const char *only = getenv("TANDEM_TEST_ONLY"), *part = getenv("TANDEM_TEST_PART");
    unsigned one, of;
    char end;

    if (only != NULL)
        cmocka_set_test_filter(only);
    if (part == NULL)
        return;
    if (sscanf(part, "%u/%u%c", &one, &of, &end) != 2 || one < 1 || one > of) {
        fprintf(stderr, "TANDEM_TEST_PART is \"%s\", expected one such as 2/5\n", part);
        exit(2);
    }
    for (size_t i = 0; i < n; i++)
        if (i % of != one - 1)
            tests[i] = (struct CMUnitTest){0};
}

/* cmocka_run_group_tests() of those; tests is an array that may change. */
#define RUN_CHOSEN_TESTS(tests, setup, teardown) \
    (choose_tests(tests, sizeof(tests) / sizeof(tests)[0]), \
     cmocka_run_group_tests(tests, setup, teardown))

#endif
