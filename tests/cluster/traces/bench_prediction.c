/* bench_prediction.c - what a cluster would make of given requests on a given machine, by the virtual
 * clock of world.h, for measure_trace.py to hold real servers against:
 *
 *     bench_cluster_prediction draw TRACE SCALE COUNT INSTANCES RATE SEED     requests, to stdout
 *     bench_cluster_prediction run FILE INSTANCES WARM_S MEASURED_S           tokens a second
 *
 * Lengths are those of a trace times SCALE; they come at RATE a second in all, in turns to the
 * instances. FILE has a line for each constant and each request:
 *
 *     layers N | page_bytes N | pages N | rows_max N | step_pages X | lend_share X | patience_s X
 *     attend_token_s X | link_latency_s X | link_bytes_per_s X | query_bytes N | partial_bytes N
 *     guest_wait_s X
 *     prompt_s X | prompt_pair_s X
 *     point ROWS SECONDS                          of a layer
 *     request SECONDS INSTANCE PROMPT OUTPUTS     tokens */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cluster/traces/world.h"

#define LENGTH_MIN 4u /* tokens */

static int draw(char **argv)
{
    uint32_t trace = (uint32_t)atoi(argv[0]), count = (uint32_t)atoi(argv[2]);
    uint32_t instances = (uint32_t)atoi(argv[3]);
    uint64_t random = strtoull(argv[5], NULL, 10) * 0x9E3779B97F4A7C15ull;
    double scale = atof(argv[1]), rate = atof(argv[4]), at_s = 0;
    if (trace >= TRACES || instances == 0 || rate <= 0)
        return 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t tokens = (uint32_t)(trace_draw(&traces[trace], &random) * scale);
        tokens = tokens < LENGTH_MIN ? LENGTH_MIN : tokens;
        uint32_t outputs = trace_outputs(tokens);
        at_s -= log(trace_uniform(&random)) / rate;
        printf("request %.4f %u %u %u\n", at_s, i % instances, tokens - outputs, outputs);
    }
    return 0;
}

struct input {
    struct world_machine machine;
    struct world_arrival *arrivals;
    uint32_t arrival_count, arrival_max;
};

static bool take_request(struct input *input, const char *line)
{
    struct world_arrival arrival;
    if (sscanf(line, "request %lf %u %u %u", &arrival.at_s, &arrival.instance, &arrival.prompt,
               &arrival.outputs) != 4)
        return false;
    if (input->arrival_count == input->arrival_max) {
        input->arrival_max = 2 * input->arrival_max + 1024;
        input->arrivals = realloc(input->arrivals, input->arrival_max * sizeof(*input->arrivals));
        if (!input->arrivals)
            exit(1);
    }
    input->arrivals[input->arrival_count++] = arrival;
    return true;
}

static bool take_constant(struct world_machine *m, const char *line)
{
    struct kva_cost_params *cost = &m->cost;
    struct kva_cost_point point;
    char name[32];
    double value;
    if (sscanf(line, "point %u %lf", &point.rows, &point.s) == 2) {
        if (cost->point_count == KVA_COST_POINTS_MAX)
            return false;
        cost->points[cost->point_count++] = point;
        return true;
    }
    const struct {
        const char *name;
        double *real;
        uint32_t *whole;
    } constants[] = {
        {"layers", NULL, &cost->layers},
        {"pages", NULL, &m->pages},
        {"rows_max", NULL, &m->rows_max},
        {"query_bytes", NULL, &cost->query_bytes},
        {"partial_bytes", NULL, &cost->partial_bytes},
        {"step_pages", &m->step_pages, NULL},
        {"lend_share", &m->lend_share, NULL},
        {"patience_s", &m->patience_s, NULL},
        {"prompt_s", &m->prompt_s, NULL},
        {"prompt_pair_s", &m->prompt_pair_s, NULL},
        {"attend_token_s", &cost->attend_token_s, NULL},
        {"link_latency_s", &cost->link_latency_s, NULL},
        {"link_bytes_per_s", &cost->link_bytes_per_s, NULL},
        {"guest_wait_s", &cost->guest_wait_s, NULL},
    };
    if (sscanf(line, "%31s %lf", name, &value) != 2)
        return false;
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (strcmp(name, constants[i].name) != 0)
            continue;
        if (constants[i].real)
            *constants[i].real = value;
        else
            *constants[i].whole = (uint32_t)value;
        return true;
    }
    if (strcmp(name, "page_bytes") != 0)
        return false;
    cost->page_bytes = (uint64_t)value;
    return true;
}

static bool read_input(const char *path, struct input *input)
{
    char line[256];
    FILE *file = fopen(path, "r");
    bool fine = file != NULL;
    while (fine && fgets(line, sizeof(line), file)) {
        fine = take_request(input, line) || take_constant(&input->machine, line);
        if (!fine)
            fprintf(stderr, "neither a constant nor a request: %s", line);
    }
    if (file)
        fclose(file);
    return fine;
}

static int run(char **argv)
{
    struct kva_err err = {0};
    struct input input = {0};
    if (!read_input(argv[0], &input))
        return 1;
    if (kva_cost_check(&input.machine.cost, &err)) {
        fprintf(stderr, "%s: %s\n", err.param, err.message);
        return 1;
    }
    struct world_params params = {.machine = &input.machine,
                                  .arrivals = input.arrivals,
                                  .arrival_count = input.arrival_count,
                                  .instances = (uint32_t)atoi(argv[1]),
                                  .devices = 1,
                                  .lends = input.machine.lend_share > 0,
                                  .warm_s = atof(argv[2]),
                                  .measured_s = atof(argv[3])};
    if (params.instances == 0 || params.instances > WORLD_INSTANCES_MAX)
        return 1;
    for (uint32_t i = 0; i < input.arrival_count; i++)
        if (input.arrivals[i].instance >= params.instances || input.arrivals[i].outputs == 0)
            return 1;
    struct world_result result = world_run(&params);
    printf("tokens_per_s %.2f prompts_per_s %.2f rows %.2f used %.3f wait_s %.3f ended %u "
           "refused %u loans %llu home %llu\n",
           result.tokens_per_s, result.prompts_per_s, result.rows, result.used, result.wait_s,
           result.ended, result.refused, (unsigned long long)result.loans,
           (unsigned long long)result.home);
    free(input.arrivals);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "draw") == 0)
        return draw(argv + 2);
    if (argc == 6 && strcmp(argv[1], "run") == 0)
        return run(argv + 2);
    fprintf(stderr, "draw TRACE SCALE COUNT INSTANCES RATE SEED, or run FILE INSTANCES WARM_S "
                    "MEASURED_S\n");
    return 1;
}
