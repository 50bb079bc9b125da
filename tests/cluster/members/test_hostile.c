/* test_hostile.c - answers that no etcd would give: nothing crashes, leaks, grows or loops, and the
 * view says what is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cluster/members/fake_etcd.h"
#include "tests/cluster/members/nodes.h"
#include "tests/cmocka.h"

/* Good answers, which others follow; numbers of etcd's, as it writes them. */
#define HEADER "\"header\":{\"revision\":\"10\"}"
#define GRANT  "{" HEADER ",\"ID\":\"77\",\"TTL\":\"2\"}"
#define EMPTY  "{" HEADER "}"
#define PUT    "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}"
#define KEPT   "{\"result\":{" HEADER ",\"ID\":\"77\",\"TTL\":\"2\"}}\n"
#define WATCH  "{\"result\":{" HEADER ",\"created\":true}}\n"

#define GOOD_GRANT                                                                                 \
    {                                                                                              \
        .path = "/v3/lease/grant", .body = GRANT                                                   \
    }
#define GOOD_KEPT                                                                                  \
    {                                                                                              \
        .path = "/v3/lease/keepalive", .body = KEPT                                                \
    }
#define GOOD_RANGE                                                                                 \
    {                                                                                              \
        .path = "/v3/kv/range", .body = EMPTY                                                      \
    }
#define GOOD_TXN                                                                                   \
    {                                                                                              \
        .path = "/v3/kv/txn", .body = PUT                                                          \
    }
#define GOOD_WATCH                                                                                 \
    {                                                                                              \
        .path = "/v3/watch", .way = FAKE_STREAM, .body = WATCH                                     \
    }

#define SPACES_64 "                                                                "
#define SPACES    SPACES_64 SPACES_64 SPACES_64 SPACES_64 SPACES_64 SPACES_64 SPACES_64 SPACES_64

struct hostile {
    const char *name;
    struct fake_rule rules[8];
    const char *words; /* of the view; NULL: it need not fail */
    bool joins;
};

#define ALL(...)                                                                                   \
    {                                                                                              \
        {                                                                                          \
            .path = "/", __VA_ARGS__                                                               \
        }                                                                                          \
    }

static const struct hostile of_all[] = {
    {"half a document", ALL(.body = "{\"ID\":\"77\",\"TT"), "not what etcd would say", false},
    {"nothing", ALL(.body = ""), "not what etcd would say", false},
    {"no object", ALL(.body = "[1,2]"), "not what etcd would say", false},
    {"deep", ALL(.body = "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["),
     "not what etcd would say", false},
    {"a body that is cut", ALL(.way = FAKE_CUT, .body = GRANT), "ended within an answer", false},
    {"an end", ALL(.way = FAKE_END), "ended within an answer", false},
    {"silence", ALL(.way = FAKE_HANG), "no answer within 300 ms", false},
    {"drops", ALL(.way = FAKE_DRIP, .body = " "), "no answer within 300 ms", false},
    {"a flood", ALL(.way = FAKE_HUGE, .body = SPACES), "longer than 4194304 bytes", false},
    {"errors", ALL(.code = 500, .body = "no"), "HTTP 500", false},
    {"errors with words", ALL(.code = 503, .body = "{\"message\":\"a\\nb\",\"code\":14}"),
     "it says \"a?b\"", false},
    {"errors of other types", ALL(.code = 500, .body = "{\"message\":3,\"code\":\"x\"}"),
     "HTTP 500", false},
    {"somewhere else", ALL(.code = 301, .body = "moved"), "HTTP 301", false},
};

static const struct hostile of_one[] = {
    {"a lease of letters",
     {{.path = "/v3/lease/grant", .body = "{\"ID\":\"seven\",\"TTL\":\"2\"}"},
      GOOD_RANGE,
      GOOD_WATCH},
     "no lease of the time",
     false},
    {"a lease that is short",
     {{.path = "/v3/lease/grant", .body = "{\"ID\":\"7\",\"TTL\":\"1\"}"}, GOOD_RANGE, GOOD_WATCH},
     "no lease of the time",
     false},
    {"a lease beyond 63 bits",
     {{.path = "/v3/lease/grant", .body = "{\"ID\":\"18446744073709551617\",\"TTL\":\"2\"}"},
      GOOD_RANGE,
      GOOD_WATCH},
     "no lease of the time",
     false},
    {"keys without a revision",
     {GOOD_GRANT, GOOD_KEPT, {.path = "/v3/kv/range", .body = "{\"kvs\":[]}"}},
     "no keys of a revision",
     false},
    {"keys that are none",
     {GOOD_GRANT, GOOD_KEPT, {.path = "/v3/kv/range", .body = "{" HEADER ",\"kvs\":{}}"}},
     "no keys of a revision",
     false},
    {"keys of other types",
     {GOOD_GRANT,
      GOOD_KEPT,
      GOOD_TXN,
      GOOD_WATCH,
      {.path = "/v3/kv/range",
       .body = "{" HEADER ",\"kvs\":[1,null,{\"key\":7,\"mod_revision\":\"3\"},{\"key\":\"!!\","
               "\"mod_revision\":\"3\"},{\"mod_revision\":{}}]}"}},
     NULL,
     true},
    {"a transaction without a word",
     {GOOD_GRANT, GOOD_KEPT, GOOD_RANGE, GOOD_WATCH, {.path = "/v3/kv/txn", .body = "{}"}},
     "a transaction is none",
     false},
    {"numbers that are always taken",
     {GOOD_GRANT,
      GOOD_KEPT,
      GOOD_RANGE,
      GOOD_WATCH,
      {.path = "/v3/kv/txn",
       .body = "{" HEADER ",\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"YQ==\","
               "\"mod_revision\":\"5\",\"create_revision\":\"5\",\"lease\":\"8\"}]}}]}"}},
     NULL,
     false},
    {"a lease that no transaction knows",
     {GOOD_GRANT,
      GOOD_KEPT,
      GOOD_RANGE,
      GOOD_WATCH,
      {.path = "/v3/kv/txn",
       .code = 404,
       .body = "{\"message\":\"etcdserver: requested lease not found\",\"code\":5}"}},
     NULL,
     false},
    {"a watch that ends",
     {GOOD_GRANT, GOOD_KEPT, GOOD_RANGE, GOOD_TXN, {.path = "/v3/watch", .body = WATCH}},
     "the watch ended",
     true},
    {"a watch that is always compacted",
     {GOOD_GRANT,
      GOOD_KEPT,
      GOOD_RANGE,
      GOOD_TXN,
      {.path = "/v3/watch",
       .way = FAKE_STREAM,
       .body = WATCH "{\"result\":{\"canceled\":true,\"compact_revision\":\"12\"}}\n"}},
     NULL,
     true},
    {"a watch of changes that are none",
     {GOOD_GRANT,
      GOOD_KEPT,
      GOOD_RANGE,
      GOOD_TXN,
      {.path = "/v3/watch",
       .way = FAKE_STREAM,
       .body = WATCH "{\"result\":{\"events\":[{\"type\":3}]}}\n"}},
     "a change that is none",
     true},
    {"a watch of lines without an end",
     {GOOD_GRANT,
      GOOD_KEPT,
      GOOD_RANGE,
      GOOD_TXN,
      {.path = "/v3/watch", .way = FAKE_HUGE, .body = "{\"result\":" SPACES}},
     "longer than 4194304 bytes",
     true},
    {"a watch that drips",
     {GOOD_GRANT,
      GOOD_KEPT,
      GOOD_RANGE,
      GOOD_TXN,
      {.path = "/v3/watch", .way = FAKE_DRIP, .body = " "}},
     "no answer within 300 ms",
     true},
    {"some other lease",
     {GOOD_GRANT,
      GOOD_RANGE,
      GOOD_TXN,
      GOOD_WATCH,
      {.path = "/v3/lease/keepalive", .body = "{\"result\":{\"ID\":\"78\",\"TTL\":\"2\"}}"}},
     "some other lease",
     true},
};

/* Run one for as long as it takes to fail, and a while on: requests do not pile up. */
static void check(const struct hostile *hostile)
{
    struct fake_etcd *fake = fake_etcd_create(hostile->rules);
    struct node node;
    struct kva_members_view view = {0};
    uint64_t begin_ns = kva_time_ns(), until_ns = begin_ns + 20 * KVA_NS_PER_S;
    uint64_t cpu_ns = kva_cpu_time_ns(), at_least_ns = begin_ns + KVA_NS_PER_S;
    struct kva_members *members = NULL;
    node_init(&node, fake_etcd_endpoint(fake), 0);
    node.params.request_ns = 300 * KVA_NS_PER_MS;
    assert_int_equal(KVA_OK, kva_members_create(&node.params, &members, NULL));
    bool good = false;
    while (kva_time_ns() < until_ns && !(good && kva_time_ns() > at_least_ns)) {
        kva_members_run(members, NULL, 0, kva_time_ns() + 10 * KVA_NS_PER_MS);
        kva_members_get_view(members, &view);
        good = good || ((!hostile->words || strstr(view.why, hostile->words)) &&
                        hostile->joins == (view.state != KVA_MEMBERS_JOINING));
    }
    if (!good)
        fail_msg("%s: state %d, %s", hostile->name, (int)view.state, view.why);
    uint64_t seconds = 1 + (kva_time_ns() - begin_ns) / KVA_NS_PER_S;
    assert_in_range(fake_etcd_requests(fake), 0, 60 * seconds);
    cpu_ns = kva_cpu_time_ns() - cpu_ns;
    print_message("%s: %u requests, %llu ms of a processor, %s\n", hostile->name,
                  fake_etcd_requests(fake), (unsigned long long)(cpu_ns / KVA_NS_PER_MS), view.why);
    kva_members_destroy(members, 100 * KVA_NS_PER_MS);
    close(node.wake);
    fake_etcd_destroy(fake);
}

static void test_hostile__answers_that_are_none(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(of_all); i++)
        check(&of_all[i]);
}

static void test_hostile__one_answer_among_good_ones(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(of_one); i++)
        check(&of_one[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile__answers_that_are_none),
        cmocka_unit_test(test_hostile__one_answer_among_good_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
