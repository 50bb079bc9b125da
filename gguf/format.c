/* format.c - decoding blocks of each number format. */
#include "gguf/format.h"

#include <string.h>

/* Weights of a K-quant's block. */
#define K_VALUES 256u

static uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

/* binary16 to binary32 without a branch that depends on the value: normal numbers are scaled from
 * an exponent that is 112 too large, subnormal ones are subtracted from a power of two. */
static float load_half(const uint8_t *at)
{
    uint32_t word = (uint32_t)load_u16(at) << 16;
    uint32_t sign = word & 0x80000000u, twice = word + word;
    uint32_t normal_bits = (twice >> 4) + (0xE0u << 23), small_bits = (twice >> 17) | (126u << 23);
    float normal, small, value;
    memcpy(&normal, &normal_bits, sizeof(normal));
    memcpy(&small, &small_bits, sizeof(small));
    normal *= 0x1p-112f;
    small -= 0.5f;
    value = twice < (1u << 27) ? small : normal;
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    bits |= sign;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* --- blocks of 32: a scale, some with an offset ----------------------------------------------- */

static void decode_q4_0(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 18, out += 32) {
        float scale = load_half(block);
        const uint8_t *q = block + 2;
        for (int i = 0; i < 16; i++) {
            out[i] = scale * (float)((q[i] & 15) - 8);
            out[i + 16] = scale * (float)((q[i] >> 4) - 8);
        }
    }
}

static void decode_q4_1(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 20, out += 32) {
        float scale = load_half(block), offset = load_half(block + 2);
        const uint8_t *q = block + 4;
        for (int i = 0; i < 16; i++) {
            out[i] = scale * (float)(q[i] & 15) + offset;
            out[i + 16] = scale * (float)(q[i] >> 4) + offset;
        }
    }
}

static void decode_q5_0(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 22, out += 32) {
        float scale = load_half(block);
        uint32_t high = load_u32(block + 2);
        const uint8_t *q = block + 6;
        for (int i = 0; i < 16; i++) {
            out[i] = scale * (float)((int)((q[i] & 15) | (high >> i & 1) << 4) - 16);
            out[i + 16] = scale * (float)((int)((q[i] >> 4) | (high >> (i + 16) & 1) << 4) - 16);
        }
    }
}

static void decode_q5_1(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 24, out += 32) {
        float scale = load_half(block), offset = load_half(block + 2);
        uint32_t high = load_u32(block + 4);
        const uint8_t *q = block + 8;
        for (int i = 0; i < 16; i++) {
            out[i] = scale * (float)((q[i] & 15) | (high >> i & 1) << 4) + offset;
            out[i + 16] = scale * (float)((q[i] >> 4) | (high >> (i + 16) & 1) << 4) + offset;
        }
    }
}

static void decode_q8_0(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 34, out += 32) {
        float scale = load_half(block);
        const int8_t *q = (const int8_t *)block + 2;
        for (int i = 0; i < 32; i++)
            out[i] = scale * (float)q[i];
    }
}

/* --- blocks of 256: scales of 16 or 32 weights, which are scaled themselves -------------------- */

static void decode_q2_k(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 84) {
        float scale = load_half(block + 80), offset = load_half(block + 82);
        for (int part = 0; part < 16; part++, out += 16) {
            /* 128 weights lie in 32 bytes, two bits of each at a time. */
            const uint8_t *q = block + 16 + part / 8 * 32 + part % 2 * 16;
            int shift = part % 8 / 2 * 2;
            float a = scale * (float)(block[part] & 15), b = offset * (float)(block[part] >> 4);
            for (int i = 0; i < 16; i++)
                out[i] = a * (float)(q[i] >> shift & 3) - b;
        }
    }
}

static void decode_q3_k(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 110) {
        const uint8_t *high = block, *packed = block + 96;
        float scale = load_half(block + 108);
        for (int part = 0; part < 16; part++, out += 16) {
            const uint8_t *q = block + 32 + part / 8 * 32 + part % 2 * 16;
            const uint8_t *h = high + part % 2 * 16;
            int shift = part % 8 / 2 * 2, bit = part / 2;
            /* Of 16 scales the low four bits lie in eight bytes, the high two in four. */
            int low = part < 8 ? packed[part] & 15 : packed[part - 8] >> 4;
            int sub = (low | (packed[8 + part % 4] >> part / 4 * 2 & 3) << 4) - 32;
            float a = scale * (float)sub;
            for (int i = 0; i < 16; i++)
                out[i] = a * (float)((q[i] >> shift & 3) - (h[i] >> bit & 1 ? 0 : 4));
        }
    }
}

/* Scale and offset of the eight parts of Q4_K and Q5_K: six bits each in twelve bytes. */
static void unpack_k4(const uint8_t *packed, int part, int *scale, int *offset)
{
    if (part < 4) {
        *scale = packed[part] & 63;
        *offset = packed[part + 4] & 63;
    } else {
        *scale = (packed[part + 4] & 15) | packed[part - 4] >> 6 << 4;
        *offset = packed[part + 4] >> 4 | packed[part] >> 6 << 4;
    }
}

static void decode_q4_k(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 144) {
        float scale = load_half(block), offset = load_half(block + 2);
        for (int part = 0; part < 8; part++, out += 32) {
            const uint8_t *q = block + 16 + part / 2 * 32;
            int shift = part % 2 * 4, s, o;
            unpack_k4(block + 4, part, &s, &o);
            float a = scale * (float)s, b = offset * (float)o;
            for (int i = 0; i < 32; i++)
                out[i] = a * (float)(q[i] >> shift & 15) - b;
        }
    }
}

static void decode_q5_k(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 176) {
        float scale = load_half(block), offset = load_half(block + 2);
        const uint8_t *high = block + 16;
        for (int part = 0; part < 8; part++, out += 32) {
            const uint8_t *q = block + 48 + part / 2 * 32;
            int shift = part % 2 * 4, s, o;
            unpack_k4(block + 4, part, &s, &o);
            float a = scale * (float)s, b = offset * (float)o;
            for (int i = 0; i < 32; i++)
                out[i] = a * (float)((q[i] >> shift & 15) | (high[i] >> part & 1) << 4) - b;
        }
    }
}

static void decode_q6_k(const uint8_t *block, size_t count, float *out)
{
    for (; count > 0; count--, block += 210) {
        const int8_t *scales = (const int8_t *)block + 192;
        float scale = load_half(block + 208);
        for (int part = 0; part < 16; part++, out += 16) {
            /* 128 weights: four low bits in 64 bytes, two high ones in 32. */
            const uint8_t *low = block + part / 8 * 64 + part % 4 * 16;
            const uint8_t *high = block + 128 + part / 8 * 32 + part % 2 * 16;
            int low_shift = part % 8 / 4 * 4, high_shift = part % 8 / 2 * 2;
            float a = scale * (float)scales[part];
            for (int i = 0; i < 16; i++)
                out[i] =
                    a *
                    (float)(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
        }
    }
}

/* --- the table --------------------------------------------------------------------------------- */

static const struct kva_gguf_format table[] = {
    {"F32", KVA_GGUF_F32, 1, 4, NULL},
    {"F16", KVA_GGUF_F16, 1, 2, NULL},
    {"BF16", KVA_GGUF_BF16, 1, 2, NULL},
    {"Q8_0", 8, 32, 34, decode_q8_0},
    {"Q4_0", 2, 32, 18, decode_q4_0},
    {"Q4_1", 3, 32, 20, decode_q4_1},
    {"Q5_0", 6, 32, 22, decode_q5_0},
    {"Q5_1", 7, 32, 24, decode_q5_1},
    {"Q2_K", 10, K_VALUES, 84, decode_q2_k},
    {"Q3_K", 11, K_VALUES, 110, decode_q3_k},
    {"Q4_K", 12, K_VALUES, 144, decode_q4_k},
    {"Q5_K", 13, K_VALUES, 176, decode_q5_k},
    {"Q6_K", 14, K_VALUES, 210, decode_q6_k},
    /* For sizes and messages. */
    {"Q8_1", 9, 32, 36, NULL},
    {"Q8_K", 15, K_VALUES, 292, NULL},
    {"IQ2_XXS", 16, K_VALUES, 66, NULL},
    {"IQ2_XS", 17, K_VALUES, 74, NULL},
    {"IQ3_XXS", 18, K_VALUES, 98, NULL},
    {"IQ1_S", 19, K_VALUES, 50, NULL},
    {"IQ4_NL", 20, 32, 18, NULL},
    {"IQ3_S", 21, K_VALUES, 110, NULL},
    {"IQ2_S", 22, K_VALUES, 82, NULL},
    {"IQ4_XS", 23, K_VALUES, 136, NULL},
    {"I8", 24, 1, 1, NULL},
    {"I16", 25, 1, 2, NULL},
    {"I32", 26, 1, 4, NULL},
    {"I64", 27, 1, 8, NULL},
    {"F64", 28, 1, 8, NULL},
    {"IQ1_M", 29, K_VALUES, 56, NULL},
    {"TQ1_0", 34, K_VALUES, 54, NULL},
    {"TQ2_0", 35, K_VALUES, 66, NULL},
    {"MXFP4", 39, 32, 17, NULL},
};

const struct kva_gguf_format *kva_gguf_format_find(uint32_t id)
{
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++)
        if (table[i].id == id)
            return &table[i];
    return NULL;
}

bool kva_gguf_format_is_supported(const struct kva_gguf_format *format)
{
    return format->decode || format->id == KVA_GGUF_F32 || format->id == KVA_GGUF_F16 ||
           format->id == KVA_GGUF_BF16;
}

void kva_gguf_format_list(struct kva_buf *out)
{
    for (size_t i = 0, listed = 0; i < KVA_COUNT_OF(table); i++)
        if (kva_gguf_format_is_supported(&table[i]))
            kva_buf_printf(out, "%s%s", listed++ ? ", " : "", table[i].name);
}
