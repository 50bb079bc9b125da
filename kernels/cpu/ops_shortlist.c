/* shortlist: the best of a row of logits, and the sums that choosing among them needs. A row is an
 * item of work. */
#include "kernels/cpu/device_cpu.h"
#include "kernels/logits.h"

/* --- the best -------------------------------------------------------------------------------- */

/* Let heap[0] sink to its place in a heap whose worst is on top. */
static void sink(struct kva_candidate *heap, uint32_t count)
{
    struct kva_candidate moving = heap[0];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && kva_candidate_is_better(heap[child], heap[child + 1]))
            child++;
        if (kva_candidate_is_better(heap[child], moving))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

static void rise(struct kva_candidate *heap, uint32_t at)
{
    struct kva_candidate moving = heap[at];
    for (; at > 0 && kva_candidate_is_better(heap[(at - 1) / 2], moving); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = moving;
}

/* The best of a row as a heap with the worst of them on top; returns how many there are. */
static uint32_t find_best(struct kva_candidate *heap, uint32_t wanted, const float *logits,
                          uint32_t vocab)
{
    uint32_t count = 0;
    float least =
        -INFINITY; /* what no more than equals it is out: equals come in ascending order */
    for (uint32_t i = 0; i < vocab; i++) {
        if (!(logits[i] > least))
            continue;
        if (count < wanted) {
            heap[count] = (struct kva_candidate){logits[i], i};
            rise(heap, count++);
        } else {
            heap[0] = (struct kva_candidate){logits[i], i};
            sink(heap, count);
        }
        if (count == wanted)
            least = heap[0].logit;
    }
    return count;
}

static bool is_listed(struct kva_candidate x, const struct kva_candidate *last)
{
    return x.logit > -INFINITY && !kva_candidate_is_better(*last, x);
}

static void list_best(struct kva_candidate *listed, const struct kva_candidate *last,
                      const float *logits, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab; i++) {
        struct kva_candidate x = {logits[i], i};
        if (is_listed(x, last))
            *listed++ = x;
    }
}

/* --- sums ------------------------------------------------------------------------------------ */

static double rest_of(const struct kva_candidate *last, float temperature, const float *logits,
                      uint32_t vocab)
{
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        struct kva_candidate x = {logits[i], i};
        if (x.logit > -INFINITY && !is_listed(x, last))
            sum += exp(((double)x.logit - (double)last->logit) / (double)temperature);
    }
    return sum;
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
    const struct kva_shortlist_want *want = &args->wants[index];
    const float *logits = args->logits + (size_t)want->row * args->vocab;
    struct kva_candidate *heap = kva_cpu_scratch(job->device, worker);
    struct kva_shortlist *out = &args->out[index];
    *out = (struct kva_shortlist){.count = find_best(heap, want->best, logits, args->vocab)};
    if (out->count > 0)
        list_best(args->listed + (size_t)index * KVA_SHORTLIST_MAX, heap, logits, args->vocab);
    for (uint32_t i = want->watch_first; i < want->watch_first + want->watch_count; i++)
        args->watched_logits[i] = logits[args->watched[i]];
    if (want->temperature > 0 && out->count == want->best)
        out->rest = rest_of(heap, want->temperature, logits, args->vocab);
    if (want->log_sum)
        out->log_sum = kva_log_sum_exp(logits, args->vocab);
    if (want->rank)
        out->rank = rank_of(args->watched[want->watch_first], logits, args->vocab);
}

void kva_cpu_shortlist(struct kva_device *device, const struct kva_shortlist_args *args)
{
    struct shortlist_job job = {device, args};
    if (!atomic_load_explicit(&device->failed, memory_order_relaxed))
        kva_pool_run(device->pool, args->count, run_row, &job);
}
