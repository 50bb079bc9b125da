/* test_rmanager_drain.c - an instance that is about to leave: what others have at it goes home, what
 * it has at others stays until its requests end, and nothing new begins. */
#include "tests/cluster/pair.h"

/* Steps of both, with all messages. */
static void go_on(struct pair *pair, int steps)
{
    for (int i = 0; i < steps; i++) {
        pair_wait(pair, 20 * KVA_NS_PER_MS);
        pair_settle(pair, 0);
        pair_step(pair);
        pair_settle(pair, 0);
    }
}

/* The load that a node reports to the leader. */
static struct kva_message_load load_of(struct pair *pair, uint32_t node, uint64_t revision)
{
    struct kva_message lead = {.type = KVA_MESSAGE_LEAD,
                               .lead = {.revision = revision, .round = 1}};
    pair_order(pair, lead, node);
    return pair_last(pair, KVA_MESSAGE_HEARTBEAT)->heartbeat.load;
}

static void test_rmanager__a_creditor_that_drains_sends_its_guests_home(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    kva_rmanager_drain(pair.nodes[1].rmanager, pair.now_ns);
    assert_int_equal(pair_sent(&pair, KVA_MESSAGE_RECALL), 1);
    go_on(&pair, 6);
    assert_int_equal(pair.nodes[0].home, 1);
    assert_int_equal(pair.nodes[0].lost, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    assert_int_equal(pair_stats(&pair, 2).guests, 0);
    pair_forget(&pair);
    kva_rmanager_drain(pair.nodes[1].rmanager, pair.now_ns); /* once more: nothing */
    go_on(&pair, 6);
    assert_int_equal(pair_sent(&pair, KVA_MESSAGE_RECALL), 0);
    pair_finish(&pair);
}

/* What is on its way to it costs nothing, and a plan that does not know yet is not followed. */
static void test_rmanager__who_drains_takes_no_guests(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_move(&pair, 100, 20, 1, 1);
    pair_settle(&pair, 0);
    pair_step(&pair);
    kva_rmanager_drain(pair.nodes[1].rmanager, pair.now_ns);
    pair_settle(&pair, 0);
    assert_int_equal(pair.nodes[1].guest_pages, 0);
    pair_move(&pair, 101, 4, 1, 1);
    pair_settle(&pair, 0);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_REFUSE)->refuse.reason, KVA_REFUSAL_DRAINING);
    go_on(&pair, 6);
    assert_int_equal(pair.nodes[0].lent, 0);
    assert_int_equal(pair.nodes[0].lost, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    assert_int_equal(pair_stats(&pair, 2).guests_refused, 1);
    pair_finish(&pair);
}

static void test_rmanager__a_debtor_that_drains_keeps_its_loans(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    kva_rmanager_drain(pair.nodes[0].rmanager, pair.now_ns);
    pair_move(&pair, 101, 4, 1, 1);
    assert_int_equal(pair_stats(&pair, 1).orders_refused, 1);
    for (uint32_t i = 0; i < 20; i++) { /* five ttl, and renewals */
        pair_wait(&pair, PAIR_TTL_NS / 4);
        go_on(&pair, 1);
        pair_forget(&pair);
    }
    assert_int_equal(pair_stats(&pair, 1).borrowed_pages, 8);
    assert_int_equal(pair.nodes[0].lost, 0);
    kva_rmanager_request_end(pair.nodes[0].rmanager, 5, 3, pair.now_ns);
    pair_settle(&pair, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    assert_int_equal(pair_stats(&pair, 2).guests, 0);
    pair_finish(&pair);
}

/* To every leader, whatever it holds. */
static void test_rmanager__reports_say_that_it_drains(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    for (uint32_t node = 1; node <= 2; node++) {
        assert_int_equal(load_of(&pair, node, 1).moving, 0);
        kva_rmanager_drain(pair.nodes[node - 1].rmanager, pair.now_ns);
        assert_int_equal(load_of(&pair, node, 1).moving, 1);
        assert_int_equal(load_of(&pair, node, 2).moving, 1);
    }
    pair_finish(&pair);
}

/* A debtor that is silent has until the deadline and its ttl: then the instance may leave. */
static void test_rmanager__draining_ends_in_any_case(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    const uint64_t begin_ns = pair.now_ns;
    kva_rmanager_drain(pair.nodes[1].rmanager, pair.now_ns);
    while (pair_stats(&pair, 2).guests > 0) {
        pair_wait(&pair, 50 * KVA_NS_PER_MS);
        pair_forget(&pair);
        assert_true(pair.now_ns < begin_ns + 10 * PAIR_TTL_NS);
    }
    assert_true(pair.now_ns - begin_ns <= 500 * KVA_NS_PER_MS + PAIR_TTL_NS);
    assert_int_equal(pair.nodes[0].lost, 1);
    pair_finish(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmanager__a_creditor_that_drains_sends_its_guests_home),
        cmocka_unit_test(test_rmanager__who_drains_takes_no_guests),
        cmocka_unit_test(test_rmanager__a_debtor_that_drains_keeps_its_loans),
        cmocka_unit_test(test_rmanager__reports_say_that_it_drains),
        cmocka_unit_test(test_rmanager__draining_ends_in_any_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
