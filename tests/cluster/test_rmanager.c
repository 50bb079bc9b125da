/* test_rmanager.c - one loan at a time, message by message. */
#include "tests/cluster/pair.h"

#include <string.h>

static void test_rmanager__a_loan_goes_and_comes_home(void **state KVA_UNUSED)
{
    struct pair pair;
    struct kva_loan loan;
    pair_init(&pair);
    pair_lend(&pair);
    assert_int_equal(kva_rmanager_lent(pair.nodes[0].rmanager, 5, &loan, 1), 1);
    assert_true(loan.id == 100 && loan.creditor == 2 && loan.first_page == 0 && loan.pages == 8);
    assert_int_equal(kva_rmanager_lent(pair.nodes[0].rmanager, 6, &loan, 1), 0);
    assert_int_equal(pair.nodes[0].free_pages, 58);
    assert_int_equal(pair.nodes[1].guest_pages, 8);
    struct kva_message home = {.type = KVA_MESSAGE_RETURN,
                               .home = {.revision = 1, .round = 1, .loan = 100}};
    pair_order(&pair, home, 1);
    for (int i = 0; i < 6; i++) {
        pair_step(&pair);
        pair_settle(&pair, 0);
    }
    assert_int_equal(pair.nodes[0].home, 1);
    assert_int_equal(pair.nodes[0].taken, 8);
    assert_int_equal(pair.nodes[0].free_pages, 50);
    assert_int_equal(pair.nodes[1].guest_pages, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    assert_int_equal(pair_stats(&pair, 2).guests, 0);
    assert_int_equal(pair.nodes[0].lost, 0);
    pair_finish(&pair);
}

/* The second loan of a request begins where the first one ends. */
static void test_rmanager__loans_of_a_request_do_not_overlap(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    pair_move(&pair, 101, 12, 1, 1);
    const struct kva_message *reserve = pair_last(&pair, KVA_MESSAGE_RESERVE);
    assert_true(reserve->reserve.loan == 101 && reserve->reserve.first_page == 8);
    pair_move(&pair, 101, 12, 1, 1); /* once more: nothing */
    assert_int_equal(pair_stats(&pair, 1).loans_begun, 2);
    pair_finish(&pair);
}

/* Not what others have as well: nothing would be free by it. */
static void test_rmanager__a_loan_begins_behind_what_is_shared(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair.nodes[0].shared_pages = 5;
    pair_move(&pair, 100, 8, 1, 1);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_RESERVE)->reserve.first_page, 5);
    pair_move(&pair, 101, 8, 1, 1);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_RESERVE)->reserve.first_page, 13);
    pair.nodes[0].shared_pages = 0; /* they have ended */
    pair_move(&pair, 102, 4, 1, 1);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_RESERVE)->reserve.first_page, 0);
    pair_finish(&pair);
}

/* Where the pages that are asked for do not lie together, half of them go, or a quarter. */
static void test_rmanager__an_order_may_be_carried_out_in_part(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair.nodes[0].closed_pages = 14;
    pair_move(&pair, 100, 8, 1, 1);
    pair_move(&pair, 101, 12, 1, 1);
    const struct kva_message *reserve = pair_last(&pair, KVA_MESSAGE_RESERVE);
    assert_int_equal(reserve->reserve.first_page, 8);
    assert_int_equal(reserve->reserve.pages, 6);
    pair_move(&pair, 102, 1, 1, 1);
    assert_int_equal(pair_stats(&pair, 1).loans_begun, 2);
    assert_int_equal(pair_stats(&pair, 1).orders_refused, 1);
    pair_finish(&pair);
}

/* What RESERVE could not say: the position behind the last of its tokens has more than 32 bits. */
static void test_rmanager__positions_of_a_loan_have_32_bits(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_move(&pair, 100, KVA_MESSAGE_PAGES_MAX, 1, 1);
    const struct kva_message *reserve = pair_last(&pair, KVA_MESSAGE_RESERVE);
    assert_int_equal(reserve->reserve.first_page, 0);
    assert_int_equal(reserve->reserve.pages, KVA_MESSAGE_PAGES_MAX / 2);
    pair_finish(&pair);
}

static void test_rmanager__pages_go_at_their_rate(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_move(&pair, 100, 20, 1, 1);
    pair_settle(&pair, 0);
    pair_forget(&pair);
    pair_step(&pair);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_PAGES)->pages.pages, 4);
    pair_step(&pair); /* 6 may be on their way */
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_PAGES)->pages.pages, 2);
    pair_step(&pair);
    assert_int_equal(pair_sent(&pair, KVA_MESSAGE_PAGES), 2);
    pair_wait(&pair, 60 * KVA_NS_PER_MS); /* both were lost: again, from the first */
    pair_forget(&pair);
    pair_step(&pair);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_PAGES)->pages.first_page, 0);
    pair_finish(&pair);
}

static void test_rmanager__nobody_has_both_roles(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    /* The creditor is ordered to lend. */
    struct kva_message move = {
        .type = KVA_MESSAGE_MOVE,
        .move = {.revision = 1,
                 .round = 1,
                 .loan = 200,
                 .request = 5,
                 .generation = 3,
                 .creditor = 1,
                 .creditor_life = 11,
                 .pages = 1,
                 .ttl_ns = PAIR_TTL_NS},
    };
    pair_order(&pair, move, 2);
    assert_int_equal(pair_stats(&pair, 2).orders_refused, 1);
    /* The debtor is asked to hold pages. */
    struct kva_message reserve = {
        .type = KVA_MESSAGE_RESERVE,
        .source = 3,
        .target = 1,
        .source_life = 1,
        .target_life = 11,
        .sequence = 1,
        .reserve = {.loan = 300, .request = 1, .pages = 1, .ttl_ns = PAIR_TTL_NS},
    };
    kva_rmanager_receive(pair.nodes[0].rmanager, &reserve, pair.now_ns);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_REFUSE)->refuse.reason, KVA_REFUSAL_ROLE);
    pair_finish(&pair);
}

static void test_rmanager__memory_and_tables_have_ends(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_move(&pair, 100, 51, 1, 1); /* 50 are free */
    pair_settle(&pair, 0);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_REFUSE)->refuse.reason, KVA_REFUSAL_MEMORY);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    pair.nodes[1].free_pages = 100;
    pair_move(&pair, 101, 61, 1, 1); /* 60 may be lent */
    pair_settle(&pair, 0);
    assert_int_equal(pair_stats(&pair, 2).guests_refused, 2);
    for (uint64_t loan = 102; loan < 106; loan++)
        pair_move(&pair, loan, 1, 1, 1); /* 3 have room */
    assert_int_equal(pair_stats(&pair, 1).loans, 3);
    assert_int_equal(pair_stats(&pair, 1).orders_refused, 1);
    pair_finish(&pair);
}

static void test_rmanager__only_the_newest_leader_is_obeyed(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    struct kva_message lead = {.type = KVA_MESSAGE_LEAD, .lead = {.revision = 7, .round = 4}};
    pair_order(&pair, lead, 1);
    pair_move(&pair, 100, 1, 6, 9);
    pair_move(&pair, 101, 1, 7, 3);
    assert_int_equal(pair_stats(&pair, 1).orders_stale, 2);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    pair_move(&pair, 102, 1, 7, 4);
    pair_move(&pair, 103, 1, 8, 1); /* a new one, whose LEAD is late */
    assert_int_equal(pair_stats(&pair, 1).loans, 2);
    pair_move(&pair, 104, 1, 7, 5);
    assert_int_equal(pair_stats(&pair, 1).orders_stale, 3);
    pair.nodes[0].refuses = true;
    pair_move(&pair, 105, 1, 8, 1);
    assert_int_equal(pair_stats(&pair, 1).orders_refused, 1);
    pair_finish(&pair);
}

static void test_rmanager__what_is_repeated_is_done_once(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_move(&pair, 100, 8, 1, 1);
    struct kva_message reserve = *pair_last(&pair, KVA_MESSAGE_RESERVE);
    kva_rmanager_receive(pair.nodes[1].rmanager, &reserve, pair.now_ns);
    kva_rmanager_receive(pair.nodes[1].rmanager, &reserve, pair.now_ns);
    assert_int_equal(pair_stats(&pair, 2).duplicates, 1);
    /* Asked again, since the answer was lost: the same loan, accepted again. */
    pair_forget(&pair);
    pair_wait(&pair, 60 * KVA_NS_PER_MS);
    pair_settle(&pair, KVA_MESSAGE_RESERVE);
    assert_int_equal(pair_sent(&pair, KVA_MESSAGE_RESERVE), 1);
    assert_int_equal(pair_sent(&pair, KVA_MESSAGE_ACCEPT), 1);
    assert_int_equal(pair.nodes[1].guest_pages, 8);
    pair_finish(&pair);
}

/* The debtor stops to rely on the pages before the creditor gives them to others. */
static void test_rmanager__the_debtor_knows_first(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    uint64_t begin_ns = pair.now_ns, lost_ns = 0, freed_ns = 0;
    while (pair.now_ns < begin_ns + 2 * PAIR_TTL_NS) {
        pair_wait(&pair, 10 * KVA_NS_PER_MS);
        if (lost_ns == 0 && pair.nodes[0].lost)
            lost_ns = pair.now_ns;
        if (freed_ns == 0 && pair.nodes[1].freed)
            freed_ns = pair.now_ns;
    }
    assert_true(lost_ns > 0 && lost_ns < freed_ns);
    assert_true(freed_ns <= begin_ns + PAIR_TTL_NS + 10 * KVA_NS_PER_MS);
    assert_int_equal(pair.nodes[0].lost, 1);
    pair_wait(&pair, 2 * PAIR_TTL_NS);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    pair_finish(&pair);
}

static void
test_rmanager__a_loan_that_fails_before_the_switch_costs_nothing(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_move(&pair, 100, 20, 1, 1);
    pair_settle(&pair, 0);
    pair_step(&pair);
    for (int i = 0; i < 30; i++)
        pair_wait(&pair, 100 * KVA_NS_PER_MS);
    assert_int_equal(pair.nodes[0].lost, 0);
    assert_int_equal(pair.nodes[0].lent, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    assert_int_equal(pair_stats(&pair, 2).guests_expired, 1);
    pair_finish(&pair);
}

static void test_rmanager__renewals_keep_a_loan(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    for (int i = 0; i < 50; i++) {
        pair_wait(&pair, 100 * KVA_NS_PER_MS);
        pair_settle(&pair, 0);
        pair_forget(&pair);
    }
    assert_int_equal(pair.nodes[0].lost, 0);
    assert_int_equal(pair.nodes[1].guest_pages, 8);
    kva_rmanager_request_end(pair.nodes[0].rmanager, 5, 3, pair.now_ns);
    pair_settle(&pair, 0);
    assert_int_equal(pair.nodes[1].guest_pages, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    pair_finish(&pair);
}

/* Nothing is received or done between steps of three quarters of a ttl, of the debtor or of the
 * creditor, which begin when the next renewal is about to be due. */
static void test_rmanager__a_long_step_loses_no_loan(void **state KVA_UNUSED)
{
    const uint64_t before_ns = PAIR_TTL_NS / 16 - 1, step_ns = PAIR_TTL_NS * 3 / 4;
    for (uint32_t busy = 0; busy < 2; busy++) {
        struct pair pair;
        pair_init(&pair);
        pair_lend(&pair);
        struct kva_rmanager *idle = pair.nodes[1 - busy].rmanager;
        for (int i = 0; i < 20; i++) {
            pair_wait(&pair, before_ns);
            pair_settle(&pair, 0);
            pair_forget(&pair);
            const uint64_t end_ns = pair.now_ns + step_ns;
            for (; pair.now_ns < end_ns; pair.now_ns += KVA_NS_PER_MS)
                kva_rmanager_tick(idle, pair.now_ns);
            pair_settle(&pair, 0); /* who was busy hears first, then looks at the time */
            pair_wait(&pair, 0);
            pair_settle(&pair, 0);
            assert_int_equal(pair.nodes[0].lost, 0);
            assert_int_equal(pair.nodes[1].guest_pages, 8);
        }
        pair_finish(&pair);
    }
}

static void test_rmanager__a_recall_brings_pages_home_or_loses_them(void **state KVA_UNUSED)
{
    for (int room = 0; room < 2; room++) {
        struct pair pair;
        pair_init(&pair);
        pair_lend(&pair);
        pair.nodes[0].free_pages = room ? 58 : 7;
        kva_rmanager_reclaim(pair.nodes[1].rmanager, 3, pair.now_ns);
        kva_rmanager_reclaim(pair.nodes[1].rmanager, 8, pair.now_ns); /* it comes already */
        assert_int_equal(pair_sent(&pair, KVA_MESSAGE_RECALL), 1);
        for (int i = 0; i < 5; i++) {
            pair_settle(&pair, 0);
            pair_step(&pair);
            pair_wait(&pair, 100 * KVA_NS_PER_MS);
        }
        pair_settle(&pair, 0);
        assert_int_equal(pair.nodes[0].home, room);
        assert_int_equal(pair.nodes[0].lost, !room);
        assert_int_equal(pair.nodes[1].guest_pages, 0);
        pair_finish(&pair);
    }
}

/* Whatever the rate is, what a creditor wants back comes: its deadline does not wait. */
static void test_rmanager__what_is_recalled_comes_by_a_page_a_step_at_least(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    pair.step_pages = 0;
    kva_rmanager_reclaim(pair.nodes[1].rmanager, 1, pair.now_ns);
    pair_settle(&pair, 0);
    pair_forget(&pair);
    pair_step(&pair);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_PULL)->pull.pages, 1);
    pair_finish(&pair);
}

static void test_rmanager__nothing_else_is_copied_without_pages(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair.step_pages = 0;
    pair_move(&pair, 100, 20, 1, 1);
    pair_settle(&pair, 0);
    pair_step(&pair);
    assert_int_equal(pair_sent(&pair, KVA_MESSAGE_PAGES), 0);
    pair.step_pages = 1;
    pair_step(&pair);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_PAGES)->pages.pages, 1);
    pair_finish(&pair);
}

/* A debtor may ask for more than this creditor has room for on its way: the whole loan, here. */
static void test_rmanager__a_pull_is_answered_with_no_more_than_may_go(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    pair_forget(&pair);
    struct kva_message pull = {
        .type = KVA_MESSAGE_PULL,
        .source = 1,
        .target = 2,
        .source_life = 11,
        .target_life = 12,
        .sequence = 1000,
        .pull = {.loan = 100, .pages = 8},
    };
    kva_rmanager_receive(pair.nodes[1].rmanager, &pull, pair.now_ns);
    const struct kva_message *pages = pair_last(&pair, KVA_MESSAGE_PAGES);
    assert_true(pages->pages.first_page == 0 && pages->pages.home);
    assert_int_equal(pages->pages.pages, 6);
    pull.pull.first_page = 6, pull.pull.pages = 2, pull.sequence++;
    kva_rmanager_receive(pair.nodes[1].rmanager, &pull, pair.now_ns);
    assert_int_equal(pair_last(&pair, KVA_MESSAGE_PAGES)->pages.pages, 2);
    pair_finish(&pair);
}

/* A debtor that does not hear of the recall renews until the deadline, and no longer. */
static void test_rmanager__a_recall_ends_in_any_case(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    uint64_t begin_ns = pair.now_ns;
    kva_rmanager_reclaim(pair.nodes[1].rmanager, 8, pair.now_ns);
    while (pair.nodes[1].guest_pages > 0) {
        pair.delivered = pair.sent_count; /* RECALL is lost */
        pair_wait(&pair, 50 * KVA_NS_PER_MS);
        uint32_t from = pair.delivered;
        for (uint32_t i = from; i < pair.sent_count; i++)
            if (pair.sent[i].type == KVA_MESSAGE_RECALL)
                pair.sent[i].target = 3;
        pair_settle(&pair, 0);
        pair_forget(&pair);
        assert_true(pair.now_ns < begin_ns + 10 * PAIR_TTL_NS);
    }
    assert_in_range(pair.now_ns - begin_ns, 400 * KVA_NS_PER_MS,
                    400 * KVA_NS_PER_MS + PAIR_TTL_NS + 100 * KVA_NS_PER_MS);
    assert_int_equal(pair.nodes[0].lost, 1);
    pair_finish(&pair);
}

static void test_rmanager__a_new_life_holds_nothing(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    /* The creditor in its next life, which says anything at all. */
    struct kva_message message = {
        .type = KVA_MESSAGE_RELEASED,
        .source = 2,
        .target = 1,
        .source_life = 13,
        .sequence = 1,
        .loan = {.loan = 1},
    };
    kva_rmanager_receive(pair.nodes[0].rmanager, &message, pair.now_ns);
    assert_int_equal(pair.nodes[0].lost, 1);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    /* The debtor in its next life. */
    message.source = 1, message.target = 2, message.source_life = 14;
    kva_rmanager_receive(pair.nodes[1].rmanager, &message, pair.now_ns);
    assert_int_equal(pair.nodes[1].guest_pages, 0);
    /* What the last life sent comes late. */
    message.source_life = 11, message.sequence = 9;
    kva_rmanager_receive(pair.nodes[1].rmanager, &message, pair.now_ns);
    assert_int_equal(pair_stats(&pair, 2).strangers, 1);
    pair_finish(&pair);
}

static void test_rmanager__a_broken_link_loses_what_lies_behind_it(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    pair_move(&pair, 101, 4, 1, 1);
    pair_settle(&pair, 0);
    kva_rmanager_peer_lost(pair.nodes[0].rmanager, 3, pair.now_ns);
    assert_int_equal(pair.nodes[0].lost, 0);
    kva_rmanager_peer_lost(pair.nodes[0].rmanager, 2, pair.now_ns);
    assert_int_equal(pair.nodes[0].lost, 1);
    pair_settle(&pair, 0); /* it works again: both are released */
    assert_int_equal(pair.nodes[1].guest_pages, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    pair_finish(&pair);
}

/* --- reports ---------------------------------------------------------------------------------- */

static const struct kva_message *report(struct pair *pair, uint64_t revision, uint64_t round,
                                        bool full)
{
    struct kva_message lead = {.type = KVA_MESSAGE_LEAD,
                               .lead = {.revision = revision, .round = round, .full = full}};
    pair_forget(pair);
    pair_order(pair, lead, 1);
    return pair_last(pair, KVA_MESSAGE_HEARTBEAT);
}

static void test_rmanager__a_loan_that_nobody_takes_back_moves_nothing(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_lend(&pair);
    kva_rmanager_peer_lost(pair.nodes[0].rmanager, 2, pair.now_ns); /* and it never answers */
    const struct kva_message *heartbeat = report(&pair, 1, 3, true);
    assert_int_equal(heartbeat->heartbeat.load.moving, 0);
    assert_int_equal(heartbeat->heartbeat.load.borrowed_pages, 0);
    assert_int_equal(pair_stats(&pair, 1).loans, 1); /* being released, for two ttl */
    pair_finish(&pair);
}

/* All pages are there, and nobody could be asked for attention to them: in the next step they would be
 * lost. */
static void test_rmanager__a_loan_waits_until_its_creditor_can_be_asked(void **state KVA_UNUSED)
{
    for (int comes = 0; comes < 2; comes++) {
        struct pair pair;
        pair_init(&pair);
        pair.nodes[0].unreached = true;
        pair_move(&pair, 100, 8, 1, 1);
        for (int i = 0; i < 9; i++) {
            pair_settle(&pair, 0);
            pair_step(&pair);
            pair_wait(&pair, PAIR_TTL_NS / 10);
        }
        assert_int_equal(pair_stats(&pair, 1).loans, 1);
        assert_int_equal(pair.nodes[1].taken, 8);
        assert_int_equal(pair.nodes[0].lent, 0);
        pair.nodes[0].unreached = !comes;
        for (int i = 0; i < 5; i++) {
            pair_settle(&pair, 0);
            pair_step(&pair);
            pair_wait(&pair, PAIR_TTL_NS / 10);
        }
        pair_settle(&pair, 0);
        assert_int_equal(pair.nodes[0].lent, comes);
        assert_int_equal(pair_stats(&pair, 1).loans, comes);
        assert_int_equal(pair.nodes[1].guest_pages, comes ? 8 : 0);
        assert_int_equal(pair.nodes[0].lost, 0);
        pair_finish(&pair);
    }
}

static void assert_apart(struct pair *pair, uint64_t round, bool apart)
{
    const struct kva_message *beat = report(pair, 1, round, true);
    uint32_t count = 0;
    for (uint32_t i = 0; i < beat->heartbeat.entry_count; i++) {
        const struct kva_message_entry *entry = &beat->heartbeat.entries[i];
        count += entry->flags == KVA_ENTRY_APART && entry->instance == 2 && entry->loan == 2;
    }
    assert_int_equal(count, apart);
}

/* The leader is told of a creditor to which nothing can go, for as long as that is so: it would plan
 * with it in every round. */
static void test_rmanager__reports_say_who_cannot_be_lent_to(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair.nodes[0].apart = true;
    assert_apart(&pair, 1, false); /* nothing should have gone there */
    pair_move(&pair, 100, 8, 1, 1);
    pair_move(&pair, 101, 8, 1, 1);
    assert_int_equal(pair_stats(&pair, 1).orders_refused, 2);
    assert_int_equal(pair_stats(&pair, 1).loans, 0);
    assert_apart(&pair, 2, true);
    pair_wait(&pair, 10 * PAIR_TTL_NS);
    assert_apart(&pair, 3, true);
    pair.nodes[0].apart = false;
    assert_apart(&pair, 4, false);
    pair_finish(&pair);
}

/* The same where it may be asked, but does not answer: others have their turn for a ttl. */
static void test_rmanager__who_does_not_answer_is_not_lent_to_for_a_ttl(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair_move(&pair, 100, 8, 1, 1);
    pair_wait(&pair, PAIR_TTL_NS - 1);
    assert_apart(&pair, 1, false);
    pair_wait(&pair, 1);
    assert_apart(&pair, 2, true);
    pair_wait(&pair, PAIR_TTL_NS - 1);
    assert_apart(&pair, 3, true);
    pair_wait(&pair, 1);
    assert_apart(&pair, 4, false);
    pair_finish(&pair);
}

static void test_rmanager__reports_say_what_has_changed(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    struct pair_node *node = &pair.nodes[0];
    node->request_count = 2;
    node->requests[0] =
        (struct kva_message_entry){.request = 8, .pages = 4, .flags = KVA_ENTRY_LOCAL};
    node->requests[1] =
        (struct kva_message_entry){.request = 5, .pages = 30, .flags = KVA_ENTRY_LOCAL};
    const struct kva_message *beat = report(&pair, 1, 1, false);
    assert_true(beat->heartbeat.base == 0 && beat->heartbeat.index == 1); /* it is new: all */
    assert_int_equal(beat->heartbeat.entry_count, 2);
    assert_int_equal(beat->heartbeat.entries[0].request, 5);
    beat = report(&pair, 1, 1, false);
    assert_true(beat->heartbeat.base == 1 && beat->heartbeat.entry_count == 0);
    pair_lend(&pair);
    node->request_count = 1;
    node->requests[0] =
        (struct kva_message_entry){.request = 5, .pages = 22, .flags = KVA_ENTRY_LOCAL};
    beat = report(&pair, 1, 3, false);
    assert_int_equal(beat->heartbeat.entry_count, 3);
    assert_int_equal(beat->heartbeat.entries[0].pages, 22);
    assert_int_equal(beat->heartbeat.entries[1].loan, 100);
    assert_int_equal(beat->heartbeat.entries[1].instance, 2);
    assert_int_equal(beat->heartbeat.entries[2].flags, KVA_ENTRY_LOCAL | KVA_ENTRY_REMOVED);
    assert_int_equal(beat->heartbeat.load.borrowed_pages, 8);
    beat = report(&pair, 1, 4, true);
    assert_true(beat->heartbeat.base == 0 && beat->heartbeat.entry_count == 2);
    beat = report(&pair, 2, 1, false); /* another leader: all */
    assert_true(beat->heartbeat.base == 0 && beat->heartbeat.entry_count == 2);
    pair_finish(&pair);
}

static void test_rmanager__long_reports_come_in_pieces(void **state KVA_UNUSED)
{
    struct pair pair;
    pair_init(&pair);
    pair.nodes[0].request_count = 1200;
    for (uint32_t i = 0; i < 1200; i++)
        pair.nodes[0].requests[i] =
            (struct kva_message_entry){.request = 1 + i, .pages = 1, .flags = KVA_ENTRY_LOCAL};
    report(&pair, 1, 1, false);
    assert_int_equal(pair_sent(&pair, KVA_MESSAGE_HEARTBEAT), 3);
    uint32_t entries = 0;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(pair.sent[i].heartbeat.index, i + 1);
        assert_int_equal(pair.sent[i].heartbeat.base, i);
        entries += pair.sent[i].heartbeat.entry_count;
    }
    assert_int_equal(entries, 1200);
    pair_finish(&pair);
}

static void test_rmanager__parameters_are_checked(void **state KVA_UNUSED)
{
    struct kva_rmanager_params good = {.node = 1,
                                       .life = 1,
                                       .loans_max = 1,
                                       .peers_max = 1,
                                       .entries_max = 1,
                                       .unacked_pages = 1,
                                       .retry_ns = 1,
                                       .recall_within_ns = 1};
    struct kva_rmanager_ops ops = {0};
    struct kva_rmanager *r = NULL;
    struct kva_err err = {0};
    assert_int_equal(kva_rmanager_create(&good, &ops, &r, &err), KVA_OK);
    kva_rmanager_destroy(r);
    kva_rmanager_destroy(NULL);
    struct kva_rmanager_params bad = good;
    bad.unacked_pages = 0;
    assert_int_equal(kva_rmanager_create(&bad, &ops, &r, &err), KVA_EINVAL);
    assert_string_equal(err.param, "unacked_pages");
    bad = good, bad.recall_within_ns = KVA_MESSAGE_TTL_MAX_NS + 1;
    assert_int_equal(kva_rmanager_create(&bad, &ops, &r, &err), KVA_EINVAL);
    assert_string_equal(err.param, "recall_within_ns");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmanager__a_loan_goes_and_comes_home),
        cmocka_unit_test(test_rmanager__loans_of_a_request_do_not_overlap),
        cmocka_unit_test(test_rmanager__a_loan_begins_behind_what_is_shared),
        cmocka_unit_test(test_rmanager__an_order_may_be_carried_out_in_part),
        cmocka_unit_test(test_rmanager__positions_of_a_loan_have_32_bits),
        cmocka_unit_test(test_rmanager__pages_go_at_their_rate),
        cmocka_unit_test(test_rmanager__nobody_has_both_roles),
        cmocka_unit_test(test_rmanager__memory_and_tables_have_ends),
        cmocka_unit_test(test_rmanager__only_the_newest_leader_is_obeyed),
        cmocka_unit_test(test_rmanager__what_is_repeated_is_done_once),
        cmocka_unit_test(test_rmanager__the_debtor_knows_first),
        cmocka_unit_test(test_rmanager__a_loan_that_fails_before_the_switch_costs_nothing),
        cmocka_unit_test(test_rmanager__renewals_keep_a_loan),
        cmocka_unit_test(test_rmanager__a_long_step_loses_no_loan),
        cmocka_unit_test(test_rmanager__a_recall_brings_pages_home_or_loses_them),
        cmocka_unit_test(test_rmanager__what_is_recalled_comes_by_a_page_a_step_at_least),
        cmocka_unit_test(test_rmanager__nothing_else_is_copied_without_pages),
        cmocka_unit_test(test_rmanager__a_pull_is_answered_with_no_more_than_may_go),
        cmocka_unit_test(test_rmanager__a_recall_ends_in_any_case),
        cmocka_unit_test(test_rmanager__a_new_life_holds_nothing),
        cmocka_unit_test(test_rmanager__a_broken_link_loses_what_lies_behind_it),
        cmocka_unit_test(test_rmanager__a_loan_that_nobody_takes_back_moves_nothing),
        cmocka_unit_test(test_rmanager__a_loan_waits_until_its_creditor_can_be_asked),
        cmocka_unit_test(test_rmanager__reports_say_who_cannot_be_lent_to),
        cmocka_unit_test(test_rmanager__who_does_not_answer_is_not_lent_to_for_a_ttl),
        cmocka_unit_test(test_rmanager__reports_say_what_has_changed),
        cmocka_unit_test(test_rmanager__long_reports_come_in_pieces),
        cmocka_unit_test(test_rmanager__parameters_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
