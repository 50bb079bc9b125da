/* check.c - the checks in front of the operators. Every operator has one function, here or in
 * check_keep.c, so that a new one cannot be reached without somebody having thought of its
 * arguments. */
#include "kernels/check.h"

#include "kernels/check_internal.h"

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
    enum kva_dtype act = kva_check_base(device)->info.act;
    if (kva_check_limits(device)->weights_as_act && args->weight.dtype != act &&
        !kva_dtype_is_packed(args->weight.dtype))
        return kva_check_refuse(device, "linear: a %s matrix with %s activations",
                                kva_dtype_name(args->weight.dtype), kva_dtype_name(act));
    return true;
}

static bool check_linear_group(struct kva_device *device, const struct kva_linear_group_args *args)
{
    const struct kva_linear_args *first = args->products;
    if (args->count == 0 || args->count > KVA_LINEAR_GROUP_MAX)
        return kva_check_refuse(device, "linear_group: %u products (1 to %u)", args->count,
                                KVA_LINEAR_GROUP_MAX);
    for (uint32_t i = 0; i < args->count; i++) {
        const struct kva_linear_args *product = &first[i];
        if (product->x != first->x || product->x_stride != first->x_stride ||
            product->rows != first->rows || product->weight.cols != first->weight.cols)
            return kva_check_refuse(device, "linear_group: product %u is of other rows", i);
        if (!check_linear(device, product))
            return false;
    }
    return true;
}

/* A product whose rows are the MLP's. */
static bool is_dense(const struct kva_linear_args *args)
{
    return args->out_stride == args->weight.rows && !args->accumulate && !args->out_f32;
}

static bool check_linear_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    const struct kva_linear_args products[] = {args->gate, args->up};
    if (!is_dense(&args->gate) || !is_dense(&args->up) ||
        args->gate.weight.rows != args->up.weight.rows)
        return kva_check_refuse(device,
                                "linear_glu: gate and up are not dense rows of as many outputs");
    return check_linear_group(device,
                              &(struct kva_linear_group_args){products, KVA_COUNT_OF(products)});
}

static bool check_rope(struct kva_device *device, const struct kva_rope_args *args)
{
    uint32_t most = kva_check_limits(device)->rotary_dim_max;
    if (args->rotary_dim <= args->head_dim && args->rotary_dim <= most)
        return true;
    return kva_check_refuse(device, "rope: rotary_dim %u with head_dim %u (at most %u)",
                            args->rotary_dim, args->head_dim, most);
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
    return kva_check_kv_dtype(device, "kv_append", args->kv_dtype);
}

static bool check_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (!kva_check_head_dim(device, "attend", args->head_dim) ||
        !kva_check_heads(device, "attend", args->heads, args->kv_heads) ||
        !kva_check_kv_dtype(device, "attend", args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_attend_range *ranges = args->ranges + args->seqs[i].range_first;
        if (!kva_check_scores(device, "attend", &args->seqs[i].scores, args->seqs[i].row_count,
                              ranges, args->seqs[i].range_count))
            return false;
        for (uint32_t j = 0; j < args->seqs[i].range_count; j++) {
            if (ranges[j].format != KVA_KV_16BIT)
                return kva_check_refuse(device, "attend: no kernel for KV format %d",
                                        (int)ranges[j].format);
        }
    }
    return true;
}

static bool check_apart(struct kva_device *device, const char *op,
                        const struct kva_attend_apart_args *args)
{
    if (!args->attend.accumulate)
        return kva_check_refuse(device, "%s: there must be a result to go on from", op);
    if ((uintptr_t)args->memory % KVA_CACHE_LINE)
        return kva_check_refuse(device, "%s: the memory for splits begins %u bytes into a line", op,
                                (unsigned)((uintptr_t)args->memory % KVA_CACHE_LINE));
    return check_attend(device, &args->attend);
}

static bool check_attend_apart(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    return check_apart(device, "attend_apart", args);
}

static bool check_attend_join(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    return check_apart(device, "attend_join", args);
}

/* Where rows of 16 bits meet those of few, which are not turned then. */
static bool check_plain(struct kva_device *device, const char *op, struct kva_lowbit_format format)
{
    return format.coding == KVA_CODING_PLAIN ||
           kva_check_refuse(device, "%s: rows that are turned come by store_rows, and attend alone",
                            op);
}

static bool check_quantise(struct kva_device *device, const struct kva_quantise_args *args)
{
    return check_plain(device, "quantise", args->format) &&
           kva_check_lowbit(device, "quantise", args->format, args->head_dim) &&
           kva_check_kv_dtype(device, "quantise", args->kv_dtype);
}

static bool check_attend_lowbit(struct kva_device *device,
                                const struct kva_attend_lowbit_args *args)
{
    uint32_t group_max = kva_check_limits(device)->select_heads_max;
    bool scores = false, peaks = false;
    if (!kva_check_heads(device, "attend_lowbit", args->heads, args->kv_heads) ||
        !kva_check_lowbit(device, "attend_lowbit", args->format, args->head_dim))
        return false;
    if (args->behind && args->format.coding == KVA_CODING_TURNED)
        return kva_check_refuse(device, "attend_lowbit: nothing can be folded behind turned codes");
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_lowbit_seq *seq = &args->seqs[i];
        if (seq->rows && !kva_check_slots(device, "attend_lowbit", seq->rows))
            return false;
        scores |= seq->scores != NULL;
        peaks |= seq->peaks != NULL;
        if (peaks && (scores || !kva_device_ops(device)->weigh_choose))
            return kva_check_refuse(device,
                                    "attend_lowbit: a call keeps scores, or peaks on a device "
                                    "that chooses by them");
        if ((seq->scores || seq->peaks) && args->heads / args->kv_heads > group_max)
            return kva_check_refuse(
                device, "attend_lowbit: %u heads share a KV head, at most %u may select",
                args->heads / args->kv_heads, group_max);
    }
    return true;
}

static bool check_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *args)
{
    if (!kva_check_heads(device, "attend_rows", args->heads, args->kv_heads) ||
        !kva_check_head_dim_of_rows(device, "attend_rows", args->head_dim) ||
        !kva_check_kv_dtype(device, "attend_rows", args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].rows && !kva_check_slots(device, "attend_rows", args->seqs[i].rows))
            return false;
    }
    return true;
}

#define SELECT "attend_select_fetch"

/* What a token brings the one behind it, of a choice. */
static bool check_successor(struct kva_device *device, const char *op, float successor)
{
    return (successor >= 0.0f && successor <= 1.0f) ||
           kva_check_refuse(device, "%s: a successor's share of %g, must be 0 to 1", op,
                            (double)successor);
}

/* A row of the sequence chooses. */
static bool check_selection(struct kva_device *device,
                            const struct kva_attend_select_fetch_args *args,
                            const struct kva_select_seq *seq)
{
    const struct kva_op_limits *limits = kva_check_limits(device);
    uint32_t group = args->heads / args->kv_heads;
    size_t need = seq->now ? kva_attend_fused_bytes(args->heads, args->head_dim, seq->page_count)
                           : kva_attend_select_bytes(args->heads, args->kv_heads, seq->page_count);
    if (need > args->scratch_bytes)
        return kva_check_refuse(device, SELECT ": selection over %u pages needs %zu bytes, has %zu",
                                seq->page_count, need, args->scratch_bytes);
    if (group > limits->select_heads_max)
        return kva_check_refuse(device, SELECT ": %u heads share a KV head, at most %u may select",
                                group, limits->select_heads_max);
    if (seq->rows->k > limits->select_max)
        return kva_check_refuse(device, SELECT ": %u rows to choose, at most %u", seq->rows->k,
                                limits->select_max);
    return check_successor(device, SELECT, seq->rows->successor);
}

static bool check_select_seq(struct kva_device *device,
                             const struct kva_attend_select_fetch_args *args,
                             const struct kva_select_seq *seq)
{
    bool selects = seq->rows && seq->select_row < seq->row_count;
    if (seq->rows && !kva_check_slots(device, SELECT, seq->rows))
        return false;
    if (seq->now && (!selects || seq->row_count != 1))
        return kva_check_refuse(device, SELECT ": a choice that is acted upon at once is that of a "
                                               "sequence's only row");
    return !selects || check_selection(device, args, seq);
}

static bool check_attend_select_fetch(struct kva_device *device,
                                      const struct kva_attend_select_fetch_args *args)
{
    if (!kva_check_heads(device, SELECT, args->heads, args->kv_heads) ||
        !check_plain(device, SELECT, args->format) ||
        !kva_check_lowbit(device, SELECT, args->format, args->head_dim) ||
        !kva_check_kv_dtype(device, SELECT, args->kv_dtype))
        return false;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (!check_select_seq(device, args, &args->seqs[i]))
            return false;
    }
    return true;
}

static bool check_merge(struct kva_device *device, const struct kva_merge_args *args)
{
    uint32_t most = kva_check_limits(device)->partials_max;
    if (args->partial_count <= most)
        return true;
    return kva_check_refuse(device, "merge: %u partial results (at most %u)", args->partial_count,
                            most);
}

/* --- rows that are fetched -------------------------------------------------------------------- */

/* Operators run by the side of the compute queue's at most. */
static bool check_queue(struct kva_device *device, const char *op, enum kva_queue queue)
{
    return queue == KVA_QUEUE_COMPUTE || queue == KVA_QUEUE_ASIDE ||
           kva_check_refuse(device, "%s: does not run on queue %d", op, (int)queue);
}

static bool check_weighing(struct kva_device *device, const char *op,
                           const struct kva_weigh_args *args)
{
    const struct kva_op_limits *limits = kva_check_limits(device);
    if (!check_queue(device, op, args->queue) ||
        !kva_check_heads(device, op, args->heads, args->kv_heads) ||
        !kva_check_head_dim_of_rows(device, op, args->head_dim) ||
        !kva_check_kv_dtype(device, op, args->kv_dtype))
        return false;
    if (args->heads / args->kv_heads > limits->select_heads_max)
        return kva_check_refuse(device, "%s: %u heads share a KV head, at most %u", op,
                                args->heads / args->kv_heads, limits->select_heads_max);
    if (args->partial_count == 0 || args->partial_count > limits->partials_max)
        return kva_check_refuse(device, "%s: %u partial results, must be 1 to %u", op,
                                args->partial_count, limits->partials_max);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_weigh_seq *seq = &args->seqs[i];
        if (seq->rows && !kva_check_slots(device, op, seq->rows))
            return false;
        if (seq->page_count > 0 && !seq->weights)
            return kva_check_refuse(device, "%s: nowhere to weigh %u pages", op, seq->page_count);
        if (((uintptr_t)seq->scores | (uintptr_t)seq->weights) % 16 != 0)
            return kva_check_refuse(device, "%s: scores or weights not at a multiple of 16", op);
    }
    return true;
}

static bool check_choosing(struct kva_device *device, const char *op,
                           const struct kva_choose_args *args)
{
    if (!check_queue(device, op, args->queue))
        return false;
    if ((unsigned)args->kind > KVA_CHOOSE_LEAST)
        return kva_check_refuse(device, "%s: there is no kind %d", op, (int)args->kind);
    if (args->kind == KVA_CHOOSE_NEAR && !(args->share >= 0.0f && args->share <= 1.0f))
        return kva_check_refuse(device, "%s: a share of %g, must be 0 to 1", op,
                                (double)args->share);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_choose_seq *seq = &args->seqs[i];
        if (seq->end > seq->stride)
            return kva_check_refuse(device, "%s: candidates up to %u of %u", op, seq->end,
                                    seq->stride);
        if (!check_successor(device, op, seq->successor))
            return false;
        if (seq->k > kva_check_limits(device)->select_max)
            return kva_check_refuse(device, "%s: %u rows to choose, at most %u", op, seq->k,
                                    kva_check_limits(device)->select_max);
    }
    return true;
}

static bool check_weigh(struct kva_device *device, const struct kva_weigh_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].page_count > 0 && !args->seqs[i].scores)
            return kva_check_refuse(device, "weigh: %u pages without scores",
                                    args->seqs[i].page_count);
    }
    return check_weighing(device, "weigh", args);
}

static bool check_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    return check_choosing(device, "choose", args);
}

/* All that is weighed is chosen from, and nothing else. */
static bool check_weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    const char *op = "weigh_choose";
    const struct kva_weigh_args *weigh = &args->weigh;
    const struct kva_choose_args *choose = &args->choose;
    if (!check_weighing(device, op, weigh) || !check_choosing(device, op, choose))
        return false;
    if (weigh->seq_count != choose->seq_count || weigh->kv_heads != choose->kv_heads ||
        weigh->queue != choose->queue)
        return kva_check_refuse(device,
                                "%s: %u sequences of %u KV heads on queue %d, and %u of %u on %d",
                                op, weigh->seq_count, weigh->kv_heads, (int)weigh->queue,
                                choose->seq_count, choose->kv_heads, (int)choose->queue);
    for (uint32_t i = 0; i < weigh->seq_count; i++) {
        const uint32_t tokens = weigh->seqs[i].page_count * KVA_PAGE_TOKENS;
        if (choose->seqs[i].weights != weigh->seqs[i].weights || choose->seqs[i].stride != tokens ||
            choose->seqs[i].gate != weigh->seqs[i].gate)
            return kva_check_refuse(device, "%s: sequence %u chooses by other weights", op, i);
        if (args->low[i].page_count != weigh->seqs[i].page_count || (tokens && !args->low[i].peaks))
            return kva_check_refuse(device, "%s: sequence %u has no peaks of its %u pages", op, i,
                                    weigh->seqs[i].page_count);
    }
    if (choose->kind != KVA_CHOOSE_MOST)
        return kva_check_refuse(device, "%s: chooses the largest weights, not by kind %d", op,
                                (int)choose->kind);
    if (args->format.keys != KVA_KEYS_PER_CHANNEL)
        return kva_check_refuse(device, "%s: wants keys with levels of channels", op);
    return kva_check_lowbit(device, op, args->format, weigh->head_dim);
}

static bool check_accumulate(struct kva_device *device, const struct kva_accumulate_args *args)
{
    (void)device;
    (void)args;
    return true;
}

static bool check_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *args)
{
    if (!check_queue(device, "assign_slots", args->queue))
        return false;
    if (args->stamp == 0)
        return kva_check_refuse(device, "assign_slots: the stamp must be greater than 0");
    for (uint32_t i = 0; i < args->count; i++) {
        if (!kva_check_slots(device, "assign_slots", args->caches[i]))
            return false;
    }
    return true;
}

static bool check_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *args)
{
    if (args->head_dim % 4 != 0 || args->page_offset_bytes % 16 != 0)
        return kva_check_refuse(
            device, "fetch_rows: rows of head_dim %u at offset %zu are not aligned to 16",
            args->head_dim, args->page_offset_bytes);
    if ((unsigned)args->queue >= KVA_QUEUE_COUNT)
        return kva_check_refuse(device, "fetch_rows: there is no queue %d", (int)args->queue);
    return true;
}

static bool check_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    (void)device;
    (void)args;
    return true;
}

/* --- logits ----------------------------------------------------------------------------------- */

static bool check_shortlist(struct kva_device *device, const struct kva_shortlist_args *args)
{
    for (uint32_t i = 0; i < args->count; i++) {
        const struct kva_shortlist_request *request = &args->requests[i];
        if (request->k == 0 || request->k > KVA_SHORTLIST_MAX)
            return kva_check_refuse(device,
                                    "shortlist: %u tokens are to be listed, must be 1 to %u",
                                    request->k, KVA_SHORTLIST_MAX);
        if (request->tracked_count > args->tracked_count ||
            request->tracked_first > args->tracked_count - request->tracked_count)
            return kva_check_refuse(
                device, "shortlist: tracked tokens %u to %u, there are %u", request->tracked_first,
                request->tracked_first + request->tracked_count, args->tracked_count);
        if (request->rank && request->tracked_count == 0)
            return kva_check_refuse(device,
                                    "shortlist: the rank of a tracked token, and none is tracked");
    }
    return true;
}

/* --- the table -------------------------------------------------------------------------------- */

#define CHECKED_AS(name, type, check)                                                              \
    static void checked_##name(struct kva_device *device, const struct type *args)                 \
    {                                                                                              \
        if (check(device, args))                                                                   \
            kva_check_base(device)->ops->name(device, args);                                       \
    }

#define CHECKED_BY(name, check) CHECKED_AS(name, kva_##name##_args, check)
#define CHECKED(name)           CHECKED_BY(name, check_##name)

CHECKED(embed)
CHECKED(norm)
CHECKED(linear)
CHECKED(linear_group)
CHECKED(linear_glu)
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
CHECKED(attend_apart)
CHECKED_AS(attend_join, kva_attend_apart_args, check_attend_join)
CHECKED(weigh)
CHECKED(choose)
CHECKED(weigh_choose)
CHECKED(accumulate)
CHECKED(assign_slots)
CHECKED(fetch_rows)
CHECKED(query_cosine)
CHECKED(shortlist)
CHECKED_BY(attend_mass, kva_check_attend_mass)
CHECKED_BY(mean_keys, kva_check_mean_keys)
CHECKED_BY(row_error, kva_check_row_error)
CHECKED_BY(keep, kva_check_keep)
CHECKED_BY(use_rows, kva_check_use_rows)
CHECKED_BY(store_rows, kva_check_store_rows)
CHECKED_BY(roll_rows, kva_check_roll_rows)
CHECKED_BY(sketch, kva_check_sketch)
CHECKED_BY(sketch_queries, kva_check_sketch_queries)
CHECKED_BY(sketch_sums, kva_check_sketch_sums)
CHECKED_BY(sketch_weigh, kva_check_sketch_weigh)

#define TABLE(fused, apart, join, once)                                                            \
    {                                                                                              \
        .embed = checked_embed, .norm = checked_norm, .linear = checked_linear,                    \
        .linear_group = checked_linear_group, .linear_glu = checked_linear_glu,                    \
        .rope = checked_rope, .glu = checked_glu, .gather = checked_gather,                        \
        .sum_rows = checked_sum_rows, .kv_append = checked_kv_append,                              \
        .quantise = checked_quantise, .attend = checked_attend,                                    \
        .attend_lowbit = checked_attend_lowbit, .attend_rows = checked_attend_rows,                \
        .merge = checked_merge, .attend_select_fetch = fused, .weigh = checked_weigh,              \
        .choose = checked_choose, .weigh_choose = once, .accumulate = checked_accumulate,          \
        .assign_slots = checked_assign_slots, .fetch_rows = checked_fetch_rows,                    \
        .query_cosine = checked_query_cosine, .shortlist = checked_shortlist,                      \
        .attend_mass = checked_attend_mass, .mean_keys = checked_mean_keys,                        \
        .row_error = checked_row_error, .keep = checked_keep, .use_rows = checked_use_rows,        \
        .store_rows = checked_store_rows, .roll_rows = checked_roll_rows,                          \
        .sketch = checked_sketch, .sketch_queries = checked_sketch_queries,                        \
        .sketch_sums = checked_sketch_sums, .sketch_weigh = checked_sketch_weigh,                  \
        .attend_apart = apart, .attend_join = join,                                                \
    }

#define TABLES(apart, join, once)                                                                  \
    {                                                                                              \
        TABLE(NULL, apart, join, once), TABLE(checked_attend_select_fetch, apart, join, once)      \
    }

/* By whether a device has weigh_choose, attend_apart and attend_join, and attend_select_fetch. */
static const struct kva_ops tables[2][2][2] = {
    {
        TABLES(NULL, NULL, NULL),
        TABLES(checked_attend_apart, checked_attend_join, NULL),
    },
    {
        TABLES(NULL, NULL, checked_weigh_choose),
        TABLES(checked_attend_apart, checked_attend_join, checked_weigh_choose),
    },
};

const struct kva_ops *kva_checked_ops(const struct kva_device *device)
{
    const struct kva_ops *ops = kva_check_base(device)->ops;
    const bool apart = ops->attend_apart && ops->attend_join;
    return &tables[ops->weigh_choose != NULL][apart][ops->attend_select_fetch != NULL];
}
