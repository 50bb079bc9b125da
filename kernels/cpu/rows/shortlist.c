/* shortlist.c - shortlist: the best of a row of logits, and the sums that choosing among them
 * needs. A row is an item of work. */
#include "kernels/cpu/device/device_cpu.h"
#include "kernels/logits.h"

#include <string.h>

/* --- the best -------------------------------------------------------------------------------- */

/* What may be among the best, by ascending token: whatever comes is added, and where there is no
 * more room all but the best are taken out again. No step depends on a comparison that could go
 * either way but the one that adds: such branches are what a heap spends its time on. */
struct best {
    float *logits;    /* [max] */
    uint32_t *tokens; /* [max] */
    uint32_t wanted, count, max;
    float least;               /* what is no more is not among the best */
    struct kva_candidate last; /* the worst of them, once `wanted` are all there are */
};

/* Groups of logits whose maxima say what the best are no less than. */
#define GROUPS_ALIGN 16u
#define GROUPS_MAX   (2 * KVA_SHORTLIST_MAX)

#define BEST_MAX     (4 * KVA_SHORTLIST_MAX + BLOCK)

/* Logits that are looked at together: few of them are among the best. */
#define BLOCK 16u

_Static_assert(GROUPS_MAX % GROUPS_ALIGN == 0 &&
                   (GROUPS_MAX + 2 * BEST_MAX) * sizeof(float) <= KVA_CPU_SCRATCH_BYTES,
               "a shortlist needs more than the scratch");

/* The float with this place in the order of floats, which is its bits' for those above 0. */
static float float_at(int32_t place)
{
    int32_t bits = place < 0 ? place ^ INT32_MAX : place;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

#define PLACE_OF_INFINITY 0x7F800000

/* The `rank`-th largest of `count` >= rank numbers above -inf. */
static float find_largest(const float *numbers, uint32_t count, uint32_t rank)
{
    /* At least `rank` are no less than the float at `low`, fewer at `high`. */
    int64_t low = -(int64_t)PLACE_OF_INFINITY - 1, high = (int64_t)PLACE_OF_INFINITY + 1;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        float limit = float_at((int32_t)middle);
        uint32_t above = 0;
        for (uint32_t i = 0; i < count; i++)
            above += numbers[i] >= limit;
        low = above >= rank ? middle : low;
        high = above >= rank ? high : middle;
    }
    return float_at((int32_t)low);
}

/* The best stay; of equal ones the first. */
static void keep_best(struct best *best)
{
    if (best->count < best->wanted)
        return;
    float worst = find_largest(best->logits, best->count, best->wanted);
    uint32_t equals = best->wanted, count = 0;
    for (uint32_t i = 0; i < best->count; i++)
        equals -= best->logits[i] > worst;
    for (uint32_t i = 0; i < best->count; i++) {
        bool equal = best->logits[i] == worst && equals > 0;
        equals -= equal;
        best->logits[count] = best->logits[i];
        best->tokens[count] = best->tokens[i];
        best->last.token = equal ? best->tokens[i] : best->last.token;
        count += equal || best->logits[i] > worst;
    }
    best->count = count;
    best->last.logit = best->least = worst;
}

/* What the best are no less than, or -inf: as many as are wanted are in groups of their own, each
 * the largest there. */
static float bound_of(const float *logits, uint32_t vocab, uint32_t wanted, float *largest)
{
    uint32_t groups = (uint32_t)kva_align_up(2 * wanted, GROUPS_ALIGN), above = 0;
    if (vocab < 2 * groups)
        return -INFINITY;
    for (uint32_t j = 0; j < groups; j++)
        largest[j] = -INFINITY;
    for (uint32_t i = 0; i + groups <= vocab; i += groups) {
        for (uint32_t j = 0; j < groups; j++)
            largest[j] = logits[i + j] > largest[j] ? logits[i + j] : largest[j];
    }
    for (uint32_t j = 0; j < groups; j++)
        above += largest[j] > -INFINITY;
    return above < wanted ? -INFINITY : find_largest(largest, groups, wanted);
}

/* Whether none of a block's logits reaches `limit`. */
static bool all_below(const float *logits, float limit)
{
    uint32_t reach = 0;
    for (uint32_t i = 0; i < BLOCK; i++)
        reach += logits[i] >= limit;
    return reach == 0;
}

static void add_block(struct best *best, const float *logits, uint32_t first, uint32_t count)
{
    if (best->count + count > best->max)
        keep_best(best);
    for (uint32_t i = first; i < first + count; i++) {
        best->logits[best->count] = logits[i];
        best->tokens[best->count] = i;
        best->count += logits[i] > best->least;
    }
}

static void find_best(struct best *best, const float *logits, uint32_t vocab)
{
    uint32_t i = 0;
    for (; i + BLOCK <= vocab; i += BLOCK) {
        if (!all_below(logits + i, best->least))
            add_block(best, logits, i, BLOCK);
    }
    add_block(best, logits, i, vocab - i);
    keep_best(best);
}

/* With room for what may be among the best of a row, at `scratch`. */
static struct best best_of(uint32_t wanted, const float *logits, uint32_t vocab, float *scratch)
{
    struct best best = {.logits = scratch + GROUPS_MAX, .wanted = wanted};
    best.max = 4 * wanted + BLOCK;
    best.tokens = (uint32_t *)(void *)(best.logits + best.max);
    float bound = bound_of(logits, vocab, wanted, scratch);
    best.least = bound > -INFINITY ? nextafterf(bound, -INFINITY) : bound;
    find_best(&best, logits, vocab);
    return best;
}

/* --- sums ------------------------------------------------------------------------------------ */

/* Of what is not listed: less than the worst that is, or equal to it and behind it. */
static double tail_sum_of(const struct kva_cpu_kernels *kernels, const struct kva_candidate *last,
                          float temperature, const float *logits, uint32_t vocab)
{
    uint32_t equals = 0;
    for (uint32_t i = last->token + 1; i < vocab; i++)
        equals += logits[i] == last->logit;
    return kernels->exp_sum(logits, vocab, last->logit, temperature) + equals;
}

static uint32_t rank_of(uint32_t token, const float *logits, uint32_t vocab)
{
    struct kva_candidate own = {isnan(logits[token]) ? -INFINITY : logits[token], token};
    uint32_t rank = 1;
    for (uint32_t i = 0; i < vocab; i++)
        rank += kva_candidate_is_better(
            (struct kva_candidate){isnan(logits[i]) ? -INFINITY : logits[i], i}, own);
    return rank;
}

/* --- the operator ---------------------------------------------------------------------------- */

struct shortlist_job {
    struct kva_device *device;
    const struct kva_shortlist_args *args;
};

static void run_row(void *opaque, uint32_t index, uint32_t worker)
{
    const struct shortlist_job *job = opaque;
    const struct kva_shortlist_args *args = job->args;
    const struct kva_shortlist_request *request = &args->requests[index];
    const float *logits = args->logits + (size_t)request->row * args->vocab;
    struct kva_candidate *listed = args->listed + (size_t)index * KVA_SHORTLIST_MAX;
    const struct best best =
        best_of(request->k, logits, args->vocab, kva_cpu_scratch(job->device, worker));
    struct kva_shortlist *out = &args->out[index];
    *out = (struct kva_shortlist){.count = best.count};
    for (uint32_t i = 0; i < best.count; i++)
        listed[i] = (struct kva_candidate){best.logits[i], best.tokens[i]};
    for (uint32_t i = request->tracked_first; i < request->tracked_first + request->tracked_count;
         i++)
        args->tracked_logits[i] = logits[args->tracked[i]];
    if (request->temperature > 0 && out->count == request->k)
        out->tail_sum = tail_sum_of(&job->device->kernels, &best.last, request->temperature, logits,
                                    args->vocab);
    if (request->log_sum)
        out->log_sum = kva_log_sum_exp(logits, args->vocab);
    if (request->rank)
        out->rank = rank_of(args->tracked[request->tracked_first], logits, args->vocab);
}

void kva_cpu_shortlist(struct kva_device *device, const struct kva_shortlist_args *args)
{
    struct shortlist_job job = {device, args};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->count, run_row, &job);
}
