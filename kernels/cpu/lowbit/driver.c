/* driver.c - driver of attention over low-bit pages, alone or fused with that over rows and with
 * selection.
 *
 * A task (query_task.h) folds its splits of low-bit pages in ascending order, then its rows.
 * Where there are too few tasks for the threads, the splits of a task run side by side into partial
 * results that are then folded in the same order. Selecting rows leave the weights of their tokens
 * in the caller's scratch memory, where select/choose.c reads them: a task that has all it takes
 * selects at once; otherwise sequences whose weights do not fit there together take turns. */
#include "kernels/cpu/attend/rows.h"
#include "kernels/cpu/lowbit/task.h"

#include <math.h>
#include <string.h>

/* --- one split -------------------------------------------------------------------------------- */

/* The pages of split `index`; returns their number. */
static uint32_t find_pages(const struct task *task, uint32_t index, const void **pages)
{
    const struct kva_attend_select_fetch_args *args = task->args;
    size_t head_bytes = kva_lowbit_head_bytes(args->format, args->head_dim);
    uint32_t first = index * SPLIT_PAGES;
    uint32_t count = kva_min_u32(SPLIT_PAGES, task->seq->page_count - first);
    for (uint32_t i = 0; i < count; i++)
        pages[i] = (const unsigned char *)args->blocks[task->seq->block_first + first + i] +
                   args->block_offset_bytes + task->at.kv_head * head_bytes;
    return count;
}

/* Where the row's view begins, as a slot of the split from `base` on that has `slots` slots. */
static void find_visible(const struct task *task, uint32_t base, uint32_t slots,
                         struct scratch *scratch)
{
    for (uint32_t row = 0; row < task->at.row_count; row++) {
        uint32_t first = kva_lowbit_first_visible(task->args, first_position(task) + row);
        first = first > base ? kva_min_u32(first - base, slots) : 0;
        for (uint32_t head = 0; head < task->at.head_count; head++)
            scratch->slot_first[row * task->at.head_count + head] = first;
    }
}

/* Where the weights of split `index` go: those of a selecting row alone, straight to the selection.
 */
static float *weights_of(const struct kva_lowbit_plan *plan, const struct task *task,
                         uint32_t index, struct scratch *scratch)
{
    if (!task->weights || task->at.row_count > 1)
        return scratch->weights;
    return task->weights + kva_lowbit_weight_at(plan->cut.group, index, task->at.head_first);
}

/* Leave the weights of the selecting row's queries, and their m, for the selection. */
static void keep_weights(const struct kva_lowbit_plan *plan, const struct task *task,
                         uint32_t index, const float *weights, const float *m)
{
    if (!task->weights)
        return;
    size_t j = (size_t)(task->seq->select_row - task->at.row_first) * task->at.head_count;
    float *to = task->weights + kva_lowbit_weight_at(plan->cut.group, index, task->at.head_first);
    if (weights != to)
        memcpy(to, weights + j * KVA_ATTEND_SPLIT_TOKENS,
               task->at.head_count * KVA_ATTEND_SPLIT_TOKENS * sizeof *weights);
    memcpy(task->weights + kva_lowbit_top_at(plan->cut.group, task->seq->page_count, index,
                                             task->at.head_first),
           m + j, task->at.head_count * sizeof *m);
}

/* The pages that run_split reads, and those that it prefetches. */
struct turn {
    uint32_t side; /* of scratch->pages; the next split's are on the other one */
    uint32_t count;
    uint32_t next_count;
};

/* to = attention of the task's queries, already in scratch->q, to split `index`, whose pages are
 * already found. */
static void run_split(const struct kva_lowbit_plan *plan, const struct task *task, uint32_t index,
                      struct turn turn, struct scratch *scratch, struct kva_partial to)
{
    uint32_t base = index * KVA_ATTEND_SPLIT_TOKENS;
    find_visible(task, base, KVA_ATTEND_SPLIT_TOKENS, scratch);
    kva_rows_present(task->seq->rows, task->at.kv_head, index * SPLIT_PAGES, turn.count,
                     scratch->present);
    struct kva_cpu_lowbit_split split = {
        .q = scratch->q,
        .pages = scratch->pages[turn.side],
        .next = scratch->pages[1 - turn.side],
        .present = scratch->present,
        .slot_first = scratch->slot_first,
        .page_count = turn.count,
        .next_count = turn.next_count,
        .q_count = kva_query_count(&task->at),
        .head_dim = task->args->head_dim,
        .format = task->args->format,
        .a = to.a,
        .m = to.m,
        .e = to.e,
        .weights = weights_of(plan, task, index, scratch),
        .scratch = scratch->kernel.lowbit,
    };
    plan->device->kernels.lowbit_split(&split);
    for (uint32_t j = 0; task->seq->mean && j < split.q_count; j++)
        split.m[j] += scratch->shift[j];
    keep_weights(plan, task, index, split.weights, to.m);
}

static void fold_query(const struct kva_device *device, const struct task *task, uint32_t query,
                       const float *a, float m, float e)
{
    const struct kva_attend_select_fetch_args *args = task->args;
    kva_cpu_partial_fold(&device->kernels, &args->out, kva_query_pair(&task->at, query),
                         task->fold_dim, a, m, e);
}

static void clear_out(const struct task *task)
{
    kva_query_clear(&task->at, &task->args->out, task->fold_dim);
}

/* The sums of turned values are turned back, once all are in. */
static void turn_back(const struct task *task)
{
    const uint32_t dim = task->args->head_dim;
    for (uint32_t j = 0; is_turned(task) && j < kva_query_count(&task->at); j++)
        kva_token_row_turn_back(task->args->out.a + kva_query_pair(&task->at, j) * dim, dim);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* What the caller has for behind the low-bit pages. */
static void fold_behind(const struct kva_lowbit_plan *plan, const struct task *task)
{
    const uint32_t dim = task->args->head_dim;
    for (uint32_t j = 0; plan->behind && j < kva_query_count(&task->at); j++) {
        const size_t pair = kva_query_pair(&task->at, j);
        fold_query(plan->device, task, j, plan->behind->a + pair * dim, plan->behind->m[pair],
                   plan->behind->e[pair]);
    }
}

/* Behind the low-bit pages; attend_lowbit leaves them to attend_rows. */
static void fold_rows(const struct kva_lowbit_plan *plan, const struct task *task,
                      struct scratch *scratch)
{
    if (plan->scores) {
        fold_behind(plan, task);
        return;
    }
    kva_cpu_rows_fold(&(struct kva_rows_fold){
        .device = plan->device,
        .at = &task->at,
        .rows = task->seq->rows,
        .out = &task->args->out,
        .q = scratch->q,
        .position_first = first_position(task),
        .window = task->args->window,
        .head_dim = task->args->head_dim,
        .fold_dim = task->fold_dim,
        .kv_dtype = task->args->kv_dtype,
        .tokens = scratch->tokens,
        .slot_first = scratch->slot_first,
        .slot_end = scratch->slot_end,
        .split = {scratch->a, scratch->m, scratch->e},
        .scores = scratch->weights,
        .k = scratch->kernel.rows.k,
        .v = scratch->kernel.rows.v,
    });
}

/* --- tasks side by side ----------------------------------------------------------------------- */

/* Whether the task acts upon its choice at once. */
static bool acts_now(const struct task *task)
{
    return task->weights && task->seq->now;
}

/* Where the partial result of a split goes: what may be outdated by the choice is kept until then.
 */
static struct kva_partial partial_of(const struct kva_lowbit_plan *plan, const struct task *task,
                                     uint32_t split, struct kva_partial otherwise)
{
    return acts_now(task)
               ? kva_lowbit_partial_at(plan, task->seq, task->weights, split, task->at.head_first)
               : otherwise;
}

static struct kva_partial in_scratch(struct scratch *scratch)
{
    return (struct kva_partial){scratch->a, scratch->m, scratch->e};
}

static void fold_split(const struct kva_device *device, const struct task *task,
                       struct kva_partial from)
{
    for (uint32_t j = 0; j < kva_query_count(&task->at); j++)
        fold_query(device, task, j, from.a + (size_t)j * task->args->head_dim, from.m[j],
                   from.e[j]);
}

/* First split from `from` on that is to be run; `end`: none is. outdated NULL: all are. */
static uint32_t next_split(const bool *outdated, uint32_t from, uint32_t end)
{
    while (outdated && from < end && !outdated[from])
        from++;
    return from;
}

/* Run splits [first, end), or those of them that are outdated, and fold all of them. */
static void run_splits(const struct kva_lowbit_plan *plan, const struct task *task,
                       const bool *outdated, struct scratch *scratch)
{
    uint32_t first, end, at;
    struct turn turn = {0};
    task_splits(task, &first, &end);
    clear_out(task);
    load_queries(task, scratch);
    at = next_split(outdated, first, end);
    if (at < end)
        turn.count = find_pages(task, at, scratch->pages[turn.side]);
    for (uint32_t split = first; split < end; split++) {
        struct kva_partial to = partial_of(plan, task, split, in_scratch(scratch));
        if (split == at) {
            at = next_split(outdated, at + 1, end);
            turn.next_count = at < end ? find_pages(task, at, scratch->pages[1 - turn.side]) : 0;
            run_split(plan, task, split, turn, scratch, to);
            turn = (struct turn){.side = 1 - turn.side, .count = turn.next_count};
        }
        fold_split(plan->device, task, to);
    }
    turn_back(task);
    fold_rows(plan, task, scratch);
}

/* The task's choice has been acted upon. */
static void run_again(const struct kva_lowbit_plan *plan, struct task task, uint32_t worker)
{
    task.fold_dim = plan->args->head_dim;
    run_splits(plan, &task, kva_lowbit_outdated_at(plan, task.seq, task.weights),
               kva_cpu_scratch(plan->device, worker));
}

static void run_task(void *opaque, uint32_t index, uint32_t worker)
{
    const struct kva_lowbit_plan *plan = opaque;
    struct task task = task_at(plan, index);
    bool own = task.weights && plan->own_floats > 0;
    if (own)
        task.weights = (float *)plan->args->scratch + worker * plan->own_floats;
    run_splits(plan, &task, NULL, kva_cpu_scratch(plan->device, worker));
    if (!own)
        return;
    kva_lowbit_choose(plan, task.seq, task.at.kv_head, task.weights, worker);
    if (task.seq->now)
        run_again(plan, task, worker);
}

static void run_task_again(void *opaque, uint32_t index, uint32_t worker)
{
    const struct kva_lowbit_plan *plan = opaque;
    const struct task task = task_at(plan, index);
    if (acts_now(&task))
        run_again(plan, task, worker);
}

/* --- the splits of a task side by side -------------------------------------------------------- */

/* Splits [first, first + count) of one task; partial i is at device->partials + i * partial_floats.
 */
struct wave {
    const struct kva_lowbit_plan *plan;
    struct kva_device *device;
    struct task task;
    uint32_t first;
    uint32_t count;
    size_t partial_floats;
};

static struct kva_partial wave_partial(const struct wave *wave, uint32_t index)
{
    return partial_of(wave->plan, &wave->task, wave->first + index,
                      kva_query_partial_at(&wave->task.at, wave->task.args->head_dim,
                                           wave->device->partials + index * wave->partial_floats));
}

static void run_wave_split(void *opaque, uint32_t index, uint32_t worker)
{
    const struct wave *wave = opaque;
    struct scratch *scratch = kva_cpu_scratch(wave->device, worker);
    uint32_t split = wave->first + index;
    load_queries(&wave->task, scratch);
    const struct turn turn = {.count = find_pages(&wave->task, split, scratch->pages[0])};
    run_split(wave->plan, &wave->task, split, turn, scratch, wave_partial(wave, index));
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

static void run_task_wide(const struct kva_lowbit_plan *plan, uint32_t index)
{
    struct wave wave = {.plan = plan, .device = plan->device, .task = task_at(plan, index)};
    struct scratch *scratch = kva_cpu_scratch(plan->device, 0);
    uint32_t end;
    task_splits(&wave.task, &wave.first, &end);
    clear_out(&wave.task);
    wave.partial_floats = kva_query_partial_floats(&wave.task.at, plan->args->head_dim);
    size_t fit = KVA_CPU_PARTIAL_BYTES / (wave.partial_floats * sizeof(float));
    for (; wave.first < end; wave.first += wave.count) {
        wave.count = (uint32_t)kva_min_size(fit, end - wave.first);
        kva_pool_run(plan->device->pool, wave.count, run_wave_split, &wave);
        kva_pool_run(plan->device->pool, kva_query_count(&wave.task.at), fold_wave_query, &wave);
    }
    turn_back(&wave.task);
    load_queries(&wave.task, scratch);
    fold_rows(plan, &wave.task, scratch);
}

/* --- the operator ----------------------------------------------------------------------------- */

/* Whether the threads would be short of tasks while a task has splits enough for all of them. */
static bool better_wide(const struct kva_lowbit_plan *plan, size_t tasks)
{
    const uint32_t threads = kva_pool_threads(plan->device->pool);
    uint32_t longest = 0;
    if (threads == 1 || tasks >= 2 * (size_t)threads)
        return false;
    for (uint32_t i = 0; i < tasks; i++) {
        const struct task task = task_at(plan, i);
        uint32_t first, end;
        task_splits(&task, &first, &end);
        longest = kva_max_u32(longest, end - first);
    }
    return longest >= 2 * threads;
}

/* Sequences from plan->seq_first on whose weights fit into the scratch memory together. */
static void take_seqs(struct kva_lowbit_plan *plan)
{
    size_t fit = plan->args->scratch_bytes / sizeof(float);
    for (plan->seq_end = plan->seq_first; plan->seq_end < plan->args->seq_count; plan->seq_end++) {
        size_t need = kva_lowbit_weight_floats(plan->args, &plan->args->seqs[plan->seq_end]);
        if (need > fit)
            return;
        fit -= need;
    }
}

/* Let tasks select on their own, each thread in memory of its own that stays in its cache: where a
 * task has all the heads of its KV head and the scratch memory is enough. */
static void plan_own(struct kva_lowbit_plan *plan)
{
    const struct kva_attend_select_fetch_args *args = plan->args;
    size_t floats = 0;
    plan->seq_end = args->seq_count;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (kva_lowbit_selects(&args->seqs[i]))
            floats = kva_max_size(floats, kva_lowbit_part_floats(args, &args->seqs[i]));
    }
    size_t threads = kva_pool_threads(plan->device->pool), tasks = tasks_of_plan(plan);
    bool fits =
        floats * threads * sizeof(float) <= args->scratch_bytes && plan->cut.head_pieces == 1;
    if (fits && tasks <= UINT32_MAX && !better_wide(plan, tasks))
        plan->own_floats = floats;
}

static bool any_acts_now(const struct kva_lowbit_plan *plan)
{
    for (uint32_t i = plan->seq_first; i < plan->seq_end; i++) {
        if (plan->args->seqs[i].now)
            return true;
    }
    return false;
}

static void run_plan(struct kva_lowbit_plan *plan)
{
    const struct kva_attend_select_fetch_args *args = plan->args;
    struct kva_device *device = plan->device;
    for (; plan->seq_first < args->seq_count; plan->seq_first = plan->seq_end) {
        if (plan->scores)
            plan->seq_end = args->seq_count;
        else if (plan->own_floats == 0)
            take_seqs(plan);
        size_t tasks = tasks_of_plan(plan);
        if (tasks > UINT32_MAX) {
            kva_cpu_fail(device, "attention over low bits: %zu work items in one call", tasks);
            return;
        }
        if (plan->own_floats == 0 && better_wide(plan, tasks)) {
            for (uint32_t i = 0; i < tasks; i++)
                run_task_wide(plan, i);
        } else {
            kva_pool_run(device->pool, (uint32_t)tasks, run_task, plan);
        }
        if (plan->own_floats > 0 || plan->scores)
            continue;
        kva_lowbit_select(plan);
        if (any_acts_now(plan))
            kva_pool_run(device->pool, (uint32_t)tasks, run_task_again, plan);
    }
}

void kva_cpu_attend_select_fetch(struct kva_device *device,
                                 const struct kva_attend_select_fetch_args *args)
{
    if (kva_cpu_failed(device))
        return;
    struct kva_lowbit_plan plan = {
        .device = device, .args = args, .cut = kva_query_cut_of(args->heads, args->kv_heads)};
    plan_own(&plan);
    run_plan(&plan);
}

/* Sequences that attend_lowbit describes as those of the fused operator at a time. */
#define APART_SEQS 64u

void kva_cpu_attend_lowbit(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    struct kva_select_seq seqs[APART_SEQS];
    float *scores[APART_SEQS];
    struct kva_attend_select_fetch_args as = {
        .q = args->q,
        .out = args->out,
        .seqs = seqs,
        .blocks = args->blocks,
        .block_offset_bytes = args->block_offset_bytes,
        .q_stride = args->q_stride,
        .heads = args->heads,
        .kv_heads = args->kv_heads,
        .head_dim = args->head_dim,
        .window = args->window,
        .format = args->format,
        .scale = args->scale,
    };
    struct kva_lowbit_plan plan = {.device = device,
                                   .args = &as,
                                   .scores = scores,
                                   .behind = args->behind,
                                   .cut = kva_query_cut_of(args->heads, args->kv_heads)};
    for (uint32_t first = 0; first < args->seq_count && !kva_cpu_failed(device);
         first += as.seq_count) {
        as.seq_count = kva_min_u32(args->seq_count - first, APART_SEQS);
        for (uint32_t i = 0; i < as.seq_count; i++) {
            const struct kva_lowbit_seq *seq = &args->seqs[first + i];
            bool skipped = kva_gate_closed(seq->gate);
            seqs[i] = (struct kva_select_seq){.row_first = seq->row_first,
                                              .row_count = skipped ? 0 : seq->row_count,
                                              .position_first = seq->position_first,
                                              .block_first = seq->block_first,
                                              .page_count = seq->page_count,
                                              .rows = seq->rows,
                                              .select_row = seq->select_row,
                                              .mean = seq->mean};
            scores[i] = seq->scores;
        }
        plan.seq_first = 0;
        run_plan(&plan);
    }
}
