/* Cases of rope, kv_append and merge. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- rope ------------------------------------------------------------------------------------- */

static bool run_rope(struct check *check KVA_UNUSED, const struct check_variant *variant,
                     struct kva_device *device, const struct check_case *test, uint32_t first,
                     uint32_t rows, float *out)
{
    struct kva_rope_args args = *(const struct kva_rope_args *)test->opaque;
    /* Beside it, half of its heads again. */
    const size_t stride = args.x_stride, heads = (args.heads + 1) / 2;
    const size_t count = (rows - 1) * stride + args.heads * args.head_dim;
    struct check_buf second = check_buf_new(count * sizeof(float));
    memcpy(second.data, out, second.bytes);
    args.x = out;
    args.positions += first;
    args.rows = rows;
    args.second = second.data;
    args.second_heads = (uint32_t)heads;
    args.second_stride = args.x_stride;
    float *before = malloc(second.bytes);
    memcpy(before, out, second.bytes);
    variant->ops.rope(device, &args);
    for (size_t i = 0; i < count; i++) {
        const float *want = i % stride < heads * args.head_dim ? &out[i] : &before[i];
        if (memcmp((const float *)second.data + i, want, sizeof *want) != 0)
            out[0] = NAN; /* nothing that is expected */
    }
    if (!check_buf_intact(&second))
        out[0] = NAN;
    free(before);
    check_buf_free(&second);
    return true;
}

static void rope_truth(const struct kva_rope_args *args, const float *x, double *expect,
                       double *bound)
{
    size_t dim = args->head_dim, half = args->rotary_dim / 2;
    size_t cols = args->heads * dim;
    for (size_t i = 0; i < args->rows * cols; i++) {
        expect[i] = x[i];
        bound[i] = 0;
    }
    for (size_t at = 0; at < args->rows * cols; at += dim) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double)args->positions[at / cols] * (double)args->inv_freq[i];
            double c = cos(angle) * (double)args->factor, s = sin(angle) * (double)args->factor;
            double a = x[at + i], b = x[at + half + i];
            expect[at + i] = a * c - b * s;
            expect[at + half + i] = b * c + a * s;
            /* Cosine and sine err by 1e-7 and a rounding, products and sum by one each. */
            double size = (double)args->factor * (fabs(a) + fabs(b));
            bound[at + i] = bound[at + half + i] = size * (1.2e-7 + 3 * UNIT) + 0x1p-148;
        }
    }
}

static void rope_case(struct check *check, uint32_t rows, uint32_t heads, uint32_t head_dim,
                      uint32_t rotary_dim, enum check_fill fill)
{
    uint32_t cols = heads * head_dim, stride = cols + check_below(check, 2) * head_dim;
    size_t count = (size_t)rows * cols;
    if (!check_wanted(check, OP_ROPE, (double)count))
        return;
    struct check_buf positions = check_buf_new(rows * sizeof(uint32_t));
    struct check_buf inv_freq = check_buf_new(rotary_dim / 2 * sizeof(float));
    float *x = malloc(count * sizeof(float));
    double *expect = malloc(2 * count * sizeof(double));
    struct kva_rope_args args = {.positions = positions.data,
                                 .inv_freq = inv_freq.data,
                                 .rows = rows,
                                 .heads = heads,
                                 .head_dim = head_dim,
                                 .rotary_dim = rotary_dim,
                                 .x_stride = stride,
                                 .factor = check_below(check, 2) ? 1.0f : 1.2426f};
    check_fill(check, fill, x, count);
    for (uint32_t i = 0; i < rows; i++)
        ((uint32_t *)positions.data)[i] = i == 0 ? 131071 : check_below(check, i % 2 ? 64 : 131072);
    for (uint32_t i = 0; i < rotary_dim / 2; i++)
        ((float *)inv_freq.data)[i] = (float)pow(10000.0, -2.0 * i / rotary_dim);
    rope_truth(&args, x, expect, expect + count);
    struct check_case test = {.op = OP_ROPE,
                              .run = run_rope,
                              .opaque = &args,
                              .rows = rows,
                              .cols = cols,
                              .stride = stride,
                              .initial = x,
                              .expect = expect,
                              .bound = expect + count,
                              .norm_share = count < 64 ? 1 : 0.5,
                              .work = (double)count};
    if (fill == FILL_DENORMAL)
        test.norm_share = 1;
    snprintf(test.name, sizeof test.name, "rows %u heads %u head_dim %u rotary %u %s", rows, heads,
             head_dim, rotary_dim, check_fill_name(fill));
    check_case(check, &test);
    free(x);
    free(expect);
    check_buf_free(&positions);
    check_buf_free(&inv_freq);
}

void check_rope(struct check *check)
{
    const uint32_t dims[][2] = {{8, 8},     {64, 64},  {80, 32}, {80, 80}, {96, 96},
                                {128, 128}, {256, 64}, {12, 6},  {2, 2}};
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        for (int fill = 0; fill < FILL_COUNT; fill++)
            rope_case(check, check_between(check, 1, 40), check_between(check, 1, 9), dims[i][0],
                      dims[i][1], (enum check_fill)fill);
    }
}

/* --- kv_append -------------------------------------------------------------------------------- */

/* A number that is hard to round: ties, ends of the range, numbers below the normal ones. */
static float hard_number(struct check *check, enum kva_dtype dtype)
{
    uint16_t bits = (uint16_t)check_random(check);
    double low = check_widen(bits, dtype), high = check_widen((uint16_t)(bits + 1), dtype);
    switch (check_below(check, 6)) {
    case 0:
        return (float)((low + high) / 2);
    case 1:
        return nextafterf((float)((low + high) / 2), INFINITY);
    case 2:
        return check_normal(check) * 1e5f;
    case 3:
        return check_below(check, 2) ? 3.4e38f : -65520.0f;
    case 4:
        return check_normal(check) * 1e-7f;
    default:
        return check_below(check, 2) ? -INFINITY : -0.0f;
    }
}

struct append_case {
    struct kva_kv_append_args args;
    struct check_buf blocks[3];
    size_t block_bytes;
};

/* What `value` should be stored as. Any pattern that is not a number stands for one. */
static uint16_t narrow(float value, enum kva_dtype dtype, uint16_t found)
{
    if (!isnan(value))
        return check_narrow(value, dtype);
    return isnan(check_widen(found, dtype)) ? found : 0;
}

static const char *append_compare(const struct append_case *test, const uint16_t *before)
{
    const struct kva_kv_append_args *args = &test->args;
    size_t elements = test->block_bytes / 2, dim = args->head_dim;
    uint16_t *expect = malloc(3 * test->block_bytes);
    memcpy(expect, before, 3 * test->block_bytes);
    for (size_t row = 0; row < args->rows; row++) {
        size_t block = 0;
        while (args->blocks[row] != test->blocks[block].data)
            block++;
        for (size_t i = 0; i < args->kv_heads * dim; i++) {
            size_t head = i / dim, slot = args->positions[row] % KVA_PAGE_TOKENS;
            size_t at = block * elements + args->block_offset_bytes / 2 +
                        (head * KVA_PAGE_TOKENS + slot) * 2 * dim + i % dim;
            const float *k = args->k, *v = args->v;
            float kx = k[row * args->kv_heads * dim + i], vx = v[row * args->kv_heads * dim + i];
            const uint16_t *found = test->blocks[block].data;
            size_t own = at - block * elements;
            expect[at] = narrow(kx, args->kv_dtype, found[own]);
            expect[at + dim] = narrow(vx, args->kv_dtype, found[own + dim]);
        }
    }
    const char *reason = NULL;
    for (size_t block = 0; block < 3 && !reason; block++) {
        if (memcmp(test->blocks[block].data, expect + block * elements, test->block_bytes) != 0)
            reason = "a block is not what rounding to nearest gives, or was written elsewhere";
        if (!check_buf_intact(&test->blocks[block]))
            reason = "wrote before a block";
    }
    free(expect);
    return reason;
}

static void append_case(struct check *check, uint32_t rows, uint32_t kv_heads, uint32_t head_dim,
                        enum kva_dtype dtype)
{
    size_t count = (size_t)rows * kv_heads * head_dim;
    size_t layer_bytes = kva_kv_block_bytes(kv_heads, head_dim);
    struct append_case test = {.block_bytes = 2 * layer_bytes};
    struct check_buf k = check_buf_new(count * sizeof(float));
    struct check_buf v = check_buf_new(count * sizeof(float));
    void **blocks = malloc(rows * sizeof *blocks);
    uint32_t *positions = malloc(rows * sizeof *positions);
    uint16_t *before = malloc(3 * test.block_bytes);
    for (size_t i = 0; i < count; i++) {
        ((float *)k.data)[i] = hard_number(check, dtype);
        ((float *)v.data)[i] = hard_number(check, dtype);
    }
    for (int i = 0; i < 3; i++)
        test.blocks[i] = check_buf_new(test.block_bytes);
    check_round_acts(check, k.data, count);
    check_round_acts(check, v.data, count);
    uint32_t position = check_below(check, 64);
    for (uint32_t row = 0; row < rows; row++) {
        positions[row] = position + row;
        blocks[row] = test.blocks[positions[row] / KVA_PAGE_TOKENS].data;
    }
    test.args = (struct kva_kv_append_args){.k = k.data,
                                            .v = v.data,
                                            .blocks = blocks,
                                            .block_offset_bytes = layer_bytes,
                                            .positions = positions,
                                            .rows = rows,
                                            .kv_heads = kv_heads,
                                            .head_dim = head_dim,
                                            .kv_dtype = dtype};
    for (uint32_t i = 0; i < 2 * check->variant_count; i++) {
        struct check_variant *variant = &check->variants[i / 2];
        for (size_t j = 0; j < 3; j++) {
            check_buf_garbage(check, &test.blocks[j]);
            memcpy(before + j * test.block_bytes / 2, test.blocks[j].data, test.block_bytes);
        }
        variant->ops.kv_append(i % 2 ? variant->many : variant->one, &test.args);
        const char *reason = append_compare(&test, before);
        if (!reason)
            reason = check_fault(variant, variant->one);
        char name[96];
        snprintf(name, sizeof name, "rows %u kv_heads %u head_dim %u %s", rows, kv_heads, head_dim,
                 kva_dtype_name(dtype));
        check_count(check, variant, OP_KV_APPEND, name, !reason, reason);
    }
    for (int i = 0; i < 3; i++)
        check_buf_free(&test.blocks[i]);
    free(blocks);
    free(positions);
    free(before);
    check_buf_free(&k);
    check_buf_free(&v);
}

void check_kv_append(struct check *check)
{
    const uint32_t dims[] = {3, 8, 64, 80, 96, 128, 256};
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        for (int dtype = KVA_F16; dtype <= KVA_BF16; dtype++) {
            append_case(check, 1, 4, dims[i], (enum kva_dtype)dtype);
            append_case(check, check_between(check, 2, 128), check_between(check, 1, 4), dims[i],
                        (enum kva_dtype)dtype);
        }
    }
}

/* --- merge ------------------------------------------------------------------------------------ */

static bool run_merge(struct check *check KVA_UNUSED, const struct check_variant *variant,
                      struct kva_device *device, const struct check_case *test, uint32_t first,
                      uint32_t rows, float *out)
{
    struct kva_merge_args args = *(const struct kva_merge_args *)test->opaque;
    struct kva_partial partials[64];
    size_t pair = (size_t)first * args.heads;
    for (uint32_t j = 0; j < args.partial_count; j++) {
        partials[j] = args.partials[j];
        partials[j].a += pair * args.head_dim;
        partials[j].m += pair;
        partials[j].e += pair;
    }
    args.out = out;
    args.partials = partials;
    args.rows = rows;
    variant->ops.merge(device, &args);
    return true;
}

static void merge_truth(const struct kva_merge_args *args, double *expect, double *bound)
{
    size_t dim = args->head_dim;
    for (size_t pair = 0; pair < (size_t)args->rows * args->heads; pair++) {
        double m = -INFINITY, e = 0;
        for (uint32_t j = 0; j < args->partial_count; j++)
            m = fmax(m, args->partials[j].m[pair]);
        for (uint32_t j = 0; j < args->partial_count && m > -INFINITY; j++)
            e += args->partials[j].e[pair] * exp(args->partials[j].m[pair] - m);
        for (size_t i = 0; i < dim; i++) {
            double sum = 0, size = 0;
            for (uint32_t j = 0; j < args->partial_count && m > -INFINITY; j++) {
                double c = exp(args->partials[j].m[pair] - m);
                sum += args->partials[j].a[pair * dim + i] * c;
                /* The exponent's argument is rounded: an error of its size. */
                double slack = 8 + args->partial_count + (c > 0 ? -log(c) : 0);
                size += fabs(args->partials[j].a[pair * dim + i]) * c * slack * 2;
            }
            expect[pair * dim + i] = e > 0 ? sum / e : 0;
            bound[pair * dim + i] = e > 0 ? size / e * UNIT + 0x1p-120 : 0;
        }
    }
}

static void merge_case(struct check *check, uint32_t partial_count, uint32_t rows, uint32_t heads,
                       uint32_t head_dim, float spread)
{
    size_t pairs = (size_t)rows * heads, count = pairs * head_dim;
    const double work = (double)count * partial_count;
    if (!check_wanted(check, OP_MERGE, work))
        return;
    struct check_buf a[64], m[64], e[64];
    struct kva_partial partials[64];
    for (uint32_t j = 0; j < partial_count; j++) {
        a[j] = check_buf_new(count * sizeof(float));
        m[j] = check_buf_new(pairs * sizeof(float));
        e[j] = check_buf_new(pairs * sizeof(float));
        partials[j] = (struct kva_partial){.a = a[j].data, .m = m[j].data, .e = e[j].data};
        check_fill(check, FILL_NORMAL, a[j].data, count);
        for (size_t i = 0; i < pairs; i++) {
            /* Row 0 sees nothing anywhere, others nothing now and then. */
            bool empty = i < heads || check_below(check, 4) == 0;
            partials[j].m[i] = empty ? -INFINITY : check_normal(check) * spread;
            partials[j].e[i] = empty ? 0.0f : 1.0f + (float)check_below(check, 1000);
            if (empty)
                memset(partials[j].a + i * head_dim, 0, head_dim * sizeof(float));
        }
    }
    double *expect = malloc(2 * count * sizeof(double));
    struct kva_merge_args args = {.partials = partials,
                                  .partial_count = partial_count,
                                  .rows = rows,
                                  .heads = heads,
                                  .head_dim = head_dim};
    merge_truth(&args, expect, expect + count);
    struct check_case test = {.op = OP_MERGE,
                              .run = run_merge,
                              .opaque = &args,
                              .rows = rows,
                              .cols = heads * head_dim,
                              .stride = heads * head_dim,
                              .expect = expect,
                              .bound = expect + count,
                              .norm_share = count < 64 ? 1 : 0.6,
                              .work = work};
    snprintf(test.name, sizeof test.name, "partials %u rows %u heads %u head_dim %u spread %g",
             partial_count, rows, heads, head_dim, (double)spread);
    check_case(check, &test);
    free(expect);
    for (uint32_t j = 0; j < partial_count; j++) {
        check_buf_free(&a[j]);
        check_buf_free(&m[j]);
        check_buf_free(&e[j]);
    }
}

void check_merge(struct check *check)
{
    const uint32_t dims[] = {3, 8, 64, 80, 128, 256};
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        merge_case(check, 1, 3, 4, dims[i], 1.0f);
        merge_case(check, 2, check_between(check, 2, 9), 5, dims[i], 10.0f);
        merge_case(check, 64, check_between(check, 2, 9), 8, dims[i], 300.0f);
    }
}
