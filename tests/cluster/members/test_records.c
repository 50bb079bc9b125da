/* test_records.c - records that are bad or of another model, users and passwords, with a real etcd;
 * and what parameters may be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cluster/members/etcd_process.h"
#include "tests/cluster/members/nodes.h"
#include "tests/cmocka.h"

static struct etcd_process etcd;
static struct node nodes[NODES_MAX];

static void start(uint32_t index, const char *user)
{
    node_init(&nodes[index], etcd.endpoint, index);
    nodes[index].params.user = user;
    node_start(&nodes[index]);
}

static void end_all(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++)
        node_end(&nodes[i], 5 * KVA_NS_PER_S);
}

static void ctl(const char *arguments)
{
    char text[512];
    if (etcd_ctl(&etcd, text, sizeof(text), "%s", arguments) != 0)
        fail_msg("etcdctl %s: %s", arguments, text);
}

/* --- records ---------------------------------------------------------------------------------- */

static const char *const bad_records[] = {
    "put kvahead/test/nodes/10 nonsense",
    "put kvahead/test/nodes/11 '{\"node\":12}'",
    "put kvahead/test/nodes/12 '{\"node\":12,\"life\":\"99999999\",\"host\":\"a\",\"port\":1,"
    "\"guest_port\":2,\"lend_pages\":9,\"model\":\"tiny\"}'",
    "put kvahead/test/nodes/13 '{\"node\":13,\"life\":\"0\",\"host\":\"a b\",\"port\":1,"
    "\"guest_port\":2,\"lend_pages\":9,\"model\":\"tiny\"}'",
    "put kvahead/test/nodes/14 '{\"node\":14,\"life\":\"0\",\"host\":\"a\",\"port\":65536,"
    "\"guest_port\":2,\"lend_pages\":9,\"model\":\"tiny\"}'",
    "put kvahead/test/nodes/15 '{\"node\":15,\"life\":\"0\",\"host\":\"a\",\"port\":1,"
    "\"guest_port\":-2,\"lend_pages\":9,\"model\":\"tiny\"}'",
    "put kvahead/test/nodes/16 '{\"node\":16,\"life\":\"0\",\"host\":\"a\",\"port\":1,"
    "\"guest_port\":2,\"lend_pages\":9,\"model\":3}'",
    "put kvahead/test/nodes/17 '[]'",
    "put kvahead/test/nodes/18 $(head -c 20000 /dev/zero | tr '\\0' x)",
    "put kvahead/test/nodes/1025 '{}'",
    "put kvahead/test/nodes/x '{}'",
    "put kvahead/test/leaders '{}'",
};

static bool first_has_counted(struct node *all, uint32_t count)
{
    return count > 0 && node_told(&all[0]).records_bad == KVA_COUNT_OF(bad_records) &&
           node_told(&all[0]).members == 2;
}

static void check_counted(void)
{
    nodes_wait(nodes, 1, first_has_counted, "bad records are counted, the good one is seen");
    assert_int_equal(1, node_told(&nodes[0]).tells);
    assert_true(node_knows(&nodes[0], 20) > 0);
    assert_int_equal(0, node_told(&nodes[0]).failures);
}

static void test_records__bad_ones_are_counted_and_passed_over(void **state KVA_UNUSED)
{
    start(0, NULL);
    nodes_wait(nodes, 1, nodes_are_whole, "it is there");
    for (size_t i = 0; i < KVA_COUNT_OF(bad_records); i++)
        ctl(bad_records[i]);
    ctl("put kvahead/test/nodes/20 '{\"node\":20,\"life\":\"0\",\"host\":\"::1\",\"port\":1,"
        "\"guest_port\":2,\"lend_pages\":9,\"model\":\"tiny\",\"more\":[{}]}'");
    check_counted();
    end_all();
    /* The same by reading all keys, and not by watching. */
    start(0, NULL);
    check_counted();
    end_all();
    ctl("del --prefix kvahead/test/");
}

static bool strangers_are_seen(struct node *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (node_told(&all[i]).strangers != 1)
            return false;
    return true;
}

static void test_records__another_model_is_not_seen(void **state KVA_UNUSED)
{
    start(0, NULL);
    node_init(&nodes[1], etcd.endpoint, 1);
    snprintf(nodes[1].params.self.model, KVA_MEMBERS_MODEL_MAX, "grand");
    node_start(&nodes[1]);
    nodes_wait(nodes, 2, strangers_are_seen, "each knows that a stranger is there");
    for (uint32_t i = 0; i < 2; i++) {
        struct node_told told = node_told(&nodes[i]);
        assert_int_equal(1, told.members);
        assert_int_equal(0, told.tells);
    }
    end_all();
}

/* --- users ------------------------------------------------------------------------------------ */

static const char *wanted_words;

static bool says_the_words(struct node *all, uint32_t count)
{
    struct node_told told = node_told(&all[0]);
    return count == 1 && told.joins == 0 && strstr(told.why, wanted_words);
}

static void refused(const char *user, const char *words)
{
    start(0, user);
    wanted_words = words;
    nodes_wait(nodes, 1, says_the_words, words);
    end_all();
}

static void test_records__a_user_is_let_in_and_comes_again(void **state KVA_UNUSED)
{
    start(0, "kv:secret");
    nodes_wait(nodes, 1, nodes_are_whole, "a user is no hindrance where none is wanted");
    end_all();
    ctl("user add root:top");
    ctl("user add kv:secret");
    ctl("user add other:thing");
    ctl("role add kv");
    ctl("role grant-permission --prefix=true kv readwrite kvahead/");
    ctl("user grant-role kv kv");
    ctl("auth enable");
    snprintf(etcd.user, sizeof(etcd.user), "root:top");
    start(0, "kv:secret");
    start(1, "kv:secret");
    nodes_wait(nodes, 2, nodes_are_whole, "users are let in");
    /* An etcd that starts again has forgotten its tokens. */
    etcd_kill(&etcd);
    etcd_start(&etcd);
    start(2, "kv:secret");
    nodes_wait(nodes, 3, nodes_are_whole, "they have come again");
    assert_int_equal(0, node_told(&nodes[0]).gones);
    end_all();
    refused("kv:wrong", "invalid user ID or password");
    refused(NULL, "it wants a user and a password");
    refused("other:thing", "permission denied");
    ctl("auth disable");
    etcd.user[0] = 0;
}

/* --- parameters ------------------------------------------------------------------------------- */

static void check_refused(const struct kva_members_params *params, const char *word)
{
    struct kva_members *members = NULL;
    struct kva_err err = {0};
    assert_int_equal(KVA_EINVAL, kva_members_create(params, &members, &err));
    assert_null(members);
    if (!strstr(err.message, word))
        fail_msg("'%s' does not speak of %s", err.message, word);
}

static void test_records__parameters_are_checked_and_named(void **state KVA_UNUSED)
{
    static const char *const urls[] = {"ftp://a", "http://", "http:///x", "http://a b", "a:2379"};
    struct node node;
    node_init(&node, "http://127.0.0.1:1", 0);
    struct kva_members_params good = node.params, bad;
#define REFUSED(change, word)                                                                      \
    do {                                                                                           \
        bad = good;                                                                                \
        change;                                                                                    \
        check_refused(&bad, word);                                                                 \
    } while (0)
    for (size_t i = 0; i < KVA_COUNT_OF(urls); i++)
        REFUSED(bad.endpoints = &urls[i], "endpoint");
    REFUSED(bad.endpoint_count = 0, "endpoints");
    REFUSED(bad.endpoint_count = 17, "endpoints");
    REFUSED(bad.name = NULL, "name");
    REFUSED(bad.name = "Upper", "name");
    REFUSED(bad.name = "a/b", "name");
    REFUSED(bad.user = "nobody", "user");
    REFUSED(bad.lease_ttl_ns = KVA_NS_PER_S, "lease_ttl_ns");
    REFUSED(bad.lease_ttl_ns += 1, "lease_ttl_ns");
    REFUSED(bad.request_ns = 0, "request_ns");
    REFUSED(bad.self.host[0] = 0, "host");
    REFUSED(bad.self.host[0] = ' ', "host");
    REFUSED(memset(bad.self.host, 'a', sizeof(bad.self.host)), "host");
    REFUSED(bad.self.model[0] = 0, "model");
    REFUSED(bad.self.model[0] = '\n', "model");
    REFUSED(bad.self.port = 0, "port");
    REFUSED(bad.self.guest_port = 0, "guest_port");
    REFUSED(bad.left = NULL, "callback");
#undef REFUSED
    close(node.wake);
    kva_members_destroy(NULL, 0);
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
        cmocka_unit_test(test_records__parameters_are_checked_and_named),
        cmocka_unit_test(test_records__bad_ones_are_counted_and_passed_over),
        cmocka_unit_test(test_records__another_model_is_not_seen),
        cmocka_unit_test(test_records__a_user_is_let_in_and_comes_again),
    };
    if (!etcd_is_installed())
        return 77;
    return cmocka_run_group_tests(tests, begin, end);
}
