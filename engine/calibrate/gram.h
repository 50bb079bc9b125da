/* gram.h - what queries and keys of a text are like, as sums: for each layer and KV head
 *
 *     Sq = sum of q^T q over the rows and over the query heads that share the KV head
 *     Sk = sum of k^T k over the rows, and the sum of k
 *
 * [head_dim, head_dim] in fp64, of q and k as attention has them. No matrix of all rows is held:
 * the eigenvectors of Sq are the right singular vectors of the matrix of all queries (InfiniGen,
 * 4.2), at the square of its singular values.
 *
 * Every number is added up in the order of the rows, whatever the number of threads.
 *
 * Thread rule: that of the pool. */
#ifndef KVA_ENGINE_CALIBRATE_GRAM_H
#define KVA_ENGINE_CALIBRATE_GRAM_H

#include "base/pool.h"

struct kva_gram_shape {
    uint32_t layers, heads, kv_heads, head_dim;
};

struct kva_gram {
    struct kva_gram_shape shape;
    double *q;      /* [layers][kv_heads][head_dim][head_dim]; element [i][j] only for i <= j */
    double *k;      /* the same */
    double *k_sum;  /* [layers][kv_heads][head_dim] */
    uint64_t *rows; /* [layers]: that were added */
};

/* Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_gram_create(const struct kva_gram_shape *shape,
                                               struct kva_gram **ret, struct kva_err *err);

/* NULL is allowed. */
void kva_gram_destroy(struct kva_gram *gram);

/* More rows of a layer: q [rows][heads][head_dim], k [rows][kv_heads][head_dim]. */
void kva_gram_add(struct kva_gram *gram, struct kva_pool *pool, uint32_t layer, const float *q,
                  const float *k, uint32_t rows);

/* Where the matrices of a layer and KV head begin. */
static inline size_t kva_gram_at(const struct kva_gram *gram, uint32_t layer, uint32_t kv_head)
{
    const size_t d = gram->shape.head_dim;
    return ((size_t)layer * gram->shape.kv_heads + kv_head) * d * d;
}

#endif
