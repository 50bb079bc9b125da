/* order.h - sorting and selection of packed numbers in place, without memory of their own. */
#ifndef KVA_KERNELS_CPU_SELECT_ORDER_H
#define KVA_KERNELS_CPU_SELECT_ORDER_H

#include "base/kva.h"

static inline void kva_order_swap(uint64_t *a, uint64_t *b)
{
    uint64_t x = *a;
    *a = *b;
    *b = x;
}

static inline void kva_order_sift(uint64_t *keys, size_t at, size_t count)
{
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && keys[child + 1] > keys[child])
            child++;
        if (keys[child] <= keys[at])
            return;
        kva_order_swap(&keys[at], &keys[child]);
    }
}

/* Ascending. A few out of place, the usual case, cost a pass; anything costs n log n. */
static inline void kva_order_sort(uint64_t *keys, size_t count)
{
    size_t moves = 0;
    for (size_t i = 1; i < count && moves <= 8 * count; i++) {
        uint64_t key = keys[i];
        size_t j = i;
        for (; j > 0 && keys[j - 1] > key; j--, moves++)
            keys[j] = keys[j - 1];
        keys[j] = key;
    }
    if (moves <= 8 * count)
        return;
    for (size_t i = count / 2; i-- > 0;)
        kva_order_sift(keys, i, count);
    for (size_t i = count; i-- > 1;) {
        kva_order_swap(&keys[0], &keys[i]);
        kva_order_sift(keys, 0, i);
    }
}

/* `count` keys in ascending order of their upper halves, equal ones as they stood: at the address
 * returned, which is one of the two. Digits of 11 bits, all of them counted in one pass. */
static inline const uint64_t *kva_order_radix(uint64_t *keys, uint64_t *spare, size_t count)
{
    enum { DIGIT = 11, DIGITS = 3, BINS = 1 << DIGIT };
    uint32_t bins[DIGITS][BINS] = {{0}};
    for (size_t i = 0; i < count; i++) {
        for (uint32_t d = 0; d < DIGITS; d++)
            bins[d][keys[i] >> (32 + d * DIGIT) & (BINS - 1)]++;
    }
    for (uint32_t d = 0; d < DIGITS; d++) {
        uint32_t at = 0;
        for (uint32_t i = 0; i < BINS; i++) {
            const uint32_t here = bins[d][i];
            bins[d][i] = at;
            at += here;
        }
        for (size_t i = 0; i < count; i++)
            spare[bins[d][keys[i] >> (32 + d * DIGIT) & (BINS - 1)]++] = keys[i];
        uint64_t *const other = keys;
        keys = spare;
        spare = other;
    }
    return keys;
}

/* The `keep` largest of `count` keys come first, in any order (Hoare's FIND). */
static inline void kva_order_top(uint64_t *keys, size_t count, size_t keep)
{
    if (keep == 0 || keep >= count)
        return;
    ptrdiff_t low = 0, high = (ptrdiff_t)count - 1, last = (ptrdiff_t)keep - 1;
    while (low < high) {
        uint64_t a = keys[low], b = keys[low + (high - low) / 2], c = keys[high];
        uint64_t pivot = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
        ptrdiff_t i = low, j = high;
        while (i <= j) {
            while (keys[i] > pivot)
                i++;
            while (keys[j] < pivot)
                j--;
            if (i <= j)
                kva_order_swap(&keys[i++], &keys[j--]);
        }
        if (j < last)
            low = i;
        if (last < i)
            high = j;
    }
}

#endif
