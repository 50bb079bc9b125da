/* packed_quantise.c - packed matrices of numbers in 16 and 32 bits.
 *
 * int8 takes the largest weight of a group for its scale, as do 8 bits with a scale in 16. With
 * fewer bits it pays to cut extremes off: some scales are tried, each is fitted to the codes that
 * it gives by least squares, and the one with the least sum of squared errors stays. */
#include "kernels/convert.h"
#include "kernels/packed_write.h"

#include <math.h>
#include <string.h>

#define PANEL KVA_PACKED_PANEL
#define BLOCK KVA_PACKED_BLOCK_MAX

struct fit {
    float scale;
    float min;
};

/* Sizes of floats without sign order as their bits do, and what is no number is above them all. */
static float largest_of(const float *w, uint32_t count)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = kva_bits_of_float(w[i]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return kva_float_of_bits(largest);
}

/* To the nearest whole number, ties to even, for sizes up to 2^22: the sum has no room for
 * fractions. Written so that compilers vectorise it. */
static int32_t round_near(float x)
{
    const float shift = 0x1.8p23f;
    return (int32_t)(kva_bits_of_float(x + shift) - kva_bits_of_float(shift));
}

static float to_half(float x)
{
    return kva_f32_of_f16(kva_f16_of_f32(x));
}

/* --- 8 bits ------------------------------------------------------------------------------------ */

/* Below this, an inverse might not be a number: weights of no effect. */
static float or_nothing(float largest)
{
    return largest < 0x1p-100f ? 0 : largest;
}

static struct fit fit_int8(const float *w, uint32_t count, uint8_t *codes)
{
    const float largest = or_nothing(largest_of(w, count));
    const float inverse = largest > 0 ? 127.0f / largest : 0;
    for (uint32_t i = 0; i < count; i++)
        codes[i] = (uint8_t)(round_near(w[i] * inverse) + 128);
    return (struct fit){largest / 127.0f, 0};
}

/* Codes of scale * (code - zero) + min, cut to [0, top]. Half of GGUF's scales have a minus sign. */
static void code_group(const float *w, uint32_t count, struct fit fit, int32_t zero, int32_t top,
                       uint8_t *codes)
{
    const float inverse = fit.scale != 0 ? 1 / fit.scale : 0;
    for (uint32_t i = 0; i < count; i++) {
        float x = (w[i] - fit.min) * inverse;
        x = x < -256.0f ? -256.0f : x > 256.0f ? 256.0f : x;
        int32_t code = round_near(x) + zero;
        codes[i] = (uint8_t)(code < 0 ? 0 : code > top ? top : code);
    }
}

static struct fit fit_bytes(const float *w, uint32_t count, uint8_t *codes)
{
    struct fit fit = {to_half(largest_of(w, count) / 127.0f), 0};
    code_group(w, count, fit, 128, 255, codes);
    return fit;
}

/* --- fewer ------------------------------------------------------------------------------------- */

/* Sums over a group with its codes less the zero, q. */
struct sums {
    float q, qq, w, wq;
};

static struct sums sums_of(const float *w, uint32_t count, const uint8_t *codes, int32_t zero)
{
    struct sums sums = {0, 0, 0, 0};
    for (uint32_t i = 0; i < count; i++) {
        float q = (float)(codes[i] - zero);
        sums.q += q;
        sums.qq += q * q;
        sums.w += w[i];
        sums.wq += w[i] * q;
    }
    return sums;
}

static float error_of(const float *w, uint32_t count, const uint8_t *codes, int32_t zero,
                      struct fit fit)
{
    float error = 0;
    for (uint32_t i = 0; i < count; i++) {
        float e = fit.scale * (float)(codes[i] - zero) + fit.min - w[i];
        error += e * e;
    }
    return error;
}

struct search {
    const float *w;
    uint32_t count;
    int32_t zero;
    int32_t top; /* the largest code */
    float error; /* of what is in `codes`; infinity: nothing yet */
    struct fit fit;
    uint8_t codes[BLOCK];
};

/* Keeps the scales, rounded to 16 bits, if they are the best so far. */
static void consider(struct search *search, struct fit fit)
{
    uint8_t codes[BLOCK];
    fit = (struct fit){to_half(fit.scale), to_half(fit.min)};
    code_group(search->w, search->count, fit, search->zero, search->top, codes);
    float error = error_of(search->w, search->count, codes, search->zero, fit);
    if (error < search->error) {
        search->error = error;
        search->fit = fit;
        memcpy(search->codes, codes, search->count);
    }
}

/* The best scale for the codes that `fit` gives. */
static struct fit refit_scale(const struct search *search, struct fit fit)
{
    uint8_t codes[BLOCK];
    code_group(search->w, search->count, fit, search->zero, search->top, codes);
    struct sums sums = sums_of(search->w, search->count, codes, search->zero);
    return (struct fit){sums.qq > 0 ? sums.wq / sums.qq : 0, 0};
}

/* The best scale and min. */
static struct fit refit_both(const struct search *search, struct fit fit)
{
    const float n = (float)search->count;
    uint8_t codes[BLOCK];
    code_group(search->w, search->count, fit, 0, search->top, codes);
    struct sums sums = sums_of(search->w, search->count, codes, 0);
    float det = n * sums.qq - sums.q * sums.q;
    if (det <= 0)
        return fit;
    float scale = (n * sums.wq - sums.q * sums.w) / det;
    return (struct fit){scale, (sums.w - scale * sums.q) / n};
}

static struct fit finish(const struct search *search, uint8_t *codes)
{
    memcpy(codes, search->codes, search->count);
    return search->fit;
}

/* The weight of largest size gets the lowest code, of which there is one more than of high ones. */
static struct fit fit_scale(const float *w, uint32_t count, int32_t zero, uint8_t *codes)
{
    const float shares[] = {1.0f, 0.92f, 1.08f, 0.85f};
    struct search search = {w, count, zero, 2 * zero - 1, INFINITY, {0, 0}, {0}};
    float extreme = 0;
    for (uint32_t i = 0; i < count; i++)
        extreme = fabsf(w[i]) > fabsf(extreme) ? w[i] : extreme;
    for (uint32_t i = 0; i < KVA_COUNT_OF(shares); i++) {
        struct fit fit = {extreme * shares[i] / (float)-zero, 0};
        consider(&search, fit);
        consider(&search, refit_scale(&search, fit));
    }
    return finish(&search, codes);
}

static struct fit fit_both(const float *w, uint32_t count, int32_t top, uint8_t *codes)
{
    const float cuts[] = {0, 0.03f, 0.06f, 0.1f}; /* of the range, at each end */
    struct search search = {w, count, 0, top, INFINITY, {0, 0}, {0}};
    float low = w[0], high = w[0];
    for (uint32_t i = 1; i < count; i++) {
        low = w[i] < low ? w[i] : low;
        high = w[i] > high ? w[i] : high;
    }
    for (uint32_t i = 0; i < KVA_COUNT_OF(cuts); i++) {
        float cut = (high - low) * cuts[i];
        struct fit fit = {(high - low - 2 * cut) / (float)top, low + cut};
        consider(&search, fit);
        consider(&search, refit_both(&search, fit));
    }
    return finish(&search, codes);
}

/* --- panels ------------------------------------------------------------------------------------ */

bool kva_packed_is_made(enum kva_dtype dtype)
{
    return dtype >= KVA_INT8 && dtype <= KVA_Q8_0;
}

static struct fit fit_group(enum kva_dtype dtype, const float *w, uint32_t count, uint8_t *codes)
{
    switch (dtype) {
    case KVA_Q4_0:
        return fit_scale(w, count, 8, codes);
    case KVA_Q5_0:
        return fit_scale(w, count, 16, codes);
    case KVA_Q4_1:
        return fit_both(w, count, 15, codes);
    case KVA_Q5_1:
        return fit_both(w, count, 31, codes);
    case KVA_Q8_0:
        return fit_bytes(w, count, codes);
    default:
        return fit_int8(w, count, codes);
    }
}

/* Scales in 16 bits have a largest one. */
static bool fits(const struct kva_packed_format *format, float largest)
{
    const float half_max = 65504.0f;
    const float codes = format->low_bits == 8 ? 127.0f : (float)(format->zero ? format->zero : 1);
    return isfinite(largest) && (format->head == KVA_HEAD_F32 || largest < half_max * codes / 2);
}

static void put_fit(const struct kva_packed_format *format, uint8_t *head, uint32_t group,
                    uint32_t n, struct fit fit)
{
    const uint32_t at = group * PANEL + n, groups = format->block_inputs / format->scale_inputs;
    uint16_t scale = kva_f16_of_f32(fit.scale), min = kva_f16_of_f32(fit.min);
    if (format->head == KVA_HEAD_F32) {
        memcpy(head + at * sizeof(fit.scale), &fit.scale, sizeof(fit.scale));
        return;
    }
    memcpy(head + at * sizeof(scale), &scale, sizeof(scale));
    if (format->has_min)
        memcpy(head + (groups * PANEL + at) * sizeof(min), &min, sizeof(min));
}

/* A block of 16 rows of numbers. */
struct source {
    const void *from;
    enum kva_dtype dtype;
    uint32_t rows;
    uint32_t cols;
};

/* Inputs [col, col + inputs) of a panel, which may end behind the last column. */
static bool quantise_block(enum kva_dtype dtype, const struct source *source, uint32_t panel,
                           uint32_t col, uint32_t inputs, uint8_t *to)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    const uint32_t count = kva_min_u32(inputs, source->cols - col), group = format->scale_inputs;
    struct kva_packed_codes codes;
    memset(&codes, format->zero, sizeof(codes));
    memset(to, 0, format->head_bytes);
    for (uint32_t n = 0; n < PANEL; n++) {
        const size_t row = (size_t)panel * PANEL + n;
        float w[BLOCK];
        if (row >= source->rows)
            continue;
        kva_f32_array(kva_element(source->from, source->dtype, row * source->cols + col),
                      source->dtype, count, w);
        if (!fits(format, largest_of(w, count)))
            return false;
        for (uint32_t at = 0; at < count; at += group)
            put_fit(format, to, at / group, n,
                    fit_group(dtype, w + at, kva_min_u32(group, count - at), codes.at[n] + at));
    }
    kva_packed_write_pieces(format, &codes, inputs, to + format->head_bytes);
    return true;
}

bool kva_packed_quantise(enum kva_dtype dtype, const void *from, enum kva_dtype from_dtype,
                         uint32_t rows, uint32_t cols, uint32_t panel_first, uint32_t panel_end,
                         void *to)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    const struct source source = {from, from_dtype, rows, cols};
    const uint32_t padded = (uint32_t)kva_align_up(cols, KVA_PACKED_PIECE_INPUTS);
    uint8_t *out = to;
    for (uint32_t panel = panel_first; panel < panel_end; panel++) {
        for (uint32_t col = 0; col < padded; col += format->block_inputs) {
            const uint32_t inputs = kva_min_u32(format->block_inputs, padded - col);
            if (!quantise_block(dtype, &source, panel, col, inputs, out))
                return false;
            out += format->head_bytes +
                   inputs / KVA_PACKED_PIECE_INPUTS * kva_packed_piece_bytes(format);
        }
    }
    return true;
}
