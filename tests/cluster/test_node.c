/* test_node.c - a node's parts without an etcd: what it counts on, and what it orders as a leader. */
#include "base/clock.h"
#include "cluster/node/lookup.h"
#include "cluster/node/node_internal.h"
#include "engine/lending.h"
#include "tests/cluster/a100.h"
#include "tests/cmocka.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES_MAX 40u

/* A model of which only the shape is known. */
static struct kva_model shape_of(uint32_t layers, uint32_t head_dim)
{
    return (struct kva_model){
        .config = {.layer_count = layers, .heads = 1, .kv_heads = 1, .head_dim = head_dim}};
}

static struct kva_node *open_node(const struct kva_model *model)
{
    static const char *const etcd[] = {"http://127.0.0.1:1"};
    char secret[] = "/tmp/kvahead-test-node-XXXXXX";
    int fd = mkstemp(secret);
    assert_true(fd >= 0 && write(fd, "0123456789abcdef0123456789abcdef", 32) == 32);
    close(fd);
    const struct kva_node_params params = {
        .name = "test",
        .etcd = etcd,
        .etcd_count = 1,
        .listen = "127.0.0.1:0",
        .secret_file = secret,
        .model = model,
        .model_name = "shape",
        .kv_dtype = KVA_BF16,
        .act = KVA_F32,
        .nodes_max = NODES_MAX,
        .lend_percent = 100,
        .copy_percent = 1,
        .answer_ns = KVA_NS_PER_S,
        .lease_ttl_ns = 2 * KVA_NS_PER_S,
        .loan_ttl_ns = KVA_NS_PER_S,
        .recall_ns = KVA_NS_PER_S,
        .patience_ns = KVA_NS_PER_S,
        .plan = KVA_CLUSTER_PLAN_WAITING,
        .round_ns = KVA_NS_PER_S,
    };
    struct kva_node *node = NULL;
    struct kva_err err = {0};
    if (kva_node_create(&params, &node, &err))
        fail_msg("%s", err.message);
    unlink(secret);
    return node;
}

/* --- what a request may count on ---------------------------------------------------------------- */

static void test_node__a_request_counts_on_as_many_as_it_may_have_loans(void **state KVA_UNUSED)
{
    struct kva_lenders lenders;
    assert_int_equal(kva_lenders_init(&lenders, NODES_MAX, NULL), KVA_OK);
    assert_int_equal(kva_lenders_pages(&lenders), 0);
    for (uint32_t node = 1; node <= KVA_KV_LOANS_MAX + 4; node++)
        kva_lenders_put(&lenders, node, node <= 4 ? 1 : 10);
    assert_int_equal(kva_lenders_pages(&lenders), 10 * KVA_KV_LOANS_MAX);
    kva_lenders_put(&lenders, 3, 100); /* its record has changed */
    assert_int_equal(kva_lenders_pages(&lenders), 100 + 10 * (KVA_KV_LOANS_MAX - 1));
    kva_lenders_remove(&lenders, 3);
    kva_lenders_remove(&lenders, 3);
    kva_lenders_remove(&lenders, 20);
    assert_int_equal(kva_lenders_pages(&lenders), 10 * (KVA_KV_LOANS_MAX - 1) + 1);
    for (uint32_t node = 1; node <= 2 * NODES_MAX; node++)
        kva_lenders_put(&lenders, node, 7);
    assert_int_equal(lenders.count, NODES_MAX);
    kva_lenders_finish(&lenders);
}

/* --- where members are -------------------------------------------------------------------------- */

/* A resolver that says nothing until it is let go on. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool goes_on;
    uint32_t asked, answered;
} resolver = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static enum kva_status slow_resolve(const char *text, bool listening, struct kva_link_address *ret,
                                    struct kva_err *err)
{
    pthread_mutex_lock(&resolver.lock);
    resolver.asked++;
    while (!resolver.goes_on)
        pthread_cond_wait(&resolver.changed, &resolver.lock);
    resolver.answered++;
    pthread_cond_broadcast(&resolver.changed);
    pthread_mutex_unlock(&resolver.lock);
    if (strcmp(text, "known.test:5") == 0)
        return kva_link_address_resolve("127.0.0.9:5", listening, ret, err);
    return kva_fail(err, KVA_EINVAL, "nobody knows '%s'", text);
}

static struct kva_lookup *look_up(const char *address)
{
    struct kva_lookup *lookup = NULL;
    assert_int_equal(kva_lookup_begin(address, slow_resolve, &lookup, NULL), KVA_OK);
    return lookup;
}

static void test_node__a_slow_resolver_holds_nobody_up(void **state KVA_UNUSED)
{
    char text[KVA_LINK_ADDRESS_TEXT];
    struct kva_err err;
    struct kva_lookup *known = look_up("known.test:5"), *unknown = look_up("unknown.test:5");
    kva_lookup_end(look_up("known.test:5")); /* of a member that is gone before it is found */
    struct kva_lookup *number = look_up("[::1]:7");
    assert_true(kva_lookup_is_done(number));
    assert_int_equal(kva_lookup_take(number, text, &err), KVA_OK);
    assert_string_equal(text, "[::1]:7");
    assert_false(kva_lookup_is_done(known) || kva_lookup_is_done(unknown));
    pthread_mutex_lock(&resolver.lock);
    resolver.goes_on = true;
    pthread_cond_broadcast(&resolver.changed);
    while (resolver.answered < 3)
        pthread_cond_wait(&resolver.changed, &resolver.lock);
    assert_int_equal(resolver.asked, 3); /* a number is nobody's name */
    pthread_mutex_unlock(&resolver.lock);
    while (!kva_lookup_is_done(known) || !kva_lookup_is_done(unknown))
        usleep(1000);
    assert_int_equal(kva_lookup_take(known, text, &err), KVA_OK);
    assert_string_equal(text, "127.0.0.9:5");
    assert_int_equal(kva_lookup_take(unknown, text, &err), KVA_EINVAL);
    assert_string_equal(err.message, "nobody knows 'unknown.test:5'");
    kva_lookup_end(known);
    kva_lookup_end(unknown);
    kva_lookup_end(number);
    kva_lookup_end(NULL);
}

/* --- what is asked at once ----------------------------------------------------------------------- */

/* A debtor has a row for each of its loans, and its creditor room for as many, whatever steps and
 * sequences either of them has. */
static void test_node__every_loan_may_be_asked_about_at_once(void **state KVA_UNUSED)
{
    const struct kva_model model = shape_of(1, 64);
    struct kva_node *node = open_node(&model);
    assert_int_equal(node->asked_max, KVA_NODE_LOANS_MAX);
    assert_int_equal(kva_node_loans(1), kva_kv_loans_of(1));
    for (uint32_t sequences = 1; sequences < 5000; sequences++)
        assert_in_range(kva_node_loans(sequences), KVA_KV_LOANS_MAX, node->asked_max);
    kva_node_destroy(node);
}

/* --- links -------------------------------------------------------------------------------------- */

static void meet(struct kva_node *node, uint32_t self, uint32_t other)
{
    node->self = self;
    node->self_life = self;
    node->peers[node->peer_count++].member = (struct kva_member){.node = other, .life = other};
    kva_link_identify(node->link, self, self);
}

/* Pages may be so small that those of a loan on their way have fewer bytes than a link is measured
 * with. */
static void test_node__links_are_measured_whatever_a_page_has(void **state KVA_UNUSED)
{
    const struct kva_model model = shape_of(1, 64);
    struct kva_node *nodes[2] = {open_node(&model), open_node(&model)};
    const uint64_t limit_ns = kva_time_ns() + 60 * KVA_NS_PER_S;
    char address[KVA_NODE_ADDRESS_MAX];
    struct kva_err err = {0};
    assert_true(nodes[0]->unacked_pages * nodes[0]->page_bytes < KVA_PROBE_BYTES);
    meet(nodes[0], 1, 2);
    meet(nodes[1], 2, 1);
    kva_node_address("127.0.0.1", kva_link_port(nodes[1]->link), address);
    if (kva_link_connect(nodes[0]->link, 2, 2, address, &err))
        fail_msg("%s", err.message);
    const struct kva_peer *peers[2] = {&nodes[0]->peers[0], &nodes[1]->peers[0]};
    while (peers[0]->probe.latency_s == 0 || peers[1]->probe.latency_s == 0) {
        assert_true(kva_time_ns() < limit_ns);
        for (int i = 0; i < 2; i++) {
            kva_link_progress(nodes[i]->link, kva_time_ns());
            assert_int_equal(peers[i]->retry_ns, 0); /* the connection broke */
        }
    }
    for (int i = 0; i < 2; i++) {
        nodes[i]->peer_count = 0;
        kva_node_destroy(nodes[i]);
    }
}

/* --- leading ------------------------------------------------------------------------------------ */

static void report(struct kva_node *node, uint32_t source, struct kva_message_load load,
                   const struct kva_message_entry *entries, uint16_t count)
{
    const struct kva_message message = {
        .type = KVA_MESSAGE_HEARTBEAT,
        .source = source,
        .target = kva_node_manager_of(node->self),
        .source_life = source,
        .sequence = 1,
        .heartbeat = {.revision = 5,
                      .round = 1,
                      .index = 1,
                      .load = load,
                      .entry_count = count,
                      .entries = entries},
    };
    kva_gmanager_receive(node->gmanager, &message);
}

/* Orders to lend that the engine's thread of this node is given. */
static uint32_t orders(struct kva_node *node)
{
    struct kva_list notes;
    struct kva_message message;
    uint32_t moves = 0;
    kva_mailbox_take(&node->to_engine, &notes);
    while (!kva_list_empty(&notes)) {
        struct kva_note *note = KVA_CONTAINER_OF(notes.next, struct kva_note, link);
        kva_list_remove(&note->link);
        assert_int_equal(kva_message_decode(note->message, note->size, NULL, 0, &message, NULL),
                         KVA_OK);
        moves += message.type == KVA_MESSAGE_MOVE;
        kva_note_free(&node->to_engine, note);
    }
    return moves;
}

/* What a leader orders for a request of its own that needs 12 pages of each of `creditors`. */
static uint32_t gathered_of(uint32_t creditors)
{
    const uint32_t pages = 16 + 12 * creditors;
    const struct kva_message_load debtor = {.pages = 16,
                                            .free_pages = 16,
                                            .batch_max = 4,
                                            .waiting = 1,
                                            .head_pages = pages,
                                            .waiting_pages = pages};
    const struct kva_message_load creditor = {
        .pages = 16, .free_pages = 16, .lendable_pages = 16, .batch_max = 4};
    const struct kva_message_entry request = {.request = 9,
                                              .generation = 1,
                                              .instance = 1,
                                              .pages = pages,
                                              .flags = KVA_ENTRY_LOCAL | KVA_ENTRY_HEAD};
    const struct kva_model model = shape_of(1, 64);
    struct kva_node *node = open_node(&model);
    uint64_t now_ns = KVA_NS_PER_S;
    node->self = 1;
    node->self_life = 1;
    node->cost = a100_llama7b();
    for (uint32_t i = 0; i < creditors; i++)
        node->peers[node->peer_count++].member = (struct kva_member){.node = 2 + i, .life = 2 + i};
    kva_node_elected(node, 5, now_ns);
    assert_non_null(node->gmanager);
    kva_node_manager_tick(node, now_ns);
    report(node, 1, debtor, &request, 1);
    for (uint32_t i = 0; i < creditors; i++)
        report(node, 2 + i, creditor, NULL, 0);
    kva_node_manager_tick(node, now_ns + node->params.round_ns / 2);
    uint32_t moves = orders(node);
    node->peer_count = 0;
    kva_node_destroy(node);
    return moves;
}

static void test_node__a_leader_gathers_as_many_loans_as_a_request_may_have(void **state KVA_UNUSED)
{
    assert_int_equal(gathered_of(3), 3);
    assert_int_equal(gathered_of(KVA_KV_LOANS_MAX), KVA_KV_LOANS_MAX);
    assert_int_equal(gathered_of(KVA_KV_LOANS_MAX + 1), 0); /* of which one would be refused */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_node__a_request_counts_on_as_many_as_it_may_have_loans),
        cmocka_unit_test(test_node__a_slow_resolver_holds_nobody_up),
        cmocka_unit_test(test_node__every_loan_may_be_asked_about_at_once),
        cmocka_unit_test(test_node__links_are_measured_whatever_a_page_has),
        cmocka_unit_test(test_node__a_leader_gathers_as_many_loans_as_a_request_may_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
