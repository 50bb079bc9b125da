/* query_task.h - how the drivers of attention cut a call into tasks: some rows of one sequence
 * times the query heads that share one KV head, whose keys and values are then read once for all of
 * them. A task's queries are numbered row by row, the heads of a row one behind the other. */
#ifndef KVA_KERNELS_CPU_ATTEND_QUERY_TASK_H
#define KVA_KERNELS_CPU_ATTEND_QUERY_TASK_H

#include "kernels/cpu/attend/partial.h"
#include "kernels/cpu/device/device_cpu.h"

/* The same for all tasks of a call. */
struct kva_query_cut {
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t group;       /* query heads of a KV head */
    uint32_t task_heads;  /* of them in one task, at most */
    uint32_t task_rows;   /* rows of one task, at most */
    uint32_t head_pieces; /* tasks that share the heads of one KV head */
};

struct kva_query_task {
    const struct kva_query_cut *cut;
    size_t row;         /* the first one, of the call's */
    uint32_t row_first; /* the same, of the sequence's */
    uint32_t row_count;
    uint32_t kv_head;
    uint32_t head_first; /* of the query heads of this KV head */
    uint32_t head_count;
};

/* At most KVA_CPU_ATTEND_QUERIES queries to a task. */
static inline struct kva_query_cut kva_query_cut_of(uint32_t heads, uint32_t kv_heads)
{
    uint32_t group = heads / kv_heads;
    uint32_t task_heads = kva_min_u32(group, KVA_CPU_ATTEND_QUERIES);
    return (struct kva_query_cut){.heads = heads,
                                  .kv_heads = kv_heads,
                                  .group = group,
                                  .task_heads = task_heads,
                                  .task_rows = KVA_CPU_ATTEND_QUERIES / task_heads,
                                  .head_pieces = (uint32_t)kva_div_up(group, task_heads)};
}

/* Tasks of a sequence of `rows` rows. */
static inline uint32_t kva_query_tasks(const struct kva_query_cut *cut, uint32_t rows)
{
    return (uint32_t)kva_div_up(rows, cut->task_rows) * cut->kv_heads * cut->head_pieces;
}

/* Task `index` of a sequence of `rows` rows, which are the call's from `row` on. */
static inline struct kva_query_task kva_query_task_at(const struct kva_query_cut *cut, uint32_t row,
                                                      uint32_t rows, uint32_t index)
{
    uint32_t per_tile = cut->kv_heads * cut->head_pieces;
    struct kva_query_task task = {.cut = cut};
    task.row_first = index / per_tile * cut->task_rows;
    task.row = (size_t)row + task.row_first;
    task.row_count = kva_min_u32(cut->task_rows, rows - task.row_first);
    task.kv_head = index % per_tile / cut->head_pieces;
    task.head_first = index % cut->head_pieces * cut->task_heads;
    task.head_count = kva_min_u32(cut->task_heads, cut->group - task.head_first);
    return task;
}

static inline uint32_t kva_query_count(const struct kva_query_task *task)
{
    return task->row_count * task->head_count;
}

/* Query head of the model that the task's first one is. */
static inline size_t kva_query_head(const struct kva_query_task *task)
{
    return (size_t)task->kv_head * task->cut->group + task->head_first;
}

/* (row, head) pair of query `index` in the partial result. */
static inline size_t kva_query_pair(const struct kva_query_task *task, uint32_t index)
{
    return (task->row + index / task->head_count) * task->cut->heads + kva_query_head(task) +
           index % task->head_count;
}

/* Nothing of `out` has been seen; of `a`, `dim` floats to a pair. */
static inline void kva_query_clear(const struct kva_query_task *task, const struct kva_partial *out,
                                   uint32_t dim)
{
    for (uint32_t i = 0; i < kva_query_count(task); i++)
        kva_cpu_partial_clear(out, kva_query_pair(task, i), dim);
}

/* The queries of a call. */
struct kva_query_rows {
    const float *q; /* [rows, heads, dim] */
    size_t stride;  /* of its rows */
    size_t dim;
    float scale;
};

/* to [kva_query_count][dim] = the task's queries, scaled. */
static inline void kva_query_load(const struct kva_query_task *task, struct kva_query_rows rows,
                                  float *to)
{
    for (uint32_t row = 0; row < task->row_count; row++) {
        const float *q = rows.q + (task->row + row) * rows.stride + kva_query_head(task) * rows.dim;
        for (size_t i = 0; i < task->head_count * rows.dim; i++)
            *to++ = q[i] * rows.scale;
    }
}

/* First position that a row at `position` may see; window 0: there is none. */
static inline uint32_t kva_query_first_visible(uint32_t window, uint32_t position)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* --- the splits of a task side by side -------------------------------------------------------- */

/* Where the partial result of a split is kept, until all are there: a [queries][dim], m and e
 * [queries] in parts of so many floats, in whole lines of the cache. */
static inline size_t kva_query_partial_floats(const struct kva_query_task *task, uint32_t dim)
{
    return kva_align_up((size_t)kva_query_count(task) * (dim + 2), KVA_CACHE_LINE / sizeof(float));
}

static inline struct kva_partial kva_query_partial_at(const struct kva_query_task *task,
                                                      uint32_t dim, float *part)
{
    size_t count = kva_query_count(task);
    float *m = part + count * dim;
    return (struct kva_partial){part, m, m + count};
}

#endif
