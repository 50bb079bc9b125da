/* Cases of linear. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>

bool check_rows_alone(const struct check *check, const struct kva_linear_args *args, uint32_t most)
{
    return check->gpu && check->act != KVA_F32 && args->rows <= most && args->x_stride % 8 == 0 &&
           args->weight.cols % 8 == 0;
}

struct shape {
    uint32_t rows;
    uint32_t outputs;
    uint32_t inputs;
};

bool check_run_linear(struct check *check KVA_UNUSED, const struct check_variant *variant,
                      struct kva_device *device, const struct check_case *test, uint32_t first,
                      uint32_t rows, float *out)
{
    struct kva_linear_args args = *(const struct kva_linear_args *)test->opaque;
    args.out = out;
    args.x = (const float *)args.x + (size_t)first * args.x_stride;
    args.rows = rows;
    variant->ops.linear(device, &args);
    return true;
}

/* One output: a sum of K products goes by at least 8 lanes within blocks of 512 inputs: 64 terms a
 * lane, 3 additions of the tree, one of each block, a product rounding where products are not
 * fused, then bias and residual. */
static double sum_error(uint32_t inputs)
{
    uint32_t block = kva_min_u32(inputs, 512);
    return UNIT * (block / 8.0 + 8 + inputs / 512.0 + 2);
}

/* The same for products of bf16: 16 lanes, blocks of 2048, a rounding for each product. By tiles:
 * two chains of 16 products, their sum, one addition for every 32 inputs. */
static double sum_error_rounded(uint32_t inputs)
{
    uint32_t block = kva_min_u32(inputs, 2048);
    double lanes = block / 16.0 + 8 + inputs / 2048.0 + 2;
    return UNIT * fmax(lanes, 16 + 1 + (inputs + 31) / 32.0 + 2);
}

/* cuBLAS adds in any order. With a bias, its sum is rounded before the bias is added. */
static double sum_error_gpu(uint32_t inputs)
{
    return UNIT * (inputs + 8.0);
}

/* How products are made. */
enum precision { PRECISE, BF16_PRODUCTS, GPU };

/* BF16_PRODUCTS: as bf16 products have it, x and w rounded to bf16 without denormal numbers, which
 * products and sums flush to 0 too: an absolute error of each. */
static void linear_truth(const struct check *check, const struct kva_linear_args *args,
                         const float *initial, enum precision precision, double *expect,
                         double *bound)
{
    const struct kva_weight *w = &args->weight;
    size_t inputs = w->cols, outputs = w->rows;
    const bool rounded = precision == BF16_PRODUCTS;
    double relative = rounded            ? sum_error_rounded(w->cols)
                      : precision == GPU ? sum_error_gpu(w->cols)
                                         : sum_error(w->cols);
    double sum_unit = precision == GPU && !args->out_f32 ? format_unit(check->act) : 0;
    double sum_least = sum_unit > 0 ? format_least(check->act) : 0;
    double least = (double)inputs * (rounded ? 0x1p-125 : 0x1p-149);
    double *x = malloc(args->rows * inputs * sizeof(double));
    double *line = malloc(inputs * sizeof(double));
    for (size_t i = 0; i < args->rows * inputs; i++) {
        x[i] = ((const float *)args->x)[i / inputs * args->x_stride + i % inputs];
        x[i] = rounded ? check_round_bf16(x[i]) : x[i];
    }
    for (size_t n = 0; n < outputs; n++) {
        for (size_t k = 0; k < inputs; k++) {
            line[k] = check_weight_at(w, n * inputs + k);
            line[k] = rounded ? check_round_bf16(line[k]) : line[k];
        }
        double bias = args->bias.data ? check_weight_at(&args->bias, n) : 0;
        for (size_t row = 0; row < args->rows; row++) {
            double sum = 0, size = 0;
            for (size_t k = 0; k < inputs; k++) {
                double product = x[row * inputs + k] * line[k];
                sum += product;
                size += fabs(product);
            }
            double old = args->accumulate ? initial[row * outputs + n] : 0;
            expect[row * outputs + n] = sum + bias + old;
            bound[row * outputs + n] =
                size * relative + UNIT * (2 * fabs(bias) + 2 * fabs(old) + 2 * fabs(sum)) + least;
            if (args->bias.data)
                bound[row * outputs + n] +=
                    sum_unit * (fabs(sum + old) + size * relative) + sum_least;
        }
    }
    free(line);
    free(x);
}

static void linear_case(struct check *check, struct shape shape, enum kva_dtype dtype,
                        enum check_fill fill, bool biased, bool accumulate)
{
    const double work = (double)shape.rows * shape.outputs * shape.inputs;
    if (!check_wanted(check, OP_LINEAR, work))
        return;
    /* A matrix of one row is to a GPU a vector, which keeps its format: linear wants activations'. */
    if (check->gpu && shape.outputs == 1 && dtype != check->act)
        return;
    const uint32_t gaps[] = {0, 0, 8, 16, 5, 10}; /* a GPU's kernels want rows of whole vectors */
    uint32_t x_stride = shape.inputs + gaps[check_below(check, KVA_COUNT_OF(gaps))];
    uint32_t out_stride = shape.outputs + check_below(check, 3) * 3;
    size_t count = (size_t)shape.rows * shape.outputs;
    size_t x_count = (size_t)(shape.rows - 1) * x_stride + shape.inputs;
    struct check_buf x = check_buf_new(x_count * sizeof(float)), weight, bias;
    struct kva_linear_args args = {.x = x.data,
                                   .rows = shape.rows,
                                   .x_stride = x_stride,
                                   .out_stride = out_stride,
                                   .accumulate = accumulate,
                                   .out_f32 = check_below(check, 2)};
    check_fill(check, fill, x.data, x_count);
    args.weight = check_weight(check, &weight, dtype, fill == FILL_DENORMAL ? fill : FILL_NORMAL,
                               shape.outputs, shape.inputs);
    struct kva_weight b = check_weight(check, &bias, dtype, FILL_NORMAL, 1, shape.outputs);
    if (biased)
        args.bias = b;
    float *initial = malloc(count * sizeof(float));
    check_fill(check, FILL_NORMAL, initial, count);
    double *expect = malloc(4 * count * sizeof(double));
    const uint32_t bf16_levels = dtype == KVA_BF16 ? KVA_CPU_AVX512BF16 | KVA_CPU_AMX : 0;
    const uint32_t rounding_levels = check->gpu ? CHECK_LEVEL_CUDA : bf16_levels;
    linear_truth(check, &args, initial, PRECISE, expect, expect + count);
    if (rounding_levels)
        linear_truth(check, &args, initial, check->gpu ? GPU : BF16_PRODUCTS, expect + 2 * count,
                     expect + 3 * count);
    /* Roundings of a sum cancel: its error grows as the root of its length. The bound grows as the
     * length, so over many outputs the error is a small share of it. */
    struct check_case test = {.op = OP_LINEAR,
                              .run = check_run_linear,
                              .opaque = &args,
                              .rows = shape.rows,
                              .cols = shape.outputs,
                              .stride = out_stride,
                              .initial = accumulate ? initial : NULL,
                              .expect = expect,
                              .bound = expect + count,
                              .out_f32 = args.out_f32,
                              .work = work,
                              .rounding_levels = rounding_levels,
                              .expect_rounded = expect + 2 * count,
                              .bound_rounded = expect + 3 * count,
                              .rows_alone = check_rows_alone(check, &args, 16),
                              .norm_share = count < 64 ? 1 : 0.4,
                              .norm_share_rounded = count < 64 ? 1 : 0.4};
    snprintf(test.name, sizeof test.name, "rows %u outputs %u inputs %u %s%s%s %s", shape.rows,
             shape.outputs, shape.inputs, kva_dtype_name(dtype), biased ? " bias" : "",
             accumulate ? " accumulate" : "", check_fill_name(fill));
    check_case(check, &test);
    free(initial);
    free(expect);
    check_buf_free(&x);
    check_buf_free(&weight);
    check_buf_free(&bias);
}

void check_linear(struct check *check)
{
    /* stories260K whole, rows that fill a tile and a part of the next, pieces of TinyLlama and of
     * Llama 8B, heads of both. */
    const struct shape real[] = {
        {1, 64, 64},    {7, 32, 64},    {5, 172, 64},     {3, 64, 172},     {9, 512, 64},
        {1, 256, 2048}, {19, 48, 320},  {100, 256, 2048}, {16, 2048, 2048}, {1, 64, 5632},
        {33, 96, 5632}, {1, 128, 4096}, {64, 40, 4096},   {2, 24, 14336},   {13, 7, 14336},
    };
    /* Whole matrices of Llama 8B; more than a CPU's references should take. */
    const struct shape large[] = {{40, 2048, 4096}, {128, 1024, 4096}, {10, 14336, 4096}};
    size_t real_count = check->quick ? 7 : KVA_COUNT_OF(real);
    for (size_t i = 0; i < real_count; i++) {
        for (int dtype = 0; dtype < KVA_DTYPE_COUNT; dtype++)
            linear_case(check, real[i], (enum kva_dtype)dtype, FILL_NORMAL, check_below(check, 2),
                        check_below(check, 2));
    }
    for (size_t i = 0; i < KVA_COUNT_OF(large); i++)
        linear_case(check, large[i], KVA_BF16, FILL_NORMAL, check_below(check, 2), false);
    /* Edges of tiles, vectors and blocks. */
    const uint32_t inputs[] = {1,   7,   8,   15,   16,   17,   31,   33,  63,
                               511, 512, 513, 1030, 2047, 2048, 2049, 4100};
    const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 24, 25, 47, 48, 49, 95, 96, 97};
    const uint32_t outputs[] = {1, 2, 3, 4, 5, 11, 12, 13, 47, 48, 49, 95, 96, 97};
    uint32_t rounds = check->quick ? 60 : 400;
    for (uint32_t i = 0; i < rounds; i++) {
        struct shape shape = {rows[check_below(check, KVA_COUNT_OF(rows))],
                              outputs[check_below(check, KVA_COUNT_OF(outputs))],
                              inputs[check_below(check, KVA_COUNT_OF(inputs))]};
        linear_case(check, shape, (enum kva_dtype)(i % KVA_DTYPE_COUNT),
                    (enum check_fill)check_below(check, FILL_COUNT), check_below(check, 2),
                    check_below(check, 2));
    }
}
