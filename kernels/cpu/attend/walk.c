/* walk.c - tasks of a call of attention, and one split of them at a time. */
#include "kernels/cpu/attend/walk.h"

#include <string.h>

/* --- tasks ------------------------------------------------------------------------------------ */

/* KV heads of one task of a sequence: several only if there are splits enough to share. */
static uint32_t kv_heads_of_task(const struct kva_attend_plan *plan,
                                 const struct kva_attend_seq *seq)
{
    const uint32_t queries = kva_min_u32(seq->row_count, plan->cut.task_rows) * plan->cut.group;
    const uint32_t threads = kva_pool_threads(plan->device->pool);
    const uint32_t tokens = seq->position_first + seq->row_count;
    if (queries == 0 || queries > KVA_ATTEND_FEW_QUERIES)
        return 1;
    if (threads > 1 && tokens < KVA_ATTEND_SHARES * threads * KVA_ATTEND_SPLIT_TOKENS)
        return 1;
    return kva_min_u32(plan->cut.kv_heads, KVA_ATTEND_Q_FLOATS / (queries * plan->args->head_dim));
}

uint32_t kva_attend_seq_tasks(const struct kva_attend_plan *plan, const struct kva_attend_seq *seq)
{
    const uint32_t kv_heads = kv_heads_of_task(plan, seq), all = plan->cut.kv_heads;
    if (kv_heads == 1)
        return kva_query_tasks(&plan->cut, seq->row_count);
    return kva_query_tasks(&plan->cut, seq->row_count) / all * (uint32_t)kva_div_up(all, kv_heads);
}

size_t kva_attend_split_floats(const struct kva_attend_task *task)
{
    return task->kv_count * kva_query_partial_floats(&task->at, task->args->head_dim);
}

size_t kva_attend_task_floats(size_t seq_floats, uint32_t tasks)
{
    const size_t line = KVA_CACHE_LINE / sizeof(float);
    return seq_floats / tasks / line * line;
}

struct kva_attend_task kva_attend_seq_task(const struct kva_attend_plan *plan,
                                           const struct kva_attend_seq *seq, uint32_t index)
{
    const uint32_t kv_heads = kv_heads_of_task(plan, seq), all = plan->cut.kv_heads;
    struct kva_attend_task task = {.args = plan->args, .seq = seq, .kv_count = 1};
    if (kv_heads > 1) {
        const uint32_t pieces = (uint32_t)kva_div_up(all, kv_heads);
        const uint32_t kv_first = index % pieces * kv_heads;
        task.kv_count = kva_min_u32(kv_heads, all - kv_first);
        index = index / pieces * all + kv_first;
    }
    task.at = kva_query_task_at(&plan->cut, seq->row_first, seq->row_count, index);
    if (plan->apart_floats > 0)
        task.skip = (uint32_t)kva_min_size(
            UINT32_MAX,
            kva_attend_task_floats(plan->apart_floats, kva_attend_seq_tasks(plan, seq)) /
                kva_attend_split_floats(&task));
    return task;
}

size_t kva_attend_plan_tasks(const struct kva_attend_plan *plan)
{
    size_t count = 0;
    for (uint32_t i = 0; i < plan->args->seq_count; i++)
        count += kva_attend_seq_tasks(plan, &plan->args->seqs[i]);
    return count;
}

struct kva_attend_task kva_attend_task_at(const struct kva_attend_plan *plan, uint32_t index)
{
    const struct kva_attend_seq *seq = plan->args->seqs;
    for (uint32_t count; index >= (count = kva_attend_seq_tasks(plan, seq)); seq++)
        index -= count;
    return kva_attend_seq_task(plan, seq, index);
}

/* What one of the task's KV heads has to do. */
static struct kva_query_task of_head(const struct kva_attend_task *task, uint32_t kv)
{
    struct kva_query_task at = task->at;
    at.kv_head += kv;
    return at;
}

static uint32_t first_visible(const struct kva_attend_task *task, uint32_t position)
{
    return kva_query_first_visible(task->args->window, position);
}

static uint32_t first_position(const struct kva_attend_task *task)
{
    return task->seq->position_first + task->at.row_first;
}

void kva_attend_task_splits(const struct kva_attend_task *task, uint32_t *ret_first,
                            uint32_t *ret_end)
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
    *ret_first += kva_min_u32(task->skip, *ret_end - *ret_first);
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
static void task_slots(const struct kva_attend_task *task, uint32_t base, uint32_t *ret_first,
                       uint32_t *ret_end)
{
    uint32_t first = first_visible(task, first_position(task));
    uint32_t end = first_position(task) + task->at.row_count;
    *ret_first = kva_min_u32(kva_max_u32(first, base) - base, KVA_ATTEND_SPLIT_TOKENS);
    *ret_end = kva_min_u32(kva_max_u32(end, base) - base, KVA_ATTEND_SPLIT_TOKENS);
}

/* tokens[slot] = the K row of position base + slot in the task's KV head `kv`, for the slots of
 * split `index` that the task may see and the ranges hold; NULL for all others. */
static void find_tokens(const struct kva_attend_task *task, uint32_t index, uint32_t kv,
                        const void **tokens)
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
static void find_visible(const struct kva_attend_task *task, uint32_t base,
                         struct kva_attend_scratch *scratch)
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

static float *queries_of(const struct kva_attend_task *task, struct kva_attend_scratch *scratch,
                         uint32_t kv)
{
    return scratch->q + (size_t)kv * kva_query_count(&task->at) * task->args->head_dim;
}

/* scratch->q = the task's queries, scaled. */
static void load_queries(const struct kva_attend_task *task, struct kva_attend_scratch *scratch)
{
    const struct kva_attend_args *args = task->args;
    for (uint32_t kv = 0; kv < task->kv_count; kv++) {
        const struct kva_query_task at = of_head(task, kv);
        kva_query_load(
            &at, (struct kva_query_rows){args->q, args->q_stride, args->head_dim, args->scale},
            queries_of(task, scratch, kv));
    }
}

void kva_attend_walk_begin(const struct kva_attend_task *task, const struct kva_attend_walk *walk,
                           struct kva_attend_scratch *scratch)
{
    load_queries(task, scratch);
    find_tokens(task, walk->split, walk->kv, scratch->tokens[0]);
}

/* Where the scores of the task's first query of a KV head are kept; NULL: they are not. */
static float *kept_scores(const struct kva_attend_task *task, uint32_t split, uint32_t kv)
{
    const struct kva_attend_scores *scores = &task->seq->scores;
    const struct kva_query_task at = of_head(task, kv);
    const size_t line = kva_query_head(&at) * scores->split_count + split - scores->split_first;
    return scores->data ? scores->data + line * KVA_ATTEND_SPLIT_TOKENS : NULL;
}

void kva_attend_walk_on(const struct kva_device *device, const struct kva_attend_task *task,
                        struct kva_attend_walk *walk, struct kva_attend_scratch *scratch,
                        struct kva_partial to)
{
    const struct kva_attend_walk at = *walk;
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

void kva_attend_fold_query(const struct kva_device *device, const struct kva_attend_task *task,
                           uint32_t kv, uint32_t query, struct kva_partial from)
{
    const struct kva_attend_args *args = task->args;
    const struct kva_query_task at = of_head(task, kv);
    kva_cpu_partial_fold(&device->kernels, &args->out, kva_query_pair(&at, query), args->head_dim,
                         from.a + (size_t)query * args->head_dim, from.m[query], from.e[query]);
}

void kva_attend_clear_out(const struct kva_attend_task *task)
{
    for (uint32_t kv = 0; kv < task->kv_count; kv++) {
        const struct kva_query_task at = of_head(task, kv);
        kva_query_clear(&at, &task->args->out, task->args->head_dim);
    }
}
