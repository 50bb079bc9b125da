/* check_keep.c - the checks of kept rows (ops_keep.h) and of partial keys (ops_sketch.h). */
#include "kernels/check_internal.h"

/* --- rows that are kept ----------------------------------------------------------------------- */

bool kva_check_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    const uint32_t most = kva_check_limits(device)->partials_max;
    if (!kva_check_head_dim(device, "attend_mass", args->head_dim) ||
        !kva_check_heads(device, "attend_mass", args->heads, args->kv_heads) ||
        !kva_check_kv_dtype(device, "attend_mass", args->kv_dtype))
        return false;
    if (args->partial_count == 0 || args->partial_count > most)
        return kva_check_refuse(device, "attend_mass: %u partial results, must be 1 to %u",
                                args->partial_count, most);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_mass_seq *seq = &args->seqs[i];
        if (!kva_check_scores(device, "attend_mass", &seq->scores, seq->row_count,
                              args->ranges + seq->range_first, seq->range_count))
            return false;
        for (uint32_t j = 0; j < seq->range_count; j++) {
            const struct kva_attend_range *range = &args->ranges[seq->range_first + j];
            if (range->format != KVA_KV_16BIT)
                return kva_check_refuse(device, "attend_mass: no kernel for KV format %d",
                                        (int)range->format);
            if (range->token_first < seq->mass_first ||
                range->token_first - seq->mass_first + range->token_count > seq->mass_stride)
                return kva_check_refuse(
                    device, "attend_mass: mass of tokens %u to %u in an array of %u to %u",
                    range->token_first, range->token_first + range->token_count, seq->mass_first,
                    seq->mass_first + seq->mass_stride);
        }
    }
    return true;
}

/* Rows in 16 bits are whole. */
static bool check_mean(struct kva_device *device, const char *op, struct kva_lowbit_format format,
                       const float *mean)
{
    return format.bits > 0 || !mean ||
           kva_check_refuse(device, "%s: rows of 16 bits without a mean key", op);
}

/* A store in 16 bits, or in few per token. */
static bool check_store_format(struct kva_device *device, const char *op,
                               struct kva_lowbit_format format, uint32_t head_dim,
                               enum kva_dtype kv_dtype)
{
    if (!kva_check_head_dim_of_rows(device, op, head_dim) ||
        !kva_check_kv_dtype(device, op, kv_dtype))
        return false;
    if (format.bits == 0)
        return true;
    if (format.keys != KVA_KEYS_PER_TOKEN)
        return kva_check_refuse(device, "%s: rows of a store have keys per token", op);
    return kva_check_per_token(device, op, format, head_dim);
}

static bool check_keep_rotary(struct kva_device *device, const char *op,
                              struct kva_keep_rotary rotary, uint32_t head_dim)
{
    const uint32_t most = kva_min_u32(head_dim, kva_check_limits(device)->rotary_dim_max);
    if (!rotary.inv_freq || (rotary.rotary_dim % 2 == 0 && rotary.rotary_dim <= most))
        return true;
    return kva_check_refuse(device, "%s: rotary_dim %u, must be even and %u at most", op,
                            rotary.rotary_dim, most);
}

bool kva_check_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *args)
{
    if (args->first >= args->end || args->end > KVA_PAGE_TOKENS)
        return kva_check_refuse(device, "mean_keys: tokens %u to %u of a block of %u", args->first,
                                args->end, KVA_PAGE_TOKENS);
    return kva_check_head_dim_of_rows(device, "mean_keys", args->head_dim) &&
           kva_check_kv_dtype(device, "mean_keys", args->kv_dtype);
}

bool kva_check_row_error(struct kva_device *device, const struct kva_row_error_args *args)
{
    if (args->format.bits == 0)
        return kva_check_refuse(device, "row_error: 0 bits, must be 2, 3, 4 or 8");
    if (!check_store_format(device, "row_error", args->format, args->head_dim, args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].count > args->seqs[i].stride)
            return kva_check_refuse(device, "row_error: errors of %u tokens in rows of %u",
                                    args->seqs[i].count, args->seqs[i].stride);
    }
    return true;
}

static bool check_keep_seq(struct kva_device *device, const struct kva_keep_args *args,
                           const struct kva_keep_seq *seq)
{
    const uint32_t slots = seq->store.slots;
    if (seq->filled > slots)
        return kva_check_refuse(device, "keep: %u of %u slots are filled", seq->filled, slots);
    if (seq->count > seq->stride)
        return kva_check_refuse(device, "keep: %u tokens come, of whom %u are weighed", seq->count,
                                seq->stride);
    if ((uint64_t)seq->sinks + seq->recent > slots)
        return kva_check_refuse(device, "keep: %u slots cannot hold %u sinks and %u recent tokens",
                                slots, seq->sinks, seq->recent);
    if (args->score != KVA_KEEP_MASS && (!seq->error || !seq->store.error))
        return kva_check_refuse(device, "keep: a score by mass and error, and no errors");
    return true;
}

bool kva_check_keep(struct kva_device *device, const struct kva_keep_args *args)
{
    size_t need = 0;
    if ((unsigned)args->score > KVA_KEEP_RANK)
        return kva_check_refuse(device, "keep: there is no score %d", (int)args->score);
    if (!(args->lambda >= 0.0f && args->lambda <= 1.0f))
        return kva_check_refuse(device, "keep: a lambda of %g, must be 0 to 1",
                                (double)args->lambda);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (!check_keep_seq(device, args, &args->seqs[i]))
            return false;
        need += kva_keep_scratch_bytes(args->kv_heads, args->seqs[i].filled, args->seqs[i].count);
    }
    if (need > args->scratch_bytes)
        return kva_check_refuse(device, "keep: needs %zu bytes, has %zu", need,
                                args->scratch_bytes);
    return true;
}

bool kva_check_use_rows(struct kva_device *device, const struct kva_use_rows_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_use_seq *seq = &args->seqs[i];
        if (seq->filled > seq->slots)
            return kva_check_refuse(device, "use_rows: %u of %u slots are filled", seq->filled,
                                    seq->slots);
        if ((unsigned)seq->rule > KVA_USE_STAMP)
            return kva_check_refuse(device, "use_rows: there is no rule %d", (int)seq->rule);
    }
    return true;
}

bool kva_check_store_rows(struct kva_device *device, const struct kva_store_rows_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].count > 0 && args->seqs[i].slot_count == 0)
            return kva_check_refuse(device, "store_rows: %u tokens come to a store without slots",
                                    args->seqs[i].count);
        if (!check_mean(device, "store_rows", args->format, args->seqs[i].mean))
            return false;
    }
    return check_store_format(device, "store_rows", args->format, args->head_dim, args->kv_dtype) &&
           check_keep_rotary(device, "store_rows", args->rotary, args->head_dim);
}

bool kva_check_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    if (!args->rotary.inv_freq)
        return kva_check_refuse(device, "roll_rows: no frequencies to rotate by");
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].filled > args->seqs[i].slots)
            return kva_check_refuse(device, "roll_rows: %u of %u slots are filled",
                                    args->seqs[i].filled, args->seqs[i].slots);
        if (!check_mean(device, "roll_rows", args->format, args->seqs[i].mean))
            return false;
    }
    return check_store_format(device, "roll_rows", args->format, args->head_dim, args->kv_dtype) &&
           check_keep_rotary(device, "roll_rows", args->rotary, args->head_dim);
}

/* --- partial keys ----------------------------------------------------------------------------- */

static bool check_columns(struct kva_device *device, const char *op, uint32_t columns,
                          uint32_t head_dim)
{
    if (columns > 0 && columns <= head_dim)
        return true;
    return kva_check_refuse(device, "%s: %u columns, must be 1 to head_dim %u", op, columns,
                            head_dim);
}

static bool check_sketch_format(struct kva_device *device, const char *op,
                                struct kva_sketch_format format, uint32_t head_dim,
                                enum kva_dtype kv_dtype)
{
    if (!kva_check_head_dim(device, op, head_dim) || !kva_check_kv_dtype(device, op, kv_dtype) ||
        !check_columns(device, op, format.columns, head_dim))
        return false;
    if (format.bits == 8 || format.bits == 16)
        return true;
    return kva_check_refuse(device, "%s: %u bits, must be 8 or 16", op, format.bits);
}

bool kva_check_sketch(struct kva_device *device, const struct kva_sketch_args *args)
{
    return check_sketch_format(device, "sketch", args->format, args->head_dim, args->kv_dtype);
}

bool kva_check_sketch_queries(struct kva_device *device, const struct kva_sketch_queries_args *args)
{
    return kva_check_head_dim(device, "sketch_queries", args->head_dim) &&
           kva_check_heads(device, "sketch_queries", args->heads, args->kv_heads) &&
           check_columns(device, "sketch_queries", args->columns, args->head_dim);
}

bool kva_check_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *args)
{
    return kva_check_head_dim(device, "sketch_sums", args->head_dim) &&
           kva_check_heads(device, "sketch_sums", args->heads, args->kv_heads);
}

bool kva_check_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    const uint32_t most = kva_check_limits(device)->select_heads_max;
    if (!kva_check_heads(device, "sketch_weigh", args->heads, args->kv_heads) ||
        !check_sketch_format(device, "sketch_weigh", args->format, args->head_dim, args->kv_dtype))
        return false;
    if (args->heads / args->kv_heads > most)
        return kva_check_refuse(device, "sketch_weigh: %u heads share a KV head, at most %u",
                                args->heads / args->kv_heads, most);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_sketch_seq *seq = &args->seqs[i];
        if (seq->page_count > 0 && (!seq->scratch || !seq->weights))
            return kva_check_refuse(device, "sketch_weigh: %u pages, and nowhere to weigh them",
                                    seq->page_count);
    }
    return true;
}
