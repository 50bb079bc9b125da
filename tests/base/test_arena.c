#include "tests/cmocka.h"

#include "base/arena.h"

#include <string.h>

static void test_arena__stays_within_its_limit(void **state KVA_UNUSED)
{
    struct kva_arena arena;
    kva_arena_init(&arena, 64 * 1024);
    size_t handed_out = 0;
    for (;;) {
        unsigned char *data = kva_arena_alloc(&arena, 1000);
        if (!data)
            break;
        for (size_t i = 0; i < 1000; i++)
            assert_int_equal(data[i], 0);
        memset(data, 0xAB, 1000);
        handed_out += 1000;
    }
    assert_true(handed_out > 32 * 1024);
    assert_true(arena.total_bytes <= arena.limit_bytes);
    kva_arena_finish(&arena);
    assert_int_equal(arena.total_bytes, 0);
    assert_non_null(kva_arena_alloc(&arena, 1000));
    kva_arena_finish(&arena);
}

static void test_arena__refuses_overflow(void **state KVA_UNUSED)
{
    struct kva_arena arena;
    kva_arena_init(&arena, SIZE_MAX);
    assert_null(kva_arena_calloc(&arena, SIZE_MAX / 2, 3));
    assert_null(kva_arena_alloc(&arena, SIZE_MAX - 8));
    assert_null(kva_arena_strndup(&arena, "", SIZE_MAX));
    kva_arena_finish(&arena);
}

static void test_arena__aligns_and_copies(void **state KVA_UNUSED)
{
    struct kva_arena arena;
    kva_arena_init(&arena, 1 << 20);
    for (size_t size = 0; size < 100; size++) {
        void *data = kva_arena_alloc(&arena, size);
        assert_int_equal((uintptr_t)data % _Alignof(max_align_t), 0);
    }
    char *copy = kva_arena_strndup(&arena, "prefix and more", 6);
    assert_string_equal(copy, "prefix");
    kva_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena__stays_within_its_limit),
        cmocka_unit_test(test_arena__refuses_overflow),
        cmocka_unit_test(test_arena__aligns_and_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
