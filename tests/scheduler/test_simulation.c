/* Thousands of requests on a virtual clock: every invariant of scheduler.h, at every step.
 *
 *     test_simulation [--seed N] [--requests N] [--bench]
 *
 * The engine aborts when a budget or a rule of its contract is broken, the tracker fails when a
 * token is lost, repeated, reordered or wrong; this file checks the rest. */
#include "tests/scheduler/simulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed_option;
static uint32_t requests_option = 10000;

/* --- tests ---------------------------------------------------------------------------------- */

/* A device that holds a fraction of what is running: preemption, waiting, refusals. */
static struct simulation loaded_simulation(uint64_t seed)
{
    struct simulation sim = {.rng = {.state = seed}};
    sim.engine = kva_scripted_defaults();
    sim.engine.limits.sequences_max = 128;
    sim.engine.limits.step_tokens_max = 512;
    sim.engine.limits.budget =
        (struct kva_tier_bytes){.device = 260ull << 16, .host = 1500ull << 16};
    sim.engine.step_ns = 10 * KVA_NS_PER_MS;
    sim.engine.decode_row_ns = 100 * KVA_NS_PER_US;
    sim.engine.prefill_token_ns = 40 * KVA_NS_PER_US;
    sim.scheduling = (struct kva_scheduler_params){
        .running_max = 96,
        .waiting_max = 600,
        .step_tokens_max = 512,
        .prefill_share_pct = 50,
        .aging_ns = 5 * KVA_NS_PER_S,
    };
    sim.traffic = (struct traffic){
        .requests = requests_option,
        .mean_gap_ns = 70e6,
        .prompt_median = 220,
        .prompt_sigma = 1.0,
        .prompt_max = 6000,
        .output_median = 160,
        .output_sigma = 1.1,
        .output_max = 2000,
        .cancel_pct = 8,
        .deadline_pct = 10,
        .choices_pct = 8,
        .prefix_pct = 40,
        .priorities = 3,
    };
    if (seed > 2)
        sim.traffic.tenants = 5;
    if (seed % 2 == 0) {
        /* Short questions, long answers: sequences outgrow what there was when they were let in. */
        sim.engine.limits.budget.device = 160ull << 16;
        sim.traffic.mean_gap_ns = 250e6;
        sim.traffic.prompt_median = 40;
        sim.traffic.output_median = 700;
        sim.traffic.output_sigma = 0.6;
    }
    return sim;
}

static void run_loaded(uint64_t seed)
{
    struct simulation sim = loaded_simulation(seed);
    simulation_begin(&sim);
    simulation_run(&sim);
    simulation_check_rest(&sim);
    simulation_print(&sim, seed);
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(sim.scheduler, &stats);
    if (requests_option >= 10000) {
        /* The load is what it is meant to be. */
        assert_true(seed % 2 != 0 || stats.preemptions > 500);
        assert_true(stats.finished[KVA_FINISH_DEADLINE] > 10);
        assert_true(stats.finished[KVA_FINISH_CANCELLED] > 100);
        assert_true(stats.prompt_tokens_cached > 0);
        /* Nobody is forgotten: a full queue of 600 drains in about two minutes, and the last of a
         * tenant with a small share waits for about three times as long. */
        assert_true(sim.longest_wait_ns < 400 * KVA_NS_PER_S);
    }
    simulation_end(&sim);
}

static void test_simulation__ten_thousand_requests_end_as_they_must(void **state KVA_UNUSED)
{
    if (seed_option != 0) {
        run_loaded(seed_option);
        return;
    }
    for (uint64_t seed = 1; seed <= 4; seed++)
        run_loaded(seed);
}

/* Whatever the limits are. */
static struct simulation random_simulation(uint64_t seed)
{
    struct simulation sim = {.rng = {.state = seed * 7919}};
    struct rng *rng = &sim.rng;
    sim.engine = kva_scripted_defaults();
    struct kva_engine_limits *limits = &sim.engine.limits;
    limits->context_max = 64u << rng_below(rng, 6);
    limits->sequences_max = 1 + rng_below(rng, 40);
    limits->step_tokens_max = 2 + rng_below(rng, 1u << rng_below(rng, 10));
    limits->partial_prefills_max = 1 + rng_below(rng, 4);
    sim.engine.page_tokens = 1u << rng_below(rng, 8);
    limits->prefill_tokens_min = sim.engine.page_tokens;
    uint32_t pages = limits->context_max / sim.engine.page_tokens + 2;
    limits->budget.device = (uint64_t)(pages + rng_below(rng, 3 * pages)) << 16;
    limits->budget.host = (uint64_t)(pages + rng_below(rng, 8 * pages)) << 16;
    sim.engine.prefix_cache = rng_below(rng, 3) != 0;
    sim.engine.vocab = 2 + rng_below(rng, 500);
    sim.engine.without_check = rng_below(rng, 3) == 0;
    sim.engine.step_ns = rng_below(rng, 20) * KVA_NS_PER_MS + 1;
    if (rng_below(rng, 3) == 0)
        sim.engine.admit_refused_every = 2 + rng_below(rng, 20);
    if (rng_below(rng, 3) == 0)
        sim.engine.resume_refused_every = 2 + rng_below(rng, 20);
    if (rng_below(rng, 6) == 0)
        sim.engine.grow_refused_every = 2 + rng_below(rng, 100);
    if (rng_below(rng, 6) == 0)
        sim.engine.item_fails_every = 2 + rng_below(rng, 1000);
    if (rng_below(rng, 6) == 0)
        sim.engine.create_fails_every = 2 + rng_below(rng, 50);
    if (rng_below(rng, 4) == 0)
        sim.engine.sits_out_every = 2 + rng_below(rng, 10);
    if (rng_below(rng, 6) == 0)
        sim.engine.prefill_grow_refused_every = 2 + rng_below(rng, 100);
    sim.scheduling = (struct kva_scheduler_params){
        .running_max = 1 + rng_below(rng, limits->sequences_max),
        .waiting_max = 5 + rng_below(rng, 100),
        .step_tokens_max = 2 + rng_below(rng, limits->step_tokens_max - 1),
        .prefill_share_pct = 1 + rng_below(rng, 100),
        .aging_ns = rng_below(rng, 3) * KVA_NS_PER_S,
    };
    sim.traffic = (struct traffic){
        .requests = 200,
        .mean_gap_ns = 1e6 * (1 + rng_below(rng, 100)),
        .prompt_median = limits->context_max / 8.0,
        .prompt_sigma = 1.0,
        .prompt_max = limits->context_max,
        .output_median = limits->context_max / 16.0,
        .output_sigma = 1.0,
        .output_max = limits->context_max,
        .cancel_pct = rng_below(rng, 20),
        .deadline_pct = rng_below(rng, 50),
        .choices_pct = rng_below(rng, 50),
        .prefix_pct = rng_below(rng, 100),
        .priorities = 1 + rng_below(rng, 5),
    };
    if (rng_below(rng, 2) == 0)
        sim.traffic.tenants = 1 + rng_below(rng, 9);
    if (rng_below(rng, 3) == 0)
        sim.scheduling.waiting_time_ns = (1 + rng_below(rng, 1000)) * KVA_NS_PER_MS;
    if (rng_below(rng, 4) == 0)
        sim.engine.lost_every = 20 + rng_below(rng, 1000);
    return sim;
}

/* The device holds a third of the longest sequence, or more: others can hold the rest. */
static struct simulation lent_simulation(uint64_t seed)
{
    struct simulation sim = random_simulation(seed);
    struct rng *rng = &sim.rng;
    uint32_t pages = sim.engine.limits.context_max / sim.engine.page_tokens + 2;
    uint32_t device = kva_max_u32(pages / 3, 2) + rng_below(rng, pages);
    sim.engine.limits.budget.device = (uint64_t)device << 16;
    sim.engine.others_pages = pages + rng_below(rng, pages);
    sim.engine.lent_every = 1 + rng_below(rng, 20);
    sim.engine.home_every = rng_below(rng, 2) ? 2 + rng_below(rng, 10) : 0;
    if (rng_below(rng, 4) == 0)
        sim.scheduling.lending_time_ns = (1 + rng_below(rng, 2000)) * KVA_NS_PER_MS;
    return sim;
}

/* Requests longer than the device, among others: nobody waits for ever. */
static void
test_simulation__what_is_longer_than_the_device_waits_to_be_lent(void **state KVA_UNUSED)
{
    uint64_t first = seed_option != 0 ? seed_option : 1;
    uint64_t last = seed_option != 0 ? seed_option : 200;
    uint64_t parked = 0, lent = 0, tokens = 0;
    for (uint64_t seed = first; seed <= last; seed++) {
        struct simulation sim = lent_simulation(seed);
        struct kva_scripted_report report;
        struct kva_scheduler_stats stats;
        simulation_begin(&sim);
        sim.tracker.expect_errors =
            sim.engine.item_fails_every != 0 || sim.engine.grow_refused_every != 0 ||
            sim.engine.prefill_grow_refused_every != 0 || sim.scheduling.lending_time_ns != 0;
        simulation_run(&sim);
        simulation_check_rest(&sim);
        kva_scheduler_get_stats(sim.scheduler, &stats);
        kva_scripted_get_report(sim.scripted, &report);
        parked += report.parked;
        lent += report.lent;
        tokens += stats.output_tokens;
        simulation_end(&sim);
    }
    printf("seeds %llu..%llu: %llu tokens, %llu parked, lent %llu times\n",
           (unsigned long long)first, (unsigned long long)last, (unsigned long long)tokens,
           (unsigned long long)parked, (unsigned long long)lent);
    assert_true(seed_option != 0 || (parked > 500 && lent > parked / 2));
}

static void test_simulation__invariants_hold_in_any_configuration(void **state KVA_UNUSED)
{
    uint64_t first = seed_option != 0 ? seed_option : 1;
    uint64_t last = seed_option != 0 ? seed_option : 300;
    uint64_t tokens = 0, preemptions = 0, waited = 0, restarts = 0;
    for (uint64_t seed = first; seed <= last; seed++) {
        struct simulation sim = random_simulation(seed);
        simulation_begin(&sim);
        sim.tracker.expect_errors = sim.engine.item_fails_every != 0 ||
                                    sim.engine.grow_refused_every != 0 ||
                                    sim.engine.prefill_grow_refused_every != 0;
        simulation_run(&sim);
        simulation_check_rest(&sim);
        struct kva_scheduler_stats stats;
        kva_scheduler_get_stats(sim.scheduler, &stats);
        tokens += stats.output_tokens;
        preemptions += stats.preemptions;
        restarts += stats.restarts;
        waited += stats.rejected_queue_time;
        simulation_end(&sim);
    }
    printf("seeds %llu..%llu: %llu tokens, %llu preemptions, %llu restarts\n",
           (unsigned long long)first, (unsigned long long)last, (unsigned long long)tokens,
           (unsigned long long)preemptions, (unsigned long long)restarts);
    assert_true(seed_option != 0 || (preemptions > 1000 && waited > 100 && restarts > 1000));
}

/* The same seed gives the same run, event for event. */
static void test_simulation__is_deterministic(void **state KVA_UNUSED)
{
    uint64_t outputs[2], clocks[2];
    for (int i = 0; i < 2; i++) {
        struct simulation sim = random_simulation(77);
        simulation_begin(&sim);
        sim.tracker.expect_errors = true;
        simulation_run(&sim);
        outputs[i] = sim.tracker.outputs;
        clocks[i] = sim.clock.now_ns;
        simulation_end(&sim);
    }
    assert_true(outputs[0] > 0);
    assert_int_equal(outputs[0], outputs[1]);
    assert_int_equal(clocks[0], clocks[1]);
}

/* --- what scheduling costs ------------------------------------------------------------------ */

/* `count` sequences decode at once while others queue up behind them. */
static double bench_decode(uint32_t count, uint32_t steps)
{
    struct simulation sim = {.rng = {.state = 1}};
    sim.engine = kva_scripted_defaults();
    sim.engine.limits.sequences_max = count;
    sim.engine.limits.step_tokens_max = count + 4096;
    sim.engine.limits.partial_prefills_max = 4;
    sim.engine.limits.budget = (struct kva_tier_bytes){.device = 1ull << 44, .host = 1ull << 44};
    sim.engine.step_ns = KVA_NS_PER_MS;
    sim.scheduling = (struct kva_scheduler_params){
        .running_max = count,
        .waiting_max = 2 * count,
        .step_tokens_max = count + 4096,
        .prefill_share_pct = 50,
        .aging_ns = KVA_NS_PER_S,
    };
    simulation_begin(&sim);
    for (uint32_t i = 0; i < 2 * count; i++) {
        struct request_spec spec = tracker_spec(i + 1);
        spec.prompt_tokens = 32 + i % 61;
        spec.output_tokens_max = i < count ? 7000 : 10;
        spec.stop_id_count = 0;
        spec.submitted_ns = sim.clock.now_ns + i;
        assert_int_equal(tracker_submit(&sim.tracker, sim.scheduler, &spec, NULL), KVA_OK);
    }
    uint64_t wake_ns;
    struct kva_scheduler_stats stats;
    do {
        assert_false(simulation_step(&sim, &wake_ns));
        kva_scheduler_get_stats(sim.scheduler, &stats);
    } while (stats.running < count || sim.tracker.tokens < 2 * count);
    sim.measuring = true;
    sim.step_ns = sim.steps = sim.step_ns_max = 0;
    for (uint32_t i = 0; i < steps; i++)
        assert_false(simulation_step(&sim, &wake_ns));
    double us = (double)sim.step_ns / 1e3 / (double)sim.steps;
    printf("%u decoding, %u waiting: %.2f us per step (max %.0f), the engine's step not included\n",
           count, count, us, (double)sim.step_ns_max / 1e3);
    assert_true(sim.measured_outputs >= (uint64_t)count * steps);
    simulation_end(&sim);
    return us;
}

static void test_simulation__prints_the_cost_of_scheduling(void **state KVA_UNUSED)
{
    assert_true(bench_decode(256, 300) > 0);
    assert_true(bench_decode(10000, 50) > 0);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed_option = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--requests") == 0 && i + 1 < argc)
            requests_option = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--bench") == 0)
            return bench_decode(256, 2000) > 0 && bench_decode(10000, 1000) > 0 ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulation__invariants_hold_in_any_configuration),
        cmocka_unit_test(test_simulation__ten_thousand_requests_end_as_they_must),
        cmocka_unit_test(test_simulation__what_is_longer_than_the_device_waits_to_be_lent),
        cmocka_unit_test(test_simulation__is_deterministic),
        cmocka_unit_test(test_simulation__prints_the_cost_of_scheduling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
