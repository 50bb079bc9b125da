/* simulation.h - random traffic on a scheduler, a scripted engine and a virtual clock.
 *
 * The engine aborts when a budget or a rule of its contract is broken, the tracker fails when a
 * token is lost, repeated, reordered or wrong; the simulation checks what the scheduler says of
 * itself, and that everything is answered and given back in the end. */
#ifndef KVA_TESTS_SCHEDULER_SIMULATION_H
#define KVA_TESTS_SCHEDULER_SIMULATION_H

#include "tests/cmocka.h"

#include "tests/scheduler/tracker.h"

struct rng {
    uint64_t state;
};

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
    uint32_t tenants; /* 0: everybody is tenant 0 */
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

uint32_t rng_below(struct rng *rng, uint32_t bound);

/* `rng`, `engine`, `scheduling` and `traffic` are the caller's to fill in. */
void simulation_begin(struct simulation *sim);
void simulation_end(struct simulation *sim);

/* Until all traffic is answered. */
void simulation_run(struct simulation *sim);

/* One step, its cost taken; true: nothing to do before *ret_wake_ns. */
bool simulation_step(struct simulation *sim, uint64_t *ret_wake_ns);

/* Everything was answered and given back. */
void simulation_check_rest(struct simulation *sim);

void simulation_print(const struct simulation *sim, uint64_t seed);

#endif
