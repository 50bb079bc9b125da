/* plan.h - what the drivers of low-bit attention and of its selection share. */
#ifndef KVA_KERNELS_CPU_LOWBIT_PLAN_H
#define KVA_KERNELS_CPU_LOWBIT_PLAN_H

#include "kernels/cpu/attend/query_task.h"
#include "kernels/cpu/select/row_cache.h"

/* How a call is cut into tasks: of the fused operator, or of attend_lowbit, which is described as
 * if it were one that selects nothing. */
struct kva_lowbit_plan {
    struct kva_device *device;
    const struct kva_attend_select_fetch_args *args;
    float *const *scores; /* attend_lowbit: [seq_count], where scores are kept, and rows do not
                             attend; NULL: the fused operator */
    const struct kva_partial *behind; /* attend_lowbit's */
    uint32_t seq_first;               /* sequences whose turn it is */
    uint32_t seq_end;
    struct kva_query_cut cut;
    size_t own_floats; /* of a thread's part of the scratch, where tasks select; else 0 */
};

/* --- scores -------------------------------------------------------------------------------------
 *
 * A part per selecting sequence and KV head: weights [splits][group][KVA_ATTEND_SPLIT_TOKENS],
 * relative to the largest score of their split, and these largest scores [splits][group]. Where the
 * choice is acted upon at once, also the splits' partial results: a [splits][group][head_dim], m
 * and e [splits][group], and, as bool, which of them the choice has outdated [splits]. Parts lie
 * one behind the other, in the order of sequences and KV heads; or, where tasks select on their
 * own, one per thread. */

static inline bool kva_lowbit_selects(const struct kva_select_seq *seq)
{
    return seq->rows && seq->select_row < seq->row_count;
}

/* Floats of a part, and of a sequence's parts. */
static inline size_t kva_lowbit_part_floats(const struct kva_attend_select_fetch_args *args,
                                            const struct kva_select_seq *seq)
{
    uint32_t group = args->heads / args->kv_heads;
    size_t bytes = seq->now ? kva_attend_fused_bytes(group, args->head_dim, seq->page_count)
                            : kva_attend_scores_bytes(group, seq->page_count);
    return bytes / sizeof(float);
}

static inline size_t kva_lowbit_weight_floats(const struct kva_attend_select_fetch_args *args,
                                              const struct kva_select_seq *seq)
{
    return kva_lowbit_selects(seq) ? kva_lowbit_part_floats(args, seq) * args->kv_heads : 0;
}

/* Index in a part of the first weight of query head `head` of the KV head in a split, and of its
 * largest score there. */
static inline size_t kva_lowbit_weight_at(uint32_t group, size_t split, size_t head)
{
    return (split * group + head) * KVA_ATTEND_SPLIT_TOKENS;
}

static inline size_t kva_lowbit_top_at(uint32_t group, uint32_t page_count, size_t split,
                                       size_t head)
{
    return kva_lowbit_weight_at(group, kva_attend_splits(page_count), 0) + split * group + head;
}

/* The partial result of query heads `head` on over split `split`. */
static inline struct kva_partial kva_lowbit_partial_at(const struct kva_lowbit_plan *plan,
                                                       const struct kva_select_seq *seq,
                                                       float *part, uint32_t split, uint32_t head)
{
    size_t splits = kva_attend_splits(seq->page_count), pairs = splits * plan->cut.group;
    size_t pair = (size_t)split * plan->cut.group + head;
    float *a = part + kva_lowbit_top_at(plan->cut.group, seq->page_count, splits, 0);
    float *m = a + pairs * plan->args->head_dim;
    return (struct kva_partial){a + pair * plan->args->head_dim, m + pair, m + pairs + pair};
}

/* [splits]: whether the choice has changed which tokens of the split attend in 16 bits. */
static inline bool *kva_lowbit_outdated_at(const struct kva_lowbit_plan *plan,
                                           const struct kva_select_seq *seq, float *part)
{
    size_t splits = kva_attend_splits(seq->page_count), pairs = splits * plan->cut.group;
    return (bool *)(part + kva_lowbit_top_at(plan->cut.group, seq->page_count, splits, 0) +
                    pairs * (plan->args->head_dim + 2));
}

/* Choose the rows of one KV head, whose weights are in `part`, and act upon the choice where that
 * is to be done now. */
void kva_lowbit_choose(const struct kva_lowbit_plan *plan, const struct kva_select_seq *seq,
                       uint32_t kv_head, float *part, uint32_t worker);

/* Choose those of all the plan's selecting sequences. */
void kva_lowbit_select(struct kva_lowbit_plan *plan);

/* First position that the row at `position` may see. */
static inline uint32_t kva_lowbit_first_visible(const struct kva_attend_select_fetch_args *args,
                                                uint32_t position)
{
    return kva_query_first_visible(args->window, position);
}

#endif
