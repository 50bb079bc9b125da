/* Cases of linear with weights in int8. */
#include "kernels/int8.h"
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The layout as int8.h draws it, read apart from the kernels. */
static const unsigned char *group_at(const struct kva_weight *w, size_t output, size_t group)
{
    size_t steps = ((size_t)w->cols + 31) / 32 * 8, groups = ((size_t)w->cols + 127) / 128;
    return (const unsigned char *)w->data + (output / 16 * (groups + steps) + group * 33) * 64;
}

static double scale_at(const struct kva_weight *w, size_t output, size_t group)
{
    float scale;
    memcpy(&scale, group_at(w, output, group) + output % 16 * 4, 4);
    return scale;
}

static int code_at(const struct kva_weight *w, size_t output, size_t input)
{
    const unsigned char *step =
        group_at(w, output, input / 128) + 64 + input % 128 / 4 * (size_t)64;
    return step[output % 16 * 4 + input % 4] - 128;
}

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

/* Sums of a group are exact. The product of the scales is rounded, and the total of the groups once
 * for each, then bias and residual: as many roundings of what is not larger than the sum of the
 * groups' sizes. */
static void int8_truth(const struct kva_linear_args *args, const float *initial, double *expect,
                       double *bound)
{
    const struct kva_weight *w = &args->weight;
    const size_t outputs = w->rows, inputs = w->cols;
    double *size = calloc((size_t)args->rows * outputs, sizeof *size);
    for (size_t i = 0; i < (size_t)args->rows * outputs; i++)
        expect[i] = 0;
    for (size_t row = 0; row < args->rows; row++) {
        const float *x = (const float *)args->x + row * args->x_stride;
        for (size_t group = 0; group * 128 < inputs; group++) {
            size_t count = kva_min_size(128, inputs - group * 128);
            int codes[128];
            double scale = round_row(x + group * 128, count, codes);
            for (size_t n = 0; n < outputs; n++) {
                long sum = 0;
                for (size_t i = 0; i < count; i++)
                    sum += (long)codes[i] * code_at(w, n, group * 128 + i);
                double term = scale * scale_at(w, n, group) * (double)sum;
                expect[row * outputs + n] += term;
                size[row * outputs + n] += fabs(term);
            }
        }
    }
    for (size_t i = 0; i < (size_t)args->rows * outputs; i++) {
        double bias = args->bias.data ? check_weight_at(&args->bias, i % outputs) : 0;
        double old = args->accumulate ? initial[i] : 0, sum = expect[i];
        expect[i] += bias + old;
        bound[i] = UNIT * (size[i] * ((double)inputs / 128 + 2) + 2 * fabs(bias) + 2 * fabs(old) +
                           2 * fabs(sum)) +
                   0x1p-126;
    }
    free(size);
}

static void int8_case(struct check *check, uint32_t rows, uint32_t outputs, uint32_t inputs,
                      enum check_fill fill, bool biased, bool accumulate)
{
    if (check->gpu || !check_wanted(check, OP_LINEAR_INT8, (double)rows * outputs * inputs))
        return;
    uint32_t x_stride = inputs + check_below(check, 3) * 5;
    uint32_t out_stride = outputs + check_below(check, 3) * 3;
    size_t count = (size_t)rows * outputs, x_count = (size_t)(rows - 1) * x_stride + inputs;
    enum kva_dtype from = (enum kva_dtype)check_below(check, KVA_DTYPE_COUNT);
    struct check_buf x = check_buf_new(x_count * sizeof(float)), plain, bias;
    struct check_buf weight = check_buf_new(kva_int8_bytes(outputs, inputs));
    struct kva_weight w = check_weight(check, &plain, from,
                                       fill == FILL_DENORMAL ? fill : FILL_NORMAL, outputs, inputs);
    struct kva_weight b = check_weight(check, &bias, KVA_BF16, FILL_NORMAL, 1, outputs);
    bool finite =
        kva_int8_quantise(w.data, from, outputs, inputs, 0, (outputs + 15) / 16, weight.data);
    struct kva_linear_args args = {
        .x = x.data,
        .weight = {.data = weight.data, .dtype = KVA_INT8, .rows = outputs, .cols = inputs},
        .rows = rows,
        .x_stride = x_stride,
        .out_stride = out_stride,
        .accumulate = accumulate,
    };
    if (biased)
        args.bias = b;
    check_fill(check, fill, x.data, x_count);
    float *initial = malloc(count * sizeof(float));
    check_fill(check, FILL_NORMAL, initial, count);
    double *expect = malloc(2 * count * sizeof(double));
    int8_truth(&args, initial, expect, expect + count);
    struct check_case test = {.op = OP_LINEAR_INT8,
                              .run = check_run_linear,
                              .opaque = &args,
                              .rows = rows,
                              .cols = outputs,
                              .stride = out_stride,
                              .initial = accumulate ? initial : NULL,
                              .expect = expect,
                              .bound = expect + count,
                              .norm_share = count < 64 ? 1 : 0.5,
                              .same_levels = UINT32_MAX};
    snprintf(test.name, sizeof test.name, "rows %u outputs %u inputs %u%s%s %s", rows, outputs,
             inputs, biased ? " bias" : "", accumulate ? " accumulate" : "", check_fill_name(fill));
    if (finite)
        check_case(check, &test);
    else
        check_count(check, &check->variants[0], OP_LINEAR_INT8, test.name, false,
                    "ordinary weights were refused");
    free(initial);
    free(expect);
    check_buf_free(&x);
    check_buf_free(&weight);
    check_buf_free(&plain);
    check_buf_free(&bias);
}

void check_linear_int8(struct check *check)
{
    /* Pieces of TinyLlama and of Llama 8B, the demo and stories260K whole; rows around every tile
     * of every level. */
    const uint32_t real[][3] = {{1, 64, 64},     {5, 172, 64},    {3, 64, 172},   {9, 320, 512},
                                {1, 512, 320},   {1, 256, 2048},  {40, 96, 2048}, {16, 640, 2048},
                                {13, 64, 5632},  {1, 128, 4096},  {64, 48, 4096}, {2, 32, 14336},
                                {12, 16, 14336}, {25, 100, 11008}};
    size_t real_count = check->quick ? 6 : KVA_COUNT_OF(real);
    for (size_t i = 0; i < real_count; i++)
        int8_case(check, real[i][0], real[i][1], real[i][2], FILL_NORMAL, check_below(check, 2),
                  check_below(check, 2));
    const uint32_t inputs[] = {1,   3,   4,   5,   63,  64,  65,   127,  128, 129,
                               132, 255, 256, 257, 511, 640, 1030, 2048, 2177};
    const uint32_t rows[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                             12, 13, 17, 18, 19, 24, 25, 31, 48, 97};
    const uint32_t outputs[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 95, 96, 97, 112, 193};
    uint32_t rounds = check->quick ? 60 : 400;
    for (uint32_t i = 0; i < rounds; i++)
        int8_case(check, rows[check_below(check, KVA_COUNT_OF(rows))],
                  outputs[check_below(check, KVA_COUNT_OF(outputs))],
                  inputs[check_below(check, KVA_COUNT_OF(inputs))],
                  (enum check_fill)check_below(check, FILL_COUNT), check_below(check, 2),
                  check_below(check, 2));
}
