#include "tests/kernels/store_case.h"
#include "kernels/convert.h"

#include <string.h>

/* --- shapes ------------------------------------------------------------------------------------ */

#define PLAIN  KVA_CODING_PLAIN
#define TURNED KVA_CODING_TURNED

const struct store_shape store_shapes[STORE_SHAPES] = {
    {2, 64, 0, KVA_BF16, 0, PLAIN, false},   {1, 80, 0, KVA_F16, 32, PLAIN, false},
    {2, 64, 4, KVA_F16, 0, PLAIN, false},    {1, 128, 3, KVA_BF16, 0, PLAIN, true},
    {3, 20, 2, KVA_F16, 0, PLAIN, false},    {1, 80, 8, KVA_BF16, 0, PLAIN, false},
    {2, 64, 8, KVA_F16, 64, PLAIN, true},    {1, 128, 4, KVA_BF16, 96, PLAIN, false},
    {1, 256, 2, KVA_BF16, 0, PLAIN, false},  {2, 64, 0, KVA_BF16, 64, PLAIN, false},
    {1, 4, 3, KVA_F16, 2, PLAIN, true},      {2, 64, 2, KVA_BF16, 64, TURNED, false},
    {1, 80, 3, KVA_F16, 0, TURNED, true},    {1, 128, 4, KVA_BF16, 96, TURNED, true},
    {1, 256, 8, KVA_F16, 0, TURNED, true},   {3, 20, 2, KVA_BF16, 20, TURNED, true},
    {1, 128, 2, KVA_F16, 0, TURNED, false},  {1, 128, 0, KVA_BF16, 96, PLAIN, false},
    {3, 20, 0, KVA_F16, 6, PLAIN, false},    {1, 256, 0, KVA_F16, 256, PLAIN, false},
    {1, 64, 0, KVA_BF16, 12, PLAIN, false},  {1, 96, 4, KVA_F16, 64, TURNED, true},
    {1, 256, 3, KVA_BF16, 128, PLAIN, true}, {2, 36, 8, KVA_F16, 12, PLAIN, false},
};

const uint32_t store_counts[STORE_COUNTS] = {1, 64, 3, 200};

struct kva_lowbit_format store_format(const struct store_shape *shape)
{
    if (shape->bits == 0)
        return (struct kva_lowbit_format){0};
    return kva_lowbit_per_token(shape->bits, shape->head_dim, shape->coding);
}

const char *store_coding_name(const struct store_shape *shape)
{
    return shape->bits > 0 && shape->coding == KVA_CODING_TURNED ? " turned" : "";
}

const char *store_mean_name(const struct store_shape *shape)
{
    return shape->mean ? " mean" : "";
}

size_t store_bytes(const struct store_shape *shape)
{
    return STORE_OFFSET + (shape->bits ? kva_lowbit_block_bytes(store_format(shape),
                                                                shape->kv_heads, shape->head_dim)
                                       : kva_kv_block_bytes(shape->kv_heads, shape->head_dim));
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* Rows of many kinds: zeros, constants, ranges without 0, infinities, what is no number. */
static void fill_row(struct check *check, uint16_t *row, uint32_t dim, enum kva_dtype dtype)
{
    const uint32_t kind = check_below(check, 12);
    const float shift = kind == 1 ? 40.0f : kind == 2 ? -7.0f : 0.0f;
    for (uint32_t i = 0; i < dim; i++) {
        const float x = kind == 0 ? 0.0f : kind == 3 ? 2.5f : check_normal(check) + shift;
        row[i] = check_narrow(kind == 4 ? x * 1e-7f : x, dtype);
        if (kind == 5 && check_below(check, 9) == 0)
            row[i] = (uint16_t)((dtype == KVA_F16 ? 0x7C00 : 0x7F80) | check_below(check, 2) << 15);
        if (kind == 6 && check_below(check, 9) == 0)
            row[i] = 0x7FFF;
    }
}

void store_fill_blocks(struct check *check, const struct store_shape *shape, struct check_buf *bufs)
{
    for (uint32_t page = 0; page < STORE_PAGES; page++) {
        bufs[page] =
            check_buf_new(STORE_OFFSET + kva_kv_block_bytes(shape->kv_heads, shape->head_dim));
        uint16_t *rows = (uint16_t *)((char *)bufs[page].data + STORE_OFFSET);
        memset(bufs[page].data, 0x55, STORE_OFFSET);
        for (uint32_t i = 0; i < shape->kv_heads * KVA_PAGE_TOKENS * 2; i++)
            fill_row(check, rows + (size_t)i * shape->head_dim, shape->head_dim, shape->dtype);
    }
}

uint16_t *store_row_at(const struct store_shape *shape, const struct check_buf *bufs, uint32_t head,
                       uint32_t token, bool value)
{
    uint16_t *rows = (uint16_t *)((char *)bufs[token / KVA_PAGE_TOKENS].data + STORE_OFFSET);
    return rows + ((size_t)(head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS) * 2 + value) *
                      shape->head_dim;
}

float store_within_f16(float x)
{
    return isnan(x) ? x : fminf(fmaxf(x + 0.0f, -65504.0f), 65504.0f);
}

struct check_buf store_mean_new(struct check *check, const struct store_shape *shape)
{
    struct check_buf mean =
        check_buf_new((size_t)shape->kv_heads * shape->head_dim * sizeof(float));
    float *x = mean.data;
    for (uint32_t i = 0; i < shape->kv_heads * shape->head_dim; i++)
        x[i] = check_normal(check) * (i % 7 ? 2.0f : 50.0f);
    return mean;
}

const float *store_mean_of(const struct store_shape *shape, const struct check_buf *mean)
{
    return shape->mean ? mean->data : NULL;
}

float store_mean_at(const struct store_shape *shape, const struct check_buf *mean, uint32_t head,
                    bool value, uint32_t c)
{
    return shape->mean && !value ? ((const float *)mean->data)[head * shape->head_dim + c] : 0.0f;
}

void store_load_row(const struct store_shape *shape, const struct check_buf *mean, uint32_t head,
                    bool value, const uint16_t *row, float *x)
{
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        x[c] = (float)check_widen(row[c], shape->dtype);
        x[c] = store_within_f16(x[c] - store_mean_at(shape, mean, head, value, c));
    }
}

static bool is_turned(const struct store_shape *shape)
{
    return shape->bits > 0 && shape->coding == KVA_CODING_TURNED;
}

void store_code_row(const struct store_shape *shape, struct coded_row *coded, float *x)
{
    if (is_turned(shape))
        coded_row_turn(x, shape->head_dim);
    coded_row_make(coded, x, shape->head_dim, shape->bits ? shape->bits : 8, shape->coding);
}

/* --- a low-bit store --------------------------------------------------------------------------- */

size_t store_bit_at(const struct store_shape *shape, bool value, uint32_t token, uint32_t c,
                    uint32_t plane)
{
    const uint32_t dim = shape->head_dim, plane_bits = KVA_PAGE_TOKENS * dim;
    const size_t levels = 4 * 2 * KVA_PAGE_TOKENS; /* scale and zero of K and of V */
    const size_t bit = value ? (token / 4 * dim + c) * 4 + token % 4
                             : (c / 4 * KVA_PAGE_TOKENS + token) * 4 + c % 4;
    return levels * 8 + (size_t)(value ? shape->bits + plane : plane) * plane_bits + bit;
}

static size_t head_bytes(const struct store_shape *shape)
{
    return 4 * 2 * KVA_PAGE_TOKENS +
           (size_t)2 * shape->bits * KVA_PAGE_TOKENS * shape->head_dim / 8;
}

void store_put_coded(const struct store_shape *shape, unsigned char *head, bool value,
                     uint32_t token, const struct coded_row *coded)
{
    uint16_t *levels = (uint16_t *)(void *)head + (value ? 2 * KVA_PAGE_TOKENS : 0);
    levels[token] = kva_f16_of_f32(coded->scale);
    levels[KVA_PAGE_TOKENS + token] = kva_f16_of_f32(coded->zero);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        for (uint32_t plane = 0; plane < shape->bits; plane++) {
            const size_t bit = store_bit_at(shape, value, token, c, plane);
            head[bit / 8] &= (unsigned char)~(1u << bit % 8);
            head[bit / 8] |= (unsigned char)((coded->codes[c] >> plane & 1u) << bit % 8);
        }
    }
}

static double coded_at(const struct store_shape *shape, const unsigned char *head, bool value,
                       uint32_t token, uint32_t c, double *scale)
{
    const uint16_t *levels =
        (const uint16_t *)(const void *)head + (value ? 2 * KVA_PAGE_TOKENS : 0);
    uint32_t code = 0;
    for (uint32_t plane = 0; plane < shape->bits; plane++) {
        const size_t bit = store_bit_at(shape, value, token, c, plane);
        code |= (head[bit / 8] >> bit % 8 & 1u) << plane;
    }
    *scale = check_widen(levels[token], KVA_F16);
    return check_widen(levels[KVA_PAGE_TOKENS + token], KVA_F16) + *scale * code;
}

unsigned char *store_head(const struct store_shape *shape, const struct check_buf *bufs,
                          uint32_t head, uint32_t slot)
{
    return (unsigned char *)bufs[slot / KVA_PAGE_TOKENS].data + STORE_OFFSET +
           head * head_bytes(shape);
}

/* What the store holds in a slot, and what it may be off by on its account. */
static double stored_at(const struct store_shape *shape, const struct check_buf *bufs,
                        uint32_t head, uint32_t slot, bool value, uint32_t c, double *off)
{
    double scale = 0, x;
    if (shape->bits == 0) {
        x = check_widen(store_row_at(shape, bufs, head, slot, value)[c], shape->dtype);
        *off = fabs(x) * format_unit(shape->dtype);
        return x;
    }
    x = coded_at(shape, store_head(shape, bufs, head, slot), value, slot % KVA_PAGE_TOKENS, c,
                 &scale);
    /* Half a step; the last may be off by the scale's rounding and by the zero's. */
    const uint16_t *levels = (const uint16_t *)(const void *)store_head(shape, bufs, head, slot) +
                             (value ? 2 * KVA_PAGE_TOKENS : 0);
    const double zero = check_widen(levels[KVA_PAGE_TOKENS + slot % KVA_PAGE_TOKENS], KVA_F16);
    *off = scale * 0.5 + (1u << shape->bits) * (scale * 0x1p-11 + 0x1p-25) + fabs(zero) * 0x1p-10;
    return x;
}

double store_read_row(const struct store_shape *shape, const struct check_buf *bufs, uint32_t head,
                      uint32_t slot, bool value, double *x)
{
    double off = 0, most = 0;
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        x[c] = stored_at(shape, bufs, head, slot, value, c, &off);
        most = fmax(most, off);
    }
    if (is_turned(shape))
        coded_row_turn_back(x, shape->head_dim);
    return most;
}

/* --- rotation --------------------------------------------------------------------------------- */

double store_rotated(const struct store_shape *shape, const double *x, uint32_t c,
                     const float *inv_freq, double position)
{
    const uint32_t half = shape->rotary_dim / 2;
    if (c >= shape->rotary_dim)
        return x[c];
    const double angle = position * (double)inv_freq[c % half];
    return c < half ? x[c] * cos(angle) - x[c + half] * sin(angle)
                    : x[c] * cos(angle) + x[c - half] * sin(angle);
}

void store_frequencies(float *inv_freq, uint32_t rotary_dim)
{
    for (uint32_t i = 0; i < rotary_dim / 2; i++)
        inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)rotary_dim);
}
