/* rows.h - attention of a task's queries to the rows of a cache, as both drivers that have rows do
 * it: attend_rows, and the fused operator. */
#ifndef KVA_KERNELS_CPU_ATTEND_ROWS_H
#define KVA_KERNELS_CPU_ATTEND_ROWS_H

#include "kernels/cpu/attend/query_task.h"

struct kva_rows_fold {
    const struct kva_device *device;
    const struct kva_query_task *at;
    const struct kva_row_cache *rows; /* NULL: none */
    const struct kva_partial *out;    /* of the call */
    const float *q;                   /* [queries][head_dim], scaled */
    uint32_t position_first;          /* of the task's first row */
    uint32_t window;
    uint32_t head_dim;
    uint32_t fold_dim; /* of `a`: head_dim, or 0: only m and e are wanted */
    enum kva_dtype kv_dtype;
    /* scratch, as struct kva_cpu_attend_split has it */
    const void **tokens;
    uint32_t *slot_first, *slot_end;
    struct kva_partial split;
    float *scores, *k, *v;
};

/* Fold the rows into `out`, KVA_ATTEND_SPLIT_TOKENS of them at a time. */
void kva_cpu_rows_fold(const struct kva_rows_fold *fold);

#endif
