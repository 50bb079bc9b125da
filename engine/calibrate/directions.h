/* directions.h - from sums over queries and keys to a skew: an orthogonal matrix per layer and KV
 * head, whose first columns keep the most of the products.
 *
 * Thread rule: engine thread, with the pool. */
#ifndef KVA_ENGINE_CALIBRATE_DIRECTIONS_H
#define KVA_ENGINE_CALIBRATE_DIRECTIONS_H

#include "engine/calibrate/gram.h"
#include "engine/model/skew.h"

/* The skew of these sums, by the solver of `device` or by LAPACK (eigen.h). The same bits for any
 * number of threads. Fails: KVA_EUNSUPPORTED (neither), KVA_EFORMAT (sums that are not finite; err
 * names layer and head), KVA_ENOMEM, KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_directions_find(const struct kva_gram *gram,
                                                   enum kva_skew_method method,
                                                   struct kva_device *device, struct kva_pool *pool,
                                                   struct kva_skew **ret, struct kva_err *err);

/* One matrix. With C the keys' sums without what all keys have in common (their mean, which changes
 * no query's order of them), A has the eigenvectors, by descending value, of
 *
 *     KVA_SKEW_QUERIES    Sq: the right singular vectors of the queries (InfiniGen, 4.2)
 *     KVA_SKEW_BALANCED   Sq^1/2 C Sq^1/2, whose values are those of the products: the best A where
 *                         queries and keys have the same directions
 *     KVA_SKEW_SUM        Sq / tr Sq + C / tr C
 *
 * What is lost by leaving directions out is the mean square of q Q . k Q over the projection Q on
 * them, tr(Q Sq Q C), and no eigenvectors minimise that for every number of columns: which A is
 * best is measured (docs/results/infinigen.md). With one matrix for queries and another for keys,
 * which the skew has not, it would be Sq^-1/2 U and Sq^1/2 U of BALANCED's U.
 */
struct kva_directions_params {
    enum kva_skew_method method;
    uint32_t d;
    const double *q, *k; /* [i][j] for i <= j */
    const double *k_sum;
    double rows; /* that k is the sum of */
};

/* a [d][d]: A. `work` [5 d d] is scratch. Fails: as above. */
KVA_MUST_CHECK enum kva_status kva_directions_of(const struct kva_directions_params *params,
                                                 double *work, double *a, struct kva_err *err);

#endif
