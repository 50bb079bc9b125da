/* rows.c - driver of attention over rows: a task (query_task.h) folds them in ascending position, a
 * split's worth at a time. Rows are few, so no task is cut further. */
#include "kernels/cpu/attend/rows.h"

#include "kernels/cpu/select/row_cache.h"

/* --- a task ----------------------------------------------------------------------------------- */

/* Rows [first, first + count), as a split of attention. */
static void fold_some(const struct kva_rows_fold *fold, uint32_t first, uint32_t count)
{
    uint32_t kv_head = fold->at->kv_head, queries = kva_query_count(fold->at);
    for (uint32_t i = 0; i < KVA_ATTEND_SPLIT_TOKENS; i++)
        fold->tokens[i] =
            i < count ? kva_row_at(fold->rows, kv_head, first + i, fold->head_dim) : NULL;
    for (uint32_t j = 0; j < queries; j++) {
        uint32_t position = fold->position_first + j / fold->at->head_count;
        uint32_t from = kva_query_first_visible(fold->window, position);
        uint32_t hidden = kva_rows_before(fold->rows, kv_head, from);
        fold->slot_first[j] = hidden > first ? kva_min_u32(hidden - first, count) : 0;
        fold->slot_end[j] = count;
    }
    struct kva_cpu_attend_split split = {
        .q = fold->q,
        .tokens = fold->tokens,
        .slot_first = fold->slot_first,
        .slot_end = fold->slot_end,
        .q_count = queries,
        .head_dim = fold->head_dim,
        .kv_dtype = fold->kv_dtype,
        .a = fold->split.a,
        .m = fold->split.m,
        .e = fold->split.e,
        .scores = fold->scores,
        .k = fold->k,
        .v = fold->v,
    };
    fold->device->kernels.attend_split(&split);
    for (uint32_t j = 0; j < queries; j++)
        kva_cpu_partial_fold(&fold->device->kernels, fold->out, kva_query_pair(fold->at, j),
                             fold->fold_dim, split.a + (size_t)j * fold->head_dim, split.m[j],
                             split.e[j]);
}

void kva_cpu_rows_fold(const struct kva_rows_fold *fold)
{
    uint32_t count = fold->rows ? fold->rows->count[fold->at->kv_head] : 0;
    for (uint32_t first = 0; first < count; first += KVA_ATTEND_SPLIT_TOKENS)
        fold_some(fold, first, kva_min_u32(KVA_ATTEND_SPLIT_TOKENS, count - first));
}

/* --- the operator ----------------------------------------------------------------------------- */

struct plan {
    struct kva_device *device;
    const struct kva_attend_rows_args *args;
    struct kva_query_cut cut;
};

/* A thread's scratch. */
struct scratch {
    const void *tokens[KVA_ATTEND_SPLIT_TOKENS];
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

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "attend_rows outgrew the scratch");

static void run_task(void *opaque, uint32_t index, uint32_t worker)
{
    const struct plan *plan = opaque;
    const struct kva_attend_rows_args *args = plan->args;
    const struct kva_rows_seq *seq = args->seqs;
    for (uint32_t count; index >= (count = kva_query_tasks(&plan->cut, seq->row_count)); seq++)
        index -= count;
    if (kva_gate_closed(seq->gate))
        return;
    const struct kva_query_task at =
        kva_query_task_at(&plan->cut, seq->row_first, seq->row_count, index);
    struct scratch *scratch = kva_cpu_scratch(plan->device, worker);
    if (!args->accumulate)
        kva_query_clear(&at, &args->out, args->head_dim);
    if (!seq->rows)
        return;
    kva_query_load(&at,
                   (struct kva_query_rows){args->q, args->q_stride, args->head_dim, args->scale},
                   scratch->q);
    kva_cpu_rows_fold(&(struct kva_rows_fold){
        .device = plan->device,
        .at = &at,
        .rows = seq->rows,
        .out = &args->out,
        .q = scratch->q,
        .position_first = seq->position_first + at.row_first,
        .window = args->window,
        .head_dim = args->head_dim,
        .fold_dim = args->head_dim,
        .kv_dtype = args->kv_dtype,
        .tokens = scratch->tokens,
        .slot_first = scratch->slot_first,
        .slot_end = scratch->slot_end,
        .split = {scratch->a, scratch->m, scratch->e},
        .scores = scratch->scores,
        .k = scratch->k,
        .v = scratch->v,
    });
}

void kva_cpu_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *args)
{
    if (kva_cpu_failed(device))
        return;
    struct plan plan = {device, args, kva_query_cut_of(args->heads, args->kv_heads)};
    size_t tasks = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        tasks += kva_query_tasks(&plan.cut, args->seqs[i].row_count);
    if (tasks > UINT32_MAX)
        kva_cpu_fail(device, "attend_rows: %zu work items in one call", tasks);
    else
        kva_pool_run(device->pool, (uint32_t)tasks, run_task, &plan);
}
