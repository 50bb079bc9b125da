/* test_planner.c - plans on tables: whom Algorithm 1 pairs, and what it leaves open. */
#include "tests/cluster/table.h"

#include <math.h>
#include <string.h>

/* --- Algorithm 1 ------------------------------------------------------------------------------ */

static void test_planner__pages_of_the_longest_go_to_the_freest(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    uint32_t debtor = table_add(&t, 2, 880, 40);
    table_add(&t, 60, 20, 0);
    uint32_t freest = table_add(&t, 60, 8, 0);
    t.requests[0].pages = 500;
    t.requests[1].pages = 1260;
    table_plan(&t);
    assert_true(t.plan.move_count >= 1);
    assert_int_equal(t.plan.moves[0].kind, KVA_PLAN_LEND);
    assert_int_equal(t.plan.moves[0].request, t.requests[1].id);
    assert_int_equal(t.plan.moves[0].debtor, debtor);
    assert_int_equal(t.plan.moves[0].creditor, freest);
    assert_int_equal(t.plan.moves[0].pages % t.params.grain_pages, 0);
    assert_true(t.plan.moves[0].gain > 0);
    assert_true(t.plan.tokens_per_s_after > t.plan.tokens_per_s_before);
}

/* The longest has little left to give: others follow, and those that gave all are not asked. */
static void test_planner__the_next_longest_follows(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 8, 220, 100);
    table_add(&t, 20, 8, 0);
    table_add(&t, 20, 8, 0);
    table_plan(&t);
    uint32_t requests = 0;
    uint64_t last = 0;
    for (uint32_t i = 0; i < t.plan.move_count; i++) {
        assert_true(t.plan.moves[i].pages <= 216);
        requests += t.plan.moves[i].request != last;
        last = t.plan.moves[i].request;
    }
    assert_true(requests > 1);
}

static void test_planner__debtors_with_fewest_rows_come_first(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 4, 440, 50);
    uint32_t fewest = table_add(&t, 1, 1760, 50);
    table_add(&t, 30, 20, 0);
    table_plan(&t);
    assert_true(t.plan.move_count > 0);
    assert_int_equal(t.plan.moves[0].debtor, fewest);
}

static void test_planner__nothing_is_done_where_nothing_is_gained(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    /* Nobody waits, and a short request gains nothing over a link. */
    table_add(&t, 1, 16, 0);
    table_add(&t, 1, 8, 0);
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    /* Enough rows. */
    table_add(&t, 170, 10, 300);
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

static void test_planner__a_creditor_keeps_its_share(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 1, 1760, 300);
    uint32_t creditor = table_add(&t, 20, 80, 0);
    t.params.keep_share = 0.05;
    t.params.usage_threshold = 0.95;
    table_plan(&t);
    uint32_t keep = (uint32_t)ceil(A100_PAGES * 0.05), lent = 0;
    for (uint32_t i = 0; i < t.plan.move_count; i++)
        lent += t.plan.moves[i].pages;
    assert_true(lent > 0 && lent + keep <= t.instances[creditor].free_pages);
    t.params.usage_threshold = 0.5; /* used to more than that */
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

/* --- what the paper leaves open --------------------------------------------------------------- */

/* Memory that its own first in line cannot use yet is lent until it says that it keeps it; where
 * there is other memory, that goes first, even if it is less. */
static void test_planner__who_waits_lends_until_it_keeps(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    uint32_t debtor = table_add(&t, 1, 1760, 300);
    uint32_t creditor = table_add(&t, 20, 60, 3);
    t.instances[creditor].head_pages = t.instances[creditor].free_pages + 1;
    t.instances[creditor].waiting_pages = 3 * t.instances[creditor].head_pages;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.instances[creditor].keeps = false;
    table_plan(&t);
    assert_true(t.plan.move_count > 0);
    assert_int_equal(t.plan.moves[0].debtor, debtor);
    assert_int_equal(t.plan.moves[0].creditor, creditor);
    /* Not while somebody lacks more than there is, and could never gather it. */
    t.requests[t.state.request_count++] = (struct kva_plan_request){
        .id = 9, .instance = creditor, .pages = 5 * A100_PAGES, .head = true};
    t.instances[creditor].head_pages += 5 * A100_PAGES;
    t.instances[creditor].waiting_pages += 5 * A100_PAGES;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.state.request_count--;
    t.instances[creditor].head_pages -= 5 * A100_PAGES;
    t.instances[creditor].waiting_pages -= 5 * A100_PAGES;
    uint32_t other = table_add(&t, 20, 70, 0);
    assert_true(t.instances[other].free_pages < t.instances[creditor].free_pages);
    table_plan(&t);
    assert_true(t.plan.move_count > 0);
    assert_int_equal(t.plan.moves[0].creditor, other);
}

static void test_planner__who_has_borrowed_lends_nothing(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    uint32_t first = table_add(&t, 1, 1700, 50);
    uint32_t second = table_add(&t, 10, 20, 0);
    t.loans[t.state.loan_count++] = (struct kva_plan_loan){
        .id = 1, .request = 2000, .debtor = second, .creditor = first, .pages = 40};
    table_plan(&t);
    for (uint32_t i = 0; i < t.plan.move_count; i++)
        assert_int_equal(t.plan.moves[i].kind, KVA_PLAN_RETURN);
    /* The other way round, the same loan lets more follow. */
    t.loans[0].debtor = first;
    t.loans[0].creditor = second;
    t.loans[0].request = 1000;
    table_plan(&t);
    assert_true(t.plan.move_count > 0);
    assert_int_equal(t.plan.moves[0].creditor, second);
}

/* Reports of two instances need not be of one time: who seems to have both roles is left alone. */
static void test_planner__who_seems_to_have_both_roles_is_left_alone(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    uint32_t both = table_add(&t, 1, 1700, 50), other = table_add(&t, 10, 20, 0);
    table_add(&t, 10, 20, 0); /* which could lend */
    t.loans[0] = (struct kva_plan_loan){
        .id = 1, .request = 1000, .debtor = both, .creditor = other, .pages = 40};
    t.loans[1] = (struct kva_plan_loan){
        .id = 2, .request = 2000, .debtor = other, .creditor = both, .pages = 40};
    t.state.loan_count = 2;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

static void test_planner__who_has_rows_enough_borrows_nothing(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 4, 440, 50);
    table_add(&t, 10, 20, 0);
    t.params.batch_threshold = 4;
    table_plan(&t);
    assert_true(t.plan.move_count > 0);
    t.params.batch_threshold = 3;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

static void test_planner__who_is_closed_takes_no_part(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    uint32_t debtor = table_add(&t, 1, 1760, 50);
    uint32_t creditor = table_add(&t, 10, 20, 0);
    t.instances[creditor].closed = true;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.instances[creditor].closed = false;
    t.instances[debtor].closed = true;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

/* The more wait, the more pages go; a creditor is never one that has requests waiting. */
static void test_planner__waiting_requests_are_what_memory_is_for(void **state KVA_UNUSED)
{
    uint32_t lent[3];
    static const uint32_t waiting[] = {2, 20, 80};
    for (uint32_t i = 0; i < 3; i++) {
        struct table t;
        table_init(&t);
        table_add(&t, 1, 1760, waiting[i]);
        table_add(&t, 10, 20, 0);
        table_plan(&t);
        lent[i] = 0;
        for (uint32_t n = 0; n < t.plan.move_count; n++)
            lent[i] += t.plan.moves[n].pages;
    }
    assert_true(lent[1] > lent[0] && lent[2] > lent[1]);
    struct table t;
    table_init(&t);
    table_add(&t, 1, 1760, 20);
    table_add(&t, 10, 20, 200);
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

static void test_planner__no_step_gets_longer_than_the_bound(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 1, 1760, 200);
    table_add(&t, 10, 20, 0);
    table_plan(&t);
    uint32_t free_lent = 0, bound_lent = 0;
    for (uint32_t n = 0; n < t.plan.move_count; n++)
        free_lent += t.plan.moves[n].pages;
    /* The creditor's step may take 13 ms; alone it takes 9. */
    t.params.step_max_s = 0.013;
    table_plan(&t);
    for (uint32_t n = 0; n < t.plan.move_count; n++)
        bound_lent += t.plan.moves[n].pages;
    assert_true(free_lent > 0 && bound_lent > 0 && bound_lent < free_lent);
}

static void test_planner__a_move_has_to_win_more_than_it_costs(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 1, 1760, 50);
    table_add(&t, 10, 20, 0);
    table_plan(&t);
    assert_true(t.plan.move_count > 0);
    t.params.copy_bytes_per_s = 1e6; /* a page takes 33 s, the horizon is 10 */
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.params = kva_plan_defaults(&t.cost);
    t.params.copy_step_pages = 1e-3; /* as slow: a thousand steps a page */
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.params.copy_step_pages = 1e3;
    table_plan(&t);
    assert_true(t.plan.move_count > 0);
    t.params.copy_step_pages = -1;
    assert_int_equal(table_try(&t, NULL), KVA_EINVAL);
    t.params = kva_plan_defaults(&t.cost);
    t.params.gain_min_share = 100;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

/* A plan carried out leaves nothing to plan: no page goes to and fro. */
static void test_planner__plans_come_to_rest(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 2, 880, 30);
    table_add(&t, 1, 1700, 10);
    table_add(&t, 30, 20, 0);
    table_add(&t, 30, 10, 0);
    uint32_t rounds = 0;
    for (; rounds < 8; rounds++) {
        table_plan(&t);
        if (t.plan.move_count == 0)
            break;
        table_carry_out(&t);
        table_let_in(&t);
    }
    assert_in_range(rounds, 1, 4);
}

/* Steps as long as they have rows: who waits gains nothing, and is lent to only if costs are left out,
 * no more than he needs. */
static void test_planner__costs_may_be_disregarded(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    t.cost.point_count = 2;
    t.cost.points[0] = (struct kva_cost_point){1, 1e-3};
    t.cost.points[1] = (struct kva_cost_point){64, 64e-3};
    t.params = kva_plan_defaults(&t.cost);
    uint32_t debtor = table_add(&t, 2, 880, 5), creditor = table_add(&t, 3, 20, 0);
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    kva_cost_disregard(&t.cost);
    assert_int_equal(kva_cost_check(&t.cost, NULL), KVA_OK);
    t.params = kva_plan_defaults(&t.cost);
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 1);
    assert_int_equal(t.plan.moves[0].kind, KVA_PLAN_LEND);
    assert_int_equal(t.plan.moves[0].debtor, debtor);
    assert_int_equal(t.plan.moves[0].creditor, creditor);
    assert_in_range(t.plan.moves[0].pages, 5 * 8, 5 * 8 + t.params.grain_pages);
    table_carry_out(&t);
    table_let_in(&t);
    assert_int_equal(t.instances[debtor].waiting, 0);
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

static void test_planner__pages_come_home_when_there_is_room(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    uint32_t debtor = table_add(&t, 1, 100, 0), creditor = table_add(&t, 30, 20, 0);
    t.loans[t.state.loan_count++] = (struct kva_plan_loan){
        .id = 77, .request = 1000, .debtor = debtor, .creditor = creditor, .pages = 40};
    t.instances[debtor].tokens += 40 * 64;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 1);
    assert_int_equal(t.plan.moves[0].kind, KVA_PLAN_RETURN);
    assert_int_equal(t.plan.moves[0].loan, 77);
    assert_int_equal(t.plan.moves[0].pages, 40);
    t.instances[debtor].free_pages = 60; /* 88 are kept */
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

/* A request longer than any instance: pages of several, enough for it to start, or none. */
static void test_planner__the_first_in_line_may_need_several(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    uint32_t debtor = table_add(&t, 0, 0, 0);
    for (int i = 0; i < 3; i++)
        table_add(&t, 10, 40, 0);
    t.instances[debtor].waiting = 1;
    t.instances[debtor].head_pages = 4600;
    t.instances[debtor].waiting_pages = 4600;
    uint32_t at = t.state.request_count++;
    t.requests[at] =
        (struct kva_plan_request){.id = 5, .instance = debtor, .pages = 4600, .head = true};
    table_plan(&t);
    uint32_t lent = 0;
    for (uint32_t i = 0; i < t.plan.move_count; i++) {
        assert_int_equal(t.plan.moves[i].request, 5);
        lent += t.plan.moves[i].pages;
    }
    assert_true(t.plan.move_count >= 2 && lent >= 4600 - A100_PAGES);
    /* Two of them: the first by id is served, by the other one as well. */
    uint32_t other = table_add(&t, 0, 0, 0);
    t.instances[other].waiting = 1;
    t.instances[other].head_pages = 6300;
    t.instances[other].waiting_pages = 6300;
    t.requests[t.state.request_count++] =
        (struct kva_plan_request){.id = 6, .instance = other, .pages = 6300, .head = true};
    t.instances[debtor].head_pages = 6300;
    t.instances[debtor].waiting_pages = 6300;
    t.requests[at].pages = 6300;
    table_plan(&t);
    bool lends = false;
    for (uint32_t i = 0; i < t.plan.move_count; i++) {
        assert_int_equal(t.plan.moves[i].debtor, debtor);
        lends |= t.plan.moves[i].creditor == other;
    }
    assert_true(lends);
    t.instances[other].closed = true;
    t.instances[debtor].head_pages = 8000; /* more than all have */
    t.instances[debtor].waiting_pages = 8000;
    t.requests[at].pages = 8000;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
}

/* A debtor whose first request is longer than itself, and three creditors. */
static uint32_t table_long(struct table *t, uint32_t head_pages)
{
    table_init(t);
    uint32_t debtor = table_add(t, 0, 0, 0);
    for (int i = 0; i < 3; i++)
        table_add(t, 10, 40, 0);
    t->instances[debtor].waiting = 1;
    t->instances[debtor].head_pages = head_pages;
    t->instances[debtor].waiting_pages = head_pages;
    t->requests[t->state.request_count++] = (struct kva_plan_request){
        .id = 5, .instance = debtor, .pages = head_pages - 20, .head = true};
    return debtor;
}

static uint32_t lent_in(const struct table *t)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < t->plan.move_count; i++)
        pages += t->plan.moves[i].kind == KVA_PLAN_LEND ? t->plan.moves[i].pages : 0;
    return pages;
}

/* However busy its instance is with others, and when it has waited, whatever they have of its
 * memory. */
static void test_planner__a_long_request_is_not_starved_by_its_instance(void **state KVA_UNUSED)
{
    struct table t;
    uint32_t debtor = table_long(&t, A100_PAGES + 400);
    t.instances[debtor].batch = t.params.batch_threshold + 1;
    t.instances[debtor].tokens = 1000;
    table_plan(&t);
    assert_true(lent_in(&t) >= 400);
    debtor = table_long(&t, A100_PAGES + 400);
    t.instances[debtor].free_pages = 10; /* more is missing now than it has that may go */
    t.instances[debtor].batch = 4;
    t.instances[debtor].tokens = 1000;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.instances[debtor].keeps = true;
    table_plan(&t);
    assert_true(lent_in(&t) >= 400 && lent_in(&t) <= A100_PAGES + 380);
}

/* What may not be lent is not counted on: others are asked for the rest, or for nothing. */
static void test_planner__what_is_not_lendable_stays(void **state KVA_UNUSED)
{
    struct table t;
    table_long(&t, A100_PAGES + 1900);
    t.instances[1].unlendable_pages = t.instances[1].free_pages;
    t.instances[2].unlendable_pages = t.instances[2].free_pages - 700;
    table_plan(&t);
    assert_true(lent_in(&t) >= 1900);
    for (uint32_t i = 0; i < t.plan.move_count; i++) {
        assert_true(t.plan.moves[i].creditor != 1);
        assert_true(t.plan.moves[i].creditor != 2 || t.plan.moves[i].pages <= 700);
    }
    t.instances[2].unlendable_pages = t.instances[2].free_pages - 500;
    table_plan(&t); /* less than all of it is nothing */
    assert_int_equal(t.plan.move_count, 0);
}

/* Of a request that lacks more than so many can lend nothing goes: the rest would be refused. */
static void test_planner__a_request_has_no_more_loans_than_it_may(void **state KVA_UNUSED)
{
    struct table t;
    uint32_t debtor = table_long(&t, A100_PAGES + 2000); /* which two creditors have */
    t.params.request_loans_max = 2;
    table_plan(&t);
    assert_true(t.plan.move_count == 2 && lent_in(&t) >= 2000);
    t.params.request_loans_max = 1;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.params.request_loans_max = 2; /* of which it has one */
    t.loans[t.state.loan_count++] = (struct kva_plan_loan){
        .id = 1, .request = 5, .debtor = debtor, .creditor = 1, .pages = 100};
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 0);
    t.loans[0].request = 6;
    table_plan(&t);
    assert_int_equal(t.plan.move_count, 2);
    /* One that runs lends what it may to one, and where it has its loans the next one does. */
    table_init(&t);
    table_add(&t, 2, 880, 300);
    table_add(&t, 30, 30, 0);
    table_add(&t, 30, 30, 0);
    table_plan(&t);
    assert_true(t.plan.move_count >= 2 && t.plan.moves[1].request == t.plan.moves[0].request);
    t.params.request_loans_max = 1;
    table_plan(&t);
    assert_true(t.plan.move_count >= 1);
    for (uint32_t i = 1; i < t.plan.move_count; i++)
        assert_true(t.plan.moves[i].request != t.plan.moves[i - 1].request);
    uint64_t first = t.plan.moves[0].request;
    t.loans[t.state.loan_count++] =
        (struct kva_plan_loan){.id = 1, .request = first, .debtor = 0, .creditor = 1, .pages = 100};
    table_plan(&t);
    assert_true(t.plan.move_count > 0 && t.plan.moves[0].request != first);
}

static void refused(struct table *t, const char *word)
{
    struct kva_err err = {0};
    assert_int_equal(table_try(t, &err), KVA_EINVAL);
    if (!strstr(err.message, word))
        fail_msg("'%s' does not say '%s'", err.message, word);
}

static void test_planner__a_state_that_cannot_be_is_refused(void **state KVA_UNUSED)
{
    struct table t;
    table_init(&t);
    table_add(&t, 1, 100, 1);
    table_add(&t, 1, 100, 0);
    t.requests[0].instance = 2;
    refused(&t, "instance 2");
    t.requests[0].instance = 0;
    t.state.loan_count = 1;
    t.loans[0] = (struct kva_plan_loan){.id = 3, .debtor = 1, .creditor = 1};
    refused(&t, "loan 3");
    t.state.loan_count = 0;
    t.instances[0].free_pages = A100_PAGES + 1;
    refused(&t, "instance 100");
    t.instances[0].free_pages = 0;
    t.instances[0].unlendable_pages = 1;
    refused(&t, "may not be lent");
    t.instances[0].unlendable_pages = 0;
    t.instances[0].waiting_pages = 7;
    refused(&t, "8");
    t.instances[0].waiting_pages = 8;
    t.params.grain_pages = 0;
    refused(&t, "0 at a time");
    t.params = kva_plan_defaults(&t.cost);
    table_plan(&t);
}

static void test_planner__memory_is_bounded(void **state KVA_UNUSED)
{
    struct table t;
    struct kva_arena arena;
    table_init(&t);
    table_add(&t, 1, 1760, 10);
    table_add(&t, 1, 10, 0);
    kva_arena_init(&arena, 16);
    assert_int_equal(kva_plan_make(&t.params, &t.state, 8, &arena, &t.plan, NULL), KVA_ENOMEM);
    kva_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner__pages_of_the_longest_go_to_the_freest),
        cmocka_unit_test(test_planner__the_next_longest_follows),
        cmocka_unit_test(test_planner__debtors_with_fewest_rows_come_first),
        cmocka_unit_test(test_planner__nothing_is_done_where_nothing_is_gained),
        cmocka_unit_test(test_planner__a_creditor_keeps_its_share),
        cmocka_unit_test(test_planner__who_waits_lends_until_it_keeps),
        cmocka_unit_test(test_planner__who_has_borrowed_lends_nothing),
        cmocka_unit_test(test_planner__who_seems_to_have_both_roles_is_left_alone),
        cmocka_unit_test(test_planner__who_has_rows_enough_borrows_nothing),
        cmocka_unit_test(test_planner__who_is_closed_takes_no_part),
        cmocka_unit_test(test_planner__waiting_requests_are_what_memory_is_for),
        cmocka_unit_test(test_planner__no_step_gets_longer_than_the_bound),
        cmocka_unit_test(test_planner__a_move_has_to_win_more_than_it_costs),
        cmocka_unit_test(test_planner__plans_come_to_rest),
        cmocka_unit_test(test_planner__costs_may_be_disregarded),
        cmocka_unit_test(test_planner__pages_come_home_when_there_is_room),
        cmocka_unit_test(test_planner__the_first_in_line_may_need_several),
        cmocka_unit_test(test_planner__a_long_request_is_not_starved_by_its_instance),
        cmocka_unit_test(test_planner__what_is_not_lendable_stays),
        cmocka_unit_test(test_planner__a_request_has_no_more_loans_than_it_may),
        cmocka_unit_test(test_planner__a_state_that_cannot_be_is_refused),
        cmocka_unit_test(test_planner__memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
