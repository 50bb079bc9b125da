/* Numbers in the formats of tensors. */
#include "tests/kernels/formats.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

double check_widen(uint16_t bits, enum kva_dtype dtype)
{
    int mantissa_bits = dtype == KVA_F16 ? 10 : 7;
    int bias = dtype == KVA_F16 ? 15 : 127;
    int exponent = (bits & 0x7FFF) >> mantissa_bits;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double value;
    if (exponent == (dtype == KVA_F16 ? 31 : 255))
        value = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -value : value;
}

uint16_t check_narrow(float value, enum kva_dtype dtype)
{
    uint16_t largest = dtype == KVA_F16 ? 0x7BFF : 0x7F7F;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs((double)value);
    if (size >= check_widen(largest, dtype))
        return (uint16_t)(sign | largest);
    /* Patterns ascend with their values: find the neighbours, then take the nearer, even on a tie.
     */
    uint16_t low = 0, high = largest;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (check_widen(middle, dtype) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - check_widen(low, dtype), above = check_widen(high, dtype) - size;
    bool up = above < below || (above == below && (low & 1));
    return (uint16_t)(sign | (up ? high : low));
}

double check_round_bf16(double value)
{
    if (fabs(value) < 0x1p-126)
        return 0;
    return isnan(value) ? value : check_widen(check_narrow((float)value, KVA_BF16), KVA_BF16);
}

float format_round(float x, enum kva_dtype dtype)
{
    if (dtype == KVA_F32 || x == 0.0f || !isfinite(x))
        return x;
    int exponent;
    (void)frexpf(x, &exponent);
    int bits = dtype == KVA_F16 ? 11 : 8, lowest = dtype == KVA_F16 ? -24 : -133;
    int step = exponent - bits > lowest ? exponent - bits : lowest;
    float rounded = ldexpf(nearbyintf(ldexpf(x, -step)), step);
    return dtype == KVA_F16 && fabsf(rounded) > 65504.0f ? copysignf(INFINITY, x) : rounded;
}

double format_unit(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? 0x1p-24 : dtype == KVA_F16 ? 0x1p-11 : 0x1p-8;
}

double format_least(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? 0x1p-150 : dtype == KVA_F16 ? 0x1p-25 : 0x1p-134;
}

void format_store(void *to, size_t index, float x, enum kva_dtype dtype)
{
    float rounded = format_round(x, dtype);
    uint32_t word;
    uint16_t bits;
    if (dtype == KVA_F32) {
        memcpy((float *)to + index, &x, sizeof x);
        return;
    }
    memcpy(&word, &rounded, 4);
    if (dtype == KVA_BF16) {
        bits = (uint16_t)(word >> 16 | (isnan(rounded) ? 0x40 : 0));
    } else {
        uint16_t sign = (uint16_t)(word >> 16 & 0x8000);
        float size = fabsf(rounded);
        if (isnan(rounded))
            bits = 0x7E00;
        else if (size < 0x1p-14f)
            bits = (uint16_t)(sign | (uint16_t)(size * 0x1p24f));
        else if (isinf(size))
            bits = (uint16_t)(sign | 0x7C00);
        else
            bits = (uint16_t)(sign | ((word & 0x7FFFFFFF) - (112u << 23)) >> 13);
    }
    ((uint16_t *)to)[index] = bits;
}

float format_fetch(const void *from, size_t index, enum kva_dtype dtype)
{
    float x;
    if (dtype == KVA_F32) {
        memcpy(&x, (const float *)from + index, sizeof x);
        return x;
    }
    return (float)check_widen(((const uint16_t *)from)[index], dtype);
}
