/* Sums of outer products, against plain loops; and that threads make no difference. */
#include "tests/cmocka.h"

#include "engine/calibrate/gram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 6, KV_HEADS = 2, ROWS = 37 };

static void fill(float *numbers, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] = (float)((double)((seed + i * 2654435761u) % 20011) / 10005 - 1);
}

static struct kva_gram *summed(uint32_t head_dim, uint32_t threads, const float *q, const float *k)
{
    const struct kva_gram_shape shape = {LAYERS, HEADS, KV_HEADS, head_dim};
    struct kva_gram *gram;
    struct kva_pool *pool;
    struct kva_err err = {0};
    assert_int_equal(kva_gram_create(&shape, &gram, &err), KVA_OK);
    assert_int_equal(kva_pool_create(threads, &pool, &err), KVA_OK);
    /* Twice layer 1, in two pieces. */
    kva_gram_add(gram, pool, 1, q, k, 20);
    kva_gram_add(gram, pool, 1, q + (size_t)20 * HEADS * head_dim,
                 k + (size_t)20 * KV_HEADS * head_dim, ROWS - 20);
    kva_pool_destroy(pool);
    return gram;
}

static void expect_sums(const struct kva_gram *gram, const float *q, const float *k)
{
    const uint32_t d = gram->shape.head_dim, group = HEADS / KV_HEADS;
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        for (uint32_t i = 0; i < d; i++) {
            double sum = 0;
            for (uint32_t r = 0; r < ROWS; r++)
                sum += (double)k[((size_t)r * KV_HEADS + head) * d + i];
            assert_true(fabs(sum - gram->k_sum[kva_gram_at(gram, 1, head) / d + i]) < 1e-12 * ROWS);
            for (uint32_t j = i; j < d; j++) {
                double of_q = 0, of_k = 0;
                for (uint32_t r = 0; r < ROWS; r++) {
                    const float *key = k + ((size_t)r * KV_HEADS + head) * d;
                    of_k += (double)key[i] * (double)key[j];
                    for (uint32_t g = 0; g < group; g++) {
                        const float *query = q + ((size_t)r * HEADS + head * group + g) * d;
                        of_q += (double)query[i] * (double)query[j];
                    }
                }
                const size_t at = kva_gram_at(gram, 1, head) + (size_t)i * d + j;
                assert_true(fabs(of_q - gram->q[at]) < 1e-12 * ROWS * group);
                assert_true(fabs(of_k - gram->k[at]) < 1e-12 * ROWS);
                assert_true(gram->q[at - kva_gram_at(gram, 1, 0)] == 0); /* layer 0 has nothing */
            }
        }
    }
}

static void test_gram__sums_are_those_of_plain_loops(void **state KVA_UNUSED)
{
    static const uint32_t dims[] = {1, 31, 32, 33, 64, 80};
    for (size_t n = 0; n < KVA_COUNT_OF(dims); n++) {
        const uint32_t d = dims[n];
        float *q = malloc((size_t)ROWS * HEADS * d * sizeof(*q));
        float *k = malloc((size_t)ROWS * KV_HEADS * d * sizeof(*k));
        assert_true(q && k);
        fill(q, (size_t)ROWS * HEADS * d, n);
        fill(k, (size_t)ROWS * KV_HEADS * d, n + 77);
        struct kva_gram *one = summed(d, 1, q, k), *three = summed(d, 3, q, k);
        const size_t bytes = (size_t)LAYERS * KV_HEADS * d * d * sizeof(double);
        expect_sums(one, q, k);
        assert_memory_equal(one->q, three->q, bytes);
        assert_memory_equal(one->k, three->k, bytes);
        assert_memory_equal(one->k_sum, three->k_sum, bytes / d);
        assert_int_equal(one->rows[0], 0);
        assert_int_equal(one->rows[1], ROWS);
        kva_gram_destroy(one);
        kva_gram_destroy(three);
        free(q);
        free(k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gram__sums_are_those_of_plain_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
