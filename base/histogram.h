/* histogram.h - counts of values by upper bound, as Prometheus wants them.
 *
 * Thread rule: one thread at a time; a copy is a snapshot. */
#ifndef KVA_BASE_HISTOGRAM_H
#define KVA_BASE_HISTOGRAM_H

#include "base/kva.h"

#define KVA_HISTOGRAM_BUCKETS_MAX 40u

struct kva_histogram {
    const double
        *bounds; /* [bound_count] ascending; a value counts under the first that is >= it */
    uint32_t bound_count;
    uint64_t counts[KVA_HISTOGRAM_BUCKETS_MAX + 1]; /* the last: above every bound */
    uint64_t total;
    double sum;
};

/* Empty; `bounds` is constant and outlives the histogram, `count` at most
 * KVA_HISTOGRAM_BUCKETS_MAX. */
void kva_histogram_init(struct kva_histogram *histogram, const double *bounds, size_t count);

void kva_histogram_observe(struct kva_histogram *histogram, double value);

#endif
