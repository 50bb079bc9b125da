/* int8_avx2.c - linear with weights in int8, level avx2, which has no product of signed bytes: the
 * sizes of the weights' codes times the activations' with the sign of both, two products to a
 * 16-bit sum that cannot overflow (2 * 127 * 127), and again two of these. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/avx2.h"

#include <stdbool.h>
#include <string.h>

/* Register tiles, of 16 registers: 4 sums, the weights' 4, and what is needed to multiply. */
#define STREAM_ROWS 4
#define TILE_ROWS   2
#define ROWS_MAX    STREAM_ROWS
#define TILE_PANELS 2

typedef __m256i vi;

struct codes {
    vi code;
    vi size;
};

INLINE struct codes load_codes(const uint8_t *from)
{
    vi code = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)from),
                               _mm256_set1_epi8((char)0x80));
    return (struct codes){code, _mm256_abs_epi8(code)};
}

INLINE vi add_products(vi sum, struct codes w, vi four)
{
    vi pairs = _mm256_maddubs_epi16(w.size, _mm256_sign_epi8(four, w.code));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

INLINE vi first_sum(int32_t offset KVA_UNUSED)
{
    return _mm256_setzero_si256();
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

#include "kernels/cpu/linear/int8_body.h"

/* --- activations ------------------------------------------------------------------------------ */

/* A whole group of numbers. */
static void round_group(const float *x, int8_t *codes, struct kva_int8_x_group *group)
{
    const vi size_mask = _mm256_set1_epi32(0x7FFFFFFF);
    vi largest = _mm256_setzero_si256();
    for (uint32_t i = 0; i < KVA_INT8_GROUP; i += VL)
        largest = _mm256_max_epi32(
            largest, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), size_mask));
    __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    float inverse;
    group->scale = kva_int8_x_scale((uint32_t)_mm_cvtsi128_si32(four), &inverse);
    if (inverse == 0) {
        memset(codes, 0, KVA_INT8_GROUP);
        group->offset = 0;
        return;
    }
    const __m256 factor = _mm256_set1_ps(inverse);
    vi sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < KVA_INT8_GROUP; i += 4 * VL) {
        vi c[4];
        for (uint32_t j = 0; j < 4; j++) {
            c[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + j * VL), factor));
            sum = _mm256_add_epi32(sum, c[j]);
        }
        vi bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
        /* Packing goes by halves of 128 bits. */
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    group->offset = -128 * _mm_cvtsi128_si32(four);
}

#include "kernels/cpu/linear/int8_prepare.h"

void kva_linear_int8_prepare_avx2(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                                  void *prepared)
{
    prepare(args, first, end, prepared);
}

void kva_linear_int8_avx2(const struct kva_cpu_linear *item)
{
    run_item(item);
}
