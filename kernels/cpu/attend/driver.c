/* driver.c - driver of attention.
 *
 * Where rows are few, and reading is what takes time, a task has all the KV heads (query_task.h) of
 * its rows, split by split: heads lie side by side in a block, so that what the hardware fetches
 * beyond one is the beginning of the next.
 *
 * Tasks run side by side, each folding its splits in ascending order. Of a task too long for that,
 * the splits run side by side instead, into partial results that are then folded in the same order:
 * the same additions, so the same bits. */
#include "kernels/cpu/attend/query_task.h"

#include <math.h>
#include <string.h>

/* A task has several KV heads if one of them has so many queries at most. */
#define FEW_QUERIES 16u

/* A task longer than 1/SHARES of what a thread has to do is done by all of them. */
#define SHARES 4u

struct task {
    const struct kva_attend_args *args;
    const struct kva_attend_seq *seq;
    struct kva_query_task at; /* of the first KV head */
    uint32_t kv_count;
};

struct plan {
    struct kva_device *device;
    const struct kva_attend_args *args;
    struct kva_query_cut cut;
    uint64_t longest; /* cost of a task beyond which it is done by all threads */
};

#define Q_FLOATS (KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX)

/* A thread's scratch. */
struct scratch {
    const void *tokens[2][KVA_ATTEND_SPLIT_TOKENS]; /* of a split, and of the one that comes next */
    uint32_t slot_first[KVA_CPU_ATTEND_QUERIES];
    uint32_t slot_end[KVA_CPU_ATTEND_QUERIES];
    float m[KVA_CPU_ATTEND_QUERIES];
    float e[KVA_CPU_ATTEND_QUERIES];
    _Alignas(64) float scores[KVA_CPU_ATTEND_QUERIES * KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float q[Q_FLOATS]; /* [kv_count][queries][head_dim], scaled */
    _Alignas(64) float a[KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX];
    _Alignas(64) float k[KVA_CPU_ATTEND_K_FLOATS];
    _Alignas(64) float v[KVA_CPU_ATTEND_V_FLOATS];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "attention outgrew the scratch");

/* --- tasks ------------------------------------------------------------------------------------ */

/* KV heads of one task of a sequence: several only if there are splits enough to share. */
static uint32_t kv_heads_of_task(const struct plan *plan, const struct kva_attend_seq *seq)
{
    const uint32_t queries = kva_min_u32(seq->row_count, plan->cut.task_rows) * plan->cut.group;
    const uint32_t threads = kva_pool_threads(plan->device->pool);
    const uint32_t tokens = seq->position_first + seq->row_count;
    if (queries == 0 || queries > FEW_QUERIES)
        return 1;
    if (threads > 1 && tokens < SHARES * threads * KVA_ATTEND_SPLIT_TOKENS)
        return 1;
    return kva_min_u32(plan->cut.kv_heads, Q_FLOATS / (queries * plan->args->head_dim));
}

/* Tasks of a sequence: those of query_task.h, or runs of them over the KV heads of the same rows.
 */
static uint32_t tasks_of_seq(const struct plan *plan, const struct kva_attend_seq *seq)
{
    const uint32_t kv_heads = kv_heads_of_task(plan, seq), all = plan->cut.kv_heads;
    if (kv_heads == 1)
        return kva_query_tasks(&plan->cut, seq->row_count);
    return kva_query_tasks(&plan->cut, seq->row_count) / all * (uint32_t)kva_div_up(all, kv_heads);
}

static struct task task_of_seq(const struct plan *plan, const struct kva_attend_seq *seq,
                               uint32_t index)
{
    const uint32_t kv_heads = kv_heads_of_task(plan, seq), all = plan->cut.kv_heads;
    struct task task = {.args = plan->args, .seq = seq, .kv_count = 1};
    if (kv_heads > 1) {
        const uint32_t pieces = (uint32_t)kva_div_up(all, kv_heads);
        const uint32_t kv_first = index % pieces * kv_heads;
        task.kv_count = kva_min_u32(kv_heads, all - kv_first);
        index = index / pieces * all + kv_first;
    }
    task.at = kva_query_task_at(&plan->cut, seq->row_first, seq->row_count, index);
    return task;
}

static size_t tasks_of_plan(const struct plan *plan)
{
    size_t count = 0;
    for (uint32_t i = 0; i < plan->args->seq_count; i++)
        count += tasks_of_seq(plan, &plan->args->seqs[i]);
    return count;
}

static struct task task_at(const struct plan *plan, uint32_t index)
{
    const struct kva_attend_seq *seq = plan->args->seqs;
    for (uint32_t count; index >= (count = tasks_of_seq(plan, seq)); seq++)
        index -= count;
    return task_of_seq(plan, seq, index);
}

/* What one of the task's KV heads has to do. */
static struct kva_query_task of_head(const struct task *task, uint32_t kv)
{
    struct kva_query_task at = task->at;
    at.kv_head += kv;
    return at;
}

static uint32_t first_visible(const struct task *task, uint32_t position)
{
    return kva_query_first_visible(task->args->window, position);
}

static uint32_t first_position(const struct task *task)
{
    return task->seq->position_first + task->at.row_first;
}

/* Splits [*ret_first, *ret_end) hold everything that the task's rows may see. */
static void task_splits(const struct task *task, uint32_t *ret_first, uint32_t *ret_end)
{
    *ret_first = *ret_end = 0;
    if (task->seq->range_count == 0)
        return;
    const struct kva_attend_range *ranges = task->args->ranges + task->seq->range_first;
    const struct kva_attend_range *last = &ranges[task->seq->range_count - 1];
    uint32_t first = kva_max_u32(first_visible(task, first_position(task)), ranges[0].token_first);
    uint32_t end = kva_min_u32(first_position(task) + task->at.row_count,
                               last->token_first + last->token_count);
    if (first >= end)
        return;
    *ret_first = first / KVA_ATTEND_SPLIT_TOKENS;
    *ret_end = (uint32_t)kva_div_up(end, KVA_ATTEND_SPLIT_TOKENS);
}

/* --- one split -------------------------------------------------------------------------------- */

/* The index of the first range that ends after `position`, or range_count. */
static uint32_t find_range(const struct kva_attend_range *ranges, uint32_t count, uint32_t position)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ranges[middle].token_first + ranges[middle].token_count <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The slots [*ret_first, *ret_end) of the split from `base` on that some row of the task may see.
 */
static void task_slots(const struct task *task, uint32_t base, uint32_t *ret_first,
                       uint32_t *ret_end)
{
    uint32_t first = first_visible(task, first_position(task));
    uint32_t end = first_position(task) + task->at.row_count;
    *ret_first = kva_min_u32(kva_max_u32(first, base) - base, KVA_ATTEND_SPLIT_TOKENS);
    *ret_end = kva_min_u32(kva_max_u32(end, base) - base, KVA_ATTEND_SPLIT_TOKENS);
}

/* tokens[slot] = the K row of position base + slot in the task's KV head `kv`, for the slots of
 * split `index` that the task may see and the ranges hold; NULL for all others. */
static void find_tokens(const struct task *task, uint32_t index, uint32_t kv, const void **tokens)
{
    const struct kva_attend_args *args = task->args;
    const struct kva_attend_range *ranges = args->ranges + task->seq->range_first;
    const size_t token_bytes = (size_t)args->head_dim * 2 * sizeof(uint16_t);
    const size_t head_at =
        args->block_offset_bytes + (size_t)(task->at.kv_head + kv) * KVA_PAGE_TOKENS * token_bytes;
    uint32_t base = index * KVA_ATTEND_SPLIT_TOKENS, first, end;
    task_slots(task, base, &first, &end);
    memset(tokens, 0, KVA_ATTEND_SPLIT_TOKENS * sizeof *tokens);
    uint32_t i = find_range(ranges, task->seq->range_count, base + first);
    for (; i < task->seq->range_count && ranges[i].token_first < base + end; i++) {
        const struct kva_attend_range *range = &ranges[i];
        uint32_t position = kva_max_u32(base + first, range->token_first);
        uint32_t stop = kva_min_u32(base + end, range->token_first + range->token_count);
        while (position < stop) {
            uint32_t block = range->block_first + position / KVA_PAGE_TOKENS -
                             range->token_first / KVA_PAGE_TOKENS;
            const unsigned char *rows = (const unsigned char *)args->blocks[block] + head_at;
            uint32_t in_block = position % KVA_PAGE_TOKENS;
            uint32_t count = kva_min_u32(KVA_PAGE_TOKENS - in_block, stop - position);
            for (uint32_t t = 0; t < count; t++)
                tokens[position - base + t] = rows + (in_block + t) * token_bytes;
            position += count;
        }
    }
}

/* Which slots of the split each query sees. */
static void find_visible(const struct task *task, uint32_t base, struct scratch *scratch)
{
    for (uint32_t row = 0; row < task->at.row_count; row++) {
        uint32_t position = first_position(task) + row;
        uint32_t first = first_visible(task, position);
        first = first > base ? kva_min_u32(first - base, KVA_ATTEND_SPLIT_TOKENS) : 0;
        uint32_t end = position >= base ? position - base + 1 : 0;
        end = kva_max_u32(first, kva_min_u32(end, KVA_ATTEND_SPLIT_TOKENS));
        for (uint32_t head = 0; head < task->at.head_count; head++) {
            scratch->slot_first[row * task->at.head_count + head] = first;
            scratch->slot_end[row * task->at.head_count + head] = end;
        }
    }
}

static float *queries_of(const struct task *task, struct scratch *scratch, uint32_t kv)
{
    return scratch->q + (size_t)kv * kva_query_count(&task->at) * task->args->head_dim;
}

/* scratch->q = the task's queries, scaled. */
static void load_queries(const struct task *task, struct scratch *scratch)
{
    const struct kva_attend_args *args = task->args;
    for (uint32_t kv = 0; kv < task->kv_count; kv++) {
        const struct kva_query_task at = of_head(task, kv);
        kva_query_load(
            &at, (struct kva_query_rows){args->q, args->q_stride, args->head_dim, args->scale},
            queries_of(task, scratch, kv));
    }
}

/* Through splits [split, end) of a task, one KV head of each after the other. */
struct walk {
    uint32_t split;
    uint32_t end;
    uint32_t kv;
    uint32_t turn; /* pairs of the two that have been */
};

/* Everything before the first turn. */
static void begin_walk(const struct task *task, const struct walk *walk, struct scratch *scratch)
{
    load_queries(task, scratch);
    find_tokens(task, walk->split, walk->kv, scratch->tokens[0]);
}

/* Where the scores of the task's first query of a KV head are kept; NULL: they are not. */
static float *kept_scores(const struct task *task, uint32_t split, uint32_t kv)
{
    const struct kva_attend_scores *scores = &task->seq->scores;
    const struct kva_query_task at = of_head(task, kv);
    const size_t line = kva_query_head(&at) * scores->split_count + split - scores->split_first;
    return scores->data ? scores->data + line * KVA_ATTEND_SPLIT_TOKENS : NULL;
}

/* to = attention of the task's queries of one KV head to one split, where `walk` stands, which then
 * goes on. */
static void walk_on(const struct kva_device *device, const struct task *task, struct walk *walk,
                    struct scratch *scratch, struct kva_partial to)
{
    const struct walk at = *walk;
    const void **next = NULL;
    walk->turn++;
    if (++walk->kv == task->kv_count) {
        walk->kv = 0;
        walk->split++;
    }
    if (walk->split < walk->end) {
        next = scratch->tokens[walk->turn % 2];
        find_tokens(task, walk->split, walk->kv, next);
    }
    if (at.kv == 0)
        find_visible(task, at.split * KVA_ATTEND_SPLIT_TOKENS, scratch);
    struct kva_cpu_attend_split split = {
        .q = queries_of(task, scratch, at.kv),
        .tokens = scratch->tokens[at.turn % 2],
        .next = (const void *const *)next,
        .slot_first = scratch->slot_first,
        .slot_end = scratch->slot_end,
        .q_count = kva_query_count(&task->at),
        .head_dim = task->args->head_dim,
        .kv_dtype = task->args->kv_dtype,
        .a = to.a,
        .m = to.m,
        .e = to.e,
        .kept = kept_scores(task, at.split, at.kv),
        .kept_stride = (size_t)task->seq->scores.split_count * KVA_ATTEND_SPLIT_TOKENS,
        .scores = scratch->scores,
        .k = scratch->k,
        .v = scratch->v,
    };
    device->kernels.attend_split(&split);
}

static void fold_query(const struct kva_device *device, const struct task *task, uint32_t kv,
                       uint32_t query, struct kva_partial from)
{
    const struct kva_attend_args *args = task->args;
    const struct kva_query_task at = of_head(task, kv);
    kva_cpu_partial_fold(&device->kernels, &args->out, kva_query_pair(&at, query), args->head_dim,
                         from.a + (size_t)query * args->head_dim, from.m[query], from.e[query]);
}

static void clear_out(const struct task *task)
{
    for (uint32_t kv = 0; kv < task->kv_count; kv++) {
        const struct kva_query_task at = of_head(task, kv);
        kva_query_clear(&at, &task->args->out, task->args->head_dim);
    }
}

/* --- tasks side by side ----------------------------------------------------------------------- */

static uint32_t count_splits(const struct task *task)
{
    uint32_t first, end;
    task_splits(task, &first, &end);
    return end - first;
}

/* What it takes to have a task meet so many splits, in units of its own. */
static uint64_t cost_of(const struct task *task, uint32_t splits)
{
    uint32_t queries = kva_max_u32(kva_query_count(&task->at), FEW_QUERIES);
    return (uint64_t)splits * task->kv_count * queries;
}

/* Whether a task is one for all threads, of which each finds splits of it to do. */
static bool is_long(const struct plan *plan, const struct task *task)
{
    const uint32_t splits = count_splits(task);
    return cost_of(task, splits) > plan->longest &&
           splits >= 2 * kva_pool_threads(plan->device->pool);
}

static void run_task(void *opaque, uint32_t index, uint32_t worker)
{
    const struct plan *plan = opaque;
    struct task task = task_at(plan, index);
    struct scratch *scratch = kva_cpu_scratch(plan->device, worker);
    const struct kva_partial to = {scratch->a, scratch->m, scratch->e};
    struct walk walk = {0};
    if (is_long(plan, &task))
        return;
    task_splits(&task, &walk.split, &walk.end);
    if (!task.args->accumulate)
        clear_out(&task);
    if (walk.split < walk.end)
        begin_walk(&task, &walk, scratch);
    while (walk.split < walk.end) {
        const uint32_t kv = walk.kv;
        walk_on(plan->device, &task, &walk, scratch, to);
        for (uint32_t j = 0; j < kva_query_count(&task.at); j++)
            fold_query(plan->device, &task, kv, j, to);
    }
}

/* --- the splits of a task side by side -------------------------------------------------------- */

/* Splits [first, first + count) of one task, `step` of them in an item; the partial results of
 * split i are at device->partials + i * split_floats, one per KV head. */
struct wave {
    struct kva_device *device;
    struct task task;
    uint32_t first;
    uint32_t count;
    uint32_t step;
    size_t split_floats;
};

static struct kva_partial wave_partial(const struct wave *wave, uint32_t index, uint32_t kv)
{
    const struct task *task = &wave->task;
    const uint32_t dim = task->args->head_dim;
    return kva_query_partial_at(&task->at, dim,
                                wave->device->partials + index * wave->split_floats +
                                    kv * kva_query_partial_floats(&task->at, dim));
}

static void run_wave_splits(void *opaque, uint32_t index, uint32_t worker)
{
    const struct wave *wave = opaque;
    struct scratch *scratch = kva_cpu_scratch(wave->device, worker);
    const uint32_t from = index * wave->step;
    struct walk walk = {.split = wave->first + from};
    walk.end = walk.split + kva_min_u32(wave->step, wave->count - from);
    begin_walk(&wave->task, &walk, scratch);
    while (walk.split < walk.end)
        walk_on(wave->device, &wave->task, &walk, scratch,
                wave_partial(wave, walk.split - wave->first, walk.kv));
}

static void fold_wave_query(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct wave *wave = opaque;
    const uint32_t queries = kva_query_count(&wave->task.at), kv = index / queries;
    for (uint32_t i = 0; i < wave->count; i++)
        fold_query(wave->device, &wave->task, kv, index % queries, wave_partial(wave, i, kv));
}

static void run_long_task(const struct plan *plan, const struct task *task)
{
    struct kva_pool *pool = plan->device->pool;
    struct wave wave = {.device = plan->device, .task = *task};
    uint32_t end;
    task_splits(task, &wave.first, &end);
    if (!plan->args->accumulate)
        clear_out(task);
    wave.split_floats = task->kv_count * kva_query_partial_floats(&task->at, plan->args->head_dim);
    const size_t fit = KVA_CPU_PARTIAL_BYTES / (wave.split_floats * sizeof(float));
    for (; wave.first < end; wave.first += wave.count) {
        wave.count = (uint32_t)kva_min_size(fit, end - wave.first);
        wave.step = (uint32_t)kva_div_up(wave.count, (size_t)SHARES * kva_pool_threads(pool));
        kva_pool_run(pool, (uint32_t)kva_div_up(wave.count, wave.step), run_wave_splits, &wave);
        kva_pool_run(pool, task->kv_count * kva_query_count(&task->at), fold_wave_query, &wave);
    }
}

/* --- the operator ----------------------------------------------------------------------------- */

/* What a task of the sequence costs at most: its last rows see furthest, its first tile is full. */
static uint64_t most_of_seq(const struct plan *plan, const struct kva_attend_seq *seq)
{
    struct task task = task_of_seq(plan, seq, tasks_of_seq(plan, seq) - 1);
    const uint32_t splits = count_splits(&task);
    task.at.row_count = kva_min_u32(seq->row_count, plan->cut.task_rows);
    return cost_of(&task, splits);
}

static uint64_t longest_allowed(const struct plan *plan)
{
    const uint32_t threads = kva_pool_threads(plan->device->pool);
    uint64_t total = 0;
    if (threads == 1)
        return UINT64_MAX;
    for (uint32_t i = 0; i < plan->args->seq_count; i++) {
        const struct kva_attend_seq *seq = &plan->args->seqs[i];
        if (seq->row_count > 0)
            total += most_of_seq(plan, seq) * tasks_of_seq(plan, seq);
    }
    return total / ((uint64_t)SHARES * threads);
}

static void run_long_tasks(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->args->seq_count; i++) {
        const struct kva_attend_seq *seq = &plan->args->seqs[i];
        if (seq->row_count == 0 || most_of_seq(plan, seq) <= plan->longest)
            continue;
        for (uint32_t j = 0; j < tasks_of_seq(plan, seq); j++) {
            const struct task task = task_of_seq(plan, seq, j);
            if (is_long(plan, &task))
                run_long_task(plan, &task);
        }
    }
}

void kva_cpu_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (kva_cpu_failed(device))
        return;
    struct plan plan = {device, args, kva_query_cut_of(args->heads, args->kv_heads), 0};
    size_t tasks = tasks_of_plan(&plan);
    if (tasks > UINT32_MAX) {
        kva_cpu_fail(device, "attend: %zu work items in one call", tasks);
        return;
    }
    plan.longest = longest_allowed(&plan);
    run_long_tasks(&plan);
    kva_pool_run(device->pool, (uint32_t)tasks, run_task, &plan);
}
