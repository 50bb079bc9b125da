/* ranges.h - an attention call in pieces: the part of its tokens that lies between two positions,
 * for whoever folds one piece into the result of another. */
#ifndef KVA_TESTS_KERNELS_RANGES_H
#define KVA_TESTS_KERNELS_RANGES_H

#include "kernels/ops.h"

/* The call on positions [low, high) of every sequence. seqs: [seq_count], ranges: as many as the
 * call has; what it then points to. */
static inline void ranges_within(struct kva_attend_args *args, uint32_t low, uint32_t high,
                                 struct kva_attend_seq *seqs, struct kva_attend_range *ranges)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        seqs[i].range_first = count;
        for (uint32_t j = 0; j < args->seqs[i].range_count; j++) {
            struct kva_attend_range range = args->ranges[args->seqs[i].range_first + j];
            uint32_t first = kva_max_u32(range.token_first, low);
            uint32_t end = kva_min_u32(range.token_first + range.token_count, high);
            if (first >= end)
                continue;
            range.block_first += first / KVA_PAGE_TOKENS - range.token_first / KVA_PAGE_TOKENS;
            range.token_first = first;
            range.token_count = end - first;
            ranges[count++] = range;
        }
        seqs[i].range_count = count - seqs[i].range_first;
    }
    args->seqs = seqs;
    args->ranges = ranges;
}

#endif
