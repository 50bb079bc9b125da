/* check_internal.h - what the files of the checks share:
 *
 *     check.c         the table, and what is checked of most operators
 *     check_common.c  what operators have in common
 *     check_keep.c    kept rows and partial keys
 *
 * A check that fails has failed the device, and returns false. */
#ifndef KVA_KERNELS_CHECK_INTERNAL_H
#define KVA_KERNELS_CHECK_INTERNAL_H

#include "kernels/backend.h"
#include "kernels/ops.h"

static inline const struct kva_device_base *kva_check_base(const struct kva_device *device)
{
    return (const struct kva_device_base *)device;
}

static inline const struct kva_op_limits *kva_check_limits(const struct kva_device *device)
{
    return &kva_check_base(device)->backend->limits;
}

/* Fails the device; false. */
bool kva_check_refuse(struct kva_device *device, const char *format, ...) KVA_PRINTF(2, 3);

/* --- what operators have in common ------------------------------------------------------------ */

bool kva_check_kv_dtype(struct kva_device *device, const char *op, enum kva_dtype kv_dtype);

bool kva_check_heads(struct kva_device *device, const char *op, uint32_t heads, uint32_t kv_heads);

bool kva_check_head_dim(struct kva_device *device, const char *op, uint32_t head_dim);

/* Where rows are read by fours of channels. */
bool kva_check_head_dim_of_rows(struct kva_device *device, const char *op, uint32_t head_dim);

/* Of KVA_KEYS_PER_TOKEN; head_dim has been checked. */
bool kva_check_per_token(struct kva_device *device, const char *op, struct kva_lowbit_format format,
                         uint32_t head_dim);

/* Low-bit pages can be made and read. */
bool kva_check_lowbit(struct kva_device *device, const char *op, struct kva_lowbit_format format,
                      uint32_t head_dim);

/* The slots hold what may be chosen, and are as many as the device can put in order. */
bool kva_check_slots(struct kva_device *device, const char *op, const struct kva_row_cache *rows);

/* Scores that are kept are of one row, and there is room for them. */
bool kva_check_scores(struct kva_device *device, const char *op,
                      const struct kva_attend_scores *scores, uint32_t row_count,
                      const struct kva_attend_range *ranges, uint32_t range_count);

/* --- kept rows, partial keys ------------------------------------------------------------------- */

bool kva_check_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args);
bool kva_check_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *args);
bool kva_check_row_error(struct kva_device *device, const struct kva_row_error_args *args);
bool kva_check_keep(struct kva_device *device, const struct kva_keep_args *args);
bool kva_check_use_rows(struct kva_device *device, const struct kva_use_rows_args *args);
bool kva_check_store_rows(struct kva_device *device, const struct kva_store_rows_args *args);
bool kva_check_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args);
bool kva_check_sketch(struct kva_device *device, const struct kva_sketch_args *args);
bool kva_check_sketch_queries(struct kva_device *device,
                              const struct kva_sketch_queries_args *args);
bool kva_check_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *args);
bool kva_check_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *args);

#endif
