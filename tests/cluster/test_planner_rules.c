/* test_planner_rules.c - what no plan may do, whatever the state. */
#include "tests/cluster/table.h"
#include "tests/random.h"

#include <math.h>
#include <stdio.h>

static void random_table(struct table *t, uint64_t seed)
{
    uint64_t rng = seed * 31;
    table_init(t);
    uint32_t count = 2 + kva_test_below(&rng, INSTANCES_MAX - 2);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t batch = 1 + kva_test_below(&rng, kva_test_below(&rng, 2) ? 8 : 60);
        uint32_t pages = 1 + kva_test_below(&rng, A100_PAGES / batch);
        table_add(t, kva_min_u32(batch, 8), pages,
                  kva_test_below(&rng, 2) * kva_test_below(&rng, 100));
        t->instances[i].keeps = t->instances[i].waiting > 0 && seed % 2;
        t->instances[i].closed = kva_test_below(&rng, 10) == 0;
    }
    if (kva_test_below(&rng, 2))
        t->params.step_max_s = 0.01 + 0.001 * kva_test_below(&rng, 60);
    if (kva_test_below(&rng, 4) == 0) {
        uint32_t at = t->state.request_count++, home = kva_test_below(&rng, count);
        t->requests[at] = (struct kva_plan_request){
            .id = 9, .instance = home, .pages = 1000 + kva_test_below(&rng, 9000), .head = true};
        t->instances[home].waiting = 1;
        t->instances[home].head_pages = t->requests[at].pages;
        t->instances[home].waiting_pages = t->requests[at].pages;
    }
}

/* Between some of them no pages can go. */
static void part_some(struct table *t, uint64_t seed)
{
    uint64_t rng = seed;
    uint32_t count = t->state.instance_count;
    if (seed % 3 > 0)
        return;
    for (uint32_t i = 0; i < count * count; i++)
        t->apart[i] = kva_test_below(&rng, 6) == 0;
    t->state.apart = t->apart;
}

static bool is_apart(const struct table *t, const struct kva_plan_move *move)
{
    return t->state.apart &&
           t->state.apart[move->debtor * t->state.instance_count + move->creditor];
}

static void check_plan(const struct table *t)
{
    uint32_t taken[INSTANCES_MAX] = {0}, roles[INSTANCES_MAX] = {0};
    for (uint32_t i = 0; i < t->state.loan_count; i++) {
        roles[t->loans[i].debtor] |= 1;
        roles[t->loans[i].creditor] |= 2;
    }
    for (uint32_t i = 0; i < t->plan.move_count; i++) {
        const struct kva_plan_move *move = &t->plan.moves[i];
        assert_true(move->pages > 0 && move->debtor != move->creditor);
        assert_false(t->instances[move->debtor].closed || t->instances[move->creditor].closed);
        assert_false(move->kind == KVA_PLAN_LEND && move->request != 9 &&
                     t->instances[move->creditor].keeps);
        if (move->kind == KVA_PLAN_RETURN)
            continue;
        assert_false(is_apart(t, move));
        taken[move->creditor] += move->pages;
        roles[move->debtor] |= 1;
        roles[move->creditor] |= 2;
    }
    for (uint32_t i = 0; i < t->state.instance_count; i++) {
        assert_true(roles[i] != 3);
        assert_true(taken[i] <= t->instances[i].free_pages);
    }
    for (uint32_t r = 0; r < t->state.request_count; r++) {
        uint32_t gone = 0;
        for (uint32_t i = 0; i < t->plan.move_count; i++)
            if (t->plan.moves[i].request == t->requests[r].id &&
                t->plan.moves[i].kind == KVA_PLAN_LEND)
                gone += t->plan.moves[i].pages;
        assert_true(gone == 0 || gone + t->params.home_pages_min <= t->requests[r].pages);
    }
}

/* What fits nowhere is served whatever it costs. */
static bool gathers(const struct table *t)
{
    for (uint32_t i = 0; i < t->plan.move_count; i++)
        if (t->plan.moves[i].request == 9)
            return true;
    return false;
}

/* Nobody waits any more, and on half of the instances only what has pages elsewhere goes on. */
static void end_requests(struct table *t, uint64_t seed)
{
    uint64_t rng = seed;
    for (uint32_t i = 0; i < t->state.instance_count; i++) {
        struct kva_plan_instance *instance = &t->instances[i];
        uint32_t borrowed = 0, lent = 0;
        instance->waiting = instance->head_pages = 0;
        instance->waiting_pages = 0;
        for (uint32_t n = 0; n < t->state.loan_count; n++) {
            borrowed += t->loans[n].debtor == i ? t->loans[n].pages : 0;
            lent += t->loans[n].creditor == i ? t->loans[n].pages : 0;
        }
        if (lent > 0 || kva_test_below(&rng, 2))
            continue;
        instance->batch = 1;
        instance->free_pages = instance->pages - 8;
        instance->tokens = (borrowed + 8) * 64ull;
    }
}

static void test_planner__no_plan_breaks_a_rule(void **state KVA_UNUSED)
{
    uint32_t moves = 0, returns = 0, gathered = 0;
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        struct table t;
        random_table(&t, seed);
        part_some(&t, seed);
        for (uint32_t round = 0; round < 3; round++) {
            table_plan(&t);
            check_plan(&t);
            assert_true(gathers(&t) ||
                        t.plan.tokens_per_s_after >= t.plan.tokens_per_s_before * 0.9999);
            moves += t.plan.move_count;
            for (uint32_t i = 0; i < t.plan.move_count; i++) {
                returns += t.plan.moves[i].kind == KVA_PLAN_RETURN;
                gathered += t.plan.moves[i].request == 9;
            }
            table_carry_out(&t);
            table_let_in(&t);
            end_requests(&t, seed + round);
            uint32_t left = 0;
            for (uint32_t i = 0; i < t.state.request_count; i++)
                if (t.requests[i].id != 9)
                    t.requests[left++] = t.requests[i];
            t.state.request_count = left;
        }
    }
    printf("%u moves, %u of them home, %u for requests that fit nowhere\n", moves, returns,
           gathered);
    assert_true(moves > 1000 && returns > 50 && gathered > 50);
}

/* What is scanned in steps is about as good as trying all. */
static void test_planner__the_scan_finds_what_trying_all_finds(void **state KVA_UNUSED)
{
    uint32_t plans = 0;
    for (uint32_t waiting = 1; waiting < 150; waiting += 7) {
        struct table t;
        table_init(&t);
        table_add(&t, 1, 1760, waiting);
        table_add(&t, 30, 8, 0);
        t.params.gain_min_share = 0;
        t.params.horizon_s = 1e9; /* copying costs nothing: the best gain is the best choice */
        table_plan(&t);
        double best = 0, found = t.plan.move_count > 0 ? t.plan.moves[0].gain : 0;
        uint32_t most = t.instances[1].free_pages - 88;
        for (uint32_t pages = 4; pages <= most; pages += 4) {
            struct kva_arena arena;
            double gain = 0;
            kva_arena_init(&arena, 1u << 20);
            assert_int_equal(kva_plan_gain(&t.params, &t.state, 0, 1, pages, &arena, &gain, NULL),
                             KVA_OK);
            best = fmax(best, gain);
            kva_arena_finish(&arena);
        }
        assert_true(found >= 0.98 * best);
        plans += found > 0;
    }
    assert_true(plans > 15);
}

/* The same instances in another order, by id the same moves. */
static void test_planner__ties_are_broken_by_id(void **state KVA_UNUSED)
{
    struct table t, u;
    table_init(&t);
    table_init(&u);
    for (uint32_t i = 0; i < 6; i++) {
        table_add(&t, i < 2 ? 1 : 20, i < 2 ? 1760 : 10, i < 2 ? 60 : 0);
        table_add(&u, i < 4 ? 20 : 1, i < 4 ? 10 : 1760, i < 4 ? 0 : 60);
    }
    for (uint32_t i = 0; i < 6; i++)
        u.instances[i].id = 105 - i;
    for (uint32_t r = 0; r < u.state.request_count; r++)
        u.requests[r].id = 1000 * (6 - u.requests[r].instance) + u.requests[r].id % 1000;
    table_plan(&t);
    table_plan(&u);
    assert_true(t.plan.move_count > 1);
    assert_int_equal(t.plan.move_count, u.plan.move_count);
    for (uint32_t i = 0; i < t.plan.move_count; i++) {
        const struct kva_plan_move *a = &t.plan.moves[i], *b = &u.plan.moves[i];
        assert_int_equal(a->request, b->request);
        assert_int_equal(t.instances[a->creditor].id, u.instances[b->creditor].id);
        assert_int_equal(a->pages, b->pages);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner__no_plan_breaks_a_rule),
        cmocka_unit_test(test_planner__the_scan_finds_what_trying_all_finds),
        cmocka_unit_test(test_planner__ties_are_broken_by_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
