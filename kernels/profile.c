/* profile.c - the operator table that counts calls, time, bytes and arithmetic, and hands every
 * call on. */
#include "kernels/profile.h"

#include "base/clock.h"
#include "kernels/backend.h"
#include "kernels/packed.h"

const char *kva_profile_kind_name(enum kva_profile_kind kind)
{
    static const char *const names[KVA_PROFILE_COUNT] = {
        [KVA_PROFILE_LINEAR] = "linear",
        [KVA_PROFILE_ATTEND] = "attend",
        [KVA_PROFILE_KV] = "kv",
        [KVA_PROFILE_ROWS] = "rows",
    };
    return names[kind];
}

static struct kva_profile *profile_of(struct kva_device *device)
{
    return ((struct kva_device_base *)device)->profile;
}

static void count_in(struct kva_profile *profile, struct kva_device *device, enum kva_queue queue,
                     enum kva_profile_kind kind, uint64_t start_ns)
{
    if (profile->wait)
        kva_device_sync(device, queue);
    profile->counts.calls[kind]++;
    profile->counts.ns[kind] += profile->now_ns() - start_ns;
}

static void count(struct kva_profile *profile, struct kva_device *device,
                  enum kva_profile_kind kind, uint64_t start_ns)
{
    count_in(profile, device, KVA_QUEUE_COMPUTE, kind, start_ns);
}

/* Of the tokens [first, end), how many a row at `position` sees. */
static uint64_t visible(uint32_t first, uint32_t end, uint32_t position, uint32_t window)
{
    uint32_t from = window && position + 1 > window ? position + 1 - window : 0;
    uint32_t to = kva_min_u32(position + 1, end);
    from = kva_max_u32(from, first);
    return to > from ? to - from : 0;
}

/* --- what the calls read and compute --------------------------------------------------------- */

static void count_linear(struct kva_profile_counts *counts, const struct kva_linear_args *args)
{
    counts->weight_bytes += kva_weight_bytes(&args->weight) + kva_weight_bytes(&args->bias);
    counts->flops += 2ull * args->rows * args->weight.rows * args->weight.cols;
}

static void count_attend(struct kva_profile_counts *counts, const struct kva_attend_args *args)
{
    uint64_t token_bytes = (uint64_t)args->kv_heads * args->head_dim * 2 * 2;
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_attend_seq *seq = &args->seqs[i];
        uint32_t last = seq->position_first + seq->row_count - 1;
        for (uint32_t j = 0; j < seq->range_count; j++) {
            const struct kva_attend_range *range = &args->ranges[seq->range_first + j];
            uint32_t end = range->token_first + range->token_count;
            /* The last row sees the newest tokens, the first one the oldest. */
            uint32_t window = args->window ? args->window + seq->row_count - 1 : 0;
            counts->kv_bytes += visible(range->token_first, end, last, window) * token_bytes;
            for (uint32_t position = seq->position_first; position <= last; position++)
                pairs += visible(range->token_first, end, position, args->window);
        }
    }
    counts->flops += 4ull * args->heads * args->head_dim * pairs;
}

/* Rows that attend: what assign_slots left where the host can read it, else what it must leave. */
static uint64_t cached_rows(const struct kva_row_cache *cache, uint32_t kv_heads, bool readable)
{
    uint64_t rows = 0;
    for (uint32_t head = 0; cache && head < kv_heads; head++)
        rows += readable ? cache->count[head] : cache->pinned + cache->k;
    return rows;
}

/* Rows are counted with the pages that they replace tokens of: by bytes alone. */
static void count_rows(struct kva_profile_counts *counts, struct kva_device *device,
                       const struct kva_row_cache *cache, uint32_t kv_heads, uint32_t head_dim)
{
    bool readable = kva_device_get_info(device)->host_readable;
    counts->kv_bytes += cached_rows(cache, kv_heads, readable) * head_dim * 2 * 2;
}

static void count_pages(struct kva_profile_counts *counts, struct kva_lowbit_format format,
                        uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t row_count,
                        uint32_t page_count)
{
    uint64_t tokens = (uint64_t)page_count * KVA_PAGE_TOKENS;
    counts->kv_bytes += page_count * kva_lowbit_block_bytes(format, kv_heads, head_dim);
    counts->flops += 4ull * heads * head_dim * row_count * tokens;
}

/* --- the table ------------------------------------------------------------------------------- */

/* An operator of which calls and time are counted, and nothing else; in that queue. */
#define PLAIN_IN(name, args_type, kind, queue)                                                     \
    static void profiled_##name(struct kva_device *device, const struct args_type *args)           \
    {                                                                                              \
        struct kva_profile *profile = profile_of(device);                                          \
        uint64_t start_ns = profile->now_ns();                                                     \
        profile->inner->name(device, args);                                                        \
        count_in(profile, device, queue, kind, start_ns);                                          \
    }
#define PLAIN(name, args_type, kind) PLAIN_IN(name, args_type, kind, KVA_QUEUE_COMPUTE)

PLAIN(rope, kva_rope_args, KVA_PROFILE_ROWS)
PLAIN(glu, kva_glu_args, KVA_PROFILE_ROWS)
PLAIN(gather, kva_gather_args, KVA_PROFILE_ROWS)
PLAIN(sum_rows, kva_sum_rows_args, KVA_PROFILE_ROWS)
PLAIN(shortlist, kva_shortlist_args, KVA_PROFILE_ROWS)
PLAIN(kv_append, kva_kv_append_args, KVA_PROFILE_KV)
PLAIN(quantise, kva_quantise_args, KVA_PROFILE_KV)
PLAIN_IN(weigh, kva_weigh_args, KVA_PROFILE_KV, args->queue)
PLAIN_IN(choose, kva_choose_args, KVA_PROFILE_KV, args->queue)
PLAIN_IN(weigh_choose, kva_weigh_choose_args, KVA_PROFILE_KV, args->choose.queue)
PLAIN(accumulate, kva_accumulate_args, KVA_PROFILE_KV)
PLAIN_IN(assign_slots, kva_assign_slots_args, KVA_PROFILE_KV, args->queue)
PLAIN(query_cosine, kva_query_cosine_args, KVA_PROFILE_KV)
PLAIN(merge, kva_merge_args, KVA_PROFILE_ATTEND)
PLAIN(attend_mass, kva_attend_mass_args, KVA_PROFILE_ATTEND)
PLAIN(attend_join, kva_attend_apart_args, KVA_PROFILE_ATTEND)
PLAIN(mean_keys, kva_mean_keys_args, KVA_PROFILE_KV)
PLAIN(row_error, kva_row_error_args, KVA_PROFILE_KV)
PLAIN(keep, kva_keep_args, KVA_PROFILE_KV)
PLAIN(store_rows, kva_store_rows_args, KVA_PROFILE_KV)
PLAIN(use_rows, kva_use_rows_args, KVA_PROFILE_KV)
PLAIN(roll_rows, kva_roll_rows_args, KVA_PROFILE_KV)
PLAIN(sketch, kva_sketch_args, KVA_PROFILE_KV)
PLAIN(sketch_queries, kva_sketch_queries_args, KVA_PROFILE_KV)
PLAIN(sketch_sums, kva_sketch_sums_args, KVA_PROFILE_KV)

static void profiled_embed(struct kva_device *device, const struct kva_embed_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    uint64_t row_bytes = args->table.cols * kva_dtype_bytes(args->table.dtype);
    if (args->positions_table.data)
        row_bytes += args->positions_table.cols * kva_dtype_bytes(args->positions_table.dtype);
    profile->counts.weight_bytes += args->rows * row_bytes;
    profile->inner->embed(device, args);
    count(profile, device, KVA_PROFILE_ROWS, start_ns);
}

static void profiled_norm(struct kva_device *device, const struct kva_norm_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    profile->counts.weight_bytes += kva_weight_bytes(&args->weight) + kva_weight_bytes(&args->bias);
    profile->inner->norm(device, args);
    count(profile, device, KVA_PROFILE_ROWS, start_ns);
}

static void profiled_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    count_linear(&profile->counts, args);
    profile->inner->linear(device, args);
    count(profile, device, KVA_PROFILE_LINEAR, start_ns);
}

static void profiled_linear_group(struct kva_device *device,
                                  const struct kva_linear_group_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    for (uint32_t i = 0; i < args->count; i++)
        count_linear(&profile->counts, &args->products[i]);
    profile->inner->linear_group(device, args);
    count(profile, device, KVA_PROFILE_LINEAR, start_ns);
}

static void profiled_linear_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    count_linear(&profile->counts, &args->gate);
    count_linear(&profile->counts, &args->up);
    profile->inner->linear_glu(device, args);
    count(profile, device, KVA_PROFILE_LINEAR, start_ns);
}

static void profiled_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    count_attend(&profile->counts, args);
    profile->inner->attend(device, args);
    count(profile, device, KVA_PROFILE_ATTEND, start_ns);
}

/* The bytes and the arithmetic of both calls. */
static void profiled_attend_apart(struct kva_device *device,
                                  const struct kva_attend_apart_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    count_attend(&profile->counts, &args->attend);
    profile->inner->attend_apart(device, args);
    count(profile, device, KVA_PROFILE_ATTEND, start_ns);
}

static void profiled_attend_lowbit(struct kva_device *device,
                                   const struct kva_attend_lowbit_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    for (uint32_t i = 0; i < args->seq_count; i++)
        count_pages(&profile->counts, args->format, args->heads, args->kv_heads, args->head_dim,
                    args->seqs[i].row_count, args->seqs[i].page_count);
    profile->inner->attend_lowbit(device, args);
    count(profile, device, KVA_PROFILE_ATTEND, start_ns);
}

static void profiled_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    for (uint32_t i = 0; i < args->seq_count; i++)
        count_rows(&profile->counts, device, args->seqs[i].rows, args->kv_heads, args->head_dim);
    profile->inner->attend_rows(device, args);
    count(profile, device, KVA_PROFILE_ATTEND, start_ns);
}

static void profiled_sketch_weigh(struct kva_device *device,
                                  const struct kva_sketch_weigh_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    for (uint32_t i = 0; i < args->seq_count; i++) {
        uint64_t pages = args->seqs[i].page_count;
        profile->counts.kv_bytes += pages * kva_sketch_block_bytes(args->format, args->kv_heads);
        profile->counts.flops +=
            2ull * args->heads * args->format.columns * pages * KVA_PAGE_TOKENS;
    }
    profile->inner->sketch_weigh(device, args);
    count(profile, device, KVA_PROFILE_KV, start_ns);
}

static void profiled_attend_select_fetch(struct kva_device *device,
                                         const struct kva_attend_select_fetch_args *args)
{
    struct kva_profile *profile = profile_of(device);
    uint64_t start_ns = profile->now_ns();
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_select_seq *seq = &args->seqs[i];
        count_pages(&profile->counts, args->format, args->heads, args->kv_heads, args->head_dim,
                    seq->row_count, seq->page_count);
        count_rows(&profile->counts, device, seq->rows, args->kv_heads, args->head_dim);
    }
    profile->inner->attend_select_fetch(device, args);
    count(profile, device, KVA_PROFILE_ATTEND, start_ns);
}

void kva_profile_attach(struct kva_profile *profile, struct kva_device *device)
{
    struct kva_device_base *base = (struct kva_device_base *)device;
    *profile = (struct kva_profile){
        .now_ns = kva_time_ns,
        .inner = base->ops,
        .outer =
            {
                .embed = profiled_embed,
                .norm = profiled_norm,
                .linear = profiled_linear,
                .linear_group = profiled_linear_group,
                .linear_glu = profiled_linear_glu,
                .rope = profiled_rope,
                .glu = profiled_glu,
                .gather = profiled_gather,
                .sum_rows = profiled_sum_rows,
                .kv_append = profiled_kv_append,
                .quantise = profiled_quantise,
                .attend = profiled_attend,
                .attend_lowbit = profiled_attend_lowbit,
                .attend_rows = profiled_attend_rows,
                .merge = profiled_merge,
                .weigh = profiled_weigh,
                .choose = profiled_choose,
                .accumulate = profiled_accumulate,
                .assign_slots = profiled_assign_slots,
                .query_cosine = profiled_query_cosine,
                .shortlist = profiled_shortlist,
                .attend_mass = profiled_attend_mass,
                .mean_keys = profiled_mean_keys,
                .row_error = profiled_row_error,
                .keep = profiled_keep,
                .store_rows = profiled_store_rows,
                .use_rows = profiled_use_rows,
                .roll_rows = profiled_roll_rows,
                .sketch = profiled_sketch,
                .sketch_queries = profiled_sketch_queries,
                .sketch_sums = profiled_sketch_sums,
                .sketch_weigh = profiled_sketch_weigh,
                .fetch_rows = base->ops->fetch_rows, /* the copy queue's: nobody waits for it */
            },
    };
    if (base->ops->attend_select_fetch)
        profile->outer.attend_select_fetch = profiled_attend_select_fetch;
    if (base->ops->weigh_choose)
        profile->outer.weigh_choose = profiled_weigh_choose;
    if (base->ops->attend_apart && base->ops->attend_join) {
        profile->outer.attend_apart = profiled_attend_apart;
        profile->outer.attend_join = profiled_attend_join;
    }
    base->profile = profile;
    base->ops = &profile->outer;
}

void kva_profile_clear(struct kva_profile *profile)
{
    profile->counts = (struct kva_profile_counts){0};
}
