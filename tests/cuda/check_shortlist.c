/* Cases of shortlist. The lists are the same bits as the CPU's; sums are in another order. */
#include "tests/cuda/check.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, CALLS_MAX = 24, WATCHED_MAX = 64 };

/* What one device gives. */
struct results {
    struct kva_shortlist *out;    /* [CALLS_MAX] */
    struct kva_candidate *listed; /* [CALLS_MAX][KVA_SHORTLIST_MAX] */
    float *watched;               /* [WATCHED_MAX] */
};

static const size_t listed_bytes =
    sizeof(struct kva_candidate) * (size_t)CALLS_MAX * KVA_SHORTLIST_MAX;

static bool new_results(struct check *check, struct kva_device *device, struct results *results)
{
    struct kva_err err = {0};
    bool good =
        !kva_device_alloc(device, KVA_MEM_HOST, CALLS_MAX * sizeof *results->out,
                          (void **)&results->out, &err) &&
        !kva_device_alloc(device, KVA_MEM_HOST, listed_bytes, (void **)&results->listed, &err) &&
        !kva_device_alloc(device, KVA_MEM_HOST, WATCHED_MAX * sizeof(float),
                          (void **)&results->watched, &err);
    if (!good)
        check_that(check, err.message, false);
    return good;
}

static void free_results(struct kva_device *device, struct results *results)
{
    kva_device_free(device, KVA_MEM_HOST, results->out, CALLS_MAX * sizeof *results->out);
    kva_device_free(device, KVA_MEM_HOST, results->listed, listed_bytes);
    kva_device_free(device, KVA_MEM_HOST, results->watched, WATCHED_MAX * sizeof(float));
}

/* Row 0 has nothing, row 1 no number; then ties, among them zeros of both signs; then few logits;
 * the others are as logits are. */
static float logit_at(struct check *check, uint32_t row, float x)
{
    switch (row) {
    case 0:
        return -INFINITY;
    case 1:
        return NAN;
    case 2:
        return check_below(check, 3) == 0 ? NAN : rintf(x);
    case 3:
        return check_below(check, 2) ? 0.0f : check_below(check, 9) ? -0.0f : rintf(x);
    case 4:
        return check_below(check, 16) ? -INFINITY : x;
    default:
        return 4 * x;
    }
}

static void fill_want(struct check *check, struct kva_shortlist_want *want, uint32_t best)
{
    static const float temperatures[] = {0, 0, 1, 0.25f, 2};
    want->row = check_below(check, ROWS);
    want->best = best;
    want->temperature = temperatures[check_below(check, 5)];
    want->log_sum = check_below(check, 2);
    want->rank = want->watch_count > 0 && check_below(check, 2);
}

static double nearness(double got, double want)
{
    return got == want || (isnan(got) && isnan(want)) ? 0 : fabs(got - want) / (1 + fabs(want));
}

static void compare(struct check *check, const struct results *got, const struct results *want,
                    uint32_t count, uint32_t watched_count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_shortlist *x = &got->out[i], *y = &want->out[i];
        size_t at = (size_t)i * KVA_SHORTLIST_MAX;
        check_that(check, "shortlist's count and rank", x->count == y->count && x->rank == y->rank);
        check_that(check, "shortlist's rest", nearness(x->rest, y->rest) < 1e-12);
        /* The CPU adds up rounded exponentials here. */
        check_that(check, "shortlist's sum", nearness(x->log_sum, y->log_sum) < 1e-6);
        for (uint32_t j = 0; j < x->count && x->count == y->count; j++)
            check_that(check, "shortlist's tokens",
                       got->listed[at + j].token == want->listed[at + j].token &&
                           memcmp(&got->listed[at + j].logit, &want->listed[at + j].logit,
                                  sizeof(float)) == 0);
    }
    check_same(check, "shortlist's watched logits", got->watched, want->watched,
               watched_count * sizeof(float));
}

static void shortlist_case(struct check *check, uint32_t count, uint32_t vocab, uint32_t best_max)
{
    struct acts logits = acts_new(check, KVA_F32, (size_t)ROWS * vocab, 1.0f);
    struct results cpu, gpu, again;
    struct kva_shortlist_want wants[CALLS_MAX];
    uint32_t watched[WATCHED_MAX], watched_count = 0;
    if (!new_results(check, check->cpu, &cpu) || !new_results(check, check->gpu, &gpu) ||
        !new_results(check, check->gpu, &again))
        return;
    for (size_t i = 0; i < logits.count; i++)
        logits.cpu[i] = logit_at(check, (uint32_t)(i / vocab), logits.cpu[i]);
    gpu_free(check, logits.gpu, logits.count * sizeof(float));
    logits.gpu = gpu_new(check, logits.cpu, logits.count * sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t room = kva_min_u32(WATCHED_MAX - watched_count, 5);
        wants[i] = (struct kva_shortlist_want){.watch_first = watched_count,
                                               .watch_count = check_between(check, 0, room)};
        watched_count += wants[i].watch_count;
        fill_want(check, &wants[i], i % 3 == 0 ? 1 : check_between(check, 1, best_max));
    }
    for (uint32_t i = 0; i < watched_count; i++)
        watched[i] = check_below(check, vocab);
    struct kva_shortlist_args args = {
        .out = cpu.out,
        .listed = cpu.listed,
        .watched_logits = cpu.watched,
        .logits = logits.cpu,
        .wants = wants,
        .watched = watched,
        .count = count,
        .watched_count = watched_count,
        .vocab = vocab,
    };
    kva_device_ops(check->cpu)->shortlist(check->cpu, &args);
    args.logits = logits.gpu;
    for (int i = 0; i < 2; i++) {
        const struct results *to = i ? &again : &gpu;
        args.out = to->out;
        args.listed = to->listed;
        args.watched_logits = to->watched;
        kva_device_ops(check->gpu)->shortlist(check->gpu, &args);
    }
    kva_device_sync(check->gpu, KVA_QUEUE_COMPUTE);
    compare(check, &gpu, &cpu, count, watched_count);
    check_same(check, "shortlist, again", again.out, gpu.out, count * sizeof *gpu.out);
    check_same(check, "shortlist, again", again.listed, gpu.listed, listed_bytes);
    free_results(check->cpu, &cpu);
    free_results(check->gpu, &gpu);
    free_results(check->gpu, &again);
    acts_free(check, &logits);
}

void check_shortlist(struct check *check)
{
    static const uint32_t vocabs[] = {1, 31, 33, 512, 1537, 3000};
    check->op = "shortlist";
    for (size_t i = 0; i < KVA_COUNT_OF(vocabs); i++)
        shortlist_case(check, check_between(check, 3, CALLS_MAX), vocabs[i],
                       i % 2 ? KVA_SHORTLIST_MAX : 40);
    if (check->large)
        shortlist_case(check, CALLS_MAX, 151936, KVA_SHORTLIST_MAX);
}
