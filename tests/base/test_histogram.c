#include "tests/cmocka.h"

#include "base/histogram.h"

static void test_histogram__counts_under_the_first_bound_that_holds_it(void **state KVA_UNUSED)
{
    static const double bounds[] = {1, 10, 100};
    static const double values[] = {-5, 0, 1, 1.5, 10, 10.001, 100, 1e9};
    struct kva_histogram histogram;
    kva_histogram_init(&histogram, bounds, KVA_COUNT_OF(bounds));
    double sum = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(values); i++) {
        kva_histogram_observe(&histogram, values[i]);
        sum += values[i];
    }
    assert_int_equal(histogram.counts[0], 3);
    assert_int_equal(histogram.counts[1], 2);
    assert_int_equal(histogram.counts[2], 2);
    assert_int_equal(histogram.counts[3], 1);
    assert_int_equal(histogram.total, KVA_COUNT_OF(values));
    assert_true(histogram.sum == sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histogram__counts_under_the_first_bound_that_holds_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
