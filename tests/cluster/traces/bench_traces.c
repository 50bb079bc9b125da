/* bench_traces.c - tokens a second of Infinite-LLM's traces, with and without lending, on a virtual
 * clock: see world.h.
 *
 *     bench_cluster_traces [TRACE [INSTANCES [SEEDS [MEASURED_S [ATTEND]]]]]
 *
 * Attention to a token takes ATTEND times as long as the roofline says. TRACE -1: all; INSTANCES 0: 4 to 32. "One pool" is no system: all memory and all
 * attention are everybody's, and nothing takes a link's time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cluster/traces/world.h"

#define SEEDS_MAX 16

struct figure {
    double mean, error; /* of the mean, over seeds */
    double load;        /* at which it is reached */
    double drift;       /* of the second half against the first */
    struct world_result last;
};

/* At one rate of arrivals. */
static struct figure measure_at(struct world_params params, uint32_t seeds)
{
    struct figure figure = {0};
    double values[SEEDS_MAX], squares = 0;
    for (uint32_t i = 0; i < seeds; i++) {
        params.seed = i + 1;
        figure.last = world_run(&params);
        values[i] = figure.last.tokens_per_s;
        figure.mean += values[i] / seeds;
        figure.drift += (figure.last.halves[1] / figure.last.halves[0] - 1) / seeds;
    }
    for (uint32_t i = 0; i < seeds; i++)
        squares += (values[i] - figure.mean) * (values[i] - figure.mean);
    figure.error = seeds > 1 ? sqrt(squares / (seeds - 1) / seeds) : 0;
    return figure;
}

/* The most it reaches at any rate, as the paper compares them: beyond what can be served the rate
 * matters, since who waits decides what may be lent. */
static struct figure measure(struct world_params params, uint32_t seeds)
{
    static const double loads[] = {0.2, 0.28, 0.4, 0.57, 0.8, 1.13};
    struct figure most = {0};
    for (uint32_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
        params.load = loads[i];
        struct figure figure = measure_at(params, seeds);
        figure.load = loads[i];
        if (figure.mean > most.mean)
            most = figure;
    }
    return most;
}

/* The group sizes that hold the longest request, and the best of them. */
static struct figure measure_groups(struct world_params params, uint32_t devices, uint32_t seeds,
                                    uint32_t *ret_size)
{
    struct figure best = {0};
    for (uint32_t size = 2; size <= devices; size *= 2) {
        params.devices = size;
        params.instances = devices / size;
        struct figure figure = measure(params, seeds);
        if (figure.last.refused == 0 && figure.mean > best.mean) {
            best = figure;
            *ret_size = size;
        }
    }
    return best;
}

static void tell(const char *what, const struct figure *figure)
{
    const struct world_result *last = &figure->last;
    fprintf(stderr,
            "  %s: at load %.2f %.1f rows, memory used %.2f, drift %+.3f, waits of %.1f s, "
            "%llu loans, %llu home; %u refused, %u again, %u ended\n",
            what, figure->load, last->rows, last->used, figure->drift, last->wait_s,
            (unsigned long long)last->loans, (unsigned long long)last->home, last->refused,
            last->computed_again, last->ended);
}

static void run(const struct trace *trace, uint32_t devices, uint32_t seeds, double measured_s,
                double attend)
{
    struct world_machine machine = world_a100();
    machine.cost.attend_token_s *= attend;
    struct world_params params = {.machine = &machine,
                                  .trace = trace,
                                  .instances = devices,
                                  .devices = 1,
                                  .warm_s = measured_s / 2,
                                  .measured_s = measured_s};
    uint32_t size = 0;
    struct figure alone = measure(params, seeds);
    struct figure groups = measure_groups(params, devices, seeds, &size);
    params.lends = true;
    struct figure lends = measure(params, seeds);
    params.lends = false;
    params.pooled = true;
    params.devices = devices;
    params.instances = 1;
    struct figure pool = measure(params, seeds);
    printf("| %s | %u | %.0f +- %.0f%s | %.0f +- %.0f | %.0f +- %.0f | %.0f +- %.0f (%u) | %.2f | "
           "%.2f | %.2f |\n",
           trace->name, devices, alone.mean, alone.error, alone.last.refused ? "*" : "", lends.mean,
           lends.error, pool.mean, pool.error, groups.mean, groups.error, size,
           lends.mean / alone.mean, pool.mean / alone.mean,
           groups.mean > 0 ? lends.mean / groups.mean : 0);
    fflush(stdout);
    fprintf(stderr, "trace %s on %u\n", trace->name, devices);
    tell("alone", &alone);
    tell("lending", &lends);
    tell("one pool", &pool);
    tell("groups", &groups);
}

int main(int argc, char **argv)
{
    int trace = argc > 1 ? atoi(argv[1]) : -1;
    uint32_t devices = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    uint32_t seeds = argc > 3 ? (uint32_t)atoi(argv[3]) : 3;
    double measured_s = argc > 4 ? atof(argv[4]) : 200, attend = argc > 5 ? atof(argv[5]) : 1;
    if (trace >= (int)TRACES || devices > WORLD_INSTANCES_MAX || seeds == 0 || seeds > SEEDS_MAX ||
        !(attend > 0)) {
        fprintf(stderr, "traces are 0 to 8, instances 4 to 32, seeds 1 to %d\n", SEEDS_MAX);
        return 1;
    }
    printf("| trace | devices | alone | lending | one pool | best groups | lending over alone | "
           "pool over alone | lending over groups |\n|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < TRACES; i++)
        for (uint32_t count = 4; count <= WORLD_INSTANCES_MAX; count *= 2)
            if ((trace < 0 || trace == (int)i) && (devices == 0 || devices == count) &&
                traces[i].longest < world_tokens_max(count))
                run(&traces[i], count, seeds, measured_s, attend);
    return 0;
}
