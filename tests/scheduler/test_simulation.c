/* Thousands of requests on a virtual clock: every invariant of scheduler.h, at every step.
 *
 *     test_simulation [--seed N] [--requests N] [--bench]
 *
 * The engine aborts when a budget or a rule of its contract is broken, the tracker fails when a
 * token is lost, repeated, reordered or wrong; this file checks the rest. */
#include "tests/cmocka.h"

#include "tests/scheduler/tracker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed_option;
static uint32_t requests_option = 10000;

/* --- random -------------------------------------------------------------------------------- */

struct rng {
    uint64_t state;
};

static uint64_t rng_next(struct rng *rng)
{
    rng->state += 0x9E3779B97F4A7C15ull;
    uint64_t x = rng->state;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static double rng_unit(struct rng *rng)
{
    return ((double)(rng_next(rng) >> 11) + 0.5) / 9007199254740992.0;
}

static uint32_t rng_below(struct rng *rng, uint32_t bound)
{
    return (uint32_t)(rng_next(rng) % bound);
}

static double rng_exponential(struct rng *rng, double mean)
{
    return -mean * log(rng_unit(rng));
}

static uint32_t rng_log_normal(struct rng *rng, double median, double sigma, uint32_t most)
{
    double normal = sqrt(-2.0 * log(rng_unit(rng))) * cos(2.0 * 3.14159265358979 * rng_unit(rng));
    double value = median * exp(sigma * normal);
    return value < 1 ? 1 : value > most ? most : (uint32_t)value;
}

/* --- a simulated service -------------------------------------------------------------------- */

struct traffic {
    uint32_t requests;
    double mean_gap_ns; /* between arrivals, over bursts and lulls */
    double prompt_median;
    double prompt_sigma;
    uint32_t prompt_max;
    double output_median;
    double output_sigma;
    uint32_t output_max;
    uint32_t cancel_pct;
    uint32_t deadline_pct;
    uint32_t choices_pct; /* requests with n > 1 */
    uint32_t prefix_pct;  /* requests that share one of a few prefixes */
    uint32_t priorities;
};

struct simulation {
    struct rng rng;
    struct kva_virtual_clock clock;
    struct kva_scripted_params engine;
    struct kva_scheduler_params scheduling;
    struct traffic traffic;
    struct kva_scripted *scripted;
    struct kva_scheduler *scheduler;
    struct tracker tracker;
    uint64_t next_id;
    uint64_t arrival_ns;
    bool burst;
    bool measuring; /* outputs are only counted: the tracker's checks cost more than scheduling */
    uint64_t measured_outputs;
    uint64_t refused;
    uint64_t refused_busy;
    /* The cost of scheduling: real time in kva_scheduler_step but not in the engine's step. */
    uint64_t step_ns;
    uint64_t step_ns_max;
    uint64_t steps;
    uint64_t longest_wait_ns;
};

static void take_output(void *opaque, const struct kva_output *output)
{
    struct simulation *sim = opaque;
    if (sim->measuring)
        sim->measured_outputs++;
    else
        tracker_output(&sim->tracker, output);
}

static void simulation_begin(struct simulation *sim)
{
    kva_virtual_clock_init(&sim->clock, KVA_NS_PER_S);
    sim->engine.clock = &sim->clock;
    sim->scripted = kva_scripted_create(&sim->engine);
    tracker_init(&sim->tracker, sim->engine.vocab);
    sim->scheduling.engine = kva_scripted_engine(sim->scripted);
    sim->scheduling.clock = &sim->clock.clock;
    sim->scheduling.on_output = take_output;
    sim->scheduling.opaque = sim;
    struct kva_err err;
    if (kva_scheduler_create(&sim->scheduling, &sim->scheduler, &err) != KVA_OK)
        fail_msg("%s", err.message);
    sim->arrival_ns = sim->clock.now_ns;
}

static void simulation_end(struct simulation *sim)
{
    kva_scheduler_destroy(sim->scheduler);
    kva_scripted_destroy(sim->scripted);
    tracker_finish(&sim->tracker);
}

static struct request_spec random_request(struct simulation *sim)
{
    const struct traffic *traffic = &sim->traffic;
    struct rng *rng = &sim->rng;
    struct request_spec spec = tracker_spec(++sim->next_id);
    spec.prompt_tokens =
        rng_log_normal(rng, traffic->prompt_median, traffic->prompt_sigma, traffic->prompt_max);
    spec.output_tokens_max =
        rng_log_normal(rng, traffic->output_median, traffic->output_sigma, traffic->output_max);
    spec.submitted_ns = sim->clock.now_ns;
    spec.priority = (int32_t)rng_below(rng, traffic->priorities) - 1;
    spec.stop_id_count = rng_below(rng, 3);
    spec.min_tokens = rng_below(rng, 4) == 0 ? rng_below(rng, spec.output_tokens_max + 1) : 0;
    spec.cache_disabled = rng_below(rng, 10) == 0;
    spec.policy = rng_below(rng, 4) == 0 ? KVA_KV_OFFLOAD : KVA_KV_FULL;
    spec.logprobs = rng_below(rng, 8) == 0 ? (int32_t)rng_below(rng, 21) : -1;
    spec.prompt_logprobs = rng_below(rng, 30) == 0 ? (int32_t)rng_below(rng, 3) : -1;
    if (rng_below(rng, 100) < traffic->choices_pct)
        spec.choices = 2 + rng_below(rng, 4);
    if (rng_below(rng, 100) < traffic->deadline_pct)
        spec.deadline_ns = sim->clock.now_ns + (uint64_t)rng_exponential(rng, 20e9) + 1;
    if (rng_below(rng, 100) < traffic->prefix_pct) {
        spec.prefix_seed = rng_below(rng, 5);
        spec.prefix_tokens = kva_min_u32(spec.prompt_tokens, 200 + 100 * spec.prefix_seed);
    }
    return spec;
}

/* Poisson arrivals whose rate switches between bursts and lulls. */
static void arrivals(struct simulation *sim)
{
    while (sim->next_id < sim->traffic.requests && sim->arrival_ns <= sim->clock.now_ns) {
        struct request_spec spec = random_request(sim);
        struct kva_err err = {.message = ""};
        enum kva_status status = tracker_submit(&sim->tracker, sim->scheduler, &spec, &err);
        if (status != KVA_OK) {
            assert_true(status == KVA_EBUSY || status == KVA_ELIMIT || status == KVA_ECONTEXT ||
                        (status == KVA_ENOMEM && sim->engine.create_fails_every != 0));
            assert_true(strlen(err.message) > 0);
            sim->refused++;
            sim->refused_busy += status == KVA_EBUSY;
        }
        if (rng_below(&sim->rng, 50) == 0)
            sim->burst = !sim->burst;
        double mean = sim->burst ? sim->traffic.mean_gap_ns / 4 : sim->traffic.mean_gap_ns * 2;
        sim->arrival_ns += (uint64_t)rng_exponential(&sim->rng, mean) + 1;
    }
}

static void cancellations(struct simulation *sim)
{
    if (sim->next_id == 0 || rng_below(&sim->rng, 100) >= sim->traffic.cancel_pct)
        return;
    uint64_t id = 1 + rng_next(&sim->rng) % sim->next_id;
    if (sim->next_id > 300 && rng_below(&sim->rng, 2))
        id = sim->next_id - rng_below(&sim->rng, 300);
    struct kva_id_node *node = kva_id_table_find(&sim->tracker.requests, id);
    uint32_t choice = rng_below(&sim->rng, 2) ? KVA_ALL_CHOICES : rng_below(&sim->rng, 5);
    enum kva_finish_reason reason =
        rng_below(&sim->rng, 2) ? KVA_FINISH_CANCELLED : KVA_FINISH_STOP;
    if (node)
        tracker_cancels(&sim->tracker, id, choice, reason);
    kva_scheduler_cancel(sim->scheduler, id, choice, reason);
    if (!node)
        return;
    const struct tracked_request *tracked = tracker_find(&sim->tracker, id);
    for (uint32_t i = 0; i < tracked->choices; i++)
        assert_true(tracked->choice[i].ended || (choice != KVA_ALL_CHOICES && choice != i));
}

static void check_stats(const struct simulation *sim)
{
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(sim->scheduler, &stats);
    assert_int_equal(stats.running + stats.suspended + stats.waiting, sim->tracker.live);
    assert_true(stats.running <= sim->scheduling.running_max);
    assert_true(stats.running + stats.suspended <= sim->engine.limits.sequences_max);
    assert_true(stats.waiting <= sim->scheduling.waiting_max);
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < KVA_WAIT_REASON_COUNT; i++)
        waiting += stats.waiting_by_reason[i];
    assert_int_equal(waiting, stats.waiting);
    uint32_t running = 0;
    for (uint32_t i = 0; i < KVA_KV_POLICY_COUNT; i++)
        running += stats.running_by_policy[i];
    assert_int_equal(running, stats.running);
    assert_int_equal(stats.output_tokens, sim->tracker.tokens);
    for (uint32_t i = 0; i < KVA_FINISH_COUNT; i++)
        assert_int_equal(stats.finished[i], sim->tracker.by_reason[i]);
}

/* One step, its cost taken. */
static bool timed_step(struct simulation *sim, uint64_t *ret_wake_ns)
{
    struct kva_scripted_report before, after;
    kva_scripted_get_report(sim->scripted, &before);
    uint64_t begin_ns = kva_time_ns();
    bool idle = false;
    struct kva_err err;
    if (kva_scheduler_step(sim->scheduler, &idle, ret_wake_ns, &err) != KVA_OK)
        fail_msg("%s", err.message);
    uint64_t ns = kva_time_ns() - begin_ns;
    kva_scripted_get_report(sim->scripted, &after);
    if (idle)
        return true;
    ns -= after.engine_ns - before.engine_ns;
    sim->step_ns += ns;
    sim->step_ns_max = ns > sim->step_ns_max ? ns : sim->step_ns_max;
    sim->steps++;
    assert_true(after.decode_rows + after.prefill_rows <= sim->scheduling.step_tokens_max);
    return false;
}

static void simulation_run(struct simulation *sim)
{
    uint64_t rounds = 0;
    while (sim->next_id < sim->traffic.requests || sim->tracker.live > 0) {
        arrivals(sim);
        cancellations(sim);
        uint64_t wake_ns = 0;
        bool idle = timed_step(sim, &wake_ns);
        if (++rounds % 64 == 0)
            check_stats(sim);
        assert_true(rounds < 100u * 1000 * 1000);
        if (!idle)
            continue;
        bool more = sim->next_id < sim->traffic.requests;
        if (!more && sim->tracker.live == 0)
            break;
        assert_true(more || wake_ns != 0);
        uint64_t next_ns = more ? sim->arrival_ns : wake_ns;
        if (wake_ns != 0 && wake_ns < next_ns)
            next_ns = wake_ns;
        if (next_ns > sim->clock.now_ns)
            sim->clock.now_ns = next_ns;
    }
    check_stats(sim);
}

/* Everything was answered and given back. */
static void check_rest(struct simulation *sim)
{
    assert_int_equal(sim->tracker.live, 0);
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(sim->scheduler, &stats);
    assert_int_equal(stats.running + stats.suspended + stats.waiting, 0);
    assert_int_equal(stats.engine.used.device, stats.engine.cached.device);
    assert_int_equal(stats.engine.used.host, stats.engine.cached.host);
    struct kva_scripted_report report;
    kva_scripted_get_report(sim->scripted, &report);
    assert_int_equal(report.live_sequences, 0);
    for (uint64_t id = 1; id <= sim->next_id; id++) {
        struct kva_id_node *node = kva_id_table_find(&sim->tracker.requests, id);
        if (!node)
            continue;
        const struct tracked_request *tracked = tracker_find(&sim->tracker, id);
        assert_int_equal(tracked->ended, tracked->choices);
        for (uint32_t i = 0; i < tracked->choices; i++) {
            const struct kva_output *end = &tracked->choice[i].end;
            uint64_t from_ns = end->end.times.submitted_ns;
            uint64_t to_ns = end->end.times.admitted_ns != 0 ? end->end.times.admitted_ns
                                                             : end->end.times.ended_ns;
            if (to_ns - from_ns > sim->longest_wait_ns)
                sim->longest_wait_ns = to_ns - from_ns;
        }
    }
}

static void print_result(const struct simulation *sim, uint64_t seed)
{
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(sim->scheduler, &stats);
    printf("seed %llu: %llu requests, %llu refused (%llu queue full), %llu tokens, %llu steps, "
           "%.1f rows/step, %llu preemptions, stop %llu length %llu cancelled %llu deadline %llu, "
           "cached %.0f%%, longest wait %.1f s of %.0f s, scheduling %.2f us/step (max %.0f)\n",
           (unsigned long long)seed, (unsigned long long)sim->next_id,
           (unsigned long long)sim->refused, (unsigned long long)sim->refused_busy,
           (unsigned long long)stats.output_tokens, (unsigned long long)sim->steps,
           (double)stats.step_rows / (double)(sim->steps ? sim->steps : 1),
           (unsigned long long)stats.preemptions,
           (unsigned long long)stats.finished[KVA_FINISH_STOP],
           (unsigned long long)stats.finished[KVA_FINISH_LENGTH],
           (unsigned long long)stats.finished[KVA_FINISH_CANCELLED],
           (unsigned long long)stats.finished[KVA_FINISH_DEADLINE],
           100.0 * (double)stats.prompt_tokens_cached /
               (double)(stats.prompt_tokens_cached + stats.prompt_tokens_computed + 1),
           (double)sim->longest_wait_ns / 1e9, (double)(sim->clock.now_ns - KVA_NS_PER_S) / 1e9,
           (double)sim->step_ns / 1e3 / (double)(sim->steps ? sim->steps : 1),
           (double)sim->step_ns_max / 1e3);
}

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
    check_rest(&sim);
    print_result(&sim, seed);
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(sim.scheduler, &stats);
    if (requests_option >= 10000) {
        /* The load is what it is meant to be. */
        assert_true(seed % 2 != 0 || stats.preemptions > 500);
        assert_true(stats.finished[KVA_FINISH_DEADLINE] > 10);
        assert_true(stats.finished[KVA_FINISH_CANCELLED] > 100);
        assert_true(stats.prompt_tokens_cached > 0);
        /* Nobody is forgotten: a full queue of 600 drains in about two minutes. */
        assert_true(sim.longest_wait_ns < 240 * KVA_NS_PER_S);
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
    limits->page_tokens = 1u << rng_below(rng, 8);
    uint32_t pages = limits->context_max / limits->page_tokens + 2;
    limits->budget.device = (uint64_t)(pages + rng_below(rng, 3 * pages)) << 16;
    limits->budget.host = (uint64_t)(pages + rng_below(rng, 8 * pages)) << 16;
    sim.engine.prefix_cache = rng_below(rng, 3) != 0;
    sim.engine.vocab = 2 + rng_below(rng, 500);
    sim.engine.without_admit_bytes = rng_below(rng, 3) == 0;
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
    return sim;
}

static void test_simulation__invariants_hold_in_any_configuration(void **state KVA_UNUSED)
{
    uint64_t first = seed_option != 0 ? seed_option : 1;
    uint64_t last = seed_option != 0 ? seed_option : 300;
    uint64_t tokens = 0, preemptions = 0;
    for (uint64_t seed = first; seed <= last; seed++) {
        struct simulation sim = random_simulation(seed);
        simulation_begin(&sim);
        sim.tracker.expect_errors =
            sim.engine.item_fails_every != 0 || sim.engine.grow_refused_every != 0;
        simulation_run(&sim);
        check_rest(&sim);
        struct kva_scheduler_stats stats;
        kva_scheduler_get_stats(sim.scheduler, &stats);
        tokens += stats.output_tokens;
        preemptions += stats.preemptions;
        simulation_end(&sim);
    }
    printf("seeds %llu..%llu: %llu tokens, %llu preemptions\n", (unsigned long long)first,
           (unsigned long long)last, (unsigned long long)tokens, (unsigned long long)preemptions);
    assert_true(seed_option != 0 || preemptions > 1000);
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
        assert_false(timed_step(&sim, &wake_ns));
        kva_scheduler_get_stats(sim.scheduler, &stats);
    } while (stats.running < count || sim.tracker.tokens < 2 * count);
    sim.measuring = true;
    sim.step_ns = sim.steps = sim.step_ns_max = 0;
    for (uint32_t i = 0; i < steps; i++)
        assert_false(timed_step(&sim, &wake_ns));
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
        cmocka_unit_test(test_simulation__is_deterministic),
        cmocka_unit_test(test_simulation__prints_the_cost_of_scheduling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
