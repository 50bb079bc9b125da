/* Cases of linear with packed weights. */
#include "kernels/packed_read.h"
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A row's codes and its scale in one group: the nearest whole numbers of x 127 / largest. */
static double round_row(const float *x, size_t count, int *codes)
{
    float largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    bool none = largest < 0x1p-100f;
    for (size_t i = 0; i < count; i++)
        codes[i] = none ? 0 : (int)nearbyintf(x[i] * (127.0f / largest));
    return none ? 0 : (double)(largest / 127.0f);
}

/* Adds the group of weights that begins at input `at`: to *expect what it should give, to *size the
 * sizes of its terms. */
static void add_group(const struct kva_weight *w, size_t n, size_t at, size_t count,
                      const int *codes, double x_scale, double *expect, double *size)
{
    const struct kva_packed_format *format = kva_packed_format(w->dtype);
    struct kva_packed_place place =
        kva_packed_find(format, w->data, w->cols, (uint32_t)n, (uint32_t)at);
    float min, scale = kva_packed_scale(format, place.head, place.group, place.lane, &min);
    long products = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        struct kva_packed_place one =
            kva_packed_find(format, w->data, w->cols, (uint32_t)n, (uint32_t)(at + i));
        long code = kva_packed_code(format, one.piece, one.lane, one.input);
        products += codes[i] * (code - format->zero);
        sum += codes[i];
    }
    const double terms[] = {x_scale * scale * (double)products, x_scale * min * (double)sum};
    *expect += terms[0] + terms[1];
    *size += fabs(terms[0]) + fabs(terms[1]);
}

/* Sums of a group of weights are exact. Each of a group of activations adds one or two roundings of
 * what is not larger than the sum of the sizes, each group of activations one, then bias and
 * residual. */
static void packed_truth(const struct kva_linear_args *args, const float *initial, double *expect,
                         double *bound)
{
    const struct kva_weight *w = &args->weight;
    const struct kva_packed_format *format = kva_packed_format(w->dtype);
    const size_t outputs = w->rows, inputs = w->cols, group = format->scale_inputs;
    const double roundings = 128.0 / (double)group * (1 + format->has_min);
    double *size = calloc((size_t)args->rows * outputs, sizeof *size);
    for (size_t i = 0; i < (size_t)args->rows * outputs; i++)
        expect[i] = 0;
    for (size_t row = 0; row < args->rows; row++) {
        const float *x = (const float *)args->x + row * args->x_stride;
        for (size_t first = 0; first < inputs; first += 128) {
            size_t end = kva_min_size(first + 128, inputs);
            int codes[128];
            double scale = round_row(x + first, end - first, codes);
            for (size_t n = 0; n < outputs; n++)
                for (size_t at = first; at < end; at += group)
                    add_group(w, n, at, kva_min_size(group, end - at), codes + (at - first), scale,
                              &expect[row * outputs + n], &size[row * outputs + n]);
        }
    }
    for (size_t i = 0; i < (size_t)args->rows * outputs; i++) {
        double bias = args->bias.data ? check_weight_at(&args->bias, i % outputs) : 0;
        double old = args->accumulate ? initial[i] : 0, sum = expect[i];
        expect[i] += bias + old;
        bound[i] = UNIT * (size[i] * ((double)inputs / 128 + roundings + 2) + 2 * fabs(bias) +
                           2 * fabs(old) + 2 * fabs(sum)) +
                   0x1p-126;
    }
    free(size);
}

/* A GPU does not round the rows: numbers times numbers, in fp32, the weights rounded to the
 * activations' format first. */
static void gpu_truth(const struct check *check, const struct kva_linear_args *args,
                      const float *initial, double *expect, double *bound)
{
    const struct kva_weight *w = &args->weight;
    const double weight_unit = format_unit(check->act), least = format_least(check->act);
    for (uint32_t n = 0; n < w->rows; n++) {
        double bias = args->bias.data ? check_weight_at(&args->bias, n) : 0;
        for (uint32_t row = 0; row < args->rows; row++) {
            const float *x = (const float *)args->x + (size_t)row * args->x_stride;
            const size_t at = (size_t)row * w->rows + n;
            double sum = 0, size = 0, inputs = 0;
            for (uint32_t i = 0; i < w->cols; i++) {
                double product = x[i] * (double)kva_packed_at(w->dtype, w->data, w->cols, n, i);
                sum += product;
                size += fabs(product);
                inputs += fabs(x[i]);
            }
            double old = args->accumulate ? initial[at] : 0;
            expect[at] = sum + bias + old;
            bound[at] = size * (UNIT * (w->cols + 8.0) + weight_unit) + inputs * least +
                        UNIT * (2 * fabs(bias) + 2 * fabs(old) + 2 * fabs(sum)) + 0x1p-126;
            /* Behind cuBLAS the sum is rounded before the bias is added. */
            if (args->bias.data && !args->out_f32)
                bound[at] += weight_unit * (fabs(sum + old) + size * UNIT * w->cols) + least;
        }
    }
}

static void packed_case(struct check *check, enum kva_dtype dtype, const uint32_t shape[3],
                        enum check_fill fill, bool biased, bool accumulate)
{
    const uint32_t rows = shape[0], outputs = shape[1], inputs = shape[2];
    if (!check_wanted(check, OP_LINEAR_PACKED, (double)rows * outputs * inputs))
        return;
    const uint32_t gaps[] = {0, 0, 8, 16, 5, 10}; /* a GPU's kernels want rows of whole vectors */
    uint32_t x_stride = inputs + gaps[check_below(check, KVA_COUNT_OF(gaps))];
    uint32_t out_stride = outputs + check_below(check, 3) * 3;
    size_t count = (size_t)rows * outputs, x_count = (size_t)(rows - 1) * x_stride + inputs;
    struct check_buf x = check_buf_new(x_count * sizeof(float)), weight, bias;
    struct kva_weight b = check_weight(check, &bias, KVA_BF16, FILL_NORMAL, 1, outputs);
    struct kva_linear_args args = {
        .x = x.data,
        .weight = check_packed_weight(check, &weight, dtype,
                                      fill == FILL_DENORMAL ? fill : FILL_NORMAL, outputs, inputs),
        .rows = rows,
        .x_stride = x_stride,
        .out_stride = out_stride,
        .accumulate = accumulate,
        .out_f32 = check_below(check, 2),
    };
    if (biased)
        args.bias = b;
    check_fill(check, fill, x.data, x_count);
    float *initial = malloc(count * sizeof(float));
    check_fill(check, FILL_NORMAL, initial, count);
    double *expect = malloc(4 * count * sizeof(double));
    packed_truth(&args, initial, expect, expect + count);
    if (check->gpu)
        gpu_truth(check, &args, initial, expect + 2 * count, expect + 3 * count);
    struct check_case test = {.op = OP_LINEAR_PACKED,
                              .run = check_run_linear,
                              .opaque = &args,
                              .rows = rows,
                              .work = (double)rows * outputs * inputs,
                              .cols = outputs,
                              .stride = out_stride,
                              .initial = accumulate ? initial : NULL,
                              .expect = expect,
                              .bound = expect + count,
                              .norm_share = count < 64 ? 1 : 0.5,
                              .rounding_levels = check->gpu ? CHECK_LEVEL_CUDA : 0,
                              .expect_rounded = expect + 2 * count,
                              .bound_rounded = expect + 3 * count,
                              /* A weight is rounded once for all rows. */
                              .norm_share_rounded = outputs * inputs < 64 || count < 64 ? 1 : 0.8,
                              .out_f32 = args.out_f32,
                              .same_levels = check->gpu ? 0 : UINT32_MAX,
                              .rows_alone = check_rows_alone(check, &args, 64)};
    snprintf(test.name, sizeof test.name, "%s rows %u outputs %u inputs %u%s%s %s",
             kva_dtype_name(dtype), rows, outputs, inputs, biased ? " bias" : "",
             accumulate ? " accumulate" : "", check_fill_name(fill));
    check_case(check, &test);
    free(initial);
    free(expect);
    check_buf_free(&x);
    check_buf_free(&weight);
    check_buf_free(&bias);
}

/* Whole pieces of 32 inputs: what GGUF's formats have; int8, and what we make, may have others. */
static uint32_t inputs_of(struct check *check, enum kva_dtype dtype)
{
    const uint32_t any[] = {1,   3,   4,   5,   63,  64,  65,   127,  128, 129,
                            132, 255, 256, 257, 511, 640, 1030, 2048, 2177};
    uint32_t inputs = any[check_below(check, KVA_COUNT_OF(any))];
    const uint32_t whole = kva_packed_format(dtype)->block_inputs < 256 ? 32 : 256;
    return kva_packed_is_made(dtype) && check_below(check, 2)
               ? inputs
               : (uint32_t)kva_align_up(inputs, whole);
}

void check_linear_packed(struct check *check)
{
    /* Pieces of TinyLlama and of Llama 8B, the demo and stories260K whole; rows around every tile
     * of every level. */
    const uint32_t real[][3] = {{1, 64, 64},     {5, 172, 64},     {3, 64, 172},   {9, 320, 512},
                                {1, 512, 320},   {1, 256, 2048},   {40, 96, 2048}, {16, 640, 2048},
                                {13, 64, 5632},  {1, 128, 4096},   {64, 48, 4096}, {2, 32, 14336},
                                {12, 16, 14336}, {25, 100, 11008}, {515, 20, 256}};
    size_t real_count = check->quick ? 6 : KVA_COUNT_OF(real);
    for (size_t i = 0; i < real_count; i++)
        packed_case(check, KVA_INT8, real[i], FILL_NORMAL, check_below(check, 2),
                    check_below(check, 2));
    for (enum kva_dtype dtype = KVA_Q4_0; dtype < KVA_DTYPE_END; dtype++)
        for (size_t i = check->quick ? 5 : 4; i < real_count; i += 5) {
            uint32_t shape[3] = {real[i][0], real[i][1], (uint32_t)kva_align_up(real[i][2], 256)};
            packed_case(check, dtype, shape, FILL_NORMAL, check_below(check, 2),
                        check_below(check, 2));
        }
    const uint32_t rows[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                             12, 13, 17, 18, 19, 24, 25, 31, 48, 97};
    const uint32_t outputs[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 95, 96, 97, 112, 193};
    const uint32_t kinds = KVA_DTYPE_END - KVA_INT8, rounds = check->quick ? 60 : 700;
    for (uint32_t i = 0; i < rounds; i++) {
        enum kva_dtype dtype = (enum kva_dtype)(KVA_INT8 + i % kinds);
        const uint32_t shape[3] = {rows[check_below(check, KVA_COUNT_OF(rows))],
                                   outputs[check_below(check, KVA_COUNT_OF(outputs))],
                                   inputs_of(check, dtype)};
        packed_case(check, dtype, shape, (enum check_fill)check_below(check, FILL_COUNT),
                    check_below(check, 2), check_below(check, 2));
    }
}
