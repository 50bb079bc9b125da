/* test_servers.c - an etcd of several servers, of which some die; and one that is reached by https. */
#include <stdio.h>
#include <string.h>

#include "tests/cluster/members/etcd_process.h"
#include "tests/cluster/members/nodes.h"
#include "tests/cmocka.h"

enum { SERVERS = 3, NODES = 4 };

static struct etcd_process servers[SERVERS];
static const char *endpoints[SERVERS];
static struct node nodes[NODES_MAX];
static struct node_told before[NODES];

static void end_all(void)
{
    for (uint32_t i = 0; i < NODES; i++)
        node_end(&nodes[i], 5 * KVA_NS_PER_S);
}

/* --- several ----------------------------------------------------------------------------------- */

/* Each node asks another server first. */
static const char *const *endpoints_from(uint32_t first)
{
    static const char *turned[SERVERS][SERVERS];
    for (uint32_t i = 0; i < SERVERS; i++)
        turned[first][i] = endpoints[(first + i) % SERVERS];
    return turned[first];
}

static void start_node(uint32_t i)
{
    node_init(&nodes[i], NULL, i);
    nodes[i].params.endpoints = endpoints_from(i % SERVERS);
    nodes[i].params.endpoint_count = SERVERS;
    /* Longer than etcd takes to elect: 1 to 2 s of silence, then as long as votes take. */
    nodes[i].params.lease_ttl_ns = 10 * KVA_NS_PER_S;
    node_start(&nodes[i]);
}

static void start_all(void)
{
    for (uint32_t i = 0; i < NODES; i++)
        start_node(i);
    nodes_wait(nodes, NODES, nodes_are_whole, "all are there");
    for (uint32_t i = 0; i < NODES; i++)
        before[i] = node_told(&nodes[i]);
}

/* Numbers and lives are what they were, and nobody was missed but the guests. */
static void check_same(uint32_t guests)
{
    for (uint32_t i = 0; i < NODES; i++) {
        struct node_told told = node_told(&nodes[i]);
        assert_int_equal(before[i].node, told.node);
        assert_int_equal(before[i].life, told.life);
        assert_int_equal(0, told.leaves);
        assert_int_equal(guests, told.gones);
    }
}

/* Another one comes, is known to all, and goes: so all read and write. */
static void have_guest(const char *when)
{
    start_node(NODES);
    nodes_wait(nodes, NODES + 1, nodes_are_whole, when);
    node_end(&nodes[NODES], 20 * KVA_NS_PER_S);
    nodes_wait(nodes, NODES, nodes_are_whole, when);
}

static bool all_are_apart(struct node *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (node_told(&all[i]).state != KVA_MEMBERS_APART)
            return false;
    return true;
}

static void test_servers__any_one_of_three_may_die(void **state KVA_UNUSED)
{
    start_all();
    for (uint32_t i = 0; i < SERVERS; i++) { /* its leader is among them */
        etcd_kill(&servers[i]);
        have_guest("all go on with two servers");
        check_same(2 * i + 1);
        etcd_start(&servers[i]);
        have_guest("all go on when the third is back");
        check_same(2 * i + 2);
    }
    end_all();
}

static void test_servers__two_that_die_are_waited_for(void **state KVA_UNUSED)
{
    start_all();
    etcd_kill(&servers[0]);
    etcd_kill(&servers[1]);
    nodes_wait(nodes, NODES, all_are_apart, "all notice that one alone decides nothing");
    etcd_start(&servers[0]);
    nodes_wait(nodes, NODES, nodes_are_whole, "all are back");
    check_same(0);
    etcd_start(&servers[1]);
    have_guest("all go on");
    check_same(1);
    end_all();
}

/* --- https ------------------------------------------------------------------------------------- */

static bool first_has_failed(struct node *all, uint32_t count KVA_UNUSED)
{
    return node_told(&all[0]).why[0] != 0;
}

static void test_servers__https_with_the_right_certificate_only(void **state KVA_UNUSED)
{
    struct etcd_process secure, other;
    etcd_begin_https(&secure);
    etcd_begin_https(&other);
    for (uint32_t i = 0; i < 2; i++) {
        node_init(&nodes[i], secure.endpoint, i);
        nodes[i].params.ca = secure.ca;
        node_start(&nodes[i]);
    }
    nodes_wait(nodes, 2, nodes_are_whole, "both are there");
    end_all();

    const char *const wrong[] = {other.ca, NULL};
    for (size_t i = 0; i < KVA_COUNT_OF(wrong); i++) {
        node_init(&nodes[0], secure.endpoint, 0);
        nodes[0].params.ca = wrong[i];
        node_start(&nodes[0]);
        nodes_wait(nodes, 1, first_has_failed, "it does not trust that etcd");
        struct node_told told = node_told(&nodes[0]);
        assert_int_equal(0, told.joins);
        assert_non_null(strstr(told.why, secure.endpoint));
        assert_non_null(strstr(told.why, "certificate"));
        node_end(&nodes[0], 0);
    }
    etcd_end(&secure);
    etcd_end(&other);
}

/* --- the group --------------------------------------------------------------------------------- */

static int begin(void **state KVA_UNUSED)
{
    etcd_begin_several(servers, SERVERS);
    for (uint32_t i = 0; i < SERVERS; i++)
        endpoints[i] = servers[i].endpoint;
    return 0;
}

static int end(void **state KVA_UNUSED)
{
    for (uint32_t i = 0; i < SERVERS; i++)
        etcd_end(&servers[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_servers__any_one_of_three_may_die),
        cmocka_unit_test(test_servers__two_that_die_are_waited_for),
        cmocka_unit_test(test_servers__https_with_the_right_certificate_only),
    };
    if (!etcd_is_installed())
        return 77;
    return cmocka_run_group_tests(tests, begin, end);
}
