/* Driver of attention.
 *
 * Tasks (query_task.h) run side by side, each folding its splits in ascending order. Where there
 * are too few tasks for the threads (one long sequence), the splits of a task run side by side
 * instead, into partial results that are then folded in the same order: the same additions, so the
 * same bits. */
#include "kernels/cpu/query_task.h"

#include <math.h>
#include <string.h>

struct task {
    const struct kva_attend_args *args;
    const struct kva_attend_seq *seq;
    struct kva_query_task at;
};

struct plan {
    struct kva_device *device;
    const struct kva_attend_args *args;
    struct kva_query_cut cut;
};

/* A thread's scratch. */
struct scratch {
    const void *tokens[2][KVA_ATTEND_SPLIT_TOKENS]; /* split i in tokens[i % 2] */
    uint32_t slot_first[KVA_CPU_ATTEND_QUERIES];
    uint32_t slot_end[KVA_CPU_ATTEND_QUERIES];
    float m[KVA_CPU_ATTEND_QUERIES];
    float e[KVA_CPU_ATTEND_QUERIES];
    _Alignas(64) float scores[KVA_CPU_ATTEND_QUERIES * KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float q[KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX];
    _Alignas(64) float a[KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX];
    _Alignas(64) float k[KVA_CPU_ATTEND_K_FLOATS];
    _Alignas(64) float v[KVA_CPU_ATTEND_V_FLOATS];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "attention outgrew the scratch");

/* --- tasks ------------------------------------------------------------------------------------ */

static size_t tasks_of_plan(const struct plan *plan)
{
    size_t count = 0;
    for (uint32_t i = 0; i < plan->args->seq_count; i++)
        count += kva_query_tasks(&plan->cut, plan->args->seqs[i].row_count);
    return count;
}

static struct task task_at(const struct plan *plan, uint32_t index)
{
    const struct kva_attend_seq *seq = plan->args->seqs;
    for (uint32_t count; index >= (count = kva_query_tasks(&plan->cut, seq->row_count)); seq++)
        index -= count;
    return (struct task){plan->args, seq,
                         kva_query_task_at(&plan->cut, seq->row_first, seq->row_count, index)};
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

/* tokens[slot] = the K row of position base + slot, for the slots of split `index` that the task
 * may see and the ranges hold; NULL for all others. */
static void find_tokens(const struct task *task, uint32_t index, const void **tokens)
{
    const struct kva_attend_args *args = task->args;
    const struct kva_attend_range *ranges = args->ranges + task->seq->range_first;
    size_t token_bytes = (size_t)args->head_dim * 2 * sizeof(uint16_t);
    uint32_t base = index * KVA_ATTEND_SPLIT_TOKENS, first, end;
    task_slots(task, base, &first, &end);
    memset(tokens, 0, KVA_ATTEND_SPLIT_TOKENS * sizeof *tokens);
    uint32_t i = find_range(ranges, task->seq->range_count, base + first);
    for (; i < task->seq->range_count && ranges[i].token_first < base + end; i++) {
        const struct kva_attend_range *range = &ranges[i];
        uint32_t position = kva_max_u32(base + first, range->token_first);
        uint32_t stop = kva_min_u32(base + end, range->token_first + range->token_count);
        for (; position < stop; position++) {
            uint32_t block = range->block_first + position / KVA_PAGE_TOKENS -
                             range->token_first / KVA_PAGE_TOKENS;
            size_t row = (size_t)task->at.kv_head * KVA_PAGE_TOKENS + position % KVA_PAGE_TOKENS;
            tokens[position - base] = (const unsigned char *)args->blocks[block] +
                                      args->block_offset_bytes + row * token_bytes;
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

/* scratch->q = the task's queries, scaled. */
static void load_queries(const struct task *task, struct scratch *scratch)
{
    const struct kva_attend_args *args = task->args;
    kva_query_load(&task->at,
                   (struct kva_query_rows){args->q, args->q_stride, args->head_dim, args->scale},
                   scratch->q);
}

/* to = attention of the task's queries, already in scratch->q, to split `index`, whose tokens are
 * already in scratch->tokens; `cold` and `next` as in struct kva_cpu_attend_split. */
static void run_split(const struct kva_device *device, const struct task *task, uint32_t index,
                      bool cold, const void *const *next, struct scratch *scratch,
                      struct kva_partial to)
{
    find_visible(task, index * KVA_ATTEND_SPLIT_TOKENS, scratch);
    struct kva_cpu_attend_split split = {
        .q = scratch->q,
        .tokens = scratch->tokens[index % 2],
        .next = next,
        .cold = cold,
        .slot_first = scratch->slot_first,
        .slot_end = scratch->slot_end,
        .q_count = kva_query_count(&task->at),
        .head_dim = task->args->head_dim,
        .kv_dtype = task->args->kv_dtype,
        .a = to.a,
        .m = to.m,
        .e = to.e,
        .scores = scratch->scores,
        .k = scratch->k,
        .v = scratch->v,
    };
    device->kernels.attend_split(&split);
}

static void fold_query(const struct kva_device *device, const struct task *task, uint32_t query,
                       const float *a, float m, float e)
{
    const struct kva_attend_args *args = task->args;
    kva_cpu_partial_fold(&device->kernels, &args->out, kva_query_pair(&task->at, query),
                         args->head_dim, a, m, e);
}

/* --- tasks side by side ----------------------------------------------------------------------- */

static void run_task(void *opaque, uint32_t index, uint32_t worker)
{
    const struct plan *plan = opaque;
    struct task task = task_at(plan, index);
    struct scratch *scratch = kva_cpu_scratch(plan->device, worker);
    const struct kva_partial to = {scratch->a, scratch->m, scratch->e};
    uint32_t first, end;
    task_splits(&task, &first, &end);
    if (!task.args->accumulate)
        kva_query_clear(&task.at, &task.args->out, task.args->head_dim);
    if (first < end) {
        load_queries(&task, scratch);
        find_tokens(&task, first, scratch->tokens[first % 2]);
    }
    for (uint32_t split = first; split < end; split++) {
        const void **next = NULL;
        if (split + 1 < end) {
            next = scratch->tokens[(split + 1) % 2];
            find_tokens(&task, split + 1, next);
        }
        run_split(plan->device, &task, split, split == first, (const void *const *)next, scratch,
                  to);
        for (uint32_t j = 0; j < kva_query_count(&task.at); j++)
            fold_query(plan->device, &task, j, to.a + (size_t)j * task.args->head_dim, to.m[j],
                       to.e[j]);
    }
}

/* --- the splits of a task side by side -------------------------------------------------------- */

/* Splits [first, first + count) of one task; partial i is at device->partials + i * partial_floats.
 */
struct wave {
    struct kva_device *device;
    struct task task;
    uint32_t first;
    uint32_t count;
    size_t partial_floats;
};

static struct kva_partial wave_partial(const struct wave *wave, uint32_t index)
{
    return kva_query_partial_at(&wave->task.at, wave->task.args->head_dim,
                                wave->device->partials + index * wave->partial_floats);
}

static void run_wave_split(void *opaque, uint32_t index, uint32_t worker)
{
    const struct wave *wave = opaque;
    struct scratch *scratch = kva_cpu_scratch(wave->device, worker);
    const struct kva_partial to = wave_partial(wave, index);
    uint32_t split = wave->first + index;
    load_queries(&wave->task, scratch);
    find_tokens(&wave->task, split, scratch->tokens[split % 2]);
    run_split(wave->device, &wave->task, split, true, NULL, scratch, to);
}

static void fold_wave_query(void *opaque, uint32_t query, uint32_t worker KVA_UNUSED)
{
    const struct wave *wave = opaque;
    size_t dim = wave->task.args->head_dim;
    for (uint32_t i = 0; i < wave->count; i++) {
        const struct kva_partial from = wave_partial(wave, i);
        fold_query(wave->device, &wave->task, query, from.a + query * dim, from.m[query],
                   from.e[query]);
    }
}

static void run_task_wide(const struct plan *plan, uint32_t index)
{
    struct wave wave = {.device = plan->device, .task = task_at(plan, index)};
    uint32_t end;
    task_splits(&wave.task, &wave.first, &end);
    if (!plan->args->accumulate)
        kva_query_clear(&wave.task.at, &plan->args->out, plan->args->head_dim);
    wave.partial_floats = kva_query_partial_floats(&wave.task.at, plan->args->head_dim);
    size_t fit = KVA_CPU_PARTIAL_BYTES / (wave.partial_floats * sizeof(float));
    for (; wave.first < end; wave.first += wave.count) {
        wave.count = (uint32_t)kva_min_size(fit, end - wave.first);
        kva_pool_run(plan->device->pool, wave.count, run_wave_split, &wave);
        kva_pool_run(plan->device->pool, kva_query_count(&wave.task.at), fold_wave_query, &wave);
    }
}

/* --- the operator ----------------------------------------------------------------------------- */

static bool check_args(struct kva_device *device, const struct kva_attend_args *args)
{
    if (args->head_dim == 0 || args->head_dim > KVA_CPU_HEAD_DIM_MAX)
        kva_cpu_fail(device, "attend: head_dim %u, must be 1 to %u", args->head_dim,
                     KVA_CPU_HEAD_DIM_MAX);
    else if (args->kv_heads == 0 || args->heads % args->kv_heads != 0)
        kva_cpu_fail(device, "attend: %u heads cannot share %u KV heads", args->heads,
                     args->kv_heads);
    else if (args->kv_dtype != KVA_F16 && args->kv_dtype != KVA_BF16)
        kva_cpu_fail(device, "attend: KV blocks hold f16 or bf16, not data type %d",
                     (int)args->kv_dtype);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_attend_seq *seq = &args->seqs[i];
        for (uint32_t j = 0; j < seq->range_count; j++) {
            enum kva_kv_format format = args->ranges[seq->range_first + j].format;
            if (format != KVA_KV_16BIT)
                kva_cpu_fail(device, "attend: no kernel for KV format %d", (int)format);
        }
    }
    return !atomic_load_explicit(&device->failed, memory_order_relaxed);
}

static uint32_t splits_of_task(const void *opaque, uint32_t index)
{
    const struct task task = task_at(opaque, index);
    uint32_t first, end;
    task_splits(&task, &first, &end);
    return end - first;
}

void kva_cpu_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (!check_args(device, args))
        return;
    struct plan plan = {device, args, kva_query_cut_of(args->heads, args->kv_heads)};
    size_t tasks = tasks_of_plan(&plan);
    if (tasks > UINT32_MAX) {
        kva_cpu_fail(device, "attend: %zu work items in one call", tasks);
        return;
    }
    if (!kva_query_better_wide(device, (uint32_t)tasks, splits_of_task, &plan)) {
        kva_pool_run(device->pool, (uint32_t)tasks, run_task, &plan);
        return;
    }
    for (uint32_t i = 0; i < tasks; i++)
        run_task_wide(&plan, i);
}
