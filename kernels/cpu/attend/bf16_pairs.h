/* bf16_pairs.h - keys and queries as pairs of bf16, for products of them: what attention (bf16.h) and
 * the mass of tokens (keep) share. */
#ifndef KVA_KERNELS_CPU_ATTEND_BF16_PAIRS_H
#define KVA_KERNELS_CPU_ATTEND_BF16_PAIRS_H

#include "kernels/cpu/attend/prefetch.h"
#include "kernels/cpu/simd/avx512.h"

#include <string.h>

/* Dimensions whose values lie together, as two vectors for each pair of tokens. */
#define CHUNK_DIM  32u
#define PAGE_PAIRS (KVA_PAGE_TOKENS / 2)

/* What is used of the caller's scratch. */
struct pairs {
    uint32_t dims; /* pairs of dimensions, padded with 0 */
    uint32_t *q;   /* [q_count][dims] */
    uint32_t *k;   /* [dims][KVA_PAGE_TOKENS] */
    uint32_t *v; /* [chunks][PAGE_PAIRS][CHUNK_DIM]: values of a page, in the order of unpacking */
    float *e;    /* [q_count][VL]: sums of weights by lanes */
    float *sums; /* [q_count][chunks][CHUNK_DIM]: of `a`, in the same order; then room for
                    KVA_CPU_ATTEND_QUERIES in all */
};

static void pair_queries(const struct kva_cpu_attend_split *split, const struct pairs *pairs)
{
    uint32_t dim = split->head_dim;
    for (uint32_t j = 0; j < split->q_count; j++) {
        const float *q = split->q + (size_t)j * dim;
        uint32_t *to = pairs->q + (size_t)j * pairs->dims;
        for (uint32_t i = 0; i < dim; i += VL) {
            uint32_t n = kva_min_u32(dim - i, VL);
            __m256i half = (__m256i)_mm512_cvtneps_pbh(v_load_n(q + i, n));
            _mm256_mask_storeu_epi32(to + i / 2, (__mmask8)((1u << (n + 1) / 2) - 1u), half);
        }
        memset(to + (dim + 1) / 2, 0, (pairs->dims - (dim + 1) / 2) * sizeof *to);
    }
}

/* `count` elements of a row, the rest 0; no row: 0. */
INLINE __m512i load_row(const uint16_t *row, uint32_t first, uint32_t count)
{
    if (!row)
        return _mm512_setzero_si512();
    if (count == CHUNK_DIM)
        return _mm512_loadu_si512(row + first);
    return _mm512_maskz_loadu_epi16((1u << count) - 1u, row + first);
}

/* `count` dimensions of 16 tokens from `i` on, to k [dims][KVA_PAGE_TOKENS]. */
INLINE void transpose_keys(const void *const *tokens, uint32_t i, const uint32_t count,
                           uint32_t dims, uint32_t *k, struct ahead *ahead)
{
    __m512i rows[16];
    for (int t = 0; t < 16; t++) {
        rows[t] = load_row(tokens[t], i, count);
        if (t % 2 == 0)
            prefetch(ahead, 1);
    }
    kva_transpose_512(rows);
    if (count == CHUNK_DIM) {
        for (int n = 0; n < 16; n++)
            _mm512_storeu_si512(k + (size_t)n * KVA_PAGE_TOKENS, rows[n]);
    } else {
        for (uint32_t n = 0; n < dims; n++)
            _mm512_storeu_si512(k + (size_t)n * KVA_PAGE_TOKENS, rows[n]);
    }
}

/* pairs->k = the keys of the page from slot `base` on. */
static void pair_keys(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                      uint32_t base, struct ahead *ahead)
{
    struct ahead next = *ahead;
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += VL) {
        for (uint32_t i = 0; i < split->head_dim; i += CHUNK_DIM) {
            const void *const *tokens = split->tokens + base + t;
            uint32_t count = kva_min_u32(CHUNK_DIM, split->head_dim - i);
            uint32_t *k = pairs->k + (size_t)i / 2 * KVA_PAGE_TOKENS + t;
            if (count == CHUNK_DIM)
                transpose_keys(tokens, i, CHUNK_DIM, CHUNK_DIM / 2, k, &next);
            else
                transpose_keys(tokens, i, count, pairs->dims - i / 2, k, &next);
        }
    }
    *ahead = next;
}

#endif
