/* Distributions whose divergence is known. */
#include "tests/cmocka.h"

#include "engine/eval/divergence.h"

#include <math.h>

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * (1 + fabs(want))))
        fail_msg("%.17g, expected %.17g", got, want);
}

static void test_divergence__equal_logits_have_none(void **state KVA_UNUSED)
{
    float logits[1000];
    for (uint32_t i = 0; i < 1000; i++)
        logits[i] = (float)((i * 7919) % 1000) * 0.037f - 20.0f;
    struct kva_divergence d = kva_divergence_of(logits, logits, 1000, 17);
    assert_true(d.kl == 0);
    assert_true(d.nll == d.nll_reference);
    assert_true(d.agrees);
}

/* P = (1/2, 1/4, 1/4), Q = (1/4, 1/2, 1/4): KL = 1/2 log 2 - 1/4 log 2. Adding a constant to all
 * logits changes nothing. */
static void test_divergence__known_distributions(void **state KVA_UNUSED)
{
    for (float shift = -500; shift <= 500; shift += 250) {
        const float two = (float)M_LN2;
        const float p[3] = {shift + two, shift, shift}, q[3] = {-shift, two - shift, -shift};
        struct kva_divergence d = kva_divergence_of(p, q, 3, 2);
        double slack = 1e-4; /* of fp32 logits of that size */
        assert_true(fabs(d.kl - 0.25 * M_LN2) < slack);
        assert_true(fabs(d.nll - log(4)) < slack);
        assert_true(fabs(d.nll_reference - log(4)) < slack);
        assert_int_equal(d.best, 0);
        assert_false(d.agrees);
    }
    const float p[3] = {3, 1, 3}, q[3] = {2, 9, 9};
    struct kva_divergence d = kva_divergence_of(p, q, 3, 0);
    assert_int_equal(d.best, 0); /* the lowest of equals */
    assert_false(d.agrees);
}

/* A constant added to all logits is no error; of the rest, squares. */
static void test_divergence__errors_of_logits(void **state KVA_UNUSED)
{
    const float p[4] = {1, 2, 3, 6}, shifted[4] = {11, 12, 13, 16}, q[4] = {1, 2, 4, 5};
    struct kva_divergence d = kva_divergence_of(p, shifted, 4, 0);
    near(d.error_squares, 0);
    near(d.logit_squares, 4 + 1 + 0 + 9);
    near(kva_divergence_of(p, q, 4, 0).error_squares, 2);
}

static void test_divergence__never_negative(void **state KVA_UNUSED)
{
    float p[257], q[257];
    for (uint32_t i = 0; i < 257; i++) {
        p[i] = (float)((i * 31) % 97) * 0.1f;
        q[i] = p[i] + (i % 2 ? 1e-7f : -1e-7f);
    }
    double kl = kva_divergence_of(p, q, 257, 0).kl;
    assert_true(kl >= 0 && kl < 1e-9);
}

static void test_quantile__nearest_rank(void **state KVA_UNUSED)
{
    double values[200];
    for (int i = 0; i < 200; i++)
        values[i] = i + 1;
    near(kva_quantile(values, 200, 0.99), 198);
    near(kva_quantile(values, 200, 0.5), 100);
    near(kva_quantile(values, 200, 1), 200);
    near(kva_quantile(values, 200, 0), 1);
    near(kva_quantile(values, 1, 0.99), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divergence__equal_logits_have_none),
        cmocka_unit_test(test_divergence__known_distributions),
        cmocka_unit_test(test_divergence__errors_of_logits),
        cmocka_unit_test(test_divergence__never_negative),
        cmocka_unit_test(test_quantile__nearest_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
