/* Three servers that lend each other memory, the real code from planner to attention: what a request
 * says is what it says alone, whatever is lent, lost, delayed, recalled or killed; and nothing is
 * left behind. */
#include "tests/cmocka.h"

#include "base/clock.h"
#include "cluster/gmanager_internal.h"
#include "tests/cluster/instance/world.h"
#include "tests/engine/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct world *new_world(uint64_t seed)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->rng = seed * 7919 + 1;
    w->device_pages = 40;
    w->patience_ns = seed % 3 * 150 * KVA_NS_PER_MS;
    return w;
}

static void end(struct world *w)
{
    world_close(w);
    free(w);
}

/* The first instance has long requests, and others that wait for their memory. */
static void load_first(struct world *w)
{
    for (uint32_t i = 0; i < 3; i++)
        world_submit(w, 0, 600 + 40 * i, 150);
    for (uint32_t i = 0; i < 6; i++)
        world_submit(w, 0, 300 + 20 * i, 60);
}

static void test_instances__memory_is_lent_and_answers_stay(void **state KVA_UNUSED)
{
    uint32_t ticks[2];
    for (uint32_t lending = 0; lending < 2; lending++) {
        struct world *w = new_world(1);
        world_open(w);
        for (uint32_t i = 0; i < 16; i++)
            world_submit(w, 0, 480 + i, 150);
        if (!lending) { /* a cluster of one */
            world_kill(w, 1);
            world_kill(w, 2);
        }
        for (ticks[lending] = 0; !world_run(w, 1); ticks[lending]++)
            assert_true(ticks[lending] < 5000);
        struct kva_rmanager_stats stats = world_loans(w);
        assert_int_equal(stats.loans_lent > 0, lending);
        assert_int_equal(w->attended > 0, lending);
        assert_int_equal(world_restarts(w), 0);
        world_expect_answers(w);
        world_expect_rest(w);
        end(w);
    }
    printf("alone %u steps, with two that lend %u\n", ticks[0], ticks[1]);
    assert_true(ticks[1] < ticks[0]);
}

/* An instance reports how it steps when it has stepped often enough with loans, or without; until then,
 * what it reported before. */
static void test_instances__few_steps_say_nothing(void **state KVA_UNUSED)
{
    uint32_t learnt = 0, beside_loans = 0, loan_ticks = 0, loans_before = 0;
    uint64_t before = 0;
    struct kva_scheduler_pace pace;
    struct world *w = new_world(1);
    world_open(w);
    world_submit(w, 0, 100, 10);
    for (uint32_t tick = 0; tick < 200; tick++)
        world_tick(w);
    kva_scheduler_get_pace(w->nodes[0].scheduler, &pace);
    assert_int_equal(pace.decode_steps, 9);
    assert_true(w->gmanager->members[0].fresh);
    assert_int_equal(w->gmanager->members[0].load.step_tokens, 0);
    world_submit(w, 0, 100, 150);
    for (uint32_t tick = 0; !world_run(w, 1); tick++) {
        struct kva_rmanager_stats loans;
        assert_true(tick < 5000);
        kva_instance_get_stats(w->nodes[0].instance, &loans);
        const struct kva_message_load *load = &w->gmanager->members[0].load;
        uint64_t now = load->step_tokens;
        loan_ticks = (loans.loans > 0) == (loans_before > 0) ? loan_ticks + 1 : 0;
        loans_before = loans.loans;
        if (now != before && loan_ticks > 50) { /* reports on their way have come */
            assert_int_equal(load->step_loans, loans.loans > 0);
            beside_loans += load->step_loans;
        }
        learnt += now != before;
        before = now;
        if (tick == 100)
            load_first(w);
    }
    printf("%u reports of other steps, %u of them beside loans\n", learnt, beside_loans);
    assert_true(learnt > 0 && beside_loans > 0);
    end(w);
}

static void test_instances__networks_fail(void **state KVA_UNUSED)
{
    uint64_t lent = 0, restarts = 0;
    for (uint64_t seed = 0; seed < (FIXTURE_QUICK ? 2 : 8); seed++) {
        struct world *w = new_world(seed);
        w->keeps_homes = seed % 2;
        world_open(w);
        w->loss_pct = w->double_pct = w->late_pct = 5 + 5 * ((uint32_t)seed % 4);
        load_first(w);
        assert_true(world_run(w, 20000));
        world_expect_answers(w);
        w->loss_pct = 0;
        world_expect_rest(w);
        lent += world_loans(w).loans_lent;
        restarts += world_restarts(w);
        end(w);
    }
    printf("%llu loans, %llu restarts\n", (unsigned long long)lent, (unsigned long long)restarts);
    assert_true(lent > 0);
}

/* Two that lend are asked for more than they have left. */
static uint64_t lend_and_want(bool keeps_homes, uint64_t patience_ns)
{
    struct world *w = new_world(3 + keeps_homes);
    w->keeps_homes = keeps_homes;
    w->patience_ns = patience_ns;
    world_open(w);
    load_first(w);
    for (uint32_t i = 0; i < 3000 && world_loans(w).loans_lent == 0; i++)
        world_tick(w);
    for (uint32_t node = 1; node < WORLD_NODES; node++) {
        for (uint32_t i = 0; i < 4; i++)
            world_submit(w, node, 700, 60);
    }
    assert_true(world_run(w, 20000));
    world_expect_answers(w);
    world_expect_rest(w);
    uint64_t home = world_loans(w).loans_home;
    end(w);
    return home;
}

/* Whoever lends has its own requests first, when the first of them has waited for long enough. */
static void test_instances__creditors_want_their_memory_back(void **state KVA_UNUSED)
{
    uint64_t at_once = 0, soon = 0, never = 0;
    for (uint32_t keeps = 0; keeps < 2; keeps++) {
        at_once += lend_and_want(keeps, 0);
        soon += lend_and_want(keeps, 300 * KVA_NS_PER_MS);
        never += lend_and_want(keeps, 3600 * KVA_NS_PER_S);
    }
    printf("loans that came home: %llu recalled at once, %llu after a while, %llu never\n",
           (unsigned long long)at_once, (unsigned long long)soon, (unsigned long long)never);
    assert_true(at_once > 0 && never < at_once);
}

/* At any time; it is there again later, and may lend again. */
static void test_instances__creditors_die(void **state KVA_UNUSED)
{
    uint64_t restarts = 0, lost = 0;
    for (uint64_t seed = 0; seed < (FIXTURE_QUICK ? 2 : 8); seed++) {
        struct world *w = new_world(seed);
        uint32_t dead[WORLD_NODES] = {0};
        w->keeps_homes = seed % 4 == 3;
        world_open(w);
        load_first(w);
        for (uint32_t tick = 0; tick < 20000 && !world_run(w, 1); tick++) {
            for (uint32_t node = 1; node < WORLD_NODES; node++) {
                if (dead[node] > 0 && --dead[node] == 0)
                    world_start(w, node);
                bool lends = w->nodes[node].up &&
                             kva_guests_pages(kva_instance_guests(w->nodes[node].instance)) > 0;
                if (!lends || world_below(w, 60) > 0)
                    continue;
                world_kill(w, node);
                dead[node] = 1 + world_below(w, 100);
            }
        }
        assert_true(world_run(w, 1));
        world_expect_answers(w);
        world_expect_rest(w);
        restarts += world_restarts(w);
        lost += world_loans(w).loans_lost;
        end(w);
    }
    printf("%llu restarts, %llu loans lost\n", (unsigned long long)restarts,
           (unsigned long long)lost);
    assert_true(restarts > 0);
}

/* At any time; it leaves when what it holds has gone home, and is there again later. Nothing is
 * computed again. */
static void test_instances__creditors_drain(void **state KVA_UNUSED)
{
    uint64_t drained = 0;
    for (uint64_t seed = 0; seed < (FIXTURE_QUICK ? 2 : 8); seed++) {
        struct world *w = new_world(40 + seed);
        enum { STAYS, DRAINS, AWAY } stage[WORLD_NODES] = {STAYS};
        w->keeps_homes = seed % 2;
        world_open(w);
        load_first(w);
        for (uint32_t tick = 0; tick < 20000 && !world_run(w, 1); tick++) {
            for (uint32_t node = 1; node < WORLD_NODES; node++) {
                struct kva_rmanager_stats stats = {0};
                if (stage[node] == AWAY && world_below(w, 50) == 0) {
                    world_start(w, node);
                    stage[node] = STAYS;
                }
                if (stage[node] == AWAY)
                    continue;
                kva_instance_get_stats(w->nodes[node].instance, &stats);
                if (stage[node] == STAYS && stats.guests > 0 && world_below(w, 40) == 0) {
                    kva_instance_drain(w->nodes[node].instance, w->now_ns);
                    stage[node] = DRAINS;
                } else if (stage[node] == DRAINS && stats.guests == 0) {
                    world_kill(w, node);
                    stage[node] = AWAY;
                    drained++;
                }
            }
        }
        assert_true(world_run(w, 1));
        assert_int_equal(world_restarts(w), 0);
        assert_int_equal(world_loans(w).loans_lost, 0);
        world_expect_answers(w);
        world_expect_rest(w);
        end(w);
    }
    printf("%llu creditors left\n", (unsigned long long)drained);
    assert_true(drained > 0);
}

/* What it had elsewhere is forgotten there. */
static void test_instances__debtors_die(void **state KVA_UNUSED)
{
    struct world *w = new_world(5);
    world_open(w);
    load_first(w);
    for (uint32_t i = 0; i < 3000 && world_loans(w).loans_lent == 0; i++)
        world_tick(w);
    assert_true(world_loans(w).guests > 0);
    world_kill(w, 0);
    world_expect_rest(w);
    world_start(w, 0);
    load_first(w);
    assert_true(world_run(w, 20000));
    world_expect_answers(w);
    world_expect_rest(w);
    end(w);
}

/* --- requests longer than an instance ---------------------------------------------------------- */

static struct world *new_long_world(uint64_t seed)
{
    struct world *w = new_world(seed);
    w->device_pages = 14;
    w->layers = 16; /* a prompt is staged in a quarter of its size */
    return w;
}

/* 23 pages, where an instance has 14 and three have 42; among others, at each of which it looks. */
static void load_long(struct world *w, uint32_t count)
{
    world_submit(w, 0, 250, 60);
    for (uint32_t i = 0; i < count; i++)
        world_submit(w, 0, 1400 + 10 * i, 60);
    for (uint32_t i = 0; i < 5; i++)
        world_submit(w, i % 2, 200 + 20 * i, 40);
}

static void test_instances__a_request_may_be_longer_than_an_instance(void **state KVA_UNUSED)
{
    for (uint32_t keeps = 0; keeps < 2; keeps++) {
        struct world *w = new_long_world(10 + keeps);
        w->keeps_homes = keeps;
        world_open(w);
        load_long(w, 2);
        uint32_t ticks = 0;
        for (; !world_run(w, 1); ticks++)
            assert_true(ticks < 10000);
        printf("%u ticks, %llu loans\n", ticks, (unsigned long long)world_loans(w).loans_lent);
        assert_true(world_loans(w).loans_lent >= 2 && w->attended > 0);
        assert_int_equal(world_restarts(w), 0);
        world_expect_answers(w);
        world_expect_rest(w);
        end(w);
    }
}

/* It needs what all others may lend, and plans ask none of them for more. */
static void test_instances__limits_of_lending_are_known(void **state KVA_UNUSED)
{
    struct world *w = new_long_world(13);
    w->lend_pages = 8; /* of 14 */
    world_open(w);
    world_submit(w, 0, 1400, 60);
    assert_true(world_run(w, 10000));
    assert_true(world_loans(w).loans_lent >= 2);
    world_expect_answers(w);
    world_expect_rest(w);
    end(w);
}

/* Others are served meanwhile where it is too much for the cluster, and it is where that grows. */
static void test_instances__it_waits_for_a_cluster_that_is_large_enough(void **state KVA_UNUSED)
{
    struct world *w = new_long_world(12);
    world_open(w);
    world_kill(w, 1);
    world_kill(w, 2);
    uint32_t number = world_submit(w, 0, 1400, 60);
    for (uint32_t i = 0; i < 4; i++)
        world_submit(w, 0, 200 + 20 * i, 40);
    assert_false(world_run(w, 1500));
    for (uint32_t i = 0; i < w->request_count; i++)
        assert_int_equal(w->requests[i].ended, i != number);
    assert_int_equal(w->requests[number].count, 1);
    world_start(w, 1);
    world_start(w, 2);
    assert_true(world_run(w, 10000));
    world_expect_answers(w);
    world_expect_rest(w);
    end(w);
}

/* Networks fail, creditors want their memory back, and die. */
static void test_instances__long_requests_survive(void **state KVA_UNUSED)
{
    uint64_t restarts = 0, lost = 0, home = 0;
    for (uint64_t seed = 0; seed < (FIXTURE_QUICK ? 2 : 6); seed++) {
        struct world *w = new_long_world(20 + seed);
        uint32_t dead[WORLD_NODES] = {0}, kills = 0;
        w->keeps_homes = seed % 2;
        world_open(w);
        w->loss_pct = w->double_pct = w->late_pct = 5 * ((uint32_t)seed % 3);
        load_long(w, 1);
        for (uint32_t tick = 0; tick < 20000 && !world_run(w, 1); tick++) {
            for (uint32_t node = 1; node < WORLD_NODES; node++) {
                if (dead[node] > 0 && --dead[node] == 0)
                    world_start(w, node);
                bool lends = w->nodes[node].up &&
                             kva_guests_pages(kva_instance_guests(w->nodes[node].instance)) > 0;
                uint32_t draw = lends ? world_below(w, 60) : 60;
                if (draw == 1 && w->request_count < 16)
                    world_submit(w, node, 600, 30);
                if (draw > 0 || kills == 4)
                    continue;
                world_kill(w, node);
                dead[node] = 1 + world_below(w, 100);
                kills++;
            }
        }
        assert_true(world_run(w, 1));
        world_expect_answers(w);
        w->loss_pct = 0;
        world_expect_rest(w);
        restarts += world_restarts(w);
        lost += world_loans(w).loans_lost;
        home += world_loans(w).loans_home;
        end(w);
    }
    printf("%llu restarts, %llu loans lost, %llu came home\n", (unsigned long long)restarts,
           (unsigned long long)lost, (unsigned long long)home);
    assert_true(restarts > 0);
}

static void test_instances__content_has_to_be_that_of_the_message(void **state KVA_UNUSED)
{
    struct world *w = new_world(6);
    struct kva_err err;
    unsigned char byte = 0;
    world_open(w);
    const struct kva_message pages = {.type = KVA_MESSAGE_PAGES,
                                      .source = 2,
                                      .target = 1,
                                      .source_life = 1,
                                      .sequence = 1,
                                      .pages = {.loan = 1, .pages = 1}};
    assert_int_equal(kva_instance_receive(w->nodes[0].instance, &pages, &byte, 1, w->now_ns, &err),
                     KVA_EFORMAT);
    assert_non_null(strstr(err.message, "PAGES of node 2 comes with 1 bytes"));
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instances__memory_is_lent_and_answers_stay),
        cmocka_unit_test(test_instances__few_steps_say_nothing),
        cmocka_unit_test(test_instances__networks_fail),
        cmocka_unit_test(test_instances__creditors_want_their_memory_back),
        cmocka_unit_test(test_instances__creditors_die),
        cmocka_unit_test(test_instances__creditors_drain),
        cmocka_unit_test(test_instances__debtors_die),
        cmocka_unit_test(test_instances__a_request_may_be_longer_than_an_instance),
        cmocka_unit_test(test_instances__limits_of_lending_are_known),
        cmocka_unit_test(test_instances__it_waits_for_a_cluster_that_is_large_enough),
        cmocka_unit_test(test_instances__long_requests_survive),
        cmocka_unit_test(test_instances__content_has_to_be_that_of_the_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
