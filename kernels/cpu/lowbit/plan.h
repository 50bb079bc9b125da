/* plan.h - what the drivers of low-bit attention and of its selection share. */
#ifndef KVA_KERNELS_CPU_LOWBIT_PLAN_H
#define KVA_KERNELS_CPU_LOWBIT_PLAN_H

#include "kernels/cpu/attend/query_task.h"

/* How a call is cut into tasks. */
struct kva_lowbit_plan {
    struct kva_device *device;
    const struct kva_attend_lowbit_args *args;
    uint32_t seq_first; /* sequences whose turn it is */
    uint32_t seq_end;
    struct kva_query_cut cut;
    size_t own_floats; /* of a thread's part of the scratch, where tasks select; else 0 */
};

/* --- the caller's scratch memory ---------------------------------------------------------------
 *
 * A part per selecting sequence and KV head: weights [splits][group][KVA_ATTEND_SPLIT_TOKENS],
 * relative to the largest score of their split, and these largest scores [splits][group]. Where the
 * choice is acted upon at once, also the splits' partial results: a [splits][group][head_dim], m
 * and e [splits][group], and, as bool, which of them the choice has outdated [splits]. Parts lie
 * one behind the other, in the order of sequences and KV heads; or, where tasks select on their
 * own, one per thread. */

static inline bool kva_lowbit_selects(const struct kva_lowbit_seq *seq)
{
    return seq->hot && seq->select_row < seq->row_count;
}

/* Floats of a part, and of a sequence's parts. */
static inline size_t kva_lowbit_part_floats(const struct kva_attend_lowbit_args *args,
                                            const struct kva_lowbit_seq *seq)
{
    if (!kva_lowbit_selects(seq))
        return 0;
    uint32_t group = args->heads / args->kv_heads;
    size_t bytes = seq->now ? kva_attend_lowbit_now_bytes(group, args->head_dim, seq->page_count)
                            : kva_attend_lowbit_scratch_bytes(group, seq->page_count);
    return bytes / sizeof(float);
}

static inline size_t kva_lowbit_weight_floats(const struct kva_attend_lowbit_args *args,
                                              const struct kva_lowbit_seq *seq)
{
    return kva_lowbit_part_floats(args, seq) * args->kv_heads;
}

static inline size_t kva_lowbit_splits(const struct kva_lowbit_seq *seq)
{
    return kva_div_up((size_t)seq->page_count * KVA_PAGE_TOKENS, KVA_ATTEND_SPLIT_TOKENS);
}

/* Index in a part of the first weight of query head `head` of the KV head in a split, and of its
 * largest score there. */
static inline size_t kva_lowbit_weight_at(const struct kva_lowbit_plan *plan, size_t split,
                                          size_t head)
{
    return (split * plan->cut.group + head) * KVA_ATTEND_SPLIT_TOKENS;
}

static inline size_t kva_lowbit_top_at(const struct kva_lowbit_plan *plan,
                                       const struct kva_lowbit_seq *seq, size_t split, size_t head)
{
    return kva_lowbit_weight_at(plan, kva_lowbit_splits(seq), 0) + split * plan->cut.group + head;
}

/* The partial result of query heads `head` on over split `split`. */
static inline struct kva_partial kva_lowbit_partial_at(const struct kva_lowbit_plan *plan,
                                                       const struct kva_lowbit_seq *seq,
                                                       float *part, uint32_t split, uint32_t head)
{
    size_t pairs = kva_lowbit_splits(seq) * plan->cut.group;
    size_t pair = (size_t)split * plan->cut.group + head;
    float *a = part + kva_lowbit_top_at(plan, seq, kva_lowbit_splits(seq), 0);
    float *m = a + pairs * plan->args->head_dim;
    return (struct kva_partial){a + pair * plan->args->head_dim, m + pair, m + pairs + pair};
}

/* [splits]: whether the choice has changed which tokens of the split attend in 16 bits. */
static inline bool *kva_lowbit_outdated_at(const struct kva_lowbit_plan *plan,
                                           const struct kva_lowbit_seq *seq, float *part)
{
    size_t pairs = kva_lowbit_splits(seq) * plan->cut.group;
    return (bool *)(part + kva_lowbit_top_at(plan, seq, kva_lowbit_splits(seq), 0) +
                    pairs * (plan->args->head_dim + 2));
}

/* Choose the hot rows of one KV head, whose weights are in `part`, and act upon the choice where
 * that is to be done now. */
void kva_lowbit_choose(const struct kva_lowbit_plan *plan, const struct kva_lowbit_seq *seq,
                       uint32_t kv_head, float *part, uint32_t worker);

/* Choose those of all the plan's selecting sequences. */
void kva_lowbit_select(struct kva_lowbit_plan *plan);

/* --- who sees what ---------------------------------------------------------------------------- */

/* First position that the row at `position` may see. */
static inline uint32_t kva_lowbit_first_visible(const struct kva_attend_lowbit_args *args,
                                                uint32_t position)
{
    return kva_query_first_visible(args->window, position);
}

/* Position of hot row `index` in ascending position, and its K row, V right behind it. */
static inline uint32_t kva_lowbit_hot_position(const struct kva_hot *hot, uint32_t kv_head,
                                               uint32_t index)
{
    size_t first = (size_t)kv_head * hot->slots;
    return hot->tokens[first + hot->order[first + index]];
}

static inline const void *kva_lowbit_hot_row(const struct kva_attend_lowbit_args *args,
                                             const struct kva_hot *hot, uint32_t kv_head,
                                             uint32_t index)
{
    size_t first = (size_t)kv_head * hot->slots;
    return (const uint16_t *)hot->rows + (first + hot->order[first + index]) * 2 * args->head_dim;
}

/* How many hot rows lie before `position`. */
static inline uint32_t kva_lowbit_hot_before(const struct kva_hot *hot, uint32_t kv_head,
                                             uint32_t position)
{
    uint32_t low = 0, high = hot->count[kv_head];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (kva_lowbit_hot_position(hot, kv_head, middle) < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* present[i] = the tokens of page page_first + i that no hot row replaces. */
static inline void kva_lowbit_present(const struct kva_lowbit_seq *seq, uint32_t kv_head,
                                      uint32_t page_first, uint32_t count, uint64_t *present)
{
    for (uint32_t i = 0; i < count; i++)
        present[i] = UINT64_MAX;
    if (!seq->hot)
        return;
    uint32_t base = page_first * KVA_PAGE_TOKENS;
    uint32_t hot_count = seq->hot->count[kv_head];
    for (uint32_t i = kva_lowbit_hot_before(seq->hot, kv_head, base); i < hot_count; i++) {
        uint32_t slot = kva_lowbit_hot_position(seq->hot, kv_head, i) - base;
        if (slot >= count * KVA_PAGE_TOKENS)
            return;
        present[slot / KVA_PAGE_TOKENS] &= ~(1ull << slot % KVA_PAGE_TOKENS);
    }
}

#endif
