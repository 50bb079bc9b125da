/* mass.c - driver of attend_mass: the tokens of one split in one KV head are an item of work, with
 * all rows that see them, in order. So each number is added to by one thread, and the keys of a
 * split are prepared once for all rows. */
#include "kernels/cpu/device/device_cpu.h"
#include "kernels/cpu/simd/scalar.h"

#include <string.h>

/* A thread's scratch. */
struct scratch {
    const void *tokens[KVA_ATTEND_SPLIT_TOKENS];
    uint32_t slot_end[KVA_CPU_ATTEND_QUERIES];
    float m[KVA_CPU_ATTEND_QUERIES];
    float inverse[KVA_CPU_ATTEND_QUERIES];
    const float *scored[KVA_CPU_ATTEND_QUERIES];
    _Alignas(64) float mass[KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float scores[KVA_CPU_ATTEND_QUERIES * KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float q[KVA_CPU_ATTEND_QUERIES * KVA_CPU_HEAD_DIM_MAX];
    _Alignas(64) float k[KVA_CPU_MASS_K_FLOATS];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "attend_mass outgrew the scratch");

struct job {
    struct kva_device *device;
    const struct kva_attend_mass_args *args;
};

/* One split of one sequence in one KV head. */
struct item {
    const struct kva_attend_mass_args *args;
    const struct kva_mass_seq *seq;
    uint32_t kv_head;
    uint32_t base; /* position of slot 0 */
};

/* --- the cut ---------------------------------------------------------------------------------- */

/* Splits [*ret_first, *ret_end) hold all tokens that a row may see. */
static void seq_splits(const struct kva_attend_mass_args *args, const struct kva_mass_seq *seq,
                       uint32_t *ret_first, uint32_t *ret_end)
{
    *ret_first = *ret_end = 0;
    if (seq->range_count == 0 || seq->row_count == 0)
        return;
    const struct kva_attend_range *first = &args->ranges[seq->range_first];
    const struct kva_attend_range *last = first + seq->range_count - 1;
    const uint32_t end =
        kva_min_u32(last->token_first + last->token_count, seq->position_first + seq->row_count);
    if (first->token_first >= end)
        return;
    *ret_first = first->token_first / KVA_ATTEND_SPLIT_TOKENS;
    *ret_end = (uint32_t)kva_div_up(end, KVA_ATTEND_SPLIT_TOKENS);
}

static uint32_t items_of_seq(const struct kva_attend_mass_args *args,
                             const struct kva_mass_seq *seq)
{
    uint32_t first, end;
    seq_splits(args, seq, &first, &end);
    return (end - first) * args->kv_heads;
}

/* Later splits are seen by fewer rows: the long items come first. */
static struct item item_at(const struct kva_attend_mass_args *args, uint32_t index)
{
    const struct kva_mass_seq *seq = args->seqs;
    uint32_t first, end;
    for (uint32_t count; index >= (count = items_of_seq(args, seq)); seq++)
        index -= count;
    seq_splits(args, seq, &first, &end);
    return (struct item){args, seq, index % args->kv_heads,
                         (first + index / args->kv_heads) * KVA_ATTEND_SPLIT_TOKENS};
}

/* --- the tokens ------------------------------------------------------------------------------- */

/* Slots [*ret_first, *ret_end) of the item are of range `i` of its sequence. */
static void range_slots(const struct item *item, uint32_t i, uint32_t *ret_first, uint32_t *ret_end)
{
    const struct kva_attend_range *range = &item->args->ranges[item->seq->range_first + i];
    const uint32_t end = range->token_first + range->token_count, base = item->base;
    *ret_end = kva_min_u32(kva_max_u32(end, base) - base, KVA_ATTEND_SPLIT_TOKENS);
    *ret_first = kva_min_u32(kva_max_u32(range->token_first, base) - base, *ret_end);
}

/* The end of the slots that some range has. */
static uint32_t slots_of(const struct item *item)
{
    uint32_t slots = 0, first, end;
    for (uint32_t i = 0; i < item->seq->range_count; i++) {
        range_slots(item, i, &first, &end);
        slots = first < end ? end : slots;
    }
    return slots;
}

/* tokens[slot] = the K row of position base + slot; NULL where no range has it. */
static void find_tokens(const struct item *item, const void **tokens)
{
    const struct kva_attend_mass_args *args = item->args;
    const size_t token_bytes = (size_t)args->head_dim * 2 * sizeof(uint16_t);
    const size_t head_at =
        args->block_offset_bytes + (size_t)item->kv_head * KVA_PAGE_TOKENS * token_bytes;
    uint32_t slot, end;
    memset(tokens, 0, KVA_ATTEND_SPLIT_TOKENS * sizeof *tokens);
    for (uint32_t i = 0; i < item->seq->range_count; i++) {
        const struct kva_attend_range *range = &args->ranges[item->seq->range_first + i];
        for (range_slots(item, i, &slot, &end); slot < end; slot++) {
            const uint32_t position = item->base + slot;
            const uint32_t block = range->block_first + position / KVA_PAGE_TOKENS -
                                   range->token_first / KVA_PAGE_TOKENS;
            tokens[slot] = (const unsigned char *)args->blocks[block] + head_at +
                           position % KVA_PAGE_TOKENS * token_bytes;
        }
    }
}

static float *mass_of(const struct item *item, uint32_t slot)
{
    const struct kva_mass_seq *seq = item->seq;
    return seq->mass + (size_t)item->kv_head * seq->mass_stride +
           (item->base + slot - seq->mass_first);
}

/* The mass of the split: where it lies, if one range has all of it, or a copy. */
static float *load_mass(const struct item *item, struct scratch *scratch)
{
    uint32_t first, end;
    range_slots(item, 0, &first, &end);
    if (first == 0 && end == KVA_ATTEND_SPLIT_TOKENS)
        return mass_of(item, 0);
    memset(scratch->mass, 0, sizeof scratch->mass);
    for (uint32_t i = 0; i < item->seq->range_count; i++) {
        range_slots(item, i, &first, &end);
        memcpy(scratch->mass + first, mass_of(item, first), (end - first) * sizeof(float));
    }
    return scratch->mass;
}

static void store_mass(const struct item *item, const struct scratch *scratch, const float *mass)
{
    uint32_t first, end;
    for (uint32_t i = 0; i < item->seq->range_count && mass == scratch->mass; i++) {
        range_slots(item, i, &first, &end);
        memcpy(mass_of(item, first), scratch->mass + first, (end - first) * sizeof(float));
    }
}

/* --- the rows --------------------------------------------------------------------------------- */

/* A query of the tile as it is scored: scaled, or where attention has kept its scores. */
static void load_scored(const struct item *item, uint32_t row, uint32_t head, uint32_t j,
                        struct scratch *scratch)
{
    const struct kva_attend_mass_args *args = item->args;
    const struct kva_attend_scores *kept = &item->seq->scores;
    const float *q =
        (const float *)args->q + (size_t)row * args->q_stride + (size_t)head * args->head_dim;
    const size_t split = item->base / KVA_ATTEND_SPLIT_TOKENS - kept->split_first;
    for (uint32_t i = 0; !kept->data && i < args->head_dim; i++)
        scratch->q[(size_t)j * args->head_dim + i] = q[i] * args->scale;
    if (kept->data)
        scratch->scored[j] =
            kept->data + (head * (size_t)kept->split_count + split) * KVA_ATTEND_SPLIT_TOKENS;
}

/* A query of the tile, from a row and head of the call. False: it saw nothing at all. */
static bool load_query(const struct item *item, uint32_t row, uint32_t head, uint32_t j,
                       struct scratch *scratch)
{
    const struct kva_attend_mass_args *args = item->args;
    const size_t pair = (size_t)row * args->heads + head;
    float top = args->partials[0].m[pair], e = 0.0f;
    for (uint32_t i = 1; i < args->partial_count; i++)
        top = args->partials[i].m[pair] > top ? args->partials[i].m[pair] : top;
    for (uint32_t i = 0; i < args->partial_count; i++)
        e += args->partial_count == 1
                 ? args->partials[i].e[pair]
                 : args->partials[i].e[pair] * kva_scalar_exp(args->partials[i].m[pair] - top);
    if (!(e > 0.0f))
        return false;
    scratch->m[j] = top;
    scratch->inverse[j] = 1.0f / e;
    load_scored(item, row, head, j, scratch);
    return true;
}

/* What the queries of the tile give to the split, whose mass is at `mass`. */
static void add_tile(const struct job *job, const struct item *item, uint32_t q_count,
                     uint32_t slots, float *mass, struct scratch *scratch)
{
    const struct kva_cpu_mass_split split = {
        .tokens = scratch->tokens,
        .q = scratch->q,
        .m = scratch->m,
        .inverse = scratch->inverse,
        .slot_end = scratch->slot_end,
        .q_count = q_count,
        .slots = slots,
        .head_dim = item->args->head_dim,
        .kv_dtype = item->args->kv_dtype,
        .mass = mass,
        .scores = scratch->scores,
        .scored = item->seq->scores.data ? scratch->scored : NULL,
        .k = scratch->k,
    };
    if (q_count > 0)
        job->device->kernels.mass_split(&split);
}

static void mass_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct job *job = opaque;
    const struct kva_attend_mass_args *args = job->args;
    const struct item item = item_at(args, index);
    struct scratch *scratch = kva_cpu_scratch(job->device, worker);
    const uint32_t group = args->heads / args->kv_heads;
    const uint32_t slots = slots_of(&item);
    const struct kva_cpu_mass_split keys = {.tokens = scratch->tokens,
                                            .slots = slots,
                                            .head_dim = args->head_dim,
                                            .kv_dtype = args->kv_dtype,
                                            .k = scratch->k};
    uint32_t q_count = 0;
    if (slots == 0)
        return;
    float *mass = load_mass(&item, scratch);
    if (!item.seq->scores.data) {
        find_tokens(&item, scratch->tokens);
        job->device->kernels.mass_keys(&keys);
    }
    for (uint32_t i = 0; i < item.seq->row_count; i++) {
        const uint32_t position = item.seq->position_first + i;
        if (position < item.base)
            continue;
        for (uint32_t h = 0; h < group; h++) {
            if (q_count == KVA_CPU_ATTEND_QUERIES) {
                add_tile(job, &item, q_count, slots, mass, scratch);
                q_count = 0;
            }
            scratch->slot_end[q_count] = kva_min_u32(position - item.base + 1, slots);
            q_count += load_query(&item, item.seq->row_first + i, item.kv_head * group + h, q_count,
                                  scratch);
        }
    }
    add_tile(job, &item, q_count, slots, mass, scratch);
    store_mass(&item, scratch, mass);
}

void kva_cpu_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    struct job job = {device, args};
    size_t items = 0;
    if (kva_cpu_failed(device))
        return;
    for (uint32_t i = 0; i < args->seq_count; i++)
        items += items_of_seq(args, &args->seqs[i]);
    if (items > UINT32_MAX)
        kva_cpu_fail(device, "attend_mass: %zu work items in one call", items);
    else
        kva_pool_run(device->pool, (uint32_t)items, mass_item, &job);
}
