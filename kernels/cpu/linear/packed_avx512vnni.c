/* packed_avx512vnni.c - linear with packed weights, level avx512vnni: four products of an unsigned
 * and a signed byte and their sum are one instruction (vpdpbusd). The zero in the weights' codes is
 * taken off by the number that the sums begin with. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/avx512.h"

#include <stdbool.h>
#include <string.h>

/* Register tiles, of 32 registers: up to 12 sums and 12 parts of totals. */
#define STREAM_ROWS 8
#define TILE_ROWS   6
#define ROWS_MAX    STREAM_ROWS
#define TILE_PANELS 2

/* Rows up to which codes come in a stream, and up to which they are not expanded. */
#define CODED_ROWS  6
#define DIRECT_ROWS 36

typedef __m512i vi;

struct codes {
    vi unsigned_codes;
};

INLINE struct codes codes_of(vi code, const bool wide KVA_UNUSED)
{
    return (struct codes){code};
}

/* _mm512_dpbusd_epi32, of which gcc 12 copies the sum before and behind each product: then
 * instructions, not products, are what binds. */
INLINE vi add_products(vi sum, struct codes w, vi four, const bool wide KVA_UNUSED)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w.unsigned_codes), "v"(four));
    return sum;
}

INLINE vi first_sum(int32_t offset, const bool wide KVA_UNUSED)
{
    return _mm512_set1_epi32(offset);
}

#include "kernels/cpu/linear/packed_512.h"

void kva_linear_packed_avx512vnni(const struct kva_cpu_linear *item)
{
    run_item(item);
}
