#include "tests/cmocka.h"

#include "base/noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 100001u

static void test_noise__has_the_mean_and_deviation_asked_for(void **state KVA_UNUSED)
{
    float *values = malloc(COUNT * sizeof(*values));
    assert_non_null(values);
    kva_noise_f32(values, COUNT, 0.25f, 7);
    double sum = 0, squares = 0, neighbours = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(fabsf(values[i]) <= 0.25f * 1.7321f);
        sum += values[i];
        squares += (double)values[i] * values[i];
        neighbours += i ? (double)values[i] * values[i - 1] : 0;
    }
    /* Five standard errors of the mean, the variance and the correlation. */
    assert_true(fabs(sum / COUNT) < 5 * 0.25 / sqrt(COUNT));
    assert_true(fabs(squares / COUNT / 0.0625 - 1) < 5 * 0.9 / sqrt(COUNT));
    assert_true(fabs(neighbours / COUNT / 0.0625) < 5 / sqrt(COUNT));
    free(values);
}

static void test_noise__is_the_seeds_whatever_the_count(void **state KVA_UNUSED)
{
    float whole[100], part[100];
    kva_noise_f32(whole, 100, 1, 3);
    for (size_t count = 0; count <= 100; count++) {
        memset(part, 0xAA, sizeof(part));
        kva_noise_f32(part, count, 1, 3);
        assert_memory_equal(part, whole, count * sizeof(*part));
        for (size_t i = count * sizeof(*part); i < sizeof(part); i++)
            assert_int_equal(((unsigned char *)part)[i], 0xAA);
    }
    kva_noise_f32(part, 100, 1, 4);
    int equal = 0;
    for (int i = 0; i < 100; i++)
        equal += part[i] == whole[i];
    assert_true(equal < 3);
    assert_true(kva_noise_seed(3, 0) != kva_noise_seed(3, 1));
    assert_true(kva_noise_seed(3, 1) != kva_noise_seed(1, 3));
    /* On every machine: weights that one made are what another made. */
    assert_true(kva_noise_seed(0, 0) == 0xA706DD2F4D197E6Full);
}

static void test_noise__bf16_is_the_same_rounded(void **state KVA_UNUSED)
{
    float values[1000];
    uint16_t halves[1000];
    kva_noise_f32(values, 1000, 2, 11);
    kva_noise_bf16(halves, 1000, 2, 11);
    for (int i = 0; i < 1000; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof(value));
        assert_true(fabsf(value - values[i]) <= fabsf(values[i]) / 256);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise__has_the_mean_and_deviation_asked_for),
        cmocka_unit_test(test_noise__is_the_seeds_whatever_the_count),
        cmocka_unit_test(test_noise__bf16_is_the_same_rounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
