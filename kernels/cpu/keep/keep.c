/* keep.c - keep: a KV head of a sequence is an item of work; and use_rows.
 *
 * Entries are numbers whose order is the order wanted: the score's bits, turned so that they
 * compare as whole numbers, then the complement of the position, where ties go to the lower one.
 * What is kept outright is above all scores. */
#include "kernels/convert.h"
#include "kernels/cpu/device/device_cpu.h"
#include "kernels/cpu/select/order.h"

#include <math.h>
#include <string.h>

/* One KV head: the slots' entries, then those that come. */
struct entries {
    const struct kva_keep_args *args;
    const struct kva_keep_seq *seq;
    uint32_t *positions;
    float *mass, *error;
    const float *new_mass, *new_error;
    uint32_t *to;
    uint64_t *keys;  /* [count] */
    uint64_t *spare; /* [2 * count] */
    uint32_t count;
};

/* --- entries ---------------------------------------------------------------------------------- */

static uint32_t position_of(const struct entries *all, uint32_t i)
{
    const uint32_t filled = all->seq->filled;
    return i < filled ? all->positions[i] : all->seq->position_first + (i - filled);
}

static float mass_of(const struct entries *all, uint32_t i)
{
    const uint32_t filled = all->seq->filled;
    const float come = i >= filled && all->new_mass ? all->new_mass[i - filled] : 0.0f;
    return i < filled ? all->mass[i] : come;
}

/* The greater the better. */
static float worth_of(const struct entries *all, uint32_t i)
{
    const uint32_t filled = all->seq->filled;
    return -(i < filled ? all->error[i] : all->new_error[i - filled]);
}

static bool is_protected(const struct entries *all, uint32_t i)
{
    const struct kva_keep_seq *seq = all->seq;
    const uint64_t position = position_of(all, i);
    return position < seq->sinks ||
           position + seq->recent >= (uint64_t)seq->position_first + seq->count;
}

/* Bits that ascend as the number does; the two zeros are one, what is no number is the least. */
static uint32_t ordered(float x)
{
    if (x != x)
        return 0;
    const uint32_t bits = kva_bits_of_float(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static uint64_t key_of(const struct entries *all, uint32_t i, float score)
{
    const uint32_t position = position_of(all, i);
    return (uint64_t)ordered(score) << 32 | (all->seq->newer ? position : ~position);
}

#define OUTRIGHT UINT64_MAX

/* The least of the `keep` largest keys. */
static uint64_t least_of(const struct entries *all, uint32_t keep)
{
    uint64_t least = OUTRIGHT;
    memcpy(all->spare, all->keys, all->count * sizeof *all->keys);
    kva_order_top(all->spare, all->count, keep);
    for (uint32_t i = 0; i < keep; i++)
        least = all->spare[i] < least ? all->spare[i] : least;
    return least;
}

/* --- scores ----------------------------------------------------------------------------------- */

typedef float value_of(const struct entries *all, uint32_t i);

/* A score in the making, in place of the key of an entry that is not kept outright: less than any
 * such key. */
static void add_score(const struct entries *all, uint32_t i, float part)
{
    if (all->keys[i] != OUTRIGHT)
        all->keys[i] = kva_bits_of_float(kva_float_of_bits((uint32_t)all->keys[i]) + part);
}

static void add_minmax(const struct entries *all, value_of *value, float weight)
{
    float low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < all->count; i++) {
        const float x = value(all, i);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    for (uint32_t i = 0; i < all->count; i++) {
        const float x = value(all, i);
        const float norm = low < high && x == x ? (x - low) / (high - low) : 0.0f;
        add_score(all, i, weight * norm);
    }
}

static void add_ranks(const struct entries *all, value_of *value, float weight)
{
    uint32_t below = 0;
    for (uint32_t i = 0; i < all->count; i++)
        all->spare[i] = (uint64_t)ordered(value(all, i)) << 32 | i;
    const uint64_t *sorted = kva_order_radix(all->spare, all->spare + all->count, all->count);
    for (uint32_t i = 0; i < all->count; i++) {
        if (i > 0 && sorted[i] >> 32 != sorted[i - 1] >> 32)
            below = i;
        const float norm = (float)below / (float)(all->count - 1);
        add_score(all, (uint32_t)sorted[i], weight * norm);
    }
}

/* keys = those of mass; of what is protected, OUTRIGHT. Returns how many are. */
static uint32_t put_mass(const struct entries *all)
{
    uint32_t outright = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        const bool stays = is_protected(all, i);
        all->keys[i] = stays ? OUTRIGHT : key_of(all, i, mass_of(all, i));
        outright += stays;
    }
    return outright;
}

/* What the mass alone decides becomes OUTRIGHT, then the others have their scores. */
static void put_scores(const struct entries *all, uint32_t outright)
{
    const uint32_t slots = all->seq->store.slots;
    const uint32_t by_mass = outright + kva_min_u32(all->seq->pure, slots - outright);
    const uint64_t least = least_of(all, by_mass);
    for (uint32_t i = 0; i < all->count; i++)
        all->keys[i] = by_mass > 0 && all->keys[i] >= least ? OUTRIGHT : 0;
    void (*add)(const struct entries *, value_of *, float) =
        all->args->score == KVA_KEEP_MINMAX ? add_minmax : add_ranks;
    add(all, mass_of, all->args->lambda);
    add(all, worth_of, 1.0f - all->args->lambda);
    for (uint32_t i = 0; i < all->count; i++) {
        if (all->keys[i] != OUTRIGHT)
            all->keys[i] = key_of(all, i, kva_float_of_bits((uint32_t)all->keys[i]));
    }
}

/* --- slots ------------------------------------------------------------------------------------ */

/* Token i of those that come is in the slot. */
static void settle(const struct entries *all, uint32_t i, uint32_t slot)
{
    all->to[i] = slot;
    all->positions[slot] = all->seq->position_first + i;
    all->mass[slot] = all->new_mass ? all->new_mass[i] : 0.0f;
    if (all->error)
        all->error[slot] = all->new_error ? all->new_error[i] : 0.0f;
}

/* Entries with keys of at least `least` stay. */
static void assign(const struct entries *all, uint64_t least)
{
    const uint32_t filled = all->seq->filled, slots = all->seq->store.slots;
    uint32_t slot = 0;
    for (uint32_t i = 0; i < all->seq->count; i++) {
        all->to[i] = KVA_NO_SLOT;
        if (all->keys[filled + i] < least)
            continue;
        while (slot < filled && all->keys[slot] >= least)
            slot++;
        if (slot < slots)
            settle(all, i, slot++);
    }
}

static void keep_head(const struct entries *all)
{
    const struct kva_keep_seq *seq = all->seq;
    const uint32_t slots = seq->store.slots;
    if (all->count <= slots) {
        for (uint32_t i = 0; i < seq->count; i++)
            settle(all, i, seq->filled + i);
        return;
    }
    if (slots == 0) {
        for (uint32_t i = 0; i < seq->count; i++)
            all->to[i] = KVA_NO_SLOT;
        return;
    }
    const uint32_t outright = put_mass(all);
    if (all->args->score != KVA_KEEP_MASS)
        put_scores(all, outright);
    assign(all, least_of(all, slots));
}

/* --- the operator ----------------------------------------------------------------------------- */

static void keep_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_keep_args *args = opaque;
    const struct kva_keep_seq *seq = args->seqs;
    uint64_t *scratch = args->scratch;
    for (; index >= args->kv_heads; index -= args->kv_heads, seq++)
        scratch +=
            kva_keep_scratch_bytes(args->kv_heads, seq->filled, seq->count) / sizeof *scratch;
    const size_t at = (size_t)index * seq->store.slots, from = (size_t)index * seq->stride;
    struct entries all = {
        .args = args,
        .seq = seq,
        .positions = seq->store.positions + at,
        .mass = seq->store.mass + at,
        .error = seq->store.error ? seq->store.error + at : NULL,
        .new_mass = seq->mass ? seq->mass + from : NULL,
        .new_error = seq->error ? seq->error + from : NULL,
        .to = seq->to + (size_t)index * seq->count,
        .count = seq->filled + seq->count,
    };
    all.keys = scratch + (size_t)index * 3 * all.count;
    all.spare = all.keys + all.count;
    if (seq->count > 0)
        keep_head(&all);
}

void kva_cpu_keep(struct kva_device *device, const struct kva_keep_args *args)
{
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->seq_count * args->kv_heads, keep_item, (void *)args);
}

/* --- use_rows --------------------------------------------------------------------------------- */

static void halve(float *mass, uint32_t filled)
{
    for (uint32_t slot = 0; slot < filled; slot++)
        mass[slot] = floorf(mass[slot] * 0.5f);
}

static void use_head(const struct kva_use_seq *seq, const uint32_t *used, float *mass)
{
    bool full = false;
    for (uint32_t i = 0; i < seq->count; i++) {
        const uint32_t slot = used[i];
        if (slot == KVA_NO_SLOT)
            continue;
        mass[slot] =
            seq->rule == KVA_USE_COUNT ? mass[slot] + 1.0f : fmaf(seq->step, (float)i, seq->first);
        full |= seq->rule == KVA_USE_COUNT && mass[slot] >= KVA_USES_MAX;
    }
    if (full)
        halve(mass, seq->filled);
}

/* Some hundreds of slots: not worth a thread. */
void kva_cpu_use_rows(struct kva_device *device, const struct kva_use_rows_args *args)
{
    if (kva_cpu_failed(device))
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_use_seq *seq = &args->seqs[i];
        for (uint32_t head = 0; head < args->kv_heads; head++)
            use_head(seq, seq->used + (size_t)head * seq->count,
                     seq->mass + (size_t)head * seq->slots);
    }
}
