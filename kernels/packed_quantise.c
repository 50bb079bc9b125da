/* packed_quantise.c - packed matrices of numbers in 16 and 32 bits.
 *
 * int8 takes the largest weight of a group for its scale, as do 8 bits with a scale in 16. With
 * fewer bits it pays to cut extremes off: some scales are tried, each is fitted to the codes that
 * it gives by least squares, and the one with the least sum of squared errors stays. That is done
 * for the 16 outputs of a panel side by side, as loops that compilers vectorise; each output's sums
 * have their own order. */
#include "kernels/convert.h"
#include "kernels/packed_write.h"

#include <math.h>
#include <string.h>

#define PANEL KVA_PACKED_PANEL
#define BLOCK KVA_PACKED_BLOCK_MAX
#define GROUP 32u /* inputs that share a scale in fewer than 8 bits */

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

/* The number in 16 bits that is nearest to x, which is a number: as kva_f16_of_f32 has it, without a
 * branch, for the lanes of a panel. */
static float to_half(float x)
{
    const uint32_t bits = kva_bits_of_float(x), size = bits & 0x7FFFFFFFu;
    /* 11 bits, ties to even; 65504 is the largest. */
    uint32_t normal = (size + 0xFFFu + (size >> 13 & 1u)) & ~0x1FFFu;
    normal = normal > 0x477FE000u ? 0x477FE000u : normal;
    /* Below 2^-14 multiples of 2^-24, which is the last place of a half. */
    const uint32_t small = kva_bits_of_float(kva_float_of_bits(size) + 0.5f - 0.5f);
    return kva_float_of_bits((size < 0x38800000u ? small : normal) | (bits & 0x80000000u));
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

/* The code of w = scale * (code - zero) + min, cut to [0, top]; inverse = 1 / scale. Half of GGUF's
 * scales have a minus sign. What is no number gets code 0. */
static int32_t code_of(float w, float min, float inverse, int32_t zero, int32_t top)
{
    const float low = (float)-zero, high = (float)(top - zero);
    float x = (w - min) * inverse;
    x = x > low ? x : low;
    x = x < high ? x : high;
    return round_near(x) + zero;
}

static struct fit fit_bytes(const float *w, uint32_t count, uint8_t *codes)
{
    const float scale = to_half(largest_of(w, count) / 127.0f);
    const float inverse = scale != 0 ? 1 / scale : 0;
    for (uint32_t i = 0; i < count; i++)
        codes[i] = (uint8_t)code_of(w[i], 0, inverse, 128, 255);
    return (struct fit){scale, 0};
}

/* --- fewer ------------------------------------------------------------------------------------- */

/* Numbers of the 16 outputs of a panel. */
struct lanes {
    float at[PANEL];
};

struct fits {
    struct lanes scale;
    struct lanes min;
};

/* A group of every output of a panel: weights, and the best codes so far. */
struct search {
    uint32_t count;
    int32_t zero;
    int32_t top;        /* the largest code */
    struct lanes error; /* of what is in `codes`; infinity: nothing yet */
    struct fits fits;   /* of what is in `codes` */
    struct lanes w[GROUP];
    int32_t codes[GROUP][PANEL];
};

static void code_group(const struct search *search, const struct fits *fits, int32_t zero,
                       int32_t codes[GROUP][PANEL])
{
    const int32_t top = search->top;
    struct lanes inverse, min = fits->min;
    for (uint32_t n = 0; n < PANEL; n++)
        inverse.at[n] = fits->scale.at[n] != 0 ? 1 / fits->scale.at[n] : 0;
    for (uint32_t i = 0; i < search->count; i++)
        for (uint32_t n = 0; n < PANEL; n++)
            codes[i][n] = code_of(search->w[i].at[n], min.at[n], inverse.at[n], zero, top);
}

/* Sums over a group with its codes less the zero, q. */
struct sums {
    struct lanes q, qq, w, wq;
};

static struct sums sums_of(const struct search *search, int32_t codes[GROUP][PANEL], int32_t zero)
{
    struct sums sums = {{{0}}, {{0}}, {{0}}, {{0}}};
    for (uint32_t i = 0; i < search->count; i++) {
        for (uint32_t n = 0; n < PANEL; n++) {
            const float q = (float)(codes[i][n] - zero), w = search->w[i].at[n];
            sums.q.at[n] += q;
            sums.qq.at[n] += q * q;
            sums.w.at[n] += w;
            sums.wq.at[n] += w * q;
        }
    }
    return sums;
}

static void errors_of(const struct search *search, int32_t codes[GROUP][PANEL],
                      const struct fits *fits, struct lanes *ret)
{
    const struct lanes scale = fits->scale, min = fits->min;
    const int32_t zero = search->zero;
    struct lanes errors = {{0}};
    for (uint32_t i = 0; i < search->count; i++) {
        for (uint32_t n = 0; n < PANEL; n++) {
            const float q = (float)(codes[i][n] - zero);
            const float e = scale.at[n] * q + min.at[n] - search->w[i].at[n];
            errors.at[n] += e * e;
        }
    }
    *ret = errors;
}

/* Keeps the scales, rounded to 16 bits, where they are the best so far. */
static void consider(struct search *search, const struct fits *asked)
{
    int32_t codes[GROUP][PANEL], better[PANEL]; /* better: all bits or none */
    struct fits fits;
    struct lanes errors;
    for (uint32_t n = 0; n < PANEL; n++) {
        fits.scale.at[n] = to_half(asked->scale.at[n]);
        fits.min.at[n] = to_half(asked->min.at[n]);
    }
    code_group(search, &fits, search->zero, codes);
    errors_of(search, codes, &fits, &errors);
    for (uint32_t n = 0; n < PANEL; n++)
        better[n] = -(errors.at[n] < search->error.at[n]);
    for (uint32_t n = 0; n < PANEL; n++) {
        search->error.at[n] = better[n] ? errors.at[n] : search->error.at[n];
        search->fits.scale.at[n] = better[n] ? fits.scale.at[n] : search->fits.scale.at[n];
        search->fits.min.at[n] = better[n] ? fits.min.at[n] : search->fits.min.at[n];
    }
    for (uint32_t i = 0; i < search->count; i++)
        for (uint32_t n = 0; n < PANEL; n++)
            search->codes[i][n] ^= (search->codes[i][n] ^ codes[i][n]) & better[n];
}

/* The best scales for the codes that they give now. */
static void refit_scale(const struct search *search, struct fits *fits)
{
    int32_t codes[GROUP][PANEL];
    code_group(search, fits, search->zero, codes);
    const struct sums sums = sums_of(search, codes, search->zero);
    for (uint32_t n = 0; n < PANEL; n++)
        fits->scale.at[n] = sums.qq.at[n] > 0 ? sums.wq.at[n] / sums.qq.at[n] : 0;
}

/* The best scales and mins. */
static void refit_both(const struct search *search, struct fits *fits)
{
    const float count = (float)search->count;
    int32_t codes[GROUP][PANEL];
    code_group(search, fits, 0, codes);
    const struct sums sums = sums_of(search, codes, 0);
    for (uint32_t n = 0; n < PANEL; n++) {
        const float det = count * sums.qq.at[n] - sums.q.at[n] * sums.q.at[n];
        if (det <= 0)
            continue;
        const float scale = (count * sums.wq.at[n] - sums.q.at[n] * sums.w.at[n]) / det;
        fits->min.at[n] = (sums.w.at[n] - scale * sums.q.at[n]) / count;
        fits->scale.at[n] = scale;
    }
}

/* The weight of largest size gets the lowest code, of which there is one more than of high ones. */
static void fit_scales(struct search *search)
{
    const float shares[] = {1.0f, 0.92f, 1.08f, 0.85f};
    struct lanes extreme = {{0}};
    for (uint32_t i = 0; i < search->count; i++) {
        for (uint32_t n = 0; n < PANEL; n++) {
            const float w = search->w[i].at[n];
            extreme.at[n] = fabsf(w) > fabsf(extreme.at[n]) ? w : extreme.at[n];
        }
    }
    for (uint32_t i = 0; i < KVA_COUNT_OF(shares); i++) {
        struct fits fits = {{{0}}, {{0}}};
        for (uint32_t n = 0; n < PANEL; n++)
            fits.scale.at[n] = extreme.at[n] * shares[i] / (float)-search->zero;
        consider(search, &fits);
        refit_scale(search, &fits);
        consider(search, &fits);
    }
}

static void fit_both(struct search *search)
{
    const float cuts[] = {0, 0.03f, 0.06f, 0.1f}; /* of the range, at each end */
    struct lanes low = search->w[0], high = search->w[0];
    for (uint32_t i = 1; i < search->count; i++) {
        for (uint32_t n = 0; n < PANEL; n++) {
            const float w = search->w[i].at[n];
            low.at[n] = w < low.at[n] ? w : low.at[n];
            high.at[n] = w > high.at[n] ? w : high.at[n];
        }
    }
    for (uint32_t i = 0; i < KVA_COUNT_OF(cuts); i++) {
        struct fits fits;
        for (uint32_t n = 0; n < PANEL; n++) {
            const float cut = (high.at[n] - low.at[n]) * cuts[i];
            fits.scale.at[n] = (high.at[n] - low.at[n] - 2 * cut) / (float)search->top;
            fits.min.at[n] = low.at[n] + cut;
        }
        consider(search, &fits);
        refit_both(search, &fits);
        consider(search, &fits);
    }
}

/* --- panels ------------------------------------------------------------------------------------ */

bool kva_packed_is_made(enum kva_dtype dtype)
{
    return dtype >= KVA_INT8 && dtype <= KVA_Q8_0;
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

/* Weights of a block, output by output; 0 behind the last one. */
struct weights {
    float at[PANEL][BLOCK];
};

/* One group of every output. */
static void fit_group(const struct kva_packed_format *format, const struct weights *weights,
                      uint32_t rows, uint32_t at, uint32_t count, struct kva_packed_codes *codes,
                      uint8_t *head)
{
    struct search search = {.count = count, .zero = format->zero};
    search.top = (1 << (format->low_bits + format->high_bits)) - 1;
    for (uint32_t n = 0; n < PANEL; n++) {
        search.error.at[n] = INFINITY;
        for (uint32_t i = 0; i < count; i++)
            search.w[i].at[n] = weights->at[n][at + i];
    }
    if (format->has_min)
        fit_both(&search);
    else
        fit_scales(&search);
    for (uint32_t n = 0; n < rows; n++) {
        put_fit(format, head, at / format->scale_inputs, n,
                (struct fit){search.fits.scale.at[n], search.fits.min.at[n]});
        for (uint32_t i = 0; i < count; i++)
            codes->at[n][at + i] = (uint8_t)search.codes[i][n];
    }
}

/* The same in 8 bits, which need no search. */
static void fit_group_8bit(enum kva_dtype dtype, const struct weights *weights, uint32_t rows,
                           uint32_t at, uint32_t count, struct kva_packed_codes *codes,
                           uint8_t *head)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    for (uint32_t n = 0; n < rows; n++) {
        const float *w = weights->at[n] + at;
        uint8_t *to = codes->at[n] + at;
        put_fit(format, head, at / format->scale_inputs, n,
                dtype == KVA_Q8_0 ? fit_bytes(w, count, to) : fit_int8(w, count, to));
    }
}

/* Inputs [col, col + inputs) of a panel, which may end behind the last column. */
static bool quantise_block(enum kva_dtype dtype, const struct source *source, uint32_t panel,
                           uint32_t col, uint32_t inputs, uint8_t *to)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    const uint32_t count = kva_min_u32(inputs, source->cols - col), group = format->scale_inputs;
    const uint32_t rows = kva_min_u32(PANEL, source->rows - panel * PANEL);
    struct kva_packed_codes codes;
    struct weights weights;
    memset(&codes, format->zero, sizeof(codes));
    memset(to, 0, format->head_bytes);
    memset(weights.at, 0, sizeof(weights.at));
    for (uint32_t n = 0; n < rows; n++) {
        const size_t row = (size_t)panel * PANEL + n;
        kva_f32_array(kva_element(source->from, source->dtype, row * source->cols + col),
                      source->dtype, count, weights.at[n]);
        if (!fits(format, largest_of(weights.at[n], count)))
            return false;
    }
    for (uint32_t at = 0; at < count; at += group) {
        const uint32_t some = kva_min_u32(group, count - at);
        if (format->low_bits == 8)
            fit_group_8bit(dtype, &weights, rows, at, some, &codes, to);
        else
            fit_group(format, &weights, rows, at, some, &codes, to);
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
