/* test_gmanager.c - rounds, the placement map, and who may give orders. */
#include "base/clock.h"
#include "cluster/gmanager_internal.h"
#include "tests/cluster/a100.h"
#include "tests/cmocka.h"

#include <math.h>
#include <string.h>

#define TTL_NS   (1000 * KVA_NS_PER_MS)
#define ROUND_NS (500 * KVA_NS_PER_MS)

struct leader {
    struct kva_gmanager *g;
    struct kva_message sent[64];
    uint32_t sent_count;
    uint64_t now_ns;
    uint64_t sequence;
    uint64_t index[4]; /* of the last report of each node */
};

static void leader_send(void *opaque, const struct kva_message *message)
{
    struct leader *leader = opaque;
    assert_true(leader->sent_count < KVA_COUNT_OF(leader->sent));
    leader->sent[leader->sent_count++] = *message;
}

static struct kva_gmanager_params good_params(void)
{
    struct kva_gmanager_params params = {
        .node = 101,
        .life = 3,
        .instances_max = 3,
        .entries_max = 4,
        .moves_max = 8,
        .round_ns = ROUND_NS,
        .gather_ns = ROUND_NS / 5,
        .loan_ttl_ns = TTL_NS,
        .lease_ttl_ns = TTL_NS,
        .lease_margin_ns = TTL_NS / 4,
        .cost = a100_llama7b(),
    };
    params.plan = kva_plan_defaults(&params.cost);
    return params;
}

/* Elected with revision 7; nodes 1 and 2 are members in lives 11 and 12. */
static void leader_init(struct leader *leader)
{
    memset(leader, 0, sizeof(*leader));
    struct kva_gmanager_params params = good_params();
    struct kva_gmanager_ops ops = {.opaque = leader, .send = leader_send};
    leader->now_ns = 10 * KVA_NS_PER_S;
    assert_int_equal(kva_gmanager_create(&params, &ops, &leader->g, NULL), KVA_OK);
    assert_int_equal(kva_gmanager_member(leader->g, 1, 11), KVA_OK);
    assert_int_equal(kva_gmanager_member(leader->g, 2, 12), KVA_OK);
    kva_gmanager_elected(leader->g, 7, leader->now_ns);
}

/* What node `node` reports; `full`: everything, `round` 0: the newest. */
static void report(struct leader *leader, uint32_t node, uint64_t base, uint64_t index,
                   struct kva_message_load load, const struct kva_message_entry *entries,
                   uint16_t count)
{
    struct kva_message message = {
        .type = KVA_MESSAGE_HEARTBEAT,
        .source = node,
        .target = 101,
        .source_life = 10 + node,
        .sequence = ++leader->sequence,
        .heartbeat = {.revision = 7,
                      .round = leader->g->round,
                      .index = index,
                      .base = base,
                      .load = load,
                      .entry_count = count,
                      .entries = entries},
    };
    kva_gmanager_receive(leader->g, &message);
}

static const struct kva_message *find_sent(const struct leader *leader, enum kva_message_type type)
{
    for (uint32_t i = 0; i < leader->sent_count; i++)
        if (leader->sent[i].type == type)
            return &leader->sent[i];
    return NULL;
}

static void advance(struct leader *leader, uint64_t ns)
{
    leader->now_ns += ns;
    kva_gmanager_kept_alive(leader->g, leader->now_ns);
    kva_gmanager_tick(leader->g, leader->now_ns);
}

/* A full debtor with others waiting, and an empty creditor. */
static const struct kva_message_load debtor_load = {.pages = A100_PAGES,
                                                    .batch = 1,
                                                    .batch_max = 256,
                                                    .tokens = A100_PAGES * 64ull,
                                                    .waiting = 50,
                                                    .head_pages = 8,
                                                    .waiting_pages = 400};
static const struct kva_message_load creditor_load = {.pages = A100_PAGES,
                                                      .free_pages = 1600,
                                                      .lendable_pages = A100_PAGES,
                                                      .batch = 20,
                                                      .batch_max = 256,
                                                      .tokens = 10000};
static const struct kva_message_entry long_request = {
    .request = 5, .generation = 2, .instance = 1, .pages = 1750, .flags = KVA_ENTRY_LOCAL};

static void test_gmanager__a_round_asks_plans_and_orders(void **state KVA_UNUSED)
{
    struct leader leader;
    leader_init(&leader);
    kva_gmanager_tick(leader.g, leader.now_ns);
    assert_int_equal(leader.sent_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(leader.sent[i].type, KVA_MESSAGE_LEAD);
        assert_int_equal(leader.sent[i].lead.revision, 7);
        assert_int_equal(leader.sent[i].lead.full, 1);
        assert_int_equal(leader.sent[i].target_life, 11 + i);
    }
    report(&leader, 1, 0, 1, debtor_load, &long_request, 1);
    report(&leader, 2, 0, 1, creditor_load, NULL, 0);
    advance(&leader, ROUND_NS / 5);
    const struct kva_message *move = find_sent(&leader, KVA_MESSAGE_MOVE);
    assert_non_null(move);
    assert_true(move->target == 1 && move->move.creditor == 2 && move->move.creditor_life == 12);
    assert_true(move->move.request == 5 && move->move.generation == 2 && move->move.pages > 0);
    assert_true(move->move.revision == 7 && move->move.round == 1);
    assert_true(move->move.loan >> KVA_GMANAGER_LOAN_BITS == 7);
    /* Next round: what is known is not asked for again. */
    leader.sent_count = 0;
    advance(&leader, ROUND_NS);
    assert_int_equal(leader.sent[0].lead.round, 2);
    assert_int_equal(leader.sent[0].lead.full, 0);
    kva_gmanager_destroy(leader.g);
}

/* Deposed by an answer that was late, then told again of the same election. */
static void test_gmanager__numbers_of_an_election_are_used_once(void **state KVA_UNUSED)
{
    struct leader leader;
    uint64_t loan[2], round[2];
    leader_init(&leader);
    for (uint32_t i = 0; i < 2; i++) {
        kva_gmanager_deposed(leader.g);
        kva_gmanager_elected(leader.g, 7, leader.now_ns);
        leader.sent_count = 0;
        kva_gmanager_tick(leader.g, leader.now_ns);
        report(&leader, 1, 0, 1 + 2 * i, debtor_load, &long_request, 1);
        report(&leader, 2, 0, 1 + 2 * i, creditor_load, NULL, 0);
        advance(&leader, ROUND_NS / 5);
        loan[i] = find_sent(&leader, KVA_MESSAGE_MOVE)->move.loan;
        round[i] = find_sent(&leader, KVA_MESSAGE_MOVE)->move.round;
    }
    assert_true(loan[1] > loan[0] && round[1] > round[0]);
    kva_gmanager_destroy(leader.g);
}

static void test_gmanager__who_has_not_answered_takes_no_part(void **state KVA_UNUSED)
{
    struct leader leader;
    leader_init(&leader);
    kva_gmanager_tick(leader.g, leader.now_ns);
    report(&leader, 1, 0, 1, debtor_load, &long_request, 1);
    advance(&leader, ROUND_NS / 5);
    assert_null(find_sent(&leader, KVA_MESSAGE_MOVE));
    struct kva_gmanager_stats stats;
    kva_gmanager_get_stats(leader.g, &stats);
    assert_true(stats.plans == 1 && stats.members == 2 && stats.fresh == 1);
    kva_gmanager_destroy(leader.g);
}

/* Neither as a debtor nor as a creditor. */
static void test_gmanager__who_drains_takes_no_part(void **state KVA_UNUSED)
{
    for (uint32_t drains = 1; drains <= 2; drains++) {
        struct leader leader;
        struct kva_message_load debtor = debtor_load, creditor = creditor_load;
        debtor.moving = drains == 1;
        creditor.moving = drains == 2;
        leader_init(&leader);
        kva_gmanager_tick(leader.g, leader.now_ns);
        report(&leader, 1, 0, 1, debtor, &long_request, 1);
        report(&leader, 2, 0, 1, creditor, NULL, 0);
        advance(&leader, ROUND_NS / 5);
        assert_null(find_sent(&leader, KVA_MESSAGE_MOVE));
        struct kva_gmanager_stats stats;
        kva_gmanager_get_stats(leader.g, &stats);
        assert_true(stats.plans == 1 && stats.fresh == 2);
        kva_gmanager_destroy(leader.g);
    }
}

/* Whatever memory it has free: else it would be planned with in every round, and nobody else. */
static void test_gmanager__pages_go_to_nobody_who_is_apart(void **state KVA_UNUSED)
{
    const struct kva_message_entry entries[] = {
        long_request,
        {.request = UINT64_MAX, .loan = 2, .instance = 2, .flags = KVA_ENTRY_APART},
        {.request = UINT64_MAX,
         .loan = 9,
         .instance = 9,
         .flags = KVA_ENTRY_APART}, /* of no member */
    };
    struct kva_message_entry gone = entries[1];
    gone.flags |= KVA_ENTRY_REMOVED;
    struct kva_message_load less = creditor_load;
    less.free_pages -= 100;
    struct leader leader;
    leader_init(&leader);
    assert_int_equal(kva_gmanager_member(leader.g, 3, 13), KVA_OK);
    kva_gmanager_tick(leader.g, leader.now_ns);
    report(&leader, 1, 0, 1, debtor_load, entries, 3);
    report(&leader, 2, 0, 1, creditor_load, NULL, 0);
    report(&leader, 3, 0, 1, less, NULL, 0);
    advance(&leader, ROUND_NS / 5);
    assert_int_equal(find_sent(&leader, KVA_MESSAGE_MOVE)->move.creditor, 3);
    advance(&leader, ROUND_NS);
    leader.sent_count = 0;
    report(&leader, 1, 1, 2, debtor_load, &gone, 1);
    report(&leader, 2, 1, 2, creditor_load, NULL, 0);
    report(&leader, 3, 1, 2, less, NULL, 0);
    advance(&leader, ROUND_NS / 5);
    assert_int_equal(find_sent(&leader, KVA_MESSAGE_MOVE)->move.creditor, 2);
    kva_gmanager_destroy(leader.g);
}

/* What the plan of one round says, of a debtor with these requests and loans. */
static struct kva_gmanager_stats plan_round(struct leader *leader, struct kva_message_load debtor,
                                            const struct kva_message_entry *entries, uint16_t count,
                                            struct kva_message_load creditor)
{
    struct kva_gmanager_stats stats;
    leader->sent_count = 0;
    kva_gmanager_elected(leader->g, 7, leader->now_ns);
    kva_gmanager_tick(leader->g, leader->now_ns);
    report(leader, 1, 0, ++leader->index[1], debtor, entries, count);
    report(leader, 2, 0, ++leader->index[2], creditor, NULL, 0);
    advance(leader, ROUND_NS / 5);
    kva_gmanager_get_stats(leader->g, &stats);
    return stats;
}

/* What it says and does, of one with a long request. */
static struct kva_gmanager_stats plan_once(struct leader *leader, struct kva_message_load debtor,
                                           struct kva_message_load creditor, bool *ret_moves)
{
    struct kva_gmanager_stats stats = plan_round(leader, debtor, &long_request, 1, creditor);
    *ret_moves = find_sent(leader, KVA_MESSAGE_MOVE) != NULL;
    return stats;
}

/* Where prompts take nearly all of the time there is nothing to be won by more rows; by who waits,
 * pages are lent all the same, and the model still says what comes of it. */
static void test_gmanager__prompts_count(void **state KVA_UNUSED)
{
    bool moves;
    struct leader leader;
    struct kva_message_load debtor = debtor_load;
    leader_init(&leader);
    struct kva_gmanager_stats stats = plan_once(&leader, debtor, creditor_load, &moves);
    double without = stats.tokens_per_s_before;
    assert_true(moves && stats.tokens_per_s_after > 1.02 * without);
    debtor.prompt_ns = 10ull * 1000 * 1000 * 1000;
    stats = plan_once(&leader, debtor, creditor_load, &moves);
    assert_false(moves);
    assert_true(stats.tokens_per_s_before < without);
    double prompts = stats.tokens_per_s_before;
    leader.g->params.disregard = true;
    stats = plan_once(&leader, debtor, creditor_load, &moves);
    assert_true(moves);
    assert_true(fabs(stats.tokens_per_s_before - prompts) < 1e-9 * prompts);
    assert_true(stats.tokens_per_s_after < prompts);
    /* However many rows there are. */
    debtor.batch = debtor.batch_max - 6;
    (void)plan_once(&leader, debtor, creditor_load, &moves);
    assert_true(debtor.batch > leader.g->params.plan.batch_threshold && moves);
    leader.g->params.disregard = false;
    (void)plan_once(&leader, debtor, creditor_load, &moves);
    assert_false(moves);
    kva_gmanager_destroy(leader.g);
}

/* What a creditor does not lend, whatever it has free, is not asked of it. */
static void test_gmanager__nobody_is_asked_for_more_than_he_lends(void **state KVA_UNUSED)
{
    bool moves;
    struct leader leader;
    struct kva_message_load creditor = creditor_load;
    leader_init(&leader);
    (void)plan_once(&leader, debtor_load, creditor, &moves);
    assert_true(moves);
    creditor.lendable_pages = 0;
    (void)plan_once(&leader, debtor_load, creditor, &moves);
    assert_false(moves);
    kva_gmanager_destroy(leader.g);
}

/* The creditor says that its steps take twice as long as the constants have it, which are learnt to
 * be so within some rounds; what no device could be is cut. Steps that were reported before, as they
 * are while there are loans, say nothing more, and who has said nothing is as slow as others are. */
static void test_gmanager__steps_say_how_fast_an_instance_is(void **state KVA_UNUSED)
{
    bool moves;
    struct leader leader;
    struct kva_message_load creditor = creditor_load;
    leader_init(&leader);
    const struct kva_cost_params *cost = &leader.g->params.cost;
    struct kva_message_load idle = {
        .pages = A100_PAGES, .free_pages = A100_PAGES, .lendable_pages = A100_PAGES};
    double both = plan_once(&leader, debtor_load, creditor, &moves).tokens_per_s_before;
    double expected = plan_once(&leader, idle, creditor, &moves).tokens_per_s_before;
    creditor.step_millirows = 20500;
    creditor.step_tokens = 10000;
    double layer_s = kva_cost_linear_s(cost, 20.5) + 10000 * cost->attend_token_s;
    creditor.step_ns = (uint64_t)(2e9 * cost->layers * layer_s);
    struct kva_gmanager_stats stats = plan_once(&leader, idle, creditor, &moves);
    double slower = stats.tokens_per_s_before;
    assert_true(fabs(slower - expected / 2) < 1e-6 * expected);
    assert_true(fabs(stats.pace - 2) < 1e-6 && stats.loan_pace == 1);
    double as_slow = plan_once(&leader, debtor_load, creditor, &moves).tokens_per_s_before;
    assert_true(fabs(as_slow - both / 2) < 1e-6 * both);
    creditor.step_ns /= 2;
    double last = plan_once(&leader, idle, creditor, &moves).tokens_per_s_before;
    assert_true(last > slower);
    for (uint32_t round = 0; round < 40; round++) {
        double now = plan_once(&leader, idle, creditor, &moves).tokens_per_s_before;
        assert_true(now == last);
    }
    for (uint32_t round = 0; round < 40; round++) {
        creditor.step_ns++;
        double now = plan_once(&leader, idle, creditor, &moves).tokens_per_s_before;
        assert_true(now > last && now < expected);
        last = now;
    }
    assert_true(last > 0.999 * expected);
    for (uint32_t round = 0; round < 100; round++) {
        creditor.step_ns = KVA_MESSAGE_TTL_MAX_NS - round;
        last = plan_once(&leader, idle, creditor, &moves).tokens_per_s_before;
    }
    assert_true(fabs(last - expected / 8) < 1e-6 * expected);
    kva_gmanager_destroy(leader.g);
}

/* Nobody waits, and 200 of the debtor's pages are lent, or none: what its state is worth. */
static double worth(struct leader *leader, uint32_t lent, struct kva_message_load creditor)
{
    struct kva_message_load debtor = debtor_load;
    struct kva_message_entry entries[] = {
        long_request, {.request = 5, .generation = 2, .loan = 77, .instance = 2, .pages = lent}};
    debtor.waiting = debtor.head_pages = 0, debtor.waiting_pages = 0;
    entries[0].pages -= lent;
    return plan_round(leader, debtor, entries, lent > 0 ? 2 : 1, creditor).tokens_per_s_before;
}

/* The same, computed here, where steps with loans take `pace` times what the model says. */
static double worth_at(const struct kva_cost_params *cost, uint32_t lent, double pace,
                       double *ret_creditor_step_s)
{
    struct kva_cost_load debtor = {.batch = 1,
                                   .tokens = debtor_load.tokens,
                                   .borrowed_tokens = lent * 64ull,
                                   .borrowed_tokens_most = lent * 64ull,
                                   .borrowed_rows = lent > 0,
                                   .loan_pace = pace};
    struct kva_cost_load creditor = {
        .batch = creditor_load.batch, .tokens = creditor_load.tokens, .loan_pace = pace};
    creditor.guest_share =
        kva_cost_guest_share(cost, lent * 64ull, kva_cost_layer_s(cost, &debtor));
    *ret_creditor_step_s = kva_cost_step_s(cost, &creditor);
    return kva_cost_tokens_per_s(cost, &debtor) + kva_cost_tokens_per_s(cost, &creditor);
}

/* Steps with loans are held against what the model says of them, and change what it says of loans
 * alone; who has told nothing is as the others are. */
static void test_gmanager__steps_with_loans_say_what_the_model_leaves_out(void **state KVA_UNUSED)
{
    double step_s;
    struct leader leader;
    struct kva_gmanager_stats stats;
    struct kva_message_load creditor = creditor_load;
    leader_init(&leader);
    const struct kva_cost_params *cost = &leader.g->params.cost;
    double alone = worth(&leader, 0, creditor), expected = worth_at(cost, 200, 1, &step_s);
    assert_true(fabs(worth(&leader, 200, creditor) / expected - 1) < 1e-9);
    creditor.step_loans = 1;
    creditor.step_millirows = 1000 * creditor.batch;
    creditor.step_tokens = creditor.tokens;
    creditor.step_ns = (uint64_t)(1.5e9 * step_s);
    /* Without loans in the picture, a report of steps with loans is of the past. */
    assert_true(fabs(worth(&leader, 0, creditor) / alone - 1) < 1e-9);
    expected = worth_at(cost, 200, 1.5, &step_s);
    assert_true(fabs(worth(&leader, 200, creditor) / expected - 1) < 1e-6);
    assert_true(fabs(worth(&leader, 200, creditor) / expected - 1) < 1e-6); /* the same steps */
    kva_gmanager_get_stats(leader.g, &stats);
    assert_true(fabs(stats.loan_pace - 1.5) < 1e-6 && stats.pace == 1);
    assert_true(fabs(worth(&leader, 0, creditor) / alone - 1) < 1e-9);
    /* Without loans it is forgotten. */
    for (uint32_t round = 0; round < 400; round++)
        (void)worth(&leader, 0, creditor);
    expected = worth_at(cost, 200, 1, &step_s);
    assert_true(fabs(worth(&leader, 200, creditor) / expected - 1) < 1e-3);
    kva_gmanager_destroy(leader.g);
}

/* A link that is measured after the election. */
static void test_gmanager__constants_may_become_better_known(void **state KVA_UNUSED)
{
    bool moves;
    struct kva_err err;
    struct leader leader;
    leader_init(&leader);
    struct kva_cost_params cost = leader.g->params.cost;
    struct kva_plan_params plan = leader.g->params.plan;
    cost.link_latency_s = 1;
    assert_int_equal(kva_gmanager_set_cost(leader.g, &cost, &plan, &err), KVA_OK);
    (void)plan_once(&leader, debtor_load, creditor_load, &moves);
    assert_false(moves);
    cost.link_latency_s = -1;
    assert_int_equal(kva_gmanager_set_cost(leader.g, &cost, &plan, &err), KVA_EINVAL);
    cost.link_latency_s = 5e-6;
    assert_int_equal(kva_gmanager_set_cost(leader.g, &cost, &plan, &err), KVA_OK);
    (void)plan_once(&leader, debtor_load, creditor_load, &moves);
    assert_true(moves);
    kva_gmanager_destroy(leader.g);
}

static void test_gmanager__reports_follow_one_another(void **state KVA_UNUSED)
{
    struct leader leader;
    leader_init(&leader);
    struct kva_gmanager_member *member = &leader.g->members[0];
    struct kva_message_entry entries[] = {
        {.request = 9, .instance = 1, .pages = 3, .flags = KVA_ENTRY_LOCAL},
        {.request = 5, .instance = 1, .pages = 1, .flags = KVA_ENTRY_LOCAL},
        {.request = 5, .loan = 4, .instance = 2, .pages = 2},
    };
    report(&leader, 1, 1, 2, debtor_load, entries, 3); /* of what was never heard */
    assert_false(member->fresh);
    report(&leader, 1, 0, 3, debtor_load, entries, 3);
    assert_true(member->fresh && member->entry_count == 3);
    assert_true(member->entries[0].request == 5 && member->entries[0].loan == 0 &&
                member->entries[1].loan == 4 && member->entries[2].request == 9);
    entries[0].pages = 8;
    entries[1].flags |= KVA_ENTRY_REMOVED;
    report(&leader, 1, 3, 4, debtor_load, entries, 2);
    assert_true(member->entry_count == 2 && member->entries[1].pages == 8);
    report(&leader, 1, 0, 3, debtor_load, entries, 0); /* an older one, late */
    assert_true(member->fresh && member->entry_count == 2 && member->index == 4);
    report(&leader, 1, 5, 6, debtor_load, entries, 0); /* one is missing */
    assert_false(member->fresh);
    leader.sent_count = 0;
    kva_gmanager_tick(leader.g, leader.now_ns);
    assert_int_equal(leader.sent[0].lead.full, 1);
    kva_gmanager_destroy(leader.g);
}

/* What has no room is asked for again, not forgotten. */
static void test_gmanager__a_map_has_an_end(void **state KVA_UNUSED)
{
    struct leader leader;
    leader_init(&leader);
    struct kva_message_entry entries[5];
    for (uint32_t i = 0; i < 5; i++)
        entries[i] = (struct kva_message_entry){
            .request = 5 - i, .instance = 1, .pages = 1, .flags = KVA_ENTRY_LOCAL};
    report(&leader, 1, 0, 1, debtor_load, entries, 5);
    assert_int_equal(leader.g->members[0].entry_count, 4);
    assert_false(leader.g->members[0].fresh);
    assert_int_equal(kva_gmanager_member(leader.g, 3, 13), KVA_OK);
    assert_int_equal(kva_gmanager_member(leader.g, 4, 14), KVA_ELIMIT);
    kva_gmanager_member_gone(leader.g, 1);
    kva_gmanager_member_gone(leader.g, 1);
    assert_int_equal(kva_gmanager_member(leader.g, 4, 14), KVA_OK);
    /* Every member has entries of its own. */
    assert_ptr_not_equal(leader.g->members[0].entries, leader.g->members[1].entries);
    assert_ptr_not_equal(leader.g->members[1].entries, leader.g->members[2].entries);
    kva_gmanager_destroy(leader.g);
}

static void test_gmanager__a_leader_stops_before_its_lease_does(void **state KVA_UNUSED)
{
    struct leader leader;
    leader_init(&leader);
    uint64_t until = leader.now_ns + TTL_NS - TTL_NS / 4;
    assert_true(kva_gmanager_leads(leader.g, until - 1));
    assert_false(kva_gmanager_leads(leader.g, until));
    kva_gmanager_tick(leader.g, until);
    assert_int_equal(leader.sent_count, 0);
    kva_gmanager_kept_alive(leader.g, leader.now_ns + 5);
    assert_true(kva_gmanager_leads(leader.g, until));
    kva_gmanager_kept_alive(leader.g, leader.now_ns); /* answers may come out of order */
    assert_true(kva_gmanager_leads(leader.g, until));
    kva_gmanager_deposed(leader.g);
    assert_false(kva_gmanager_leads(leader.g, leader.now_ns));
    kva_gmanager_destroy(leader.g);
}

static void test_gmanager__a_new_life_is_unknown(void **state KVA_UNUSED)
{
    struct leader leader;
    leader_init(&leader);
    report(&leader, 1, 0, 1, debtor_load, &long_request, 1);
    assert_int_equal(kva_gmanager_member(leader.g, 1, 21), KVA_OK);
    assert_int_equal(leader.g->members[0].entry_count, 0);
    assert_false(leader.g->members[0].fresh);
    report(&leader, 1, 1, 2, debtor_load, &long_request, 1); /* of the old life */
    report(&leader, 3, 0, 1, debtor_load, &long_request, 1); /* no member */
    struct kva_gmanager_stats stats;
    kva_gmanager_get_stats(leader.g, &stats);
    assert_true(stats.strangers == 2 && stats.fresh == 0);
    kva_gmanager_destroy(leader.g);
}

static void refused(struct kva_gmanager_params params, const char *field)
{
    struct kva_gmanager_ops ops = {0};
    struct kva_gmanager *g = NULL;
    struct kva_err err = {0};
    assert_int_equal(kva_gmanager_create(&params, &ops, &g, &err), KVA_EINVAL);
    assert_string_equal(err.param, field);
    assert_null(g);
}

static void test_gmanager__parameters_are_checked(void **state KVA_UNUSED)
{
    struct kva_gmanager_params bad = good_params();
    bad.moves_max = 0;
    refused(bad, "moves_max");
    bad = good_params(), bad.gather_ns = bad.round_ns;
    refused(bad, "gather_ns");
    bad = good_params(), bad.lease_margin_ns = bad.lease_ttl_ns;
    refused(bad, "lease_margin_ns");
    bad = good_params(), bad.instances_max = KVA_PLAN_INSTANCES_MAX + 1;
    refused(bad, "instances_max");
    bad = good_params(), bad.loan_ttl_ns = KVA_MESSAGE_TTL_MAX_NS + 1;
    refused(bad, "loan_ttl_ns");
    bad = good_params(), bad.cost.layers = 0;
    refused(bad, "layers");
    kva_gmanager_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gmanager__a_round_asks_plans_and_orders),
        cmocka_unit_test(test_gmanager__numbers_of_an_election_are_used_once),
        cmocka_unit_test(test_gmanager__who_has_not_answered_takes_no_part),
        cmocka_unit_test(test_gmanager__who_drains_takes_no_part),
        cmocka_unit_test(test_gmanager__pages_go_to_nobody_who_is_apart),
        cmocka_unit_test(test_gmanager__prompts_count),
        cmocka_unit_test(test_gmanager__nobody_is_asked_for_more_than_he_lends),
        cmocka_unit_test(test_gmanager__steps_say_how_fast_an_instance_is),
        cmocka_unit_test(test_gmanager__steps_with_loans_say_what_the_model_leaves_out),
        cmocka_unit_test(test_gmanager__constants_may_become_better_known),
        cmocka_unit_test(test_gmanager__reports_follow_one_another),
        cmocka_unit_test(test_gmanager__a_map_has_an_end),
        cmocka_unit_test(test_gmanager__a_leader_stops_before_its_lease_does),
        cmocka_unit_test(test_gmanager__a_new_life_is_unknown),
        cmocka_unit_test(test_gmanager__parameters_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
