/* bench_planner.c - what one plan takes, by requests and instances, in processor time of one core.
 *
 *     bench_cluster_planner */
#include "base/clock.h"
#include "cluster/planner.h"
#include "tests/cluster/a100.h"
#include "tests/median.h"
#include "tests/random.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUESTS 10000u
#define ROUNDS   21

/* A quarter of the instances are full of a few long requests, with others waiting. */
static void fill(struct kva_plan_instance *instances, struct kva_plan_request *requests,
                 uint32_t instance_count, const struct kva_cost_params *cost)
{
    uint64_t rng = 7;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t at = i % instance_count;
        if (at % 4 == 0 && i / instance_count % 16 != 0)
            at++;
        bool is_long = at % 4 == 0;
        uint32_t pages = is_long ? 64 + kva_test_below(&rng, 400) : 1 + kva_test_below(&rng, 3);
        requests[i] = (struct kva_plan_request){.id = i + 1, .instance = at, .pages = pages};
        instances[at].batch++;
        instances[at].tokens += pages * 64ull;
        instances[at].pages += pages;
    }
    for (uint32_t at = 0; at < instance_count; at++) {
        instances[at].id = at;
        instances[at].cost = cost;
        instances[at].batch_max = 1024;
        instances[at].free_pages = at % 4 == 0 ? 3 : 2000;
        instances[at].pages += instances[at].free_pages;
        if (at % 4 == 0) {
            instances[at].waiting = 100;
            instances[at].head_pages = 8;
            instances[at].waiting_pages = 800;
        }
    }
}

static int run(uint32_t instance_count)
{
    struct kva_cost_params cost = a100_llama7b();
    struct kva_plan_params params = kva_plan_defaults(&cost);
    struct kva_plan_instance *instances = calloc(instance_count, sizeof(*instances));
    struct kva_plan_request *requests = calloc(REQUESTS, sizeof(*requests));
    double ms[ROUNDS];
    uint32_t moves = 0;
    /* The hardest case: all may be debtors, and any gain is worth a move. */
    params.batch_threshold = UINT32_MAX;
    params.gain_min_share = 0;
    fill(instances, requests, instance_count, &cost);
    struct kva_plan_state state = {.instances = instances,
                                   .requests = requests,
                                   .instance_count = instance_count,
                                   .request_count = REQUESTS};
    for (int i = 0; i < ROUNDS; i++) {
        struct kva_arena arena;
        struct kva_plan plan = {0};
        kva_arena_init(&arena, 64u << 20);
        uint64_t begin = kva_cpu_time_ns();
        if (kva_plan_make(&params, &state, 4096, &arena, &plan, NULL))
            return 1;
        ms[i] = (double)(kva_cpu_time_ns() - begin) / 1e6;
        moves = plan.move_count;
        kva_arena_finish(&arena);
    }
    kva_test_sort(ms, ROUNDS);
    printf("| %u | %u | %u | %.1f | %.1f |\n", REQUESTS, instance_count, moves, ms[ROUNDS / 2],
           ms[ROUNDS - 1]);
    free(instances);
    free(requests);
    return 0;
}

int main(void)
{
    printf("| requests | instances | moves | median ms | longest ms |\n|---|---|---|---|---|\n");
    return run(8) || run(32) || run(128) || run(512);
}
