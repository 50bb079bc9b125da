/* test_simulation.c - thousands of clusters in which everything goes wrong, by seed.
 *
 *     test_cluster_simulation [--seed N] [--seeds COUNT] */
#include "tests/cluster/sim.h"
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Within which a defect has to be noticed. */
#define SEEDS_MAX 2000u

static uint64_t seed_option;
static uint64_t seeds_option = 1000;

static struct sim *new_sim(void)
{
    struct sim *sim = malloc(sizeof(*sim));
    assert_non_null(sim);
    return sim;
}

static void add(struct sim_stats *sum, const struct sim_stats *one)
{
    uint64_t *to = (uint64_t *)(void *)sum;
    const uint64_t *from = (const uint64_t *)(const void *)one;
    for (size_t i = 0; i < offsetof(struct sim_stats, loans) / sizeof(uint64_t); i++)
        to[i] += from[i];
    sum->loans.loans_begun += one->loans.loans_begun;
    sum->loans.loans_lent += one->loans.loans_lent;
    sum->loans.loans_home += one->loans.loans_home;
    sum->loans.loans_lost += one->loans.loans_lost;
    sum->loans.guests_expired += one->loans.guests_expired;
    sum->loans.guests_refused += one->loans.guests_refused;
    sum->loans.orders_stale += one->loans.orders_stale;
    sum->loans.duplicates += one->loans.duplicates;
}

static void print_stats(const struct sim_stats *s)
{
    printf("%llu events, %llu messages (%llu lost, %llu doubled, %llu late), %llu crashes, %llu "
           "stops, %llu splits, %llu elections\n",
           (unsigned long long)s->events, (unsigned long long)s->packets,
           (unsigned long long)s->lost, (unsigned long long)s->doubled, (unsigned long long)s->late,
           (unsigned long long)s->crashes, (unsigned long long)s->stops,
           (unsigned long long)s->splits, (unsigned long long)s->elections);
    printf("%llu drains, %llu with guests, %llu left in time\n", (unsigned long long)s->drains,
           (unsigned long long)s->drains_lending, (unsigned long long)s->left);
    printf("%llu requests: %llu ended, %llu with their node, %llu computed again, %llu tokens\n",
           (unsigned long long)s->requests, (unsigned long long)s->ended,
           (unsigned long long)s->failed, (unsigned long long)s->recomputed,
           (unsigned long long)s->tokens);
    printf("%llu loans begun, %llu lent, %llu home, %llu lost, %llu expired, %llu refused; %llu "
           "stale orders, %llu duplicates\n",
           (unsigned long long)s->loans.loans_begun, (unsigned long long)s->loans.loans_lent,
           (unsigned long long)s->loans.loans_home, (unsigned long long)s->loans.loans_lost,
           (unsigned long long)s->loans.guests_expired, (unsigned long long)s->loans.guests_refused,
           (unsigned long long)s->loans.orders_stale, (unsigned long long)s->loans.duplicates);
}

static void run_seeds(bool faults, struct sim_stats *sum)
{
    struct sim *sim = new_sim();
    uint64_t first = seed_option ? seed_option : 1;
    uint64_t last = seed_option ? seed_option : seeds_option;
    for (uint64_t seed = first; seed <= last; seed++) {
        bool good = sim_run(sim, seed, faults, NULL);
        add(sum, &sim->stats);
        if (!good) {
            char text[300];
            snprintf(text, sizeof(text), "%s", sim->failure);
            free(sim);
            fail_msg("seed %llu%s: %s", (unsigned long long)seed, faults ? "" : " without faults",
                     text);
        }
    }
    free(sim);
    print_stats(sum);
}

static void test_simulation__promises_hold_when_all_goes_well(void **state KVA_UNUSED)
{
    struct sim_stats sum = {0};
    run_seeds(false, &sum);
    assert_true(sum.failed == 0 && sum.lost == 0 && sum.ended == sum.requests);
    assert_true(sum.left == sum.drains);
    assert_true(seed_option || (sum.loans.loans_lent > seeds_option && sum.loans.loans_home > 0));
}

static void test_simulation__promises_hold_when_all_goes_wrong(void **state KVA_UNUSED)
{
    struct sim_stats sum = {0};
    run_seeds(true, &sum);
    assert_true(sum.ended + sum.failed == sum.requests);
    if (seed_option)
        return;
    /* It did go wrong. */
    assert_true(sum.crashes > seeds_option && sum.stops > seeds_option &&
                sum.splits > seeds_option && sum.lost > seeds_option);
    assert_true(sum.drains > seeds_option / 2 && sum.drains_lending > 0 && sum.left < sum.drains);
    assert_true(sum.doubled > seeds_option && sum.late > seeds_option &&
                sum.elections > seeds_option);
    assert_true(sum.loans.loans_lent > seeds_option && sum.loans.loans_lost > seeds_option / 10);
    assert_true(sum.loans.orders_stale > 0 && sum.loans.guests_expired > 0);
}

/* The same seed gives the same run, event for event. */
static void test_simulation__is_deterministic(void **state KVA_UNUSED)
{
    struct sim *a = new_sim(), *b = new_sim();
    assert_true(sim_run(a, 77, true, NULL));
    assert_true(sim_run(b, 77, true, NULL));
    assert_true(a->stats.events > 1000 && a->now_ns == b->now_ns && a->rng == b->rng);
    assert_memory_equal(&a->stats, &b->stats, sizeof(a->stats));
    free(a);
    free(b);
}

/* Every defect is noticed, and for what it is. */
static void test_simulation__defects_are_noticed(void **state KVA_UNUSED)
{
    struct sim *sim = new_sim();
    uint32_t missed = 0;
    for (uint32_t i = 0; i < sim_broken_count && !seed_option; i++) {
        const struct sim_broken *broken = &sim_broken[i];
        uint64_t seed = 1;
        while (seed <= SEEDS_MAX && sim_run(sim, seed, true, broken))
            seed++;
        bool noticed = seed <= SEEDS_MAX && strstr(sim->failure, broken->noticed);
        printf("%-44s %s %llu: %s\n", broken->name, noticed ? "seed" : "MISSED, seed",
               (unsigned long long)seed, seed <= SEEDS_MAX ? sim->failure : "nothing");
        missed += !noticed;
    }
    free(sim);
    assert_int_equal(missed, 0);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0)
            seed_option = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seeds") == 0)
            seeds_option = strtoull(argv[++i], NULL, 10);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulation__promises_hold_when_all_goes_well),
        cmocka_unit_test(test_simulation__promises_hold_when_all_goes_wrong),
        cmocka_unit_test(test_simulation__is_deterministic),
        cmocka_unit_test(test_simulation__defects_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
