/* Driver of attention.
 *
 * A task is some rows of one sequence times the query heads that share one KV head: its keys and
 * values are read once for all of them. Tasks run side by side, each folding its splits in
 * ascending order. Where there are too few tasks for the threads (one long sequence), the splits of
 * a task run side by side instead, into partial results that are then folded in the same order: the
 * same additions, so the same bits. */
#include "kernels/cpu/device_cpu.h"
#include "kernels/cpu/partial.h"

#include <math.h>
#include <string.h>

struct task {
    const struct kva_attend_args *args;
    const struct kva_attend_seq *seq;
    uint32_t row_first; /* of the sequence's rows */
    uint32_t row_count;
    uint32_t kv_head;
    uint32_t head_first; /* of the query heads of this KV head */
    uint32_t head_count;
};

/* How a call is cut into tasks. */
struct plan {
    struct kva_device *device;
    const struct kva_attend_args *args;
    uint32_t group;       /* query heads of a KV head */
    uint32_t task_heads;  /* of them in one task, at most */
    uint32_t task_rows;   /* rows of one task, at most */
    uint32_t head_pieces; /* tasks that share the heads of one KV head */
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

static uint32_t tasks_of_seq(const struct plan *plan, const struct kva_attend_seq *seq)
{
    return (uint32_t)kva_div_up(seq->row_count, plan->task_rows) * plan->args->kv_heads *
           plan->head_pieces;
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
    uint32_t per_tile = plan->args->kv_heads * plan->head_pieces;
    struct task task = {.args = plan->args, .seq = seq};
    task.row_first = index / per_tile * plan->task_rows;
    task.row_count = kva_min_u32(plan->task_rows, seq->row_count - task.row_first);
    task.kv_head = index % per_tile / plan->head_pieces;
    task.head_first = index % plan->head_pieces * plan->task_heads;
    task.head_count = kva_min_u32(plan->task_heads, plan->group - task.head_first);
    return task;
}

/* First position that the row at `position` may see. */
static uint32_t first_visible(const struct kva_attend_args *args, uint32_t position)
{
    return args->window > 0 && position >= args->window ? position - args->window + 1 : 0;
}

static uint32_t first_position(const struct task *task)
{
    return task->seq->position_first + task->row_first;
}

/* Splits [*ret_first, *ret_end) hold everything that the task's rows may see. */
static void task_splits(const struct task *task, uint32_t *ret_first, uint32_t *ret_end)
{
    *ret_first = *ret_end = 0;
    if (task->seq->range_count == 0)
        return;
    const struct kva_attend_range *ranges = task->args->ranges + task->seq->range_first;
    const struct kva_attend_range *last = &ranges[task->seq->range_count - 1];
    uint32_t first =
        kva_max_u32(first_visible(task->args, first_position(task)), ranges[0].token_first);
    uint32_t end =
        kva_min_u32(first_position(task) + task->row_count, last->token_first + last->token_count);
    if (first >= end)
        return;
    *ret_first = first / KVA_ATTEND_SPLIT_TOKENS;
    *ret_end = (uint32_t)kva_div_up(end, KVA_ATTEND_SPLIT_TOKENS);
}

/* (row, head) pair of the task's query `index` in the partial result. */
static size_t pair_of_query(const struct task *task, uint32_t index)
{
    size_t row = (size_t)task->seq->row_first + task->row_first + index / task->head_count;
    size_t head = (size_t)task->kv_head * (task->args->heads / task->args->kv_heads) +
                  task->head_first + index % task->head_count;
    return row * task->args->heads + head;
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
    uint32_t first = first_visible(task->args, first_position(task));
    uint32_t end = first_position(task) + task->row_count;
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
            size_t row = (size_t)task->kv_head * KVA_PAGE_TOKENS + position % KVA_PAGE_TOKENS;
            tokens[position - base] = (const unsigned char *)args->blocks[block] +
                                      args->block_offset_bytes + row * token_bytes;
        }
    }
}

/* Which slots of the split each query sees. */
static void find_visible(const struct task *task, uint32_t base, struct scratch *scratch)
{
    for (uint32_t row = 0; row < task->row_count; row++) {
        uint32_t position = first_position(task) + row;
        uint32_t first = first_visible(task->args, position);
        first = first > base ? kva_min_u32(first - base, KVA_ATTEND_SPLIT_TOKENS) : 0;
        uint32_t end = position >= base ? position - base + 1 : 0;
        end = kva_max_u32(first, kva_min_u32(end, KVA_ATTEND_SPLIT_TOKENS));
        for (uint32_t head = 0; head < task->head_count; head++) {
            scratch->slot_first[row * task->head_count + head] = first;
            scratch->slot_end[row * task->head_count + head] = end;
        }
    }
}

/* scratch->q = the task's queries, scaled. */
static void load_queries(const struct task *task, struct scratch *scratch)
{
    const struct kva_attend_args *args = task->args;
    size_t dim = args->head_dim;
    size_t head = (size_t)task->kv_head * (args->heads / args->kv_heads) + task->head_first;
    float *to = scratch->q;
    for (uint32_t row = 0; row < task->row_count; row++) {
        size_t index = (size_t)task->seq->row_first + task->row_first + row;
        const float *q = (const float *)args->q + index * args->q_stride + head * dim;
        for (size_t i = 0; i < task->head_count * dim; i++)
            *to++ = q[i] * args->scale;
    }
}

/* Attention of the task's queries, already in scratch->q, to split `index`, whose tokens are
 * already in scratch->tokens; `cold` and `next` as in struct kva_cpu_attend_split. */
static void run_split(const struct kva_device *device, const struct task *task, uint32_t index,
                      bool cold, const void *const *next, struct scratch *scratch, float *a,
                      float *m, float *e)
{
    find_visible(task, index * KVA_ATTEND_SPLIT_TOKENS, scratch);
    uint32_t q_count = task->row_count * task->head_count;
    struct kva_cpu_attend_split split = {
        .q = scratch->q,
        .tokens = scratch->tokens[index % 2],
        .next = next,
        .cold = cold,
        .slot_first = scratch->slot_first,
        .slot_end = scratch->slot_end,
        .q_count = q_count,
        .head_dim = task->args->head_dim,
        .kv_dtype = task->args->kv_dtype,
        .a = a,
        .m = m,
        .e = e,
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
    kva_cpu_partial_fold(&device->kernels, &args->out, pair_of_query(task, query), args->head_dim,
                         a, m, e);
}

static void clear_out(const struct task *task)
{
    const struct kva_attend_args *args = task->args;
    for (uint32_t j = 0; j < task->row_count * task->head_count; j++)
        kva_cpu_partial_clear(&args->out, pair_of_query(task, j), args->head_dim);
}

/* --- tasks side by side ----------------------------------------------------------------------- */

static void run_task(void *opaque, uint32_t index, uint32_t worker)
{
    const struct plan *plan = opaque;
    struct task task = task_at(plan, index);
    struct scratch *scratch = kva_cpu_scratch(plan->device, worker);
    uint32_t first, end;
    task_splits(&task, &first, &end);
    if (!task.args->accumulate)
        clear_out(&task);
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
                  scratch->a, scratch->m, scratch->e);
        for (uint32_t j = 0; j < task.row_count * task.head_count; j++)
            fold_query(plan->device, &task, j, scratch->a + (size_t)j * task.args->head_dim,
                       scratch->m[j], scratch->e[j]);
    }
}

/* --- the splits of a task side by side -------------------------------------------------------- */

/* Splits [first, first + count) of one task; partial i is at device->partials + i * partial_floats:
 * a [q_count, head_dim], m [q_count], e [q_count]. */
struct wave {
    struct kva_device *device;
    struct task task;
    uint32_t first;
    uint32_t count;
    size_t partial_floats;
};

static size_t partial_floats(const struct task *task)
{
    size_t q_count = (size_t)task->row_count * task->head_count;
    return kva_align_up(q_count * (task->args->head_dim + 2), KVA_CACHE_LINE / sizeof(float));
}

static void run_wave_split(void *opaque, uint32_t index, uint32_t worker)
{
    const struct wave *wave = opaque;
    struct scratch *scratch = kva_cpu_scratch(wave->device, worker);
    size_t q_count = (size_t)wave->task.row_count * wave->task.head_count;
    float *a = wave->device->partials + index * wave->partial_floats;
    float *m = a + q_count * wave->task.args->head_dim;
    uint32_t split = wave->first + index;
    load_queries(&wave->task, scratch);
    find_tokens(&wave->task, split, scratch->tokens[split % 2]);
    run_split(wave->device, &wave->task, split, true, NULL, scratch, a, m, m + q_count);
}

static void fold_wave_query(void *opaque, uint32_t query, uint32_t worker KVA_UNUSED)
{
    const struct wave *wave = opaque;
    size_t dim = wave->task.args->head_dim;
    size_t q_count = (size_t)wave->task.row_count * wave->task.head_count;
    for (uint32_t i = 0; i < wave->count; i++) {
        const float *a = wave->device->partials + i * wave->partial_floats;
        const float *m = a + q_count * dim;
        fold_query(wave->device, &wave->task, query, a + query * dim, m[query], m[q_count + query]);
    }
}

static void run_task_wide(const struct plan *plan, uint32_t index)
{
    struct wave wave = {.device = plan->device, .task = task_at(plan, index)};
    uint32_t end;
    task_splits(&wave.task, &wave.first, &end);
    if (!plan->args->accumulate)
        clear_out(&wave.task);
    wave.partial_floats = partial_floats(&wave.task);
    size_t fit = KVA_CPU_PARTIAL_BYTES / (wave.partial_floats * sizeof(float));
    for (; wave.first < end; wave.first += wave.count) {
        wave.count = (uint32_t)kva_min_size(fit, end - wave.first);
        kva_pool_run(plan->device->pool, wave.count, run_wave_split, &wave);
        kva_pool_run(plan->device->pool, wave.task.row_count * wave.task.head_count,
                     fold_wave_query, &wave);
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

/* Whether the threads would be short of tasks while a task has splits enough for all of them. */
static bool better_wide(const struct plan *plan, uint32_t tasks)
{
    uint32_t threads = kva_pool_threads(plan->device->pool);
    if (threads == 1 || tasks >= 2 * threads)
        return false;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < tasks; i++) {
        struct task task = task_at(plan, i);
        uint32_t first, end;
        task_splits(&task, &first, &end);
        longest = kva_max_u32(longest, end - first);
    }
    return longest >= 2 * threads;
}

void kva_cpu_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (!check_args(device, args))
        return;
    struct plan plan = {.device = device, .args = args};
    plan.group = args->heads / args->kv_heads;
    plan.task_heads = kva_min_u32(plan.group, KVA_CPU_ATTEND_QUERIES);
    plan.task_rows = KVA_CPU_ATTEND_QUERIES / plan.task_heads;
    plan.head_pieces = (uint32_t)kva_div_up(plan.group, plan.task_heads);
    size_t tasks = tasks_of_plan(&plan);
    if (tasks > UINT32_MAX) {
        kva_cpu_fail(device, "attend: %zu work items in one call", tasks);
        return;
    }
    if (!better_wide(&plan, (uint32_t)tasks)) {
        kva_pool_run(device->pool, (uint32_t)tasks, run_task, &plan);
        return;
    }
    for (uint32_t i = 0; i < tasks; i++)
        run_task_wide(&plan, i);
}
