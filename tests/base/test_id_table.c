#include "tests/cmocka.h"

#include "base/id_table.h"

#define NODES 2000

static void test_id_table__finds_what_is_in_it_and_nothing_else(void **state KVA_UNUSED)
{
    /* Far fewer buckets than nodes: chains are long. */
    struct kva_id_table table;
    assert_int_equal(kva_id_table_init(&table, 1), KVA_OK);
    static struct kva_id_node nodes[NODES];
    for (uint64_t i = 0; i < NODES; i++)
        kva_id_table_insert(&table, &nodes[i], i << (i % 33));
    assert_int_equal(table.count, NODES);
    for (uint64_t i = 0; i < NODES; i++) {
        const struct kva_id_node *found = kva_id_table_find(&table, i << (i % 33));
        assert_non_null(found);
        assert_int_equal(found->id, i << (i % 33));
    }
    assert_null(kva_id_table_find(&table, UINT64_MAX));
    for (uint64_t i = 0; i < NODES; i += 2)
        kva_id_table_remove(&table, &nodes[i]);
    assert_int_equal(table.count, NODES / 2);
    for (uint64_t i = 1; i < NODES; i += 2)
        assert_non_null(kva_id_table_find(&table, nodes[i].id));
    for (uint64_t i = 1; i < NODES; i += 2)
        kva_id_table_remove(&table, &nodes[i]);
    for (uint64_t i = 0; i < NODES; i++)
        assert_null(kva_id_table_find(&table, nodes[i].id));
    kva_id_table_finish(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_id_table__finds_what_is_in_it_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
