/* The library of large products comes into a process when a GPU is opened and not before, and a
 * machine without it is told what to do. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/blas.h"
#include "kernels/ops.h"

static bool is_mapped(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;

    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        found = found || strstr(line, "libcublasLt") != NULL;
    fclose(f);
    return found;
}

static void test_blas_is_not_there_for_the_cpu(void **state)
{
    const td_ops *ops;
    td_dev *dev = NULL;
    td_error err = {0};

    (void)state;
    assert_int_equal(td_ops_find("cpu", &ops, &err), TD_OK);
    assert_int_equal(ops->dev_open(&(td_dev_options){.threads = 1}, &dev, &err), TD_OK);
    ops->dev_close(dev);
    assert_false(is_mapped());
}

static void test_blas_that_is_missing_is_an_error_with_a_remedy(void **state)
{
    const char *const none[] = {"libof-that-name-there-is-none.so.13", "/nowhere/libcublasLt.so"};
    td_error err = {0};

    (void)state;
    assert_int_equal(td_cuda_blas_load(none, 2, &err), TD_IO);
    assert_non_null(strstr(err.text, none[0]));
    assert_non_null(strstr(err.text, "LD_LIBRARY_PATH"));
    assert_non_null(strstr(err.text, "Install cuBLAS"));
}

static void test_blas_of_another_kind_is_refused(void **state)
{
    const char *const other[] = {"libm.so.6"};
    td_error err = {0};

    (void)state;
    assert_int_equal(td_cuda_blas_load(other, 1, &err), TD_IO);
    assert_non_null(strstr(err.text, "has no cublasLtCreate"));
}

static void test_blas_is_loaded_once(void **state)
{
    td_error err = {0};

    (void)state;
    for (int i = 0; i < 2; i++)
        if (td_cuda_blas_ready(&err) != TD_OK)
            fail_msg("%s", err.text);
    assert_true(is_mapped());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blas_is_not_there_for_the_cpu),
        cmocka_unit_test(test_blas_that_is_missing_is_an_error_with_a_remedy),
        cmocka_unit_test(test_blas_of_another_kind_is_refused),
        cmocka_unit_test(test_blas_is_loaded_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
