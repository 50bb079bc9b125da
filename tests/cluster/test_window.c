/* test_window.c - repetitions, lives, and messages in any order. */
#include "cluster/window.h"
#include "tests/cmocka.h"
#include "tests/random.h"

#include <string.h>

static void test_window__a_message_is_new_once(void **state KVA_UNUSED)
{
    struct kva_peers peers;
    assert_int_equal(kva_peers_init(&peers, 2), KVA_OK);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 10), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 10), KVA_ARRIVAL_REPEATED);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 8), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 8), KVA_ARRIVAL_REPEATED);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 73), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 10), KVA_ARRIVAL_REPEATED);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 9), KVA_ARRIVAL_REPEATED); /* too old to say */
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 11), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 9000), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 73), KVA_ARRIVAL_REPEATED);
    kva_peers_finish(&peers);
}

static void test_window__lives_end(void **state KVA_UNUSED)
{
    struct kva_peers peers;
    assert_int_equal(kva_peers_init(&peers, 2), KVA_OK);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 10), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 2, 5, 10), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 1, 6, 1), KVA_ARRIVAL_NEW_LIFE);
    assert_int_equal(kva_peers_arrive(&peers, 1, 6, 1), KVA_ARRIVAL_REPEATED);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 11), KVA_ARRIVAL_PAST_LIFE);
    kva_peers_forget(&peers, 1);
    assert_int_equal(kva_peers_arrive(&peers, 3, 1, 1), KVA_ARRIVAL_NEW);
    assert_int_equal(kva_peers_arrive(&peers, 2, 5, 10), KVA_ARRIVAL_REPEATED);
    kva_peers_finish(&peers);
}

/* Nodes come and go, and each has a number of its own: there is always room for the next. */
static void test_window__who_was_heard_of_longest_ago_makes_room(void **state KVA_UNUSED)
{
    struct kva_peers peers;
    assert_int_equal(kva_peers_init(&peers, 3), KVA_OK);
    assert_int_equal(kva_peers_arrive(&peers, 1, 5, 10), KVA_ARRIVAL_NEW);
    for (uint32_t node = 2; node < 1000; node++) {
        assert_int_equal(kva_peers_arrive(&peers, node, 7, 1), KVA_ARRIVAL_NEW);
        assert_int_equal(kva_peers_arrive(&peers, 1, 5, 10), KVA_ARRIVAL_REPEATED);
        assert_int_equal(kva_peers_arrive(&peers, node, 7, 1), KVA_ARRIVAL_REPEATED);
    }
    assert_int_equal(kva_peers_arrive(&peers, 998, 7, 1), KVA_ARRIVAL_REPEATED);
    assert_int_equal(kva_peers_arrive(&peers, 997, 7, 1), KVA_ARRIVAL_NEW); /* forgotten */
    kva_peers_finish(&peers);
}

/* Against a set of all that came. */
static void test_window__any_order_within_the_window(void **state KVA_UNUSED)
{
    static bool seen[4096];
    struct kva_peers peers;
    uint64_t rng = 3, newest = 0;
    memset(seen, 0, sizeof(seen));
    assert_int_equal(kva_peers_init(&peers, 1), KVA_OK);
    for (uint64_t base = 1; base < 4000; base += kva_test_below(&rng, 3)) {
        uint64_t sequence = base + kva_test_below(&rng, 90);
        bool in_window = sequence + KVA_WINDOW_MESSAGES > newest;
        bool expected = !seen[sequence] && in_window;
        enum kva_arrival arrival = kva_peers_arrive(&peers, 1, 1, sequence);
        assert_int_equal(arrival, expected ? KVA_ARRIVAL_NEW : KVA_ARRIVAL_REPEATED);
        seen[sequence] = true;
        newest = kva_max_u64(newest, sequence);
    }
    kva_peers_finish(&peers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window__a_message_is_new_once),
        cmocka_unit_test(test_window__lives_end),
        cmocka_unit_test(test_window__who_was_heard_of_longest_ago_makes_room),
        cmocka_unit_test(test_window__any_order_within_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
