/* select.cuh - between attend_lowbit and its selection. */
#ifndef KVA_KERNELS_CUDA_SELECT_CUH
#define KVA_KERNELS_CUDA_SELECT_CUH

#include "kernels/cuda/number.cuh"

/* Query heads of a KV head that may select. */
#define KVA_SELECT_HEADS_MAX 256u

/* A sequence of attend_lowbit, on the device. */
struct lowbit_seq {
    struct kva_hot hot;
    float *scores; /* [heads][page_count * KVA_PAGE_TOKENS] of the selecting row; NULL: none */
    uint32_t block_first;
    uint32_t page_count;
    uint32_t select_row; /* of the sequence's rows */
    uint32_t row;        /* the same of the call's */
    uint32_t position;   /* its position */
    bool has_hot;
};

/* Write hot.chosen of the sequences seqs[selecting[0 .. count)], whose scores are there. */
void kva_cuda_select(struct kva_device *device, const struct kva_attend_lowbit_args *args,
                     const lowbit_seq *seqs, const uint32_t *selecting, uint32_t count);

#endif
