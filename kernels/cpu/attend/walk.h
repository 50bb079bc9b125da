/* walk.h - what the driver of attention is made of: the tasks of a call, and a task's way through
 * its splits.
 *
 * Where rows are few, and reading is what takes time, a task has all the KV heads (query_task.h) of
 * its rows, split by split: heads lie side by side in a block, so that what the hardware fetches
 * beyond one is the beginning of the next.
 *
 * Thread rule: plain data; a scratch is its thread's. */
#ifndef KVA_KERNELS_CPU_ATTEND_WALK_H
#define KVA_KERNELS_CPU_ATTEND_WALK_H

#include "kernels/cpu/attend/query_task.h"

/* A task has several KV heads if one of them has so many queries at most. */
#define KVA_ATTEND_FEW_QUERIES 16u

/* A task longer than 1/KVA_ATTEND_SHARES of what a thread has to do is done by all of them. */
#define KVA_ATTEND_SHARES 4u

struct kva_attend_task {
    const struct kva_attend_args *args;
    const struct kva_attend_seq *seq;
    struct kva_query_task at; /* of the first KV head */
    uint32_t kv_count;
    uint32_t skip; /* of its splits, the first so many have been computed apart */
};

struct kva_attend_plan {
    struct kva_device *device;
    const struct kva_attend_args *args;
    struct kva_query_cut cut;
    uint64_t longest;    /* cost of a task beyond which it is done by all threads */
    size_t apart_floats; /* of a sequence, for splits that have been computed apart; 0: none have */
};

#define KVA_ATTEND_Q_FLOATS (KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX)

/* A thread's scratch. */
struct kva_attend_scratch {
    const void *tokens[2][KVA_ATTEND_SPLIT_TOKENS]; /* of a split, and of the one that comes next */
    uint32_t slot_first[KVA_CPU_ATTEND_QUERIES];
    uint32_t slot_end[KVA_CPU_ATTEND_QUERIES];
    float m[KVA_CPU_ATTEND_QUERIES];
    float e[KVA_CPU_ATTEND_QUERIES];
    _Alignas(64) float scores[KVA_CPU_ATTEND_QUERIES * KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float q[KVA_ATTEND_Q_FLOATS]; /* [kv_count][queries][head_dim], scaled */
    _Alignas(64) float a[KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX];
    _Alignas(64) float k[KVA_CPU_ATTEND_K_FLOATS];
    _Alignas(64) float v[KVA_CPU_ATTEND_V_FLOATS];
};

_Static_assert(sizeof(struct kva_attend_scratch) <= KVA_CPU_SCRATCH_BYTES,
               "attention outgrew the scratch");

/* --- tasks ------------------------------------------------------------------------------------ */

/* Tasks of a sequence: those of query_task.h, or runs of them over the KV heads of the same rows.
 */
uint32_t kva_attend_seq_tasks(const struct kva_attend_plan *plan, const struct kva_attend_seq *seq);
struct kva_attend_task kva_attend_seq_task(const struct kva_attend_plan *plan,
                                           const struct kva_attend_seq *seq, uint32_t index);

size_t kva_attend_plan_tasks(const struct kva_attend_plan *plan);
struct kva_attend_task kva_attend_task_at(const struct kva_attend_plan *plan, uint32_t index);

/* Splits [*ret_first, *ret_end) hold everything that the task's rows may see, and has not been
 * computed apart. */
void kva_attend_task_splits(const struct kva_attend_task *task, uint32_t *ret_first,
                            uint32_t *ret_end);

static inline uint32_t kva_attend_count_splits(const struct kva_attend_task *task)
{
    uint32_t first, end;
    kva_attend_task_splits(task, &first, &end);
    return end - first;
}

/* --- partial results of splits ---------------------------------------------------------------- */

/* Those of a split of the task: one for each KV head. */
size_t kva_attend_split_floats(const struct kva_attend_task *task);

/* Of `seq_floats` for a sequence, what each of its tasks has. */
size_t kva_attend_task_floats(size_t seq_floats, uint32_t tasks);

/* --- a way through splits --------------------------------------------------------------------- */

/* Through splits [split, end) of a task, one KV head of each after the other. */
struct kva_attend_walk {
    uint32_t split;
    uint32_t end;
    uint32_t kv;
    uint32_t turn; /* pairs of the two that have been */
};

/* Everything before the first turn. */
void kva_attend_walk_begin(const struct kva_attend_task *task, const struct kva_attend_walk *walk,
                           struct kva_attend_scratch *scratch);

/* to = attention of the task's queries of one KV head to one split, where `walk` stands, which then
 * goes on. */
void kva_attend_walk_on(const struct kva_device *device, const struct kva_attend_task *task,
                        struct kva_attend_walk *walk, struct kva_attend_scratch *scratch,
                        struct kva_partial to);

/* What a split gave to one query of a KV head is folded into the output. */
void kva_attend_fold_query(const struct kva_device *device, const struct kva_attend_task *task,
                           uint32_t kv, uint32_t query, struct kva_partial from);

/* The output of the task's rows becomes that of attention to nothing. */
void kva_attend_clear_out(const struct kva_attend_task *task);

#endif
