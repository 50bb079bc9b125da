/* driver.c - driver of attention.
 *
 * Tasks run side by side, each folding its splits in ascending order. Of a task too long for that,
 * the splits run side by side instead, into partial results that are then folded in the same order:
 * the same additions, so the same bits. So it is with splits that are computed apart, before what
 * they are folded into is known. */
#include "kernels/cpu/attend/walk.h"

/* --- tasks side by side ----------------------------------------------------------------------- */

/* What it takes to have a task meet so many splits, in units of its own. */
static uint64_t cost_of(const struct kva_attend_task *task, uint32_t splits)
{
    uint32_t queries = kva_max_u32(kva_query_count(&task->at), KVA_ATTEND_FEW_QUERIES);
    return (uint64_t)splits * task->kv_count * queries;
}

/* Whether a task is one for all threads, of which each finds splits of it to do. */
static bool is_long(const struct kva_attend_plan *plan, const struct kva_attend_task *task)
{
    const uint32_t splits = kva_attend_count_splits(task);
    return cost_of(task, splits) > plan->longest &&
           splits >= 2 * kva_pool_threads(plan->device->pool);
}

static void run_task(void *opaque, uint32_t index, uint32_t worker)
{
    const struct kva_attend_plan *plan = opaque;
    struct kva_attend_task task = kva_attend_task_at(plan, index);
    struct kva_attend_scratch *scratch = kva_cpu_scratch(plan->device, worker);
    const struct kva_partial to = {scratch->a, scratch->m, scratch->e};
    struct kva_attend_walk walk = {0};
    if (is_long(plan, &task))
        return;
    kva_attend_task_splits(&task, &walk.split, &walk.end);
    if (!task.args->accumulate)
        kva_attend_clear_out(&task);
    if (walk.split < walk.end)
        kva_attend_walk_begin(&task, &walk, scratch);
    while (walk.split < walk.end) {
        const uint32_t kv = walk.kv;
        kva_attend_walk_on(plan->device, &task, &walk, scratch, to);
        for (uint32_t j = 0; j < kva_query_count(&task.at); j++)
            kva_attend_fold_query(plan->device, &task, kv, j, to);
    }
}

/* --- the splits of a task side by side -------------------------------------------------------- */

/* Splits [first, first + count) of one task, `step` of them in an item; the partial results of
 * split i are at partials + i * split_floats, one per KV head. */
struct wave {
    struct kva_device *device;
    struct kva_attend_task task;
    uint32_t first;
    uint32_t count;
    uint32_t step;
    float *partials;
    size_t split_floats;
};

static struct kva_partial wave_partial(const struct wave *wave, uint32_t index, uint32_t kv)
{
    const struct kva_attend_task *task = &wave->task;
    const uint32_t dim = task->args->head_dim;
    return kva_query_partial_at(&task->at, dim,
                                wave->partials + index * wave->split_floats +
                                    kv * kva_query_partial_floats(&task->at, dim));
}

/* Splits [from, from + count) of the wave. */
static void run_splits(const struct wave *wave, uint32_t from, uint32_t count, uint32_t worker)
{
    struct kva_attend_scratch *scratch = kva_cpu_scratch(wave->device, worker);
    struct kva_attend_walk walk = {.split = wave->first + from};
    walk.end = walk.split + count;
    kva_attend_walk_begin(&wave->task, &walk, scratch);
    while (walk.split < walk.end)
        kva_attend_walk_on(wave->device, &wave->task, &walk, scratch,
                           wave_partial(wave, walk.split - wave->first, walk.kv));
}

static void run_wave_splits(void *opaque, uint32_t index, uint32_t worker)
{
    const struct wave *wave = opaque;
    const uint32_t from = index * wave->step;
    run_splits(wave, from, kva_min_u32(wave->step, wave->count - from), worker);
}

static uint32_t wave_queries(const struct wave *wave)
{
    return wave->task.kv_count * kva_query_count(&wave->task.at);
}

static void fold_wave_query(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct wave *wave = opaque;
    const uint32_t queries = kva_query_count(&wave->task.at), kv = index / queries;
    for (uint32_t i = 0; i < wave->count; i++)
        kva_attend_fold_query(wave->device, &wave->task, kv, index % queries,
                              wave_partial(wave, i, kv));
}

static void run_long_task(const struct kva_attend_plan *plan, const struct kva_attend_task *task)
{
    struct kva_pool *pool = plan->device->pool;
    struct wave wave = {.device = plan->device,
                        .task = *task,
                        .partials = plan->device->partials,
                        .split_floats = kva_attend_split_floats(task)};
    uint32_t end;
    kva_attend_task_splits(task, &wave.first, &end);
    if (!plan->args->accumulate)
        kva_attend_clear_out(task);
    const size_t fit = KVA_CPU_PARTIAL_BYTES / (wave.split_floats * sizeof(float));
    for (; wave.first < end; wave.first += wave.count) {
        wave.count = (uint32_t)kva_min_size(fit, end - wave.first);
        wave.step =
            (uint32_t)kva_div_up(wave.count, (size_t)KVA_ATTEND_SHARES * kva_pool_threads(pool));
        kva_pool_run(pool, (uint32_t)kva_div_up(wave.count, wave.step), run_wave_splits, &wave);
        kva_pool_run(pool, wave_queries(&wave), fold_wave_query, &wave);
    }
}

/* --- the operator ----------------------------------------------------------------------------- */

/* What a task of the sequence costs, about: the rows of the last one see furthest, the first one has
 * most rows and heads, and nothing need have been computed apart. With a window another one may see
 * more splits. */
static uint64_t usual_of_seq(const struct kva_attend_plan *plan, const struct kva_attend_seq *seq)
{
    const struct kva_attend_task first = kva_attend_seq_task(plan, seq, 0);
    struct kva_attend_task last =
        kva_attend_seq_task(plan, seq, kva_attend_seq_tasks(plan, seq) - 1);
    last.skip = 0;
    return cost_of(&first, kva_attend_count_splits(&last));
}

static uint64_t longest_allowed(const struct kva_attend_plan *plan)
{
    const uint32_t threads = kva_pool_threads(plan->device->pool);
    uint64_t total = 0;
    if (threads == 1)
        return UINT64_MAX;
    for (uint32_t i = 0; i < plan->args->seq_count; i++) {
        const struct kva_attend_seq *seq = &plan->args->seqs[i];
        if (seq->row_count > 0)
            total += usual_of_seq(plan, seq) * kva_attend_seq_tasks(plan, seq);
    }
    return total / ((uint64_t)KVA_ATTEND_SHARES * threads);
}

static void run_long_tasks(const struct kva_attend_plan *plan)
{
    const bool any = plan->longest < UINT64_MAX;
    for (uint32_t i = 0; i < plan->args->seq_count && any; i++) {
        const struct kva_attend_seq *seq = &plan->args->seqs[i];
        for (uint32_t j = 0; j < kva_attend_seq_tasks(plan, seq); j++) {
            const struct kva_attend_task task = kva_attend_seq_task(plan, seq, j);
            if (is_long(plan, &task))
                run_long_task(plan, &task);
        }
    }
}

/* False: the device has failed, or there is too much to do in one call. */
static bool make_plan(struct kva_device *device, const struct kva_attend_args *args,
                      struct kva_attend_plan *ret)
{
    if (kva_cpu_failed(device))
        return false;
    *ret = (struct kva_attend_plan){
        .device = device, .args = args, .cut = kva_query_cut_of(args->heads, args->kv_heads)};
    size_t tasks = kva_attend_plan_tasks(ret);
    if (tasks > UINT32_MAX)
        kva_cpu_fail(device, "attend: %zu work items in one call", tasks);
    return tasks <= UINT32_MAX;
}

static void run_plan(struct kva_attend_plan *plan)
{
    plan->longest = longest_allowed(plan);
    run_long_tasks(plan);
    kva_pool_run(plan->device->pool, (uint32_t)kva_attend_plan_tasks(plan), run_task, plan);
}

void kva_cpu_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    struct kva_attend_plan plan;
    if (make_plan(device, args, &plan))
        run_plan(&plan);
}

/* --- splits apart ----------------------------------------------------------------------------- */

/* Each sequence has the same part of the memory, and each of its tasks the same part of that: which
 * splits there are room for is a matter of the call alone. */
struct apart {
    const struct kva_attend_plan *plan;
    float *memory;
    size_t seq_floats;
    uint32_t pieces; /* items of a task */
};

static struct apart apart_of(const struct kva_attend_plan *plan,
                             const struct kva_attend_apart_args *args)
{
    const size_t line = KVA_CACHE_LINE / sizeof(float);
    const size_t threads = kva_pool_threads(plan->device->pool);
    const size_t tasks = kva_max_size(kva_attend_plan_tasks(plan), 1);
    const size_t seqs = kva_max_size(plan->args->seq_count, 1);
    return (struct apart){.plan = plan,
                          .memory = args->memory,
                          .seq_floats = args->bytes / sizeof(float) / seqs / line * line,
                          .pieces = (uint32_t)kva_div_up(KVA_ATTEND_SHARES * threads, tasks)};
}

/* The splits of a task that there is room for. */
static struct wave apart_wave(const struct apart *apart, uint32_t index)
{
    const struct kva_attend_plan *plan = apart->plan;
    const struct kva_attend_seq *seq = plan->args->seqs;
    uint32_t tasks;
    for (; index >= (tasks = kva_attend_seq_tasks(plan, seq)); seq++)
        index -= tasks;
    const size_t floats = kva_attend_task_floats(apart->seq_floats, tasks);
    struct wave wave = {.device = plan->device, .task = kva_attend_seq_task(plan, seq, index)};
    uint32_t end;
    kva_attend_task_splits(&wave.task, &wave.first, &end);
    wave.split_floats = kva_attend_split_floats(&wave.task);
    wave.partials =
        apart->memory + (size_t)(seq - plan->args->seqs) * apart->seq_floats + index * floats;
    wave.count = (uint32_t)kva_min_size(end - wave.first, floats / wave.split_floats);
    return wave;
}

/* Where piece `piece` of `count` things begins. */
static uint32_t piece_at(const struct apart *apart, uint32_t count, uint32_t piece)
{
    return (uint32_t)((uint64_t)count * piece / apart->pieces);
}

static void run_apart(void *opaque, uint32_t index, uint32_t worker)
{
    const struct apart *apart = opaque;
    const struct wave wave = apart_wave(apart, index / apart->pieces);
    const uint32_t piece = index % apart->pieces;
    const uint32_t from = piece_at(apart, wave.count, piece);
    const uint32_t end = piece_at(apart, wave.count, piece + 1);
    if (from < end)
        run_splits(&wave, from, end - from, worker);
}

static void fold_apart(void *opaque, uint32_t index, uint32_t worker)
{
    const struct apart *apart = opaque;
    struct wave wave = apart_wave(apart, index / apart->pieces);
    const uint32_t queries = wave_queries(&wave), piece = index % apart->pieces;
    for (uint32_t i = piece_at(apart, queries, piece); i < piece_at(apart, queries, piece + 1); i++)
        fold_wave_query(&wave, i, worker);
}

static void run_items(struct apart *apart, kva_pool_fn *run)
{
    const size_t items = kva_attend_plan_tasks(apart->plan) * apart->pieces;
    kva_pool_run(apart->plan->device->pool, (uint32_t)items, run, apart);
}

void kva_cpu_attend_apart(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    struct kva_attend_plan plan;
    if (!make_plan(device, &args->attend, &plan))
        return;
    struct apart apart = apart_of(&plan, args);
    run_items(&apart, run_apart);
}

void kva_cpu_attend_join(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    struct kva_attend_plan plan;
    if (!make_plan(device, &args->attend, &plan))
        return;
    struct apart apart = apart_of(&plan, args);
    run_items(&apart, fold_apart);
    plan.apart_floats = apart.seq_floats;
    run_plan(&plan);
}
