#include "tests/scheduler/simulation.h"

#include "tests/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- random -------------------------------------------------------------------------------- */

static uint64_t rng_next(struct rng *rng)
{
    return kva_test_random(&rng->state);
}

static double rng_unit(struct rng *rng)
{
    return ((double)(rng_next(rng) >> 11) + 0.5) / 9007199254740992.0;
}

uint32_t rng_below(struct rng *rng, uint32_t bound)
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

static void take_output(void *opaque, const struct kva_output *output)
{
    struct simulation *sim = opaque;
    if (sim->measuring)
        sim->measured_outputs++;
    else
        tracker_output(&sim->tracker, output);
}

void simulation_begin(struct simulation *sim)
{
    kva_virtual_clock_init(&sim->clock, KVA_NS_PER_S);
    sim->engine.clock = &sim->clock;
    sim->scripted = kva_scripted_create(&sim->engine);
    tracker_init(&sim->tracker, sim->engine.vocab);
    sim->tracker.waiting_time_ns = sim->scheduling.waiting_time_ns;
    sim->scheduling.engine = kva_scripted_engine(sim->scripted);
    sim->scheduling.clock = &sim->clock.clock;
    sim->scheduling.on_output = take_output;
    sim->scheduling.opaque = sim;
    struct kva_err err;
    if (kva_scheduler_create(&sim->scheduling, &sim->scheduler, &err) != KVA_OK)
        fail_msg("%s", err.message);
    sim->arrival_ns = sim->clock.now_ns;
}

void simulation_end(struct simulation *sim)
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
    if (spec.choices == 1 && spec.id % 17 == 0) {
        spec.pooling = spec.id % 2 ? KVA_POOLING_MEAN : KVA_POOLING_LAST;
        spec.output_tokens_max = 1;
        spec.prompt_logprobs = -1;
    }
    if (rng_below(rng, 100) < traffic->deadline_pct)
        spec.deadline_ns = sim->clock.now_ns + (uint64_t)rng_exponential(rng, 20e9) + 1;
    if (rng_below(rng, 100) < traffic->prefix_pct) {
        spec.prefix_seed = rng_below(rng, 5);
        spec.prefix_tokens = kva_min_u32(spec.prompt_tokens, 200 + 100 * spec.prefix_seed);
    }
    if (traffic->tenants > 0) {
        /* The first sends most; of many, every third may run two choices at once. */
        spec.tenant = rng_below(rng, 2) ? 1 : 1 + rng_below(rng, traffic->tenants);
        spec.tenant_weight = 1 + (uint32_t)spec.tenant % 4;
        spec.tenant_running_max = traffic->tenants > 5 && spec.tenant % 3 == 2 ? 2 : 0;
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
    /* Who is put back to waiting has been let in before. */
    uint32_t put_back = sim->engine.lost_every ? sim->engine.limits.sequences_max : 0;
    assert_true(stats.waiting <= sim->scheduling.waiting_max + put_back);
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < KVA_WAIT_REASON_COUNT; i++)
        waiting += stats.waiting_by_reason[i];
    assert_int_equal(waiting, stats.waiting);
    uint32_t running = 0;
    for (uint32_t i = 0; i < KVA_KV_POLICY_COUNT; i++)
        running += stats.engine.sequences[i];
    assert_int_equal(running, stats.running);
    assert_int_equal(stats.output_tokens, sim->tracker.tokens);
    for (uint32_t i = 0; i < KVA_FINISH_COUNT; i++)
        assert_int_equal(stats.finished[i], sim->tracker.by_reason[i]);
}

/* One step, its cost taken. */
bool simulation_step(struct simulation *sim, uint64_t *ret_wake_ns)
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

void simulation_run(struct simulation *sim)
{
    uint64_t rounds = 0;
    while (sim->next_id < sim->traffic.requests || sim->tracker.live > 0) {
        arrivals(sim);
        cancellations(sim);
        uint64_t wake_ns = 0;
        bool idle = simulation_step(sim, &wake_ns);
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
void simulation_check_rest(struct simulation *sim)
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

void simulation_print(const struct simulation *sim, uint64_t seed)
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
