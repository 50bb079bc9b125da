/* Blocks that are used again: which, how many, and that nobody has another's. */
#include "tests/cmocka.h"

#include "base/spares.h"
#include "tests/random.h"

#include <string.h>

enum { LARGE = 256 << 10, KEPT = 4 * LARGE };

static void test_spares__a_block_is_used_again(void **state KVA_UNUSED)
{
    struct kva_spares spares;
    kva_spares_init(&spares, KEPT);
    void *first = kva_spares_take(&spares, LARGE), *second = kva_spares_take(&spares, LARGE);
    assert_true(first && second && first != second);
    kva_spares_give(&spares, first);
    kva_spares_give(&spares, second);
    assert_ptr_equal(kva_spares_take(&spares, LARGE), second);
    assert_ptr_equal(kva_spares_take(&spares, LARGE - 100), first);
    assert_int_equal(spares.bytes, 0);
    kva_spares_give(&spares, first);
    kva_spares_give(&spares, second);
    kva_spares_give(&spares, NULL);
    kva_spares_finish(&spares);
}

static void test_spares__none_that_is_too_small_or_far_too_large(void **state KVA_UNUSED)
{
    struct kva_spares spares;
    kva_spares_init(&spares, KEPT);
    void *large = kva_spares_take(&spares, LARGE);
    kva_spares_give(&spares, large);
    void *larger = kva_spares_take(&spares, LARGE + 1), *half = kva_spares_take(&spares, LARGE / 2);
    assert_ptr_not_equal(larger, large);
    assert_ptr_equal(half, large);
    kva_spares_give(&spares, half);
    void *smaller = kva_spares_take(&spares, LARGE / 2 - KVA_CACHE_LINE);
    assert_ptr_not_equal(smaller, large);
    kva_spares_give(&spares, larger);
    kva_spares_give(&spares, smaller);
    kva_spares_finish(&spares);
}

static void test_spares__no_more_than_so_many_bytes(void **state KVA_UNUSED)
{
    struct kva_spares spares;
    void *blocks[6];
    kva_spares_init(&spares, KEPT);
    for (size_t i = 0; i < KVA_COUNT_OF(blocks); i++)
        blocks[i] = kva_spares_take(&spares, LARGE);
    for (size_t i = 0; i < KVA_COUNT_OF(blocks); i++) {
        kva_spares_give(&spares, blocks[i]);
        assert_true(spares.bytes <= KEPT);
    }
    assert_int_equal(spares.bytes, KEPT);
    for (size_t i = 0; i < 4; i++) /* the last ones are still there */
        assert_ptr_equal(kva_spares_take(&spares, LARGE), blocks[5 - i]);
    for (size_t i = 0; i < 4; i++)
        kva_spares_give(&spares, blocks[5 - i]);
    void *small = kva_spares_take(&spares, 1000), *huge = kva_spares_take(&spares, 2 * KEPT);
    kva_spares_give(&spares, small);
    kva_spares_give(&spares, huge);
    assert_int_equal(spares.bytes, KEPT);
    kva_spares_finish(&spares);
}

static void test_spares__what_is_taken_is_ones_own(void **state KVA_UNUSED)
{
    struct kva_spares spares;
    unsigned char *blocks[16] = {0};
    size_t sizes[16] = {0};
    uint64_t random = 5;
    kva_spares_init(&spares, 16 * LARGE);
    for (uint32_t turn = 0; turn < 4000; turn++) {
        uint32_t i = kva_test_below(&random, KVA_COUNT_OF(blocks));
        for (size_t j = 0; j < sizes[i]; j += 4096)
            assert_int_equal(blocks[i][j], i);
        kva_spares_give(&spares, blocks[i]);
        sizes[i] = kva_test_below(&random, 2 * LARGE);
        blocks[i] = kva_spares_take(&spares, sizes[i]);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % KVA_CACHE_LINE, 0);
        memset(blocks[i], (int)i, sizes[i]);
    }
    for (size_t i = 0; i < KVA_COUNT_OF(blocks); i++)
        kva_spares_give(&spares, blocks[i]);
    kva_spares_finish(&spares);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spares__a_block_is_used_again),
        cmocka_unit_test(test_spares__none_that_is_too_small_or_far_too_large),
        cmocka_unit_test(test_spares__no_more_than_so_many_bytes),
        cmocka_unit_test(test_spares__what_is_taken_is_ones_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
