/* weigh.h - what the queries of one KV head gave to each token: as the operator weigh says, and as
 * the fused operator needs it, page by page. */
#ifndef KVA_KERNELS_CPU_SELECT_WEIGH_H
#define KVA_KERNELS_CPU_SELECT_WEIGH_H

#include "kernels/cpu/device/device_cpu.h"

/* Rows that are weighed at a time. */
#define KVA_WEIGH_ROWS 256u

struct kva_weigh_scratch {
    float top[KVA_CPU_SELECT_HEADS_MAX];     /* largest score of each head over everything */
    float inverse[KVA_CPU_SELECT_HEADS_MAX]; /* 1 / the sum of exponentials, relative to it */
    float factors[KVA_CPU_SELECT_HEADS_MAX]; /* of the weights of the split at hand */
    float q[KVA_CPU_HEAD_DIM_MAX];
    const void *rows[KVA_WEIGH_ROWS];
    float scores[KVA_WEIGH_ROWS];
    float sums[KVA_WEIGH_ROWS];
};

/* One KV head of one row. */
struct kva_weigh_head {
    const struct kva_cpu_kernels *kernels;
    const float *q;                   /* of the first of its query heads */
    const float *weights;             /* the KV head's part of the scores (lowbit/plan.h) */
    const struct kva_row_cache *rows; /* NULL: none */
    struct kva_weigh_scratch *scratch;
    size_t pair; /* (row, head) pair of the first query head */
    uint32_t kv_head;
    uint32_t group;
    uint32_t head_dim;
    uint32_t page_count;
    enum kva_dtype kv_dtype;
    float scale;
};

/* What the scores of each query head are relative to. */
void kva_weigh_totals(const struct kva_weigh_head *head, const struct kva_partial *partials,
                      uint32_t count);

/* scratch->sums = the weights of rows [first, first + count), count <= KVA_WEIGH_ROWS. */
void kva_weigh_rows(const struct kva_weigh_head *head, uint32_t first, uint32_t count);

/* How much each query head's weights in a split count; before the split's pages. */
void kva_weigh_split(const struct kva_weigh_head *head, uint32_t split);

/* found, tokens = weights, and which of the page's tokens they belong to, of those `candidates`
 * that weigh `threshold` or more; returns their number. */
uint32_t kva_weigh_page(const struct kva_weigh_head *head, uint32_t page, uint64_t candidates,
                        float threshold, float *found, uint32_t *tokens);

/* Bits of the page's tokens that lie in [first, end). */
static inline uint64_t kva_page_tokens_between(uint32_t page, uint32_t first, uint32_t end)
{
    uint32_t base = page * KVA_PAGE_TOKENS;
    uint64_t from = first <= base                     ? UINT64_MAX
                    : first >= base + KVA_PAGE_TOKENS ? 0
                                                      : UINT64_MAX << (first - base);
    uint64_t to = end >= base + KVA_PAGE_TOKENS ? UINT64_MAX
                  : end <= base                 ? 0
                                                : ~(UINT64_MAX << (end - base));
    return from & to;
}

#endif
