/* histogram.c - counting values. */
#include "base/histogram.h"

void kva_histogram_init(struct kva_histogram *histogram, const double *bounds, size_t count)
{
    *histogram = (struct kva_histogram){
        .bounds = bounds,
        .bound_count = (uint32_t)kva_min_size(count, KVA_HISTOGRAM_BUCKETS_MAX),
    };
}

void kva_histogram_observe(struct kva_histogram *histogram, double value)
{
    uint32_t bucket = 0;
    while (bucket < histogram->bound_count && value > histogram->bounds[bucket])
        bucket++;
    histogram->counts[bucket]++;
    histogram->total++;
    histogram->sum += value;
}
