/* Cases of linear. */
#include "tests/cuda/check.h"

#include <stdio.h>
#include <stdlib.h>

/* sum_k |x w|: what the order of additions may cost is a part of it. */
static float *magnitudes(const struct kva_linear_args *args)
{
    size_t outputs = args->weight.rows, inputs = args->weight.cols;
    float *size = calloc((size_t)args->rows * args->out_stride, sizeof *size);
    for (size_t row = 0; row < args->rows; row++) {
        for (size_t n = 0; n < outputs; n++) {
            const float *x = (const float *)args->x + row * args->x_stride;
            double sum = 0;
            for (size_t k = 0; k < inputs; k++)
                sum += fabs((double)x[k] * (double)check_fetch(args->weight.data, n * inputs + k,
                                                               args->weight.dtype));
            size[row * args->out_stride + n] = (float)sum;
        }
    }
    return size;
}

static void linear_case(struct check *check, uint32_t rows, uint32_t outputs, uint32_t inputs,
                        enum kva_dtype dtype)
{
    char name[96];
    bool accumulate = check_below(check, 2), biased = check_below(check, 2);
    bool out_f32 = check_below(check, 2);
    uint32_t x_stride = inputs + 8 * check_below(check, 2);
    uint32_t out_stride = outputs + 8 * check_below(check, 2);
    struct acts x = acts_new(check, check->act, (size_t)rows * x_stride, 1.0f);
    struct acts out =
        acts_new(check, out_f32 ? KVA_F32 : check->act, (size_t)rows * out_stride, 1.0f);
    struct both_weight weight = weight_new(check, dtype, outputs, inputs, 1.0f);
    struct both_weight bias = weight_new(check, dtype, 1, outputs, 1.0f);
    struct kva_linear_args args = {.out = out.cpu,
                                   .x = x.cpu,
                                   .weight = weight.cpu,
                                   .rows = rows,
                                   .x_stride = x_stride,
                                   .out_stride = out_stride,
                                   .accumulate = accumulate,
                                   .out_f32 = out_f32};
    if (biased)
        args.bias = bias.cpu;
    float *size = magnitudes(&args);
    kva_device_ops(check->cpu)->linear(check->cpu, &args);
    args.out = out.gpu;
    args.x = x.gpu;
    args.weight = weight.gpu;
    if (biased)
        args.bias = bias.gpu;
    kva_device_ops(check->gpu)->linear(check->gpu, &args);
    float *got = acts_read(check, &out);
    /* With a bias the sum is rounded twice, to numbers that the bias makes no smaller. */
    for (size_t i = 0; i < out.count; i++)
        size[i] =
            size[i] * 0x1p-18f + (biased ? 6.0f * (float)check_unit(out.dtype) : 0.0f) + 0x1p-24f;
    snprintf(name, sizeof name, "linear rows %u outputs %u inputs %u %s%s%s%s", rows, outputs,
             inputs, kva_dtype_name(dtype), biased ? " bias" : "", accumulate ? " accumulate" : "",
             out_f32 ? " f32" : "");
    check_close(check, name, got, out.cpu, size, out.count, 2 * check_unit(out.dtype), 1);
    free(got);
    free(size);
    acts_free(check, &x);
    acts_free(check, &out);
    weight_free(check, &weight);
    weight_free(check, &bias);
}

void check_linear(struct check *check)
{
    static const uint32_t shapes[][3] = {{1, 64, 64},  {7, 33, 64},  {3, 2, 172},  {17, 96, 128},
                                         {64, 40, 72}, {2, 300, 48}, {5, 128, 256}};
    static const uint32_t large[][3] = {
        {1, 4096, 4096}, {36, 1024, 4096}, {128, 1024, 2048}, {3, 14336, 4096}};
    check->op = "linear";
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        for (int dtype = 0; dtype < KVA_DTYPE_COUNT; dtype++)
            linear_case(check, shapes[i][0], shapes[i][1], shapes[i][2], (enum kva_dtype)dtype);
    }
    for (size_t i = 0; i < KVA_COUNT_OF(large) && check->large; i++)
        linear_case(check, large[i][0], large[i][1], large[i][2], check->act);
}
