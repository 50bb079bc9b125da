/* Directions: orthogonal, in order, of the sums alone; and where they must be known. */
#include "tests/cmocka.h"

#include "engine/calibrate/directions.h"
#include "engine/calibrate/eigen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define D_MAX 128u

static uint64_t random_state;

static double uniform(void)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(random_state >> 11) / 9007199254740992.0 * 2 - 1;
}

/* Everything that kva_directions_of reads. */
struct sums {
    uint32_t d;
    double rows;
    double q[D_MAX * D_MAX], k[D_MAX * D_MAX], k_sum[D_MAX];
};

/* Of random vectors whose elements shrink with their number, and keys with a mean. Fewer vectors
 * than d: the matrix has no inverse. */
static struct sums *made(uint32_t d, uint32_t rows, double mean)
{
    struct sums *s = calloc(1, sizeof(*s));
    double *x = calloc(d, sizeof(*x)), *mix = calloc((size_t)d * d, sizeof(*mix));
    assert_true(s && x && mix);
    random_state = d * 1000 + rows;
    for (size_t i = 0; i < (size_t)d * d; i++)
        mix[i] = uniform();
    s->d = d;
    s->rows = rows;
    for (uint32_t r = 0; r < 2 * rows; r++) {
        for (uint32_t i = 0; i < d; i++)
            x[i] = 0;
        for (uint32_t j = 0; j < d; j++) {
            const double number = uniform() * exp(-0.1 * j);
            for (uint32_t i = 0; i < d; i++)
                x[i] += number * mix[(size_t)(r % 2 ? i : j) * d + (r % 2 ? j : i)];
        }
        for (uint32_t i = 0; i < d && r % 2; i++) {
            x[i] += mean * (1 + i % 3);
            s->k_sum[i] += x[i];
        }
        for (uint32_t i = 0; i < d; i++) {
            for (uint32_t j = i; j < d; j++)
                (r % 2 ? s->k : s->q)[(size_t)i * d + j] += x[i] * x[j];
        }
    }
    free(x);
    free(mix);
    return s;
}

static enum kva_status find(const struct sums *s, enum kva_skew_method method, double *a,
                            struct kva_err *err)
{
    const struct kva_directions_params params = {method, s->d, s->q, s->k, s->k_sum, s->rows};
    double *work = malloc((size_t)5 * s->d * s->d * sizeof(*work));
    assert_non_null(work);
    enum kva_status status = kva_directions_of(&params, work, a, err);
    free(work);
    return status;
}

static void expect_orthogonal(const double *a, uint32_t d)
{
    for (uint32_t x = 0; x < d; x++) {
        for (uint32_t y = x; y < d; y++) {
            double sum = 0;
            for (uint32_t i = 0; i < d; i++)
                sum += a[(size_t)i * d + x] * a[(size_t)i * d + y];
            assert_true(fabs(sum - (x == y)) < 1e-12);
        }
    }
}

/* Of A's columns the energy of a symmetric matrix. */
static double energy(const double *sums, const double *a, uint32_t d, uint32_t column)
{
    double energy = 0;
    for (uint32_t i = 0; i < d; i++) {
        for (uint32_t j = 0; j < d; j++)
            energy += a[(size_t)i * d + column] * a[(size_t)j * d + column] *
                      sums[(size_t)kva_min_u32(i, j) * d + kva_max_u32(i, j)];
    }
    return energy;
}

static bool lapack_is_here(void)
{
    struct kva_err err;
    return kva_eigen_check(NULL, &err) == KVA_OK;
}

static void test_directions__are_orthogonal_to_12_digits(void **state KVA_UNUSED)
{
    static const struct {
        uint32_t d, rows;
    } cases[] = {{1, 5}, {2, 50}, {31, 100}, {64, 300}, {64, 10}, {80, 300}, {128, 400}, {128, 0}};
    struct kva_err err = {0};
    if (!lapack_is_here())
        skip();
    double *a = malloc((size_t)D_MAX * D_MAX * sizeof(*a));
    assert_non_null(a);
    for (size_t n = 0; n < KVA_COUNT_OF(cases); n++) {
        struct sums *s = made(cases[n].d, cases[n].rows, 0.5);
        for (int method = 0; method < KVA_SKEW_METHOD_COUNT; method++) {
            assert_int_equal(find(s, (enum kva_skew_method)method, a, &err), KVA_OK);
            expect_orthogonal(a, s->d);
        }
        free(s);
    }
    free(a);
}

static void test_directions__of_queries_come_by_descending_energy(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    if (!lapack_is_here())
        skip();
    double *a = malloc((size_t)D_MAX * D_MAX * sizeof(*a));
    assert_non_null(a);
    struct sums *s = made(64, 200, 0);
    assert_int_equal(find(s, KVA_SKEW_QUERIES, a, &err), KVA_OK);
    double before = INFINITY, all = 0, found = 0;
    for (uint32_t column = 0; column < s->d; column++) {
        const double now = energy(s->q, a, s->d, column);
        assert_true(now <= before * (1 + 1e-9) + 1e-9);
        before = now;
        found += now;
        all += s->q[(size_t)column * s->d + column];
    }
    assert_true(fabs(found - all) < 1e-9 * all);
    free(s);
    free(a);
}

/* Where queries and keys have the same directions, those are found, each by its own measure. */
static void test_directions__of_diagonal_sums_are_the_axes(void **state KVA_UNUSED)
{
    static const double q[4] = {4, 100, 9, 1}, k[4] = {1000, 1, 2, 8};
    static const uint32_t orders[KVA_SKEW_METHOD_COUNT][4] = {
        [KVA_SKEW_QUERIES] = {1, 2, 0, 3},  /* 100, 9, 4, 1 */
        [KVA_SKEW_BALANCED] = {0, 1, 2, 3}, /* 4000, 100, 18, 8 */
        [KVA_SKEW_SUM] = {0, 1, 2, 3},      /* 1.03, 0.88, 0.081, 0.017 */
    };
    struct kva_err err = {0};
    if (!lapack_is_here())
        skip();
    struct sums *s = made(4, 0, 0);
    s->rows = 10;
    double a[16];
    for (uint32_t i = 0; i < 4; i++) {
        s->q[(size_t)i * 4 + i] = q[i];
        s->k[(size_t)i * 4 + i] = k[i];
    }
    for (int method = 0; method < KVA_SKEW_METHOD_COUNT; method++) {
        const uint32_t *order = orders[method];
        assert_int_equal(find(s, (enum kva_skew_method)method, a, &err), KVA_OK);
        for (uint32_t column = 0; column < 4; column++) {
            for (uint32_t i = 0; i < 4; i++) /* and positive */
                assert_true(fabs(a[i * 4 + column] - (i == order[column])) < 1e-12);
        }
    }
    free(s);
}

/* What all keys have in common changes no query's order of them. */
static void test_directions__the_mean_key_does_not_count(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    if (!lapack_is_here())
        skip();
    double *a = malloc((size_t)D_MAX * D_MAX * sizeof(*a));
    double *b = malloc((size_t)D_MAX * D_MAX * sizeof(*b));
    assert_true(a && b);
    struct sums *plain = made(16, 400, 0), *shifted = made(16, 400, 3);
    for (int method = 0; method < KVA_SKEW_METHOD_COUNT; method++) {
        assert_int_equal(find(plain, (enum kva_skew_method)method, a, &err), KVA_OK);
        assert_int_equal(find(shifted, (enum kva_skew_method)method, b, &err), KVA_OK);
        for (size_t i = 0; i < 16 * 16; i++)
            assert_true(fabs(a[i] - b[i]) < 1e-6);
    }
    free(plain);
    free(shifted);
    free(a);
    free(b);
}

/* --- of a model ------------------------------------------------------------------------------- */

static struct kva_gram *made_gram(uint32_t layers, uint32_t kv_heads, uint32_t d)
{
    const struct kva_gram_shape shape = {layers, 2 * kv_heads, kv_heads, d};
    struct kva_err err = {0};
    struct kva_gram *gram;
    assert_int_equal(kva_gram_create(&shape, &gram, &err), KVA_OK);
    for (uint32_t layer = 0; layer < layers; layer++) {
        gram->rows[layer] = 90;
        for (uint32_t head = 0; head < kv_heads; head++) {
            struct sums *s = made(d, 90 + layer * 7 + head, 0.3);
            const size_t at = kva_gram_at(gram, layer, head);
            memcpy(gram->q + at, s->q, (size_t)d * d * sizeof(double));
            memcpy(gram->k + at, s->k, (size_t)d * d * sizeof(double));
            memcpy(gram->k_sum + at / d, s->k_sum, d * sizeof(double));
            free(s);
        }
    }
    return gram;
}

static struct kva_skew *found(const struct kva_gram *gram, uint32_t threads)
{
    struct kva_err err = {0};
    struct kva_pool *pool;
    struct kva_skew *skew;
    assert_int_equal(kva_pool_create(threads, &pool, &err), KVA_OK);
    assert_int_equal(kva_directions_find(gram, KVA_SKEW_BALANCED, NULL, pool, &skew, &err), KVA_OK);
    kva_pool_destroy(pool);
    return skew;
}

static void test_directions__threads_make_no_difference(void **state KVA_UNUSED)
{
    if (!lapack_is_here())
        skip();
    struct kva_gram *gram = made_gram(3, 2, 24);
    struct kva_skew *one = found(gram, 1), *four = found(gram, 4);
    const size_t columns = 3 * 2 * 24;
    assert_memory_equal(one->basis, four->basis, columns * 24 * sizeof(float));
    assert_memory_equal(one->energy, four->energy, columns * sizeof(float));
    assert_int_equal(one->method, KVA_SKEW_BALANCED);
    for (size_t i = 0; i < columns; i++)
        assert_true(one->energy[i] > 0);
    kva_skew_destroy(one);
    kva_skew_destroy(four);
    kva_gram_destroy(gram);
}

static void test_directions__sums_that_are_not_finite_are_named(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    struct kva_pool *pool;
    struct kva_skew *skew;
    if (!lapack_is_here())
        skip();
    struct kva_gram *gram = made_gram(2, 2, 8);
    gram->q[kva_gram_at(gram, 1, 1) + 3] = NAN;
    assert_int_equal(kva_pool_create(2, &pool, &err), KVA_OK);
    assert_int_equal(kva_directions_find(gram, KVA_SKEW_QUERIES, NULL, pool, &skew, &err),
                     KVA_EFORMAT);
    assert_non_null(strstr(err.message, "layer 1, KV head 1"));
    assert_non_null(strstr(err.message, "not finite"));
    kva_pool_destroy(pool);
    kva_gram_destroy(gram);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directions__are_orthogonal_to_12_digits),
        cmocka_unit_test(test_directions__of_queries_come_by_descending_energy),
        cmocka_unit_test(test_directions__of_diagonal_sums_are_the_axes),
        cmocka_unit_test(test_directions__the_mean_key_does_not_count),
        cmocka_unit_test(test_directions__threads_make_no_difference),
        cmocka_unit_test(test_directions__sums_that_are_not_finite_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
