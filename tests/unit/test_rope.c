/* rope: the specification's checks 1 to 3. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/rope.h"

static const td_model_config published = {.head_dim = 64,
                                          .rope_theta = 150000,
                                          .yarn_factor = 32,
                                          .yarn_beta_fast = 32,
                                          .yarn_beta_slow = 1,
                                          .yarn_original_positions = 4096};

static const double frequencies[32] = {1,
                                       6.8904430589e-1,
                                       4.7478205548e-1,
                                       3.2714587186e-1,
                                       2.2541800020e-1,
                                       1.5532298948e-1,
                                       1.0702442148e-1,
                                       7.3744568210e-2,
                                       5.0813274815e-2,
                                       3.1705696185e-2,
                                       1.9335001127e-2,
                                       1.1592049256e-2,
                                       6.7949594897e-3,
                                       3.8603593172e-3,
                                       2.0937923790e-3,
                                       1.0526021014e-3,
                                       4.5648391922e-4,
                                       1.2931870125e-4,
                                       3.8308812374e-5,
                                       2.6396469031e-5,
                                       1.8188336682e-5,
                                       1.2532569824e-5,
                                       8.6354958754e-6,
                                       5.9502392615e-6,
                                       4.0999784818e-6,
                                       2.8250668272e-6,
                                       1.9465962110e-6,
                                       1.3412910351e-6,
                                       9.2420895024e-7,
                                       6.3682091462e-7,
                                       4.3879782509e-7,
                                       3.0235114281e-7};

static void test_rope_frequencies_check_1_of_the_specification(void **state)
{
    td_model_config truncated = published;
    float f[32];

    (void)state;
    td_rope_frequencies(&published, f);
    for (int i = 0; i < 32; i++)
        assert_float_equal(f[i], frequencies[i], 2e-6 * frequencies[i]);
    truncated.yarn_truncate = true; /* what a missed "truncate": false looks like */
    td_rope_frequencies(&truncated, f);
    assert_float_equal(f[16], 5.8094750193e-4, 1e-9);
    assert_float_equal(f[17], 2.2794779580e-4, 1e-9);
    assert_float_equal(td_rope_factor(&published), 1.3465735902799727, 1e-15);
}

static void test_rope_tables_check_2_of_the_specification(void **state)
{
    static const struct {
        int p, i;
        double c, s, eps;
    } want[] = {
        {1, 0, 0.7275568158, 1.1331026051, 1e-6},
        {1, 8, 1.3448355453, 0.0683943728, 1e-6},
        {1000, 8, 1.1495380275, 0.7013007611, 1e-5},
        {1000, 16, 1.2086951099, 0.5935626045, 1e-5},
        {131071, 16, -1.3331071164, -0.1899627602, 1e-5},
        {131071, 31, 1.3455163354, 0.0533500263, 1e-5},
    };
    td_rope r;
    td_error err = {0};

    (void)state;
    assert_int_equal(td_rope_init(&r, &published, 131072, &err), TD_OK);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        assert_float_equal(r.cos[want[i].p * 32 + want[i].i], want[i].c, want[i].eps);
        assert_float_equal(r.sin[want[i].p * 32 + want[i].i], want[i].s, want[i].eps);
    }
    /* Check 3: unit vectors e_0 and e_32 at position 1, and a score of equal vectors. */
    assert_float_equal(r.cos[32], 0.7275568158, 1e-6);
    assert_float_equal(r.sin[32], 1.1331026051, 1e-6);
    assert_float_equal((r.cos[32] * r.cos[32] + r.sin[32] * r.sin[32]) / 8, 0.2266575543, 1e-6);
    td_rope_fini(&r);
    td_rope_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_frequencies_check_1_of_the_specification),
        cmocka_unit_test(test_rope_tables_check_2_of_the_specification),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
