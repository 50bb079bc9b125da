/* test_allocation.c - rManagers allocate when they are created and never again; whoever creates
 * lives with having no memory. */
#include "cluster/gmanager.h"
#include "tests/alloc_guard.h"
#include "tests/cluster/a100.h"
#include "tests/cluster/pair.h"

static void test_allocation__creating_survives_having_no_memory(void **state KVA_UNUSED)
{
    struct kva_rmanager_params r_params = {.node = 1,
                                           .life = 1,
                                           .loans_max = 2,
                                           .peers_max = 2,
                                           .entries_max = 2,
                                           .unacked_pages = 1,
                                           .retry_ns = 1,
                                           .recall_within_ns = 1};
    struct kva_gmanager_params g_params = {.node = 2,
                                           .life = 1,
                                           .instances_max = 2,
                                           .entries_max = 2,
                                           .moves_max = 2,
                                           .round_ns = 2,
                                           .loan_ttl_ns = 1,
                                           .lease_ttl_ns = 1,
                                           .cost = a100_llama7b()};
    struct kva_rmanager_ops r_ops = {0};
    struct kva_gmanager_ops g_ops = {0};
    for (uint64_t n = 0;; n++) {
        struct kva_rmanager *r = NULL;
        struct kva_gmanager *g = NULL;
        alloc_guard_fail_at(n);
        enum kva_status r_status = kva_rmanager_create(&r_params, &r_ops, &r, NULL);
        enum kva_status g_status = kva_gmanager_create(&g_params, &g_ops, &g, NULL);
        uint64_t failed = alloc_guard_fail_none();
        assert_int_equal((r_status != KVA_OK) + (g_status != KVA_OK), failed);
        assert_true(r_status == KVA_OK || (r_status == KVA_ENOMEM && !r));
        assert_true(g_status == KVA_OK || (g_status == KVA_ENOMEM && !g));
        kva_rmanager_destroy(r);
        kva_gmanager_destroy(g);
        if (failed == 0)
            break;
    }
}

static void test_allocation__a_loan_allocates_nothing(void **state KVA_UNUSED)
{
    static struct pair pair;
    pair_init(&pair);
    alloc_guard_arm();
    pair_lend(&pair);
    kva_rmanager_reclaim(pair.nodes[1].rmanager, 8, pair.now_ns);
    for (int i = 0; i < 6; i++) {
        pair_settle(&pair, 0);
        pair_step(&pair);
        pair_wait(&pair, 10 * KVA_NS_PER_MS);
    }
    assert_int_equal(alloc_guard_disarm(), 0);
    assert_int_equal(pair.nodes[0].home, 1);
    pair_finish(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocation__creating_survives_having_no_memory),
        cmocka_unit_test(test_allocation__a_loan_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
