/* Lists of numbers, and how many sequences fit. */
#include "tests/cmocka.h"

#include "cli/bench/bench.h"

#include <string.h>

static void test_bench_plan__lists(void **state KVA_UNUSED)
{
    struct kva_bench_list list;
    struct kva_err err;
    assert_int_equal(kva_bench_parse_list("1,40,0,7", "batch", 40, false, &list, &err), KVA_OK);
    assert_int_equal(list.count, 3);
    assert_int_equal(list.values[0], 1);
    assert_int_equal(list.values[1], 40);
    assert_int_equal(list.values[2], 7);
    assert_int_equal(kva_bench_parse_list("0,8", "depth", 40, true, &list, &err), KVA_OK);
    assert_int_equal(list.count, 2);
    assert_int_equal(kva_bench_parse_list("0", "batch", 40, false, &list, &err), KVA_OK);
    assert_int_equal(list.count, 0);
    static const char *const bad[] = {"",    ",",    "1,", ",1", "1,,2",    "-1",          "+1",
                                      "1 2", "1, 2", "41", "1x", "0x10",    "99999999999", "1.5",
                                      "4k",  "1;2",  " 1", "1 ", "\xC3\xA9"};
    for (size_t i = 0; i < KVA_COUNT_OF(bad); i++) {
        list.count = 77;
        assert_int_equal(kva_bench_parse_list(bad[i], "batch", 40, true, &list, &err), KVA_EINVAL);
        assert_string_equal(err.param, "batch");
        assert_non_null(strstr(err.message, "--batch"));
        assert_int_equal(list.count, 77);
    }
    char many[3 * KVA_BENCH_LIST_MAX] = "1";
    for (uint32_t i = 0; i < KVA_BENCH_LIST_MAX; i++)
        strncat(many, ",1", sizeof(many) - strlen(many) - 1);
    assert_int_equal(kva_bench_parse_list(many, "batch", 40, true, &list, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "more than 32"));
}

static struct kva_bench_group plan(uint64_t device, uint64_t host, uint64_t total, uint32_t wanted)
{
    const struct kva_bench_memory memory = {.device = device, .host = host, .total = total};
    const struct kva_bench_need need = {.own = {10, 100}, .shared = {4, 1}};
    return kva_bench_plan(&memory, &need, wanted);
}

static void expect(struct kva_bench_group group, uint32_t sequences, uint32_t distinct)
{
    assert_int_equal(group.sequences, sequences);
    assert_int_equal(group.distinct, distinct);
    assert_int_equal(group.bytes.device, distinct * 10 + (sequences - distinct) * 4);
    assert_int_equal(group.bytes.host, distinct * 100 + (sequences - distinct));
}

static void test_bench_plan__shares_only_as_much_as_it_must(void **state KVA_UNUSED)
{
    expect(plan(1000, 10000, UINT64_MAX, 8), 8, 8);
    expect(plan(80, 800, 880, 8), 8, 8);
    /* One byte short in either tier, or in both together. */
    expect(plan(79, 800, UINT64_MAX, 8), 8, 7);
    expect(plan(80, 799, UINT64_MAX, 8), 8, 7);
    expect(plan(80, 800, 879, 8), 8, 7);
    expect(plan(1000, 350, UINT64_MAX, 8), 8, 3);
    /* Sharing does not help the device: fewer sequences. */
    expect(plan(38, 10000, UINT64_MAX, 8), 8, 1);
    expect(plan(37, 10000, UINT64_MAX, 8), 7, 1);
    expect(plan(10, 100, UINT64_MAX, 8), 1, 1);
    expect(plan(9, 100, UINT64_MAX, 8), 0, 0);
    expect(plan(10, 99, UINT64_MAX, 8), 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bench_plan__lists),
        cmocka_unit_test(test_bench_plan__shares_only_as_much_as_it_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
