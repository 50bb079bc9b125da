/* task.h - a task of low-bit attention: the queries of some rows that share a KV head, what they
 * may see, and the scratch of the thread that runs it. A part of driver.c, which alone includes it.
 */
#ifndef KVA_KERNELS_CPU_LOWBIT_TASK_H
#define KVA_KERNELS_CPU_LOWBIT_TASK_H

#include "kernels/cpu/keep/token_row.h"
#include "kernels/cpu/lowbit/plan.h"

struct task {
    const struct kva_attend_select_fetch_args *args;
    const struct kva_select_seq *seq;
    struct kva_query_task at;
    float *weights;    /* where those of the selecting row go; NULL: none of its rows selects */
    uint32_t fold_dim; /* of `a`: head_dim; 0 while the result is only wanted for the choice */
};

#define SPLIT_PAGES (KVA_ATTEND_SPLIT_TOKENS / KVA_PAGE_TOKENS)

/* A thread's scratch. */
struct scratch {
    const void *pages[2][SPLIT_PAGES]; /* of the split at hand, and of the next one, in turns */
    uint64_t present[SPLIT_PAGES];
    const void *tokens[KVA_ATTEND_SPLIT_TOKENS];
    uint32_t slot_first[KVA_CPU_ATTEND_QUERIES];
    uint32_t slot_end[KVA_CPU_ATTEND_QUERIES];
    float shift[KVA_CPU_ATTEND_QUERIES]; /* of a query's scores: its product with the mean key */
    float m[KVA_CPU_ATTEND_QUERIES];
    float e[KVA_CPU_ATTEND_QUERIES];
    _Alignas(64) float weights[KVA_CPU_ATTEND_QUERIES * KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float q[KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX];
    _Alignas(64) float a[KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX];
    union {
        _Alignas(64) unsigned char lowbit[KVA_CPU_LOWBIT_SCRATCH_BYTES];
        struct {
            _Alignas(64) float k[KVA_CPU_ATTEND_K_FLOATS];
            _Alignas(64) float v[KVA_CPU_ATTEND_V_FLOATS];
        } rows;
    } kernel;
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES,
               "low-bit attention outgrew the scratch");

static size_t tasks_of_plan(const struct kva_lowbit_plan *plan)
{
    size_t count = 0;
    for (uint32_t i = plan->seq_first; i < plan->seq_end; i++)
        count += kva_query_tasks(&plan->cut, plan->args->seqs[i].row_count);
    return count;
}

static struct task task_at(const struct kva_lowbit_plan *plan, uint32_t index)
{
    const struct kva_attend_select_fetch_args *args = plan->args;
    const struct kva_select_seq *seq = args->seqs + plan->seq_first;
    float *weights = args->scratch; /* of the fused operator */
    for (uint32_t count; index >= (count = kva_query_tasks(&plan->cut, seq->row_count)); seq++) {
        index -= count;
        weights += kva_lowbit_weight_floats(args, seq);
    }
    struct task task = {.args = args, .seq = seq, .fold_dim = args->head_dim};
    task.at = kva_query_task_at(&plan->cut, seq->row_first, seq->row_count, index);
    if (plan->scores)
        weights = plan->scores[seq - args->seqs];
    bool selects = (plan->scores ? weights != NULL : kva_lowbit_selects(seq)) &&
                   seq->select_row >= task.at.row_first &&
                   seq->select_row < task.at.row_first + task.at.row_count;
    if (selects)
        task.weights = weights + task.at.kv_head * kva_lowbit_part_floats(args, seq);
    if (selects && seq->now)
        task.fold_dim = 0;
    return task;
}

static uint32_t first_position(const struct task *task)
{
    return task->seq->position_first + task->at.row_first;
}

/* Splits [*ret_first, *ret_end) hold all low-bit tokens that the task's rows may see. */
static void task_splits(const struct task *task, uint32_t *ret_first, uint32_t *ret_end)
{
    uint32_t first = kva_lowbit_first_visible(task->args, first_position(task));
    uint32_t end = task->seq->page_count * KVA_PAGE_TOKENS;
    *ret_end = (uint32_t)kva_div_up(end, KVA_ATTEND_SPLIT_TOKENS);
    *ret_first = first < end ? first / KVA_ATTEND_SPLIT_TOKENS : *ret_end;
}

static bool is_turned(const struct task *task)
{
    return task->args->format.coding == KVA_CODING_TURNED;
}

/* What scores lack whose keys are without a mean. */
static float shift_of(const float *q, const float *mean, uint32_t dim)
{
    float lanes[KVA_TOKEN_ROW_LANES] = {0};
    for (uint32_t i = 0; i < dim; i++)
        lanes[i % KVA_TOKEN_ROW_LANES] += q[i] * mean[i];
    return kva_token_row_total(lanes);
}

/* The task's queries, scaled, and turned as the keys are. */
static void load_queries(const struct task *task, struct scratch *scratch)
{
    const struct kva_attend_select_fetch_args *args = task->args;
    const uint32_t dim = args->head_dim;
    const float *mean = task->seq->mean;
    kva_query_load(&task->at, (struct kva_query_rows){args->q, args->q_stride, dim, args->scale},
                   scratch->q);
    for (uint32_t j = 0; j < kva_query_count(&task->at); j++) {
        float *q = scratch->q + (size_t)j * dim;
        scratch->shift[j] = mean ? shift_of(q, mean + (size_t)task->at.kv_head * dim, dim) : 0.0f;
        if (is_turned(task))
            kva_token_row_turn(q, dim);
    }
}

#endif
