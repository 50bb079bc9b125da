/* Cases of quantise. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX 3

struct quantise_test {
    struct kva_quantise_args args;
    const void *from[BLOCKS_MAX];
    uint32_t exempt[BLOCKS_MAX];
    size_t from_bytes; /* of a buffer, offset included */
    size_t to_bytes;
    char name[160];
};

/* --- reading a block as ops.h draws it -------------------------------------------------------- */

static uint32_t bit_of(const unsigned char *codes, size_t plane_nibbles, uint32_t plane,
                       size_t nibble, uint32_t bit)
{
    size_t at = plane * plane_nibbles + nibble;
    return (uint32_t)codes[at / 2] >> (at % 2 * 4 + bit) & 1u;
}

struct parts {
    const unsigned char *k_scale, *k_zero, *v_scale, *v_zero, *k_codes, *v_codes;
};

static struct parts parts_of(const unsigned char *head, struct kva_lowbit_format format,
                             uint32_t dim)
{
    struct parts parts;
    size_t k = format.keys == KVA_KEYS_PER_TOKEN ? 128 : (size_t)(64 / format.group) * dim * 2;
    size_t v = ((size_t)dim + format.group - 1) / format.group * 64 * 2;
    parts.k_scale = head;
    parts.k_zero = parts.k_scale + k;
    parts.v_scale = parts.k_zero + k;
    parts.v_zero = parts.v_scale + v;
    parts.k_codes = parts.v_zero + v;
    parts.v_codes = parts.k_codes + (size_t)format.bits * (dim / 4) * 64 / 2;
    return parts;
}

static double half_at(const unsigned char *from, size_t index)
{
    return check_widen((uint16_t)(from[2 * index] | from[2 * index + 1] << 8), KVA_F16);
}

/* --- truth ------------------------------------------------------------------------------------ */

/* A group as it was stored. */
struct stored {
    double x[256];
    uint32_t codes[256];
    uint32_t count;
    uint32_t counted; /* elements from here on count for the levels */
    double scale, zero;
};

static bool near(double value, double expect, double tolerance)
{
    expect = fmin(fmax(expect, -65504), 65504);
    /* Half a step of f16, and some more because it is rounded in fp32 before. */
    double step = fmax(fabs(expect) * 0x1p-11, 0x1p-25);
    return fabs(value - expect) <= step * 1.01 + tolerance;
}

static const char *check_constant(const struct stored *group, double value)
{
    if (group->scale != 0.0)
        return "the scale of a constant group is not 0";
    if (!near(group->zero, value, 0))
        return "the zero of a constant group is not its value";
    for (uint32_t i = 0; i < group->count; i++) {
        if (group->codes[i] != 0)
            return "a code of a constant group is not 0";
    }
    return NULL;
}

/* Levels that fit the codes best, in doubles. */
static const char *check_fit(const struct stored *group, double range)
{
    double n = 0, c = 0, cc = 0, x = 0, xc = 0, center = group->x[group->counted];
    for (uint32_t i = group->counted; i < group->count; i++) {
        double code = group->codes[i], y = group->x[i] - center;
        n++, c += code, cc += code * code, x += y, xc += y * code;
    }
    double spread = n * cc - c * c;
    if (spread == 0)
        return NULL; /* all one code */
    double scale = (n * xc - c * x) / spread, zero = center + (x - scale * c) / n;
    if (!near(group->scale, scale, range * 1e-5))
        return "the scale is not that of least squares";
    if (!near(group->zero, zero, range * 1e-5))
        return "the zero is not that of least squares";
    return NULL;
}

static const char *check_codes_1(const struct stored *group, double threshold, double tolerance)
{
    for (uint32_t i = 0; i < group->count; i++) {
        if (fabs(group->x[i] - threshold) > tolerance &&
            group->codes[i] != (group->x[i] >= threshold))
            return "a code is on the wrong side of the threshold";
    }
    return NULL;
}

static const char *check_codes_n(const struct stored *group, double zero, double scale,
                                 double code_max, double tolerance)
{
    for (uint32_t i = 0; i < group->count; i++) {
        double level = fmin(fmax((group->x[i] - zero) / scale, 0), code_max);
        if (fabs(group->codes[i] - level) > 0.5 + tolerance)
            return "a code is not the nearest";
    }
    return NULL;
}

static double stored_as(double value)
{
    return check_widen(check_narrow((float)value, KVA_F16), KVA_F16);
}

static const char *check_group(const struct stored *group, struct kva_lowbit_format format,
                               uint32_t bits, enum kva_lowbit_levels levels)
{
    double low = INFINITY, high = -INFINITY, mean = 0, code_max = (1 << bits) - 1;
    double n = group->count - group->counted;
    const bool tokens = format.keys == KVA_KEYS_PER_TOKEN;
    for (uint32_t i = group->counted; i < group->count; i++) {
        low = fmin(low, group->x[i]);
        high = fmax(high, group->x[i]);
        mean += group->x[i] / n;
    }
    if (isnan(group->scale) || isnan(group->zero))
        return "a level is not a number";
    if (!(low < high))
        return check_constant(group, low == high ? low : 0);
    bool paper = levels != KVA_LEVELS_FIT;
    double scale = bits == 1 ? (high - low) / 2 : (high - low) / code_max;
    double zero = bits == 1 ? (3 * low + high) / 4 : low;
    if (bits == 1 && levels == KVA_LEVELS_EXTREMES) {
        scale = fmin(high - low, 65504);
        zero = low;
    }
    if (scale < 0x1p-24) /* may round to nothing */
        return group->scale == 0 ? check_constant(group, tokens ? (low + high) / 2 : mean) : NULL;
    const char *reason = NULL;
    if (paper && !near(group->scale, scale, 0))
        reason = "the scale is not the paper's";
    if (paper && !near(group->zero, zero, 0))
        reason = "the zero is not the paper's";
    if (reason)
        return reason;
    double coarse = group->scale == 0 ? INFINITY : 0; /* all was one code */
    if (bits == 1)
        reason =
            check_codes_1(group, (low + high) / 2, coarse + fmax(high - low, fabs(low)) * 1e-6);
    else if (paper)
        reason = check_codes_n(group, group->zero, group->scale, code_max, 1e-5);
    else if (scale < 60000 && fabs(zero) < 60000) /* rounded from doubles: maybe the next step */
        reason = check_codes_n(group, stored_as(zero), stored_as(scale), code_max,
                               coarse + (fabs(zero) * 0x1p-10 + 0x1p-24) / scale + 0.02);
    return reason || paper || coarse > 0 ? reason : check_fit(group, high - low);
}

/* What is beyond the range of f16 counts as its end. */
static double number_of(uint16_t bits, enum kva_dtype dtype)
{
    return fmin(fmax(check_widen(bits, dtype), -65504), 65504);
}

static const char *check_head(const struct quantise_test *test, const unsigned char *head,
                              const uint16_t *from, uint32_t exempt)
{
    struct kva_lowbit_format format = test->args.format;
    uint32_t dim = test->args.head_dim, size = format.group;
    struct parts parts = parts_of(head, format, dim);
    const char *reason = NULL;
    const bool tokens = format.keys == KVA_KEYS_PER_TOKEN;
    for (uint32_t i = 0; tokens && i < 64 && !reason; i++) { /* keys per token */
        struct stored group = {.count = dim, .scale = half_at(parts.k_scale, i)};
        group.zero = half_at(parts.k_zero, i);
        for (uint32_t c = 0; c < dim; c++) {
            group.x[c] = number_of(from[(size_t)i * 2 * dim + c], test->args.kv_dtype);
            for (uint32_t plane = 0; plane < format.bits; plane++)
                group.codes[c] |= bit_of(parts.k_codes, (size_t)dim / 4 * 64, plane,
                                         (size_t)(c / 4) * 64 + i, c % 4)
                                  << plane;
        }
        reason = check_group(&group, format, format.bits, format.key_levels);
    }
    for (uint32_t i = 0; !tokens && i < 64 / size * dim && !reason; i++) { /* keys */
        uint32_t g = i / dim, c = i % dim;
        struct stored group = {.count = size, .scale = half_at(parts.k_scale, i)};
        group.zero = half_at(parts.k_zero, i);
        for (uint32_t j = 0; j < size; j++) {
            uint32_t token = g * size + j;
            group.counted += token < exempt;
            group.x[j] = number_of(from[(size_t)token * 2 * dim + c], test->args.kv_dtype);
            for (uint32_t plane = 0; plane < format.bits; plane++)
                group.codes[j] |= bit_of(parts.k_codes, (size_t)dim / 4 * 64, plane,
                                         (size_t)(c / 4) * 64 + token, c % 4)
                                  << plane;
        }
        reason = check_group(&group, format, format.bits, format.key_levels);
    }
    const uint32_t value_bits = kva_lowbit_value_bits(format);
    for (uint32_t i = 0; i < (dim + size - 1) / size * 64 && !reason; i++) { /* values */
        uint32_t g = i / 64, token = i % 64;
        struct stored group = {.scale = half_at(parts.v_scale, i)};
        group.zero = half_at(parts.v_zero, i);
        for (uint32_t c = g * size; c < dim && c < (g + 1) * size; c++) {
            uint32_t j = group.count++;
            group.x[j] = number_of(from[((size_t)token * 2 + 1) * dim + c], test->args.kv_dtype);
            for (uint32_t plane = 0; plane < value_bits; plane++)
                group.codes[j] |= bit_of(parts.v_codes, (size_t)16 * dim, plane,
                                         (size_t)(token / 4) * dim + c, token % 4)
                                  << plane;
        }
        reason = check_group(&group, format, value_bits, format.value_levels);
    }
    return reason;
}

/* --- running ---------------------------------------------------------------------------------- */

/* The blocks one behind the other in `out`; false: something else was touched. */
static bool run_quantise(struct check *check, const struct check_variant *variant,
                         struct kva_device *device, const struct quantise_test *test,
                         unsigned char *out)
{
    struct kva_quantise_args args = test->args;
    struct check_buf bufs[BLOCKS_MAX];
    void *to[BLOCKS_MAX];
    bool good = true;
    for (uint32_t i = 0; i < args.count; i++) {
        bufs[i] = check_buf_new(test->to_bytes);
        check_buf_garbage(check, &bufs[i]);
        memset(bufs[i].data, 0xC3, args.to_offset_bytes);
        to[i] = bufs[i].data;
    }
    args.to = to;
    variant->ops.quantise(device, &args);
    for (uint32_t i = 0; i < args.count; i++) {
        size_t bytes = test->to_bytes - args.to_offset_bytes;
        for (size_t j = 0; j < args.to_offset_bytes; j++)
            good &= ((unsigned char *)to[i])[j] == 0xC3;
        good &= check_buf_intact(&bufs[i]);
        memcpy(out + i * bytes, (unsigned char *)to[i] + args.to_offset_bytes, bytes);
        check_buf_free(&bufs[i]);
    }
    return good;
}

static const char *check_variant_of(struct check *check, const struct check_variant *variant,
                                    const struct quantise_test *test, unsigned char *out,
                                    unsigned char *again, const unsigned char *reference)
{
    const struct kva_quantise_args *args = &test->args;
    size_t block_bytes = test->to_bytes - args->to_offset_bytes, bytes = block_bytes * args->count;
    if (!run_quantise(check, variant, variant->one, test, out) ||
        !run_quantise(check, variant, variant->many, test, again))
        return "wrote outside its output";
    if (check_fault(variant, variant->one))
        return "wrote elsewhere, or failed";
    if (memcmp(out, again, bytes) != 0)
        return "several threads give other bits";
    if (reference && memcmp(out, reference, bytes) != 0)
        return "other bits than the first level's";
    size_t head_bytes = kva_lowbit_head_bytes(args->format, args->head_dim);
    for (uint32_t i = 0; i < args->count * args->kv_heads; i++) {
        uint32_t block = i / args->kv_heads, head = i % args->kv_heads;
        const uint16_t *from = (const uint16_t *)test->from[block] + args->from_offset_bytes / 2 +
                               (size_t)head * 64 * 2 * args->head_dim;
        const char *reason = check_head(test, out + block * block_bytes + head * head_bytes, from,
                                        args->exempt ? args->exempt[block] : 0);
        if (reason)
            return reason;
    }
    return NULL;
}

static void quantise_case(struct check *check, struct quantise_test *test)
{
    size_t bytes = (test->to_bytes - test->args.to_offset_bytes) * test->args.count;
    unsigned char *out = malloc(3 * bytes);
    for (uint32_t i = 0; i < check->variant_count; i++) {
        struct check_variant *variant = &check->variants[i];
        const char *reason = check_variant_of(check, variant, test, out, out + bytes,
                                              i > 0 ? out + 2 * bytes : NULL);
        if (i == 0)
            memcpy(out + 2 * bytes, out, bytes);
        check_count(check, variant, OP_QUANTISE, test->name, !reason, reason);
    }
    free(out);
}

/* --- cases ------------------------------------------------------------------------------------ */

enum kind {
    KIND_NORMAL,
    KIND_CHANNELS, /* every channel of its own size and offset, as keys are */
    KIND_CONSTANT,
    KIND_STEPS, /* few different values: constant groups here and there, and ties */
    KIND_TINY,
    KIND_EXTREME,
    KIND_COUNT,
};

static float number(struct check *check, enum kind kind, uint32_t c, enum kva_dtype dtype)
{
    const float top = dtype == KVA_F16 ? 65504.0f : 3e38f;
    switch (kind) {
    case KIND_CHANNELS:
        return check_normal(check) * (float)(c % 7 + 1) * 0.2f + (float)(c * 37 % 23) - 11.0f;
    case KIND_CONSTANT:
        return (float)(c % 5) * 1.3f - 2.0f;
    case KIND_STEPS:
        return check_below(check, 40) ? 1.0f : (float)check_below(check, 4) - 2.0f;
    case KIND_TINY:
        return check_normal(check) * 1e-7f;
    case KIND_EXTREME:
        return check_below(check, 3) ? check_normal(check) : check_below(check, 2) ? top : -top;
    default:
        return check_normal(check);
    }
}

static void fill_blocks(struct check *check, struct quantise_test *test, struct check_buf *bufs,
                        enum kind kind)
{
    for (uint32_t i = 0; i < test->args.count; i++) {
        bufs[i] = check_buf_new(test->from_bytes);
        check_buf_garbage(check, &bufs[i]);
        test->from[i] = bufs[i].data;
        uint16_t *to = (uint16_t *)bufs[i].data + test->args.from_offset_bytes / 2;
        size_t count = (test->from_bytes - test->args.from_offset_bytes) / 2;
        for (size_t j = 0; j < count; j++)
            to[j] = check_narrow(
                number(check, kind, (uint32_t)(j % test->args.head_dim), test->args.kv_dtype),
                test->args.kv_dtype);
    }
}

static void random_case(struct check *check, uint32_t dim, struct kva_lowbit_format format,
                        enum kind kind)
{
    if (!check_wanted(check, OP_QUANTISE, 128.0 * dim * 3))
        return;
    struct quantise_test test = {0};
    struct check_buf bufs[BLOCKS_MAX];
    struct kva_quantise_args *args = &test.args;
    args->count = check_between(check, 1, check->quick ? 1 : BLOCKS_MAX);
    args->kv_heads = check_between(check, 1, 3);
    args->head_dim = dim;
    args->kv_dtype = check_below(check, 2) ? KVA_F16 : KVA_BF16;
    args->format = format;
    args->from_offset_bytes = check_below(check, 2) ? 4096 : 0;
    args->to_offset_bytes = check_below(check, 2) ? 192 : 0;
    test.from_bytes = kva_kv_block_bytes(args->kv_heads, dim) + args->from_offset_bytes;
    test.to_bytes = kva_lowbit_block_bytes(format, args->kv_heads, dim) + args->to_offset_bytes;
    const uint32_t exempt[] = {0, 1, 4, 31, 32, 33, 63, 64};
    for (uint32_t i = 0; i < args->count; i++)
        test.exempt[i] = exempt[check_below(check, KVA_COUNT_OF(exempt))];
    fill_blocks(check, &test, bufs, kind);
    args->from = test.from;
    args->exempt = check_below(check, 2) ? test.exempt : NULL;
    static const char *const names[] = {"paper", "fit", "extremes"};
    snprintf(test.name, sizeof test.name,
             "head_dim %u kv_heads %u blocks %u %s %u/%u bits group %u %s %s kind %d exempt %u",
             dim, args->kv_heads, args->count, kva_dtype_name(args->kv_dtype), format.bits,
             kva_lowbit_value_bits(format), format.group, names[format.key_levels],
             names[format.value_levels], (int)kind, args->exempt ? args->exempt[0] : 0);
    quantise_case(check, &test);
    for (uint32_t i = 0; i < args->count; i++)
        check_buf_free(&bufs[i]);
}

void check_quantise(struct check *check)
{
    const uint32_t dims[] = {4, 8, 20, 32, 64, 80, 96, 128, 256};
    const uint32_t bits[][2] = {{1, 0}, {1, 2}, {2, 0}, {4, 0}}; /* of keys, of values */
    const enum kva_lowbit_levels levels[][2] = {{KVA_LEVELS_PAPER, KVA_LEVELS_PAPER},
                                                {KVA_LEVELS_FIT, KVA_LEVELS_FIT},
                                                {KVA_LEVELS_EXTREMES, KVA_LEVELS_EXTREMES},
                                                {KVA_LEVELS_FIT, KVA_LEVELS_PAPER},
                                                {KVA_LEVELS_EXTREMES, KVA_LEVELS_FIT}};
    const uint32_t kinds = KVA_COUNT_OF(levels) * 2;
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        for (uint32_t j = 0; j < KVA_COUNT_OF(bits) * kinds; j++) {
            struct kva_lowbit_format format = {.bits = bits[j / kinds][0],
                                               .value_bits = bits[j / kinds][1],
                                               .group = j & 1 ? 32 : 64,
                                               .key_levels = levels[j % kinds / 2][0],
                                               .value_levels = levels[j % kinds / 2][1]};
            for (int kind = 0; kind < KIND_COUNT; kind += check->quick ? 2 : 1)
                random_case(check, dims[i], format, (enum kind)kind);
        }
        const uint32_t token_bits[] = {2, 3, 4, 8};
        for (uint32_t j = 0; j < KVA_COUNT_OF(token_bits); j++) {
            for (int kind = 0; kind < KIND_COUNT; kind += check->quick ? 2 : 1)
                random_case(check, dims[i],
                            kva_lowbit_per_token(token_bits[j], dims[i], KVA_CODING_PLAIN),
                            (enum kind)kind);
        }
    }
}
