/* packed_avx2.c - linear with packed weights, level avx2, which has no product of signed bytes that
 * sums to 32 bits. Codes of up to 7 bits are multiplied as they are, two products to a 16-bit sum
 * that cannot overflow (2 * 63 * 127), and again two of these. Of 8 bits: the sizes of code minus
 * 128 times the activations' with the sign of both (2 * 127 * 127). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/avx2.h"

#include <stdbool.h>
#include <string.h>

/* Register tiles, of 16 registers: 4 sums, 4 parts of totals, and what is needed to multiply. */
#define STREAM_ROWS 4
#define TILE_ROWS   2
#define ROWS_MAX    STREAM_ROWS
#define TILE_PANELS 2

/* Rows up to which codes come in a stream, and up to which they are not expanded. */
#define CODED_ROWS  8
#define DIRECT_ROWS 8

typedef __m256i vi;

struct codes {
    vi code;
    vi size;
};

INLINE struct codes codes_of(vi code, const bool wide)
{
    if (!wide)
        return (struct codes){code, code};
    code = _mm256_xor_si256(code, _mm256_set1_epi8((char)0x80));
    return (struct codes){code, _mm256_abs_epi8(code)};
}

INLINE vi add_products(vi sum, struct codes w, vi four, const bool wide)
{
    vi pairs = _mm256_maddubs_epi16(w.size, wide ? _mm256_sign_epi8(four, w.code) : four);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE vi first_sum(int32_t offset, const bool wide)
{
    return _mm256_set1_epi32(wide ? 0 : offset);
}

INLINE vi broadcast_four(const int8_t *from)
{
    int32_t four;
    memcpy(&four, from, sizeof(four));
    return _mm256_set1_epi32(four);
}

INLINE vi broadcast_int(int32_t x)
{
    return _mm256_set1_epi32(x);
}

INLINE vi add_ints(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

INLINE vf float_of_ints(vi x)
{
    return _mm256_cvtepi32_ps(x);
}

/* --- codes and scales as they are stored ------------------------------------------------------- */

INLINE vi load_bytes(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

INLINE void store_bytes(uint8_t *to, vi x)
{
    _mm256_store_si256((__m256i *)(void *)to, x);
}

/* Of numbers of 16 bits. */
INLINE vi shift_right(vi x, const int bits)
{
    return _mm256_srli_epi16(x, bits);
}

INLINE vi shift_left(vi x, const int bits)
{
    return _mm256_slli_epi16(x, bits);
}

INLINE vi and_bytes(vi x, uint8_t mask)
{
    return _mm256_and_si256(x, _mm256_set1_epi8((char)mask));
}

INLINE vi or_bytes(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}

INLINE vf load_halves(const uint8_t *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
}

INLINE vi load_signed(const uint8_t *from)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
}

INLINE vi load_unsigned(const uint8_t *from)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
}

#include "kernels/cpu/linear/packed_body.h"

/* --- activations ------------------------------------------------------------------------------ */

/* A whole group of numbers. */
static float round_group(const float *x, int8_t *codes)
{
    const vi size_mask = _mm256_set1_epi32(0x7FFFFFFF);
    vi largest = _mm256_setzero_si256();
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i += VL)
        largest = _mm256_max_epi32(
            largest, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), size_mask));
    __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    float inverse;
    const float scale = kva_packed_x_scale((uint32_t)_mm_cvtsi128_si32(four), &inverse);
    if (inverse == 0) {
        memset(codes, 0, KVA_PACKED_ROW_GROUP);
        return scale;
    }
    const __m256 factor = _mm256_set1_ps(inverse);
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i += 4 * VL) {
        vi c[4];
        for (uint32_t j = 0; j < 4; j++)
            c[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + j * VL), factor));
        vi bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
        /* Packing goes by halves of 128 bits. */
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    return scale;
}

static void sum_eights(const int8_t *codes, uint64_t *sums)
{
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i += 32, sums += 4) {
        const vi plus_128 =
            _mm256_xor_si256(_mm256_loadu_si256((const vi *)(const void *)(codes + i)),
                             _mm256_set1_epi8((char)0x80));
        _mm256_storeu_si256((vi *)(void *)sums, _mm256_sad_epu8(plus_128, _mm256_setzero_si256()));
    }
}

#include "kernels/cpu/linear/packed_prepare.h"

void kva_linear_packed_prepare_avx2(const struct kva_linear_args *args, uint32_t first,
                                    uint32_t end, void *prepared)
{
    prepare(args, first, end, prepared);
}

void kva_linear_packed_avx2(const struct kva_cpu_linear *item)
{
    run_item(item);
}
