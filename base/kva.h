/* kva.h - annotations and small helpers that every module uses. */
#ifndef KVA_BASE_KVA_H
#define KVA_BASE_KVA_H

#include <stddef.h>
#include <stdint.h>

#define KVA_MUST_CHECK        __attribute__((warn_unused_result))
#define KVA_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define KVA_UNUSED            __attribute__((unused))

/* Objects shared between threads are kept on separate cache lines. */
#define KVA_CACHE_LINE      64

#define KVA_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline uint64_t kva_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline size_t kva_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t kva_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline uint32_t kva_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t kva_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* ceil(a / b); b > 0. */
static inline size_t kva_div_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

/* a rounded up to a multiple of the power of two `align`. */
static inline size_t kva_align_up(size_t a, size_t align)
{
    return (a + align - 1) & ~(align - 1);
}

/* *ret = a * b; false, with *ret untouched, if that overflows. */
KVA_MUST_CHECK static inline int kva_mul_size(size_t a, size_t b, size_t *ret)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return 0;
    *ret = product;
    return 1;
}

KVA_MUST_CHECK static inline int kva_add_size(size_t a, size_t b, size_t *ret)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return 0;
    *ret = sum;
    return 1;
}

#endif
