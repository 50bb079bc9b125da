/* check.c - the checks in front of the operators. Every operator has one function here, so that a
 * new one cannot be reached without somebody having thought of its arguments. */
#include "kernels/check.h"

#include "kernels/backend.h"

#include <stdarg.h>
#include <stdio.h>

static const struct kva_device_base *base_of(const struct kva_device *device)
{
    return (const struct kva_device_base *)device;
}

static const struct kva_op_limits *limits_of(const struct kva_device *device)
{
    return &base_of(device)->backend->limits;
}

/* Fails the device; false. */
static bool refuse(struct kva_device *device, const char *format, ...) KVA_PRINTF(2, 3);

static bool refuse(struct kva_device *device, const char *format, ...)
{
    char message[KVA_ERR_MESSAGE_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    base_of(device)->backend->fail(device, message);
    return false;
}

/* --- what operators have in common ------------------------------------------------------------ */

static bool check_kv_dtype(struct kva_device *device, const char *op, enum kva_dtype kv_dtype)
{
    if (kv_dtype == KVA_F16 || kv_dtype == KVA_BF16)
        return true;
    return refuse(device, "%s: KV blocks hold f16 or bf16, not data type %d", op, (int)kv_dtype);
}

static bool check_heads(struct kva_device *device, const char *op, uint32_t heads,
                        uint32_t kv_heads)
{
    if (kv_heads > 0 && heads % kv_heads == 0)
        return true;
    return refuse(device, "%s: %u heads cannot share %u KV heads", op, heads, kv_heads);
}

static bool check_head_dim(struct kva_device *device, const char *op, uint32_t head_dim)
{
    uint32_t most = limits_of(device)->head_dim_max;
    if (head_dim > 0 && head_dim <= most)
        return true;
    return refuse(device, "%s: head_dim %u, must be 1 to %u", op, head_dim, most);
}

/* Where rows are read by fours of channels. */
static bool check_head_dim_of_rows(struct kva_device *device, const char *op, uint32_t head_dim)
{
    uint32_t most = limits_of(device)->head_dim_max;
    if (head_dim > 0 && head_dim % 4 == 0 && head_dim <= most)
        return true;
    return refuse(device, "%s: head_dim %u, must be a multiple of 4 up to %u", op, head_dim, most);
}

/* Of KVA_KEYS_PER_TOKEN; head_dim has been checked. */
static bool check_per_token(struct kva_device *device, const char *op,
                            struct kva_lowbit_format format, uint32_t head_dim)
{
    if (format.bits != 2 && format.bits != 3 && format.bits != 4 && format.bits != 8)
        return refuse(device, "%s: %u bits, with keys per token must be 2, 3, 4 or 8", op,
                      format.bits);
    if (format.group != head_dim)
        return refuse(device, "%s: groups of %u, with keys per token must be head_dim %u", op,
                      format.group, head_dim);
    if (format.key_levels != KVA_LEVELS_PAPER || format.value_levels != KVA_LEVELS_PAPER)
        return refuse(device, "%s: no levels %d and %d with keys per token", op,
                      (int)format.key_levels, (int)format.value_levels);
    return true;
}

/* Low-bit pages can be made and read. */
static bool check_lowbit(struct kva_device *device, const char *op, struct kva_lowbit_format format,
                         uint32_t head_dim)
{
    if (!check_head_dim_of_rows(device, op, head_dim))
        return false;
    if (format.keys == KVA_KEYS_PER_TOKEN)
        return check_per_token(device, op, format, head_dim);
    if (format.bits != 1 && format.bits != 2 && format.bits != 4)
        return refuse(device, "%s: %u bits, must be 1, 2 or 4", op, format.bits);
    if (format.group != 32 && format.group != 64)
        return refuse(device, "%s: groups of %u, must be 32 or 64", op, format.group);
    if (format.coding != KVA_CODING_PLAIN)
        return refuse(device, "%s: rows are turned with keys per token alone", op);
    return true;
}

/* The slots hold what may be chosen, and are as many as the device can put in order. */
static bool check_slots(struct kva_device *device, const char *op, const struct kva_row_cache *rows)
{
    uint32_t most = limits_of(device)->slots_max;
    if (rows->slots < (size_t)rows->pinned + rows->k)
        return refuse(device, "%s: %u slots cannot hold %u pinned and %u chosen rows", op,
                      rows->slots, rows->pinned, rows->k);
    if (rows->slots > most)
        return refuse(device, "%s: %u slots, at most %u", op, rows->slots, most);
    return true;
}

/* --- dense ------------------------------------------------------------------------------------ */

static bool check_embed(struct kva_device *device, const struct kva_embed_args *args)
{
    (void)device;
    (void)args;
    return true;
}

static bool check_norm(struct kva_device *device, const struct kva_norm_args *args)
{
    (void)device;
    (void)args;
    return true;
}

static bool check_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    enum kva_dtype act = base_of(device)->info.act;
    if (limits_of(device)->weights_as_act && args->weight.dtype != act &&
        !kva_dtype_is_packed(args->weight.dtype))
        return refuse(device, "linear: a %s matrix with %s activations",
                      kva_dtype_name(args->weight.dtype), kva_dtype_name(act));
    return true;
}

static bool check_rope(struct kva_device *device, const struct kva_rope_args *args)
{
    uint32_t most = limits_of(device)->rotary_dim_max;
    if (args->rotary_dim <= args->head_dim && args->rotary_dim <= most)
        return true;
    return refuse(device, "rope: rotary_dim %u with head_dim %u (at most %u)", args->rotary_dim,
                  args->head_dim, most);
}

static bool check_glu(struct kva_device *device, const struct kva_glu_args *args)
{
    (void)device;
    (void)args;
    return true;
}

static bool check_gather(struct kva_device *device, const struct kva_gather_args *args)
{
    (void)device;
    (void)args;
    return true;
}

static bool check_sum_rows(struct kva_device *device, const struct kva_sum_rows_args *args)
{
    (void)device;
    (void)args;
    return true;
}

/* --- attention -------------------------------------------------------------------------------- */

static bool check_kv_append(struct kva_device *device, const struct kva_kv_append_args *args)
{
    return check_kv_dtype(device, "kv_append", args->kv_dtype);
}

static bool check_scores(struct kva_device *device, const char *op,
                         const struct kva_attend_scores *scores, uint32_t row_count,
                         const struct kva_attend_range *ranges, uint32_t range_count)
{
    if (!scores->data)
        return true;
    if (row_count != 1)
        return refuse(device, "%s: scores of %u rows, those of one are kept", op, row_count);
    for (uint32_t i = 0; i < range_count; i++) {
        const uint32_t first = ranges[i].token_first / KVA_ATTEND_SPLIT_TOKENS;
        const uint64_t end = (uint64_t)ranges[i].token_first + ranges[i].token_count;
        if (first < scores->split_first ||
            kva_div_up(end, KVA_ATTEND_SPLIT_TOKENS) > scores->split_first + scores->split_count)
            return refuse(device, "%s: scores of splits %u to %u, tokens up to %llu", op,
                          scores->split_first, scores->split_first + scores->split_count,
                          (unsigned long long)end);
    }
    return true;
}

static bool check_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (!check_head_dim(device, "attend", args->head_dim) ||
        !check_heads(device, "attend", args->heads, args->kv_heads) ||
        !check_kv_dtype(device, "attend", args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_attend_range *ranges = args->ranges + args->seqs[i].range_first;
        if (!check_scores(device, "attend", &args->seqs[i].scores, args->seqs[i].row_count, ranges,
                          args->seqs[i].range_count))
            return false;
        for (uint32_t j = 0; j < args->seqs[i].range_count; j++) {
            if (ranges[j].format != KVA_KV_16BIT)
                return refuse(device, "attend: no kernel for KV format %d", (int)ranges[j].format);
        }
    }
    return true;
}

/* Where rows of 16 bits meet those of few, which are not turned then. */
static bool check_plain(struct kva_device *device, const char *op, struct kva_lowbit_format format)
{
    return format.coding == KVA_CODING_PLAIN ||
           refuse(device, "%s: rows that are turned come by store_rows, and attend alone", op);
}

static bool check_quantise(struct kva_device *device, const struct kva_quantise_args *args)
{
    return check_plain(device, "quantise", args->format) &&
           check_lowbit(device, "quantise", args->format, args->head_dim) &&
           check_kv_dtype(device, "quantise", args->kv_dtype);
}

static bool check_attend_lowbit(struct kva_device *device,
                                const struct kva_attend_lowbit_args *args)
{
    uint32_t group_max = limits_of(device)->select_heads_max;
    if (!check_heads(device, "attend_lowbit", args->heads, args->kv_heads) ||
        !check_lowbit(device, "attend_lowbit", args->format, args->head_dim))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_lowbit_seq *seq = &args->seqs[i];
        if (seq->rows && !check_slots(device, "attend_lowbit", seq->rows))
            return false;
        if (seq->scores && args->heads / args->kv_heads > group_max)
            return refuse(device, "attend_lowbit: %u heads share a KV head, at most %u may select",
                          args->heads / args->kv_heads, group_max);
    }
    return true;
}

static bool check_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *args)
{
    if (!check_heads(device, "attend_rows", args->heads, args->kv_heads) ||
        !check_head_dim_of_rows(device, "attend_rows", args->head_dim) ||
        !check_kv_dtype(device, "attend_rows", args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].rows && !check_slots(device, "attend_rows", args->seqs[i].rows))
            return false;
    }
    return true;
}

#define SELECT "attend_select_fetch"

/* A row of the sequence chooses. */
static bool check_selection(struct kva_device *device,
                            const struct kva_attend_select_fetch_args *args,
                            const struct kva_select_seq *seq)
{
    const struct kva_op_limits *limits = limits_of(device);
    uint32_t group = args->heads / args->kv_heads;
    size_t need = seq->now ? kva_attend_fused_bytes(args->heads, args->head_dim, seq->page_count)
                           : kva_attend_select_bytes(args->heads, args->kv_heads, seq->page_count);
    if (need > args->scratch_bytes)
        return refuse(device, SELECT ": selection over %u pages needs %zu bytes, has %zu",
                      seq->page_count, need, args->scratch_bytes);
    if (group > limits->select_heads_max)
        return refuse(device, SELECT ": %u heads share a KV head, at most %u may select", group,
                      limits->select_heads_max);
    if (seq->rows->k > limits->select_max)
        return refuse(device, SELECT ": %u rows to choose, at most %u", seq->rows->k,
                      limits->select_max);
    return true;
}

static bool check_select_seq(struct kva_device *device,
                             const struct kva_attend_select_fetch_args *args,
                             const struct kva_select_seq *seq)
{
    bool selects = seq->rows && seq->select_row < seq->row_count;
    if (seq->rows && !check_slots(device, SELECT, seq->rows))
        return false;
    if (seq->now && (!selects || seq->row_count != 1))
        return refuse(device, SELECT ": a choice that is acted upon at once is that of a "
                                     "sequence's only row");
    return !selects || check_selection(device, args, seq);
}

static bool check_attend_select_fetch(struct kva_device *device,
                                      const struct kva_attend_select_fetch_args *args)
{
    if (!check_heads(device, SELECT, args->heads, args->kv_heads) ||
        !check_plain(device, SELECT, args->format) ||
        !check_lowbit(device, SELECT, args->format, args->head_dim) ||
        !check_kv_dtype(device, SELECT, args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (!check_select_seq(device, args, &args->seqs[i]))
            return false;
    }
    return true;
}

static bool check_merge(struct kva_device *device, const struct kva_merge_args *args)
{
    uint32_t most = limits_of(device)->partials_max;
    if (args->partial_count <= most)
        return true;
    return refuse(device, "merge: %u partial results (at most %u)", args->partial_count, most);
}

/* --- rows that are fetched -------------------------------------------------------------------- */

static bool check_weigh(struct kva_device *device, const struct kva_weigh_args *args)
{
    const struct kva_op_limits *limits = limits_of(device);
    if (!check_heads(device, "weigh", args->heads, args->kv_heads) ||
        !check_head_dim_of_rows(device, "weigh", args->head_dim) ||
        !check_kv_dtype(device, "weigh", args->kv_dtype))
        return false;
    if (args->heads / args->kv_heads > limits->select_heads_max)
        return refuse(device, "weigh: %u heads share a KV head, at most %u",
                      args->heads / args->kv_heads, limits->select_heads_max);
    if (args->partial_count == 0 || args->partial_count > limits->partials_max)
        return refuse(device, "weigh: %u partial results, must be 1 to %u", args->partial_count,
                      limits->partials_max);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_weigh_seq *seq = &args->seqs[i];
        if (seq->rows && !check_slots(device, "weigh", seq->rows))
            return false;
        if (seq->page_count > 0 && (!seq->scores || !seq->weights))
            return refuse(device, "weigh: %u pages without scores, or nowhere to weigh them",
                          seq->page_count);
    }
    return true;
}

static bool check_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    if ((unsigned)args->kind > KVA_CHOOSE_LEAST)
        return refuse(device, "choose: there is no kind %d", (int)args->kind);
    if (args->kind == KVA_CHOOSE_NEAR && !(args->share >= 0.0f && args->share <= 1.0f))
        return refuse(device, "choose: a share of %g, must be 0 to 1", (double)args->share);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_choose_seq *seq = &args->seqs[i];
        if (seq->end > seq->stride)
            return refuse(device, "choose: candidates up to %u of %u", seq->end, seq->stride);
        if (seq->k > limits_of(device)->select_max)
            return refuse(device, "choose: %u rows to choose, at most %u", seq->k,
                          limits_of(device)->select_max);
    }
    return true;
}

static bool check_accumulate(struct kva_device *device, const struct kva_accumulate_args *args)
{
    (void)device;
    (void)args;
    return true;
}

static bool check_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *args)
{
    if (args->stamp == 0)
        return refuse(device, "assign_slots: the stamp must be greater than 0");
    for (uint32_t i = 0; i < args->count; i++) {
        if (!check_slots(device, "assign_slots", args->caches[i]))
            return false;
    }
    return true;
}

static bool check_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *args)
{
    if (args->head_dim % 4 != 0 || args->page_offset_bytes % 16 != 0)
        return refuse(device, "fetch_rows: rows of head_dim %u at offset %zu are not aligned to 16",
                      args->head_dim, args->page_offset_bytes);
    if ((unsigned)args->queue >= KVA_QUEUE_COUNT)
        return refuse(device, "fetch_rows: there is no queue %d", (int)args->queue);
    return true;
}

static bool check_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    (void)device;
    (void)args;
    return true;
}

/* --- rows that are kept ----------------------------------------------------------------------- */

static bool check_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    const uint32_t most = limits_of(device)->partials_max;
    if (!check_head_dim(device, "attend_mass", args->head_dim) ||
        !check_heads(device, "attend_mass", args->heads, args->kv_heads) ||
        !check_kv_dtype(device, "attend_mass", args->kv_dtype))
        return false;
    if (args->partial_count == 0 || args->partial_count > most)
        return refuse(device, "attend_mass: %u partial results, must be 1 to %u",
                      args->partial_count, most);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_mass_seq *seq = &args->seqs[i];
        if (!check_scores(device, "attend_mass", &seq->scores, seq->row_count,
                          args->ranges + seq->range_first, seq->range_count))
            return false;
        for (uint32_t j = 0; j < seq->range_count; j++) {
            const struct kva_attend_range *range = &args->ranges[seq->range_first + j];
            if (range->format != KVA_KV_16BIT)
                return refuse(device, "attend_mass: no kernel for KV format %d",
                              (int)range->format);
            if (range->token_first < seq->mass_first ||
                range->token_first - seq->mass_first + range->token_count > seq->mass_stride)
                return refuse(device,
                              "attend_mass: mass of tokens %u to %u in an array of %u to %u",
                              range->token_first, range->token_first + range->token_count,
                              seq->mass_first, seq->mass_first + seq->mass_stride);
        }
    }
    return true;
}

/* A store in 16 bits, or in few per token. */
static bool check_store_format(struct kva_device *device, const char *op,
                               struct kva_lowbit_format format, uint32_t head_dim,
                               enum kva_dtype kv_dtype)
{
    if (!check_head_dim_of_rows(device, op, head_dim) || !check_kv_dtype(device, op, kv_dtype))
        return false;
    if (format.bits == 0)
        return true;
    if (format.keys != KVA_KEYS_PER_TOKEN)
        return refuse(device, "%s: rows of a store have keys per token", op);
    return check_per_token(device, op, format, head_dim);
}

static bool check_keep_rotary(struct kva_device *device, const char *op,
                              struct kva_keep_rotary rotary, uint32_t head_dim)
{
    const uint32_t most = kva_min_u32(head_dim, limits_of(device)->rotary_dim_max);
    if (!rotary.inv_freq || (rotary.rotary_dim % 2 == 0 && rotary.rotary_dim <= most))
        return true;
    return refuse(device, "%s: rotary_dim %u, must be even and %u at most", op, rotary.rotary_dim,
                  most);
}

static bool check_row_error(struct kva_device *device, const struct kva_row_error_args *args)
{
    if (args->format.bits == 0)
        return refuse(device, "row_error: 0 bits, must be 2, 3, 4 or 8");
    if (!check_store_format(device, "row_error", args->format, args->head_dim, args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].count > args->seqs[i].stride)
            return refuse(device, "row_error: errors of %u tokens in rows of %u",
                          args->seqs[i].count, args->seqs[i].stride);
    }
    return true;
}

static bool check_keep_seq(struct kva_device *device, const struct kva_keep_args *args,
                           const struct kva_keep_seq *seq)
{
    const uint32_t slots = seq->store.slots;
    if (seq->filled > slots)
        return refuse(device, "keep: %u of %u slots are filled", seq->filled, slots);
    if (seq->count > seq->stride)
        return refuse(device, "keep: %u tokens come, of whom %u are weighed", seq->count,
                      seq->stride);
    if ((uint64_t)seq->sinks + seq->recent > slots)
        return refuse(device, "keep: %u slots cannot hold %u sinks and %u recent tokens", slots,
                      seq->sinks, seq->recent);
    if (args->score != KVA_KEEP_MASS && (!seq->error || !seq->store.error))
        return refuse(device, "keep: a score by mass and error, and no errors");
    return true;
}

static bool check_keep(struct kva_device *device, const struct kva_keep_args *args)
{
    size_t need = 0;
    if ((unsigned)args->score > KVA_KEEP_RANK)
        return refuse(device, "keep: there is no score %d", (int)args->score);
    if (!(args->lambda >= 0.0f && args->lambda <= 1.0f))
        return refuse(device, "keep: a lambda of %g, must be 0 to 1", (double)args->lambda);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (!check_keep_seq(device, args, &args->seqs[i]))
            return false;
        need += kva_keep_scratch_bytes(args->kv_heads, args->seqs[i].filled, args->seqs[i].count);
    }
    if (need > args->scratch_bytes)
        return refuse(device, "keep: needs %zu bytes, has %zu", need, args->scratch_bytes);
    return true;
}

static bool check_use_rows(struct kva_device *device, const struct kva_use_rows_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_use_seq *seq = &args->seqs[i];
        if (seq->filled > seq->slots)
            return refuse(device, "use_rows: %u of %u slots are filled", seq->filled, seq->slots);
        if ((unsigned)seq->rule > KVA_USE_STAMP)
            return refuse(device, "use_rows: there is no rule %d", (int)seq->rule);
    }
    return true;
}

static bool check_store_rows(struct kva_device *device, const struct kva_store_rows_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].count > 0 && args->seqs[i].slot_count == 0)
            return refuse(device, "store_rows: %u tokens come to a store without slots",
                          args->seqs[i].count);
    }
    return check_store_format(device, "store_rows", args->format, args->head_dim, args->kv_dtype) &&
           check_keep_rotary(device, "store_rows", args->rotary, args->head_dim);
}

static bool check_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    if (!args->rotary.inv_freq)
        return refuse(device, "roll_rows: no frequencies to rotate by");
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].filled > args->seqs[i].slots)
            return refuse(device, "roll_rows: %u of %u slots are filled", args->seqs[i].filled,
                          args->seqs[i].slots);
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
    return refuse(device, "%s: %u columns, must be 1 to head_dim %u", op, columns, head_dim);
}

static bool check_sketch_format(struct kva_device *device, const char *op,
                                struct kva_sketch_format format, uint32_t head_dim,
                                enum kva_dtype kv_dtype)
{
    if (!check_head_dim(device, op, head_dim) || !check_kv_dtype(device, op, kv_dtype) ||
        !check_columns(device, op, format.columns, head_dim))
        return false;
    if (format.bits == 8 || format.bits == 16)
        return true;
    return refuse(device, "%s: %u bits, must be 8 or 16", op, format.bits);
}

static bool check_sketch(struct kva_device *device, const struct kva_sketch_args *args)
{
    return check_sketch_format(device, "sketch", args->format, args->head_dim, args->kv_dtype);
}

static bool check_sketch_queries(struct kva_device *device,
                                 const struct kva_sketch_queries_args *args)
{
    return check_head_dim(device, "sketch_queries", args->head_dim) &&
           check_heads(device, "sketch_queries", args->heads, args->kv_heads) &&
           check_columns(device, "sketch_queries", args->columns, args->head_dim);
}

static bool check_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    const uint32_t most = limits_of(device)->select_heads_max;
    if (!check_heads(device, "sketch_weigh", args->heads, args->kv_heads) ||
        !check_sketch_format(device, "sketch_weigh", args->format, args->head_dim, args->kv_dtype))
        return false;
    if (args->heads / args->kv_heads > most)
        return refuse(device, "sketch_weigh: %u heads share a KV head, at most %u",
                      args->heads / args->kv_heads, most);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_sketch_seq *seq = &args->seqs[i];
        if (seq->page_count > 0 && (!seq->scratch || !seq->weights))
            return refuse(device, "sketch_weigh: %u pages, and nowhere to weigh them",
                          seq->page_count);
    }
    return true;
}

/* --- logits ----------------------------------------------------------------------------------- */

static bool check_shortlist(struct kva_device *device, const struct kva_shortlist_args *args)
{
    for (uint32_t i = 0; i < args->count; i++) {
        const struct kva_shortlist_request *request = &args->requests[i];
        if (request->k == 0 || request->k > KVA_SHORTLIST_MAX)
            return refuse(device, "shortlist: %u tokens are to be listed, must be 1 to %u",
                          request->k, KVA_SHORTLIST_MAX);
        if (request->tracked_count > args->tracked_count ||
            request->tracked_first > args->tracked_count - request->tracked_count)
            return refuse(device, "shortlist: tracked tokens %u to %u, there are %u",
                          request->tracked_first, request->tracked_first + request->tracked_count,
                          args->tracked_count);
        if (request->rank && request->tracked_count == 0)
            return refuse(device, "shortlist: the rank of a tracked token, and none is tracked");
    }
    return true;
}

/* --- the table -------------------------------------------------------------------------------- */

#define CHECKED(name)                                                                              \
    static void checked_##name(struct kva_device *device, const struct kva_##name##_args *args)    \
    {                                                                                              \
        if (check_##name(device, args))                                                            \
            base_of(device)->ops->name(device, args);                                              \
    }

CHECKED(embed)
CHECKED(norm)
CHECKED(linear)
CHECKED(rope)
CHECKED(glu)
CHECKED(gather)
CHECKED(sum_rows)
CHECKED(kv_append)
CHECKED(quantise)
CHECKED(attend)
CHECKED(attend_lowbit)
CHECKED(attend_rows)
CHECKED(merge)
CHECKED(attend_select_fetch)
CHECKED(weigh)
CHECKED(choose)
CHECKED(accumulate)
CHECKED(assign_slots)
CHECKED(fetch_rows)
CHECKED(query_cosine)
CHECKED(shortlist)
CHECKED(attend_mass)
CHECKED(row_error)
CHECKED(keep)
CHECKED(use_rows)
CHECKED(store_rows)
CHECKED(roll_rows)
CHECKED(sketch)
CHECKED(sketch_queries)
CHECKED(sketch_weigh)

#define TABLE(fused)                                                                               \
    {                                                                                              \
        .embed = checked_embed, .norm = checked_norm, .linear = checked_linear,                    \
        .rope = checked_rope, .glu = checked_glu, .gather = checked_gather,                        \
        .sum_rows = checked_sum_rows, .kv_append = checked_kv_append,                              \
        .quantise = checked_quantise, .attend = checked_attend,                                    \
        .attend_lowbit = checked_attend_lowbit, .attend_rows = checked_attend_rows,                \
        .merge = checked_merge, .attend_select_fetch = fused, .weigh = checked_weigh,              \
        .choose = checked_choose, .accumulate = checked_accumulate,                                \
        .assign_slots = checked_assign_slots, .fetch_rows = checked_fetch_rows,                    \
        .query_cosine = checked_query_cosine, .shortlist = checked_shortlist,                      \
        .attend_mass = checked_attend_mass, .row_error = checked_row_error, .keep = checked_keep,  \
        .use_rows = checked_use_rows, .store_rows = checked_store_rows,                            \
        .roll_rows = checked_roll_rows, .sketch = checked_sketch,                                  \
        .sketch_queries = checked_sketch_queries, .sketch_weigh = checked_sketch_weigh,            \
    }

static const struct kva_ops with_fused = TABLE(checked_attend_select_fetch);
static const struct kva_ops without_fused = TABLE(NULL);

const struct kva_ops *kva_checked_ops(const struct kva_device *device)
{
    return base_of(device)->ops->attend_select_fetch ? &with_fused : &without_fused;
}
