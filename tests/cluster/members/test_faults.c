/* test_faults.c - what nodes do when etcd dies, stands still, forgets, or takes their lease away. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cluster/members/etcd_process.h"
#include "tests/cluster/members/nodes.h"
#include "tests/cmocka.h"

static struct etcd_process etcd;
static struct node nodes[NODES_MAX];
static struct node_told before[NODES_MAX];

static void start_all(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        node_init(&nodes[i], etcd.endpoint, i);
        node_start(&nodes[i]);
    }
    nodes_wait(nodes, count, nodes_are_whole, "all are there");
    for (uint32_t i = 0; i < count; i++)
        before[i] = node_told(&nodes[i]);
}

static void end_all(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++)
        node_end(&nodes[i], 5 * KVA_NS_PER_S);
}

static bool all_are_apart(struct node *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (node_told(&all[i]).state != KVA_MEMBERS_APART)
            return false;
    return true;
}

/* Numbers and lives are what they were. */
static void check_same(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct node_told told = node_told(&nodes[i]);
        assert_int_equal(before[i].node, told.node);
        assert_int_equal(before[i].life, told.life);
        assert_int_equal(0, told.leaves);
    }
}

/* --- etcd --------------------------------------------------------------------------------------- */

static void test_faults__nobody_is_gone_when_etcd_starts_again(void **state KVA_UNUSED)
{
    start_all(4);
    etcd_kill(&etcd);
    nodes_wait(nodes, 4, all_are_apart, "all notice that etcd does not answer");
    for (uint32_t i = 0; i < 4; i++) {
        struct node_told told = node_told(&nodes[i]);
        assert_non_null(strstr(told.why, "connection refused; asked again in"));
        assert_int_equal(4, told.members);
        /* By gManager's rule it has stepped down, though nobody has deposed it. */
        assert_true(!told.leads || kva_time_ns() >= told.sent_ns + NODES_TTL_NS - NODES_MARGIN_NS);
    }
    etcd_start(&etcd);
    uint64_t back_ns = kva_time_ns();
    nodes_wait(nodes, 4, nodes_are_whole, "all are back");
    check_same(4);
    uint32_t leaders = 0;
    for (uint32_t i = 0; i < 4; i++) {
        struct node_told told = node_told(&nodes[i]);
        assert_int_equal(0, told.gones);
        leaders += told.leads;
    }
    assert_int_equal(1, leaders);
    print_message("back after %llu ms\n",
                  (unsigned long long)((kva_time_ns() - back_ns) / KVA_NS_PER_MS));
    end_all();
}

static void test_faults__etcd_that_stands_still_is_waited_for(void **state KVA_UNUSED)
{
    start_all(3);
    etcd_signal(&etcd, SIGSTOP);
    nodes_wait(nodes, 3, all_are_apart, "all notice that etcd does not answer");
    assert_non_null(strstr(node_told(&nodes[0]).why, "no answer within"));
    etcd_signal(&etcd, SIGCONT);
    nodes_wait(nodes, 3, nodes_are_whole, "all are back");
    check_same(3);
    end_all();
}

static void test_faults__another_endpoint_is_asked_while_one_fails(void **state KVA_UNUSED)
{
    char dead[64];
    const char *endpoints[] = {dead, etcd.endpoint};
    snprintf(dead, sizeof(dead), "http://127.0.0.1:%d", free_port());
    node_init(&nodes[0], etcd.endpoint, 0);
    nodes[0].params.endpoints = endpoints;
    nodes[0].params.endpoint_count = 2;
    node_start(&nodes[0]);
    nodes_wait(nodes, 1, nodes_are_whole, "it is there");
    struct node_told told = node_told(&nodes[0]);
    assert_in_range(told.failures, 1, 4);
    assert_non_null(strstr(told.why, dead));
    end_all();
}

/* --- leases ----------------------------------------------------------------------------------- */

static void revoke_all(void)
{
    char text[2048], lease[64];
    assert_int_equal(0, etcd_ctl(&etcd, text, sizeof(text), "lease list"));
    char *line = strchr(text, '\n');
    assert_non_null(line);
    for (char *id = strtok_r(line, "\n", &line); id; id = strtok_r(NULL, "\n", &line))
        etcd_ctl(&etcd, lease, sizeof(lease), "lease revoke %s", id);
}

static bool first_has_come_again(struct node *all, uint32_t count)
{
    struct node_told told = node_told(&all[0]);
    return told.keeps > before[0].keeps && nodes_are_whole(all, count);
}

static bool were_gone_and_are_whole(struct node *all, uint32_t count)
{
    return node_told(&all[0]).gones > 0 && nodes_are_whole(all, count);
}

static void test_faults__a_revoked_lease_is_made_anew(void **state KVA_UNUSED)
{
    start_all(2);
    revoke_all();
    nodes_wait_taken(nodes, 2, were_gone_and_are_whole, "both are there again");
    check_same(2);
    end_all();
    start_all(1);
    revoke_all();
    before[0] = node_told(&nodes[0]);
    nodes_wait(nodes, 1, first_has_come_again, "it leads again");
    check_same(1);
    end_all();
}

static bool first_has_left(struct node *all, uint32_t count)
{
    return count > 0 && node_told(&all[0]).state == KVA_MEMBERS_LEFT;
}

static void test_faults__who_loses_its_number_has_left(void **state KVA_UNUSED)
{
    start_all(1);
    node_pause(&nodes[0], true);
    revoke_all();
    node_init(&nodes[1], etcd.endpoint, 1);
    node_start(&nodes[1]);
    nodes_wait_taken(nodes + 1, 1, nodes_are_whole, "the second one has its number");
    assert_int_equal(before[0].node, node_told(&nodes[1]).node);
    assert_true(node_told(&nodes[1]).life > before[0].life);
    node_pause(&nodes[0], false);
    nodes_wait_taken(nodes, 1, first_has_left, "it has left");
    struct node_told told = node_told(&nodes[0]);
    assert_false(told.leads);
    assert_int_equal(1, told.leaves);
    usleep(100000);
    assert_true(node_told(&nodes[1]).leads);
    end_all();
}

static void test_faults__a_key_that_was_deleted_is_made_anew(void **state KVA_UNUSED)
{
    char text[256];
    start_all(2);
    assert_int_equal(0, etcd_ctl(&etcd, text, sizeof(text), "del --prefix kvahead/test/nodes/"));
    nodes_wait(nodes, 2, were_gone_and_are_whole, "both are there again");
    check_same(2);
    end_all();
}

static bool second_leads(struct node *all, uint32_t count)
{
    return count == 2 && node_told(&all[1]).leads;
}

static bool first_is_deposed_and_all_are_whole(struct node *all, uint32_t count)
{
    return node_told(&all[0]).depositions == before[0].depositions + 1 &&
           nodes_are_whole(all, count);
}

static void test_faults__the_leaders_key_that_was_deleted_is_made_anew(void **state KVA_UNUSED)
{
    char text[256];
    start_all(1);
    assert_true(before[0].leads);
    node_init(&nodes[1], etcd.endpoint, 1);
    node_start(&nodes[1]);
    nodes_wait(nodes, 2, nodes_are_whole, "both are there");
    node_pause(&nodes[0], true);
    assert_int_equal(0, etcd_ctl(&etcd, text, sizeof(text), "del kvahead/test/leader"));
    nodes_wait_taken(nodes, 2, second_leads, "the other one leads");
    /* The first has not heard of it: it is its older revision that it is refused by. */
    assert_true(node_told(&nodes[0]).leads);
    assert_true(node_told(&nodes[1]).revision > node_told(&nodes[0]).revision);
    node_pause(&nodes[0], false);
    nodes_wait_taken(nodes, 2, first_is_deposed_and_all_are_whole, "it has heard");
    assert_true(node_told(&nodes[1]).leads);
    end_all();
}

/* --- compaction ------------------------------------------------------------------------------- */

static bool first_knows_the_third(struct node *all, uint32_t count)
{
    struct node_told third = node_told(&all[2]);
    return count == 3 && third.joins == 1 && node_told(&all[0]).members == 2 &&
           node_knows(&all[0], third.node) == third.life;
}

static void test_faults__what_was_compacted_away_is_read_anew(void **state KVA_UNUSED)
{
    char text[512];
    for (uint32_t i = 0; i < 3; i++)
        node_init(&nodes[i], etcd.endpoint, i);
    nodes[0].params.lease_ttl_ns = 60 * KVA_NS_PER_S;
    node_start(&nodes[0]);
    nodes_wait(nodes, 1, nodes_are_whole, "the first one is there");
    node_start(&nodes[1]);
    nodes_wait(nodes, 2, nodes_are_whole, "two are there");
    before[0] = node_told(&nodes[0]);
    node_pause(&nodes[0], true);
    etcd_kill(&etcd); /* with it, what the watch had in its socket of later changes */
    etcd_start(&etcd);
    node_end(&nodes[1], 20 * KVA_NS_PER_S);
    node_start(&nodes[2]);
    for (uint32_t i = 0; i < 20; i++)
        etcd_ctl(&etcd, text, sizeof(text), "put other %u", i);
    assert_int_equal(0, etcd_ctl(&etcd, text, sizeof(text), "get other -w json"));
    char *revision = strstr(text, "\"revision\":");
    assert_non_null(revision);
    assert_int_equal(0, etcd_ctl(&etcd, text, sizeof(text), "compaction %llu",
                                 strtoull(revision + strlen("\"revision\":"), NULL, 10)));
    node_pause(&nodes[0], false);
    nodes_wait(nodes, 3, first_knows_the_third, "the first one knows what has changed");
    assert_int_equal(1, node_told(&nodes[0]).gones);
    end_all();
}

/* --- the group -------------------------------------------------------------------------------- */

static int begin(void **state KVA_UNUSED)
{
    etcd_begin(&etcd);
    return 0;
}

static int end(void **state KVA_UNUSED)
{
    etcd_end(&etcd);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults__nobody_is_gone_when_etcd_starts_again),
        cmocka_unit_test(test_faults__etcd_that_stands_still_is_waited_for),
        cmocka_unit_test(test_faults__another_endpoint_is_asked_while_one_fails),
        cmocka_unit_test(test_faults__a_revoked_lease_is_made_anew),
        cmocka_unit_test(test_faults__who_loses_its_number_has_left),
        cmocka_unit_test(test_faults__a_key_that_was_deleted_is_made_anew),
        cmocka_unit_test(test_faults__the_leaders_key_that_was_deleted_is_made_anew),
        cmocka_unit_test(test_faults__what_was_compacted_away_is_read_anew),
    };
    if (!etcd_is_installed())
        return 77;
    return cmocka_run_group_tests(tests, begin, end);
}
