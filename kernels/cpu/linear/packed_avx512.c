/* packed_avx512.c - linear with packed weights, level avx512, which has no product of signed bytes
 * that sums to 32 bits. Codes of up to 7 bits are multiplied as they are, two products to a 16-bit
 * sum that cannot overflow (2 * 63 * 127), and again two of these. Of 8 bits: the sizes of code
 * minus 128 times the activations' with the sign of both (2 * 127 * 127). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/avx512.h"

#include <stdbool.h>
#include <string.h>

/* Register tiles, of 32 registers: 8 sums and 8 parts of totals. */
#define STREAM_ROWS 8
#define TILE_ROWS   4
#define ROWS_MAX    STREAM_ROWS
#define TILE_PANELS 2

/* Rows up to which codes come in a stream, and up to which they are not expanded. */
#define CODED_ROWS  16
#define DIRECT_ROWS 16

typedef __m512i vi;

struct codes {
    vi size;
    __mmask64 negative;
};

INLINE struct codes codes_of(vi code, const bool wide)
{
    if (!wide)
        return (struct codes){code, 0};
    code = _mm512_xor_si512(code, _mm512_set1_epi8((char)0x80));
    return (struct codes){_mm512_abs_epi8(code), _mm512_movepi8_mask(code)};
}

INLINE vi add_products(vi sum, struct codes w, vi four, const bool wide)
{
    vi x = wide ? _mm512_mask_sub_epi8(four, w.negative, _mm512_setzero_si512(), four) : four;
    vi pairs = _mm512_maddubs_epi16(w.size, x);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

INLINE vi first_sum(int32_t offset, const bool wide)
{
    return _mm512_set1_epi32(wide ? 0 : offset);
}

#include "kernels/cpu/linear/packed_512.h"

/* --- activations ------------------------------------------------------------------------------ */

/* A whole group of numbers. */
static float round_group(const float *x, int8_t *codes)
{
    const vi size_mask = _mm512_set1_epi32(0x7FFFFFFF);
    vi largest = _mm512_setzero_si512();
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i += VL)
        largest = _mm512_max_epi32(
            largest, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + i)), size_mask));
    float inverse;
    const float scale = kva_packed_x_scale((uint32_t)_mm512_reduce_max_epi32(largest), &inverse);
    if (inverse == 0) {
        memset(codes, 0, KVA_PACKED_ROW_GROUP);
        return scale;
    }
    const __m512 factor = _mm512_set1_ps(inverse);
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i += VL) {
        vi c = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(c));
    }
    return scale;
}

static void sum_eights(const int8_t *codes, uint64_t *sums)
{
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i += 64, sums += 8) {
        const vi plus_128 =
            _mm512_xor_si512(_mm512_loadu_si512(codes + i), _mm512_set1_epi8((char)0x80));
        _mm512_storeu_si512(sums, _mm512_sad_epu8(plus_128, _mm512_setzero_si512()));
    }
}

#include "kernels/cpu/linear/packed_prepare.h"

void kva_linear_packed_prepare_avx512(const struct kva_linear_args *args, uint32_t first,
                                      uint32_t end, void *prepared)
{
    prepare(args, first, end, prepared);
}

void kva_linear_packed_avx512(const struct kva_cpu_linear *item)
{
    run_item(item);
}
