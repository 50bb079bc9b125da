/* median.h - of what a benchmark has measured. */
#ifndef KVA_TESTS_MEDIAN_H
#define KVA_TESTS_MEDIAN_H

#include <stdint.h>
#include <stdlib.h>

static inline int kva_test_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest first. */
static inline void kva_test_sort(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), kva_test_ascending);
}

/* Sorts the values, at least one; of an even number the mean of the two in the middle. */
static inline double kva_test_median(double *values, size_t count)
{
    kva_test_sort(values, count);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

#endif
