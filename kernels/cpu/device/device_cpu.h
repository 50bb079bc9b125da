/* device_cpu.h - the inside of the CPU device, shared by device.c and the operators' drivers. */
#ifndef KVA_KERNELS_CPU_DEVICE_DEVICE_CPU_H
#define KVA_KERNELS_CPU_DEVICE_DEVICE_CPU_H

#include "base/pool.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/device/queue.h"

/* Memory for the partial results of attention splits that are computed side by side. More splits
 * than fit are done in waves. Taken when touched. */
#define KVA_CPU_PARTIAL_BYTES (16u * 1024u * 1024u)

struct kva_device {
    struct kva_device_base base;
    struct kva_cpu_kernels kernels;
    struct kva_pool *pool;
    struct kva_copy_queue *copies;
    unsigned char *scratch; /* [threads][KVA_CPU_SCRATCH_BYTES] */
    float *partials;        /* KVA_CPU_PARTIAL_BYTES */
    void *prepared;         /* KVA_CPU_PREPARED_BYTES: rows for linear */
    bool prefault;          /* memory is made physical when it is taken */
    _Atomic bool failed;    /* set once, after `error` was written */
    struct kva_err error;
};

static inline void *kva_cpu_scratch(const struct kva_device *device, uint32_t worker)
{
    return device->scratch + (size_t)worker * KVA_CPU_SCRATCH_BYTES;
}

/* Fail the device for good; operators do nothing from then on. Engine thread only. */
void kva_cpu_fail(struct kva_device *device, const char *format, ...) KVA_PRINTF(2, 3);

static inline bool kva_cpu_failed(const struct kva_device *device)
{
    return atomic_load_explicit(&device->failed, memory_order_relaxed);
}

/* Rows that a KV head may choose at most: they bound the scratch. */
#define KVA_CPU_SELECT_MAX 16384u

/* Query heads of a KV head that may select together at most. */
#define KVA_CPU_SELECT_HEADS_MAX 4096u

/* Slots of a KV head at most: they bound the scratch of assign_slots. */
#define KVA_CPU_SLOTS_MAX (KVA_CPU_SCRATCH_BYTES / (2 * sizeof(uint64_t)) - 64)

/* assign_slots, then fetch_rows, for one KV head. scratch: KVA_CPU_SCRATCH_BYTES / 2. */
void kva_cpu_select_fetch_head(const struct kva_row_cache *cache, const struct kva_fused_fetch *now,
                               uint32_t kv_head, uint32_t head_dim, void *scratch);

/* See struct kva_device_roofs. */
KVA_MUST_CHECK enum kva_status kva_cpu_roofs(struct kva_device *device,
                                             struct kva_device_roofs *ret, struct kva_err *err);

extern const struct kva_ops kva_cpu_ops;

void kva_cpu_embed(struct kva_device *device, const struct kva_embed_args *args);
void kva_cpu_norm(struct kva_device *device, const struct kva_norm_args *args);
void kva_cpu_linear(struct kva_device *device, const struct kva_linear_args *args);
void kva_cpu_linear_group(struct kva_device *device, const struct kva_linear_group_args *args);
void kva_cpu_linear_glu(struct kva_device *device, const struct kva_linear_glu_args *args);
void kva_cpu_rope(struct kva_device *device, const struct kva_rope_args *args);
void kva_cpu_glu(struct kva_device *device, const struct kva_glu_args *args);
void kva_cpu_gather(struct kva_device *device, const struct kva_gather_args *args);
void kva_cpu_sum_rows(struct kva_device *device, const struct kva_sum_rows_args *args);
void kva_cpu_kv_append(struct kva_device *device, const struct kva_kv_append_args *args);
void kva_cpu_quantise(struct kva_device *device, const struct kva_quantise_args *args);
void kva_cpu_attend(struct kva_device *device, const struct kva_attend_args *args);
void kva_cpu_attend_apart(struct kva_device *device, const struct kva_attend_apart_args *args);
void kva_cpu_attend_join(struct kva_device *device, const struct kva_attend_apart_args *args);
void kva_cpu_attend_lowbit(struct kva_device *device, const struct kva_attend_lowbit_args *args);
void kva_cpu_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *args);
void kva_cpu_merge(struct kva_device *device, const struct kva_merge_args *args);
void kva_cpu_attend_select_fetch(struct kva_device *device,
                                 const struct kva_attend_select_fetch_args *args);
void kva_cpu_weigh(struct kva_device *device, const struct kva_weigh_args *args);
void kva_cpu_choose(struct kva_device *device, const struct kva_choose_args *args);
void kva_cpu_accumulate(struct kva_device *device, const struct kva_accumulate_args *args);
void kva_cpu_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *args);
void kva_cpu_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *args);
void kva_cpu_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *args);
void kva_cpu_shortlist(struct kva_device *device, const struct kva_shortlist_args *args);
void kva_cpu_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args);
void kva_cpu_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *args);
void kva_cpu_row_error(struct kva_device *device, const struct kva_row_error_args *args);
void kva_cpu_keep(struct kva_device *device, const struct kva_keep_args *args);
void kva_cpu_store_rows(struct kva_device *device, const struct kva_store_rows_args *args);
void kva_cpu_use_rows(struct kva_device *device, const struct kva_use_rows_args *args);
void kva_cpu_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args);
void kva_cpu_sketch(struct kva_device *device, const struct kva_sketch_args *args);
void kva_cpu_sketch_queries(struct kva_device *device, const struct kva_sketch_queries_args *args);
void kva_cpu_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *args);
void kva_cpu_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *args);

#endif
