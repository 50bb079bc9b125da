#include "tests/kernels/by_scores.h"

#include <stdlib.h>
#include <string.h>

void by_scores_attend(struct kva_device *device, const struct kva_ops *ops,
                      const struct kva_attend_lowbit_args *args)
{
    struct kva_attend_lowbit_args own = *args;
    struct kva_lowbit_seq *seqs = calloc(args->seq_count + 1, sizeof *seqs);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        if (!seqs[i].peaks || seqs[i].page_count == 0)
            continue;
        seqs[i].scores = aligned_alloc(
            KVA_CACHE_LINE,
            kva_align_up(kva_attend_scores_bytes(args->heads, seqs[i].page_count), KVA_CACHE_LINE));
        memcpy((void *)seqs[i].peaks, &seqs[i].scores, sizeof seqs[i].scores);
        seqs[i].peaks = NULL;
    }
    own.seqs = seqs;
    ops->attend_lowbit(device, &own);
    free(seqs);
}

void by_scores_choose(struct kva_device *device, const struct kva_ops *ops,
                      const struct kva_weigh_choose_args *args)
{
    struct kva_weigh_args weigh = args->weigh;
    struct kva_weigh_seq *seqs = calloc(weigh.seq_count + 1, sizeof *seqs);
    for (uint32_t i = 0; i < weigh.seq_count; i++) {
        seqs[i] = args->weigh.seqs[i];
        const void *kept = args->low[i].peaks;
        if (seqs[i].page_count > 0)
            memcpy(&seqs[i].scores, kept, sizeof seqs[i].scores);
    }
    weigh.seqs = seqs;
    ops->weigh(device, &weigh);
    ops->choose(device, &args->choose);
    for (uint32_t i = 0; i < weigh.seq_count; i++) {
        memset(seqs[i].weights, 0x3F,
               (size_t)weigh.kv_heads * seqs[i].page_count * KVA_PAGE_TOKENS * sizeof(float));
        free((void *)(uintptr_t)seqs[i].scores);
    }
    free(seqs);
}
