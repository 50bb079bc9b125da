/* test_members.c - nodes that join, see each other, lead, and go, with a real etcd. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/cluster/members/etcd_process.h"
#include "tests/cluster/members/nodes.h"
#include "tests/cmocka.h"

static struct etcd_process etcd;
static struct node nodes[NODES_MAX];

static void start(uint32_t index)
{
    node_init(&nodes[index], etcd.endpoint, index);
    node_start(&nodes[index]);
}

static void end_all(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++)
        node_end(&nodes[i], 5 * KVA_NS_PER_S);
}

/* --- joining ---------------------------------------------------------------------------------- */

static void test_members__nodes_have_distinct_numbers_and_see_each_other(void **state KVA_UNUSED)
{
    for (uint32_t count = 1; count <= NODES_MAX; count = count == 1 ? 3 : count + 5) {
        bool taken[NODES_MAX + 1] = {false};
        for (uint32_t i = 0; i < count; i++)
            start(i);
        nodes_wait(nodes, count, nodes_are_whole, "all are there");
        for (uint32_t i = 0; i < count; i++) {
            struct node_told told = node_told(&nodes[i]);
            assert_in_range(told.node, 1, count);
            assert_false(taken[told.node]);
            taken[told.node] = true;
            assert_int_equal(0, told.failures);
            assert_int_equal(0, told.gones);
        }
        end_all();
    }
}

static void test_members__lives_rise_and_numbers_are_used_again(void **state KVA_UNUSED)
{
    uint64_t life = 0;
    for (uint32_t i = 0; i < 5; i++) {
        start(0);
        nodes_wait(nodes, 1, nodes_are_whole, "it is there");
        struct node_told told = node_told(&nodes[0]);
        assert_int_equal(1, told.node);
        assert_true(told.life > life);
        life = told.life;
        node_end(&nodes[0], 5 * KVA_NS_PER_S);
    }
}

static bool one_has_gone(struct node *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (node_told(&all[i]).gones != 1)
            return false;
    return true;
}

static void test_members__who_ends_is_gone_at_once(void **state KVA_UNUSED)
{
    for (uint32_t i = 0; i < 4; i++)
        start(i);
    nodes_wait(nodes, 4, nodes_are_whole, "all are there");
    uint64_t begin_ns = kva_time_ns();
    node_end(&nodes[3], 5 * KVA_NS_PER_S);
    nodes_wait(nodes, 3, one_has_gone, "the others know that it is gone");
    print_message("told of after %llu ms\n",
                  (unsigned long long)((kva_time_ns() - begin_ns) / KVA_NS_PER_MS));
    nodes_wait(nodes, 3, nodes_are_whole, "the others are whole");
    end_all();
}

/* The last of `count` nodes leads. */
static void start_with_leader(uint32_t count)
{
    start(count - 1);
    nodes_wait(nodes + count - 1, 1, nodes_are_whole, "the first one is there");
    for (uint32_t i = 0; i + 1 < count; i++)
        start(i);
    nodes_wait(nodes, count, nodes_are_whole, "all are there");
    assert_true(node_told(&nodes[count - 1]).leads);
}

static void test_members__another_one_leads_when_the_leader_dies(void **state KVA_UNUSED)
{
    start_with_leader(3);
    struct node_told told = node_told(&nodes[2]);
    node_end(&nodes[2], 0);
    uint64_t begin_ns = kva_time_ns();
    nodes_wait(nodes, 2, nodes_are_whole, "another one leads");
    print_message("elected after %llu ms\n",
                  (unsigned long long)((kva_time_ns() - begin_ns) / KVA_NS_PER_MS));
    for (uint32_t i = 0; i < 2; i++) {
        struct node_told next = node_told(&nodes[i]);
        assert_true(!next.leads || next.revision > told.revision);
        assert_int_equal(1, next.gones);
    }
    end_all();
}

static bool first_leads(struct node *all, uint32_t count)
{
    return node_told(&all[0]).leads && nodes_are_whole(all, count);
}

static bool last_does_not_lead(struct node *all, uint32_t count)
{
    return !node_told(&all[count - 1]).leads;
}

static void test_members__who_does_not_stand_does_not_lead(void **state KVA_UNUSED)
{
    start_with_leader(2);
    node_stand(&nodes[1], false);
    nodes_wait(nodes, 2, first_leads, "the other one leads");
    assert_int_equal(1, node_told(&nodes[1]).depositions);
    assert_int_equal(0, node_told(&nodes[1]).gones);
    node_stand(&nodes[0], false);
    nodes_wait(nodes, 1, last_does_not_lead, "nobody leads");
    node_stand(&nodes[0], true);
    nodes_wait(nodes, 2, first_leads, "it leads again");
    end_all();
}

/* --- turns ------------------------------------------------------------------------------------ */

static void test_members__a_turn_takes_no_processor(void **state KVA_UNUSED)
{
    start(0);
    nodes_wait(nodes, 1, nodes_are_whole, "it is there");
    uint64_t cpu_ns = kva_cpu_time_ns(), turns = node_told(&nodes[0]).runs;
    usleep(1500000);
    etcd_signal(&etcd, SIGSTOP);
    usleep(1500000);
    etcd_signal(&etcd, SIGCONT);
    cpu_ns = kva_cpu_time_ns() - cpu_ns;
    turns = node_told(&nodes[0]).runs - turns;
    print_message("%llu ms of a processor, %llu turns in 3 s\n",
                  (unsigned long long)(cpu_ns / KVA_NS_PER_MS), (unsigned long long)turns);
    assert_in_range(cpu_ns, 0, KVA_NS_PER_S);
    assert_in_range(turns, 1, 60);
    end_all();
}

static void test_members__a_turn_ends_when_a_socket_is_readable(void **state KVA_UNUSED)
{
    struct kva_members *members = NULL;
    uint64_t one = 1, until_ns = kva_time_ns() + NODES_WAIT_S * KVA_NS_PER_S;
    node_init(&nodes[0], etcd.endpoint, 0);
    assert_int_equal(KVA_OK, kva_members_create(&nodes[0].params, &members, NULL));
    while (!node_told(&nodes[0]).leads)
        kva_members_run(members, NULL, 0, until_ns);
    int quiet = eventfd(0, EFD_CLOEXEC), fds[] = {quiet, nodes[0].wake};
    assert_int_equal(sizeof(one), write(nodes[0].wake, &one, sizeof(one)));
    kva_members_run(members, fds, 2, until_ns);
    assert_true(kva_time_ns() < until_ns);
    /* A time that is past: one turn without a wait. */
    kva_members_run(members, fds, 1, 0);
    kva_members_destroy(members, KVA_NS_PER_S);
    close(quiet);
    close(nodes[0].wake);
}

static int begin(void **state KVA_UNUSED)
{
    etcd_begin(&etcd);
    return 0;
}

static int end(void **state KVA_UNUSED)
{
    end_all();
    etcd_end(&etcd);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members__nodes_have_distinct_numbers_and_see_each_other),
        cmocka_unit_test(test_members__lives_rise_and_numbers_are_used_again),
        cmocka_unit_test(test_members__who_ends_is_gone_at_once),
        cmocka_unit_test(test_members__another_one_leads_when_the_leader_dies),
        cmocka_unit_test(test_members__who_does_not_stand_does_not_lead),
        cmocka_unit_test(test_members__a_turn_takes_no_processor),
        cmocka_unit_test(test_members__a_turn_ends_when_a_socket_is_readable),
    };
    if (!etcd_is_installed())
        return 77;
    return cmocka_run_group_tests(tests, begin, end);
}
