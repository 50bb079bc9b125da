/* Cases of mean_keys, row_error, store_rows and roll_rows, against plain models. Codes are exact where nothing
 * is rotated; what is rotated is compared with fp64. */
#include "kernels/convert.h"
#include "tests/kernels/checkasm.h"
#include "tests/kernels/coded_row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES  4
#define OFFSET 48u

struct store_shape {
    uint32_t kv_heads, head_dim, bits; /* 0: 16 bits */
    enum kva_dtype dtype;
    uint32_t rotary_dim; /* 0: nothing is rotated */
    enum kva_lowbit_coding coding;
    bool mean; /* keys are coded without one */
};

static struct kva_lowbit_format format_of(const struct store_shape *shape)
{
    if (shape->bits == 0)
        return (struct kva_lowbit_format){0};
    return kva_lowbit_per_token(shape->bits, shape->head_dim, shape->coding);
}

static const char *coding_name(const struct store_shape *shape)
{
    return shape->bits > 0 && shape->coding == KVA_CODING_TURNED ? " turned" : "";
}

static const char *mean_name(const struct store_shape *shape)
{
    return shape->mean ? " mean" : "";
}

static size_t store_bytes(const struct store_shape *shape)
{
    return OFFSET +
           (shape->bits ? kva_lowbit_block_bytes(format_of(shape), shape->kv_heads, shape->head_dim)
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

static void fill_blocks(struct check *check, const struct store_shape *shape,
                        struct check_buf *bufs)
{
    for (uint32_t page = 0; page < PAGES; page++) {
        bufs[page] = check_buf_new(OFFSET + kva_kv_block_bytes(shape->kv_heads, shape->head_dim));
        uint16_t *rows = (uint16_t *)((char *)bufs[page].data + OFFSET);
        memset(bufs[page].data, 0x55, OFFSET);
        for (uint32_t i = 0; i < shape->kv_heads * KVA_PAGE_TOKENS * 2; i++)
            fill_row(check, rows + (size_t)i * shape->head_dim, shape->head_dim, shape->dtype);
    }
}

/* K or V of a token in 16-bit blocks. */
static uint16_t *row_at(const struct store_shape *shape, const struct check_buf *bufs,
                        uint32_t head, uint32_t token, bool value)
{
    uint16_t *rows = (uint16_t *)((char *)bufs[token / KVA_PAGE_TOKENS].data + OFFSET);
    return rows + ((size_t)(head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS) * 2 + value) *
                      shape->head_dim;
}

static float within_f16(float x)
{
    return isnan(x) ? x : fminf(fmaxf(x + 0.0f, -65504.0f), 65504.0f);
}

/* A mean key of each KV head: large numbers, of either sign. */
static struct check_buf mean_new(struct check *check, const struct store_shape *shape)
{
    struct check_buf mean =
        check_buf_new((size_t)shape->kv_heads * shape->head_dim * sizeof(float));
    float *x = mean.data;
    for (uint32_t i = 0; i < shape->kv_heads * shape->head_dim; i++)
        x[i] = check_normal(check) * (i % 7 ? 2.0f : 50.0f);
    return mean;
}

static const float *mean_of(const struct store_shape *shape, const struct check_buf *mean)
{
    return shape->mean ? mean->data : NULL;
}

/* Element c of the mean key of a KV head; none of a value. */
static float mean_at(const struct store_shape *shape, const struct check_buf *mean, uint32_t head,
                     bool value, uint32_t c)
{
    return shape->mean && !value ? ((const float *)mean->data)[head * shape->head_dim + c] : 0.0f;
}

/* What is coded of a row, before it is turned. */
static void load_number(const struct store_shape *shape, const struct check_buf *mean,
                        uint32_t head, bool value, const uint16_t *row, float *x)
{
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        x[c] = (float)check_widen(row[c], shape->dtype);
        x[c] = within_f16(x[c] - mean_at(shape, mean, head, value, c));
    }
}

static bool is_turned(const struct store_shape *shape)
{
    return shape->bits > 0 && shape->coding == KVA_CODING_TURNED;
}

/* The row as the shape's store has it, of numbers that are turned for it. */
static void code_row(const struct store_shape *shape, struct coded_row *coded, float *x)
{
    if (is_turned(shape))
        coded_row_turn(x, shape->head_dim);
    coded_row_make(coded, x, shape->head_dim, shape->bits ? shape->bits : 8, shape->coding);
}

/* --- a low-bit store --------------------------------------------------------------------------- */

/* Byte and bit of plane `plane` of channel `c` of a token. */
static size_t bit_at(const struct store_shape *shape, bool value, uint32_t token, uint32_t c,
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

static void put_coded(const struct store_shape *shape, unsigned char *head, bool value,
                      uint32_t token, const struct coded_row *coded)
{
    uint16_t *levels = (uint16_t *)(void *)head + (value ? 2 * KVA_PAGE_TOKENS : 0);
    levels[token] = kva_f16_of_f32(coded->scale);
    levels[KVA_PAGE_TOKENS + token] = kva_f16_of_f32(coded->zero);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        for (uint32_t plane = 0; plane < shape->bits; plane++) {
            const size_t bit = bit_at(shape, value, token, c, plane);
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
        const size_t bit = bit_at(shape, value, token, c, plane);
        code |= (head[bit / 8] >> bit % 8 & 1u) << plane;
    }
    *scale = check_widen(levels[token], KVA_F16);
    return check_widen(levels[KVA_PAGE_TOKENS + token], KVA_F16) + *scale * code;
}

static unsigned char *store_head(const struct store_shape *shape, const struct check_buf *bufs,
                                 uint32_t head, uint32_t slot)
{
    return (unsigned char *)bufs[slot / KVA_PAGE_TOKENS].data + OFFSET + head * head_bytes(shape);
}

/* What the store holds in a slot, and what it may be off by on its account. */
static double stored_at(const struct store_shape *shape, const struct check_buf *bufs,
                        uint32_t head, uint32_t slot, bool value, uint32_t c, double *off)
{
    double scale = 0, x;
    if (shape->bits == 0) {
        x = check_widen(row_at(shape, bufs, head, slot, value)[c], shape->dtype);
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

/* The row in a slot, turned back; returns what its numbers may be off by. */
static double stored_row(const struct store_shape *shape, const struct check_buf *bufs,
                         uint32_t head, uint32_t slot, bool value, double *x)
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

/* Element c of a row rotated by a position, in fp64. */
static double rotated(const struct store_shape *shape, const double *x, uint32_t c,
                      const float *inv_freq, double position)
{
    const uint32_t half = shape->rotary_dim / 2;
    if (c >= shape->rotary_dim)
        return x[c];
    const double angle = position * (double)inv_freq[c % half];
    return c < half ? x[c] * cos(angle) - x[c + half] * sin(angle)
                    : x[c] * cos(angle) + x[c - half] * sin(angle);
}

static void make_frequencies(float *inv_freq, uint32_t rotary_dim)
{
    for (uint32_t i = 0; i < rotary_dim / 2; i++)
        inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)rotary_dim);
}

/* Largest number of a row; NaN or infinite: such a row is not compared once rotated. */
static double widen_row(const struct store_shape *shape, const uint16_t *row, double *x)
{
    double most = 0;
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        x[c] = check_widen(row[c], shape->dtype);
        most = isnan(x[c]) || fabs(x[c]) > most ? fabs(x[c]) : most;
    }
    return most;
}

/* --- row_error -------------------------------------------------------------------------------- */

static double error_truth(const struct store_shape *shape, const struct check_buf *mean,
                          const struct check_buf *blocks, uint32_t head, uint32_t token, bool value)
{
    struct coded_row coded;
    float x[512] = {0};
    double off = 0, all = 0;
    load_number(shape, mean, head, value, row_at(shape, blocks, head, token, value), x);
    code_row(shape, &coded, x);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        const double y = (double)x[c] - ((double)coded.zero + (double)coded.scale * coded.codes[c]);
        off += y * y;
        all += (double)x[c] * (double)x[c];
    }
    return all > 0 ? off / all : isnan(all) ? NAN : 0;
}

static void error_case(struct check *check, const struct store_shape *shape, uint32_t count)
{
    const double work = 2.0 * shape->kv_heads * count * shape->head_dim;
    struct check_buf blocks[PAGES];
    const void *addresses[PAGES];
    char name[120];
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    if (shape->bits == 0 || !check_wanted(check, OP_ROW_ERROR, work))
        return;
    fill_blocks(check, shape, blocks);
    for (int i = 0; i < PAGES; i++)
        addresses[i] = blocks[i].data;
    struct check_buf mean = mean_new(check, shape);
    const uint32_t stride = count + 3;
    struct check_buf error = check_buf_new((size_t)shape->kv_heads * stride * sizeof(float));
    float *first = malloc(error.bytes), *got = error.data;
    const struct kva_row_error_seq seqs[] = {{.blocks = addresses,
                                              .error = got,
                                              .mean = mean_of(shape, &mean),
                                              .count = count,
                                              .stride = stride}};
    const struct kva_row_error_args args = {.seqs = seqs,
                                            .seq_count = 1,
                                            .block_offset_bytes = OFFSET,
                                            .kv_heads = shape->kv_heads,
                                            .head_dim = shape->head_dim,
                                            .kv_dtype = shape->dtype,
                                            .format = format_of(shape)};
    snprintf(name, sizeof name, "%s heads %u dim %u bits %u%s%s count %u",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, shape->bits,
             coding_name(shape), mean_name(shape), count);
    for (bool any = false; check_next_run(check, work, &run, &variant, &device); any = true) {
        const char *reason = NULL;
        memset(got, 0x3C, error.bytes);
        variant->ops.row_error(device, &args);
        if (!any)
            memcpy(first, got, error.bytes);
        for (uint32_t i = 0; i < shape->kv_heads * count && !reason; i++) {
            const uint32_t head = i / count, token = i % count;
            const double truth = error_truth(shape, &mean, blocks, head, token, false) +
                                 error_truth(shape, &mean, blocks, head, token, true);
            /* A chain of roundings in the sums, and differences of numbers that are alike. */
            if (!isnan(truth) && !(fabs((double)got[head * stride + token] - truth) <=
                                   truth * shape->head_dim * 4 * UNIT + 64 * UNIT))
                reason = "another error";
        }
        if (memcmp(first, got, error.bytes) != 0)
            reason = "other bits than another level";
        if (!check_buf_intact(&error))
            reason = "wrote before its output";
        check_count_run(check, variant, OP_ROW_ERROR, device, name, reason);
    }
    free(first);
    check_buf_free(&mean);
    check_buf_free(&error);
    for (int i = 0; i < PAGES; i++)
        check_buf_free(&blocks[i]);
}

/* --- store_rows ------------------------------------------------------------------------------- */

struct store_test {
    struct store_shape shape;
    struct check_buf from[PAGES], to[PAGES], slots, mean;
    unsigned char *before[PAGES], *want[PAGES];
    float inv_freq[256];
    uint32_t count, position_first;
};

/* What the blocks should hold where nothing is rotated; of rotated keys the old bytes. */
static void store_model(struct store_test *test, uint32_t head, uint32_t token, uint32_t slot)
{
    const struct store_shape *shape = &test->shape;
    const uint32_t dim = shape->head_dim;
    struct check_buf want[PAGES];
    for (int i = 0; i < PAGES; i++)
        want[i].data = test->want[i];
    for (int value = 0; value < 2; value++) {
        const uint16_t *row = row_at(shape, test->from, head, token, value);
        float x[512] = {0};
        struct coded_row coded;
        load_number(shape, &test->mean, head, value, row, x);
        code_row(shape, &coded, x);
        if (shape->bits)
            put_coded(shape, store_head(shape, want, head, slot), value, slot % KVA_PAGE_TOKENS,
                      &coded);
        else
            memcpy(row_at(shape, want, head, slot, value), row, dim * sizeof *row);
    }
}

/* Whether a turned key is as near to what it should be as coding that leaves it. */
static bool near_as_coded(const struct store_test *test, uint32_t head, const double *x,
                          const double *got, double position)
{
    const struct store_shape *shape = &test->shape;
    struct coded_row coded;
    float y[512];
    double expect[512], decoded[512], off = 0, least = 0, all = 0;
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        expect[c] = rotated(shape, x, c, test->inv_freq, position) -
                    (double)mean_at(shape, &test->mean, head, false, c);
        y[c] = (float)expect[c];
    }
    code_row(shape, &coded, y);
    for (uint32_t c = 0; c < shape->head_dim; c++)
        decoded[c] = (double)coded.zero + (double)coded.scale * coded.codes[c];
    coded_row_turn_back(decoded, shape->head_dim);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        off += (got[c] - expect[c]) * (got[c] - expect[c]);
        least += (decoded[c] - expect[c]) * (decoded[c] - expect[c]);
        all += expect[c] * expect[c];
    }
    return off <= 1.02 * least + 1e-6 * all + 1e-12;
}

/* Rotated keys against fp64; where they are right, they become what is wanted. */
static const char *check_rotated(struct store_test *test, uint32_t head, uint32_t token,
                                 uint32_t slot)
{
    const struct store_shape *shape = &test->shape;
    struct check_buf want[PAGES];
    double x[512], got[512];
    for (int i = 0; i < PAGES; i++)
        want[i].data = test->want[i];
    const double off = stored_row(shape, test->to, head, slot, false, got);
    const double most = widen_row(shape, row_at(shape, test->from, head, token, false), x);
    const double position = (double)test->position_first + token;
    for (uint32_t c = 0; c < shape->head_dim && most < 60000; c++) {
        const double expect = rotated(shape, x, c, test->inv_freq, -position) -
                              (double)mean_at(shape, &test->mean, head, false, c);
        if (shape->coding == KVA_CODING_PLAIN &&
            !(fabs(got[c] - expect) <= off + most * 8 * UNIT + 2 * format_least(shape->dtype)))
            return "a key is not rotated back";
    }
    if (shape->coding == KVA_CODING_TURNED && most < 60000 &&
        !near_as_coded(test, head, x, got, -position))
        return "a key is not rotated back, or turned another way";
    if (shape->bits == 0) {
        memcpy(row_at(shape, want, head, slot, false), row_at(shape, test->to, head, slot, false),
               shape->head_dim * 2);
        return NULL;
    }
    struct coded_row coded = {0};
    const unsigned char *from = store_head(shape, test->to, head, slot);
    const uint16_t *levels = (const uint16_t *)(const void *)from;
    const uint32_t t = slot % KVA_PAGE_TOKENS;
    coded.scale = kva_f32_of_f16(levels[t]);
    coded.zero = kva_f32_of_f16(levels[KVA_PAGE_TOKENS + t]);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        for (uint32_t plane = 0; plane < shape->bits; plane++) {
            const size_t bit = bit_at(shape, false, t, c, plane);
            coded.codes[c] |= (from[bit / 8] >> bit % 8 & 1u) << plane;
        }
    }
    put_coded(shape, store_head(shape, want, head, slot), false, t, &coded);
    return NULL;
}

/* Every KV head has slots of its own, in no order, a third of its tokens none. */
static void make_slots(struct check *check, struct store_test *test)
{
    const uint32_t all = PAGES * KVA_PAGE_TOKENS;
    uint32_t *slots = test->slots.data, free_slots[PAGES * KVA_PAGE_TOKENS];
    for (uint32_t head = 0; head < test->shape.kv_heads; head++) {
        for (uint32_t i = 0; i < all; i++)
            free_slots[i] = i;
        for (uint32_t i = 0; i < test->count; i++) {
            const uint32_t at = check_between(check, i, all - 1), slot = free_slots[at];
            free_slots[at] = free_slots[i];
            slots[head * test->count + i] = check_below(check, 3) == 0 ? KVA_NO_SLOT : slot;
        }
    }
}

static const char *run_store(struct store_test *test, const struct check_variant *variant,
                             struct kva_device *device, const struct kva_store_rows_args *args)
{
    const struct store_shape *shape = &test->shape;
    const uint32_t *slots = test->slots.data;
    const size_t bytes = store_bytes(shape);
    for (int i = 0; i < PAGES; i++) {
        memcpy(test->to[i].data, test->before[i], bytes);
        memcpy(test->want[i], test->before[i], bytes);
    }
    variant->ops.store_rows(device, args);
    for (uint32_t i = 0; i < shape->kv_heads * test->count; i++) {
        if (slots[i] == KVA_NO_SLOT)
            continue;
        store_model(test, i / test->count, i % test->count, slots[i]);
        const char *reason = shape->rotary_dim
                                 ? check_rotated(test, i / test->count, i % test->count, slots[i])
                                 : NULL;
        if (reason)
            return reason;
    }
    for (int i = 0; i < PAGES; i++) {
        if (memcmp(test->want[i], test->to[i].data, bytes) != 0)
            return "other bytes";
        if (!check_buf_intact(&test->to[i]))
            return "wrote before a block";
    }
    return NULL;
}

static void store_case(struct check *check, const struct store_shape *shape, uint32_t count)
{
    struct store_test test = {.shape = *shape, .count = count, .position_first = 1000};
    const double work = 4.0 * shape->kv_heads * count * shape->head_dim;
    const void *from[PAGES];
    void *to[PAGES];
    char name[120];
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    if (!check_wanted(check, OP_STORE_ROWS, work))
        return;
    fill_blocks(check, shape, test.from);
    test.slots = check_buf_new((size_t)shape->kv_heads * count * sizeof(uint32_t));
    test.mean = mean_new(check, shape);
    make_slots(check, &test);
    make_frequencies(test.inv_freq, shape->rotary_dim);
    for (int i = 0; i < PAGES; i++) {
        test.to[i] = check_buf_new(store_bytes(shape));
        check_buf_garbage(check, &test.to[i]);
        test.before[i] = malloc(test.to[i].bytes);
        test.want[i] = malloc(test.to[i].bytes);
        memcpy(test.before[i], test.to[i].data, test.to[i].bytes);
        from[i] = test.from[i].data;
        to[i] = test.to[i].data;
    }
    const struct kva_store_seq seqs[] = {{.from = from,
                                          .to = to,
                                          .slots = test.slots.data,
                                          .mean = mean_of(shape, &test.mean),
                                          .slot_count = PAGES * KVA_PAGE_TOKENS,
                                          .count = count,
                                          .position_first = test.position_first}};
    const struct kva_store_rows_args args = {
        .seqs = seqs,
        .from_offset_bytes = OFFSET,
        .to_offset_bytes = OFFSET,
        .seq_count = 1,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .kv_dtype = shape->dtype,
        .format = format_of(shape),
        .rotary = {shape->rotary_dim ? test.inv_freq : NULL, shape->rotary_dim}};
    snprintf(name, sizeof name, "%s heads %u dim %u bits %u%s%s rotary %u count %u",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, shape->bits,
             coding_name(shape), mean_name(shape), shape->rotary_dim, count);
    while (check_next_run(check, work, &run, &variant, &device))
        check_count_run(check, variant, OP_STORE_ROWS, device, name,
                        run_store(&test, variant, device, &args));
    for (int i = 0; i < PAGES; i++) {
        check_buf_free(&test.from[i]);
        check_buf_free(&test.to[i]);
        free(test.before[i]);
        free(test.want[i]);
    }
    check_buf_free(&test.slots);
    check_buf_free(&test.mean);
}

/* --- roll_rows -------------------------------------------------------------------------------- */

struct roll_test {
    struct store_shape shape;
    struct check_buf from[PAGES], to[PAGES], positions, index, places, mean;
    float inv_freq[256];
    uint32_t filled, slots, position_first;
};

/* A row in three is in its place already; of others one in two is at another place, and one in
 * four another token's at the same. */
enum there { THERE, ELSEWHERE, OTHER, NOTHING };

static enum there what_is_there(const struct roll_test *test, uint32_t head, uint32_t slot,
                                uint32_t below)
{
    if ((head + slot + below + test->position_first) % 3 == 0)
        return THERE;
    return slot % 2 ? ELSEWHERE : slot % 4 ? OTHER : NOTHING;
}

static void make_places(struct roll_test *test)
{
    const uint32_t *positions = test->positions.data;
    struct kva_roll_place *places = test->places.data;
    for (uint32_t i = 0; i < test->shape.kv_heads * test->slots; i++) {
        const uint32_t head = i / test->slots, slot = i % test->slots;
        uint32_t below = 0;
        for (uint32_t j = 0; j < test->filled; j++)
            below += positions[head * test->slots + j] < positions[i];
        const uint32_t place = test->position_first + below;
        const enum there there = what_is_there(test, head, slot, below);
        places[i] = (struct kva_roll_place){positions[i] + 1, place};
        places[i].position += there == ELSEWHERE ? 64 : 0;
        places[i].token -= there == OTHER ? 1 : there == NOTHING ? positions[i] + 1 : 0;
    }
}

static const char *check_rolled(const struct roll_test *test, uint32_t head, uint32_t slot)
{
    const struct store_shape *shape = &test->shape;
    const struct store_shape plain = {.kv_heads = shape->kv_heads, .head_dim = shape->head_dim};
    const uint32_t *positions = (const uint32_t *)test->positions.data + head * test->slots;
    const uint32_t *index = (const uint32_t *)test->index.data + head * test->slots;
    double x[512], most = 0;
    uint32_t below = 0;
    for (uint32_t i = 0; i < test->filled; i++)
        below += positions[i] < positions[slot];
    if (index[slot] != below)
        return "another index";
    const struct kva_roll_place place =
        ((const struct kva_roll_place *)test->places.data)[head * test->slots + slot];
    if (place.token != positions[slot] + 1 || place.position != test->position_first + below)
        return "another place";
    const enum there there = what_is_there(test, head, slot, below);
    for (int value = 0; value < 2; value++) {
        const uint16_t *got = row_at(&plain, test->to, head, slot, value);
        if (there == THERE || (there == ELSEWHERE && value)) {
            for (uint32_t c = 0; c < shape->head_dim; c++) {
                if (got[c] != 0x7777)
                    return value ? "wrote a value that is there" : "wrote a key that is there";
            }
            continue;
        }
        most = 0;
        stored_row(shape, test->from, head, slot, value, x);
        for (uint32_t c = 0; c < shape->head_dim; c++)
            x[c] += (double)mean_at(shape, &test->mean, head, value, c);
        for (uint32_t c = 0; c < shape->head_dim; c++)
            most = isnan(x[c]) || fabs(x[c]) > most ? fabs(x[c]) : most;
        for (uint32_t c = 0; c < shape->head_dim && most < 60000; c++) {
            const double expect =
                value ? x[c]
                      : rotated(shape, x, c, test->inv_freq, (double)test->position_first + below);
            const double units = shape->coding == KVA_CODING_TURNED ? 128 : 8;
            const double bound = fabs(expect) * format_unit(shape->dtype) + most * units * UNIT +
                                 2 * format_least(shape->dtype);
            if (!(fabs(check_widen(got[c], shape->dtype) - expect) <= bound))
                return value ? "another value" : "a key is not where its index is";
        }
    }
    return NULL;
}

static const char *run_roll(struct roll_test *test, const struct check_variant *variant,
                            struct kva_device *device, const struct kva_roll_rows_args *args)
{
    const struct store_shape *shape = &test->shape;
    const size_t row_bytes = 4 * (size_t)shape->head_dim;
    const char *reason = NULL;
    for (int i = 0; i < PAGES; i++)
        memset(test->to[i].data, 0x77, test->to[i].bytes);
    memset(test->index.data, 0x77, test->index.bytes);
    make_places(test);
    variant->ops.roll_rows(device, args);
    for (uint32_t i = 0; i < shape->kv_heads * test->slots && !reason; i++) {
        const uint32_t head = i / test->slots, slot = i % test->slots;
        const unsigned char *row = (unsigned char *)test->to[slot / KVA_PAGE_TOKENS].data + OFFSET +
                                   (head * KVA_PAGE_TOKENS + slot % KVA_PAGE_TOKENS) * row_bytes;
        if (slot < test->filled)
            reason = check_rolled(test, head, slot);
        for (size_t j = 0; slot >= test->filled && j < row_bytes; j++)
            reason = row[j] != 0x77 ? "wrote to a slot that is empty" : reason;
    }
    for (int i = 0; i < PAGES; i++) {
        if (!check_buf_intact(&test->to[i]) || *(unsigned char *)test->to[i].data != 0x77)
            return "wrote before a block";
    }
    return check_buf_intact(&test->index) && check_buf_intact(&test->places)
               ? reason
               : "wrote before its output";
}

static void roll_case(struct check *check, const struct store_shape *shape, uint32_t filled)
{
    struct roll_test test = {.shape = *shape, .filled = filled, .slots = PAGES * KVA_PAGE_TOKENS};
    const double work = 2.0 * shape->kv_heads * filled * (shape->head_dim + filled / 8.0);
    const struct store_shape plain = {
        .kv_heads = shape->kv_heads, .head_dim = shape->head_dim, .dtype = shape->dtype};
    const void *from[PAGES];
    void *to[PAGES];
    char name[120];
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    if (!check_wanted(check, OP_ROLL_ROWS, work))
        return;
    test.position_first = 5 + check_below(check, 3000);
    fill_blocks(check, &plain, test.from);
    test.positions = check_buf_new((size_t)shape->kv_heads * test.slots * sizeof(uint32_t));
    test.index = check_buf_new(test.positions.bytes);
    test.places =
        check_buf_new((size_t)shape->kv_heads * test.slots * sizeof(struct kva_roll_place));
    test.mean = mean_new(check, shape);
    make_frequencies(test.inv_freq, shape->rotary_dim);
    uint32_t *positions = test.positions.data;
    for (uint32_t head = 0; head < shape->kv_heads; head++) {
        for (uint32_t i = 0; i < test.slots; i++) /* ascending, then shuffled */
            positions[head * test.slots + i] = 7 * i + check_below(check, 7);
        for (uint32_t i = 0; i < filled; i++) {
            const uint32_t j = check_below(check, filled), x = positions[head * test.slots + i];
            positions[head * test.slots + i] = positions[head * test.slots + j];
            positions[head * test.slots + j] = x;
        }
    }
    for (int i = 0; i < PAGES; i++) {
        struct check_buf rows = test.from[i];
        if (shape->bits) {
            /* The store in few bits: of the same rows. */
            test.from[i] = check_buf_new(store_bytes(shape));
            for (uint32_t j = 0; j < shape->kv_heads * KVA_PAGE_TOKENS * 2; j++) {
                const uint32_t head = j / (2 * KVA_PAGE_TOKENS), token = j / 2 % KVA_PAGE_TOKENS;
                struct coded_row coded;
                float x[512] = {0};
                const uint16_t *row =
                    (uint16_t *)((char *)rows.data + OFFSET) + (size_t)j * shape->head_dim;
                load_number(shape, &test.mean, head, j % 2, row, x);
                code_row(shape, &coded, x);
                put_coded(shape, store_head(shape, &test.from[i], head, token), j % 2, token,
                          &coded);
            }
            check_buf_free(&rows);
        }
        test.to[i] = check_buf_new(OFFSET + kva_kv_block_bytes(shape->kv_heads, shape->head_dim));
        from[i] = test.from[i].data;
        to[i] = test.to[i].data;
    }
    const struct kva_roll_seq seqs[] = {{.positions = positions,
                                         .index = test.index.data,
                                         .places = test.places.data,
                                         .from = from,
                                         .to = to,
                                         .mean = mean_of(shape, &test.mean),
                                         .slots = test.slots,
                                         .filled = filled,
                                         .position_first = test.position_first}};
    const struct kva_roll_rows_args args = {.seqs = seqs,
                                            .from_offset_bytes = OFFSET,
                                            .to_offset_bytes = OFFSET,
                                            .seq_count = 1,
                                            .kv_heads = shape->kv_heads,
                                            .head_dim = shape->head_dim,
                                            .kv_dtype = shape->dtype,
                                            .format = format_of(shape),
                                            .rotary = {test.inv_freq, shape->rotary_dim}};
    snprintf(name, sizeof name, "%s heads %u dim %u bits %u%s%s rotary %u filled %u",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, shape->bits,
             coding_name(shape), mean_name(shape), shape->rotary_dim, filled);
    while (check_next_run(check, work, &run, &variant, &device))
        check_count_run(check, variant, OP_ROLL_ROWS, device, name,
                        run_roll(&test, variant, device, &args));
    for (int i = 0; i < PAGES; i++) {
        check_buf_free(&test.from[i]);
        check_buf_free(&test.to[i]);
    }
    check_buf_free(&test.positions);
    check_buf_free(&test.index);
    check_buf_free(&test.places);
    check_buf_free(&test.mean);
}

/* --- all of them ------------------------------------------------------------------------------ */

#define PLAIN  KVA_CODING_PLAIN
#define TURNED KVA_CODING_TURNED

static const struct store_shape shapes[] = {
    {2, 64, 0, KVA_BF16, 0, PLAIN, false},  {1, 80, 0, KVA_F16, 32, PLAIN, false},
    {2, 64, 4, KVA_F16, 0, PLAIN, false},   {1, 128, 3, KVA_BF16, 0, PLAIN, true},
    {3, 20, 2, KVA_F16, 0, PLAIN, false},   {1, 80, 8, KVA_BF16, 0, PLAIN, false},
    {2, 64, 8, KVA_F16, 64, PLAIN, true},   {1, 128, 4, KVA_BF16, 96, PLAIN, false},
    {1, 256, 2, KVA_BF16, 0, PLAIN, false}, {2, 64, 0, KVA_BF16, 64, PLAIN, false},
    {1, 4, 3, KVA_F16, 2, PLAIN, true},     {2, 64, 2, KVA_BF16, 64, TURNED, false},
    {1, 80, 3, KVA_F16, 0, TURNED, true},   {1, 128, 4, KVA_BF16, 96, TURNED, true},
    {1, 256, 8, KVA_F16, 0, TURNED, true},  {3, 20, 2, KVA_BF16, 20, TURNED, true},
    {1, 128, 2, KVA_F16, 0, TURNED, false},
};

static const uint32_t counts[] = {1, 64, 3, 200};

/* Tokens of a block, and what some channels have in all of them: more than heads need for their means
 * to be taken off, about as much, and less. */
struct mean_case {
    uint32_t first, end;
    float level;
    bool wild; /* other channels have anything in them, and not numbers around 0 */
};

static const struct mean_case mean_cases[] = {
    {4, 64, 20, false}, {4, 64, 12, false},  {4, 64, 6, false},   {0, 1, 20, true},
    {4, 64, 20, true},  {32, 63, 20, false}, {32, 63, 12, false},
};

/* Of a KV head in place: a channel in three hardly changes from `level`, every other of them just so.
 * The mean by a plain model. */
static void mean_of_head(struct check *check, const struct store_shape *shape,
                         struct check_buf *blocks, const struct mean_case *test, uint32_t head,
                         float *want)
{
    const float n = (float)(test->end - test->first);
    float common = 0.0f, apart = 0.0f;
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        float x[KVA_PAGE_TOKENS], mean = 0.0f, squares = 0.0f;
        for (uint32_t t = test->first; t < test->end; t++) {
            uint16_t *from = &row_at(shape, blocks, head, t, false)[c];
            if (c % 3 == 0)
                *from = check_narrow(test->level + check_normal(check) * (c % 2 ? 2.4f : 0.5f),
                                     shape->dtype);
            else if (!test->wild)
                *from = check_narrow(check_normal(check), shape->dtype);
            x[t] = within_f16((float)check_widen(*from, shape->dtype));
            x[t] = isnan(x[t]) ? 0.0f : x[t];
            mean += x[t];
        }
        mean /= n;
        for (uint32_t t = test->first; t < test->end; t++)
            squares += (x[t] - mean) * (x[t] - mean);
        want[c] = mean * mean * n > 64 * squares ? mean : 0.0f;
        common += want[c] * want[c] * n;
        apart += squares;
    }
    for (uint32_t c = 0; c < shape->head_dim && !(common > 16 * apart); c++)
        want[c] = 0.0f;
}

static void mean_case(struct check *check, const struct store_shape *shape,
                      const struct mean_case *test)
{
    const size_t count = (size_t)shape->kv_heads * shape->head_dim;
    const double work = (double)count * (test->end - test->first);
    struct check_buf blocks[PAGES];
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[120];
    if (!check_wanted(check, OP_MEAN_KEYS, work))
        return;
    struct check_buf mean = check_buf_new(count * sizeof(float));
    float *want = calloc(count, sizeof *want), *got = mean.data;
    fill_blocks(check, shape, blocks);
    for (uint32_t head = 0; head < shape->kv_heads; head++)
        mean_of_head(check, shape, blocks, test, head, want + (size_t)head * shape->head_dim);
    snprintf(name, sizeof name, "%s heads %u dim %u tokens %u to %u around %g%s",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, test->first, test->end,
             (double)test->level, test->wild ? ", wild" : "");
    while (check_next_run(check, work, &run, &variant, &device)) {
        memset(got, 0x3C, mean.bytes);
        variant->ops.mean_keys(device, &(struct kva_mean_keys_args){.block = blocks[0].data,
                                                                    .mean = got,
                                                                    .block_offset_bytes = OFFSET,
                                                                    .first = test->first,
                                                                    .end = test->end,
                                                                    .kv_heads = shape->kv_heads,
                                                                    .head_dim = shape->head_dim,
                                                                    .kv_dtype = shape->dtype});
        const char *reason = memcmp(got, want, count * sizeof *want) != 0 ? "another mean"
                             : !check_buf_intact(&mean) ? "wrote before its output"
                                                        : NULL;
        check_count_run(check, variant, OP_MEAN_KEYS, device, name, reason);
    }
    free(want);
    check_buf_free(&mean);
    for (int i = 0; i < PAGES; i++)
        check_buf_free(&blocks[i]);
}

void check_mean_keys(struct check *check)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(mean_cases); j++)
            mean_case(check, &shapes[i], &mean_cases[j]);
    }
}

void check_row_error(struct check *check)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(counts); j++)
            error_case(check, &shapes[i], counts[j]);
    }
}

void check_store_rows(struct check *check)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(counts); j++)
            store_case(check, &shapes[i], counts[j]);
    }
}

void check_roll_rows(struct check *check)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(counts); j++) {
            if (shapes[i].rotary_dim > 0)
                roll_case(check, &shapes[i], counts[j]);
        }
    }
}
